use super::*;
use serde_json::{Value, json};

/// A tensor of a storage of its own, unless one is named.
fn tensor(name: &str, shape: &[u64], storage: u32) -> Value {
    let numel: u64 = shape.iter().product();
    json!({"name": name, "role": "parameter", "dtype": "float32", "shape": shape, "strides": vec![1; shape.len()],
           "numel": numel, "bytes": numel * 4, "storage": storage, "storage_offset": 0, "requires_grad": null,
           "layout": "strided"})
}

fn facts(tensors: &[Value], hashes: Option<&[&str]>) -> Facts {
    let sizes: Vec<u64> = tensors
        .iter()
        .map(|one| one["bytes"].as_u64().unwrap())
        .collect();
    let total: u64 = sizes.iter().sum();
    let storages: Vec<Value> = sizes
        .iter()
        .enumerate()
        .map(|(id, bytes)| {
            let hash = hashes.and_then(|hashes| hashes.get(id));
            json!({"id": id, "bytes": bytes, "file_bytes": bytes, "hash": hash})
        })
        .collect();
    let report = json!({
        "schema_version": 1, "tool": {},
        "file": {"path": "a.pt", "bytes": total, "format": "torch-zip", "torch_version": null, "producer": null,
                 "byte_order": null, "object": "state_dict"},
        "tensors": tensors, "storages": storages,
        "totals": {"tensors": sizes.len(), "numel": total / 4, "tensor_bytes": total, "storage_bytes": total,
                   "shared_bytes": 0, "slack_bytes": 0, "overhead_bytes": 0},
        "security": {"verdict": "clean", "unexpected_globals": []},
        "findings": [], "run": null, "estimate": null,
    });
    Facts::read(report.to_string().as_bytes()).unwrap()
}

fn diff(old: &Facts, new: &Facts) -> Diff {
    Diff::new(old, new, &Matching::of(old, new), None)
}

/// Old name, new name, changes.
fn told(diff: &Diff) -> Vec<(String, String, Vec<&'static str>)> {
    let name =
        |side: &Option<TensorSide>| side.as_ref().map_or(String::new(), |one| one.name.clone());
    let tensors = diff.tensors.iter();
    tensors
        .map(|one| {
            let changes = one.changes.iter().map(|change| change.name()).collect();
            (name(&one.old), name(&one.new), changes)
        })
        .collect()
}

fn row(old: &str, new: &str, changes: &[&'static str]) -> (String, String, Vec<&'static str>) {
    (old.to_owned(), new.to_owned(), changes.to_vec())
}

#[test]
fn a_file_is_itself() {
    let one = facts(&[tensor("a", &[2, 3], 0), tensor("b", &[4], 1)], None);
    let diff = diff(&one, &one);
    assert!(diff.identical && diff.tensors.is_empty() && diff.modules.is_empty());
    assert_eq!(diff.totals.unchanged, 2);
    assert_eq!(diff.contents, Contents::No);
}

#[test]
fn added_removed_reshaped() {
    let old = facts(&[tensor("a.w", &[2, 3], 0), tensor("b", &[4], 1)], None);
    let new = facts(&[tensor("a.w", &[4, 3], 0), tensor("c", &[5], 1)], None);
    let diff = diff(&old, &new);
    assert_eq!(
        told(&diff),
        [
            row("a.w", "a.w", &["reshaped"]),
            row("", "c", &["added"]),
            row("b", "", &["removed"])
        ]
    );
    let deltas: Vec<_> = diff
        .tensors
        .iter()
        .map(|one| one.delta_bytes.unwrap())
        .collect();
    assert_eq!(deltas, [24, 20, -16]);
    // Children add up to their parent, and the root to the whole.
    let at = |path: &str| {
        diff.modules
            .iter()
            .find(|one| one.path == path)
            .unwrap()
            .delta_bytes
    };
    assert_eq!(
        (at(""), at("a"), at("a.w"), at("b"), at("c")),
        (28, 24, 24, -16, 20)
    );
    assert_eq!(diff.totals.delta_tensor_bytes, 28);
}

#[test]
fn a_prefix_that_came_renames_and_nothing_else() {
    let old = facts(
        &[
            tensor("0.w", &[2], 0),
            tensor("1.w", &[2], 1),
            tensor("2.w", &[2], 2),
        ],
        None,
    );
    let new = facts(
        &[
            tensor("model.2.w", &[2], 0),
            tensor("model.1.w", &[2], 1),
            tensor("model.0.w", &[2], 2),
        ],
        None,
    );
    let diff = diff(&old, &new);
    assert_eq!(
        told(&diff),
        [
            row("2.w", "model.2.w", &["renamed"]),
            row("1.w", "model.1.w", &["renamed"]),
            row("0.w", "model.0.w", &["renamed"]),
        ]
    );
    assert!(
        diff.tensors
            .iter()
            .all(|one| one.matched_by == Some(MatchedBy::NameEnding))
    );
    assert!(diff.modules.is_empty(), "no bytes came or went");
}

#[test]
fn without_a_name_in_common_shape_and_place_decide() {
    let old = facts(
        &[
            tensor("a", &[2], 0),
            tensor("b", &[2], 1),
            tensor("c", &[3], 2),
        ],
        None,
    );
    let new = facts(
        &[
            tensor("x", &[3], 0),
            tensor("y", &[2], 1),
            tensor("z", &[2], 2),
        ],
        None,
    );
    assert_eq!(
        told(&diff(&old, &new)),
        [
            row("c", "x", &["renamed"]),
            row("a", "y", &["renamed"]),
            row("b", "z", &["renamed"])
        ]
    );
}

#[test]
fn hashes_decide_where_both_files_have_them() {
    let old = facts(
        &[
            tensor("a", &[2], 0),
            tensor("b", &[2], 1),
            tensor("c", &[2], 2),
        ],
        Some(&["1", "2", "3"]),
    );
    let new = facts(
        &[
            tensor("x", &[2], 0),
            tensor("y", &[2], 1),
            tensor("c", &[2], 2),
        ],
        Some(&["2", "9", "4"]),
    );
    assert_eq!(
        told(&diff(&old, &new)),
        [
            row("b", "x", &["renamed"]),
            row("c", "c", &["value"]),
            row("", "y", &["added"]),
            row("a", "", &["removed"]),
        ]
    );
}

#[test]
fn ties_that_come_and_go() {
    let tied = facts(
        &[
            tensor("emb", &[2], 0),
            tensor("head", &[2], 0),
            tensor("x", &[1], 2),
        ],
        None,
    );
    let untied = facts(
        &[
            tensor("emb", &[2], 0),
            tensor("head", &[2], 1),
            tensor("x", &[1], 2),
        ],
        None,
    );
    assert_eq!(
        told(&diff(&tied, &untied)),
        [row("head", "head", &["retied"])]
    );
    assert_eq!(
        told(&diff(&untied, &tied)),
        [row("head", "head", &["retied"])]
    );
    // Renaming the first of them changes no tie.
    let renamed = facts(
        &[
            tensor("words", &[2], 0),
            tensor("head", &[2], 0),
            tensor("x", &[1], 2),
        ],
        None,
    );
    assert_eq!(
        told(&diff(&tied, &renamed)),
        [row("emb", "words", &["renamed"])]
    );
}

#[test]
fn a_name_twice_is_two_tensors() {
    let old = facts(&[tensor("a", &[2], 0), tensor("a", &[3], 1)], None);
    let new = facts(&[tensor("a", &[2], 0)], None);
    assert_eq!(told(&diff(&old, &new)), [row("a", "", &["removed"])]);
}

#[test]
fn what_is_no_report_is_told_apart() {
    let read = |text: &str| Facts::read(text.as_bytes()).unwrap_err();
    assert!(matches!(read("{"), ReportError::Json(_)));
    assert!(matches!(read(""), ReportError::Other(_)));
    assert!(matches!(read("{}"), ReportError::Other(_)));
    assert!(matches!(
        read(r#"{"schema_version":2,"tensors":[]}"#),
        ReportError::Version { found: 2 }
    ));
    assert!(matches!(
        read(r#"{"schema_version":1,"tensors":[]}"#),
        ReportError::Contract(_)
    ));
    assert!(matches!(
        read(r#"{"schema_version":1,"kind":"inspect-baseline"}"#),
        ReportError::Other(_)
    ));
    let two = r#"{"schema_version":1,"tensors":[]}{"schema_version":1,"tensors":[]}"#;
    assert!(matches!(read(two), ReportError::Several));
}
