use super::super::TraceReader;
use super::*;

fn trace(device: &str, mode: &str, lines: &[&str]) -> Trace {
    let mut reader = TraceReader::new();
    reader
        .line(&format!(
            r#"{{"header":{{"version":1,"device":"{device}","libtorch_version":"2.11.0","mode":"{mode}","method":"forward"}}}}"#
        ))
        .unwrap();
    for (id, text) in ["aten::conv2d", "", "fc", "ConvolutionBackward0"]
        .iter()
        .enumerate()
    {
        reader
            .line(&format!(r#"{{"str":{{"id":{id},"text":"{text}"}}}}"#))
            .unwrap();
    }
    reader
        .line(r#"{"sig":{"id":0,"dtype":"float32","shape":[4],"bytes":16}}"#)
        .unwrap();
    for line in lines {
        reader.line(line).unwrap();
    }
    reader.finish().unwrap()
}

/// One step of training: a parameter, an activation with a temporary beside it, a workspace, a gradient.
fn step() -> Trace {
    trace(
        "cuda-sim",
        "train",
        &[
            r#"{"phase":{"t":0,"name":"load"}}"#,
            r#"{"segment":{"t":0,"action":"alloc","addr":0,"bytes":2097152}}"#,
            r#"{"alloc":{"t":1,"id":0,"bytes":100,"block":512,"addr":0}}"#,
            r#"{"label":{"id":0,"category":"parameters","name":"fc.weight"}}"#,
            r#"{"phase_end":{"t":2}}"#,
            r#"{"phase":{"t":3,"name":"forward","step":1}}"#,
            r#"{"enter":{"t":3,"path":2,"class":1}}"#,
            r#"{"op":{"t":4,"id":0,"name":0,"seq":7,"args":[[0,0]]}}"#,
            r#"{"alloc":{"t":5,"id":1,"bytes":16,"block":512,"addr":512}}"#,
            r#"{"alloc":{"t":5,"id":2,"bytes":600,"block":1024,"addr":1024}}"#,
            r#"{"alloc":{"t":5,"id":3,"bytes":2048,"block":2048,"addr":2048}}"#,
            r#"{"free":{"t":6,"id":2}}"#,
            r#"{"end":{"t":7,"id":0,"out":[[0,1]]}}"#,
            r#"{"exit":{"t":8,"out":[[0,1]]}}"#,
            r#"{"phase_end":{"t":9}}"#,
            r#"{"phase":{"t":10,"name":"backward","step":1}}"#,
            r#"{"node":{"t":10,"name":3,"seq":7,"thread":1}}"#,
            r#"{"op":{"t":11,"id":1,"name":0,"args":[[0,1]],"thread":1}}"#,
            r#"{"alloc":{"t":12,"id":4,"bytes":100,"block":512,"addr":1024,"thread":1}}"#,
            r#"{"end":{"t":13,"id":1,"out":[[0,4]]}}"#,
            r#"{"node_end":{"t":13,"thread":1}}"#,
            r#"{"free":{"t":14,"id":1}}"#,
            r#"{"phase_end":{"t":15}}"#,
        ],
    )
}

#[test]
fn categories_follow_lifetimes() {
    let memory = MemoryTimeline::of(&step());
    let categories: Vec<Category> = memory
        .allocations
        .iter()
        .map(|life| life.category)
        .collect();
    assert_eq!(
        categories,
        [
            Category::Parameters,
            Category::Activations,
            Category::Temporaries,
            Category::Workspaces,
            Category::Gradients
        ]
    );
    let saved: Vec<bool> = memory.allocations.iter().map(|life| life.saved).collect();
    assert_eq!(saved, [false, true, false, false, false]);
}

#[test]
fn the_peak_adds_up() {
    let memory = MemoryTimeline::of(&step());
    let peak = memory.peak.as_ref().unwrap();
    assert_eq!(peak.allocated, 512 + 512 + 1024 + 2048);
    assert_eq!(peak.requested, 100 + 16 + 600 + 2048);
    assert_eq!(peak.reserved, Some(2_097_152));
    assert_eq!(peak.live, [3, 2, 0, 1]);
    let sum: u64 = memory
        .categories_at_peak()
        .iter()
        .map(|(_, bytes)| bytes)
        .sum();
    assert_eq!(sum, peak.requested);
    assert_eq!(memory.module_peaks.get(&2), Some(&peak.allocated));
}

#[test]
fn a_backward_node_belongs_to_its_forward_module() {
    let memory = MemoryTimeline::of(&step());
    let gradient = memory.allocations.get(4).unwrap();
    assert_eq!(
        gradient.place,
        Place {
            phase: Some(2),
            op: Some(0),
            module: Some(2)
        }
    );
}

#[test]
fn phases_without_the_allocators_figures_are_followed() {
    let memory = MemoryTimeline::of(&step());
    let forward = memory.phases.get(1).unwrap();
    assert_eq!(
        forward.requested,
        Span {
            start: 100,
            peak: 2764,
            end: 2164
        }
    );
    assert_eq!(forward.reserved.map(|r| r.end), Some(2_097_152));
    let cpu = MemoryTimeline::of(&trace(
        "cpu",
        "inference",
        &[
            r#"{"phase":{"t":0,"name":"forward"}}"#,
            r#"{"phase_end":{"t":2}}"#,
        ],
    ));
    assert_eq!(cpu.phases.first().map(|p| p.reserved), Some(None));
    assert!(cpu.peak.is_none());
}
