//! Lazy stacks: what is asked of all members at once, in one crossing.
//!
//! The specification of each function is its namesake in `tensordict.primitives.lazy`.

#![expect(
    clippy::needless_pass_by_value,
    reason = "functions of the module own what they make of Python's arguments"
)]

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple, PyType};
use tensordict_core::batch::Dims;
use tensordict_core::lazy::MergedShape;

use crate::align;
use crate::collection::{self, Kind, Names, kind};
use crate::ffi::{self, RecursionGuard};
use crate::imports::{Imports, imports};
use crate::leaf_call::Tail;
use crate::map_leaves::{self, Frame};
use crate::shortcuts::sizes;
use crate::tree::{self, NewLeaves};

/// The entries of all members at `path`; None where one has none there.
#[pyfunction]
fn member_values<'py>(
    members: &Bound<'py, PyList>,
    path: &Bound<'py, PyTuple>,
) -> PyResult<Option<Bound<'py, PyList>>> {
    let imports = imports(members.py())?;
    match column(imports, members, path)? {
        Some(values) => PyList::new(members.py(), values).map(Some),
        None => Ok(None),
    }
}

/// The leaves of all members at `path` in one tensor, stacked along `dim`.
///
/// None where that takes more than `torch.stack`: a member has none there, or a collection,
/// or one that is held whole, or they do not fit.
#[pyfunction]
fn stacked_values<'py>(
    members: &Bound<'py, PyList>,
    path: &Bound<'py, PyTuple>,
    dim: usize,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let imports = imports(members.py())?;
    match column(imports, members, path)? {
        Some(values) => stacked_leaves(imports, members.py(), values, dim),
        None => Ok(None),
    }
}

/// The entries of all members at `path`; None where one has none, or there are no members.
fn column<'py>(
    imports: &Imports,
    members: &Bound<'py, PyList>,
    path: &Bound<'py, PyTuple>,
) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
    // One level of all members after the other: short steps wait for memory together.
    let mut values: Vec<_> = members.iter().collect();
    for part in path.iter_borrowed() {
        for value in &mut values {
            match entry(imports, value, &part)? {
                Some(next) => *value = next,
                None => return Ok(None),
            }
        }
    }
    Ok((!values.is_empty()).then_some(values))
}

/// `torch.stack` of leaves; None where one is none, or is special, or they do not fit.
fn stacked_leaves<'py>(
    imports: &Imports,
    py: Python<'py>,
    values: Vec<Bound<'py, PyAny>>,
    dim: usize,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    for value in &values {
        if kind(imports, value)? != Kind::Tensor {
            return Ok(None);
        }
    }
    let values = PyList::new(py, values)?.into_any();
    let dim = dim.into_pyobject(py)?.into_any();
    match ffi::call(imports.stack.bind(py), &[values, dim]) {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_instance_of::<PyRuntimeError>(py) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The entry of one member at a direct key; None where it has none.
fn entry<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    key: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = td.py();
    Ok(match kind(imports, td)? {
        Kind::Tensor | Kind::Special => None,
        Kind::Dense => collection::entries(imports, td)?.get_item(key)?,
        Kind::Foreign => {
            let _guard = RecursionGuard::enter(py)?;
            let missing = imports.no_default.bind(py);
            let name = imports.names.method_get_entry.bind(py);
            Some(td.call_method1(name, (key, missing))?).filter(|value| !value.is(missing))
        }
    })
}

/// A dictionary with the direct keys of a member, whose values say nothing.
fn sampled<'py>(imports: &Imports, td: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    if collection::is_dense(imports, td)? {
        return collection::entries(imports, td);
    }
    let _guard = RecursionGuard::enter(td.py())?;
    let entries = td.call_method0(imports.names.method_held_keys.bind(td.py()))?;
    Ok(entries.cast_into::<PyDict>()?)
}

/// The direct keys that all members have, in the order of the first.
#[pyfunction]
fn common_keys<'py>(members: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyList>> {
    let py = members.py();
    let imports = imports(py)?;
    let Ok(first) = members.get_item(0) else {
        return Ok(PyList::empty(py));
    };
    let mut keys: Vec<_> = sampled(imports, &first)?.keys().iter().collect();
    for member in members.iter().skip(1) {
        let entries = sampled(imports, &member)?;
        let mut kept = Vec::with_capacity(keys.len());
        for key in keys {
            if entries.contains(&key)? {
                kept.push(key);
            }
        }
        keys = kept;
    }
    PyList::new(py, keys)
}

/// A tensordict of the entries that all members have, stacked along `dim`.
///
/// None where that takes more than stacking tensors: members that are not dense or have
/// names, entries that differ in kind or shape. Then nothing has been made.
#[pyfunction]
fn stacked_members<'py>(
    members: &Bound<'py, PyList>,
    dim: usize,
    cls: &Bound<'py, PyType>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let imports = imports(members.py())?;
    stacked(imports, &members.iter().collect::<Vec<_>>(), dim, cls)
}

fn stacked<'py>(
    imports: &'static Imports,
    members: &[Bound<'py, PyAny>],
    dim: usize,
    cls: &Bound<'py, PyType>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = cls.py();
    let _guard = RecursionGuard::enter(py)?;
    let Some(first) = members.first() else {
        return Ok(None);
    };
    let mut size: Option<(MergedShape, Bound<'py, PyTuple>)> = None;
    let mut all_entries = Vec::with_capacity(members.len());
    for member in members {
        if kind(imports, member)? != Kind::Dense {
            return Ok(None);
        }
        all_entries.push(collection::entries(imports, member)?);
        if !collection::dim_names(imports, member)?.is_none() {
            return Ok(None);
        }
        let own = collection::batch_size(imports, member)?;
        if let Some((shape, last)) = &mut size
            && are_alike(last, &own)
        {
            shape.repeat();
            continue;
        }
        match &mut size {
            None => size = Some((MergedShape::of(&dims_of(&own)?), own)),
            Some((shape, last)) => {
                if !shape.add(&dims_of(&own)?) {
                    return Ok(None);
                }
                *last = own;
            }
        }
    }
    let Some(dims) = size.and_then(|(shape, _)| shape.stacked(dim)) else {
        return Ok(None);
    };
    // All values are taken before torch is called, which may run Python.
    let mut groups = Vec::new();
    'keys: for key in all_entries[0].keys() {
        let mut group = Vec::with_capacity(members.len());
        for entries in &all_entries {
            match entries.get_item(&key)? {
                Some(value) => group.push(value),
                None => continue 'keys,
            }
        }
        groups.push((key, group));
    }
    drop(all_entries);
    let entries = PyDict::new(py);
    for (key, group) in groups {
        let value = if kind(imports, &group[0])?.is_leaf() {
            stacked_leaves(imports, py, group, dim)?
        } else {
            stacked(imports, &group, dim, cls)?
        };
        match value {
            Some(value) => entries.set_item(key, value)?,
            None => return Ok(None),
        }
    }
    let none = py.None().into_bound(py);
    let device = collection::device(imports, first)?;
    let size = new_size(imports, py, &dims)?;
    collection::new(imports, cls, entries.as_any(), &size, &device, &none).map(Some)
}

/// Returns whether two batch sizes are known to be equal without a call: small numbers are shared.
fn are_alike(size: &Bound<'_, PyTuple>, other: &Bound<'_, PyAny>) -> bool {
    size.is(other)
        || other.cast::<PyTuple>().is_ok_and(|other| {
            size.len() == other.len()
                && size
                    .iter_borrowed()
                    .zip(other.iter_borrowed())
                    .all(|(own, other)| own.is(&*other))
        })
}

/// The batch size of the stack of `members` along `dim`, -1 where theirs differ; None
/// where those have not the same number of dims.
#[pyfunction]
fn merged_size<'py>(
    members: &Bound<'py, PyList>,
    dim: usize,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = members.py();
    let imports = imports(py)?;
    let mut merged: Option<(MergedShape, Bound<'py, PyTuple>)> = None;
    for member in members {
        let size = if collection::is_dense(imports, &member)? {
            collection::batch_size(imports, &member)?
        } else {
            member
                .getattr(imports.names.property_batch_size.bind(py))?
                .cast_into::<PyTuple>()?
        };
        match &mut merged {
            None => merged = Some((MergedShape::of(&dims_of(&size)?), size)),
            Some((shape, last)) if are_alike(last, &size) => shape.repeat(),
            Some((shape, last)) => {
                if !shape.add(&dims_of(&size)?) {
                    return Ok(None);
                }
                *last = size;
            }
        }
    }
    let Some(dims) = merged.and_then(|(shape, _)| shape.stacked(dim)) else {
        return Ok(None);
    };
    new_size(imports, py, &dims).map(Some)
}

/// The dims of a `torch.Size`.
fn dims_of(size: &Bound<'_, PyTuple>) -> PyResult<Dims> {
    let mut dims = Dims::with_capacity(size.len());
    for dim in size.iter_borrowed() {
        dims.push(dim.extract()?);
    }
    Ok(dims)
}

fn new_size<'py>(imports: &Imports, py: Python<'py>, dims: &Dims) -> PyResult<Bound<'py, PyAny>> {
    let dims: Vec<_> = dims
        .iter()
        .map(|dim| dim.into_pyobject(py).map(Bound::into_any))
        .collect::<Result<_, _>>()?;
    sizes::new_size(imports.size.bind(py), &dims)
}

/// Every leaf of every member, one member after the other.
#[pyfunction]
fn member_leaves<'py>(members: &Bound<'py, PyList>, out: &Bound<'py, PyList>) -> PyResult<()> {
    for member in members {
        tree::leaves(&member, Some(out.clone()))?;
    }
    Ok(())
}

/// The members rebuilt with the leaves that `values` yields; with `cls` as comparisons are.
#[pyfunction]
fn rebuilt_members<'py>(
    members: &Bound<'py, PyList>,
    values: &Bound<'py, PyAny>,
    cls: Option<&Bound<'py, PyType>>,
) -> PyResult<Bound<'py, PyList>> {
    let py = members.py();
    let imports = imports(py)?;
    let mut leaves = NewLeaves::new(values)?;
    let out = PyList::empty(py);
    for member in members {
        let rebuilt = match cls {
            None => tree::rebuild_from(imports, &member, &mut leaves)?,
            Some(_) => align::rebuild_plain_from(imports, &member, &mut leaves, cls)?,
        };
        out.append(rebuilt)?;
    }
    Ok(out)
}

/// `map_leaves` of each member.
#[pyfunction]
#[pyo3(signature = (members, op, args, prefix, names, tail, k, lock=false))]
#[expect(clippy::too_many_arguments, reason = "those of the twin")]
fn map_members<'py>(
    members: &Bound<'py, PyList>,
    op: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    prefix: Option<&Bound<'py, PyAny>>,
    names: Names<'py>,
    tail: i64,
    k: i64,
    lock: bool,
) -> PyResult<Bound<'py, PyList>> {
    let frame = Frame {
        op,
        args,
        prefix,
        names: &names,
        tail: Tail::from_code(tail),
        lock,
    };
    let out = PyList::empty(members.py());
    for member in members {
        out.append(map_leaves::map_any(&member, &frame, k)?)?;
    }
    Ok(out)
}

/// `clone_structure` of each member.
#[pyfunction]
fn cloned_members<'py>(members: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyList>> {
    let out = PyList::empty(members.py());
    for member in members {
        out.append(tree::clone_structure(&member)?)?;
    }
    Ok(out)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(member_values, module)?)?;
    module.add_function(wrap_pyfunction!(stacked_values, module)?)?;
    module.add_function(wrap_pyfunction!(common_keys, module)?)?;
    module.add_function(wrap_pyfunction!(merged_size, module)?)?;
    module.add_function(wrap_pyfunction!(stacked_members, module)?)?;
    module.add_function(wrap_pyfunction!(member_leaves, module)?)?;
    module.add_function(wrap_pyfunction!(rebuilt_members, module)?)?;
    module.add_function(wrap_pyfunction!(map_members, module)?)?;
    module.add_function(wrap_pyfunction!(cloned_members, module)?)?;
    Ok(())
}
