//! One side of a comparison: allocations in order with the place and the time of their end, and the allocator's own
//! figures.

use std::collections::HashMap;

use crate::estimate::PhaseFigures;
use crate::estimate::cpu_trace::rules;
use crate::simulate::recording::{Action, DeviceRecording, Recording};
use crate::simulate::replay::{DeviceReplay, Start, block_sizes};
use crate::simulate::{AllocConf, Stream};
use crate::trace::memory::MemoryTimeline;
use crate::trace::{Event, Trace};

/// What an allocation is, judged by where it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// Inside a convolution or another call of cuDNN, and no tensor shows it.
    Cudnn,
    /// A workspace of cuBLAS.
    Cublas,
    /// Inside a matrix product, and no tensor shows it.
    CublasLt,
    /// No tensor shows it.
    Scratch,
    /// Everything else.
    Other,
}

/// One allocation.
#[derive(Debug, Clone)]
pub(super) struct Made {
    /// Requested bytes.
    pub(super) bytes: u64,
    /// Allocated bytes.
    pub(super) block: u64,
    pub(super) stream: Stream,
    /// The innermost operator, else the autograd node or the function.
    pub(super) op: Option<String>,
    /// Path of the module.
    pub(super) module: Option<String>,
    pub(super) phase: Option<&'static str>,
    pub(super) class: Class,
    /// How many allocations had been made when it was freed, and its place among all frees; none where it never was.
    pub(super) freed: Option<(usize, usize)>,
}

/// One side of a comparison.
#[derive(Debug, Clone, Default)]
pub struct Side {
    pub(super) allocations: Vec<Made>,
    pub(super) phases: Vec<PhaseFigures>,
    /// Names of the outermost operators, in order; empty where they are not known.
    pub(super) ops: Vec<String>,
    /// Whether allocations name libtorch's operators.
    pub(super) names_ops: bool,
    /// Settings of the caching allocator; none where there is none.
    pub(super) conf: Option<AllocConf>,
    requested: Option<u64>,
    allocated: Option<u64>,
    reserved: Option<u64>,
    /// Most memory of the whole device in use: measured, or reserved and the context.
    pub(super) device_used: Option<u64>,
}

/// Why a recording is no side of a comparison.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SideError {
    /// Nothing to compare.
    #[error("the recording has no allocations to compare, only segments")]
    NoEvents,
    /// It does not have all of the run.
    #[error(
        "the recording begins in the middle of a program's life: what was allocated before is not in it"
    )]
    Warm,
}

impl SideError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        "call `torch.cuda.memory._record_memory_history()` before the model is made, with `max_entries` large enough"
    }
}

/// Parts of names, in lower case, of what calls cuDNN.
const CUDNN: [&str; 2] = ["cudnn", "conv"];
/// Of matrix products.
const PRODUCTS: [&str; 3] = ["mm", "linear", "matmul"];

/// What an allocation is; `names` of what was open around it, `tensor` whether one was seen in it, where that is known.
fn class(names: &[&str], bytes: u64, tensor: Option<bool>, on_cuda: bool) -> Class {
    let inside = |parts: &[&str]| {
        let mut names = names.iter().map(|name| name.to_ascii_lowercase());
        names.any(|name| parts.iter().any(|part| name.contains(part)))
    };
    let cublas = [(8, 9), (9, 0)].map(rules::cublas_workspace_bytes);
    let (in_product, shown) = (inside(&PRODUCTS), tensor != Some(false));
    if tensor == Some(true) {
        Class::Other
    } else if !on_cuda {
        Class::Scratch
    } else if in_product && cublas.contains(&bytes) {
        Class::Cublas
    } else if inside(&CUDNN) {
        Class::Cudnn
    } else if in_product && (!shown || bytes == rules::CUBLASLT_WORKSPACE_BYTES) {
        Class::CublasLt
    } else if shown {
        Class::Other
    } else {
        Class::Scratch
    }
}

impl Side {
    /// Highest requested, allocated and reserved bytes.
    pub(super) fn peaks(&self) -> [Option<u64>; 3] {
        [self.requested, self.allocated, self.reserved]
    }

    /// A run that was traced. On the CPU there is no caching allocator.
    #[must_use]
    pub fn of_trace(trace: &Trace, conf: &AllocConf) -> Side {
        let memory = MemoryTimeline::of(trace);
        let mut side = Reader::new(trace, &memory).read();
        side.conf = trace
            .header
            .device
            .starts_with("cuda")
            .then(|| conf.clone());
        side.phases = memory.phases.iter().map(PhaseFigures::of).collect();
        let highest = |of: fn(&PhaseFigures) -> u64| side.phases.iter().map(of).max();
        side.requested = highest(|phase| phase.peak_requested_bytes);
        side.allocated = highest(|phase| phase.peak_allocated_bytes);
        side.reserved = memory.peak_reserved;
        side.device_used = memory.device_used();
        side
    }

    /// The estimate's side, on a card whose context has this size.
    #[must_use]
    pub fn with_context(mut self, context_bytes: Option<u64>) -> Side {
        let both = self.reserved.zip(context_bytes);
        self.device_used = both.map(|(reserved, context)| reserved.saturating_add(context));
        self
    }

    /// What the device has in use that the allocator does not: context, kernels, other processes.
    pub(super) fn outside(&self) -> Option<u64> {
        Some(self.device_used?.saturating_sub(self.reserved?))
    }

    /// What a CPU's run should need by the shapes of its tensors alone: as many bytes as each has elements, as long as
    /// it lives, and nothing else.
    #[must_use]
    pub fn of_shapes(trace: &Trace) -> Side {
        let memory = MemoryTimeline::of(trace);
        let sizes: Vec<Option<u64>> = memory
            .allocations
            .iter()
            .map(|life| Some(trace.sigs.get(life.sig? as usize)?.bytes))
            .collect();
        let mut shaped = trace.clone();
        for event in &mut shaped.events {
            if let Event::Alloc {
                id, bytes, block, ..
            } = event
            {
                // Memory that no tensor shows is kept as nothing, so that numbers stay what they are.
                let size = sizes.get(*id as usize).copied().flatten();
                (*bytes, *block) = (size.unwrap_or(0), None);
            }
        }
        Side::of_trace(&shaped, &AllocConf::default())
    }

    /// A recording of the device with the most events, which must begin with the program.
    pub fn of_recording(
        recording: &Recording,
        replays: &[DeviceReplay],
    ) -> Result<Side, SideError> {
        let devices = recording.devices.iter().zip(replays);
        let (device, replay) = devices
            .max_by_key(|(device, _)| device.events.len())
            .ok_or(SideError::NoEvents)?;
        match replay.start {
            Start::Cold if replay.allocations > 0 => {}
            Start::Warm => return Err(SideError::Warm),
            Start::Cold | Start::None => return Err(SideError::NoEvents),
        }
        let (blocks, conf) = block_sizes(recording, device);
        Ok(Side {
            allocations: recorded(recording, device, &blocks),
            conf: Some(conf),
            requested: replay.peak_requested_bytes,
            allocated: replay.peak_allocated_bytes,
            reserved: replay.peak_reserved_bytes,
            ..Side::default()
        })
    }

    /// The same where operators go by other names than on the other side: a CPU's run that stands for a GPU's.
    #[must_use]
    pub fn without_ops(mut self) -> Side {
        self.names_ops = false;
        self.ops.clear();
        self
    }
}

/// The allocations of a recording's device; `blocks` are their sizes, by event.
fn recorded(
    recording: &Recording,
    device: &DeviceRecording,
    blocks: &HashMap<usize, u64>,
) -> Vec<Made> {
    let mut made: Vec<Made> = Vec::new();
    let mut live: HashMap<u64, usize> = HashMap::new();
    let mut frees = 0;
    for (index, event) in device.events.iter().enumerate() {
        match event.action {
            Action::Alloc => {
                let frames: Vec<_> = recording.stacks.frames(event.stack).collect();
                let names: Vec<&str> = frames.iter().map(|frame| frame.name.as_str()).collect();
                // Our own traces have modules for files.
                let innermost = frames.first().filter(|frame| frame.line == 0);
                live.insert(event.addr, made.len());
                made.push(Made {
                    bytes: event.bytes,
                    block: blocks.get(&index).copied().unwrap_or(event.bytes),
                    stream: event.stream,
                    op: names.first().map(|name| (*name).to_owned()),
                    module: innermost
                        .map(|frame| frame.filename.clone())
                        .filter(|name| !name.is_empty()),
                    phase: None,
                    class: class(&names, event.bytes, None, true),
                    freed: None,
                });
            }
            Action::FreeCompleted => {
                let count = made.len();
                if let Some(one) = live.remove(&event.addr).and_then(|at| made.get_mut(at)) {
                    one.freed = Some((count, frees));
                    frees += 1;
                }
            }
            _ => {}
        }
    }
    made
}

/// Something open on a thread: an operator with its number, or an autograd node.
type Open = (Option<u32>, u32);

/// Goes through a trace.
struct Reader<'a> {
    trace: &'a Trace,
    memory: &'a MemoryTimeline,
    side: Side,
    open: HashMap<u32, Vec<Open>>,
    /// Index among the allocations, by number.
    live: HashMap<u32, usize>,
    frees: usize,
}

impl<'a> Reader<'a> {
    fn new(trace: &'a Trace, memory: &'a MemoryTimeline) -> Self {
        Reader {
            trace,
            memory,
            side: Side {
                names_ops: true,
                ..Side::default()
            },
            open: HashMap::new(),
            live: HashMap::new(),
            frees: 0,
        }
    }

    fn read(mut self) -> Side {
        let trace = self.trace;
        for event in &trace.events {
            match event {
                Event::Op {
                    id, name, thread, ..
                } => {
                    let open = self.open.entry(*thread).or_default();
                    if open.iter().all(|(op, _)| op.is_none()) {
                        self.side.ops.push(trace.text(*name).to_owned());
                    }
                    open.push((Some(*id), *name));
                }
                Event::End { id, .. } => self.close(|open| open.0 == Some(*id)),
                Event::Node { name, thread, .. } => {
                    self.open.entry(*thread).or_default().push((None, *name));
                }
                Event::NodeEnd { thread, .. } => {
                    let open = self.open.entry(*thread).or_default();
                    if let Some(at) = open.iter().rposition(|open| open.0.is_none()) {
                        open.remove(at);
                    }
                }
                // A request of 0 bytes gets no memory.
                Event::Alloc {
                    id,
                    bytes,
                    block,
                    stream,
                    thread,
                    ..
                } if *bytes > 0 => {
                    self.alloc(*id, *bytes, block.unwrap_or(*bytes), *stream, *thread);
                }
                Event::Free { id, .. } => {
                    let count = self.side.allocations.len();
                    let index = self.live.remove(id);
                    if let Some(made) = index.and_then(|at| self.side.allocations.get_mut(at)) {
                        made.freed = Some((count, self.frees));
                        self.frees += 1;
                    }
                }
                _ => {}
            }
        }
        self.side
    }

    fn close(&mut self, is_it: impl Fn(&Open) -> bool) {
        for open in self.open.values_mut() {
            if let Some(at) = open.iter().rposition(&is_it) {
                open.remove(at);
                return;
            }
        }
    }

    fn alloc(&mut self, id: u32, bytes: u64, block: u64, stream: Stream, thread: u32) {
        let trace = self.trace;
        let open = self
            .open
            .get(&thread)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let names: Vec<&str> = open.iter().map(|(_, name)| trace.text(*name)).collect();
        let life = self.memory.allocations.get(id as usize);
        let phase = life
            .and_then(|life| life.place.phase)
            .and_then(|index| self.memory.phases.get(index));
        let is_tensor = life.map(|life| life.sig.is_some() || life.name.is_some());
        self.live.insert(id, self.side.allocations.len());
        self.side.allocations.push(Made {
            bytes,
            block,
            stream,
            op: names.last().map(|name| (*name).to_owned()),
            module: life
                .and_then(|life| life.place.module)
                .map(|id| trace.text(id).to_owned()),
            phase: phase.map(|phase| phase.name.name()),
            class: class(&names, bytes, is_tensor, trace.header.device != "cpu"),
            freed: None,
        });
    }
}
