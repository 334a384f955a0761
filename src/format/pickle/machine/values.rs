//! Making plain values and containers.

use super::super::{Container, ContainerId, Kind, Node, NodeId, Run};
use super::{EMPTY_TUPLE, Machine, NONE, small_int};

impl Machine<'_> {
    #[inline]
    pub(super) fn add(&mut self, node: Node) -> Result<NodeId, Kind> {
        let id = u32::try_from(self.nodes.len()).map_err(|_| Kind::Memory {
            limit_bytes: self.budget.limit,
        })?;
        self.budget.push(&mut self.nodes, node)?;
        Ok(NodeId(id))
    }

    #[inline]
    pub(super) fn push_node(&mut self, node: Node) -> Result<(), Kind> {
        let id = self.add(node)?;
        self.push(id)
    }

    #[inline]
    pub(super) fn node(&self, id: NodeId) -> Node {
        self.nodes.get(id.index()).copied().unwrap_or(Node::None)
    }

    #[inline]
    pub(super) fn int(&mut self, value: i64) -> Result<(), Kind> {
        match u8::try_from(value) {
            Ok(small) => self.push(small_int(small)),
            Err(_) => self.push_node(Node::Int(value)),
        }
    }

    #[inline]
    pub(super) fn string(&mut self, length: u64, what: &'static str) -> Result<(), Kind> {
        let span = self.take(length, what)?;
        self.push_node(Node::Str(span))
    }

    pub(super) fn binary(&mut self, length: u64, what: &'static str) -> Result<(), Kind> {
        let span = self.take(length, what)?;
        self.push_node(Node::Bytes(span))
    }

    /// An integer in little-endian two's complement.
    pub(super) fn long(&mut self, length: u64, what: &'static str) -> Result<(), Kind> {
        let span = self.take(length, what)?;
        let bytes = self.at(span);
        let fill = match bytes.last() {
            Some(last) if last & 0x80 != 0 => 0xff,
            _ => 0,
        };
        let mut wide = [fill; 8];
        for (to, from) in wide.iter_mut().zip(bytes) {
            *to = *from;
        }
        let beyond = bytes.get(8..).unwrap_or(&[]);
        let sign_fits = (wide[7] & 0x80 != 0) == (fill != 0);
        if beyond.iter().all(|&b| b == fill) && (beyond.is_empty() || sign_fits) {
            return self.int(i64::from_le_bytes(wide));
        }
        self.push_node(Node::Long(span))
    }

    #[inline]
    pub(super) fn tuple(&mut self, start: usize) -> Result<(), Kind> {
        if self.stack.len() == start {
            return self.push(EMPTY_TUPLE);
        }
        let run = self.run_of(start)?;
        self.push_node(Node::Tuple(run))
    }

    #[inline]
    pub(super) fn short_tuple(&mut self, count: usize, opcode: &'static str) -> Result<(), Kind> {
        let start = self.height_below(count, opcode)?;
        let run = self.run_of(start)?;
        self.push_node(Node::Tuple(run))
    }

    /// Moves the stack's values from a height on into the item table.
    #[inline]
    pub(super) fn run_of(&mut self, start: usize) -> Result<Run, Kind> {
        let values = self.stack.get(start..).unwrap_or(&[]);
        let (first, len) = (self.items.len(), values.len());
        self.budget.reserve(&mut self.items, len)?;
        self.items.extend_from_slice(values);
        self.stack.truncate(start);
        match (u32::try_from(first), u32::try_from(len)) {
            (Ok(start), Ok(len)) => Ok(Run { start, len }),
            _ => Err(Kind::Memory {
                limit_bytes: self.budget.limit,
            }),
        }
    }

    pub(super) fn container(&mut self) -> Result<ContainerId, Kind> {
        let id = u32::try_from(self.containers.len()).unwrap_or(u32::MAX);
        self.budget
            .push(&mut self.containers, Container::default())?;
        Ok(ContainerId(id))
    }

    pub(super) fn container_of(&mut self, start: usize) -> Result<ContainerId, Kind> {
        let id = self.container()?;
        self.extend(id, start)?;
        Ok(id)
    }

    /// Moves the stack's values from a height on to the end of a container.
    pub(super) fn extend(&mut self, id: ContainerId, start: usize) -> Result<(), Kind> {
        let too_much = Kind::Memory {
            limit_bytes: self.budget.limit,
        };
        let Some(slot) = usize::try_from(id.0)
            .ok()
            .and_then(|i| self.containers.get_mut(i))
        else {
            return Err(too_much);
        };
        let values = self.stack.get(start..).unwrap_or(&[]);
        let (Ok(more), Ok(table_end)) =
            (u32::try_from(values.len()), u32::try_from(self.items.len()))
        else {
            return Err(too_much);
        };
        let (Some(len), Some(end)) = (slot.len.checked_add(more), slot.start.checked_add(slot.len))
        else {
            return Err(too_much);
        };
        if len <= slot.capacity {
            // Room was left behind it when it was moved.
            let begin = usize::try_from(end).unwrap_or(usize::MAX);
            let room = self.items.get_mut(begin..).unwrap_or(&mut []);
            for (to, from) in room.iter_mut().zip(values) {
                *to = *from;
            }
        } else if slot.len == 0 || end == table_end {
            self.budget.reserve(&mut self.items, values.len())?;
            if slot.len == 0 {
                slot.start = table_end;
            }
            self.items.extend_from_slice(values);
            slot.capacity = len;
        } else {
            // Another container lies behind it: move it to the end, with room to grow.
            let capacity = len.checked_mul(2).ok_or(too_much)?;
            let room = usize::try_from(capacity).unwrap_or(usize::MAX);
            self.budget.reserve(&mut self.items, room)?;
            let old = usize::try_from(slot.start).unwrap_or(usize::MAX)
                ..usize::try_from(end).unwrap_or(usize::MAX);
            let target = self.items.len().saturating_add(room);
            self.items.extend_from_within(old);
            self.items.extend_from_slice(values);
            self.items.resize(target, NONE);
            slot.start = table_end;
            slot.capacity = capacity;
        }
        slot.len = len;
        self.stack.truncate(start);
        Ok(())
    }
}
