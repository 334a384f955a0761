//! `--stats`: what the numbers of every tensor are like, as Python's torch says.

use crate::common::run;
use serde_json::Value;

fn report(args: &[&str]) -> Value {
    let said = run(&[args, &["--format", "json", "--stats"]].concat());
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    serde_json::from_str(&said.stdout).unwrap()
}

/// Integers exactly, floats up to the order in which they were added.
fn assert_same(own: &Value, wanted: &Value, what: &str) {
    if wanted.is_f64() {
        let (own, wanted) = (own.as_f64().unwrap(), wanted.as_f64().unwrap());
        let bound = 1e-9 * wanted.abs().max(1.0);
        assert!(
            (own - wanted).abs() <= bound,
            "{what}: {own} is not {wanted}"
        );
    } else {
        assert_eq!(own, wanted, "{what}");
    }
}

#[test]
fn every_dtype_agrees_with_torch() {
    let path = "fixtures/numbers/values.pt";
    let truth = std::fs::read(format!("{path}.truth.json")).unwrap();
    let truth: Value = serde_json::from_slice(&truth).unwrap();
    let report = report(&[path]);
    let tensors = report["tensors"].as_array().unwrap();
    let mut compared = 0;
    for wanted in truth["tensors"].as_array().unwrap() {
        let own = tensors.iter().find(|own| own["name"] == wanted["name"]);
        let own = &own.unwrap()["stats"];
        for (key, wanted_value) in wanted["stats"].as_object().unwrap() {
            let what = format!("{} {key}", wanted["name"]);
            assert_same(&own[key], wanted_value, &what);
        }
        assert_eq!(own.as_object().unwrap().len(), 7);
        compared += 1;
    }
    assert!(compared >= 25, "{compared}");
    let mut findings = report["findings"].as_array().unwrap().iter();
    assert!(findings.all(|one| one["code"] != "no-statistics"));
}

#[test]
fn byte_order_compression_and_shards_do_not_matter() {
    let stats = |path: &str| -> Vec<(String, Value)> {
        let report = report(&[path]);
        let tensors = report["tensors"].as_array().unwrap().iter();
        let mut all: Vec<_> = tensors
            .map(|one| {
                (
                    one["name"].as_str().unwrap().to_owned(),
                    one["stats"].clone(),
                )
            })
            .collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    };
    let whole = stats("fixtures/state_cnn.pt");
    assert!(whole.iter().all(|(_, stats)| stats["mean"].is_number()));
    assert_eq!(stats("fixtures/cnn.safetensors"), whole);
    assert_eq!(stats("fixtures/sharded/safetensors"), whole);
    assert_eq!(stats("fixtures/sharded/bin"), whole);
    let big = stats("fixtures/zip_big_endian.pt");
    assert!(
        big.iter()
            .all(|(_, stats)| { stats["max"].as_f64().is_none_or(|max| max.abs() < 1e6) })
    );
}

#[test]
fn what_is_not_known_is_null_and_said() {
    let meta = report(&["fixtures/meta.pt"]);
    for tensor in meta["tensors"].as_array().unwrap() {
        assert_eq!(tensor["stats"].is_null(), tensor["layout"] == "meta");
    }
    let said = meta["findings"].as_array().unwrap().iter();
    assert!(said.filter(|one| one["code"] == "no-statistics").count() > 0);
    let plain = run(&["fixtures/meta.pt", "--format", "json"]);
    assert!(!plain.stdout.contains("no-statistics"));
}

#[test]
fn the_table_has_a_row_for_every_tensor() {
    let said = run(&[
        "fixtures/numbers/values.pt",
        "--stats",
        "--filter",
        "float32|extremes",
    ]);
    assert_eq!(said.code, Some(0));
    let (_, table) = said.stdout.split_once("\nStatistics").unwrap();
    let row = table
        .lines()
        .find(|line| line.starts_with("extremes"))
        .unwrap();
    assert!(row.contains("-9223372036854775808"), "{row}");
    let row = table
        .lines()
        .find(|line| line.starts_with("float32"))
        .unwrap();
    assert!(
        row.split_whitespace().rev().take(3).eq(["3", "2", "1"]),
        "{row}"
    );
    let markdown = run(&[
        "fixtures/numbers/values.pt",
        "--stats",
        "--format",
        "markdown",
    ]);
    assert!(
        markdown.stdout.contains("Statistics"),
        "{}",
        markdown.stdout
    );
}

/// A safetensors file of tensors of one dimension.
fn safetensors(tensors: &[(&str, &str, usize, Vec<u8>)]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data: Vec<u8> = Vec::new();
    for (name, dtype, count, bytes) in tensors {
        let begin = data.len();
        data.extend(bytes);
        let entry = serde_json::json!({
            "dtype": dtype, "shape": [count], "data_offsets": [begin, data.len()],
        });
        header.insert((*name).to_owned(), entry);
    }
    let header = serde_json::Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    file
}

/// A float16 of a whole number below 2048.
fn half(number: u16) -> [u8; 2] {
    if number == 0 {
        return [0, 0];
    }
    let exponent = number.ilog2();
    let mantissa = (u32::from(number) << (10 - exponent)) & 0x3ff;
    let bits = (exponent + 15) << 10 | mantissa;
    u16::try_from(bits).unwrap().to_le_bytes()
}

/// Tables of all patterns and pieces of large tensors give what one number after the other gives.
#[test]
fn large_tensors_are_read_in_pieces_and_by_table() {
    let count = 70_000_u32;
    let numbers = || (0..count).map(|n| n % 1000);
    let halves = numbers().flat_map(|n| half(u16::try_from(n).unwrap()));
    let shorts = numbers().flat_map(|n| i16::try_from(n).unwrap().to_le_bytes());
    let longs = numbers().flat_map(|n| i64::from(n).to_le_bytes());
    let large = 4_200_000_u32;
    let floats = (0..large).flat_map(|n| f32::from(u16::try_from(n % 1000).unwrap()).to_le_bytes());
    let size = usize::try_from(count).unwrap();
    let file = safetensors(&[
        ("half", "F16", size, halves.collect()),
        ("int16", "I16", size, shorts.collect()),
        ("int64", "I64", size, longs.collect()),
        (
            "float",
            "F32",
            usize::try_from(large).unwrap(),
            floats.collect(),
        ),
    ]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.safetensors");
    std::fs::write(&path, file).unwrap();
    let report = report(&[path.to_str().unwrap()]);
    let tensors = report["tensors"].as_array().unwrap();
    for tensor in tensors {
        let stats = &tensor["stats"];
        let number = |key: &str| stats[key].as_f64().unwrap();
        let name = &tensor["name"];
        assert!((number("min"), number("max")) == (0.0, 999.0), "{tensor}");
        assert!((number("mean") - 499.5).abs() < 1e-9, "{tensor}");
        assert!((number("std") - 288.675).abs() < 0.01, "{tensor}");
        let zeros = if name == "float" { 4200 } else { 70 };
        assert_eq!(stats["zero"], zeros, "{name}");
    }
    assert_eq!(tensors.len(), 4);
}
