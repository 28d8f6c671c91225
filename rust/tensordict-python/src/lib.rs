//! The bindings, `tensordict._rust`: walks containers, converts, calls the core.
//!
//! This file is a list. Each topic is a module of its own with a `register` function that
//! adds what it offers; the same topic has the same name in the core and in the Python
//! package.

mod build;
mod error;

use pyo3::prelude::*;

/// The native half of `tensordict`. Its names are private: use the Python package.
#[pymodule(gil_used = false)]
fn _rust(module: &Bound<'_, PyModule>) -> PyResult<()> {
    build::register(module)?;
    Ok(())
}
