//! Batch sizes: how many elements they have, and what a view infers.

use smallvec::SmallVec;

use crate::{Refused, Result};

/// The sizes of a shape's dims; few have more.
pub type Dims = SmallVec<[i64; 6]>;

/// The number of elements of a batch, or None where it does not fit in 64 bits.
#[must_use]
pub fn num_elements(shape: &[i64]) -> Option<i64> {
    shape
        .iter()
        .try_fold(1_i64, |product, length| product.checked_mul(*length))
}

/// `shape` with its one -1 replaced by what makes it as large as `batch_size`.
///
/// # Errors
/// The sizes do not multiply to the number of elements, or more than one is -1.
pub fn infer_view(batch_size: &[i64], shape: &[i64]) -> Result<Dims> {
    let mut free = None;
    let mut known = Dims::new();
    for (position, &length) in shape.iter().enumerate() {
        match length {
            -1 if free.is_some() => return Err(Refused),
            -1 => free = Some(position),
            ..0 => return Err(Refused),
            _ => known.push(length),
        }
    }
    let total = num_elements(batch_size).ok_or(Refused)?;
    let known = num_elements(&known).ok_or(Refused)?;
    let mut dims = Dims::from_slice(shape);
    match free {
        Some(position) if known > 0 && total % known == 0 => dims[position] = total / known,
        None if known == total => {}
        _ => return Err(Refused),
    }
    Ok(dims)
}
