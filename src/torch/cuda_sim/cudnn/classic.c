/*
 * classic.c - the classic API of convolution, batch norm, dropout and CTC: the calls that answer sizes or algorithms.
 * The calls that compute are generated.
 *
 * Workspaces are cuDNN's own business: their sizes come from no document. Convolutions ask cudnn_conv_workspace; the
 * others answer 0 and are noted as not modelled.
 */
#include "cudnn.h"

#include <string.h>

size_t cudnn_conv_workspace(const struct sim_convolution *convolution) {
    int64_t bytes = inspect_cuda_sim_conv_workspace(convolution);
    if (bytes >= 0) return (size_t)bytes;
    SIM_NOTE_GAP(CUDNN_SONAME, "convolution workspace", SIM_GAP_SIZE_UNKNOWN);
    return inspect_cuda_sim_device()->conv_workspace_bytes;
}

/* cudnnConvolutionFwdAlgoPerf_t and the two for the backward passes, which have the same layout. */
struct algorithm_performance {
    int algorithm, status;
    float time;
    size_t workspace_bytes;
    int determinism, math_type;
    int reserved[3];
};
_Static_assert(sizeof(struct algorithm_performance) == 48, "cudnnConvolutionFwdAlgoPerf_t");

enum { FORWARD = 0, BACKWARD_DATA = 1, BACKWARD_FILTER = 2 };

static void copy_sizes(int64_t *to, const int *from, int count) {
    for (int i = 0; i < count; i++) to[i] = from[i];
}

static size_t workspace(int kind, const struct cudnn_tensor *x, const struct cudnn_tensor *w,
                        const struct cudnn_convolution *convolution, const struct cudnn_tensor *y) {
    struct sim_convolution description = {.kind = kind, .data_type = x->data_type, .operations = 1};
    description.spatial_dims = convolution->spatial_dims < 6 ? convolution->spatial_dims : 6;
    copy_sizes(description.x, x->size, x->dims);
    copy_sizes(description.x_strides, x->stride, x->dims);
    copy_sizes(description.w, w->size, w->dims);
    copy_sizes(description.y, y->size, y->dims);
    copy_sizes(description.stride, convolution->stride, description.spatial_dims);
    copy_sizes(description.padding, convolution->padding, description.spatial_dims);
    copy_sizes(description.dilation, convolution->dilation, description.spatial_dims);
    return cudnn_conv_workspace(&description);
}

/* One algorithm for everything: the first of each enumeration, an implicit matrix product. */
static int one_algorithm(size_t bytes, int requested, int *returned, struct algorithm_performance *results) {
    if (!returned || !results || requested < 1) return CUDNN_BAD_PARAM;
    memset(results, 0, sizeof *results);
    results->workspace_bytes = bytes;
    results->determinism = 1;
    *returned = 1;
    return CUDNN_SUCCESS;
}

/* The three calls of each direction: the order of their descriptors, and which of them are x, w and y. */
#define ALGORITHM_CALLS(kind, name, first, second, third, x, w, y)                                    \
    SIM_EXPORT int cudnnGetConvolution##name##Algorithm_v7(void *handle, const void *first, const void *second,       \
                                                           const void *convolution, const void *third, int requested, \
                                                           int *returned, struct algorithm_performance *results) {    \
        (void)handle;                                                                                                 \
        if (!first || !second || !third || !convolution) return CUDNN_BAD_PARAM;                                      \
        return one_algorithm(workspace(kind, x, w, convolution, y), requested, returned, results);                    \
    }                                                                                                                 \
    SIM_EXPORT int cudnnGetConvolution##name##WorkspaceSize(void *handle, const void *first, const void *second,      \
                                                            const void *convolution, const void *third,              \
                                                            int algorithm, size_t *bytes) {                           \
        (void)handle, (void)algorithm;                                                                                \
        if (!first || !second || !third || !convolution || !bytes) return CUDNN_BAD_PARAM;                            \
        *bytes = workspace(kind, x, w, convolution, y);                                                               \
        return CUDNN_SUCCESS;                                                                                         \
    }                                                                                                                 \
    SIM_EXPORT int cudnnFindConvolution##name##AlgorithmEx(                                                           \
        void *handle, const void *first, const void *first_data, const void *second, const void *second_data,        \
        const void *convolution, const void *third, void *third_data, int requested, int *returned,                  \
        struct algorithm_performance *results, void *space, size_t space_bytes) {                                     \
        (void)first_data, (void)second_data, (void)third_data, (void)space, (void)space_bytes;                        \
        return cudnnGetConvolution##name##Algorithm_v7(handle, first, second, convolution, third, requested,          \
                                                       returned, results);                                            \
    }
ALGORITHM_CALLS(FORWARD, Forward, x, w, y, x, w, y)
ALGORITHM_CALLS(BACKWARD_DATA, BackwardData, w, dy, dx, dx, w, dy)
ALGORITHM_CALLS(BACKWARD_FILTER, BackwardFilter, x, dy, dw, x, dw, dy)

static int answer_zero(size_t *bytes) {
    if (!bytes) return CUDNN_BAD_PARAM;
    *bytes = 0;
    return CUDNN_SUCCESS;
}

SIM_EXPORT int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *handle, int mode, int operations,
                                                                        const void *x, const void *z, const void *y,
                                                                        const void *scale, const void *activation,
                                                                        size_t *bytes) {
    (void)handle, (void)mode, (void)operations, (void)x, (void)z, (void)y, (void)scale, (void)activation;
    SIM_NOTE_GAP(CUDNN_SONAME, __func__, SIM_GAP_SIZE_UNKNOWN);
    return answer_zero(bytes);
}

SIM_EXPORT int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *handle, int mode, int operations, const void *x,
                                                                 const void *y, const void *dy, const void *dz,
                                                                 const void *dx, const void *scale,
                                                                 const void *activation, size_t *bytes) {
    (void)handle, (void)mode, (void)operations, (void)x, (void)y, (void)dy, (void)dz, (void)dx, (void)scale;
    (void)activation;
    SIM_NOTE_GAP(CUDNN_SONAME, __func__, SIM_GAP_SIZE_UNKNOWN);
    return answer_zero(bytes);
}

SIM_EXPORT int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle, int mode, int operations,
                                                                    const void *activation, const void *x,
                                                                    size_t *bytes) {
    (void)handle, (void)mode, (void)operations, (void)activation, (void)x;
    SIM_NOTE_GAP(CUDNN_SONAME, __func__, SIM_GAP_SIZE_UNKNOWN);
    return answer_zero(bytes);
}

SIM_EXPORT int cudnnDropoutGetStatesSize(void *handle, size_t *bytes) {
    (void)handle;
    SIM_NOTE_GAP(CUDNN_SONAME, __func__, SIM_GAP_SIZE_UNKNOWN);
    return answer_zero(bytes);
}

SIM_EXPORT int cudnnGetCTCLossWorkspaceSize(void *handle, const void *probabilities, const void *gradients,
                                            const int *labels, const int *label_lengths, const int *input_lengths,
                                            int algorithm, void *loss, size_t *bytes) {
    (void)handle, (void)probabilities, (void)gradients, (void)labels, (void)label_lengths, (void)input_lengths;
    (void)algorithm, (void)loss;
    SIM_NOTE_GAP(CUDNN_SONAME, __func__, SIM_GAP_SIZE_UNKNOWN);
    return answer_zero(bytes);
}

SIM_EXPORT int cudnnGetCTCLossWorkspaceSize_v8(void *handle, int algorithm, void *loss, const void *probabilities,
                                               const void *gradients, size_t *bytes) {
    (void)handle, (void)algorithm, (void)loss, (void)probabilities, (void)gradients;
    SIM_NOTE_GAP(CUDNN_SONAME, __func__, SIM_GAP_SIZE_UNKNOWN);
    return answer_zero(bytes);
}
