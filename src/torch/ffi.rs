//! The safe face of the C++ shim: every `unsafe` of the engine is here.
//!
//! One Rust type per opaque C++ type, each owning it; every call that can fail returns the shim's text as
//! [`TorchError`]. Tensors cross as `tch` tensors.
#![allow(unsafe_code)]

#[cfg(target_os = "linux")]
pub(crate) mod barred;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

use tch::Tensor;

mod c {
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
        pub(super) fn shim_module_mark(module: *mut Module, error: Error) -> c_int;
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
        pub(super) fn shim_values_push_double(
            values: *mut Values,
            value: f64,
            error: Error,
        ) -> c_int;
        pub(super) fn shim_values_push_bool(
            values: *mut Values,
            value: c_int,
            error: Error,
        ) -> c_int;
        pub(super) fn shim_values_push_text(
            values: *mut Values,
            text: *const c_char,
            error: Error,
        ) -> c_int;
        pub(super) fn shim_values_tuple(values: *mut Values, count: usize, error: Error) -> c_int;
        pub(super) fn shim_values_dict(values: *mut Values, count: usize, error: Error) -> c_int;
        pub(super) fn shim_values_tensor_list(
            values: *mut Values,
            count: usize,
            error: Error,
        ) -> c_int;
        pub(super) fn shim_values_scalar_list(
            values: *mut Values,
            count: usize,
            error: Error,
        ) -> c_int;
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
        pub(super) fn shim_values_visit(
            values: *const Values,
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
        pub(super) fn shim_sim_loaded() -> c_int;
        pub(super) fn shim_sim_functions(
            visit: FunctionVisitor,
            context: *mut c_void,
            error: Error,
        ) -> c_int;
        pub(super) fn shim_read_back_add(
            op: *const c_char,
            shape: *const i64,
            dims: usize,
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
        pub(super) fn shim_cuda_memory_info(
            free: *mut usize,
            total: *mut usize,
            error: Error,
        ) -> c_int;
    }
}

/// What libtorch says went wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct TorchError {
    /// Whether it was an allocation that failed.
    pub(crate) out_of_memory: bool,
    /// libtorch's text, without its C++ frames.
    pub(crate) message: String,
}

type Result<T> = std::result::Result<T, TorchError>;

/// Runs one call of the shim and turns its code and text into a result.
fn call(body: impl FnOnce(c::Error) -> c_int) -> Result<()> {
    let mut text: *mut c_char = ptr::null_mut();
    match body(&raw mut text) {
        0 => Ok(()),
        kind => Err(TorchError {
            out_of_memory: kind == 2,
            message: take_text(text).unwrap_or_else(|| "no reason given".into()),
        }),
    }
}

/// Takes over a text that the shim allocated.
fn take_text(text: *mut c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the shim returns NUL-terminated text from malloc, which nobody else holds.
    let owned = unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned();
    // SAFETY: as above; it is not used afterwards.
    unsafe { c::shim_free_text(text) };
    Some(owned)
}

/// A Rust text for C; an inner NUL cannot be in any name that libtorch knows.
fn c_text(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| TorchError {
        out_of_memory: false,
        message: format!("`{}` has a NUL in it", text.escape_debug()),
    })
}

fn pointer(tensor: &Tensor) -> *const c_void {
    tensor.as_ptr().cast()
}

/// The version that the shim was compiled against.
pub(crate) fn libtorch_version() -> String {
    // SAFETY: a static string.
    unsafe { CStr::from_ptr(c::shim_libtorch_version()) }
        .to_string_lossy()
        .into_owned()
}

/// One executor for all devices: no fusion, no profiling.
pub(crate) fn plain_executor() -> Result<()> {
    // SAFETY: `call` gives a valid place for the error.
    call(|e| unsafe { c::shim_plain_executor(e) })
}

/// Opens libtorch's CUDA half; the number of devices, or none where this libtorch has no such half.
pub(crate) fn open_cuda() -> Result<Option<u32>> {
    let (mut found, mut devices) = (0, 0);
    // SAFETY: both places live through the call.
    call(|e| unsafe { c::shim_open_cuda(&raw mut found, &raw mut devices, e) })?;
    Ok((found != 0).then(|| u32::try_from(devices).unwrap_or(0)))
}

/// Switches autocast on or off for a device type.
pub(crate) fn set_autocast(device: &str, scalar_type: i8, on: bool) -> Result<()> {
    let device = c_text(device)?;
    // SAFETY: the text lives through the call.
    call(|e| unsafe {
        c::shim_set_autocast(
            device.as_ptr(),
            c_int::from(scalar_type),
            c_int::from(on),
            e,
        )
    })
}

/// libtorch's number for a tensor's dtype, and numel x element size. `tch` has no word for some dtypes.
pub(crate) fn tensor_info(tensor: &Tensor) -> Result<(i32, u64)> {
    let (mut scalar_type, mut bytes) = (0, 0);
    // SAFETY: tensor and places are alive.
    call(|e| unsafe {
        c::shim_tensor_info(pointer(tensor), &raw mut scalar_type, &raw mut bytes, e)
    })?;
    Ok((scalar_type, u64::try_from(bytes).unwrap_or(0)))
}

/// What two handles of one tensor have in common, and two views of one storage have not.
pub(crate) fn identity(tensor: &Tensor) -> Result<usize> {
    let mut identity = 0;
    // SAFETY: tensor and place are alive.
    call(|e| unsafe { c::shim_tensor_identity(pointer(tensor), &raw mut identity, e) })?;
    Ok(identity)
}

/// What `parameter.grad = None` does.
pub(crate) fn clear_grad(tensor: &Tensor) -> Result<()> {
    // SAFETY: the tensor is alive.
    call(|e| unsafe { c::shim_tensor_clear_grad(pointer(tensor), e) })
}

/// For each tensor the place of its group, in the order in which torch.optim goes through devices and dtypes.
pub(crate) fn group_places(tensors: &[Tensor]) -> Result<Vec<usize>> {
    let pointers: Vec<*const c_void> = tensors.iter().map(pointer).collect();
    let mut places = vec![0; pointers.len()];
    // SAFETY: both arrays have as many elements as said, and live through the call.
    call(|e| unsafe {
        c::shim_group_tensors(pointers.as_ptr(), pointers.len(), places.as_mut_ptr(), e)
    })?;
    Ok(places)
}

/// A loaded TorchScript module.
#[derive(Debug)]
pub(crate) struct Module(*mut c::Module);

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: made by shim_module_load, freed once.
        unsafe { c::shim_module_free(self.0) }
    }
}

/// What a visit of a module hands out.
pub(crate) struct NamedTensor {
    /// Path.
    pub(crate) name: String,
    /// In `named_buffers` instead of `named_parameters`.
    pub(crate) is_buffer: bool,
    /// The tensor itself (same memory).
    pub(crate) tensor: Tensor,
}

/// A method's schema as JSON, or the methods that exist.
pub(crate) enum Schema {
    /// JSON as shim.h describes it.
    Found(String),
    /// There is no such method; these there are.
    Missing(Vec<String>),
}

impl Module {
    /// Loads a file; with `skip_data`, memory of large records stays untouched.
    pub(crate) fn load(path: &str, device: &str, skip_data: bool) -> Result<Module> {
        let (path, device) = (c_text(path)?, c_text(device)?);
        let mut out = ptr::null_mut();
        // SAFETY: texts and `out` live through the call.
        call(|e| unsafe {
            c::shim_module_load(
                path.as_ptr(),
                device.as_ptr(),
                c_int::from(skip_data),
                &raw mut out,
                e,
            )
        })?;
        Ok(Module(out))
    }

    /// Training or eval mode.
    pub(crate) fn train(&self, on: bool) -> Result<()> {
        // SAFETY: the module is alive.
        call(|e| unsafe { c::shim_module_train(self.0, c_int::from(on), e) })
    }

    /// Moves to a device and casts floating-point tensors, as nn.Module.to does.
    pub(crate) fn to(&self, device: &str, scalar_type: Option<i8>) -> Result<()> {
        let device = c_text(device)?;
        // SAFETY: module and text are alive.
        call(|e| unsafe {
            c::shim_module_to(
                self.0,
                device.as_ptr(),
                scalar_type.map_or(-1, c_int::from),
                e,
            )
        })
    }

    /// Parameters, then buffers, as libtorch names them.
    pub(crate) fn tensors(&self) -> Result<Vec<NamedTensor>> {
        extern "C" fn visit(
            context: *mut c_void,
            name: *const c_char,
            is_buffer: c_int,
            tensor: *mut c_void,
        ) {
            // SAFETY: the context is the Vec below, alive through the call; name is NUL-terminated.
            let (all, name) = unsafe {
                (
                    &mut *context.cast::<Vec<NamedTensor>>(),
                    CStr::from_ptr(name),
                )
            };
            // SAFETY: the pointer is an at::Tensor of the shim; clone_from_ptr makes a handle of our own.
            let tensor = unsafe { Tensor::clone_from_ptr(tensor.cast()) };
            all.push(NamedTensor {
                name: name.to_string_lossy().into_owned(),
                is_buffer: is_buffer != 0,
                tensor,
            });
        }
        let mut all: Vec<NamedTensor> = Vec::new();
        // SAFETY: as said in `visit`.
        call(|e| unsafe { c::shim_module_visit(self.0, visit, (&raw mut all).cast(), e) })?;
        Ok(all)
    }

    /// The schema of a method.
    pub(crate) fn schema(&self, method: &str) -> Result<Schema> {
        let method = c_text(method)?;
        let (mut out, mut methods) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: module, text and places are alive.
        call(|e| unsafe {
            c::shim_module_schema(self.0, method.as_ptr(), &raw mut out, &raw mut methods, e)
        })?;
        Ok(match take_text(out) {
            Some(json) => Schema::Found(json),
            None => Schema::Missing(
                take_text(methods)
                    .unwrap_or_default()
                    .lines()
                    .map(str::to_owned)
                    .collect(),
            ),
        })
    }

    /// Marks every method's entry and exit for the recording; before the first run.
    pub(crate) fn mark(&self) -> Result<()> {
        // SAFETY: the module is alive.
        call(|e| unsafe { c::shim_module_mark(self.0, e) })
    }

    /// Calls a method; the caller goes on holding the arguments.
    pub(crate) fn run(&self, method: &str, arguments: &Values) -> Result<Values> {
        let method = c_text(method)?;
        let results = Values::new();
        // SAFETY: module, text and both stacks are alive.
        call(|e| unsafe {
            c::shim_module_run(self.0, method.as_ptr(), arguments.0, results.0, e)
        })?;
        Ok(results)
    }

    /// Copies data into a parameter or buffer.
    pub(crate) fn assign(&self, name: &str, tensor: &Tensor) -> Result<()> {
        let name = c_text(name)?;
        // SAFETY: module, text and tensor are alive.
        call(|e| unsafe { c::shim_module_assign(self.0, name.as_ptr(), pointer(tensor), e) })
    }
}

/// A stack of libtorch's values.
#[derive(Debug)]
pub(crate) struct Values(*mut c::Values);

impl Drop for Values {
    fn drop(&mut self) {
        // SAFETY: made by shim_values_new, freed once.
        unsafe { c::shim_values_free(self.0) }
    }
}

/// One value to push.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value<'a> {
    /// None.
    None,
    /// A tensor.
    Tensor(&'a Tensor),
    /// An integer; dtypes are integers too.
    Int(i64),
    /// A float.
    Double(f64),
    /// A truth value.
    Bool(bool),
    /// A string.
    Text(&'a str),
    /// A list of tensors.
    Tensors(&'a [Tensor]),
    /// A list of numbers where an operator wants Scalars.
    Scalars(&'a [f64]),
    /// An integer where an operator wants a tensor.
    WrappedInt(i64),
    /// A float where an operator wants a tensor.
    WrappedDouble(f64),
}

impl Values {
    /// An empty stack.
    pub(crate) fn new() -> Values {
        // SAFETY: no arguments; NULL only when memory is out, which the next call would find.
        Values(unsafe { c::shim_values_new() })
    }

    /// Pushes a value.
    pub(crate) fn push(&mut self, value: &Value<'_>) -> Result<()> {
        let stack = self.0;
        // SAFETY (all): the stack is alive, and so is what the value borrows.
        match value {
            Value::None => call(|e| unsafe { c::shim_values_push_none(stack, e) }),
            Value::Tensor(tensor) => {
                call(|e| unsafe { c::shim_values_push_tensor(stack, pointer(tensor), e) })
            }
            Value::Int(value) => call(|e| unsafe { c::shim_values_push_int(stack, *value, e) }),
            Value::Double(value) => {
                call(|e| unsafe { c::shim_values_push_double(stack, *value, e) })
            }
            Value::Bool(value) => {
                call(|e| unsafe { c::shim_values_push_bool(stack, c_int::from(*value), e) })
            }
            Value::Text(text) => {
                let text = c_text(text)?;
                call(|e| unsafe { c::shim_values_push_text(stack, text.as_ptr(), e) })
            }
            Value::Tensors(items) => {
                for item in *items {
                    self.push(&Value::Tensor(item))?;
                }
                call(|e| unsafe { c::shim_values_tensor_list(stack, items.len(), e) })
            }
            Value::Scalars(items) => {
                for item in *items {
                    self.push(&Value::Double(*item))?;
                }
                call(|e| unsafe { c::shim_values_scalar_list(stack, items.len(), e) })
            }
            Value::WrappedInt(value) => {
                self.push(&Value::Int(*value))?;
                call(|e| unsafe { c::shim_values_wrap_number(stack, e) })
            }
            Value::WrappedDouble(value) => {
                self.push(&Value::Double(*value))?;
                call(|e| unsafe { c::shim_values_wrap_number(stack, e) })
            }
        }
    }

    /// Makes one tuple of the last `count` values.
    pub(crate) fn tuple(&mut self, count: usize) -> Result<()> {
        // SAFETY: the stack is alive.
        call(|e| unsafe { c::shim_values_tuple(self.0, count, e) })
    }

    /// Makes one dict of the last `count` pairs.
    pub(crate) fn dict(&mut self, count: usize) -> Result<()> {
        // SAFETY: the stack is alive.
        call(|e| unsafe { c::shim_values_dict(self.0, count, e) })
    }

    /// Pushes the default of a method's argument.
    pub(crate) fn push_default(
        &mut self,
        module: &Module,
        method: &str,
        index: usize,
    ) -> Result<()> {
        let method = c_text(method)?;
        // SAFETY: stack, module and text are alive.
        call(|e| unsafe {
            c::shim_values_push_default(self.0, module.0, method.as_ptr(), index, e)
        })
    }

    /// Makes value `index` what the method's argument `index` wants.
    pub(crate) fn fit(&mut self, module: &Module, method: &str, index: usize) -> Result<()> {
        let method = c_text(method)?;
        // SAFETY: stack, module and text are alive.
        call(|e| unsafe { c::shim_values_fit(self.0, module.0, method.as_ptr(), index, e) })
    }

    /// Every tensor in the stack with its path.
    pub(crate) fn tensors(&self) -> Result<Vec<(String, Tensor)>> {
        extern "C" fn visit(context: *mut c_void, path: *const c_char, tensor: *mut c_void) {
            // SAFETY: the context is the Vec below, alive through the call; path is NUL-terminated.
            let (all, path) = unsafe {
                (
                    &mut *context.cast::<Vec<(String, Tensor)>>(),
                    CStr::from_ptr(path),
                )
            };
            // SAFETY: the pointer is an at::Tensor of the shim; clone_from_ptr makes a handle of our own.
            let tensor = unsafe { Tensor::clone_from_ptr(tensor.cast()) };
            all.push((path.to_string_lossy().into_owned(), tensor));
        }
        let mut all: Vec<(String, Tensor)> = Vec::new();
        // SAFETY: as said in `visit`.
        call(|e| unsafe { c::shim_values_visit(self.0, visit, (&raw mut all).cast(), e) })?;
        Ok(all)
    }
}

/// Calls an operator through the dispatcher (`aten::_foreach_add_`, `Scalar`); arguments left out take their
/// defaults. Returns the tensors in its results, in order.
pub(crate) fn call_op(op: &str, overload: &str, arguments: &[Value<'_>]) -> Result<Vec<Tensor>> {
    let mut values = Values::new();
    for argument in arguments {
        values.push(argument)?;
    }
    let (op, overload) = (c_text(op)?, c_text(overload)?);
    // SAFETY: stack and texts are alive.
    call(|e| unsafe { c::shim_values_call(values.0, op.as_ptr(), overload.as_ptr(), e) })?;
    Ok(values
        .tensors()?
        .into_iter()
        .map(|(_, tensor)| tensor)
        .collect())
}

/// The recording of this process.
pub(crate) mod recording {
    use inspect_checkpoint::trace::TensorRef;

    use super::{Result, Tensor, c, c_int, c_text, call, pointer, ptr};

    /// Starts recording allocations on `cpu` or `cuda`.
    pub(crate) fn start(device: &str) -> Result<()> {
        let device = c_text(device)?;
        // SAFETY: the text lives through the call.
        call(|e| unsafe { c::shim_record_start(device.as_ptr(), e) })
    }

    /// Stops for good.
    pub(crate) fn stop() -> Result<()> {
        // SAFETY: no arguments.
        call(|e| unsafe { c::shim_record_stop(e) })
    }

    /// Also records operators and modules.
    pub(crate) fn operators(on: bool) -> Result<()> {
        // SAFETY: no arguments.
        call(|e| unsafe { c::shim_record_operators(c_int::from(on), e) })
    }

    /// Time since the start, ns.
    pub(crate) fn now() -> u64 {
        // SAFETY: no arguments.
        u64::try_from(unsafe { c::shim_record_now() }).unwrap_or(0)
    }

    /// Hands the words recorded so far to `read`.
    pub(crate) fn drain<T>(read: impl FnOnce(&[i64]) -> T) -> Result<T> {
        let (mut words, mut count) = (ptr::null(), 0);
        // SAFETY: both places live through the call.
        call(|e| unsafe { c::shim_record_drain(&raw mut words, &raw mut count, e) })?;
        if count == 0 {
            return Ok(read(&[]));
        }
        // SAFETY: the words stay valid until the next drain, and only this thread drains.
        Ok(read(unsafe { std::slice::from_raw_parts(words, count) }))
    }

    /// A tensor as the trace writes it; the events that its numbers refer to are in the next drain.
    pub(crate) fn tensor_ref(tensor: &Tensor) -> Result<Option<TensorRef>> {
        let (mut sig, mut alloc) = (-1, -1);
        // SAFETY: tensor and places are alive.
        call(|e| unsafe {
            c::shim_record_tensor_of(pointer(tensor), &raw mut sig, &raw mut alloc, e)
        })?;
        Ok(u32::try_from(sig).ok().map(|sig| TensorRef {
            sig,
            alloc: u32::try_from(alloc).ok(),
        }))
    }
}

/// The CUDA caching allocator's own figures.
pub(crate) mod cuda {
    use super::{Result, c, call};

    /// Current value and peak of one statistic.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Stat {
        /// Now.
        pub(crate) current: u64,
        /// Since peaks were reset.
        pub(crate) peak: u64,
    }

    /// The statistics that reports use.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Stats {
        /// Requested bytes.
        pub(crate) requested: Stat,
        /// Allocated bytes.
        pub(crate) allocated: Stat,
        /// Active bytes.
        pub(crate) active: Stat,
        /// Reserved bytes.
        pub(crate) reserved: Stat,
        /// Retries after emptying the cache.
        pub(crate) retries: u64,
        /// Out-of-memory errors.
        pub(crate) ooms: u64,
    }

    /// Reads them.
    pub(crate) fn stats() -> Result<Stats> {
        let mut raw = c::DeviceStats::default();
        // SAFETY: the place lives through the call.
        call(|e| unsafe { c::shim_cuda_stats(&raw mut raw, e) })?;
        let unsigned = |value: i64| u64::try_from(value).unwrap_or(0);
        let stat = |s: c::Stat| Stat {
            current: unsigned(s.current),
            peak: unsigned(s.peak),
        };
        Ok(Stats {
            requested: stat(raw.requested_bytes),
            allocated: stat(raw.allocated_bytes),
            active: stat(raw.active_bytes),
            reserved: stat(raw.reserved_bytes),
            retries: unsigned(raw.num_alloc_retries),
            ooms: unsigned(raw.num_ooms),
        })
    }

    /// Starts peaks anew.
    pub(crate) fn reset_peaks() -> Result<()> {
        // SAFETY: no arguments.
        call(|e| unsafe { c::shim_cuda_reset_peaks(e) })
    }

    /// Free and total bytes of the device.
    pub(crate) fn memory_info() -> Result<(u64, u64)> {
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: both places live through the call.
        call(|e| unsafe { c::shim_cuda_memory_info(&raw mut free, &raw mut total, e) })?;
        Ok((free as u64, total as u64))
    }
}

/// The simulated CUDA device, where this process runs on it.
pub(crate) mod simulated {
    use inspect_checkpoint::trace::{ReadBack, ReadValue};

    use super::{CStr, Result, c, c_char, c_int, c_void, call};

    /// A library function that was called without being fully modelled.
    #[derive(Debug, Clone)]
    pub(crate) struct Function {
        /// Soname of its library.
        pub(crate) library: String,
        /// Its name.
        pub(crate) name: String,
        /// Kind of gap, as `src/torch/cuda_sim/README.md` numbers them.
        pub(crate) gap: i32,
    }

    /// Whether the stand-ins are loaded.
    pub(crate) fn loaded() -> bool {
        // SAFETY: no arguments.
        unsafe { c::shim_sim_loaded() != 0 }
    }

    /// What was called and is not modelled, in no particular order.
    pub(crate) fn functions() -> Result<Vec<Function>> {
        extern "C" fn visit(
            context: *mut c_void,
            library: *const c_char,
            name: *const c_char,
            gap: c_int,
            _calls: u64,
        ) {
            // SAFETY: the context is the Vec below, alive through the call; both texts are static in the stand-ins.
            let (all, library, name) = unsafe {
                (
                    &mut *context.cast::<Vec<Function>>(),
                    CStr::from_ptr(library),
                    CStr::from_ptr(name),
                )
            };
            all.push(Function {
                library: library.to_string_lossy().into_owned(),
                name: name.to_string_lossy().into_owned(),
                gap,
            });
        }
        let mut all: Vec<Function> = Vec::new();
        // SAFETY: as said in `visit`.
        call(|e| unsafe { c::shim_sim_functions(visit, (&raw mut all).cast(), e) })?;
        Ok(all)
    }

    /// Adds the answer to a read that the device cannot know.
    pub(crate) fn add_read_back(read: &ReadBack) -> Result<()> {
        let op = super::c_text(&read.op)?;
        let shape: Vec<i64> = read.shape.iter().map(|size| size.cast_signed()).collect();
        let (kind, bits) = match read.value {
            ReadValue::Count(count) => (0, count.cast_signed()),
            ReadValue::Int(value) => (1, value),
            ReadValue::Bool(value) => (2, i64::from(value)),
            ReadValue::Float(bits) => (3, bits.cast_signed()),
        };
        // SAFETY: both buffers live through the call, which copies them.
        call(|e| unsafe {
            c::shim_read_back_add(op.as_ptr(), shape.as_ptr(), shape.len(), kind, bits, e)
        })
    }

    /// Whether operators that read are answered and counted from now on.
    pub(crate) fn watch_reads(on: bool) -> Result<()> {
        // SAFETY: plain values.
        call(|e| unsafe { c::shim_read_back_watch(c_int::from(on), e) })
    }

    /// What was read while they were watched: operator, answered reads, unknown reads.
    pub(crate) fn reads() -> Result<Vec<(String, u64, u64)>> {
        extern "C" fn visit(context: *mut c_void, op: *const c_char, answered: u64, unknown: u64) {
            // SAFETY: the context is the Vec below, alive through the call; the text lives through this one.
            let (all, op) = unsafe {
                (
                    &mut *context.cast::<Vec<(String, u64, u64)>>(),
                    CStr::from_ptr(op),
                )
            };
            all.push((op.to_string_lossy().into_owned(), answered, unknown));
        }
        let mut all: Vec<(String, u64, u64)> = Vec::new();
        // SAFETY: as said in `visit`.
        call(|e| unsafe { c::shim_read_back_visit(visit, (&raw mut all).cast(), e) })?;
        Ok(all)
    }
}
