/*
 * contract.c - what the simulated CUDA device promises, call by call. Built and run by tests/engine/cuda_sim.rs with the
 * stand-ins preloaded and a device of 1 GiB, 64 MiB of it in use, compute capability 8.6.
 *
 * Each CHECK that fails prints its line; the program's exit status is their number.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

/* The runtime and the libraries, as libtorch declares them. */
int cudaMalloc(void **, size_t), cudaFree(void *), cudaMemGetInfo(size_t *, size_t *), cudaGetLastError(void);
int cudaPeekAtLastError(void), cudaMemcpy(void *, const void *, size_t, int), cudaHostAlloc(void **, size_t, unsigned);
int cudaFreeHost(void *), cudaHostRegister(void *, size_t, unsigned), cudaHostUnregister(void *);
int cudaPointerGetAttributes(struct pointer_attributes *, const void *), cudaGetDeviceCount(int *), cudaSetDevice(int);
int cudaGetDeviceProperties(struct device_prop *, int), cudaStreamCreateWithPriority(sim_stream_t *, unsigned, int);
int cudaStreamDestroy(sim_stream_t), cudaStreamSynchronize(sim_stream_t), cudaEventCreateWithFlags(sim_event_t *, unsigned);
int cudaEventRecord(sim_event_t, sim_stream_t), cudaEventQuery(sim_event_t), cudaEventDestroy(sim_event_t);
int cudaEventElapsedTime(float *, sim_event_t, sim_event_t), cudaStreamWaitEvent(sim_stream_t, sim_event_t, unsigned);
int cudaStreamBeginCapture(sim_stream_t, int), cudaStreamEndCapture(sim_stream_t, sim_graph_t *);
int cudaStreamIsCapturing(sim_stream_t, int *), cudaGraphGetNodes(sim_graph_t, sim_node_t *, size_t *);
int cudaGraphDestroy(sim_graph_t), cudaLaunchHostFunc(sim_stream_t, void (*)(void *), void *);
int cudaLaunchKernel(const void *, struct dims, struct dims, void **, size_t, sim_stream_t);
int cudaMallocAsync(void **, size_t, sim_stream_t), cudaFreeAsync(void *, sim_stream_t);
int cudaDeviceGetDefaultMemPool(void **, int), cudaMemPoolGetAttribute(void *, int, void *);
int cudaMemPoolTrimTo(void *, size_t), cudaGetDriverEntryPointByVersion(const char *, void **, unsigned, unsigned long long, int *);
const char *cudaGetErrorString(int);
int cublasCreate_v2(void **), cublasDestroy_v2(void *), cublasSetStream_v2(void *, void *), cublasGetMathMode(void *, int *);
int cublasSetMathMode(void *, int), cufftCreate(int *);
int cublasSdot_v2(void *, int, const void *, int, const void *, int, void *);
int cudnnCreate(void **), cudnnCreateRNNDescriptor(void **), cudnnCreateTensorDescriptor(void **);
int cudnnSetRNNDescriptor_v8(void *, int, int, int, int, int, int, int, int, int, int, int, int, void *, unsigned);
int cudnnCreateRNNDataDescriptor(void **), cudnnSetRNNDataDescriptor(void *, int, int, int, int, int, const int *, void *);
int cudnnGetRNNTempSpaceSizes(void *, void *, int, void *, size_t *, size_t *);
int cudnnGetRNNWeightSpaceSize(void *, void *, size_t *);
int cudnnGetRNNWeightParams(void *, void *, int, size_t, const void *, int, void *, void **, void *, void **);

static int failures;
#define CHECK(condition)                                                          \
    do {                                                                          \
        if (!(condition)) {                                                       \
            printf("contract.c:%d: %s\n", __LINE__, #condition);                  \
            failures++;                                                           \
        }                                                                         \
    } while (0)
#define OK(call) CHECK((call) == 0)

static size_t free_bytes(void) {
    size_t free = 0, total = 0;
    OK(cudaMemGetInfo(&free, &total));
    CHECK(total == 1024 * MIB);
    return free;
}

static void memory(void) {
    size_t before = free_bytes();
    CHECK(before == 960 * MIB);
    void *first = NULL, *second = NULL;
    OK(cudaMalloc(&first, 20 * MIB));
    OK(cudaMalloc(&second, 1));
    CHECK(first && second && first != second);
    CHECK(free_bytes() == before - 22 * MIB); /* a page of 2 MiB for the single byte */
    struct pointer_attributes attributes;
    OK(cudaPointerGetAttributes(&attributes, (char *)first + 5));
    CHECK(attributes.type == MEMORY_DEVICE && attributes.device == 0);
    char host[16];
    memset(host, 7, sizeof host);
    OK(cudaMemcpy(host, first, sizeof host, 2));
    for (size_t i = 0; i < sizeof host; i++) CHECK(host[i] == 0);
    OK(cudaFree(first));
    OK(cudaFree(second));
    OK(cudaFree(NULL));
    CHECK(free_bytes() == before);
    void *nothing = &nothing;
    OK(cudaMalloc(&nothing, 0));
    CHECK(nothing == NULL);
}

static void address_order(const char *order) {
    void *pointers[4];
    for (int i = 0; i < 3; i++) OK(cudaMalloc(&pointers[i], 2 * MIB));
    if (!strcmp(order, "down")) CHECK(pointers[0] > pointers[1] && pointers[1] > pointers[2]);
    if (!strcmp(order, "up")) CHECK(pointers[0] < pointers[1] && pointers[1] < pointers[2]);
    OK(cudaFree(pointers[1]));
    OK(cudaMalloc(&pointers[3], 2 * MIB));
    CHECK((pointers[3] == pointers[1]) == !strcmp(order, "reuse"));
    OK(cudaFree(pointers[0]));
    OK(cudaFree(pointers[2]));
    OK(cudaFree(pointers[3]));
}

static void out_of_memory(void) {
    void *pointer = NULL, *rest = NULL;
    CHECK(cudaMalloc(&pointer, 961 * MIB) == SIM_OUT_OF_MEMORY);
    CHECK(cudaMalloc(&pointer, SIZE_MAX) == SIM_OUT_OF_MEMORY);
    CHECK(pointer == NULL);
    CHECK(!strcmp(cudaGetErrorString(SIM_OUT_OF_MEMORY), "out of memory"));
    OK(cudaMalloc(&rest, 960 * MIB));
    CHECK(free_bytes() == 0);
    CHECK(cudaMalloc(&pointer, 1) == SIM_OUT_OF_MEMORY);
    OK(cudaFree(rest));
    CHECK(cudaGetLastError() == SIM_OUT_OF_MEMORY);
    struct sim_stats stats;
    inspect_cuda_sim_stats(&stats);
    CHECK(stats.out_of_memory_count == 3 && stats.peak_used_bytes == 1024 * MIB && stats.used_bytes == 64 * MIB);
}

/* A failed call sets the last error; the next success leaves it, reading clears it; a sticky one stays. */
static void errors(void) {
    CHECK(cudaSetDevice(7) == SIM_INVALID_DEVICE);
    OK(cudaSetDevice(0));
    CHECK(cudaPeekAtLastError() == SIM_INVALID_DEVICE);
    CHECK(cudaGetLastError() == SIM_INVALID_DEVICE);
    CHECK(cudaGetLastError() == 0);
    inspect_cuda_sim_set_sticky_error(700);
    size_t free, total;
    CHECK(cudaMemGetInfo(&free, &total) == 700);
    CHECK(cudaGetLastError() == 700);
    CHECK(cudaGetLastError() == 700);
    inspect_cuda_sim_set_sticky_error(0);
    CHECK(cudaGetLastError() == 0);
}

static void *other_thread(void *result) {
    *(int *)result = cudaPeekAtLastError();
    return NULL;
}

static void errors_belong_to_a_thread(void) {
    int seen = -1;
    pthread_t thread;
    CHECK(cudaFree((void *)0x1234) == SIM_INVALID_VALUE);
    pthread_create(&thread, NULL, other_thread, &seen);
    pthread_join(thread, NULL);
    CHECK(seen == 0);
    CHECK(cudaGetLastError() == SIM_INVALID_VALUE);
}

static void pinned_memory(void) {
    char *pinned = NULL;
    struct pointer_attributes attributes;
    OK(cudaHostAlloc((void **)&pinned, 100, 0));
    memset(pinned, 1, 100);
    OK(cudaPointerGetAttributes(&attributes, pinned + 50));
    CHECK(attributes.type == MEMORY_HOST && attributes.host_pointer == pinned + 50);
    OK(cudaFreeHost(pinned));
    static char ordinary[4096];
    OK(cudaPointerGetAttributes(&attributes, ordinary));
    CHECK(attributes.type == MEMORY_UNREGISTERED && attributes.device == -2);
    OK(cudaHostRegister(ordinary, sizeof ordinary, 0));
    CHECK(cudaHostRegister(ordinary, 10, 0) == SIM_HOST_MEMORY_ALREADY_REGISTERED);
    OK(cudaPointerGetAttributes(&attributes, ordinary + 9));
    CHECK(attributes.type == MEMORY_HOST);
    OK(cudaHostUnregister(ordinary));
    CHECK(cudaHostUnregister(ordinary) == SIM_HOST_MEMORY_NOT_REGISTERED);
    (void)cudaGetLastError();
}

static void virtual_memory(void) {
    size_t before = free_bytes(), page = 0;
    struct mem_allocation_prop prop = {.type = 1, .location = {1, 0}};
    struct mem_access_desc access = {{1, 0}, 3};
    OK(cuMemGetAllocationGranularity(&page, &prop, 0));
    CHECK(page == 2 * MIB);
    device_pointer base = 0;
    uint64_t first = 0, second = 0;
    CHECK(cuMemCreate(&first, page + 1, &prop, 0) == SIM_INVALID_VALUE);
    OK(cuMemAddressReserve(&base, 100 * page, 0, 0, 0));
    OK(cuMemCreate(&first, page, &prop, 0));
    OK(cuMemCreate(&second, 3 * page, &prop, 0));
    CHECK(first != second && free_bytes() == before - 4 * page);
    OK(cuMemMap(base, page, 0, first, 0));
    OK(cuMemMap(base + page, 3 * page, 0, second, 0));
    CHECK(cuMemMap(base, page, 0, first, 0) == SIM_INVALID_VALUE);                /* mapped already */
    CHECK(cuMemMap(base + 200 * page, page, 0, first, 0) == SIM_INVALID_VALUE);   /* not reserved */
    OK(cuMemSetAccess(base, 4 * page, &access, 1));
    CHECK(cuMemSetAccess(base, 5 * page, &access, 1) == SIM_INVALID_VALUE);       /* not mapped */
    CHECK(cuMemAddressFree(base, 100 * page) == SIM_INVALID_VALUE);               /* still mapped */
    CHECK(cuMemUnmap(base + page, page) == SIM_INVALID_VALUE);                    /* cuts a mapping */
    OK(cuMemRelease(second));
    CHECK(free_bytes() == before - 4 * page); /* the mapping keeps it */
    OK(cuMemUnmap(base + page, 3 * page));
    CHECK(free_bytes() == before - page);
    OK(cuMemUnmap(base, page));
    CHECK(free_bytes() == before - page); /* the handle keeps it */
    OK(cuMemRelease(first));
    CHECK(cuMemRelease(first) == SIM_INVALID_VALUE);
    CHECK(free_bytes() == before);
    OK(cuMemAddressFree(base, 100 * page));
    CHECK(cuMemCreate(&first, 1024 * MIB, &prop, 0) == SIM_OUT_OF_MEMORY);
}

static void pool(void) {
    void *memory_pool = NULL, *pointer = NULL;
    uint64_t value = 1;
    size_t before = free_bytes();
    OK(cudaDeviceGetDefaultMemPool(&memory_pool, 0));
    OK(cudaMallocAsync(&pointer, 10 * MIB, NULL));
    OK(cudaMemPoolGetAttribute(memory_pool, 7, &value));
    CHECK(value == 10 * MIB && free_bytes() == before - 10 * MIB);
    OK(cudaFreeAsync(pointer, NULL));
    OK(cudaMemPoolGetAttribute(memory_pool, 7, &value));
    CHECK(value == 0);
    OK(cudaMemPoolGetAttribute(memory_pool, 8, &value));
    CHECK(value == 10 * MIB);
    OK(cudaMemPoolTrimTo(memory_pool, 0));
    CHECK(free_bytes() == before);
}

static void device(void) {
    int count = 0;
    struct device_prop prop;
    OK(cudaGetDeviceCount(&count));
    CHECK(count == 1);
    OK(cudaGetDeviceProperties(&prop, 0));
    CHECK(cudaGetDeviceProperties(&prop, 1) == SIM_INVALID_DEVICE);
    (void)cudaGetLastError();
    CHECK(prop.major == 8 && prop.minor == 6 && prop.total_global_mem == 1024 * MIB);
    CHECK(prop.max_threads_per_multi_processor == 1536 && prop.shared_mem_per_block_optin == 99 << 10);
    CHECK(prop.multi_processor_count == 82 && prop.warp_size == 32 && prop.unified_addressing == 1);
    CHECK(!strcmp(prop.name, "Simulated CUDA device"));
    void *function = NULL;
    int status = -1;
    OK(cudaGetDriverEntryPointByVersion("cuMemAlloc", &function, 12000, 0, &status));
    CHECK(status == 0 && function == dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
    OK(cudaGetDriverEntryPointByVersion("cuNoSuchFunction", &function, 12000, 0, &status));
    CHECK(status == 1 && function == NULL);
}

static void launches(void) {
    struct sim_stats before, after;
    struct dims one = {1, 1, 1}, none = {0, 1, 1}, full = {1024, 1, 1}, large = {1024, 2, 1};
    inspect_cuda_sim_stats(&before);
    OK(cudaLaunchKernel((void *)launches, one, full, NULL, 0, NULL));
    CHECK(cudaLaunchKernel((void *)launches, none, one, NULL, 0, NULL) == SIM_INVALID_CONFIGURATION);
    CHECK(cudaLaunchKernel((void *)launches, one, large, NULL, 0, NULL) == SIM_INVALID_CONFIGURATION);
    CHECK(cudaLaunchKernel((void *)launches, one, one, NULL, 100 << 10, NULL) == SIM_INVALID_VALUE);
    (void)cudaGetLastError();
    inspect_cuda_sim_stats(&after);
    CHECK(after.launch_count == before.launch_count + 1);
}

static void streams_and_events(void) {
    sim_stream_t first, second;
    sim_event_t start, end, untimed;
    float milliseconds = -1;
    OK(cudaStreamCreateWithPriority(&first, 1, 0));
    OK(cudaStreamCreateWithPriority(&second, 1, -1));
    CHECK(first != second);
    OK(cudaEventCreateWithFlags(&start, 0));
    OK(cudaEventCreateWithFlags(&end, 0));
    OK(cudaEventCreateWithFlags(&untimed, 2));
    OK(cudaEventQuery(start)); /* never recorded: complete */
    CHECK(cudaEventElapsedTime(&milliseconds, start, end) == SIM_INVALID_RESOURCE_HANDLE);
    OK(cudaEventRecord(start, first));
    OK(cudaStreamWaitEvent(second, start, 0));
    OK(cudaEventRecord(end, second));
    OK(cudaEventRecord(untimed, second));
    OK(cudaEventElapsedTime(&milliseconds, start, end));
    CHECK(milliseconds >= 0);
    CHECK(cudaEventElapsedTime(&milliseconds, start, untimed) == SIM_INVALID_RESOURCE_HANDLE);
    CHECK(cudaEventQuery(NULL) == SIM_INVALID_RESOURCE_HANDLE);
    (void)cudaGetLastError();
    OK(cudaEventDestroy(start));
    OK(cudaEventDestroy(end));
    OK(cudaEventDestroy(untimed));
    OK(cudaStreamDestroy(first));
    OK(cudaStreamDestroy(second));
}

static void sleep_then_set(void *flag) {
    usleep(20000);
    __atomic_store_n((int *)flag, 1, __ATOMIC_SEQ_CST);
}

static void host_functions_are_waited_for(void) {
    int flag = 0;
    sim_event_t event;
    OK(cudaEventCreateWithFlags(&event, 2));
    OK(cudaLaunchHostFunc(NULL, sleep_then_set, &flag));
    OK(cudaEventRecord(event, NULL));
    CHECK(cudaEventQuery(event) == SIM_NOT_READY);
    CHECK(cudaGetLastError() == SIM_NOT_READY);
    OK(cudaStreamSynchronize(NULL));
    CHECK(__atomic_load_n(&flag, __ATOMIC_SEQ_CST) == 1);
    OK(cudaEventQuery(event));
    OK(cudaEventDestroy(event));
}

static void capture(void) {
    sim_stream_t origin, side;
    sim_event_t fork, join;
    sim_graph_t graph;
    size_t nodes = 0;
    int status = -1;
    struct dims one = {1, 1, 1};
    OK(cudaStreamCreateWithPriority(&origin, 1, 0));
    OK(cudaStreamCreateWithPriority(&side, 1, 0));
    OK(cudaEventCreateWithFlags(&fork, 2));
    OK(cudaEventCreateWithFlags(&join, 2));
    CHECK(cudaStreamBeginCapture(NULL, 0) == SIM_CAPTURE_UNSUPPORTED);
    OK(cudaStreamBeginCapture(origin, 0));
    CHECK(cudaStreamBeginCapture(origin, 0) == SIM_ILLEGAL_STATE);
    OK(cudaLaunchKernel((void *)capture, one, one, NULL, 0, origin));
    OK(cudaEventRecord(fork, origin));
    CHECK(cudaEventQuery(fork) == SIM_CAPTURED_EVENT);
    OK(cudaStreamWaitEvent(side, fork, 0));
    OK(cudaStreamIsCapturing(side, &status));
    CHECK(status == CAPTURE_STATUS_ACTIVE);
    OK(cudaLaunchKernel((void *)capture, one, one, NULL, 0, side));
    OK(cudaEventRecord(join, side));
    OK(cudaStreamWaitEvent(origin, join, 0));
    OK(cudaStreamEndCapture(origin, &graph));
    OK(cudaGraphGetNodes(graph, NULL, &nodes));
    CHECK(nodes == 2);
    OK(cudaStreamIsCapturing(side, &status));
    CHECK(status == CAPTURE_STATUS_NONE);
    OK(cudaGraphDestroy(graph));

    /* work on a side stream that is not joined back */
    OK(cudaStreamBeginCapture(origin, 0));
    OK(cudaEventRecord(fork, origin));
    OK(cudaStreamWaitEvent(side, fork, 0));
    OK(cudaLaunchKernel((void *)capture, one, one, NULL, 0, side));
    CHECK(cudaStreamEndCapture(origin, &graph) == SIM_CAPTURE_UNJOINED);
    CHECK(graph == NULL);

    /* waiting for a captured stream spoils the capture */
    OK(cudaStreamBeginCapture(origin, 0));
    CHECK(cudaStreamSynchronize(origin) == SIM_CAPTURE_UNSUPPORTED);
    CHECK(cudaStreamEndCapture(origin, &graph) == SIM_CAPTURE_INVALIDATED);
    (void)cudaGetLastError();
    OK(cudaEventDestroy(fork));
    OK(cudaEventDestroy(join));
    OK(cudaStreamDestroy(origin));
    OK(cudaStreamDestroy(side));
}

static void handles(void) {
    void *first = NULL, *second = NULL;
    int mode = -1, plan = 0, other_plan = 0;
    OK(cublasCreate_v2(&first));
    OK(cublasCreate_v2(&second));
    CHECK(first && first != second);
    OK(cublasSetMathMode(first, 3));
    OK(cublasGetMathMode(first, &mode));
    CHECK(mode == 3);
    OK(cublasGetMathMode(second, &mode));
    CHECK(mode == 0);
    float result = 5;
    OK(cublasSdot_v2(first, 1, NULL, 1, NULL, 1, &result));
    CHECK(result == 0);
    OK(cublasDestroy_v2(first));
    OK(cublasDestroy_v2(second));
    OK(cufftCreate(&plan));
    OK(cufftCreate(&other_plan));
    CHECK(plan != other_plan);
}

/* Two layers, both directions, input 10, hidden 6 projected to 4: the sum that the documentation of the parameters gives. */
static void recurrent_parameters(void) {
    void *handle, *rnn, *matrix, *bias, *address, *bias_address;
    size_t bytes = 0;
    OK(cudnnCreate(&handle));
    OK(cudnnCreateRNNDescriptor(&rnn));
    OK(cudnnCreateTensorDescriptor(&matrix));
    OK(cudnnCreateTensorDescriptor(&bias));
    OK(cudnnSetRNNDescriptor_v8(rnn, 0, 2, 2, 1, 0, 0, 0, 0, 10, 6, 4, 2, NULL, 0));
    OK(cudnnGetRNNWeightSpaceSize(handle, rnn, &bytes));
    size_t first_layer = 4 * 6 * (10 + 4) + 4 * 6, second_layer = 4 * 6 * (2 * 4 + 4) + 4 * 6, biases = 2 * 4 * 6;
    CHECK(bytes == 4 * 2 * (first_layer + second_layer + 2 * biases));
    char *space = (char *)0x1000;
    OK(cudnnGetRNNWeightParams(handle, rnn, 0, bytes, space, 1, matrix, &address, bias, &bias_address));
    CHECK((char *)address == space + 4 * 6 * 10);
    CHECK((char *)bias_address == space + 4 * (2 * (first_layer + second_layer) + 6));
    OK(cudnnGetRNNWeightParams(handle, rnn, 3, bytes, space, 7, matrix, &address, bias, &bias_address));
    CHECK((char *)bias_address == space + bytes - 4 * 6); /* the last bias ends the space */
}

/* The sizes reported in pytorch/pytorch issue 2895: 4 layers of 320 on 25,000 steps, and that they are said to be bounds. */
static void recurrent_spaces(void) {
    void *handle, *rnn, *data;
    size_t workspace = 1, reserve = 0, index = 0;
    OK(cudnnCreate(&handle));
    OK(cudnnCreateRNNDescriptor(&rnn));
    OK(cudnnCreateRNNDataDescriptor(&data));
    OK(cudnnSetRNNDataDescriptor(data, 0, 0, 1000, 25, 123, NULL, NULL));
    OK(cudnnSetRNNDescriptor_v8(rnn, 0, 2, 2, 0, 0, 0, 0, 0, 123, 320, 320, 4, NULL, 0));
    OK(cudnnGetRNNTempSpaceSizes(handle, rnn, 1, data, &workspace, &reserve));
    CHECK(reserve == 736000000 && workspace == 0);
    OK(cudnnSetRNNDescriptor_v8(rnn, 0, 3, 2, 0, 0, 0, 0, 0, 123, 320, 320, 4, NULL, 0));
    OK(cudnnGetRNNTempSpaceSizes(handle, rnn, 1, data, &workspace, &reserve));
    CHECK(reserve == 864000000);
    OK(cudnnGetRNNTempSpaceSizes(handle, rnn, 0, data, &workspace, &reserve));
    CHECK(reserve == 0);
    const char *library, *name;
    int gap, noted = 0;
    uint64_t calls;
    for (; inspect_cuda_sim_function(index, &library, &name, &gap, &calls); index++) {
        if (!strcmp(name, "RNN reserve space")) noted |= gap == SIM_GAP_SIZE_LOWER_BOUND && calls == 2;
        if (!strcmp(name, "RNN workspace")) noted |= 2 * (gap == SIM_GAP_SIZE_UNKNOWN && calls == 3);
    }
    CHECK(noted == 3);
}

int main(int count, char **arguments) {
    CHECK(inspect_cuda_sim_version() == SIM_INTERFACE_VERSION);
    memory();
    address_order(count > 1 ? arguments[1] : "up");
    out_of_memory();
    errors();
    errors_belong_to_a_thread();
    pinned_memory();
    virtual_memory();
    pool();
    device();
    launches();
    streams_and_events();
    host_functions_are_waited_for();
    capture();
    handles();
    recurrent_parameters();
    recurrent_spaces();
    printf("%d failed\n", failures);
    return failures > 99 ? 99 : failures;
}
