/*
 * graph.c - stream capture and graphs.
 *
 * A capture starts on one stream (its origin) and spreads to every stream that waits for an event recorded in it. Work
 * on those streams becomes nodes; a node depends on what its stream did and waited for before. When the origin ends the
 * capture, every other stream must have been joined back, and the nodes become the graph. Graphs have no content beyond
 * their nodes: launching one does nothing.
 */
#include "stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GRAPH_MARK 0x73696d67726170ull
#define EXEC_MARK 0x73696d65786563ull

struct sim_node {
    size_t dependency_count;
    int is_dependency; /* something in the graph depends on it */
    sim_node_t dependencies[];
};

struct sim_graph {
    uint64_t mark;
    sim_node_t *nodes;
    size_t count, capacity;
};

struct sim_exec {
    uint64_t mark;
};

struct sim_capture {
    unsigned long long id;
    int invalidated;
    int mode; /* cudaStreamCaptureMode: 0 global, 1 thread local, 2 relaxed */
    struct sim_stream *origin;
    struct sim_graph *graph;
    struct sim_stream **streams; /* that take part, with the origin */
    size_t stream_count;
    struct sim_event **events; /* recorded in it and not since */
    size_t event_count;
    struct sim_capture *next;
};

static struct sim_capture *captures; /* active ones */
static unsigned long long next_capture_id = 1;
static __thread int thread_mode; /* cudaThreadExchangeStreamCaptureMode; starts as global */

/* --- small arrays --- */

static int append(void *array, size_t *count, void *item) {
    void ***items = array;
    void **grown = realloc(*items, (*count + 1) * sizeof *grown);
    if (!grown) return SIM_OUT_OF_MEMORY;
    grown[(*count)++] = item;
    *items = grown;
    return SIM_SUCCESS;
}

static void erase(void *array, size_t *count, const void *item) {
    void **items = *(void ***)array;
    for (size_t i = 0; i < *count; i++)
        if (items[i] == item) {
            memmove(items + i, items + i + 1, (*count - i - 1) * sizeof *items);
            --*count;
            return;
        }
}

static int add_dependency(struct sim_dependencies *set, sim_node_t node) {
    for (size_t i = 0; i < set->count; i++)
        if (set->nodes[i] == node) return SIM_SUCCESS;
    return append(&set->nodes, &set->count, node);
}

static void clear_dependencies(struct sim_dependencies *set) {
    free(set->nodes);
    *set = (struct sim_dependencies){0};
}

static int copy_dependencies(struct sim_dependencies *to, const struct sim_dependencies *from) {
    clear_dependencies(to);
    int result = SIM_SUCCESS;
    for (size_t i = 0; i < from->count && result == SIM_SUCCESS; i++) result = add_dependency(to, from->nodes[i]);
    return result;
}

/* --- graphs --- */

static struct sim_graph *new_graph(void) {
    struct sim_graph *graph = calloc(1, sizeof *graph);
    if (graph) graph->mark = GRAPH_MARK;
    return graph;
}

static void free_graph(struct sim_graph *graph) {
    for (size_t i = 0; i < graph->count; i++) free(graph->nodes[i]);
    free(graph->nodes);
    graph->mark = 0;
    free(graph);
}

static int grow_graph(struct sim_graph *graph) {
    if (graph->count < graph->capacity) return SIM_SUCCESS;
    size_t capacity = graph->capacity ? graph->capacity * 2 : 256;
    sim_node_t *grown = realloc(graph->nodes, capacity * sizeof *grown);
    if (!grown) return SIM_OUT_OF_MEMORY;
    graph->nodes = grown;
    graph->capacity = capacity;
    return SIM_SUCCESS;
}

/* --- captures --- */

void sim_capture_invalidate(struct sim_capture *capture) { capture->invalidated = 1; }

int sim_capture_is_any_global(void) {
    pthread_mutex_lock(&sim_lock);
    int found = 0;
    for (struct sim_capture *capture = captures; capture && thread_mode != 2; capture = capture->next)
        if (capture->mode == 0) {
            capture->invalidated = 1;
            found = 1;
        }
    pthread_mutex_unlock(&sim_lock);
    return found;
}

int sim_capture_add_node(struct sim_stream *stream) {
    struct sim_capture *capture = stream->capture;
    if (capture->invalidated) return SIM_CAPTURE_INVALIDATED;
    if (grow_graph(capture->graph) != SIM_SUCCESS) return SIM_OUT_OF_MEMORY;
    size_t count = stream->last.count;
    sim_node_t node = malloc(sizeof *node + count * sizeof(sim_node_t));
    if (!node) return SIM_OUT_OF_MEMORY;
    node->dependency_count = count;
    node->is_dependency = 0;
    for (size_t i = 0; i < count; i++) {
        node->dependencies[i] = stream->last.nodes[i];
        node->dependencies[i]->is_dependency = 1;
    }
    capture->graph->nodes[capture->graph->count++] = node;
    stream->last.count = 0;
    return add_dependency(&stream->last, node);
}

int sim_capture_record(struct sim_event *event, struct sim_stream *stream) {
    if (stream->capture->invalidated) return SIM_CAPTURE_INVALIDATED;
    sim_capture_forget_event(event);
    if (append(&stream->capture->events, &stream->capture->event_count, event) != SIM_SUCCESS)
        return SIM_OUT_OF_MEMORY;
    event->capture = stream->capture;
    return copy_dependencies(&event->last, &stream->last);
}

int sim_capture_wait(struct sim_stream *stream, struct sim_event *event) {
    struct sim_capture *capture = event->capture;
    /* The default stream cannot take part in a capture. */
    if (!stream) {
        if (capture) capture->invalidated = 1;
        return SIM_CAPTURE_UNSUPPORTED;
    }
    /* A captured stream may only wait for events of its own capture. */
    if (!capture) {
        stream->capture->invalidated = 1;
        return SIM_CAPTURE_ISOLATION;
    }
    if (capture->invalidated) return SIM_CAPTURE_INVALIDATED;
    if (stream->capture && stream->capture != capture) {
        stream->capture->invalidated = capture->invalidated = 1;
        return SIM_CAPTURE_MERGE;
    }
    if (!stream->capture) {
        if (append(&capture->streams, &capture->stream_count, stream) != SIM_SUCCESS) return SIM_OUT_OF_MEMORY;
        stream->capture = capture;
    }
    for (size_t i = 0; i < event->last.count; i++)
        if (add_dependency(&stream->last, event->last.nodes[i]) != SIM_SUCCESS) return SIM_OUT_OF_MEMORY;
    return SIM_SUCCESS;
}

void sim_capture_forget_event(struct sim_event *event) {
    if (!event->capture) return;
    erase(&event->capture->events, &event->capture->event_count, event);
    event->capture = NULL;
    clear_dependencies(&event->last);
}

void sim_capture_forget_stream(struct sim_stream *stream) {
    if (!stream->capture) return;
    stream->capture->invalidated = 1;
    erase(&stream->capture->streams, &stream->capture->stream_count, stream);
    if (stream->capture->origin == stream) stream->capture->origin = NULL;
    stream->capture = NULL;
    clear_dependencies(&stream->last);
}

/* Every node that nothing depends on must be among what the origin waited for: else a stream was not joined. */
static int is_joined(const struct sim_capture *capture) {
    const struct sim_dependencies *last = &capture->origin->last;
    for (size_t i = 0; i < capture->graph->count; i++) {
        sim_node_t node = capture->graph->nodes[i];
        int reached = node->is_dependency;
        for (size_t k = 0; k < last->count && !reached; k++) reached = last->nodes[k] == node;
        if (!reached) return 0;
    }
    return 1;
}

/* Ends a capture for all who take part; the graph stays with the caller. */
static void finish(struct sim_capture *capture) {
    for (size_t i = 0; i < capture->stream_count; i++) {
        capture->streams[i]->capture = NULL;
        clear_dependencies(&capture->streams[i]->last);
    }
    for (size_t i = 0; i < capture->event_count; i++) {
        capture->events[i]->capture = NULL;
        clear_dependencies(&capture->events[i]->last);
    }
    for (struct sim_capture **at = &captures; *at; at = &(*at)->next)
        if (*at == capture) {
            *at = capture->next;
            break;
        }
    free(capture->streams);
    free(capture->events);
    free(capture);
}

SIM_EXPORT cuda_result cuStreamBeginCapture_v2(sim_stream_t handle, int mode) {
    struct sim_stream *stream = sim_created_stream(handle);
    if (!stream) return SIM_CAPTURE_UNSUPPORTED;
    if (mode < 0 || mode > 2) return SIM_INVALID_VALUE;
    pthread_mutex_lock(&sim_lock);
    int result = stream->capture ? SIM_ILLEGAL_STATE : SIM_SUCCESS;
    struct sim_capture *capture = result ? NULL : calloc(1, sizeof *capture);
    struct sim_graph *graph = capture ? new_graph() : NULL;
    if (!result && (!graph || append(&capture->streams, &capture->stream_count, stream) != SIM_SUCCESS))
        result = SIM_OUT_OF_MEMORY;
    if (result == SIM_SUCCESS) {
        capture->id = next_capture_id++;
        capture->mode = mode;
        capture->origin = stream;
        capture->graph = graph;
        capture->next = captures;
        captures = capture;
        stream->capture = capture;
    } else {
        free(graph);
        free(capture);
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

SIM_EXPORT cuda_result cuStreamEndCapture(sim_stream_t handle, sim_graph_t *out) {
    struct sim_stream *stream = sim_created_stream(handle);
    if (!out) return SIM_INVALID_VALUE;
    *out = NULL;
    pthread_mutex_lock(&sim_lock);
    struct sim_capture *capture = stream ? stream->capture : NULL;
    int result = !capture                     ? SIM_ILLEGAL_STATE
                 : capture->origin != stream ? SIM_CAPTURE_UNMATCHED
                 : capture->invalidated      ? SIM_CAPTURE_INVALIDATED
                 : !is_joined(capture)       ? SIM_CAPTURE_UNJOINED
                                             : SIM_SUCCESS;
    if (capture && capture->origin == stream) {
        if (result == SIM_SUCCESS)
            *out = capture->graph;
        else
            free_graph(capture->graph);
        finish(capture);
    }
    pthread_mutex_unlock(&sim_lock);
    return result;
}

SIM_EXPORT cuda_result cuStreamIsCapturing(sim_stream_t handle, int *status) {
    if (!status) return SIM_INVALID_VALUE;
    struct sim_stream *stream = sim_created_stream(handle);
    *status = CAPTURE_STATUS_NONE;
    if (!stream || !stream->capture) return SIM_SUCCESS;
    pthread_mutex_lock(&sim_lock);
    if (stream->capture)
        *status = stream->capture->invalidated ? CAPTURE_STATUS_INVALIDATED : CAPTURE_STATUS_ACTIVE;
    pthread_mutex_unlock(&sim_lock);
    return SIM_SUCCESS;
}

/* The dependencies stay valid until the next call on the stream, as documented. */
SIM_EXPORT cuda_result cuStreamGetCaptureInfo_v3(sim_stream_t handle, int *status, unsigned long long *id,
                                                 sim_graph_t *graph, const sim_node_t **dependencies,
                                                 const struct graph_edge_data **edges, size_t *dependency_count) {
    if (!status) return SIM_INVALID_VALUE;
    struct sim_stream *stream = sim_created_stream(handle);
    pthread_mutex_lock(&sim_lock);
    struct sim_capture *capture = stream ? stream->capture : NULL;
    int active = capture && !capture->invalidated;
    *status = active ? CAPTURE_STATUS_ACTIVE : capture ? CAPTURE_STATUS_INVALIDATED : CAPTURE_STATUS_NONE;
    if (id) *id = active ? capture->id : 0;
    if (graph) *graph = active ? capture->graph : NULL;
    if (dependencies) *dependencies = active ? stream->last.nodes : NULL;
    if (edges) *edges = NULL;
    if (dependency_count) *dependency_count = active ? stream->last.count : 0;
    pthread_mutex_unlock(&sim_lock);
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuThreadExchangeStreamCaptureMode(int *mode) {
    if (!mode || *mode < 0 || *mode > 2) return SIM_INVALID_VALUE;
    int previous = thread_mode;
    thread_mode = *mode;
    *mode = previous;
    return SIM_SUCCESS;
}

static int is_graph(sim_graph_t graph) { return graph && graph->mark == GRAPH_MARK; }

/* With no array it answers how many there are; with one it fills what fits and clears the rest. */
static void answer_nodes(sim_node_t *out, size_t *count, const sim_node_t *nodes, size_t available) {
    if (out)
        for (size_t i = 0; i < *count; i++) out[i] = i < available ? nodes[i] : NULL;
    if (!out || *count > available) *count = available;
}

SIM_EXPORT cuda_result cuGraphGetNodes(sim_graph_t graph, sim_node_t *nodes, size_t *count) {
    if (!count || !is_graph(graph)) return SIM_INVALID_VALUE;
    answer_nodes(nodes, count, graph->nodes, graph->count);
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuGraphNodeGetDependencies_v2(sim_node_t node, sim_node_t *out, struct graph_edge_data *edges,
                                                     size_t *count) {
    if (!count || !node) return SIM_INVALID_VALUE;
    size_t wanted = *count;
    answer_nodes(out, count, node->dependencies, node->dependency_count);
    if (out && edges) memset(edges, 0, (wanted < *count ? wanted : *count) * sizeof *edges);
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuGraphCreate(sim_graph_t *out, unsigned flags) {
    if (!out || flags) return SIM_INVALID_VALUE;
    *out = new_graph();
    return *out ? SIM_SUCCESS : SIM_OUT_OF_MEMORY;
}

SIM_EXPORT cuda_result cuGraphInstantiateWithFlags(void **out, sim_graph_t graph, unsigned long long flags) {
    (void)flags;
    if (!out || !is_graph(graph)) return SIM_INVALID_VALUE;
    struct sim_exec *exec = malloc(sizeof *exec);
    if (!exec) return SIM_OUT_OF_MEMORY;
    exec->mark = EXEC_MARK;
    *out = exec;
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuGraphLaunch(void *exec, sim_stream_t stream) {
    if (!exec || ((struct sim_exec *)exec)->mark != EXEC_MARK) return SIM_INVALID_VALUE;
    return sim_enqueue_launch(stream);
}

SIM_EXPORT cuda_result cuGraphExecDestroy(void *exec) {
    if (!exec || ((struct sim_exec *)exec)->mark != EXEC_MARK) return SIM_INVALID_VALUE;
    ((struct sim_exec *)exec)->mark = 0;
    free(exec);
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuGraphDestroy(sim_graph_t graph) {
    if (!is_graph(graph)) return SIM_INVALID_VALUE;
    free_graph(graph);
    return SIM_SUCCESS;
}

SIM_EXPORT cuda_result cuGraphDebugDotPrint(sim_graph_t graph, const char *path, unsigned flags) {
    (void)flags;
    if (!is_graph(graph) || !path) return SIM_INVALID_VALUE;
    FILE *file = fopen(path, "w");
    if (!file) return SIM_OPERATING_SYSTEM;
    fputs("digraph graph_1 {\n", file);
    for (size_t i = 0; i < graph->count; i++) {
        fprintf(file, "  n%p;\n", (void *)graph->nodes[i]);
        for (size_t k = 0; k < graph->nodes[i]->dependency_count; k++)
            fprintf(file, "  n%p -> n%p;\n", (void *)graph->nodes[i]->dependencies[k], (void *)graph->nodes[i]);
    }
    fputs("}\n", file);
    return fclose(file) ? SIM_OPERATING_SYSTEM : SIM_SUCCESS;
}
