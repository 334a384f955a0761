/*
 * cublaslt.c - the libcublasLt.so.13 stand-in: descriptors, and one algorithm for every product.
 *
 * The workspace of a product is chosen by the caller (PyTorch allocates CUBLASLT_WORKSPACE_SIZE once); the algorithm
 * answers that it needs none of it, and the heuristic's answer is not used for anything else.
 */
#include "../sim.h"

#include <stdlib.h>
#include <string.h>

enum { CUBLAS_SUCCESS = 0, CUBLAS_ALLOC_FAILED = 3, CUBLAS_INVALID_VALUE = 7 };

#define CUBLASLT_VERSION 130100

struct algorithm {
    uint64_t data[8];
};

/* cublasLtMatmulHeuristicResult_t */
struct heuristic_result {
    struct algorithm algorithm;
    size_t workspace_bytes;
    int state;
    float waves_count;
    int reserved[4];
};
_Static_assert(sizeof(struct heuristic_result) == 96, "cublasLtMatmulHeuristicResult_t");

struct descriptor {
    int unused;
};

static int create(struct descriptor **out) {
    if (!out) return CUBLAS_INVALID_VALUE;
    *out = calloc(1, sizeof **out);
    return *out ? CUBLAS_SUCCESS : CUBLAS_ALLOC_FAILED;
}

static int destroy(struct descriptor *descriptor) {
    free(descriptor);
    return CUBLAS_SUCCESS;
}

/* Attributes describe the product and its epilogue; none of them has an effect here. */
static int set(struct descriptor *descriptor, const void *value) {
    return descriptor && value ? CUBLAS_SUCCESS : CUBLAS_INVALID_VALUE;
}

SIM_EXPORT size_t cublasLtGetVersion(void) { return CUBLASLT_VERSION; }

SIM_EXPORT int cublasLtCreate(struct descriptor **out) { return create(out); }

SIM_EXPORT int cublasLtDestroy(struct descriptor *handle) { return destroy(handle); }

SIM_EXPORT int cublasLtMatmulDescCreate(struct descriptor **out, int compute_type, int scale_type) {
    (void)compute_type, (void)scale_type;
    return create(out);
}

SIM_EXPORT int cublasLtMatmulDescDestroy(struct descriptor *descriptor) { return destroy(descriptor); }

SIM_EXPORT int cublasLtMatmulDescSetAttribute(struct descriptor *descriptor, int attribute, const void *value,
                                              size_t bytes) {
    (void)attribute, (void)bytes;
    return set(descriptor, value);
}

SIM_EXPORT int cublasLtMatrixLayoutCreate(struct descriptor **out, int type, uint64_t rows, uint64_t columns,
                                          int64_t stride) {
    (void)type, (void)rows, (void)columns, (void)stride;
    return create(out);
}

SIM_EXPORT int cublasLtMatrixLayoutDestroy(struct descriptor *descriptor) { return destroy(descriptor); }

SIM_EXPORT int cublasLtMatrixLayoutSetAttribute(struct descriptor *descriptor, int attribute, const void *value,
                                                size_t bytes) {
    (void)attribute, (void)bytes;
    return set(descriptor, value);
}

SIM_EXPORT int cublasLtMatmulPreferenceCreate(struct descriptor **out) { return create(out); }

SIM_EXPORT int cublasLtMatmulPreferenceDestroy(struct descriptor *descriptor) { return destroy(descriptor); }

SIM_EXPORT int cublasLtMatmulPreferenceSetAttribute(struct descriptor *descriptor, int attribute, const void *value,
                                                    size_t bytes) {
    (void)attribute, (void)bytes;
    return set(descriptor, value);
}

SIM_EXPORT int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d,
                                              void *preference, int requested, struct heuristic_result *results,
                                              int *returned) {
    (void)handle, (void)a, (void)b, (void)c, (void)d, (void)preference;
    if (!operation || !results || !returned || requested < 1) return CUBLAS_INVALID_VALUE;
    memset(results, 0, sizeof *results);
    results->waves_count = 1;
    *returned = 1;
    return CUBLAS_SUCCESS;
}

SIM_EXPORT int cublasLtMatmul(void *handle, void *operation, const void *alpha, const void *a, void *a_layout,
                              const void *b, void *b_layout, const void *beta, const void *c, void *c_layout, void *d,
                              void *d_layout, const struct algorithm *algorithm, void *workspace,
                              size_t workspace_bytes, void *stream) {
    (void)handle, (void)alpha, (void)a, (void)a_layout, (void)b, (void)b_layout, (void)beta, (void)c, (void)c_layout;
    (void)d, (void)d_layout, (void)algorithm, (void)workspace, (void)workspace_bytes;
    if (!operation) return CUBLAS_INVALID_VALUE;
    return inspect_cuda_sim_enqueue(stream) ? CUBLAS_INVALID_VALUE : CUBLAS_SUCCESS;
}
