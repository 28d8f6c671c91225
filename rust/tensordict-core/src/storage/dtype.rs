//! Names of dtypes in the metadata, and the bytes of one item.

use std::borrow::Cow;

/// The dtypes that a tensor can be made over, and the bytes of an item; common ones first.
///
/// Quantized dtypes are not among them: they need a scale, which the format does not hold.
const KNOWN: [(&str, u64); 22] = [
    ("torch.float32", 4),
    ("torch.int64", 8),
    ("torch.bool", 1),
    ("torch.uint8", 1),
    ("torch.bfloat16", 2),
    ("torch.float16", 2),
    ("torch.float64", 8),
    ("torch.int32", 4),
    ("torch.int16", 2),
    ("torch.int8", 1),
    ("torch.uint16", 2),
    ("torch.uint32", 4),
    ("torch.uint64", 8),
    ("torch.complex32", 4),
    ("torch.complex64", 8),
    ("torch.complex128", 16),
    ("torch.float8_e4m3fn", 1),
    ("torch.float8_e4m3fnuz", 1),
    ("torch.float8_e5m2", 1),
    ("torch.float8_e5m2fnuz", 1),
    ("torch.float8_e8m0fnu", 1),
    ("torch.float4_e2m1fn_x2", 1),
];

fn find(name: &str) -> Option<&'static (&'static str, u64)> {
    let short = name.strip_prefix("torch.").unwrap_or(name);
    KNOWN
        .iter()
        .find(|(known, _)| known["torch.".len()..] == *short)
}

/// The bytes of one item of a dtype, named as in the metadata: `torch.float32`.
///
/// None for a name that is not known, or whose items are no whole bytes that a tensor can be
/// made over.
#[must_use]
pub fn item_size(name: &str) -> Option<u64> {
    find(name).map(|&(_, size)| size)
}

/// A name of a dtype, without memory of its own where it is one that is known.
#[must_use]
pub fn intern(name: &str) -> Cow<'static, str> {
    match find(name) {
        Some(&(known, _)) if known == name => Cow::Borrowed(known),
        _ => Cow::Owned(name.to_owned()),
    }
}

/// The bytes of a tensor, or None where a size is negative or the product overflows.
#[must_use]
pub fn tensor_bytes(shape: &[i64], item_size: u64) -> Option<u64> {
    // A size of zero makes the tensor empty whatever the other sizes are.
    let mut product = item_size;
    for &size in shape {
        product = product.checked_mul(u64::try_from(size).ok()?)?;
    }
    isize::try_from(product).ok()?;
    Some(product)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_tensor_bytes() {
        assert_eq!(tensor_bytes(&[3, 2], 4), Some(24));
        assert_eq!(tensor_bytes(&[], 8), Some(8));
        assert_eq!(tensor_bytes(&[5, 0], 8), Some(0));
        assert_eq!(tensor_bytes(&[-1], 8), None);
        assert_eq!(tensor_bytes(&[i64::MAX, i64::MAX], 8), None);
    }

    #[test]
    fn test_item_size_of_unknown_names() {
        assert_eq!(item_size("torch.float32"), Some(4));
        assert_eq!(item_size("torch.qint8"), None);
        assert_eq!(item_size("torch.float99"), None);
        assert_eq!(item_size("torch.torch.float32"), None);
        assert_eq!(item_size("float32"), Some(4));
    }

    #[test]
    fn test_intern_keeps_the_text() {
        for name in ["torch.float32", "float32", "torch.qint8", ""] {
            assert_eq!(intern(name), name);
        }
        assert!(matches!(intern("torch.bool"), Cow::Borrowed(_)));
    }
}
