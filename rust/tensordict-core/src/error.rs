//! The refusal of keys, batch sizes and indices.

/// A key, a batch size or an index that this crate does not take. It says no more: the bindings hand the
/// call to its twin in Python, which raises the exception that users of the published release catch.
/// Errors of files, which say what is wrong, are in [`storage`](crate::storage).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused;

/// The result of a function that may refuse its arguments.
pub type Result<T> = std::result::Result<T, Refused>;
