//! The tree that the names of tensors spell, as small as it can be: a checkpoint has 100,000 names, of which people see
//! a screen or two once equal layers are put together.

use std::borrow::Cow;

use super::collapse::Groups;
use super::{About, FastMap, Leaf, Node, NodeId, Sums};

/// A name is split into at most this many parts: bounds recursion, deeper names keep the rest in one part.
const MAX_PARTS: usize = 64;

/// Children of a node that are searched one by one: most modules have no more, and an index of all costs as much as
/// the tree.
const SEARCHED_CHILDREN: u32 = 8;

/// Index of a name in [`Names`].
pub(super) type NameId = u32;

/// No name, leaf or group.
pub(super) const NONE: u32 = u32::MAX;

/// One part of a name, with links to the parts behind it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Name<'a> {
    pub(super) label: &'a str,
    pub(super) first_child: NameId,
    last_child: NameId,
    /// The next of the same parent.
    pub(super) next: NameId,
    pub(super) children: u32,
    /// Place in [`Names::leaves`].
    pub(super) leaf: u32,
    /// Place in [`Names::abouts`].
    about: u32,
    /// What it was put together with: place in [`Groups`].
    pub(super) group: u32,
}

impl<'a> Name<'a> {
    fn new(label: &'a str) -> Self {
        Name {
            label,
            first_child: NONE,
            last_child: NONE,
            next: NONE,
            children: 0,
            leaf: NONE,
            about: NONE,
            group: NONE,
        }
    }
}

/// All names. A name comes behind its parent, and the children of one parent are linked in file order.
#[derive(Debug)]
pub(super) struct Names<'t, 'a> {
    pub(super) parts: Vec<Name<'a>>,
    leaves: &'t [Leaf<'a>],
    abouts: Vec<About<'a>>,
    pub(super) groups: Groups<'a>,
}

/// The root is always the first name.
const ROOT: NameId = 0;

pub(super) fn place(id: u32) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX)
}

fn number(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(NONE)
}

impl<'t, 'a> Names<'t, 'a> {
    /// The names of these tensors.
    pub(super) fn new(leaves: &'t [Leaf<'a>], abouts: &FastMap<&'a str, About<'a>>) -> Self {
        let mut names = Names {
            parts: vec![Name::new("")],
            leaves,
            abouts: Vec::new(),
            groups: Groups::default(),
        };
        // Two in three names are modules'. Memory that is not used in the end is never touched.
        names.parts.reserve(leaves.len().saturating_mul(3));
        let mut reader = Reader {
            last: "",
            open: Vec::new(),
            index: FastMap::default(),
        };
        for (leaf, one) in leaves.iter().enumerate() {
            let id = reader.read(one.tensor.name(), &mut names, abouts);
            if let Some(name) = names.parts.get_mut(place(id)) {
                name.leaf = number(leaf);
            }
        }
        names
    }

    pub(super) fn leaf(&self, name: &Name<'a>) -> Option<Leaf<'a>> {
        self.leaves.get(place(name.leaf)).copied()
    }

    pub(super) fn about(&self, name: &Name<'a>) -> About<'a> {
        let about = self.abouts.get(place(name.about)).copied();
        about.unwrap_or_default()
    }

    pub(super) fn get(&self, id: NameId) -> Option<&Name<'a>> {
        self.parts.get(place(id))
    }

    /// The children of a name, in order.
    pub(super) fn children(&self, parent: &Name<'a>) -> impl Iterator<Item = (NameId, &Name<'a>)> {
        let mut next = parent.first_child;
        std::iter::from_fn(move || {
            let id = next;
            let name = self.get(id)?;
            next = name.next;
            Some((id, name))
        })
    }

    fn push(&mut self, parent: NameId, name: Name<'a>) -> NameId {
        let id = number(self.parts.len());
        self.parts.push(name);
        let Some(above) = self.parts.get_mut(place(parent)) else {
            return id;
        };
        above.children += 1;
        let before = std::mem::replace(&mut above.last_child, id);
        if before == NONE {
            above.first_child = id;
        } else if let Some(before) = self.parts.get_mut(place(before)) {
            before.next = id;
        }
        id
    }

    /// The nodes that can be reached from the root, parents before children.
    pub(super) fn nodes(&self) -> Vec<Node<'a>> {
        let mut nodes: Vec<Node<'a>> = Vec::new();
        let mut open: Vec<NameId> = vec![ROOT];
        let mut at: NodeId = 0;
        while let Some(name) = open.get(at).and_then(|id| self.get(*id)) {
            let first = open.len();
            open.extend(self.children(name).map(|(id, _)| id));
            let (label, repeats) = match self.groups.get(name.group) {
                Some(group) => (Cow::Owned(group.label()), group.repeats()),
                None => (Cow::Borrowed(name.label), 1),
            };
            nodes.push(Node {
                label,
                children: (first..open.len()).collect(),
                leaf: self.leaf(name),
                about: self.about(name),
                repeats,
                sums: Sums::default(),
            });
            at += 1;
        }
        nodes
    }
}

/// Length of the member's name and the `::` that a tensor's name begins with in archives of several pickles.
fn member_bytes(name: &str) -> usize {
    let found = name.split_once("::");
    let member = found.filter(|(member, _)| member.contains('/') || member.contains(".pkl"));
    member.map_or(0, |(member, _)| member.len() + 2)
}

/// Takes names apart, one after the other.
struct Reader<'a> {
    /// The name before: names come in order, so most of it is the start of the next.
    last: &'a str,
    /// The parts of it: where they end, and which they are.
    open: Vec<(usize, NameId)>,
    /// Children from the ninth of a name on, by parent and label.
    index: FastMap<(NameId, &'a str), NameId>,
}

impl<'a> Reader<'a> {
    /// The name of a tensor, which is new or has none yet.
    fn read(
        &mut self,
        whole: &'a str,
        names: &mut Names<'_, 'a>,
        abouts: &FastMap<&'a str, About<'a>>,
    ) -> NameId {
        self.keep_common(whole);
        let (mut start, mut parent) = match self.open.last() {
            Some(&(end, id)) => (end + 1, id),
            None => (0, ROOT),
        };
        // Behind the last part there is none, not even an empty one.
        while start <= whole.len() {
            let rest = whole.get(start..).unwrap_or("");
            let more = self.open.len() + 1 < MAX_PARTS;
            // The first part is the name of a member, where there is one. Parts are short: a search made for long
            // texts takes longer.
            let behind = if start == 0 { member_bytes(rest) } else { 0 };
            let dot = rest.bytes().skip(behind).position(|byte| byte == b'.');
            let dot = dot.map(|dot| behind + dot);
            let length = dot.filter(|_| more).unwrap_or(rest.len());
            let (label, end) = (rest.get(..length).unwrap_or(""), start + length);
            parent = self.child(parent, label, whole.get(..end), names, abouts);
            self.open.push((end, parent));
            start = end + 1;
        }
        self.last = whole;
        match names.get(parent) {
            Some(name) if name.leaf != NONE => self.twin(whole, names),
            _ => parent,
        }
    }

    /// Closes the parts that the next name does not share with the one before.
    fn keep_common(&mut self, whole: &str) {
        let (old, new) = (self.last.as_bytes(), whole.as_bytes());
        let common = old.iter().zip(new).take_while(|(a, b)| a == b).count();
        let shared = self
            .open
            .iter()
            .enumerate()
            .take_while(|(level, (end, _))| {
                let ends = match new.get(*end) {
                    // The last part that there may be goes on to the end of the name.
                    Some(b'.') => level + 1 < MAX_PARTS,
                    Some(_) => false,
                    None => *end == new.len(),
                };
                *end <= common && ends
            });
        let shared = shared.count();
        self.open.truncate(shared);
    }

    fn child(
        &mut self,
        parent: NameId,
        label: &'a str,
        path: Option<&'a str>,
        names: &mut Names<'_, 'a>,
        abouts: &FastMap<&'a str, About<'a>>,
    ) -> NameId {
        if let Some(known) = self.known_child(parent, label, names) {
            return known;
        }
        let mut name = Name::new(label);
        if let Some(about) = path.and_then(|path| abouts.get(path)) {
            name.about = number(names.abouts.len());
            names.abouts.push(*about);
        }
        let id = names.push(parent, name);
        if names
            .get(parent)
            .is_some_and(|n| n.children > SEARCHED_CHILDREN)
        {
            self.index.insert((parent, label), id);
        }
        id
    }

    /// The child of this label: few are searched one by one, the others are in the index.
    fn known_child(&self, parent: NameId, label: &'a str, names: &Names<'_, 'a>) -> Option<NameId> {
        let above = names.get(parent)?;
        let searched = usize::try_from(SEARCHED_CHILDREN).unwrap_or(usize::MAX);
        let mut first = names.children(above).take(searched);
        match first.find(|(_, name)| name.label == label) {
            Some((id, _)) => Some(id),
            None if above.children > SEARCHED_CHILDREN => self.index.get(&(parent, label)).copied(),
            None => None,
        }
    }

    /// Two tensors of one name: both are shown.
    fn twin(&self, whole: &'a str, names: &mut Names<'_, 'a>) -> NameId {
        let label = whole.rsplit('.').next().unwrap_or(whole);
        let above = self.open.len().checked_sub(2);
        let above = above.and_then(|level| self.open.get(level));
        names.push(above.map_or(ROOT, |(_, id)| *id), Name::new(label))
    }
}
