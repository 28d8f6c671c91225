//! Lazy stacks: the shape that a stack has as a whole.

use crate::batch::Dims;

/// The size of a dim in which the members of a stack differ.
pub const RAGGED: i64 = -1;

/// The shapes of the members of a stack, merged one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergedShape {
    dims: Dims,
    count: i64,
}

impl MergedShape {
    /// The shape of a stack of one member.
    #[must_use]
    pub fn of(first: &[i64]) -> Self {
        Self {
            dims: Dims::from_slice(first),
            count: 1,
        }
    }

    /// Adds a member of the same shape as the one before.
    #[inline]
    pub fn repeat(&mut self) {
        self.count += 1;
    }

    /// Adds a member; false where it has another number of dims, and was not added.
    #[inline]
    #[must_use]
    pub fn add(&mut self, shape: &[i64]) -> bool {
        if shape.len() != self.dims.len() {
            return false;
        }
        for (merged, &length) in self.dims.iter_mut().zip(shape) {
            if *merged != length {
                *merged = RAGGED;
            }
        }
        self.count += 1;
        true
    }

    /// The shape of the stack along `dim`; None where there is no such dim.
    #[must_use]
    pub fn stacked(mut self, dim: usize) -> Option<Dims> {
        if dim > self.dims.len() {
            return None;
        }
        self.dims.insert(dim, self.count);
        Some(self.dims)
    }
}
