//! What can go wrong in the core: one enum, whose variants name the condition.
//!
//! Messages have three parts: what was asked, what was found, what to do. The bindings
//! turn each variant into the exception that users of the published release catch; that
//! table is `rust/tensordict-python/src/error.rs`.

use thiserror::Error;

/// The result of a fallible function of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure of the core. A new condition is a new variant and a new row in the
/// bindings' table.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A key that is not in the container.
    #[error("key {key} not found; the keys here are {available}")]
    KeyNotFound {
        /// The key asked for, displayed.
        key: String,
        /// The keys that exist, displayed.
        available: String,
    },

    /// A nested key that runs through the leaf of another.
    #[error("key {key} runs through the leaf {leaf}: only nested containers have entries")]
    KeyIsPrefix {
        /// The longer key.
        key: String,
        /// The leaf in its way.
        leaf: String,
    },

    /// A value whose leading dimensions are not the batch size.
    #[error(
        "batch dimension mismatch, got self.batch_size={batch_size} and value.shape={shape}; \
         the leading dimensions of a value must match the batch size"
    )]
    BatchMismatch {
        /// The container's batch size, displayed.
        batch_size: String,
        /// The value's shape, displayed.
        shape: String,
    },

    /// Two entries that would have the same key.
    #[error("key {key} is there twice; rename one of the entries")]
    DuplicateKey {
        /// The key, displayed.
        key: String,
    },

    /// A shape that a batch cannot be viewed as.
    #[error("invalid shape {shape:?} for a batch of size {batch_size:?}")]
    ViewShape {
        /// The shape asked for.
        shape: Vec<i64>,
        /// The batch size.
        batch_size: Vec<i64>,
    },

    /// A shape with two dims to be inferred.
    #[error("only one dimension can be inferred")]
    TwoInferredDims,

    /// Two shapes that do not broadcast together.
    #[error("shape mismatch: {first:?} and {second:?} could not be broadcast together")]
    Broadcast {
        /// One shape.
        first: Vec<i64>,
        /// The other.
        second: Vec<i64>,
    },

    /// An index with two ellipses.
    #[error("An index can only have one ellipsis at most.")]
    TwoEllipses,

    /// An index of more dims than there are.
    #[error("too many indices for tensor of dimension {ndim}")]
    TooManyIndices {
        /// How many dims there are.
        ndim: usize,
    },

    /// A position outside of a dim.
    #[error("index {index} is out of bounds for dimension {dim} with size {length}")]
    IndexOutOfRange {
        /// The position asked for.
        index: i64,
        /// The dim indexed.
        dim: usize,
        /// The size of that dim.
        length: i64,
    },

    /// A mask that does not have the shape of the dims that it indexes.
    #[error(
        "The shape of the mask {mask:?} at index {axis} does not match the shape of the \
         indexed tensor {batch_size:?} at index {dim}"
    )]
    MaskShape {
        /// The mask's shape.
        mask: Vec<i64>,
        /// The first axis of the mask that differs.
        axis: usize,
        /// The batch size.
        batch_size: Vec<i64>,
        /// The dim at that axis.
        dim: usize,
    },

    /// A slice that does not go forward.
    #[error("step must be greater than zero")]
    SliceStep,

    /// A dimension outside of the container's batch dimensions.
    #[error(
        "dimension out of range (expected to be in range of [{min}, {max}], but got {dim})",
        min = -(*num_dims),
        max = num_dims - 1
    )]
    DimOutOfRange {
        /// The dimension asked for, counted from the back where negative.
        dim: i64,
        /// How many dimensions there are.
        num_dims: i64,
    },

    /// What goes wrong with files.
    #[error(transparent)]
    Storage(#[from] crate::storage::StorageError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_dim_out_of_range_names_both_ends() {
        let error = Error::DimOutOfRange {
            dim: 4,
            num_dims: 2,
        };
        assert_eq!(
            error.to_string(),
            "dimension out of range (expected to be in range of [-2, 1], but got 4)"
        );
    }
}
