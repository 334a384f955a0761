//! The well-known back-of-envelope method, exactly as people do it by hand, beside the real estimate.
//!
//! Memory = parameters + outputs of the layers + the same again for the backward pass + the optimizer's copies of the
//! parameters.
//!
//! * Parameters: Conv2d = Cin x Cout x K x K, Linear = M x N, Embedding = N x W, BatchNorm = 2 N. Biases beside a weight
//!   of two or more dimensions are left out, as by hand. In a frozen model (`torch.jit.freeze`), which has no parameters,
//!   its floating constants count as such.
//! * Layer outputs: the input, and the output of every convolution, linear, normalization, embedding, pooling and
//!   recurrent layer. Activation functions work in place, and a pooling that changes no size is none.
//! * Optimizer: one copy for the gradients, one more with momentum, two more for Adam's moments. Nothing when not
//!   training.

use serde::Serialize;

use crate::checkpoint::{Checkpoint, Role, StorageId, Tensor};
use crate::tensor::DType;
use crate::trace::{Arg, Event, TensorRef, Trace};

/// The method's terms, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RuleOfThumb {
    /// Weights.
    pub parameters: u64,
    /// Outputs of the layers; unknown without a run.
    pub activations_forward: Option<u64>,
    /// The same again in training.
    pub activations_backward: Option<u64>,
    /// Gradients and moments.
    pub optimizer: u64,
    /// The sum; unknown where a term is.
    pub total: Option<u64>,
}

impl RuleOfThumb {
    /// Adds up the method; `copies` is [`super::OptimizerState::copies`], none for inference.
    #[must_use]
    pub fn of(checkpoint: &Checkpoint, trace: Option<&Trace>, copies: Option<u64>) -> RuleOfThumb {
        let parameters = parameter_bytes(checkpoint);
        let forward = trace.map(layer_output_bytes);
        let backward = forward.map(|bytes| if copies.is_some() { bytes } else { 0 });
        let optimizer = parameters.saturating_mul(copies.unwrap_or(0));
        let total = forward.zip(backward).map(|(forward, backward)| {
            parameters
                .saturating_add(forward)
                .saturating_add(backward)
                .saturating_add(optimizer)
        });
        RuleOfThumb {
            parameters,
            activations_forward: forward,
            activations_backward: backward,
            optimizer,
            total,
        }
    }
}

/// Bytes of the weights that the method counts.
fn parameter_bytes(checkpoint: &Checkpoint) -> u64 {
    let of_role = |role| {
        checkpoint
            .tensors()
            .iter()
            .filter(move |t| t.role() == role)
    };
    let mut parameters: Vec<&Tensor> = of_role(Role::Parameter).collect();
    if parameters.is_empty() {
        let floating = |t: &&Tensor| t.dtype().is_some_and(DType::is_floating_point);
        parameters = of_role(Role::Constant).filter(floating).collect();
    }
    let matrices: std::collections::HashSet<&str> = parameters
        .iter()
        .filter(|tensor| dims(tensor) >= 2)
        .map(|tensor| owner(tensor.name()))
        .collect();
    // One that has two names is one parameter.
    let mut seen = std::collections::HashSet::new();
    parameters
        .iter()
        .filter(|tensor| dims(tensor) >= 2 || !matrices.contains(owner(tensor.name())))
        .filter(|tensor| {
            let storage = tensor.storage().map(StorageId::index);
            storage.is_none_or(|storage| {
                seen.insert((storage, tensor.storage_offset(), tensor.shape()))
            })
        })
        .map(|tensor| tensor.bytes())
        .sum()
}

fn dims(tensor: &Tensor) -> usize {
    tensor.shape().map_or(0, <[u64]>::len)
}

fn owner(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(owner, _)| owner)
}

/// Outermost operators whose output the method counts.
const LAYERS: &[&str] = &[
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "convolution",
    "_convolution",
    "linear",
    "addmm",
    "matmul",
    "bmm",
    "batch_norm",
    "layer_norm",
    "group_norm",
    "instance_norm",
    "rms_norm",
    "embedding",
    "embedding_bag",
    "lstm",
    "gru",
    "rnn_tanh",
    "rnn_relu",
    "multi_head_attention_forward",
    "scaled_dot_product_attention",
];

/// A layer whose operator is open.
struct Layer {
    id: u32,
    pool: bool,
    input: Option<TensorRef>,
}

/// Bytes of the inputs and of the layers' outputs in the first forward pass.
fn layer_output_bytes(trace: &Trace) -> u64 {
    let size = |tensor: TensorRef| trace.sig(tensor).map_or(0, |sig| sig.bytes);
    let mut inputs: std::collections::HashSet<u32> = std::collections::HashSet::new();
    let mut counted_inputs: std::collections::HashSet<u32> = std::collections::HashSet::new();
    let (mut total, mut depth, mut forward, mut steps) = (0_u64, 0_u32, false, 0_u32);
    let mut open: Option<Layer> = None;
    for event in &trace.events {
        match event {
            Event::Label {
                id,
                category: crate::trace::Category::Inputs,
                ..
            } => {
                inputs.insert(*id);
            }
            Event::Phase { name, .. } => {
                forward = *name == crate::trace::PhaseName::Forward && steps == 0;
                steps += u32::from(forward);
            }
            Event::PhaseEnd { .. } => forward = false,
            Event::Op { id, name, args, .. } if forward => {
                for tensor in args.iter().flat_map(Arg::tensors) {
                    let Some(alloc) = tensor.alloc else { continue };
                    if inputs.contains(&alloc) && counted_inputs.insert(alloc) {
                        total = total.saturating_add(size(tensor));
                    }
                }
                if depth == 0 && is_layer(trace.text(*name)) {
                    open = Some(Layer {
                        id: *id,
                        pool: trace.text(*name).contains("pool"),
                        input: args.iter().flat_map(Arg::tensors).next(),
                    });
                }
                depth += 1;
            }
            Event::End { id, out, .. } if forward => {
                depth = depth.saturating_sub(1);
                let Some(layer) = open.take_if(|layer| layer.id == *id) else {
                    continue;
                };
                let Some(output) = out.iter().flat_map(Arg::tensors).next() else {
                    continue;
                };
                let identity =
                    layer.pool && layer.input.is_some_and(|input| input.sig == output.sig);
                if !identity {
                    total = total.saturating_add(size(output));
                }
            }
            _ => {}
        }
    }
    total
}

fn is_layer(op: &str) -> bool {
    let name = op.strip_prefix("aten::").unwrap_or(op);
    LAYERS.contains(&name) || name.contains("pool")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::TraceReader;

    #[test]
    fn a_frozen_model_has_its_weights_as_constants() {
        let bytes = |name: &str| {
            let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
            let options = crate::format::ReadOptions::default();
            let checkpoint = crate::format::read(&folder.join(name), &options).unwrap();
            RuleOfThumb::of(&checkpoint, None, None).parameters
        };
        let weights = 4 * (8 * 3 * 3 * 3 + 8 * 3 * 3 + 10 * 8);
        // Freezing folds the normalization into the convolution.
        assert_eq!(bytes("tiny_cnn.pt"), weights + 4 * (8 + 8));
        assert_eq!(bytes("tiny_cnn_frozen.pt"), weights);
    }

    #[test]
    fn a_float32_image_and_a_batch() {
        // The method's worked examples: 500 x 500 x 3 is 3 MB, (256, 3, 100, 100) is 30.72 MB.
        for (shape, bytes) in [("[500,500,3]", 3_000_000), ("[256,3,100,100]", 30_720_000)] {
            let mut reader = TraceReader::new();
            for line in [
                r#"{"header":{"version":1,"device":"cpu","libtorch_version":"2.11.0","mode":"inference","method":"forward"}}"#,
                r#"{"str":{"id":0,"text":"aten::relu"}}"#,
                &format!(
                    r#"{{"sig":{{"id":0,"dtype":"float32","shape":{shape},"bytes":{bytes}}}}}"#
                ),
                r#"{"extern":{"id":0,"bytes":0}}"#,
                r#"{"label":{"id":0,"category":"inputs","name":"x"}}"#,
                r#"{"phase":{"t":0,"name":"forward"}}"#,
                r#"{"op":{"t":0,"id":0,"name":0,"args":[[0,0]]}}"#,
                r#"{"end":{"t":0,"id":0,"out":[[0,0]]}}"#,
                r#"{"phase_end":{"t":0}}"#,
            ] {
                reader.line(line).unwrap();
            }
            assert_eq!(layer_output_bytes(&reader.finish().unwrap()), bytes);
        }
    }
}
