/*
 * module.c - modules, functions, launches and occupancy.
 *
 * A module is loaded without looking into it, and every name in it is a function. A launch is checked against the
 * device's limits, as the driver checks it, and then counted: nothing runs.
 */
#include "internal.h"
#include "stream.h"

#include <stdlib.h>
#include <string.h>

struct sim_module {
    int unused;
};

struct sim_kernel {
    int max_dynamic_shared_bytes;
};

/* CU_FUNC_ATTRIBUTE_* */
enum {
    FUNC_MAX_THREADS_PER_BLOCK = 0,
    FUNC_SHARED_BYTES = 1,
    FUNC_CONST_BYTES = 2,
    FUNC_LOCAL_BYTES = 3,
    FUNC_REGISTERS = 4,
    FUNC_PTX_VERSION = 5,
    FUNC_BINARY_VERSION = 6,
    FUNC_MAX_DYNAMIC_SHARED_BYTES = 8,
};

/* Registers a thread of a kernel that is not looked into is taken to use. */
#define ASSUMED_REGISTERS 32

SIM_EXPORT cuda_result cuModuleLoadData(struct sim_module **out, const void *image) {
    if (!out || !image) return SIM_INVALID_VALUE;
    *out = calloc(1, sizeof **out);
    return *out ? SIM_SUCCESS : SIM_OUT_OF_MEMORY;
}

SIM_EXPORT cuda_result cuModuleLoadDataEx(struct sim_module **out, const void *image, unsigned count, int *options,
                                          void **values) {
    (void)count, (void)options, (void)values;
    return cuModuleLoadData(out, image);
}

SIM_EXPORT cuda_result cuModuleLoad(struct sim_module **out, const char *path) { return cuModuleLoadData(out, path); }

SIM_EXPORT cuda_result cuModuleUnload(struct sim_module *module) {
    if (!module) return SIM_INVALID_RESOURCE_HANDLE;
    free(module);
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuModuleGetFunction(struct sim_kernel **out, struct sim_module *module, const char *name) {
    if (!out || !module || !name) return SIM_INVALID_VALUE;
    /* Functions belong to their module and have no destroy call; they are few and small. */
    *out = calloc(1, sizeof **out);
    return *out ? SIM_SUCCESS : SIM_OUT_OF_MEMORY;
}

SIM_EXPORT cuda_result cuModuleGetGlobal_v2(device_pointer *address, size_t *bytes, struct sim_module *module,
                                            const char *name) {
    if (!module || !name) return SIM_INVALID_VALUE;
    if (bytes) *bytes = 0;
    if (address) *address = 0;
    return SIM_NOT_FOUND;
}

SIM_EXPORT cuda_result cuFuncGetAttribute(int *value, int attribute, struct sim_kernel *kernel) {
    if (!value || !kernel) return SIM_INVALID_VALUE;
    const struct sim_device *device = inspect_cuda_sim_device();
    switch (attribute) {
        case FUNC_MAX_THREADS_PER_BLOCK: *value = SIM_MAX_THREADS_PER_BLOCK; break;
        case FUNC_REGISTERS: *value = ASSUMED_REGISTERS; break;
        case FUNC_PTX_VERSION:
        case FUNC_BINARY_VERSION: *value = device->major * 10 + device->minor; break;
        case FUNC_MAX_DYNAMIC_SHARED_BYTES: *value = kernel->max_dynamic_shared_bytes; break;
        default: *value = 0;
    }
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuFuncSetAttribute(struct sim_kernel *kernel, int attribute, int value) {
    if (!kernel) return SIM_INVALID_VALUE;
    if (attribute != FUNC_MAX_DYNAMIC_SHARED_BYTES) return SIM_SUCCESS;
    if (value < 0 || (size_t)value > inspect_cuda_sim_device()->shared_per_block_optin) return SIM_INVALID_VALUE;
    kernel->max_dynamic_shared_bytes = value;
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuFuncSetCacheConfig(struct sim_kernel *kernel, int config) {
    (void)config;
    return kernel ? SIM_SUCCESS : SIM_INVALID_VALUE;
}

/* --- launches --- */

SIM_EXPORT cuda_result inspect_cuda_sim_launch(struct dims grid, struct dims block, size_t shared_bytes,
                                               sim_stream_t stream) {
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (!threads || threads > SIM_MAX_THREADS_PER_BLOCK || block.z > SIM_MAX_BLOCK_Z) return SIM_INVALID_CONFIGURATION;
    if (!grid.x || !grid.y || !grid.z || grid.x > SIM_MAX_GRID_X || grid.y > SIM_MAX_GRID_YZ || grid.z > SIM_MAX_GRID_YZ)
        return SIM_INVALID_CONFIGURATION;
    if (shared_bytes > inspect_cuda_sim_device()->shared_per_block_optin) return SIM_INVALID_VALUE;
    return sim_enqueue_launch(stream);
}

/* The driver has no code of its own for a bad configuration. */
static cuda_result driver_launch(struct dims grid, struct dims block, size_t shared_bytes, sim_stream_t stream) {
    cuda_result result = inspect_cuda_sim_launch(grid, block, shared_bytes, stream);
    return result == SIM_INVALID_CONFIGURATION ? SIM_INVALID_VALUE : result;
}

SIM_EXPORT cuda_result cuLaunchKernel(struct sim_kernel *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                      sim_stream_t stream, void **arguments, void **extra) {
    (void)arguments, (void)extra;
    if (!kernel) return SIM_INVALID_RESOURCE_HANDLE;
    return driver_launch((struct dims){grid_x, grid_y, grid_z}, (struct dims){block_x, block_y, block_z}, shared_bytes,
                         stream);
}

SIM_EXPORT cuda_result cuLaunchCooperativeKernel(struct sim_kernel *kernel, unsigned grid_x, unsigned grid_y,
                                                 unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                                                 unsigned shared_bytes, sim_stream_t stream, void **arguments) {
    return cuLaunchKernel(kernel, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, arguments,
                          NULL);
}

SIM_EXPORT cuda_result cuLaunchKernelEx(const struct driver_launch_config *config, struct sim_kernel *kernel,
                                        void **arguments, void **extra) {
    if (!config) return SIM_INVALID_VALUE;
    return cuLaunchKernel(kernel, config->grid_x, config->grid_y, config->grid_z, config->block_x, config->block_y,
                          config->block_z, config->shared_bytes, config->stream, arguments, extra);
}

/* Blocks of this size that fit on a multiprocessor: limited by threads, blocks, registers and shared memory. */
SIM_EXPORT int inspect_cuda_sim_blocks_per_multiprocessor(int block_size, size_t shared_bytes) {
    const struct sim_device *device = inspect_cuda_sim_device();
    int warps = (block_size + 31) / 32;
    int blocks = device->threads_per_multiprocessor / 32 / warps;
    int by_registers = 65536 / (ASSUMED_REGISTERS * 32 * warps);
    if (by_registers < blocks) blocks = by_registers;
    if (device->blocks_per_multiprocessor < blocks) blocks = device->blocks_per_multiprocessor;
    /* From compute capability 8.0 on, each block also takes 1 KiB for the system. */
    size_t shared = shared_bytes + (device->major >= 8 ? 1024 : 0);
    if (shared && device->shared_per_multiprocessor / shared < (size_t)blocks)
        blocks = (int)(device->shared_per_multiprocessor / shared);
    return blocks;
}

SIM_EXPORT cuda_result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, struct sim_kernel *kernel,
                                                                   int block_size, size_t shared_bytes) {
    if (!blocks || !kernel || block_size < 1 || block_size > SIM_MAX_THREADS_PER_BLOCK) return SIM_INVALID_VALUE;
    *blocks = inspect_cuda_sim_blocks_per_multiprocessor(block_size, shared_bytes);
    return SIM_SUCCESS;
}

/* One cluster a multiprocessor at least: how many fit depends on the card's layout, which nothing here allocates for. */
SIM_EXPORT cuda_result cuOccupancyMaxActiveClusters(int *clusters, struct sim_kernel *kernel,
                                                    const struct driver_launch_config *config) {
    if (!clusters || !kernel || !config) return SIM_INVALID_VALUE;
    *clusters = inspect_cuda_sim_device()->major >= 9 ? inspect_cuda_sim_device()->multiprocessor_count : 0;
    return SIM_SUCCESS;
}

/* --- linking at run time: the result is an image like any other --- */

SIM_EXPORT cuda_result cuLinkCreate_v2(unsigned count, int *options, void **values, void **state) {
    (void)count, (void)options, (void)values;
    if (!state) return SIM_INVALID_VALUE;
    *state = calloc(1, sizeof(struct sim_module));
    return *state ? SIM_SUCCESS : SIM_OUT_OF_MEMORY;
}

SIM_EXPORT cuda_result cuLinkAddData_v2(void *state, int type, void *data, size_t bytes, const char *name,
                                        unsigned count, int *options, void **values) {
    (void)type, (void)bytes, (void)name, (void)count, (void)options, (void)values;
    return state && data ? SIM_SUCCESS : SIM_INVALID_VALUE;
}

SIM_EXPORT cuda_result cuLinkComplete(void *state, void **image, size_t *bytes) {
    if (!state || !image) return SIM_INVALID_VALUE;
    *image = state;
    if (bytes) *bytes = sizeof(struct sim_module);
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuLinkDestroy(void *state) {
    free(state);
    return SIM_SUCCESS;
}

/* A tensor map is 128 bytes that only a kernel reads. */
SIM_EXPORT cuda_result cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address, const uint64_t *sizes,
                                              const uint64_t *strides, const uint32_t *box,
                                              const uint32_t *element_strides, int interleave, int swizzle,
                                              int promotion, int fill) {
    (void)type, (void)address, (void)sizes, (void)strides, (void)box, (void)element_strides, (void)interleave;
    (void)swizzle, (void)promotion, (void)fill;
    if (!map || !rank || rank > 5) return SIM_INVALID_VALUE;
    if (inspect_cuda_sim_device()->major < 9) return SIM_NOT_SUPPORTED;
    memset(map, 0, 128);
    return SIM_SUCCESS;
}
