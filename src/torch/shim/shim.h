// The C interface between the Rust engine and libtorch's C++: what `tch` lacks.
//
// Rules: plain C types; every function returns 0 on success or a SHIM_* kind, and then sets *error to a text that the
// caller gives back with shim_free_text. Nothing throws across. An object made by a function is freed by its
// shim_*_free. Tensors cross as `void*` to an at::Tensor, which is what `tch` calls C_tensor.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "../cuda_sim/sim.h" // struct sim_convolution

#ifdef __cplusplus
extern "C" {
#endif

enum { SHIM_OK = 0, SHIM_ERROR = 1, SHIM_OUT_OF_MEMORY = 2, SHIM_FOREIGN = 3 };

typedef struct shim_module shim_module;
typedef struct shim_values shim_values;

void shim_free_text(char* text);
const char* shim_libtorch_version(void);

// ---- process-wide settings (settings.cpp)
// One executor for all devices: no fusion, no profiling, no optimization that a first run would be needed for. What
// models print is dropped.
int shim_plain_executor(char** error);
// Opens libtorch_cuda.so. `found` is 0 where this libtorch has none.
int shim_open_cuda(int* found, int* device_count, char** error);
int shim_set_autocast(const char* device_type, int scalar_type, int on, char** error);
int shim_empty_cuda_cache(char** error);

// ---- modules (module.cpp)
// A run of bytes of the archive: `bytes` from `offset` on, in the file or in `head`. Pieces marked as data are tensors'.
typedef struct shim_piece {
  int in_head;
  int is_data;
  uint64_t offset, bytes;
} shim_piece;
// Loads the archive that the pieces make, one behind the other. `device` as libtorch writes it. With skip_data, large
// reads of data are left out: the memory stays untouched.
int shim_module_load(
    const char* path,
    const void* head,
    const shim_piece* pieces,
    size_t count,
    const char* device,
    int skip_data,
    shim_module** out,
    char** error);
void shim_module_free(shim_module* module);
int shim_module_train(shim_module* module, int on, char** error);
// What nn.Module._apply does: children first, then own parameters, then own buffers; floating-point tensors also get
// `scalar_type` where it is not negative. Views of one storage get a storage each, as in Python.
int shim_module_to(shim_module* module, const char* device, int scalar_type, int as_python, char** error);
// Calls back once per parameter (kind 0) and buffer (1), in named_parameters' and named_buffers' order, and then for
// every tensor that is a constant of the methods' code (2): a frozen module's weights are there.
typedef void (*shim_tensor_visitor)(void* context, const char* name, int kind, void* tensor);
int shim_module_visit(shim_module* module, shim_tensor_visitor visit, void* context, char** error);
// JSON: {"class", "method", "returns", "arguments": [{"name", "type", "kind": {...}, "default"}]}, or *out = NULL where
// there is no such method; then *methods lists those that exist.
int shim_module_schema(shim_module* module, const char* method, char** out, char** methods, char** error);
// Inserts enter and exit marks into every method; must come before the first run. With as_python, values live as long
// as the variables of an eager Python module would hold them (variables.cpp).
int shim_module_mark(shim_module* module, int as_python, char** error);
// Pushes what the method returns, as one value, to `results`. The caller keeps the arguments, as a Python caller
// keeps its variables: an input is not freed after its last use inside.
int shim_module_run(
    shim_module* module, const char* method, const shim_values* arguments, shim_values* results, char** error);
// Assigns data to a parameter or buffer by name.
int shim_module_assign(shim_module* module, const char* name, void* tensor, char** error);

// libtorch's number for the dtype, and numel x element size.
int shim_tensor_info(const void* tensor, int* scalar_type, int64_t* bytes, char** error);

// ---- training (train.cpp)
// Two handles of one tensor have one identity; two views of one storage have not.
int shim_tensor_identity(const void* tensor, uintptr_t* identity, char** error);
// What `parameter.grad = None` does.
int shim_tensor_clear_grad(const void* tensor, char** error);
// For each of `count` tensors the place of its group, in the order in which torch.optim goes through devices and
// dtypes.
int shim_group_tensors(const void* const* tensors, size_t count, size_t* groups, char** error);

// ---- values (values.cpp): a stack of IValues
shim_values* shim_values_new(void);
void shim_values_free(shim_values* values);
int shim_values_push_none(shim_values* values, char** error);
int shim_values_push_tensor(shim_values* values, const void* tensor, char** error);
int shim_values_push_int(shim_values* values, int64_t value, char** error);
int shim_values_push_double(shim_values* values, double value, char** error);
int shim_values_push_bool(shim_values* values, int value, char** error);
int shim_values_push_text(shim_values* values, const char* text, char** error);
// Replaces the last `count` values by one tuple; the method's schema decides later what it becomes.
int shim_values_tuple(shim_values* values, size_t count, char** error);
// Replaces the last 2 * `count` values (key, value, key, value, ...) by one dict.
int shim_values_dict(shim_values* values, size_t count, char** error);
// Replaces the last `count` tensors by one list of tensors.
int shim_values_tensor_list(shim_values* values, size_t count, char** error);
// Replaces the last `count` numbers by one list of Scalars.
int shim_values_scalar_list(shim_values* values, size_t count, char** error);
// Replaces the last number by the 0-dim tensor that Python makes of a number where an operator wants a tensor.
int shim_values_wrap_number(shim_values* values, char** error);
// Pushes the default of the method's argument `index`.
int shim_values_push_default(shim_values* values, shim_module* module, const char* method, size_t index, char** error);
// Makes value `index` what the method's argument `index` wants, or says why it cannot be.
int shim_values_fit(shim_values* values, shim_module* module, const char* method, size_t index, char** error);
// Value `index` as `--input` writes it: `1x3:float32`, `0.5`, `none`, `[2x3:int64, true]`, cut where it is long.
int shim_values_text(const shim_values* values, size_t index, char** out, char** error);
// Calls back for every tensor in value `index`, or in all of the stack's where that is negative, with its path ("", "0",
// "out", "1.hidden"); where there are several values, that begins with the value's number.
typedef void (*shim_output_visitor)(void* context, const char* path, void* tensor);
int shim_values_visit(
    const shim_values* values, int64_t index, shim_output_visitor visit, void* context, char** error);
// Calls an operator of the dispatcher with the stack as arguments; the stack then holds its results.
int shim_values_call(shim_values* values, const char* op, const char* overload, char** error);

// ---- recording (record.cpp)
// A recording is a stream of 64-bit words; see record.cpp for the layout of each event.
enum {
  REC_STR = 1,    // id, byte length, bytes packed 8 a word
  REC_SIG,        // id, scalar type (text id), bytes, ndim, sizes...
  REC_ENTER,      // t, thread, path (text id), class (text id)
  REC_EXIT,       // t, thread, count, (sig, alloc)...
  REC_OP,         // t, thread, id, name (text id), seq, argument count, arguments...
  REC_END,        // t, id, result count, results...
  REC_NODE,       // t, thread, name (text id), seq
  REC_NODE_END,   // t, thread
  REC_ALLOC,      // t, thread, id, bytes, block (-1: as bytes), address, stream
  REC_FREE,       // t, id
  REC_EXTERN,     // id, bytes
  REC_SEGMENT     // t, action (0 alloc, 1 free, 2 map, 3 unmap, 4 oom), address, bytes, stream
};
enum {
  ARG_NONE = 0,
  ARG_TENSOR,     // sig, alloc (-1: none); weights packed for a kernel stand as the tensor they hold, without memory
  ARG_INT,        // value
  ARG_DOUBLE,     // bits
  ARG_BOOL,       // value
  ARG_TEXT,       // text id
  ARG_LIST,       // count, items...
  ARG_OTHER       // text id of the type's name
};
// Starts recording allocations on `device_type` ("cpu" or "cuda", the same for all of a process) and all operators. One
// recording at a time.
int shim_record_start(const char* device_type, char** error);
int shim_record_stop(char** error);
// Operators and modules are recorded only while this is on; allocations always.
int shim_record_operators(int on, char** error);
// From now on the times of modules, operators and autograd nodes are those of the device, by its own events; a drain
// waits until it has come to them.
int shim_record_device_times(char** error);
int64_t shim_record_now(void);
// Words since the last drain.
size_t shim_record_words(void);
// Hands over the words so far; they stay valid until the next call. An error where there was more to record than a
// recording may hold.
int shim_record_drain(const int64_t** words, size_t* count, char** error);
// This tensor's metadata, and the allocation that holds its storage, -1 for none; may add REC_SIG and REC_EXTERN.
int shim_record_tensor_of(const void* tensor, int64_t* sig, int64_t* alloc, char** error);

// ---- CUDA allocator statistics (cuda.cpp)
typedef struct shim_stat { int64_t current, peak, allocated, freed; } shim_stat;
typedef struct shim_device_stats {
  shim_stat requested_bytes, allocated_bytes, active_bytes, reserved_bytes;
  int64_t num_alloc_retries, num_ooms;
} shim_device_stats;
int shim_cuda_stats(shim_device_stats* out, char** error);
int shim_cuda_reset_peaks(char** error);
int shim_cuda_memory_info(size_t* free_bytes, size_t* total_bytes, char** error);
// The most bytes of the device in use, by whomever, that was seen since the last call: now, and whenever the allocator
// got more. `used` is what is in use now.
int shim_cuda_memory_seen(uint64_t* used_bytes, uint64_t* peak_bytes, uint64_t* total_bytes, char** error);
// Bytes in use on the first visible card before this process uses it, as NVIDIA's management library says; `known` is 0
// where it does not. Makes no context.
int shim_cuda_used_before(int* known, uint64_t* bytes, char** error);
// Notes a moment on the device's current stream; `elapsed` is the time since the one noted before it on the device
// itself, once it has come to both. The first call answers 0.
int shim_cuda_moment(uint64_t* elapsed_ns, char** error);
// Waits for everything that the device was given to do.
int shim_cuda_synchronize(char** error);
// Gives back what nobody uses: cuBLAS's workspaces and the allocator's unused segments.
int shim_cuda_release(char** error);
typedef struct shim_card {
  char name[256];
  int major, minor, multiprocessors, driver_version, cudnn_version; // a version is 0 where it is not known
  uint64_t total_bytes, l2_bytes;
} shim_card;
// The first visible card, as the driver describes it.
int shim_cuda_card(shim_card* out, char** error);

// ---- convolutions and their workspaces (cuda.cpp)
// What the recorder saw run since the start, at `index`: sets `known` to 0 behind the last, and to -1 without recorder.
int shim_convolution_run(
    size_t index, int* known, struct sim_convolution* out, uint64_t* workspace_bytes, uint64_t* calls, char** error);
// From now on the simulated cuDNN asks for so much where this convolution is planned.
int shim_sim_convolution(const struct sim_convolution* convolution, uint64_t workspace_bytes, char** error);

// ---- the simulated device (cuda.cpp)
// Whether the stand-in libraries are the ones that are loaded.
int shim_sim_loaded(void);
// Calls back for every library function that was called without being fully modelled.
typedef void (*shim_function_visitor)(
    void* context, const char* library, const char* name, int gap, uint64_t calls);
int shim_sim_functions(shim_function_visitor visit, void* context, char** error);

// ---- values read from the simulated device (read_back.cpp)
enum { READ_COUNT = 0, READ_INT, READ_BOOL, READ_DOUBLE };
// Adds an answer for the next read with this key that has none yet. A key is what ReadBack::key writes: the operator,
// the outermost one around it, the one that returned a scalar last, and the shape of its first argument. `bits` are the number's own, a
// double's for READ_DOUBLE.
int shim_read_back_add(const char* key, int kind, int64_t bits, char** error);
// Operators that read are answered and counted only while this is on.
int shim_read_back_watch(int on, char** error);
// Calls back for every operator that read something.
typedef void (*shim_read_visitor)(void* context, const char* op, uint64_t answered, uint64_t unknown);
int shim_read_back_visit(shim_read_visitor visit, void* context, char** error);

#ifdef __cplusplus
}
#endif
