/* nvshmem.c - the libnvshmem_host.so.3 stand-in: one processing element, with its heap on the simulated device. */
#include "../driver.h"

SIM_EXPORT void nvshmem_info_get_version(int *major, int *minor) {
    if (major) *major = 3;
    if (minor) *minor = 4;
}

SIM_EXPORT int nvshmem_team_n_pes(int team) {
    (void)team;
    return 1;
}

SIM_EXPORT void *nvshmem_malloc(size_t bytes) {
    device_pointer address = 0;
    return bytes && cuMemAlloc_v2(&address, bytes) == SIM_SUCCESS ? (void *)address : NULL;
}

SIM_EXPORT void nvshmem_free(void *pointer) { (void)cuMemFree_v2((device_pointer)pointer); }

SIM_EXPORT void *nvshmem_ptr(const void *pointer, int element) { return element == 0 ? (void *)pointer : NULL; }
