//! The ground of operations on several collections: leaves in the order of another collection,
//! results that drop what an operation does not keep.

use std::collections::HashSet;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyType};

use crate::collection::{self, Kind, State, is_non_tensor, kind};
use crate::ffi::NextPair;
use crate::ffi::{self, RecursionGuard};
use crate::imports::{Imports, imports};
use crate::items::{containers, entry_pairs};
use crate::lock;
use crate::set::batch_size_of;
use crate::tree::{NewLeaves, refill};

/// The entries of any collection, as it gives them.
fn entries_of<'py>(imports: &Imports, td: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    if collection::is_dense(imports, td)? {
        Ok(collection::entries(imports, td)?.into_any())
    } else {
        let _guard = RecursionGuard::enter(td.py())?;
        td.call_method0(imports.names.method_entries.bind(td.py()))
    }
}

fn collect_aligned<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    other: &Bound<'py, PyAny>,
    is_complete: bool,
    out: &Bound<'py, PyList>,
) -> PyResult<bool> {
    let py = td.py();
    let _guard = RecursionGuard::enter(py)?;
    if !collection::is_dense(imports, td)? {
        return td
            .call_method1(
                imports.names.method_align_leaves.bind(py),
                (other, out, is_complete),
            )?
            .is_truthy();
    }
    let mine = collection::entries(imports, td)?;
    let theirs = entries_of(imports, other)?;
    if let Ok(theirs) = theirs.cast_exact::<PyDict>()
        && let Some(pairs) = ffi::paired_values(&mine, theirs)
    {
        for (value, found) in pairs {
            if !add_aligned(imports, &value, found, is_complete, out)? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    let mine = ffi::dict_pairs(&mine);
    if theirs.len()? != mine.len() {
        return Ok(false);
    }
    for (key, value) in mine {
        let found = match theirs.cast_exact::<PyDict>() {
            Ok(theirs) => theirs.get_item(&key)?,
            Err(_) => Some(theirs.call_method1("get", (&key,))?),
        };
        let Some(found) = found.filter(|found| !found.is_none()) else {
            return Ok(false);
        };
        if !add_aligned(imports, &value, found, is_complete, out)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Adds `found`, or the leaves in it; false where it is not what `value` is.
fn add_aligned<'py>(
    imports: &Imports,
    value: &Bound<'py, PyAny>,
    found: Bound<'py, PyAny>,
    is_complete: bool,
    out: &Bound<'py, PyList>,
) -> PyResult<bool> {
    let value_kind = kind(imports, value)?;
    let is_leaf = value_kind.is_leaf();
    if is_leaf != (kind(imports, &found)?.is_leaf()) {
        return Ok(false);
    }
    if is_leaf {
        out.append(found)?;
        return Ok(true);
    }
    if is_complete && value_kind == Kind::Foreign && is_non_tensor(imports, value)? {
        return Ok(false);
    }
    collect_aligned(imports, value, &found, is_complete, out)
}

/// Calls `add` with the leaves of the plain tensordicts `td` and `other` side by side; false
/// where keys and kinds of values are not the same in the same order. `add` must not run Python
/// code.
fn each_alike<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    other: &Bound<'py, PyAny>,
    add: &mut impl FnMut(&Bound<'py, PyAny>, &Bound<'py, PyAny>),
) -> PyResult<bool> {
    let _guard = RecursionGuard::enter(td.py())?;
    let mine = collection::entries(imports, td)?;
    let theirs = collection::entries(imports, other)?;
    let mut walk = ffi::PairWalk::new(&mine, &theirs);
    loop {
        let next = walk.next(|value, found| {
            let are_leaves = collection::is_plain_leaf(imports, &value)
                && collection::is_plain_leaf(imports, &found);
            if are_leaves {
                add(&value, &found);
            }
            are_leaves
        });
        // Nested collections are owned now: reading their attributes can run Python code.
        match next {
            NextPair::Pair(value, found) => {
                let are_plain =
                    collection::is_plain(imports, &value) && collection::is_plain(imports, &found);
                if !are_plain || !each_alike(imports, &value, &found, add)? {
                    return Ok(false);
                }
            }
            NextPair::End => return Ok(true),
            NextPair::Differ => return Ok(false),
        }
    }
}

/// The leaves of `other` where both are plain tensordicts of the same structure, with the keys
/// in the same order: the commonest case of all.
pub(crate) fn alike_leaves<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    other: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyList>>> {
    if !collection::is_plain(imports, td) || !collection::is_plain(imports, other) {
        return Ok(None);
    }
    let mut out = ffi::Leaves::new();
    if !each_alike(imports, td, other, &mut |_, found| out.push(found.clone()))? {
        return Ok(None);
    }
    ffi::list_of(td.py(), &mut out).map(Some)
}

/// Does the work of [`alike_leaves`] with the leaves of `td` in front: one walk for the two lists.
pub(crate) fn both_alike_leaves<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    other: &Bound<'py, PyAny>,
) -> PyResult<Option<[Bound<'py, PyList>; 2]>> {
    if !collection::is_plain(imports, td) || !collection::is_plain(imports, other) {
        return Ok(None);
    }
    let (mut mine, mut theirs) = (ffi::Leaves::new(), ffi::Leaves::new());
    let are_alike = each_alike(imports, td, other, &mut |value, found| {
        mine.push(value.clone());
        theirs.push(found.clone());
    })?;
    if !are_alike {
        return Ok(None);
    }
    let py = td.py();
    Ok(Some([
        ffi::list_of(py, &mut mine)?,
        ffi::list_of(py, &mut theirs)?,
    ]))
}

/// The leaves of `other` in the order in which `leaves` gives those of `td`.
#[pyfunction]
#[pyo3(
    signature = (td, other, is_complete = false),
    text_signature = "(td, other, is_complete=False)"
)]
pub(crate) fn align<'py>(
    td: &Bound<'py, PyAny>,
    other: &Bound<'py, PyAny>,
    is_complete: bool,
) -> PyResult<Option<Bound<'py, PyList>>> {
    let imports = imports(td.py())?;
    if let Some(leaves) = alike_leaves(imports, td, other)? {
        return Ok(Some(leaves));
    }
    let out = PyList::empty(td.py());
    let aligned = collect_aligned(imports, td, other, is_complete, &out)?;
    Ok(aligned.then_some(out))
}

struct RebuildAs<'a, 'py> {
    imports: &'static Imports,
    class: Option<&'a Bound<'py, PyType>>,
    size: Option<&'a Bound<'py, PyAny>>,
}

impl<'py> RebuildAs<'_, 'py> {
    fn any(
        &self,
        td: &Bound<'py, PyAny>,
        values: &mut NewLeaves<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if collection::is_dense(self.imports, td)? {
            self.dense(td, values)
        } else {
            self.foreign(td, values)
        }
    }

    fn dense(
        &self,
        td: &Bound<'py, PyAny>,
        values: &mut NewLeaves<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = td.py();
        let imports = self.imports;
        let _guard = RecursionGuard::enter(py)?;
        let state = State::of(imports, td)?;
        let entries = ffi::copy_dict(&state.entries)?;
        refill(imports, &entries, values, |values, value| {
            match kind(imports, value)? {
                Kind::Tensor | Kind::Special => values.take(),
                Kind::Dense => self.dense(value, values),
                Kind::Foreign => self.foreign(value, values),
            }
        })?;
        let size = match self.size {
            Some(size) => size.clone(),
            None => state.batch_size.into_any(),
        };
        let values = [
            entries.into_any(),
            size,
            state.device,
            py.None().into_bound(py),
        ];
        match self.class {
            Some(class) => collection::new_of(imports, class, values),
            None => collection::new_like(imports, td, values),
        }
    }

    fn foreign(
        &self,
        td: &Bound<'py, PyAny>,
        values: &mut NewLeaves<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = td.py();
        let name = self.imports.names.method_rebuild_as.bind(py);
        td.call_method1(name, (values.rest(py)?, self.class, self.size))
    }
}

/// `rebuild_as` of one of several collections that share their new leaves.
pub(crate) fn rebuild_plain_from<'py>(
    imports: &'static Imports,
    td: &Bound<'py, PyAny>,
    leaves: &mut NewLeaves<'py>,
    class: Option<&Bound<'py, PyType>>,
) -> PyResult<Bound<'py, PyAny>> {
    let size = None;
    RebuildAs {
        imports,
        class,
        size,
    }
    .any(td, leaves)
}

/// Does the work of `rebuild` without names: for a comparison, or a reduction of whole leaves.
#[pyfunction]
#[pyo3(
    signature = (td, values, cls = None, size = None, lock = false),
    text_signature = "(td, values, cls=None, size=None, lock=False)"
)]
pub(crate) fn rebuild_as<'py>(
    td: &Bound<'py, PyAny>,
    values: &Bound<'py, PyAny>,
    cls: Option<&Bound<'py, PyType>>,
    size: Option<&Bound<'py, PyAny>>,
    lock: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let imports = imports(td.py())?;
    let walk = RebuildAs {
        imports,
        class: cls,
        size,
    };
    let result = walk.any(td, &mut NewLeaves::new(values)?)?;
    lock::lock_like(imports, td, &result, lock)?;
    Ok(result)
}

fn collect_batch_dims<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    out: &Bound<'py, PyList>,
) -> PyResult<()> {
    let py = td.py();
    let _guard = RecursionGuard::enter(py)?;
    if !collection::is_dense(imports, td)? {
        td.call_method1(imports.names.method_leaf_batch_dims.bind(py), (out,))?;
        return Ok(());
    }
    let num_dims = batch_size_of(imports, td, kind(imports, td)?)?.len()?;
    for (_, value) in entry_pairs(imports, td)? {
        if kind(imports, &value)?.is_leaf() {
            out.append(num_dims)?;
        } else {
            collect_batch_dims(imports, &value, out)?;
        }
    }
    Ok(())
}

/// For each leaf, in the order of `leaves`, how many batch dims its collection has.
#[pyfunction]
#[pyo3(signature = (td, out = None))]
fn leaf_batch_dims<'py>(
    td: &Bound<'py, PyAny>,
    out: Option<Bound<'py, PyList>>,
) -> PyResult<Bound<'py, PyList>> {
    let out = out.unwrap_or_else(|| PyList::empty(td.py()));
    collect_batch_dims(imports(td.py())?, td, &out)?;
    Ok(out)
}

/// Returns whether one of `others` is `td`, or a collection below it.
#[pyfunction]
fn holds_any<'py>(td: &Bound<'py, PyAny>, others: &Bound<'py, PyList>) -> PyResult<bool> {
    let held = containers(td, None)?;
    let held: HashSet<_> = held.iter().map(|member| member.as_ptr()).collect();
    Ok(others.iter().any(|other| held.contains(&other.as_ptr())))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(align, module)?)?;
    module.add_function(wrap_pyfunction!(rebuild_as, module)?)?;
    module.add_function(wrap_pyfunction!(leaf_batch_dims, module)?)?;
    module.add_function(wrap_pyfunction!(holds_any, module)?)?;
    Ok(())
}
