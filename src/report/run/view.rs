//! What people see of a run: modules and their functions as a tree, equal layers collapsed, cut to a depth.

use std::collections::HashMap;

use super::RunAnalysis;
use crate::report::layout::{TREE_ROWS, shape_text};
use crate::report::tree::{ranges, split_number};
use crate::trace::TensorRef;
use crate::trace::flops::Work;
use crate::trace::modules::{Child, Function, Module, ModuleId, ModuleTree, ROOT};

/// Most rows, unless every one is asked for.
const MAX_ROWS: usize = 400;

/// What was asked for.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunViewOptions {
    /// Levels below the root.
    pub depth: Option<usize>,
    /// Every layer and every row.
    pub all: bool,
}

/// The rows of a run.
#[derive(Debug, Default)]
pub struct RunView<'a> {
    /// Rows: a module, then what is below it.
    pub rows: Vec<RunRow<'a>>,
    /// Rows that are left out at the end.
    pub hidden_rows: usize,
    /// Levels shown and levels there are.
    pub depth: (usize, usize),
}

/// What a row is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunRowKind {
    /// A module, or several equal ones.
    Module,
    /// An operator that a module calls itself.
    Function,
}

/// One row.
#[derive(Debug)]
pub struct RunRow<'a> {
    /// What it is.
    pub kind: RunRowKind,
    /// Levels below the root.
    pub level: usize,
    /// For the row and everything above it: whether a sibling follows.
    pub guides: Vec<bool>,
    /// Last part of the path, a range for several modules, or the operator's name.
    pub label: String,
    /// Class of the module.
    pub class: Option<&'a str>,
    /// Equal modules in this row; sums are of all of them.
    pub repeats: u64,
    /// Calls.
    pub calls: u64,
    /// Results of the last call.
    pub output: String,
    /// Bytes of these results.
    pub output_bytes: Option<u64>,
    /// Elements of own parameters; `None` where unknown.
    pub parameters: Option<u64>,
    /// Whether some parameters belong to an earlier module.
    pub shared: bool,
    /// Forward work, with children.
    pub work: Work,
    /// Forward time, with children.
    pub time_ns: u64,
    /// Backward time, with children; training runs.
    pub backward_time_ns: Option<u64>,
    /// Kept for the backward pass, with children; training runs.
    pub saved_bytes: Option<u64>,
}

impl<'a> RunView<'a> {
    /// The rows of a run.
    #[must_use]
    pub fn new(run: &RunAnalysis<'a>, options: RunViewOptions) -> Self {
        let kinds = if options.all {
            Vec::new()
        } else {
            Kinds::of(&run.tree)
        };
        let mut walk = Walk {
            run,
            kinds,
            rows: Vec::new(),
            guides: Vec::new(),
        };
        walk.module(&[ROOT], root_label(&run.tree), 0);
        let mut view = RunView {
            rows: walk.rows,
            ..RunView::default()
        };
        view.cut(options);
        view
    }

    fn cut(&mut self, options: RunViewOptions) {
        let levels = self.rows.iter().map(|row| row.level).max().unwrap_or(0);
        let depth = options.depth.unwrap_or_else(|| {
            if options.all {
                return levels;
            }
            let fits = (1..=levels).take_while(|depth| {
                self.rows.iter().filter(|row| row.level <= *depth).count() <= TREE_ROWS
            });
            fits.last().unwrap_or(1)
        });
        self.rows.retain(|row| row.level <= depth);
        self.depth = (depth.min(levels), levels);
        if !options.all && self.rows.len() > MAX_ROWS {
            self.hidden_rows = self.rows.len() - MAX_ROWS;
            self.rows.truncate(MAX_ROWS);
        }
    }
}

fn root_label(tree: &ModuleTree<'_>) -> String {
    let class = tree.modules.get(ROOT).and_then(|root| root.class);
    class.unwrap_or("model").to_owned()
}

/// Numbers of modules by what they are: equal numbers are equal layers.
struct Kinds;

/// What two modules must share to be equal layers.
#[derive(PartialEq, Eq, Hash)]
struct Kind<'a> {
    class: Option<&'a str>,
    calls: u64,
    outputs: Vec<u32>,
    parameters: (u64, u64),
    macs: u64,
    saved_bytes: u64,
    children: Vec<KindOfChild<'a>>,
}

#[derive(PartialEq, Eq, Hash)]
enum KindOfChild<'a> {
    Module(&'a str, usize),
    Function(&'a str, u64, Vec<u32>),
}

impl Kinds {
    fn of(tree: &ModuleTree<'_>) -> Vec<usize> {
        let mut numbers = HashMap::new();
        let mut kinds = vec![0; tree.modules.len()];
        // Children stand behind their parents.
        for (id, module) in tree.modules.iter().enumerate().rev() {
            let children = module.children.iter().filter_map(|child| match child {
                Child::Module(child) => Some(KindOfChild::Module(
                    last_part(tree.modules.get(*child)?.path),
                    kinds.get(*child).copied()?,
                )),
                Child::Function(at) => {
                    let function = module.functions.get(*at)?;
                    let outputs = sigs(&function.outputs);
                    Some(KindOfChild::Function(function.op, function.count, outputs))
                }
            });
            let kind = Kind {
                class: module.class,
                calls: module.calls,
                outputs: sigs(&module.outputs),
                parameters: (module.parameters.numel, module.parameters.bytes),
                macs: module.forward.macs,
                saved_bytes: module.saved_bytes,
                children: children.collect(),
            };
            let next = numbers.len();
            let number = *numbers.entry(kind).or_insert(next);
            if let Some(slot) = kinds.get_mut(id) {
                *slot = number;
            }
        }
        kinds
    }
}

fn sigs(tensors: &[TensorRef]) -> Vec<u32> {
    tensors.iter().map(|tensor| tensor.sig).collect()
}

fn last_part(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// Positions among a module's children that share a row.
struct Group {
    positions: Vec<usize>,
    prefix: String,
    numbers: Vec<u64>,
    label: String,
}

impl Group {
    /// Labels a group by its range. A pair like `conv1` and `conv2` stays apart: between them stands what links them.
    fn settle(mut self) -> Vec<Group> {
        let least = if self.prefix.is_empty() { 2 } else { 3 };
        if self.numbers.len() >= least {
            self.label = format!("{}{}", self.prefix, ranges(&self.numbers));
            return vec![self];
        }
        if self.numbers.len() < 2 {
            return vec![self];
        }
        let apart = self.positions.iter().zip(&self.numbers);
        apart
            .map(|(position, number)| Group {
                positions: vec![*position],
                label: format!("{}{number}", self.prefix),
                prefix: String::new(),
                numbers: Vec::new(),
            })
            .collect()
    }

    fn first(&self) -> usize {
        self.positions.first().copied().unwrap_or(0)
    }
}

struct Walk<'r, 'a> {
    run: &'r RunAnalysis<'a>,
    /// Empty where nothing is collapsed.
    kinds: Vec<usize>,
    rows: Vec<RunRow<'a>>,
    guides: Vec<bool>,
}

impl<'a> Walk<'_, 'a> {
    fn get(&self, id: ModuleId) -> Option<&Module<'a>> {
        self.run.tree.modules.get(id)
    }

    /// The row of equal modules and everything below it.
    fn module(&mut self, members: &[ModuleId], label: String, level: usize) {
        let Some(first) = members.first().and_then(|id| self.get(*id)) else {
            return;
        };
        let has_modules = first
            .children
            .iter()
            .any(|child| matches!(child, Child::Module(_)));
        let shows_functions = level == 0 || has_modules;
        let groups = self.groups(first, shows_functions);
        let row = self.module_row(members, first, label, level);
        self.rows.push(row);
        let count = groups.len();
        for (index, group) in groups.into_iter().enumerate() {
            self.guides.push(index + 1 < count);
            self.group(members, group, level + 1);
            self.guides.pop();
        }
    }

    fn group(&mut self, members: &[ModuleId], group: Group, level: usize) {
        let mut modules = Vec::new();
        let mut functions = Vec::new();
        for member in members {
            let Some(module) = self.get(*member) else {
                continue;
            };
            for position in &group.positions {
                match module.children.get(*position) {
                    Some(Child::Module(id)) => modules.push(*id),
                    Some(Child::Function(at)) => functions.push((*member, *at)),
                    None => {}
                }
            }
        }
        if modules.is_empty() {
            let row = self.function_row(&functions, level);
            self.rows.extend(row);
        } else {
            self.module(&modules, group.label, level);
        }
    }

    /// A module's children, equal numbered ones together, in order of first use.
    fn groups(&self, module: &Module<'a>, functions: bool) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        let mut at: HashMap<(&str, usize), usize> = HashMap::new();
        for (position, child) in module.children.iter().enumerate() {
            let mut group = Group {
                positions: vec![position],
                prefix: String::new(),
                numbers: Vec::new(),
                label: String::new(),
            };
            if let Child::Module(id) = child
                && let Some(child) = self.get(*id)
            {
                let label = last_part(child.path);
                label.clone_into(&mut group.label);
                if let (Some(kind), Some((prefix, number))) =
                    (self.kinds.get(*id), split_number(label))
                {
                    let next = groups.len();
                    let place = *at.entry((prefix, *kind)).or_insert(next);
                    if let Some(known) = groups.get_mut(place) {
                        known.positions.push(position);
                        known.numbers.push(number);
                        continue;
                    }
                    prefix.clone_into(&mut group.prefix);
                    group.numbers.push(number);
                }
            } else if !functions {
                continue;
            }
            groups.push(group);
        }
        let mut groups: Vec<Group> = groups.into_iter().flat_map(Group::settle).collect();
        groups.sort_by_key(Group::first);
        groups
    }

    fn module_row(
        &self,
        members: &[ModuleId],
        first: &Module<'a>,
        label: String,
        level: usize,
    ) -> RunRow<'a> {
        let training = self.run.training();
        let mut row = RunRow {
            kind: RunRowKind::Module,
            level,
            guides: self.guides.clone(),
            label,
            class: if level == 0 { None } else { first.class },
            repeats: u64::try_from(members.len()).unwrap_or(u64::MAX),
            calls: first.calls,
            output: self.output(&first.outputs, first.outputs_differ),
            output_bytes: (first.calls > 0).then(|| self.bytes(&first.outputs)),
            parameters: Some(0),
            shared: false,
            work: Work::default(),
            time_ns: 0,
            backward_time_ns: training.then_some(0),
            saved_bytes: training.then_some(0),
        };
        for module in members.iter().filter_map(|id| self.get(*id)) {
            let own = module.parameters;
            row.parameters = match row.parameters {
                Some(sum) if !own.unknown => Some(sum.saturating_add(own.numel)),
                _ => None,
            };
            row.shared |= own.shared;
            row.work.add(module.forward);
            row.time_ns = row.time_ns.saturating_add(module.time_ns);
            row.backward_time_ns = row
                .backward_time_ns
                .map(|sum| sum.saturating_add(module.backward_time_ns));
            row.saved_bytes = row
                .saved_bytes
                .map(|sum| sum.saturating_add(module.saved_bytes));
        }
        row
    }

    fn function_row(&self, members: &[(ModuleId, usize)], level: usize) -> Option<RunRow<'a>> {
        let functions: Vec<&Function<'a>> = members
            .iter()
            .filter_map(|(module, at)| self.get(*module)?.functions.get(*at))
            .collect();
        let first = functions.first()?;
        let mut work = Work::default();
        let mut time_ns = 0_u64;
        for function in &functions {
            work.add(function.work);
            time_ns = time_ns.saturating_add(function.time_ns);
        }
        Some(RunRow {
            kind: RunRowKind::Function,
            level,
            guides: self.guides.clone(),
            label: first
                .op
                .strip_prefix("aten::")
                .unwrap_or(first.op)
                .to_owned(),
            class: None,
            repeats: u64::try_from(functions.len()).unwrap_or(u64::MAX),
            calls: first.count,
            output: self.output(&first.outputs, false),
            output_bytes: Some(self.bytes(&first.outputs)),
            parameters: Some(0),
            shared: false,
            work,
            time_ns,
            backward_time_ns: None,
            saved_bytes: None,
        })
    }

    /// `1×64×56×56`, the first of several with the count of the others.
    fn output(&self, tensors: &[TensorRef], differ: bool) -> String {
        let trace = self.run.index.trace;
        let Some(sig) = tensors.first().and_then(|tensor| trace.sig(*tensor)) else {
            return String::new();
        };
        let mut text = shape_text(&sig.shape);
        if tensors.len() > 1 {
            text = format!("{text} +{}", tensors.len() - 1);
        }
        if differ {
            text.push_str(" (varies)");
        }
        text
    }

    fn bytes(&self, tensors: &[TensorRef]) -> u64 {
        let trace = self.run.index.trace;
        tensors
            .iter()
            .filter_map(|tensor| trace.sig(*tensor))
            .fold(0, |sum, sig| sum.saturating_add(sig.bytes))
    }
}
