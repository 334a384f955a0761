/*
 * cupti.c - the libcupti.so.13 stand-in: nothing runs on the device, so there is no activity to report. Switching kinds
 * of activity on and off is generated.
 */
#include "../sim.h"

enum { CUPTI_SUCCESS = 0, CUPTI_INVALID_PARAMETER = 1, CUPTI_MAX_LIMIT_REACHED = 12 };

/* CUPTI of CUDA 13.0. */
#define CUPTI_VERSION 130000

static int subscriber;

SIM_EXPORT int cuptiGetVersion(uint32_t *version) {
    if (!version) return CUPTI_INVALID_PARAMETER;
    *version = CUPTI_VERSION;
    return CUPTI_SUCCESS;
}

SIM_EXPORT int cuptiGetResultString(int result, const char **text) {
    if (!text) return CUPTI_INVALID_PARAMETER;
    *text = result == CUPTI_SUCCESS ? "CUPTI_SUCCESS" : "CUPTI_ERROR";
    return CUPTI_SUCCESS;
}

SIM_EXPORT int cuptiSubscribe(void **out, void *callback, void *data) {
    (void)callback, (void)data;
    if (!out) return CUPTI_INVALID_PARAMETER;
    *out = &subscriber;
    return CUPTI_SUCCESS;
}

SIM_EXPORT int cuptiActivityGetNextRecord(uint8_t *buffer, size_t bytes, void **record) {
    (void)buffer, (void)bytes;
    if (!record) return CUPTI_INVALID_PARAMETER;
    *record = 0;
    return CUPTI_MAX_LIMIT_REACHED;
}

SIM_EXPORT int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped) {
    (void)context, (void)stream;
    if (!dropped) return CUPTI_INVALID_PARAMETER;
    *dropped = 0;
    return CUPTI_SUCCESS;
}

SIM_EXPORT int cuptiActivityPopExternalCorrelationId(int kind, uint64_t *last) {
    (void)kind;
    if (last) *last = 0;
    return CUPTI_SUCCESS;
}
