//! Snapshots written by us: the same facts when read again, by us, by Python's pickle and by PyTorch's viewer.

use std::path::Path;
use std::process::Command;

use inspect_checkpoint::format::snapshot;
use inspect_checkpoint::simulate::recording::{
    Action, DeviceRecording, Frame, Recording, Stacks, TraceEvent,
};
use inspect_checkpoint::simulate::replay::{ReplayOptions, complete, replay};

fn written(recording: &Recording) -> Vec<u8> {
    let mut bytes = Vec::new();
    snapshot::write(recording, &mut bytes).unwrap();
    bytes
}

/// A little program: three layers, one freed, numbers of every width.
fn example() -> Recording {
    let mut stacks = Stacks::default();
    let mut stack = |name: &str| {
        let frames = [name, "forward", "main"].map(|name| {
            stacks.add_frame(Frame {
                name: name.to_owned(),
                filename: format!("{name}.py"),
                line: 70_000,
            })
        });
        stacks.add_stack(frames.to_vec())
    };
    let base: u64 = 0x7f00_0000_0000;
    let event = |action, addr, bytes, stack| TraceEvent {
        action,
        addr,
        bytes,
        stream: 0,
        time_us: Some(1_700_000_000_000_000),
        stack,
    };
    let (conv, relu) = (stack("conv"), stack("relu"));
    let events = vec![
        event(Action::SegmentAlloc, base, 2 << 20, conv),
        event(Action::Alloc, base, 100, conv),
        event(Action::Alloc, base + 512, 70_000, relu),
        event(Action::FreeRequested, base, 100, conv),
        event(Action::FreeCompleted, base, 100, conv),
        event(Action::Alloc, base, 200, relu),
    ];
    Recording {
        settings: Some("garbage_collection_threshold:0.5,max_split_size_mb:200".to_owned()),
        devices: vec![DeviceRecording {
            device: 1,
            events,
            ..DeviceRecording::default()
        }],
        stacks,
        ..Recording::default()
    }
}

#[test]
fn a_recording_without_segments_gets_the_models() {
    let mut recording = example();
    complete(&mut recording);
    let read = snapshot::read(&written(&recording)).unwrap();
    assert_eq!(read.settings, recording.settings);
    let device = &read.devices[0];
    assert_eq!((device.device, device.events.len()), (1, 6));
    let segment = &device.segments.as_ref().unwrap()[0];
    assert_eq!(segment.segment.size_bytes, 2 << 20);
    let blocks: Vec<(u64, u64)> = segment
        .segment
        .blocks
        .iter()
        .map(|block| (block.size_bytes, block.requested_bytes))
        .collect();
    let rest = (2 << 20) - 512 - 70_144;
    assert_eq!(blocks, [(512, 200), (70_144, 70_000), (rest, 0)]);
    let names: Vec<&str> = read
        .stacks
        .frames(segment.stacks[1])
        .map(|frame| frame.name.as_str())
        .collect();
    assert_eq!(names, ["relu", "forward", "main"]);
    let report = replay(&read, &ReplayOptions::default()).unwrap();
    assert_eq!(
        report.devices[0].mismatches, 0,
        "{:?}",
        report.devices[0].first_mismatch
    );
    assert_eq!(report.devices[0].end.blocks_equal, Some(true));
    // Written once more, it is the same file.
    assert_eq!(written(&read), written(&recording));
}

const COMPARE: &str = r#"
import pickle, sys
def load(data):
    snapshot = pickle.loads(data)
    for segment in snapshot["segments"]:
        segment.pop("frames", None)
        for block in segment["blocks"]:
            block.pop("history", None)
            if block["state"] == "inactive":
                block["requested_size"] = 0
    for trace in snapshot["device_traces"]:
        for event in trace:
            event.pop("compile_context", None); event.pop("user_metadata", None)
    return snapshot
try:
    from torch.cuda import _memory_viz
except ImportError:
    _memory_viz = None
for old_path, new_path in zip(sys.argv[1::2], sys.argv[2::2]):
    original = open(old_path, "rb").read()
    old, new = load(original), load(open(new_path, "rb").read())
    assert old["segments"] == new["segments"], old_path
    while old["device_traces"] and not old["device_traces"][-1]:
        old["device_traces"].pop()
    assert old["device_traces"] == new["device_traces"][:len(old["device_traces"])], old_path
    if _memory_viz:
        assert _memory_viz.segsum(new) == _memory_viz.segsum(pickle.loads(original))
        _memory_viz.trace(new)
        assert "<html>" in _memory_viz.trace_plot(new) and "<html>" in _memory_viz.segment_plot(new)
print("equal, opened by PyTorch" if _memory_viz else "equal, not tried with PyTorch: it is not installed")
"#;

#[test]
fn python_and_pytorch_read_what_we_write() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/snapshots");
    let python = Command::new("python3").arg("--version").output();
    if !folder.exists() || python.is_err() {
        println!(
            "skipped: no snapshots in {} or no python3",
            folder.display()
        );
        return;
    }
    let mut compare = Command::new("python3");
    compare.args(["-c", COMPARE]);
    for name in [
        "mlp_train_tiny",
        "gnn_3gpu_expandable_oom",
        "segments_only",
        "lm_windows_torch211",
    ] {
        let old = folder.join(format!("{name}.pickle"));
        let recording = snapshot::read(&std::fs::read(&old).unwrap()).unwrap();
        let new = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.written.pickle"));
        std::fs::write(&new, written(&recording)).unwrap();
        compare.args([old, new]);
    }
    let output = compare.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    println!("{}", String::from_utf8_lossy(&output.stdout).trim());
}

#[test]
fn what_is_no_snapshot_is_refused() {
    let refused = |bytes: &[u8]| snapshot::read(bytes).unwrap_err().to_string();
    // {"segments": [], "device_traces": [os.system]}
    let hostile = b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces](cos\nsystem\neu.";
    assert_eq!(
        refused(hostile),
        "byte 32 of the pickle names `os.system`: a memory snapshot holds no classes or functions"
    );
    assert!(refused(b"\x80\x04}.").starts_with("not a memory snapshot"));
    assert_eq!(
        refused(b"\x80\x04"),
        "byte 2 of the pickle: an opcode needs 1 bytes, but only 0 are left"
    );
    let trailing = b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces]u.more";
    assert_eq!(refused(trailing), "4 bytes follow the end of the pickle");
    let negative =
        b"\x80\x04}(\x8c\x08segments](}(\x8c\x07addressJ\xff\xff\xff\xffue\x8c\x0ddevice_traces]u.";
    assert_eq!(
        refused(negative),
        "`address` of segment 0: expected a non-negative integer of 63 bits, found int"
    );
}
