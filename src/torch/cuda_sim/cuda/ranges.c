/* ranges.c - sorted sets of disjoint address ranges: a few thousand at most, so an array with binary search. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

/* Index of the first range that starts above the address. */
static size_t upper_bound(const struct sim_ranges *set, uint64_t address) {
    size_t low = 0, high = set->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (set->items[middle].address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int sim_ranges_insert(struct sim_ranges *set, uint64_t address, size_t bytes, uint64_t value) {
    if (set->count == set->capacity) {
        size_t capacity = set->capacity ? set->capacity * 2 : 64;
        struct sim_range *grown = realloc(set->items, capacity * sizeof *grown);
        if (!grown) return SIM_OUT_OF_MEMORY;
        set->items = grown;
        set->capacity = capacity;
    }
    size_t at = upper_bound(set, address);
    memmove(set->items + at + 1, set->items + at, (set->count - at) * sizeof *set->items);
    set->items[at] = (struct sim_range){address, bytes, value};
    set->count++;
    return SIM_SUCCESS;
}

struct sim_range *sim_ranges_containing(struct sim_ranges *set, uint64_t address) {
    size_t at = upper_bound(set, address);
    if (!at) return NULL;
    struct sim_range *range = &set->items[at - 1];
    return address - range->address < range->bytes ? range : NULL;
}

struct sim_range *sim_ranges_at(struct sim_ranges *set, uint64_t address) {
    struct sim_range *range = sim_ranges_containing(set, address);
    return range && range->address == address ? range : NULL;
}

int sim_ranges_overlap(const struct sim_ranges *set, uint64_t address, size_t bytes) {
    size_t at = upper_bound(set, address);
    if (at && address - set->items[at - 1].address < set->items[at - 1].bytes) return 1;
    return at < set->count && set->items[at].address - address < bytes;
}

void sim_ranges_remove(struct sim_ranges *set, struct sim_range *range) {
    size_t at = (size_t)(range - set->items);
    memmove(range, range + 1, (set->count - at - 1) * sizeof *range);
    set->count--;
}
