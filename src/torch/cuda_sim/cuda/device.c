/*
 * device.c - the simulated device's description, and the driver calls that ask for it.
 *
 * The limits of each compute capability are those of the table "Technical Specifications per Compute Capability" of
 * the CUDA C++ Programming Guide. L2 size and multiprocessor count belong to a card, not to a capability: the
 * environment says them, and the defaults below are those of a common card of each capability.
 */
#define _GNU_SOURCE
#include "internal.h"

#include <stdlib.h>
#include <string.h>

struct capability {
    int value; /* major * 10 + minor */
    int threads_per_multiprocessor, blocks_per_multiprocessor;
    int shared_kib_per_multiprocessor, shared_kib_per_block;
    int l2_mib, multiprocessors;
};

static const struct capability CAPABILITIES[] = {
    {75, 1024, 16, 64, 64, 4, 40},      {80, 2048, 32, 164, 163, 40, 108}, {86, 1536, 16, 100, 99, 6, 82},
    {87, 1536, 16, 164, 163, 4, 16},    {89, 1536, 24, 100, 99, 72, 128},  {90, 2048, 32, 228, 227, 50, 132},
    {100, 2048, 32, 228, 227, 126, 148}, {103, 2048, 32, 228, 227, 126, 148}, {110, 1536, 24, 228, 227, 32, 20},
    {120, 1536, 24, 100, 99, 96, 170},  {121, 1536, 24, 100, 99, 24, 48},
};

static struct sim_device device;

static size_t environment_size(const char *name, size_t fallback) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : fallback;
}

/* "8.9", "89", "12.0" and "120" all name a capability. */
static int environment_capability(void) {
    const char *text = getenv("INSPECT_CUDA_SIM_CC");
    if (!text || !*text) return 89;
    char *end;
    long major = strtol(text, &end, 10);
    if (*end == '.') return (int)(major * 10 + strtol(end + 1, NULL, 10));
    return (int)major;
}

/* Before any other constructor of the stand-ins: everything else reads the device. */
__attribute__((constructor(101))) static void describe_device(void) {
    int wanted = environment_capability();
    const struct capability *found = &CAPABILITIES[0];
    for (size_t i = 0; i < sizeof CAPABILITIES / sizeof *CAPABILITIES; i++)
        if (CAPABILITIES[i].value <= wanted) found = &CAPABILITIES[i];
    const char *name = getenv("INSPECT_CUDA_SIM_NAME");
    strncpy(device.name, name && *name ? name : "Simulated CUDA device", sizeof device.name - 1);
    device.major = wanted / 10;
    device.minor = wanted % 10;
    device.multiprocessor_count = (int)environment_size("INSPECT_CUDA_SIM_SMS", (size_t)found->multiprocessors);
    device.total_bytes = environment_size("INSPECT_CUDA_SIM_TOTAL_BYTES", (size_t)24 << 30);
    device.base_bytes = environment_size("INSPECT_CUDA_SIM_BASE_BYTES", 0);
    device.l2_bytes = environment_size("INSPECT_CUDA_SIM_L2_BYTES", (size_t)found->l2_mib << 20);
    device.threads_per_multiprocessor = found->threads_per_multiprocessor;
    device.blocks_per_multiprocessor = found->blocks_per_multiprocessor;
    device.shared_per_multiprocessor = (size_t)found->shared_kib_per_multiprocessor << 10;
    device.shared_per_block_optin = (size_t)found->shared_kib_per_block << 10;
    device.conv_workspace_bytes = environment_size("INSPECT_CUDA_SIM_CONV_WORKSPACE_BYTES", 0);
    sim_memory_start(&device);
}

SIM_EXPORT const struct sim_device *inspect_cuda_sim_device(void) { return &device; }

void sim_device_set_total(size_t total_bytes) { device.total_bytes = total_bytes; }

SIM_EXPORT cuda_result cuInit(unsigned flags) { return flags ? SIM_INVALID_VALUE : SIM_SUCCESS; }

SIM_EXPORT cuda_result cuDriverGetVersion(int *version) {
    if (!version) return SIM_INVALID_VALUE;
    *version = SIM_CUDA_VERSION;
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuDeviceGetCount(int *count) {
    if (!count) return SIM_INVALID_VALUE;
    *count = 1;
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuDeviceGet(int *out, int ordinal) {
    if (!out) return SIM_INVALID_VALUE;
    if (ordinal != 0) return SIM_INVALID_DEVICE;
    *out = 0;
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuDeviceGetName(char *name, int length, int ordinal) {
    if (!name || length < 1) return SIM_INVALID_VALUE;
    if (ordinal != 0) return SIM_INVALID_DEVICE;
    strncpy(name, device.name, (size_t)length);
    name[length - 1] = 0;
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuDeviceGetUuid(char *uuid, int ordinal) {
    if (!uuid) return SIM_INVALID_VALUE;
    if (ordinal != 0) return SIM_INVALID_DEVICE;
    memcpy(uuid, "inspect-cuda-sim", 16);
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuDeviceGetUuid_v2(char *uuid, int ordinal) { return cuDeviceGetUuid(uuid, ordinal); }

SIM_EXPORT cuda_result cuDeviceTotalMem_v2(size_t *bytes, int ordinal) {
    if (!bytes) return SIM_INVALID_VALUE;
    if (ordinal != 0) return SIM_INVALID_DEVICE;
    *bytes = device.total_bytes;
    return SIM_SUCCESS;
}

/* Attributes that are not named here are capabilities that the device does not have: 0. */
static int attribute_value(int attribute) {
    switch (attribute) {
        case ATTR_MAX_THREADS_PER_BLOCK:
        case ATTR_MAX_BLOCK_DIM_X:
        case ATTR_MAX_BLOCK_DIM_Y: return SIM_MAX_THREADS_PER_BLOCK;
        case ATTR_MAX_BLOCK_DIM_Z: return SIM_MAX_BLOCK_Z;
        case ATTR_MAX_GRID_DIM_X: return SIM_MAX_GRID_X;
        case ATTR_MAX_GRID_DIM_Y:
        case ATTR_MAX_GRID_DIM_Z: return SIM_MAX_GRID_YZ;
        case ATTR_SHARED_PER_BLOCK: return 48 << 10;
        case ATTR_TOTAL_CONST_MEM: return 64 << 10;
        case ATTR_WARP_SIZE: return 32;
        case ATTR_MAX_PITCH: return 2147483647;
        case ATTR_REGS_PER_BLOCK:
        case ATTR_REGS_PER_MULTIPROCESSOR: return 65536;
        case ATTR_CLOCK_RATE: return 1500000;
        case ATTR_MEMORY_CLOCK_RATE: return 10000000;
        case ATTR_MEMORY_BUS_WIDTH: return 384;
        case ATTR_TEXTURE_ALIGNMENT:
        case ATTR_SURFACE_ALIGNMENT: return 512;
        case ATTR_TEXTURE_PITCH_ALIGNMENT: return 32;
        case ATTR_MULTIPROCESSOR_COUNT: return device.multiprocessor_count;
        case ATTR_PCI_BUS_ID: return 1;
        case ATTR_L2_CACHE_SIZE: return (int)device.l2_bytes;
        case ATTR_THREADS_PER_MULTIPROCESSOR: return device.threads_per_multiprocessor;
        case ATTR_ASYNC_ENGINE_COUNT: return 2;
        case ATTR_COMPUTE_CAPABILITY_MAJOR: return device.major;
        case ATTR_COMPUTE_CAPABILITY_MINOR: return device.minor;
        case ATTR_SHARED_PER_MULTIPROCESSOR: return (int)device.shared_per_multiprocessor;
        case ATTR_SHARED_PER_BLOCK_OPTIN: return (int)device.shared_per_block_optin;
        case ATTR_BLOCKS_PER_MULTIPROCESSOR: return device.blocks_per_multiprocessor;
        case ATTR_RESERVED_SHARED_PER_BLOCK: return device.major >= 8 ? 1024 : 0;
        case ATTR_CLUSTER_LAUNCH: return device.major >= 9;
        case ATTR_HOST_NUMA_ID: return -1;
        case ATTR_GPU_OVERLAP:
        case ATTR_CAN_MAP_HOST_MEMORY:
        case ATTR_CONCURRENT_KERNELS:
        case ATTR_UNIFIED_ADDRESSING:
        case ATTR_STREAM_PRIORITIES:
        case ATTR_GLOBAL_L1_CACHE:
        case ATTR_LOCAL_L1_CACHE:
        case ATTR_MANAGED_MEMORY:
        case ATTR_COMPUTE_PREEMPTION:
        case ATTR_COOPERATIVE_LAUNCH:
        case ATTR_HOST_REGISTER:
        case ATTR_VIRTUAL_MEMORY:
        case ATTR_POSIX_FD_HANDLES:
        case ATTR_MEMORY_POOLS: return 1;
        default: return 0;
    }
}

SIM_EXPORT cuda_result cuDeviceGetAttribute(int *value, int attribute, int ordinal) {
    if (!value) return SIM_INVALID_VALUE;
    if (ordinal != 0) return SIM_INVALID_DEVICE;
    *value = attribute_value(attribute);
    return SIM_SUCCESS;
}

/* --- contexts: one primary context, always there --- */

static void *const PRIMARY_CONTEXT = (void *)&device;

SIM_EXPORT cuda_result cuDevicePrimaryCtxGetState(int ordinal, unsigned *flags, int *active) {
    if (!flags || !active) return SIM_INVALID_VALUE;
    if (ordinal != 0) return SIM_INVALID_DEVICE;
    *flags = 0;
    *active = 1;
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuDevicePrimaryCtxRetain(void **context, int ordinal) {
    if (!context) return SIM_INVALID_VALUE;
    if (ordinal != 0) return SIM_INVALID_DEVICE;
    *context = PRIMARY_CONTEXT;
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuDevicePrimaryCtxRelease_v2(int ordinal) { return ordinal ? SIM_INVALID_DEVICE : SIM_SUCCESS; }

SIM_EXPORT cuda_result cuCtxGetCurrent(void **context) {
    if (!context) return SIM_INVALID_VALUE;
    *context = PRIMARY_CONTEXT;
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuCtxSetCurrent(void *context) {
    (void)context;
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuCtxPushCurrent_v2(void *context) {
    (void)context;
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuCtxPopCurrent_v2(void **context) {
    if (context) *context = PRIMARY_CONTEXT;
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuCtxGetDevice(int *out) {
    if (!out) return SIM_INVALID_VALUE;
    *out = 0;
    return SIM_SUCCESS;
}

/* CU_LIMIT_*: stack 0, printf buffer 1, heap of device malloc 2. Set and remembered; nothing runs that could reach one. */
static size_t limits[] = {1 << 10, 1 << 20, 8 << 20};

SIM_EXPORT cuda_result cuCtxGetLimit(size_t *value, unsigned limit) {
    if (!value) return SIM_INVALID_VALUE;
    if (limit >= sizeof limits / sizeof *limits) return SIM_UNSUPPORTED_LIMIT;
    *value = limits[limit];
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuCtxSetLimit(unsigned limit, size_t value) {
    if (limit >= sizeof limits / sizeof *limits) return SIM_UNSUPPORTED_LIMIT;
    limits[limit] = value;
    return SIM_SUCCESS;
}
