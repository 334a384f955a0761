//! Globals: names, never what they name.

use super::super::{GlobalId, GlobalName, Kind, NameRef, Node, NodeId};
use super::Machine;
use crate::limits;

impl Machine<'_> {
    /// The first globals named so far, for messages.
    pub(super) fn first_globals(&self) -> Vec<(String, String)> {
        let text = |name| String::from_utf8_lossy(self.name_bytes(name)).into_owned();
        self.globals
            .iter()
            .take(limits::FINDINGS_PER_KIND)
            .map(|g| (text(g.module), text(g.name)))
            .collect()
    }

    pub(super) fn global_of_lines(&mut self) -> Result<(), Kind> {
        let id = self.read_global()?;
        self.push(id)
    }

    pub(super) fn read_global(&mut self) -> Result<NodeId, Kind> {
        let module = self.line_span()?;
        let name = self.line_span()?;
        self.intern_global(NameRef::Input(module), NameRef::Input(name))
    }

    pub(super) fn stack_global(&mut self) -> Result<(), Kind> {
        let name = self.pop("STACK_GLOBAL")?;
        let module = self.pop("STACK_GLOBAL")?;
        let (Some(module), Some(name)) = (self.name_ref(module), self.name_ref(name)) else {
            let wrong = if self.name_ref(module).is_none() {
                module
            } else {
                name
            };
            return Err(self.operand("STACK_GLOBAL", "two strings", wrong));
        };
        let id = self.intern_global(module, name)?;
        self.push(id)
    }

    pub(super) fn name_ref(&self, id: NodeId) -> Option<NameRef> {
        match self.node(id) {
            Node::Str(span) => Some(NameRef::Input(span)),
            Node::Decoded(index) => Some(NameRef::Decoded(index)),
            _ => None,
        }
    }

    pub(super) fn name_bytes(&self, name: NameRef) -> &[u8] {
        match name {
            NameRef::Input(span) => self.at(span),
            NameRef::Decoded(index) => usize::try_from(index)
                .ok()
                .and_then(|i| self.decoded.get(i))
                .map_or(&[], |text| text.as_bytes()),
        }
    }

    /// The node of a global; one for each name, as long as the name is in the input as it is.
    pub(super) fn intern_global(&mut self, module: NameRef, name: NameRef) -> Result<NodeId, Kind> {
        let key = match (module, name) {
            (NameRef::Input(module), NameRef::Input(name)) => {
                Some((self.at(module), self.at(name)))
            }
            _ => None,
        };
        if let Some(known) = key.and_then(|k| self.global_nodes.get(&k)) {
            return Ok(*known);
        }
        if self.globals.len() >= limits::GLOBALS {
            return Err(Kind::Globals(limits::GLOBALS));
        }
        let index = u32::try_from(self.globals.len()).unwrap_or(u32::MAX);
        let slot = GlobalName {
            module,
            name,
            offset: self.opcode_offset as u64,
            instantiated: false,
        };
        self.budget.push(&mut self.globals, slot)?;
        let id = self.add(Node::Global(GlobalId(index)))?;
        if let Some(key) = key {
            let cost = (size_of_val(&key) as u64).saturating_mul(3);
            self.budget.left = self.budget.left.checked_sub(cost).ok_or(Kind::Memory {
                limit_bytes: self.budget.limit,
            })?;
            self.global_nodes.insert(key, id);
        }
        Ok(id)
    }
}
