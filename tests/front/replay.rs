//! Memory snapshots that others recorded on real GPUs, replayed: every place and every segment must be predicted.
//!
//! The snapshots belong to others and are not in this repository; without them these tests say so and end.

use std::path::{Path, PathBuf};

use inspect_checkpoint::format::snapshot;
use inspect_checkpoint::simulate::recording::Recording;
use inspect_checkpoint::simulate::replay::{DeviceReplay, ReplayOptions, Start, replay};
use serde_json::Value;

fn folder() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/snapshots");
    let there = folder.join("MANIFEST.json").exists();
    if !there {
        println!("skipped: no snapshots in {}", folder.display());
    }
    there.then_some(folder)
}

fn read(path: &Path) -> Recording {
    snapshot::read(&std::fs::read(path).unwrap()).unwrap()
}

fn replayed(recording: &Recording) -> Vec<DeviceReplay> {
    replay(recording, &ReplayOptions::default())
        .unwrap()
        .devices
}

/// The manifest's number, where it has one.
fn number(device: &Value, key: &str) -> Option<u64> {
    device[key].as_u64()
}

#[test]
fn every_place_and_segment_of_every_snapshot() {
    let Some(folder) = folder() else { return };
    let manifest = std::fs::read(folder.join("MANIFEST.json")).unwrap();
    let manifest: Vec<Value> = serde_json::from_slice(&manifest).unwrap();
    for entry in &manifest {
        let name = entry["file"].as_str().unwrap();
        let devices = replayed(&read(&folder.join(name)));
        let expected = entry["devices"].as_array().unwrap();
        assert_eq!(devices.len(), expected.len(), "{name}");
        for (got, expected) in devices.iter().zip(expected) {
            println!(
                "{name} device {}: {:?}, {} allocations, {} mismatches {:?}, peaks {:?} {:?} {:?} {:?}",
                got.device,
                got.start,
                got.allocations,
                got.mismatches,
                got.first_mismatch,
                got.peak_requested_bytes,
                got.peak_allocated_bytes,
                got.peak_active_bytes,
                got.peak_reserved_bytes
            );
            assert_eq!(got.mismatches, 0, "{name}: {:?}", got.first_mismatch);
            assert_eq!(got.end.segments_equal, Some(true), "{name}");
            assert_eq!(got.end.blocks_equal, Some(true), "{name}");
            assert_eq!(
                Some(got.end.allocated_bytes),
                number(expected, "final_alloc"),
                "{name}"
            );
            assert_eq!(
                Some(got.end.reserved_bytes),
                number(expected, "final_res"),
                "{name}"
            );
            let events = &expected["ev"];
            let count = |key| number(events, key).unwrap_or(0);
            assert_eq!(got.allocations, count("alloc"), "{name}");
            assert_eq!(got.frees, count("free_completed"), "{name}");
            assert_eq!(got.segment_allocs, count("segment_alloc"), "{name}");
            assert_eq!(got.segment_frees, count("segment_free"), "{name}");
            assert_eq!(got.segment_maps, count("segment_map"), "{name}");
            assert_eq!(got.segment_unmaps, count("segment_unmap"), "{name}");
            assert_eq!(got.ooms, count("oom"), "{name}");
            for (peak, key) in [
                (got.peak_requested_bytes, "peak_req"),
                (got.peak_allocated_bytes, "peak_alloc"),
                (got.peak_reserved_bytes, "peak_res"),
            ] {
                if let Some(expected) = number(expected, key) {
                    assert_eq!(peak, Some(expected), "{name} {key}");
                }
            }
            if let Some(cold) = expected["cold"].as_bool() {
                assert_eq!(got.start == Start::Cold, cold, "{name}");
            }
        }
    }
}

/// Every `*.pickle` in the folder that `INSPECT_SNAPSHOTS` names; beside it, `*.json` with `torch.cuda.memory_stats()`
/// of that moment.
#[test]
fn snapshots_of_your_own() {
    let Some(folder) = std::env::var_os("INSPECT_SNAPSHOTS") else {
        return;
    };
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "pickle"))
        .collect();
    paths.sort();
    let mut wrong = 0;
    for path in paths {
        let stats = std::fs::read(path.with_extension("json")).ok();
        let stats: Option<Value> = stats.map(|text| serde_json::from_slice(&text).unwrap());
        for device in replayed(&read(&path)) {
            // What was recorded may begin after the peak; from a cold start it cannot.
            let cold = device.start == Start::Cold;
            let differs = |kind: &str, peak: Option<u64>| {
                let stat = stats.as_ref()?[format!("{kind}_bytes.all.peak")].as_u64()?;
                let peak = peak?;
                Some(if cold { peak != stat } else { peak > stat })
            };
            let peaks = [
                ("requested", device.peak_requested_bytes),
                ("allocated", device.peak_allocated_bytes),
                ("active", device.peak_active_bytes),
                ("reserved", device.peak_reserved_bytes),
            ];
            let peaks: Vec<_> = peaks
                .into_iter()
                .filter(|(kind, peak)| differs(kind, *peak) == Some(true))
                .collect();
            let bad = device.mismatches > 0 || !peaks.is_empty();
            wrong += u32::from(bad);
            println!(
                "{} {:?}: {} mismatches of {} {:?}, other peaks {peaks:?}",
                path.file_name().unwrap().display(),
                device.start,
                device.mismatches,
                device.allocations,
                device.first_mismatch,
            );
        }
    }
    assert_eq!(wrong, 0, "devices with differences");
}

/// Every single address of a recording, altered one at a time, is noticed.
#[test]
fn an_altered_address_is_a_mismatch() {
    let Some(folder) = folder() else { return };
    for name in [
        "linear_grad_h100",
        "attention_naive",
        "mlp_train_tiny",
        "segments_only",
    ] {
        let recording = read(&folder.join(format!("{name}.pickle")));
        let events = recording.devices[0].events.len();
        let blocks: Vec<(usize, usize)> = recording.devices[0]
            .segments
            .iter()
            .flatten()
            .enumerate()
            .flat_map(|(at, s)| (0..=s.segment.blocks.len()).map(move |block| (at, block)))
            .collect();
        let mut tried = 0;
        let mut check = |alter: &dyn Fn(&mut Recording), what: &str| {
            let mut altered = recording.clone();
            alter(&mut altered);
            tried += 1;
            let found = replayed(&altered)[0].mismatches;
            assert!(found > 0, "{name}: {what} was not noticed");
        };
        for by in [512, 2 << 20, 1 << 40] {
            for index in 0..events {
                let alter = |r: &mut Recording| r.devices[0].events[index].addr += by;
                check(&alter, &format!("event {index} moved by {by}"));
            }
            for (at, block) in &blocks {
                let alter = |r: &mut Recording| {
                    let segment = &mut r.devices[0].segments.as_mut().unwrap()[*at].segment;
                    match segment.blocks.get_mut(*block) {
                        Some(block) => block.addr += by,
                        None => segment.addr += by,
                    }
                };
                check(&alter, &format!("segment {at} block {block} moved by {by}"));
            }
        }
        println!("{name}: {tried} altered addresses noticed");
        assert!(tried > 20);
    }
}
