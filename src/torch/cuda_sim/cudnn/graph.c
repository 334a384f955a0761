/*
 * graph.c - the graph ("backend") API. For every operation graph one engine configuration is offered; executing a plan
 * does nothing.
 */
#include "cudnn.h"
#include "descriptor.h"

#include <pthread.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The workspace of a configuration: that of the convolution in its graph, if there is one. */
static int64_t config_workspace(const struct descriptor *config) {
    struct sim_convolution convolution;
    if (descriptor_convolution(config, &convolution)) return (int64_t)cudnn_conv_workspace(&convolution);
    SIM_NOTE_GAP(CUDNN_SONAME, "operation graph workspace", SIM_GAP_SIZE_UNKNOWN);
    return 0;
}

static int done(int succeeded) { return succeeded ? CUDNN_SUCCESS : CUDNN_INTERNAL_ERROR; }

SIM_EXPORT int cudnnBackendCreateDescriptor(int type, struct descriptor **out) {
    if (!out) return CUDNN_BAD_PARAM;
    *out = descriptor_new(type);
    return *out ? CUDNN_SUCCESS : CUDNN_INTERNAL_ERROR;
}

SIM_EXPORT int cudnnBackendDestroyDescriptor(struct descriptor *descriptor) {
    pthread_mutex_lock(&lock);
    descriptor_release(descriptor);
    pthread_mutex_unlock(&lock);
    return CUDNN_SUCCESS;
}

SIM_EXPORT int cudnnBackendFinalize(struct descriptor *descriptor) {
    return descriptor ? CUDNN_SUCCESS : CUDNN_BAD_PARAM;
}

SIM_EXPORT int cudnnBackendSetAttribute(struct descriptor *descriptor, int name, int type, int64_t count,
                                        const void *elements) {
    if (!descriptor || count < 0 || (count && !elements)) return CUDNN_BAD_PARAM;
    pthread_mutex_lock(&lock);
    int status = done(descriptor_set(descriptor, name, type, (size_t)count, elements));
    pthread_mutex_unlock(&lock);
    return status;
}

/* The heuristic's one result: a configuration whose engine runs the heuristic's graph. */
static int answer_result(struct descriptor *heuristic, struct descriptor *config) {
    if (!config || config->type != TYPE_ENGINE_CONFIG) return CUDNN_BAD_PARAM;
    return done(descriptor_set_result(heuristic, config));
}

/* Gives `to`, a descriptor that the caller has created, the content of `from`. */
static int copy_content(struct descriptor *to, const struct descriptor *from) {
    if (!to || !from || to->type != from->type) return CUDNN_BAD_PARAM;
    return done(descriptor_copy(to, from));
}

static int answer_number(int64_t value, int64_t wanted, int64_t *count, void *elements) {
    if (count) *count = 1;
    if (elements && wanted > 0) *(int64_t *)elements = value;
    return CUDNN_SUCCESS;
}

/* Attributes that are computed. Returns 0 where the attribute is not one of them. */
static int answer_computed(struct descriptor *descriptor, int name, int64_t wanted, int64_t *count, void *elements,
                           int *status) {
    *status = CUDNN_SUCCESS;
    switch (name) {
        case HEURISTIC_RESULTS:
            if (count) *count = 1;
            if (elements && wanted > 0) *status = answer_result(descriptor, *(struct descriptor **)elements);
            return 1;
        case CONFIG_WORKSPACE:
            *status = answer_number(config_workspace(descriptor), wanted, count, elements);
            return 1;
        case PLAN_WORKSPACE:
            *status = answer_number(config_workspace(descriptor_linked(descriptor, PLAN_CONFIG)), wanted, count, elements);
            return 1;
        case CONFIG_SHARED_MEMORY: /* 32 bits; callers compare it with what the device has */
            if (count) *count = 1;
            if (elements && wanted > 0) *(int32_t *)elements = 0;
            return 1;
        case GRAPH_ENGINE_COUNT: *status = answer_number(1, wanted, count, elements); return 1;
        case PLAN_JSON:
            if (count) *count = 1;
            if (elements && wanted > 0) *(char *)elements = 0;
            return 1;
        case ENGINE_INDEX:
            if (descriptor_find(descriptor, name)) return 0;
            *status = answer_number(0, wanted, count, elements);
            return 1;
        default: return 0;
    }
}

static int answer_stored(const struct attribute *attribute, int type, int64_t wanted, int64_t *count, void *elements) {
    if (count) *count = (int64_t)attribute->count;
    if (!elements) return CUDNN_SUCCESS;
    if (type != attribute->type) return CUDNN_BAD_PARAM;
    size_t copied = wanted < 0 ? 0 : (size_t)wanted < attribute->count ? (size_t)wanted : attribute->count;
    if (type != ELEMENT_DESCRIPTOR) {
        memcpy(elements, attribute->elements, copied * descriptor_element_bytes(type));
        return CUDNN_SUCCESS;
    }
    int status = CUDNN_SUCCESS;
    for (size_t i = 0; i < copied && status == CUDNN_SUCCESS; i++)
        status = copy_content(((struct descriptor **)elements)[i], ((struct descriptor **)attribute->elements)[i]);
    return status;
}

/* What was neither set nor is computed (notes, knobs, layouts): there is none of it. */
SIM_EXPORT int cudnnBackendGetAttribute(struct descriptor *descriptor, int name, int type, int64_t wanted,
                                        int64_t *count, void *elements) {
    if (!descriptor) return CUDNN_BAD_PARAM;
    pthread_mutex_lock(&lock);
    int status;
    if (!answer_computed(descriptor, name, wanted, count, elements, &status)) {
        const struct attribute *attribute = descriptor_find(descriptor, name);
        if (attribute)
            status = answer_stored(attribute, type, wanted, count, elements);
        else if (count)
            *count = 0;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

SIM_EXPORT int cudnnBackendExecute(struct cudnn_handle *handle, struct descriptor *plan, struct descriptor *pack) {
    if (!handle || !plan || !pack) return CUDNN_BAD_PARAM;
    return inspect_cuda_sim_enqueue(handle->stream) ? CUDNN_INTERNAL_ERROR : CUDNN_SUCCESS;
}
