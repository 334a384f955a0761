//! Planted differences, which a comparison must find and name.

use serde_json::json;

use super::{Difference, Side, Validation, Verdict, compare};
use crate::check::Tolerance;
use crate::simulate::AllocConf;
use crate::trace::{Trace, TraceReader};

const MIB: u64 = 1 << 20;

/// Something that a run does.
#[derive(Clone, Copy)]
enum Do {
    /// An operator starts.
    Op(&'static str),
    /// The operator that started last ends; the allocation of this number is its output.
    End(Option<u32>),
    /// An allocation: number, requested bytes, block.
    Alloc(u32, u64, u64),
    Free(u32),
    /// The device gives the allocator memory.
    Segment(u64),
}
use Do::{Alloc, End, Free, Op, Segment};

/// A forward pass that does these things, as a trace.
fn trace(device: &str, steps: &[Do]) -> Trace {
    let mut lines = vec![
        json!({"header": {"version": 1, "device": device, "libtorch_version": "2.11.0", "mode": "inference", "method": "forward"}}),
        json!({"phase": {"t": 0, "name": "forward"}}),
    ];
    let mut texts: Vec<&str> = Vec::new();
    let (mut open, mut ops, mut sigs) = (Vec::new(), 0, 0);
    let mut sizes = std::collections::HashMap::new();
    for step in steps {
        match *step {
            Op(name) => {
                let id = texts
                    .iter()
                    .position(|text| *text == name)
                    .unwrap_or_else(|| {
                        lines.push(json!({"str": {"id": texts.len(), "text": name}}));
                        texts.push(name);
                        texts.len() - 1
                    });
                lines.push(json!({"op": {"t": 0, "id": ops, "name": id, "args": []}}));
                open.push(ops);
                ops += 1;
            }
            End(output) => {
                let id = open.pop().unwrap();
                let mut out = Vec::new();
                if let Some(alloc) = output {
                    let bytes: u64 = sizes[&alloc];
                    lines.push(json!({"sig": {"id": sigs, "dtype": "uint8", "shape": [bytes], "bytes": bytes}}));
                    out.push(json!([sigs, alloc]));
                    sigs += 1;
                }
                lines.push(json!({"end": {"t": 0, "id": id, "out": out}}));
            }
            Alloc(id, bytes, block) => {
                sizes.insert(id, bytes);
                lines.push(json!({"alloc": {"t": 0, "id": id, "bytes": bytes, "block": block, "addr": id}}));
            }
            Free(id) => lines.push(json!({"free": {"t": 0, "id": id}})),
            Segment(bytes) => lines
                .push(json!({"segment": {"t": 0, "action": "alloc", "addr": 1, "bytes": bytes}})),
        }
    }
    lines.push(json!({"phase_end": {"t": 0}}));
    let mut reader = TraceReader::new();
    for line in &lines {
        reader.line(&line.to_string()).unwrap();
    }
    reader.finish().unwrap()
}

/// Two layers: a convolution and an activation.
const PLAIN: [Do; 9] = [
    Op("aten::cudnn_convolution"),
    Segment(20 * MIB),
    Alloc(0, 4 * MIB, 4 * MIB),
    End(Some(0)),
    Op("aten::relu"),
    Alloc(1, 4 * MIB, 4 * MIB),
    End(Some(1)),
    Free(0),
    Free(1),
];

fn side(steps: &[Do]) -> Side {
    Side::of_trace(&trace("cuda:0", steps), &AllocConf::default())
}

fn tolerance(text: &str) -> Tolerance {
    text.parse().unwrap()
}

fn compared(estimated: &[Do], measured: &[Do]) -> Validation {
    let found = compare(&side(estimated), &side(measured), &tolerance("5%"));
    adds_up(&found);
    found
}

/// The terms of each number add up to its difference.
fn adds_up(found: &Validation) {
    for one in found.comparison.iter().filter(|one| one.phase.is_none()) {
        let (Some(estimated), Some(measured)) = (one.estimated, one.measured) else {
            continue;
        };
        let terms = found.explained.iter();
        let sum: i64 = terms
            .filter(|term| term.metric == one.metric)
            .map(|term| term.bytes.unwrap())
            .sum();
        let difference = i64::try_from(measured).unwrap() - i64::try_from(estimated).unwrap();
        assert_eq!(sum, difference, "{}: {:?}", one.metric, found.explained);
    }
}

/// The terms of a number that are not nothing.
fn terms(found: &Validation, metric: &str) -> Vec<(&'static str, i64)> {
    let terms = found.explained.iter().filter(|term| term.metric == metric);
    terms
        .map(|term| (term.term, term.bytes.unwrap()))
        .filter(|(_, bytes)| *bytes != 0)
        .collect()
}

fn only(found: &Validation) -> &Difference {
    let [one] = found.differences.as_slice() else {
        panic!("{:?}", found.differences)
    };
    one
}

#[test]
fn the_same_run_is_right() {
    let found = compared(&PLAIN, &PLAIN);
    assert_eq!(found.verdict, Verdict::Pass);
    assert_eq!(found.differences, []);
    assert_eq!(found.first_op_difference, None);
    assert_eq!(terms(&found, "peak_allocated_bytes"), []);
    assert_eq!(terms(&found, "peak_reserved_bytes"), []);
    let all = found.comparison.iter();
    assert!(all.clone().all(|one| one.error_ratio == Some(0.0)));
    assert_eq!(all.filter(|one| one.phase == Some("forward")).count(), 3);
}

#[test]
fn a_workspace_inside_a_convolution() {
    let measured = [
        Op("aten::cudnn_convolution"),
        Segment(20 * MIB),
        Alloc(0, 4 * MIB, 4 * MIB),
        Segment(64 * MIB),
        Alloc(1, 64 * MIB, 64 * MIB),
        Free(1),
        End(Some(0)),
        Op("aten::relu"),
        Alloc(2, 4 * MIB, 4 * MIB),
        End(Some(2)),
        Free(0),
        Free(2),
    ];
    let found = compared(&PLAIN, &measured);
    assert_eq!(found.verdict, Verdict::Fail);
    let one = only(&found);
    assert_eq!(one.term, "cudnn_workspace");
    assert_eq!(one.op.as_deref(), Some("aten::cudnn_convolution"));
    assert_eq!((one.count, one.phase), (1, Some("forward")));
    assert_eq!(
        (one.estimated_bytes, one.measured_bytes),
        (None, Some(64 * MIB))
    );
    // The peak moves into the convolution: 68 MiB there, 8 MiB after it.
    let expected = [("cudnn_workspace", 60 << 20)];
    assert_eq!(terms(&found, "peak_requested_bytes"), expected);
    assert_eq!(terms(&found, "peak_allocated_bytes"), expected);
    assert_eq!(
        terms(&found, "peak_reserved_bytes"),
        [("cudnn_workspace", 64 << 20)]
    );
}

#[test]
fn workspaces_of_matrix_products() {
    let with = [
        Op("aten::addmm"),
        Segment(20 * MIB),
        Alloc(0, MIB + 512, MIB + 512),
        Alloc(1, 8_519_680, 8_519_680),
        Alloc(2, MIB, MIB),
        End(Some(0)),
        Free(0),
    ];
    let without = [
        Op("aten::addmm"),
        Segment(20 * MIB),
        Alloc(0, MIB + 512, MIB + 512),
        End(Some(0)),
        Free(0),
    ];
    let found = compared(&without, &with);
    assert_eq!(
        terms(&found, "peak_requested_bytes"),
        [
            ("cublas_workspace", 8_519_680),
            ("cublaslt_workspace", 1 << 20)
        ]
    );
    // What the estimate has and the card does not counts the other way.
    let found = compared(&with, &without);
    assert_eq!(
        terms(&found, "peak_requested_bytes"),
        [
            ("cublas_workspace", -8_519_680),
            ("cublaslt_workspace", -(1 << 20))
        ]
    );
}

#[test]
fn another_rounding() {
    let mut measured = PLAIN;
    measured[5] = Alloc(1, 4 * MIB, 5 * MIB);
    let found = compared(&PLAIN, &measured);
    let one = only(&found);
    assert_eq!(
        (one.term, one.op.as_deref()),
        ("rounding", Some("aten::relu"))
    );
    assert_eq!(terms(&found, "peak_requested_bytes"), []);
    assert_eq!(
        terms(&found, "peak_allocated_bytes"),
        [("rounding", 1 << 20)]
    );
}

#[test]
fn a_missing_free() {
    let estimated = [
        Op("aten::add"),
        Segment(20 * MIB),
        Alloc(0, 2 * MIB, 2 * MIB),
        End(Some(0)),
        Free(0),
        Op("aten::mul"),
        Alloc(1, 4 * MIB, 4 * MIB),
        End(Some(1)),
        Free(1),
    ];
    let mut measured = estimated.to_vec();
    measured.remove(4);
    let found = compared(&estimated, &measured);
    let one = only(&found);
    assert_eq!(
        (one.term, one.op.as_deref()),
        ("lifetimes", Some("aten::add"))
    );
    assert_eq!(
        terms(&found, "peak_allocated_bytes"),
        [("lifetimes", 2 << 20)]
    );
    assert_eq!(found.first_op_difference, None);
}

#[test]
fn another_order_of_operators() {
    let run = |first: &'static str, second: &'static str| {
        [
            Segment(20 * MIB),
            Op(first),
            Alloc(0, 2 * MIB, 2 * MIB),
            End(Some(0)),
            Op(second),
            Alloc(1, 2 * MIB, 2 * MIB),
            End(Some(1)),
            Free(0),
            Free(1),
        ]
    };
    let found = compared(
        &run("aten::add", "aten::mul"),
        &run("aten::mul", "aten::add"),
    );
    // The peaks are the same, and so is the verdict; that the runs are not is said.
    assert_eq!(found.verdict, Verdict::Pass);
    let parted = found.first_op_difference.unwrap();
    assert_eq!(parted.index, 0);
    assert_eq!(parted.estimated.as_deref(), Some("aten::add"));
    assert_eq!(parted.measured.as_deref(), Some("aten::mul"));
    assert!(
        found
            .differences
            .iter()
            .any(|one| one.term == "unexplained")
    );
}

#[test]
fn memory_that_only_the_card_keeps_back() {
    let mut measured = PLAIN;
    measured[1] = Segment(22 * MIB);
    let found = compared(&PLAIN, &measured);
    assert_eq!(
        terms(&found, "peak_reserved_bytes"),
        [("fragmentation", 2 << 20)]
    );
    assert_eq!(found.differences, []);
    assert_eq!(found.verdict, Verdict::Fail);
    // 22 MiB measured, 20 MiB estimated: 9.09 % apart.
    let reserved = &found.comparison[2];
    assert!((reserved.error_ratio.unwrap() + 1.0 / 11.0).abs() < 1e-9);
    let at = |text| compare(&side(&PLAIN), &side(&measured), &tolerance(text)).verdict;
    assert_eq!((at("9%"), at("10%")), (Verdict::Fail, Verdict::Pass));
}

#[test]
fn a_missing_phase_is_unknown_and_not_nothing() {
    let mut other = side(&PLAIN);
    other.phases.clear();
    let found = compare(&other, &side(&PLAIN), &tolerance("5%"));
    let phase = found
        .comparison
        .iter()
        .find(|one| one.phase.is_some())
        .unwrap();
    assert_eq!((phase.estimated, phase.within_tolerance), (None, None));
    assert_eq!(found.verdict, Verdict::Pass);
    let nothing = compare(&Side::default(), &Side::default(), &tolerance("5%"));
    assert_eq!(nothing.verdict, Verdict::Fail);
}

#[test]
fn scratch_of_the_cpu_is_what_no_tensor_shows() {
    let trace = trace(
        "cpu",
        &[
            Op("aten::mkldnn_convolution"),
            Alloc(0, MIB, MIB),
            Alloc(1, 3 * MIB, 3 * MIB),
            Free(1),
            End(Some(0)),
            Free(0),
        ],
    );
    let shapes = Side::of_shapes(&trace);
    let measured = Side::of_trace(&trace, &AllocConf::default());
    let found = compare(&shapes, &measured, &tolerance("5%"));
    adds_up(&found);
    assert_eq!(
        terms(&found, "peak_requested_bytes"),
        [("scratch", 3 << 20)]
    );
    assert!(
        found
            .comparison
            .iter()
            .all(|one| one.metric != "peak_reserved_bytes")
    );
    assert!(found.explained.iter().all(|one| one.term != "context"));
}
