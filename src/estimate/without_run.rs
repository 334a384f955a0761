//! What a model needs whatever its input: weights, gradients and optimizer state, from the file alone.
//!
//! Activations, temporaries and workspaces are unknown without a run, and nothing is guessed for them: the peaks are
//! unknown, too. What is known can already be too much for a card.

use std::collections::HashSet;

use super::optimizer::{OptimizerState, STEP_BYTES};
use super::{
    AtPeak, Basis, Bound, Coverage, Estimate, LiveTensor, PhaseFigures, Question, context_text,
};
use crate::checkpoint::{Checkpoint, Layout, Role, RoleSource, Tensor};
use crate::simulate::{Allocator, DeviceLimits, MIN_BLOCK_BYTES, Placement};
use crate::trace::{Category, PhaseName};

/// What is to be trained, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Training {
    /// The optimizer.
    pub optimizer: OptimizerState,
    /// Whether it runs in its fused form, which keeps step counters on the device.
    pub fused: bool,
}

impl Estimate {
    /// The estimate from a file alone.
    #[must_use]
    pub fn without_run(
        checkpoint: &Checkpoint,
        training: Option<Training>,
        question: &Question<'_>,
    ) -> Estimate {
        let weights = weights(checkpoint);
        let load = load_phase(&weights, question);
        let mut live = weights;
        if let Some(training) = training {
            let trained = trained(checkpoint, training);
            live.extend(trained);
        }
        // Blocks are multiples of 512 bytes, whatever else is in memory.
        let least = live.iter().fold(0_u64, |sum, tensor| {
            sum.saturating_add(tensor.bytes.next_multiple_of(MIN_BLOCK_BYTES))
        });
        let context = question.profile.and_then(|profile| profile.context_bytes);
        let too_much = question
            .capacity_bytes
            .is_some_and(|capacity| least.saturating_add(context.unwrap_or(0)) > capacity);
        live.sort_by_key(|tensor| std::cmp::Reverse(tensor.bytes));
        let mut assumptions = vec![match training {
            Some(training) => format!("training with {}, no run", training.optimizer.name),
            None => "inference, no run".to_owned(),
        }];
        assumptions.extend(question.assumptions.iter().cloned());
        assumptions.extend(context_text(question.profile));
        Estimate {
            basis: Basis::Static,
            profile: question
                .profile
                .map(|profile| profile.name.clone().into_owned()),
            bound: Bound::Expected.name(),
            phases: load.into_iter().collect(),
            peak_phase: None,
            peak_requested_bytes: None,
            peak_allocated_bytes: None,
            peak_active_bytes: None,
            peak_reserved_bytes: None,
            at_peak: Some(known(live)),
            eager: None,
            safe_margin: None,
            interval: None,
            context_bytes: context,
            device_total_bytes: question.capacity_bytes,
            out_of_memory: false,
            fits: too_much.then_some(false),
            margin_bytes: None,
            rule_of_thumb: question.rule_of_thumb,
            assumptions,
            coverage: Coverage::default(),
        }
    }
}

/// Sums of what is known. Inference has no gradients and no optimizer, so these are 0 and not unknown.
fn known(live: Vec<LiveTensor>) -> AtPeak {
    let sum = |category: Category| {
        let of = live.iter().filter(|tensor| tensor.category == category);
        of.fold(0_u64, |sum, tensor| sum.saturating_add(tensor.bytes))
    };
    let mut categories = vec![
        Category::Parameters,
        Category::Buffers,
        Category::Gradients,
        Category::OptimizerState,
    ];
    if live.iter().any(|tensor| tensor.category == Category::Other) {
        categories.push(Category::Other);
    }
    AtPeak {
        categories: categories
            .into_iter()
            .map(|category| (category, sum(category)))
            .collect(),
        live,
        ..AtPeak::default()
    }
}

/// Every tensor of the model that has memory of its own, once however many names it has.
fn distinct(checkpoint: &Checkpoint) -> impl Iterator<Item = &Tensor> {
    let mut seen = HashSet::new();
    checkpoint.tensors().iter().filter(move |tensor| {
        tensor.layout() != Layout::Uninitialized
            && match tensor.storage() {
                Some(storage) => seen.insert((
                    storage,
                    tensor.storage_offset(),
                    tensor.shape().map(<[u64]>::to_vec),
                    tensor.strides().map(<[u64]>::to_vec),
                )),
                None => true,
            }
    })
}

fn weights(checkpoint: &Checkpoint) -> Vec<LiveTensor> {
    let category = |role| match role {
        Role::Parameter => Some(Category::Parameters),
        Role::Buffer => Some(Category::Buffers),
        Role::Constant => Some(Category::Other),
        // A training checkpoint's state is not loaded to run the model.
        Role::Optimizer | Role::Tensor => None,
    };
    distinct(checkpoint)
        .filter_map(|tensor| {
            Some(one(
                tensor,
                category(tensor.role())?,
                tensor.name().to_owned(),
            ))
        })
        .collect()
}

fn one(tensor: &Tensor, category: Category, name: String) -> LiveTensor {
    LiveTensor {
        bytes: tensor.bytes(),
        category,
        name: Some(name),
        module: None,
        op: None,
        shape: tensor.shape().map(<[u64]>::to_vec),
        dtype: tensor.dtype().map(|dtype| dtype.name().to_owned()),
    }
}

/// Gradients, and what the optimizer keeps after its first step.
fn trained(checkpoint: &Checkpoint, training: Training) -> Vec<LiveTensor> {
    // The tensors of a state_dict are detached: what they say of gradients is not what the parameters want.
    let frozen = |tensor: &Tensor| {
        tensor.role_source() == RoleSource::File && tensor.requires_grad() == Some(false)
    };
    let learns = |tensor: &&Tensor| {
        tensor.role() == Role::Parameter
            && !frozen(tensor)
            && tensor
                .dtype()
                .is_some_and(|dtype| dtype.is_floating_point() || dtype.is_complex())
    };
    let mut all = Vec::new();
    for tensor in distinct(checkpoint).filter(learns) {
        let name = tensor.name();
        all.push(one(tensor, Category::Gradients, name.to_owned()));
        for kept in training.optimizer.tensors {
            let name = format!("{kept}:{name}");
            all.push(one(tensor, Category::OptimizerState, name));
        }
        if training.optimizer.step && training.fused {
            all.push(LiveTensor {
                bytes: STEP_BYTES,
                shape: Some(Vec::new()),
                dtype: Some("float32".to_owned()),
                ..one(tensor, Category::OptimizerState, format!("step:{name}"))
            });
        }
    }
    all
}

/// Bringing the weights to the device, one after the other.
fn load_phase(weights: &[LiveTensor], question: &Question<'_>) -> Option<PhaseFigures> {
    let mut allocator = Allocator::new(
        question.conf.clone(),
        DeviceLimits::UNLIMITED,
        Placement::Upward,
    );
    for tensor in weights {
        allocator.alloc(tensor.bytes, 0).ok()?;
    }
    let stats = allocator.stats();
    Some(PhaseFigures {
        name: PhaseName::Load.name(),
        step: None,
        start_requested_bytes: 0,
        peak_requested_bytes: stats.requested_bytes().peak,
        peak_allocated_bytes: stats.allocated_bytes().peak,
        peak_active_bytes: Some(stats.active_bytes().peak),
        peak_reserved_bytes: Some(stats.reserved_bytes().peak),
        end_requested_bytes: stats.requested_bytes().current,
    })
}
