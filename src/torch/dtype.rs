//! libtorch's scalar types: numbers (c10::ScalarType), C++ names and PyTorch's names.

/// (number, C++ name, PyTorch's name).
const TABLE: &[(i8, &str, &str)] = &[
    (0, "Byte", "uint8"),
    (1, "Char", "int8"),
    (2, "Short", "int16"),
    (3, "Int", "int32"),
    (4, "Long", "int64"),
    (5, "Half", "float16"),
    (6, "Float", "float32"),
    (7, "Double", "float64"),
    (8, "ComplexHalf", "complex32"),
    (9, "ComplexFloat", "complex64"),
    (10, "ComplexDouble", "complex128"),
    (11, "Bool", "bool"),
    (12, "QInt8", "qint8"),
    (13, "QUInt8", "quint8"),
    (14, "QInt32", "qint32"),
    (15, "BFloat16", "bfloat16"),
    (16, "QUInt4x2", "quint4x2"),
    (17, "QUInt2x4", "quint2x4"),
    (18, "Bits1x8", "bits1x8"),
    (19, "Bits2x4", "bits2x4"),
    (20, "Bits4x2", "bits4x2"),
    (21, "Bits8", "bits8"),
    (22, "Bits16", "bits16"),
    (23, "Float8_e5m2", "float8_e5m2"),
    (24, "Float8_e4m3fn", "float8_e4m3fn"),
    (25, "Float8_e5m2fnuz", "float8_e5m2fnuz"),
    (26, "Float8_e4m3fnuz", "float8_e4m3fnuz"),
    (27, "UInt16", "uint16"),
    (28, "UInt32", "uint32"),
    (29, "UInt64", "uint64"),
    (44, "Float8_e8m0fnu", "float8_e8m0fnu"),
    (45, "Float4_e2m1fn_x2", "float4_e2m1fn_x2"),
];

/// PyTorch's name for a C++ name; a type this table lacks keeps its C++ name, which no report takes for another.
pub(crate) fn python_name(cpp: &str) -> &str {
    TABLE
        .iter()
        .find(|row| row.1 == cpp)
        .map_or(cpp, |row| row.2)
}

/// libtorch's number for a PyTorch name.
pub(crate) fn scalar_type(name: &str) -> Option<i8> {
    TABLE.iter().find(|row| row.2 == name).map(|row| row.0)
}

/// Whether values of this type are floating-point numbers.
pub(crate) fn is_floating(name: &str) -> bool {
    name.starts_with("float") || name == "bfloat16"
}

/// Whether values of this type are complex numbers.
pub(crate) fn is_complex(name: &str) -> bool {
    name.starts_with("complex")
}

/// PyTorch's name for libtorch's number.
pub(crate) fn name_of(scalar_type: i32) -> String {
    TABLE
        .iter()
        .find(|row| i32::from(row.0) == scalar_type)
        .map_or_else(
            || format!("scalar type {scalar_type}"),
            |row| row.2.to_owned(),
        )
}
