//! Choosing and regrouping entries: no tensor is touched.
//!
//! The plain case is native: tensordicts all the way, results that are new. What
//! changes a collection in place, and every failure, is the twin's: up to there nothing
//! has been changed.

use std::hash::{Hash, Hasher};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use smallvec::SmallVec;
use tensordict_core::keys::{Branch, Node, Path, group_by_head, joined, unflatten_plan};

use crate::collection::{self, Kind, kind};
use crate::ffi::{self, RecursionGuard};
use crate::flags::truth;
use crate::imports::{Imports, from_twin, imports};
use crate::nested_key;
use crate::tree::copy_containers;

/// A string key, compared by its text.
#[derive(Clone)]
struct KeyPart<'py> {
    text: String,
    object: Bound<'py, PyAny>,
}

impl PartialEq for KeyPart<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for KeyPart<'_> {}

impl Hash for KeyPart<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

/// The paths of nested keys; None where one is none, or no text.
fn parse_paths<'py>(keys: &Bound<'py, PyTuple>) -> PyResult<Option<Vec<Path<KeyPart<'py>>>>> {
    let mut paths = Vec::with_capacity(keys.len());
    for key in keys.iter_borrowed() {
        let mut path = Path::new();
        for part in nested_key::path_of(&key)? {
            let Ok(text) = part.extract() else {
                return Ok(None);
            };
            path.push(KeyPart { text, object: part });
        }
        if path.is_empty() {
            return Ok(None);
        }
        paths.push(path);
    }
    Ok(Some(paths))
}

/// Returns whether each key is a string, so that only direct entries are named.
fn are_direct(keys: &Bound<'_, PyTuple>) -> bool {
    keys.iter_borrowed()
        .all(|key| key.is_exact_instance_of::<PyString>())
}

/// A collection with the size, device and names of `td` around `entries`.
fn like<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    entries: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    let values = [
        entries.clone().into_any(),
        collection::batch_size(imports, td)?.into_any(),
        collection::device(imports, td)?,
        collection::copied_names(&collection::dim_names(imports, td)?)?,
    ];
    collection::new_like(imports, td, values)
}

// Choosing ----------------------------------------------------------------------------

/// The entries of `td` at string `keys`; None where one is missing and must not be.
fn select_direct<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    keys: &Bound<'py, PyTuple>,
    strict: bool,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let held = collection::entries(imports, td)?;
    let entries = PyDict::new(td.py());
    for key in keys.iter_borrowed() {
        match held.get_item(key)? {
            Some(value) => entries.set_item(key, value)?,
            None if strict => return Ok(None),
            None => {}
        }
    }
    like(imports, td, &entries).map(Some)
}

fn select_nested<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    paths: &[&[KeyPart<'py>]],
    strict: bool,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let _guard = RecursionGuard::enter(td.py())?;
    let held = collection::entries(imports, td)?;
    let entries = PyDict::new(td.py());
    for (key, rests) in group_by_head(paths) {
        let Some(mut value) = held.get_item(&key.object)? else {
            if strict {
                return Ok(None);
            }
            continue;
        };
        let below: Vec<_> = rests.into_iter().filter(|rest| !rest.is_empty()).collect();
        if !below.is_empty() {
            if kind(imports, &value)? != Kind::Dense {
                return Ok(None);
            }
            match select_nested(imports, &value, &below, strict)? {
                Some(chosen) => value = chosen,
                None => return Ok(None),
            }
        }
        entries.set_item(&key.object, value)?;
    }
    like(imports, td, &entries).map(Some)
}

/// A collection of the entries at `keys`, in that order; `td` itself if inplace.
#[pyfunction]
fn select<'py>(
    td: &Bound<'py, PyAny>,
    keys: &Bound<'py, PyTuple>,
    #[pyo3(from_py_with = truth)] inplace: bool,
    #[pyo3(from_py_with = truth)] strict: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let py = td.py();
    let imports = imports(py)?;
    if !inplace && collection::is_dense(imports, td)? {
        let result = if are_direct(keys) {
            select_direct(imports, td, keys, strict)?
        } else if let Some(paths) = parse_paths(keys)? {
            let paths: Vec<_> = paths.iter().map(SmallVec::as_slice).collect();
            select_nested(imports, td, &paths, strict)?
        } else {
            None
        };
        if let Some(result) = result {
            return Ok(result);
        }
    }
    from_twin(py, "keys", "select", (td, keys, inplace, strict))
}

fn exclude_nested<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    paths: &[&[KeyPart<'py>]],
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let _guard = RecursionGuard::enter(td.py())?;
    let entries = ffi::copy_dict(&collection::entries(imports, td)?)?;
    for (key, rests) in group_by_head(paths) {
        let Some(value) = entries.get_item(&key.object)? else {
            continue;
        };
        if rests.iter().any(|rest| rest.is_empty()) {
            entries.del_item(&key.object)?;
            continue;
        }
        match kind(imports, &value)? {
            Kind::Tensor | Kind::Special => {}
            Kind::Foreign => return Ok(None),
            Kind::Dense => match exclude_nested(imports, &value, &rests)? {
                Some(rest) => entries.set_item(&key.object, rest)?,
                None => return Ok(None),
            },
        }
    }
    like(imports, td, &entries).map(Some)
}

/// A collection without the entries at `keys`; `td` itself if inplace.
#[pyfunction]
fn exclude<'py>(
    td: &Bound<'py, PyAny>,
    keys: &Bound<'py, PyTuple>,
    #[pyo3(from_py_with = truth)] inplace: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let py = td.py();
    let imports = imports(py)?;
    if !inplace && collection::is_dense(imports, td)? {
        if keys.is_empty() {
            return copy_containers(imports, td);
        }
        if are_direct(keys) {
            let entries = ffi::copy_dict(&collection::entries(imports, td)?)?;
            for key in keys.iter_borrowed() {
                if entries.contains(key)? {
                    entries.del_item(key)?;
                }
            }
            return like(imports, td, &entries);
        }
        if let Some(paths) = parse_paths(keys)? {
            let paths: Vec<_> = paths.iter().map(SmallVec::as_slice).collect();
            if let Some(result) = exclude_nested(imports, td, &paths)? {
                return Ok(result);
            }
        }
    }
    from_twin(py, "keys", "exclude", (td, keys, inplace))
}

// Regrouping --------------------------------------------------------------------------

/// The leaves of a tree under flat names.
struct Flat<'a, 'py> {
    imports: &'static Imports,
    separator: &'a str,
    entries: Bound<'py, PyDict>,
    num_leaves: usize,
}

impl<'py> Flat<'_, 'py> {
    /// Adds the leaves below `td`; false where the twin must look.
    fn collect(&mut self, td: &Bound<'py, PyAny>, prefix: Option<&str>) -> PyResult<bool> {
        let _guard = RecursionGuard::enter(td.py())?;
        for (key, value) in ffi::dict_pairs(&collection::entries(self.imports, td)?) {
            let value_kind = kind(self.imports, &value)?;
            if value_kind.is_leaf() && prefix.is_none() {
                self.num_leaves += 1;
                self.entries.set_item(key, value)?;
                continue;
            }
            let Ok(part) = key.extract::<&str>() else {
                return Ok(false);
            };
            let name = joined(prefix, self.separator, part);
            match value_kind {
                Kind::Tensor | Kind::Special => {
                    self.num_leaves += 1;
                    self.entries.set_item(&*name, value)?;
                }
                Kind::Dense => {
                    if !self.collect(&value, Some(&name))? {
                        return Ok(false);
                    }
                }
                Kind::Foreign => return Ok(false),
            }
        }
        Ok(true)
    }
}

/// All leaves in one collection, under their paths joined by `separator`.
#[pyfunction]
#[pyo3(signature = (td, separator, inplace, is_leaf = None))]
fn flatten_keys<'py>(
    td: &Bound<'py, PyAny>,
    separator: &Bound<'py, PyAny>,
    #[pyo3(from_py_with = truth)] inplace: bool,
    is_leaf: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = td.py();
    let imports = imports(py)?;
    if !inplace
        && is_leaf.is_none()
        && collection::is_dense(imports, td)?
        && let Ok(joint) = separator.extract::<&str>()
    {
        let mut flat = Flat {
            imports,
            separator: joint,
            entries: PyDict::new(py),
            num_leaves: 0,
        };
        // If two leaves have one name, the twin says which.
        if flat.collect(td, None)? && flat.entries.len() == flat.num_leaves {
            return like(imports, td, &flat.entries);
        }
    }
    from_twin(
        py,
        "keys",
        "flatten_keys",
        (td, separator, inplace, is_leaf),
    )
}

/// The collections that a plan describes, with the size, device and names of `td`.
fn build_branch<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    branch: &Branch<'_>,
    values: &[Bound<'py, PyAny>],
) -> PyResult<Bound<'py, PyDict>> {
    let entries = PyDict::new(td.py());
    for (key, node) in &branch.entries {
        match node {
            Node::Entry(position) => entries.set_item(key, &values[*position])?,
            Node::Branch(inner) => {
                let inner = build_branch(imports, td, inner, values)?;
                entries.set_item(key, like(imports, td, &inner)?)?;
            }
        }
    }
    Ok(entries)
}

/// The entries of `td` regrouped, or None where the twin must do it.
fn unflatten<'py>(
    imports: &'static Imports,
    td: &Bound<'py, PyAny>,
    separator: &str,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let entries = PyDict::new(td.py());
    let (mut names, mut values) = (Vec::new(), Vec::new());
    for (key, value) in ffi::dict_pairs(&collection::entries(imports, td)?) {
        let Ok(name) = key.extract::<String>() else {
            return Ok(None);
        };
        if name.contains(separator) {
            names.push(name);
            values.push(value);
            continue;
        }
        match kind(imports, &value)? {
            Kind::Tensor | Kind::Special => entries.set_item(key, value)?,
            Kind::Dense => entries.set_item(key, copy_containers(imports, &value)?)?,
            Kind::Foreign => return Ok(None),
        }
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let Ok(plan) = unflatten_plan(&names, separator) else {
        return Ok(None);
    };
    for (key, value) in ffi::dict_pairs(&build_branch(imports, td, &plan, &values)?) {
        if entries.contains(&key)? {
            // A collection that is there gets more entries.
            return Ok(None);
        }
        entries.set_item(key, value)?;
    }
    like(imports, td, &entries).map(Some)
}

/// The entries of `td` regrouped: a key with `separator` in it becomes a path.
#[pyfunction]
fn unflatten_keys<'py>(
    td: &Bound<'py, PyAny>,
    separator: &Bound<'py, PyAny>,
    #[pyo3(from_py_with = truth)] inplace: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let py = td.py();
    let imports = imports(py)?;
    // A subclass says what a nested collection of it is.
    if !inplace
        && collection::is_plain(imports, td)
        && let Ok(text) = separator.extract::<&str>()
        && !text.is_empty()
        && let Some(result) = unflatten(imports, td, text)?
    {
        return Ok(result);
    }
    from_twin(py, "keys", "unflatten_keys", (td, separator, inplace))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(select, module)?)?;
    module.add_function(wrap_pyfunction!(exclude, module)?)?;
    module.add_function(wrap_pyfunction!(flatten_keys, module)?)?;
    module.add_function(wrap_pyfunction!(unflatten_keys, module)?)?;
    Ok(())
}
