//! A recording as a memory snapshot that PyTorch's tools open.
//!
//! The pickle uses only what Python's own pickler writes for such data (protocol 4: dictionaries, lists, tuples,
//! strings, integers, booleans, memo), because PyTorch's memory viewer reads no more. Frames, stacks and repeated
//! strings are written once and referred to.

use std::collections::HashMap;
use std::io::{self, Write};

use crate::simulate::recording::{Action, DeviceRecording, RecordedSegment, Recording, StackId};
use crate::simulate::{AllocConf, BlockState, BlockView, Pool};

const PROTO: u8 = 0x80;
const PROTOCOL: u8 = 4;
const EMPTY_DICT: u8 = b'}';
const EMPTY_LIST: u8 = b']';
const MARK: u8 = b'(';
const SETITEMS: u8 = b'u';
const APPENDS: u8 = b'e';
const TUPLE2: u8 = 0x86;
const NEWTRUE: u8 = 0x88;
const NEWFALSE: u8 = 0x89;
const SHORT_BINUNICODE: u8 = 0x8c;
const BINUNICODE: u8 = b'X';
const BININT1: u8 = b'K';
const BININT2: u8 = b'M';
const BININT: u8 = b'J';
const LONG1: u8 = 0x8a;
const BINFLOAT: u8 = b'G';
const MEMOIZE: u8 = 0x94;
const BINGET: u8 = b'h';
const LONG_BINGET: u8 = b'j';
const STOP: u8 = b'.';

/// What a snapshot calls the settings.
const SETTINGS_KEY: &str = "PYTORCH_CUDA_ALLOC_CONF";

/// Writes a recording as a snapshot. A device without final segments is written as one that holds nothing.
pub fn write(recording: &Recording, out: &mut dyn Write) -> io::Result<()> {
    let mut pickle = Pickler {
        out,
        memo: HashMap::new(),
        next: 0,
    };
    pickle.bytes(&[PROTO, PROTOCOL])?;
    pickle.dict(|p| {
        p.text("segments")?;
        p.list(|p| {
            for device in &recording.devices {
                for segment in device.segments.iter().flatten() {
                    p.segment(recording, device, segment)?;
                }
            }
            Ok(())
        })?;
        p.text("device_traces")?;
        p.list(|p| {
            let last = recording.devices.iter().map(|device| device.device).max();
            for index in 0..=last.unwrap_or(0) {
                let device = recording
                    .devices
                    .iter()
                    .find(|device| device.device == index);
                p.list(|p| device.map_or(Ok(()), |device| p.trace(recording, device)))?;
            }
            Ok(())
        })?;
        p.text("allocator_settings")?;
        p.settings(recording)?;
        p.text("external_annotations")?;
        p.list(|_| Ok(()))
    })?;
    pickle.bytes(&[STOP])
}

/// What is written once and referred to afterwards.
#[derive(PartialEq, Eq, Hash)]
enum Shared {
    Text(String),
    Stack(StackId),
    Frame(String, String, u64),
}

struct Pickler<'a> {
    out: &'a mut dyn Write,
    memo: HashMap<Shared, u32>,
    next: u32,
}

impl Pickler<'_> {
    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)
    }

    fn dict(&mut self, entries: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.bytes(&[EMPTY_DICT, MARK])?;
        entries(self)?;
        self.bytes(&[SETITEMS])
    }

    fn list(&mut self, items: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.bytes(&[EMPTY_LIST, MARK])?;
        items(self)?;
        self.bytes(&[APPENDS])
    }

    /// Refers to what was written before, or remembers what `write` is about to write.
    fn shared(
        &mut self,
        what: Shared,
        write: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> io::Result<()> {
        if let Some(place) = self.memo.get(&what).copied() {
            if let Ok(place) = u8::try_from(place) {
                return self.bytes(&[BINGET, place]);
            }
            self.bytes(&[LONG_BINGET])?;
            return self.bytes(&place.to_le_bytes());
        }
        write(self)?;
        self.bytes(&[MEMOIZE])?;
        self.memo.insert(what, self.next);
        self.next = self.next.saturating_add(1);
        Ok(())
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        self.shared(Shared::Text(text.to_owned()), |p| {
            if let Ok(length) = u8::try_from(text.len()) {
                p.bytes(&[SHORT_BINUNICODE, length])?;
            } else {
                let length = u32::try_from(text.len()).map_err(io::Error::other)?;
                p.bytes(&[BINUNICODE])?;
                p.bytes(&length.to_le_bytes())?;
            }
            p.bytes(text.as_bytes())
        })
    }

    fn number(&mut self, number: u64) -> io::Result<()> {
        if let Ok(small) = u8::try_from(number) {
            self.bytes(&[BININT1, small])
        } else if let Ok(small) = u16::try_from(number) {
            self.bytes(&[BININT2])?;
            self.bytes(&small.to_le_bytes())
        } else if let Ok(small) = i32::try_from(number) {
            self.bytes(&[BININT])?;
            self.bytes(&small.to_le_bytes())
        } else {
            // Two's complement with room for the sign, as short as possible.
            let wide = u128::from(number).to_le_bytes();
            let bits = u64::BITS.saturating_sub(number.leading_zeros());
            let length = usize::try_from(bits / 8).map_or(9, |n| n.saturating_add(1));
            self.bytes(&[LONG1, u8::try_from(length).unwrap_or(9)])?;
            self.bytes(wide.get(..length).unwrap_or(&wide))
        }
    }

    fn boolean(&mut self, value: bool) -> io::Result<()> {
        self.bytes(&[if value { NEWTRUE } else { NEWFALSE }])
    }

    fn float(&mut self, value: f64) -> io::Result<()> {
        self.bytes(&[BINFLOAT])?;
        self.bytes(&value.to_be_bytes())
    }

    fn entry(&mut self, key: &str, number: u64) -> io::Result<()> {
        self.text(key)?;
        self.number(number)
    }

    fn segment(
        &mut self,
        recording: &Recording,
        device: &DeviceRecording,
        recorded: &RecordedSegment,
    ) -> io::Result<()> {
        let segment = &recorded.segment;
        let [allocated, active, requested] = sums(&segment.blocks);
        self.dict(|p| {
            p.entry("device", u64::from(device.device))?;
            p.entry("address", segment.addr)?;
            p.entry("total_size", segment.size_bytes)?;
            p.entry("allocated_size", allocated)?;
            p.entry("active_size", active)?;
            p.entry("requested_size", requested)?;
            p.entry("stream", segment.stream)?;
            p.text("segment_type")?;
            p.text(match segment.pool {
                Pool::Small => "small",
                Pool::Large => "large",
            })?;
            p.text("segment_pool_id")?;
            p.number(segment.pool_id.0)?;
            p.number(segment.pool_id.1)?;
            p.bytes(&[TUPLE2])?;
            p.text("is_expandable")?;
            p.boolean(segment.is_expandable)?;
            p.text("frames")?;
            p.stack(recording, StackId::default())?;
            p.text("blocks")?;
            p.list(|p| {
                let stacks = recorded.stacks.iter().copied().map(Some);
                let stacks = stacks.chain(std::iter::repeat(None));
                for (block, stack) in segment.blocks.iter().zip(stacks) {
                    p.block(recording, block, stack.unwrap_or_default())?;
                }
                Ok(())
            })
        })
    }

    fn block(
        &mut self,
        recording: &Recording,
        block: &BlockView,
        stack: StackId,
    ) -> io::Result<()> {
        self.dict(|p| {
            p.entry("address", block.addr)?;
            p.entry("size", block.size_bytes)?;
            p.entry("requested_size", block.requested_bytes)?;
            p.text("state")?;
            p.text(match block.state {
                BlockState::Allocated => "active_allocated",
                BlockState::PendingFree => "active_pending_free",
                BlockState::Free | BlockState::Unmapped => "inactive",
            })?;
            p.text("frames")?;
            p.stack(recording, stack)
        })
    }

    fn trace(&mut self, recording: &Recording, device: &DeviceRecording) -> io::Result<()> {
        for event in &device.events {
            let action = match event.action {
                Action::Alloc => "alloc",
                Action::FreeRequested => "free_requested",
                Action::FreeCompleted => "free_completed",
                Action::SegmentAlloc => "segment_alloc",
                Action::SegmentFree => "segment_free",
                Action::SegmentMap => "segment_map",
                Action::SegmentUnmap => "segment_unmap",
                Action::Snapshot => "snapshot",
                Action::OutOfMemory => "oom",
            };
            let out_of_memory = event.action == Action::OutOfMemory;
            self.dict(|p| {
                p.text("action")?;
                p.text(action)?;
                p.entry(
                    if out_of_memory { "device_free" } else { "addr" },
                    event.addr,
                )?;
                p.entry("size", event.bytes)?;
                p.entry("stream", event.stream)?;
                p.entry("time_us", event.time_us.unwrap_or(0))?;
                p.text("frames")?;
                p.stack(recording, event.stack)
            })?;
        }
        Ok(())
    }

    fn stack(&mut self, recording: &Recording, stack: StackId) -> io::Result<()> {
        self.shared(Shared::Stack(stack), |p| {
            p.list(|p| {
                for frame in recording.stacks.frames(stack) {
                    let (name, file) = (frame.name.clone(), frame.filename.clone());
                    p.shared(Shared::Frame(name, file, frame.line), |p| {
                        p.dict(|p| {
                            p.text("name")?;
                            p.text(&frame.name)?;
                            p.text("filename")?;
                            p.text(&frame.filename)?;
                            p.entry("line", frame.line)
                        })
                    })?;
                }
                Ok(())
            })
        })
    }

    fn settings(&mut self, recording: &Recording) -> io::Result<()> {
        let text = recording.settings.as_deref().unwrap_or_default();
        let conf = AllocConf::parse(text).unwrap_or_default();
        self.dict(|p| {
            p.text(SETTINGS_KEY)?;
            p.text(text)?;
            p.text("max_split_size")?;
            match conf.max_split_bytes {
                Some(bytes) => p.number(bytes)?,
                // -1: unlimited.
                None => p.bytes(&[BININT, 0xff, 0xff, 0xff, 0xff])?,
            }
            p.text("garbage_collection_threshold")?;
            p.float(conf.garbage_collection_threshold)?;
            p.text("expandable_segments")?;
            p.boolean(conf.expandable_segments)?;
            p.text("roundup_power2_divisions")?;
            p.dict(|p| {
                for (class, divisions) in (0_u32..).zip(conf.roundup_power2_divisions) {
                    p.entry(
                        &1_u64.checked_shl(class).unwrap_or(0).to_string(),
                        divisions,
                    )?;
                }
                Ok(())
            })
        })
    }
}

/// Allocated, active and requested bytes of a segment's blocks.
fn sums(blocks: &[BlockView]) -> [u64; 3] {
    let mut sums = [0_u64; 3];
    for block in blocks {
        let active = block.state != BlockState::Free;
        let allocated = block.state == BlockState::Allocated;
        for (sum, (counts, bytes)) in sums.iter_mut().zip([
            (allocated, block.size_bytes),
            (active, block.size_bytes),
            (active, block.requested_bytes),
        ]) {
            *sum = sum.saturating_add(if counts { bytes } else { 0 });
        }
    }
    sums
}
