//! Nested keys as Python passes them: a string, or tuples of strings in any nesting.

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};
use smallvec::SmallVec;

use crate::ffi::RecursionGuard;
use crate::imports::primitives;

/// The parts of a nested key, outermost collection first; few keys are longer.
pub(crate) type Path<'py> = SmallVec<[Bound<'py, PyAny>; 4]>;

/// Appends the strings of `key` to `path`. False where it is not a nested key.
fn append_parts<'py>(key: &Bound<'py, PyAny>, path: &mut Path<'py>) -> PyResult<bool> {
    if key.is_instance_of::<PyString>() {
        path.push(key.clone());
        return Ok(true);
    }
    let Ok(parts) = key.cast::<PyTuple>() else {
        return Ok(false);
    };
    let _guard = RecursionGuard::enter(key.py())?;
    for part in parts.iter_borrowed() {
        if !append_parts(&part, path)? {
            return Ok(false);
        }
    }
    Ok(!parts.is_empty())
}

/// The parts of `key`; none where it is not a nested key.
pub(crate) fn path_of<'py>(key: &Bound<'py, PyAny>) -> PyResult<Path<'py>> {
    let mut path = Path::new();
    if !append_parts(key, &mut path)? {
        path.clear();
    }
    Ok(path)
}

/// The parts of `key`.
///
/// # Errors
/// `KeyError` where it is not a nested key.
pub(crate) fn required_path_of<'py>(key: &Bound<'py, PyAny>) -> PyResult<Path<'py>> {
    let path = path_of(key)?;
    if path.is_empty() {
        return Err(bad_key(key));
    }
    Ok(path)
}

#[cold]
fn bad_key(key: &Bound<'_, PyAny>) -> PyErr {
    let made = primitives(key.py(), "errors");
    let made = made.and_then(|module| module.call_method1("bad_key", (key,)));
    made.map_or_else(|error| error, PyErr::from_value)
}

const MSG_KEY: &str = "key should be a Sequence<NestedKey>";

/// Flatten a nested key into a tuple of strings; an empty tuple where it is no key.
#[pyfunction]
fn unravel_key_to_tuple<'py>(key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(key.py(), path_of(key)?)
}

/// The simplest form of a nested key: a string, or a tuple of two or more.
///
/// A tuple that is no nested key gives an empty one, as in the published release.
#[pyfunction]
fn unravel_key<'py>(key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    if key.is_instance_of::<PyString>() {
        return Ok(key.clone());
    }
    if !key.is_instance_of::<PyTuple>() {
        return Err(PyRuntimeError::new_err(MSG_KEY));
    }
    let mut path = path_of(key)?;
    if path.len() == 1 {
        return Ok(path.remove(0));
    }
    Ok(PyTuple::new(key.py(), path)?.into_any())
}

/// The simplest form of each nested key of a list or tuple, as `unravel_key` gives it.
#[pyfunction]
fn unravel_key_list<'py>(keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    if !keys.is_instance_of::<PyList>() && !keys.is_instance_of::<PyTuple>() {
        return Err(PyTypeError::new_err(format!(
            "unravel_key_list(): incompatible function arguments. Expected a list or a tuple of \
             keys, got {}.",
            keys.get_type().repr()?
        )));
    }
    let out = PyList::empty(keys.py());
    for key in keys.try_iter()? {
        let key = unravel_key(&key?)?;
        if key.cast::<PyTuple>().is_ok_and(PyTupleMethods::is_empty) {
            return Err(PyRuntimeError::new_err(MSG_KEY));
        }
        out.append(key)?;
    }
    Ok(out)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(unravel_key_to_tuple, module)?)?;
    module.add_function(wrap_pyfunction!(unravel_key, module)?)?;
    module.add_function(wrap_pyfunction!(unravel_key_list, module)?)?;
    Ok(())
}
