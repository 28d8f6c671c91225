//! Names of dtypes in the metadata, and the bytes of one item.

/// The bytes of one item of a dtype, named as in the metadata: `torch.float32`.
///
/// None for a name that is not known, or whose items are no whole bytes that a tensor can be
/// made over (quantized dtypes need a scale, which the format does not hold).
#[must_use]
pub fn item_size(name: &str) -> Option<u64> {
    let short = name.strip_prefix("torch.").unwrap_or(name);
    Some(match short {
        "bool" | "uint8" | "int8" | "float8_e4m3fn" | "float8_e4m3fnuz" | "float8_e5m2"
        | "float8_e5m2fnuz" | "float8_e8m0fnu" | "float4_e2m1fn_x2" => 1,
        "int16" | "uint16" | "float16" | "bfloat16" => 2,
        "int32" | "uint32" | "float32" | "complex32" => 4,
        "int64" | "uint64" | "float64" | "complex64" => 8,
        "complex128" => 16,
        _ => return None,
    })
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
    }
}
