//! `torch.optim.SGD`, without and with momentum (`torch/optim/sgd.py` of 2.11).

use tch::Tensor;

use super::ops::{groups, one, run};
use super::{Live, Rule};
use crate::failure::Failure;
use crate::ffi::Value;

const LR: f64 = 1e-3;

/// SGD; the momentum buffers begin as the first gradients.
pub(super) struct Sgd {
    momentum: f64,
    nesterov: bool,
    buffers: Vec<Option<Tensor>>,
}

impl Sgd {
    /// For `count` parameters.
    pub(super) fn new(momentum: f64, nesterov: bool, count: usize) -> Sgd {
        Sgd {
            momentum,
            nesterov,
            buffers: (0..count).map(|_| None).collect(),
        }
    }

    fn has_momentum(&self) -> bool {
        self.momentum != 0.0
    }

    fn buffer(&mut self, index: usize) -> Option<&mut Option<Tensor>> {
        self.buffers.get_mut(index)
    }

    /// `momentum_buffer.mul_(momentum).add_(grad)`, or the gradient's copy the first time.
    fn update_buffer(&mut self, index: usize, grad: &Tensor) -> Result<Option<Tensor>, Failure> {
        let momentum = self.momentum;
        let Some(slot) = self.buffer(index) else {
            return Ok(None);
        };
        if let Some(buffer) = slot {
            run(
                "aten::mul_",
                "Tensor",
                &[Value::Tensor(buffer), Value::WrappedDouble(momentum)],
            )?;
            add(buffer, grad, 1.0)?;
        } else {
            *slot = Some(clone_of(grad)?);
        }
        Ok(slot.as_ref().map(Tensor::shallow_clone))
    }

    fn update_buffers(&mut self, live: &[&Live], grads: &[Tensor]) -> Result<Vec<Tensor>, Failure> {
        let known: Option<Vec<Tensor>> = live
            .iter()
            .map(|one| Some(self.buffers.get(one.index)?.as_ref()?.shallow_clone()))
            .collect();
        if let Some(buffers) = known {
            run(
                "aten::_foreach_mul_",
                "Scalar",
                &[Value::Tensors(&buffers), Value::Double(self.momentum)],
            )?;
            add_all(&buffers, grads, 1.0)?;
            return Ok(buffers);
        }
        let mut buffers = Vec::with_capacity(live.len());
        for (one, grad) in live.iter().zip(grads) {
            buffers.extend(self.update_buffer(one.index, grad)?);
        }
        Ok(buffers)
    }
}

impl Rule for Sgd {
    fn one_by_one(&mut self, live: &[Live]) -> Result<(), Failure> {
        for Live { index, param, grad } in live {
            let mut step = grad.shallow_clone();
            if self.has_momentum()
                && let Some(buffer) = self.update_buffer(*index, grad)?
            {
                step = if self.nesterov {
                    one(
                        "aten::add",
                        "Tensor",
                        &[
                            Value::Tensor(grad),
                            Value::Tensor(&buffer),
                            Value::Double(self.momentum),
                        ],
                    )?
                } else {
                    buffer
                };
            }
            add(param, &step, -LR)?;
        }
        Ok(())
    }

    fn many_at_once(&mut self, live: &[Live]) -> Result<(), Failure> {
        for group in groups(live)? {
            let params = group.params();
            let mut grads = group.grads();
            let sparse = grads.iter().any(Tensor::is_sparse);
            if self.has_momentum() {
                let buffers = self.update_buffers(&group.0, &grads)?;
                if self.nesterov {
                    add_all(&grads, &buffers, self.momentum)?;
                } else {
                    grads = buffers;
                }
            }
            if sparse {
                for (param, grad) in params.iter().zip(&grads) {
                    add(param, grad, -LR)?;
                }
            } else {
                add_all(&params, &grads, -LR)?;
            }
        }
        Ok(())
    }

    fn fused(&mut self, live: &[Live]) -> Result<(), Failure> {
        super::refuse_sparse("`_fused_sgd`", live)?;
        let first = self.has_momentum()
            && live
                .iter()
                .all(|one| self.buffers.get(one.index).is_some_and(Option::is_none));
        if first {
            for Live { index, grad, .. } in live {
                let empty = super::ops::one("aten::empty_like", "", &[Value::Tensor(grad)])?;
                if let Some(slot) = self.buffer(*index) {
                    *slot = Some(empty);
                }
            }
        }
        for group in groups(live)? {
            let buffers = group.states(&self.buffers, |buffer| buffer);
            run(
                "aten::_fused_sgd_",
                "",
                &[
                    Value::Tensors(&group.params()),
                    Value::Tensors(&group.grads()),
                    Value::Tensors(&buffers),
                    Value::Double(0.0),
                    Value::Double(self.momentum),
                    Value::Double(LR),
                    Value::Double(0.0),
                    Value::Bool(self.nesterov),
                    Value::Bool(false),
                    Value::Bool(first),
                ],
            )?;
        }
        Ok(())
    }
    fn state(&self, index: usize) -> Vec<(&'static str, &Tensor)> {
        self.buffers
            .get(index)
            .and_then(Option::as_ref)
            .map(|buffer| ("momentum_buffer", buffer))
            .into_iter()
            .collect()
    }
}

/// `tensor.detach().clone()`.
fn clone_of(tensor: &Tensor) -> Result<Tensor, Failure> {
    let detached = one("aten::detach", "", &[Value::Tensor(tensor)])?;
    one("aten::clone", "", &[Value::Tensor(&detached)])
}

/// `to.add_(other, alpha=alpha)`.
fn add(to: &Tensor, other: &Tensor, alpha: f64) -> Result<(), Failure> {
    run(
        "aten::add_",
        "Tensor",
        &[
            Value::Tensor(to),
            Value::Tensor(other),
            Value::Double(alpha),
        ],
    )
}

/// `torch._foreach_add_(to, others, alpha=alpha)`.
fn add_all(to: &[Tensor], others: &[Tensor], alpha: f64) -> Result<(), Failure> {
    run(
        "aten::_foreach_add_",
        "List",
        &[
            Value::Tensors(to),
            Value::Tensors(others),
            Value::Double(alpha),
        ],
    )
}
