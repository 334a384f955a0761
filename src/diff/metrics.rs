//! What is counted and weighed of a file and a run, as named numbers of which less is better.
//!
//! A name is a word of [`CATALOGUE`], and for a part of it a dot and the part: `parameters.float16`,
//! `peak_reserved_bytes.backward.2`. Times are none of them: they differ from run to run.

use super::facts::{
    EstimateFacts, Facts, FunctionFacts, ModuleFacts, PhaseFacts, RunFacts, ShapeFacts,
};
use crate::tensor::DType;
use crate::text::nearest;
use crate::trace::PhaseName;

/// What a number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Things.
    Count,
}

/// What must be there for a number to be known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// The file alone.
    File,
    /// A run.
    Run,
    /// A training run.
    Training,
    /// An estimate of GPU memory.
    Estimate,
    /// That measured values were asked for.
    Measured,
}

/// What a number has parts by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parts {
    /// It has none.
    None,
    /// The dtype: `float16`.
    DTypes,
    /// The phase of the run, and the step of a training: `forward`, `backward.2`.
    Phases,
}

impl Parts {
    /// A dtype that the file does not say.
    const UNKNOWN: &str = "unknown";

    const PHASES: [PhaseName; 5] = [
        PhaseName::Load,
        PhaseName::Inputs,
        PhaseName::Forward,
        PhaseName::Backward,
        PhaseName::Optimizer,
    ];

    /// Whether there can be such a part.
    #[must_use]
    pub fn has(self, part: &str) -> bool {
        match self {
            Parts::None => false,
            Parts::DTypes => part == Parts::UNKNOWN || DType::from_name(part).is_some(),
            Parts::Phases => {
                let (phase, step) = match part.split_once('.') {
                    Some((phase, step)) => (phase, Some(step)),
                    None => (part, None),
                };
                let number = |step: &str| step.parse::<u32>().is_ok_and(|step| step > 0);
                Parts::PHASES.iter().any(|one| one.name() == phase) && step.is_none_or(number)
            }
        }
    }

    /// The part that is spelled most like this one.
    fn nearest(self, part: &str) -> Option<String> {
        match self {
            Parts::None => None,
            Parts::DTypes => {
                nearest(part, DType::ALL.iter().map(|dtype| dtype.name())).map(str::to_owned)
            }
            Parts::Phases => {
                let (phase, step) = part.split_once('.').unwrap_or((part, ""));
                let phase = nearest(phase, Parts::PHASES.iter().map(|phase| phase.name()))?;
                Some(match step {
                    "" => phase.to_owned(),
                    step => format!("{phase}.{step}"),
                })
                .filter(|part| self.has(part))
            }
        }
    }
}

/// A kind of number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Its name.
    pub name: &'static str,
    /// What it counts.
    pub unit: Unit,
    /// What it needs.
    pub needs: Needs,
    /// What it is, in a few words.
    pub about: &'static str,
    /// What it has parts by.
    pub parts: Parts,
}

const fn kind(name: &'static str, unit: Unit, needs: Needs, about: &'static str) -> Kind {
    Kind {
        name,
        unit,
        needs,
        about,
        parts: Parts::None,
    }
}

impl Kind {
    const fn by(self, parts: Parts) -> Kind {
        Kind { parts, ..self }
    }
}

/// Every kind, in the order of reports.
pub const CATALOGUE: [Kind; 21] = [
    kind("file_bytes", Unit::Bytes, Needs::File, "the file"),
    kind(
        "storage_bytes",
        Unit::Bytes,
        Needs::File,
        "every storage once",
    ),
    kind(
        "slack_bytes",
        Unit::Bytes,
        Needs::File,
        "stored, but reached by no tensor",
    ),
    kind("tensors", Unit::Count, Needs::File, "names"),
    kind(
        "parameters",
        Unit::Count,
        Needs::File,
        "elements of parameters, also by dtype",
    )
    .by(Parts::DTypes),
    kind("parameter_bytes", Unit::Bytes, Needs::File, "parameters"),
    kind("buffer_bytes", Unit::Bytes, Needs::File, "buffers"),
    kind(
        "optimizer_bytes",
        Unit::Bytes,
        Needs::File,
        "optimizer state in the file",
    ),
    kind(
        "flops",
        Unit::Count,
        Needs::Run,
        "floating-point operations forward",
    ),
    kind(
        "backward_flops",
        Unit::Count,
        Needs::Training,
        "floating-point operations backward",
    ),
    kind("ops", Unit::Count, Needs::Run, "operators"),
    kind(
        "activation_bytes",
        Unit::Bytes,
        Needs::Run,
        "what the layers return, added up",
    ),
    kind(
        "saved_bytes",
        Unit::Bytes,
        Needs::Training,
        "kept for the backward pass",
    ),
    kind(
        "peak_requested_bytes",
        Unit::Bytes,
        Needs::Estimate,
        "asked for at the peak, also by phase",
    )
    .by(Parts::Phases),
    kind(
        "peak_allocated_bytes",
        Unit::Bytes,
        Needs::Estimate,
        "allocated at the peak, also by phase",
    )
    .by(Parts::Phases),
    kind(
        "peak_reserved_bytes",
        Unit::Bytes,
        Needs::Estimate,
        "reserved at the peak, also by phase",
    )
    .by(Parts::Phases),
    kind(
        "eager_peak_allocated_bytes",
        Unit::Bytes,
        Needs::Estimate,
        "allocated at the peak of an eager Python module",
    ),
    kind(
        "eager_peak_reserved_bytes",
        Unit::Bytes,
        Needs::Estimate,
        "reserved at the peak of an eager Python module",
    ),
    kind(
        "measured_peak_requested_bytes",
        Unit::Bytes,
        Needs::Measured,
        "asked for at the measured peak",
    ),
    kind(
        "measured_peak_allocated_bytes",
        Unit::Bytes,
        Needs::Measured,
        "allocated at the measured peak",
    ),
    kind(
        "measured_peak_reserved_bytes",
        Unit::Bytes,
        Needs::Measured,
        "reserved at the measured peak",
    ),
];

/// The kind that a name belongs to, and the part of it that is meant; the ending `_bytes` may be left out.
#[must_use]
pub fn find(name: &str) -> Option<(Kind, &str)> {
    let (base, part) = name.split_once('.').unwrap_or((name, ""));
    let exact = CATALOGUE.iter().find(|kind| kind.name == base);
    let short = || {
        let mut kinds = CATALOGUE.iter();
        kinds.find(|kind| kind.name.strip_suffix("_bytes") == Some(base))
    };
    exact.or_else(short).map(|kind| (*kind, part))
}

/// Whether a report can have a number of exactly this name.
#[must_use]
pub fn exists(name: &str) -> bool {
    let (base, part) = match name.split_once('.') {
        Some((base, part)) => (base, Some(part)),
        None => (name, None),
    };
    let kind = CATALOGUE.iter().find(|kind| kind.name == base);
    kind.is_some_and(|kind| part.is_none_or(|part| kind.parts.has(part)))
}

/// The name that is spelled most like one that does not exist.
#[must_use]
pub fn similar(name: &str) -> Option<String> {
    let (base, part) = name.split_once('.').unwrap_or((name, ""));
    let kind = find(base).map(|(kind, _)| kind).or_else(|| {
        let nearest = nearest(base, CATALOGUE.iter().map(|kind| kind.name))?;
        find(nearest).map(|(kind, _)| kind)
    })?;
    let whole = kind.name.to_owned();
    let exact = Some(part).filter(|part| kind.parts.has(part));
    let part = exact
        .map(str::to_owned)
        .or_else(|| kind.parts.nearest(part));
    Some(match part {
        Some(part) => format!("{whole}.{part}"),
        None => whole,
    })
}

/// Where a number stands among others: by kind, parts behind their whole. Sorting by it must be stable.
#[must_use]
pub fn order(name: &str) -> Option<usize> {
    let base = name.split('.').next().unwrap_or_default();
    CATALOGUE.iter().position(|kind| kind.name == base)
}

/// One number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metric {
    /// Its name.
    pub name: String,
    /// The number; `None` where it is not known.
    pub value: Option<u64>,
    /// What it counts.
    pub unit: Unit,
}

/// All numbers of a file and its run; measured ones where asked for.
#[must_use]
pub fn of(facts: &Facts, measured: bool) -> Vec<Metric> {
    let mut list = List(Vec::new());
    file(facts, &mut list);
    if let Some(run) = &facts.run {
        ran(run, &mut list);
    }
    if let Some(estimate) = &facts.estimate {
        estimated(estimate, &mut list);
    }
    let run = facts.run.as_ref().filter(|_| measured);
    if let Some(measured) = run.and_then(|run| run.measured.as_ref()) {
        list.add(
            "measured_peak_requested_bytes",
            measured.peak_requested_bytes,
        );
        list.add(
            "measured_peak_allocated_bytes",
            measured.peak_allocated_bytes,
        );
        // The CPU's allocator keeps nothing back.
        if measured.peak_reserved_bytes.is_some() {
            list.add("measured_peak_reserved_bytes", measured.peak_reserved_bytes);
        }
    }
    list.0
}

struct List(Vec<Metric>);

impl List {
    fn add(&mut self, name: &str, value: Option<u64>) {
        let unit = find(name).map_or(Unit::Count, |(kind, _)| kind.unit);
        self.0.push(Metric {
            name: name.to_owned(),
            value,
            unit,
        });
    }
}

fn file(facts: &Facts, list: &mut List) {
    let totals = &facts.totals;
    list.add("file_bytes", Some(facts.file.bytes));
    list.add("storage_bytes", Some(totals.storage_bytes));
    list.add("slack_bytes", Some(totals.slack_bytes));
    list.add("tensors", Some(totals.tensors));
    let of_role = |role: &'static str| facts.tensors.iter().filter(move |one| one.role == role);
    let mut dtypes: Vec<(&str, u64)> = Vec::new();
    let mut numel = Some(0_u64);
    for tensor in of_role("parameter") {
        numel = add(numel, tensor.numel);
        let dtype = tensor.dtype.as_deref().unwrap_or("unknown");
        let elements = tensor.numel.unwrap_or(0);
        match dtypes.iter_mut().find(|(name, _)| *name == dtype) {
            Some((_, sum)) => *sum = sum.saturating_add(elements),
            None => dtypes.push((dtype, elements)),
        }
    }
    dtypes.sort_unstable();
    list.add("parameters", numel);
    for (dtype, elements) in dtypes {
        list.add(&format!("parameters.{dtype}"), Some(elements));
    }
    for (name, role) in [
        ("parameter_bytes", "parameter"),
        ("buffer_bytes", "buffer"),
        ("optimizer_bytes", "optimizer"),
    ] {
        let bytes = of_role(role).map(|one| one.bytes);
        list.add(name, bytes.fold(Some(0), add));
    }
}

/// A sum of which one part is unknown is unknown.
fn add(sum: Option<u64>, value: Option<u64>) -> Option<u64> {
    Some(sum?.saturating_add(value?))
}

fn ran(run: &RunFacts, list: &mut List) {
    list.add("flops", run.totals.flops);
    let training = run.mode == "train";
    if training {
        list.add("backward_flops", run.totals.backward_flops);
    }
    list.add("ops", Some(run.ops.total));
    let activations = activations(run).into_iter().map(|(_, bytes)| bytes);
    list.add(
        "activation_bytes",
        Some(activations.fold(0, u64::saturating_add)),
    );
    if training {
        let root = run.modules.iter().find(|module| module.path.is_empty());
        list.add("saved_bytes", root.and_then(|module| module.saved_bytes));
    }
}

/// What every module without modules below it returned, and every operator that the others call themselves, all calls
/// together, bytes; by path, in order of first use.
#[must_use]
pub fn activations(run: &RunFacts) -> Vec<(&str, u64)> {
    let parents: std::collections::HashSet<&str> = run
        .modules
        .iter()
        .filter(|module| !module.path.is_empty())
        .map(|module| {
            module
                .path
                .rsplit_once('.')
                .map_or("", |(parent, _)| parent)
        })
        .collect();
    let bytes = |module: &ModuleFacts| {
        if parents.contains(module.path.as_str()) {
            let functions = module.functions.iter().map(function_bytes);
            functions.fold(0, u64::saturating_add)
        } else {
            returned(module)
        }
    };
    let modules = run.modules.iter();
    modules.map(|one| (one.path.as_str(), bytes(one))).collect()
}

fn function_bytes(function: &FunctionFacts) -> u64 {
    sum(&function.outputs).saturating_mul(function.calls)
}

fn returned(module: &ModuleFacts) -> u64 {
    match &module.outputs_of_calls {
        Some(calls) => calls
            .iter()
            .map(|one| sum(&one.outputs).saturating_mul(one.calls))
            .fold(0, u64::saturating_add),
        None => sum(&module.outputs).saturating_mul(module.calls),
    }
}

fn sum(tensors: &[ShapeFacts]) -> u64 {
    let sizes = tensors.iter().map(|tensor| tensor.bytes);
    sizes.fold(0, u64::saturating_add)
}

fn estimated(estimate: &EstimateFacts, list: &mut List) {
    type Figure = fn(&PhaseFacts) -> Option<u64>;
    let figures: [(&str, Option<u64>, Figure); 3] = [
        (
            "peak_requested_bytes",
            estimate.peak_requested_bytes,
            |phase| phase.peak_requested_bytes,
        ),
        (
            "peak_allocated_bytes",
            estimate.peak_allocated_bytes,
            |phase| phase.peak_allocated_bytes,
        ),
        (
            "peak_reserved_bytes",
            estimate.peak_reserved_bytes,
            |phase| phase.peak_reserved_bytes,
        ),
    ];
    // Without a run there is no peak to speak of: it is not known.
    if estimate.basis == "static" {
        return;
    }
    for (name, peak, of) in figures {
        list.add(name, peak);
        for phase in &estimate.phases {
            list.add(&format!("{name}.{}", phase.key()), of(phase));
        }
    }
    if let Some(eager) = &estimate.eager {
        list.add("eager_peak_allocated_bytes", eager.peak_allocated_bytes);
        list.add("eager_peak_reserved_bytes", eager.peak_reserved_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_and_without_their_ending() {
        assert_eq!(find("peak_reserved").unwrap().0.name, "peak_reserved_bytes");
        assert_eq!(find("file_bytes").unwrap().0.name, "file_bytes");
        assert_eq!(find("parameters.float16").unwrap().1, "float16");
        assert_eq!(find("peak_allocated.backward.2").unwrap().1, "backward.2");
        // `parameters` is the count, not `parameter_bytes`.
        assert_eq!(find("parameters").unwrap().0.unit, Unit::Count);
        assert!(find("speed").is_none());
        assert!(find("").is_none());
    }

    #[test]
    fn names_that_do_not_exist_have_neighbours() {
        for name in [
            "file_bytes",
            "parameters.float16",
            "parameters.unknown",
            "peak_reserved_bytes.forward",
            "peak_reserved_bytes.backward.2",
        ] {
            assert!(exists(name), "{name}");
        }
        for (name, expected) in [
            ("file", Some("file_bytes")),
            ("peak_reservd_bytes", Some("peak_reserved_bytes")),
            (
                "peak_reservd_bytes.forward",
                Some("peak_reserved_bytes.forward"),
            ),
            (
                "peak_reserved_bytes.forwrd",
                Some("peak_reserved_bytes.forward"),
            ),
            (
                "peak_reserved_bytes.bakward.2",
                Some("peak_reserved_bytes.backward.2"),
            ),
            ("peak_reserved_bytes.forward.0", Some("peak_reserved_bytes")),
            ("parameters.floot16", Some("parameters.float16")),
            ("parameters.", Some("parameters")),
            ("tensors.forward", Some("tensors")),
            ("zzz", None),
            ("", None),
        ] {
            assert!(!exists(name), "{name}");
            assert_eq!(similar(name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn what_has_parts_says_so() {
        for kind in CATALOGUE {
            let said = match kind.parts {
                Parts::None => !kind.about.contains("also by"),
                Parts::DTypes => kind.about.ends_with(", also by dtype"),
                Parts::Phases => kind.about.ends_with(", also by phase"),
            };
            assert!(said, "{}", kind.name);
        }
    }
}
