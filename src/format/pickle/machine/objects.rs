//! Objects: calls, instances, and what is assigned into them.

use super::super::{Extra, Kind, Node, NodeId};
use super::Machine;

impl Machine<'_> {
    pub(super) fn operand(&self, opcode: &'static str, expected: &'static str, id: NodeId) -> Kind {
        Kind::Operand {
            opcode,
            expected,
            found: self.describe(id),
        }
    }

    /// What a value is, in a few words.
    pub(super) fn describe(&self, id: NodeId) -> String {
        let name = match self.node(id) {
            Node::None => "None",
            Node::Bool(_) => "a bool",
            Node::Int(_) | Node::Long(_) | Node::LongText(_) => "an int",
            Node::Float(_) => "a float",
            Node::Str(_) | Node::Decoded(_) => "a str",
            Node::Bytes(_) => "bytes",
            Node::Tuple(_) => "a tuple",
            Node::FrozenSet(_) => "a frozenset",
            Node::List(_) => "a list",
            Node::Set(_) => "a set",
            Node::Dict(_) => "a dict",
            Node::Persistent(_) => "a persistent object",
            Node::Extension(_) => "an extension object",
            Node::Global(_) => "a global",
            Node::Reduce { .. } if self.is_tensor(id) => "a tensor",
            Node::Reduce { .. } | Node::New { .. } | Node::NewEx { .. } => "an object",
        };
        name.to_owned()
    }

    pub(super) fn even(&self, start: usize, opcode: &'static str) -> Result<(), Kind> {
        if self.stack.len().saturating_sub(start).is_multiple_of(2) {
            Ok(())
        } else {
            Err(Kind::StackUnderflow(opcode))
        }
    }

    /// The object below the values from `start` on.
    pub(super) fn target(&self, start: usize, opcode: &'static str) -> Result<NodeId, Kind> {
        match start.checked_sub(1) {
            Some(place) if place >= self.fence => self
                .stack
                .get(place)
                .copied()
                .ok_or(Kind::StackUnderflow(opcode)),
            _ => Err(Kind::StackUnderflow(opcode)),
        }
    }

    pub(super) fn set_items(&mut self, start: usize, opcode: &'static str) -> Result<(), Kind> {
        self.even(start, opcode)?;
        let target = self.target(start, opcode)?;
        match self.node(target) {
            Node::Dict(container) => self.extend(container, start),
            Node::Reduce { .. } | Node::New { .. } | Node::NewEx { .. }
                if !self.is_tensor(target) =>
            {
                let known = self.extras.get(&target).and_then(|e| e.dict);
                let container = match known {
                    Some(container) => container,
                    None => self.container()?,
                };
                if known.is_none() {
                    self.extra_mut(target)?.dict = Some(container);
                }
                self.extend(container, start)
            }
            _ => Err(self.operand(opcode, "a dictionary", target)),
        }
    }

    pub(super) fn append(&mut self, start: usize, opcode: &'static str) -> Result<(), Kind> {
        let target = self.target(start, opcode)?;
        match self.node(target) {
            Node::List(container) if opcode != "ADDITEMS" => self.extend(container, start),
            Node::Set(container) if opcode == "ADDITEMS" => self.extend(container, start),
            Node::Reduce { .. } | Node::New { .. } | Node::NewEx { .. }
                if !self.is_tensor(target) =>
            {
                let known = self.extras.get(&target).and_then(|e| e.list);
                let container = match known {
                    Some(container) => container,
                    None => self.container()?,
                };
                if known.is_none() {
                    self.extra_mut(target)?.list = Some(container);
                }
                self.extend(container, start)
            }
            _ => Err(self.operand(opcode, "a list or set", target)),
        }
    }

    pub(super) fn extra_mut(&mut self, id: NodeId) -> Result<&mut Extra, Kind> {
        let cost = (size_of::<(NodeId, Extra)>() as u64).saturating_mul(3);
        self.budget.left = self.budget.left.checked_sub(cost).ok_or(Kind::Memory {
            limit_bytes: self.budget.limit,
        })?;
        Ok(self.extras.entry(id).or_default())
    }

    /// Whether a call is one of torch's that make a tensor: nothing may be assigned into it.
    pub(super) fn is_tensor(&self, id: NodeId) -> bool {
        let Node::Reduce { callable, .. } = self.node(id) else {
            return false;
        };
        let Node::Global(global) = self.node(callable) else {
            return false;
        };
        let slot = usize::try_from(global.0)
            .ok()
            .and_then(|i| self.globals.get(i));
        slot.is_some_and(|g| {
            let (module, name) = (self.name_bytes(g.module), self.name_bytes(g.name));
            module.starts_with(b"torch.") && name.starts_with(b"_rebuild")
        })
    }

    pub(super) fn build(&mut self) -> Result<(), Kind> {
        let state = self.pop("BUILD")?;
        let target = self.top("BUILD")?;
        match self.node(target) {
            Node::Reduce { .. } | Node::New { .. } | Node::NewEx { .. } => {
                let extra = self.extra_mut(target)?;
                if extra.state.replace(state).is_some() {
                    return Err(self.operand("BUILD", "an object without a state", target));
                }
                Ok(())
            }
            Node::Global(global) => self.budget.push(&mut self.assigned_globals, global),
            _ => Err(self.operand("BUILD", "an object", target)),
        }
    }

    pub(super) fn persistent(&mut self) -> Result<(), Kind> {
        let id = self.pop("BINPERSID")?;
        match self.node(id) {
            Node::Tuple(_) | Node::Str(_) | Node::Decoded(_) | Node::Int(_) => {
                self.push_node(Node::Persistent(id))
            }
            _ => Err(self.operand("BINPERSID", "a tuple, string or number", id)),
        }
    }

    pub(super) fn arguments(&self, opcode: &'static str, args: NodeId) -> Result<(), Kind> {
        match self.node(args) {
            Node::Tuple(_) => Ok(()),
            _ => Err(self.operand(opcode, "a tuple of arguments", args)),
        }
    }

    pub(super) fn callable(&self, opcode: &'static str, id: NodeId) -> Result<(), Kind> {
        match self.node(id) {
            Node::Global(_)
            | Node::Reduce { .. }
            | Node::New { .. }
            | Node::NewEx { .. }
            | Node::Extension(_)
            | Node::Persistent(_) => Ok(()),
            _ => Err(self.operand(opcode, "something to call", id)),
        }
    }

    pub(super) fn reduce(&mut self) -> Result<(), Kind> {
        let args = self.pop("REDUCE")?;
        let callable = self.pop("REDUCE")?;
        self.arguments("REDUCE", args)?;
        self.callable("REDUCE", callable)?;
        self.push_node(Node::Reduce { callable, args })
    }

    pub(super) fn new_object(&mut self) -> Result<(), Kind> {
        let args = self.pop("NEWOBJ")?;
        let class = self.pop("NEWOBJ")?;
        self.arguments("NEWOBJ", args)?;
        self.callable("NEWOBJ", class)?;
        self.push_node(Node::New { class, args })
    }

    pub(super) fn new_object_ex(&mut self) -> Result<(), Kind> {
        let start = self.height_below(2, "NEWOBJ_EX")?;
        let run = self.run_of(start)?;
        let both = self.add(Node::Tuple(run))?;
        let class = self.pop("NEWOBJ_EX")?;
        self.callable("NEWOBJ_EX", class)?;
        self.push_node(Node::NewEx { class, both })
    }

    pub(super) fn instance_of_lines(&mut self) -> Result<(), Kind> {
        let class = self.read_global()?;
        self.mark_instantiated(class);
        let start = self.pop_mark("INST")?;
        let run = self.run_of(start)?;
        let args = self.add(Node::Tuple(run))?;
        self.push_node(Node::Reduce {
            callable: class,
            args,
        })
    }

    pub(super) fn object(&mut self) -> Result<(), Kind> {
        let start = self.pop_mark("OBJ")?;
        let class = self
            .stack
            .get(start)
            .copied()
            .ok_or(Kind::StackUnderflow("OBJ"))?;
        self.callable("OBJ", class)?;
        self.mark_instantiated(class);
        let run = self.run_of(start.saturating_add(1))?;
        self.stack.truncate(start);
        let args = self.add(Node::Tuple(run))?;
        self.push_node(Node::Reduce {
            callable: class,
            args,
        })
    }

    pub(super) fn mark_instantiated(&mut self, class: NodeId) {
        if let Node::Global(global) = self.node(class)
            && let Ok(slot) = usize::try_from(global.0)
            && let Some(name) = self.globals.get_mut(slot)
        {
            name.instantiated = true;
        }
    }

    pub(super) fn extension(&mut self, code: u32) -> Result<(), Kind> {
        self.budget.push(&mut self.extensions, code)?;
        self.push_node(Node::Extension(code))
    }
}
