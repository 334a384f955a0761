//! `torch.optim.RMSprop` (`torch/optim/rmsprop.py` of 2.11): neither momentum nor centered.

use inspect_checkpoint::engine::protocol::OptimizerImpl;
use tch::Tensor;

use super::ops::{
    add_square, add_squares, all_real, assign, count, count_all, divide_into, free, groups, many,
    one, real, run, shift_all, step_counter, zeros_like,
};
use super::{Live, Rule};
use crate::failure::Failure;
use crate::ffi::Value;

const LR: f64 = 1e-2;
const ALPHA: f64 = 0.99;
const EPS: f64 = 1e-8;

struct State {
    step: Tensor,
    square_avg: Tensor,
}

/// RMSprop; state is made in the first step.
pub(super) struct Rmsprop {
    states: Vec<Option<State>>,
}

impl Rmsprop {
    /// For `count` parameters.
    pub(super) fn new(count: usize) -> Rmsprop {
        Rmsprop {
            states: (0..count).map(|_| None).collect(),
        }
    }

    fn init(&mut self, live: &[Live]) -> Result<(), Failure> {
        for Live { index, param, .. } in live {
            if let Some(slot @ None) = self.states.get_mut(*index) {
                *slot = Some(State {
                    step: step_counter(param, OptimizerImpl::Loop)?,
                    square_avg: zeros_like(param)?,
                });
            }
        }
        Ok(())
    }
}

impl Rule for Rmsprop {
    fn prepare(&mut self, live: &[Live], _how: OptimizerImpl) -> Result<(), Failure> {
        super::refuse_sparse("RMSprop", live)?;
        self.init(live)
    }

    fn one_by_one(&mut self, live: &[Live]) -> Result<(), Failure> {
        let mut avg = None;
        for Live { index, param, grad } in live {
            let Some(Some(state)) = self.states.get(*index) else {
                continue;
            };
            count(&state.step)?;
            let (param, grad) = (real(param)?, real(grad)?);
            let square_avg = real(&state.square_avg)?;
            let scaled = [Value::Tensor(&square_avg), Value::WrappedDouble(ALPHA)];
            run("aten::mul_", "Tensor", &scaled)?;
            add_square(&square_avg, &grad, Value::Double(1.0 - ALPHA))?;
            // Python has let go of the last one before this one is shifted.
            let fresh = one("aten::sqrt", "", &[Value::Tensor(&square_avg)])?;
            drop(avg.take());
            divide_into(&param, &grad, (&mut avg, fresh), EPS, -LR)?;
        }
        Ok(())
    }

    fn many_at_once(&mut self, live: &[Live]) -> Result<(), Failure> {
        let mut avg = None;
        for group in groups(live)? {
            let params = all_real(group.params())?;
            let grads = all_real(group.grads())?;
            let square_avgs = all_real(group.states(&self.states, |state| &state.square_avg))?;
            count_all(&group.states(&self.states, |state| &state.step))?;
            let scaled = [Value::Tensors(&square_avgs), Value::Double(ALPHA)];
            run("aten::_foreach_mul_", "Scalar", &scaled)?;
            add_squares(&square_avgs, &grads, Value::Double(1.0 - ALPHA))?;
            let fresh = many("aten::_foreach_sqrt", "", &[Value::Tensors(&square_avgs)])?;
            assign(&mut avg, fresh);
            let fresh = avg.as_deref().unwrap_or_default();
            shift_all(fresh, EPS)?;
            let update = [
                Value::Tensors(&params),
                Value::Tensors(&grads),
                Value::Tensors(fresh),
                Value::Double(-LR),
            ];
            run("aten::_foreach_addcdiv_", "Scalar", &update)?;
        }
        avg.into_iter().for_each(free);
        Ok(())
    }

    // Refused when the optimizer is made: torch.optim has none.
    fn fused(&mut self, live: &[Live]) -> Result<(), Failure> {
        self.one_by_one(live)
    }
    fn state(&self, index: usize) -> Vec<(&'static str, &Tensor)> {
        match self.states.get(index) {
            Some(Some(state)) => {
                vec![("step", &state.step), ("square_avg", &state.square_avg)]
            }
            _ => Vec::new(),
        }
    }
}
