//! The modules of the program: what they hold, and how they are pickled.

use std::collections::{BTreeMap, HashMap};

use super::flow::Flow;
use crate::checkpoint::{Checkpoint, Role, Tensor};

/// A module.
#[derive(Debug, Default)]
pub(super) struct Module<'t> {
    pub(super) path: String,
    /// Its class as TorchScript names it, different for every module.
    pub(super) class: String,
    /// Its tensors, by their last name, in the order of the file.
    pub(super) tensors: Vec<(String, &'t Tensor)>,
    /// Its modules: last name, place in the tree.
    pub(super) children: Vec<(String, usize)>,
}

/// All modules; the first is the root.
#[derive(Debug)]
pub(super) struct Tree<'t> {
    pub(super) modules: Vec<Module<'t>>,
    by_path: HashMap<String, usize>,
}

impl<'t> Tree<'t> {
    pub(super) fn of(checkpoint: &'t Checkpoint, flow: &Flow<'_>) -> Tree<'t> {
        let mut tree = Tree {
            modules: vec![Module::default()],
            by_path: HashMap::from([(String::new(), 0)]),
        };
        for tensor in checkpoint.tensors() {
            let (path, last) = match tensor.name().rsplit_once('.') {
                Some((path, last)) => (path, last),
                None => ("", tensor.name()),
            };
            let place = tree.place(path);
            if let Some(module) = tree.modules.get_mut(place) {
                module.tensors.push((last.to_owned(), tensor));
            }
        }
        let mut classes: BTreeMap<&str, &str> = BTreeMap::new();
        for module in checkpoint.modules() {
            classes.insert(&module.path, &module.class);
        }
        for call in &flow.calls {
            tree.place(call.path);
            classes.entry(call.path).or_insert(call.class);
        }
        for (index, module) in tree.modules.iter_mut().enumerate() {
            let class = classes
                .get(module.path.as_str())
                .copied()
                .unwrap_or("torch.nn.Module");
            module.class = mangled(class, index);
        }
        tree
    }

    /// The module at a path, made with all above it where it is new.
    fn place(&mut self, path: &str) -> usize {
        if let Some(place) = self.by_path.get(path) {
            return *place;
        }
        let (above, last) = path.rsplit_once('.').unwrap_or(("", path));
        let parent = self.place(above);
        let place = self.modules.len();
        self.modules.push(Module {
            path: path.to_owned(),
            ..Module::default()
        });
        self.by_path.insert(path.to_owned(), place);
        if let Some(parent) = self.modules.get_mut(parent) {
            parent.children.push((last.to_owned(), place));
        }
        place
    }
}

/// `torch.nn.modules.conv.Conv2d` as the class of one module: `__torch__.torch.nn.modules.conv.___torch_mangle_4.Conv2d`.
fn mangled(class: &str, index: usize) -> String {
    let parts: Vec<String> = class
        .split('.')
        .filter(|part| *part != "__main__")
        .map(identifier)
        .collect();
    let (last, package) = match parts.split_last() {
        Some((last, package)) => (last.as_str(), package),
        None => ("Module", &[][..]),
    };
    let mut name = "__torch__".to_owned();
    for part in package {
        name.push('.');
        name.push_str(part);
    }
    format!("{name}.___torch_mangle_{index}.{last}")
}

/// A name that Python's grammar takes.
pub(super) fn identifier(name: &str) -> String {
    let mut clean: String = name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '_' {
                c
            } else {
                '_'
            }
        })
        .collect();
    if clean.is_empty() || clean.starts_with(|c: char| c.is_ascii_digit()) {
        clean.insert(0, '_');
    }
    clean
}

/// Whether a name can stand behind a dot.
pub(super) fn is_identifier(name: &str) -> bool {
    identifier(name) == name && !super::code::is_taken(name)
}

/// Names of a module's parameters, or of its other tensors: those that the program was exported with as constants move
/// with the module too.
pub(super) fn names_of(module: &Module<'_>, parameters: bool) -> Vec<String> {
    let tensors = module.tensors.iter();
    let wanted = tensors.filter(|(_, tensor)| (tensor.role() == Role::Parameter) == parameters);
    wanted.map(|(name, _)| name.clone()).collect()
}
