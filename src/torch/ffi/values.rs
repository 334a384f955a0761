//! Values of libtorch: what methods and operators are called with, and what they return.

use super::module::Module;
use super::{
    CStr, Result, Tensor, c, c_char, c_int, c_text, c_void, call, pointer, ptr, take_text,
};

/// A stack of libtorch's values.
#[derive(Debug)]
pub(crate) struct Values(pub(super) *mut c::Values);

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

    /// Value `index` as `--input` writes it, long ones cut.
    pub(crate) fn text(&self, index: usize) -> Result<String> {
        let mut out = ptr::null_mut();
        // SAFETY: stack and place are alive.
        call(|e| unsafe { c::shim_values_text(self.0, index, &raw mut out, e) })?;
        Ok(take_text(out).unwrap_or_default())
    }

    /// Every tensor in the stack with its path: that of a value in its list, where there are several values.
    pub(crate) fn tensors(&self) -> Result<Vec<(String, Tensor)>> {
        self.visit(None)
    }

    /// Every tensor in value `index` with its path there.
    pub(crate) fn tensors_of(&self, index: usize) -> Result<Vec<(String, Tensor)>> {
        self.visit(Some(index))
    }

    fn visit(&self, index: Option<usize>) -> Result<Vec<(String, Tensor)>> {
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
        let index = index
            .and_then(|index| i64::try_from(index).ok())
            .unwrap_or(-1);
        call(|e| unsafe { c::shim_values_visit(self.0, index, visit, (&raw mut all).cast(), e) })?;
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
