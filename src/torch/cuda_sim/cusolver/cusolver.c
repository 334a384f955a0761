/*
 * cusolver.c - the libcusolver.so.12 stand-in: handles, and the sizes of work buffers.
 *
 * The factorizations are generated: they write device memory only, and the `info` that PyTorch reads back is 0, "no
 * error". Their work buffers have no documented size: 0, and noted. Every buffer-size query ends in one or two
 * pointers to write; the macros below name the arguments before them.
 */
#include "../sim.h"

#include <stdlib.h>

#define SONAME "libcusolver.so.12"

enum { CUSOLVER_SUCCESS = 0, CUSOLVER_ALLOC_FAILED = 2, CUSOLVER_INVALID_VALUE = 3 };

static int create(void **out) {
    if (!out) return CUSOLVER_INVALID_VALUE;
    *out = calloc(1, 8);
    return *out ? CUSOLVER_SUCCESS : CUSOLVER_ALLOC_FAILED;
}

static int destroy(void *object) {
    free(object);
    return CUSOLVER_SUCCESS;
}

SIM_EXPORT int cusolverDnCreate(void **out) { return create(out); }
SIM_EXPORT int cusolverDnDestroy(void *handle) { return destroy(handle); }
SIM_EXPORT int cusolverDnCreateParams(void **out) { return create(out); }
SIM_EXPORT int cusolverDnDestroyParams(void *params) { return destroy(params); }
SIM_EXPORT int cusolverDnCreateGesvdjInfo(void **out) { return create(out); }
SIM_EXPORT int cusolverDnDestroyGesvdjInfo(void *info) { return destroy(info); }
SIM_EXPORT int cusolverDnCreateSyevjInfo(void **out) { return create(out); }
SIM_EXPORT int cusolverDnDestroySyevjInfo(void *info) { return destroy(info); }

/* Unused arguments are what this file is made of. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define WORK_SIZE(name, ...)                                       \
    SIM_EXPORT int name(void *handle, __VA_ARGS__, int *work) {    \
        if (!work) return CUSOLVER_INVALID_VALUE;                  \
        SIM_NOTE_GAP(SONAME, #name, SIM_GAP_SIZE_UNKNOWN);         \
        *work = 0;                                                 \
        return CUSOLVER_SUCCESS;                                   \
    }

/* The Jacobi methods and the batched ones have arguments after the size. */
#define WORK_SIZE_THEN(name, after, ...)                                  \
    SIM_EXPORT int name(void *handle, __VA_ARGS__, int *work, after) {    \
        if (!work) return CUSOLVER_INVALID_VALUE;                         \
        SIM_NOTE_GAP(SONAME, #name, SIM_GAP_SIZE_UNKNOWN);                \
        *work = 0;                                                        \
        return CUSOLVER_SUCCESS;                                          \
    }
#define WORK_SIZE_THEN_TWO(name, first, second, ...)                              \
    SIM_EXPORT int name(void *handle, __VA_ARGS__, int *work, first, second) {    \
        if (!work) return CUSOLVER_INVALID_VALUE;                                 \
        SIM_NOTE_GAP(SONAME, #name, SIM_GAP_SIZE_UNKNOWN);                        \
        *work = 0;                                                                \
        return CUSOLVER_SUCCESS;                                                  \
    }

/* For each of the four types: S and D have orthogonal and symmetric variants, C and Z unitary and Hermitian ones. */
#define FOR_TYPE(T, ORTHOGONAL, SYMMETRIC)                                                                           \
    WORK_SIZE(cusolverDn##T##geqrf_bufferSize, int m, int n, void *a, int lda)                                       \
    WORK_SIZE(cusolverDn##T##getrf_bufferSize, int m, int n, void *a, int lda)                                       \
    WORK_SIZE(cusolverDn##T##gesvd_bufferSize, int m, int n)                                                         \
    WORK_SIZE(cusolverDn##T##potrf_bufferSize, int uplo, int n, void *a, int lda)                                    \
    WORK_SIZE(cusolverDn##T##sytrf_bufferSize, int n, void *a, int lda)                                              \
    WORK_SIZE(cusolverDn##T##ORTHOGONAL##gqr_bufferSize, int m, int n, int k, const void *a, int lda,                \
              const void *tau)                                                                                      \
    WORK_SIZE(cusolverDn##T##ORTHOGONAL##mqr_bufferSize, int side, int trans, int m, int n, int k, const void *a,    \
              int lda, const void *tau, const void *c, int ldc)                                                     \
    WORK_SIZE(cusolverDn##T##SYMMETRIC##evd_bufferSize, int jobz, int uplo, int n, const void *a, int lda,           \
              const void *w)                                                                                        \
    WORK_SIZE_THEN(cusolverDn##T##SYMMETRIC##evj_bufferSize, void *params, int jobz, int uplo, int n,                \
                   const void *a, int lda, const void *w)                                                           \
    WORK_SIZE_THEN_TWO(cusolverDn##T##SYMMETRIC##evjBatched_bufferSize, void *params, int batch, int jobz, int uplo, \
                       int n, const void *a, int lda, const void *w)                                                \
    WORK_SIZE_THEN(cusolverDn##T##gesvdj_bufferSize, void *params, int jobz, int econ, int m, int n, const void *a,  \
                   int lda, const void *s, const void *u, int ldu, const void *v, int ldv)                          \
    WORK_SIZE_THEN_TWO(cusolverDn##T##gesvdjBatched_bufferSize, void *params, int batch, int jobz, int m, int n,     \
                       const void *a, int lda, const void *s, const void *u, int ldu, const void *v, int ldv)       \
    WORK_SIZE_THEN(cusolverDn##T##gesvdaStridedBatched_bufferSize, int batch, int jobz, int rank, int m, int n,      \
                   const void *a, int lda, long long stride_a, const void *s, long long stride_s, const void *u,    \
                   int ldu, long long stride_u, const void *v, int ldv, long long stride_v)
FOR_TYPE(S, or, sy)
FOR_TYPE(D, or, sy)
FOR_TYPE(C, un, he)
FOR_TYPE(Z, un, he)

/* --- the 64-bit interface: bytes on the device and on the host --- */

static int no_work(size_t *device_bytes, size_t *host_bytes) {
    if (!device_bytes || !host_bytes) return CUSOLVER_INVALID_VALUE;
    *device_bytes = *host_bytes = 0;
    return CUSOLVER_SUCCESS;
}

#define WORK_BYTES(name, ...)                                                                    \
    SIM_EXPORT int name(void *handle, __VA_ARGS__, size_t *device_bytes, size_t *host_bytes) {   \
        SIM_NOTE_GAP(SONAME, #name, SIM_GAP_SIZE_UNKNOWN);                                       \
        return no_work(device_bytes, host_bytes);                                                \
    }
WORK_BYTES(cusolverDnXgeqrf_bufferSize, void *params, int64_t m, int64_t n, int type_a, const void *a, int64_t lda,
           int type_tau, const void *tau, int compute_type)
WORK_BYTES(cusolverDnXpotrf_bufferSize, void *params, int uplo, int64_t n, int type_a, const void *a, int64_t lda,
           int compute_type)
WORK_BYTES(cusolverDnXsyevd_bufferSize, void *params, int jobz, int uplo, int64_t n, int type_a, const void *a,
           int64_t lda, int type_w, const void *w, int compute_type)
WORK_BYTES(cusolverDnXgeev_bufferSize, void *params, int jobvl, int jobvr, int64_t n, int type_a, const void *a,
           int64_t lda, int type_w, const void *w, int type_vl, const void *vl, int64_t ldvl, int type_vr,
           const void *vr, int64_t ldvr, int compute_type)
WORK_BYTES(cusolverDnXsytrs_bufferSize, int uplo, int64_t n, int64_t nrhs, int type_a, const void *a, int64_t lda,
           const int64_t *pivots, int type_b, void *b, int64_t ldb)

SIM_EXPORT int cusolverDnXsyevBatched_bufferSize(void *handle, void *params, int jobz, int uplo, int64_t n, int type_a,
                                                 const void *a, int64_t lda, int type_w, const void *w,
                                                 int compute_type, size_t *device_bytes, size_t *host_bytes,
                                                 int64_t batch) {
    SIM_NOTE_GAP(SONAME, "cusolverDnXsyevBatched_bufferSize", SIM_GAP_SIZE_UNKNOWN);
    return no_work(device_bytes, host_bytes);
}
