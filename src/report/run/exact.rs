//! The `run` part of the JSON contract as types, in the order in which keys are written.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde::Serialize;

use super::RunAnalysis;
use super::measured::MeasuredReport;
use crate::trace::flops::Work;
use crate::trace::modules::{CallOutputs, Function, Module, ROOT};
use crate::trace::ops::Argument;
use crate::trace::{Arg, Category, Sig, TensorRef, Trace};

/// What a run showed.
#[derive(Debug, Serialize)]
pub struct RunReport<'a> {
    /// `cpu`, `cuda:0`, `cuda-sim`.
    pub device: &'a str,
    /// `inference` or `train`.
    pub mode: &'a str,
    /// The method that was called.
    pub method: &'a str,
    /// As libtorch says it.
    pub libtorch_version: &'a str,
    /// Tensors that the method was called with.
    pub inputs: Vec<InputReport<'a>>,
    /// Tensors that it returned.
    pub outputs: Vec<OutputReport<'a>>,
    /// Every module: parents, then their children in order of first use.
    pub modules: Vec<ModuleReport<'a>>,
    /// Operators by kind.
    pub ops: OpsReport<'a>,
    /// Every outermost operator, where asked for.
    pub op_list: Option<Vec<OpReport<'a>>>,
    /// Sums.
    pub totals: RunTotalsReport,
    /// What was measured.
    pub measured: Option<MeasuredReport<'a>>,
    /// What the method was called with, argument by argument, also those that are no tensors.
    pub arguments: Vec<ArgumentReport<'a>>,
}

/// A tensor without its values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TensorShape<'a> {
    /// PyTorch's name without `torch.`.
    pub dtype: &'a str,
    /// Sizes.
    pub shape: &'a [u64],
    /// Elements times element size.
    pub bytes: u64,
}

/// What the method was called with for one of its arguments.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ArgumentReport<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its type in TorchScript's words.
    #[serde(rename = "type")]
    pub ty: &'a str,
    /// The value as `--input` writes it; long ones cut.
    pub value: &'a str,
    /// Whether it was given; else it is the schema's default.
    pub given: bool,
}

/// A tensor that the method was called with.
#[derive(Debug, Serialize)]
pub struct InputReport<'a> {
    /// Name of the argument, and where in it.
    pub name: Cow<'a, str>,
    /// PyTorch's name without `torch.`.
    pub dtype: Option<&'a str>,
    /// Sizes.
    pub shape: Option<&'a [u64]>,
    /// Elements times element size.
    pub bytes: Option<u64>,
}

/// A tensor that the method returned.
#[derive(Debug, Serialize)]
pub struct OutputReport<'a> {
    /// Where in the result: empty, or indices, keys and fields joined by dots.
    pub path: &'a str,
    /// The tensor.
    #[serde(flatten)]
    pub tensor: TensorShape<'a>,
}

/// One module.
#[derive(Debug, Serialize)]
pub struct ModuleReport<'a> {
    /// Its path; empty for the root.
    pub path: &'a str,
    /// Its class; unknown where it was never called.
    pub class: Option<&'a str>,
    /// Parts of its path.
    pub depth: usize,
    /// Calls.
    pub calls: u64,
    /// Tensors that the last call returned.
    pub outputs: Vec<TensorShape<'a>>,
    /// Own parameters, shared ones at their first owner.
    pub parameters: ParametersReport,
    /// Multiply-accumulates forward, with children.
    pub macs: Option<u64>,
    /// Floating-point operations forward, with children.
    pub flops: Option<u64>,
    /// Forward time, with children.
    pub time_ns: u64,
    /// Backward time, with children; training runs.
    pub backward_time_ns: Option<u64>,
    /// Most memory live while inside.
    pub peak_bytes: Option<u64>,
    /// Kept for the backward pass, with children; training runs.
    pub saved_bytes: Option<u64>,
    /// Floating-point operations backward, with children; training runs.
    pub backward_flops: Option<u64>,
    /// Operators that it calls itself, in order of first use.
    pub functions: Vec<FunctionReport<'a>>,
    /// What each call returned, where not all returned tensors of the same shapes and dtypes; else `outputs` is what
    /// every call returned.
    pub outputs_of_calls: Option<Vec<CallOutputsReport<'a>>>,
}

/// What several calls of a module, one after the other, returned alike.
#[derive(Debug, Serialize)]
pub struct CallOutputsReport<'a> {
    /// How many calls.
    pub calls: u64,
    /// Tensors that each returned.
    pub outputs: Vec<TensorShape<'a>>,
}

/// Own parameters of a module.
#[derive(Debug, Serialize)]
pub struct ParametersReport {
    /// Elements.
    pub numel: Option<u64>,
    /// Bytes.
    pub bytes: Option<u64>,
}

/// Calls of one operator by one module.
#[derive(Debug, Serialize)]
pub struct FunctionReport<'a> {
    /// Name such as `aten::add_`.
    pub op: &'a str,
    /// Calls.
    pub calls: u64,
    /// Results of each call.
    pub outputs: Vec<TensorShape<'a>>,
    /// Floating-point operations of all calls.
    pub flops: Option<u64>,
    /// Time of all calls.
    pub time_ns: u64,
}

/// Operators by kind.
#[derive(Debug, Serialize)]
pub struct OpsReport<'a> {
    /// Outermost operators.
    pub total: u64,
    /// By name, in order of first use.
    #[serde(serialize_with = "as_map")]
    pub kinds: Vec<(&'a str, OpKindReport)>,
    /// Names of operators that compute and have no formula: their FLOPs are missing from every sum.
    pub without_flops: Vec<&'a str>,
}

/// One kind of operator.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct OpKindReport {
    /// Calls.
    pub count: u64,
    /// Floating-point operations of all calls.
    pub flops: Option<u64>,
    /// Time of all calls.
    pub time_ns: u64,
}

/// One outermost operator.
#[derive(Debug, Serialize)]
pub struct OpReport<'a> {
    /// Place in the list.
    pub index: usize,
    /// Name such as `aten::conv2d`.
    pub op: &'a str,
    /// Path of the module that called it; in the backward pass, of the one whose operator it differentiates.
    pub module: Option<&'a str>,
    /// `forward`, `backward` or `optimizer`.
    pub phase: Option<&'static str>,
    /// Tensors among its arguments.
    pub inputs: Vec<TensorShape<'a>>,
    /// Tensors among its results.
    pub outputs: Vec<TensorShape<'a>>,
    /// Floating-point operations.
    pub flops: Option<u64>,
    /// Time.
    pub time_ns: Option<u64>,
    /// Bytes of its outputs.
    pub bytes: u64,
}

/// Sums of a run.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct RunTotalsReport {
    /// Multiply-accumulates of the forward pass.
    pub macs: Option<u64>,
    /// Floating-point operations of the forward pass.
    pub flops: Option<u64>,
    /// Floating-point operations of the backward pass; training runs.
    pub backward_flops: Option<u64>,
    /// Time of the forward pass.
    pub time_ns: u64,
}

impl<'a> RunReport<'a> {
    /// The report on a run; `ops` asks for the list of operators.
    #[must_use]
    pub fn new(run: &RunAnalysis<'a>, ops: bool) -> Self {
        let trace = run.index.trace;
        RunReport {
            device: &trace.header.device,
            mode: &trace.header.mode,
            method: &trace.header.method,
            libtorch_version: &trace.header.libtorch_version,
            arguments: run.index.arguments.iter().map(argument).collect(),
            inputs: inputs(run),
            outputs: outputs(run),
            modules: run
                .tree
                .preorder()
                .into_iter()
                .filter_map(|id| run.tree.modules.get(id))
                .map(|one| module(one, run))
                .collect(),
            ops: kinds(run),
            op_list: ops.then(|| op_list(run)),
            totals: totals(run),
            measured: MeasuredReport::new(trace, &run.memory),
        }
    }
}

/// Multiply-accumulates, where any are known.
pub(super) fn known(work: Work) -> Option<Work> {
    (work.macs > 0 || !work.incomplete).then_some(work)
}

fn macs(work: Work) -> Option<u64> {
    known(work).map(|work| work.macs)
}

fn flops(work: Work) -> Option<u64> {
    known(work).map(Work::flops)
}

/// The metadata of tensors.
pub(super) fn shapes(
    tensors: impl IntoIterator<Item = TensorRef>,
    trace: &Trace,
) -> Vec<TensorShape<'_>> {
    tensors
        .into_iter()
        .filter_map(|tensor| trace.sig(tensor))
        .map(|sig| TensorShape {
            dtype: &sig.dtype,
            shape: &sig.shape,
            bytes: sig.bytes,
        })
        .collect()
}

fn argument<'a>(argument: &Argument<'a>) -> ArgumentReport<'a> {
    ArgumentReport {
        name: argument.name,
        ty: argument.ty,
        value: argument.value,
        given: argument.given,
    }
}

/// The tensors among the arguments. A trace that says nothing of arguments has at least named the memory of inputs.
fn inputs<'a>(run: &RunAnalysis<'a>) -> Vec<InputReport<'a>> {
    let trace = run.index.trace;
    let input = |name, sig: Option<&'a Sig>| InputReport {
        name,
        dtype: sig.map(|sig| sig.dtype.as_str()),
        shape: sig.map(|sig| sig.shape.as_slice()),
        bytes: sig.map(|sig| sig.bytes),
    };
    if run.index.arguments.is_empty() {
        let labels = run.index.labels.iter();
        let mut seen = HashSet::new();
        return labels
            .filter(|label| label.category == Category::Inputs && seen.insert(label.name))
            .map(|label| {
                let sig = label.sig.and_then(|sig| trace.sigs.get(sig as usize));
                input(Cow::Borrowed(label.name), sig)
            })
            .collect();
    }
    let arguments = run.index.arguments.iter();
    arguments
        .flat_map(|argument| argument.tensors.iter().map(move |one| (argument.name, one)))
        .map(|(name, (place, tensor))| {
            let name = match place.as_str() {
                "" => Cow::Borrowed(name),
                place => Cow::Owned(format!("{name}.{place}")),
            };
            input(name, trace.sig(*tensor))
        })
        .collect()
}

/// What the last forward call returned.
fn outputs<'a>(run: &RunAnalysis<'a>) -> Vec<OutputReport<'a>> {
    let mut at: HashMap<&str, usize> = HashMap::new();
    let mut outputs: Vec<OutputReport<'a>> = Vec::new();
    for (path, tensor) in &run.index.outputs {
        let Some(tensor) = shapes([*tensor], run.index.trace).pop() else {
            continue;
        };
        let next = outputs.len();
        let one = OutputReport { path, tensor };
        match outputs.get_mut(*at.entry(path).or_insert(next)) {
            Some(known) => *known = one,
            None => outputs.push(one),
        }
    }
    outputs
}

fn module<'a>(module: &Module<'a>, run: &RunAnalysis<'a>) -> ModuleReport<'a> {
    let trace = run.index.trace;
    let training = run.training();
    let own = module.parameters;
    ModuleReport {
        path: module.path,
        class: module.class,
        depth: module.depth,
        calls: module.calls,
        outputs: shapes(module.outputs().iter().copied(), trace),
        outputs_of_calls: module.outputs_differ().then(|| {
            let calls = module.outputs_of_calls.iter();
            calls.map(|one| call_outputs(one, trace)).collect()
        }),
        parameters: ParametersReport {
            numel: (!own.unknown).then_some(own.numel),
            bytes: (!own.unknown).then_some(own.bytes),
        },
        macs: macs(module.forward),
        flops: flops(module.forward),
        time_ns: module.time_ns,
        backward_time_ns: training.then_some(module.backward_time_ns),
        peak_bytes: module.peak_bytes,
        saved_bytes: training.then_some(module.saved_bytes),
        backward_flops: if training {
            flops(module.backward)
        } else {
            None
        },
        functions: module
            .functions
            .iter()
            .map(|one| function(one, trace))
            .collect(),
    }
}

fn call_outputs<'a>(one: &CallOutputs, trace: &'a Trace) -> CallOutputsReport<'a> {
    CallOutputsReport {
        calls: one.calls,
        outputs: shapes(one.outputs.iter().copied(), trace),
    }
}

fn function<'a>(function: &Function<'a>, trace: &'a Trace) -> FunctionReport<'a> {
    FunctionReport {
        op: function.op,
        calls: function.count,
        outputs: shapes(function.outputs.iter().copied(), trace),
        flops: flops(function.work),
        time_ns: function.time_ns,
    }
}

fn kinds<'a>(run: &RunAnalysis<'a>) -> OpsReport<'a> {
    let mut at: HashMap<u32, usize> = HashMap::new();
    let mut sums: Vec<(&'a str, u64, Work, u64)> = Vec::new();
    let mut total = 0;
    for id in run.outermost() {
        let Some(op) = run.index.ops.get(id) else {
            continue;
        };
        total += 1;
        let next = sums.len();
        let place = *at.entry(op.name_id).or_insert(next);
        if place == next {
            sums.push((op.name, 0, Work::default(), 0));
        }
        if let Some((_, count, work, time)) = sums.get_mut(place) {
            *count += 1;
            work.add(run.flops.work(id));
            *time = time.saturating_add(op.time_ns.unwrap_or(0));
        }
    }
    OpsReport {
        total,
        kinds: sums
            .into_iter()
            .map(|(name, count, work, time_ns)| {
                let flops = flops(work);
                let kind = OpKindReport {
                    count,
                    flops,
                    time_ns,
                };
                (name, kind)
            })
            .collect(),
        without_flops: without_flops(run),
    }
}

fn without_flops<'a>(run: &RunAnalysis<'a>) -> Vec<&'a str> {
    let mut seen = HashSet::new();
    let ops = run.flops.without.iter();
    ops.filter_map(|id| run.index.ops.get(*id as usize))
        .filter(|op| run.index.reported(op.phase) && seen.insert(op.name))
        .map(|op| op.name)
        .collect()
}

pub(super) fn op_list<'a>(run: &RunAnalysis<'a>) -> Vec<OpReport<'a>> {
    let trace = run.index.trace;
    run.outermost()
        .enumerate()
        .filter_map(|(index, id)| {
            let op = run.index.ops.get(id)?;
            let outputs = shapes(op.out.iter().flat_map(Arg::tensors), trace);
            Some(OpReport {
                index,
                op: op.name,
                module: run.index.path(op.call),
                phase: run.index.phase(op.phase).map(|phase| phase.name.name()),
                inputs: shapes(op.args.iter().flat_map(Arg::tensors), trace),
                flops: (!run.flops.work(id).incomplete).then(|| run.flops.work(id).flops()),
                time_ns: op.time_ns,
                bytes: outputs
                    .iter()
                    .fold(0, |sum, tensor| sum.saturating_add(tensor.bytes)),
                outputs,
            })
        })
        .collect()
}

fn totals(run: &RunAnalysis<'_>) -> RunTotalsReport {
    let empty = Module::default();
    let root = run.tree.modules.get(ROOT).unwrap_or(&empty);
    RunTotalsReport {
        macs: macs(root.forward),
        flops: flops(root.forward),
        backward_flops: if run.training() {
            flops(root.backward)
        } else {
            None
        },
        time_ns: root.time_ns,
    }
}

/// Serializes pairs as an object, in their order.
fn as_map<S: serde::Serializer>(
    pairs: &[(&str, OpKindReport)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().copied())
}
