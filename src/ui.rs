//! The terminal: messages, progress, colour. The only place that prints.
