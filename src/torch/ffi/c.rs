//! The C interface of `shim/shim.h`, declared.

use super::{c_char, c_int, c_void};

#[repr(C)]
pub(super) struct Module {
    _private: [u8; 0],
}
#[repr(C)]
pub(super) struct Values {
    _private: [u8; 0],
}
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) in_head: c_int,
    pub(super) is_data: c_int,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}
#[repr(C)]
#[derive(Default, Clone, Copy)]
pub(super) struct Stat {
    pub(super) current: i64,
    pub(super) peak: i64,
    pub(super) allocated: i64,
    pub(super) freed: i64,
}
#[repr(C)]
#[derive(Default)]
pub(super) struct DeviceStats {
    pub(super) requested_bytes: Stat,
    pub(super) allocated_bytes: Stat,
    pub(super) active_bytes: Stat,
    pub(super) reserved_bytes: Stat,
    pub(super) num_alloc_retries: i64,
    pub(super) num_ooms: i64,
}
#[repr(C)]
pub(super) struct Card {
    pub(super) name: [c_char; 256],
    pub(super) major: c_int,
    pub(super) minor: c_int,
    pub(super) multiprocessors: c_int,
    pub(super) driver_version: c_int,
    pub(super) cudnn_version: c_int,
    pub(super) total_bytes: u64,
    pub(super) l2_bytes: u64,
}
#[repr(C)]
#[derive(Default, Clone, Copy)]
pub(super) struct Convolution {
    pub(super) kind: c_int,
    pub(super) data_type: c_int,
    pub(super) spatial_dims: c_int,
    pub(super) operations: c_int,
    pub(super) x: [i64; 8],
    pub(super) w: [i64; 8],
    pub(super) y: [i64; 8],
    pub(super) x_strides: [i64; 8],
    pub(super) stride: [i64; 6],
    pub(super) padding: [i64; 6],
    pub(super) dilation: [i64; 6],
}
pub(super) type Error = *mut *mut c_char;
pub(super) type TensorVisitor = extern "C" fn(*mut c_void, *const c_char, c_int, *mut c_void);
pub(super) type FunctionVisitor =
    extern "C" fn(*mut c_void, *const c_char, *const c_char, c_int, u64);
pub(super) type ReadVisitor = extern "C" fn(*mut c_void, *const c_char, u64, u64);
pub(super) type OutputVisitor = extern "C" fn(*mut c_void, *const c_char, *mut c_void);

unsafe extern "C" {
    pub(super) fn shim_free_text(text: *mut c_char);
    pub(super) fn shim_libtorch_version() -> *const c_char;
    pub(super) fn shim_plain_executor(error: Error) -> c_int;
    pub(super) fn shim_open_cuda(
        found: *mut c_int,
        device_count: *mut c_int,
        error: Error,
    ) -> c_int;
    pub(super) fn shim_set_autocast(
        device: *const c_char,
        scalar_type: c_int,
        on: c_int,
        error: Error,
    ) -> c_int;
    pub(super) fn shim_module_load(
        path: *const c_char,
        head: *const c_void,
        pieces: *const Piece,
        count: usize,
        device: *const c_char,
        skip_data: c_int,
        out: *mut *mut Module,
        error: Error,
    ) -> c_int;
    pub(super) fn shim_module_free(module: *mut Module);
    pub(super) fn shim_module_train(module: *mut Module, on: c_int, error: Error) -> c_int;
    pub(super) fn shim_module_to(
        module: *mut Module,
        device: *const c_char,
        scalar_type: c_int,
        as_python: c_int,
        error: Error,
    ) -> c_int;
    pub(super) fn shim_module_visit(
        module: *mut Module,
        visit: TensorVisitor,
        context: *mut c_void,
        error: Error,
    ) -> c_int;
    pub(super) fn shim_module_schema(
        module: *mut Module,
        method: *const c_char,
        out: *mut *mut c_char,
        methods: *mut *mut c_char,
        error: Error,
    ) -> c_int;
    pub(super) fn shim_module_mark(module: *mut Module, as_python: c_int, error: Error) -> c_int;
    pub(super) fn shim_module_run(
        module: *mut Module,
        method: *const c_char,
        arguments: *const Values,
        results: *mut Values,
        error: Error,
    ) -> c_int;
    pub(super) fn shim_module_assign(
        module: *mut Module,
        name: *const c_char,
        tensor: *const c_void,
        error: Error,
    ) -> c_int;
    pub(super) fn shim_tensor_info(
        tensor: *const c_void,
        scalar_type: *mut c_int,
        bytes: *mut i64,
        error: Error,
    ) -> c_int;
    pub(super) fn shim_values_new() -> *mut Values;
    pub(super) fn shim_values_free(values: *mut Values);
    pub(super) fn shim_values_push_none(values: *mut Values, error: Error) -> c_int;
    pub(super) fn shim_values_push_tensor(
        values: *mut Values,
        tensor: *const c_void,
        error: Error,
    ) -> c_int;
    pub(super) fn shim_values_push_int(values: *mut Values, value: i64, error: Error) -> c_int;
    pub(super) fn shim_values_push_double(values: *mut Values, value: f64, error: Error) -> c_int;
    pub(super) fn shim_values_push_bool(values: *mut Values, value: c_int, error: Error) -> c_int;
    pub(super) fn shim_values_push_text(
        values: *mut Values,
        text: *const c_char,
        error: Error,
    ) -> c_int;
    pub(super) fn shim_values_tuple(values: *mut Values, count: usize, error: Error) -> c_int;
    pub(super) fn shim_values_dict(values: *mut Values, count: usize, error: Error) -> c_int;
    pub(super) fn shim_values_tensor_list(values: *mut Values, count: usize, error: Error)
    -> c_int;
    pub(super) fn shim_values_scalar_list(values: *mut Values, count: usize, error: Error)
    -> c_int;
    pub(super) fn shim_values_wrap_number(values: *mut Values, error: Error) -> c_int;
    pub(super) fn shim_tensor_identity(
        tensor: *const c_void,
        identity: *mut usize,
        error: Error,
    ) -> c_int;
    pub(super) fn shim_tensor_clear_grad(tensor: *const c_void, error: Error) -> c_int;
    pub(super) fn shim_group_tensors(
        tensors: *const *const c_void,
        count: usize,
        groups: *mut usize,
        error: Error,
    ) -> c_int;
    pub(super) fn shim_values_push_default(
        values: *mut Values,
        module: *mut Module,
        method: *const c_char,
        index: usize,
        error: Error,
    ) -> c_int;
    pub(super) fn shim_values_fit(
        values: *mut Values,
        module: *mut Module,
        method: *const c_char,
        index: usize,
        error: Error,
    ) -> c_int;
    pub(super) fn shim_values_text(
        values: *const Values,
        index: usize,
        out: *mut *mut c_char,
        error: Error,
    ) -> c_int;
    pub(super) fn shim_values_visit(
        values: *const Values,
        index: i64,
        visit: OutputVisitor,
        context: *mut c_void,
        error: Error,
    ) -> c_int;
    pub(super) fn shim_values_call(
        values: *mut Values,
        op: *const c_char,
        overload: *const c_char,
        error: Error,
    ) -> c_int;
    pub(super) fn shim_record_start(device: *const c_char, error: Error) -> c_int;
    pub(super) fn shim_record_stop(error: Error) -> c_int;
    pub(super) fn shim_record_operators(on: c_int, error: Error) -> c_int;
    pub(super) fn shim_record_device_times(error: Error) -> c_int;
    pub(super) fn shim_record_words() -> usize;
    pub(super) fn shim_record_now() -> i64;
    pub(super) fn shim_record_drain(
        words: *mut *const i64,
        count: *mut usize,
        error: Error,
    ) -> c_int;
    pub(super) fn shim_record_tensor_of(
        tensor: *const c_void,
        sig: *mut i64,
        alloc: *mut i64,
        error: Error,
    ) -> c_int;
    pub(super) fn shim_cuda_memory_seen(
        used_bytes: *mut u64,
        peak_bytes: *mut u64,
        total_bytes: *mut u64,
        error: Error,
    ) -> c_int;
    pub(super) fn shim_cuda_used_before(known: *mut c_int, bytes: *mut u64, error: Error) -> c_int;
    pub(super) fn shim_cuda_moment(elapsed_ns: *mut u64, error: Error) -> c_int;
    pub(super) fn shim_cuda_synchronize(error: Error) -> c_int;
    pub(super) fn shim_cuda_release(error: Error) -> c_int;
    pub(super) fn shim_cuda_card(out: *mut Card, error: Error) -> c_int;
    pub(super) fn shim_convolution_run(
        index: usize,
        known: *mut c_int,
        out: *mut Convolution,
        workspace_bytes: *mut u64,
        calls: *mut u64,
        error: Error,
    ) -> c_int;
    pub(super) fn shim_sim_convolution(
        convolution: *const Convolution,
        workspace_bytes: u64,
        error: Error,
    ) -> c_int;
    pub(super) fn shim_sim_loaded() -> c_int;
    pub(super) fn shim_sim_functions(
        visit: FunctionVisitor,
        context: *mut c_void,
        error: Error,
    ) -> c_int;
    pub(super) fn shim_read_back_add(
        key: *const c_char,
        kind: c_int,
        bits: i64,
        error: Error,
    ) -> c_int;
    pub(super) fn shim_read_back_watch(on: c_int, error: Error) -> c_int;
    pub(super) fn shim_read_back_visit(
        visit: ReadVisitor,
        context: *mut c_void,
        error: Error,
    ) -> c_int;
    pub(super) fn shim_cuda_stats(out: *mut DeviceStats, error: Error) -> c_int;
    pub(super) fn shim_cuda_reset_peaks(error: Error) -> c_int;
    pub(super) fn shim_cuda_memory_info(free: *mut usize, total: *mut usize, error: Error)
    -> c_int;
}
