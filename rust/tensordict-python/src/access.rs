//! Reading single entries.

use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::collection::is_plain;
use crate::collection::{self, Kind, kind};
use crate::ffi::RecursionGuard;
use crate::imports::{Imports, from_twin, imports};
use crate::index::index as index_at;
use crate::nested_key;

/// The `default` of a lookup: what a missing entry gives, or an error where none is passed.
struct Fallback<'py>(Option<Bound<'py, PyAny>>);

impl<'a, 'py> FromPyObject<'a, 'py> for Fallback<'py> {
    type Error = PyErr;

    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self(Some(value.to_owned())))
    }
}

impl<'py> Fallback<'py> {
    /// Returns the replacement for a missing entry; None if that is an error.
    fn if_missing(self, imports: &Imports) -> Option<Bound<'py, PyAny>> {
        let value = self.0?;
        if value.is(&imports.none_if_missing) {
            return Some(value.py().None().into_bound(value.py()));
        }
        (!value.is(&imports.no_default)).then_some(value)
    }

    /// Returns the replacement for an entry that a leaf is in the way of; None if that is an error.
    fn if_through_leaf(self, imports: &Imports) -> Option<Bound<'py, PyAny>> {
        self.0
            .filter(|value| !value.is(&imports.no_default) && !value.is(&imports.none_if_missing))
    }
}

/// The value at a nested key; `default` where an entry on the way is missing.
#[pyfunction]
#[pyo3(signature = (td, key, default = Fallback(None)), text_signature = "(td, key, default=...)")]
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
        descend(imports, td, &nested_key::required_path_of(key)?)?
    };
    let default = match found {
        Step::Value(value) => return Ok(value),
        Step::Missing => default.if_missing(imports),
        Step::Leaf => default.if_through_leaf(imports),
    };
    default.map_or_else(|| from_twin(py, "access", "get", (td, key)), Ok)
}

/// The place that one or more parts of a key lead to.
enum Step<'py> {
    Value(Bound<'py, PyAny>),
    /// A collection on the way has no such entry.
    Missing,
    /// An entry on the way is no collection.
    Leaf,
}

fn step<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    key: &Bound<'py, PyAny>,
) -> PyResult<Step<'py>> {
    Ok(match kind(imports, td)? {
        Kind::Tensor | Kind::Special => Step::Leaf,
        Kind::Dense => match collection::entries(imports, td)?.get_item(key)? {
            Some(value) => Step::Value(value),
            None => Step::Missing,
        },
        Kind::Foreign => {
            let py = td.py();
            let _guard = RecursionGuard::enter(py)?;
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

/// Returns whether there is an entry at a nested key.
#[pyfunction]
pub(crate) fn contains<'py>(td: &Bound<'py, PyAny>, key: &Bound<'py, PyAny>) -> PyResult<bool> {
    let py = td.py();
    let imports = imports(py)?;
    if key.is_instance_of::<PyString>() {
        return Ok(sample(imports, td, key)?.is_some());
    }
    let path = nested_key::path_of(key)?;
    if path.is_empty() {
        return from_twin(py, "access", "contains", (td, key))?.is_truthy();
    }
    let mut value = td.clone();
    for part in path {
        match sample(imports, &value, &part)? {
            Some(next) => value = next,
            None => return Ok(false),
        }
    }
    Ok(true)
}

/// An entry for a look at its type; None where there is none, or `td` is no collection.
fn sample<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    key: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    if kind(imports, td)? == Kind::Foreign {
        let py = td.py();
        let _guard = RecursionGuard::enter(py)?;
        let value = td.call_method1(imports.names.method_sample_entry.bind(py), (key,))?;
        return Ok(Some(value).filter(|value| !value.is(imports.no_default.bind(py))));
    }
    Ok(match step(imports, td, key)? {
        Step::Value(value) => Some(value),
        Step::Missing | Step::Leaf => None,
    })
}

/// `td[index]`: an entry where `index` is a nested key, else `td._get_index`.
#[pyfunction]
fn getitem<'py>(td: &Bound<'py, PyAny>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = td.py();
    let imports = imports(py)?;
    let found = if index.is_instance_of::<PyString>() {
        step(imports, td, index)?
    } else {
        let path = if index.is_instance_of::<PyTuple>() {
            nested_key::path_of(index)?
        } else {
            nested_key::Path::new()
        };
        if path.is_empty() {
            // The method of the plain class does the same if no storage is to be noted.
            if is_plain(imports, td) && !collection::is_locked(imports, td)? {
                return index_at(td, index);
            }
            return td.call_method1(imports.names.method_get_index.bind(py), (index,));
        }
        descend(imports, td, &path)?
    };
    match found {
        Step::Value(value) => value_of(imports, value),
        Step::Missing | Step::Leaf => from_twin(py, "access", "getitem", (td, index)),
    }
}

/// Returns what reading an entry by key gives: the value that a non-tensor entry holds, any other
/// entry itself.
fn value_of<'py>(imports: &Imports, entry: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    if kind(imports, &entry)? == Kind::Foreign && collection::is_non_tensor(imports, &entry)? {
        return entry.call_method0(imports.names.method_value.bind(entry.py()));
    }
    Ok(entry)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(get, module)?)?;
    module.add_function(wrap_pyfunction!(contains, module)?)?;
    module.add_function(wrap_pyfunction!(getitem, module)?)?;
    Ok(())
}
