//! Snapshots as the versions of PyTorch from 2.0 to 2.11 write them, whole and cut short: the same program, recorded
//! with fewer and other fields, must replay without a difference.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::struct_excessive_bools,
    reason = "a test program"
)]

use std::io::Write as _;

use crate::allocator::traces::Numbers;
use inspect_checkpoint::format::recording::{RecordingFormat, read};
use inspect_checkpoint::simulate::replay::{ReplayOptions, ReplayReport, Start, replay};
use inspect_checkpoint::simulate::{
    AllocConf, Allocator, BlockId, BlockState, DeviceEvent, DeviceLimits, Placement, Pool, PoolId,
    Stats,
};
use serde_json::{Value, json};

/// Which fields a version writes.
#[derive(Debug, Clone, Copy)]
struct Version {
    name: &'static str,
    addresses: bool,
    requested: bool,
    /// Block histories instead of frames: torch 2.0.
    history: bool,
    time: bool,
    pools: bool,
    settings: bool,
    frames: bool,
    /// `user_metadata`, `compile_context`, `external_annotations`.
    extras: bool,
}

const NEWEST: Version = Version {
    name: "2.11",
    addresses: true,
    requested: true,
    history: false,
    time: true,
    pools: true,
    settings: true,
    frames: true,
    extras: true,
};

const VERSIONS: [Version; 6] = [
    NEWEST,
    Version {
        name: "2.3",
        extras: false,
        ..NEWEST
    },
    Version {
        name: "2.2",
        time: false,
        extras: false,
        ..NEWEST
    },
    Version {
        name: "2.1",
        time: false,
        settings: false,
        extras: false,
        ..NEWEST
    },
    Version {
        name: "2.0",
        addresses: false,
        requested: false,
        history: true,
        time: false,
        pools: false,
        settings: false,
        frames: true,
        extras: false,
    },
    Version {
        name: "without frames",
        frames: false,
        ..NEWEST
    },
];

/// A program that was recorded, with what its allocator says at the end.
struct Program {
    conf: &'static str,
    events: Vec<Value>,
    segments: Value,
    stats: Stats,
}

/// Allocations on two streams and, where wanted, in a private pool; caches emptied now and then.
fn program(conf: &'static str, private: bool, limits: DeviceLimits, seed: u64) -> Program {
    let parsed = AllocConf::parse(conf).unwrap();
    let mut allocator = Allocator::new(parsed, limits, Placement::Upward);
    allocator.record_device_events();
    let mut numbers = Numbers::new(seed);
    let mut live: Vec<(BlockId, u64, u64, u64)> = Vec::new();
    let mut events = Vec::new();
    for step in 0..600_u64 {
        let stream = [0, 0, 0, 0x5555_0000_1234][numbers.below(4) as usize];
        if numbers.below(100) < 55 {
            let bytes = numbers.log(4.0, 24.5);
            let pool = if private && numbers.below(4) == 0 {
                PoolId(0, 1)
            } else {
                PoolId::default()
            };
            let got = allocator.alloc_in(pool, bytes, stream);
            device_events(&mut allocator, &mut events);
            match got {
                Ok(block) => {
                    let block = block.unwrap();
                    let addr = allocator.block(block).unwrap().addr;
                    live.push((block, addr, bytes, stream));
                    events.push(event("alloc", addr, bytes, stream));
                }
                Err(error) => {
                    let left = error.limit_bytes - error.reserved_bytes;
                    let mut oom = event("oom", 0, error.tried_bytes, stream);
                    let fields = oom.as_object_mut().unwrap();
                    fields.remove("addr");
                    fields.insert("device_free".to_owned(), json!(left));
                    events.push(oom);
                }
            }
        } else if !live.is_empty() {
            let at = numbers.below(live.len() as u64) as usize;
            let (block, addr, bytes, stream) = live.swap_remove(at);
            allocator.free(block).unwrap();
            events.push(event("free_requested", addr, bytes, stream));
            events.push(event("free_completed", addr, bytes, stream));
        }
        if step % 150 == 149 {
            allocator.empty_cache();
            device_events(&mut allocator, &mut events);
        }
    }
    for (time, event) in (1_700_000_000_000_000_u64..).zip(&mut events) {
        event["time_us"] = json!(time);
    }
    Program {
        conf,
        segments: segments(&allocator),
        stats: *allocator.stats(),
        events,
    }
}

fn event(action: &str, addr: u64, bytes: u64, stream: u64) -> Value {
    json!({"action": action, "addr": addr, "size": bytes, "stream": stream})
}

fn device_events(allocator: &mut Allocator, events: &mut Vec<Value>) {
    for one in allocator.take_device_events() {
        let range = one.range();
        let action = match one {
            DeviceEvent::SegmentAlloc(_) => "segment_alloc",
            DeviceEvent::SegmentFree(_) => "segment_free",
            DeviceEvent::SegmentMap(_) => "segment_map",
            DeviceEvent::SegmentUnmap(_) => "segment_unmap",
        };
        events.push(event(action, range.addr, range.bytes, range.stream));
    }
}

fn segments(allocator: &Allocator) -> Value {
    let all = allocator.segments();
    let segment = |segment: &inspect_checkpoint::simulate::SegmentView| {
        let blocks: Vec<Value> = segment
            .blocks
            .iter()
            .map(|block| {
                let free = block.state == BlockState::Free;
                json!({
                    "address": block.addr,
                    "size": block.size_bytes,
                    "requested_size": if free { 0 } else { block.requested_bytes },
                    "state": if free { "inactive" } else { "active_allocated" },
                })
            })
            .collect();
        json!({
            "device": 0,
            "address": segment.addr,
            "total_size": segment.size_bytes,
            "stream": segment.stream,
            "segment_type": if segment.pool == Pool::Small { "small" } else { "large" },
            "segment_pool_id": [segment.pool_id.0, segment.pool_id.1],
            "is_expandable": segment.is_expandable,
            "blocks": blocks,
        })
    };
    all.iter().map(segment).collect()
}

/// The program as a version writes it, without its first events.
fn snapshot(program: &Program, version: Version, skip: usize) -> Value {
    let frames = json!([{"name": "forward", "filename": "model.py", "line": 12}]);
    let mut events: Vec<Value> = program.events.iter().skip(skip).cloned().collect();
    for event in &mut events {
        let fields = event.as_object_mut().unwrap();
        if !version.time {
            fields.remove("time_us");
        }
        if version.frames {
            fields.insert("frames".to_owned(), frames.clone());
        }
        if version.extras {
            fields.insert("user_metadata".to_owned(), json!(""));
            fields.insert("compile_context".to_owned(), json!("N/A"));
        }
    }
    let mut segments = program.segments.clone();
    for segment in segments.as_array_mut().unwrap() {
        let fields = segment.as_object_mut().unwrap();
        if !version.pools {
            fields.remove("segment_pool_id");
            fields.remove("is_expandable");
        }
        for block in fields["blocks"].as_array_mut().unwrap() {
            let fields = block.as_object_mut().unwrap();
            if version.history && fields["state"] != "inactive" {
                let made = json!({"addr": fields["address"], "real_size": fields["requested_size"], "frames": frames});
                fields.insert("history".to_owned(), json!([made]));
            } else if version.frames {
                fields.insert("frames".to_owned(), frames.clone());
            }
            if !version.addresses {
                fields.remove("address");
            }
            if !version.requested {
                fields.remove("requested_size");
            }
        }
    }
    let mut all = json!({"segments": segments, "device_traces": [events]});
    if version.settings {
        all["allocator_settings"] = json!({
            "PYTORCH_CUDA_ALLOC_CONF": program.conf,
            "max_split_size": -1,
            "expandable_segments": false,
        });
    }
    if version.extras {
        all["external_annotations"] = json!([]);
    }
    all
}

/// JSON as Python would pickle it, protocol 2.
fn pickle(value: &Value) -> Vec<u8> {
    let mut out = vec![0x80, 2];
    put(value, &mut out);
    out.push(b'.');
    out
}

fn put(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.push(b'N'),
        Value::Bool(value) => out.push(if *value { 0x88 } else { 0x89 }),
        Value::Number(number) => {
            if let Some(number) = number.as_i64() {
                out.extend([0x8a, 8]);
                out.extend(number.to_le_bytes());
            } else {
                out.push(b'G');
                out.extend(number.as_f64().unwrap().to_be_bytes());
            }
        }
        Value::String(text) => {
            out.push(b'X');
            out.extend((text.len() as u32).to_le_bytes());
            out.extend(text.as_bytes());
        }
        Value::Array(items) => {
            out.extend(b"](");
            for item in items {
                put(item, out);
            }
            out.push(b'e');
        }
        Value::Object(fields) => {
            out.extend(b"}(");
            for (key, value) in fields {
                put(&json!(key), out);
                put(value, out);
            }
            out.push(b'u');
        }
    }
}

fn replayed(bytes: &[u8]) -> ReplayReport {
    let (recording, format) = read(bytes).unwrap();
    assert_eq!(format, RecordingFormat::Snapshot);
    replay(&recording, &ReplayOptions::default()).unwrap()
}

fn programs() -> Vec<Program> {
    let unlimited = DeviceLimits::UNLIMITED;
    let tight = DeviceLimits {
        total_bytes: 300 << 20,
    };
    let mut all = Vec::new();
    for seed in 1..4 {
        all.push(program("", false, unlimited, seed));
        all.push(program("", true, unlimited, seed + 10));
        all.push(program("", false, tight, seed + 20));
        all.push(program(
            "expandable_segments:True",
            false,
            unlimited,
            seed + 30,
        ));
        all.push(program("max_split_size_mb:24", false, unlimited, seed + 40));
        all.push(program(
            "roundup_power2_divisions:4",
            false,
            unlimited,
            seed + 50,
        ));
    }
    all
}

#[test]
fn every_version_whole_and_cut() {
    let (mut tried, mut allocations) = (0, 0);
    for (number, program) in programs().iter().enumerate() {
        for version in VERSIONS {
            // Before 2.2 nothing tells the settings, before 2.1 nothing tells pools and expandable segments.
            let told = version.settings || program.conf.is_empty();
            let private = program.segments.as_array().unwrap().iter();
            let private = private.filter(|s| s["segment_pool_id"][1] == 1).count() > 0;
            if !told || (private && !version.pools) {
                continue;
            }
            for skip in [0, 1, 2, 3, 10, 100, 250, 251, 252, 253, 500, 700] {
                let value = snapshot(program, version, skip);
                let report = replayed(&pickle(&value));
                let device = &report.devices[0];
                let what = format!(
                    "program {number} `{}`, torch {}, cut {skip}",
                    program.conf, version.name
                );
                assert_eq!(device.mismatches, 0, "{what}: {:?}", device.first_mismatch);
                assert_eq!(device.end.segments_equal, Some(true), "{what}");
                assert_eq!(device.end.blocks_equal, Some(true), "{what}");
                if skip == 0 {
                    assert_eq!(device.start, Start::Cold, "{what}");
                    let stats = &program.stats;
                    for (got, expected) in [
                        (device.peak_requested_bytes, stats.requested_bytes().peak),
                        (device.peak_allocated_bytes, stats.allocated_bytes().peak),
                        (device.peak_active_bytes, stats.active_bytes().peak),
                        (device.peak_reserved_bytes, stats.reserved_bytes().peak),
                    ] {
                        assert_eq!(got, Some(expected), "{what}");
                    }
                    assert_eq!(device.ooms, stats.num_ooms, "{what}");
                }
                tried += 1;
                allocations += device.allocations;
            }
        }
    }
    println!("{tried} snapshots, {allocations} allocations predicted");
}

#[test]
fn several_devices_and_no_events() {
    let program = program("", false, DeviceLimits::UNLIMITED, 5);
    let mut value = snapshot(&program, NEWEST, 0);
    let events = value["device_traces"][0].clone();
    value["device_traces"] = json!([[], events, []]);
    for segment in value["segments"].as_array_mut().unwrap() {
        segment["device"] = json!(1);
    }
    let report = replayed(&pickle(&value));
    let devices: Vec<u32> = report.devices.iter().map(|device| device.device).collect();
    assert_eq!(devices, [1]);
    assert_eq!(report.devices[0].mismatches, 0);
    // `torch.cuda.memory_snapshot()` alone, and a snapshot without recorded history.
    let segments = snapshot(&program, NEWEST, 0)["segments"].clone();
    for value in [
        segments.clone(),
        json!({"segments": segments.clone()}),
        json!({"segments": segments.clone(), "device_traces": []}),
        json!({"segments": segments, "device_traces": [[]]}),
    ] {
        let report = replayed(&pickle(&value));
        let device = &report.devices[0];
        assert_eq!(device.start, Start::None);
        assert_eq!(device.mismatches, 0, "{:?}", device.first_mismatch);
        assert_eq!(device.peak_reserved_bytes, None);
        assert_eq!(
            device.end.reserved_bytes,
            program.stats.reserved_bytes().current
        );
    }
}

#[test]
fn a_compressed_snapshot() {
    let program = program("", false, DeviceLimits::UNLIMITED, 6);
    let bytes = pickle(&snapshot(&program, NEWEST, 0));
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&bytes).unwrap();
    let packed = encoder.finish().unwrap();
    assert_eq!(replayed(&packed), replayed(&bytes));
    let cut = read(&packed[..packed.len() / 2]).unwrap_err();
    assert_eq!(cut.to_string(), "the gzip data cannot be inflated");
}

#[test]
fn requested_sizes_that_nobody_wrote_down_are_said() {
    let program = program("", false, DeviceLimits::UNLIMITED, 7);
    let version = Version {
        requested: false,
        ..NEWEST
    };
    let report = replayed(&pickle(&snapshot(&program, version, 0)));
    let codes: Vec<&str> = report.findings.iter().map(|finding| finding.code).collect();
    assert_eq!(codes, ["no-requested-size"]);
}

#[test]
fn settings_without_their_text() {
    let program = program(
        "expandable_segments:True",
        false,
        DeviceLimits::UNLIMITED,
        8,
    );
    let mut value = snapshot(&program, NEWEST, 100);
    value["allocator_settings"] = json!({"max_split_size": -1, "garbage_collection_threshold": 0.0, "expandable_segments": true});
    let report = replayed(&pickle(&value));
    assert_eq!(report.devices[0].mismatches, 0);
}

#[test]
fn settings_of_other_versions_count_as_far_as_they_are_understood() {
    let program = program(
        "roundup_power2_divisions:4",
        false,
        DeviceLimits::UNLIMITED,
        9,
    );
    let mut value = snapshot(&program, NEWEST, 0);
    value["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] =
        json!("some_new_key:[1:2,3:4],roundup_power2_divisions:4,another:True");
    let report = replayed(&pickle(&value));
    assert_eq!(report.devices[0].mismatches, 0);
    assert_eq!(report.findings[0].code, "alloc-conf");
}

/// A graph's pool that is destroyed before the snapshot leaves no trace of which segments were its own.
#[test]
fn a_private_pool_that_is_gone_is_said() {
    let mut allocator = Allocator::new(
        AllocConf::default(),
        DeviceLimits::UNLIMITED,
        Placement::Upward,
    );
    allocator.record_device_events();
    let (mut events, mut live) = (Vec::new(), Vec::new());
    // The default pool has room left, and the private one still takes a segment of its own.
    for (pool, bytes) in [(PoolId::default(), 1000), (PoolId(0, 7), 2000)] {
        let block = allocator.alloc_in(pool, bytes, 0).unwrap().unwrap();
        device_events(&mut allocator, &mut events);
        let addr = allocator.block(block).unwrap().addr;
        events.push(event("alloc", addr, bytes, 0));
        live.push((block, addr, bytes));
    }
    let (block, addr, bytes) = live.pop().unwrap();
    allocator.free(block).unwrap();
    events.push(event("free_requested", addr, bytes, 0));
    events.push(event("free_completed", addr, bytes, 0));
    events.push(event("segment_free", addr, 2 << 20, 0));
    let mut segments = segments(&allocator);
    let kept = segments.as_array_mut().unwrap();
    kept.retain(|segment| segment["address"] != addr);
    let program = Program {
        conf: "",
        segments,
        stats: *allocator.stats(),
        events,
    };
    let report = replayed(&pickle(&snapshot(&program, NEWEST, 0)));
    assert!(report.devices[0].mismatches > 0);
    assert_eq!(report.findings[0].code, "pool-unknown");
}
