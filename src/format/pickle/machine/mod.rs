//! Carrying out opcodes, without carrying out anything.

mod globals;
mod input;
mod objects;
mod protocol0;
mod values;

use std::borrow::Cow;
use std::collections::HashMap;

use super::error::{PickleError, PickleErrorKind as Kind};
use super::{Container, Extra, GlobalId, GlobalName, Node, NodeId, Pickle, Run};
use crate::limits;

/// Reads the pickle at the start of `input`; what follows its `STOP` is left alone ([`Pickle::consumed`]).
pub fn parse(input: &[u8]) -> Result<Pickle<'_>, PickleError> {
    let stored = input.len() as u64;
    parse_with_budget(Cow::Borrowed(input), stored)
}

/// Like [`parse`], with memory for objects in proportion to what the pickle takes up in the file, which for
/// compressed ones is less than the input.
pub fn parse_with_budget(
    input: Cow<'_, [u8]>,
    stored_bytes: u64,
) -> Result<Pickle<'_>, PickleError> {
    let budget = limits::PICKLE_MEMORY_BYTES
        .saturating_add(stored_bytes.saturating_mul(limits::PICKLE_MEMORY_PER_BYTE));
    let mut machine = Machine::new(&input, budget);
    let root = machine.run().map_err(|kind| PickleError {
        offset: machine.opcode_offset as u64,
        kind,
        globals: machine.first_globals(),
    })?;
    let Machine {
        position: consumed,
        nodes,
        items,
        containers,
        decoded,
        globals,
        extras,
        assigned_globals,
        extensions,
        protocol,
        ..
    } = machine;
    Ok(Pickle {
        input,
        nodes,
        items,
        containers,
        decoded,
        globals,
        extras,
        assigned_globals,
        extensions,
        root,
        protocol,
        consumed,
    })
}

/// Memory that may still be used for objects.
struct Budget {
    left: u64,
    limit: u64,
}

impl Budget {
    /// Makes room in a table for `more` entries, if the budget allows.
    #[inline]
    fn reserve<T>(&mut self, table: &mut Vec<T>, more: usize) -> Result<(), Kind> {
        let needed = table.len().saturating_add(more);
        if needed <= table.capacity() {
            return Ok(());
        }
        self.grow(table, needed)
    }

    #[cold]
    fn grow<T>(&mut self, table: &mut Vec<T>, needed: usize) -> Result<(), Kind> {
        let room = needed.max(table.capacity().saturating_mul(2)).max(64);
        let new = room.saturating_sub(table.capacity());
        let bytes = (new as u64).saturating_mul(size_of::<T>() as u64);
        self.left = self.left.checked_sub(bytes).ok_or(Kind::Memory {
            limit_bytes: self.limit,
        })?;
        table.reserve_exact(room.saturating_sub(table.len()));
        Ok(())
    }

    #[inline]
    fn push<T>(&mut self, table: &mut Vec<T>, value: T) -> Result<(), Kind> {
        if table.len() == table.capacity() {
            self.reserve(table, 1)?;
        }
        table.push(value);
        Ok(())
    }
}

/// `None`, `True`, `False`, the empty tuple and the integers of one byte exist once.
const NONE: NodeId = NodeId(0);
const FALSE: NodeId = NodeId(1);
const TRUE: NodeId = NodeId(2);
const EMPTY_TUPLE: NodeId = NodeId(3);
const FIRST_SMALL_INT: u32 = 4;

/// No value: the arena never grows this large.
const NO_NODE: NodeId = NodeId(u32::MAX);

/// Bytes of pickle for each value and memo entry, and for each item of a container, in state_dicts.
const BYTES_PER_NODE: usize = 14;
const BYTES_PER_ITEM: usize = 8;

/// The most that room is made for ahead of need.
const RESERVED: usize = 1 << 22;

struct Machine<'b> {
    data: &'b [u8],
    position: usize,
    opcode_offset: usize,
    stack: Vec<NodeId>,
    marks: Vec<usize>,
    /// Values below this height belong to an enclosing mark.
    fence: usize,
    /// [`NO_NODE`] where nothing was put.
    memo: Vec<NodeId>,
    far_memo: HashMap<u64, NodeId>,
    memo_entries: u64,
    nodes: Vec<Node>,
    items: Vec<NodeId>,
    containers: Vec<Container>,
    decoded: Vec<String>,
    globals: Vec<GlobalName>,
    global_nodes: HashMap<(&'b [u8], &'b [u8]), NodeId>,
    extras: HashMap<NodeId, Extra>,
    assigned_globals: Vec<GlobalId>,
    extensions: Vec<u32>,
    protocol: Option<u8>,
    budget: Budget,
}

impl<'b> Machine<'b> {
    fn new(data: &'b [u8], limit: u64) -> Machine<'b> {
        let empty = Run { start: 0, len: 0 };
        let mut nodes = vec![
            Node::None,
            Node::Bool(false),
            Node::Bool(true),
            Node::Tuple(empty),
        ];
        nodes.extend((0..256).map(Node::Int));
        // What the pickle of a state_dict needs. Memory that is not used in the end is never touched.
        nodes.reserve((data.len() / BYTES_PER_NODE).min(RESERVED));
        let memo = Vec::with_capacity((data.len() / BYTES_PER_NODE).min(RESERVED));
        let items = Vec::with_capacity((data.len() / BYTES_PER_ITEM).min(RESERVED));
        Machine {
            data,
            position: 0,
            opcode_offset: 0,
            stack: Vec::new(),
            marks: Vec::new(),
            fence: 0,
            memo,
            far_memo: HashMap::new(),
            memo_entries: 0,
            nodes,
            items,
            containers: Vec::new(),
            decoded: Vec::new(),
            globals: Vec::new(),
            global_nodes: HashMap::new(),
            extras: HashMap::new(),
            assigned_globals: Vec::new(),
            extensions: Vec::new(),
            protocol: None,
            budget: Budget { left: limit, limit },
        }
    }

    /// Runs to `STOP` and gives the value on top.
    fn run(&mut self) -> Result<NodeId, Kind> {
        loop {
            self.opcode_offset = self.position;
            let opcode = self.byte("an opcode")?;
            if opcode == b'.' {
                if !self.marks.is_empty() {
                    return Err(Kind::OpenMark(self.marks.len()));
                }
                return self.pop("STOP");
            }
            self.step(opcode)?;
        }
    }

    fn step(&mut self, opcode: u8) -> Result<(), Kind> {
        match opcode {
            // Ordered by how often real pickles use them.
            b'q' => {
                let index = u64::from(self.byte("BINPUT")?);
                self.put(index)
            }
            b'h' => {
                let index = u64::from(self.byte("BINGET")?);
                self.get(index)
            }
            b'r' => {
                let index = u64::from(self.u32("LONG_BINPUT")?);
                self.put(index)
            }
            b'j' => {
                let index = u64::from(self.u32("LONG_BINGET")?);
                self.get(index)
            }
            b'K' => {
                let value = self.byte("BININT1")?;
                self.push(small_int(value))
            }
            b'(' => {
                let height = self.stack.len();
                self.budget.push(&mut self.marks, height)?;
                self.fence = height;
                Ok(())
            }
            b'X' => {
                let length = self.u32("BINUNICODE")?;
                self.string(u64::from(length), "BINUNICODE")
            }
            b't' => {
                let start = self.pop_mark("TUPLE")?;
                self.tuple(start)
            }
            b'\x85' => self.short_tuple(1, "TUPLE1"),
            b'\x86' => self.short_tuple(2, "TUPLE2"),
            b'\x87' => self.short_tuple(3, "TUPLE3"),
            b'Q' => self.persistent(),
            b'R' => self.reduce(),
            b')' => self.push(EMPTY_TUPLE),
            b'N' => self.push(NONE),
            b'\x88' => self.push(TRUE),
            b'\x89' => self.push(FALSE),
            b'\x8c' => {
                let length = self.byte("SHORT_BINUNICODE")?;
                self.string(u64::from(length), "SHORT_BINUNICODE")
            }
            b'\x94' => self.put(self.memo_entries),
            _ => self.rarer_step(opcode),
        }
    }

    fn rarer_step(&mut self, opcode: u8) -> Result<(), Kind> {
        match opcode {
            b'J' => {
                let bytes = self.array::<4>("BININT")?;
                self.int(i64::from(i32::from_le_bytes(bytes)))
            }
            b'M' => {
                let bytes = self.array::<2>("BININT2")?;
                self.int(i64::from(u16::from_le_bytes(bytes)))
            }
            b'G' => {
                let bytes = self.array::<8>("BINFLOAT")?;
                self.push_node(Node::Float(f64::from_be_bytes(bytes)))
            }
            b'}' => {
                let container = self.container()?;
                self.push_node(Node::Dict(container))
            }
            b']' => {
                let container = self.container()?;
                self.push_node(Node::List(container))
            }
            b'\x8f' => {
                let container = self.container()?;
                self.push_node(Node::Set(container))
            }
            b'u' => {
                let start = self.pop_mark("SETITEMS")?;
                self.set_items(start, "SETITEMS")
            }
            b's' => {
                let start = self.height_below(2, "SETITEM")?;
                self.set_items(start, "SETITEM")
            }
            b'e' => {
                let start = self.pop_mark("APPENDS")?;
                self.append(start, "APPENDS")
            }
            b'a' => {
                let start = self.height_below(1, "APPEND")?;
                self.append(start, "APPEND")
            }
            b'\x90' => {
                let start = self.pop_mark("ADDITEMS")?;
                self.append(start, "ADDITEMS")
            }
            b'c' => self.global_of_lines(),
            b'\x93' => self.stack_global(),
            b'b' => self.build(),
            b'\x81' => self.new_object(),
            b'\x92' => self.new_object_ex(),
            b'i' => self.instance_of_lines(),
            b'o' => self.object(),
            _ => self.data_step(opcode),
        }
    }

    /// Opcodes that bring a string, bytes or a large integer.
    fn data_step(&mut self, opcode: u8) -> Result<(), Kind> {
        match opcode {
            b'\x8d' => {
                let length = self.u64("BINUNICODE8")?;
                self.string(length, "BINUNICODE8")
            }
            b'T' => {
                let length = self.length_i32("BINSTRING")?;
                self.string(length, "BINSTRING")
            }
            b'U' => {
                let length = self.byte("SHORT_BINSTRING")?;
                self.string(u64::from(length), "SHORT_BINSTRING")
            }
            b'C' => {
                let length = self.byte("SHORT_BINBYTES")?;
                self.binary(u64::from(length), "SHORT_BINBYTES")
            }
            b'B' => {
                let length = self.u32("BINBYTES")?;
                self.binary(u64::from(length), "BINBYTES")
            }
            b'\x8e' => {
                let length = self.u64("BINBYTES8")?;
                self.binary(length, "BINBYTES8")
            }
            b'\x96' => {
                let length = self.u64("BYTEARRAY8")?;
                self.binary(length, "BYTEARRAY8")
            }
            b'\x97' | b'\x98' => Err(Kind::OutOfBand),
            b'\x8a' => {
                let length = self.byte("LONG1")?;
                self.long(u64::from(length), "LONG1")
            }
            b'\x8b' => {
                let length = self.length_i32("LONG4")?;
                self.long(length, "LONG4")
            }
            _ => self.text_step(opcode),
        }
    }

    /// Opcodes of protocol 0, whose operands are lines of text.
    fn text_step(&mut self, opcode: u8) -> Result<(), Kind> {
        match opcode {
            b'I' => self.int_line(),
            b'L' => self.long_line(),
            b'F' => self.float_line(),
            b'S' => self.string_line(),
            b'V' => self.unicode_line(),
            b'l' => {
                let start = self.pop_mark("LIST")?;
                let container = self.container_of(start)?;
                self.push_node(Node::List(container))
            }
            b'd' => {
                let start = self.pop_mark("DICT")?;
                self.even(start, "DICT")?;
                let container = self.container_of(start)?;
                self.push_node(Node::Dict(container))
            }
            b'p' => {
                let index = self.index_line()?;
                self.put(index)
            }
            b'g' => {
                let index = self.index_line()?;
                self.get(index)
            }
            b'P' => {
                let line = self.line_span()?;
                let id = self.add(Node::Str(line))?;
                self.push_node(Node::Persistent(id))
            }
            _ => self.steering_step(opcode),
        }
    }

    /// Opcodes that move values on the stack, or say something about the pickle itself.
    fn steering_step(&mut self, opcode: u8) -> Result<(), Kind> {
        match opcode {
            b'\x80' => self.proto(),
            // Frames only say how far a reader may buffer.
            b'\x95' => self.array::<8>("FRAME").map(|_| ()),
            b'\x91' => {
                let start = self.pop_mark("FROZENSET")?;
                let run = self.run_of(start)?;
                self.push_node(Node::FrozenSet(run))
            }
            b'0' => {
                if self.marks.last() == Some(&self.stack.len()) {
                    return self.pop_mark("POP").map(|_| ());
                }
                self.pop("POP").map(|_| ())
            }
            b'1' => {
                let start = self.pop_mark("POP_MARK")?;
                self.stack.truncate(start);
                Ok(())
            }
            b'2' => {
                let top = self.top("DUP")?;
                self.push(top)
            }
            b'\x82' => {
                let code = self.byte("EXT1")?;
                self.extension(u32::from(code))
            }
            b'\x83' => {
                let bytes = self.array::<2>("EXT2")?;
                self.extension(u32::from(u16::from_le_bytes(bytes)))
            }
            b'\x84' => {
                let code = self.u32("EXT4")?;
                self.extension(code)
            }
            other => Err(Kind::UnknownOpcode(other)),
        }
    }
}

fn small_int(value: u8) -> NodeId {
    NodeId(FIRST_SMALL_INT.saturating_add(u32::from(value)))
}
