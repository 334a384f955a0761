//! Whether inputs are what an exported program takes.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Exit, Failure};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::program::expression::Expression;
use crate::checkpoint::program::{Port, PortKind, Program};
use crate::cli::BatchArgument;
use crate::engine::protocol::{Argument, InputValue, Inputs, RunRequest};
use crate::format::{self, TensorRef, Value};
use crate::source::Source;
use crate::tensor::DType;

/// The batches that a program takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Batches {
    /// The least.
    pub(super) min: u64,
    /// The greatest, where the program has a bound.
    pub(super) max: Option<u64>,
}

/// The batches that a program was exported for, from the dimensions of `B`; an error where there is only one.
pub(super) fn batches(
    checkpoint: &Checkpoint,
    inputs: &[BatchArgument],
) -> Result<Batches, Failure> {
    let mut all = Batches { min: 1, max: None };
    let [program] = checkpoint.programs() else {
        return Ok(all);
    };
    let own = self::inputs(program);
    for (place, input) in inputs.iter().enumerate() {
        let found = find(&own, place, input.name());
        let Some((port, PortKind::Tensor { shape, .. })) = found.map(|port| (port, &port.kind))
        else {
            continue;
        };
        for dimension in input.batch_dimensions() {
            let Some(size) = shape
                .get(dimension)
                .and_then(|size| Expression::parse(size))
            else {
                continue;
            };
            let place = format!("dimension {dimension} of `{}`", port.name);
            if !matches!(size, Expression::Symbol(_)) {
                let what = match size {
                    Expression::Number(number) => format!("fixed at {number}"),
                    size => format!("{size}, not any number"),
                };
                let message =
                    format!("there is no batch to find: {place} is {what} in the program");
                return Err(Failure::input(message).hint(
                    "export it with `dynamic_shapes={...: {0: torch.export.Dim(\"batch\")}}`",
                ));
            }
            for (_, min, max) in Sizes::of(program)
                .ranges
                .iter()
                .filter(|(of, ..)| *of == size)
            {
                let bound = |bound: Option<i64>| bound.and_then(|bound| u64::try_from(bound).ok());
                all.min = all.min.max(bound(*min).unwrap_or(0));
                all.max = bound(*max)
                    .map(|max| all.max.map_or(max, |known| known.min(max)))
                    .or(all.max);
            }
        }
    }
    Ok(all)
}

/// What an argument without a dtype is made of.
const DEFAULT_DTYPE: DType = DType::Float32;

/// An exported program has checked its sizes when it was exported, and operators in it hold them as numbers: inputs of
/// other sizes would give wrong results, or errors far from their cause. Nor does it convert. An error names the
/// argument.
pub(super) fn takes(checkpoint: &Checkpoint, request: &RunRequest) -> Result<(), Failure> {
    let [program] = checkpoint.programs() else {
        return Ok(());
    };
    let given = match &request.inputs {
        Inputs::Arguments(arguments) => of_arguments(program, arguments),
        // Its own inputs are right.
        Inputs::File(path) if *path == request.file => return Ok(()),
        Inputs::File(path) => of_file(program, path),
    };
    let converted = request.cast.is_some();
    for one in &given {
        if let Some(failure) = one.wrong_alone(converted) {
            return Err(failure);
        }
    }
    Sizes::of(program).check(&given)
}

/// A tensor that is given to a program.
struct Given<'p> {
    input: &'p Port,
    /// The recorded dtype and sizes.
    dtype: Option<DType>,
    shape: &'p [String],
    with_dtype: DType,
    with_shape: Vec<u64>,
}

/// What the caller gives.
fn inputs(program: &Program) -> Vec<&Port> {
    let inputs = program.inputs.iter();
    inputs.filter(|input| !input.name.is_empty()).collect()
}

/// The argument at a place or of a name. What is too much, or has no such name, the engine says with the signature.
fn find<'p>(inputs: &[&'p Port], place: usize, name: Option<&str>) -> Option<&'p Port> {
    match name {
        Some(name) => inputs.iter().find(|input| input.name == name).copied(),
        None => inputs.get(place).copied(),
    }
}

fn given(input: &Port, with_dtype: DType, with_shape: Vec<u64>) -> Option<Given<'_>> {
    match &input.kind {
        PortKind::Tensor { dtype, shape } => Some(Given {
            input,
            dtype: *dtype,
            shape,
            with_dtype,
            with_shape,
        }),
        PortKind::Other(_) => None,
    }
}

fn of_arguments<'p>(program: &'p Program, arguments: &[Argument]) -> Vec<Given<'p>> {
    let inputs = inputs(program);
    let all = arguments
        .iter()
        .enumerate()
        .filter_map(|(place, argument)| {
            let input = find(&inputs, place, argument.name.as_deref())?;
            let InputValue::Spec(spec) = &argument.value else {
                return None;
            };
            let tensor = spec.tensor.as_ref()?;
            let dtype = match &tensor.dtype {
                Some(name) => DType::from_name(name)?,
                None => DEFAULT_DTYPE,
            };
            given(input, dtype, tensor.dims.clone())
        });
    all.collect()
}

/// The tensors of a file of inputs; what cannot be read, the engine says.
fn of_file<'p>(program: &'p Program, path: &Path) -> Vec<Given<'p>> {
    let source = Source::open(path).map_err(format::FormatError::from);
    let Ok(read) = source.and_then(|source| format::read_inputs(&source)) else {
        return Vec::new();
    };
    let inputs = inputs(program);
    let one = |place: usize, name: Option<&str>, value: &Value| match value {
        Value::Tensor(TensorRef { dtype, shape, .. }) => {
            given(find(&inputs, place, name)?, *dtype, shape.to_vec())
        }
        _ => None,
    };
    match &read.value {
        Value::List(items) | Value::Tuple(items) => items
            .iter()
            .enumerate()
            .filter_map(|(place, item)| one(place, None, item))
            .collect(),
        Value::Dict(pairs) => pairs
            .iter()
            .filter_map(|(key, item)| match key {
                Value::Str(name) => one(0, Some(name), item),
                _ => None,
            })
            .collect(),
        alone => one(0, None, alone).into_iter().collect(),
    }
}

impl Given<'_> {
    /// What is wrong with it whatever the others are.
    fn wrong_alone(&self, converted: bool) -> Option<Failure> {
        if self.shape.len() != self.with_shape.len() {
            return Some(self.refuse(&format!(
                "{} dimensions instead of {}",
                self.with_shape.len(),
                self.shape.len()
            )));
        }
        let mut sizes = self.shape.iter().zip(&self.with_shape).enumerate();
        let fixed = sizes.find_map(|(dimension, (size, given))| {
            let fixed = size.parse::<u64>().ok().filter(|fixed| fixed != given)?;
            Some(self.refuse(&format!("dimension {dimension} is fixed at {fixed}")))
        });
        fixed.or_else(|| self.other_dtype(converted))
    }

    /// Weights that were converted want inputs of their dtype.
    fn other_dtype(&self, converted: bool) -> Option<Failure> {
        let dtype = self.dtype.filter(|dtype| *dtype != self.with_dtype)?;
        let both_floating = dtype.is_floating_point() && self.with_dtype.is_floating_point();
        if converted && both_floating {
            return None;
        }
        let (name, sizes) = (&self.input.name, self.given_sizes());
        let message = format!(
            "argument `{name}` is {}, and the program was exported for {}: it converts nothing",
            self.with_dtype.name(),
            dtype.name()
        );
        let hint = format!("`--input {name}={sizes}:{}` makes it that", dtype.name());
        Some(Failure::new(Exit::ENGINE, anyhow::Error::msg(message)).hint(hint))
    }

    fn refuse(&self, why: &str) -> Failure {
        let message = format!(
            "argument `{}` is {}, and the program was exported for {}: {why}",
            self.input.name,
            self.given_sizes(),
            self.recorded_sizes()
        );
        Failure::new(Exit::ENGINE, anyhow::Error::msg(message))
            .hint("`torch.export.export(..., dynamic_shapes=...)` leaves sizes open")
    }

    fn recorded_sizes(&self) -> String {
        match self.shape {
            [one] => Expression::parse(one).map_or_else(|| one.clone(), |read| read.to_string()),
            several => joined(several.iter().map(|size| size_text(size))),
        }
    }

    fn given_sizes(&self) -> String {
        joined(self.with_shape.iter().map(u64::to_string))
    }
}

/// Sizes as `--input` takes them.
fn joined(sizes: impl Iterator<Item = String>) -> String {
    let sizes: Vec<String> = sizes.collect();
    if sizes.is_empty() {
        "[]".to_owned()
    } else {
        sizes.join("x")
    }
}

/// A size as people write it, in parentheses where it would look like several.
fn size_text(size: &str) -> String {
    match Expression::parse(size) {
        Some(read @ Expression::Call(..)) => format!("({read})"),
        _ => size.to_owned(),
    }
}

/// The sizes that are not fixed, and what is known of them.
struct Sizes {
    /// Least and greatest value of what has them.
    ranges: Vec<(Expression, Option<i64>, Option<i64>)>,
    /// Symbols whose value is known: that, and which dimension says so.
    known: BTreeMap<String, (i64, String)>,
}

/// A dimension that is not fixed.
struct Dimension<'g> {
    of: &'g Given<'g>,
    index: usize,
    size: Expression,
    given: i64,
}

impl Dimension<'_> {
    fn refuse(&self, why: &str) -> Failure {
        self.of.refuse(&format!("dimension {} {why}", self.index))
    }
}

impl Sizes {
    fn of(program: &Program) -> Sizes {
        let ranges = program
            .symbols
            .iter()
            .filter_map(|symbol| Some((Expression::parse(&symbol.name)?, symbol.min, symbol.max)));
        Sizes {
            ranges: ranges.collect(),
            known: BTreeMap::new(),
        }
    }

    fn check(mut self, given: &[Given<'_>]) -> Result<(), Failure> {
        let dimensions: Vec<Dimension<'_>> = given.iter().flat_map(dimensions).collect();
        for dimension in &dimensions {
            self.range(dimension)?;
        }
        // First what is a symbol itself, then what is one times a number and such, as far as that leads.
        let (mut open, expressions): (Vec<_>, Vec<_>) = dimensions
            .iter()
            .partition(|dimension| matches!(dimension.size, Expression::Symbol(_)));
        open.extend(expressions);
        loop {
            let before = open.len();
            let mut left = Vec::new();
            for dimension in open {
                if !self.settles(dimension)? {
                    left.push(dimension);
                }
            }
            if left.len() == before {
                return Ok(());
            }
            open = left;
        }
    }

    fn range(&self, dimension: &Dimension<'_>) -> Result<(), Failure> {
        let ranges = self.ranges.iter();
        for (_, min, max) in ranges.filter(|(size, ..)| *size == dimension.size) {
            // An exporter that was given no bound writes 0 or 2, which says that 1 would have been another program.
            if let Some(min) = min.filter(|min| dimension.given < *min) {
                return Err(dimension.refuse(&format!("is at least {min}")));
            }
            if let Some(max) = max.filter(|max| dimension.given > *max) {
                return Err(dimension.refuse(&format!("is at most {max}")));
            }
        }
        Ok(())
    }

    /// Compares a dimension with what is known, or learns from it; false where there is too little to do either.
    fn settles(&mut self, dimension: &Dimension<'_>) -> Result<bool, Failure> {
        let value = |name: &str| self.known.get(name).map(|(value, _)| *value);
        let (size, given) = (&dimension.size, dimension.given);
        if let Some(expected) = size.value(&value) {
            if expected == given {
                return Ok(true);
            }
            return Err(dimension.refuse(&self.expected(size, expected)));
        }
        let Some(line) = size.line(&value) else {
            return Ok(false);
        };
        let Some(symbol) = line.symbol else {
            return Ok(false);
        };
        let Some(solved) = line.solve(given).filter(|solved| *solved >= 0) else {
            return Err(dimension.refuse(&format!("is {size} for a whole `{symbol}`")));
        };
        let whose = self.ranges.iter();
        let own =
            whose.filter(|(size, ..)| matches!(size, Expression::Symbol(name) if name == symbol));
        for (_, min, max) in own {
            // PyTorch takes 0 and 1 where the range begins with them or with 2.
            if let Some(min) = min.filter(|min| *min > 2 && solved < *min) {
                return Err(
                    dimension.refuse(&format!("is {size}, and `{symbol}` is at least {min}"))
                );
            }
            if let Some(max) = max.filter(|max| solved > *max) {
                return Err(
                    dimension.refuse(&format!("is {size}, and `{symbol}` is at most {max}"))
                );
            }
        }
        let place = format!(
            "dimension {} of `{}`",
            dimension.index, dimension.of.input.name
        );
        self.known.insert(symbol.to_owned(), (solved, place));
        Ok(true)
    }

    /// What a size has to be, and why.
    fn expected(&self, size: &Expression, expected: i64) -> String {
        let mut whys = Vec::new();
        for symbol in size.symbols() {
            if let Some((value, place)) = self.known.get(symbol) {
                whys.push(format!("`{symbol}` is {value} by {place}"));
            }
        }
        let formula = match size {
            Expression::Symbol(_) => String::new(),
            size => format!("{size} = "),
        };
        format!("has to be {formula}{expected}: {}", whys.join(", "))
    }
}

fn dimensions<'g>(of: &'g Given<'g>) -> impl Iterator<Item = Dimension<'g>> {
    let sizes = of.shape.iter().zip(&of.with_shape).enumerate();
    sizes.filter_map(move |(index, (size, given))| {
        let size = Expression::parse(size)?;
        let given = i64::try_from(*given).unwrap_or(i64::MAX);
        (!matches!(size, Expression::Number(_))).then_some(Dimension {
            of,
            index,
            size,
            given,
        })
    })
}
