//! Writing values into the leaves that a collection has: copies, fills, whole trees.
//!
//! Leaves are collected first, so that one `torch._foreach_copy_` can take all of them.
//! The twin does all other cases, and reports every failure.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::align::alike_leaves;
use crate::collection::{self, Kind, kind};
use crate::ffi::{self, Getter, RecursionGuard};
use crate::imports::{Imports, from_twin, imports};
use crate::set::{self, Target, or_false};
use crate::shortcuts::tensors::have_one_shape;
use crate::tree::plain_leaves;

/// Entries and the values that are copied into them, side by side.
struct Copies<'py> {
    targets: Bound<'py, PyList>,
    values: Bound<'py, PyList>,
}

impl<'py> Copies<'py> {
    /// Adds the leaves of `source` and the entries of the dense `td` at the same keys;
    /// false where they are not all plain tensors of the same shapes.
    fn collect(
        &self,
        imports: &Imports,
        td: &Bound<'py, PyAny>,
        source: &Bound<'py, PyAny>,
    ) -> PyResult<bool> {
        let _guard = RecursionGuard::enter(td.py())?;
        let entries = match source.cast_exact::<PyDict>() {
            Ok(source) => source.clone(),
            Err(_) if kind(imports, source)? == Kind::Dense => {
                collection::entries(imports, source)?
            }
            Err(_) => return Ok(false),
        };
        let held = collection::entries(imports, td)?;
        if let Some(pairs) = ffi::paired_values(&held, &entries) {
            for (target, value) in pairs {
                if !self.add(imports, target, value)? {
                    return Ok(false);
                }
            }
            return Ok(true);
        }
        let pairs = ffi::dict_pairs(&entries);
        for (key, value) in pairs {
            let Some(target) = held.get_item(&key)? else {
                return Ok(false);
            };
            if !self.add(imports, target, value)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn add(
        &self,
        imports: &Imports,
        target: Bound<'py, PyAny>,
        value: Bound<'py, PyAny>,
    ) -> PyResult<bool> {
        if kind(imports, &target)? == Kind::Dense {
            return self.collect(imports, &target, &value);
        }
        if !are_alike(imports, &target, &value) {
            return Ok(false);
        }
        self.targets.append(target)?;
        self.values.append(value)?;
        Ok(true)
    }
}

/// The leaves of `td` and those of `source` in line with them, where both are plain
/// collections of the same structure and each pair is of one shape: the commonest case of all.
fn alike_lists<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    source: &Bound<'py, PyAny>,
) -> PyResult<Option<(Bound<'py, PyList>, Bound<'py, PyList>)>> {
    let Some(values) = alike_leaves(imports, td, source)? else {
        return Ok(None);
    };
    let Some(targets) = plain_leaves(imports, td)? else {
        return Ok(None);
    };
    let fit = targets.len() == values.len()
        && targets
            .iter()
            .zip(&values)
            .all(|(target, value)| are_alike(imports, &target, &value));
    Ok(fit.then_some((targets, values)))
}

/// Copy every leaf of `source` into the entry of `td` with the same path.
#[pyfunction]
#[pyo3(
    signature = (td, source, keys = None, non_blocking = None),
    text_signature = "(td, source, keys=None, non_blocking=False)"
)]
fn copy_into<'py>(
    td: &Bound<'py, PyAny>,
    source: &Bound<'py, PyAny>,
    keys: Option<Bound<'py, PyAny>>,
    non_blocking: Option<Bound<'py, PyAny>>,
) -> PyResult<()> {
    let py = td.py();
    let imports = imports(py)?;
    let non_blocking = or_false(py, non_blocking);
    let mut found = None;
    if keys.is_none() {
        found = alike_lists(imports, td, source)?;
        if found.is_none() && collection::is_dense(imports, td)? {
            let copies = Copies {
                targets: PyList::empty(py),
                values: PyList::empty(py),
            };
            if copies.collect(imports, td, source)? {
                found = Some((copies.targets, copies.values));
            }
        }
    }
    match found {
        Some((targets, _)) if targets.is_empty() => Ok(()),
        // In one call all copies would be of the graph of some, and have no derivative.
        Some((targets, values))
            if !have_gradients(imports, [&targets, &values])?
                && !reads_written(targets.iter().zip(values.iter())) =>
        {
            let copy = imports.foreach_copy.bind(py);
            ffi::call(copy, &[targets.into_any(), values.into_any(), non_blocking]).map(drop)
        }
        _ => from_twin(py, "copy", "copy_into", (td, source, keys, non_blocking)).map(drop),
    }
}

/// Returns whether a value is also the target of another value, whose write would change it.
pub(crate) fn reads_written<'py>(
    pairs: impl Iterator<Item = (Bound<'py, PyAny>, Bound<'py, PyAny>)>,
) -> bool {
    let pairs: Vec<_> = pairs
        .map(|(target, value)| (target.as_ptr(), value.as_ptr()))
        .collect();
    let mut targets: Vec<_> = pairs.iter().map(|(target, _)| *target).collect();
    targets.sort_unstable();
    pairs
        .iter()
        .any(|(target, value)| target != value && targets.binary_search(value).is_ok())
}

/// Returns whether what is done with tensors of the lists becomes part of a graph.
fn have_gradients(imports: &Imports, lists: [&Bound<'_, PyList>; 2]) -> PyResult<bool> {
    let py = lists[0].py();
    if !imports.is_grad_enabled.bind(py).call0()?.is_truthy()? {
        return Ok(false);
    }
    let name = imports.names.requires_grad.bind(py);
    let descriptor = imports.tensor.bind(py).getattr(name)?;
    let getter = Getter::of(descriptor);
    for value in lists.into_iter().flat_map(PyListMethods::iter) {
        let answer = match &getter {
            Some(getter) => getter.get(&value)?,
            None => value.getattr(name)?,
        };
        if answer.is_truthy()? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The tensor made of `value` that can be copied into the entry `present`.
#[pyfunction]
pub(crate) fn fit_inplace<'py>(
    td: &Bound<'py, PyAny>,
    key: &Bound<'py, PyAny>,
    value: &Bound<'py, PyAny>,
    present: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = td.py();
    if are_alike(imports(py)?, value, present) {
        return Ok(value.clone());
    }
    from_twin(py, "copy", "fit_inplace", (td, key, value, present))
}

/// Appends the leaves below the dense `td`; false where a collection in it is not dense.
fn dense_leaves<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    out: &Bound<'py, PyList>,
) -> PyResult<bool> {
    let _guard = RecursionGuard::enter(td.py())?;
    for entry in ffi::dict_values(&collection::entries(imports, td)?) {
        match kind(imports, &entry)? {
            Kind::Tensor | Kind::Special => out.append(entry)?,
            Kind::Dense if dense_leaves(imports, &entry, out)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// Fill every leaf with a number or a tensor of one element; None is zero.
#[pyfunction]
fn fill<'py>(td: &Bound<'py, PyAny>, value: &Bound<'py, PyAny>) -> PyResult<()> {
    let py = td.py();
    let imports = imports(py)?;
    let leaves = PyList::empty(py);
    if !collection::is_dense(imports, td)? || !dense_leaves(imports, td, &leaves)? {
        return from_twin(py, "copy", "fill", (td, value)).map(drop);
    }
    if !value.is_none() {
        if collection::is_rare_number(value) {
            from_twin(py, "common", "check_number", (&leaves, value, false))?;
        }
        for leaf in leaves {
            leaf.call_method1(imports.names.fill_.bind(py), (value,))?;
        }
    } else if !leaves.is_empty() {
        imports.foreach_zero.bind(py).call1((leaves,))?;
    }
    Ok(())
}

/// A value for an entry of a collection, and what is there now.
struct Write<'py> {
    td: Bound<'py, PyAny>,
    key: Bound<'py, PyAny>,
    value: Bound<'py, PyAny>,
    present: Option<Bound<'py, PyAny>>,
}

struct WriteTree<'py> {
    imports: &'static Imports,
    inplace: bool,
    is_checked: bool,
    enters_nested: bool,
    writes: Vec<Write<'py>>,
}

impl<'py> WriteTree<'py> {
    /// Adds what `tree` has for the dense `td`; false where the twin must look.
    fn plan(&mut self, td: &Bound<'py, PyAny>, tree: &Bound<'py, PyAny>) -> PyResult<bool> {
        let imports = self.imports;
        let py = td.py();
        let _guard = RecursionGuard::enter(py)?;
        if kind(imports, tree)? != Kind::Dense
            || (!self.inplace && collection::is_locked(imports, td)?)
        {
            return Ok(false);
        }
        let held = collection::entries(imports, td)?;
        let target = Target::new(imports, td, Kind::Dense)?;
        for (key, value) in ffi::dict_pairs(&collection::entries(imports, tree)?) {
            let present = held.get_item(&key)?;
            if let Some(present) = &present {
                if self.inplace && present.is(&value) {
                    continue;
                }
                if self.enters_nested
                    && kind(imports, &value)?.is_collection()
                    && kind(imports, present)?.is_collection()
                {
                    if kind(imports, present)? != Kind::Dense || !self.plan(present, &value)? {
                        return Ok(false);
                    }
                    continue;
                }
            }
            let value = if self.is_checked {
                if self.inplace
                    && let Some(present) = &present
                    && kind(imports, &value)?.is_leaf()
                    && !are_alike(imports, present, &value)
                {
                    // The twin knows what broadcasts.
                    return Ok(false);
                }
                value
            } else {
                let non_blocking = or_false(py, None);
                target.fit(&key, &value, &non_blocking)?.0
            };
            self.writes.push(Write {
                td: td.clone(),
                key,
                value,
                present,
            });
        }
        Ok(true)
    }

    fn carry_out(self) -> PyResult<()> {
        let imports = self.imports;
        for write in &self.writes {
            let (td, key, value) = (&write.td, &write.key, &write.value);
            let py = td.py();
            if !self.inplace && kind(imports, value)?.is_collection() {
                td.call_method1(imports.names.method_hang.bind(py), (key, value))?;
                continue;
            }
            if self.inplace
                && let Some(present) = &write.present
                && are_alike(imports, present, value)
            {
                let name = imports.names.copy_.bind(py);
                copied(td, present, present.call_method1(name, (value,)))?;
                continue;
            }
            set::set_validated(imports, td, key, value, self.inplace)?;
        }
        Ok(())
    }
}

/// Turns `error` into the one that is raised for a leaf of `td` that refuses to be written, if it
/// has elements.
pub(crate) fn copied(
    td: &Bound<'_, PyAny>,
    leaf: &Bound<'_, PyAny>,
    result: PyResult<Bound<'_, PyAny>>,
) -> PyResult<()> {
    let py = td.py();
    let Err(error) = result else { return Ok(()) };
    if !error.is_instance_of::<PyRuntimeError>(py) {
        return Err(error);
    }
    from_twin(py, "copy", "copy_failed", (td, leaf, error)).map(drop)
}

/// Returns whether both are plain tensors of one shape, so that one can be copied into the other.
pub(crate) fn are_alike(
    imports: &Imports,
    first: &Bound<'_, PyAny>,
    second: &Bound<'_, PyAny>,
) -> bool {
    first.get_type().is(&imports.tensor)
        && second.get_type().is(&imports.tensor)
        && have_one_shape(first, second)
}

/// Store every entry of `tree` in `td`: all of them, or where one does not fit none.
#[pyfunction]
#[pyo3(signature = (td, tree, inplace, checked = false, nested = true))]
fn write_tree<'py>(
    td: &Bound<'py, PyAny>,
    tree: &Bound<'py, PyAny>,
    inplace: bool,
    checked: bool,
    nested: bool,
) -> PyResult<()> {
    let py = td.py();
    let imports = imports(py)?;
    if collection::is_dense(imports, td)? {
        let mut write = WriteTree {
            imports,
            inplace,
            is_checked: checked,
            enters_nested: nested,
            writes: Vec::new(),
        };
        if write.plan(td, tree)? {
            return write.carry_out();
        }
    }
    from_twin(
        py,
        "copy",
        "write_tree",
        (td, tree, inplace, checked, nested),
    )
    .map(drop)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(copy_into, module)?)?;
    module.add_function(wrap_pyfunction!(fit_inplace, module)?)?;
    module.add_function(wrap_pyfunction!(fill, module)?)?;
    module.add_function(wrap_pyfunction!(write_tree, module)?)?;
    Ok(())
}
