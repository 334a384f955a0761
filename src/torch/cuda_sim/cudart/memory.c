/*
 * memory.c - the runtime's memory calls: allocation, the stream-ordered pool, pinned memory, copies.
 *
 * The stream-ordered allocator has one pool. What is freed stays reserved for later allocations until the pool is
 * trimmed or the release threshold says so at a synchronization; addresses are not reused.
 */
#include "internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

SIM_EXPORT cuda_result cudaMalloc(void **out, size_t bytes) {
    if (!out) return runtime_result(SIM_INVALID_VALUE);
    *out = NULL;
    if (!bytes) return runtime_result(SIM_SUCCESS);
    device_pointer address = 0;
    cuda_result result = cuMemAlloc_v2(&address, bytes);
    if (result == SIM_SUCCESS) *out = (void *)address;
    return runtime_result(result);
}

SIM_EXPORT cuda_result cudaFree(void *pointer) { return runtime_result(cuMemFree_v2((device_pointer)pointer)); }

SIM_EXPORT cuda_result cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    return runtime_result(cuMemGetInfo_v2(free_bytes, total_bytes));
}

SIM_EXPORT cuda_result cudaHostAlloc(void **out, size_t bytes, unsigned flags) {
    return runtime_result(cuMemHostAlloc(out, bytes, flags));
}

SIM_EXPORT cuda_result cudaMallocHost(void **out, size_t bytes) { return cudaHostAlloc(out, bytes, 0); }

SIM_EXPORT cuda_result cudaFreeHost(void *pointer) { return runtime_result(cuMemFreeHost(pointer)); }

SIM_EXPORT cuda_result cudaHostRegister(void *pointer, size_t bytes, unsigned flags) {
    return runtime_result(cuMemHostRegister_v2(pointer, bytes, flags));
}

SIM_EXPORT cuda_result cudaHostUnregister(void *pointer) { return runtime_result(cuMemHostUnregister(pointer)); }

SIM_EXPORT cuda_result cudaHostGetDevicePointer(void **out, void *host, unsigned flags) {
    if (!out || flags) return runtime_result(SIM_INVALID_VALUE);
    if (inspect_cuda_sim_memory_type(host) != MEMORY_HOST) return runtime_result(SIM_INVALID_VALUE);
    *out = host;
    return runtime_result(SIM_SUCCESS);
}

SIM_EXPORT cuda_result cudaPointerGetAttributes(struct pointer_attributes *attributes, const void *pointer) {
    if (!attributes || !pointer) return runtime_result(SIM_INVALID_VALUE);
    memset(attributes, 0, sizeof *attributes);
    attributes->type = inspect_cuda_sim_memory_type(pointer);
    attributes->device = attributes->type == MEMORY_UNREGISTERED ? -2 : 0; /* cudaInvalidDeviceId */
    if (attributes->type != MEMORY_UNREGISTERED) attributes->device_pointer = (void *)pointer;
    if (attributes->type != MEMORY_DEVICE) attributes->host_pointer = (void *)pointer;
    return runtime_result(SIM_SUCCESS);
}

/* --- copies and fills --- */

/* Kinds: host to host 0, host to device 1, device to host 2, device to device 3, by address 4. */
static cuda_result copy(void *destination, const void *source, size_t bytes, int kind, void *stream) {
    if (!bytes) return SIM_SUCCESS;
    if (!destination || !source) return SIM_INVALID_VALUE;
    if (kind < 0 || kind > 4) return SIM_INVALID_MEMCPY_DIRECTION;
    cuda_result result = inspect_cuda_sim_enqueue(stream);
    if (result == SIM_SUCCESS && !inspect_cuda_sim_is_capturing(stream))
        inspect_cuda_sim_copy(destination, source, bytes);
    return result;
}

SIM_EXPORT cuda_result cudaMemcpy(void *destination, const void *source, size_t bytes, int kind) {
    return runtime_result(copy(destination, source, bytes, kind, NULL));
}

SIM_EXPORT cuda_result cudaMemcpyAsync(void *destination, const void *source, size_t bytes, int kind, void *stream) {
    return runtime_result(copy(destination, source, bytes, kind, stream));
}

SIM_EXPORT cuda_result cudaMemcpyPeerAsync(void *destination, int to, const void *source, int from, size_t bytes,
                                           void *stream) {
    if (to != 0 || from != 0) return runtime_result(SIM_INVALID_DEVICE);
    return runtime_result(copy(destination, source, bytes, 4, stream));
}

SIM_EXPORT cuda_result cudaMemcpy2DAsync(void *destination, size_t destination_pitch, const void *source,
                                         size_t source_pitch, size_t width, size_t height, int kind, void *stream) {
    if (width > destination_pitch || width > source_pitch) return runtime_result(12); /* cudaErrorInvalidPitchValue */
    cuda_result result = SIM_SUCCESS;
    for (size_t row = 0; row < height && result == SIM_SUCCESS; row++)
        result = copy((char *)destination + row * destination_pitch, (const char *)source + row * source_pitch, width,
                      kind, stream);
    return runtime_result(result);
}

SIM_EXPORT cuda_result cudaMemcpyToSymbol(const void *symbol, const void *source, size_t bytes, size_t offset,
                                          int kind) {
    if (!symbol) return runtime_result(13); /* cudaErrorInvalidSymbol */
    return runtime_result(copy((char *)inspect_cuda_sim_symbol_address(symbol) + offset, source, bytes, kind, NULL));
}

SIM_EXPORT cuda_result cudaGetSymbolAddress(void **out, const void *symbol) {
    if (!out) return runtime_result(SIM_INVALID_VALUE);
    if (!symbol) return runtime_result(13); /* cudaErrorInvalidSymbol */
    *out = inspect_cuda_sim_symbol_address(symbol);
    return runtime_result(SIM_SUCCESS);
}

/* On pinned memory a fill is real: the host can read it. */
static cuda_result fill(void *destination, int value, size_t bytes, void *stream) {
    if (!bytes) return SIM_SUCCESS;
    int type = inspect_cuda_sim_memory_type(destination);
    if (type == MEMORY_UNREGISTERED) return SIM_INVALID_VALUE;
    if (type == MEMORY_HOST && !inspect_cuda_sim_is_capturing(stream)) memset(destination, value, bytes);
    return inspect_cuda_sim_enqueue(stream);
}

SIM_EXPORT cuda_result cudaMemset(void *destination, int value, size_t bytes) {
    return runtime_result(fill(destination, value, bytes, NULL));
}

SIM_EXPORT cuda_result cudaMemsetAsync(void *destination, int value, size_t bytes, void *stream) {
    return runtime_result(fill(destination, value, bytes, stream));
}

/* --- the stream-ordered pool --- */

/* cudaMemPoolAttr */
enum {
    POOL_REUSE_FOLLOW_EVENTS = 1,
    POOL_REUSE_OPPORTUNISTIC = 2,
    POOL_REUSE_INTERNAL = 3,
    POOL_RELEASE_THRESHOLD = 4,
    POOL_RESERVED_CURRENT = 5,
    POOL_RESERVED_HIGH = 6,
    POOL_USED_CURRENT = 7,
    POOL_USED_HIGH = 8,
};

struct pool_block {
    void *pointer;
    size_t bytes;
    struct pool_block *next;
};

static struct pool {
    pthread_mutex_t lock;
    int reuse[3];
    uint64_t release_threshold, reserved, reserved_high, used, used_high;
    struct pool_block *live, *idle;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .reuse = {1, 1, 1}};

SIM_EXPORT cuda_result cudaDeviceGetDefaultMemPool(struct pool **out, int device) {
    if (!out) return runtime_result(SIM_INVALID_VALUE);
    if (device != 0) return runtime_result(SIM_INVALID_DEVICE);
    *out = &pool;
    return runtime_result(SIM_SUCCESS);
}

/* Gives idle blocks back to the device until no more than `keep` bytes are reserved. Under the pool's lock. */
static void trim(uint64_t keep) {
    while (pool.idle && pool.reserved > keep) {
        struct pool_block *block = pool.idle;
        pool.idle = block->next;
        pool.reserved -= block->bytes;
        (void)cuMemFree_v2((device_pointer)block->pointer);
        free(block);
    }
}

/* The smallest idle block that holds the size, else a new one; NULL when the device has no room. */
static struct pool_block *take_block(size_t bytes) {
    struct pool_block **best = NULL;
    for (struct pool_block **at = &pool.idle; *at; at = &(*at)->next)
        if ((*at)->bytes >= bytes && (!best || (*at)->bytes < (*best)->bytes)) best = at;
    if (best && (*best)->bytes / 2 <= bytes) {
        struct pool_block *block = *best;
        *best = block->next;
        return block;
    }
    struct pool_block *block = malloc(sizeof *block);
    device_pointer address = 0;
    if (!block) return NULL;
    if (cuMemAlloc_v2(&address, bytes) != SIM_SUCCESS) {
        trim(0);
        if (cuMemAlloc_v2(&address, bytes) != SIM_SUCCESS) {
            free(block);
            return NULL;
        }
    }
    *block = (struct pool_block){(void *)address, bytes, NULL};
    pool.reserved += bytes;
    if (pool.reserved > pool.reserved_high) pool.reserved_high = pool.reserved;
    return block;
}

SIM_EXPORT cuda_result cudaMallocAsync(void **out, size_t bytes, void *stream) {
    if (!out || bytes > SIZE_MAX / 2) return runtime_result(out ? SIM_OUT_OF_MEMORY : SIM_INVALID_VALUE);
    *out = NULL;
    cuda_result result = inspect_cuda_sim_enqueue(stream);
    if (result != SIM_SUCCESS || !bytes) return runtime_result(result);
    size_t page = (size_t)2 << 20;
    pthread_mutex_lock(&pool.lock);
    struct pool_block *block = take_block((bytes + page - 1) / page * page);
    if (block) {
        block->next = pool.live;
        pool.live = block;
        pool.used += block->bytes;
        if (pool.used > pool.used_high) pool.used_high = pool.used;
        *out = block->pointer;
    }
    pthread_mutex_unlock(&pool.lock);
    return runtime_result(block ? SIM_SUCCESS : SIM_OUT_OF_MEMORY);
}

SIM_EXPORT cuda_result cudaFreeAsync(void *pointer, void *stream) {
    cuda_result result = inspect_cuda_sim_enqueue(stream);
    if (!pointer || result != SIM_SUCCESS) return runtime_result(result);
    pthread_mutex_lock(&pool.lock);
    struct pool_block **at = &pool.live;
    while (*at && (*at)->pointer != pointer) at = &(*at)->next;
    struct pool_block *block = *at;
    if (block) {
        *at = block->next;
        block->next = pool.idle;
        pool.idle = block;
        pool.used -= block->bytes;
        trim(pool.release_threshold);
    }
    pthread_mutex_unlock(&pool.lock);
    /* Memory of cudaMalloc may be freed in stream order, too. */
    return runtime_result(block ? SIM_SUCCESS : cuMemFree_v2((device_pointer)pointer));
}

SIM_EXPORT cuda_result cudaMemPoolGetAttribute(struct pool *which, int attribute, void *value) {
    if (which != &pool || !value) return runtime_result(SIM_INVALID_VALUE);
    pthread_mutex_lock(&pool.lock);
    cuda_result result = SIM_SUCCESS;
    switch (attribute) {
        case POOL_REUSE_FOLLOW_EVENTS:
        case POOL_REUSE_OPPORTUNISTIC:
        case POOL_REUSE_INTERNAL: *(int *)value = pool.reuse[attribute - 1]; break;
        case POOL_RELEASE_THRESHOLD: *(uint64_t *)value = pool.release_threshold; break;
        case POOL_RESERVED_CURRENT: *(uint64_t *)value = pool.reserved; break;
        case POOL_RESERVED_HIGH: *(uint64_t *)value = pool.reserved_high; break;
        case POOL_USED_CURRENT: *(uint64_t *)value = pool.used; break;
        case POOL_USED_HIGH: *(uint64_t *)value = pool.used_high; break;
        default: result = SIM_INVALID_VALUE;
    }
    pthread_mutex_unlock(&pool.lock);
    return runtime_result(result);
}

/* The high-water marks can only be set to zero, which sets them to the current value. */
SIM_EXPORT cuda_result cudaMemPoolSetAttribute(struct pool *which, int attribute, void *value) {
    if (which != &pool || !value) return runtime_result(SIM_INVALID_VALUE);
    pthread_mutex_lock(&pool.lock);
    cuda_result result = SIM_SUCCESS;
    switch (attribute) {
        case POOL_REUSE_FOLLOW_EVENTS:
        case POOL_REUSE_OPPORTUNISTIC:
        case POOL_REUSE_INTERNAL: pool.reuse[attribute - 1] = *(int *)value; break;
        case POOL_RELEASE_THRESHOLD: pool.release_threshold = *(uint64_t *)value; break;
        case POOL_RESERVED_HIGH: pool.reserved_high = pool.reserved; break;
        case POOL_USED_HIGH: pool.used_high = pool.used; break;
        default: result = SIM_INVALID_VALUE;
    }
    pthread_mutex_unlock(&pool.lock);
    return runtime_result(result);
}

SIM_EXPORT cuda_result cudaMemPoolSetAccess(struct pool *which, const struct mem_access_desc *access, size_t count) {
    return runtime_result(which == &pool && (access || !count) ? SIM_SUCCESS : SIM_INVALID_VALUE);
}

SIM_EXPORT cuda_result cudaMemPoolTrimTo(struct pool *which, size_t keep) {
    if (which != &pool) return runtime_result(SIM_INVALID_VALUE);
    pthread_mutex_lock(&pool.lock);
    trim(keep);
    pthread_mutex_unlock(&pool.lock);
    return runtime_result(SIM_SUCCESS);
}

/* Sharing memory or events with another process: there is no second process that could see this device. */
SIM_EXPORT cuda_result cudaIpcGetMemHandle(void *handle, void *pointer) {
    (void)handle, (void)pointer;
    return runtime_result(SIM_NOT_SUPPORTED);
}

SIM_EXPORT cuda_result cudaIpcOpenMemHandle(void **out, struct ipc_handle handle, unsigned flags) {
    (void)out, (void)handle, (void)flags;
    return runtime_result(SIM_NOT_SUPPORTED);
}

SIM_EXPORT cuda_result cudaIpcCloseMemHandle(void *pointer) {
    (void)pointer;
    return runtime_result(SIM_NOT_SUPPORTED);
}

SIM_EXPORT cuda_result cudaIpcGetEventHandle(void *handle, sim_event_t event) {
    (void)handle, (void)event;
    return runtime_result(SIM_NOT_SUPPORTED);
}
