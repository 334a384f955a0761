//! `torch.optim.Adam` and `torch.optim.AdamW` (`torch/optim/adam.py` of 2.11).

use inspect_checkpoint::engine::protocol::OptimizerImpl;
use tch::Tensor;

use super::ops::{
    Group, add_square, add_squares, all_real, assign, count, count_all, count_fused, divide_into,
    free, groups, many, one, real, run, shift_all, step_counter, value_of, zeros_like,
};
use super::{Live, Rule};
use crate::failure::Failure;
use crate::ffi::Value;

const LR: f64 = 1e-3;
const BETA1: f64 = 0.9;
const BETA2: f64 = 0.999;
const EPS: f64 = 1e-8;

/// What happens to the parameters besides the gradient's step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Decay {
    /// Adam's default.
    None,
    /// AdamW's: parameters shrink by `lr * decay`.
    Decoupled(f64),
}

impl Decay {
    /// What parameters are multiplied by.
    fn factor(self) -> Option<f64> {
        match self {
            Decay::None => None,
            Decay::Decoupled(decay) => Some(1.0 - LR * decay),
        }
    }
}

struct State {
    step: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
}

/// Adam or AdamW; state is made in the first step.
pub(super) struct Adam {
    decay: Decay,
    states: Vec<Option<State>>,
}

impl Adam {
    /// For `count` parameters.
    pub(super) fn new(decay: Decay, count: usize) -> Adam {
        Adam {
            decay,
            states: (0..count).map(|_| None).collect(),
        }
    }

    fn init(&mut self, live: &[Live], how: OptimizerImpl) -> Result<(), Failure> {
        for Live { index, param, .. } in live {
            let Some(slot @ None) = self.states.get_mut(*index) else {
                continue;
            };
            *slot = Some(State {
                step: step_counter(param, how)?,
                exp_avg: zeros_like(param)?,
                exp_avg_sq: zeros_like(param)?,
            });
        }
        Ok(())
    }

    fn update_group(
        &self,
        group: &Group<'_>,
        roots: &mut Option<Vec<Tensor>>,
    ) -> Result<(), Failure> {
        let params = all_real(group.params())?;
        let grads = all_real(group.grads())?;
        let exp_avgs = all_real(group.states(&self.states, |state| &state.exp_avg))?;
        let exp_avg_sqs = all_real(group.states(&self.states, |state| &state.exp_avg_sq))?;
        let steps = group.states(&self.states, |state| &state.step);
        count_all(&steps)?;
        if let Some(factor) = self.decay.factor() {
            let arguments = [Value::Tensors(&params), Value::Double(factor)];
            run("aten::_foreach_mul_", "Scalar", &arguments)?;
        }
        let moved = [
            Value::Tensors(&exp_avgs),
            Value::Tensors(&grads),
            Value::Double(1.0 - BETA1),
        ];
        run("aten::_foreach_lerp_", "Scalar", &moved)?;
        let scaled = [Value::Tensors(&exp_avg_sqs), Value::Double(BETA2)];
        run("aten::_foreach_mul_", "Scalar", &scaled)?;
        add_squares(&exp_avg_sqs, &grads, Value::Double(1.0 - BETA2))?;
        // Python asks for every counter twice, once a correction.
        let mut step_sizes = Vec::with_capacity(steps.len());
        for step in &steps {
            step_sizes.push(-corrections(value_of(step)?).0);
        }
        let mut corrected = Vec::with_capacity(steps.len());
        for step in &steps {
            corrected.push(corrections(value_of(step)?).1);
        }
        let fresh = many("aten::_foreach_sqrt", "", &[Value::Tensors(&exp_avg_sqs)])?;
        assign(roots, fresh);
        let fresh = roots.as_deref().unwrap_or_default();
        let divided = [Value::Tensors(fresh), Value::Scalars(&corrected)];
        run("aten::_foreach_div_", "ScalarList", &divided)?;
        shift_all(fresh, EPS)?;
        let update = [
            Value::Tensors(&params),
            Value::Tensors(&exp_avgs),
            Value::Tensors(fresh),
            Value::Scalars(&step_sizes),
        ];
        run("aten::_foreach_addcdiv_", "ScalarList", &update)
    }
}

/// Step size and root of the second bias correction, as Python's floats compute them.
fn corrections(step: f64) -> (f64, f64) {
    let first = 1.0 - BETA1.powf(step);
    let second = 1.0 - BETA2.powf(step);
    (LR / first, second.powf(0.5))
}

impl Rule for Adam {
    fn prepare(&mut self, live: &[Live], how: OptimizerImpl) -> Result<(), Failure> {
        super::refuse_sparse("Adam", live)?;
        self.init(live, how)
    }

    fn one_by_one(&mut self, live: &[Live]) -> Result<(), Failure> {
        let mut denom = None;
        for Live { index, param, grad } in live {
            let Some(Some(state)) = self.states.get(*index) else {
                continue;
            };
            count(&state.step)?;
            if let Some(factor) = self.decay.factor() {
                let arguments = [Value::Tensor(param), Value::WrappedDouble(factor)];
                run("aten::mul_", "Tensor", &arguments)?;
            }
            let (param, grad) = (real(param)?, real(grad)?);
            let (exp_avg, exp_avg_sq) = (real(&state.exp_avg)?, real(&state.exp_avg_sq)?);
            let moved = [
                Value::Tensor(&exp_avg),
                Value::Tensor(&grad),
                Value::Double(1.0 - BETA1),
            ];
            run("aten::lerp_", "Scalar", &moved)?;
            let scaled = [Value::Tensor(&exp_avg_sq), Value::WrappedDouble(BETA2)];
            run("aten::mul_", "Tensor", &scaled)?;
            add_square(&exp_avg_sq, &grad, Value::Double(1.0 - BETA2))?;
            let (step_size, root) = corrections(value_of(&state.step)?);
            let fresh = {
                let sqrt = one("aten::sqrt", "", &[Value::Tensor(&exp_avg_sq)])?;
                let arguments = [Value::Tensor(&sqrt), Value::WrappedDouble(root)];
                one("aten::div", "Tensor", &arguments)?
            };
            divide_into(&param, &exp_avg, (&mut denom, fresh), EPS, -step_size)?;
        }
        Ok(())
    }

    fn many_at_once(&mut self, live: &[Live]) -> Result<(), Failure> {
        let mut roots = None;
        for group in groups(live)? {
            self.update_group(&group, &mut roots)?;
        }
        roots.into_iter().for_each(free);
        Ok(())
    }

    fn fused(&mut self, live: &[Live]) -> Result<(), Failure> {
        let (op, weight_decay) = match self.decay {
            Decay::None => ("aten::_fused_adam_", 0.0),
            Decay::Decoupled(decay) => ("aten::_fused_adamw_", decay),
        };
        for group in groups(live)? {
            let steps = group.states(&self.states, |state| &state.step);
            count_fused(&steps)?;
            let arguments = [
                Value::Tensors(&group.params()),
                Value::Tensors(&group.grads()),
                Value::Tensors(&group.states(&self.states, |state| &state.exp_avg)),
                Value::Tensors(&group.states(&self.states, |state| &state.exp_avg_sq)),
                Value::Tensors(&[]),
                Value::Tensors(&steps),
                Value::Double(LR),
                Value::Double(BETA1),
                Value::Double(BETA2),
                Value::Double(weight_decay),
                Value::Double(EPS),
                Value::Bool(false),
                Value::Bool(false),
            ];
            run(op, "", &arguments)?;
        }
        Ok(())
    }
    fn state(&self, index: usize) -> Vec<(&'static str, &Tensor)> {
        match self.states.get(index) {
            Some(Some(state)) => vec![
                ("step", &state.step),
                ("exp_avg", &state.exp_avg),
                ("exp_avg_sq", &state.exp_avg_sq),
            ],
            _ => Vec::new(),
        }
    }
}
