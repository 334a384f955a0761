/*
 * cusparselt.c - the libcusparseLt.so.0 stand-in: opaque objects that the caller owns, and two sizes.
 *
 * The objects are 512 bytes in the caller's memory; only the library reads them. Sizes that depend on its kernels are 0,
 * and noted.
 */
#include "../sim.h"

#include <string.h>

#define SONAME "libcusparseLt.so.0"
#define OBJECT_BYTES 512

enum { CUSPARSE_SUCCESS = 0, CUSPARSE_INVALID_VALUE = 3 };

#pragma GCC diagnostic ignored "-Wunused-parameter"

static int clear(void *object) {
    if (!object) return CUSPARSE_INVALID_VALUE;
    memset(object, 0, OBJECT_BYTES);
    return CUSPARSE_SUCCESS;
}

SIM_EXPORT int cusparseLtInit(void *handle) { return clear(handle); }

SIM_EXPORT int cusparseLtDenseDescriptorInit(const void *handle, void *matrix, int64_t rows, int64_t columns,
                                             int64_t ld, uint32_t alignment, int type, int order) {
    return clear(matrix);
}

SIM_EXPORT int cusparseLtStructuredDescriptorInit(const void *handle, void *matrix, int64_t rows, int64_t columns,
                                                  int64_t ld, uint32_t alignment, int type, int order, int sparsity) {
    return clear(matrix);
}

SIM_EXPORT int cusparseLtMatmulDescriptorInit(const void *handle, void *product, int op_a, int op_b, const void *a,
                                              const void *b, const void *c, const void *d, int compute_type) {
    return clear(product);
}

SIM_EXPORT int cusparseLtMatmulAlgSelectionInit(const void *handle, void *selection, const void *product,
                                                int algorithm) {
    return clear(selection);
}

SIM_EXPORT int cusparseLtMatmulPlanInit(const void *handle, void *plan, const void *product, const void *selection) {
    return clear(plan);
}

SIM_EXPORT int cusparseLtMatmulAlgGetAttribute(const void *handle, const void *selection, int attribute, void *data,
                                               size_t bytes) {
    if (!data) return CUSPARSE_INVALID_VALUE;
    memset(data, 0, bytes);
    return CUSPARSE_SUCCESS;
}

SIM_EXPORT int cusparseLtMatmulGetWorkspace(const void *handle, const void *plan, size_t *bytes) {
    if (!bytes) return CUSPARSE_INVALID_VALUE;
    SIM_NOTE_GAP(SONAME, "cusparseLtMatmulGetWorkspace", SIM_GAP_SIZE_UNKNOWN);
    *bytes = 0;
    return CUSPARSE_SUCCESS;
}

SIM_EXPORT int cusparseLtSpMMACompressedSize2(const void *handle, const void *matrix, size_t *compressed_bytes,
                                              size_t *buffer_bytes) {
    if (!compressed_bytes || !buffer_bytes) return CUSPARSE_INVALID_VALUE;
    SIM_NOTE_GAP(SONAME, "cusparseLtSpMMACompressedSize2", SIM_GAP_SIZE_UNKNOWN);
    *compressed_bytes = *buffer_bytes = 0;
    return CUSPARSE_SUCCESS;
}
