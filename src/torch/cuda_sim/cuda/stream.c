/*
 * stream.c - streams, events and host functions.
 *
 * Work completes at once, in the order in which it is enqueued, with one exception: host functions run on a thread of
 * their own, as CUDA's do, so that a callback which takes a lock its enqueuer holds does not deadlock. Everything that
 * waits for a stream therefore waits for the host functions enqueued before.
 *
 * Handles are checked by a mark in the object: a stream or event that was never created, or was destroyed, is an
 * invalid resource handle.
 */
#define _GNU_SOURCE
#include "stream.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define STREAM_MARK 0x73696d73747265ull
#define EVENT_MARK 0x73696d6576656eull

static atomic_ullong launch_count;
static _Atomic uint64_t next_stream_id = 16;

/* --- host functions --- */

struct host_function {
    void (*function)(void *);
    void (*callback)(sim_stream_t, cuda_result, void *); /* cudaStreamAddCallback's form */
    sim_stream_t stream;
    void *data;
    struct host_function *next;
};

static pthread_mutex_t host_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t host_wake = PTHREAD_COND_INITIALIZER, host_done = PTHREAD_COND_INITIALIZER;
static struct host_function *host_first, **host_last = &host_first;
static _Atomic uint64_t host_enqueued, host_finished;
static int host_thread_runs;
static __thread int on_host_thread;

static void *run_host_functions(void *unused) {
    (void)unused;
    on_host_thread = 1;
    pthread_mutex_lock(&host_lock);
    for (;;) {
        while (!host_first) pthread_cond_wait(&host_wake, &host_lock);
        struct host_function *item = host_first;
        host_first = item->next;
        if (!host_first) host_last = &host_first;
        pthread_mutex_unlock(&host_lock);
        if (item->function)
            item->function(item->data);
        else
            item->callback(item->stream, SIM_SUCCESS, item->data);
        free(item);
        pthread_mutex_lock(&host_lock);
        host_finished++;
        pthread_cond_broadcast(&host_done);
    }
    return NULL;
}

static int enqueue_host_function(struct host_function wanted) {
    struct host_function *item = malloc(sizeof *item);
    if (!item) return SIM_OUT_OF_MEMORY;
    *item = wanted;
    item->next = NULL;
    pthread_mutex_lock(&host_lock);
    if (!host_thread_runs) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, run_host_functions, NULL)) {
            pthread_mutex_unlock(&host_lock);
            free(item);
            return SIM_OUT_OF_MEMORY;
        }
        pthread_detach(thread);
        host_thread_runs = 1;
    }
    *host_last = item;
    host_last = &item->next;
    host_enqueued++;
    pthread_cond_signal(&host_wake);
    pthread_mutex_unlock(&host_lock);
    return SIM_SUCCESS;
}

void sim_drain_host_functions(void) {
    if (on_host_thread) return;
    uint64_t ticket = atomic_load(&host_enqueued);
    if (atomic_load(&host_finished) >= ticket) return;
    pthread_mutex_lock(&host_lock);
    while (host_finished < ticket) pthread_cond_wait(&host_done, &host_lock);
    pthread_mutex_unlock(&host_lock);
}

/* --- streams --- */

/* NULL, cudaStreamLegacy (1) and cudaStreamPerThread (2) are the default streams, which are never captured. */
static int is_default(sim_stream_t stream) { return (uintptr_t)stream <= 2; }

static int is_stream(sim_stream_t stream) { return is_default(stream) || stream->mark == STREAM_MARK; }

struct sim_stream *sim_created_stream(sim_stream_t stream) { return is_default(stream) ? NULL : stream; }

SIM_EXPORT cuda_result cuStreamCreateWithPriority(sim_stream_t *out, unsigned flags, int priority) {
    if (!out || flags > 1) return SIM_INVALID_VALUE;
    struct sim_stream *stream = calloc(1, sizeof *stream);
    if (!stream) return SIM_OUT_OF_MEMORY;
    stream->mark = STREAM_MARK;
    stream->id = next_stream_id++;
    stream->flags = flags;
    stream->priority = priority > 0 ? 0 : priority < SIM_HIGHEST_PRIORITY ? SIM_HIGHEST_PRIORITY : priority;
    *out = stream;
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuStreamCreate(sim_stream_t *out, unsigned flags) {
    return cuStreamCreateWithPriority(out, flags, 0);
}

SIM_EXPORT cuda_result cuStreamDestroy_v2(sim_stream_t stream) {
    if (is_default(stream) || !is_stream(stream)) return SIM_INVALID_RESOURCE_HANDLE;
    sim_drain_host_functions();
    pthread_mutex_lock(&sim_lock);
    sim_capture_forget_stream(stream);
    pthread_mutex_unlock(&sim_lock);
    stream->mark = 0;
    free(stream);
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuStreamGetPriority(sim_stream_t stream, int *priority) {
    if (!priority) return SIM_INVALID_VALUE;
    if (!is_stream(stream)) return SIM_INVALID_RESOURCE_HANDLE;
    *priority = is_default(stream) ? 0 : stream->priority;
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuStreamGetFlags(sim_stream_t stream, unsigned *flags) {
    if (!flags) return SIM_INVALID_VALUE;
    if (!is_stream(stream)) return SIM_INVALID_RESOURCE_HANDLE;
    *flags = is_default(stream) ? 0 : stream->flags;
    return SIM_SUCCESS;
}

/* Waiting for a stream that is being captured is an error, and it spoils the capture. */
static int check_not_capturing(sim_stream_t stream) {
    if (!is_stream(stream)) return SIM_INVALID_RESOURCE_HANDLE;
    if (is_default(stream) || !stream->capture) return SIM_SUCCESS;
    pthread_mutex_lock(&sim_lock);
    int captured = stream->capture != NULL;
    if (captured) sim_capture_invalidate(stream->capture);
    pthread_mutex_unlock(&sim_lock);
    return captured ? SIM_CAPTURE_UNSUPPORTED : SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuStreamSynchronize(sim_stream_t stream) {
    int result = check_not_capturing(stream);
    if (result == SIM_SUCCESS) sim_drain_host_functions();
    return result;
}

SIM_EXPORT cuda_result cuStreamQuery(sim_stream_t stream) {
    int result = check_not_capturing(stream);
    if (result != SIM_SUCCESS) return result;
    return host_finished >= host_enqueued ? SIM_SUCCESS : SIM_NOT_READY;
}

SIM_EXPORT cuda_result cuCtxSynchronize(void) {
    if (sim_capture_is_any_global()) return SIM_CAPTURE_UNSUPPORTED;
    sim_drain_host_functions();
    return SIM_SUCCESS;
}

SIM_EXPORT int inspect_cuda_sim_enqueue(void *handle) {
    sim_stream_t stream = handle;
    if (is_default(stream)) return SIM_SUCCESS;
    if (!is_stream(stream)) return SIM_INVALID_RESOURCE_HANDLE;
    if (!stream->capture) return SIM_SUCCESS;
    pthread_mutex_lock(&sim_lock);
    int result = stream->capture ? sim_capture_add_node(stream) : SIM_SUCCESS;
    pthread_mutex_unlock(&sim_lock);
    return result;
}

int sim_enqueue_launch(sim_stream_t stream) {
    atomic_fetch_add_explicit(&launch_count, 1, memory_order_relaxed);
    return inspect_cuda_sim_enqueue(stream);
}

uint64_t sim_launch_count(void) { return atomic_load_explicit(&launch_count, memory_order_relaxed); }

/* Nonzero where the stream is being captured: work on it is recorded, not done. */
SIM_EXPORT int inspect_cuda_sim_is_capturing(void *handle) {
    sim_stream_t stream = handle;
    return !is_default(stream) && is_stream(stream) && stream->capture;
}

static int host_work(sim_stream_t stream, struct host_function item) {
    if (!is_stream(stream)) return SIM_INVALID_RESOURCE_HANDLE;
    if (inspect_cuda_sim_is_capturing(stream)) return inspect_cuda_sim_enqueue(stream);
    return enqueue_host_function(item);
}

SIM_EXPORT cuda_result cuLaunchHostFunc(sim_stream_t stream, void (*function)(void *), void *data) {
    if (!function) return SIM_INVALID_VALUE;
    return host_work(stream, (struct host_function){.function = function, .data = data});
}

SIM_EXPORT cuda_result cuStreamAddCallback(sim_stream_t stream, void (*callback)(sim_stream_t, cuda_result, void *),
                                           void *data, unsigned flags) {
    if (!callback || flags) return SIM_INVALID_VALUE;
    if (inspect_cuda_sim_is_capturing(stream)) return SIM_CAPTURE_UNSUPPORTED;
    return host_work(stream, (struct host_function){.callback = callback, .stream = stream, .data = data});
}

SIM_EXPORT cuda_result cuStreamWriteValue32_v2(sim_stream_t stream, device_pointer address, uint32_t value,
                                               unsigned flags) {
    (void)address, (void)value, (void)flags;
    return inspect_cuda_sim_enqueue(stream);
}

/* --- events --- */

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int is_event(sim_event_t event) { return event && event->mark == EVENT_MARK; }

SIM_EXPORT cuda_result cuEventCreate(sim_event_t *out, unsigned flags) {
    if (!out) return SIM_INVALID_VALUE;
    struct sim_event *event = calloc(1, sizeof *event);
    if (!event) return SIM_OUT_OF_MEMORY;
    event->mark = EVENT_MARK;
    event->timed = !(flags & 2); /* cudaEventDisableTiming */
    *out = event;
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuEventDestroy_v2(sim_event_t event) {
    if (!is_event(event)) return SIM_INVALID_RESOURCE_HANDLE;
    pthread_mutex_lock(&sim_lock);
    sim_capture_forget_event(event);
    pthread_mutex_unlock(&sim_lock);
    event->mark = 0;
    free(event);
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuEventRecordWithFlags(sim_event_t event, sim_stream_t stream, unsigned flags) {
    if (!is_event(event) || !is_stream(stream)) return SIM_INVALID_RESOURCE_HANDLE;
    pthread_mutex_lock(&sim_lock);
    int result = SIM_SUCCESS;
    /* Flag 1, "external", records the event when the graph runs: the event itself is not part of the capture. */
    if (!is_default(stream) && stream->capture && !(flags & 1)) {
        result = sim_capture_record(event, stream);
    } else {
        sim_capture_forget_event(event);
        event->recorded_ns = now_ns();
        event->host_ticket = host_enqueued;
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

SIM_EXPORT cuda_result cuEventRecord(sim_event_t event, sim_stream_t stream) {
    return cuEventRecordWithFlags(event, stream, 0);
}

/* An event that was never recorded counts as complete; one recorded in a capture cannot be asked. */
SIM_EXPORT cuda_result cuEventQuery(sim_event_t event) {
    if (!is_event(event)) return SIM_INVALID_RESOURCE_HANDLE;
    if (event->capture) return SIM_CAPTURED_EVENT;
    return host_finished >= event->host_ticket ? SIM_SUCCESS : SIM_NOT_READY;
}

SIM_EXPORT cuda_result cuEventSynchronize(sim_event_t event) {
    if (!is_event(event)) return SIM_INVALID_RESOURCE_HANDLE;
    if (event->capture) return SIM_CAPTURED_EVENT;
    sim_drain_host_functions();
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuEventElapsedTime_v2(float *milliseconds, sim_event_t start, sim_event_t end) {
    if (!milliseconds) return SIM_INVALID_VALUE;
    if (!is_event(start) || !is_event(end)) return SIM_INVALID_RESOURCE_HANDLE;
    if (start->capture || end->capture) return SIM_CAPTURED_EVENT;
    if (!start->timed || !end->timed || !start->recorded_ns || !end->recorded_ns) return SIM_INVALID_RESOURCE_HANDLE;
    *milliseconds = (float)((double)((int64_t)(end->recorded_ns - start->recorded_ns)) / 1e6);
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuStreamWaitEvent(sim_stream_t stream, sim_event_t event, unsigned flags) {
    (void)flags;
    if (!is_event(event) || !is_stream(stream)) return SIM_INVALID_RESOURCE_HANDLE;
    if (!event->capture && (is_default(stream) || !stream->capture)) return SIM_SUCCESS;
    pthread_mutex_lock(&sim_lock);
    int result = sim_capture_wait(sim_created_stream(stream), event);
    pthread_mutex_unlock(&sim_lock);
    return result;
}
