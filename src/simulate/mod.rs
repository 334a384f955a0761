//! The CUDA caching allocator, exactly.
