/*
 * cusparse.c - the libcusparse.so.12 stand-in: handles, descriptors, and the sizes of external buffers.
 *
 * Products and solves are generated: they write device memory only. External buffers have no documented size: 0, and
 * noted. The result of a sparse-sparse product depends on values that are not there: it has no nonzeros.
 */
#include "../sim.h"

#include <stdlib.h>
#include <string.h>

#define SONAME "libcusparse.so.12"

enum { CUSPARSE_SUCCESS = 0, CUSPARSE_ALLOC_FAILED = 2, CUSPARSE_INVALID_VALUE = 3 };

struct sparse_matrix {
    int64_t rows, columns, nonzeros;
};

static int create(void **out, size_t bytes) {
    if (!out) return CUSPARSE_INVALID_VALUE;
    *out = calloc(1, bytes);
    return *out ? CUSPARSE_SUCCESS : CUSPARSE_ALLOC_FAILED;
}

static int destroy(const void *object) {
    free((void *)object);
    return CUSPARSE_SUCCESS;
}

#define OBJECT(create_name, destroy_name)                                \
    SIM_EXPORT int create_name(void **out) { return create(out, 8); }    \
    SIM_EXPORT int destroy_name(const void *object) { return destroy(object); }
OBJECT(cusparseCreate, cusparseDestroy)
OBJECT(cusparseCreateMatDescr, cusparseDestroyMatDescr)
OBJECT(cusparseCreateBsrsm2Info, cusparseDestroyBsrsm2Info)
OBJECT(cusparseCreateBsrsv2Info, cusparseDestroyBsrsv2Info)
OBJECT(cusparseSpGEMM_createDescr, cusparseSpGEMM_destroyDescr)
OBJECT(cusparseSpSM_createDescr, cusparseSpSM_destroyDescr)
OBJECT(cusparseSpSV_createDescr, cusparseSpSV_destroyDescr)

SIM_EXPORT const char *cusparseGetErrorString(int status) {
    switch (status) {
        case CUSPARSE_SUCCESS: return "success";
        case CUSPARSE_ALLOC_FAILED: return "resource allocation failed";
        case CUSPARSE_INVALID_VALUE: return "invalid value";
        default: return "unknown error";
    }
}

/* Unused arguments are what the rest of this file is made of. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

static int create_sparse(void **out, int64_t rows, int64_t columns, int64_t nonzeros) {
    int status = create(out, sizeof(struct sparse_matrix));
    if (status == CUSPARSE_SUCCESS) *(struct sparse_matrix *)*out = (struct sparse_matrix){rows, columns, nonzeros};
    return status;
}

SIM_EXPORT int cusparseCreateCoo(void **out, int64_t rows, int64_t columns, int64_t nonzeros, void *row_indices,
                                 void *column_indices, void *values, int index_type, int base, int value_type) {
    return create_sparse(out, rows, columns, nonzeros);
}

SIM_EXPORT int cusparseCreateCsr(void **out, int64_t rows, int64_t columns, int64_t nonzeros, void *row_offsets,
                                 void *column_indices, void *values, int offset_type, int index_type, int base,
                                 int value_type) {
    return create_sparse(out, rows, columns, nonzeros);
}

SIM_EXPORT int cusparseDestroySpMat(const void *matrix) { return destroy(matrix); }

SIM_EXPORT int cusparseSpMatGetSize(const struct sparse_matrix *matrix, int64_t *rows, int64_t *columns,
                                    int64_t *nonzeros) {
    if (!matrix || !rows || !columns || !nonzeros) return CUSPARSE_INVALID_VALUE;
    *rows = matrix->rows;
    *columns = matrix->columns;
    *nonzeros = matrix->nonzeros;
    return CUSPARSE_SUCCESS;
}

SIM_EXPORT int cusparseCreateDnMat(void **out, int64_t rows, int64_t columns, int64_t ld, void *values, int value_type,
                                   int order) {
    return create(out, 8);
}

SIM_EXPORT int cusparseDestroyDnMat(const void *matrix) { return destroy(matrix); }

SIM_EXPORT int cusparseCreateDnVec(void **out, int64_t size, void *values, int value_type) { return create(out, 8); }

SIM_EXPORT int cusparseDestroyDnVec(const void *vector) { return destroy(vector); }

/* --- external buffers --- */

#define BUFFER_SIZE(name, type, ...)                               \
    SIM_EXPORT int name(void *handle, __VA_ARGS__, type *bytes) {  \
        if (!bytes) return CUSPARSE_INVALID_VALUE;                 \
        SIM_NOTE_GAP(SONAME, #name, SIM_GAP_SIZE_UNKNOWN);         \
        *bytes = 0;                                                \
        return CUSPARSE_SUCCESS;                                   \
    }
BUFFER_SIZE(cusparseSpMV_bufferSize, size_t, int op, const void *alpha, const void *a, const void *x, const void *beta,
            void *y, int type, int algorithm)
BUFFER_SIZE(cusparseSpMM_bufferSize, size_t, int op_a, int op_b, const void *alpha, const void *a, const void *b,
            const void *beta, void *c, int type, int algorithm)
BUFFER_SIZE(cusparseSDDMM_bufferSize, size_t, int op_a, int op_b, const void *alpha, const void *a, const void *b,
            const void *beta, void *c, int type, int algorithm)
BUFFER_SIZE(cusparseSpSV_bufferSize, size_t, int op, const void *alpha, const void *a, const void *x, void *y,
            int type, int algorithm, void *descriptor)
BUFFER_SIZE(cusparseSpSM_bufferSize, size_t, int op_a, int op_b, const void *alpha, const void *a, const void *b,
            void *c, int type, int algorithm, void *descriptor)
BUFFER_SIZE(cusparseXcoosort_bufferSizeExt, size_t, int m, int n, int nonzeros, const int *rows, const int *columns)
BUFFER_SIZE(cusparseXcsrsort_bufferSizeExt, size_t, int m, int n, int nonzeros, const int *offsets,
            const int *columns)

#define BSR_BUFFER_SIZES(T)                                                                                            \
    BUFFER_SIZE(cusparse##T##bsrsv2_bufferSize, int, int direction, int op, int mb, int nnzb, const void *descriptor, \
                void *values, const int *rows, const int *columns, int block, void *info)                             \
    BUFFER_SIZE(cusparse##T##bsrsm2_bufferSize, int, int direction, int op_a, int op_x, int mb, int n, int nnzb,      \
                const void *descriptor, void *values, const int *rows, const int *columns, int block, void *info)     \
    BUFFER_SIZE(cusparse##T##csrgeam2_bufferSizeExt, size_t, int m, int n, const void *alpha, const void *a,          \
                int nnz_a, const void *values_a, const int *rows_a, const int *columns_a, const void *beta,           \
                const void *b, int nnz_b, const void *values_b, const int *rows_b, const int *columns_b,              \
                const void *c, const void *values_c, const int *rows_c, const int *columns_c)
BSR_BUFFER_SIZES(S)
BSR_BUFFER_SIZES(D)
BSR_BUFFER_SIZES(C)
BSR_BUFFER_SIZES(Z)

/* The two steps of a sparse-sparse product ask for a buffer each. */
#define PRODUCT_STEP(name)                                                                                            \
    SIM_EXPORT int name(void *handle, int op_a, int op_b, const void *alpha, const void *a, const void *b,            \
                        const void *beta, struct sparse_matrix *c, int type, int algorithm, void *descriptor,         \
                        size_t *bytes, void *buffer) {                                                                \
        if (!bytes) return CUSPARSE_INVALID_VALUE;                                                                    \
        SIM_NOTE_GAP(SONAME, #name, SIM_GAP_SIZE_UNKNOWN);                                                            \
        *bytes = 0;                                                                                                   \
        return CUSPARSE_SUCCESS;                                                                                      \
    }
PRODUCT_STEP(cusparseSpGEMM_workEstimation)
PRODUCT_STEP(cusparseSpGEMM_compute)

/* --- single results, on the host or on the device as the pointer says --- */

static int answer(int *result, int value) {
    if (!result) return CUSPARSE_INVALID_VALUE;
    if (!inspect_cuda_sim_is_device_pointer(result)) *result = value;
    return CUSPARSE_SUCCESS;
}

SIM_EXPORT int cusparseXcsrgeam2Nnz(void *handle, int m, int n, const void *a, int nnz_a, const int *rows_a,
                                    const int *columns_a, const void *b, int nnz_b, const int *rows_b,
                                    const int *columns_b, const void *c, int *rows_c, int *total, void *workspace) {
    SIM_NOTE_GAP(SONAME, "cusparseXcsrgeam2Nnz", SIM_GAP_SIZE_UNKNOWN);
    return answer(total, 0);
}

/* -1: no pivot is zero. */
SIM_EXPORT int cusparseXbsrsv2_zeroPivot(void *handle, void *info, int *position) { return answer(position, -1); }

SIM_EXPORT int cusparseXbsrsm2_zeroPivot(void *handle, void *info, int *position) { return answer(position, -1); }
