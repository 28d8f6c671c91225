//! Functions of whole lists of leaves: one call for a collection, and the result in one
//! crossing.
//!
//! The specification of each function is its namesake in
//! `tensordict.primitives.foreach`. What an operand is decides whether it can be done
//! here: each function gives None before it has called anything where it cannot.

use pyo3::exceptions::PyNotImplementedError;
use pyo3::prelude::*;
use pyo3::types::{PyComplex, PyFloat, PyInt, PyList, PyTuple};
use smallvec::SmallVec;

use crate::align::{align, both_alike_leaves, rebuild_as};
use crate::collection::{self, kind};
use crate::ffi::{self, RecursionGuard};
use crate::imports::{Imports, from_twin, imports};
use crate::set::batch_size_of;
use crate::shortcuts::tensors::{self, Tensor, shape_of};
use crate::tree::{NewLeaves, leaves, rebuild_with};

/// Returns whether all leaves have one dtype, so that all or none can hold the results.
fn has_one_dtype(imports: &Imports, leaves: &Bound<'_, PyAny>) -> PyResult<bool> {
    let name = imports.names.dtype.bind(leaves.py());
    let mut first: Option<Bound<'_, PyAny>> = None;
    let leaves = leaves.cast::<PyList>()?;
    let numbers = leaves
        .iter()
        .map(|leaf| Tensor::of(&leaf)?.dtype())
        .collect::<Option<SmallVec<[i32; 16]>>>();
    if let Some(numbers) = numbers {
        return Ok(numbers.windows(2).all(|pair| pair[0] == pair[1]));
    }
    for leaf in leaves {
        let dtype = leaf.getattr(name)?;
        if !first.get_or_insert_with(|| dtype.clone()).is(&dtype) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns whether the leaves at each place of `lists` are known to have the same shape, so that
/// results fit. The only leaf need not be known: it is not written where it fails.
fn have_one_shape(lists: &[Bound<'_, PyAny>]) -> bool {
    let mut lists = lists.iter().filter_map(|list| list.cast::<PyList>().ok());
    let Some(leaves) = lists.next().filter(|leaves| leaves.len() > 1) else {
        return true;
    };
    lists.all(|parts| {
        leaves
            .iter()
            .zip(parts)
            .all(|(leaf, part)| tensors::have_one_shape(&leaf, &part))
    })
}

fn is_number(value: &Bound<'_, PyAny>) -> bool {
    value.is_instance_of::<PyFloat>()
        || value.is_instance_of::<PyInt>()
        || value.is_instance_of::<PyComplex>()
}

/// Returns whether two sizes are known to be equal: small numbers are one object each.
fn is_same_size(size: &Bound<'_, PyAny>, other: &Bound<'_, PyAny>) -> bool {
    let (Ok(first), Ok(second)) = (size.cast::<PyTuple>(), other.cast::<PyTuple>()) else {
        return false;
    };
    size.is(other)
        || (first.len() == second.len()
            && first
                .iter_borrowed()
                .zip(second.iter_borrowed())
                .all(|(length, other)| length.is(&*other)))
}

/// Returns whether `operand` is one tensor without dims for all leaves, which `torch.vmap` has not
/// made a tensor of many.
fn is_shared_tensor(imports: &Imports, operand: &Bound<'_, PyAny>) -> PyResult<bool> {
    if !operand.get_type().is(&imports.tensor)
        || !shape_of(operand).is_some_and(|dims| dims.is_empty())
    {
        return Ok(false);
    }
    let is_batched = imports.is_batched.bind(operand.py()).call1((operand,))?;
    Ok(!is_batched.is_truthy()?)
}

/// The leaves of `operand` in line with those of `td`, or the number that it is; None
/// where it is neither, or does not fit.
fn in_line<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    operand: &Bound<'py, PyAny>,
    is_complete: bool,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    if is_number(operand) {
        return Ok(Some(operand.clone()));
    }
    let operand_kind = kind(imports, operand)?;
    if operand_kind.is_leaf() {
        return Ok(is_shared_tensor(imports, operand)?.then(|| operand.clone()));
    }
    let size = batch_size_of(imports, td, kind(imports, td)?)?;
    let other_size = batch_size_of(imports, operand, operand_kind)?;
    if !is_same_size(&size, &other_size) && size.ne(other_size)? {
        return Ok(None);
    }
    Ok(align(td, operand, is_complete)?.map(Bound::into_any))
}

/// The leaves of `td` and those of `operand` in line with them, where both are plain
/// collections of one batch size and structure; None where they may be in line in another way.
fn both_in_line<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    operand: &Bound<'py, PyAny>,
) -> PyResult<Option<[Bound<'py, PyList>; 2]>> {
    if !collection::is_plain(imports, td) || !collection::is_plain(imports, operand) {
        return Ok(None);
    }
    let size = collection::batch_size(imports, td)?.into_any();
    let other_size = collection::batch_size(imports, operand)?.into_any();
    if !is_same_size(&size, &other_size) {
        return Ok(None);
    }
    both_alike_leaves(imports, td, operand)
}

/// The leaves of `td`, and the operands in line with them.
fn lists<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    operands: &Bound<'py, PyTuple>,
) -> PyResult<Option<ffi::Values<'py>>> {
    let mut lists = ffi::Values::with_capacity(operands.len() + 1);
    let mut operands = operands.as_slice();
    let together = match operands.first() {
        Some(first) => both_in_line(imports, td, first)?,
        None => None,
    };
    if let Some(both) = together {
        lists.extend(both.map(Bound::into_any));
        operands = &operands[1..];
    } else {
        lists.push(leaves(td, None)?.into_any());
    }
    for operand in operands {
        match in_line(imports, td, operand, false)? {
            Some(list) => lists.push(list),
            None => return Ok(None),
        }
    }
    Ok(Some(lists))
}

/// `op(*lists)`; leaf by leaf where torch has no such function of nested tensors.
fn called<'py>(
    py: Python<'py>,
    op: &Bound<'py, PyAny>,
    lists: &[Bound<'py, PyAny>],
) -> PyResult<Bound<'py, PyAny>> {
    ffi::call(op, lists).or_else(|error| {
        if !error.is_instance_of::<PyNotImplementedError>(py) {
            return Err(error);
        }
        let arguments = (op, PyList::new(py, lists)?);
        let made = from_twin(py, "special", "foreach", arguments)?;
        if made.is_none() { Err(error) } else { Ok(made) }
    })
}

/// A collection of the leaves that `op(leaves, *operands)` gives, with names and, where
/// there are leaves, with the lock; with `drop_empty` then without the collections that
/// hold nothing.
#[pyfunction]
#[pyo3(
    signature = (td, op, operands = None, drop_empty = false),
    text_signature = "(td, op, operands=(), drop_empty=False)"
)]
pub(crate) fn foreach<'py>(
    td: &Bound<'py, PyAny>,
    op: &Bound<'py, PyAny>,
    operands: Option<Bound<'py, PyTuple>>,
    drop_empty: bool,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let imports = imports(td.py())?;
    let operands = operands.unwrap_or_else(|| PyTuple::empty(td.py()));
    let Some(lists) = lists(imports, td, &operands)? else {
        return Ok(None);
    };
    // Without leaves there is no result that could be locked as the leaves' collection is.
    let has_leaves = !lists[0].is_empty()?;
    let values = if has_leaves {
        called(td.py(), op, &lists)?
    } else {
        lists[0].clone()
    };
    let drop_empty = drop_empty && has_leaves;
    let leaves = NewLeaves::new(&values)?;
    rebuild_with(imports, td, leaves, true, has_leaves, drop_empty).map(Some)
}

/// Returns whether `td` and all below it are dense: their leaves are those that are held.
fn is_dense_throughout(imports: &Imports, td: &Bound<'_, PyAny>) -> PyResult<bool> {
    if !collection::is_dense(imports, td)? {
        return Ok(false);
    }
    let _guard = RecursionGuard::enter(td.py())?;
    let entries = collection::entries(imports, td)?;
    let mut place = 0;
    while let Some(entry) = ffi::value_at(&entries, &mut place) {
        if !collection::is_plain_leaf(imports, &entry)
            && kind(imports, &entry)?.is_collection()
            && !is_dense_throughout(imports, &entry)?
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// `op(leaves, *operands)`, which writes into the leaves: whether it was called.
#[pyfunction]
#[pyo3(signature = (td, op, operands = None), text_signature = "(td, op, operands=())")]
fn foreach_inplace<'py>(
    td: &Bound<'py, PyAny>,
    op: &Bound<'py, PyAny>,
    operands: Option<Bound<'py, PyTuple>>,
) -> PyResult<bool> {
    let py = td.py();
    let imports = imports(py)?;
    let operands = operands.unwrap_or_else(|| PyTuple::empty(py));
    let Some(lists) = lists(imports, td, &operands)? else {
        return Ok(false);
    };
    if !lists[0].is_empty()? {
        // A zero is of every dtype.
        let fits_all = op.is(&imports.foreach_zero);
        if !fits_all && (!has_one_dtype(imports, &lists[0])? || !have_one_shape(&lists)) {
            let arguments = (op, &lists[0], PyList::new(py, &lists[1..])?);
            from_twin(py, "common", "check_results", arguments)?;
        }
        called(py, op, &lists)?;
    }
    if !is_dense_throughout(imports, td)? {
        let name = imports.names.method_store_leaves.bind(py);
        td.call_method1(name, (&lists[0],))?;
    }
    Ok(true)
}

/// A collection of the class `cls` of `op(leaf, operand)` for each leaf; unlocked.
#[pyfunction]
fn compare<'py>(
    td: &Bound<'py, PyAny>,
    op: &Bound<'py, PyAny>,
    other: &Bound<'py, PyAny>,
    cls: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = td.py();
    let imports = imports(py)?;
    let Some(operand) = in_line(imports, td, other, true)? else {
        return Ok(None);
    };
    let values = leaves(td, None)?;
    let results = PyList::empty(py);
    let operands = operand.cast_exact::<PyList>().ok();
    for (place, value) in values.iter().enumerate() {
        let operand = match operands {
            Some(operands) => operands.get_item(place)?,
            None => operand.clone(),
        };
        results.append(ffi::call(op, &[value, operand])?)?;
    }
    rebuild_as(td, &results, Some(cls.cast()?), None, false).map(Some)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(foreach, module)?)?;
    module.add_function(wrap_pyfunction!(foreach_inplace, module)?)?;
    module.add_function(wrap_pyfunction!(compare, module)?)?;
    Ok(())
}
