//! PyTorch's dtypes, shapes and strides, with checked arithmetic.
