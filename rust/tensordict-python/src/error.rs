//! The one table from the core's errors to Python's exceptions.
//!
//! A function of the bindings returns [`Result`]: `?` then takes both what the core
//! reports and what Python raises, and an exception passes through untouched.

// The table stands before its first user.
#![allow(
    dead_code,
    reason = "each topic brings the functions that return these"
)]

use pyo3::exceptions::{PyIndexError, PyKeyError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use tensordict_core::Error;

/// The result of a function of the bindings.
pub(crate) type Result<T, E = BindingError> = std::result::Result<T, E>;

/// A failure of the core, or an exception that Python raised while we called it.
#[derive(Debug)]
pub(crate) enum BindingError {
    Core(Error),
    Python(PyErr),
}

impl From<Error> for BindingError {
    fn from(error: Error) -> Self {
        Self::Core(error)
    }
}

impl From<PyErr> for BindingError {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl From<BindingError> for PyErr {
    fn from(error: BindingError) -> Self {
        match error {
            BindingError::Core(error) => exception(&error),
            BindingError::Python(error) => error,
        }
    }
}

/// The exception that users of the published release catch for `error`.
pub(crate) fn exception(error: &Error) -> PyErr {
    let message = error.to_string();
    match error {
        Error::KeyNotFound { .. } | Error::KeyIsPrefix { .. } | Error::DuplicateKey { .. } => {
            PyKeyError::new_err(message)
        }
        Error::DimOutOfRange { .. }
        | Error::IndexOutOfRange { .. }
        | Error::TooManyIndices { .. }
        | Error::MaskShape { .. }
        | Error::Broadcast { .. } => PyIndexError::new_err(message),
        Error::SliceStep => PyValueError::new_err(message),
        Error::Storage(error) => Python::attach(|py| crate::storage::exception(py, error)),
        // BatchMismatch, ViewShape and their like, and what a later version of the core adds.
        _ => PyRuntimeError::new_err(message),
    }
}
