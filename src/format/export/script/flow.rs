//! The calls of modules in a flat graph, and the values that go in and out of them.

use std::collections::{HashMap, HashSet};

use super::super::super::error::FormatError;
use super::super::program::stack;
use super::super::schema::{Argument, Binding, ExportedProgram, Graph, InputSpec, Node};
use super::unsupported;

/// What TorchScript calls the type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    Tensor,
    Int,
    Float,
    Bool,
}

impl Type {
    pub(super) fn name(self) -> &'static str {
        match self {
            Type::Tensor => "Tensor",
            Type::Int => "int",
            Type::Float => "float",
            Type::Bool => "bool",
        }
    }
}

/// Names of values inside a graph that is part of another: they may be taken outside.
#[derive(Debug, Default)]
pub(super) struct Scope {
    renamed: HashMap<String, String>,
    prefix: String,
}

impl Scope {
    /// The value's name in the whole program.
    pub(super) fn name(&self, name: &str) -> String {
        match self.renamed.get(name) {
            Some(outside) => outside.clone(),
            None => format!("{}{name}", self.prefix),
        }
    }
}

/// One operator.
#[derive(Debug)]
pub(super) struct Step<'g> {
    pub(super) node: &'g Node,
    /// The place in [`Flow::scopes`] of its names.
    pub(super) scope: usize,
}

/// What a call does, in order.
#[derive(Debug)]
pub(super) enum Item<'g> {
    Step(Step<'g>),
    Call(usize),
}

/// One call of a module.
#[derive(Debug)]
pub(super) struct Call<'g> {
    pub(super) path: &'g str,
    pub(super) class: &'g str,
    /// What the method is called.
    pub(super) method: String,
    pub(super) items: Vec<Item<'g>>,
    parent: Option<usize>,
    /// Values from outside, parameters below the module left out.
    pub(super) inputs: Vec<String>,
    /// Values that are used outside.
    pub(super) outputs: Vec<String>,
}

/// A program as calls of modules; the first is the call of the root.
#[derive(Debug)]
pub(super) struct Flow<'g> {
    pub(super) calls: Vec<Call<'g>>,
    pub(super) scopes: Vec<Scope>,
    pub(super) types: HashMap<String, Type>,
    /// Values of the graph that are tensors of modules: their full names.
    pub(super) bound: HashMap<String, String>,
    /// What the program is called with.
    pub(super) arguments: Vec<String>,
}

/// Graphs inside graphs: deeper than anyone writes.
const DEPTH: usize = 16;

impl<'g> Flow<'g> {
    pub(super) fn of(exported: &'g ExportedProgram) -> Result<Flow<'g>, FormatError> {
        let graph = &exported.graph_module.graph;
        let mut flow = Flow {
            calls: vec![Call::new("", root_class(graph), None)],
            scopes: vec![Scope::default()],
            types: HashMap::new(),
            bound: HashMap::new(),
            arguments: Vec::new(),
        };
        flow.learn_types(graph, 0);
        for spec in &exported.graph_module.signature.input_specs {
            match spec {
                InputSpec::Parameter(Binding { arg, name })
                | InputSpec::Buffer(Binding { arg, name })
                | InputSpec::Constant(Binding { arg, name }) => {
                    flow.bound.insert(arg.clone(), name.clone());
                }
                InputSpec::User(argument) => {
                    flow.arguments
                        .extend(argument.names().into_iter().map(str::to_owned));
                }
                InputSpec::Value(_) => {}
                InputSpec::Other(kind) => {
                    return Err(unsupported(&format!("an input of kind `{kind}`")));
                }
            }
        }
        let mut open = vec![("", 0)];
        flow.steps(graph, 0, &mut open, 0)?;
        flow.connect(graph);
        flow.name_methods();
        Ok(flow)
    }

    fn learn_types(&mut self, graph: &Graph, scope: usize) {
        let Some(names) = self.scopes.get(scope) else {
            return;
        };
        let all = [
            (graph.tensor_values.keys().collect::<Vec<_>>(), Type::Tensor),
            (graph.sym_int_values.keys().collect(), Type::Int),
            (graph.sym_float_values.keys().collect(), Type::Float),
            (graph.sym_bool_values.keys().collect(), Type::Bool),
        ];
        for (names_of_type, kind) in all {
            for name in names_of_type {
                self.types.insert(names.name(name), kind);
            }
        }
    }

    /// Sorts the operators of a graph into calls. `open` are the calls that the last operator was in, by key.
    fn steps(
        &mut self,
        graph: &'g Graph,
        scope: usize,
        open: &mut Vec<(&'g str, usize)>,
        depth: usize,
    ) -> Result<(), FormatError> {
        if depth > DEPTH {
            return Err(unsupported("graphs nested this deep"));
        }
        for node in &graph.nodes {
            self.enter(node, open);
            let (_, current) = open.last().copied().unwrap_or(("", 0));
            if node.target.starts_with("torch.ops.higher_order.") {
                self.inline(node, scope, open, depth)?;
            } else if let Some(call) = self.calls.get_mut(current) {
                call.items.push(Item::Step(Step { node, scope }));
            }
        }
        Ok(())
    }

    /// Leaves and enters modules until the calls are those that the node was in.
    fn enter(&mut self, node: &'g Node, open: &mut Vec<(&'g str, usize)>) {
        let mut frames = stack(node);
        // What a pass of the exporter put in stands where its neighbours do.
        if frames.is_empty() {
            return;
        }
        frames.retain(|frame| !frame.path.is_empty());
        let same = frames
            .iter()
            .zip(open.iter().skip(1))
            .take_while(|(frame, (key, _))| frame.key == *key)
            .count();
        open.truncate(same.saturating_add(1));
        for frame in frames.into_iter().skip(same) {
            let (_, parent) = open.last().copied().unwrap_or(("", 0));
            // A module that belongs to another part of the tree cannot be reached from here: what it does counts
            // as its caller's.
            let below = self
                .calls
                .get(parent)
                .is_some_and(|call| is_below(frame.path, call.path));
            let callee = if below {
                let callee = self.calls.len();
                self.calls
                    .push(Call::new(frame.path, frame.class, Some(parent)));
                if let Some(call) = self.calls.get_mut(parent) {
                    call.items.push(Item::Call(callee));
                }
                callee
            } else {
                parent
            };
            open.push((frame.key, callee));
        }
    }

    /// Puts the graph of a higher-order operator that only changes how it runs in its place.
    fn inline(
        &mut self,
        node: &'g Node,
        scope: usize,
        open: &mut Vec<(&'g str, usize)>,
        depth: usize,
    ) -> Result<(), FormatError> {
        // Runs are without gradients unless they train, and then all of the program is trained.
        if node.target != "torch.ops.higher_order.wrap_with_set_grad_enabled" {
            return Err(unsupported(&format!("`{}`", node.target)));
        }
        let mut graph = None;
        let mut operands = Vec::new();
        for input in &node.inputs {
            match &input.arg {
                Argument::Graph(inner) => graph = Some(inner.as_ref()),
                other => operands.extend(other.names()),
            }
        }
        let Some(graph) = graph else {
            return Err(unsupported(&format!("`{}` without a graph", node.target)));
        };
        let inner = self.scopes.len();
        let mut names = Scope {
            renamed: HashMap::new(),
            prefix: format!("g{inner}_"),
        };
        let inputs = graph.inputs.iter().flat_map(Argument::names);
        for (input, operand) in inputs.zip(operands) {
            names
                .renamed
                .insert(input.to_owned(), self.name(scope, operand));
        }
        self.scopes.push(names);
        self.learn_types(graph, inner);
        self.steps(graph, inner, open, depth.saturating_add(1))?;
        let results: Vec<String> = graph
            .outputs
            .iter()
            .flat_map(Argument::names)
            .map(|name| self.name(inner, name))
            .collect();
        let outputs = node.outputs.iter().flat_map(Argument::names);
        if let Some(scope) = self.scopes.get_mut(scope) {
            for (output, result) in outputs.zip(results) {
                scope.renamed.insert(output.to_owned(), result);
            }
        }
        Ok(())
    }

    /// The name in the whole program of a value of a graph.
    pub(super) fn name(&self, scope: usize, name: &str) -> String {
        let scope = self.scopes.get(scope);
        scope.map_or_else(|| name.to_owned(), |scope| scope.name(name))
    }

    /// The names of the values that a step is given.
    fn given(&self, step: &Step<'_>) -> Vec<String> {
        let inputs = step.node.inputs.iter();
        let names = inputs.flat_map(|input| input.arg.names());
        names.map(|name| self.name(step.scope, name)).collect()
    }

    /// The names of the values that a step makes.
    fn made(&self, step: &Step<'_>) -> Vec<String> {
        let names = step.node.outputs.iter().flat_map(Argument::names);
        names.map(|name| self.name(step.scope, name)).collect()
    }

    /// Whether a value is a tensor of this module or of one below: then it is taken from there.
    pub(super) fn own(&self, path: &str, name: &str) -> Option<&str> {
        let full = self.bound.get(name)?;
        is_below(full, path).then_some(full.as_str())
    }

    /// Finds out what goes in and out of every call.
    fn connect(&mut self, graph: &Graph) {
        let mut made_in: HashMap<String, usize> = HashMap::new();
        let mut uses: Vec<(String, usize)> = Vec::new();
        self.walk(0, &mut made_in, &mut uses);
        for name in graph.outputs.iter().flat_map(Argument::names) {
            uses.push((self.name(0, name), 0));
        }
        let mut seen: HashSet<(usize, bool, String)> = HashSet::new();
        for (name, user) in uses {
            let maker = made_in.get(&name).copied();
            let above: HashSet<usize> = self.ancestors(user).collect();
            // Out of every call that the user is not in.
            let mut outer = maker;
            while let Some(call) = outer.filter(|call| !above.contains(call)) {
                if seen.insert((call, false, name.clone()))
                    && let Some(call) = self.calls.get_mut(call)
                {
                    call.outputs.push(name.clone());
                }
                outer = self.calls.get(call).and_then(|call| call.parent);
            }
            // Into every call that the maker is not in.
            let common = outer.unwrap_or(0);
            let into: Vec<usize> = self
                .ancestors(user)
                .take_while(|call| *call != common)
                .collect();
            for call in into {
                let path = self.calls.get(call).map_or("", |call| call.path);
                if self.own(path, &name).is_some() || !seen.insert((call, true, name.clone())) {
                    continue;
                }
                if let Some(call) = self.calls.get_mut(call) {
                    call.inputs.push(name.clone());
                }
            }
        }
    }

    fn ancestors(&self, call: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(call), |call| self.calls.get(*call)?.parent)
    }

    fn walk(
        &self,
        call: usize,
        made_in: &mut HashMap<String, usize>,
        uses: &mut Vec<(String, usize)>,
    ) {
        let items = self.calls.get(call).map_or(&[][..], |call| &call.items);
        for item in items {
            match item {
                Item::Step(step) => {
                    uses.extend(self.given(step).into_iter().map(|name| (name, call)));
                    for name in self.made(step) {
                        made_in.insert(name, call);
                    }
                }
                Item::Call(callee) => self.walk(*callee, made_in, uses),
            }
        }
    }

    /// The first call of a module is `forward`; the others are numbered as TorchScript's tracer numbers them.
    fn name_methods(&mut self) {
        let mut calls: HashMap<&str, usize> = HashMap::new();
        for call in &mut self.calls {
            let count = calls.entry(call.path).or_default();
            call.method = match *count {
                0 => "forward".to_owned(),
                count => format!("forward{count}"),
            };
            *count = count.saturating_add(1);
        }
    }
}

impl<'g> Call<'g> {
    fn new(path: &'g str, class: &'g str, parent: Option<usize>) -> Call<'g> {
        Call {
            path,
            class,
            method: String::new(),
            items: Vec::new(),
            parent,
            inputs: Vec::new(),
            outputs: Vec::new(),
        }
    }
}

/// Whether a dotted name lies below a module's path.
pub(super) fn is_below(name: &str, path: &str) -> bool {
    path.is_empty() && !name.is_empty()
        || name
            .strip_prefix(path)
            .is_some_and(|rest| rest.starts_with('.'))
}

fn root_class(graph: &Graph) -> &str {
    let stacks = graph.nodes.iter().flat_map(stack);
    let mut roots = stacks.filter(|frame| frame.path.is_empty());
    roots.next().map_or("Module", |frame| frame.class)
}
