//! `torch.optim.Adagrad` (`torch/optim/adagrad.py` of 2.11). Its constructor makes the state, for every parameter.

use inspect_checkpoint::engine::protocol::OptimizerImpl;
use tch::Tensor;

use super::ops::{
    add_square, add_squares, all_real, assign, count, count_all, count_fused, divide_into, free,
    full_like_zero, groups, many, one, real, run, shift_all, step_counter, value_of,
};
use super::{Live, Parameter, Rule};
use crate::failure::Failure;
use crate::ffi::Value;

const LR: f64 = 1e-2;
const LR_DECAY: f64 = 0.0;
const EPS: f64 = 1e-10;

struct State {
    step: Tensor,
    sum: Tensor,
}

/// Adagrad.
pub(super) struct Adagrad {
    states: Vec<Option<State>>,
}

impl Adagrad {
    /// With state for every parameter, also for those that will have no gradient.
    pub(super) fn new(parameters: &[Parameter], how: OptimizerImpl) -> Result<Adagrad, Failure> {
        let mut states = Vec::with_capacity(parameters.len());
        for Parameter { tensor, .. } in parameters {
            states.push(Some(State {
                step: step_counter(tensor, how)?,
                sum: full_like_zero(tensor)?,
            }));
        }
        Ok(Adagrad { states })
    }
}

/// The learning rate of a step.
fn rate(step: f64) -> f64 {
    LR / (1.0 + (step - 1.0) * LR_DECAY)
}

impl Rule for Adagrad {
    fn prepare(&mut self, live: &[Live], _how: OptimizerImpl) -> Result<(), Failure> {
        super::refuse_sparse("the engine's Adagrad", live)
    }

    fn one_by_one(&mut self, live: &[Live]) -> Result<(), Failure> {
        let mut std = None;
        for Live { index, param, grad } in live {
            let Some(Some(state)) = self.states.get(*index) else {
                continue;
            };
            count(&state.step)?;
            let rate = rate(value_of(&state.step)?);
            let (param, grad) = (real(param)?, real(grad)?);
            let sum = real(&state.sum)?;
            add_square(&sum, &grad, Value::Int(1))?;
            let fresh = one("aten::sqrt", "", &[Value::Tensor(&sum)])?;
            divide_into(&param, &grad, (&mut std, fresh), EPS, -rate)?;
        }
        Ok(())
    }

    fn many_at_once(&mut self, live: &[Live]) -> Result<(), Failure> {
        let (mut std, mut numerator) = (None, None);
        for group in groups(live)? {
            let params = all_real(group.params())?;
            let grads = all_real(group.grads())?;
            let sums = all_real(group.states(&self.states, |state| &state.sum))?;
            let steps = group.states(&self.states, |state| &state.step);
            count_all(&steps)?;
            let mut rates = Vec::with_capacity(steps.len());
            for step in &steps {
                rates.push(-rate(value_of(step)?));
            }
            add_squares(&sums, &grads, Value::Int(1))?;
            let fresh = many("aten::_foreach_sqrt", "", &[Value::Tensors(&sums)])?;
            assign(&mut std, fresh);
            let fresh = std.as_deref().unwrap_or_default();
            shift_all(fresh, EPS)?;
            let scaled = [Value::Tensors(&grads), Value::Scalars(&rates)];
            let product = many("aten::_foreach_mul", "ScalarList", &scaled)?;
            assign(&mut numerator, product);
            let update = [
                Value::Tensors(&params),
                Value::Tensors(numerator.as_deref().unwrap_or_default()),
                Value::Tensors(fresh),
            ];
            run("aten::_foreach_addcdiv_", "Scalar", &update)?;
        }
        std.into_iter().for_each(free);
        numerator.into_iter().for_each(free);
        Ok(())
    }

    fn fused(&mut self, live: &[Live]) -> Result<(), Failure> {
        for group in groups(live)? {
            let steps = group.states(&self.states, |state| &state.step);
            count_fused(&steps)?;
            let arguments = [
                Value::Tensors(&group.params()),
                Value::Tensors(&group.grads()),
                Value::Tensors(&group.states(&self.states, |state| &state.sum)),
                Value::Tensors(&steps),
                Value::Double(LR),
                Value::Double(LR_DECAY),
                Value::Double(0.0),
                Value::Double(EPS),
                Value::Bool(false),
            ];
            run("aten::_fused_adagrad_", "", &arguments)?;
        }
        Ok(())
    }
    fn state(&self, index: usize) -> Vec<(&'static str, &Tensor)> {
        match self.states.get(index) {
            Some(Some(state)) => vec![("step", &state.step), ("sum", &state.sum)],
            _ => Vec::new(),
        }
    }
}
