//! The fields of tensorclasses: entries of the collection that an instance holds.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFrozenSet, PySet, PyString, PyTuple, PyType};

use crate::collection;
use crate::ffi;
use crate::imports::{Imports, imports};
use crate::set::{self, Inplace};
use crate::update;

/// The value of a field; None where it is not set.
#[pyfunction]
pub(crate) fn get_field<'py>(
    name: &Bound<'py, PyString>,
    tc: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = tc.py();
    let imports = imports(py)?;
    let inner = ffi::plain_attribute(tc, imports.names.entries.bind(py))?;
    let value = if collection::is_dense(imports, &inner)? {
        match collection::entries(imports, &inner)?.get_item(name)? {
            Some(value) => value,
            None => return Ok(py.None().into_bound(py)),
        }
    } else {
        tc.call_method1(imports.names.method_read_field.bind(py), (name,))?
    };
    if value.is_none() || ffi::is_subtype(&value, &imports.tensor) {
        return Ok(value);
    }
    tc.call_method1(imports.names.method_value_of_entry.bind(py), (value,))
}

/// Returns whether a field of `tc` takes a tensor as it is.
pub(crate) fn is_plain_field(
    imports: &Imports,
    tc: &Bound<'_, PyAny>,
    name: &Bound<'_, PyAny>,
) -> PyResult<bool> {
    let plain = ffi::plain_attribute(tc, imports.names.plain_fields.bind(tc.py()))?;
    plain.cast::<PyFrozenSet>()?.contains(name)
}

/// Set an attribute: a field is stored as an entry, or removed where it is None.
#[pyfunction]
pub(crate) fn set_field<'py>(
    tc: &Bound<'py, PyAny>,
    name: &Bound<'py, PyAny>,
    value: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let py = tc.py();
    let imports = imports(py)?;
    // Before a class's own `__init__` has called the inherited one there is no collection.
    if ffi::is_subtype(value, &imports.tensor)
        && is_plain_field(imports, tc, name)?
        && let Ok(inner) = ffi::plain_attribute(tc, imports.names.entries.bind(py))
    {
        let is_locked = inner.getattr(imports.names.property_is_locked.bind(py))?;
        if !is_locked.is_truthy()? {
            return store(&inner, name, value);
        }
    }
    tc.call_method1(imports.names.method_set_attribute.bind(py), (name, value))?;
    Ok(())
}

fn store<'py>(
    inner: &Bound<'py, PyAny>,
    name: &Bound<'py, PyAny>,
    value: &Bound<'py, PyAny>,
) -> PyResult<()> {
    set::set_entry(inner, name, value, Inplace::Replace, None, false, false)
}

/// A tensorclass around the collection `inner`, without a call of `__init__`.
///
/// # Errors
/// `ValueError` where `inner` is dense and has an entry that is no field.
#[pyfunction]
#[pyo3(signature = (class, inner), text_signature = "(cls, inner)")]
fn wrap_fields<'py>(
    class: &Bound<'py, PyType>,
    inner: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = class.py();
    let imports = imports(py)?;
    let tc = match ffi::allocate(class)? {
        Some(tc) => tc,
        None => class.call_method1(imports.names.method_new.bind(py), (class,))?,
    };
    if collection::is_dense(imports, inner)? && !has_fields_alone(imports, &tc, inner)? {
        class.call_method1(imports.names.method_check_keys.bind(py), (inner,))?;
    }
    set_state(imports, &tc, inner)?;
    Ok(tc)
}

/// Returns whether each entry of a tensordict is known at a glance to be a field of `tc`.
fn has_fields_alone(
    imports: &Imports,
    tc: &Bound<'_, PyAny>,
    inner: &Bound<'_, PyAny>,
) -> PyResult<bool> {
    let fields = ffi::plain_attribute(tc, imports.names.expected_keys.bind(tc.py()))?;
    let fields = fields.cast::<PySet>()?;
    for (name, _) in ffi::dict_pairs(&collection::entries(imports, inner)?) {
        if !(name.is_exact_instance_of::<PyString>() && fields.contains(&name)?) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn set_state<'py>(
    imports: &Imports,
    tc: &Bound<'py, PyAny>,
    inner: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let py = tc.py();
    let names = &imports.names;
    ffi::set_plain_attribute(tc, names.entries.bind(py), inner)?;
    let non_tensors = PyDict::new(py);
    ffi::set_plain_attribute(tc, names.non_tensors.bind(py), non_tensors.as_any())?;
    let yes = PyBool::new(py, true);
    ffi::set_plain_attribute(tc, names.is_initialized.bind(py), &yes)
}

/// Set up a new tensorclass around a collection of its own with the fields given.
#[pyfunction]
fn fill_fields<'py>(
    tc: &Bound<'py, PyAny>,
    values: &Bound<'py, PyDict>,
    batch_size: &Bound<'py, PyAny>,
    device: &Bound<'py, PyAny>,
    names: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let py = tc.py();
    let imports = imports(py)?;
    let plain_type = match imports.plain_type(py) {
        Some(class) => class.bind(py).clone(),
        None => imports
            .protocol
            .bind(py)
            .getattr("_plain_type")?
            .cast_into()?,
    };
    let inner = match ffi::allocate(&plain_type)? {
        Some(inner) => inner,
        None => plain_type.call_method1(imports.names.method_new.bind(py), (&plain_type,))?,
    };
    let fitting = plain_values(imports, tc, values)?;
    let no_size = PyTuple::empty(py).into_any();
    let size = if batch_size.is_none() {
        &no_size
    } else {
        batch_size
    };
    let no = PyBool::new(py, false).to_owned().into_any();
    let entries = match &fitting {
        Some(entries) => entries.clone(),
        None => PyDict::new(py),
    };
    update::init(&inner, entries.as_any(), size, device, names, &no)?;
    set_state(imports, tc, &inner)?;
    if fitting.is_some() {
        return Ok(());
    }
    for (name, value) in ffi::dict_pairs(values) {
        if ffi::is_subtype(&value, &imports.tensor) && is_plain_field(imports, tc, &name)? {
            store(&inner, &name, &value)?;
        } else if !value.is_none() {
            let method = imports.names.method_set_field_entry.bind(py);
            tc.call_method1(method, (name, value))?;
        }
    }
    Ok(())
}

/// The values that are set, where all of them are tensors that are stored as they are.
fn plain_values<'py>(
    imports: &Imports,
    tc: &Bound<'py, PyAny>,
    values: &Bound<'py, PyDict>,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    let py = tc.py();
    // Either all fields of a class take tensors as they are, or none does.
    let plain = ffi::plain_attribute(tc, imports.names.plain_fields.bind(py))?;
    if plain.cast::<PyFrozenSet>()?.is_empty() {
        return Ok(None);
    }
    let mut num_unset = 0;
    for (_, value) in values.iter() {
        if value.is_none() {
            num_unset += 1;
        } else if !value.get_type().is(&imports.tensor) {
            return Ok(None);
        }
    }
    if num_unset == 0 {
        return Ok(Some(values.clone()));
    }
    let set = PyDict::new(py);
    for (name, value) in values.iter() {
        if !value.is_none() {
            set.set_item(name, value)?;
        }
    }
    Ok(Some(set))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(get_field, module)?)?;
    module.add_function(wrap_pyfunction!(set_field, module)?)?;
    module.add_function(wrap_pyfunction!(wrap_fields, module)?)?;
    module.add_function(wrap_pyfunction!(fill_fields, module)?)?;
    Ok(())
}
