//! The names of dtypes in the format.

/// The names of dtypes, torch's and the format's.
const DTYPES: [(&str, &str); 19] = [
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
