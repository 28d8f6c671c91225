//! Reading and writing single entries.

use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::container::{self, Kind, kind};
use crate::imports::{Imports, imports, twins_attribute};
use crate::keys;

/// What a missing entry gives: an error unless a value was passed.
enum Fallback<'py> {
    Missing,
    Given(Bound<'py, PyAny>),
}

impl<'a, 'py> FromPyObject<'a, 'py> for Fallback<'py> {
    type Error = PyErr;

    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self::Given(value.to_owned()))
    }
}

impl<'py> Fallback<'py> {
    fn value(self, imports: &Imports) -> Option<Bound<'py, PyAny>> {
        match self {
            Self::Given(value) if !value.is(&imports.no_default) => Some(value),
            _ => None,
        }
    }
}

/// The value at a nested key; `default` where an entry on the way is missing.
#[pyfunction]
#[pyo3(signature = (td, key, default = Fallback::Missing), text_signature = "(td, key, default=...)")]
fn get<'py>(
    td: &Bound<'py, PyAny>,
    key: &Bound<'py, PyAny>,
    default: Fallback<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = td.py();
    let imports = imports(py)?;
    let found = if key.is_instance_of::<PyString>() {
        step(imports, td, key)?
    } else {
        descend(imports, td, &keys::required_path_of(key)?)?
    };
    match found {
        Step::Value(value) => Ok(value),
        Step::Missing => match default.value(imports) {
            Some(default) => Ok(default),
            None => from_twin(py, "get", (td, key)),
        },
        Step::Leaf => match default.value(imports) {
            Some(default) if !default.is_none() => Ok(default),
            Some(default) => from_twin(py, "get", (td, key, default)),
            None => from_twin(py, "get", (td, key)),
        },
    }
}

/// Where one or more parts of a key lead.
enum Step<'py> {
    Value(Bound<'py, PyAny>),
    /// A container on the way has no such entry.
    Missing,
    /// An entry on the way is no container.
    Leaf,
}

fn step<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    key: &Bound<'py, PyAny>,
) -> PyResult<Step<'py>> {
    Ok(match kind(imports, td)? {
        Kind::Leaf => Step::Leaf,
        Kind::Dense => match container::entries(imports, td)?.get_item(key)? {
            Some(value) => Step::Value(value),
            None => Step::Missing,
        },
        Kind::Foreign => {
            let py = td.py();
            let no_default = imports.no_default.bind(py);
            let value =
                td.call_method1(imports.names.method_get_entry.bind(py), (key, no_default))?;
            if value.is(no_default) {
                Step::Missing
            } else {
                Step::Value(value)
            }
        }
    })
}

fn descend<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    path: &[Bound<'py, PyAny>],
) -> PyResult<Step<'py>> {
    let mut value = td.clone();
    for part in path {
        match step(imports, &value, part)? {
            Step::Value(next) => value = next,
            other => return Ok(other),
        }
    }
    Ok(Step::Value(value))
}

/// What the Python twin makes of the same arguments: how failures are reported, so that
/// their texts stand in one place.
#[cold]
pub(crate) fn from_twin<'py>(
    py: Python<'py>,
    name: &str,
    args: impl pyo3::call::PyCallArgs<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    twins_attribute(py, name)?.call1(args)
}

/// Whether there is an entry at a nested key.
#[pyfunction]
fn contains<'py>(td: &Bound<'py, PyAny>, key: &Bound<'py, PyAny>) -> PyResult<bool> {
    let py = td.py();
    let imports = imports(py)?;
    let found = if key.is_instance_of::<PyString>() {
        step(imports, td, key)?
    } else {
        let path = keys::path_of(key)?;
        if path.is_empty() {
            return from_twin(py, "contains", (td, key))?.is_truthy();
        }
        descend(imports, td, &path)?
    };
    Ok(matches!(found, Step::Value(_)))
}

/// `td[index]`: an entry where `index` is a nested key, else `td._get_index`.
#[pyfunction]
fn getitem<'py>(td: &Bound<'py, PyAny>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = td.py();
    let imports = imports(py)?;
    let found = if index.is_instance_of::<PyString>() {
        step(imports, td, index)?
    } else {
        let path = match index.is_instance_of::<PyTuple>() {
            true => keys::path_of(index)?,
            false => keys::Path::new(),
        };
        if path.is_empty() {
            return td.call_method1(imports.names.method_get_index.bind(py), (index,));
        }
        descend(imports, td, &path)?
    };
    match found {
        Step::Value(value) => Ok(value),
        Step::Missing | Step::Leaf => from_twin(py, "getitem", (td, index)),
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(get, module)?)?;
    module.add_function(wrap_pyfunction!(contains, module)?)?;
    module.add_function(wrap_pyfunction!(getitem, module)?)?;
    Ok(())
}
