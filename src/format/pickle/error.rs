//! Why a pickle could not be read.

use super::repr::cut;

/// A fault in a pickle, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset} of the pickle: {kind}")]
pub struct PickleError {
    /// Where the opcode starts that could not be carried out.
    pub offset: u64,
    /// What is wrong.
    pub kind: PickleErrorKind,
    /// The first globals that the pickle names up to there, as module and name.
    pub globals: Vec<(String, String)>,
}

/// What is wrong with a pickle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PickleErrorKind {
    /// The input ends inside an opcode, or before `STOP`.
    #[error("{what} needs {needed} bytes, but only {left} are left")]
    Truncated {
        /// What was read.
        what: &'static str,
        /// What it needs.
        needed: u64,
        /// What there is.
        left: u64,
    },
    /// A line without an end.
    #[error("a line of text has no end")]
    Unterminated,
    /// No opcode of protocols 0 to 5.
    #[error("0x{0:02x} is not an opcode")]
    UnknownOpcode(u8),
    /// A protocol that does not exist (yet).
    #[error("pickle protocol {0}, expected 0 to 5")]
    Protocol(u8),
    /// A value is needed that is not there, or lies below a mark.
    #[error("the stack has no value for {0}")]
    StackUnderflow(&'static str),
    /// A mark is needed that was never set.
    #[error("{0} without a mark")]
    NoMark(&'static str),
    /// `STOP` inside an open mark.
    #[error("the pickle ends with {0} marks open")]
    OpenMark(usize),
    /// A memo entry that was never made.
    #[error("memo entry {0} was never made")]
    NoMemo(u64),
    /// A value of the wrong kind.
    #[error("{opcode} on {found}, expected {expected}")]
    Operand {
        /// What was to be done.
        opcode: &'static str,
        /// What it needs.
        expected: &'static str,
        /// What there is.
        found: String,
    },
    /// A length below zero.
    #[error("{what} of {length} bytes")]
    NegativeLength {
        /// Of what.
        what: &'static str,
        /// The length.
        length: i64,
    },
    /// Text that is not what the opcode needs.
    #[error("`{}` is not {expected}", cut(text))]
    Text {
        /// What was expected.
        expected: &'static str,
        /// What is there.
        text: String,
    },
    /// Out-of-band buffers are not part of the file.
    #[error("the pickle refers to a buffer outside of it")]
    OutOfBand,
    /// More memory than a file of this size may need.
    #[error(
        "its objects need more than {limit_bytes} bytes of memory: more than a pickle of this size may"
    )]
    Memory {
        /// The bound.
        limit_bytes: u64,
    },
    /// More globals than any checkpoint names.
    #[error("it names more than {0} different globals")]
    Globals(usize),
}
