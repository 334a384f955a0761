/* device.c - the runtime's view of the device: properties, attributes, versions, and the driver's entry points. */
#include "internal.h"

#include <stdio.h>
#include <string.h>

SIM_EXPORT cuda_result cudaGetDeviceCount(int *count) { return runtime_result(cuDeviceGetCount(count)); }

SIM_EXPORT cuda_result cudaGetDevice(int *device) {
    if (!device) return runtime_result(SIM_INVALID_VALUE);
    *device = 0;
    return runtime_result(SIM_SUCCESS);
}

SIM_EXPORT cuda_result cudaSetDevice(int device) {
    return runtime_result(device == 0 ? SIM_SUCCESS : SIM_INVALID_DEVICE);
}

SIM_EXPORT cuda_result cudaDriverGetVersion(int *version) { return runtime_result(cuDriverGetVersion(version)); }

SIM_EXPORT cuda_result cudaRuntimeGetVersion(int *version) { return runtime_result(cuDriverGetVersion(version)); }

SIM_EXPORT cuda_result cudaDeviceGetAttribute(int *value, int attribute, int device) {
    return runtime_result(cuDeviceGetAttribute(value, attribute, device));
}

static int attribute(int which) {
    int value = 0;
    (void)cuDeviceGetAttribute(&value, which, 0);
    return value;
}

static void fill_limits(struct device_prop *prop) {
    prop->shared_mem_per_block = (size_t)attribute(ATTR_SHARED_PER_BLOCK);
    prop->shared_mem_per_block_optin = (size_t)attribute(ATTR_SHARED_PER_BLOCK_OPTIN);
    prop->shared_mem_per_multiprocessor = (size_t)attribute(ATTR_SHARED_PER_MULTIPROCESSOR);
    prop->reserved_shared_mem_per_block = (size_t)attribute(ATTR_RESERVED_SHARED_PER_BLOCK);
    prop->regs_per_block = attribute(ATTR_REGS_PER_BLOCK);
    prop->regs_per_multiprocessor = attribute(ATTR_REGS_PER_MULTIPROCESSOR);
    prop->warp_size = attribute(ATTR_WARP_SIZE);
    prop->max_threads_per_block = attribute(ATTR_MAX_THREADS_PER_BLOCK);
    prop->max_threads_per_multi_processor = attribute(ATTR_THREADS_PER_MULTIPROCESSOR);
    prop->max_blocks_per_multi_processor = attribute(ATTR_BLOCKS_PER_MULTIPROCESSOR);
    for (int i = 0; i < 3; i++) {
        prop->max_threads_dim[i] = attribute(ATTR_MAX_BLOCK_DIM_X + i);
        prop->max_grid_size[i] = attribute(ATTR_MAX_GRID_DIM_X + i);
    }
}

static void fill_memory(struct device_prop *prop) {
    prop->total_global_mem = inspect_cuda_sim_device()->total_bytes;
    prop->total_const_mem = (size_t)attribute(ATTR_TOTAL_CONST_MEM);
    prop->mem_pitch = (size_t)attribute(ATTR_MAX_PITCH);
    prop->texture_alignment = (size_t)attribute(ATTR_TEXTURE_ALIGNMENT);
    prop->texture_pitch_alignment = (size_t)attribute(ATTR_TEXTURE_PITCH_ALIGNMENT);
    prop->surface_alignment = (size_t)attribute(ATTR_SURFACE_ALIGNMENT);
    prop->memory_bus_width = attribute(ATTR_MEMORY_BUS_WIDTH);
    prop->l2_cache_size = attribute(ATTR_L2_CACHE_SIZE);
    prop->global_l1_cache_supported = attribute(ATTR_GLOBAL_L1_CACHE);
    prop->local_l1_cache_supported = attribute(ATTR_LOCAL_L1_CACHE);
    prop->can_map_host_memory = attribute(ATTR_CAN_MAP_HOST_MEMORY);
    prop->unified_addressing = attribute(ATTR_UNIFIED_ADDRESSING);
    prop->managed_memory = attribute(ATTR_MANAGED_MEMORY);
    prop->host_register_supported = attribute(ATTR_HOST_REGISTER);
    prop->memory_pools_supported = attribute(ATTR_MEMORY_POOLS);
}

SIM_EXPORT cuda_result cudaGetDeviceProperties(struct device_prop *prop, int device) {
    if (!prop) return runtime_result(SIM_INVALID_VALUE);
    if (device != 0) return runtime_result(SIM_INVALID_DEVICE);
    memset(prop, 0, sizeof *prop);
    (void)cuDeviceGetName(prop->name, sizeof prop->name, 0);
    (void)cuDeviceGetUuid(prop->uuid, 0);
    fill_limits(prop);
    fill_memory(prop);
    prop->major = attribute(ATTR_COMPUTE_CAPABILITY_MAJOR);
    prop->minor = attribute(ATTR_COMPUTE_CAPABILITY_MINOR);
    prop->multi_processor_count = attribute(ATTR_MULTIPROCESSOR_COUNT);
    prop->concurrent_kernels = attribute(ATTR_CONCURRENT_KERNELS);
    prop->async_engine_count = attribute(ATTR_ASYNC_ENGINE_COUNT);
    prop->stream_priorities_supported = attribute(ATTR_STREAM_PRIORITIES);
    prop->compute_preemption_supported = attribute(ATTR_COMPUTE_PREEMPTION);
    prop->cooperative_launch = attribute(ATTR_COOPERATIVE_LAUNCH);
    prop->cluster_launch = attribute(ATTR_CLUSTER_LAUNCH);
    prop->pci_bus_id = attribute(ATTR_PCI_BUS_ID);
    prop->host_numa_id = attribute(ATTR_HOST_NUMA_ID);
    prop->device_numa_id = -1;
    return runtime_result(SIM_SUCCESS);
}

SIM_EXPORT cuda_result cudaDeviceGetPCIBusId(char *text, int length, int device) {
    if (!text || length < 13) return runtime_result(SIM_INVALID_VALUE);
    if (device != 0) return runtime_result(SIM_INVALID_DEVICE);
    snprintf(text, (size_t)length, "0000:01:00.0");
    return runtime_result(SIM_SUCCESS);
}

/* Priorities run from 0, the lowest, down to -5, as on every card since Volta. */
SIM_EXPORT cuda_result cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return runtime_result(SIM_SUCCESS);
}

SIM_EXPORT cuda_result cudaDeviceSynchronize(void) { return runtime_result(cuCtxSynchronize()); }

/* One device: nothing to be a peer of. */
SIM_EXPORT cuda_result cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    if (!can) return runtime_result(SIM_INVALID_VALUE);
    if (device != 0 || peer != 0) return runtime_result(SIM_INVALID_DEVICE);
    *can = 0;
    return runtime_result(SIM_SUCCESS);
}

SIM_EXPORT cuda_result cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    (void)flags;
    return runtime_result(peer == 0 ? SIM_PEER_ACCESS_UNSUPPORTED : SIM_INVALID_DEVICE);
}

/* A symbol that the driver lacks is not an error of the call: the status says it. */
SIM_EXPORT cuda_result cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                                        unsigned long long flags, int *status) {
    if (!symbol || !function) return runtime_result(SIM_INVALID_VALUE);
    (void)cuGetProcAddress_v2(symbol, function, (int)version, flags, status);
    return runtime_result(SIM_SUCCESS);
}

SIM_EXPORT cuda_result cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
                                               int *status) {
    return cudaGetDriverEntryPointByVersion(symbol, function, SIM_CUDA_VERSION, flags, status);
}

SIM_EXPORT cuda_result cudaProfilerStart(void) { return runtime_result(SIM_SUCCESS); }

SIM_EXPORT cuda_result cudaProfilerStop(void) { return runtime_result(SIM_SUCCESS); }
