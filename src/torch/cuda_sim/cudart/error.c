/*
 * error.c - the runtime's error state.
 *
 * Each thread has a last error: any call that fails sets it, cudaGetLastError returns and clears it, cudaPeekAtLastError
 * only returns it. A sticky error (a fault on the device) is different: from then on every call fails with it and nothing
 * clears it. The simulated device never faults by itself; inspect_cuda_sim_set_sticky_error makes it.
 */
#include "internal.h"

static __thread cuda_result last_error;

cuda_result runtime_result(cuda_result result) {
    int sticky = inspect_cuda_sim_sticky_error();
    if (sticky) result = sticky;
    if (result != SIM_SUCCESS) last_error = result;
    return result;
}

SIM_EXPORT cuda_result cudaPeekAtLastError(void) {
    int sticky = inspect_cuda_sim_sticky_error();
    return sticky ? sticky : last_error;
}

SIM_EXPORT cuda_result cudaGetLastError(void) {
    cuda_result error = cudaPeekAtLastError();
    last_error = SIM_SUCCESS;
    return error;
}

SIM_EXPORT const char *cudaGetErrorName(int code) { return inspect_cuda_sim_error_name(code); }

SIM_EXPORT const char *cudaGetErrorString(int code) { return inspect_cuda_sim_error_text(code); }
