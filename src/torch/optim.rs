//! torch.optim's optimizers with their defaults, step for step as Python runs them.
//!
//! Owns the operators that `Optimizer.__init__` and `Optimizer.step` call in torch 2.11, their order, and how long their
//! temporaries live; both decide the memory of a training run. libtorch's own `torch::optim` has only the loop over
//! parameters, which is not what Python runs on CUDA. Knows nothing of models, phases or traces.
//!
//! Python frees a local variable when it is assigned anew or the function returns, and the elements of a list last to
//! first. Code here does the same, in the same places.

mod adagrad;
mod adam;
mod ops;
mod rmsprop;
mod sgd;

use inspect_checkpoint::engine::protocol::{FailureKind, Optimizer as Kind, OptimizerImpl};
use tch::Tensor;

use crate::failure::Failure;
use crate::ffi;

/// A parameter that an optimizer was given.
#[derive(Debug)]
pub(crate) struct Parameter {
    /// Its path in the module.
    pub(crate) name: String,
    /// The tensor itself.
    pub(crate) tensor: Tensor,
}

/// A parameter that has a gradient, for one step.
#[derive(Debug)]
struct Live {
    /// Its place among the parameters, and so among their states.
    index: usize,
    param: Tensor,
    grad: Tensor,
}

/// One kind of optimizer.
trait Rule {
    /// What comes before a step, however it is done: refuses gradients that it cannot use, makes the state that is
    /// missing.
    fn prepare(&mut self, _live: &[Live], _how: OptimizerImpl) -> Result<(), Failure> {
        Ok(())
    }

    /// A step, one parameter after the other.
    fn one_by_one(&mut self, live: &[Live]) -> Result<(), Failure>;

    /// A step with one multi-tensor call for all parameters of a group.
    fn many_at_once(&mut self, live: &[Live]) -> Result<(), Failure>;

    /// A step with one fused kernel for all parameters of a group.
    fn fused(&mut self, live: &[Live]) -> Result<(), Failure>;

    /// One step for all parameters that have a gradient.
    fn step(&mut self, live: &[Live], how: OptimizerImpl) -> Result<(), Failure> {
        self.prepare(live, how)?;
        match how {
            OptimizerImpl::Loop => self.one_by_one(live),
            OptimizerImpl::Foreach => self.many_at_once(live),
            OptimizerImpl::Fused => self.fused(live),
        }
    }

    /// The state of parameter `index`, under torch.optim's names.
    fn state(&self, index: usize) -> Vec<(&'static str, &Tensor)>;
}

/// An optimizer over parameters.
pub(crate) struct Optimizer {
    parameters: Vec<Parameter>,
    how: OptimizerImpl,
    rule: Box<dyn Rule>,
}

impl Optimizer {
    /// `torch.optim.NAME(parameters)`; state that the constructor makes is made here.
    pub(crate) fn new(
        kind: Kind,
        how: Option<OptimizerImpl>,
        parameters: Vec<Parameter>,
    ) -> Result<Optimizer, Failure> {
        let how = match how {
            Some(how) => how,
            None => default_implementation(&parameters),
        };
        refuse(kind, how, &parameters)?;
        let count = parameters.len();
        let rule: Box<dyn Rule> = match kind {
            Kind::Sgd => Box::new(sgd::Sgd::new(0.0, false, count)),
            Kind::SgdMomentum => Box::new(sgd::Sgd::new(0.9, false, count)),
            Kind::Nesterov => Box::new(sgd::Sgd::new(0.9, true, count)),
            Kind::Adam => Box::new(adam::Adam::new(adam::Decay::None, count)),
            Kind::Adamw => Box::new(adam::Adam::new(adam::Decay::Decoupled(1e-2), count)),
            Kind::Rmsprop => Box::new(rmsprop::Rmsprop::new(count)),
            Kind::Adagrad => Box::new(adagrad::Adagrad::new(&parameters, how)?),
        };
        Ok(Optimizer {
            parameters,
            how,
            rule,
        })
    }

    /// The parameters it was given.
    pub(crate) fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// `zero_grad()`: gradients become None.
    pub(crate) fn zero_grad(&self) -> Result<(), Failure> {
        for parameter in &self.parameters {
            ffi::clear_grad(&parameter.tensor)?;
        }
        Ok(())
    }

    /// `step()`.
    pub(crate) fn step(&mut self) -> Result<(), Failure> {
        let _no_grad = tch::no_grad_guard();
        let live = self.live()?;
        if live.is_empty() {
            return Ok(());
        }
        self.rule.step(&live, self.how)
    }

    /// Every parameter's gradient, where it has one.
    pub(crate) fn gradients(&self) -> Result<Vec<(&str, Tensor)>, Failure> {
        let live = self.live()?;
        Ok(live
            .into_iter()
            .filter_map(|one| Some((self.parameters.get(one.index)?.name.as_str(), one.grad)))
            .collect())
    }

    /// All state: torch.optim's name for it, the parameter's name, the tensor.
    pub(crate) fn state(&self) -> Vec<(&'static str, &str, &Tensor)> {
        self.parameters
            .iter()
            .enumerate()
            .flat_map(|(index, parameter)| {
                self.rule
                    .state(index)
                    .into_iter()
                    .map(move |(kind, tensor)| (kind, parameter.name.as_str(), tensor))
            })
            .collect()
    }

    fn live(&self) -> Result<Vec<Live>, Failure> {
        let mut live = Vec::with_capacity(self.parameters.len());
        for (index, parameter) in self.parameters.iter().enumerate() {
            let grad = parameter.tensor.f_grad()?;
            if grad.defined() {
                live.push(Live {
                    index,
                    param: parameter.tensor.shallow_clone(),
                    grad,
                });
            }
        }
        Ok(live)
    }
}

/// What torch.optim takes where the user says nothing: many tensors a call when all of them are on CUDA.
fn default_implementation(parameters: &[Parameter]) -> OptimizerImpl {
    if parameters.iter().all(|one| one.tensor.device().is_cuda()) {
        OptimizerImpl::Foreach
    } else {
        OptimizerImpl::Loop
    }
}

/// What torch.optim itself refuses.
fn refuse(kind: Kind, how: OptimizerImpl, parameters: &[Parameter]) -> Result<(), Failure> {
    if how != OptimizerImpl::Fused {
        return Ok(());
    }
    let unsupported = |message: String| Failure::new(FailureKind::Unsupported, message);
    if kind == Kind::Rmsprop {
        return Err(unsupported(
            "torch.optim.RMSprop has no fused implementation".to_owned(),
        ));
    }
    for Parameter { name, tensor } in parameters {
        if kind == Kind::Adagrad && tensor.device().is_cuda() {
            return Err(unsupported(
                "torch.optim.Adagrad has no fused implementation on CUDA".to_owned(),
            ));
        }
        if tensor.requires_grad() && !tensor.is_floating_point() {
            return Err(unsupported(format!(
                "fused optimizers need floating-point parameters, which `{name}` is not"
            )));
        }
    }
    Ok(())
}

/// torch.optim's own words for gradients that an optimizer cannot use.
fn refuse_sparse(optimizer: &str, live: &[Live]) -> Result<(), Failure> {
    if live.iter().any(|one| one.grad.is_sparse()) {
        return Err(Failure::new(
            FailureKind::Unsupported,
            format!("{optimizer} does not support sparse gradients"),
        ));
    }
    Ok(())
}
