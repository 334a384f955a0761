/* stream.h - streams, events and captures, between stream.c and graph.c. All fields are under sim_lock. */
#ifndef INSPECT_CUDA_SIM_STREAM_H
#define INSPECT_CUDA_SIM_STREAM_H

#include "internal.h"

#define SIM_HIGHEST_PRIORITY (-5)

/* The nodes that the next work depends on. */
struct sim_dependencies {
    sim_node_t *nodes;
    size_t count;
};

struct sim_capture;

struct sim_stream {
    uint64_t mark, id;
    unsigned flags;
    int priority;
    struct sim_capture *capture; /* NULL outside a capture */
    struct sim_dependencies last;
};

struct sim_event {
    uint64_t mark;
    int timed;
    uint64_t recorded_ns; /* 0 = never recorded */
    uint64_t host_ticket; /* host functions that were enqueued before it */
    struct sim_capture *capture;
    struct sim_dependencies last;
};

/* The stream behind a handle, NULL for the default streams. */
struct sim_stream *sim_created_stream(sim_stream_t stream);

int sim_capture_add_node(struct sim_stream *stream);
int sim_capture_record(struct sim_event *event, struct sim_stream *stream);
int sim_capture_wait(struct sim_stream *stream, struct sim_event *event);
void sim_capture_invalidate(struct sim_capture *capture);
int sim_capture_is_any_global(void);
void sim_capture_forget_stream(struct sim_stream *stream);
void sim_capture_forget_event(struct sim_event *event);

int sim_enqueue_launch(sim_stream_t stream);
uint64_t sim_launch_count(void);

#endif
