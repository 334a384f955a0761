//! GPU memory: phases, categories, optimizer rules, device profiles.
