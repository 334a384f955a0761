/*
 * graph.c - the graph ("backend") API: descriptors with attributes.
 *
 * A descriptor remembers what it is given, by attribute. One that is set as an attribute of another is shared and
 * counted, so callers may destroy theirs early, as cuDNN allows. For every operation graph one engine configuration is
 * offered; executing a plan does nothing.
 */
#include "cudnn.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* cudnnBackendDescriptorType_t */
enum {
    TYPE_ENGINE = 2,
    TYPE_ENGINE_CONFIG = 3,
    TYPE_CONVOLUTION_FORWARD = 10,
    TYPE_CONVOLUTION_BACKWARD_FILTER = 11,
    TYPE_CONVOLUTION_BACKWARD_DATA = 12,
};

/* cudnnBackendAttributeName_t */
enum {
    CONVOLUTION_DILATIONS = 102,
    CONVOLUTION_STRIDES = 103,
    CONVOLUTION_PRE_PADDINGS = 105,
    HEURISTIC_GRAPH = 201,
    HEURISTIC_RESULTS = 202,
    CONFIG_ENGINE = 300,
    CONFIG_WORKSPACE = 303,
    CONFIG_SHARED_MEMORY = 304,
    PLAN_CONFIG = 401,
    PLAN_WORKSPACE = 402,
    PLAN_JSON = 405,
    FORWARD_CONVOLUTION = 702,
    FORWARD_W = 703,
    FORWARD_X = 704,
    FORWARD_Y = 705,
    BACKWARD_DATA_CONVOLUTION = 708,
    BACKWARD_DATA_W = 709,
    BACKWARD_DATA_DX = 710,
    BACKWARD_DATA_DY = 711,
    BACKWARD_FILTER_CONVOLUTION = 714,
    BACKWARD_FILTER_DW = 715,
    BACKWARD_FILTER_X = 716,
    BACKWARD_FILTER_DY = 717,
    GRAPH_OPERATIONS = 801,
    GRAPH_ENGINE_COUNT = 802,
    TENSOR_DATA_TYPE = 901,
    TENSOR_SIZES = 902,
    TENSOR_STRIDES = 903,
    ENGINE_GRAPH = 1300,
    ENGINE_INDEX = 1301,
};

/* cudnnBackendAttributeType_t: those whose elements are not four bytes wide. */
enum {
    ELEMENT_HANDLE = 0,
    ELEMENT_BOOLEAN = 2,
    ELEMENT_INT64 = 3,
    ELEMENT_DOUBLE = 5,
    ELEMENT_POINTER = 6,
    ELEMENT_DESCRIPTOR = 15,
    ELEMENT_CHAR = 24,
    ELEMENT_FRACTION = 26,
};

struct attribute {
    int name, type;
    size_t count;
    void *elements;
    struct attribute *next;
};

struct descriptor {
    int type;
    unsigned references;
    struct attribute *attributes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t element_bytes(int type) {
    switch (type) {
        case ELEMENT_HANDLE:
        case ELEMENT_INT64:
        case ELEMENT_DOUBLE:
        case ELEMENT_POINTER:
        case ELEMENT_DESCRIPTOR: return 8;
        case ELEMENT_BOOLEAN:
        case ELEMENT_CHAR: return 1;
        case ELEMENT_FRACTION: return 16;
        default: return 4;
    }
}

static void release(struct descriptor *descriptor);

static void clear_attribute(struct attribute *attribute) {
    if (attribute->type == ELEMENT_DESCRIPTOR)
        for (size_t i = 0; i < attribute->count; i++) release(((struct descriptor **)attribute->elements)[i]);
    free(attribute->elements);
    attribute->elements = NULL;
    attribute->count = 0;
}

static void release(struct descriptor *descriptor) {
    if (!descriptor || --descriptor->references) return;
    while (descriptor->attributes) {
        struct attribute *attribute = descriptor->attributes;
        descriptor->attributes = attribute->next;
        clear_attribute(attribute);
        free(attribute);
    }
    free(descriptor);
}

static struct attribute *find(const struct descriptor *descriptor, int name) {
    struct attribute *attribute = descriptor ? descriptor->attributes : NULL;
    while (attribute && attribute->name != name) attribute = attribute->next;
    return attribute;
}

/* The first descriptor that is set as this attribute. */
static struct descriptor *linked(const struct descriptor *descriptor, int name) {
    const struct attribute *attribute = find(descriptor, name);
    if (!attribute || attribute->type != ELEMENT_DESCRIPTOR || !attribute->count) return NULL;
    return *(struct descriptor **)attribute->elements;
}

static struct descriptor *new_descriptor(int type) {
    struct descriptor *descriptor = calloc(1, sizeof *descriptor);
    if (!descriptor) return NULL;
    descriptor->type = type;
    descriptor->references = 1;
    return descriptor;
}

static int set(struct descriptor *descriptor, int name, int type, size_t count, const void *elements) {
    size_t bytes = element_bytes(type) * count;
    void *copy = malloc(bytes ? bytes : 1);
    struct attribute *attribute = find(descriptor, name);
    if (!attribute && copy) {
        attribute = calloc(1, sizeof *attribute);
        if (attribute) {
            attribute->name = name;
            attribute->next = descriptor->attributes;
            descriptor->attributes = attribute;
        }
    }
    if (!copy || !attribute) {
        free(copy);
        return CUDNN_INTERNAL_ERROR;
    }
    if (bytes) memcpy(copy, elements, bytes);
    if (type == ELEMENT_DESCRIPTOR)
        for (size_t i = 0; i < count; i++)
            if (((struct descriptor **)copy)[i]) ((struct descriptor **)copy)[i]->references++;
    clear_attribute(attribute);
    attribute->type = type;
    attribute->count = count;
    attribute->elements = copy;
    return CUDNN_SUCCESS;
}

/* Gives `to`, a descriptor that the caller has created, the content of `from`. */
static int copy_content(struct descriptor *to, const struct descriptor *from) {
    if (!to || !from || to->type != from->type) return CUDNN_BAD_PARAM;
    for (const struct attribute *attribute = from->attributes; attribute; attribute = attribute->next) {
        int status = set(to, attribute->name, attribute->type, attribute->count, attribute->elements);
        if (status != CUDNN_SUCCESS) return status;
    }
    return CUDNN_SUCCESS;
}

/* --- the workspace of a configuration: that of the convolution in its graph, if there is one --- */

static size_t copy_numbers(int64_t *to, size_t capacity, const struct descriptor *descriptor, int name) {
    const struct attribute *attribute = find(descriptor, name);
    if (!attribute || attribute->type != ELEMENT_INT64) return 0;
    size_t count = attribute->count < capacity ? attribute->count : capacity;
    memcpy(to, attribute->elements, count * sizeof *to);
    return count;
}

/* The attributes of a convolution operation: its convolution, x, w and y. Returns 0 where it is another operation. */
static int convolution_attributes(const struct descriptor *operation, int *kind, int names[4]) {
    static const struct {
        int type, names[4];
    } KINDS[] = {
        {TYPE_CONVOLUTION_FORWARD, {FORWARD_CONVOLUTION, FORWARD_X, FORWARD_W, FORWARD_Y}},
        {TYPE_CONVOLUTION_BACKWARD_DATA,
         {BACKWARD_DATA_CONVOLUTION, BACKWARD_DATA_DX, BACKWARD_DATA_W, BACKWARD_DATA_DY}},
        {TYPE_CONVOLUTION_BACKWARD_FILTER,
         {BACKWARD_FILTER_CONVOLUTION, BACKWARD_FILTER_X, BACKWARD_FILTER_DW, BACKWARD_FILTER_DY}},
    };
    for (int i = 0; i < 3; i++)
        if (operation && operation->type == KINDS[i].type) {
            *kind = i;
            memcpy(names, KINDS[i].names, sizeof KINDS[i].names);
            return 1;
        }
    return 0;
}

static int describe(const struct descriptor *operation, struct sim_convolution *out) {
    int names[4];
    if (!convolution_attributes(operation, &out->kind, names)) return 0;
    const struct descriptor *convolution = linked(operation, names[0]), *x = linked(operation, names[1]);
    const struct attribute *type = find(x, TENSOR_DATA_TYPE);
    out->data_type = type && type->count ? *(int *)type->elements : 0;
    copy_numbers(out->x, 8, x, TENSOR_SIZES);
    copy_numbers(out->x_strides, 8, x, TENSOR_STRIDES);
    copy_numbers(out->w, 8, linked(operation, names[2]), TENSOR_SIZES);
    copy_numbers(out->y, 8, linked(operation, names[3]), TENSOR_SIZES);
    out->spatial_dims = (int)copy_numbers(out->stride, 6, convolution, CONVOLUTION_STRIDES);
    copy_numbers(out->padding, 6, convolution, CONVOLUTION_PRE_PADDINGS);
    copy_numbers(out->dilation, 6, convolution, CONVOLUTION_DILATIONS);
    return 1;
}

static int64_t config_workspace(const struct descriptor *config) {
    const struct descriptor *graph = linked(linked(config, CONFIG_ENGINE), ENGINE_GRAPH);
    const struct attribute *operations = find(graph, GRAPH_OPERATIONS);
    if (operations && operations->type == ELEMENT_DESCRIPTOR)
        for (size_t i = 0; i < operations->count; i++) {
            struct sim_convolution convolution = {0};
            if (describe(((struct descriptor **)operations->elements)[i], &convolution))
                return (int64_t)cudnn_conv_workspace(&convolution);
        }
    SIM_NOTE_GAP(CUDNN_SONAME, "operation graph workspace", SIM_GAP_SIZE_UNKNOWN);
    return 0;
}

/* --- the API --- */

SIM_EXPORT int cudnnBackendCreateDescriptor(int type, struct descriptor **out) {
    if (!out) return CUDNN_BAD_PARAM;
    *out = new_descriptor(type);
    return *out ? CUDNN_SUCCESS : CUDNN_INTERNAL_ERROR;
}

SIM_EXPORT int cudnnBackendDestroyDescriptor(struct descriptor *descriptor) {
    pthread_mutex_lock(&lock);
    release(descriptor);
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
    int status = set(descriptor, name, type, (size_t)count, elements);
    pthread_mutex_unlock(&lock);
    return status;
}

/* The heuristic's one result: a configuration whose engine runs the heuristic's graph. */
static int answer_result(struct descriptor *heuristic, struct descriptor *config) {
    if (!config || config->type != TYPE_ENGINE_CONFIG) return CUDNN_BAD_PARAM;
    struct descriptor *engine = new_descriptor(TYPE_ENGINE);
    struct descriptor *graph = linked(heuristic, HEURISTIC_GRAPH);
    int status = engine ? set(engine, ENGINE_GRAPH, ELEMENT_DESCRIPTOR, 1, &graph) : CUDNN_INTERNAL_ERROR;
    if (status == CUDNN_SUCCESS) status = set(config, CONFIG_ENGINE, ELEMENT_DESCRIPTOR, 1, &engine);
    release(engine);
    return status;
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
            *status = answer_number(config_workspace(linked(descriptor, PLAN_CONFIG)), wanted, count, elements);
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
            if (find(descriptor, name)) return 0;
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
        memcpy(elements, attribute->elements, copied * element_bytes(type));
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
        const struct attribute *attribute = find(descriptor, name);
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
