//! PyTorch's dtypes, shapes and strides, with checked arithmetic.
//!
//! Owns what a tensor *is* apart from any file: its element type, how many elements and bytes a shape means, and
//! which part of a storage a strided view reaches. Every product and sum on sizes is checked; a value that does not
//! fit is `None`, never wrapped. Names are PyTorch's, without `torch.`.

use std::fmt;

use smallvec::SmallVec;

/// Sizes or strides of a tensor, outermost dimension first; up to four dimensions without an allocation.
pub type Dims = SmallVec<[u64; 4]>;

macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $bytes:literal, $safetensors:expr;)*) => {
        /// An element type of PyTorch 2.11.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum DType { $($(#[$doc])* $variant,)* }

        impl DType {
            /// Every dtype, in declaration order.
            pub const ALL: &'static [DType] = &[$(DType::$variant,)*];

            /// PyTorch's name without `torch.`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(DType::$variant => $name,)* }
            }

            /// Bytes of one stored item, PyTorch's `itemsize`: for packed types the item holds several values.
            #[must_use]
            pub fn item_bytes(self) -> u64 {
                match self { $(DType::$variant => $bytes,)* }
            }

            /// The dtype's name in a safetensors header, where that format has one.
            #[must_use]
            pub fn safetensors_name(self) -> Option<&'static str> {
                match self { $(DType::$variant => $safetensors,)* }
            }

            /// The dtype with this PyTorch name (no aliases such as `half`).
            #[must_use]
            pub fn from_name(name: &str) -> Option<DType> {
                match name { $($name => Some(DType::$variant),)* _ => None }
            }
        }
    };
}

dtypes! {
    /// `torch.float32`
    Float32 = "float32", 4, Some("F32");
    /// `torch.float64`
    Float64 = "float64", 8, Some("F64");
    /// `torch.float16`
    Float16 = "float16", 2, Some("F16");
    /// `torch.bfloat16`
    BFloat16 = "bfloat16", 2, Some("BF16");
    /// `torch.uint8`
    UInt8 = "uint8", 1, Some("U8");
    /// `torch.int8`
    Int8 = "int8", 1, Some("I8");
    /// `torch.int16`
    Int16 = "int16", 2, Some("I16");
    /// `torch.int32`
    Int32 = "int32", 4, Some("I32");
    /// `torch.int64`
    Int64 = "int64", 8, Some("I64");
    /// `torch.bool`
    Bool = "bool", 1, Some("BOOL");
    /// `torch.uint16`
    UInt16 = "uint16", 2, Some("U16");
    /// `torch.uint32`
    UInt32 = "uint32", 4, Some("U32");
    /// `torch.uint64`
    UInt64 = "uint64", 8, Some("U64");
    /// `torch.complex32`
    Complex32 = "complex32", 4, None;
    /// `torch.complex64`
    Complex64 = "complex64", 8, Some("C64");
    /// `torch.complex128`
    Complex128 = "complex128", 16, None;
    /// `torch.float8_e5m2`
    Float8E5M2 = "float8_e5m2", 1, Some("F8_E5M2");
    /// `torch.float8_e4m3fn`
    Float8E4M3Fn = "float8_e4m3fn", 1, Some("F8_E4M3");
    /// `torch.float8_e5m2fnuz`
    Float8E5M2Fnuz = "float8_e5m2fnuz", 1, Some("F8_E5M2FNUZ");
    /// `torch.float8_e4m3fnuz`
    Float8E4M3Fnuz = "float8_e4m3fnuz", 1, Some("F8_E4M3FNUZ");
    /// `torch.float8_e8m0fnu`
    Float8E8M0Fnu = "float8_e8m0fnu", 1, Some("F8_E8M0");
    /// `torch.float4_e2m1fn_x2`: two values an item; shapes count items
    Float4E2M1FnX2 = "float4_e2m1fn_x2", 1, None;
    /// `torch.qint8`
    QInt8 = "qint8", 1, None;
    /// `torch.quint8`
    QUInt8 = "quint8", 1, None;
    /// `torch.qint32`
    QInt32 = "qint32", 4, None;
    /// `torch.quint4x2`: shapes count values, two to a byte
    QUInt4x2 = "quint4x2", 1, None;
    /// `torch.quint2x4`: shapes count values, four to a byte
    QUInt2x4 = "quint2x4", 1, None;
    /// `torch.bits1x8`
    Bits1x8 = "bits1x8", 1, None;
    /// `torch.bits2x4`
    Bits2x4 = "bits2x4", 1, None;
    /// `torch.bits4x2`
    Bits4x2 = "bits4x2", 1, None;
    /// `torch.bits8`
    Bits8 = "bits8", 1, None;
    /// `torch.bits16`
    Bits16 = "bits16", 2, None;
    /// `torch.uint1`: a byte per value in libtorch
    UInt1 = "uint1", 1, None;
    /// `torch.uint2`
    UInt2 = "uint2", 1, None;
    /// `torch.uint3`
    UInt3 = "uint3", 1, None;
    /// `torch.uint4`
    UInt4 = "uint4", 1, None;
    /// `torch.uint5`
    UInt5 = "uint5", 1, None;
    /// `torch.uint6`
    UInt6 = "uint6", 1, None;
    /// `torch.uint7`
    UInt7 = "uint7", 1, None;
    /// `torch.int1`
    Int1 = "int1", 1, None;
    /// `torch.int2`
    Int2 = "int2", 1, None;
    /// `torch.int3`
    Int3 = "int3", 1, None;
    /// `torch.int4`
    Int4 = "int4", 1, None;
    /// `torch.int5`
    Int5 = "int5", 1, None;
    /// `torch.int6`
    Int6 = "int6", 1, None;
    /// `torch.int7`
    Int7 = "int7", 1, None;
}

/// Dtypes in the order of `c10::ScalarType`.
const SCALAR_TYPES: [DType; 46] = [
    DType::UInt8,
    DType::Int8,
    DType::Int16,
    DType::Int32,
    DType::Int64,
    DType::Float16,
    DType::Float32,
    DType::Float64,
    DType::Complex32,
    DType::Complex64,
    DType::Complex128,
    DType::Bool,
    DType::QInt8,
    DType::QUInt8,
    DType::QInt32,
    DType::BFloat16,
    DType::QUInt4x2,
    DType::QUInt2x4,
    DType::Bits1x8,
    DType::Bits2x4,
    DType::Bits4x2,
    DType::Bits8,
    DType::Bits16,
    DType::Float8E5M2,
    DType::Float8E4M3Fn,
    DType::Float8E5M2Fnuz,
    DType::Float8E4M3Fnuz,
    DType::UInt16,
    DType::UInt32,
    DType::UInt64,
    DType::UInt1,
    DType::UInt2,
    DType::UInt3,
    DType::UInt4,
    DType::UInt5,
    DType::UInt6,
    DType::UInt7,
    DType::Int1,
    DType::Int2,
    DType::Int3,
    DType::Int4,
    DType::Int5,
    DType::Int6,
    DType::Int7,
    DType::Float8E8M0Fnu,
    DType::Float4E2M1FnX2,
];

impl DType {
    /// A name as a person or an attribute of `torch` gives it: PyTorch's names and its aliases, with or without
    /// `torch.`, and the short forms `f16`, `bf16`, `i64`, `u8`, ...
    #[must_use]
    pub fn parse(text: &str) -> Option<DType> {
        let name = text.strip_prefix("torch.").unwrap_or(text);
        DType::from_name(name).or(match name {
            "float" | "f32" => Some(DType::Float32),
            "double" | "f64" => Some(DType::Float64),
            "half" | "f16" => Some(DType::Float16),
            "bf16" => Some(DType::BFloat16),
            "short" | "i16" => Some(DType::Int16),
            "int" | "i32" => Some(DType::Int32),
            "long" | "i64" => Some(DType::Int64),
            "i8" => Some(DType::Int8),
            "u8" => Some(DType::UInt8),
            "u16" => Some(DType::UInt16),
            "u32" => Some(DType::UInt32),
            "u64" => Some(DType::UInt64),
            "chalf" => Some(DType::Complex32),
            "cfloat" => Some(DType::Complex64),
            "cdouble" => Some(DType::Complex128),
            _ => None,
        })
    }

    /// The dtype with this number in `c10::ScalarType`, as TorchScript writes dtypes.
    #[must_use]
    pub fn from_scalar_type(number: i64) -> Option<DType> {
        usize::try_from(number)
            .ok()
            .and_then(|i| SCALAR_TYPES.get(i).copied())
    }

    /// Its number in `c10::ScalarType`.
    #[must_use]
    pub fn scalar_type(self) -> usize {
        let place = SCALAR_TYPES.iter().position(|dtype| *dtype == self);
        place.unwrap_or(SCALAR_TYPES.len())
    }

    /// The dtype with this name in a safetensors header.
    #[must_use]
    pub fn from_safetensors(name: &str) -> Option<DType> {
        DType::ALL
            .iter()
            .copied()
            .find(|d| d.safetensors_name() == Some(name))
    }

    /// Values that a shape counts in one byte, where it is more than one: the innermost dimension is rounded up to
    /// whole bytes.
    #[must_use]
    pub fn values_per_byte(self) -> Option<u64> {
        match self {
            DType::QUInt4x2 => Some(2),
            DType::QUInt2x4 => Some(4),
            _ => None,
        }
    }

    /// Whether this is one of the quantized types.
    #[must_use]
    pub fn is_quantized(self) -> bool {
        matches!(
            self,
            DType::QInt8 | DType::QUInt8 | DType::QInt32 | DType::QUInt4x2 | DType::QUInt2x4
        )
    }

    /// Whether values are (real) floating-point numbers.
    #[must_use]
    pub fn is_floating_point(self) -> bool {
        self.name().starts_with("float") || self == DType::BFloat16
    }

    /// Whether values are complex numbers.
    #[must_use]
    pub fn is_complex(self) -> bool {
        matches!(
            self,
            DType::Complex32 | DType::Complex64 | DType::Complex128
        )
    }

    /// Bytes that a tensor of this shape means: elements times item size, or the packed size of sub-byte types.
    #[must_use]
    pub fn tensor_bytes(self, shape: &[u64]) -> Option<u64> {
        let (Some(per_byte), Some((columns, rows))) = (self.values_per_byte(), shape.split_last())
        else {
            return numel(shape)?.checked_mul(self.item_bytes());
        };
        numel(rows)?.checked_mul(columns.div_ceil(per_byte))
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How many elements a shape means; the empty shape is one element. `None`: more than 2^64 - 1.
///
/// A zero anywhere gives 0 even where the other sizes alone would overflow.
#[must_use]
pub fn numel(shape: &[u64]) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape
        .iter()
        .try_fold(1_u64, |product, &size| product.checked_mul(size))
}

/// The strides of a contiguous (row-major) tensor, as PyTorch computes them: a size of 0 counts as 1.
#[must_use]
pub fn contiguous_strides(shape: &[u64]) -> Option<Dims> {
    let mut strides: Dims = SmallVec::from_elem(1, shape.len());
    let mut product = 1_u64;
    for (stride, &size) in strides.iter_mut().zip(shape).rev() {
        *stride = product;
        product = product.checked_mul(size.max(1))?;
    }
    Some(strides)
}

/// Whether a tensor of this shape and these strides is contiguous in PyTorch's sense: dimensions of size 1 may have
/// any stride, and a tensor without elements is always contiguous.
#[must_use]
pub fn is_contiguous(shape: &[u64], strides: &[u64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected = 1_u64;
    for (&size, &stride) in shape.iter().zip(strides).rev() {
        if size != 1 {
            if stride != expected {
                return false;
            }
            let Some(next) = expected.checked_mul(size) else {
                return false;
            };
            expected = next;
        }
    }
    true
}

/// How many elements from `offset` on a view needs: one past the last element it reaches, counted from the start of
/// the storage; 0 for a view without elements. `None`: more than 2^64 - 1.
#[must_use]
pub fn extent(shape: &[u64], strides: &[u64], offset: u64) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    let mut last = offset;
    for (&size, &stride) in shape.iter().zip(strides) {
        last = last.checked_add(size.checked_sub(1)?.checked_mul(stride)?)?;
    }
    last.checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_parse_back() {
        for &dtype in DType::ALL {
            assert_eq!(DType::from_name(dtype.name()), Some(dtype));
            assert_eq!(DType::parse(&format!("torch.{dtype}")), Some(dtype));
            if let Some(name) = dtype.safetensors_name() {
                assert_eq!(DType::from_safetensors(name), Some(dtype));
            }
        }
        assert_eq!(DType::ALL.len(), 46);
        assert_eq!(DType::parse("half"), Some(DType::Float16));
        assert_eq!(DType::parse("float128"), None);
        for number in 0..46 {
            let dtype = DType::from_scalar_type(number).unwrap();
            assert_eq!(dtype.scalar_type(), usize::try_from(number).unwrap());
        }
        assert_eq!(DType::from_scalar_type(6), Some(DType::Float32));
        assert_eq!(DType::from_scalar_type(46), None);
        assert_eq!(DType::from_scalar_type(-1), None);
    }

    #[test]
    fn sizes_of_tensors() {
        assert_eq!(DType::Float32.tensor_bytes(&[]), Some(4));
        assert_eq!(DType::Float32.tensor_bytes(&[0]), Some(0));
        assert_eq!(
            DType::Float32.tensor_bytes(&[256, 3, 100, 100]),
            Some(30_720_000)
        );
        assert_eq!(DType::QUInt4x2.tensor_bytes(&[4, 6]), Some(12));
        assert_eq!(DType::QUInt2x4.tensor_bytes(&[4, 8]), Some(8));
        // Rounded up in the innermost dimension, not in the whole.
        assert_eq!(DType::QUInt4x2.tensor_bytes(&[4, 5]), Some(12));
        assert_eq!(DType::Float32.tensor_bytes(&[1 << 33, 1 << 33]), None);
        assert_eq!(DType::Float64.tensor_bytes(&[1 << 62]), None);
        assert_eq!(numel(&[u64::MAX, u64::MAX, 0]), Some(0));
    }

    #[test]
    fn what_a_view_reaches() {
        assert_eq!(extent(&[3, 4], &[4, 1], 0), Some(12));
        assert_eq!(extent(&[4, 4], &[2, 1], 0), Some(10));
        assert_eq!(extent(&[1000, 1000], &[0, 0], 0), Some(1));
        assert_eq!(extent(&[], &[], 7), Some(8));
        assert_eq!(extent(&[0, 5], &[5, 1], 100), Some(0));
        assert_eq!(extent(&[2, 2], &[u64::MAX, 1], 1), None);
        assert!(is_contiguous(&[3, 1, 4], &[4, 99, 1]));
        assert!(!is_contiguous(&[3, 4], &[1, 3]));
        assert_eq!(
            contiguous_strides(&[2, 0, 3]).unwrap().as_slice(),
            &[3, 3, 1]
        );
    }
}
