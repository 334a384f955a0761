/*
 * cufft.c - the libcufft.so.12 stand-in: plans are numbers, each its own; transforms are generated.
 *
 * The work area of a plan depends on cuFFT's choice of kernels, which is not documented: 0, and noted.
 */
#include "../sim.h"

enum { CUFFT_SUCCESS = 0, CUFFT_INVALID_PLAN = 1, CUFFT_INVALID_VALUE = 4 };

static int next_plan = 1;

SIM_EXPORT int cufftCreate(int *plan) {
    if (!plan) return CUFFT_INVALID_VALUE;
    *plan = __atomic_fetch_add(&next_plan, 1, __ATOMIC_RELAXED);
    return CUFFT_SUCCESS;
}

SIM_EXPORT int cufftXtMakePlanMany(int plan, int rank, long long *sizes, long long *in_embed, long long in_stride,
                                   long long in_distance, int in_type, long long *out_embed, long long out_stride,
                                   long long out_distance, int out_type, long long batch, size_t *work_bytes,
                                   int execution_type) {
    (void)in_embed, (void)in_stride, (void)in_distance, (void)in_type, (void)out_embed, (void)out_stride;
    (void)out_distance, (void)out_type, (void)execution_type;
    if (plan < 1) return CUFFT_INVALID_PLAN;
    if (rank < 1 || rank > 3 || !sizes || !work_bytes || batch < 1) return CUFFT_INVALID_VALUE;
    SIM_NOTE_GAP("libcufft.so.12", "cufftXtMakePlanMany", SIM_GAP_SIZE_UNKNOWN);
    *work_bytes = 0;
    return CUFFT_SUCCESS;
}
