/*
 * nccl.c - the libnccl.so.2 stand-in: communicators that know their size and rank. Collectives are generated: data that
 * is not there needs no exchange, so one process stands for one rank of any number.
 */
#include "../driver.h"

#include <stdlib.h>
#include <string.h>

enum { NCCL_SUCCESS = 0, NCCL_SYSTEM_ERROR = 2, NCCL_INVALID_ARGUMENT = 4 };

/* NCCL 2.28.9, which torch 2.11.0 is released with. */
#define NCCL_VERSION 22809
#define FIRST_USER_OPERATION 5 /* after the five built-in reductions */

struct communicator {
    int size, rank;
};

struct unique_id {
    char bytes[128];
};

#pragma GCC diagnostic ignored "-Wunused-parameter"

SIM_EXPORT int ncclGetVersion(int *version) {
    if (!version) return NCCL_INVALID_ARGUMENT;
    *version = NCCL_VERSION;
    return NCCL_SUCCESS;
}

SIM_EXPORT const char *ncclGetErrorString(int result) {
    switch (result) {
        case NCCL_SUCCESS: return "no error";
        case NCCL_SYSTEM_ERROR: return "unhandled system error";
        case NCCL_INVALID_ARGUMENT: return "invalid argument";
        default: return "unknown result code";
    }
}

SIM_EXPORT const char *ncclGetLastError(struct communicator *communicator) { return ""; }

SIM_EXPORT int ncclGetUniqueId(struct unique_id *id) {
    static uint64_t next = 1;
    if (!id) return NCCL_INVALID_ARGUMENT;
    memset(id, 0, sizeof *id);
    uint64_t number = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
    memcpy(id->bytes, &number, sizeof number);
    return NCCL_SUCCESS;
}

static int create(struct communicator **out, int size, int rank) {
    if (!out || size < 1 || rank < 0 || rank >= size) return NCCL_INVALID_ARGUMENT;
    *out = malloc(sizeof **out);
    if (!*out) return NCCL_SYSTEM_ERROR;
    **out = (struct communicator){size, rank};
    return NCCL_SUCCESS;
}

SIM_EXPORT int ncclCommInitRank(struct communicator **out, int size, struct unique_id id, int rank) {
    return create(out, size, rank);
}

SIM_EXPORT int ncclCommInitRankConfig(struct communicator **out, int size, struct unique_id id, int rank,
                                      void *config) {
    return create(out, size, rank);
}

SIM_EXPORT int ncclCommInitRankScalable(struct communicator **out, int size, int rank, int id_count,
                                        struct unique_id *ids, void *config) {
    return create(out, size, rank);
}

SIM_EXPORT int ncclCommInitAll(struct communicator **out, int count, const int *devices) {
    int result = count == 1 ? NCCL_SUCCESS : NCCL_INVALID_ARGUMENT; /* there is one device */
    return result == NCCL_SUCCESS ? create(out, 1, 0) : result;
}

/* Which ranks have the same colour is not known here: all of them. */
SIM_EXPORT int ncclCommSplit(struct communicator *from, int color, int key, struct communicator **out, void *config) {
    if (!from || !out) return NCCL_INVALID_ARGUMENT;
    if (color >= 0) return create(out, from->size, from->rank);
    *out = NULL;
    return NCCL_SUCCESS;
}

SIM_EXPORT int ncclCommShrink(struct communicator *from, int *excluded, int excluded_count, struct communicator **out,
                              void *config, int flags) {
    if (!from || excluded_count < 0 || excluded_count >= from->size) return NCCL_INVALID_ARGUMENT;
    int size = from->size - excluded_count;
    return create(out, size, from->rank < size ? from->rank : size - 1);
}

static int destroy(struct communicator *communicator) {
    free(communicator);
    return NCCL_SUCCESS;
}

SIM_EXPORT int ncclCommDestroy(struct communicator *communicator) { return destroy(communicator); }

SIM_EXPORT int ncclCommAbort(struct communicator *communicator) { return destroy(communicator); }

static int answer(int *out, int value) {
    if (!out) return NCCL_INVALID_ARGUMENT;
    *out = value;
    return NCCL_SUCCESS;
}

SIM_EXPORT int ncclCommCount(const struct communicator *communicator, int *count) {
    return communicator ? answer(count, communicator->size) : NCCL_INVALID_ARGUMENT;
}

SIM_EXPORT int ncclCommUserRank(const struct communicator *communicator, int *rank) {
    return communicator ? answer(rank, communicator->rank) : NCCL_INVALID_ARGUMENT;
}

SIM_EXPORT int ncclCommGetAsyncError(struct communicator *communicator, int *error) {
    return answer(error, NCCL_SUCCESS);
}

SIM_EXPORT int ncclRedOpCreatePreMulSum(int *operation, void *scalar, int type, int residence,
                                        struct communicator *communicator) {
    static int next = FIRST_USER_OPERATION;
    return answer(operation, __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED));
}

SIM_EXPORT int ncclMemAlloc(void **out, size_t bytes) {
    device_pointer address = 0;
    if (!out || !bytes) return NCCL_INVALID_ARGUMENT;
    if (cuMemAlloc_v2(&address, bytes) != SIM_SUCCESS) return NCCL_SYSTEM_ERROR;
    *out = (void *)address;
    return NCCL_SUCCESS;
}

SIM_EXPORT int ncclMemFree(void *pointer) {
    return cuMemFree_v2((device_pointer)pointer) == SIM_SUCCESS ? NCCL_SUCCESS : NCCL_INVALID_ARGUMENT;
}

/* A registration is named by the buffer itself. */
SIM_EXPORT int ncclCommRegister(const struct communicator *communicator, void *buffer, size_t bytes, void **handle) {
    if (!handle) return NCCL_INVALID_ARGUMENT;
    *handle = buffer;
    return NCCL_SUCCESS;
}

SIM_EXPORT int ncclCommWindowRegister(struct communicator *communicator, void *buffer, size_t bytes, void **window,
                                      int flags) {
    return ncclCommRegister(communicator, buffer, bytes, window);
}
