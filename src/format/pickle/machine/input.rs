//! Reading the input, the stack and the memo.

use super::super::{Kind, NodeId, Span};
use super::{Machine, NO_NODE};
use crate::limits;

impl<'b> Machine<'b> {
    #[inline]
    pub(super) fn byte(&mut self, what: &'static str) -> Result<u8, Kind> {
        match self.data.get(self.position) {
            Some(&byte) => {
                self.position = self.position.saturating_add(1);
                Ok(byte)
            }
            None => Err(Kind::Truncated {
                what,
                needed: 1,
                left: 0,
            }),
        }
    }

    #[inline]
    pub(super) fn left(&self) -> usize {
        self.data.len().saturating_sub(self.position)
    }

    #[inline]
    pub(super) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Kind> {
        let rest = self.data.get(self.position..).unwrap_or(&[]);
        let Some((bytes, _)) = rest.split_first_chunk::<N>() else {
            return Err(Kind::Truncated {
                what,
                needed: N as u64,
                left: rest.len() as u64,
            });
        };
        self.position = self.position.saturating_add(N);
        Ok(*bytes)
    }

    #[inline]
    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, Kind> {
        self.array::<4>(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, Kind> {
        self.array::<8>(what).map(u64::from_le_bytes)
    }

    pub(super) fn length_i32(&mut self, what: &'static str) -> Result<u64, Kind> {
        let length = i32::from_le_bytes(self.array::<4>(what)?);
        u64::try_from(length).map_err(|_| Kind::NegativeLength {
            what,
            length: i64::from(length),
        })
    }

    /// The next `length` bytes, as a place.
    #[inline]
    pub(super) fn take(&mut self, length: u64, what: &'static str) -> Result<Span, Kind> {
        let left = self.left();
        let span = usize::try_from(length)
            .ok()
            .filter(|len| *len <= left)
            .and_then(|len| Some((len, Span::new(self.position, len)?)));
        let Some((len, span)) = span else {
            return Err(Kind::Truncated {
                what,
                needed: length,
                left: left as u64,
            });
        };
        self.position = self.position.saturating_add(len);
        Ok(span)
    }

    #[inline]
    pub(super) fn at(&self, span: Span) -> &'b [u8] {
        span.of(self.data)
    }

    /// The line up to the next `\n`, without it.
    pub(super) fn line_span(&mut self) -> Result<Span, Kind> {
        let rest = self.data.get(self.position..).unwrap_or(&[]);
        let length = rest
            .iter()
            .position(|&b| b == b'\n')
            .ok_or(Kind::Unterminated)?;
        let span = self.take(length as u64, "a line")?;
        self.position = self.position.saturating_add(1);
        Ok(span)
    }

    pub(super) fn line(&mut self) -> Result<&'b [u8], Kind> {
        let span = self.line_span()?;
        Ok(self.at(span))
    }

    // Stack.

    #[inline]
    pub(super) fn push(&mut self, id: NodeId) -> Result<(), Kind> {
        self.budget.push(&mut self.stack, id)
    }

    #[inline]
    pub(super) fn pop(&mut self, opcode: &'static str) -> Result<NodeId, Kind> {
        if self.stack.len() <= self.fence {
            return Err(Kind::StackUnderflow(opcode));
        }
        match self.stack.pop() {
            Some(id) => Ok(id),
            None => Err(Kind::StackUnderflow(opcode)),
        }
    }

    #[inline]
    pub(super) fn top(&self, opcode: &'static str) -> Result<NodeId, Kind> {
        match self.stack.last() {
            Some(&id) if self.stack.len() > self.fence => Ok(id),
            _ => Err(Kind::StackUnderflow(opcode)),
        }
    }

    /// The height of the stack under its `count` top values.
    #[inline]
    pub(super) fn height_below(&self, count: usize, opcode: &'static str) -> Result<usize, Kind> {
        match self.stack.len().checked_sub(count) {
            Some(height) if height >= self.fence => Ok(height),
            _ => Err(Kind::StackUnderflow(opcode)),
        }
    }

    /// The height of the stack at the last mark, which is removed.
    #[inline]
    pub(super) fn pop_mark(&mut self, opcode: &'static str) -> Result<usize, Kind> {
        let Some(height) = self.marks.pop() else {
            return Err(Kind::NoMark(opcode));
        };
        self.fence = self.marks.last().copied().unwrap_or(0);
        Ok(height)
    }

    // Memo.

    #[inline]
    pub(super) fn put(&mut self, index: u64) -> Result<(), Kind> {
        let top = self.top("a memo entry")?;
        // Real pickles count up from 0.
        if index == self.memo.len() as u64
            && index < limits::MEMO_TABLE_SLOTS
            && self.far_memo.is_empty()
        {
            self.memo_entries = self.memo_entries.saturating_add(1);
            return self.budget.push(&mut self.memo, top);
        }
        self.put_anywhere(index, top)
    }

    fn put_anywhere(&mut self, index: u64, top: NodeId) -> Result<(), Kind> {
        let reach = (self.memo.len() as u64).saturating_add(4096);
        let old = if index < limits::MEMO_TABLE_SLOTS && index <= reach {
            let slot = usize::try_from(index).unwrap_or(usize::MAX);
            if slot == self.memo.len() {
                self.budget.push(&mut self.memo, top)?;
                // A far entry may hold this index from before the table reached it.
                self.take_far(index)
            } else {
                if slot > self.memo.len() {
                    let more = slot.saturating_add(1).saturating_sub(self.memo.len());
                    self.budget.reserve(&mut self.memo, more)?;
                    self.memo.resize(slot.saturating_add(1), NO_NODE);
                }
                let far = self.take_far(index);
                let near = self
                    .memo
                    .get_mut(slot)
                    .map(|s| std::mem::replace(s, top))
                    .filter(|old| *old != NO_NODE);
                near.or(far)
            }
        } else {
            let cost = (size_of::<(u64, NodeId)>() as u64).saturating_mul(3);
            self.budget.left = self.budget.left.checked_sub(cost).ok_or(Kind::Memory {
                limit_bytes: self.budget.limit,
            })?;
            self.far_memo.insert(index, top)
        };
        if old.is_none() {
            self.memo_entries = self.memo_entries.saturating_add(1);
        }
        Ok(())
    }

    pub(super) fn take_far(&mut self, index: u64) -> Option<NodeId> {
        if self.far_memo.is_empty() {
            None
        } else {
            self.far_memo.remove(&index)
        }
    }

    #[inline]
    pub(super) fn get(&mut self, index: u64) -> Result<(), Kind> {
        let near = usize::try_from(index)
            .ok()
            .and_then(|slot| self.memo.get(slot).copied())
            .filter(|id| *id != NO_NODE);
        let found = near.or_else(|| self.far_memo.get(&index).copied());
        match found {
            Some(id) => self.push(id),
            None => Err(Kind::NoMemo(index)),
        }
    }
}
