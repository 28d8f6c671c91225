//! Walks over a whole collection: collect its leaves, rebuild it, copy it.
//!
//! The specification of each function is its namesake in `tensordict.primitives`.
//! A walk owns the entries of a level before it calls Python, which may change the
//! collection under it: what the level held at the start is what is walked.

#![expect(
    clippy::needless_pass_by_value,
    reason = "functions of the module own what they make of Python's arguments"
)]

use pyo3::exceptions::PyStopIteration;
use pyo3::prelude::*;
use pyo3::types::iter::{BoundListIterator, BoundTupleIterator};
use pyo3::types::{PyDict, PyIterator, PyList, PyString, PyTuple, PyType};

use crate::collection::{self, Kind, Names, State, kind};
use crate::ffi::{self, Getter, Operation, RecursionGuard, RepeatedCall};
use crate::imports::{Imports, from_twin, imports};
use crate::items::entry_pairs;
use crate::lock;
use crate::shortcuts::tensors::Tensor;

// Collecting --------------------------------------------------------------------------

fn collect_leaves<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    out: &Bound<'py, PyList>,
) -> PyResult<()> {
    let py = td.py();
    let _guard = RecursionGuard::enter(py)?;
    for value in ffi::dict_values(&collection::entries(imports, td)?) {
        match kind(imports, &value)? {
            Kind::Tensor | Kind::Special => out.append(value)?,
            Kind::Dense => collect_leaves(imports, &value, out)?,
            Kind::Foreign => {
                value.call_method1(imports.names.method_leaves.bind(py), (out,))?;
            }
        }
    }
    Ok(())
}

/// Adds the leaves of the plain tensordict `td`; false where something in it is neither a
/// plain leaf nor a plain tensordict.
fn collect_plain<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    out: &mut ffi::Leaves<'py>,
) -> PyResult<bool> {
    let _guard = RecursionGuard::enter(td.py())?;
    let entries = collection::entries(imports, td)?;
    let mut place = 0;
    // Nested collections are owned before they are entered: reading their attributes can run Python.
    while let Some(value) = ffi::other_value(&entries, &mut place, |value| {
        let is_leaf = collection::is_plain_leaf(imports, value);
        if is_leaf {
            out.push(value.clone());
        }
        is_leaf
    }) {
        if !collection::is_plain(imports, &value) || !collect_plain(imports, &value, out)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The leaves of a plain tensordict that holds nothing but plain leaves and collections;
/// None where it does.
pub(crate) fn plain_leaves<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyList>>> {
    if !collection::is_plain(imports, td) {
        return Ok(None);
    }
    let mut out = ffi::Leaves::new();
    if !collect_plain(imports, td, &mut out)? {
        return Ok(None);
    }
    ffi::list_of(td.py(), &mut out).map(Some)
}

/// Every leaf, depth first, in key order.
#[pyfunction]
#[pyo3(signature = (td, out = None))]
pub(crate) fn leaves<'py>(
    td: &Bound<'py, PyAny>,
    out: Option<Bound<'py, PyList>>,
) -> PyResult<Bound<'py, PyList>> {
    let py = td.py();
    let imports = imports(py)?;
    if out.is_none()
        && let Some(leaves) = plain_leaves(imports, td)?
    {
        return Ok(leaves);
    }
    let out = out.unwrap_or_else(|| PyList::empty(py));
    if collection::is_dense(imports, td)? {
        collect_leaves(imports, td, &out)?;
    } else {
        td.call_method1(imports.names.method_leaves.bind(py), (&out,))?;
    }
    Ok(out)
}

/// The leaves of a result, taken one by one as a walk comes to their places.
pub(crate) enum NewLeaves<'py> {
    List(BoundListIterator<'py>),
    Tuple(BoundTupleIterator<'py>),
    Iterator(Bound<'py, PyIterator>),
}

impl<'py> NewLeaves<'py> {
    pub(crate) fn new(values: &Bound<'py, PyAny>) -> PyResult<Self> {
        Ok(if let Ok(tuple) = values.cast_exact::<PyTuple>() {
            Self::Tuple(tuple.iter())
        } else if let Ok(list) = values.cast_exact::<PyList>() {
            Self::List(list.iter())
        } else {
            Self::Iterator(values.try_iter()?)
        })
    }

    /// The next leaf.
    ///
    /// # Errors
    /// `StopIteration` where there is none.
    pub(crate) fn take(&mut self) -> PyResult<Bound<'py, PyAny>> {
        let leaf = match self {
            Self::List(leaves) => leaves.next(),
            Self::Tuple(leaves) => leaves.next(),
            Self::Iterator(leaves) => leaves.next().transpose()?,
        };
        leaf.ok_or_else(|| PyStopIteration::new_err(()))
    }

    /// Returns what is left, for a collection that takes its own part of it.
    pub(crate) fn rest(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        let rest = match self {
            Self::List(leaves) => PyList::new(py, leaves)?.try_iter()?,
            Self::Tuple(leaves) => PyList::new(py, leaves)?.try_iter()?,
            Self::Iterator(leaves) => return Ok(leaves.clone()),
        };
        *self = Self::Iterator(rest.clone());
        Ok(rest)
    }
}

/// Returns whether all `leaves` are on the CPU, or have no memory.
#[pyfunction]
fn on_host(leaves: &Bound<'_, PyList>) -> PyResult<bool> {
    let py = leaves.py();
    let imports = imports(py)?;
    for leaf in leaves.iter() {
        let is_near = (leaf.get_type().is(&imports.tensor)
            && Tensor::of(&leaf).and_then(|leaf| leaf.is_on_cpu()) == Some(true))
            || leaf.getattr(imports.names.is_cpu.bind(py))?.is_truthy()?
            || leaf.getattr(imports.names.is_meta.bind(py))?.is_truthy()?;
        if !is_near {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns whether the method `op` of some leaf gives what is `wanted`; `plain` is that of tensors.
fn finds<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    op: &Bound<'py, PyString>,
    plain: &mut RepeatedCall<'py>,
    wanted: bool,
) -> PyResult<bool> {
    let _guard = RecursionGuard::enter(td.py())?;
    if !collection::is_dense(imports, td)? {
        for leaf in leaves(td, None)? {
            if leaf.call_method0(op)?.is_truthy()? == wanted {
                return Ok(true);
            }
        }
        return Ok(false);
    }
    let entries = collection::entries(imports, td)?;
    let mut place = 0;
    while let Some(value) = ffi::value_at(&entries, &mut place) {
        let found = if value.get_type().is(&imports.tensor) {
            plain.call(&value)?.is_truthy()? == wanted
        } else if kind(imports, &value)?.is_leaf() {
            value.call_method0(op)?.is_truthy()? == wanted
        } else {
            finds(imports, &value, op, plain, wanted)?
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether all leaves, or any (`op`), are true, as their method `op` says.
#[pyfunction]
fn truth<'py>(td: &Bound<'py, PyAny>, op: &Bound<'py, PyString>) -> PyResult<bool> {
    let py = td.py();
    let imports = imports(py)?;
    let wanted = op.to_str()? == "any";
    let method = imports.tensor.bind(py).getattr(op)?;
    let mut plain = RepeatedCall::new(Operation::Function(method), &PyTuple::empty(py));
    Ok(finds(imports, td, op, &mut plain, wanted)? == wanted)
}

/// Returns whether there is no leaf, here or in what is nested.
#[pyfunction]
fn is_empty(td: &Bound<'_, PyAny>) -> PyResult<bool> {
    let imports = imports(td.py())?;
    if !collection::is_dense(imports, td)? {
        return entry_pairs(imports, td)?
            .iter()
            .try_fold(true, |is_empty, (_, value)| {
                Ok(is_empty && holds_nothing(imports, value)?)
            });
    }
    holds_nothing(imports, td)
}

/// Returns whether every collection, here and in what is nested, is a dense one with entries.
#[pyfunction]
fn is_filled(td: &Bound<'_, PyAny>) -> PyResult<bool> {
    let imports = imports(td.py())?;
    Ok(collection::is_dense(imports, td)? && holds_everywhere(imports, td)?)
}

/// Returns whether the tensordict `td` has entries, and all collections among them are dense
/// ones with entries, too.
fn holds_everywhere(imports: &Imports, td: &Bound<'_, PyAny>) -> PyResult<bool> {
    let _guard = RecursionGuard::enter(td.py())?;
    let entries = collection::entries(imports, td)?;
    let mut place = 0;
    while let Some(entry) = ffi::value_at(&entries, &mut place) {
        let is_filled = match kind(imports, &entry)? {
            Kind::Tensor | Kind::Special => true,
            Kind::Dense => holds_everywhere(imports, &entry)?,
            Kind::Foreign => false,
        };
        if !is_filled {
            return Ok(false);
        }
    }
    Ok(!entries.is_empty())
}

/// Returns whether an entry is a collection without a leaf.
fn holds_nothing(imports: &Imports, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    match kind(imports, value)? {
        Kind::Tensor | Kind::Special => return Ok(false),
        Kind::Foreign => {
            let is_empty = imports.names.is_empty.bind(value.py());
            return value.call_method0(is_empty)?.is_truthy();
        }
        Kind::Dense => {}
    }
    let _guard = RecursionGuard::enter(value.py())?;
    let entries = collection::entries(imports, value)?;
    let mut place = 0;
    while let Some(entry) = ffi::value_at(&entries, &mut place) {
        if !holds_nothing(imports, &entry)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Puts the next of `leaves` in the place of each leaf of `entries`, a dict that nobody else
/// knows yet, and what `rebuild` makes of it in the place of each other value.
#[inline]
pub(crate) fn refill<'py>(
    imports: &Imports,
    entries: &Bound<'py, PyDict>,
    leaves: &mut NewLeaves<'py>,
    mut rebuild: impl FnMut(&mut NewLeaves<'py>, &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<()> {
    let is_leaf = |value: &_| collection::is_plain_leaf(imports, value);
    ffi::replace_entries(entries, |_, value| {
        if is_leaf(value) {
            return leaves.take().map(Some);
        }
        rebuild(leaves, value).map(Some)
    })
}

struct Rebuild {
    imports: &'static Imports,
    keep_names: bool,
    /// True if nested collections without leaves and values are left out.
    drop_empty: bool,
}

impl Rebuild {
    fn any<'py>(
        &self,
        td: &Bound<'py, PyAny>,
        leaves: &mut NewLeaves<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if collection::is_dense(self.imports, td)? {
            self.dense(td, leaves)
        } else {
            self.foreign(td, leaves)
        }
    }

    fn dense<'py>(
        &self,
        td: &Bound<'py, PyAny>,
        leaves: &mut NewLeaves<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = td.py();
        let imports = self.imports;
        let _guard = RecursionGuard::enter(py)?;
        let state = State::of(imports, td)?;
        let entries = ffi::copy_dict(&state.entries)?;
        let mut may_be_empty = false;
        refill(imports, &entries, leaves, |leaves, value| {
            match kind(imports, value)? {
                Kind::Tensor | Kind::Special => leaves.take(),
                Kind::Dense => {
                    let part = self.dense(value, leaves)?;
                    may_be_empty |=
                        self.drop_empty && collection::entries(imports, &part)?.is_empty();
                    Ok(part)
                }
                Kind::Foreign => {
                    may_be_empty = true;
                    self.foreign(value, leaves)
                }
            }
        })?;
        if may_be_empty && self.drop_empty {
            drop_empty(imports, &entries)?;
        }
        let dim_names = if self.keep_names {
            collection::copied_names(&state.dim_names)?
        } else {
            py.None().into_bound(py)
        };
        let values = [
            entries.into_any(),
            state.batch_size.into_any(),
            state.device,
            dim_names,
        ];
        collection::new_like(imports, td, values)
    }

    fn foreign<'py>(
        &self,
        td: &Bound<'py, PyAny>,
        leaves: &mut NewLeaves<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = td.py();
        let names = &self.imports.names;
        let arguments = (leaves.rest(py)?, false);
        let result = td.call_method1(names.method_rebuild.bind(py), arguments)?;
        if self.drop_empty {
            result.call_method0(names.method_drop_empty.bind(py))?;
        }
        Ok(result)
    }
}

/// Takes the collections that hold nothing out of `entries`, which are of a new collection.
fn drop_empty(imports: &Imports, entries: &Bound<'_, PyDict>) -> PyResult<()> {
    for pair in entries.items() {
        let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair.extract()?;
        if holds_nothing(imports, &value)? {
            entries.del_item(key)?;
        }
    }
    Ok(())
}

/// A collection of the structure of `td` with the leaves that `values` yields.
#[pyfunction]
#[pyo3(
    signature = (td, values, names = Names::Keep, lock = false, drop_empty = false),
    text_signature = "(td, values, names=True, lock=False, drop_empty=False)"
)]
fn rebuild<'py>(
    td: &Bound<'py, PyAny>,
    values: &Bound<'py, PyAny>,
    names: Names<'py>,
    lock: bool,
    drop_empty: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let keep_names = matches!(names, Names::Keep);
    let leaves = NewLeaves::new(values)?;
    rebuild_with(imports(td.py())?, td, leaves, keep_names, lock, drop_empty)
}

/// [`rebuild`] for other primitives.
pub(crate) fn rebuild_with<'py>(
    imports: &'static Imports,
    td: &Bound<'py, PyAny>,
    mut leaves: NewLeaves<'py>,
    keep_names: bool,
    lock: bool,
    drop_empty: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let walk = Rebuild {
        imports,
        keep_names,
        drop_empty,
    };
    let result = walk.any(td, &mut leaves)?;
    lock::lock_like(imports, td, &result, lock)?;
    Ok(result)
}

/// A collection of the structure of `td` with the next of `leaves`, names kept.
pub(crate) fn rebuild_from<'py>(
    imports: &'static Imports,
    td: &Bound<'py, PyAny>,
    leaves: &mut NewLeaves<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let keep_names = true;
    Rebuild {
        imports,
        keep_names,
        drop_empty: false,
    }
    .any(td, leaves)
}

pub(crate) fn copy_containers<'py>(
    imports: &'static Imports,
    td: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = td.py();
    let _guard = RecursionGuard::enter(py)?;
    let state = State::of(imports, td)?;
    let entries = ffi::copy_dict(&state.entries)?;
    let is_leaf = |value: &_| collection::is_plain_leaf(imports, value);
    ffi::replace_others(&entries, is_leaf, |value| {
        Ok(match kind(imports, value)? {
            Kind::Tensor | Kind::Special => None,
            Kind::Dense => Some(copy_containers(imports, value)?),
            Kind::Foreign => {
                Some(value.call_method0(imports.names.method_clone_structure.bind(py))?)
            }
        })
    })?;
    let values = [
        entries.into_any(),
        state.batch_size.into_any(),
        state.device,
        collection::copied_names(&state.dim_names)?,
    ];
    collection::new_like(imports, td, values)
}

/// New collections all the way down that share the leaves; unlocked.
#[pyfunction]
pub(crate) fn clone_structure<'py>(td: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = td.py();
    let imports = imports(py)?;
    if collection::is_dense(imports, td)? {
        copy_containers(imports, td)
    } else {
        td.call_method0(imports.names.method_clone_structure.bind(py))
    }
}

/// A copy of the plain tensordict `td` with the data of its leaves; None where something in it
/// is neither a plain leaf nor a plain tensordict.
fn plain_data<'py>(
    imports: &'static Imports,
    getter: &Getter<'py>,
    td: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = td.py();
    if !collection::is_plain(imports, td) {
        return Ok(None);
    }
    let _guard = RecursionGuard::enter(py)?;
    let state = State::of(imports, td)?;
    let entries = ffi::copy_dict(&state.entries)?;
    let mut are_plain = true;
    ffi::replace_values(&entries, |value| {
        if !are_plain {
            return Ok(None);
        }
        let data = if collection::is_plain_leaf(imports, value) {
            Some(getter.get(value)?)
        } else {
            plain_data(imports, getter, value)?
        };
        are_plain = data.is_some();
        Ok(data)
    })?;
    if !are_plain {
        return Ok(None);
    }
    let values = [
        entries.into_any(),
        state.batch_size.into_any(),
        state.device,
        collection::copied_names(&state.dim_names)?,
    ];
    collection::new_like(imports, td, values).map(Some)
}

/// A collection of `leaf.data` for each leaf, with names and the lock.
#[pyfunction]
fn data<'py>(td: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let imports = imports(td.py())?;
    let py = td.py();
    let descriptor = imports
        .tensor
        .bind(py)
        .getattr(imports.names.data.bind(py))?;
    let result = match Getter::of(descriptor) {
        Some(getter) => plain_data(imports, &getter, td)?,
        None => None,
    };
    match result {
        Some(result) => {
            lock::lock_like(imports, td, &result, true)?;
            Ok(result)
        }
        None => from_twin(py, "tree", "data", (td,)),
    }
}

/// A tensordict of type `cls` around `entries`, unchecked, not copied.
#[pyfunction]
fn new<'py>(
    cls: &Bound<'py, PyType>,
    entries: &Bound<'py, PyAny>,
    batch_size: &Bound<'py, PyAny>,
    device: &Bound<'py, PyAny>,
    names: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    collection::new(imports(cls.py())?, cls, entries, batch_size, device, names)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(new, module)?)?;
    module.add_function(wrap_pyfunction!(leaves, module)?)?;
    module.add_function(wrap_pyfunction!(truth, module)?)?;
    module.add_function(wrap_pyfunction!(on_host, module)?)?;
    module.add_function(wrap_pyfunction!(is_empty, module)?)?;
    module.add_function(wrap_pyfunction!(is_filled, module)?)?;
    module.add_function(wrap_pyfunction!(rebuild, module)?)?;
    module.add_function(wrap_pyfunction!(clone_structure, module)?)?;
    module.add_function(wrap_pyfunction!(data, module)?)?;
    Ok(())
}
