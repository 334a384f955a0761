//! From the measured run to the estimated one, step by step.

use super::align::{Slot, align};
use super::side::{Class, Made, Side};
use super::{DEVICE_USED, Difference, METRICS, Term};
use crate::simulate::{AllocConf, Allocator, BlockId, DeviceLimits, Placement, StatKind};

/// What a run looks like on the way from the measurement to the estimate.
#[derive(Debug, Clone, Default)]
struct Mix {
    /// Allocations that only one side has are those of the estimate, in these classes.
    classes: Vec<Class>,
    /// Allocations of both have the estimate's sizes.
    sizes: bool,
    /// They are freed when the estimate frees them.
    lifetimes: bool,
}

/// The steps, in order: a term, and what it changes.
const STEPS: [(&str, Step); 7] = [
    ("cudnn_workspace", Step::Class(Class::Cudnn)),
    ("cublas_workspace", Step::Class(Class::Cublas)),
    ("cublaslt_workspace", Step::Class(Class::CublasLt)),
    ("scratch", Step::Class(Class::Scratch)),
    (ROUNDING, Step::Sizes),
    (LIFETIMES, Step::Lifetimes),
    ("unexplained", Step::Class(Class::Other)),
];
const ROUNDING: &str = "rounding";
const LIFETIMES: &str = "lifetimes";

#[derive(Clone, Copy)]
enum Step {
    Class(Class),
    Sizes,
    Lifetimes,
}

/// Highest requested, allocated and reserved bytes; the last by the memory model, where there is a caching allocator.
type Peaks = [Option<u64>; 3];

/// Two sides brought into line.
pub(super) struct Pairing<'a> {
    estimated: &'a Side,
    measured: &'a Side,
    slots: Vec<Slot>,
    /// The slot of each allocation.
    estimated_slots: Vec<usize>,
    measured_slots: Vec<usize>,
}

impl<'a> Pairing<'a> {
    pub(super) fn of(estimated: &'a Side, measured: &'a Side) -> Self {
        let slots = align(estimated, measured);
        let (mut estimated_slots, mut measured_slots) = (Vec::new(), Vec::new());
        for (at, slot) in slots.iter().enumerate() {
            match slot {
                Slot::Both(..) => {
                    estimated_slots.push(at);
                    measured_slots.push(at);
                }
                Slot::Estimated(_) => estimated_slots.push(at),
                Slot::Measured(_) => measured_slots.push(at),
            }
        }
        Pairing {
            estimated,
            measured,
            slots,
            estimated_slots,
            measured_slots,
        }
    }

    /// The differences of the peaks in parts that add up to them.
    pub(super) fn terms(&self) -> Vec<Term> {
        let mut mix = Mix::default();
        let first = self.peaks(&mix);
        let mut before = first;
        let mut terms = Vec::new();
        for (term, step) in STEPS {
            match step {
                Step::Class(class) => mix.classes.push(class),
                Step::Sizes => mix.sizes = true,
                Step::Lifetimes => mix.lifetimes = true,
            }
            let after = self.peaks(&mix);
            for ((metric, before), after) in METRICS.into_iter().zip(before).zip(after) {
                terms.extend(part(metric, term, before, after));
            }
            before = after;
        }
        // What the two allocators did and the list of allocations does not say.
        let (ours, theirs) = (self.estimated.peaks(), self.measured.peaks());
        for (index, metric) in METRICS.into_iter().enumerate() {
            let at = |peaks: &Peaks| peaks.get(index).copied().flatten();
            let own = part(metric, "fragmentation", at(&theirs), at(&first));
            let others = part(metric, "fragmentation", at(&before), at(&ours));
            if let (Some(own), Some(others)) = (own, others) {
                let bytes = own
                    .bytes
                    .zip(others.bytes)
                    .map(|(a, b)| a.saturating_add(b));
                terms.push(Term { bytes, ..own });
            }
        }
        terms.extend(self.outside());
        // The metrics one after the other, each with its terms in the order of the steps.
        let place = |term: &Term| METRICS.iter().position(|metric| *metric == term.metric);
        terms.sort_by_key(|term| place(term).unwrap_or(METRICS.len()));
        terms
    }

    /// The whole device's memory in parts; on the CPU there is none.
    fn outside(&self) -> Vec<Term> {
        if self.measured.conf.is_none() {
            return Vec::new();
        }
        let [_, _, ours] = self.estimated.peaks();
        let [_, _, theirs] = self.measured.peaks();
        let known = self.measured.device_used.is_some();
        let reserved = part(DEVICE_USED, "reserved", theirs, ours).filter(|_| known);
        let context = part(
            DEVICE_USED,
            "context",
            self.measured.outside(),
            self.estimated.outside(),
        );
        let context = context.unwrap_or(Term {
            metric: DEVICE_USED,
            term: "context",
            bytes: None,
        });
        reserved.into_iter().chain([context]).collect()
    }

    /// Where an allocation of a side lies in the common order, and its end: a slot, and its place among all frees.
    fn end(&self, made: &Made, of_estimate: bool) -> Option<(usize, usize)> {
        let slots = if of_estimate {
            &self.estimated_slots
        } else {
            &self.measured_slots
        };
        let (count, rank) = made.freed?;
        Some((slots.get(count).copied().unwrap_or(self.slots.len()), rank))
    }

    /// Size, stream and end of what lies in a slot; none where the mix does not have it.
    fn in_slot(&self, slot: Slot, mix: &Mix) -> Option<Placed> {
        let placed = |made: &Made, of_estimate: bool| Placed {
            ask: made.bytes,
            bytes: made.bytes,
            block: made.block,
            stream: made.stream,
            end: self.end(made, of_estimate),
        };
        match slot {
            Slot::Both(ours, theirs) => {
                let ours = self.estimated.allocations.get(ours)?;
                let theirs = self.measured.allocations.get(theirs)?;
                let (sized, ended) = (
                    if mix.sizes { ours } else { theirs },
                    placed(if mix.lifetimes { ours } else { theirs }, mix.lifetimes).end,
                );
                let mut placed = placed(sized, mix.sizes);
                // The memory model rounds as the estimate does; another rounding is asked of it as such.
                if !mix.sizes && ours.block != theirs.block {
                    placed.ask = theirs.block;
                }
                placed.end = ended;
                Some(placed)
            }
            Slot::Estimated(ours) => {
                let ours = self.estimated.allocations.get(ours)?;
                mix.classes
                    .contains(&ours.class)
                    .then(|| placed(ours, true))
            }
            Slot::Measured(theirs) => {
                let theirs = self.measured.allocations.get(theirs)?;
                (!mix.classes.contains(&theirs.class)).then(|| placed(theirs, false))
            }
        }
    }

    fn peaks(&self, mix: &Mix) -> Peaks {
        let conf = self
            .estimated
            .conf
            .as_ref()
            .filter(|_| self.measured.conf.is_some());
        let mut ends: Vec<Vec<(usize, usize)>> = vec![Vec::new(); self.slots.len() + 1];
        let placed: Vec<Option<Placed>> = self
            .slots
            .iter()
            .map(|slot| self.in_slot(*slot, mix))
            .collect();
        for (at, one) in placed.iter().enumerate() {
            let Some((end, rank)) = one.as_ref().and_then(|placed| placed.end) else {
                continue;
            };
            // Nothing ends before it began, also where the two sides' ends are mixed.
            if let Some(ends) = ends.get_mut(end.max(at + 1)) {
                ends.push((rank, at));
            }
        }
        let mut memory = Memory::new(conf, self.slots.len());
        for (at, one) in placed.iter().enumerate() {
            let mut over = ends.get_mut(at).map(std::mem::take).unwrap_or_default();
            over.sort_unstable();
            for (_, freed) in over {
                if let Some(placed) = placed.get(freed).and_then(Option::as_ref) {
                    memory.free(freed, placed);
                }
            }
            if let Some(placed) = one {
                memory.alloc(at, placed);
            }
        }
        memory.peaks()
    }

    /// Where the sides differ, in order, those of one kind and place together.
    pub(super) fn differences(&self) -> Vec<Difference> {
        let mut all: Vec<Difference> = Vec::new();
        for slot in &self.slots {
            let Some((term, ours, theirs)) = self.difference(*slot) else {
                continue;
            };
            let Some(made) = theirs.or(ours) else {
                continue;
            };
            let known = all.iter_mut().find(|known| {
                (known.term, known.phase) == (term, made.phase)
                    && (&known.op, &known.module) == (&made.op, &made.module)
                    && known.estimated_bytes.is_some() == ours.is_some()
                    && known.measured_bytes.is_some() == theirs.is_some()
            });
            let (ours, theirs) = (ours.map(|made| made.block), theirs.map(|made| made.block));
            if let Some(known) = known {
                known.count += 1;
                let add = |sum: Option<u64>, more: Option<u64>| Some(sum?.saturating_add(more?));
                known.estimated_bytes = add(known.estimated_bytes, ours);
                known.measured_bytes = add(known.measured_bytes, theirs);
            } else {
                all.push(Difference {
                    term,
                    phase: made.phase,
                    op: made.op.clone(),
                    module: made.module.clone(),
                    count: 1,
                    estimated_bytes: ours,
                    measured_bytes: theirs,
                });
            }
        }
        all
    }

    /// What is not the same in a slot.
    fn difference(&self, slot: Slot) -> Option<(&'static str, Option<&Made>, Option<&Made>)> {
        let of_class = |class: Class| {
            let mut steps = STEPS.iter();
            let found = steps.find(|(_, step)| matches!(step, Step::Class(one) if *one == class));
            found.map(|(term, _)| *term)
        };
        match slot {
            Slot::Estimated(ours) => {
                let ours = self.estimated.allocations.get(ours)?;
                Some((of_class(ours.class)?, Some(ours), None))
            }
            Slot::Measured(theirs) => {
                let theirs = self.measured.allocations.get(theirs)?;
                Some((of_class(theirs.class)?, None, Some(theirs)))
            }
            Slot::Both(ours, theirs) => {
                let ours = self.estimated.allocations.get(ours)?;
                let theirs = self.measured.allocations.get(theirs)?;
                let term = if ours.block != theirs.block {
                    ROUNDING
                } else if self.next_shared(self.end(ours, true))
                    != self.next_shared(self.end(theirs, false))
                {
                    LIFETIMES
                } else {
                    return None;
                };
                Some((term, Some(ours), Some(theirs)))
            }
        }
    }

    /// The first slot of both sides at an end or after it: what only one side has lies between ends that are the same.
    fn next_shared(&self, end: Option<(usize, usize)>) -> Option<usize> {
        let (end, _) = end?;
        let rest = self.slots.get(end..).unwrap_or_default();
        let next = rest.iter().position(|slot| matches!(slot, Slot::Both(..)));
        Some(next.map_or(self.slots.len(), |next| end + next))
    }
}

fn part(
    metric: &'static str,
    term: &'static str,
    before: Option<u64>,
    after: Option<u64>,
) -> Option<Term> {
    let difference = i128::from(before?) - i128::from(after?);
    Some(Term {
        metric,
        term,
        bytes: i64::try_from(difference).ok(),
    })
}

/// An allocation of a mix.
#[derive(Debug, Clone, Copy)]
struct Placed {
    /// What is asked of the memory model.
    ask: u64,
    bytes: u64,
    block: u64,
    stream: u64,
    end: Option<(usize, usize)>,
}

/// Memory in use, and the memory model beside it.
struct Memory {
    requested: (u64, u64),
    allocated: (u64, u64),
    allocator: Option<Allocator>,
    blocks: Vec<Option<BlockId>>,
}

impl Memory {
    fn new(conf: Option<&AllocConf>, slots: usize) -> Self {
        let allocator = |conf: &AllocConf| {
            Allocator::new(conf.clone(), DeviceLimits::UNLIMITED, Placement::Upward)
        };
        Memory {
            requested: (0, 0),
            allocated: (0, 0),
            allocator: conf.map(allocator),
            blocks: vec![None; slots],
        }
    }

    fn alloc(&mut self, at: usize, placed: &Placed) {
        let add = |(now, peak): (u64, u64), bytes| {
            let now = now.saturating_add(bytes);
            (now, peak.max(now))
        };
        self.requested = add(self.requested, placed.bytes);
        self.allocated = add(self.allocated, placed.block);
        if let Some(allocator) = &mut self.allocator {
            // An unlimited device has memory for everything.
            let block = allocator.alloc(placed.ask, placed.stream).ok().flatten();
            if let Some(place) = self.blocks.get_mut(at) {
                *place = block;
            }
        }
    }

    fn free(&mut self, at: usize, placed: &Placed) {
        self.requested.0 = self.requested.0.saturating_sub(placed.bytes);
        self.allocated.0 = self.allocated.0.saturating_sub(placed.block);
        let block = self.blocks.get_mut(at).and_then(Option::take);
        if let (Some(allocator), Some(block)) = (&mut self.allocator, block) {
            // It came from this allocator and is freed once.
            let _ = allocator.free(block);
        }
    }

    fn peaks(&self) -> Peaks {
        let reserved = |allocator: &Allocator| {
            let stats = allocator.stats();
            stats.get(StatKind::ReservedBytes, None).peak
        };
        [
            Some(self.requested.1),
            Some(self.allocated.1),
            self.allocator.as_ref().map(reserved),
        ]
    }
}
