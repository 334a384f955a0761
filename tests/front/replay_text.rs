//! What `inspect replay` prints for a small recording, as text and as JSON.

use std::path::Path;

use inspect_checkpoint::format::recording;
use inspect_checkpoint::report::replay::{ReplayDocument, table};
use inspect_checkpoint::simulate::replay::{ReplayOptions, replay};
use inspect_checkpoint::units::Units;
use serde_json::Value;

#[test]
fn text_and_json_of_a_real_snapshot() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/snapshots/mlp_train_tiny.pickle");
    let Ok(bytes) = std::fs::read(&path) else {
        println!("skipped: no {}", path.display());
        return;
    };
    let (recording, format) = recording::read(&bytes).unwrap();
    let options = ReplayOptions {
        alloc_conf: Some("expandable_segments:True".to_owned()),
        memory_bytes: Some(8 << 20),
        find_smallest_memory: true,
        top: 3,
    };
    let report = replay(&recording, &options).unwrap();
    let mut text = Vec::new();
    table(&report, Units::Iec, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    println!("{text}");
    for line in [
        "device 0: from a state worked out backwards",
        "  mismatches             0",
        "  final segments         equal, blocks equal",
        "  peak allocated         17.3 MiB (18,099,712 B), event ",
        "  the same program with 8.00 MiB",
    ] {
        assert!(text.contains(line), "{line}");
    }
    let document = ReplayDocument::new(&report, "snap.pickle", bytes.len() as u64, format.name());
    let json: Value = serde_json::from_str(&serde_json::to_string(&document).unwrap()).unwrap();
    assert_eq!(json["schema_version"], 1);
    assert_eq!(json["tool"]["name"], "inspect");
    assert_eq!(json["file"]["format"], "torch-memory-snapshot");
    let device = &json["devices"][0];
    assert_eq!(device["start"], "warm");
    assert_eq!(device["peak_reserved_bytes"], 23_068_672);
    assert_eq!(device["final"]["blocks_equal"], true);
    assert_eq!(device["first_mismatch"], Value::Null);
    assert_eq!(device["what_if"]["fits"], false);
    assert!(device["smallest_memory_bytes"].as_u64().unwrap() >= 18_099_712);
}
