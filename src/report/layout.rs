//! The view: which rows people see, in which order. Sorting, filtering and cutting happen here and nowhere else.

use std::cmp::Reverse;

use regex::Regex;

use super::CastSizes;
use super::tree::{DTypes, Leaf, Node, NodeId, ROOT, Sharing, Tree, abouts, cast_bytes};
use crate::checkpoint::{Checkpoint, Layout, Tensor};
use crate::tensor::DType;

/// Rows of a tree without `--depth`: a screen or two.
pub(super) const TREE_ROWS: usize = 64;

/// What to show.
#[derive(Debug, Clone, Default)]
pub struct ViewOptions {
    /// Levels of the tree; `None` is as many as fit a screen or two.
    pub depth: Option<usize>,
    /// Only tensors whose name matches.
    pub filter: Option<Regex>,
    /// A list in this order instead of a tree.
    pub order: Option<Order>,
    /// Only the first rows.
    pub top: Option<usize>,
    /// Every row, nothing collapsed.
    pub all: bool,
    /// Sizes if cast to this dtype.
    pub cast: Option<DType>,
    /// Whether [`View::selected`] is wanted: for formats that list tensors.
    pub tensors: bool,
}

/// The order of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// By name.
    Name,
    /// Largest first.
    Bytes,
    /// As in the file.
    File,
}

/// What people see of the tensors of one file.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// The rows in order.
    pub rows: Vec<Row>,
    /// Whether they are a tree; else a list.
    pub tree: bool,
    /// Levels shown, and levels there are.
    pub depth: (usize, usize),
    /// Rows left out at the end.
    pub hidden_rows: usize,
    /// Whether the user asked for only the first rows.
    pub top: bool,
    /// Tensors that match the filter, and all; `None` without a filter.
    pub filtered: Option<(usize, usize)>,
    /// With [`ViewOptions::tensors`], the indices of the tensors that match, in the order asked for and cut, never
    /// collapsed.
    pub selected: Vec<usize>,
}

/// What a row is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowKind {
    /// A module with its sums.
    Module,
    /// A tensor.
    Tensor,
}

/// A row; sums cover all of what it stands for.
#[derive(Debug, Clone)]
pub struct Row {
    /// What it is.
    pub kind: RowKind,
    /// Level in the tree, from 0.
    pub level: usize,
    /// For every level whether more siblings follow: where guides go on.
    pub guides: Vec<bool>,
    /// Its own part of the name.
    pub label: String,
    /// Its whole name.
    pub path: String,
    /// The module's class without its package.
    pub class: Option<String>,
    /// The tensor's role.
    pub role: Option<&'static str>,
    /// The dtype, `mixed`, or nothing.
    pub dtype: Option<&'static str>,
    /// The shape as text; for a module of tensors only that of its largest, with the number of the others.
    pub shape: Option<String>,
    /// How it is laid out, where that is not the usual way.
    pub layout: Option<&'static str>,
    /// How many equal things it stands for, its parents' repeats included.
    pub repeats: u64,
    /// Whether it stands for several siblings itself.
    pub collapsed: bool,
    /// What memory it shares: `= name`, `shares name`, or `shared` where several rows are one.
    pub shared: Option<String>,
    /// Tensors.
    pub tensors: u64,
    /// Elements; `None` where there is no shape.
    pub numel: Option<u64>,
    /// Logical bytes.
    pub bytes: Option<u64>,
    /// Logical bytes if cast.
    pub cast_bytes: Option<u64>,
}

impl View {
    /// The rows that `options` ask for.
    #[must_use]
    pub fn new(checkpoint: &Checkpoint, options: &ViewOptions) -> View {
        let leaves = leaves(checkpoint, options.filter.as_ref());
        let filtered = options
            .filter
            .as_ref()
            .map(|_| (leaves.len(), checkpoint.tensors().len()));
        let mut tree = Tree::new(&leaves, &abouts(checkpoint), options.cast, !options.all);
        let list = options.order.is_some() || options.top.is_some();
        if !list {
            tree.join_chains();
        }
        let shown = shown_depth(&tree, options, list);
        let limit = match options.top {
            Some(top) => top,
            None if options.all || options.depth.is_some() => usize::MAX,
            None => TREE_ROWS,
        };
        let mut walk = Walk {
            tree: &tree,
            list,
            depth: shown,
            cast: options.cast,
            // A list is cut once it is sorted.
            limit: if list { usize::MAX } else { limit },
            rows: Vec::new(),
            cut_rows: 0,
            guides: Vec::new(),
        };
        walk.children(ROOT, "", 0, 1);
        let Walk {
            mut rows, cut_rows, ..
        } = walk;
        if list {
            sort(&mut rows, options.order.unwrap_or(Order::Bytes));
        }
        let hidden_rows = cut_rows.saturating_add(rows.len().saturating_sub(limit));
        rows.truncate(limit);
        View {
            rows,
            tree: !list,
            depth: (shown, tree.depth()),
            hidden_rows,
            top: options.top.is_some(),
            filtered,
            selected: if options.tensors {
                select(checkpoint, options)
            } else {
                Vec::new()
            },
        }
    }
}

/// Indices of the tensors that match, sorted and cut.
fn select(checkpoint: &Checkpoint, options: &ViewOptions) -> Vec<usize> {
    let tensors = checkpoint.tensors();
    let mut selected: Vec<(usize, &Tensor)> = tensors
        .iter()
        .enumerate()
        .filter(|(_, tensor)| {
            let filter = options.filter.as_ref();
            filter.is_none_or(|filter| filter.is_match(tensor.name()))
        })
        .collect();
    match (options.order, options.top) {
        (Some(Order::Name), _) => selected.sort_by_key(|(_, tensor)| tensor.name()),
        (Some(Order::Bytes), _) | (None, Some(_)) => {
            selected.sort_by_key(|(_, tensor)| Reverse(tensor.bytes()));
        }
        (Some(Order::File) | None, _) => {}
    }
    selected.truncate(options.top.unwrap_or(usize::MAX));
    selected.into_iter().map(|(index, _)| index).collect()
}

/// The tensors that match, each with the first that has the same memory.
fn leaves<'a>(checkpoint: &'a Checkpoint, filter: Option<&Regex>) -> Vec<Leaf<'a>> {
    let mut seen: Vec<Option<&Tensor>> = vec![None; checkpoint.storages().len()];
    let mut leaves = Vec::with_capacity(checkpoint.tensors().len());
    for tensor in checkpoint.tensors() {
        let slot = tensor.storage().and_then(|id| seen.get_mut(id.index()));
        let mut first = None;
        if let Some(slot) = slot {
            first = *slot;
            slot.get_or_insert(tensor);
        }
        if filter.is_none_or(|filter| filter.is_match(tensor.name())) {
            leaves.push(Leaf { tensor, first });
        }
    }
    leaves
}

/// The depth to cut at: the user's, else all, else the deepest that fits.
fn shown_depth(tree: &Tree<'_>, options: &ViewOptions, list: bool) -> usize {
    if let Some(depth) = options.depth {
        return depth;
    }
    let rows = tree.rows_by_depth();
    if options.all || list {
        return rows.len();
    }
    let fits = rows.iter().take_while(|rows| **rows <= TREE_ROWS).count();
    fits.max(1)
}

fn sort(rows: &mut [Row], order: Order) {
    match order {
        Order::File => {}
        Order::Name => rows.sort_by(|a, b| a.path.cmp(&b.path)),
        Order::Bytes => rows.sort_by_key(|row| Reverse(row.bytes)),
    }
}

struct Walk<'a> {
    tree: &'a Tree<'a>,
    list: bool,
    depth: usize,
    cast: Option<DType>,
    /// How many rows are made; more are only counted.
    limit: usize,
    rows: Vec<Row>,
    cut_rows: usize,
    guides: Vec<bool>,
}

impl Walk<'_> {
    /// Rows of everything below `id`, down to the depth. `repeats` is how often `id` itself is there.
    fn children(&mut self, id: NodeId, path: &str, level: usize, repeats: u64) {
        if level >= self.depth {
            return;
        }
        let children = &self.tree.node(id).children;
        for (index, child) in children.iter().enumerate() {
            let node = self.tree.node(*child);
            let path = if level == 0 {
                node.label.clone().into_owned()
            } else {
                format!("{path}.{}", node.label)
            };
            let repeats = repeats.saturating_mul(node.repeats);
            self.guides.push(index + 1 < children.len());
            let cut = level + 1 >= self.depth;
            if self.rows.len() >= self.limit {
                self.cut_rows += 1;
            } else if !self.list || node.leaf.is_some() || cut {
                let mut row = self.row(node, path.clone(), level, repeats);
                if node.leaf.is_some() && !cut && !node.children.is_empty() {
                    // A name that is a tensor and a prefix: the others have rows of their own.
                    own_sums(&mut row, node, repeats, self.cast);
                }
                self.rows.push(row);
            }
            self.children(*child, &path, level + 1, repeats);
            self.guides.pop();
        }
    }

    fn row(&self, node: &Node<'_>, path: String, level: usize, repeats: u64) -> Row {
        let tensor = node.leaf.map(|leaf| leaf.tensor);
        let known = tensor.is_none_or(|tensor| tensor.shape().is_some());
        let sums = node.sums;
        let times = |value: u64| known.then(|| value.saturating_mul(repeats));
        Row {
            kind: if tensor.is_some() {
                RowKind::Tensor
            } else {
                RowKind::Module
            },
            level,
            guides: self.guides.clone(),
            label: node.label.clone().into_owned(),
            path,
            class: node.about.class.map(str::to_owned),
            role: tensor.map(|tensor| tensor.role().name()),
            dtype: match sums.dtype {
                DTypes::None => None,
                DTypes::One(dtype) => Some(dtype.name()),
                DTypes::Mixed => Some("mixed"),
            },
            shape: match tensor {
                Some(tensor) => tensor.shape().map(shape_text),
                None => match node.about.composite {
                    Some(whole) => whole.shape.as_deref().map(shape_text),
                    None => self.main_shape(node),
                },
            },
            layout: layout(node),
            repeats,
            collapsed: node.repeats > 1,
            shared: node.leaf.and_then(|leaf| shared_text(leaf, repeats)),
            tensors: sums.tensors.saturating_mul(repeats),
            numel: times(sums.numel),
            bytes: times(sums.bytes),
            cast_bytes: if self.cast.is_some() {
                times(sums.cast_bytes)
            } else {
                None
            },
        }
    }

    /// The shape of the largest tensor of a module that holds nothing but tensors, and how many others there are.
    fn main_shape(&self, node: &Node<'_>) -> Option<String> {
        let mut largest: Option<&Tensor> = None;
        let mut count = 0_u64;
        for child in &node.children {
            let child = self.tree.node(*child);
            if !child.children.is_empty() {
                return None;
            }
            let tensor = child.leaf?.tensor;
            count = count.saturating_add(child.repeats);
            if largest.is_none_or(|best| tensor.bytes() > best.bytes()) {
                largest = Some(tensor);
            }
        }
        let shape = largest?.shape().map(shape_text)?;
        Some(match count {
            1 => shape,
            _ => format!("{shape} +{}", count - 1),
        })
    }
}

/// How a tensor is laid out, where it is worth saying; parts leave that to their whole.
fn layout(node: &Node<'_>) -> Option<&'static str> {
    let layout = match (node.leaf, node.about.composite) {
        (_, Some(whole)) => whole.layout,
        (Some(leaf), None) => leaf.tensor.layout(),
        (None, None) => return None,
    };
    match layout {
        Layout::Strided => None,
        Layout::Quantized | Layout::Meta | Layout::Uninitialized | Layout::Chunked => {
            Some(layout.name())
        }
        _ => node.about.composite.map(|_| layout.name()),
    }
}

fn shared_text(leaf: Leaf<'_>, repeats: u64) -> Option<String> {
    let first = leaf.first?.name();
    match leaf.sharing() {
        Sharing::No => None,
        _ if repeats > 1 => Some("shared".to_owned()),
        Sharing::Same => Some(format!("= {first}")),
        Sharing::Storage => Some(format!("shares {first}")),
    }
}

/// Replaces a row's sums by those of its own tensor.
fn own_sums(row: &mut Row, node: &Node<'_>, repeats: u64, cast: Option<DType>) {
    let Some(tensor) = node.leaf.map(|leaf| leaf.tensor) else {
        return;
    };
    row.tensors = repeats;
    row.dtype = tensor.dtype().map(DType::name);
    row.numel = tensor
        .shape()
        .map(|_| tensor.numel().saturating_mul(repeats));
    row.bytes = tensor
        .shape()
        .map(|_| tensor.bytes().saturating_mul(repeats));
    row.cast_bytes = cast.map(|dtype| cast_bytes(tensor, dtype).saturating_mul(repeats));
}

/// `64×3×7×7`; `scalar` for a 0-dim tensor.
pub(super) fn shape_text(shape: &[u64]) -> String {
    if shape.is_empty() {
        return "scalar".to_owned();
    }
    let sizes: Vec<String> = shape.iter().map(u64::to_string).collect();
    sizes.join("×")
}

impl CastSizes {
    /// The sizes of `checkpoint` if its floating tensors had this dtype. A storage that tensors of several dtypes
    /// view stays as it is.
    #[must_use]
    pub fn of(checkpoint: &Checkpoint, dtype: DType) -> CastSizes {
        let mut dtypes = vec![DTypes::None; checkpoint.storages().len()];
        for tensor in checkpoint.tensors() {
            for id in tensor.storages() {
                if let (Some(slot), Some(dtype)) = (dtypes.get_mut(id.index()), tensor.dtype()) {
                    *slot = match *slot {
                        DTypes::None => DTypes::One(dtype),
                        DTypes::One(known) if known == dtype => DTypes::One(dtype),
                        _ => DTypes::Mixed,
                    };
                }
            }
        }
        let storage_bytes = checkpoint
            .storages()
            .iter()
            .zip(dtypes)
            .map(|(storage, dtypes)| match dtypes {
                DTypes::One(old) if old.is_floating_point() => {
                    let elements = storage.used_bytes() / old.item_bytes().max(1);
                    dtype.tensor_bytes(&[elements]).unwrap_or(u64::MAX)
                }
                _ => storage.used_bytes(),
            })
            .fold(0, u64::saturating_add);
        CastSizes {
            dtype,
            storage_bytes,
        }
    }
}

#[cfg(test)]
mod tests;
