/*
 * descriptor.h - descriptors of cuDNN's graph ("backend") API: what they are given, by attribute.
 *
 * A descriptor that is set as an attribute of another is shared and counted, so callers may destroy theirs early, as
 * cuDNN allows. Used by the stand-in, whose descriptors these are, and by the recorder, which keeps one beside each of
 * the real library's. Nothing here locks.
 */
#ifndef INSPECT_CUDA_SIM_CUDNN_DESCRIPTOR_H
#define INSPECT_CUDA_SIM_CUDNN_DESCRIPTOR_H

#include "../sim.h"

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

/* Bytes of one element of a cudnnBackendAttributeType_t. */
size_t descriptor_element_bytes(int type);

/* A descriptor that the caller holds; NULL where there is no memory. */
struct descriptor *descriptor_new(int type);

/* Gives up one reference; NULL is none. */
void descriptor_release(struct descriptor *descriptor);

/* NULL where it was not set. */
struct attribute *descriptor_find(const struct descriptor *descriptor, int name);

/* The first descriptor that is set as this attribute. */
struct descriptor *descriptor_linked(const struct descriptor *descriptor, int name);

/* Copies the elements; a descriptor among them is shared. Returns 0 where there is no memory. */
int descriptor_set(struct descriptor *descriptor, int name, int type, size_t count, const void *elements);

/* Gives `to` the content of `from`, which has the same type. Returns 0 where there is no memory. */
int descriptor_copy(struct descriptor *to, const struct descriptor *from);

/* A heuristic's result: gives `config` an engine that runs the heuristic's graph. Returns 0 where there is no memory. */
int descriptor_set_result(const struct descriptor *heuristic, struct descriptor *config);

/* The convolution that an engine configuration runs. Returns 0 where its graph has none. */
int descriptor_convolution(const struct descriptor *config, struct sim_convolution *out);

#endif
