/*
 * cublas.c - the libcublas.so.13 stand-in: handles and what they remember, and results that go to the host.
 *
 * Every handle is its own: PyTorch keeps one workspace per (handle, stream), and autograd's thread has a handle of its
 * own. The arithmetic itself is generated: it returns success.
 */
#include "../sim.h"

#include <stdlib.h>
#include <string.h>

enum { CUBLAS_SUCCESS = 0, CUBLAS_NOT_INITIALIZED = 1, CUBLAS_ALLOC_FAILED = 3, CUBLAS_INVALID_VALUE = 7 };

/* cuBLAS 13.1, which torch 2.11.0 is released with. */
#define CUBLAS_VERSION 130100

struct handle {
    void *stream;
    int math_mode, pointer_mode;
};

SIM_EXPORT int cublasCreate_v2(struct handle **out) {
    if (!out) return CUBLAS_INVALID_VALUE;
    *out = calloc(1, sizeof **out);
    return *out ? CUBLAS_SUCCESS : CUBLAS_ALLOC_FAILED;
}

SIM_EXPORT int cublasDestroy_v2(struct handle *handle) {
    if (!handle) return CUBLAS_NOT_INITIALIZED;
    free(handle);
    return CUBLAS_SUCCESS;
}

SIM_EXPORT int cublasGetVersion_v2(struct handle *handle, int *version) {
    (void)handle;
    if (!version) return CUBLAS_INVALID_VALUE;
    *version = CUBLAS_VERSION;
    return CUBLAS_SUCCESS;
}

/* The get and set calls of a handle's properties. */
#define PROPERTY(type, field, setter, getter)                      \
    SIM_EXPORT int setter(struct handle *handle, type value) {     \
        if (!handle) return CUBLAS_NOT_INITIALIZED;                \
        handle->field = value;                                     \
        return CUBLAS_SUCCESS;                                     \
    }                                                              \
    SIM_EXPORT int getter(struct handle *handle, type *value) {    \
        if (!handle) return CUBLAS_NOT_INITIALIZED;                \
        if (!value) return CUBLAS_INVALID_VALUE;                   \
        *value = handle->field;                                    \
        return CUBLAS_SUCCESS;                                     \
    }
PROPERTY(void *, stream, cublasSetStream_v2, cublasGetStream_v2)
PROPERTY(int, math_mode, cublasSetMathMode, cublasGetMathMode)
PROPERTY(int, pointer_mode, cublasSetPointerMode_v2, cublasGetPointerMode_v2)

/* The workspace is the caller's memory; cuBLAS asks for 256-byte alignment. */
SIM_EXPORT int cublasSetWorkspace_v2(struct handle *handle, void *workspace, size_t bytes) {
    if (!handle) return CUBLAS_NOT_INITIALIZED;
    if (bytes && (uintptr_t)workspace % 256) return CUBLAS_INVALID_VALUE;
    return CUBLAS_SUCCESS;
}

/* --- results on the host: zero, the value of every reduction over zeros --- */

static int clear_result(struct handle *handle, void *result, size_t bytes) {
    if (!handle) return CUBLAS_NOT_INITIALIZED;
    if (!result) return CUBLAS_INVALID_VALUE;
    if (!inspect_cuda_sim_is_device_pointer(result)) memset(result, 0, bytes);
    return CUBLAS_SUCCESS;
}

#define DOT(name, bytes)                                                                                          \
    SIM_EXPORT int name(struct handle *handle, int n, const void *x, int incx, const void *y, int incy, void *r) { \
        (void)n, (void)x, (void)incx, (void)y, (void)incy;                                                        \
        return clear_result(handle, r, bytes);                                                                    \
    }
DOT(cublasSdot_v2, 4)
DOT(cublasDdot_v2, 8)
DOT(cublasCdotu_v2, 8)
DOT(cublasCdotc_v2, 8)
DOT(cublasZdotu_v2, 16)
DOT(cublasZdotc_v2, 16)

#define REDUCE(name, bytes)                                                                \
    SIM_EXPORT int name(struct handle *handle, int n, const void *x, int incx, void *r) { \
        (void)n, (void)x, (void)incx;                                                     \
        return clear_result(handle, r, bytes);                                            \
    }
REDUCE(cublasSnrm2_v2, 4)
REDUCE(cublasDnrm2_v2, 8)
REDUCE(cublasScnrm2_v2, 4)
REDUCE(cublasDznrm2_v2, 8)
REDUCE(cublasSasum_v2, 4)
REDUCE(cublasDasum_v2, 8)
REDUCE(cublasScasum_v2, 4)
REDUCE(cublasDzasum_v2, 8)

/* Indices count from 1; the extreme of zeros is the first, and of nothing 0. */
#define EXTREME(name)                                                                       \
    SIM_EXPORT int name(struct handle *handle, int n, const void *x, int incx, int *r) {   \
        (void)x, (void)incx;                                                               \
        int status = clear_result(handle, r, sizeof *r);                                   \
        if (status == CUBLAS_SUCCESS && n > 0 && !inspect_cuda_sim_is_device_pointer(r)) *r = 1; \
        return status;                                                                     \
    }
EXTREME(cublasIsamax_v2)
EXTREME(cublasIdamax_v2)
EXTREME(cublasIcamax_v2)
EXTREME(cublasIzamax_v2)
EXTREME(cublasIsamin_v2)
EXTREME(cublasIdamin_v2)
EXTREME(cublasIcamin_v2)
EXTREME(cublasIzamin_v2)

/* cudaDataType: real half 2, bfloat16 14, float 0, double 1; complex float 4, double 5. */
static size_t type_bytes(int type) {
    switch (type) {
        case 2:
        case 14: return 2;
        case 1:
        case 4: return 8;
        case 5: return 16;
        default: return 4;
    }
}

SIM_EXPORT int cublasDotEx(struct handle *handle, int n, const void *x, int x_type, int incx, const void *y, int y_type,
                           int incy, void *result, int result_type, int execution_type) {
    (void)n, (void)x, (void)x_type, (void)incx, (void)y, (void)y_type, (void)incy, (void)execution_type;
    return clear_result(handle, result, type_bytes(result_type));
}

/* `info` is on the host: 0, no parameter was wrong. */
#define GEQRF_BATCHED(name)                                                                                      \
    SIM_EXPORT int name(struct handle *handle, int m, int n, void *const a[], int lda, void *const tau[],       \
                        int *info, int batch) {                                                                 \
        (void)m, (void)n, (void)a, (void)lda, (void)tau, (void)batch;                                           \
        return clear_result(handle, info, sizeof *info);                                                        \
    }
GEQRF_BATCHED(cublasSgeqrfBatched)
GEQRF_BATCHED(cublasDgeqrfBatched)
GEQRF_BATCHED(cublasCgeqrfBatched)
GEQRF_BATCHED(cublasZgeqrfBatched)

#define GELS_BATCHED(name)                                                                                       \
    SIM_EXPORT int name(struct handle *handle, int trans, int m, int n, int nrhs, void *const a[], int lda,     \
                        void *const c[], int ldc, int *info, int *device_info, int batch) {                     \
        (void)trans, (void)m, (void)n, (void)nrhs, (void)a, (void)lda, (void)c, (void)ldc, (void)device_info;   \
        (void)batch;                                                                                            \
        return clear_result(handle, info, sizeof *info);                                                        \
    }
GELS_BATCHED(cublasSgelsBatched)
GELS_BATCHED(cublasDgelsBatched)
GELS_BATCHED(cublasCgelsBatched)
GELS_BATCHED(cublasZgelsBatched)

/* `info` of getrsBatched is on the host, too. */
#define GETRS_BATCHED(name)                                                                                      \
    SIM_EXPORT int name(struct handle *handle, int trans, int n, int nrhs, void *const a[], int lda,            \
                        const int *pivots, void *const b[], int ldb, int *info, int batch) {                    \
        (void)trans, (void)n, (void)nrhs, (void)a, (void)lda, (void)pivots, (void)b, (void)ldb, (void)batch;    \
        return clear_result(handle, info, sizeof *info);                                                        \
    }
GETRS_BATCHED(cublasSgetrsBatched)
GETRS_BATCHED(cublasDgetrsBatched)
GETRS_BATCHED(cublasCgetrsBatched)
GETRS_BATCHED(cublasZgetrsBatched)
