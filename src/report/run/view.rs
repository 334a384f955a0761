//! What people see of a run: modules and their functions as a tree or a list, operators where they are asked for.
//! Filtering, sorting, collapsing of equal layers and cutting happen here and nowhere else.

use std::cmp::Reverse;
use std::collections::HashMap;

use regex::Regex;

use super::RunAnalysis;
use super::exact::{OpReport, TensorShape, op_list, shapes};
use crate::report::layout::TREE_ROWS;
use crate::report::tree::{ranges, split_number};
use crate::trace::TensorRef;
use crate::trace::flops::Work;
use crate::trace::modules::{Child, Function, Module, ModuleId, ModuleTree, ROOT};

/// Most rows, unless every one is asked for.
const MAX_ROWS: usize = 400;

/// What was asked for.
#[derive(Debug, Clone, Default)]
pub struct RunViewOptions {
    /// Levels below the root.
    pub depth: Option<usize>,
    /// Every layer and every row.
    pub all: bool,
    /// Only modules and functions whose path matches, and what is around them; of operators, those of such modules
    /// or of such a name.
    pub filter: Option<Regex>,
    /// A list in this order instead of a tree: the modules and functions that have none of their own below them, so
    /// that the list adds up to the run.
    pub order: Option<RunOrder>,
    /// Only the first rows of the list; without an order, of the one by bytes.
    pub top: Option<usize>,
    /// Every operator.
    pub ops: bool,
}

/// The order of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunOrder {
    /// By path; operators by name.
    Name,
    /// Largest outputs first.
    Bytes,
    /// As they ran.
    Run,
    /// Slowest first.
    Time,
}

/// The rows of a run.
#[derive(Debug, Default)]
pub struct RunView<'a> {
    /// Rows: a module, then what is below it.
    pub rows: Vec<RunRow<'a>>,
    /// Whether they are a tree; else a list.
    pub tree: bool,
    /// Rows that are left out at the end.
    pub hidden_rows: usize,
    /// Levels shown and levels there are.
    pub depth: (usize, usize),
    /// Rows that match the filter, and all; `None` without a filter.
    pub filtered: Option<(usize, usize)>,
    /// The operators that match, in the order asked for, and how many there are; `None` where they are not wanted.
    pub ops: Option<(Vec<OpReport<'a>>, usize)>,
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
    /// Levels below the root; 0 in a list.
    pub level: usize,
    /// For the row and everything above it: whether a sibling follows.
    pub guides: Vec<bool>,
    /// Last part of the path, a range for several modules, or the operator's name; in a list the whole path.
    pub label: String,
    /// Path of the module, of the first for several; for a function, that of its module.
    pub path: &'a str,
    /// Class of the module.
    pub class: Option<&'a str>,
    /// The operator of a function, such as `aten::add_`.
    pub function: Option<&'a str>,
    /// Equal modules in this row; sums are of all of them.
    pub repeats: u64,
    /// Calls.
    pub calls: u64,
    /// Results of the last call.
    pub outputs: Vec<TensorShape<'a>>,
    /// Whether earlier calls had other results.
    pub outputs_differ: bool,
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
    /// Most memory live while inside; `None` for functions and modules that were not called.
    pub peak_bytes: Option<u64>,
}

impl RunRow<'_> {
    /// Bytes of its results; `None` for a module that was never called.
    #[must_use]
    pub fn output_bytes(&self) -> Option<u64> {
        let sum = |sum: u64, tensor: &TensorShape<'_>| sum.saturating_add(tensor.bytes);
        (self.calls > 0).then(|| self.outputs.iter().fold(0, sum))
    }

    /// `layer1.0.conv1`, `layer1.0.add_`, where the row stands for nothing else.
    fn full_path(&self) -> String {
        match self.kind {
            RunRowKind::Module => self.path.to_owned(),
            RunRowKind::Function if self.path.is_empty() => self.label.clone(),
            RunRowKind::Function => format!("{}.{}", self.path, self.label),
        }
    }
}

impl<'a> RunView<'a> {
    /// The rows of a run.
    #[must_use]
    pub fn new(run: &RunAnalysis<'a>, options: &RunViewOptions) -> Self {
        let tree = options.order.is_none() && options.top.is_none();
        // Of equal layers, only some may match.
        let kinds = if options.all || !tree || options.filter.is_some() {
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
            tree,
            ..RunView::default()
        };
        if let Some(filter) = &options.filter {
            view.filter(filter);
        }
        if tree {
            view.cut(options);
        } else {
            view.list(options);
        }
        view.ops = options.ops.then(|| ops(run, options));
        view
    }

    /// Keeps what matches, and the modules around it.
    fn filter(&mut self, filter: &Regex) {
        let all = self.rows.len();
        let mut matching = 0;
        let mut kept: Vec<bool> = vec![false; all];
        // The rows above the current one, seen from the end: the level of the innermost that is wanted.
        let mut wanted: Option<usize> = None;
        for (index, row) in self.rows.iter().enumerate().rev() {
            let matches = filter.is_match(&row.full_path());
            matching += usize::from(matches);
            let around = wanted.is_some_and(|level| row.level < level);
            if (matches || around)
                && let Some(slot) = kept.get_mut(index)
            {
                *slot = true;
                wanted = Some(row.level);
            }
        }
        let mut kept = kept.into_iter();
        self.rows.retain(|_| kept.next().unwrap_or(false));
        self.filtered = Some((matching, all));
        self.draw_guides();
    }

    /// Guides anew, where rows were left out: whether a sibling follows is seen from the end.
    fn draw_guides(&mut self) {
        let mut follows: Vec<bool> = Vec::new();
        for row in self.rows.iter_mut().rev() {
            // Levels below this row's are other parents'.
            follows.truncate(row.level);
            follows.resize(row.level, false);
            row.guides.clone_from(&follows);
            if let Some(own) = follows.last_mut() {
                *own = true;
            }
        }
    }

    fn cut(&mut self, options: &RunViewOptions) {
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
        if !options.all {
            self.limit(MAX_ROWS);
        }
    }

    /// Turns the tree into a list of what has nothing below it.
    fn list(&mut self, options: &RunViewOptions) {
        let depth = options.depth.unwrap_or(usize::MAX);
        self.rows.retain(|row| row.level <= depth);
        let below: Vec<usize> = self.rows.iter().skip(1).map(|row| row.level).collect();
        let mut below = below.into_iter();
        self.rows
            .retain(|row| below.next().is_none_or(|level| level <= row.level));
        for row in &mut self.rows {
            if !(row.path.is_empty() && row.kind == RunRowKind::Module) {
                row.label = row.full_path();
            }
            row.level = 0;
            row.guides.clear();
        }
        match options.order.unwrap_or(RunOrder::Bytes) {
            RunOrder::Name => self.rows.sort_by(|a, b| a.label.cmp(&b.label)),
            RunOrder::Bytes => self.rows.sort_by_key(|row| Reverse(row.output_bytes())),
            RunOrder::Time => self.rows.sort_by_key(|row| Reverse(row.time_ns)),
            RunOrder::Run => {}
        }
        let most = if options.all { usize::MAX } else { MAX_ROWS };
        self.limit(options.top.unwrap_or(most));
    }

    fn limit(&mut self, most: usize) {
        self.hidden_rows = self.rows.len().saturating_sub(most);
        self.rows.truncate(most);
    }
}

/// The operators asked for, and how many there are.
fn ops<'a>(run: &RunAnalysis<'a>, options: &RunViewOptions) -> (Vec<OpReport<'a>>, usize) {
    let mut list = op_list(run);
    let all = list.len();
    if let Some(filter) = &options.filter {
        list.retain(|op| {
            filter.is_match(op.op) || op.module.is_some_and(|path| filter.is_match(path))
        });
    }
    match (options.order, options.top) {
        (Some(RunOrder::Name), _) => list.sort_by_key(|op| op.op),
        (Some(RunOrder::Bytes), _) | (None, Some(_)) => list.sort_by_key(|op| Reverse(op.bytes)),
        (Some(RunOrder::Time), _) => list.sort_by_key(|op| Reverse(op.time_ns)),
        (Some(RunOrder::Run) | None, _) => {}
    }
    list.truncate(options.top.unwrap_or(usize::MAX));
    (list, all)
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
                outputs: sigs(module.outputs()),
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
            path: first.path,
            class: if level == 0 { None } else { first.class },
            function: None,
            repeats: u64::try_from(members.len()).unwrap_or(u64::MAX),
            calls: first.calls,
            outputs: self.shapes(first.outputs()),
            outputs_differ: first.outputs_differ(),
            parameters: Some(0),
            shared: false,
            work: Work::default(),
            time_ns: 0,
            backward_time_ns: training.then_some(0),
            saved_bytes: training.then_some(0),
            peak_bytes: None,
        };
        for module in members.iter().filter_map(|id| self.get(*id)) {
            let own = module.parameters;
            row.parameters = match row.parameters {
                Some(sum) if !own.unknown => Some(sum.saturating_add(own.numel)),
                _ => None,
            };
            row.shared |= own.shared;
            row.peak_bytes = row.peak_bytes.max(module.peak_bytes);
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
        let (owner, _) = members.first()?;
        Some(RunRow {
            kind: RunRowKind::Function,
            level,
            guides: self.guides.clone(),
            label: first
                .op
                .strip_prefix("aten::")
                .unwrap_or(first.op)
                .to_owned(),
            path: self.get(*owner)?.path,
            class: None,
            function: Some(first.op),
            repeats: u64::try_from(functions.len()).unwrap_or(u64::MAX),
            calls: first.count,
            outputs: self.shapes(&first.outputs),
            outputs_differ: false,
            parameters: Some(0),
            shared: false,
            work,
            time_ns,
            backward_time_ns: None,
            saved_bytes: None,
            peak_bytes: None,
        })
    }

    fn shapes(&self, tensors: &[TensorRef]) -> Vec<TensorShape<'a>> {
        shapes(tensors.iter().copied(), self.run.index.trace)
    }
}
