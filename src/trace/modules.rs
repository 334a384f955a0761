//! The modules of a run as a tree by path, with what each did.
//!
//! A module's place is its path, whoever called it, so that a tree adds up: a module's multiply-accumulates, times and
//! kept bytes are its own operators' plus its children's, and the root's are the run's. Modules that were never called
//! (lists, dicts, modules whose parameters are used directly) are in the tree too. Of a training run the last step is
//! described: state is complete there.
//!
//! Operators that a module calls itself are its [`Function`]s: a residual add, a relu, a view. Equal ones (name and
//! result) are one row with a count.

use std::collections::{HashMap, HashSet};

use super::flops::{Flops, Work};
use super::memory::MemoryTimeline;
use super::ops::{CallId, Op, RunIndex};
use super::{Arg, Category, PhaseName, TensorRef};

/// Row of [`ModuleTree::modules`].
pub type ModuleId = usize;

/// The root: path `""`.
pub const ROOT: ModuleId = 0;

/// Deepest module; deeper ones are told under the last level.
const MAX_DEPTH: usize = 200;

/// The tree of a run's modules.
#[derive(Debug)]
pub struct ModuleTree<'a> {
    /// Modules; the root first, parents before children.
    pub modules: Vec<Module<'a>>,
    by_path: HashMap<&'a str, ModuleId>,
}

/// What a module has below it, in order of first use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Child {
    /// A module.
    Module(ModuleId),
    /// Row of [`Module::functions`].
    Function(usize),
}

/// One module.
#[derive(Debug, Default)]
pub struct Module<'a> {
    /// Its path; empty for the root.
    pub path: &'a str,
    /// Its class; `None` for one that was neither called nor declared.
    pub class: Option<&'a str>,
    /// The module around it; `None` for the root.
    pub parent: Option<ModuleId>,
    /// Parts of its path.
    pub depth: usize,
    /// Modules and functions below it.
    pub children: Vec<Child>,
    /// Calls.
    pub calls: u64,
    /// What its calls returned, one entry for calls in a row that returned tensors of the same shapes and dtypes.
    pub outputs_of_calls: Vec<CallOutputs>,
    /// Own parameters, shared ones at their first owner.
    pub parameters: Parameters,
    /// Forward work, with children.
    pub forward: Work,
    /// Backward work, with children.
    pub backward: Work,
    /// Forward time, with children.
    pub time_ns: u64,
    /// Backward time, with children.
    pub backward_time_ns: u64,
    /// Most memory live inside it or a child; `None` for one that was never called.
    pub peak_bytes: Option<u64>,
    /// Made by it or a child and there when the backward pass begins.
    pub saved_bytes: u64,
    /// Operators that it calls itself.
    pub functions: Vec<Function<'a>>,
}

/// What several calls of a module, one after the other, returned alike.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallOutputs {
    /// How many calls.
    pub calls: u64,
    /// Tensors that the last of them returned.
    pub outputs: Vec<TensorRef>,
}

impl Module<'_> {
    /// Tensors that the last call returned.
    #[must_use]
    pub fn outputs(&self) -> &[TensorRef] {
        self.outputs_of_calls
            .last()
            .map_or(&[], |calls| &calls.outputs)
    }

    /// Whether earlier calls returned tensors of other shapes or dtypes than the last.
    #[must_use]
    pub fn outputs_differ(&self) -> bool {
        self.outputs_of_calls.len() > 1
    }
}

/// Own parameters of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Parameters {
    /// Names.
    pub tensors: u64,
    /// Elements.
    pub numel: u64,
    /// Bytes.
    pub bytes: u64,
    /// Whether some belong to another module that came first.
    pub shared: bool,
    /// Whether there are some whose size the trace does not say.
    pub unknown: bool,
}

/// Calls of one operator by one module.
#[derive(Debug)]
pub struct Function<'a> {
    /// Name such as `aten::add_`.
    pub op: &'a str,
    /// Results of each call.
    pub outputs: Vec<TensorRef>,
    /// Calls.
    pub count: u64,
    /// Forward work.
    pub work: Work,
    /// Time.
    pub time_ns: u64,
}

impl<'a> ModuleTree<'a> {
    /// The tree of a run. `declared` modules (path and class) are in it even where they were never called.
    #[must_use]
    pub fn new(
        index: &RunIndex<'a>,
        flops: &Flops,
        memory: &MemoryTimeline,
        declared: &[(&'a str, &'a str)],
    ) -> Self {
        let mut tree = ModuleTree {
            modules: vec![Module::default()],
            by_path: HashMap::from([("", ROOT)]),
        };
        let mut merge = Merge {
            index,
            modules_of_calls: Vec::with_capacity(index.calls.len()),
            functions: HashMap::new(),
        };
        merge.in_order(&mut tree, flops);
        merge.backward(&mut tree, flops);
        tree.memory(index, memory);
        tree.own_parameters(index);
        for (path, class) in declared {
            let id = tree.place(path);
            if let Some(module) = tree.modules.get_mut(id)
                && module.path == *path
            {
                module.class.get_or_insert(class);
            }
        }
        tree.sum_up();
        tree
    }

    /// A module by its path.
    #[must_use]
    pub fn by_path(&self, path: &str) -> Option<&Module<'a>> {
        self.modules.get(*self.by_path.get(path)?)
    }

    /// Modules in the order of a tree: parents, then their children in order of first use.
    #[must_use]
    pub fn preorder(&self) -> Vec<ModuleId> {
        let mut order = Vec::with_capacity(self.modules.len());
        let mut pending = vec![ROOT];
        while let Some(id) = pending.pop() {
            order.push(id);
            let children = self
                .modules
                .get(id)
                .map_or(&[][..], |module| &module.children);
            pending.extend(children.iter().rev().filter_map(|child| match child {
                Child::Module(id) => Some(*id),
                Child::Function(_) => None,
            }));
        }
        order
    }

    /// The module of this path, made with everything above it where it is new.
    fn place(&mut self, path: &'a str) -> ModuleId {
        if let Some(id) = self.by_path.get(path) {
            return *id;
        }
        let mut parent = ROOT;
        let dots = path.match_indices('.').map(|(at, _)| at);
        for end in dots.chain([path.len()]) {
            let Some(part) = path.get(..end) else {
                continue;
            };
            if let Some(id) = self.by_path.get(part) {
                parent = *id;
                continue;
            }
            let depth = self.modules.get(parent).map_or(0, |module| module.depth);
            if depth >= MAX_DEPTH {
                break;
            }
            let id = self.modules.len();
            self.modules.push(Module {
                path: part,
                parent: Some(parent),
                depth: depth + 1,
                ..Module::default()
            });
            self.by_path.insert(part, id);
            if let Some(above) = self.modules.get_mut(parent) {
                above.children.push(Child::Module(id));
            }
            parent = id;
        }
        parent
    }

    /// Gives every parameter to the module that its name says; memory that is shared counts once.
    fn own_parameters(&mut self, index: &RunIndex<'a>) {
        let mut counted: HashMap<u32, u64> = HashMap::new();
        let mut seen = HashSet::new();
        for label in &index.labels {
            if label.category != Category::Parameters || !seen.insert(label.name) {
                continue;
            }
            let owner = label.name.rsplit_once('.').map_or("", |(path, _)| path);
            let id = self.place(owner);
            let sig = label.sig.and_then(|sig| index.trace.sigs.get(sig as usize));
            let capacity = index.trace.allocations.get(label.alloc as usize);
            let bytes = sig.map_or(0, |sig| sig.bytes);
            let before = counted.entry(label.alloc).or_default();
            let shared = capacity
                .is_some_and(|memory| *before > 0 && before.saturating_add(bytes) > memory.bytes);
            let Some(module) = self.modules.get_mut(id) else {
                continue;
            };
            let own = &mut module.parameters;
            own.tensors += 1;
            own.shared |= shared;
            if shared {
                continue;
            }
            *before = before.saturating_add(bytes);
            own.bytes = own.bytes.saturating_add(bytes);
            match sig.and_then(|sig| numel(&sig.shape)) {
                Some(numel) => own.numel = own.numel.saturating_add(numel),
                None => own.unknown = true,
            }
        }
    }

    /// Peaks inside modules, and what the reported forward pass left for its backward pass. What it returned is the
    /// caller's.
    fn memory(&mut self, index: &RunIndex<'a>, memory: &MemoryTimeline) {
        for (path, peak) in &memory.module_peaks {
            if let Some(id) = self.by_path.get(index.trace.text(*path))
                && let Some(module) = self.modules.get_mut(*id)
            {
                module.peak_bytes = module.peak_bytes.max(Some(*peak));
            }
        }
        let returned: HashSet<u32> = index
            .outputs
            .iter()
            .filter_map(|(_, tensor)| tensor.alloc)
            .collect();
        for (id, life) in (0_u32..).zip(&memory.allocations) {
            let kept = life.saved && index.reported(life.place.phase) && !returned.contains(&id);
            let path = life.place.module.map_or("", |path| index.trace.text(path));
            if kept
                && let Some(module) = self
                    .by_path
                    .get(path)
                    .and_then(|id| self.modules.get_mut(*id))
            {
                module.saved_bytes = module.saved_bytes.saturating_add(life.bytes);
            }
        }
    }

    /// Adds every module to the one around it; children stand behind their parents.
    fn sum_up(&mut self) {
        for id in (1..self.modules.len()).rev() {
            let Some(child) = self.modules.get(id) else {
                continue;
            };
            let (forward, backward) = (child.forward, child.backward);
            let (time, backward_time) = (child.time_ns, child.backward_time_ns);
            let (peak, saved) = (child.peak_bytes, child.saved_bytes);
            let parent = child.parent.and_then(|parent| self.modules.get_mut(parent));
            if let Some(parent) = parent {
                parent.forward.add(forward);
                parent.backward.add(backward);
                parent.time_ns = parent.time_ns.saturating_add(time);
                parent.backward_time_ns = parent.backward_time_ns.saturating_add(backward_time);
                parent.peak_bytes = parent.peak_bytes.max(peak);
                parent.saved_bytes = parent.saved_bytes.saturating_add(saved);
            }
        }
    }
}

fn numel(shape: &[u64]) -> Option<u64> {
    shape
        .iter()
        .try_fold(1_u64, |product, size| product.checked_mul(*size))
}

/// Merges the tables of a run into a tree.
struct Merge<'i, 'a> {
    index: &'i RunIndex<'a>,
    modules_of_calls: Vec<Option<ModuleId>>,
    functions: HashMap<(ModuleId, u32, Vec<u32>), usize>,
}

impl<'a> Merge<'_, 'a> {
    /// Module calls and their own operators, in the order in which they began.
    fn in_order(&mut self, tree: &mut ModuleTree<'a>, flops: &Flops) {
        let mut calls = 0;
        for (id, op) in self.index.ops.iter().enumerate() {
            let inner = op.parent.is_some() || op.is_scope();
            if inner || !self.is_in(op.phase, PhaseName::Forward) {
                continue;
            }
            self.calls(tree, &mut calls, op.calls_before as usize);
            let module = op.call.map_or(Some(ROOT), |call| self.module_of(call));
            if let Some(module) = module {
                self.function(tree, module, op, flops.work(id));
            }
        }
        self.calls(tree, &mut calls, self.index.calls.len());
    }

    fn calls(&mut self, tree: &mut ModuleTree<'a>, next: &mut usize, until: usize) {
        let index = self.index;
        while let Some(call) = index.calls.get(*next).filter(|_| *next < until) {
            *next += 1;
            if !self.is_in(call.phase, PhaseName::Forward) {
                self.modules_of_calls.push(None);
                continue;
            }
            let id = tree.place(call.path);
            self.modules_of_calls.push(Some(id));
            let Some(module) = tree.modules.get_mut(id) else {
                continue;
            };
            let outputs = call.out.to_vec();
            let sigs = |tensors: &[TensorRef]| -> Vec<u32> {
                tensors.iter().map(|tensor| tensor.sig).collect()
            };
            match module.outputs_of_calls.last_mut() {
                Some(last) if sigs(&last.outputs) == sigs(&outputs) => {
                    last.calls += 1;
                    last.outputs = outputs;
                }
                _ => module
                    .outputs_of_calls
                    .push(CallOutputs { calls: 1, outputs }),
            }
            module.class = Some(call.class);
            module.calls += 1;
            let own = call.time_ns.saturating_sub(call.nested_ns);
            module.time_ns = module.time_ns.saturating_add(own);
        }
    }

    fn function(
        &mut self,
        tree: &mut ModuleTree<'a>,
        module_id: ModuleId,
        op: &Op<'a>,
        work: Work,
    ) {
        let Some(module) = tree.modules.get_mut(module_id) else {
            return;
        };
        module.forward.add(work);
        let outputs: Vec<TensorRef> = op.out.iter().flat_map(Arg::tensors).collect();
        let sigs = outputs.iter().map(|tensor| tensor.sig).collect();
        let next = module.functions.len();
        let at = *self
            .functions
            .entry((module_id, op.name_id, sigs))
            .or_insert(next);
        if at == next {
            module.children.push(Child::Function(next));
            module.functions.push(Function {
                op: op.name,
                outputs,
                count: 0,
                work: Work::default(),
                time_ns: 0,
            });
        }
        if let Some(function) = module.functions.get_mut(at) {
            function.count += 1;
            function.work.add(work);
            let time = op.time_ns.unwrap_or(0);
            function.time_ns = function.time_ns.saturating_add(time);
        }
    }

    /// Backward operators and nodes, by the module whose operator made the node.
    fn backward(&self, tree: &mut ModuleTree<'a>, flops: &Flops) {
        for (id, op) in self.index.ops.iter().enumerate() {
            let outermost = op.parent.is_none() && !op.is_scope();
            if outermost && self.is_in(op.phase, PhaseName::Backward) {
                let module = op.call.and_then(|call| self.module_of(call));
                if let Some(module) = tree.modules.get_mut(module.unwrap_or(ROOT)) {
                    module.backward.add(flops.work(id));
                }
            }
        }
        for node in &self.index.nodes {
            if self.is_in(node.phase, PhaseName::Backward) {
                let module = node.call.and_then(|call| self.module_of(call));
                if let Some(module) = tree.modules.get_mut(module.unwrap_or(ROOT)) {
                    module.backward_time_ns = module.backward_time_ns.saturating_add(node.time_ns);
                }
            }
        }
    }

    fn module_of(&self, call: CallId) -> Option<ModuleId> {
        self.modules_of_calls.get(call as usize).copied().flatten()
    }

    fn is_in(&self, phase: Option<usize>, name: PhaseName) -> bool {
        self.index.reported(phase)
            && self
                .index
                .phase(phase)
                .is_some_and(|phase| phase.name == name)
    }
}
