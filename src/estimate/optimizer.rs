//! What torch.optim's optimizers keep for every parameter that has a gradient (`torch/optim/*.py` of 2.11, with the
//! arguments of the command line's names).
//!
//! | name | tensors like the parameter | step counter |
//! |---|---|---|
//! | `sgd` | none: no momentum | none |
//! | `sgd-momentum`, `nesterov` | `momentum_buffer` | none |
//! | `adam`, `adamw` | `exp_avg`, `exp_avg_sq` | yes |
//! | `rmsprop` | `square_avg` | yes |
//! | `adagrad` | `sum` | yes |
//!
//! A step counter is a float32 scalar. It lives on the host, and on the device only in the fused form (and with
//! `capturable=True`, which the command line does not offer).

/// What one optimizer keeps for a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptimizerState {
    /// Name on the command line.
    pub name: &'static str,
    /// Tensors of the parameter's shape and dtype, by torch.optim's names.
    pub tensors: &'static [&'static str],
    /// Whether it counts steps.
    pub step: bool,
}

/// Bytes of a step counter.
pub(super) const STEP_BYTES: u64 = 4;

const fn state(name: &'static str, tensors: &'static [&'static str], step: bool) -> OptimizerState {
    OptimizerState {
        name,
        tensors,
        step,
    }
}

/// Every optimizer.
pub const OPTIMIZERS: &[OptimizerState] = &[
    state("sgd", &[], false),
    state("sgd-momentum", &["momentum_buffer"], false),
    state("nesterov", &["momentum_buffer"], false),
    state("adam", &["exp_avg", "exp_avg_sq"], true),
    state("adamw", &["exp_avg", "exp_avg_sq"], true),
    state("rmsprop", &["square_avg"], true),
    state("adagrad", &["sum"], true),
];

impl OptimizerState {
    /// The optimizer of that name.
    #[must_use]
    pub fn find(name: &str) -> Option<OptimizerState> {
        OPTIMIZERS.iter().copied().find(|known| known.name == name)
    }

    /// Copies of the parameters that the back-of-envelope method counts: the gradients, momentum, moments.
    #[must_use]
    pub fn copies(self) -> u64 {
        1 + self.tensors.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_the_parameters() {
        let copies = |name| OptimizerState::find(name).map(OptimizerState::copies);
        assert_eq!(copies("sgd"), Some(1));
        assert_eq!(copies("sgd-momentum"), Some(2));
        assert_eq!(copies("adamw"), Some(3));
        assert_eq!(copies("lion"), None);
    }
}
