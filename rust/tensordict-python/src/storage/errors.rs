//! From the errors of the core's storage to the exceptions that users catch.

use std::io;
use std::path::Path;

use pyo3::exceptions::{PyKeyError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use tensordict_core::storage::StorageError;
use tensordict_core::storage::region::MemoryGone;

/// The exception for `error`.
pub(crate) fn exception(py: Python<'_>, error: &StorageError) -> PyErr {
    match error {
        StorageError::Io { path, key, source } => match raised(source) {
            Some(raised) => noted(py, raised, path, key),
            None if source
                .get_ref()
                .is_some_and(<dyn std::error::Error + Send + Sync>::is::<MemoryGone>) =>
            {
                PyRuntimeError::new_err(error.to_string())
            }
            None => os_error(py, path, key, source),
        },
        StorageError::MissingFile { path, key } => {
            let source = io::Error::from_raw_os_error(2);
            os_error(py, path, &format!("{key} is missing"), &source)
        }
        StorageError::NotArchive { .. } | StorageError::IsDirectory { .. } => {
            PyValueError::new_err(error.to_string())
        }
        StorageError::UnknownDtype { .. } => PyKeyError::new_err(error.to_string()),
        StorageError::BadJson {
            path,
            message,
            position,
            text,
        } => {
            let message = format!("{message} ('{}')", path.display());
            let decode_error = py
                .import("json")
                .and_then(|json| json.getattr("JSONDecodeError"))
                .and_then(|class| class.call1((message, text, *position)));
            decode_error.map_or_else(|error| error, PyErr::from_value)
        }
        _ => PyRuntimeError::new_err(error.to_string()),
    }
}

/// Returns the exception that Python raised while the core called it.
fn raised(error: &io::Error) -> Option<&PyErr> {
    error.get_ref()?.downcast_ref()
}

/// An exception of Python, with a note of where it was raised.
fn noted(py: Python<'_>, raised: &PyErr, path: &Path, key: &str) -> PyErr {
    let raised = raised.clone_ref(py);
    let of = if key.is_empty() {
        String::new()
    } else {
        format!("the entry {key} of ")
    };
    let note = format!("while {of}'{}' was written", path.display());
    // Without a note it is raised as well.
    let _ = raised.value(py).call_method1("add_note", (note,));
    raised
}

/// `OSError(errno, text, filename)`: Python picks the subclass by the number.
fn os_error(py: Python<'_>, path: &Path, key: &str, source: &io::Error) -> PyErr {
    let Some(number) = source.raw_os_error() else {
        let of = if key.is_empty() {
            String::new()
        } else {
            format!(" (the entry {key})")
        };
        return PyOSError::new_err(format!("{source}{of}: '{}'", path.display()));
    };
    let text = py
        .import("os")
        .and_then(|os| os.call_method1("strerror", (number,)))
        .and_then(|text| text.extract::<String>())
        .unwrap_or_else(|_| source.to_string());
    let text = if key.is_empty() {
        text
    } else {
        format!("{text} (the entry {key})")
    };
    PyOSError::new_err((number, text, path.to_path_buf().into_os_string()))
}
