//! The trace of a run: versioned wire types and their reader.
