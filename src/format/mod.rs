//! Detection by content and one reader per format.
