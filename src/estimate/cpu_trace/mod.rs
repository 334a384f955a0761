//! A CPU's trace as the CUDA run it stands for: the fallback where there is no simulated device.
//!
//! libtorch makes the same tensors on both devices, so most allocations are the same. What differs is in the tables of
//! [`rules`]: memory that only the CPU's kernels need is left out, what CUDA's kernels need besides is added, and the
//! allocator model says where everything lies. The result is a trace like that of the simulated device, and whatever is
//! made of one can be made of it.

pub mod attention;
pub mod rules;
mod survey;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use crate::simulate::{AllocConf, Allocator, BlockId, DeviceEvent, DeviceLimits, Placement, Stats};
use crate::trace::{Allocation, Arg, Event, Header, PhaseName, SegmentAction, TensorRef, Trace};
use rules::Change;
use survey::Survey;

/// The device in the header of a converted trace.
pub const DEVICE: &str = "cuda-model";

/// A converted trace.
#[derive(Debug, Clone)]
pub struct Converted {
    /// The trace, up to the failure where memory ran out.
    pub trace: Trace,
    /// What could not be allocated, in words.
    pub out_of_memory: Option<String>,
    /// Operators whose memory on CUDA is known to differ and has no rule, by name, with how often they ran.
    pub without_rule: Vec<(String, u64)>,
}

/// What the converted run is for.
#[derive(Debug, Clone)]
pub struct Card {
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Settings of the allocator.
    pub conf: AllocConf,
    /// Their text.
    pub conf_text: Option<String>,
    /// Memory that the allocator may take.
    pub limits: DeviceLimits,
}

/// Converts a CPU's trace.
#[must_use]
pub fn as_cuda(trace: &Trace, card: &Card) -> Converted {
    let survey = Survey::of(trace);
    let without_rule = survey::without_rule(trace);
    let mut allocator = Allocator::new(card.conf.clone(), card.limits, Placement::Upward);
    allocator.record_device_events();
    let mut writer = Writer {
        trace,
        survey,
        card,
        started: *allocator.stats(),
        allocator,
        events: Vec::with_capacity(trace.events.len()),
        allocations: Vec::new(),
        ids: HashMap::new(),
        blocks: HashMap::new(),
        extras: HashMap::new(),
        workspaces: [false; 2],
        lt_workspace: false,
        nodes: 0,
        phase: None,
    };
    let out_of_memory = trace
        .events
        .iter()
        .enumerate()
        .find_map(|(index, event)| writer.event(index, event).err());
    Converted {
        trace: Trace {
            header: Header {
                device: DEVICE.to_owned(),
                alloc_conf: card.conf_text.clone(),
                ..trace.header.clone()
            },
            texts: trace.texts.clone(),
            sigs: trace.sigs.clone(),
            allocations: writer.allocations,
            op_count: trace.op_count,
            events: writer.events,
        },
        out_of_memory,
        without_rule,
    }
}

struct Writer<'a> {
    trace: &'a Trace,
    survey: Survey<'a>,
    card: &'a Card,
    allocator: Allocator,
    started: Stats,
    events: Vec<Event>,
    allocations: Vec<Allocation>,
    /// New numbers of the allocations that are kept.
    ids: HashMap<u32, u32>,
    /// Blocks by new number.
    blocks: HashMap<u32, BlockId>,
    /// What was added for an operator, freed when it ends.
    extras: HashMap<u32, u32>,
    /// Whether the forward thread and autograd's have their cuBLAS workspace.
    workspaces: [bool; 2],
    lt_workspace: bool,
    /// Open autograd nodes.
    nodes: usize,
    phase: Option<PhaseName>,
}

impl Writer<'_> {
    /// Writes what becomes of an event; an error where memory runs out.
    fn event(&mut self, index: usize, event: &Event) -> Result<(), String> {
        match event {
            Event::Phase { name, .. } => {
                self.phase = Some(*name);
                self.allocator.stats_mut().reset_peak();
                self.started = *self.allocator.stats();
                self.events.push(event.clone());
            }
            Event::PhaseEnd { t, .. } => self.phase_end(*t),
            Event::Alloc {
                t,
                id,
                bytes,
                thread,
                ..
            } => {
                let bytes = match self.survey.change(*id) {
                    Change::Keep => *bytes,
                    Change::Drop => return Ok(()),
                    Change::Resize(bytes) => bytes,
                };
                let new = self.alloc(*t, bytes, *thread)?;
                self.ids.insert(*id, new);
            }
            Event::Free { t, id } => {
                if let Some(new) = self.ids.get(id).copied() {
                    self.free(*t, new);
                }
            }
            Event::Extern { id, bytes } => {
                let new = self.number(*bytes, *bytes, false);
                self.ids.insert(*id, new);
                self.events.push(Event::Extern {
                    id: new,
                    bytes: *bytes,
                });
            }
            Event::Label {
                id,
                sig,
                category,
                name,
            } => {
                if let Some(id) = self.ids.get(id).copied() {
                    self.events.push(Event::Label {
                        id,
                        sig: *sig,
                        category: *category,
                        name: name.clone(),
                    });
                }
            }
            _ => return self.call(index, event),
        }
        Ok(())
    }

    fn call(&mut self, index: usize, event: &Event) -> Result<(), String> {
        match event {
            Event::Op {
                t,
                id,
                name,
                args,
                thread,
                ..
            } => {
                let name = self.trace.text(*name);
                let extra = rules::extra_bytes(name, args, self.trace);
                let multiplies = rules::multiplies(name);
                self.events.push(self.renumbered(event));
                if multiplies && !self.survey.on_host(index) {
                    self.workspaces(*t, *thread, rules::has_bias(name))?;
                }
                if let Some(bytes) = extra {
                    let extra = self.alloc(*t, bytes, *thread)?;
                    self.extras.insert(*id, extra);
                }
            }
            Event::End { t, id, .. } => {
                if let Some(extra) = self.extras.remove(id) {
                    self.free(*t, extra);
                }
                self.events.push(self.renumbered(event));
            }
            Event::Node { .. } => {
                self.nodes += 1;
                self.events.push(event.clone());
            }
            Event::NodeEnd { .. } => {
                self.nodes = self.nodes.saturating_sub(1);
                self.events.push(event.clone());
            }
            // The CPU has no segments.
            Event::Segment { .. } => {}
            _ => self.events.push(self.renumbered(event)),
        }
        Ok(())
    }

    /// PyTorch keeps a cuBLAS workspace for each thread that multiplies, and one for cuBLASLt.
    fn workspaces(&mut self, t: u64, thread: u32, bias: bool) -> Result<(), String> {
        let backward = usize::from(self.nodes > 0);
        if let Some(has @ false) = self.workspaces.get_mut(backward) {
            *has = true;
            let bytes = rules::cublas_workspace_bytes(self.card.compute_capability);
            self.alloc(t, bytes, thread)?;
        }
        if bias && !self.lt_workspace {
            self.lt_workspace = true;
            self.alloc(t, rules::CUBLASLT_WORKSPACE_BYTES, thread)?;
        }
        Ok(())
    }

    fn number(&mut self, bytes: u64, block: u64, recorded: bool) -> u32 {
        let id = u32::try_from(self.allocations.len()).unwrap_or(u32::MAX);
        self.allocations.push(Allocation {
            bytes,
            block,
            recorded,
        });
        id
    }

    fn alloc(&mut self, t: u64, bytes: u64, thread: u32) -> Result<u32, String> {
        let got = self.allocator.alloc(bytes, 0);
        self.device_events(t);
        let block = match got {
            Ok(block) => block,
            Err(error) => {
                self.events.push(Event::Segment {
                    t,
                    action: SegmentAction::Oom,
                    addr: error.limit_bytes.saturating_sub(error.reserved_bytes),
                    bytes: error.tried_bytes,
                    stream: 0,
                });
                if self.phase.is_some() {
                    self.phase_end(t);
                }
                return Err(error.to_string());
            }
        };
        let view = block.and_then(|block| self.allocator.block(block));
        let (addr, size) = view.map_or((0, 0), |view| (view.addr, view.size_bytes));
        let id = self.number(bytes, size, true);
        self.blocks.extend(block.map(|block| (id, block)));
        self.events.push(Event::Alloc {
            t,
            id,
            bytes,
            block: Some(size),
            addr,
            stream: 0,
            thread,
        });
        Ok(id)
    }

    fn free(&mut self, t: u64, id: u32) {
        if let Some(block) = self.blocks.remove(&id) {
            // It came from this allocator and is freed once: the trace's reader has seen to it.
            let _ = self.allocator.free(block);
        }
        self.events.push(Event::Free { t, id });
    }

    fn device_events(&mut self, t: u64) {
        for event in self.allocator.take_device_events() {
            let range = event.range();
            self.events.push(Event::Segment {
                t,
                action: match event {
                    DeviceEvent::SegmentAlloc(_) => SegmentAction::Alloc,
                    DeviceEvent::SegmentFree(_) => SegmentAction::Free,
                    DeviceEvent::SegmentMap(_) => SegmentAction::Map,
                    DeviceEvent::SegmentUnmap(_) => SegmentAction::Unmap,
                },
                addr: range.addr,
                bytes: range.bytes,
                stream: range.stream,
            });
        }
    }

    fn phase_end(&mut self, t: u64) {
        self.phase = None;
        let now = self.allocator.stats();
        let stats = Some(now.since(&self.started));
        self.events.push(Event::PhaseEnd {
            t,
            stats,
            device: None,
            device_ns: None,
        });
    }

    /// The event with the allocations' new numbers; a tensor whose memory was left out has none.
    fn renumbered(&self, event: &Event) -> Event {
        let tensor = |tensor: &mut TensorRef| {
            tensor.alloc = tensor.alloc.and_then(|id| self.ids.get(&id).copied());
        };
        let mut event = event.clone();
        match &mut event {
            Event::Op { args, .. } | Event::End { out: args, .. } => {
                for arg in args {
                    each_tensor(arg, &tensor);
                }
            }
            Event::Exit { out, .. } => out.iter_mut().for_each(tensor),
            Event::Output { tensor: output, .. } => tensor(output),
            _ => {}
        }
        event
    }
}

fn each_tensor(arg: &mut Arg, change: &impl Fn(&mut TensorRef)) {
    match arg {
        Arg::Tensor(tensor) => change(tensor),
        Arg::List(items) => items.iter_mut().for_each(|item| each_tensor(item, change)),
        _ => {}
    }
}
