/* internal.h - what the files of the libcuda.so.1 stand-in share with each other and with nobody else. */
#ifndef INSPECT_CUDA_SIM_INTERNAL_H
#define INSPECT_CUDA_SIM_INTERNAL_H

#include "../driver.h"

#include <pthread.h>

#define SIM_SONAME "libcuda.so.1"

/* Limits that are the same for every supported compute capability. */
enum {
    SIM_MAX_THREADS_PER_BLOCK = 1024,
    SIM_MAX_BLOCK_Z = 64,
    SIM_MAX_GRID_X = 2147483647,
    SIM_MAX_GRID_YZ = 65535,
};

/* Device memory comes in pages of 2 MiB: the granularity of cuMemCreate and of what cudaMalloc takes from the device. */
#define SIM_PAGE_BYTES ((size_t)2 << 20)

/* One lock for memory, streams and graphs: the simulated device is never the bottleneck. */
extern pthread_mutex_t sim_lock;

/* A sorted set of disjoint address ranges. */
struct sim_range {
    uint64_t address;
    size_t bytes;
    uint64_t value;
};
struct sim_ranges {
    struct sim_range *items;
    size_t count, capacity;
};
/* 0 on success, SIM_OUT_OF_MEMORY where the host has none. */
int sim_ranges_insert(struct sim_ranges *set, uint64_t address, size_t bytes, uint64_t value);
/* The range that starts at, or contains, the address; NULL when there is none. */
struct sim_range *sim_ranges_at(struct sim_ranges *set, uint64_t address);
struct sim_range *sim_ranges_containing(struct sim_ranges *set, uint64_t address);
/* Nonzero where any range has a byte in [address, address + bytes). */
int sim_ranges_overlap(const struct sim_ranges *set, uint64_t address, size_t bytes);
void sim_ranges_remove(struct sim_ranges *set, struct sim_range *range);

/* Device memory accounting, under sim_lock. */
extern struct sim_stats sim_counters;
void sim_memory_start(const struct sim_device *device);
void sim_device_set_total(size_t total_bytes);
/* Takes pages from the device: 0, or SIM_OUT_OF_MEMORY. */
int sim_take(size_t bytes);
void sim_give(size_t bytes);
/* A fresh range of addresses for cuMemAddressReserve. */
uint64_t sim_fresh_virtual_range(size_t bytes, size_t alignment);
int sim_trace_enabled(void);
void sim_trace(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Waits until every host function enqueued so far has run. */
void sim_drain_host_functions(void);

#endif
