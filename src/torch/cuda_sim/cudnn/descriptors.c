/* descriptors.c - the cuDNN handle, versions and errors, and the descriptors of the classic API. */
#include "cudnn.h"

#include <stdlib.h>
#include <string.h>

/* cuDNN 9.19, which torch 2.11.0 is compiled with; PyTorch refuses an older library at run time. */
#define VERSION_MAJOR 9
#define VERSION_MINOR 19

SIM_EXPORT size_t cudnnGetVersion(void) { return VERSION_MAJOR * 10000 + VERSION_MINOR * 100; }

SIM_EXPORT size_t cudnnGetCudartVersion(void) { return 13000; }

SIM_EXPORT int cudnnGetProperty(int property, int *value) {
    if (!value || property < 0 || property > 2) return CUDNN_BAD_PARAM;
    *value = property == 0 ? VERSION_MAJOR : property == 1 ? VERSION_MINOR : 0;
    return CUDNN_SUCCESS;
}

SIM_EXPORT const char *cudnnGetErrorString(int status) {
    switch (status) {
        case CUDNN_SUCCESS: return "CUDNN_STATUS_SUCCESS";
        case CUDNN_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
        case CUDNN_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
        case CUDNN_INTERNAL_ERROR: return "CUDNN_STATUS_INTERNAL_ERROR";
        default: return "CUDNN_UNKNOWN_STATUS";
    }
}

SIM_EXPORT void cudnnGetLastErrorString(char *message, size_t bytes) {
    if (message && bytes) *message = 0;
}

size_t cudnn_type_bytes(int data_type) {
    switch (data_type) {
        case 1:                  /* double */
        case 10: return 8;       /* int64 */
        case 2:                  /* half */
        case 9: return 2;        /* bfloat16 */
        case 3:                  /* int8 */
        case 6:                  /* uint8 */
        case 11:                 /* boolean */
        case 12:                 /* fp8 */
        case 13:
        case 15: return 1;
        default: return 4;
    }
}

static int create(void **out, size_t bytes) {
    if (!out) return CUDNN_BAD_PARAM;
    *out = calloc(1, bytes);
    return *out ? CUDNN_SUCCESS : CUDNN_INTERNAL_ERROR;
}

static int destroy(void *descriptor) {
    free(descriptor);
    return CUDNN_SUCCESS;
}

SIM_EXPORT int cudnnCreate(void **out) { return create(out, sizeof(struct cudnn_handle)); }

SIM_EXPORT int cudnnDestroy(void *handle) { return destroy(handle); }

SIM_EXPORT int cudnnSetStream(struct cudnn_handle *handle, void *stream) {
    if (!handle) return CUDNN_BAD_PARAM;
    handle->stream = stream;
    return CUDNN_SUCCESS;
}

SIM_EXPORT int cudnnGetStream(struct cudnn_handle *handle, void **stream) {
    if (!handle || !stream) return CUDNN_BAD_PARAM;
    *stream = handle->stream;
    return CUDNN_SUCCESS;
}

/* --- tensors and filters --- */

SIM_EXPORT int cudnnCreateTensorDescriptor(void **out) { return create(out, sizeof(struct cudnn_tensor)); }

SIM_EXPORT int cudnnDestroyTensorDescriptor(void *descriptor) { return destroy(descriptor); }

SIM_EXPORT int cudnnCreateFilterDescriptor(void **out) { return create(out, sizeof(struct cudnn_tensor)); }

SIM_EXPORT int cudnnDestroyFilterDescriptor(void *descriptor) { return destroy(descriptor); }

static int set_sizes(struct cudnn_tensor *tensor, int data_type, int dims, const int *size) {
    if (!tensor || !size || dims < 1 || dims > CUDNN_MAX_DIMS) return CUDNN_BAD_PARAM;
    memset(tensor, 0, sizeof *tensor);
    tensor->data_type = data_type;
    tensor->dims = dims;
    memcpy(tensor->size, size, (size_t)dims * sizeof *size);
    return CUDNN_SUCCESS;
}

SIM_EXPORT int cudnnSetTensorNdDescriptor(struct cudnn_tensor *tensor, int data_type, int dims, const int *size,
                                          const int *stride) {
    if (!stride) return CUDNN_BAD_PARAM;
    int status = set_sizes(tensor, data_type, dims, size);
    if (status == CUDNN_SUCCESS) memcpy(tensor->stride, stride, (size_t)dims * sizeof *stride);
    return status;
}

SIM_EXPORT int cudnnSetFilterNdDescriptor(struct cudnn_tensor *filter, int data_type, int format, int dims,
                                          const int *size) {
    int status = set_sizes(filter, data_type, dims, size);
    if (status == CUDNN_SUCCESS) filter->format = format;
    return status;
}

/* Answers at most `wanted` dimensions, and how many there are. */
SIM_EXPORT int cudnnGetTensorNdDescriptor(const struct cudnn_tensor *tensor, int wanted, int *data_type, int *dims,
                                          int *size, int *stride) {
    if (!tensor || !data_type || !dims || wanted < 0) return CUDNN_BAD_PARAM;
    size_t count = (size_t)(wanted < tensor->dims ? wanted : tensor->dims);
    *data_type = tensor->data_type;
    *dims = tensor->dims;
    if (size) memcpy(size, tensor->size, count * sizeof *size);
    if (stride) memcpy(stride, tensor->stride, count * sizeof *stride);
    return CUDNN_SUCCESS;
}

SIM_EXPORT int cudnnGetFilterNdDescriptor(const struct cudnn_tensor *filter, int wanted, int *data_type, int *format,
                                          int *dims, int *size) {
    if (!format) return CUDNN_BAD_PARAM;
    int status = cudnnGetTensorNdDescriptor(filter, wanted, data_type, dims, size, NULL);
    if (status == CUDNN_SUCCESS) *format = filter->format;
    return status;
}

/* --- convolutions --- */

SIM_EXPORT int cudnnCreateConvolutionDescriptor(void **out) { return create(out, sizeof(struct cudnn_convolution)); }

SIM_EXPORT int cudnnDestroyConvolutionDescriptor(void *descriptor) { return destroy(descriptor); }

SIM_EXPORT int cudnnSetConvolutionNdDescriptor(struct cudnn_convolution *convolution, int dims, const int *padding,
                                               const int *stride, const int *dilation, int mode, int compute_type) {
    (void)mode, (void)compute_type;
    if (!convolution || dims < 1 || dims > CUDNN_MAX_DIMS || !padding || !stride || !dilation) return CUDNN_BAD_PARAM;
    size_t bytes = (size_t)dims * sizeof(int);
    convolution->spatial_dims = dims;
    convolution->groups = 1;
    memcpy(convolution->padding, padding, bytes);
    memcpy(convolution->stride, stride, bytes);
    memcpy(convolution->dilation, dilation, bytes);
    return CUDNN_SUCCESS;
}

SIM_EXPORT int cudnnSetConvolutionGroupCount(struct cudnn_convolution *convolution, int groups) {
    if (!convolution || groups < 1) return CUDNN_BAD_PARAM;
    convolution->groups = groups;
    return CUDNN_SUCCESS;
}

SIM_EXPORT int cudnnSetConvolutionMathType(struct cudnn_convolution *convolution, int math_type) {
    (void)math_type;
    return convolution ? CUDNN_SUCCESS : CUDNN_BAD_PARAM;
}

/* --- descriptors that only the kernels read --- */

#define OPAQUE_DESCRIPTOR(kind)                                                                \
    SIM_EXPORT int cudnnCreate##kind##Descriptor(void **out) { return create(out, 8); }        \
    SIM_EXPORT int cudnnDestroy##kind##Descriptor(void *descriptor) { return destroy(descriptor); }
OPAQUE_DESCRIPTOR(Activation)
OPAQUE_DESCRIPTOR(Dropout)
OPAQUE_DESCRIPTOR(Pooling)
OPAQUE_DESCRIPTOR(CTCLoss)
OPAQUE_DESCRIPTOR(SpatialTransformer)
