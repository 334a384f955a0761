//! What the code of a TorchScript archive says, without compiling it.
//!
//! The code is PyTorch's own output: one line for each thing of interest, indented by two spaces a level. Only class
//! headers and method signatures are read; a line that looks different is passed over, as nothing here decides what a
//! tensor's size is.

use std::collections::HashMap;

use super::super::error::FormatError;
use crate::checkpoint::{Argument, Method};
use crate::limits;

/// A class of the archive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Class {
    /// Whether it derives from Module.
    pub(crate) is_module: bool,
    /// Attributes that are parameters.
    pub(crate) parameters: Vec<String>,
    /// Attributes that are buffers.
    pub(crate) buffers: Vec<String>,
    /// Where `__setstate__` puts the parts of the state: index, attribute.
    pub(crate) state_attributes: Vec<(usize, String)>,
    /// The methods.
    pub(crate) methods: Vec<Method>,
    /// Calls in `__setstate__` that do more than put the state in place.
    pub(crate) setstate_calls: Vec<String>,
    /// Whether there is a `__setstate__`.
    pub(crate) has_setstate: bool,
}

/// Classes by qualified name, `__torch__.torch.nn.modules.conv.Conv2d`.
#[derive(Debug, Default)]
pub(crate) struct Classes {
    by_name: HashMap<String, Class>,
    /// Operators in the code that read or write files: operator, member.
    pub(crate) file_operators: Vec<(&'static str, String)>,
    items: u64,
}

/// Operators that touch the file system, as code spells them.
const FILE_OPERATORS: [(&str, &str); 8] = [
    ("torch.save(", "aten::save"),
    ("ops.aten.save(", "aten::save"),
    ("torch.load(", "aten::load"),
    ("torch.from_file(", "aten::from_file"),
    ("ops.aten.from_file(", "aten::from_file"),
    ("ops.image.read_file(", "image::read_file"),
    ("ops.image.write_file(", "image::write_file"),
    ("torch.to_here(", "aten::to_here"),
];

impl Classes {
    /// The class of this qualified name.
    pub(crate) fn get(&self, name: &str) -> Option<&Class> {
        self.by_name.get(name)
    }

    /// All classes, sorted by name.
    pub(crate) fn sorted(&self) -> Vec<(&str, &Class)> {
        let mut all: Vec<_> = self.by_name.iter().map(|(n, c)| (n.as_str(), c)).collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        all
    }

    /// Reads one member of the archive, `code/__torch__/a/b.py`.
    pub(crate) fn add(&mut self, member: &str, code: &str) -> Result<(), FormatError> {
        let namespace = member
            .strip_prefix("code/")
            .unwrap_or(member)
            .trim_end_matches(".py")
            .replace('/', ".");
        for (spelling, operator) in FILE_OPERATORS {
            if code.contains(spelling) {
                self.file_operators.push((operator, member.to_owned()));
            }
        }
        let mut current: Option<(String, Class)> = None;
        let mut lines = code.lines();
        while let Some(line) = lines.next() {
            if let Some((name, is_module)) = class_header(line) {
                self.finish(current.take());
                let class = Class {
                    is_module,
                    ..Class::default()
                };
                current = Some((format!("{namespace}.{name}"), class));
                continue;
            }
            let Some((_, class)) = current.as_mut() else {
                continue;
            };
            if let Some(list) = line.strip_prefix("  __parameters__ = ") {
                charge(&mut self.items, parts(list))?;
                class.parameters = strings(list);
            } else if let Some(list) = line.strip_prefix("  __buffers__ = ") {
                charge(&mut self.items, parts(list))?;
                class.buffers = strings(list);
            } else if let Some(start) = line.strip_prefix("  def ") {
                read_method(class, start, &mut lines, &mut self.items)?;
            }
        }
        self.finish(current);
        Ok(())
    }

    fn finish(&mut self, class: Option<(String, Class)>) {
        if let Some((name, class)) = class {
            self.by_name.insert(name, class);
        }
    }
}

/// Counts what the code has, and refuses more than any model has.
fn charge(items: &mut u64, more: usize) -> Result<(), FormatError> {
    *items = items.saturating_add(more as u64);
    if *items > limits::CODE_ITEMS {
        return Err(FormatError::Limit {
            what: "the methods, arguments and attributes of the code".to_owned(),
            limit: limits::CODE_ITEMS,
        });
    }
    Ok(())
}

/// Parts between commas, at most.
fn parts(list: &str) -> usize {
    list.matches(',').count().saturating_add(1)
}

/// `class Name(Module):`, and whether it is a module.
fn class_header(line: &str) -> Option<(&str, bool)> {
    let header = line.strip_prefix("class ")?.trim_end().strip_suffix(':')?;
    match header.split_once('(') {
        Some((name, bases)) => Some((name, bases == "Module)")),
        None => Some((header, false)),
    }
}

/// The quoted strings of `["a", "b", ]`.
fn strings(list: &str) -> Vec<String> {
    list.trim()
        .trim_start_matches('[')
        .trim_end_matches(']')
        .split(',')
        .filter_map(|item| {
            let inner = item.trim().strip_prefix('"')?.strip_suffix('"')?;
            Some(inner.to_owned())
        })
        .collect()
}

/// A method: its signature, which goes on over several lines, and what its body shows.
fn read_method(
    class: &mut Class,
    start: &str,
    lines: &mut std::str::Lines<'_>,
    items: &mut u64,
) -> Result<(), FormatError> {
    let Some((name, first)) = start.split_once('(') else {
        return Ok(());
    };
    let mut signature = first.to_owned();
    while !signature.trim_end().ends_with(':') {
        match lines.next() {
            Some(line) => {
                signature.push(' ');
                signature.push_str(line.trim());
            }
            None => return Ok(()),
        }
    }
    charge(items, parts(&signature))?;
    let Some(method) = signature_of(name, &signature) else {
        return Ok(());
    };
    if name == "__setstate__" {
        class.has_setstate = true;
        let state = method.arguments.first().map(|a| a.name.clone());
        read_setstate(class, &signature, state.as_deref(), lines, items)?;
    }
    class.methods.push(method);
    Ok(())
}

/// `self: T, x: Tensor, y: int=3) -> Tensor:`
fn signature_of(name: &str, signature: &str) -> Option<Method> {
    let (arguments, returns) = signature.rsplit_once(") -> ")?;
    let returns = returns.trim_end().strip_suffix(':')?.to_owned();
    let arguments = split_top_level(arguments)
        .into_iter()
        .skip(1)
        .filter_map(|argument| {
            let (name, rest) = argument.split_once(':')?;
            let (type_name, default) = match rest.split_once('=') {
                Some((type_name, default)) => (type_name, Some(default.trim().to_owned())),
                None => (rest, None),
            };
            Some(Argument {
                name: name.trim().to_owned(),
                type_name: type_name.trim().to_owned(),
                default,
            })
        })
        .collect();
    Some(Method {
        name: name.to_owned(),
        arguments,
        returns,
    })
}

/// Splits at the commas outside of brackets and quotes.
fn split_top_level(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut depth, mut quoted, mut begin) = (0_i64, false, 0_usize);
    for (place, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '[' | '(' if !quoted => depth = depth.saturating_add(1),
            ']' | ')' if !quoted => depth = depth.saturating_sub(1),
            ',' if !quoted && depth == 0 => {
                parts.push(text.get(begin..place).unwrap_or(""));
                begin = place.saturating_add(1);
            }
            _ => {}
        }
    }
    parts.push(text.get(begin..).unwrap_or(""));
    parts
        .into_iter()
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect()
}

/// The body of `__setstate__`: `self.name = (state)[2]` says where a part of the state goes; calls are noted.
fn read_setstate(
    class: &mut Class,
    signature: &str,
    state: Option<&str>,
    lines: &mut std::str::Lines<'_>,
    items: &mut u64,
) -> Result<(), FormatError> {
    let own = signature.split(':').next().unwrap_or("self").trim();
    let body = lines.clone();
    for line in body {
        if !line.starts_with("    ") {
            break;
        }
        lines.next();
        if let Some((index, attribute)) = state.and_then(|s| state_attribute(line, own, s)) {
            charge(items, 1)?;
            class.state_attributes.push((index, attribute.to_owned()));
        }
        for call in ["torch.", "ops."] {
            for (place, _) in line.match_indices(call) {
                let name: String = line
                    .get(place..)
                    .unwrap_or("")
                    .chars()
                    .take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_'))
                    .collect();
                let after = place.saturating_add(name.len());
                let before = line.get(..place).and_then(|b| b.chars().next_back());
                let whole =
                    !before.is_some_and(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_'));
                if whole && line.get(after..).is_some_and(|r| r.starts_with('(')) {
                    charge(items, 1)?;
                    class.setstate_calls.push(name);
                }
            }
        }
    }
    Ok(())
}

/// `self.name = (state)[2]` as (2, "name").
fn state_attribute<'l>(line: &'l str, own: &str, state: &str) -> Option<(usize, &'l str)> {
    let (left, right) = line.trim().split_once(" = ")?;
    let attribute = left.strip_prefix(own)?.strip_prefix('.')?;
    let index = right
        .strip_prefix('(')?
        .strip_prefix(state)?
        .strip_prefix(")[")?
        .strip_suffix(']')?;
    Some((index.parse().ok()?, attribute))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "class Net(Module):
  __parameters__ = [\"weight\", \"0\", ]
  __buffers__ = [\"mean\", ]
  weight : Tensor
  def forward(self: __torch__.Net,
    x: Tensor,
    y: Optional[Dict[str, int]]=None) -> Tuple[Tensor, int]:
    return torch.add(x, x)
  def __setstate__(s: __torch__.Net,
    state: Tuple[Tensor, bool]) -> NoneType:
    torch.save((state)[0], \"/tmp/x\")
    s.weight = (state)[0]
    s.training = (state)[1]
    return None
  def encode(self: __torch__.Net) -> int:
    return 1
class Other:
  a : int
";

    #[test]
    fn headers_and_signatures() {
        let mut classes = Classes::default();
        classes.add("code/__torch__/a.py", CODE).unwrap();
        let net = classes.get("__torch__.a.Net").unwrap();
        assert!(net.is_module);
        assert_eq!(net.parameters, ["weight", "0"]);
        assert_eq!(net.buffers, ["mean"]);
        assert_eq!(
            net.state_attributes,
            [(0, "weight".to_owned()), (1, "training".to_owned())]
        );
        assert_eq!(net.setstate_calls, ["torch.save"]);
        let forward = net.methods.first().unwrap();
        assert_eq!(forward.arguments[1].type_name, "Optional[Dict[str, int]]");
        assert_eq!(forward.arguments[1].default.as_deref(), Some("None"));
        assert_eq!(forward.returns, "Tuple[Tensor, int]");
        assert_eq!(net.methods[2].name, "encode");
        assert!(!classes.get("__torch__.a.Other").unwrap().is_module);
        assert_eq!(
            classes.file_operators,
            [("aten::save", "code/__torch__/a.py".to_owned())]
        );
    }
}
