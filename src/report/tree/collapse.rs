//! Putting siblings together that differ only in their number.
//!
//! Every name gets a kind: names of one kind are equal but for their own labels, with all that is below them. Kinds are
//! found by hash and compared in full, from the last name to the first: children come before their parents.

use std::hash::{BuildHasher, Hash, Hasher};

use super::names::{NONE, Name, NameId, Names, place};
use super::{FastMap, Leaf, Sharing, ranges, split_number};
use crate::checkpoint::{Composite, Layout, Role};
use crate::tensor::DType;

/// Siblings that are one: `layer` and 0, 1, 2, ...
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Group<'a> {
    prefix: &'a str,
    /// In ascending order.
    numbers: Vec<u64>,
}

impl Group<'_> {
    /// `layer{0..2}`.
    pub(super) fn label(&self) -> String {
        format!("{}{}", self.prefix, ranges(&self.numbers))
    }

    /// How many siblings.
    pub(super) fn repeats(&self) -> u64 {
        u64::try_from(self.numbers.len()).unwrap_or(u64::MAX)
    }
}

/// All groups. Those of neighbouring layers are mostly equal and kept once.
#[derive(Debug, Default)]
pub(super) struct Groups<'a> {
    groups: Vec<Group<'a>>,
}

impl<'a> Groups<'a> {
    pub(super) fn get(&self, id: u32) -> Option<&Group<'a>> {
        self.groups.get(place(id))
    }

    fn add(&mut self, prefix: &'a str, numbers: &[u64]) -> u32 {
        // A layer has few groups, and the layer before had the same.
        let known = self.groups.iter().rev().take(4);
        let known = known
            .zip(1..)
            .find(|(group, _)| group.prefix == prefix && group.numbers == numbers);
        let back = known.map_or(0, |(_, back)| back);
        let place = self.groups.len() - back;
        if back == 0 {
            self.groups.push(Group {
                prefix,
                numbers: numbers.to_vec(),
            });
        }
        u32::try_from(place).unwrap_or(NONE)
    }
}

/// What a name is by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct OwnKind<'a> {
    class: Option<&'a str>,
    composite: Option<CompositeKind<'a>>,
    leaf: Option<LeafKind<'a>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct CompositeKind<'a> {
    layout: Layout,
    dtype: Option<DType>,
    shape: Option<&'a [u64]>,
}

impl<'a> CompositeKind<'a> {
    fn of(whole: &'a Composite) -> Self {
        CompositeKind {
            layout: whole.layout,
            dtype: whole.dtype,
            shape: whole.shape.as_deref(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct LeafKind<'a> {
    role: Role,
    layout: Layout,
    dtype: Option<DType>,
    shape: Option<&'a [u64]>,
    sharing: Sharing,
}

impl<'a> LeafKind<'a> {
    fn of(leaf: Leaf<'a>) -> Self {
        LeafKind {
            role: leaf.tensor.role(),
            layout: leaf.tensor.layout(),
            dtype: leaf.tensor.dtype(),
            shape: leaf.tensor.shape(),
            sharing: leaf.sharing(),
        }
    }
}

/// A kind: the first name that was of it.
#[derive(Debug, Clone, Copy)]
struct Kind {
    first: NameId,
    /// The kind before with the same hash.
    same_hash: u32,
}

/// Kinds found so far.
struct Kinds<'a> {
    kinds: Vec<Kind>,
    by_hash: FastMap<u64, u32>,
    /// The kind of every name, where it is known already.
    of: Vec<u32>,
    hasher: foldhash::fast::RandomState,
    /// The last name without children: mostly the next is the same.
    last: Option<(OwnKind<'a>, u32)>,
}

/// Siblings that are one, while they are looked for.
struct Siblings<'a> {
    first: NameId,
    prefix: &'a str,
    kind: u32,
}

/// Groups of siblings that are searched one by one.
const SEARCHED_GROUPS: usize = 16;

impl<'a> Names<'_, 'a> {
    /// Puts siblings that differ only in their number into one name.
    pub(super) fn collapse(&mut self) {
        let mut kinds = Kinds {
            kinds: Vec::new(),
            by_hash: FastMap::default(),
            of: vec![0; self.names.len()],
            hasher: foldhash::fast::RandomState::default(),
            last: None,
        };
        let mut scratch = Scratch::default();
        for id in (0..u32::try_from(self.names.len()).unwrap_or(NONE)).rev() {
            if self.get(id).is_some_and(|name| name.children > 1) {
                self.join_children(id, &kinds.of, &mut scratch);
            }
            let kind = kinds.find(self, id);
            if let Some(slot) = kinds.of.get_mut(place(id)) {
                *slot = kind;
            }
        }
    }

    /// Joins the children of a name that are equal but for their numbers into the first of them.
    fn join_children(&mut self, id: NameId, kind_of: &[u32], scratch: &mut Scratch<'a>) {
        let Some(parent) = self.get(id) else { return };
        scratch.clear();
        for (child, name) in self.children(parent) {
            let kind = kind_of.get(place(child)).copied().unwrap_or(0);
            scratch.add(child, name.label, kind);
        }
        if scratch.siblings.len() == scratch.count {
            return;
        }
        scratch.members.sort_unstable();
        let mut members = scratch.members.as_slice();
        let mut before = NONE;
        for (index, siblings) in scratch.siblings.iter().enumerate() {
            let own = members.iter().take_while(|(place, _)| *place == index);
            let numbers = own.map(|(_, number)| *number);
            scratch.numbers.clear();
            scratch.numbers.extend(numbers);
            members = members.get(scratch.numbers.len()..).unwrap_or(&[]);
            let mut group = NONE;
            if scratch.numbers.len() > 1 {
                group = self.groups.add(siblings.prefix, &scratch.numbers);
            }
            if let Some(name) = self.names.get_mut(place(siblings.first)) {
                (name.group, name.next) = (group, NONE);
            }
            if let Some(name) = self.names.get_mut(place(before)) {
                name.next = siblings.first;
            }
            before = siblings.first;
        }
        if let Some(parent) = self.names.get_mut(place(id)) {
            parent.children = u32::try_from(scratch.siblings.len()).unwrap_or(NONE);
        }
    }

    fn own_kind(&self, name: &Name<'a>) -> OwnKind<'a> {
        let about = self.about(name);
        OwnKind {
            class: about.class,
            composite: about.composite.map(CompositeKind::of),
            leaf: self.leaf(name).map(LeafKind::of),
        }
    }

    /// Whether two names show the same label.
    fn same_label(&self, a: &Name<'a>, b: &Name<'a>) -> bool {
        match (self.groups.get(a.group), self.groups.get(b.group)) {
            (None, None) => a.label == b.label,
            (Some(one), Some(other)) => a.group == b.group || one == other,
            _ => false,
        }
    }
}

/// Groups of one name's children.
#[derive(Default)]
struct Scratch<'a> {
    siblings: Vec<Siblings<'a>>,
    /// The number of every child that has one: place in `siblings`, number.
    members: Vec<(usize, u64)>,
    /// The numbers of one group.
    numbers: Vec<u64>,
    index: FastMap<(&'a str, u32), usize>,
    count: usize,
}

impl<'a> Scratch<'a> {
    fn clear(&mut self) {
        self.siblings.clear();
        self.members.clear();
        self.index.clear();
        self.count = 0;
    }

    fn add(&mut self, child: NameId, label: &'a str, kind: u32) {
        self.count += 1;
        let place = self.siblings.len();
        let Some((prefix, number)) = split_number(label) else {
            // One that nothing is ever joined to.
            self.push(child, label, NONE);
            return;
        };
        let group = self.find(prefix, kind).unwrap_or(place);
        if group == place {
            self.push(child, prefix, kind);
            if place >= SEARCHED_GROUPS {
                self.index.insert((prefix, kind), place);
            }
        }
        self.members.push((group, number));
    }

    fn push(&mut self, first: NameId, prefix: &'a str, kind: u32) {
        self.siblings.push(Siblings {
            first,
            prefix,
            kind,
        });
    }

    fn find(&self, prefix: &'a str, kind: u32) -> Option<usize> {
        let mut first = self.siblings.iter().take(SEARCHED_GROUPS);
        let near = first.position(|one| one.kind == kind && one.prefix == prefix);
        near.or_else(|| match self.siblings.len() {
            0..=SEARCHED_GROUPS => None,
            _ => self.index.get(&(prefix, kind)).copied(),
        })
    }
}

impl<'a> Kinds<'a> {
    /// The kind of a name whose children's kinds are known.
    fn find(&mut self, names: &Names<'_, 'a>, id: NameId) -> u32 {
        let Some(name) = names.get(id) else { return 0 };
        let own = names.own_kind(name);
        let alone = name.children == 0;
        if let Some((last, kind)) = self.last
            && alone
            && last == own
        {
            return kind;
        }
        let hash = self.hash(names, name, &own);
        let newest = self.by_hash.get(&hash).copied().unwrap_or(NONE);
        let mut kind = newest;
        while let Some(known) = self.kinds.get(place(kind)) {
            if self.is(names, name, &own, kind) {
                break;
            }
            kind = known.same_hash;
        }
        if kind == NONE {
            kind = u32::try_from(self.kinds.len()).unwrap_or(NONE);
            self.kinds.push(Kind {
                first: id,
                same_hash: newest,
            });
            self.by_hash.insert(hash, kind);
        }
        if alone {
            self.last = Some((own, kind));
        }
        kind
    }

    /// Whether a name is of a kind.
    fn is(&self, names: &Names<'_, 'a>, name: &Name<'a>, own: &OwnKind<'a>, kind: u32) -> bool {
        let first = self.kinds.get(place(kind));
        let Some(first) = first.and_then(|kind| names.get(kind.first)) else {
            return false;
        };
        if name.children != first.children || *own != names.own_kind(first) {
            return false;
        }
        let kind_of = |id: NameId| self.of.get(place(id));
        names
            .children(name)
            .zip(names.children(first))
            .all(|((id, one), (other_id, other))| {
                kind_of(id) == kind_of(other_id) && names.same_label(one, other)
            })
    }

    fn hash(&self, names: &Names<'_, 'a>, name: &Name<'a>, own: &OwnKind<'a>) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        own.hash(&mut hasher);
        for (id, child) in names.children(name) {
            let (label, more) = match names.groups.get(child.group) {
                Some(group) => (group.prefix, group.numbers.len()),
                None => (child.label, 0),
            };
            hasher.write(label.as_bytes());
            hasher.write_usize(more);
            hasher.write_u32(self.of.get(place(id)).copied().unwrap_or(0));
        }
        hasher.finish()
    }
}
