/* descriptor.c - see descriptor.h. */
#include "descriptor.h"

#include <stdlib.h>
#include <string.h>

size_t descriptor_element_bytes(int type) {
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

static void clear_attribute(struct attribute *attribute) {
    if (attribute->type == ELEMENT_DESCRIPTOR)
        for (size_t i = 0; i < attribute->count; i++) descriptor_release(((struct descriptor **)attribute->elements)[i]);
    free(attribute->elements);
    attribute->elements = NULL;
    attribute->count = 0;
}

void descriptor_release(struct descriptor *descriptor) {
    if (!descriptor || --descriptor->references) return;
    while (descriptor->attributes) {
        struct attribute *attribute = descriptor->attributes;
        descriptor->attributes = attribute->next;
        clear_attribute(attribute);
        free(attribute);
    }
    free(descriptor);
}

struct attribute *descriptor_find(const struct descriptor *descriptor, int name) {
    struct attribute *attribute = descriptor ? descriptor->attributes : NULL;
    while (attribute && attribute->name != name) attribute = attribute->next;
    return attribute;
}

struct descriptor *descriptor_linked(const struct descriptor *descriptor, int name) {
    const struct attribute *attribute = descriptor_find(descriptor, name);
    if (!attribute || attribute->type != ELEMENT_DESCRIPTOR || !attribute->count) return NULL;
    return *(struct descriptor **)attribute->elements;
}

struct descriptor *descriptor_new(int type) {
    struct descriptor *descriptor = calloc(1, sizeof *descriptor);
    if (!descriptor) return NULL;
    descriptor->type = type;
    descriptor->references = 1;
    return descriptor;
}

int descriptor_set(struct descriptor *descriptor, int name, int type, size_t count, const void *elements) {
    size_t bytes = descriptor_element_bytes(type) * count;
    void *copy = malloc(bytes ? bytes : 1);
    struct attribute *attribute = descriptor_find(descriptor, name);
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
        return 0;
    }
    if (bytes) memcpy(copy, elements, bytes);
    if (type == ELEMENT_DESCRIPTOR)
        for (size_t i = 0; i < count; i++)
            if (((struct descriptor **)copy)[i]) ((struct descriptor **)copy)[i]->references++;
    clear_attribute(attribute);
    attribute->type = type;
    attribute->count = count;
    attribute->elements = copy;
    return 1;
}

int descriptor_copy(struct descriptor *to, const struct descriptor *from) {
    for (const struct attribute *attribute = from->attributes; attribute; attribute = attribute->next)
        if (!descriptor_set(to, attribute->name, attribute->type, attribute->count, attribute->elements)) return 0;
    return 1;
}

int descriptor_set_result(const struct descriptor *heuristic, struct descriptor *config) {
    struct descriptor *engine = descriptor_new(TYPE_ENGINE);
    struct descriptor *graph = descriptor_linked(heuristic, HEURISTIC_GRAPH);
    int done = engine && descriptor_set(engine, ENGINE_GRAPH, ELEMENT_DESCRIPTOR, 1, &graph) &&
               descriptor_set(config, CONFIG_ENGINE, ELEMENT_DESCRIPTOR, 1, &engine);
    descriptor_release(engine);
    return done;
}

/* --- the convolution of a configuration --- */

static size_t copy_numbers(int64_t *to, size_t capacity, const struct descriptor *descriptor, int name) {
    const struct attribute *attribute = descriptor_find(descriptor, name);
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
    const struct descriptor *convolution = descriptor_linked(operation, names[0]), *x = descriptor_linked(operation, names[1]);
    const struct attribute *type = descriptor_find(x, TENSOR_DATA_TYPE);
    out->data_type = type && type->count ? *(int *)type->elements : 0;
    copy_numbers(out->x, 8, x, TENSOR_SIZES);
    copy_numbers(out->x_strides, 8, x, TENSOR_STRIDES);
    copy_numbers(out->w, 8, descriptor_linked(operation, names[2]), TENSOR_SIZES);
    copy_numbers(out->y, 8, descriptor_linked(operation, names[3]), TENSOR_SIZES);
    out->spatial_dims = (int)copy_numbers(out->stride, 6, convolution, CONVOLUTION_STRIDES);
    copy_numbers(out->padding, 6, convolution, CONVOLUTION_PRE_PADDINGS);
    copy_numbers(out->dilation, 6, convolution, CONVOLUTION_DILATIONS);
    return 1;
}

int descriptor_convolution(const struct descriptor *config, struct sim_convolution *out) {
    const struct descriptor *graph = descriptor_linked(descriptor_linked(config, CONFIG_ENGINE), ENGINE_GRAPH);
    const struct attribute *operations = descriptor_find(graph, GRAPH_OPERATIONS);
    if (!operations || operations->type != ELEMENT_DESCRIPTOR) return 0;
    for (size_t i = 0; i < operations->count; i++) {
        memset(out, 0, sizeof *out);
        out->operations = (int)operations->count;
        if (describe(((struct descriptor **)operations->elements)[i], out)) return 1;
    }
    return 0;
}
