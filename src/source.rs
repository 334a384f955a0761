//! A path as bytes.
