//! Following a trace, event by event: whose memory it is, and how much of it there is.

use std::collections::HashMap;

use super::super::{
    AllocatorStats, Arg, Category, Event, PhaseName, SegmentAction, Stat, TensorRef, Trace,
};
use super::{AllocationLife, MemoryTimeline, Peak, PhaseMemory, Place, Span};

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

pub(super) struct Follower<'a> {
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
    pub(super) fn new(trace: &'a Trace) -> Self {
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

    pub(super) fn event(&mut self, index: usize, event: &Event) {
        match event {
            Event::Phase { t, name, step } => self.begin(*t, *name, *step),
            Event::PhaseEnd {
                t,
                stats,
                device,
                device_ns,
            } => {
                if let Some(phase) = self.open.and_then(|index| self.phases.get_mut(index)) {
                    (phase.device, phase.device_ns) = (*device, *device_ns);
                }
                self.end(*t, stats.as_ref());
            }
            Event::Alloc {
                id,
                bytes,
                block,
                thread,
                ..
            } => self.alloc(index, *id, *bytes, block.unwrap_or(*bytes), *thread),
            Event::Extern { bytes, .. } => {
                self.push(index, *bytes, *bytes, false, Place::default(), None);
            }
            Event::Free { id, .. } => self.free(index, *id),
            Event::Segment { action, bytes, .. } => self.segment(*action, *bytes),
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
            _ => self.call(event),
        }
    }

    /// What modules, operators and autograd nodes do.
    fn call(&mut self, event: &Event) {
        match event {
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
            _ => {}
        }
    }

    fn segment(&mut self, action: SegmentAction, bytes: u64) {
        match action {
            SegmentAction::Alloc | SegmentAction::Map => {
                self.reserved = self.reserved.saturating_add(bytes);
                self.peak_reserved = self.peak_reserved.max(self.reserved);
            }
            SegmentAction::Free | SegmentAction::Unmap => {
                self.reserved = self.reserved.saturating_sub(bytes);
            }
            SegmentAction::Oom => {}
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
            device: None,
            device_ns: None,
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
            let span = |s: Stat| Span {
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

    pub(super) fn finish(mut self) -> MemoryTimeline {
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
