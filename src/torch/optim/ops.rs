//! Operators as torch.optim calls them, one dispatcher call each.

use inspect_checkpoint::engine::protocol::OptimizerImpl;
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

/// A parameter's step counter: on the CPU, except for fused optimizers.
pub(super) fn step_counter(param: &Tensor, how: OptimizerImpl) -> Result<Tensor, Failure> {
    let device = match how {
        OptimizerImpl::Fused => param.device(),
        OptimizerImpl::Foreach | OptimizerImpl::Loop => tch::Device::Cpu,
    };
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

/// Adds 1 to every counter where they are, as fused optimizers do.
pub(super) fn count_fused(steps: &[Tensor]) -> Result<(), Failure> {
    let arguments = [Value::Tensors(steps), Value::Int(1)];
    run("aten::_foreach_add_", "Scalar", &arguments)
}

/// `average.addcmul_(grad, grad, value=weight)`.
pub(super) fn add_square(
    average: &Tensor,
    grad: &Tensor,
    weight: Value<'_>,
) -> Result<(), Failure> {
    let grad = Value::Tensor(grad);
    let arguments = [Value::Tensor(average), grad, grad, weight];
    run("aten::addcmul_", "", &arguments)
}

/// The same for lists.
pub(super) fn add_squares(
    averages: &[Tensor],
    grads: &[Tensor],
    weight: Value<'_>,
) -> Result<(), Failure> {
    let grads = Value::Tensors(grads);
    let arguments = [Value::Tensors(averages), grads, grads, weight];
    run("aten::_foreach_addcmul_", "Scalar", &arguments)
}

/// `denominator.add_(eps)`, then `param.addcdiv_(numerator, denominator, value=size)`; the denominator stays in
/// `variable` as in Python's.
pub(super) fn divide_into(
    param: &Tensor,
    numerator: &Tensor,
    (variable, denominator): (&mut Option<Tensor>, Tensor),
    eps: f64,
    size: f64,
) -> Result<(), Failure> {
    let shifted = [Value::Tensor(&denominator), Value::WrappedDouble(eps)];
    run("aten::add_", "Tensor", &shifted)?;
    let denominator = variable.insert(denominator);
    let update = [
        Value::Tensor(param),
        Value::Tensor(numerator),
        Value::Tensor(denominator),
        Value::Double(size),
    ];
    run("aten::addcdiv_", "", &update)
}

/// `torch._foreach_add_(list, eps)`.
pub(super) fn shift_all(list: &[Tensor], eps: f64) -> Result<(), Failure> {
    let shifted = [Value::Tensors(list), Value::Double(eps)];
    run("aten::_foreach_add_", "Scalar", &shifted)
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
