/*
 * kernel.c - registration of compiled kernels, their attributes, launches and occupancy.
 *
 * A program's static constructors register every fat binary and every kernel with the runtime. Which architecture a
 * kernel would run as decides more than speed: CUB asks for it and refuses to sort when it is none that it was compiled
 * for. So the fat binary's table of contents is read when one of its kernels is first used, and the choice among its images
 * is the runtime's: machine code of the device's major version and the highest minor version not above the
 * device's, else the highest PTX not above it. The code itself is never looked at.
 */
#include "internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* What nvcc emits: the wrapper that is registered, the container's header, and the header of each image in it. */
#define WRAPPER_MAGIC 0x466243b1u
#define CONTAINER_MAGIC 0xba55ed50u
struct fat_wrapper {
    uint32_t magic, version;
    const void *container;
    void *unused;
};
struct fat_container {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t payload_bytes;
};
struct fat_image {
    uint16_t kind, version; /* kind: 1 PTX, 2 machine code */
    uint32_t header_bytes;
    uint64_t payload_bytes;
    uint32_t compressed_bytes, options_offset;
    uint16_t minor, major;
    uint32_t architecture;
};
enum { IMAGE_PTX = 1, IMAGE_MACHINE_CODE = 2 };

/* A registered fat binary. libtorch keeps the address of its handle, so modules are never moved. */
struct module {
    const struct fat_wrapper *wrapper;
    enum { NOT_CHOSEN, FOUND, NO_IMAGE } chosen;
    int binary_version, ptx_version;
};

struct kernel {
    const void *host_function;
    struct module *module;
    int max_dynamic_shared_bytes;
};

#define DEFAULT_SHARED_BYTES (48 << 10)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kernel *kernels;
static size_t kernel_count, kernel_capacity;
static int kernels_sorted;

/* --- registration --- */

SIM_EXPORT void **__cudaRegisterFatBinary(void *wrapper) {
    struct module *module = calloc(1, sizeof *module);
    if (module) module->wrapper = wrapper;
    return (void **)module;
}

SIM_EXPORT void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }

/* Called as the program ends; kernels of the module may still be named by other exit handlers, so it is kept. */
SIM_EXPORT void __cudaUnregisterFatBinary(void **handle) { (void)handle; }

SIM_EXPORT char __cudaInitModule(void **handle) {
    (void)handle;
    return 1;
}

SIM_EXPORT void __cudaRegisterFunction(void **handle, const char *host_function, char *device_function,
                                       const char *device_name, int thread_limit, void *tid, void *bid, void *block,
                                       void *grid, int *warp_size) {
    (void)device_function, (void)device_name, (void)thread_limit, (void)tid, (void)bid, (void)block, (void)grid;
    (void)warp_size;
    pthread_mutex_lock(&lock);
    if (kernel_count == kernel_capacity) {
        size_t capacity = kernel_capacity ? kernel_capacity * 2 : 1024;
        struct kernel *grown = realloc(kernels, capacity * sizeof *grown);
        if (grown) {
            kernels = grown;
            kernel_capacity = capacity;
        }
    }
    if (kernel_count < kernel_capacity) {
        kernels[kernel_count++] = (struct kernel){host_function, (struct module *)handle, DEFAULT_SHARED_BYTES};
        kernels_sorted = 0;
    }
    pthread_mutex_unlock(&lock);
}

SIM_EXPORT void __cudaRegisterVar(void **handle, char *shadow, char *address, const char *name, int external,
                                  size_t bytes, int constant, int global) {
    (void)handle, (void)shadow, (void)address, (void)name, (void)external, (void)bytes, (void)constant, (void)global;
}

SIM_EXPORT cuda_result __cudaGetKernel(const void **kernel, const void *host_function) {
    if (!kernel) return runtime_result(SIM_INVALID_VALUE);
    *kernel = host_function;
    return runtime_result(SIM_SUCCESS);
}

/* --- the image that the device would run --- */

static void choose_image(struct module *module) {
    const struct sim_device *device = inspect_cuda_sim_device();
    int capability = device->major * 10 + device->minor;
    int code = 0, ptx = 0;
    const struct fat_wrapper *wrapper = module->wrapper;
    const struct fat_container *container = wrapper && wrapper->magic == WRAPPER_MAGIC ? wrapper->container : NULL;
    if (container && container->magic == CONTAINER_MAGIC) {
        const char *at = (const char *)container + container->header_bytes;
        const char *end = at + container->payload_bytes;
        while (at + sizeof(struct fat_image) <= end) {
            const struct fat_image *image = (const struct fat_image *)at;
            int architecture = (int)image->architecture;
            if (!image->header_bytes) break;
            if (image->kind == IMAGE_MACHINE_CODE && architecture / 10 == device->major &&
                architecture <= capability && architecture > code)
                code = architecture;
            if (image->kind == IMAGE_PTX && architecture <= capability && architecture > ptx) ptx = architecture;
            at += image->header_bytes + image->payload_bytes;
        }
    }
    module->binary_version = code ? code : ptx ? capability : 0;
    module->ptx_version = code ? code : ptx;
    module->chosen = module->binary_version ? FOUND : NO_IMAGE;
}

static int compare_kernels(const void *left, const void *right) {
    uintptr_t a = (uintptr_t)((const struct kernel *)left)->host_function;
    uintptr_t b = (uintptr_t)((const struct kernel *)right)->host_function;
    return (a > b) - (a < b);
}

/* Under the lock. */
static struct kernel *find_kernel(const void *host_function) {
    if (!kernel_count) return NULL;
    if (!kernels_sorted) {
        qsort(kernels, kernel_count, sizeof *kernels, compare_kernels);
        kernels_sorted = 1;
    }
    struct kernel key = {.host_function = host_function};
    return bsearch(&key, kernels, kernel_count, sizeof *kernels, compare_kernels);
}

/* Whether the device has an image to run for a kernel. Under the lock. */
static cuda_result check_image(const struct kernel *kernel) {
    struct module *module = kernel ? kernel->module : NULL;
    if (!module) return SIM_INVALID_DEVICE_FUNCTION;
    if (module->chosen == NOT_CHOSEN) choose_image(module);
    return module->chosen == FOUND ? SIM_SUCCESS : SIM_NO_KERNEL_IMAGE;
}

SIM_EXPORT cuda_result cudaFuncGetAttributes(struct func_attributes *attributes, const void *function) {
    if (!attributes) return runtime_result(SIM_INVALID_VALUE);
    memset(attributes, 0, sizeof *attributes);
    pthread_mutex_lock(&lock);
    const struct kernel *kernel = find_kernel(function);
    cuda_result result = check_image(kernel);
    if (result == SIM_SUCCESS) {
        const struct module *module = kernel->module;
        attributes->binary_version = module->binary_version;
        attributes->ptx_version = module->ptx_version;
        attributes->max_threads_per_block = 1024;
        attributes->num_regs = 32; /* as occupancy assumes */
        attributes->max_dynamic_shared_size_bytes = kernel->max_dynamic_shared_bytes;
        attributes->preferred_shmem_carveout = -1;
    }
    pthread_mutex_unlock(&lock);
    return runtime_result(result);
}

SIM_EXPORT cuda_result cudaFuncSetAttribute(const void *function, int attribute, int value) {
    if (attribute != 8) return runtime_result(SIM_SUCCESS); /* not cudaFuncAttributeMaxDynamicSharedMemorySize */
    if (value < 0 || (size_t)value > inspect_cuda_sim_device()->shared_per_block_optin)
        return runtime_result(SIM_INVALID_VALUE);
    pthread_mutex_lock(&lock);
    struct kernel *kernel = find_kernel(function);
    if (kernel) kernel->max_dynamic_shared_bytes = value;
    pthread_mutex_unlock(&lock);
    return runtime_result(kernel ? SIM_SUCCESS : SIM_INVALID_DEVICE_FUNCTION);
}

/* --- launches --- */

SIM_EXPORT cuda_result cudaLaunchKernel(const void *function, struct dims grid, struct dims block, void **arguments,
                                        size_t shared_bytes, sim_stream_t stream) {
    (void)arguments;
    if (!function) return runtime_result(SIM_INVALID_DEVICE_FUNCTION);
    pthread_mutex_lock(&lock);
    const struct kernel *kernel = find_kernel(function);
    /* What was not registered comes from no fat binary: there is nothing to check. */
    cuda_result result = kernel ? check_image(kernel) : SIM_SUCCESS;
    pthread_mutex_unlock(&lock);
    if (result == SIM_SUCCESS) result = inspect_cuda_sim_launch(grid, block, shared_bytes, stream);
    return runtime_result(result);
}

SIM_EXPORT cuda_result __cudaLaunchKernel(const void *kernel, struct dims grid, struct dims block, void **arguments,
                                          size_t shared_bytes, sim_stream_t stream) {
    return cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}

SIM_EXPORT cuda_result cudaLaunchCooperativeKernel(const void *function, struct dims grid, struct dims block,
                                                   void **arguments, size_t shared_bytes, sim_stream_t stream) {
    return cudaLaunchKernel(function, grid, block, arguments, shared_bytes, stream);
}

SIM_EXPORT cuda_result cudaLaunchKernelExC(const struct launch_config *config, const void *function,
                                           void **arguments) {
    if (!config) return runtime_result(SIM_INVALID_VALUE);
    return cudaLaunchKernel(function, config->grid, config->block, arguments, config->dynamic_shared_bytes,
                            config->stream);
}

/* The `<<<...>>>` syntax pushes a configuration that the kernel's host stub pops: a stack per thread. */
static __thread struct configuration {
    struct dims grid, block;
    size_t shared_bytes;
    void *stream;
} configurations[16];
static __thread unsigned configuration_count;

SIM_EXPORT unsigned __cudaPushCallConfiguration(struct dims grid, struct dims block, size_t shared_bytes,
                                                void *stream) {
    if (configuration_count == sizeof configurations / sizeof *configurations) return 1;
    configurations[configuration_count++] = (struct configuration){grid, block, shared_bytes, stream};
    return 0;
}

SIM_EXPORT cuda_result __cudaPopCallConfiguration(struct dims *grid, struct dims *block, size_t *shared_bytes,
                                                  void **stream) {
    if (!configuration_count) return runtime_result(52); /* cudaErrorMissingConfiguration */
    const struct configuration *top = &configurations[--configuration_count];
    *grid = top->grid;
    *block = top->block;
    *shared_bytes = top->shared_bytes;
    *stream = top->stream;
    return SIM_SUCCESS;
}

/* --- occupancy --- */

SIM_EXPORT cuda_result cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int block_size,
                                                                     size_t shared_bytes) {
    if (!blocks || block_size < 1 || block_size > 1024) return runtime_result(SIM_INVALID_VALUE);
    if (!function) return runtime_result(SIM_INVALID_DEVICE_FUNCTION);
    *blocks = inspect_cuda_sim_blocks_per_multiprocessor(block_size, shared_bytes);
    return runtime_result(SIM_SUCCESS);
}

SIM_EXPORT cuda_result cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function,
                                                                              int block_size, size_t shared_bytes,
                                                                              unsigned flags) {
    (void)flags;
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, block_size, shared_bytes);
}

SIM_EXPORT cuda_result cudaOccupancyMaxActiveClusters(int *clusters, const void *function,
                                                      const struct launch_config *config) {
    if (!clusters || !config) return runtime_result(SIM_INVALID_VALUE);
    if (!function) return runtime_result(SIM_INVALID_DEVICE_FUNCTION);
    *clusters = inspect_cuda_sim_device()->major >= 9 ? inspect_cuda_sim_device()->multiprocessor_count : 0;
    return runtime_result(SIM_SUCCESS);
}
