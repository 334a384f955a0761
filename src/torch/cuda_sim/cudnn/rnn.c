/*
 * rnn.c - recurrent networks: their parameters exactly, their spaces as lower bounds.
 *
 * The weight space holds, for every pseudo-layer (a layer in one direction), the input matrices of all gates, then the
 * recurrent ones, then the projection's; the biases of all pseudo-layers follow. Matrices and biases are as documented
 * for cudnnRNNMode_t, so the size is their sum, and offsets are consistent with it.
 *
 * The reserve space (kept from forward to backward) and the workspace have no documented size. The reserve answered is
 * what the backward pass reads and cannot get from its other arguments: what the cells keep and the outputs of inner
 * layers. That is what has been reported for LSTM and GRU on a P100 (pytorch/pytorch issue 2895), but other algorithms
 * and dropout may take more, so it is noted as a lower bound. The workspace answered is 0, and noted.
 */
#include "cudnn.h"

#include <stdlib.h>

enum { MODE_RELU = 0, MODE_TANH = 1, MODE_LSTM = 2, MODE_GRU = 3 };
enum { BIAS_NONE = 0, BIAS_SINGLE_INPUT = 1, BIAS_DOUBLE = 2, BIAS_SINGLE_RECURRENT = 3 };
enum { LSTM_PROJECTION_ID = 8 };

struct rnn {
    int mode, bias, bidirectional, skip_input, data_type;
    int64_t input, hidden, projection, layers; /* projection = hidden where there is none */
};

struct rnn_data {
    int64_t steps, batch; /* steps x batch sequences, padded or not */
};

SIM_EXPORT int cudnnCreateRNNDescriptor(struct rnn **out) {
    if (!out) return CUDNN_BAD_PARAM;
    *out = calloc(1, sizeof **out);
    return *out ? CUDNN_SUCCESS : CUDNN_INTERNAL_ERROR;
}

SIM_EXPORT int cudnnDestroyRNNDescriptor(struct rnn *rnn) {
    free(rnn);
    return CUDNN_SUCCESS;
}

SIM_EXPORT int cudnnCreateRNNDataDescriptor(struct rnn_data **out) {
    if (!out) return CUDNN_BAD_PARAM;
    *out = calloc(1, sizeof **out);
    return *out ? CUDNN_SUCCESS : CUDNN_INTERNAL_ERROR;
}

SIM_EXPORT int cudnnDestroyRNNDataDescriptor(struct rnn_data *data) {
    free(data);
    return CUDNN_SUCCESS;
}

SIM_EXPORT int cudnnSetRNNDescriptor_v8(struct rnn *rnn, int algorithm, int mode, int bias, int direction, int input_mode,
                                        int data_type, int math_precision, int math_type, int32_t input, int32_t hidden,
                                        int32_t projection, int32_t layers, void *dropout, uint32_t flags) {
    (void)algorithm, (void)math_precision, (void)math_type, (void)dropout, (void)flags;
    if (!rnn || mode < MODE_RELU || mode > MODE_GRU || bias < BIAS_NONE || bias > BIAS_SINGLE_RECURRENT || input < 1 ||
        hidden < 1 || layers < 1 || projection < 0 || projection > hidden)
        return CUDNN_BAD_PARAM;
    *rnn = (struct rnn){mode, bias, direction != 0, input_mode != 0, data_type, input, hidden,
                        projection ? projection : hidden, layers};
    return CUDNN_SUCCESS;
}

SIM_EXPORT int cudnnSetRNNDataDescriptor(struct rnn_data *data, int data_type, int layout, int max_steps, int batch,
                                         int vector_size, const int *lengths, void *padding_fill) {
    (void)data_type, (void)layout, (void)lengths, (void)padding_fill;
    if (!data || max_steps < 1 || batch < 1 || vector_size < 1) return CUDNN_BAD_PARAM;
    *data = (struct rnn_data){max_steps, batch};
    return CUDNN_SUCCESS;
}

static int64_t gates(const struct rnn *rnn) { return rnn->mode == MODE_LSTM ? 4 : rnn->mode == MODE_GRU ? 3 : 1; }

static int64_t directions(const struct rnn *rnn) { return rnn->bidirectional ? 2 : 1; }

static int has_projection(const struct rnn *rnn) { return rnn->mode == MODE_LSTM && rnn->projection < rnn->hidden; }

/* Columns of the input matrices: the first layer reads the input, the others both directions of the layer below. */
static int64_t input_columns(const struct rnn *rnn, int64_t pseudo_layer) {
    if (pseudo_layer >= directions(rnn)) return rnn->projection * directions(rnn);
    return rnn->skip_input ? 0 : rnn->input;
}

static int64_t matrix_elements(const struct rnn *rnn, int64_t pseudo_layer) {
    int64_t columns = input_columns(rnn, pseudo_layer) + rnn->projection;
    return gates(rnn) * rnn->hidden * columns + (has_projection(rnn) ? rnn->projection * rnn->hidden : 0);
}

/* Bias vectors: one for each gate on the input side, the recurrent side, or both. */
static int64_t bias_elements(const struct rnn *rnn) {
    int64_t sides = rnn->bias == BIAS_NONE ? 0 : rnn->bias == BIAS_DOUBLE ? 2 : 1;
    return sides * gates(rnn) * rnn->hidden;
}

static int64_t pseudo_layers(const struct rnn *rnn) { return rnn->layers * directions(rnn); }

static int64_t all_matrix_elements(const struct rnn *rnn, int64_t before) {
    int64_t elements = 0;
    for (int64_t layer = 0; layer < before; layer++) elements += matrix_elements(rnn, layer);
    return elements;
}

SIM_EXPORT int cudnnGetRNNWeightSpaceSize(void *handle, const struct rnn *rnn, size_t *bytes) {
    if (!handle || !rnn || !bytes || !rnn->layers) return CUDNN_BAD_PARAM;
    int64_t elements = all_matrix_elements(rnn, pseudo_layers(rnn)) + pseudo_layers(rnn) * bias_elements(rnn);
    *bytes = (size_t)elements * cudnn_type_bytes(rnn->data_type);
    return CUDNN_SUCCESS;
}

/* Describes a parameter as cuDNN does: three dimensions, the first 1; none at all where it does not exist. */
static void describe(struct cudnn_tensor *tensor, int data_type, int64_t rows, int64_t columns) {
    if (!tensor) return;
    *tensor = (struct cudnn_tensor){.data_type = data_type, .dims = 3};
    tensor->size[0] = rows ? 1 : 0;
    tensor->size[1] = (int)rows;
    tensor->size[2] = (int)columns;
    tensor->stride[0] = (int)(rows * columns);
    tensor->stride[1] = (int)columns;
    tensor->stride[2] = 1;
}

/* Where a matrix starts in the weight space, in elements, and its size. */
static int64_t locate_matrix(const struct rnn *rnn, int64_t layer, int64_t id, int64_t *rows, int64_t *columns) {
    int64_t count = gates(rnn), offset = all_matrix_elements(rnn, layer);
    int64_t input = input_columns(rnn, layer);
    *rows = rnn->hidden;
    *columns = input;
    if (id < count) return offset + id * rnn->hidden * input;
    offset += count * rnn->hidden * input;
    *columns = rnn->projection;
    if (id < 2 * count) return offset + (id - count) * rnn->hidden * rnn->projection;
    *rows = rnn->projection;
    *columns = rnn->hidden;
    return offset + count * rnn->hidden * rnn->projection;
}

/* Where a bias starts, or -1 where this side has none. */
static int64_t locate_bias(const struct rnn *rnn, int64_t layer, int64_t id) {
    int64_t count = gates(rnn);
    int recurrent = id >= count;
    int exists = id < 2 * count && (rnn->bias == BIAS_DOUBLE || rnn->bias == (recurrent ? BIAS_SINGLE_RECURRENT
                                                                                        : BIAS_SINGLE_INPUT));
    if (!exists) return -1;
    int64_t first = all_matrix_elements(rnn, pseudo_layers(rnn)) + layer * bias_elements(rnn);
    return first + (rnn->bias == BIAS_DOUBLE ? id : id % count) * rnn->hidden;
}

SIM_EXPORT int cudnnGetRNNWeightParams(void *handle, const struct rnn *rnn, int32_t pseudo_layer, size_t space_bytes,
                                       const void *space, int32_t id, struct cudnn_tensor *matrix, void **matrix_address,
                                       struct cudnn_tensor *bias, void **bias_address) {
    size_t needed;
    if (cudnnGetRNNWeightSpaceSize(handle, rnn, &needed) != CUDNN_SUCCESS || space_bytes < needed)
        return CUDNN_BAD_PARAM;
    int is_projection = id == LSTM_PROJECTION_ID && rnn->mode == MODE_LSTM;
    if (pseudo_layer < 0 || pseudo_layer >= pseudo_layers(rnn) || id < 0 || (id >= 2 * gates(rnn) && !is_projection))
        return CUDNN_BAD_PARAM;
    int64_t bytes = (int64_t)cudnn_type_bytes(rnn->data_type), rows, columns;
    int64_t offset = locate_matrix(rnn, pseudo_layer, id, &rows, &columns);
    int exists = columns > 0 && (!is_projection || has_projection(rnn));
    describe(matrix, rnn->data_type, exists ? rows : 0, exists ? columns : 0);
    if (matrix_address) *matrix_address = exists ? (char *)space + offset * bytes : NULL;
    offset = locate_bias(rnn, pseudo_layer, id);
    describe(bias, rnn->data_type, offset < 0 ? 0 : rnn->hidden, offset < 0 ? 0 : 1);
    if (bias_address) *bias_address = offset < 0 ? NULL : (char *)space + offset * bytes;
    return CUDNN_SUCCESS;
}

/* Values that a cell keeps for its gradient at one step of one sequence: for LSTM four gates and the cell state, for GRU
 * three gates and the three recurrent products that enter them; with a projection also the hidden state before it. */
static int64_t kept_by_cell(const struct rnn *rnn) {
    int64_t kept = rnn->mode == MODE_LSTM ? 5 : rnn->mode == MODE_GRU ? 6 : 0;
    return (kept + has_projection(rnn)) * rnn->hidden;
}

SIM_EXPORT int cudnnGetRNNTempSpaceSizes(void *handle, const struct rnn *rnn, int training, const struct rnn_data *data,
                                         size_t *workspace_bytes, size_t *reserve_bytes) {
    if (!handle || !rnn || !data) return CUDNN_BAD_PARAM;
    SIM_NOTE_GAP(CUDNN_SONAME, "RNN workspace", SIM_GAP_SIZE_UNKNOWN);
    if (workspace_bytes) *workspace_bytes = 0;
    if (!reserve_bytes) return CUDNN_SUCCESS;
    *reserve_bytes = 0;
    if (training) {
        SIM_NOTE_GAP(CUDNN_SONAME, "RNN reserve space", SIM_GAP_SIZE_LOWER_BOUND);
        int64_t inner_outputs = (rnn->layers - 1) * directions(rnn) * rnn->projection;
        int64_t elements = data->steps * data->batch * (pseudo_layers(rnn) * kept_by_cell(rnn) + inner_outputs);
        *reserve_bytes = (size_t)elements * cudnn_type_bytes(rnn->data_type);
    }
    return CUDNN_SUCCESS;
}
