use super::*;
use crate::diff::Facts;

/// A report of one parameter of so many bytes, and a training run's peak.
fn facts(bytes: u64, peak: Option<u64>) -> Facts {
    let report = serde_json::json!({
        "schema_version": 1, "tool": {},
        "file": {"path": "dir/a.pt", "bytes": bytes + 100, "format": "torch-zip", "torch_version": null,
                 "producer": null, "byte_order": null, "object": "state_dict"},
        "tensors": [{"name": "w", "role": "parameter", "dtype": "float32", "shape": [bytes / 4], "strides": [1],
                     "numel": bytes / 4, "bytes": bytes, "storage": 0, "storage_offset": 0,
                     "requires_grad": null, "layout": "strided"}],
        "storages": [{"id": 0, "bytes": bytes, "file_bytes": bytes}],
        "totals": {"tensors": 1, "numel": bytes / 4, "tensor_bytes": bytes, "storage_bytes": bytes,
                   "shared_bytes": 0, "slack_bytes": 0, "overhead_bytes": 100},
        "security": {"verdict": "clean", "unexpected_globals": []},
        "findings": [],
        "run": null,
        "estimate": {"basis": "cuda-sim", "profile": "h100", "phases": [], "peak_requested_bytes": peak,
                     "peak_allocated_bytes": peak, "peak_reserved_bytes": peak, "at_peak": null, "fits": null},
    });
    Facts::read(&serde_json::to_vec(&report).unwrap()).unwrap()
}

fn rules(limits: &[&str]) -> Rules {
    Rules {
        limits: limits.iter().map(|text| text.parse().unwrap()).collect(),
        tolerance: Tolerance::exact(),
        deny: Vec::new(),
        strict: false,
    }
}

fn baseline(bytes: u64, peak: Option<u64>) -> Baseline {
    Baseline::of(&facts(bytes, peak), RunOptions::default(), Vec::new())
}

fn run(current: &Facts, baseline: Option<&Baseline>, rules: &Rules) -> FileCheck {
    let options = RunOptions::default();
    let subject = Subject {
        facts: current,
        options: &options,
        baseline,
        against: None,
    };
    check(subject, rules, Vec::new()).unwrap()
}

fn verdict_of(check: &FileCheck, metric: &str) -> Verdict {
    let found = check.checks.iter().find(|one| one.metric == metric);
    found.unwrap().verdict
}

#[test]
fn exact_numbers_may_not_grow() {
    let before = baseline(400, Some(1000));
    let same = run(&facts(400, Some(1000)), Some(&before), &rules(&[]));
    assert_eq!(same.verdict, Verdict::Pass);
    assert!(same.checks.iter().all(|one| one.verdict == Verdict::Pass));
    let grown = run(&facts(404, Some(1000)), Some(&before), &rules(&[]));
    assert_eq!(grown.verdict, Verdict::Fail);
    assert_eq!(verdict_of(&grown, "file_bytes"), Verdict::Fail);
    assert_eq!(verdict_of(&grown, "tensors"), Verdict::Pass);
    let why = &grown.checks[0].why[0];
    assert_eq!((why.what.as_str(), why.delta), ("w", Some(4)));
}

#[test]
fn limits_are_their_own_tolerance() {
    let before = baseline(400, Some(1000));
    let limits = rules(&[
        "peak_reserved=+2%",
        "file=1KB",
        "storage=+4",
        "parameters=+1%",
        "parameter_bytes=+1%",
    ]);
    let checked = run(&facts(404, Some(1020)), Some(&before), &limits);
    assert_eq!(verdict_of(&checked, "peak_reserved_bytes"), Verdict::Pass);
    assert_eq!(verdict_of(&checked, "peak_allocated_bytes"), Verdict::Fail);
    assert_eq!(verdict_of(&checked, "file_bytes"), Verdict::Pass);
    assert_eq!(
        verdict_of(&checked, "parameters.float32"),
        Verdict::Pass,
        "a part of `parameters`"
    );
    let checked = run(&facts(400, Some(1021)), Some(&before), &limits);
    assert_eq!(verdict_of(&checked, "peak_reserved_bytes"), Verdict::Fail);
    // The strictest of several counts.
    let both = rules(&["file=1KB", "file=+0"]);
    let checked = run(&facts(404, None), Some(&before), &both);
    assert_eq!(verdict_of(&checked, "file_bytes"), Verdict::Fail);
}

#[test]
fn improvements_are_told_and_fail_only_when_strict() {
    let before = baseline(400, Some(1000));
    let better = facts(400, Some(900));
    let checked = run(&better, Some(&before), &rules(&[]));
    assert_eq!((checked.verdict, checked.notes.len()), (Verdict::Pass, 1));
    assert_eq!(
        verdict_of(&checked, "peak_reserved_bytes"),
        Verdict::Improved
    );
    let strict = Rules {
        strict: true,
        ..rules(&[])
    };
    assert_eq!(run(&better, Some(&before), &strict).verdict, Verdict::Fail);
    // Within the tolerance it is the same.
    let checked = run(
        &facts(400, Some(990)),
        Some(&before),
        &rules(&["peak_reserved=+2%"]),
    );
    assert_eq!(verdict_of(&checked, "peak_reserved_bytes"), Verdict::Pass);
}

#[test]
fn what_is_not_known_any_more_fails() {
    let before = baseline(400, Some(1000));
    let checked = run(&facts(400, None), Some(&before), &rules(&[]));
    assert_eq!(verdict_of(&checked, "peak_reserved_bytes"), Verdict::Fail);
    // What was not known is no regression, but the baseline is out of date.
    let checked = run(
        &facts(400, Some(1)),
        Some(&baseline(400, None)),
        &rules(&[]),
    );
    assert_eq!(checked.verdict, Verdict::Pass);
}

#[test]
fn a_number_that_the_baseline_lacks_is_told() {
    let mut before = baseline(400, Some(1000));
    before.metrics.remove("storage_bytes");
    let checked = run(&facts(400, Some(1000)), Some(&before), &rules(&[]));
    let row = checked
        .checks
        .iter()
        .find(|one| one.metric == "storage_bytes")
        .unwrap();
    assert_eq!(
        (row.verdict, row.rule.as_str(), row.baseline),
        (Verdict::Pass, "new", None)
    );
    assert_eq!(checked.notes.len(), 1);
}

#[test]
fn limits_that_limit_nothing_are_errors() {
    let current = facts(400, Some(1000));
    let options = RunOptions::default();
    let subject = |baseline| Subject {
        facts: &current,
        options: &options,
        baseline,
        against: None,
    };
    let error = |limit: &str| check(subject(None), &rules(&[limit]), Vec::new()).unwrap_err();
    assert!(matches!(error("file=+2%"), RuleError::NoBaseline { .. }));
    assert!(matches!(error("flops=1G"), RuleError::NotKnown { .. }));
    assert!(matches!(
        error("peak_reserved.forward=1G"),
        RuleError::NotKnown { .. }
    ));
    // A dtype that is not there has no elements.
    assert!(check(subject(None), &rules(&["parameters.float16=0"]), Vec::new()).is_ok());
}

#[test]
fn a_baseline_of_another_run_is_no_regression() {
    let mut before = baseline(400, Some(1000));
    let current = facts(400, Some(1000));
    before.belongs(&current).unwrap();
    before.libtorch_version = Some("2.10.0".to_owned());
    assert!(before.belongs(&current).is_err());
    before.libtorch_version = None;
    before.basis = Some("cpu-trace".to_owned());
    assert!(before.belongs(&current).is_err());
}

#[test]
fn a_baseline_says_nothing_of_the_machine() {
    let text = serde_json::to_string(&baseline(400, Some(1000))).unwrap();
    assert!(!text.contains("dir/"), "{text}");
    assert_eq!(
        Baseline::read(text.as_bytes()).unwrap(),
        baseline(400, Some(1000))
    );
}
