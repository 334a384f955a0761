/*
 * virtual.c - the virtual memory management API, which PyTorch's expandable segments are made of.
 *
 * Physical memory belongs to a handle; it returns to the device when the handle has been released and its last mapping
 * is gone, in either order. Addresses must be reserved before they are mapped, mapped once, and unmapped whole.
 */
#include "internal.h"

#include <stdlib.h>

struct physical {
    size_t bytes;
    unsigned references; /* 1 for the handle, 1 for each mapping */
    struct mem_allocation_prop prop;
};

static struct sim_ranges reservations; /* value unused */
static struct sim_ranges mappings;     /* value = struct physical * */
static struct sim_ranges handles;      /* address = the handle, value = number of releases that it still allows */

static void drop(struct physical *memory) {
    if (--memory->references) return;
    sim_give(memory->bytes);
    free(memory);
}

static int is_page_multiple(uint64_t value) { return value % SIM_PAGE_BYTES == 0; }

SIM_EXPORT cuda_result cuMemGetAllocationGranularity(size_t *bytes, const struct mem_allocation_prop *prop, int option) {
    (void)option;
    if (!bytes || !prop) return SIM_INVALID_VALUE;
    *bytes = SIM_PAGE_BYTES;
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuMemCreate(uint64_t *handle, size_t bytes, const struct mem_allocation_prop *prop,
                                   unsigned long long flags) {
    if (!handle || !prop || !bytes || !is_page_multiple(bytes) || flags) return SIM_INVALID_VALUE;
    struct physical *memory = malloc(sizeof *memory);
    if (!memory) return SIM_OUT_OF_MEMORY;
    *memory = (struct physical){bytes, 1, *prop};
    pthread_mutex_lock(&sim_lock);
    int result = sim_take(bytes);
    if (result == SIM_SUCCESS) {
        result = sim_ranges_insert(&handles, (uint64_t)memory, 1, 1);
        if (result != SIM_SUCCESS) sim_give(bytes);
    }
    if (result == SIM_SUCCESS) {
        *handle = (uint64_t)memory;
        sim_counters.physical_create_count++;
    } else {
        free(memory);
    }
    if (sim_trace_enabled()) sim_trace("create %zu -> %d", bytes, result);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

SIM_EXPORT cuda_result cuMemRelease(uint64_t handle) {
    pthread_mutex_lock(&sim_lock);
    struct sim_range *range = sim_ranges_at(&handles, handle);
    if (range) {
        if (--range->value == 0) sim_ranges_remove(&handles, range);
        drop((struct physical *)handle);
        sim_counters.physical_release_count++;
    }
    pthread_mutex_unlock(&sim_lock);
    return range ? SIM_SUCCESS : SIM_INVALID_VALUE;
}

SIM_EXPORT cuda_result cuMemAddressReserve(device_pointer *out, size_t bytes, size_t alignment, device_pointer wanted,
                                           unsigned long long flags) {
    (void)wanted; /* a hint: the driver may place the range elsewhere */
    if (!out || !bytes || !is_page_multiple(bytes) || flags || (alignment & (alignment - 1))) return SIM_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    uint64_t address = sim_fresh_virtual_range(bytes, alignment);
    int result = sim_ranges_insert(&reservations, address, bytes, 0);
    if (result == SIM_SUCCESS) *out = address;
    pthread_mutex_unlock(&sim_lock);
    return result;
}

SIM_EXPORT cuda_result cuMemAddressFree(device_pointer address, size_t bytes) {
    pthread_mutex_lock(&sim_lock);
    struct sim_range *range = sim_ranges_at(&reservations, address);
    int valid = range && range->bytes == bytes && !sim_ranges_overlap(&mappings, address, bytes);
    if (valid) sim_ranges_remove(&reservations, range);
    pthread_mutex_unlock(&sim_lock);
    return valid ? SIM_SUCCESS : SIM_INVALID_VALUE;
}

SIM_EXPORT cuda_result cuMemMap(device_pointer address, size_t bytes, size_t offset, uint64_t handle,
                                unsigned long long flags) {
    if (!bytes || !is_page_multiple(address) || !is_page_multiple(bytes) || offset || flags) return SIM_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    struct sim_range *reservation = sim_ranges_containing(&reservations, address);
    struct physical *memory = sim_ranges_at(&handles, handle) ? (struct physical *)handle : NULL;
    int result = SIM_INVALID_VALUE;
    if (reservation && address + bytes <= reservation->address + reservation->bytes && memory &&
        bytes <= memory->bytes && !sim_ranges_overlap(&mappings, address, bytes)) {
        result = sim_ranges_insert(&mappings, address, bytes, (uint64_t)memory);
        if (result == SIM_SUCCESS) memory->references++;
    }
    if (sim_trace_enabled()) sim_trace("map %#llx %zu -> %d", (unsigned long long)address, bytes, result);
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* Nonzero where the whole of [address, address + bytes) is made of mappings, and no mapping is cut. */
static int covers_whole_mappings(uint64_t address, size_t bytes) {
    uint64_t at = address, end = address + bytes;
    while (at < end) {
        struct sim_range *range = sim_ranges_at(&mappings, at);
        if (!range) return 0;
        at += range->bytes;
    }
    return at == end;
}

SIM_EXPORT cuda_result cuMemUnmap(device_pointer address, size_t bytes) {
    if (!bytes) return SIM_INVALID_VALUE;
    sim_drain_host_functions();
    pthread_mutex_lock(&sim_lock);
    int valid = covers_whole_mappings(address, bytes);
    for (uint64_t at = address; valid && at < address + bytes;) {
        struct sim_range *range = sim_ranges_at(&mappings, at);
        struct physical *memory = (struct physical *)range->value;
        at += range->bytes;
        sim_ranges_remove(&mappings, range);
        drop(memory);
    }
    if (sim_trace_enabled()) sim_trace("unmap %#llx %zu -> %d", (unsigned long long)address, bytes, !valid);
    pthread_mutex_unlock(&sim_lock);
    return valid ? SIM_SUCCESS : SIM_INVALID_VALUE;
}

SIM_EXPORT cuda_result cuMemSetAccess(device_pointer address, size_t bytes, const struct mem_access_desc *access,
                                      size_t count) {
    if (!access || !count) return SIM_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (access[i].location.id != 0) return SIM_INVALID_DEVICE;
    pthread_mutex_lock(&sim_lock);
    int valid = covers_whole_mappings(address, bytes);
    pthread_mutex_unlock(&sim_lock);
    return valid ? SIM_SUCCESS : SIM_INVALID_VALUE;
}

SIM_EXPORT cuda_result cuMemGetAllocationPropertiesFromHandle(struct mem_allocation_prop *prop, uint64_t handle) {
    pthread_mutex_lock(&sim_lock);
    int valid = prop && sim_ranges_at(&handles, handle);
    if (valid) *prop = ((struct physical *)handle)->prop;
    pthread_mutex_unlock(&sim_lock);
    return valid ? SIM_SUCCESS : SIM_INVALID_VALUE;
}

SIM_EXPORT cuda_result cuMemRetainAllocationHandle(uint64_t *handle, void *pointer) {
    if (!handle) return SIM_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    struct sim_range *mapping = sim_ranges_containing(&mappings, (uint64_t)pointer);
    int result = SIM_INVALID_VALUE;
    if (mapping) {
        struct sim_range *known = sim_ranges_at(&handles, mapping->value);
        result = known ? (known->value++, SIM_SUCCESS) : sim_ranges_insert(&handles, mapping->value, 1, 1);
        if (result == SIM_SUCCESS) {
            ((struct physical *)mapping->value)->references++;
            *handle = mapping->value;
        }
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

/* Sharing memory with another process: there is no second process that could see this device. */
SIM_EXPORT cuda_result cuMemExportToShareableHandle(void *out, uint64_t handle, int type, unsigned long long flags) {
    (void)out, (void)handle, (void)type, (void)flags;
    return SIM_NOT_SUPPORTED;
}

SIM_EXPORT cuda_result cuMemImportFromShareableHandle(uint64_t *handle, void *shared, int type) {
    (void)handle, (void)shared, (void)type;
    return SIM_NOT_SUPPORTED;
}
