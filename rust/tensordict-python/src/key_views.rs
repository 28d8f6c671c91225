//! The direct keys of a collection as a view: what `td.keys()` gives.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyList, PyString};

use crate::imports::common_attribute;
use crate::nested_key;

/// A live view of the keys of a dictionary of entries.
///
/// Python gives it the operations of a set; see `tensordict.ops.key_views`.
#[pyclass(name = "_StringKeys", module = "tensordict.utils", frozen, weakref)]
struct StringKeys {
    entries: Py<PyAny>,
}

#[pymethods]
impl StringKeys {
    #[new]
    fn new(entries: Py<PyAny>) -> Self {
        Self { entries }
    }

    #[getter]
    fn _mapping(&self, py: Python<'_>) -> Py<PyAny> {
        self.entries.clone_ref(py)
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.entries.bind(py).try_iter()
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let entries = self.entries.bind(py);
        match entries.cast_exact::<PyDict>() {
            Ok(entries) => Ok(entries.len()),
            Err(_) => entries.len(),
        }
    }

    fn __contains__(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let entries = self.entries.bind(key.py());
        if key.is_instance_of::<PyString>() {
            return entries.contains(key);
        }
        match nested_key::path_of(key)?.as_slice() {
            [] => Err(not_a_key(key.py())),
            [key] => entries.contains(key),
            _ => Ok(false),
        }
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let keys = PyList::empty(py);
        for key in self.entries.bind(py).try_iter()? {
            keys.append(key?)?;
        }
        Ok(format!("dict_keys({})", keys.repr()?))
    }

    fn __traverse__(&self, visit: pyo3::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        visit.call(&self.entries)
    }
}

#[cold]
fn not_a_key(py: Python<'_>) -> PyErr {
    match common_attribute(py, "MSG_MEMBERSHIP") {
        Ok(message) => PyTypeError::new_err(message.unbind()),
        Err(error) => error,
    }
}

/// The keys of a dictionary of entries, as a live view.
#[pyfunction]
fn string_keys(py: Python<'_>, entries: Py<PyAny>) -> PyResult<Bound<'_, StringKeys>> {
    Bound::new(py, StringKeys { entries })
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("StringKeys", module.py().get_type::<StringKeys>())?;
    module.add_function(wrap_pyfunction!(string_keys, module)?)?;
    Ok(())
}
