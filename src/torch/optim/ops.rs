//! Operators as torch.optim calls them, one dispatcher call each.

use tch::Tensor;

use super::Live;
use crate::failure::Failure;
use crate::ffi::{self, TorchError, Value, call_op};

/// `c10::MemoryFormat::Preserve`.
const PRESERVE_FORMAT: i64 = 1;

/// Calls an in-place operator.
pub(super) fn run(op: &str, overload: &str, arguments: &[Value<'_>]) -> Result<(), Failure> {
    call_op(op, overload, arguments)?;
    Ok(())
}

/// Calls an operator that returns one tensor.
pub(super) fn one(op: &str, overload: &str, arguments: &[Value<'_>]) -> Result<Tensor, Failure> {
    call_op(op, overload, arguments)?
        .into_iter()
        .next()
        .ok_or_else(|| {
            Failure::from(TorchError {
                out_of_memory: false,
                message: format!("`{op}` returned nothing"),
            })
        })
}

/// Calls an operator that returns a list of tensors.
pub(super) fn many(
    op: &str,
    overload: &str,
    arguments: &[Value<'_>],
) -> Result<Vec<Tensor>, Failure> {
    Ok(call_op(op, overload, arguments)?)
}

/// Frees a list as Python does: the last element first.
pub(super) fn free(mut list: Vec<Tensor>) {
    while list.pop().is_some() {}
}

/// Assigns a list anew: the old one lives until the new one is there.
pub(super) fn assign(variable: &mut Option<Vec<Tensor>>, list: Vec<Tensor>) {
    if let Some(old) = variable.replace(list) {
        free(old);
    }
}

/// `torch.zeros_like(p, memory_format=torch.preserve_format)`.
pub(super) fn zeros_like(tensor: &Tensor) -> Result<Tensor, Failure> {
    one(
        "aten::zeros_like",
        "",
        &[
            Value::Tensor(tensor),
            Value::None,
            Value::None,
            Value::None,
            Value::None,
            Value::Int(PRESERVE_FORMAT),
        ],
    )
}

/// `torch.full_like(p, 0, memory_format=torch.preserve_format)`.
pub(super) fn full_like_zero(tensor: &Tensor) -> Result<Tensor, Failure> {
    one(
        "aten::full_like",
        "",
        &[
            Value::Tensor(tensor),
            Value::Int(0),
            Value::None,
            Value::None,
            Value::None,
            Value::None,
            Value::Int(PRESERVE_FORMAT),
        ],
    )
}

/// A step counter: on the CPU, except for fused optimizers.
pub(super) fn step_counter(device: tch::Device) -> Result<Tensor, Failure> {
    Ok(Tensor::f_zeros([0_i64; 0], (tch::Kind::Float, device))?)
}

/// `step += 1`.
pub(super) fn count(step: &Tensor) -> Result<(), Failure> {
    run(
        "aten::add_",
        "Tensor",
        &[Value::Tensor(step), Value::WrappedInt(1)],
    )
}

/// Adds 1 to every counter, in one call with one tensor for the 1.
pub(super) fn count_all(steps: &[Tensor]) -> Result<(), Failure> {
    let one = Tensor::f_ones([0_i64; 0], (tch::Kind::Float, tch::Device::Cpu))?;
    run(
        "aten::_foreach_add_",
        "Tensor",
        &[
            Value::Tensors(steps),
            Value::Tensor(&one),
            Value::Double(1.0),
        ],
    )
}

/// `step.item()`.
pub(super) fn value_of(step: &Tensor) -> Result<f64, Failure> {
    Ok(step.f_double_value(&[])?)
}

/// A complex tensor as pairs of real numbers, the same memory; others as they are.
pub(super) fn real(tensor: &Tensor) -> Result<Tensor, Failure> {
    if tensor.is_complex() {
        one("aten::view_as_real", "", &[Value::Tensor(tensor)])
    } else {
        Ok(tensor.shallow_clone())
    }
}

/// The same for a list.
pub(super) fn all_real(list: Vec<Tensor>) -> Result<Vec<Tensor>, Failure> {
    if list.iter().any(Tensor::is_complex) {
        list.iter().map(real).collect()
    } else {
        Ok(list)
    }
}

/// Parameters of one device and dtype, which go into one call.
pub(super) struct Group<'a>(pub(super) Vec<&'a Live>);

impl Group<'_> {
    pub(super) fn params(&self) -> Vec<Tensor> {
        self.0.iter().map(|one| one.param.shallow_clone()).collect()
    }

    pub(super) fn grads(&self) -> Vec<Tensor> {
        self.0.iter().map(|one| one.grad.shallow_clone()).collect()
    }

    /// One tensor of each parameter's state.
    pub(super) fn states<S>(
        &self,
        states: &[Option<S>],
        pick: impl Fn(&S) -> &Tensor,
    ) -> Vec<Tensor> {
        self.0
            .iter()
            .filter_map(|one| states.get(one.index)?.as_ref())
            .map(|state| pick(state).shallow_clone())
            .collect()
    }
}

/// `_group_tensors_by_device_and_dtype`, in its order.
pub(super) fn groups(live: &[Live]) -> Result<Vec<Group<'_>>, Failure> {
    let params: Vec<Tensor> = live.iter().map(|one| one.param.shallow_clone()).collect();
    let places = ffi::group_places(&params)?;
    let count = places.iter().max().map_or(0, |last| last + 1);
    Ok((0..count)
        .map(|place| {
            Group(
                live.iter()
                    .zip(&places)
                    .filter(|(_, at)| **at == place)
                    .map(|(one, _)| one)
                    .collect(),
            )
        })
        .collect())
}
