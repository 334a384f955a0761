/*
 * sim.h - what all stand-in libraries of the simulated CUDA device share.
 *
 * Owns: the control interface (everything called inspect_cuda_sim_*), which lives in the libcuda.so.1 stand-in and is
 * used by the other stand-ins, by the engine (through dlsym) and by the tests.
 * Must not: depend on any NVIDIA header; every type these libraries exchange with libtorch is declared in cuda_types.h
 * or in the library's own file.
 *
 * The device is described by the environment, read once when libcuda.so.1 is loaded (see README.md):
 *   INSPECT_CUDA_SIM_NAME, _CC, _SMS, _TOTAL_BYTES, _BASE_BYTES, _L2_BYTES, _ADDR, _CONV_WORKSPACE_BYTES, _TRACE.
 */
#ifndef INSPECT_CUDA_SIM_H
#define INSPECT_CUDA_SIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SIM_EXPORT __attribute__((visibility("default")))
#define SIM_UNUSED __attribute__((unused))

/* Version of the structures below; it changes when their meaning or layout does. */
#define SIM_INTERFACE_VERSION 2

/* Why a function is listed as not modelled. Numbers are part of the interface. */
enum sim_gap {
    /* Generated; returns success. Its name says that it has nothing to write (…Destroy…, …Set…, a launch). */
    SIM_GAP_HARMLESS = 0,
    /* Generated; returns success. It may have outputs, which stay as the caller left them. */
    SIM_GAP_MAY_WRITE = 1,
    /* Written by hand; the size it answers is only known to NVIDIA's library, so it answers 0. */
    SIM_GAP_SIZE_UNKNOWN = 2,
    /* Written by hand; the size it answers is what the operation cannot do without, the real one is larger. */
    SIM_GAP_SIZE_LOWER_BOUND = 3,
};

/* One function that is not fully modelled. Static in its library; linked into a list at its first call. */
struct sim_function {
    const char *library; /* soname */
    const char *name;
    enum sim_gap gap;
    uint64_t calls;
    struct sim_function *next;
};

/* The device, as the environment describes it. */
struct sim_device {
    char name[256];
    int major, minor;
    int multiprocessor_count;
    size_t total_bytes;
    size_t base_bytes; /* taken before the first allocation: context and kernel images */
    size_t l2_bytes;
    int threads_per_multiprocessor;
    int blocks_per_multiprocessor;
    size_t shared_per_multiprocessor;
    size_t shared_per_block_optin;
    size_t conv_workspace_bytes; /* what every cuDNN convolution plan asks for; 0 = not modelled */
};

/* Counters since the start. Byte counts of memory are sizes taken from the device, in its granularity. */
struct sim_stats {
    uint64_t total_bytes;
    uint64_t base_bytes;
    uint64_t used_bytes; /* with base_bytes */
    uint64_t peak_used_bytes;
    uint64_t malloc_count, free_count;           /* cudaMalloc and friends */
    uint64_t physical_create_count, physical_release_count; /* cuMemCreate, cuMemRelease */
    uint64_t out_of_memory_count;
    uint64_t launch_count;
    uint64_t host_to_device_bytes, device_to_host_bytes, device_to_device_bytes;
    uint64_t device_to_host_count; /* copies whose destination was filled with zeros */
    uint64_t pinned_host_bytes, peak_pinned_host_bytes;
};

/* A convolution that cuDNN is asked to plan, for inspect_cuda_sim_set_conv_workspace. */
struct sim_convolution {
    int kind; /* 0 forward, 1 backward data, 2 backward filter */
    int data_type; /* cudnnDataType_t of x */
    int spatial_dims;
    int operations; /* of the graph that it is part of: 1 alone, more with a bias, an addition, an activation */
    int64_t x[8], w[8], y[8]; /* sizes, batch first */
    int64_t x_strides[8];
    int64_t stride[6], padding[6], dilation[6];
};

/* Answers the workspace in bytes of a convolution, or a negative number for "unknown". */
typedef int64_t (*sim_conv_workspace_fn)(const struct sim_convolution *convolution, void *context);

/* --- control interface, exported by libcuda.so.1 --- */
SIM_EXPORT int inspect_cuda_sim_version(void);
SIM_EXPORT const struct sim_device *inspect_cuda_sim_device(void);
SIM_EXPORT void inspect_cuda_sim_stats(struct sim_stats *out);
SIM_EXPORT void inspect_cuda_sim_reset_peak(void);
/* Changes the capacity while the program runs; what is allocated stays. */
SIM_EXPORT void inspect_cuda_sim_set_total_bytes(size_t total_bytes);
/* The index-th not fully modelled function that was called, in no particular order; 0 when there is none. */
SIM_EXPORT int inspect_cuda_sim_function(size_t index, const char **library, const char **name, int *gap, uint64_t *calls);
/* The calling thread's next copy of `bytes` bytes from the device to the host gives these instead of zeros; NULL takes
 * an answer back that was not fetched. At most 16 bytes. */
SIM_EXPORT void inspect_cuda_sim_answer(const void *value, size_t bytes);
/* The calling thread's next copy of 4 or 8 bytes from the device to the host gives this number. */
SIM_EXPORT void inspect_cuda_sim_answer_count(int64_t count);
/* From now on every runtime call fails with this error, as after a fault on a real device; 0 ends it. */
SIM_EXPORT void inspect_cuda_sim_set_sticky_error(int error);
SIM_EXPORT int inspect_cuda_sim_sticky_error(void);
/* Source of convolution workspaces, for instance a calibration file; NULL removes it. */
SIM_EXPORT void inspect_cuda_sim_set_conv_workspace(sim_conv_workspace_fn function, void *context);
SIM_EXPORT int64_t inspect_cuda_sim_conv_workspace(const struct sim_convolution *convolution);

/* --- used by the other stand-ins --- */
SIM_EXPORT void inspect_cuda_sim_called(struct sim_function *function);
/* Nonzero where the pointer is one that the simulated device handed out. */
SIM_EXPORT int inspect_cuda_sim_is_device_pointer(const void *pointer);
/* A copy between any two addresses, as cudaMemcpyDefault: to the host it fills with zeros or
 * with the answer that was set. */
SIM_EXPORT void inspect_cuda_sim_copy(void *destination, const void *source, size_t bytes);
/* cudaMemoryType of a pointer. */
SIM_EXPORT int inspect_cuda_sim_memory_type(const void *pointer);
/* The device address of a __device__ variable, from the address of its host shadow. */
SIM_EXPORT void *inspect_cuda_sim_symbol_address(const void *shadow);
/* Work that a library puts on a stream; only a capture sees it. */
SIM_EXPORT int inspect_cuda_sim_enqueue(void *stream);
/* Nonzero where the stream is being captured: work on it is recorded, not done. */
SIM_EXPORT int inspect_cuda_sim_is_capturing(void *stream);
/* Blocks of this size that fit on a multiprocessor. */
SIM_EXPORT int inspect_cuda_sim_blocks_per_multiprocessor(int block_size, size_t shared_bytes);
/* CUDA's name and text of an error. */
SIM_EXPORT const char *inspect_cuda_sim_error_name(int code);
SIM_EXPORT const char *inspect_cuda_sim_error_text(int code);

/* Notes a call of a hand-written function whose answer is not exact. */
#define SIM_NOTE_GAP(soname, function_name, gap_kind)                                          \
    do {                                                                                       \
        static struct sim_function note_ = {soname, function_name, gap_kind, 0, NULL};         \
        inspect_cuda_sim_called(&note_);                                                       \
    } while (0)

#ifdef __cplusplus
}
#endif

#endif
