//! Memory over a run: what each allocation was for, what was live when, and where the peak was.
//!
//! Everything is decided from what really happened to an allocation (see [`Category`]):
//!
//! | category | decided by |
//! |---|---|
//! | parameters, buffers, inputs, optimizer state, gradients of parameters | the engine's label |
//! | temporaries | freed before the outermost operator that allocated it ended; in the optimizer's step, before that ended |
//! | activations | allocated in the forward pass, seen as an operator's or module's tensor, outlived its operator |
//! | gradients | likewise in the backward pass: gradients of activations |
//! | workspaces | on CUDA: allocated inside an operator, outlived it, never seen as a tensor |
//! | other | the rest: loading, making inputs |
//!
//! Invariant: at every event the categories' bytes add up to the allocator's live bytes, because each allocation has
//! exactly one category for its whole life.

use std::collections::HashMap;

use super::{AllocatorStats, Arg, Category, Event, PhaseName, SegmentAction, TensorRef, Trace};

/// Where in the run something happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// Index into [`MemoryTimeline::phases`]; none between phases.
    pub phase: Option<usize>,
    /// Name of the outermost operator, else of the autograd node (text number).
    pub op: Option<u32>,
    /// Path of the innermost module; in the backward pass that of the forward operator (text number).
    pub module: Option<u32>,
}

/// One allocation and its life.
#[derive(Debug, Clone, PartialEq)]
pub struct AllocationLife {
    /// Requested bytes.
    pub bytes: u64,
    /// Allocated bytes.
    pub block: u64,
    /// False for memory from before the recording: it counts nowhere.
    pub recorded: bool,
    /// Where it was made.
    pub place: Place,
    /// What it was for.
    pub category: Category,
    /// Name given by the engine, such as a parameter's.
    pub name: Option<String>,
    /// Metadata of the first tensor seen in it (number of the `sig` event).
    pub sig: Option<u32>,
    /// Index of its `alloc` event in [`Trace::events`].
    pub born: usize,
    /// Index of its `free` event.
    pub died: Option<usize>,
    /// In training: an activation still alive when its forward pass ended, that is, kept for the backward pass (or
    /// returned to the caller).
    pub saved: bool,
}

/// Start, highest and last value of one figure within a phase, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// When the phase began.
    pub start: u64,
    /// Highest.
    pub peak: u64,
    /// When it ended.
    pub end: u64,
}

/// Memory in one phase.
#[derive(Debug, Clone, PartialEq)]
pub struct PhaseMemory {
    /// Which.
    pub name: PhaseName,
    /// Training step, from 1.
    pub step: Option<u32>,
    /// When it began and ended, ns.
    pub time: (u64, u64),
    /// Requested bytes.
    pub requested: Span,
    /// Allocated bytes.
    pub allocated: Span,
    /// Active bytes; none where the allocator has no such figure (CPU).
    pub active: Option<Span>,
    /// Reserved bytes; likewise.
    pub reserved: Option<Span>,
}

/// The moment with the most allocated bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Peak {
    /// Index of the event that reached it.
    pub event: usize,
    /// Where the run was.
    pub place: Place,
    /// Allocated bytes.
    pub allocated: u64,
    /// Requested bytes at that moment.
    pub requested: u64,
    /// Bytes got from the device at that moment; none on the CPU.
    pub reserved: Option<u64>,
    /// What was live, largest first, equal ones in order of allocation (numbers of allocations).
    pub live: Vec<u32>,
}

/// The whole run's memory.
#[derive(Debug, Clone)]
pub struct MemoryTimeline {
    /// By allocation number.
    pub allocations: Vec<AllocationLife>,
    /// In order.
    pub phases: Vec<PhaseMemory>,
    /// The highest moment; none where nothing was allocated.
    pub peak: Option<Peak>,
    /// Most allocated bytes live while inside a module, by path (text number).
    pub module_peaks: HashMap<u32, u64>,
    /// Highest reserved bytes; none on the CPU.
    pub peak_reserved: Option<u64>,
    /// Failed device allocations that emptied the cache and tried again.
    pub retries: u64,
    /// Out-of-memory errors.
    pub out_of_memory: u64,
}

impl MemoryTimeline {
    /// Follows a trace from start to end.
    #[must_use]
    pub fn of(trace: &Trace) -> MemoryTimeline {
        let mut follower = Follower::new(trace);
        for (index, event) in trace.events.iter().enumerate() {
            follower.event(index, event);
        }
        follower.finish()
    }

    /// Requested bytes by category at the peak.
    #[must_use]
    pub fn categories_at_peak(&self) -> Vec<(Category, u64)> {
        let live = self.peak.iter().flat_map(|peak| &peak.live);
        let mut sums: Vec<(Category, u64)> =
            CATEGORIES.iter().map(|category| (*category, 0)).collect();
        for life in live.filter_map(|id| self.allocations.get(*id as usize)) {
            if let Some(sum) = sums.iter_mut().find(|sum| sum.0 == life.category) {
                sum.1 += life.bytes;
            }
        }
        sums
    }
}

/// Every category, in the order of reports.
pub const CATEGORIES: [Category; 9] = [
    Category::Parameters,
    Category::Buffers,
    Category::Inputs,
    Category::Activations,
    Category::Gradients,
    Category::OptimizerState,
    Category::Temporaries,
    Category::Workspaces,
    Category::Other,
];

/// What is open on one thread.
#[derive(Debug, Default)]
struct ThreadState {
    ops: Vec<(u32, u32)>,           // (number, name)
    nodes: Vec<(u32, Option<u32>)>, // (name, module of its forward operator)
    modules: Vec<u32>,
}

/// The highest moment so far, kept without its list of live allocations: that is rebuilt once, at the end.
#[derive(Debug, Clone, Copy)]
struct High {
    event: usize,
    place: Place,
    allocated: u64,
    requested: u64,
    reserved: u64,
}

struct Follower<'a> {
    trace: &'a Trace,
    on_cuda: bool,
    threads: HashMap<u32, ThreadState>,
    op_threads: HashMap<u32, u32>,
    /// Module of the last forward operator with a sequence number.
    forward_modules: HashMap<i64, Option<u32>>,
    lives: Vec<AllocationLife>,
    /// For each allocation made inside an operator: that operator's number; `None` after it ended.
    inside: Vec<Option<u32>>,
    /// Allocations made inside an open outermost operator.
    pending: HashMap<u32, Vec<u32>>,
    phases: Vec<PhaseMemory>,
    open: Option<usize>,
    requested: u64,
    allocated: u64,
    reserved: u64,
    peak_reserved: u64,
    high: Option<High>,
    module_peaks: HashMap<u32, u64>,
    stats: AllocatorStats,
}

impl<'a> Follower<'a> {
    fn new(trace: &'a Trace) -> Self {
        Follower {
            trace,
            on_cuda: trace.header.device != "cpu",
            threads: HashMap::new(),
            op_threads: HashMap::new(),
            forward_modules: HashMap::new(),
            lives: Vec::with_capacity(trace.allocations.len()),
            inside: Vec::with_capacity(trace.allocations.len()),
            pending: HashMap::new(),
            phases: Vec::new(),
            open: None,
            requested: 0,
            allocated: 0,
            reserved: 0,
            peak_reserved: 0,
            high: None,
            module_peaks: HashMap::new(),
            stats: AllocatorStats::default(),
        }
    }

    fn event(&mut self, index: usize, event: &Event) {
        match event {
            Event::Phase { t, name, step } => self.begin(*t, *name, *step),
            Event::PhaseEnd { t, stats } => self.end(*t, stats.as_ref()),
            Event::Enter { path, thread, .. } => {
                self.threads.entry(*thread).or_default().modules.push(*path);
                let live = self.allocated;
                let peak = self.module_peaks.entry(*path).or_default();
                *peak = (*peak).max(live);
            }
            Event::Exit { out, thread, .. } => {
                for tensor in out {
                    self.seen(*tensor);
                }
                self.threads.entry(*thread).or_default().modules.pop();
            }
            Event::Op {
                id,
                name,
                seq,
                args,
                thread,
                ..
            } => self.op(*id, *name, *seq, args, *thread),
            Event::End { id, out, .. } => self.op_end(*id, out),
            Event::Node {
                name, seq, thread, ..
            } => {
                let module = seq.and_then(|seq| self.forward_modules.get(&seq).copied().flatten());
                let state = self.threads.entry(*thread).or_default();
                // Engine and node both report a node: the inner one may lack the number.
                let module = module.or_else(|| state.nodes.last().and_then(|outer| outer.1));
                state.nodes.push((*name, module));
            }
            Event::NodeEnd { thread, .. } => {
                self.threads.entry(*thread).or_default().nodes.pop();
            }
            Event::Alloc {
                id,
                bytes,
                block,
                thread,
                ..
            } => {
                self.alloc(index, *id, *bytes, block.unwrap_or(*bytes), *thread);
            }
            Event::Extern { bytes, .. } => {
                self.push(index, *bytes, *bytes, false, Place::default(), None);
            }
            Event::Free { id, .. } => self.free(index, *id),
            Event::Segment { action, bytes, .. } => match action {
                SegmentAction::Alloc | SegmentAction::Map => {
                    self.reserved = self.reserved.saturating_add(*bytes);
                    self.peak_reserved = self.peak_reserved.max(self.reserved);
                }
                SegmentAction::Free | SegmentAction::Unmap => {
                    self.reserved = self.reserved.saturating_sub(*bytes);
                }
                SegmentAction::Oom => {}
            },
            Event::Label {
                id,
                sig,
                category,
                name,
            } => {
                if let Some(life) = self.lives.get_mut(*id as usize) {
                    life.category = *category;
                    life.name = Some(name.clone());
                    life.sig = life.sig.or(*sig);
                }
            }
            Event::Header(_)
            | Event::Str { .. }
            | Event::Sig { .. }
            | Event::Argument { .. }
            | Event::Output { .. } => {}
        }
    }

    fn begin(&mut self, t: u64, name: PhaseName, step: Option<u32>) {
        let span = |now| Span {
            start: now,
            peak: now,
            end: now,
        };
        self.open = Some(self.phases.len());
        self.phases.push(PhaseMemory {
            name,
            step,
            time: (t, t),
            requested: span(self.requested),
            allocated: span(self.allocated),
            active: None,
            reserved: self.on_cuda.then(|| span(self.reserved)),
        });
    }

    fn end(&mut self, t: u64, stats: Option<&AllocatorStats>) {
        let Some(index) = self.open.take() else {
            return;
        };
        let Some(phase) = self.phases.get_mut(index) else {
            return;
        };
        phase.time.1 = t;
        phase.requested.end = self.requested;
        phase.allocated.end = self.allocated;
        if let Some(stats) = stats {
            let span = |s: super::Stat| Span {
                start: s.start,
                peak: s.peak,
                end: s.current,
            };
            phase.requested = span(stats.requested_bytes);
            phase.allocated = span(stats.allocated_bytes);
            phase.active = Some(span(stats.active_bytes));
            phase.reserved = Some(span(stats.reserved_bytes));
            self.peak_reserved = self.peak_reserved.max(stats.reserved_bytes.peak);
            self.stats = *stats;
        } else if let Some(reserved) = &mut phase.reserved {
            reserved.end = self.reserved;
        }
        self.settle(index);
    }

    /// What is still alive when a phase ends has shown what it is.
    fn settle(&mut self, phase: usize) {
        let name = self.phases.get(phase).map(|p| p.name);
        let training = self.trace.header.mode == "train";
        for life in &mut self.lives {
            let here = life.place.phase == Some(phase) && life.died.is_none();
            if here
                && name == Some(PhaseName::Forward)
                && training
                && life.category == Category::Activations
            {
                life.saved = true;
            }
        }
    }

    fn op(&mut self, id: u32, name: u32, seq: Option<i64>, args: &[Arg], thread: u32) {
        for tensor in args.iter().flat_map(Arg::tensors) {
            self.seen(tensor);
        }
        let forward = self.phase_name() == Some(PhaseName::Forward);
        let state = self.threads.entry(thread).or_default();
        state.ops.push((id, name));
        if let (true, Some(seq)) = (forward, seq) {
            self.forward_modules
                .insert(seq, state.modules.last().copied());
        }
        self.op_threads.insert(id, thread);
    }

    fn op_end(&mut self, id: u32, out: &[Arg]) {
        for tensor in out.iter().flat_map(Arg::tensors) {
            self.seen(tensor);
        }
        if let Some(thread) = self.op_threads.remove(&id) {
            let state = self.threads.entry(thread).or_default();
            if state.ops.last().is_some_and(|op| op.0 == id) {
                state.ops.pop();
            }
        }
        let Some(made) = self.pending.remove(&id) else {
            return;
        };
        for allocation in made {
            if let Some(inside) = self.inside.get_mut(allocation as usize) {
                *inside = None;
            }
        }
    }

    /// A tensor was seen: its memory holds one, of this shape.
    fn seen(&mut self, tensor: TensorRef) {
        if let Some(life) = tensor.alloc.and_then(|id| self.lives.get_mut(id as usize)) {
            life.sig.get_or_insert(tensor.sig);
        }
    }

    fn phase_name(&self) -> Option<PhaseName> {
        self.open
            .and_then(|index| self.phases.get(index))
            .map(|phase| phase.name)
    }

    fn place(&self, thread: u32) -> Place {
        let state = self.threads.get(&thread);
        let node = state.and_then(|s| s.nodes.last().copied());
        Place {
            phase: self.open,
            op: state
                .and_then(|s| s.ops.first().map(|op| op.1))
                .or(node.map(|node| node.0)),
            module: node.map_or_else(
                || state.and_then(|s| s.modules.last().copied()),
                |node| node.1,
            ),
        }
    }

    fn alloc(&mut self, index: usize, id: u32, bytes: u64, block: u64, thread: u32) {
        let place = self.place(thread);
        let outermost = self
            .threads
            .get(&thread)
            .and_then(|s| s.ops.first())
            .map(|op| op.0);
        self.push(index, bytes, block, true, place, outermost);
        if let Some(op) = outermost {
            self.pending.entry(op).or_default().push(id);
        }
        self.requested = self.requested.saturating_add(bytes);
        self.allocated = self.allocated.saturating_add(block);
        if let Some(phase) = self.open.and_then(|i| self.phases.get_mut(i)) {
            phase.requested.peak = phase.requested.peak.max(self.requested);
            phase.allocated.peak = phase.allocated.peak.max(self.allocated);
        }
        for state in self.threads.values() {
            for path in &state.modules {
                let peak = self.module_peaks.entry(*path).or_default();
                *peak = (*peak).max(self.allocated);
            }
        }
        if self.high.is_none_or(|high| self.allocated > high.allocated) {
            self.high = Some(High {
                event: index,
                place,
                allocated: self.allocated,
                requested: self.requested,
                reserved: self.reserved,
            });
        }
    }

    fn push(
        &mut self,
        index: usize,
        bytes: u64,
        block: u64,
        recorded: bool,
        place: Place,
        inside: Option<u32>,
    ) {
        // Decided at its death or at the end; until then it is what an unlabelled allocation of its phase would be.
        let category = match self.phase_name() {
            Some(PhaseName::Forward) => Category::Activations,
            Some(PhaseName::Backward) => Category::Gradients,
            Some(PhaseName::Optimizer) => Category::Temporaries,
            _ => Category::Other,
        };
        self.lives.push(AllocationLife {
            bytes,
            block,
            recorded,
            place,
            category,
            name: None,
            sig: None,
            born: index,
            died: None,
            saved: false,
        });
        self.inside.push(inside);
    }

    fn free(&mut self, index: usize, id: u32) {
        let Some(life) = self.lives.get_mut(id as usize) else {
            return;
        };
        life.died = Some(index);
        if self.inside.get(id as usize).copied().flatten().is_some() && life.name.is_none() {
            life.category = Category::Temporaries;
        }
        self.requested = self.requested.saturating_sub(life.bytes);
        self.allocated = self.allocated.saturating_sub(life.block);
    }

    fn finish(mut self) -> MemoryTimeline {
        let phases = &self.phases;
        for life in &mut self.lives {
            let run_phase = life
                .place
                .phase
                .and_then(|i| phases.get(i))
                .is_some_and(|p| {
                    matches!(
                        p.name,
                        PhaseName::Forward | PhaseName::Backward | PhaseName::Optimizer
                    )
                });
            let settled = life.name.is_some()
                || life.category == Category::Temporaries && life.died.is_some();
            if run_phase && !settled && life.sig.is_none() {
                life.category = if self.on_cuda {
                    Category::Workspaces
                } else {
                    Category::Other
                };
                life.saved = false;
            } else if run_phase && !settled && life.category == Category::Temporaries {
                // Made in the optimizer's step and never freed, yet not labelled as its state.
                life.category = Category::Other;
            }
        }
        let reserved = |value: u64| self.on_cuda.then_some(value);
        let peak = self.high.map(|high| Peak {
            event: high.event,
            place: high.place,
            allocated: high.allocated,
            requested: high.requested,
            reserved: reserved(high.reserved),
            live: live_at(&self.lives, high.event),
        });
        MemoryTimeline {
            peak,
            peak_reserved: reserved(self.peak_reserved),
            allocations: self.lives,
            phases: self.phases,
            module_peaks: self.module_peaks,
            retries: self.stats.num_alloc_retries,
            out_of_memory: self.stats.num_ooms,
        }
    }
}

/// Allocations alive right after event `index`, largest first.
fn live_at(lives: &[AllocationLife], index: usize) -> Vec<u32> {
    let mut live: Vec<(u64, u32)> = lives
        .iter()
        .zip(0_u32..)
        .filter(|(life, _)| {
            life.recorded && life.born <= index && life.died.is_none_or(|died| died > index)
        })
        .map(|(life, id)| (life.bytes, id))
        .collect();
    live.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    live.into_iter().map(|(_, id)| id).collect()
}

#[cfg(test)]
mod tests {
    use super::super::TraceReader;
    use super::*;

    fn trace(device: &str, mode: &str, lines: &[&str]) -> Trace {
        let mut reader = TraceReader::new();
        reader
            .line(&format!(
                r#"{{"header":{{"version":1,"device":"{device}","libtorch_version":"2.11.0","mode":"{mode}","method":"forward"}}}}"#
            ))
            .unwrap();
        for (id, text) in ["aten::conv2d", "", "fc", "ConvolutionBackward0"]
            .iter()
            .enumerate()
        {
            reader
                .line(&format!(r#"{{"str":{{"id":{id},"text":"{text}"}}}}"#))
                .unwrap();
        }
        reader
            .line(r#"{"sig":{"id":0,"dtype":"float32","shape":[4],"bytes":16}}"#)
            .unwrap();
        for line in lines {
            reader.line(line).unwrap();
        }
        reader.finish().unwrap()
    }

    /// One step of training: a parameter, an activation with a temporary beside it, a workspace, a gradient.
    fn step() -> Trace {
        trace(
            "cuda-sim",
            "train",
            &[
                r#"{"phase":{"t":0,"name":"load"}}"#,
                r#"{"segment":{"t":0,"action":"alloc","addr":0,"bytes":2097152}}"#,
                r#"{"alloc":{"t":1,"id":0,"bytes":100,"block":512,"addr":0}}"#,
                r#"{"label":{"id":0,"category":"parameters","name":"fc.weight"}}"#,
                r#"{"phase_end":{"t":2}}"#,
                r#"{"phase":{"t":3,"name":"forward","step":1}}"#,
                r#"{"enter":{"t":3,"path":2,"class":1}}"#,
                r#"{"op":{"t":4,"id":0,"name":0,"seq":7,"args":[[0,0]]}}"#,
                r#"{"alloc":{"t":5,"id":1,"bytes":16,"block":512,"addr":512}}"#,
                r#"{"alloc":{"t":5,"id":2,"bytes":600,"block":1024,"addr":1024}}"#,
                r#"{"alloc":{"t":5,"id":3,"bytes":2048,"block":2048,"addr":2048}}"#,
                r#"{"free":{"t":6,"id":2}}"#,
                r#"{"end":{"t":7,"id":0,"out":[[0,1]]}}"#,
                r#"{"exit":{"t":8,"out":[[0,1]]}}"#,
                r#"{"phase_end":{"t":9}}"#,
                r#"{"phase":{"t":10,"name":"backward","step":1}}"#,
                r#"{"node":{"t":10,"name":3,"seq":7,"thread":1}}"#,
                r#"{"op":{"t":11,"id":1,"name":0,"args":[[0,1]],"thread":1}}"#,
                r#"{"alloc":{"t":12,"id":4,"bytes":100,"block":512,"addr":1024,"thread":1}}"#,
                r#"{"end":{"t":13,"id":1,"out":[[0,4]]}}"#,
                r#"{"node_end":{"t":13,"thread":1}}"#,
                r#"{"free":{"t":14,"id":1}}"#,
                r#"{"phase_end":{"t":15}}"#,
            ],
        )
    }

    #[test]
    fn categories_follow_lifetimes() {
        let memory = MemoryTimeline::of(&step());
        let categories: Vec<Category> = memory
            .allocations
            .iter()
            .map(|life| life.category)
            .collect();
        assert_eq!(
            categories,
            [
                Category::Parameters,
                Category::Activations,
                Category::Temporaries,
                Category::Workspaces,
                Category::Gradients
            ]
        );
        let saved: Vec<bool> = memory.allocations.iter().map(|life| life.saved).collect();
        assert_eq!(saved, [false, true, false, false, false]);
    }

    #[test]
    fn the_peak_adds_up() {
        let memory = MemoryTimeline::of(&step());
        let peak = memory.peak.as_ref().unwrap();
        assert_eq!(peak.allocated, 512 + 512 + 1024 + 2048);
        assert_eq!(peak.requested, 100 + 16 + 600 + 2048);
        assert_eq!(peak.reserved, Some(2_097_152));
        assert_eq!(peak.live, [3, 2, 0, 1]);
        let sum: u64 = memory
            .categories_at_peak()
            .iter()
            .map(|(_, bytes)| bytes)
            .sum();
        assert_eq!(sum, peak.requested);
        assert_eq!(memory.module_peaks.get(&2), Some(&peak.allocated));
    }

    #[test]
    fn a_backward_node_belongs_to_its_forward_module() {
        let memory = MemoryTimeline::of(&step());
        let gradient = memory.allocations.get(4).unwrap();
        assert_eq!(
            gradient.place,
            Place {
                phase: Some(2),
                op: Some(0),
                module: Some(2)
            }
        );
    }

    #[test]
    fn phases_without_the_allocators_figures_are_followed() {
        let memory = MemoryTimeline::of(&step());
        let forward = memory.phases.get(1).unwrap();
        assert_eq!(
            forward.requested,
            Span {
                start: 100,
                peak: 2764,
                end: 2164
            }
        );
        assert_eq!(forward.reserved.map(|r| r.end), Some(2_097_152));
        let cpu = MemoryTimeline::of(&trace(
            "cpu",
            "inference",
            &[
                r#"{"phase":{"t":0,"name":"forward"}}"#,
                r#"{"phase_end":{"t":2}}"#,
            ],
        ));
        assert_eq!(cpu.phases.first().map(|p| p.reserved), Some(None));
        assert!(cpu.peak.is_none());
    }
}
