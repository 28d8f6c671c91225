//! Locking a tree of collections.

use std::collections::HashSet;

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyList, PyString, PyTuple};

use crate::collection::{self, Kind, kind};
use crate::ffi::{self, RecursionGuard};
use crate::imports::{Imports, from_twin, imports};
use crate::items::containers;

/// Locks `td` and all that it holds; each nested one knows all its parents weakly.
pub(crate) fn lock_dense<'py>(
    imports: &'static Imports,
    td: &Bound<'py, PyAny>,
    parents: &Bound<'py, PyTuple>,
) -> PyResult<()> {
    let py = td.py();
    let names = &imports.names;
    let _guard = RecursionGuard::enter(py)?;
    td.setattr(names.is_locked.bind(py), true)?;
    if !parents.is_empty() {
        let held = PyList::empty(py);
        for parent in td.getattr(names.lock_parents.bind(py))?.try_iter()? {
            let parent = parent?;
            if !parent.call0()?.is_none() {
                held.append(parent)?;
            }
        }
        for parent in parents.iter_borrowed() {
            if !held.iter().any(|known| known.is(&*parent)) {
                held.append(parent)?;
            }
        }
        td.setattr(names.lock_parents.bind(py), held)?;
    }
    let mut inner = None;
    for value in ffi::dict_values(&collection::entries(imports, td)?) {
        let kind = kind(imports, &value)?;
        if kind.is_leaf() {
            continue;
        }
        let inner = match &inner {
            Some(inner) => inner,
            None => inner.insert(with_parent(parents, td)?),
        };
        if kind == Kind::Dense {
            lock_dense(imports, &value, inner)?;
        } else {
            value.call_method1(names.method_lock_tree.bind(py), (inner,))?;
        }
    }
    Ok(())
}

/// `(*parents, weakref.ref(td))`.
fn with_parent<'py>(
    parents: &Bound<'py, PyTuple>,
    td: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyTuple>> {
    let mut all = ffi::Values::with_capacity(parents.len() + 1);
    all.extend(parents.iter_borrowed().map(Borrowed::to_owned));
    all.push(ffi::weak_reference(td)?);
    PyTuple::new(td.py(), all)
}

/// Locks the `result` of a walk over `td` where `lock` asks for it and `td` is locked.
pub(crate) fn lock_like<'py>(
    imports: &'static Imports,
    td: &Bound<'py, PyAny>,
    result: &Bound<'py, PyAny>,
    lock: bool,
) -> PyResult<()> {
    if lock && collection::is_locked(imports, td)? {
        lock_any(imports, result, &PyTuple::empty(td.py()))?;
    }
    Ok(())
}

fn lock_any<'py>(
    imports: &'static Imports,
    td: &Bound<'py, PyAny>,
    parents: &Bound<'py, PyTuple>,
) -> PyResult<()> {
    if collection::is_dense(imports, td)? {
        return lock_dense(imports, td, parents);
    }
    td.call_method1(imports.names.method_lock_tree.bind(td.py()), (parents,))?;
    Ok(())
}

/// Lock `td` and all that it holds; each nested one knows all its parents weakly.
#[pyfunction]
#[pyo3(signature = (td, parents = None), text_signature = "(td, parents=())")]
fn lock_tree<'py>(td: &Bound<'py, PyAny>, parents: Option<Bound<'py, PyTuple>>) -> PyResult<()> {
    let py = td.py();
    let parents = parents.unwrap_or_else(|| PyTuple::empty(py));
    lock_any(imports(py)?, td, &parents)
}

/// Unlock `td` and all that it holds, or nothing.
#[pyfunction]
fn unlock_tree(td: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = td.py();
    let imports = imports(py)?;
    let names = &imports.names;
    let members: Vec<_> = containers(td, None)?.iter().collect();
    let mut inside = HashSet::new();
    if members.len() > 1 {
        inside.extend(members.iter().map(Bound::as_ptr));
    }
    for member in &members {
        let parents = member.getattr(names.lock_parents.bind(py))?;
        if parents.is(PyTuple::empty(py)) {
            continue;
        }
        for parent in parents.try_iter()? {
            let parent = parent?.call0()?;
            if !parent.is_none()
                && !inside.contains(&parent.as_ptr())
                && parent
                    .getattr(names.property_is_locked.bind(py))?
                    .is_truthy()?
            {
                from_twin(py, "lock", "unlock_tree", (td,))?;
                return Ok(());
            }
        }
    }
    for member in &members {
        for name in [
            &names.is_locked,
            &names.lock_parents,
            &names.shared,
            &names.memmap,
        ] {
            forget(imports, member, name.bind(py))?;
        }
    }
    for member in &members {
        if !collection::is_dense(imports, member)? {
            member.call_method0(names.method_after_unlock.bind(py))?;
        }
    }
    Ok(())
}

/// Removes an attribute from the instance, which goes back to its class's value.
fn forget<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
) -> PyResult<()> {
    if collection::is_dense(imports, td)? {
        // Not through `__dict__`: asking for it moves the attributes of an instance out
        // of their fast places for good.
        let value = td.getattr(name)?;
        let is_default = value.is(&*PyBool::new(td.py(), false))
            || value.is(PyTuple::empty(td.py()))
            || value.is(&td.get_type().getattr(name)?);
        if !is_default {
            td.delattr(name)?;
        }
        return Ok(());
    }
    let state = td.getattr(imports.names.dict.bind(td.py()))?;
    if state.contains(name)? {
        state.del_item(name)?;
    }
    Ok(())
}

/// Note on views of mapped or shared memory that they are that; lock them.
#[pyfunction]
pub(crate) fn keep_storage<'py>(
    td: &Bound<'py, PyAny>,
    result: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let py = td.py();
    let imports = imports(py)?;
    let names = &imports.names;
    for member in containers(result, None)? {
        for flag in [names.memmap.bind(py), names.shared.bind(py)] {
            if td.getattr(flag)?.is_truthy()? {
                member.setattr(flag, true)?;
            }
        }
    }
    let is_locked = result.getattr(names.property_is_locked.bind(py))?;
    if !is_locked.is_truthy()? {
        lock_any(imports, result, &PyTuple::empty(py))?;
    }
    Ok(())
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(lock_tree, module)?)?;
    module.add_function(wrap_pyfunction!(unlock_tree, module)?)?;
    module.add_function(wrap_pyfunction!(keep_storage, module)?)?;
    Ok(())
}
