/*
 * nvml.c - the libnvidia-ml.so.1 stand-in: the management library that PyTorch opens by name.
 *
 * PyTorch asks it which processes use the device when memory runs out, and takes for granted that it knows the device
 * that CUDA has. A machine with a real card has a real one of these, which does not know ours; so it needs a stand-in
 * although nothing links it. It knows the one device, and this process on it.
 */
#include "../sim.h"

#include <string.h>
#include <unistd.h>

enum { NVML_SUCCESS = 0, NVML_INVALID_ARGUMENT = 2, NVML_NOT_SUPPORTED = 3, NVML_INSUFFICIENT_SIZE = 7 };

/* nvmlProcessInfo_v1_t */
struct process_info {
    unsigned pid;
    unsigned long long used_bytes;
};

/* The address of this is the device's handle. */
static char the_device;

SIM_EXPORT int nvmlInit_v2(void) { return NVML_SUCCESS; }

SIM_EXPORT int nvmlInit(void) { return NVML_SUCCESS; }

SIM_EXPORT int nvmlShutdown(void) { return NVML_SUCCESS; }

SIM_EXPORT const char *nvmlErrorString(int result) {
    switch (result) {
        case NVML_SUCCESS: return "Success";
        case NVML_INVALID_ARGUMENT: return "Invalid Argument";
        case NVML_NOT_SUPPORTED: return "Not Supported";
        case NVML_INSUFFICIENT_SIZE: return "Insufficient Size";
        default: return "Unknown Error";
    }
}

SIM_EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    if (!version) return NVML_INVALID_ARGUMENT;
    *version = 13000;
    return NVML_SUCCESS;
}

SIM_EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
    if (!count) return NVML_INVALID_ARGUMENT;
    *count = 1;
    return NVML_SUCCESS;
}

SIM_EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index || !device) return NVML_INVALID_ARGUMENT;
    *device = &the_device;
    return NVML_SUCCESS;
}

SIM_EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **device) {
    return bus_id ? nvmlDeviceGetHandleByIndex_v2(0, device) : NVML_INVALID_ARGUMENT;
}

SIM_EXPORT int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
    static const char UUID[] = "GPU-696e7370-6563-742d-6375-64612d73696d"; /* as the driver's, which is ASCII */
    if (device != &the_device || !text) return NVML_INVALID_ARGUMENT;
    if (length < sizeof UUID) return NVML_INSUFFICIENT_SIZE;
    memcpy(text, UUID, sizeof UUID);
    return NVML_SUCCESS;
}

/* nvmlMemory_t: what is the context's is this process's own, so it was not there before. */
SIM_EXPORT int nvmlDeviceGetMemoryInfo(void *device, unsigned long long memory[3]) {
    if (device != &the_device || !memory) return NVML_INVALID_ARGUMENT;
    struct sim_stats stats;
    inspect_cuda_sim_stats(&stats);
    unsigned long long used = stats.used_bytes - stats.base_bytes;
    memory[0] = stats.total_bytes;
    memory[1] = stats.total_bytes - used;
    memory[2] = used;
    return NVML_SUCCESS;
}

SIM_EXPORT int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, struct process_info *processes) {
    if (device != &the_device || !count) return NVML_INVALID_ARGUMENT;
    unsigned available = *count;
    *count = 1;
    if (!available || !processes) return NVML_INSUFFICIENT_SIZE;
    struct sim_stats stats;
    inspect_cuda_sim_stats(&stats);
    processes[0] = (struct process_info){(unsigned)getpid(), stats.used_bytes};
    return NVML_SUCCESS;
}

/* One device: no links to others, and no fabric. */
SIM_EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, int *type) {
    (void)device, (void)link, (void)type;
    return NVML_NOT_SUPPORTED;
}

SIM_EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, void *info) {
    (void)device, (void)link, (void)info;
    return NVML_NOT_SUPPORTED;
}

SIM_EXPORT int nvmlDeviceGetGpuFabricInfoV(void *device, void *info) {
    (void)device, (void)info;
    return NVML_NOT_SUPPORTED;
}
