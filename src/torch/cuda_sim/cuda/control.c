/* control.c - the control interface: counters, and the functions that were called without being fully modelled. */
#define _GNU_SOURCE
#include "internal.h"
#include "stream.h"

#include <stdatomic.h>

static struct sim_function *called;
static _Atomic int sticky_error;
static sim_conv_workspace_fn conv_workspace;
static void *conv_workspace_context;

SIM_EXPORT int inspect_cuda_sim_version(void) { return SIM_INTERFACE_VERSION; }

SIM_EXPORT void inspect_cuda_sim_stats(struct sim_stats *out) {
    if (!out) return;
    pthread_mutex_lock(&sim_lock);
    *out = sim_counters;
    pthread_mutex_unlock(&sim_lock);
    out->launch_count = sim_launch_count();
    out->total_bytes = inspect_cuda_sim_device()->total_bytes;
    out->base_bytes = inspect_cuda_sim_device()->base_bytes;
}

SIM_EXPORT void inspect_cuda_sim_reset_peak(void) {
    pthread_mutex_lock(&sim_lock);
    sim_counters.peak_used_bytes = sim_counters.used_bytes;
    sim_counters.peak_pinned_host_bytes = sim_counters.pinned_host_bytes;
    pthread_mutex_unlock(&sim_lock);
}

SIM_EXPORT void inspect_cuda_sim_set_total_bytes(size_t total_bytes) {
    pthread_mutex_lock(&sim_lock);
    sim_device_set_total(total_bytes);
    pthread_mutex_unlock(&sim_lock);
}

SIM_EXPORT void inspect_cuda_sim_called(struct sim_function *function) {
    if (__atomic_fetch_add(&function->calls, 1, __ATOMIC_RELAXED)) return;
    struct sim_function *head = __atomic_load_n(&called, __ATOMIC_RELAXED);
    do {
        function->next = head;
    } while (!__atomic_compare_exchange_n(&called, &head, function, 1, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
    if (sim_trace_enabled()) sim_trace("not modelled: %s", function->name);
}

SIM_EXPORT int inspect_cuda_sim_function(size_t index, const char **library, const char **name, int *gap,
                                         uint64_t *calls) {
    const struct sim_function *function = __atomic_load_n(&called, __ATOMIC_ACQUIRE);
    while (function && index--) function = function->next;
    if (!function) return 0;
    if (library) *library = function->library;
    if (name) *name = function->name;
    if (gap) *gap = (int)function->gap;
    if (calls) *calls = __atomic_load_n(&function->calls, __ATOMIC_RELAXED);
    return 1;
}

SIM_EXPORT void inspect_cuda_sim_set_sticky_error(int error) { atomic_store(&sticky_error, error); }

SIM_EXPORT int inspect_cuda_sim_sticky_error(void) {
    return atomic_load_explicit(&sticky_error, memory_order_relaxed);
}

SIM_EXPORT void inspect_cuda_sim_set_conv_workspace(sim_conv_workspace_fn function, void *context) {
    pthread_mutex_lock(&sim_lock);
    conv_workspace = function;
    conv_workspace_context = context;
    pthread_mutex_unlock(&sim_lock);
}

SIM_EXPORT int64_t inspect_cuda_sim_conv_workspace(const struct sim_convolution *convolution) {
    pthread_mutex_lock(&sim_lock);
    sim_conv_workspace_fn function = conv_workspace;
    void *context = conv_workspace_context;
    pthread_mutex_unlock(&sim_lock);
    return function ? function(convolution, context) : -1;
}
