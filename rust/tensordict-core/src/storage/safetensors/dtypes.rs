//! The names of dtypes in the format.

/// Numbers of half a byte. An item of torch's dtype has two: the format counts them one by one in the
/// last dim.
const FLOAT4: &str = "F4";

/// The names of dtypes, torch's and the format's.
const DTYPES: [(&str, &str); 20] = [
    ("bool", "BOOL"),
    ("uint8", "U8"),
    ("int8", "I8"),
    ("uint16", "U16"),
    ("int16", "I16"),
    ("uint32", "U32"),
    ("int32", "I32"),
    ("uint64", "U64"),
    ("int64", "I64"),
    ("float16", "F16"),
    ("bfloat16", "BF16"),
    ("float32", "F32"),
    ("float64", "F64"),
    ("complex64", "C64"),
    ("float8_e4m3fn", "F8_E4M3"),
    ("float8_e5m2", "F8_E5M2"),
    ("float8_e4m3fnuz", "F8_E4M3FNUZ"),
    ("float8_e5m2fnuz", "F8_E5M2FNUZ"),
    ("float8_e8m0fnu", "F8_E8M0"),
    ("float4_e2m1fn_x2", FLOAT4),
];

/// The name of one of torch's dtypes in the format; None for one that it does not have.
#[must_use]
pub fn format_dtype(torch: &str) -> Option<&'static str> {
    let short = torch.strip_prefix("torch.").unwrap_or(torch);
    DTYPES
        .iter()
        .find(|(name, _)| *name == short)
        .map(|(_, format)| *format)
}

/// The name of one of the format's dtypes in torch.
pub(super) fn torch_dtype(name: &str) -> Option<&'static str> {
    DTYPES
        .iter()
        .find(|(_, format)| *format == name)
        .map(|(torch, _)| *torch)
}

/// The shape in the format of a tensor of `dtype`, as the format names it, that has `shape` in torch; None if there is none.
#[must_use]
pub fn format_shape(dtype: &str, shape: &[i64]) -> Option<Vec<i64>> {
    let mut shape = shape.to_vec();
    if dtype == FLOAT4 {
        let last = shape.last_mut()?;
        *last = last.checked_mul(2)?;
    }
    Some(shape)
}

/// The shape in torch of a tensor that has `shape` in the format; None if there is none.
pub(super) fn torch_shape(dtype: &str, mut shape: Vec<i64>) -> Option<Vec<i64>> {
    if dtype == FLOAT4 {
        let last = shape.last_mut().filter(|last| **last % 2 == 0)?;
        *last /= 2;
    }
    Some(shape)
}
