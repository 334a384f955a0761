//! Formulas against values worked out by hand, and the walk through nested operators.

use super::{Flops, Work};
use crate::trace::ops::RunIndex;
use crate::trace::{Arg, Event, Header, PhaseName, TRACE_VERSION, TensorRef, Trace, TraceReader};

/// Builds traces line by line.
struct Script {
    reader: TraceReader,
    texts: Vec<String>,
    sigs: u32,
    ops: u32,
}

impl Script {
    fn new() -> Self {
        let mut reader = TraceReader::new();
        let header = Header {
            version: TRACE_VERSION,
            device: "cpu".into(),
            libtorch_version: "2.11.0".into(),
            mode: "inference".into(),
            method: "forward".into(),
            alloc_conf: None,
        };
        reader.event(Event::Header(header)).unwrap();
        let phase = Event::Phase {
            t: 0,
            name: PhaseName::Forward,
            step: None,
        };
        reader.event(phase).unwrap();
        Script {
            reader,
            texts: Vec::new(),
            sigs: 0,
            ops: 0,
        }
    }

    fn tensor(&mut self, shape: &[u64]) -> Arg {
        let id = self.sigs;
        self.sigs += 1;
        let event = Event::Sig {
            id,
            dtype: "float32".into(),
            shape: shape.to_vec(),
            bytes: shape
                .iter()
                .fold(4, |bytes: u64, size| bytes.saturating_mul(*size)),
        };
        self.reader.event(event).unwrap();
        Arg::Tensor(TensorRef {
            sig: id,
            alloc: None,
        })
    }

    /// An operator around what `inside` adds.
    fn op(&mut self, name: &str, args: Vec<Arg>, out: Vec<Arg>, inside: impl FnOnce(&mut Self)) {
        let text = u32::try_from(self.texts.len()).unwrap();
        self.texts.push(name.to_owned());
        let event = Event::Str {
            id: text,
            text: name.to_owned(),
        };
        self.reader.event(event).unwrap();
        let id = self.ops;
        self.ops += 1;
        let event = Event::Op {
            t: 0,
            id,
            name: text,
            seq: None,
            args,
            thread: 0,
        };
        self.reader.event(event).unwrap();
        inside(self);
        self.reader.event(Event::End { t: 1, id, out }).unwrap();
    }

    fn finish(self) -> Trace {
        self.reader.finish().unwrap()
    }
}

/// Multiply-accumulates of one operator; `None` where it is named as one without FLOPs.
fn macs(name: &str, args: &[&[u64]], more: &[Arg], out: &[&[u64]]) -> Option<u64> {
    let mut script = Script::new();
    let mut all: Vec<Arg> = args.iter().map(|shape| script.tensor(shape)).collect();
    all.extend_from_slice(more);
    let out = out.iter().map(|shape| script.tensor(shape)).collect();
    script.op(name, all, out, |_| {});
    let trace = script.finish();
    let flops = Flops::of(&RunIndex::new(&trace));
    flops.without.is_empty().then(|| flops.work(0).macs)
}

#[test]
fn matrix_products() {
    assert_eq!(
        macs("aten::mm", &[&[3, 4], &[4, 5]], &[], &[&[3, 5]]),
        Some(60)
    );
    assert_eq!(
        macs("aten::addmm", &[&[5], &[3, 4], &[4, 5]], &[], &[&[3, 5]]),
        Some(60)
    );
    assert_eq!(
        macs("aten::bmm", &[&[2, 3, 4], &[2, 4, 5]], &[], &[&[2, 3, 5]]),
        Some(120)
    );
    assert_eq!(
        macs(
            "aten::addbmm",
            &[&[3, 5], &[2, 3, 4], &[2, 4, 5]],
            &[],
            &[&[3, 5]]
        ),
        Some(120)
    );
    assert_eq!(macs("aten::mv", &[&[3, 4], &[4]], &[], &[&[3]]), Some(12));
    assert_eq!(macs("aten::dot", &[&[7], &[7]], &[], &[&[]]), Some(7));
    assert_eq!(
        macs(
            "aten::linear",
            &[&[2, 3, 4], &[5, 4], &[5]],
            &[],
            &[&[2, 3, 5]]
        ),
        Some(120)
    );
    assert_eq!(
        macs("aten::linear", &[&[3, 4], &[4]], &[], &[&[3]]),
        Some(12)
    );
    assert_eq!(
        macs(
            "quantized::linear",
            &[&[3, 4]],
            &[Arg::Other("Object".into())],
            &[&[3, 5]]
        ),
        Some(60)
    );
    // Shapes that do not fit are not guessed at.
    assert_eq!(macs("aten::mm", &[&[3, 4], &[5, 5]], &[], &[&[3, 5]]), None);
    assert_eq!(
        macs("aten::mm", &[&[u64::MAX, 4], &[4, 5]], &[], &[&[3, 5]]),
        None
    );
}

#[test]
fn convolutions() {
    let conv = |name, input: &[u64], weight: &[u64], out: &[u64]| {
        macs(name, &[input, weight], &[], &[out])
    };
    // resnet18's first layer.
    assert_eq!(
        conv(
            "aten::conv2d",
            &[1, 3, 224, 224],
            &[64, 3, 7, 7],
            &[1, 64, 112, 112]
        ),
        Some(118_013_952)
    );
    // Depthwise: one input channel a filter.
    assert_eq!(
        conv(
            "aten::conv2d",
            &[1, 32, 10, 10],
            &[32, 1, 3, 3],
            &[1, 32, 10, 10]
        ),
        Some(32 * 100 * 9)
    );
    // Without a batch.
    assert_eq!(
        conv("aten::conv1d", &[4, 10], &[6, 4, 3], &[6, 8]),
        Some(6 * 8 * 4 * 3)
    );
    assert_eq!(
        conv(
            "aten::conv_transpose2d",
            &[2, 4, 5, 5],
            &[4, 6, 2, 2],
            &[2, 6, 10, 10]
        ),
        Some(2 * 4 * 25 * 6 * 4)
    );
    let general = |transposed| {
        let more = [
            Arg::None,
            Arg::None,
            Arg::None,
            Arg::None,
            Arg::Bool(transposed),
        ];
        macs(
            "aten::convolution",
            &[&[2, 4, 5, 5], &[4, 4, 2, 2]],
            &more,
            &[&[2, 4, 4, 4]],
        )
    };
    assert_eq!(general(false), Some(2 * 4 * 16 * 16));
    assert_eq!(general(true), Some(2 * 4 * 25 * 16));
}

#[test]
fn backward_of_a_convolution_counts_the_gradients_that_exist() {
    let mut script = Script::new();
    let grad = script.tensor(&[1, 8, 6, 6]);
    let input = script.tensor(&[1, 4, 6, 6]);
    let weight = script.tensor(&[8, 2, 3, 3]);
    let args = vec![
        grad,
        input.clone(),
        weight.clone(),
        Arg::None,
        Arg::None,
        Arg::None,
        Arg::None,
        Arg::Bool(false),
    ];
    let name = "aten::convolution_backward";
    script.op(
        name,
        args.clone(),
        vec![input, weight.clone(), Arg::None],
        |_| {},
    );
    script.op(name, args, vec![Arg::None, weight, Arg::None], |_| {});
    let trace = script.finish();
    let flops = Flops::of(&RunIndex::new(&trace));
    // Two groups: each of 8 filters has 2 x 3 x 3 weights.
    let forward = 8 * 36 * 18;
    assert_eq!(flops.work(0).macs, 2 * forward);
    assert_eq!(flops.work(1).macs, forward);
}

#[test]
fn attention() {
    // Two heads of 5 queries on 7 keys, size 4, values of size 3.
    let (q, k, v): (&[u64], &[u64], &[u64]) = (&[1, 2, 5, 4], &[1, 2, 7, 4], &[1, 2, 7, 3]);
    for name in [
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "aten::_scaled_dot_product_efficient_attention",
    ] {
        assert_eq!(
            macs(name, &[q, k, v], &[], &[&[1, 2, 5, 3]]),
            Some(2 * 5 * 7 * (4 + 3))
        );
    }
    assert_eq!(
        macs(
            "aten::_scaled_dot_product_flash_attention_backward",
            &[&[1, 2, 5, 3], q, k, v],
            &[],
            &[q, k, v]
        ),
        Some(2 * 5 * 7 * (3 * 4 + 2 * 3))
    );
    let x: &[u64] = &[2, 5, 8];
    let native = macs(
        "aten::_native_multi_head_attention",
        &[x, x, x],
        &[Arg::Int(8), Arg::Int(2)],
        &[x],
    );
    let by_hand = 2 * (4 * 5 * 8 * 8 + 2 * 5 * 5 * 8);
    assert_eq!(native, Some(by_hand));
}

#[test]
fn recurrent_layers() {
    // 6 steps of a batch of 2, 4 inputs, 3 hidden: 4 gates.
    assert_eq!(
        macs(
            "aten::mkldnn_rnn_layer",
            &[&[6, 2, 4], &[12, 4], &[12, 3], &[12], &[12]],
            &[],
            &[&[6, 2, 3]]
        ),
        Some(6 * 2 * 12 * (4 + 3))
    );
    let mut script = Script::new();
    let input = script.tensor(&[12, 4]);
    let weights = [[12, 4], [12, 3]].map(|shape| script.tensor(&shape));
    let bias = script.tensor(&[12]);
    let list = Arg::List(weights.into_iter().chain([bias]).collect());
    script.op("aten::_cudnn_rnn", vec![input, list], vec![], |_| {});
    let trace = script.finish();
    assert_eq!(Flops::of(&RunIndex::new(&trace)).work(0).macs, 12 * 12 * 7);
    let states = Arg::None;
    assert_eq!(
        macs(
            "aten::quantized_lstm",
            &[&[6, 2, 4]],
            &[states],
            &[&[6, 2, 3]]
        ),
        None
    );
}

#[test]
fn distances() {
    assert_eq!(
        macs("aten::_cdist_forward", &[&[3, 4], &[5, 4]], &[], &[&[3, 5]]),
        Some(60)
    );
}

#[test]
fn a_counted_operator_is_not_counted_again_inside() {
    let mut script = Script::new();
    let (a, b, c) = (
        script.tensor(&[3, 4]),
        script.tensor(&[5, 4]),
        script.tensor(&[3, 5]),
    );
    let inner = (vec![c.clone(), a.clone(), b.clone()], vec![c.clone()]);
    script.op("aten::linear", vec![a, b], vec![c], |script| {
        script.op("aten::t", vec![], vec![], |_| {});
        script.op("aten::addmm", inner.0, inner.1, |_| {});
    });
    let trace = script.finish();
    let flops = Flops::of(&RunIndex::new(&trace));
    assert_eq!(
        flops.work(0),
        Work {
            macs: 60,
            incomplete: false
        }
    );
    assert!(flops.without.is_empty());
}

#[test]
fn unknown_operators_are_named_unless_others_do_their_work() {
    let mut script = Script::new();
    let (a, b, c) = (
        script.tensor(&[3, 4]),
        script.tensor(&[4, 5]),
        script.tensor(&[3, 5]),
    );
    // Made of a counted one and of one that is not known.
    script.op(
        "aten::matmul",
        vec![a.clone(), b.clone()],
        vec![c.clone()],
        |script| {
            script.op("aten::view", vec![], vec![], |_| {});
            script.op("aten::mm", vec![a, b], vec![c], |_| {});
        },
    );
    script.op("aten::stft", vec![], vec![], |script| {
        script.op("aten::_fft_r2c", vec![], vec![], |script| {
            script.op("aten::empty", vec![], vec![], |_| {});
        });
    });
    script.op("aten::relu", vec![], vec![], |_| {});
    let trace = script.finish();
    let index = RunIndex::new(&trace);
    let flops = Flops::of(&index);
    assert_eq!(
        flops.work(0),
        Work {
            macs: 60,
            incomplete: false
        }
    );
    let names: Vec<&str> = flops
        .without
        .iter()
        .map(|id| index.ops[*id as usize].name)
        .collect();
    assert_eq!(names, ["aten::_fft_r2c"]);
    assert!(flops.work(3).incomplete, "what calls it is incomplete too");
    assert!(!flops.work(6).incomplete);
}
