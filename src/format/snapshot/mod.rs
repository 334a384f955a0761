//! PyTorch memory snapshots: the pickles of `torch.cuda.memory._dump_snapshot`.
//!
//! A snapshot is plain data (dictionaries, lists, strings, numbers); a pickle that names any class or function is
//! refused. Read into a [`Recording`], which says nothing about whether the facts fit together; [`write()`] is the way
//! back.
//!
//! | key | what |
//! |---|---|
//! | `segments` | list of segments: `device`, `address`, `total_size`, `stream`, `segment_type` (`small`, `large`), `segment_pool_id`, `is_expandable`, `blocks` |
//! | a block | `address` (from torch 2.1), `size`, `requested_size` (from torch 2.1), `state` (`active_allocated`, `active_pending_free`, `inactive`), `frames`; in torch 2.0 `history`, whose first entry has `real_size` and `frames` |
//! | `device_traces` | for each device a list of events: `action`, `addr` (`device_free` for `oom`), `size`, `stream`, `time_us` (from torch 2.3), `frames`; not there without recorded history |
//! | `allocator_settings` | `PYTORCH_CUDA_ALLOC_CONF` and what was read from it (from torch 2.2) |
//!
//! `torch.cuda.memory_snapshot()` alone is the list of segments; that is read, too.

mod write;

use std::collections::{BTreeMap, HashMap};

pub use write::write;

use crate::format::pickle::{Node, NodeId, Pickle, PickleError, parse};
use crate::simulate::recording::{
    Action, DeviceRecording, Frame, RecordedSegment, Recording, StackId, TraceEvent,
};
use crate::simulate::{BlockState, BlockView, Pool, PoolId, SegmentView};

/// Devices a snapshot may speak of: PyTorch's own bound.
const MAX_DEVICES: usize = 128;

/// Why a snapshot was not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// Not a pickle, or a broken one.
    #[error(transparent)]
    Pickle(#[from] PickleError),
    /// A pickle of something else.
    #[error("not a memory snapshot: expected a dictionary with `segments`, found {found}")]
    NotASnapshot {
        /// What it is.
        found: String,
    },
    /// A class or function, which no snapshot holds.
    #[error(
        "byte {offset} of the pickle names `{name}`: a memory snapshot holds no classes or functions"
    )]
    Global {
        /// Module and name.
        name: String,
        /// Where.
        offset: u64,
    },
    /// Bytes behind the pickle's end.
    #[error("{bytes} bytes follow the end of the pickle")]
    Trailing {
        /// How many.
        bytes: u64,
    },
    /// A value that is missing or of the wrong kind.
    #[error("{place}: expected {expected}, found {found}")]
    Field {
        /// Which value.
        place: String,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
}

/// Whether a pickle is a memory snapshot, by its shape.
#[must_use]
pub fn is_snapshot(pickle: &Pickle) -> bool {
    let root = pickle.root();
    match pickle.node(root) {
        Node::Dict(_) => pickle.get(root, "segments").is_some(),
        Node::List(_) => {
            let items = pickle.items(root);
            let is_segment = |item: &NodeId| {
                pickle.get(*item, "segment_type").is_some() && pickle.get(*item, "blocks").is_some()
            };
            items.first().is_some_and(is_segment)
        }
        _ => false,
    }
}

/// Reads a snapshot file's bytes.
pub fn read(bytes: &[u8]) -> Result<Recording, SnapshotError> {
    let pickle = parse(bytes)?;
    let trailing = bytes.len().saturating_sub(pickle.consumed()) as u64;
    if trailing > 0 {
        return Err(SnapshotError::Trailing { bytes: trailing });
    }
    from_pickle(&pickle)
}

/// Reads a snapshot that was parsed already.
pub fn from_pickle(pickle: &Pickle) -> Result<Recording, SnapshotError> {
    if let Some(global) = pickle.globals().next() {
        let name = pickle
            .global_name(global)
            .map_or_else(String::new, |(module, name)| format!("{module}.{name}"));
        return Err(SnapshotError::Global {
            name,
            offset: pickle.global_offset(global),
        });
    }
    if !is_snapshot(pickle) {
        return Err(SnapshotError::NotASnapshot {
            found: pickle.kind(pickle.root()),
        });
    }
    Reader {
        pickle,
        recording: Recording::default(),
        devices: BTreeMap::new(),
        unknown: BTreeMap::new(),
        unknown_requests: 0,
        frame_lists: HashMap::new(),
        frames: HashMap::new(),
    }
    .read()
}

struct Reader<'a> {
    pickle: &'a Pickle<'a>,
    recording: Recording,
    devices: BTreeMap<u32, DeviceRecording>,
    unknown: BTreeMap<String, u64>,
    /// Of the segment that is being read.
    unknown_requests: u64,
    frame_lists: HashMap<NodeId, StackId>,
    frames: HashMap<NodeId, u32>,
}

impl Reader<'_> {
    fn read(mut self) -> Result<Recording, SnapshotError> {
        let root = self.pickle.root();
        let (segments, traces) = match self.pickle.node(root) {
            Node::List(_) => (Some(root), None),
            _ => (
                self.pickle.get(root, "segments"),
                self.pickle.get(root, "device_traces"),
            ),
        };
        for (index, segment) in self.list(segments, "`segments`")?.iter().enumerate() {
            self.segment(index, *segment)?;
        }
        if let Some(traces) = traces {
            for (device, trace) in self
                .list(Some(traces), "`device_traces`")?
                .iter()
                .enumerate()
            {
                self.trace(device, *trace)?;
            }
        }
        self.recording.settings = self.settings(root);
        // A device without segments holds nothing at the end: that is known, too.
        for device in self.devices.values_mut() {
            device.segments.get_or_insert_default();
        }
        self.recording.devices = self.devices.into_values().collect();
        self.recording.unknown_actions = self.unknown.into_iter().collect();
        Ok(self.recording)
    }

    fn device(&mut self, device: u32) -> &mut DeviceRecording {
        self.devices
            .entry(device)
            .or_insert_with(|| DeviceRecording {
                device,
                ..DeviceRecording::default()
            })
    }

    /// The settings' text; what other versions of PyTorch call it counts, too.
    fn settings(&self, root: NodeId) -> Option<String> {
        let settings = self.pickle.get(root, "allocator_settings")?;
        let text = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"]
            .iter()
            .find_map(|key| self.pickle.text(self.pickle.get(settings, key)?));
        match text {
            Some(text) => Some(text.into_owned()),
            None => self.settings_read(settings),
        }
    }

    /// The settings without their text: what was read from it.
    fn settings_read(&self, settings: NodeId) -> Option<String> {
        const MIB: u64 = 1 << 20;
        let mut parts = Vec::new();
        let max_split = self.pickle.get(settings, "max_split_size");
        let max_split = max_split.and_then(|node| self.pickle.int(node));
        // -1 and the largest number are "no limit".
        if let Some(bytes) = max_split.and_then(|bytes| u64::try_from(bytes).ok())
            && bytes < 1 << 50
        {
            parts.push(format!("max_split_size_mb:{}", bytes / MIB));
        }
        let threshold = self.pickle.get(settings, "garbage_collection_threshold");
        if let Some(threshold) = threshold.and_then(|node| self.pickle.float(node))
            && threshold > 0.0
        {
            parts.push(format!("garbage_collection_threshold:{threshold}"));
        }
        let expandable = self.pickle.get(settings, "expandable_segments");
        if expandable.and_then(|node| self.pickle.bool(node)) == Some(true) {
            parts.push("expandable_segments:True".to_owned());
        }
        (!parts.is_empty()).then(|| parts.join(","))
    }

    fn list(&self, node: Option<NodeId>, place: &str) -> Result<Vec<NodeId>, SnapshotError> {
        match node.map(|node| (node, self.pickle.node(node))) {
            Some((node, Node::List(_) | Node::Tuple(_))) => Ok(self.pickle.items(node).to_vec()),
            _ => Err(self.wrong(node, place, "a list")),
        }
    }

    fn wrong(&self, node: Option<NodeId>, place: &str, expected: &'static str) -> SnapshotError {
        SnapshotError::Field {
            place: place.to_owned(),
            expected,
            found: node.map_or_else(|| "nothing".to_owned(), |node| self.pickle.kind(node)),
        }
    }

    /// A count, size or address.
    fn number(&self, dict: NodeId, key: &str, place: &str) -> Result<u64, SnapshotError> {
        let node = self.pickle.get(dict, key);
        let value = node.and_then(|node| self.pickle.int(node));
        value
            .and_then(|value| u64::try_from(value).ok())
            .ok_or_else(|| {
                let place = format!("`{key}` of {place}");
                self.wrong(node, &place, "a non-negative integer of 63 bits")
            })
    }

    fn text(&self, dict: NodeId, key: &str, place: &str) -> Result<String, SnapshotError> {
        let node = self.pickle.get(dict, key);
        let text = node.and_then(|node| self.pickle.text(node));
        text.map(std::borrow::Cow::into_owned)
            .ok_or_else(|| self.wrong(node, &format!("`{key}` of {place}"), "a string"))
    }

    fn segment(&mut self, index: usize, node: NodeId) -> Result<(), SnapshotError> {
        let place = format!("segment {index}");
        let addr = self.number(node, "address", &place)?;
        let kind = self.text(node, "segment_type", &place)?;
        let pool = match kind.as_str() {
            "small" => Pool::Small,
            "large" => Pool::Large,
            _ => {
                let node = self.pickle.get(node, "segment_type");
                let place = format!("`segment_type` of {place}");
                return Err(self.wrong(node, &place, "`small` or `large`"));
            }
        };
        let expandable = self.pickle.get(node, "is_expandable");
        let mut segment = SegmentView {
            addr,
            size_bytes: self.number(node, "total_size", &place)?,
            stream: self.number(node, "stream", &place)?,
            pool,
            pool_id: self.pool_id(node),
            is_expandable: expandable
                .and_then(|node| self.pickle.bool(node))
                .unwrap_or(false),
            blocks: Vec::new(),
        };
        let mut stacks = Vec::new();
        let mut next = addr;
        let blocks = self.list(
            self.pickle.get(node, "blocks"),
            &format!("`blocks` of {place}"),
        )?;
        for (index, node) in blocks.into_iter().enumerate() {
            let block = self.block(node, next, &format!("block {index} of {place}"))?;
            next = block.addr.saturating_add(block.size_bytes);
            segment.blocks.push(block);
            stacks.push(self.stack(self.made_by(node)));
        }
        let device = match self.pickle.get(node, "device") {
            Some(_) => self.number(node, "device", &place)?,
            None => 0,
        };
        let index = u32::try_from(device)
            .ok()
            .filter(|n| usize::try_from(*n).is_ok_and(|n| n < MAX_DEVICES));
        let Some(index) = index else {
            let node = self.pickle.get(node, "device");
            return Err(self.wrong(node, &format!("`device` of {place}"), "a device below 128"));
        };
        let unknown = std::mem::take(&mut self.unknown_requests);
        let device = self.device(index);
        device.unknown_requests = device.unknown_requests.saturating_add(unknown);
        let segments = device.segments.get_or_insert_default();
        segments.push(RecordedSegment { segment, stacks });
        Ok(())
    }

    fn pool_id(&self, segment: NodeId) -> PoolId {
        let node = self.pickle.get(segment, "segment_pool_id");
        let part = |node: NodeId| self.pickle.int(node).and_then(|n| u64::try_from(n).ok());
        match node.map(|node| self.pickle.items(node)) {
            Some([a, b]) => PoolId(part(*a).unwrap_or(0), part(*b).unwrap_or(0)),
            _ => PoolId::default(),
        }
    }

    /// What holds a block's frames: the block itself, or in torch 2.0 the newest entry of its history.
    fn made_by(&self, block: NodeId) -> NodeId {
        let history = self.pickle.get(block, "history");
        let newest = history.and_then(|node| self.pickle.items(node).first());
        match self.pickle.get(block, "frames") {
            None => newest.copied().unwrap_or(block),
            Some(_) => block,
        }
    }

    fn block(&mut self, node: NodeId, next: u64, place: &str) -> Result<BlockView, SnapshotError> {
        let size_bytes = self.number(node, "size", place)?;
        let state = match self.text(node, "state", place)?.as_str() {
            "active_allocated" => BlockState::Allocated,
            "active_pending_free" | "active_awaiting_free" => BlockState::PendingFree,
            "inactive" => BlockState::Free,
            _ => {
                let node = self.pickle.get(node, "state");
                let place = format!("`state` of {place}");
                return Err(self.wrong(node, &place, "a block's state"));
            }
        };
        let history = self.made_by(node);
        let requested = if self.pickle.get(node, "requested_size").is_some() {
            self.number(node, "requested_size", place)?
        } else if self.pickle.get(history, "real_size").is_some() {
            self.number(history, "real_size", place)?
        } else {
            self.unknown_requests = self
                .unknown_requests
                .saturating_add(u64::from(state != BlockState::Free));
            size_bytes
        };
        Ok(BlockView {
            addr: match self.pickle.get(node, "address") {
                Some(_) => self.number(node, "address", place)?,
                None => next,
            },
            size_bytes,
            requested_bytes: if state == BlockState::Free {
                0
            } else {
                requested
            },
            state,
        })
    }

    fn trace(&mut self, device: usize, node: NodeId) -> Result<(), SnapshotError> {
        let events = self.list(Some(node), &format!("the trace of device {device}"))?;
        if events.is_empty() {
            return Ok(());
        }
        let index = u32::try_from(device).ok().filter(|_| device < MAX_DEVICES);
        let Some(index) = index else {
            return Err(self.wrong(Some(node), "`device_traces`", "at most 128 devices"));
        };
        let mut read = Vec::with_capacity(events.len());
        for (number, event) in events.into_iter().enumerate() {
            let place = format!("event {number} of device {device}");
            read.extend(self.event(event, &place)?);
        }
        self.device(index).events = read;
        Ok(())
    }

    /// One event; `None` for a kind that is not understood, which is counted.
    fn event(&mut self, node: NodeId, place: &str) -> Result<Option<TraceEvent>, SnapshotError> {
        let action = self.text(node, "action", place)?;
        let action = match action.as_str() {
            "alloc" => Action::Alloc,
            "free_requested" => Action::FreeRequested,
            "free_completed" => Action::FreeCompleted,
            "segment_alloc" => Action::SegmentAlloc,
            "segment_free" => Action::SegmentFree,
            "segment_map" => Action::SegmentMap,
            "segment_unmap" => Action::SegmentUnmap,
            "snapshot" => Action::Snapshot,
            "oom" => Action::OutOfMemory,
            _ => {
                let count = self.unknown.entry(action).or_default();
                *count = count.saturating_add(1);
                return Ok(None);
            }
        };
        let addr = match action {
            Action::OutOfMemory if self.pickle.get(node, "device_free").is_none() => {
                self.number(node, "addr", place)?
            }
            Action::OutOfMemory => self.number(node, "device_free", place)?,
            Action::Snapshot => 0,
            _ => self.number(node, "addr", place)?,
        };
        let time = self
            .pickle
            .get(node, "time_us")
            .and_then(|node| self.pickle.int(node));
        Ok(Some(TraceEvent {
            action,
            addr,
            bytes: self.number(node, "size", place)?,
            stream: self.number(node, "stream", place)?,
            time_us: time.and_then(|time| u64::try_from(time).ok()),
            stack: self.stack(node),
        }))
    }

    /// The frames of an event or block; the empty stack where there are none.
    fn stack(&mut self, owner: NodeId) -> StackId {
        let Some(node) = self.pickle.get(owner, "frames") else {
            return StackId::default();
        };
        if let Some(stack) = self.frame_lists.get(&node) {
            return *stack;
        }
        let items = self.pickle.items(node).to_vec();
        let frames = items.into_iter().map(|frame| self.frame(frame)).collect();
        let stack = self.recording.stacks.add_stack(frames);
        self.frame_lists.insert(node, stack);
        stack
    }

    fn frame(&mut self, node: NodeId) -> u32 {
        if let Some(frame) = self.frames.get(&node) {
            return *frame;
        }
        let text = |key| {
            let value = self
                .pickle
                .get(node, key)
                .and_then(|node| self.pickle.text(node));
            value.map_or_else(String::new, std::borrow::Cow::into_owned)
        };
        let line = self
            .pickle
            .get(node, "line")
            .and_then(|node| self.pickle.int(node));
        let frame = Frame {
            name: text("name"),
            filename: text("filename"),
            line: line.and_then(|line| u64::try_from(line).ok()).unwrap_or(0),
        };
        let number = self.recording.stacks.add_frame(frame);
        self.frames.insert(node, number);
        number
    }
}
