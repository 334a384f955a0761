//! From the recorder's words to trace events.
//!
//! The layout of the words is in `shim/shim.h`; both sides change together, and a word that fits no event is an
//! internal error, never skipped.

use inspect_checkpoint::trace::{Arg, Event, SegmentAction, TensorRef};

use crate::dtype::python_name;

/// The recorder wrote something that this reader does not know: the two sides of the shim disagree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("word {at} of the recording is {word}, which no event begins with")]
pub(crate) struct Malformed {
    at: usize,
    word: i64,
}

/// Decodes words; remembers texts, since tensor metadata and string arguments name them.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    texts: Vec<String>,
}

impl Decoder {
    /// Turns words into events, each handed to `take`.
    pub(crate) fn decode<E: From<Malformed>>(
        &mut self,
        words: &[i64],
        mut take: impl FnMut(Event) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut cursor = Cursor { words, at: 0 };
        while cursor.at < words.len() {
            let event = self.event(&mut cursor)?;
            take(event)?;
        }
        Ok(())
    }

    fn event(&mut self, c: &mut Cursor<'_>) -> Result<Event, Malformed> {
        let start = c.at;
        let event = match c.int()? {
            1 => {
                let id = c.number()?;
                let length = usize::try_from(c.int()?).map_err(|_| c.malformed(start))?;
                let text = c.text(length)?;
                self.texts.push(text.clone());
                Event::Str { id, text }
            }
            2 => self.sig(c)?,
            3 => {
                let (t, thread) = (c.time()?, c.number()?);
                Event::Enter {
                    t,
                    thread,
                    path: c.number()?,
                    class: c.number()?,
                }
            }
            4 => {
                let (t, thread, count) = (c.time()?, c.number()?, c.int()?);
                let out = (0..count).map(|_| c.tensor()).collect::<Result<_, _>>()?;
                Event::Exit { t, thread, out }
            }
            5 => {
                let (t, thread, id, name) = (c.time()?, c.number()?, c.number()?, c.number()?);
                let seq = Some(c.int()?).filter(|seq| *seq >= 0);
                Event::Op {
                    t,
                    id,
                    name,
                    seq,
                    args: self.args(c)?,
                    thread,
                }
            }
            6 => {
                let (t, id) = (c.time()?, c.number()?);
                Event::End {
                    t,
                    id,
                    out: self.args(c)?,
                }
            }
            7 => {
                let (t, thread, name) = (c.time()?, c.number()?, c.number()?);
                Event::Node {
                    t,
                    name,
                    seq: Some(c.int()?).filter(|seq| *seq >= 0),
                    thread,
                }
            }
            8 => Event::NodeEnd {
                t: c.time()?,
                thread: c.number()?,
            },
            9 => {
                let (t, thread, id, bytes) = (c.time()?, c.number()?, c.number()?, c.time()?);
                let block = u64::try_from(c.int()?).ok();
                Event::Alloc {
                    t,
                    id,
                    bytes,
                    block,
                    addr: c.address()?,
                    stream: c.address()?,
                    thread,
                }
            }
            10 => Event::Free {
                t: c.time()?,
                id: c.number()?,
            },
            11 => Event::Extern {
                id: c.number()?,
                bytes: c.time()?,
            },
            12 => {
                let t = c.time()?;
                let action = match c.int()? {
                    0 => SegmentAction::Alloc,
                    1 => SegmentAction::Free,
                    2 => SegmentAction::Map,
                    3 => SegmentAction::Unmap,
                    4 => SegmentAction::Oom,
                    _ => return Err(c.malformed(start)),
                };
                Event::Segment {
                    t,
                    action,
                    addr: c.address()?,
                    bytes: c.time()?,
                    stream: c.address()?,
                }
            }
            _ => return Err(c.malformed(start)),
        };
        Ok(event)
    }

    fn sig(&self, c: &mut Cursor<'_>) -> Result<Event, Malformed> {
        let (id, dtype, bytes, dims) = (c.number()?, c.number()?, c.time()?, c.int()?);
        let dtype = self
            .texts
            .get(dtype as usize)
            .map_or("", |name| python_name(name))
            .to_owned();
        let shape = (0..dims).map(|_| c.time()).collect::<Result<_, _>>()?;
        Ok(Event::Sig {
            id,
            dtype,
            shape,
            bytes,
        })
    }

    fn args(&self, c: &mut Cursor<'_>) -> Result<Vec<Arg>, Malformed> {
        let count = c.int()?;
        (0..count).map(|_| self.arg(c)).collect()
    }

    fn arg(&self, c: &mut Cursor<'_>) -> Result<Arg, Malformed> {
        let start = c.at;
        Ok(match c.int()? {
            0 => Arg::None,
            1 => Arg::Tensor(c.tensor()?),
            2 => Arg::Int(c.int()?),
            3 => {
                let value = f64::from_bits(c.address()?);
                if value.is_finite() {
                    Arg::Double(value)
                } else {
                    Arg::Other(value.to_string())
                }
            }
            4 => Arg::Bool(c.int()? != 0),
            5 => Arg::Str(self.text(c)?),
            6 => Arg::List(self.args(c)?),
            7 => Arg::Other(self.text(c)?),
            _ => return Err(c.malformed(start)),
        })
    }

    fn text(&self, c: &mut Cursor<'_>) -> Result<String, Malformed> {
        let start = c.at;
        let id = c.number()?;
        self.texts
            .get(id as usize)
            .cloned()
            .ok_or_else(|| c.malformed(start))
    }
}

struct Cursor<'a> {
    words: &'a [i64],
    at: usize,
}

impl Cursor<'_> {
    fn malformed(&self, at: usize) -> Malformed {
        Malformed {
            at,
            word: self.words.get(at).copied().unwrap_or(0),
        }
    }

    fn int(&mut self) -> Result<i64, Malformed> {
        let word = self
            .words
            .get(self.at)
            .copied()
            .ok_or_else(|| self.malformed(self.at))?;
        self.at += 1;
        Ok(word)
    }

    /// A small number that counts up from 0.
    fn number(&mut self) -> Result<u32, Malformed> {
        let at = self.at;
        let word = self.int()?;
        u32::try_from(word).map_err(|_| self.malformed(at))
    }

    /// A time or a size.
    fn time(&mut self) -> Result<u64, Malformed> {
        let at = self.at;
        let word = self.int()?;
        u64::try_from(word).map_err(|_| self.malformed(at))
    }

    /// Any 64 bits.
    fn address(&mut self) -> Result<u64, Malformed> {
        self.int().map(i64::cast_unsigned)
    }

    fn tensor(&mut self) -> Result<TensorRef, Malformed> {
        let sig = self.number()?;
        Ok(TensorRef {
            sig,
            alloc: u32::try_from(self.int()?).ok(),
        })
    }

    fn text(&mut self, length: usize) -> Result<String, Malformed> {
        let at = self.at;
        let words = self
            .words
            .get(at..at + length.div_ceil(8))
            .ok_or_else(|| self.malformed(at))?;
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.truncate(length);
        self.at += words.len();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}
