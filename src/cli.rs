//! The command line: arguments as typed, and their meaning.
