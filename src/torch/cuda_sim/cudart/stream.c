/* stream.c - the runtime's streams, events and graphs: the driver's, with the runtime's error state. */
#include "internal.h"

SIM_EXPORT cuda_result cudaStreamCreate(sim_stream_t *out) { return runtime_result(cuStreamCreate(out, 0)); }

SIM_EXPORT cuda_result cudaStreamCreateWithFlags(sim_stream_t *out, unsigned flags) {
    return runtime_result(cuStreamCreate(out, flags));
}

SIM_EXPORT cuda_result cudaStreamCreateWithPriority(sim_stream_t *out, unsigned flags, int priority) {
    return runtime_result(cuStreamCreateWithPriority(out, flags, priority));
}

SIM_EXPORT cuda_result cudaStreamDestroy(sim_stream_t stream) { return runtime_result(cuStreamDestroy_v2(stream)); }

SIM_EXPORT cuda_result cudaStreamGetPriority(sim_stream_t stream, int *priority) {
    return runtime_result(cuStreamGetPriority(stream, priority));
}

SIM_EXPORT cuda_result cudaStreamSynchronize(sim_stream_t stream) { return runtime_result(cuStreamSynchronize(stream)); }

SIM_EXPORT cuda_result cudaStreamQuery(sim_stream_t stream) { return runtime_result(cuStreamQuery(stream)); }

SIM_EXPORT cuda_result cudaStreamWaitEvent(sim_stream_t stream, sim_event_t event, unsigned flags) {
    return runtime_result(cuStreamWaitEvent(stream, event, flags));
}

SIM_EXPORT cuda_result cudaStreamAddCallback(sim_stream_t stream, void (*callback)(sim_stream_t, cuda_result, void *),
                                             void *data, unsigned flags) {
    return runtime_result(cuStreamAddCallback(stream, callback, data, flags));
}

SIM_EXPORT cuda_result cudaLaunchHostFunc(sim_stream_t stream, void (*function)(void *), void *data) {
    return runtime_result(cuLaunchHostFunc(stream, function, data));
}

SIM_EXPORT cuda_result cudaEventCreate(sim_event_t *out) { return runtime_result(cuEventCreate(out, 0)); }

SIM_EXPORT cuda_result cudaEventCreateWithFlags(sim_event_t *out, unsigned flags) {
    return runtime_result(cuEventCreate(out, flags));
}

SIM_EXPORT cuda_result cudaEventDestroy(sim_event_t event) { return runtime_result(cuEventDestroy_v2(event)); }

SIM_EXPORT cuda_result cudaEventRecord(sim_event_t event, sim_stream_t stream) {
    return runtime_result(cuEventRecord(event, stream));
}

SIM_EXPORT cuda_result cudaEventRecordWithFlags(sim_event_t event, sim_stream_t stream, unsigned flags) {
    return runtime_result(cuEventRecordWithFlags(event, stream, flags));
}

SIM_EXPORT cuda_result cudaEventQuery(sim_event_t event) { return runtime_result(cuEventQuery(event)); }

SIM_EXPORT cuda_result cudaEventSynchronize(sim_event_t event) { return runtime_result(cuEventSynchronize(event)); }

SIM_EXPORT cuda_result cudaEventElapsedTime(float *milliseconds, sim_event_t start, sim_event_t end) {
    return runtime_result(cuEventElapsedTime_v2(milliseconds, start, end));
}

/* There is no second process: an event cannot come from one. */
SIM_EXPORT cuda_result cudaIpcOpenEventHandle(sim_event_t *out, struct ipc_handle handle) {
    (void)out, (void)handle;
    return runtime_result(SIM_NOT_SUPPORTED);
}

SIM_EXPORT cuda_result cudaStreamBeginCapture(sim_stream_t stream, int mode) {
    return runtime_result(cuStreamBeginCapture_v2(stream, mode));
}

SIM_EXPORT cuda_result cudaStreamEndCapture(sim_stream_t stream, sim_graph_t *out) {
    return runtime_result(cuStreamEndCapture(stream, out));
}

SIM_EXPORT cuda_result cudaStreamIsCapturing(sim_stream_t stream, int *status) {
    return runtime_result(cuStreamIsCapturing(stream, status));
}

SIM_EXPORT cuda_result cudaStreamGetCaptureInfo(sim_stream_t stream, int *status, unsigned long long *id,
                                                sim_graph_t *graph, const sim_node_t **dependencies,
                                                const struct graph_edge_data **edges, size_t *dependency_count) {
    return runtime_result(
        cuStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, edges, dependency_count));
}

SIM_EXPORT cuda_result cudaThreadExchangeStreamCaptureMode(int *mode) {
    return runtime_result(cuThreadExchangeStreamCaptureMode(mode));
}

SIM_EXPORT cuda_result cudaGraphGetNodes(sim_graph_t graph, sim_node_t *nodes, size_t *count) {
    return runtime_result(cuGraphGetNodes(graph, nodes, count));
}

SIM_EXPORT cuda_result cudaGraphNodeGetDependencies(sim_node_t node, sim_node_t *out, struct graph_edge_data *edges,
                                                    size_t *count) {
    return runtime_result(cuGraphNodeGetDependencies_v2(node, out, edges, count));
}

SIM_EXPORT cuda_result cudaGraphInstantiateWithFlags(void **out, sim_graph_t graph, unsigned long long flags) {
    return runtime_result(cuGraphInstantiateWithFlags(out, graph, flags));
}

SIM_EXPORT cuda_result cudaGraphInstantiate(void **out, sim_graph_t graph, unsigned long long flags) {
    return runtime_result(cuGraphInstantiateWithFlags(out, graph, flags));
}

SIM_EXPORT cuda_result cudaGraphLaunch(void *exec, sim_stream_t stream) {
    return runtime_result(cuGraphLaunch(exec, stream));
}

SIM_EXPORT cuda_result cudaGraphExecDestroy(void *exec) { return runtime_result(cuGraphExecDestroy(exec)); }

SIM_EXPORT cuda_result cudaGraphDestroy(sim_graph_t graph) { return runtime_result(cuGraphDestroy(graph)); }

SIM_EXPORT cuda_result cudaGraphDebugDotPrint(sim_graph_t graph, const char *path, unsigned flags) {
    return runtime_result(cuGraphDebugDotPrint(graph, path, flags));
}
