//! The stages of a run, and the one map from outcomes to exit codes.
