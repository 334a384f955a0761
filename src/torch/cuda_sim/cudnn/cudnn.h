/* cudnn.h - what the files of the libcudnn.so.9 stand-in share. */
#ifndef INSPECT_CUDA_SIM_CUDNN_H
#define INSPECT_CUDA_SIM_CUDNN_H

#include "../sim.h"

#define CUDNN_SONAME "libcudnn.so.9"

/* cudnnStatus_t of cuDNN 9. */
enum { CUDNN_SUCCESS = 0, CUDNN_BAD_PARAM = 2000, CUDNN_NOT_SUPPORTED = 3000, CUDNN_INTERNAL_ERROR = 4000 };

#define CUDNN_MAX_DIMS 8

struct cudnn_handle {
    void *stream;
};

/* Tensor and filter descriptors: a filter has no strides. */
struct cudnn_tensor {
    int data_type, format, dims;
    int size[CUDNN_MAX_DIMS], stride[CUDNN_MAX_DIMS];
};

struct cudnn_convolution {
    int spatial_dims, groups;
    int padding[CUDNN_MAX_DIMS], stride[CUDNN_MAX_DIMS], dilation[CUDNN_MAX_DIMS];
};

/* Bytes of one element of a cudnnDataType_t. */
size_t cudnn_type_bytes(int data_type);

/* What a convolution asks for as workspace: from the source that the engine has set, else from the environment. Notes
 * that it is not modelled where neither knows. */
size_t cudnn_conv_workspace(const struct sim_convolution *convolution);

#endif
