//! Read the four attributes of a collection.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// A copy of the instance dictionary, in the order in which the attributes were set.
#[pyfunction]
fn attributes<'py>(td: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    let attributes = td.getattr(intern!(td.py(), "__dict__"))?;
    attributes.cast_into::<PyDict>()?.copy()
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(attributes, module)?)
}
