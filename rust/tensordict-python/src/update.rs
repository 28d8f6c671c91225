//! Writing many entries at once: into a new collection, or merged into one that is there.
//!
//! A merge is staged first and carried out when all of it fits. What is not plain (tuple
//! keys, collections that are not dense, an `is_leaf`) and every failure is the twin's:
//! while an update is staged nothing has been changed.

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyList, PyString, PyTuple};

use crate::collection::is_plain;
use crate::collection::{self, Kind, kind};
use crate::copy::{copied, fit_inplace, reads_written};
use crate::ffi::{self, RecursionGuard};
use crate::imports::{Imports, from_twin, imports};
use crate::set::{self, Target, has_leading_dims, or_false};

// A new collection ---------------------------------------------------------------------

/// The batch size that an argument names; None where the twin must look.
fn plain_size<'py>(
    imports: &Imports,
    batch_size: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = batch_size.py();
    let size = imports.size.bind(py);
    if batch_size.get_type().is(size) {
        return Ok(Some(batch_size.clone()));
    }
    if batch_size.is_exact_instance_of::<PyList>() || batch_size.is_exact_instance_of::<PyTuple>() {
        // The twin refuses a value that is not a size.
        return Ok(size.call1((batch_size,)).ok());
    }
    if batch_size.is_exact_instance_of::<PyInt>() {
        return size.call1(((batch_size,),)).map(Some);
    }
    if batch_size.is_none() {
        return size.call0().map(Some);
    }
    Ok(None)
}

/// Set up the state of the new collection `td`, and store the entries of `source`.
#[pyfunction]
pub(crate) fn init<'py>(
    td: &Bound<'py, PyAny>,
    source: &Bound<'py, PyAny>,
    batch_size: &Bound<'py, PyAny>,
    device: &Bound<'py, PyAny>,
    names: &Bound<'py, PyAny>,
    non_blocking: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let py = td.py();
    let imports = imports(py)?;
    let twin = || {
        from_twin(
            py,
            "update",
            "init",
            (td, source, batch_size, device, names, non_blocking),
        )
        .map(drop)
    };
    let is_plain_source = match source.cast_exact::<PyDict>() {
        // Entries under nested keys come after the others: the twin sorts them.
        Ok(source) => ffi::all_entries(source, |key, _| !key.is_instance_of::<PyTuple>()),
        Err(_) => kind(imports, source)? == Kind::Dense,
    };
    if !is_plain_source || !collection::is_dense(imports, td)? {
        return twin();
    }
    let Some(size) = plain_size(imports, batch_size)? else {
        return twin();
    };
    let device = if device.is_none() || device.get_type().is(&imports.device) {
        device.clone()
    } else {
        imports.device.bind(py).call1((device,))?
    };
    let none = py.None().into_bound(py);
    if names.is_none()
        && is_plain(imports, td)
        && let Ok(source) = source.cast_exact::<PyDict>()
    {
        // Most entries are stored as they are, under the keys that they have: in a copy of
        // the source they stand already.
        let entries = ffi::copy_dict(source)?;
        let target = Target::with(imports, td, size.clone(), device.clone())?;
        if target.takes_all(&entries) {
            return collection::fill(imports, td, entries.as_any(), &size, &device, &none);
        }
    }
    let entries = PyDict::new(py);
    collection::fill(imports, td, entries.as_any(), &size, &device, &none)?;
    if !names.is_none() {
        td.setattr(imports.names.property_names.bind(py), names)?;
    }
    let entries = match source.cast_exact::<PyDict>() {
        Ok(source) => source.clone(),
        Err(_) => with_own_values(imports, collection::entries(imports, source)?)?,
    };
    set::store_all(imports, td, &entries, non_blocking)
}

/// The entries of a collection, with copies of those that hold no tensors: a new collection
/// shares tensors with its source, and no values.
fn with_own_values<'py>(
    imports: &Imports,
    entries: Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyDict>> {
    if has_only_tensors(imports, &entries) {
        return Ok(entries);
    }
    let own = ffi::copy_dict(&entries)?;
    ffi::replace_entries(&own, |_, value| {
        if kind(imports, value)? == Kind::Foreign && collection::is_non_tensor(imports, value)? {
            let twin = imports.names.source_twin.bind(value.py());
            return value.call_method0(twin).map(Some);
        }
        Ok(None)
    })?;
    Ok(own)
}

// Merging -----------------------------------------------------------------------------

/// Returns whether all values are plain tensors.
fn has_only_tensors(imports: &Imports, entries: &Bound<'_, PyDict>) -> bool {
    ffi::all_entries(entries, |_, value| {
        value.get_type_ptr() == imports.tensor.as_ptr().cast()
    })
}

/// A collection that an update will write into, and what it will get.
struct Branch<'py> {
    target: Bound<'py, PyAny>,
    staged: Vec<(Bound<'py, PyAny>, Staged<'py>)>,
    // Plain tensors only, which all fit: stored at once.
    merged: Option<Bound<'py, PyDict>>,
    // Those of the members, where it is a stack.
    members: Vec<Branch<'py>>,
}

impl<'py> Branch<'py> {
    fn new(target: &Bound<'py, PyAny>) -> Self {
        Self {
            target: target.clone(),
            staged: Vec::new(),
            merged: None,
            members: Vec::new(),
        }
    }
}

enum Staged<'py> {
    Value(Bound<'py, PyAny>, Kind),
    Branch(Branch<'py>),
}

struct Update<'a, 'py> {
    imports: &'static Imports,
    clone: bool,
    inplace: bool,
    ignore_lock: bool,
    non_blocking: &'a Bound<'py, PyAny>,
    // The entries to be written into, with the values for them.
    copies: Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>,
}

impl<'py> Update<'_, 'py> {
    /// Stages `source` for the members of the stack `td`; None where the twin must take over.
    fn stage_members(
        &mut self,
        td: &Bound<'py, PyAny>,
        source: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Branch<'py>>> {
        let (py, imports) = (td.py(), self.imports);
        let names = &imports.names;
        let _guard = RecursionGuard::enter(py)?;
        let is_locked = || td.getattr(names.property_is_locked.bind(py))?.is_truthy();
        if collection::is_non_tensor(imports, td)?
            || (!self.inplace && !self.ignore_lock && is_locked()?)
        {
            return Ok(None);
        }
        let parts = td.call_method1(names.method_update_parts.bind(py), (source,))?;
        let Ok(parts) = parts.cast_into_exact::<PyList>() else {
            return Ok(None);
        };
        let children = td.call_method0(names.method_children.bind(py))?;
        let children = children.cast_into_exact::<PyList>()?;
        if parts.len() != children.len() {
            return Ok(None);
        }
        let mut branch = Branch::new(td);
        for (child, part) in children.iter().zip(parts.iter()) {
            let staged = match kind(imports, &child)? {
                Kind::Dense => self.stage(&child, &part)?,
                Kind::Foreign => self.stage_members(&child, &part)?,
                Kind::Tensor | Kind::Special => None,
            };
            match staged {
                Some(staged) => branch.members.push(staged),
                None => return Ok(None),
            }
        }
        Ok(Some(branch))
    }

    /// Stages `source` for the dense `td`; None where the twin must take over.
    fn stage(
        &mut self,
        td: &Bound<'py, PyAny>,
        source: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Branch<'py>>> {
        let imports = self.imports;
        let _guard = RecursionGuard::enter(td.py())?;
        let entries = if let Ok(source) = source.cast::<PyDict>() {
            if !source.is_exact_instance_of::<PyDict>() {
                return Ok(None);
            }
            source.clone()
        } else {
            if kind(imports, source)? != Kind::Dense {
                return Ok(None);
            }
            let size = collection::batch_size(imports, td)?.into_any();
            let source_size = collection::batch_size(imports, source)?.into_any();
            if !has_leading_dims(&size, &source_size)? && !has_leading_dims(&source_size, &size)? {
                return Ok(None);
            }
            collection::entries(imports, source)?
        };
        let is_locked = !self.ignore_lock && collection::is_locked(imports, td)?;
        if is_locked && !self.inplace {
            return Ok(None);
        }
        let held = collection::entries(imports, td)?;
        let target = Target::new(imports, td, Kind::Dense)?;
        let mut branch = Branch::new(td);
        if !self.inplace && !self.clone && is_plain(imports, td) {
            let copy = ffi::copy_dict(&entries)?;
            if has_only_tensors(imports, &held) && target.takes_all(&copy) {
                branch.merged = Some(copy);
                return Ok(Some(branch));
            }
        }
        for (key, value) in ffi::dict_pairs(&entries) {
            if !key.is_instance_of::<PyString>() {
                return Ok(None);
            }
            let present = held.get_item(&key)?;
            let Some(staged) = self.stage_entry(&target, &key, &value, present, is_locked)? else {
                return Ok(None);
            };
            if let Some(staged) = staged {
                branch.staged.push((key, staged));
            }
        }
        Ok(Some(branch))
    }

    /// Stages one entry: `Some(None)` where it is only written into.
    #[expect(clippy::option_option, reason = "the outer one means: not here")]
    fn stage_entry(
        &mut self,
        target: &Target<'py>,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        present: Option<Bound<'py, PyAny>>,
        is_locked: bool,
    ) -> PyResult<Option<Option<Staged<'py>>>> {
        let imports = self.imports;
        let value_kind = kind(imports, value)?;
        let is_collection = value_kind.is_collection() || value.is_instance_of::<PyDict>();
        if let Some(present) = present {
            let present_kind = kind(imports, &present)?;
            if is_collection && present_kind.is_collection() {
                if present_kind != Kind::Dense || value_kind == Kind::Foreign {
                    return Ok(None);
                }
                let Some(inner) = self.stage(&present, value)? else {
                    return Ok(None);
                };
                return Ok(Some(Some(Staged::Branch(inner))));
            }
            if self.inplace {
                if is_collection || present_kind.is_collection() {
                    return Ok(None);
                }
                let value = fit_inplace(&target.td, key, value, &present)?;
                self.copies.push((present, value));
                return Ok(Some(None));
            }
        }
        if is_locked {
            return Ok(None);
        }
        let (mut stored, stored_kind) = target.fit(key, value, self.non_blocking)?;
        if self.clone {
            stored = stored.call_method0(imports.names.clone.bind(value.py()))?;
        }
        Ok(Some(Some(Staged::Value(stored, stored_kind))))
    }

    fn commit(&self, branch: Branch<'py>) -> PyResult<()> {
        let py = branch.target.py();
        let imports = self.imports;
        let td = &branch.target;
        for member in branch.members {
            self.commit(member)?;
        }
        if let Some(merged) = &branch.merged {
            return collection::entries(imports, td)?.update(merged.as_mapping());
        }
        let plain = is_plain(imports, td)
            .then(|| collection::entries(imports, td))
            .transpose()?;
        for (key, staged) in branch.staged {
            match staged {
                Staged::Branch(inner) => {
                    let value = inner.target.clone();
                    self.commit(inner)?;
                    let held = collection::entries(imports, td)?.get_item(&key)?;
                    if !held.is_some_and(|held| held.is(&value)) {
                        hang_in(imports, td, &key, value)?;
                    }
                }
                Staged::Value(value, Kind::Tensor | Kind::Special) => match &plain {
                    Some(entries) => entries.set_item(key, value)?,
                    None => {
                        td.call_method1(imports.names.method_set_entry.bind(py), (key, value))?;
                    }
                },
                Staged::Value(value, _) => hang_in(imports, td, &key, value)?,
            }
        }
        Ok(())
    }
}

fn hang_in<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    key: &Bound<'py, PyAny>,
    value: Bound<'py, PyAny>,
) -> PyResult<()> {
    if is_plain(imports, td) {
        let has_names = match kind(imports, &value)? {
            Kind::Dense => !collection::dim_names(imports, &value)?.is_none(),
            _ => value
                .call_method0(imports.names.method_has_names.bind(td.py()))?
                .is_truthy()?,
        };
        if !has_names || !collection::dim_names(imports, td)?.is_none() {
            return collection::entries(imports, td)?.set_item(key, value);
        }
    }
    from_twin(td.py(), "update", "hang", (td, key, value)).map(drop)
}

/// Merge the entries of a collection or mapping into `td`: all of them, or none.
#[pyfunction]
#[pyo3(
    signature = (
        td, source, clone = None, inplace = None, non_blocking = None, is_leaf = None,
        ignore_lock = None
    ),
    text_signature = "(td, source, clone=False, inplace=False, non_blocking=False, is_leaf=None, ignore_lock=False)"
)]
fn update<'py>(
    td: &Bound<'py, PyAny>,
    source: &Bound<'py, PyAny>,
    clone: Option<Bound<'py, PyAny>>,
    inplace: Option<Bound<'py, PyAny>>,
    non_blocking: Option<Bound<'py, PyAny>>,
    is_leaf: Option<Bound<'py, PyAny>>,
    ignore_lock: Option<Bound<'py, PyAny>>,
) -> PyResult<()> {
    let py = td.py();
    let imports = imports(py)?;
    let [clone, inplace, non_blocking, ignore_lock] =
        [clone, inplace, non_blocking, ignore_lock].map(|flag| or_false(py, flag));
    if is_leaf.is_none() {
        let mut update = Update {
            imports,
            clone: clone.is_truthy()?,
            inplace: inplace.is_truthy()?,
            ignore_lock: ignore_lock.is_truthy()?,
            non_blocking: &non_blocking,
            copies: Vec::new(),
        };
        let staged = if collection::is_dense(imports, td)? {
            update.stage(td, source)
        } else {
            update.stage_members(td, source)
        };
        let staged = match staged {
            Ok(staged) => staged,
            // The twin fails, too, and has the right order of the checks.
            Err(error) if error.is_instance_of::<PyException>(py) => None,
            Err(error) => return Err(error),
        };
        if let Some(branch) = staged
            && !reads_written(update.copies.iter().cloned())
        {
            if update.copies.is_empty() {
                return update.commit(branch);
            }
            let kwargs = PyDict::new(py);
            kwargs.set_item(imports.names.non_blocking.bind(py), &non_blocking)?;
            for (target, value) in &update.copies {
                let name = imports.names.copy_.bind(py);
                let result = target.call_method(name, (value,), Some(&kwargs));
                copied(td, target, result)?;
            }
            return update.commit(branch);
        }
    }
    let is_leaf = is_leaf.unwrap_or_else(|| py.None().into_bound(py));
    let args = (
        td,
        source,
        clone,
        inplace,
        non_blocking,
        is_leaf,
        ignore_lock,
    );
    from_twin(py, "update", "update", args).map(drop)
}

/// Store a collection that fits. A collection without names takes those of `value`.
#[pyfunction]
fn hang<'py>(
    td: &Bound<'py, PyAny>,
    key: &Bound<'py, PyAny>,
    value: &Bound<'py, PyAny>,
) -> PyResult<()> {
    hang_in(imports(td.py())?, td, key, value.clone())
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(init, module)?)?;
    module.add_function(wrap_pyfunction!(update, module)?)?;
    module.add_function(wrap_pyfunction!(hang, module)?)?;
    Ok(())
}
