//! Errors of keys, batch sizes and indices: one enum, whose variants name the condition.
//!
//! The bindings hand what is refused here to its twin in Python, which raises the exception
//! that users of the published release catch. Errors of files are in `storage::error`.

use thiserror::Error;

/// The result of a fallible function of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure of the core. A new condition is a new variant.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A nested key that runs through the leaf of another.
    #[error("key {key} runs through the leaf {leaf}: only nested collections have entries")]
    KeyIsPrefix {
        /// The longer key.
        key: String,
        /// The leaf in its way.
        leaf: String,
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
        /// The number of dims that there are.
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
}
