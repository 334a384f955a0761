//! The JSON report as a program sees it: strict types written from the contract alone, sums that must add up, and
//! what Python's torch says about the same files.

#![allow(
    dead_code,
    reason = "keys that no test looks at are named all the same, so that a missing or unknown one is an error"
)]

use std::collections::BTreeMap;

use crate::common::{fixtures, run};
use serde::Deserialize;

type Map<T> = BTreeMap<String, T>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Report {
    schema_version: u32,
    tool: Tool,
    file: File,
    tensors: Vec<Tensor>,
    storages: Vec<Storage>,
    #[serde(default)]
    objects: Vec<StoredObject>,
    #[serde(default)]
    composites: Vec<Composite>,
    #[serde(default)]
    numpy_arrays: Vec<NumpyArray>,
    totals: Totals,
    security: Security,
    verified: Option<Verified>,
    findings: Vec<Finding>,
    #[serde(deserialize_with = "present")]
    run: Option<serde_json::Value>,
    #[serde(deserialize_with = "present")]
    estimate: Option<serde_json::Value>,
}

/// A key that must be there, whether null or not: plain `Option` would also accept its absence.
fn present<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(
    value: D,
) -> Result<Option<T>, D::Error> {
    Option::deserialize(value)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tool {
    name: String,
    version: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    path: String,
    bytes: u64,
    format: Format,
    #[serde(deserialize_with = "present")]
    torch_version: Option<String>,
    #[serde(deserialize_with = "present")]
    producer: Option<String>,
    #[serde(deserialize_with = "present")]
    byte_order: Option<ByteOrder>,
    object: Object,
    #[serde(default)]
    files: Vec<FilePart>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FilePart {
    name: String,
    bytes: u64,
    #[serde(deserialize_with = "present")]
    format: Option<Format>,
    storages: u64,
    #[serde(default)]
    ranks: Option<Ranks>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ranks {
    rank: Option<u64>,
    model_parallel: Option<u64>,
    data_parallel: Option<u64>,
    layer: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Chunk {
    offsets: Vec<u64>,
    sizes: Vec<u64>,
    #[serde(deserialize_with = "present")]
    file: Option<String>,
    #[serde(deserialize_with = "present")]
    file_offset: Option<u64>,
    #[serde(deserialize_with = "present")]
    file_bytes: Option<u64>,
    #[serde(deserialize_with = "present")]
    storage: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredObject {
    name: String,
    value: String,
    member: String,
    offset: u64,
    bytes: u64,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum Format {
    Torchscript,
    TorchZip,
    TorchLegacy,
    TorchTar,
    TorchPackage,
    Pickle,
    Safetensors,
    ExportedProgram,
    Dcp,
    Deepspeed,
    ShardedIndex,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum ByteOrder {
    Little,
    Big,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Object {
    Module,
    StateDict,
    Checkpoint,
    Tensor,
    Other,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tensor {
    name: String,
    role: Role,
    role_source: RoleSource,
    #[serde(deserialize_with = "present")]
    dtype: Option<String>,
    #[serde(deserialize_with = "present")]
    shape: Option<Vec<u64>>,
    #[serde(deserialize_with = "present")]
    strides: Option<Vec<u64>>,
    #[serde(deserialize_with = "present")]
    numel: Option<u64>,
    #[serde(deserialize_with = "present")]
    bytes: Option<u64>,
    #[serde(deserialize_with = "present")]
    storage: Option<usize>,
    #[serde(deserialize_with = "present")]
    storage_offset: Option<u64>,
    #[serde(deserialize_with = "present")]
    requires_grad: Option<bool>,
    layout: Layout,
    #[serde(deserialize_with = "present")]
    stats: Option<serde_json::Value>,
    #[serde(default)]
    chunks: Vec<Chunk>,
}

impl Tensor {
    /// The storages that it views, each with the bytes of the view.
    fn in_storages(&self) -> Vec<(usize, u64)> {
        if let Some(storage) = self.storage {
            return vec![(storage, self.bytes.unwrap_or(0))];
        }
        let item = self.bytes.unwrap_or(0) / self.numel.unwrap_or(0).max(1);
        let chunks = self.chunks.iter();
        let pieces = chunks
            .filter_map(|chunk| Some((chunk.storage?, item * chunk.sizes.iter().product::<u64>())));
        pieces.collect()
    }
}

#[derive(Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum Role {
    Parameter,
    Buffer,
    Constant,
    Optimizer,
    Tensor,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum RoleSource {
    File,
    Inferred,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Layout {
    Strided,
    SparseCoo,
    SparseCsr,
    SparseCsc,
    SparseBsr,
    SparseBsc,
    Quantized,
    Nested,
    Meta,
    Uninitialized,
    Chunked,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Storage {
    id: usize,
    #[serde(deserialize_with = "present")]
    dtype: Option<String>,
    bytes: u64,
    file_bytes: u64,
    #[serde(deserialize_with = "present")]
    device: Option<String>,
    member: String,
    used_bytes: u64,
    tensors: u64,
    /// Both only with `--hash`.
    hash: Option<String>,
    duplicate_of: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Composite {
    name: String,
    layout: Layout,
    #[serde(deserialize_with = "present")]
    dtype: Option<String>,
    #[serde(deserialize_with = "present")]
    shape: Option<Vec<u64>>,
    #[serde(deserialize_with = "present")]
    numel: Option<u64>,
    parts: Vec<String>,
    bytes: u64,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct NumpyArray {
    name: String,
    dtype: String,
    shape: Vec<u64>,
    bytes: u64,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Verified {
    records: u64,
    bytes: u64,
    unchecked: u64,
    damaged: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Totals {
    tensors: u64,
    numel: u64,
    tensor_bytes: u64,
    storage_bytes: u64,
    shared_bytes: u64,
    slack_bytes: u64,
    overhead_bytes: u64,
    by_role: BTreeMap<Role, Sum>,
    by_dtype: Map<Sum>,
    by_class: ByClass,
    #[serde(default)]
    optimizer_by_kind: Map<u64>,
}

#[derive(Debug, Deserialize, Default, PartialEq, Eq, Clone, Copy)]
#[serde(deny_unknown_fields)]
struct Sum {
    tensors: u64,
    numel: u64,
    bytes: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ByClass {
    parameters: u64,
    buffers: u64,
    optimizer: u64,
    other_tensors: u64,
    duplicates: Option<u64>,
    slack: u64,
    code: u64,
    pickle: u64,
    padding: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Security {
    globals: Vec<String>,
    unexpected_globals: Vec<String>,
    verdict: Verdict,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Clean,
    Suspicious,
    Dangerous,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Finding {
    severity: Severity,
    code: String,
    location: String,
    message: String,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Severity {
    Info,
    Warning,
    Error,
}

fn report(args: &[&str]) -> (Report, i32) {
    let said = run(args);
    let report = serde_json::from_str(&said.stdout)
        .unwrap_or_else(|error| panic!("{args:?}: {error}\n{}", said.snapshot()));
    (report, said.code.expect("an exit code"))
}

/// Every byte of the file has one class, and what has parts consists of them.
fn assert_classes_add_up(report: &Report) {
    let (path, totals) = (&report.file.path, &report.totals);
    let class = &totals.by_class;
    let classes = class.parameters
        + class.buffers
        + class.optimizer
        + class.other_tensors
        + class.duplicates.unwrap_or(0)
        + class.slack
        + class.code
        + class.pickle
        + class.padding;
    assert_eq!(classes, report.file.bytes, "{path}");
    let kinds: u64 = totals.optimizer_by_kind.values().sum();
    assert_eq!(kinds, class.optimizer, "{path}");
    for whole in &report.composites {
        let parts = report
            .tensors
            .iter()
            .filter(|t| whole.parts.contains(&t.name));
        let bytes: u64 = parts.filter_map(|part| part.bytes).sum();
        assert_eq!(bytes, whole.bytes, "{path} {}", whole.name);
    }
}

/// What must be true of every report, whatever the file.
fn assert_adds_up(report: &Report) {
    let path = &report.file.path;
    let totals = &report.totals;
    assert_eq!(report.schema_version, 1);
    assert_eq!(
        (report.tool.name.as_str(), report.tool.version.as_str()),
        ("inspect", env!("CARGO_PKG_VERSION"))
    );
    assert!(report.run.is_none() && report.estimate.is_none());
    let parts = report.file.files.iter().map(|file| file.bytes);
    let bytes = match report.file.files.len() {
        0 => std::fs::metadata(path).unwrap().len(),
        _ => parts.sum(),
    };
    assert_eq!(report.file.bytes, bytes, "{path}");

    let mut by_role: BTreeMap<Role, Sum> = BTreeMap::new();
    let mut by_dtype: Map<Sum> = Map::new();
    let mut all = Sum::default();
    let mut named = vec![0; report.storages.len()];
    for tensor in &report.tensors {
        let (numel, bytes) = (tensor.numel.unwrap_or(0), tensor.bytes.unwrap_or(0));
        let mut groups = vec![&mut all, by_role.entry(tensor.role).or_default()];
        if let Some(dtype) = &tensor.dtype {
            groups.push(by_dtype.entry(dtype.clone()).or_default());
        }
        for group in groups {
            group.tensors += 1;
            group.numel += numel;
            group.bytes += bytes;
        }
        if let Some(shape) = &tensor.shape {
            assert_eq!(
                tensor.numel,
                Some(shape.iter().product()),
                "{path} {}",
                tensor.name
            );
            assert_eq!(tensor.strides.as_ref().map(Vec::len), Some(shape.len()));
        } else {
            assert_eq!(
                (tensor.numel, tensor.bytes, tensor.strides.as_ref()),
                (None, None, None)
            );
            assert_eq!(tensor.layout, Layout::Uninitialized);
        }
        assert_eq!(tensor.storage.is_some(), tensor.storage_offset.is_some());
        for (storage, _) in tensor.in_storages() {
            named[storage] += 1;
        }
        assert!(tensor.stats.is_none());
    }
    assert_eq!(by_role, totals.by_role, "{path}");
    assert_eq!(by_dtype, totals.by_dtype, "{path}");
    let said = Sum {
        tensors: totals.tensors,
        numel: totals.numel,
        bytes: totals.tensor_bytes,
    };
    assert_eq!(all, said, "{path}");

    for (index, storage) in report.storages.iter().enumerate() {
        assert_eq!(storage.id, index, "{path}");
        assert_eq!(storage.tensors, named[index], "{path}");
        assert!(storage.used_bytes <= storage.bytes, "{path}");
    }
    let sum = |of: fn(&Storage) -> u64| report.storages.iter().map(of).sum::<u64>();
    assert_eq!(sum(|storage| storage.bytes), totals.storage_bytes, "{path}");
    assert_eq!(
        sum(|storage| storage.file_bytes) + totals.overhead_bytes,
        report.file.bytes,
        "{path}"
    );
    let slack = totals.storage_bytes - sum(|storage| storage.used_bytes);
    assert_eq!(slack, totals.slack_bytes, "{path}");
    let views = report.tensors.iter().flat_map(Tensor::in_storages);
    let in_storages: u64 = views.map(|(_, bytes)| bytes).sum();
    assert_eq!(
        in_storages - totals.shared_bytes + totals.slack_bytes,
        totals.storage_bytes,
        "{path}"
    );

    assert_classes_add_up(report);
    assert!(report.security.unexpected_globals.len() <= report.security.globals.len());
    for finding in &report.findings {
        assert!(
            !finding.code.is_empty() && !finding.message.is_empty(),
            "{finding:?}"
        );
    }
}

/// What Python's torch says; keys that other tests use are left out.
#[derive(Debug, Deserialize)]
struct Truth {
    #[serde(default)]
    tensors: Option<Vec<TrueTensor>>,
    #[serde(default)]
    totals: Option<TrueTotals>,
}

#[derive(Debug, Deserialize)]
struct TrueTensor {
    name: String,
    /// `None` where a state_dict does not say.
    role: Option<Role>,
    dtype: Option<String>,
    shape: Option<Vec<u64>>,
    bytes: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct TrueTotals {
    numel: u64,
    tensor_bytes: u64,
    storage_bytes: u64,
    by_role: Option<BTreeMap<Role, Sum>>,
}

/// Every checkpoint with a truth, of one file or several.
fn all_fixtures() -> Vec<String> {
    let folders = [
        "fixtures",
        "fixtures/sharded/bin",
        "fixtures/sharded/safetensors",
        "fixtures/distributed/dcp",
        "fixtures/package",
    ];
    folders.into_iter().flat_map(fixtures).collect()
}

fn truth(path: &str) -> Truth {
    let text = std::fs::read(format!("{path}.truth.json")).unwrap();
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn every_fixture_adds_up_and_agrees_with_torch() {
    for path in all_fixtures() {
        let (report, code) = report(&[&path, "--format", "json"]);
        assert_adds_up(&report);
        let wanted = if report.security.verdict == Verdict::Dangerous {
            2
        } else {
            0
        };
        assert_eq!(code, wanted, "{path}");
        let truth = truth(&path);
        let ours: BTreeMap<&str, &Tensor> = report
            .tensors
            .iter()
            .map(|tensor| (tensor.name.as_str(), tensor))
            .collect();
        for true_tensor in truth.tensors.iter().flatten() {
            let own = ours.get(true_tensor.name.as_str());
            let own = own.unwrap_or_else(|| panic!("{path}: `{}` is not listed", true_tensor.name));
            assert_eq!(own.dtype, true_tensor.dtype, "{path} {}", true_tensor.name);
            assert_eq!(own.shape, true_tensor.shape, "{path} {}", true_tensor.name);
            assert_eq!(
                own.bytes.unwrap_or(0),
                true_tensor.bytes.unwrap_or(0),
                "{path} {}",
                true_tensor.name
            );
            if report.file.format == Format::Torchscript {
                assert_eq!(
                    Some(own.role),
                    true_tensor.role,
                    "{path} {}",
                    true_tensor.name
                );
            }
        }
        let Some(totals) = truth.totals else { continue };
        if report.tensors.len() == truth.tensors.map_or(0, |tensors| tensors.len()) {
            assert_eq!(report.totals.numel, totals.numel, "{path}");
            assert_eq!(report.totals.tensor_bytes, totals.tensor_bytes, "{path}");
            assert_eq!(report.totals.storage_bytes, totals.storage_bytes, "{path}");
        }
        if let (Format::Torchscript, Some(by_role)) = (&report.file.format, &totals.by_role) {
            for role in [Role::Parameter, Role::Buffer] {
                let own = report
                    .totals
                    .by_role
                    .get(&role)
                    .copied()
                    .unwrap_or_default();
                let wanted = by_role.get(&role).copied().unwrap_or_default();
                assert_eq!(own, wanted, "{path} {role:?}");
            }
        }
    }
}

#[test]
fn resnet18_has_the_numbers_everybody_knows() {
    let (report, code) = report(&["fixtures/resnet18.pt", "--format", "json"]);
    assert_eq!(code, 0);
    let parameters = Sum {
        tensors: 62,
        numel: 11_689_512,
        bytes: 46_758_048,
    };
    assert_eq!(report.totals.by_role[&Role::Parameter], parameters);
    let buffers = Sum {
        tensors: 60,
        numel: 9_620,
        bytes: 38_560,
    };
    assert_eq!(report.totals.by_role[&Role::Buffer], buffers);
    assert_eq!(report.totals.tensors, 122);
    assert_eq!(report.file.object, Object::Module);
    assert!(
        report
            .tensors
            .iter()
            .all(|tensor| tensor.role_source == RoleSource::File)
    );
}

#[test]
fn several_files_are_one_document_a_line() {
    let paths = [
        "fixtures/resnet18.pt",
        "fixtures/tensor.pt",
        "fixtures/zip_big_endian.pt",
    ];
    let said = run(&[&paths[..], &["--format", "json"]].concat());
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
    let reports: Vec<Report> = said
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let named: Vec<&str> = reports
        .iter()
        .map(|report| report.file.path.as_str())
        .collect();
    assert_eq!(named, paths);
    reports.iter().for_each(assert_adds_up);
    assert_eq!(reports[2].file.byte_order, Some(ByteOrder::Big));
}

#[test]
fn two_runs_print_the_same_bytes() {
    for format in ["json", "table", "markdown", "csv", "html"] {
        let args = [
            "fixtures/checkpoint_adamw.pt",
            "fixtures/sparse.pt",
            "--format",
            format,
        ];
        assert_eq!(run(&args).stdout, run(&args).stdout, "{format}");
    }
}

#[test]
fn views_do_not_touch_the_exact_report() {
    let plain = run(&["fixtures/resnet18.pt", "--format", "json"]);
    let viewed = run(&[
        "fixtures/resnet18.pt",
        "--format",
        "json",
        "--depth",
        "1",
        "--filter",
        "fc",
        "--sort",
        "bytes",
        "--top",
        "1",
    ]);
    assert_eq!(plain.stdout, viewed.stdout);
}

#[test]
fn what_a_file_consists_of_is_told_by_kind() {
    let (report, _) = report(&["fixtures/checkpoint_adamw.pt", "--format", "json"]);
    let kinds: Vec<(&str, u64)> = report
        .totals
        .optimizer_by_kind
        .iter()
        .map(|(kind, bytes)| (kind.as_str(), *bytes))
        .collect();
    assert_eq!(
        kinds,
        [("exp_avg", 2704), ("exp_avg_sq", 2704), ("step", 16)]
    );
}

#[test]
fn what_is_stored_in_parts_is_listed_as_a_whole_too() {
    let (report, _) = report(&["fixtures/sparse.pt", "--format", "json"]);
    for whole in &report.composites {
        assert!(whole.dtype.is_some() && whole.shape.is_some(), "{whole:?}");
        assert!(whole.parts.len() >= 2, "{whole:?}");
    }
    let layouts: Vec<_> = report
        .composites
        .iter()
        .map(|whole| &whole.layout)
        .collect();
    for layout in [
        Layout::SparseCoo,
        Layout::SparseCsr,
        Layout::SparseCsc,
        Layout::SparseBsr,
        Layout::SparseBsc,
    ] {
        assert!(layouts.contains(&&layout), "{layout:?}");
    }
}

#[test]
fn numpy_arrays_and_scalars_are_no_tensors() {
    let (report, _) = report(&["fixtures/numpy.pt", "--format", "json"]);
    assert!(!report.numpy_arrays.is_empty());
    assert!(
        report
            .numpy_arrays
            .iter()
            .any(|array| array.shape.is_empty())
    );
    for array in &report.numpy_arrays {
        assert!(
            report
                .tensors
                .iter()
                .all(|tensor| tensor.name != array.name)
        );
    }
}

#[test]
fn hashes_find_the_storages_of_equal_bytes() {
    for path in all_fixtures() {
        let (report, _) = report(&[&path, "--format", "json", "--hash"]);
        assert_adds_up(&report);
        for storage in &report.storages {
            let Some(original) = storage.duplicate_of else {
                continue;
            };
            assert!(original < storage.id, "{path}");
            assert_eq!(storage.hash, report.storages[original].hash, "{path}");
            assert_eq!(storage.bytes, report.storages[original].bytes, "{path}");
        }
        let copies = report.storages.iter().any(|s| s.duplicate_of.is_some());
        let found = report
            .findings
            .iter()
            .any(|f| f.code == "duplicate-storage");
        assert_eq!(copies, found, "{path}");
    }
    // The four counters of steps are equal.
    let (report, code) = report(&["fixtures/checkpoint_adamw.pt", "--format", "json", "--hash"]);
    assert_eq!((code, report.totals.by_class.duplicates), (0, Some(12)));
    let hash = report.storages[0].hash.as_deref().unwrap();
    assert_eq!(hash.len(), 64);
}

#[test]
fn checksums_are_compared_on_demand() {
    let (report, code) = report(&["fixtures/resnet18.pt", "--format", "json", "--verify"]);
    let verified = report.verified.as_ref().unwrap();
    assert_eq!((code, verified.damaged, verified.unchecked), (0, 0, 0));
    assert!(verified.records >= report.storages.len() as u64);
    let (other, code) = self::report(&["fixtures/cnn.safetensors", "--format", "json", "--verify"]);
    let verified = other.verified.as_ref().unwrap();
    assert_eq!((code, verified.records), (0, 0));
    assert_eq!(verified.unchecked, other.storages.len() as u64);
}
