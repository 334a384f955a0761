/*
 * memory.c - device memory: an address counter with a capacity, and copies.
 *
 * Nothing is backed by storage. Device addresses lie above the range that any user process can map (bit 49), so they
 * collide with no host pointer and a host access to one faults, as it does with CUDA. Copies to the host fill the
 * destination with zeros; copies to and within the device do nothing.
 *
 * INSPECT_CUDA_SIM_ADDR chooses the order in which cudaMalloc hands out addresses, which drivers differ in and which
 * decides ties between equal free blocks in PyTorch's allocator: `up` (default) and `down` never use an address again,
 * `reuse` takes the lowest free one.
 */
#define _GNU_SOURCE
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define DEVICE_BASE ((uint64_t)1 << 49)
#define DEVICE_END ((uint64_t)1 << 50)
#define TIB ((uint64_t)1 << 40)
#define MALLOC_BASE DEVICE_BASE                /* 128 TiB for cudaMalloc, in both directions */
#define VIRTUAL_BASE (DEVICE_BASE + 128 * TIB) /* 256 TiB for cuMemAddressReserve */
#define SYMBOL_BASE (DEVICE_BASE + 384 * TIB)  /* __device__ variables, at the offset of their host shadow */

pthread_mutex_t sim_lock = PTHREAD_MUTEX_INITIALIZER;
struct sim_stats sim_counters;

static enum { ORDER_UP, ORDER_DOWN, ORDER_REUSE } order;
static int tracing;
static uint64_t next_address = MALLOC_BASE, next_virtual = VIRTUAL_BASE;
static struct sim_ranges allocations; /* cudaMalloc: value = bytes asked for */
static struct sim_ranges holes;       /* freed address ranges, for ORDER_REUSE */
static struct sim_ranges pinned;      /* host memory: value = 1 allocated here, 0 registered */

int sim_trace_enabled(void) { return tracing; }

void sim_trace(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("cuda-sim: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

void sim_memory_start(const struct sim_device *device) {
    const char *text = getenv("INSPECT_CUDA_SIM_ADDR");
    if (text && !strcmp(text, "down")) {
        order = ORDER_DOWN;
        next_address = MALLOC_BASE + 128 * TIB;
    } else if (text && !strcmp(text, "reuse")) {
        order = ORDER_REUSE;
    }
    text = getenv("INSPECT_CUDA_SIM_TRACE");
    tracing = text && *text && strcmp(text, "0");
    sim_counters.used_bytes = sim_counters.peak_used_bytes = device->base_bytes;
}

static size_t round_up(size_t bytes, size_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

int sim_take(size_t bytes) {
    size_t total = inspect_cuda_sim_device()->total_bytes;
    if (bytes > total || sim_counters.used_bytes > total - bytes) {
        sim_counters.out_of_memory_count++;
        return SIM_OUT_OF_MEMORY;
    }
    sim_counters.used_bytes += bytes;
    if (sim_counters.used_bytes > sim_counters.peak_used_bytes)
        sim_counters.peak_used_bytes = sim_counters.used_bytes;
    return SIM_SUCCESS;
}

void sim_give(size_t bytes) { sim_counters.used_bytes -= bytes; }

uint64_t sim_fresh_virtual_range(size_t bytes, size_t alignment) {
    if (alignment < SIM_PAGE_BYTES) alignment = SIM_PAGE_BYTES;
    uint64_t address = round_up(next_virtual, alignment);
    /* A page between ranges: an access past the end of one never lands in the next. */
    next_virtual = address + round_up(bytes, SIM_PAGE_BYTES) + SIM_PAGE_BYTES;
    return address;
}

/* The lowest hole that fits, else fresh addresses at the end. */
static uint64_t lowest_free_address(size_t bytes) {
    for (size_t i = 0; i < holes.count; i++) {
        struct sim_range *hole = &holes.items[i];
        if (hole->bytes < bytes) continue;
        uint64_t address = hole->address;
        hole->address += bytes;
        hole->bytes -= bytes;
        if (!hole->bytes) sim_ranges_remove(&holes, hole);
        return address;
    }
    uint64_t address = next_address;
    next_address += bytes;
    return address;
}

/* Returns a range to the holes, merged with its neighbours. Without host memory for it the addresses stay unused. */
static void free_addresses(uint64_t address, size_t bytes) {
    struct sim_range *before = sim_ranges_containing(&holes, address - 1);
    struct sim_range *after = sim_ranges_at(&holes, address + bytes);
    if (before) {
        before->bytes += bytes + (after ? after->bytes : 0);
        if (after) sim_ranges_remove(&holes, after);
    } else if (after) {
        after->address = address;
        after->bytes += bytes;
    } else {
        (void)sim_ranges_insert(&holes, address, bytes, 0);
    }
}

SIM_EXPORT cuda_result cuMemAlloc_v2(device_pointer *out, size_t bytes) {
    if (!out || !bytes) return SIM_INVALID_VALUE;
    size_t taken = bytes > SIZE_MAX - SIM_PAGE_BYTES ? bytes : round_up(bytes, SIM_PAGE_BYTES);
    pthread_mutex_lock(&sim_lock);
    int result = sim_take(taken);
    if (result == SIM_SUCCESS) {
        uint64_t address;
        if (order == ORDER_REUSE) {
            address = lowest_free_address(taken);
        } else if (order == ORDER_DOWN) {
            address = next_address -= taken;
        } else {
            address = next_address;
            next_address += taken;
        }
        result = sim_ranges_insert(&allocations, address, taken, bytes);
        if (result == SIM_SUCCESS) {
            *out = address;
            sim_counters.malloc_count++;
        } else {
            sim_give(taken);
        }
    }
    if (tracing) sim_trace("malloc %zu -> %d %#llx", bytes, result, (unsigned long long)(result ? 0 : *out));
    pthread_mutex_unlock(&sim_lock);
    return result;
}

SIM_EXPORT cuda_result cuMemFree_v2(device_pointer pointer) {
    if (!pointer) return SIM_SUCCESS;
    sim_drain_host_functions(); /* cudaFree waits for the device */
    pthread_mutex_lock(&sim_lock);
    struct sim_range *range = sim_ranges_at(&allocations, pointer);
    int result = SIM_INVALID_VALUE;
    if (range) {
        size_t bytes = range->bytes;
        sim_ranges_remove(&allocations, range);
        sim_give(bytes);
        if (order == ORDER_REUSE) free_addresses(pointer, bytes);
        sim_counters.free_count++;
        result = SIM_SUCCESS;
    }
    if (tracing) sim_trace("free %#llx -> %d", (unsigned long long)pointer, result);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

SIM_EXPORT cuda_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    if (!free_bytes || !total_bytes) return SIM_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    size_t total = inspect_cuda_sim_device()->total_bytes;
    *total_bytes = total;
    *free_bytes = total > sim_counters.used_bytes ? total - sim_counters.used_bytes : 0;
    pthread_mutex_unlock(&sim_lock);
    return SIM_SUCCESS;
}

/* --- pinned host memory: real, and committed only when it is touched --- */

static int add_pinned(void *pointer, size_t bytes, int owned) {
    pthread_mutex_lock(&sim_lock);
    int result = sim_ranges_overlap(&pinned, (uint64_t)pointer, bytes)
                     ? SIM_HOST_MEMORY_ALREADY_REGISTERED
                     : sim_ranges_insert(&pinned, (uint64_t)pointer, bytes, (uint64_t)owned);
    if (result == SIM_SUCCESS) {
        sim_counters.pinned_host_bytes += bytes;
        if (sim_counters.pinned_host_bytes > sim_counters.peak_pinned_host_bytes)
            sim_counters.peak_pinned_host_bytes = sim_counters.pinned_host_bytes;
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* Forgets a pinned range that starts at the pointer; 0 bytes when there is none. */
static size_t remove_pinned(void *pointer, uint64_t owned) {
    pthread_mutex_lock(&sim_lock);
    struct sim_range *range = sim_ranges_at(&pinned, (uint64_t)pointer);
    size_t bytes = 0;
    if (range && range->value == owned) {
        bytes = range->bytes;
        sim_ranges_remove(&pinned, range);
        sim_counters.pinned_host_bytes -= bytes;
    }
    pthread_mutex_unlock(&sim_lock);
    return bytes;
}

SIM_EXPORT cuda_result cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    (void)flags;
    if (!out) return SIM_INVALID_VALUE;
    if (!bytes) {
        *out = NULL;
        return SIM_SUCCESS;
    }
    if (bytes > SIZE_MAX - 4096) return SIM_OUT_OF_MEMORY;
    bytes = round_up(bytes, 4096);
    void *pointer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pointer == MAP_FAILED) return SIM_OUT_OF_MEMORY;
    int result = add_pinned(pointer, bytes, 1);
    if (result != SIM_SUCCESS) {
        munmap(pointer, bytes);
        return SIM_OUT_OF_MEMORY;
    }
    *out = pointer;
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuMemFreeHost(void *pointer) {
    if (!pointer) return SIM_SUCCESS;
    sim_drain_host_functions();
    size_t bytes = remove_pinned(pointer, 1);
    if (!bytes) return SIM_INVALID_VALUE;
    munmap(pointer, bytes);
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags) {
    (void)flags;
    if (!pointer || !bytes) return SIM_INVALID_VALUE;
    return add_pinned(pointer, bytes, 0);
}

SIM_EXPORT cuda_result cuMemHostUnregister(void *pointer) {
    return remove_pinned(pointer, 0) ? SIM_SUCCESS : SIM_HOST_MEMORY_NOT_REGISTERED;
}

/* --- pointers --- */

SIM_EXPORT int inspect_cuda_sim_is_device_pointer(const void *pointer) {
    uint64_t address = (uint64_t)pointer;
    return address >= DEVICE_BASE && address < DEVICE_END;
}

SIM_EXPORT void *inspect_cuda_sim_symbol_address(const void *shadow) {
    return (void *)(SYMBOL_BASE + ((uint64_t)shadow & (64 * TIB - 1)));
}

SIM_EXPORT int inspect_cuda_sim_memory_type(const void *pointer) {
    if (inspect_cuda_sim_is_device_pointer(pointer)) return MEMORY_DEVICE;
    pthread_mutex_lock(&sim_lock);
    int known = sim_ranges_containing(&pinned, (uint64_t)pointer) != NULL;
    pthread_mutex_unlock(&sim_lock);
    return known ? MEMORY_HOST : MEMORY_UNREGISTERED;
}

/* CU_POINTER_ATTRIBUTE_*: CONTEXT 1, MEMORY_TYPE 2, DEVICE_POINTER 3, HOST_POINTER 4, IS_MANAGED 8, DEVICE_ORDINAL 9,
 * RANGE_START_ADDR 11, RANGE_SIZE 12. */
SIM_EXPORT cuda_result cuPointerGetAttribute(void *data, int attribute, device_pointer pointer) {
    if (!data) return SIM_INVALID_VALUE;
    int type = inspect_cuda_sim_memory_type((void *)pointer);
    if (type == MEMORY_UNREGISTERED) return SIM_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    struct sim_range *range = sim_ranges_containing(type == MEMORY_DEVICE ? &allocations : &pinned, pointer);
    struct sim_range copy = range ? *range : (struct sim_range){pointer, 0, 0};
    pthread_mutex_unlock(&sim_lock);
    switch (attribute) {
        case 1: return cuCtxGetCurrent(data);
        case 2: *(unsigned *)data = type == MEMORY_DEVICE ? 2 : 1; return SIM_SUCCESS;
        case 3: *(device_pointer *)data = pointer; return SIM_SUCCESS;
        case 4:
            if (type == MEMORY_DEVICE) return SIM_INVALID_VALUE;
            *(void **)data = (void *)pointer;
            return SIM_SUCCESS;
        case 8: *(unsigned *)data = 0; return SIM_SUCCESS;
        case 9: *(int *)data = 0; return SIM_SUCCESS;
        case 11: *(device_pointer *)data = copy.address; return SIM_SUCCESS;
        case 12: *(size_t *)data = copy.bytes; return SIM_SUCCESS;
        default: return SIM_NOT_SUPPORTED;
    }
}

SIM_EXPORT cuda_result cuMemGetAddressRange_v2(device_pointer *base, size_t *bytes, device_pointer pointer) {
    pthread_mutex_lock(&sim_lock);
    struct sim_range *range = sim_ranges_containing(&allocations, pointer);
    if (range && base) *base = range->address;
    if (range && bytes) *bytes = range->bytes;
    pthread_mutex_unlock(&sim_lock);
    return range ? SIM_SUCCESS : SIM_NOT_FOUND;
}

/* --- copies --- */

/* What the thread's next read of the device gives instead of zeros. */
static _Thread_local struct {
    enum { ANSWER_NONE, ANSWER_BYTES, ANSWER_COUNT } kind;
    unsigned char value[16];
    size_t bytes;
    int64_t count;
} answer;

SIM_EXPORT void inspect_cuda_sim_answer(const void *value, size_t bytes) {
    answer.kind = value && bytes <= sizeof answer.value ? ANSWER_BYTES : ANSWER_NONE;
    if (answer.kind == ANSWER_NONE) return;
    memcpy(answer.value, value, bytes);
    answer.bytes = bytes;
}

SIM_EXPORT void inspect_cuda_sim_answer_count(int64_t count) {
    answer.kind = ANSWER_COUNT;
    answer.count = count;
}

static void read_device(void *destination, size_t bytes) {
    memset(destination, 0, bytes);
    if (answer.kind == ANSWER_BYTES && bytes == answer.bytes) {
        memcpy(destination, answer.value, bytes);
        answer.kind = ANSWER_NONE;
    } else if (answer.kind == ANSWER_COUNT && (bytes == 4 || bytes == 8)) {
        int32_t narrow = (int32_t)answer.count;
        memcpy(destination, bytes == 4 ? (void *)&narrow : (void *)&answer.count, bytes);
        answer.kind = ANSWER_NONE;
    }
}

SIM_EXPORT void inspect_cuda_sim_copy(void *destination, const void *source, size_t bytes) {
    int to_device = inspect_cuda_sim_is_device_pointer(destination);
    int from_device = inspect_cuda_sim_is_device_pointer(source);
    if (!to_device) {
        if (from_device)
            read_device(destination, bytes);
        else
            memmove(destination, source, bytes);
    }
    pthread_mutex_lock(&sim_lock);
    if (to_device && from_device) {
        sim_counters.device_to_device_bytes += bytes;
    } else if (to_device) {
        sim_counters.host_to_device_bytes += bytes;
    } else if (from_device) {
        sim_counters.device_to_host_bytes += bytes;
        sim_counters.device_to_host_count++;
    }
    pthread_mutex_unlock(&sim_lock);
}

SIM_EXPORT cuda_result cuMemcpyHtoD_v2(device_pointer destination, const void *source, size_t bytes) {
    inspect_cuda_sim_copy((void *)destination, source, bytes);
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuMemcpyDtoH_v2(void *destination, device_pointer source, size_t bytes) {
    inspect_cuda_sim_copy(destination, (void *)source, bytes);
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuMemsetD32Async(device_pointer destination, unsigned value, size_t count, sim_stream_t stream) {
    (void)value, (void)count;
    if (!inspect_cuda_sim_is_device_pointer((void *)destination)) return SIM_INVALID_VALUE;
    return inspect_cuda_sim_enqueue(stream);
}

SIM_EXPORT cuda_result cuMemsetD8Async(device_pointer destination, unsigned char value, size_t count,
                                       sim_stream_t stream) {
    return cuMemsetD32Async(destination, value, count, stream);
}
