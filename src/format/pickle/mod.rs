//! The pickle machine: Python's pickle, protocols 0 to 5, as a tree of plain values.
//!
//! Nothing is ever imported, called or evaluated. A global is a name, a call is a node that holds the name and the
//! arguments, an object is a node with its state. What the names mean is the business of others.
//!
//! Values live in one arena and refer to each other by [`NodeId`]: no value owns another, so cycles and nesting of any
//! depth cost nothing to build, walk or drop. Strings and bytes stay in the input and are referred to by place. Memory
//! is bounded by [`crate::limits::PICKLE_MEMORY_BYTES`] and the input's size, whatever lengths the input declares.
//!
//! As in Python: `MARK` fences the stack, `MEMOIZE` numbers by entries made so far, later keys of a dictionary replace
//! earlier ones (left to [`Pickle::entries`], in the place of the first).

mod error;
mod machine;
mod repr;
#[cfg(test)]
mod tests;
mod text;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};

use error::PickleErrorKind as Kind;
pub use error::{PickleError, PickleErrorKind};
pub use machine::{parse, parse_with_budget};
pub(crate) use repr::cut;

/// A value in a [`Pickle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(u32);

impl NodeId {
    /// The place in the arena, smaller than [`Pickle::len`].
    #[must_use]
    pub fn index(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// A stretch of the input. Place and length have 48 bits each, so that a [`Node`] has 16 bytes: no file has 2^48.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    start_low: u32,
    len_low: u32,
    start_high: u16,
    len_high: u16,
}

impl Span {
    /// `None` for what no file has.
    fn new(start: usize, len: usize) -> Option<Span> {
        let (start_high, start_low) = halves(start)?;
        let (len_high, len_low) = halves(len)?;
        Some(Span {
            start_low,
            len_low,
            start_high,
            len_high,
        })
    }

    fn start(self) -> u64 {
        u64::from(self.start_high) << 32 | u64::from(self.start_low)
    }

    fn len(self) -> u64 {
        u64::from(self.len_high) << 32 | u64::from(self.len_low)
    }

    /// The stretch of this input; empty when it is not all there.
    fn of(self, input: &[u8]) -> &[u8] {
        let (Ok(start), Ok(len)) = (usize::try_from(self.start()), usize::try_from(self.len()))
        else {
            return &[];
        };
        start
            .checked_add(len)
            .and_then(|end| input.get(start..end))
            .unwrap_or(&[])
    }
}

/// The upper 16 and the lower 32 of 48 bits.
fn halves(value: usize) -> Option<(u16, u32)> {
    let value = value as u64;
    let high = u16::try_from(value >> 32).ok()?;
    let low = u32::try_from(value & u64::from(u32::MAX)).ok()?;
    Some((high, low))
}

/// A global that the pickle names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GlobalId(u32);

impl GlobalId {
    /// The place among [`Pickle::globals`].
    #[must_use]
    pub fn index(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// A run of values in the arena's item table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    start: u32,
    len: u32,
}

/// A list, dictionary or set that can still grow while the pickle is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContainerId(u32);

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Node {
    /// `None`
    None,
    /// `True`, `False`
    Bool(bool),
    /// An integer that fits.
    Int(i64),
    /// An integer that does not fit 64 bits: little-endian two's complement.
    Long(Span),
    /// An integer that does not fit 64 bits, as decimal text.
    LongText(Span),
    /// A float.
    Float(f64),
    /// A string in the input: [`Pickle::text`].
    Str(Span),
    /// A string that had escapes (protocol 0): [`Pickle::text`].
    Decoded(u32),
    /// Bytes or bytearray: [`Pickle::bytes`].
    Bytes(Span),
    /// A tuple: [`Pickle::items`].
    Tuple(Run),
    /// A frozenset: [`Pickle::items`].
    FrozenSet(Run),
    /// A list: [`Pickle::items`].
    List(ContainerId),
    /// A set: [`Pickle::items`].
    Set(ContainerId),
    /// A dictionary: [`Pickle::entries`].
    Dict(ContainerId),
    /// A class or function, by name: [`Pickle::global`].
    Global(GlobalId),
    /// What the file's reader keeps outside the pickle, by this id.
    Persistent(NodeId),
    /// A call of something with a tuple of arguments; also made by `INST` and `OBJ`.
    Reduce {
        /// What is called.
        callable: NodeId,
        /// A tuple.
        args: NodeId,
    },
    /// `class.__new__(class, *args)`.
    New {
        /// The class.
        class: NodeId,
        /// A tuple.
        args: NodeId,
    },
    /// `class.__new__(class, *args, **kwargs)`.
    NewEx {
        /// The class.
        class: NodeId,
        /// A tuple of arguments and keyword arguments.
        both: NodeId,
    },
    /// An entry of Python's `copyreg` extension registry.
    Extension(u32),
}

/// What a pickle does to an object after making it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Extra {
    state: Option<NodeId>,
    list: Option<ContainerId>,
    dict: Option<ContainerId>,
}

/// A growing container: a run of the item table with room to grow.
#[derive(Debug, Clone, Copy, Default)]
struct Container {
    start: u32,
    len: u32,
    capacity: u32,
}

/// A global as the pickle names it.
#[derive(Debug, Clone, Copy)]
struct GlobalName {
    module: NameRef,
    name: NameRef,
    offset: u64,
    instantiated: bool,
}

/// Text of a global: in the input, or in the table of decoded strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameRef {
    Input(Span),
    Decoded(u32),
}

/// The values of one pickle.
#[derive(Debug)]
pub struct Pickle<'a> {
    input: Cow<'a, [u8]>,
    nodes: Vec<Node>,
    items: Vec<NodeId>,
    containers: Vec<Container>,
    decoded: Vec<String>,
    globals: Vec<GlobalName>,
    extras: HashMap<NodeId, Extra>,
    assigned_globals: Vec<GlobalId>,
    extensions: Vec<u32>,
    root: NodeId,
    protocol: Option<u8>,
    consumed: usize,
}

impl Pickle<'_> {
    /// The value that the pickle is.
    #[must_use]
    pub fn root(&self) -> NodeId {
        self.root
    }

    /// How many values the arena holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Never: a pickle holds at least its root.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The ids of all values, in the order made.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> {
        (0..u32::try_from(self.nodes.len()).unwrap_or(u32::MAX)).map(NodeId)
    }

    /// Bytes of input up to and including `STOP`.
    #[must_use]
    pub fn consumed(&self) -> usize {
        self.consumed
    }

    /// The input after `STOP`.
    #[must_use]
    pub fn rest(&self) -> &[u8] {
        self.input.get(self.consumed..).unwrap_or(&[])
    }

    /// The protocol that the pickle declares, from 2 on.
    #[must_use]
    pub fn protocol(&self) -> Option<u8> {
        self.protocol
    }

    /// What a value is.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Node {
        self.nodes.get(id.index()).copied().unwrap_or(Node::None)
    }

    /// The values of a tuple, list, set or frozenset; empty for anything else.
    #[must_use]
    pub fn items(&self, id: NodeId) -> &[NodeId] {
        match self.node(id) {
            Node::Tuple(run) | Node::FrozenSet(run) => self.run(run),
            Node::List(container) | Node::Set(container) => self.contents(container),
            _ => &[],
        }
    }

    /// Keys and values of a dictionary, in order, one behind the other and as often as stored.
    #[must_use]
    pub fn pairs(&self, id: NodeId) -> &[NodeId] {
        match self.node(id) {
            Node::Dict(container) => self.contents(container),
            _ => &[],
        }
    }

    /// Key-value pairs as Python would keep them: a repeated key keeps its first place and takes the last value.
    #[must_use]
    pub fn entries(&self, pairs: &[NodeId]) -> Vec<(NodeId, NodeId)> {
        let mut entries: Vec<(NodeId, NodeId)> = Vec::with_capacity(pairs.len() / 2);
        let distinct = self.has_distinct_texts(pairs);
        let mut by_text: HashMap<&[u8], usize> = HashMap::new();
        let mut by_value: HashMap<String, usize> = HashMap::new();
        let mut by_node: HashMap<NodeId, usize> = HashMap::new();
        for pair in pairs.chunks_exact(2) {
            let [key, value] = *pair else { continue };
            if distinct {
                entries.push((key, value));
                continue;
            }
            let place = entries.len();
            let known = if let Some(text) = self.str_bytes(key) {
                *by_text.entry(text).or_insert(place)
            } else if let Some(plain) = self.plain_key(key) {
                *by_value.entry(plain).or_insert(place)
            } else {
                *by_node.entry(key).or_insert(place)
            };
            match entries.get_mut(known) {
                Some(entry) => entry.1 = value,
                None => entries.push((key, value)),
            }
        }
        entries
    }

    /// Whether all keys are strings and all different, by their hashes: true is certain, false may be a coincidence.
    fn has_distinct_texts(&self, pairs: &[NodeId]) -> bool {
        let hasher = foldhash::fast::RandomState::default();
        let mut seen: HashSet<u64, BuildHasherDefault<Identity>> =
            HashSet::with_capacity_and_hasher(pairs.len() / 2, BuildHasherDefault::default());
        pairs.iter().step_by(2).all(|key| {
            self.str_bytes(*key)
                .is_some_and(|text| seen.insert(hasher.hash_one(text)))
        })
    }

    /// Keys and values that were assigned into an object that is no plain dictionary (OrderedDict, ...).
    #[must_use]
    pub fn assigned_pairs(&self, id: NodeId) -> &[NodeId] {
        self.extra(id)
            .and_then(|extra| extra.dict)
            .map_or(&[], |container| self.contents(container))
    }

    /// Values that were appended to an object that is no plain list.
    #[must_use]
    pub fn appended_items(&self, id: NodeId) -> &[NodeId] {
        self.extra(id)
            .and_then(|extra| extra.list)
            .map_or(&[], |container| self.contents(container))
    }

    /// The state that `BUILD` gave an object.
    #[must_use]
    pub fn state(&self, id: NodeId) -> Option<NodeId> {
        self.extra(id).and_then(|extra| extra.state)
    }

    /// The last value in a dictionary under a string key.
    #[must_use]
    pub fn get(&self, dict: NodeId, key: &str) -> Option<NodeId> {
        self.pairs(dict)
            .chunks_exact(2)
            .rev()
            .find_map(|pair| match pair {
                [k, v] if self.str_bytes(*k) == Some(key.as_bytes()) => Some(*v),
                _ => None,
            })
    }

    /// An integer; booleans count as in Python.
    #[must_use]
    pub fn int(&self, id: NodeId) -> Option<i64> {
        match self.node(id) {
            Node::Int(value) => Some(value),
            Node::Bool(value) => Some(i64::from(value)),
            _ => None,
        }
    }

    /// A float, or an integer as one.
    #[must_use]
    pub fn float(&self, id: NodeId) -> Option<f64> {
        match self.node(id) {
            Node::Float(value) => Some(value),
            Node::Int(value) => Some(value as f64),
            _ => None,
        }
    }

    /// A boolean.
    #[must_use]
    pub fn bool(&self, id: NodeId) -> Option<bool> {
        match self.node(id) {
            Node::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// A string. What is not Unicode (Python can pickle lone surrogates) is replaced by U+FFFD.
    #[must_use]
    pub fn text(&self, id: NodeId) -> Option<Cow<'_, str>> {
        // The check for whole strings is many times faster than the one that finds the faulty parts.
        self.str_bytes(id)
            .map(|bytes| match std::str::from_utf8(bytes) {
                Ok(text) => Cow::Borrowed(text),
                Err(_) => String::from_utf8_lossy(bytes),
            })
    }

    /// The bytes of a string as stored.
    #[must_use]
    pub fn str_bytes(&self, id: NodeId) -> Option<&[u8]> {
        match self.node(id) {
            Node::Str(span) => Some(self.span(span)),
            Node::Decoded(index) => self.decoded_text(index).map(str::as_bytes),
            _ => None,
        }
    }

    /// The contents of a bytes object.
    #[must_use]
    pub fn bytes(&self, id: NodeId) -> Option<&[u8]> {
        match self.node(id) {
            Node::Bytes(span) => Some(self.span(span)),
            _ => None,
        }
    }

    /// The contents of a bytes object, or of a string that is in the input as it is, and where they are in the input.
    #[must_use]
    pub fn span_of(&self, id: NodeId) -> Option<(u64, &[u8])> {
        match self.node(id) {
            Node::Bytes(span) | Node::Str(span) => Some((span.start(), self.span(span))),
            _ => None,
        }
    }

    /// Module and name of a global.
    #[must_use]
    pub fn global(&self, id: NodeId) -> Option<(Cow<'_, str>, Cow<'_, str>)> {
        match self.node(id) {
            Node::Global(global) => self.global_name(global),
            _ => None,
        }
    }

    /// Whether a value is the global of this module and name.
    #[must_use]
    pub fn is_global(&self, id: NodeId, module: &str, name: &str) -> bool {
        let Node::Global(global) = self.node(id) else {
            return false;
        };
        self.global_slot(global).is_some_and(|g| {
            self.name_bytes(g.module) == module.as_bytes()
                && self.name_bytes(g.name) == name.as_bytes()
        })
    }

    /// Every global that the pickle names, each once, in order of first appearance.
    pub fn globals(&self) -> impl Iterator<Item = GlobalId> {
        (0..u32::try_from(self.globals.len()).unwrap_or(u32::MAX)).map(GlobalId)
    }

    /// Module and name of a global.
    #[must_use]
    pub fn global_name(&self, id: GlobalId) -> Option<(Cow<'_, str>, Cow<'_, str>)> {
        self.global_slot(id).map(|g| {
            (
                String::from_utf8_lossy(self.name_bytes(g.module)),
                String::from_utf8_lossy(self.name_bytes(g.name)),
            )
        })
    }

    /// Where in the input a global is first named.
    #[must_use]
    pub fn global_offset(&self, id: GlobalId) -> u64 {
        self.global_slot(id).map_or(0, |g| g.offset)
    }

    /// Whether `INST` or `OBJ` makes an instance of a global.
    #[must_use]
    pub fn is_instantiated(&self, id: GlobalId) -> bool {
        self.global_slot(id).is_some_and(|g| g.instantiated)
    }

    /// Globals whose own attributes the pickle sets (`BUILD` on a class, function or module).
    #[must_use]
    pub fn assigned_globals(&self) -> &[GlobalId] {
        &self.assigned_globals
    }

    /// Codes of the extension registry that the pickle uses.
    #[must_use]
    pub fn extensions(&self) -> &[u32] {
        &self.extensions
    }

    fn extra(&self, id: NodeId) -> Option<&Extra> {
        self.extras.get(&id)
    }

    fn global_slot(&self, id: GlobalId) -> Option<&GlobalName> {
        self.globals.get(usize::try_from(id.0).ok()?)
    }

    fn name_bytes(&self, name: NameRef) -> &[u8] {
        match name {
            NameRef::Input(span) => self.span(span),
            NameRef::Decoded(index) => self.decoded_text(index).unwrap_or("").as_bytes(),
        }
    }

    fn decoded_text(&self, index: u32) -> Option<&str> {
        self.decoded
            .get(usize::try_from(index).ok()?)
            .map(String::as_str)
    }

    fn span(&self, span: Span) -> &[u8] {
        span.of(&self.input)
    }

    fn run(&self, run: Run) -> &[NodeId] {
        slice(&self.items, run.start, run.len)
    }

    fn contents(&self, id: ContainerId) -> &[NodeId] {
        usize::try_from(id.0)
            .ok()
            .and_then(|i| self.containers.get(i))
            .map_or(&[], |c| slice(&self.items, c.start, c.len))
    }
}

/// A part of a table; empty when it is not all there.
fn slice<T>(table: &[T], start: u32, len: u32) -> &[T] {
    let (Ok(start), Ok(len)) = (usize::try_from(start), usize::try_from(len)) else {
        return &[];
    };
    start
        .checked_add(len)
        .and_then(|end| table.get(start..end))
        .unwrap_or(&[])
}

/// Hashes of hashes: themselves.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}
