//! What a run showed: the exact report ([`RunReport`], the contract's `run`) and what people see of it ([`RunView`]).
//!
//! Both are made from a [`RunAnalysis`], which is made from nothing but the trace. Of a training run the last step is
//! described, where the optimizer's state is complete; the phases of all steps are under `measured`.

mod exact;
mod grids;
mod measured;
mod text;
mod view;

pub use exact::{
    ArgumentReport, CallOutputsReport, FunctionReport, InputReport, ModuleReport, OpReport,
    OpsReport, OutputReport, ParametersReport, RunReport, RunTotalsReport, TensorShape,
};
pub(super) use grids::grids;
use measured::MeasuredPhase;
pub use measured::MeasuredReport;
pub(super) use text::facts;
pub use view::{RunOrder, RunRow, RunRowKind, RunView, RunViewOptions};

use crate::trace::Trace;
use crate::trace::flops::Flops;
use crate::trace::memory::MemoryTimeline;
use crate::trace::modules::ModuleTree;
use crate::trace::ops::RunIndex;

/// Everything that a trace says of a run.
#[derive(Debug)]
pub struct RunAnalysis<'a> {
    /// The calls.
    pub index: RunIndex<'a>,
    /// The work of every operator.
    pub flops: Flops,
    /// The memory.
    pub memory: MemoryTimeline,
    /// The modules.
    pub tree: ModuleTree<'a>,
}

impl<'a> RunAnalysis<'a> {
    /// Analyses a trace. `declared` names modules with their classes, called or not, where they are known.
    #[must_use]
    pub fn new(trace: &'a Trace, declared: &[(&'a str, &'a str)]) -> Self {
        // Two walks over hundreds of thousands of events that know nothing of each other.
        let (memory, index, flops) = std::thread::scope(|scope| {
            let memory = scope.spawn(|| MemoryTimeline::of(trace));
            let index = RunIndex::new(trace);
            let flops = Flops::of(&index);
            // A panic there is a panic here.
            let memory = memory
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (memory, index, flops)
        });
        let tree = ModuleTree::new(&index, &flops, &memory, declared);
        RunAnalysis {
            index,
            flops,
            memory,
            tree,
        }
    }

    /// Whether the run trained.
    #[must_use]
    pub fn training(&self) -> bool {
        self.index.last_step().is_some()
    }

    /// The reported operators that no other operator called, by row of [`RunIndex::ops`].
    fn outermost(&self) -> impl Iterator<Item = usize> + '_ {
        let ops = self.index.ops.iter().enumerate();
        ops.filter(|(_, op)| op.parent.is_none() && !op.is_scope() && self.index.reported(op.phase))
            .map(|(id, _)| id)
    }
}
