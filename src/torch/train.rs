//! Training: the phases of a plain Python training loop, with the lifetimes that it has.
//!
//! ```text
//! for _ in range(steps):
//!     optimizer.zero_grad()
//!     y = model(x)
//!     loss = y.mean()
//!     loss.backward()
//!     optimizer.step()
//! ```
//!
//! `y` and `loss` live until they are assigned anew: the second step's forward pass runs beside the first one's
//! output. With autocast, forward pass and loss are inside it and the backward pass is outside, as PyTorch's manual
//! says. Owns that order; what an optimizer does is in `optim`.

use std::collections::HashSet;

use inspect_checkpoint::engine::protocol::{
    FailureKind, Loss, Optimizer as OptimizerKind, OptimizerImpl, ParameterValues, Trained,
};
use inspect_checkpoint::trace::{Category, PhaseName};
use tch::Tensor;

use crate::dtype;
use crate::failure::Failure;
use crate::ffi::{self, NamedTensor, TorchError, Value, Values, call_op, recording};
use crate::optim::{Optimizer, Parameter};
use crate::run::Call;
use crate::session::Session;

/// What a training run was asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) optimizer: OptimizerKind,
    pub(crate) implementation: Option<OptimizerImpl>,
    pub(crate) loss: Loss,
    pub(crate) steps: u32,
}

/// Runs the loop. Values at the end are returned where they are computed on the host.
pub(crate) fn train(
    session: &mut Session<'_>,
    call: &Call<'_>,
    tensors: &[NamedTensor],
    plan: Plan,
) -> Result<Option<Trained>, Failure> {
    let parameters = parameters(tensors)?;
    if !parameters.iter().any(|one| one.tensor.requires_grad()) {
        return Err(untrainable(
            "no parameter of the module requires a gradient: there is nothing to train",
        ));
    }
    let mut optimizer = construct(session, plan, parameters)?;
    let mut outputs: Option<Values> = None;
    let mut loss: Option<Tensor> = None;
    let mut losses = Vec::new();
    for step in 1..=plan.steps.max(1) {
        call.autocast(true)?;
        forward(session, call, &optimizer, &mut outputs, step)?;
        if let Some(outputs) = &outputs {
            session.outputs(outputs)?;
        }
        backward(
            session,
            call,
            plan.loss,
            &optimizer,
            outputs.as_ref(),
            &mut loss,
            step,
        )?;
        // Adagrad's constructor has made and labelled its state already.
        let new_state = step == 1 && plan.optimizer != OptimizerKind::Adagrad;
        update(session, &mut optimizer, step, new_state)?;
        if session.computes_on_host()
            && let Some(loss) = &loss
        {
            losses.push(finite(loss.f_double_value(&[])?));
        }
    }
    if !session.computes_on_host() {
        return Ok(None);
    }
    recording::stop()?;
    let parameters = optimizer
        .parameters()
        .iter()
        .map(values_of)
        .collect::<Result<_, _>>()?;
    Ok(Some(Trained { losses, parameters }))
}

/// `model.parameters()`: every tensor once, under its first name.
fn parameters(tensors: &[NamedTensor]) -> Result<Vec<Parameter>, Failure> {
    let mut seen = HashSet::new();
    let mut parameters = Vec::new();
    for one in tensors.iter().filter(|one| !one.is_buffer) {
        if seen.insert(ffi::identity(&one.tensor)?) {
            parameters.push(Parameter {
                name: one.name.clone(),
                tensor: one.tensor.shallow_clone(),
            });
        }
    }
    Ok(parameters)
}

/// Makes the optimizer; a phase of its own only where its constructor makes state.
fn construct(
    session: &mut Session<'_>,
    plan: Plan,
    parameters: Vec<Parameter>,
) -> Result<Optimizer, Failure> {
    let make = || Optimizer::new(plan.optimizer, plan.implementation, parameters);
    if plan.optimizer != OptimizerKind::Adagrad {
        return make();
    }
    session.phase(PhaseName::Optimizer, None, |session| {
        let optimizer = recorded(make)?;
        label_state(session, &optimizer)?;
        Ok(optimizer)
    })
}

fn forward(
    session: &mut Session<'_>,
    call: &Call<'_>,
    optimizer: &Optimizer,
    outputs: &mut Option<Values>,
    step: u32,
) -> Result<(), Failure> {
    session.phase(PhaseName::Forward, Some(step), |_session| {
        optimizer.zero_grad()?;
        let fresh = recorded(|| call.run())?;
        *outputs = Some(fresh); // the last step's outputs end here
        Ok(())
    })
}

fn backward(
    session: &mut Session<'_>,
    call: &Call<'_>,
    kind: Loss,
    optimizer: &Optimizer,
    outputs: Option<&Values>,
    loss: &mut Option<Tensor>,
    step: u32,
) -> Result<(), Failure> {
    session.phase(PhaseName::Backward, Some(step), |session| {
        let fresh = recorded(|| loss_of(kind, outputs));
        call.autocast(false)?;
        let fresh = fresh?;
        if !fresh.requires_grad() {
            return Err(untrainable(
                "the loss has no gradient: no output of the method depends on a trainable parameter",
            ));
        }
        let fresh = loss.insert(fresh); // the last step's loss ends here
        recorded(|| {
            fresh.f_backward().map_err(|error| {
                Failure::torch(FailureKind::ModelError, &TorchError::from(error))
            })
        })?;
        for (name, grad) in optimizer.gradients()? {
            session.label(&grad, Category::Gradients, name)?;
        }
        Ok(())
    })
}

fn update(
    session: &mut Session<'_>,
    optimizer: &mut Optimizer,
    step: u32,
    new_state: bool,
) -> Result<(), Failure> {
    session.phase(PhaseName::Optimizer, Some(step), |session| {
        recorded(|| optimizer.step())?;
        if new_state {
            label_state(session, optimizer)?;
        }
        Ok(())
    })
}

fn label_state(session: &mut Session<'_>, optimizer: &Optimizer) -> Result<(), Failure> {
    for (kind, name, tensor) in optimizer.state() {
        session.label(tensor, Category::OptimizerState, &format!("{kind}:{name}"))?;
    }
    Ok(())
}

/// Runs `body` with operators and modules recorded.
pub(crate) fn recorded<T>(body: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    recording::operators(true)?;
    let result = body();
    recording::operators(false)?;
    result
}

/// What is differentiated.
fn loss_of(kind: Loss, outputs: Option<&Values>) -> Result<Tensor, Failure> {
    let mut floating = Vec::new();
    for (path, tensor) in outputs
        .map(Values::tensors)
        .transpose()?
        .unwrap_or_default()
    {
        let (scalar_type, _) = ffi::tensor_info(&tensor)?;
        if dtype::is_floating(&dtype::name_of(scalar_type)) {
            floating.push((path, tensor));
        }
    }
    let Some(((first_path, first), rest)) = floating.split_first() else {
        return Err(untrainable(
            "the method returned no floating-point tensor, so there is no loss to differentiate",
        ));
    };
    let reduction = match kind {
        Loss::Mean => "aten::mean",
        Loss::Sum => "aten::sum",
        Loss::CrossEntropy => return cross_entropy(first_path, first),
    };
    let mut total = one(call_op(reduction, "", &[Value::Tensor(first)]))?;
    for (_, tensor) in rest {
        let next = one(call_op(reduction, "", &[Value::Tensor(tensor)]))?;
        let sum = [Value::Tensor(&total), Value::Tensor(&next)];
        total = one(call_op("aten::add", "Tensor", &sum))?;
    }
    Ok(total)
}

/// `cross_entropy(y, zeros)`, with classes in dimension 1, or 0 where there is only one.
fn cross_entropy(path: &str, output: &Tensor) -> Result<Tensor, Failure> {
    let mut target = output.size();
    if target.is_empty() {
        let name = if path.is_empty() { "it" } else { path };
        return Err(untrainable(format!(
            "cross entropy needs an output with classes, and {name} is a 0-dim tensor"
        )));
    }
    target.remove(usize::from(target.len() > 1));
    let target = Tensor::f_zeros(&target, (tch::Kind::Int64, output.device()))?;
    one(call_op(
        "aten::cross_entropy_loss",
        "",
        &[Value::Tensor(output), Value::Tensor(&target)],
    ))
}

fn one(result: Result<Vec<Tensor>, TorchError>) -> Result<Tensor, Failure> {
    let tensors = result.map_err(|error| Failure::torch(FailureKind::ModelError, &error))?;
    tensors.into_iter().next().ok_or_else(|| {
        Failure::new(
            FailureKind::Internal,
            "an operator of the loss returned nothing",
        )
    })
}

fn untrainable(message: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Unsupported, message)
}

/// How many elements of a parameter are shown.
const FIRST: i64 = 2;

fn values_of(parameter: &Parameter) -> Result<ParameterValues, Failure> {
    let _no_grad = tch::no_grad_guard();
    let double = parameter.tensor.f_to_kind(tch::Kind::Double)?;
    let sum = double.f_sum(tch::Kind::Double)?.f_double_value(&[])?;
    let flat = double.f_flatten(0, -1)?;
    let count = flat.size().first().copied().unwrap_or(0).min(FIRST);
    let first = (0..count)
        .map(|index| Ok(finite(flat.f_double_value(&[index])?)))
        .collect::<Result<_, Failure>>()?;
    Ok(ParameterValues {
        name: parameter.name.clone(),
        sum: finite(sum),
        first,
    })
}

fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}
