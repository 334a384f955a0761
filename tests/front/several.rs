//! Checkpoints of several files: shards and their index, files given as one, folders.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{report, run};
use serde_json::{Value, json};

const SAFETENSORS: &str = "fixtures/sharded/safetensors";
const INDEX: &str = "fixtures/sharded/safetensors/model.safetensors.index.json";
const SHARDS: [&str; 2] = [
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
];

/// A copy of the safetensors fixture.
fn copy() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(SAFETENSORS);
    for name in SHARDS.iter().chain(&["model.safetensors.index.json"]) {
        fs::copy(from.join(name), folder.path().join(name)).unwrap();
    }
    folder
}

fn index_of(folder: &tempfile::TempDir) -> (PathBuf, Value) {
    let path = folder.path().join("model.safetensors.index.json");
    let index = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    (path, index)
}

fn findings(report: &Value, code: &str) -> Vec<String> {
    let all = report["findings"].as_array().unwrap().iter();
    let wanted = all.filter(|finding| finding["code"] == code);
    wanted
        .map(|finding| finding["location"].as_str().unwrap().to_owned())
        .collect()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn an_index_and_its_folder_are_the_model() {
    for kind in ["safetensors", "bin"] {
        let folder = format!("fixtures/sharded/{kind}");
        let index = match kind {
            "bin" => format!("{folder}/pytorch_model.bin.index.json"),
            _ => INDEX.to_owned(),
        };
        let (by_index, said) = report(&[&index]);
        assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{kind}");
        assert_eq!(by_index["file"]["format"], "sharded-index");
        assert_eq!(by_index["findings"], json!([]), "{kind}");
        let truth = fs::read(format!("{index}.truth.json")).unwrap();
        let truth: Value = serde_json::from_slice(&truth).unwrap();
        let sizes = truth["files"].as_object().unwrap();
        let sum: u64 = sizes.values().map(|bytes| bytes.as_u64().unwrap()).sum();
        assert_eq!(by_index["file"]["bytes"], sum, "{kind}");
        for file in by_index["file"]["files"].as_array().unwrap() {
            assert_eq!(file["bytes"], sizes[file["name"].as_str().unwrap()]);
        }
        for storage in by_index["storages"].as_array().unwrap() {
            let (file, _) = storage["member"]
                .as_str()
                .unwrap()
                .split_once("::")
                .unwrap();
            assert!(sizes.contains_key(file), "{storage}");
        }
        let (mut by_folder, _) = report(&[&folder]);
        by_folder["file"]["path"] = json!(index);
        assert_eq!(by_folder, by_index, "{kind}");
    }
}

#[test]
fn hashes_and_checksums_go_through_all_shards() {
    let (bin, _) = report(&["fixtures/sharded/bin", "--hash", "--verify"]);
    assert_eq!(bin["verified"]["damaged"], 0);
    assert!(bin["verified"]["records"].as_u64().unwrap() > 2);
    let (safetensors, _) = report(&[SAFETENSORS, "--hash"]);
    let hashes = |report: &Value| -> Vec<(String, String)> {
        let storages = report["storages"].as_array().unwrap();
        let names = report["tensors"].as_array().unwrap().iter();
        let hash = |tensor: &Value| {
            let id = usize::try_from(tensor["storage"].as_u64().unwrap()).unwrap();
            storages[id]["hash"].as_str().unwrap().to_owned()
        };
        let mut all: Vec<_> = names
            .map(|tensor| (tensor["name"].as_str().unwrap().to_owned(), hash(tensor)))
            .collect();
        all.sort();
        all
    };
    // The same model in both: what differs is the container.
    assert_eq!(hashes(&bin), hashes(&safetensors));
    let said = run(&["diff", "fixtures/sharded/bin", INDEX, "--values"]);
    let equal = "10 tensors equal, number by number";
    assert!(said.stdout.contains(equal), "{}", said.snapshot());
}

#[test]
fn a_missing_shard_makes_the_model_incomplete() {
    let folder = copy();
    fs::remove_file(folder.path().join(SHARDS[1])).unwrap();
    let (report, said) = report(&[text(folder.path())]);
    assert_eq!(said.code, Some(2));
    assert!(said.stderr.contains("is incomplete"), "{}", said.stderr);
    assert_eq!(findings(&report, "missing-shard"), [SHARDS[1]]);
    assert_eq!(findings(&report, "index-mismatch"), [""; 0]);
}

#[test]
fn an_index_that_is_wrong_is_not_believed() {
    let folder = copy();
    let (path, mut index) = index_of(&folder);
    let map = index["weight_map"].as_object_mut().unwrap();
    let names: Vec<String> = map.keys().cloned().collect();
    let other = if map[&names[0]] == SHARDS[0] {
        SHARDS[1]
    } else {
        SHARDS[0]
    };
    map[&names[0]] = json!(other);
    map.remove(&names[1]);
    map.insert("not.there".to_owned(), json!(SHARDS[0]));
    index["metadata"]["total_size"] = json!(1);
    fs::write(&path, index.to_string()).unwrap();
    let stray = "model-00003-of-00003.safetensors";
    fs::copy(folder.path().join(SHARDS[0]), folder.path().join(stray)).unwrap();
    let (report, said) = report(&[text(&path)]);
    assert_eq!(said.code, Some(0));
    let mut wrong = findings(&report, "index-mismatch");
    wrong.sort();
    let mut expected = vec![names[0].clone(), names[1].clone(), "not.there".to_owned()];
    expected.sort();
    assert_eq!(wrong, expected);
    assert_eq!(findings(&report, "extra-shard"), [stray]);
    assert_eq!(findings(&report, "index-total"), ["total_size"]);
    let (whole, _) = self::report(&[INDEX]);
    assert_eq!(report["tensors"], whole["tensors"]);
}

/// An index is text of a stranger's: it names files of its folder, and no others.
#[cfg(unix)]
#[test]
fn an_index_does_not_lead_out_of_its_folder() {
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret.safetensors");
    let shard = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(SAFETENSORS)
        .join(SHARDS[0]);
    fs::copy(&shard, &secret).unwrap();
    let folder = copy();
    std::os::unix::fs::symlink(&secret, folder.path().join("link.safetensors")).unwrap();
    std::os::unix::fs::symlink("loop", folder.path().join("loop")).unwrap();
    let hostile = [
        ("../../etc/passwd", "leads out of"),
        ("/etc/passwd", "leads out of"),
        ("a/../../b", "leads out of"),
        ("", "leads out of"),
        ("..", "leads out of"),
        ("link.safetensors", "leads out of"),
        ("loop", "cannot open"),
        ("a\\b", "leads out of"),
        (
            "model.safetensors.index.json",
            "index of a sharded checkpoint",
        ),
    ];
    for (name, expected) in hostile {
        let path = folder.path().join("hostile.index.json");
        fs::write(&path, json!({"weight_map": {"w": name}}).to_string()).unwrap();
        let said = run(&[text(&path)]);
        assert_eq!((said.code, said.stdout.as_str()), (Some(2), ""), "{name}");
        assert!(said.stderr.contains(expected), "{name}: {}", said.stderr);
        assert!(!said.stderr.contains("root:"), "{}", said.stderr);
    }
    // How the hub keeps downloads.
    let hub = outside.path().join("models--x");
    let revision = hub.join("snapshots/abc");
    fs::create_dir_all(&revision).unwrap();
    fs::create_dir(hub.join("blobs")).unwrap();
    fs::copy(&shard, hub.join("blobs/0123")).unwrap();
    std::os::unix::fs::symlink("../../blobs/0123", revision.join("a.safetensors")).unwrap();
    let index = revision.join("a.index.json");
    fs::write(
        &index,
        json!({"weight_map": {"w": "a.safetensors"}}).to_string(),
    )
    .unwrap();
    assert_eq!(run(&[text(&index)]).code, Some(0));
}

#[test]
fn an_index_that_is_none_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let entries: Vec<String> = (0..5000).map(|n| format!(r#""{n}":"{n}","#)).collect();
    let many = entries.concat();
    for (index, expected) in [
        (r#"{"weight_map": 1}"#.to_owned(), "weight_map"),
        (
            r#"{"weight_map": {"a": 1}}"#.to_owned(),
            "expected a string",
        ),
        (
            r#"{"weight_map": {"a": "x", "a": "y"}}"#.to_owned(),
            "`a` occurs twice",
        ),
        (r#"{"weight_map": {"a": "x""#.to_owned(), "EOF"),
        (
            format!(r#"{{"weight_map": {{{many}"x":"x"}}}}"#),
            "more than 4096 shards",
        ),
    ] {
        let path = folder.path().join("x.index.json");
        fs::write(&path, index).unwrap();
        let said = run(&[text(&path)]);
        assert_eq!((said.code, said.stdout.as_str()), (Some(2), ""));
        assert!(said.stderr.contains(expected), "{}", said.stderr);
    }
}

#[test]
fn files_given_as_one_model_are_one() {
    let shards = SHARDS.map(|shard| format!("{SAFETENSORS}/{shard}"));
    let (merged, said) = report(&["--merge", &shards[0], &shards[1]]);
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
    let (whole, _) = report(&[INDEX]);
    assert_eq!(merged["tensors"], whole["tensors"]);
    assert_eq!(
        merged["totals"]["tensor_bytes"],
        whole["totals"]["tensor_bytes"]
    );
    assert_eq!(merged["file"]["format"], "sharded-index");
    let (twice, _) = report(&["--merge", &shards[1], &shards[1]]);
    assert_eq!(
        findings(&twice, "duplicate-tensor"),
        [""; 0],
        "a file is no copy of itself"
    );
    let said = run(&["--merge", &shards[0], "--input", "1"]);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
}

#[test]
fn a_folder_is_summed_up() {
    let folder = copy();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    fs::copy(
        fixtures.join("resnet18.pt"),
        folder.path().join("resnet18.pt"),
    )
    .unwrap();
    fs::copy(fixtures.join("tensor.pt"), folder.path().join("no_ending")).unwrap();
    fs::write(folder.path().join("config.json"), "{}").unwrap();
    fs::create_dir(folder.path().join("logs")).unwrap();
    let (good, said) = report(&[text(folder.path())]);
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
    let row = |report: &Value, name: &str| -> Value {
        let rows = report["checkpoints"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap().clone()
    };
    assert_eq!(good["checkpoints"].as_array().unwrap().len(), 3);
    assert_eq!(good["folder"]["other_entries"], 2);
    let resnet = row(&good, "resnet18.pt");
    assert_eq!(resnet["parameters"], 11_689_512);
    assert_eq!(
        (&resnet["format"], &resnet["verdict"]),
        (&json!("torchscript"), &json!("clean"))
    );
    let (alone, _) = report(&[INDEX]);
    let sharded = row(&good, "model.safetensors.index.json");
    assert_eq!(sharded["bytes"], alone["file"]["bytes"]);
    assert_eq!(sharded["tensors"], alone["totals"]["tensors"]);

    fs::write(folder.path().join("broken.pt"), b"PK\x03\x04").unwrap();
    let (bad, said) = report(&[text(folder.path())]);
    assert_eq!(said.code, Some(2));
    let broken = row(&bad, "broken.pt");
    assert_eq!(
        (&broken["tensors"], &broken["bytes"]),
        (&Value::Null, &json!(4))
    );
    assert!(broken["error"].as_str().unwrap().contains("truncated"));
    assert_eq!(bad["folder"]["unreadable"], 1);
    for format in ["table", "markdown", "csv"] {
        let said = run(&[text(folder.path()), "--format", format]);
        assert_eq!(said.code, Some(2));
        assert!(said.stdout.contains("resnet18.pt"), "{}", said.stdout);
        assert!(said.stdout.contains("truncated"), "{}", said.stdout);
    }
    let said = run(&[text(folder.path()), "--input", "1"]);
    assert_eq!(said.code, Some(2));
    assert!(
        said.stderr.contains("folder of several checkpoints"),
        "{}",
        said.stderr
    );
}
