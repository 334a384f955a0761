use super::*;
use crate::trace::TraceReader;
use crate::trace::memory::MemoryTimeline;

fn card() -> Card {
    Card {
        compute_capability: (8, 9),
        conf: AllocConf::default(),
        conf_text: None,
        limits: DeviceLimits::UNLIMITED,
    }
}

const TEXTS: [&str; 9] = [
    "aten::conv2d",
    "aten::mkldnn_convolution",
    "aten::addmm",
    "aten::dropout",
    "aten::empty_like",
    "aten::_slow_conv2d_forward",
    "aten::embedding_dense_backward",
    "EmbeddingBackward0",
    "aten::lstm",
];

fn trace(mode: &str, lines: &[&str]) -> Trace {
    let mut reader = TraceReader::new();
    let mut all = vec![format!(
        r#"{{"header":{{"version":1,"device":"cpu","libtorch_version":"2.11.0","mode":"{mode}","method":"forward"}}}}"#
    )];
    for (id, text) in TEXTS.iter().enumerate() {
        all.push(format!(r#"{{"str":{{"id":{id},"text":"{text}"}}}}"#));
    }
    all.push(r#"{"sig":{"id":0,"dtype":"float32","shape":[8,100],"bytes":3200}}"#.to_owned());
    all.push(r#"{"sig":{"id":1,"dtype":"int64","shape":[5000],"bytes":40000}}"#.to_owned());
    all.push(r#"{"phase":{"t":0,"name":"forward"}}"#.to_owned());
    all.extend(lines.iter().map(|line| (*line).to_owned()));
    all.push(r#"{"phase_end":{"t":99}}"#.to_owned());
    for line in all {
        reader.line(&line).unwrap();
    }
    reader.finish().unwrap()
}

fn sizes(converted: &Converted) -> Vec<u64> {
    let bytes = |event: &Event| match event {
        Event::Alloc { bytes, .. } => Some(*bytes),
        _ => None,
    };
    converted.trace.events.iter().filter_map(bytes).collect()
}

#[test]
fn memory_that_no_tensor_shows_is_the_cpus_own() {
    let trace = trace(
        "inference",
        &[
            r#"{"op":{"t":1,"id":0,"name":0,"args":[]}}"#,
            r#"{"op":{"t":1,"id":1,"name":1,"args":[]}}"#,
            r#"{"alloc":{"t":2,"id":0,"bytes":9000,"addr":0}}"#,
            r#"{"alloc":{"t":2,"id":1,"bytes":3200,"addr":16384}}"#,
            r#"{"free":{"t":3,"id":0}}"#,
            r#"{"end":{"t":4,"id":1,"out":[[0,1]]}}"#,
            r#"{"end":{"t":4,"id":0,"out":[[0,1]]}}"#,
        ],
    );
    let converted = as_cuda(&trace, &card());
    assert_eq!(sizes(&converted), [3200]);
    // The tensor keeps its memory, under its new number.
    let seen = converted.trace.events.iter().find_map(|event| match event {
        Event::End { out, .. } => out.first().and_then(Arg::tensor),
        _ => None,
    });
    assert_eq!(seen.and_then(|tensor| tensor.alloc), Some(0));
    let memory = MemoryTimeline::of(&converted.trace);
    assert_eq!(memory.peak_reserved, Some(2 << 20));
    assert_eq!(memory.phases.first().map(|p| p.allocated.peak), Some(3584));
}

#[test]
fn buffers_of_the_cpus_convolutions_are_left_out() {
    let trace = trace(
        "inference",
        &[
            r#"{"op":{"t":1,"id":0,"name":5,"args":[]}}"#,
            r#"{"op":{"t":1,"id":1,"name":4,"args":[]}}"#,
            r#"{"alloc":{"t":2,"id":0,"bytes":40000,"addr":0}}"#,
            r#"{"end":{"t":2,"id":1,"out":[[1,0]]}}"#,
            r#"{"free":{"t":3,"id":0}}"#,
            r#"{"end":{"t":4,"id":0,"out":[]}}"#,
        ],
    );
    assert_eq!(sizes(&as_cuda(&trace, &card())), [0_u64; 0]);
}

#[test]
fn a_dropout_mask_has_one_byte_an_element() {
    let lines = [
        r#"{"op":{"t":1,"id":0,"name":3,"args":[]}}"#,
        r#"{"op":{"t":1,"id":1,"name":4,"args":[]}}"#,
        r#"{"alloc":{"t":2,"id":0,"bytes":3200,"addr":0}}"#,
        r#"{"end":{"t":2,"id":1,"out":[[0,0]]}}"#,
        r#"{"end":{"t":4,"id":0,"out":[]}}"#,
    ];
    let converted = as_cuda(&trace("train", &lines), &card());
    assert_eq!(sizes(&converted), [800]);
}

#[test]
fn each_thread_that_multiplies_has_a_workspace() {
    let product = [
        r#"{"op":{"t":1,"id":0,"name":2,"args":[]}}"#,
        r#"{"end":{"t":1,"id":0,"out":[]}}"#,
        r#"{"node":{"t":2,"name":7}}"#,
        r#"{"op":{"t":2,"id":1,"name":2,"args":[]}}"#,
        r#"{"end":{"t":2,"id":1,"out":[]}}"#,
        r#"{"node_end":{"t":2}}"#,
        r#"{"op":{"t":3,"id":2,"name":2,"args":[]}}"#,
        r#"{"end":{"t":3,"id":2,"out":[]}}"#,
    ];
    let trace = trace("train", &product);
    let ada = as_cuda(&trace, &card());
    assert_eq!(sizes(&ada), [8_519_680, 1 << 20, 8_519_680]);
    let hopper = Card {
        compute_capability: (9, 0),
        ..card()
    };
    assert_eq!(
        sizes(&as_cuda(&trace, &hopper)),
        [32 << 20, 1 << 20, 32 << 20]
    );
}

#[test]
fn many_indices_are_sorted_for_an_embedding() {
    let lines = [
        r#"{"op":{"t":1,"id":0,"name":6,"args":[null,[1,-1]]}}"#,
        r#"{"end":{"t":4,"id":0,"out":[]}}"#,
    ];
    let converted = as_cuda(&trace("train", &lines), &card());
    assert_eq!(sizes(&converted), [5000 * 32]);
    let freed = converted.trace.events.iter();
    assert_eq!(freed.filter(|e| matches!(e, Event::Free { .. })).count(), 1);
}

#[test]
fn what_has_no_rule_is_counted() {
    let lines = [
        r#"{"op":{"t":1,"id":0,"name":8,"args":[]}}"#,
        r#"{"end":{"t":4,"id":0,"out":[]}}"#,
    ];
    let converted = as_cuda(&trace("inference", &lines), &card());
    assert_eq!(converted.without_rule, [("aten::lstm".to_owned(), 1)]);
}

#[test]
fn memory_runs_out_as_on_a_card() {
    let lines = [
        r#"{"op":{"t":1,"id":0,"name":0,"args":[]}}"#,
        r#"{"alloc":{"t":2,"id":0,"bytes":30000000,"addr":0}}"#,
        r#"{"end":{"t":4,"id":0,"out":[[0,0]]}}"#,
    ];
    let small = Card {
        limits: DeviceLimits {
            total_bytes: 20 << 20,
        },
        ..card()
    };
    let converted = as_cuda(&trace("inference", &lines), &small);
    assert!(converted.out_of_memory.is_some());
    assert_eq!(MemoryTimeline::of(&converted.trace).out_of_memory, 1);
}

/// Attention by parts: a scaled query, probabilities, the result; in the backward pass a gradient of the scores and one
/// of the query. `call` is the operator that asks for it.
fn attention(call: u32) -> Converted {
    let text = [
        r#"{"str":{"id":9,"text":"aten::scaled_dot_product_attention"}}"#.to_owned(),
        r#"{"str":{"id":10,"text":"aten::_scaled_dot_product_attention_math"}}"#.to_owned(),
        r#"{"str":{"id":11,"text":"aten::_softmax"}}"#.to_owned(),
        r#"{"sig":{"id":2,"dtype":"float32","shape":[2,4,64,32],"bytes":65536}}"#.to_owned(),
        r#"{"sig":{"id":3,"dtype":"float32","shape":[2,4,64,64],"bytes":131072}}"#.to_owned(),
        format!(r#"{{"op":{{"t":1,"id":0,"name":{call},"args":[[2,-1]]}}}}"#),
        r#"{"op":{"t":1,"id":1,"name":10,"seq":3,"args":[[2,-1]]}}"#.to_owned(),
        r#"{"alloc":{"t":2,"id":0,"bytes":65536,"addr":0}}"#.to_owned(),
        r#"{"op":{"t":2,"id":2,"name":11,"seq":4,"args":[[2,0]]}}"#.to_owned(),
        r#"{"alloc":{"t":2,"id":1,"bytes":131072,"addr":1048576}}"#.to_owned(),
        r#"{"end":{"t":2,"id":2,"out":[[3,1]]}}"#.to_owned(),
        r#"{"alloc":{"t":2,"id":2,"bytes":65536,"addr":2097152}}"#.to_owned(),
        r#"{"end":{"t":2,"id":1,"out":[[2,2],[3,1]]}}"#.to_owned(),
        r#"{"end":{"t":2,"id":0,"out":[[2,2]]}}"#.to_owned(),
        r#"{"free":{"t":2,"id":0}}"#.to_owned(),
        r#"{"node":{"t":3,"name":7,"seq":4}}"#.to_owned(),
        r#"{"op":{"t":3,"id":3,"name":11,"args":[]}}"#.to_owned(),
        r#"{"alloc":{"t":3,"id":3,"bytes":131072,"addr":3145728}}"#.to_owned(),
        r#"{"alloc":{"t":3,"id":4,"bytes":65536,"addr":4194304}}"#.to_owned(),
        r#"{"end":{"t":3,"id":3,"out":[[3,3],[2,4]]}}"#.to_owned(),
        r#"{"node_end":{"t":4}}"#.to_owned(),
    ];
    let lines: Vec<&str> = text.iter().map(String::as_str).collect();
    as_cuda(&trace("train", &lines), &card())
}

#[test]
fn attention_by_parts_is_one_kernel() {
    // The logsumexp of the scores' rows, the output, and the gradient of the query.
    let logsumexp = 2 * 4 * 64 * 4;
    assert_eq!(sizes(&attention(9)), [logsumexp, 65_536, 65_536]);
    // Where the model itself takes the way by parts, so does CUDA.
    let all = [65_536, 131_072, 65_536, 131_072, 65_536];
    assert_eq!(sizes(&attention(3)), all);
}
