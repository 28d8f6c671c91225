//! The entries of a collection as lists: keys, values or pairs, nested ones too; and every
//! collection of a tree.
//!
//! A level is owned before Python is called, which may change the collection under it:
//! what the level held at the start is what is listed.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use crate::collection::{self, kind};
use crate::ffi::{self, RecursionGuard};
use crate::flags::truth;
use crate::imports::{Imports, imports};
use crate::tree::plain_leaves;

#[derive(Clone, Copy)]
enum Listed {
    Keys,
    Values,
    Items,
}

struct Walk<'a, 'py> {
    imports: &'static Imports,
    listed: Listed,
    include_nested: bool,
    leaves_only: bool,
    is_leaf: Option<&'a Bound<'py, PyAny>>,
    out: &'a Bound<'py, PyList>,
}

impl<'py> Walk<'_, 'py> {
    fn walk(&self, td: &Bound<'py, PyAny>, prefix: &Bound<'py, PyTuple>) -> PyResult<()> {
        let py = td.py();
        let imports = self.imports;
        let _guard = RecursionGuard::enter(py)?;
        let pairs = match self.listed {
            Listed::Keys => sample_pairs(imports, td)?,
            Listed::Values | Listed::Items => entry_pairs(imports, td)?,
        };
        for (key, value) in pairs {
            if kind(imports, &value)?.is_leaf() {
                let listed = match self.is_leaf {
                    Some(_) if self.leaves_only => self.is_leaf(&value)?,
                    _ => true,
                };
                if listed {
                    self.list(&key, value, prefix)?;
                }
                continue;
            }
            let listed = !self.leaves_only || self.is_leaf(&value)?;
            let keys_only = matches!(self.listed, Listed::Keys);
            if listed && !keys_only {
                self.list(&key, value.clone(), prefix)?;
            }
            if self.include_nested {
                self.walk(&value, &appended(prefix, &key)?)?;
            }
            if listed && keys_only {
                self.list(&key, value, prefix)?;
            }
        }
        Ok(())
    }

    /// Asks the caller's `is_leaf` about the value's type; false without one.
    fn is_leaf(&self, value: &Bound<'py, PyAny>) -> PyResult<bool> {
        match self.is_leaf {
            Some(is_leaf) => is_leaf.call1((value.get_type(),))?.is_truthy(),
            None => Ok(false),
        }
    }

    fn list(
        &self,
        key: &Bound<'py, PyAny>,
        value: Bound<'py, PyAny>,
        prefix: &Bound<'py, PyTuple>,
    ) -> PyResult<()> {
        if matches!(self.listed, Listed::Values) {
            return self.out.append(value);
        }
        let name = if prefix.is_empty() {
            key.clone()
        } else {
            appended(prefix, key)?.into_any()
        };
        match self.listed {
            Listed::Keys => self.out.append(name),
            _ => self.out.append((name, value)),
        }
    }
}

/// The owned entries of any collection.
pub(crate) fn entry_pairs<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
) -> PyResult<ffi::Pairs<'py>> {
    pairs_by(imports, td, &imports.names.method_entries)
}

/// The owned entries of any collection, for a look at their types.
fn sample_pairs<'py>(imports: &Imports, td: &Bound<'py, PyAny>) -> PyResult<ffi::Pairs<'py>> {
    pairs_by(imports, td, &imports.names.method_sample_entries)
}

fn pairs_by<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    method: &Py<PyString>,
) -> PyResult<ffi::Pairs<'py>> {
    let py = td.py();
    if collection::is_dense(imports, td)? {
        return Ok(ffi::dict_pairs(&collection::entries(imports, td)?));
    }
    let _guard = RecursionGuard::enter(py)?;
    let entries = td.call_method0(method.bind(py))?;
    if let Ok(entries) = entries.cast_exact::<PyDict>() {
        return Ok(ffi::dict_pairs(entries));
    }
    entries
        .call_method0(imports.names.items.bind(py))?
        .try_iter()?
        .map(|item| item?.extract())
        .collect()
}

/// `(*prefix, key)`.
pub(crate) fn appended<'py>(
    prefix: &Bound<'py, PyTuple>,
    key: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyTuple>> {
    let mut parts = ffi::Values::with_capacity(prefix.len() + 1);
    parts.extend(prefix.iter_borrowed().map(Borrowed::to_owned));
    parts.push(key.clone());
    PyTuple::new(prefix.py(), parts)
}

/// The keys (`kind` 0), values (1) or pairs (2) of a collection, nested ones too.
#[pyfunction]
#[pyo3(
    signature = (td, kind, include_nested, leaves_only, is_leaf = None, prefix = None, out = None),
    text_signature = "(td, kind, include_nested, leaves_only, is_leaf=None, prefix=(), out=None)"
)]
fn walk<'py>(
    td: &Bound<'py, PyAny>,
    kind: i64,
    #[pyo3(from_py_with = truth)] include_nested: bool,
    #[pyo3(from_py_with = truth)] leaves_only: bool,
    is_leaf: Option<&Bound<'py, PyAny>>,
    prefix: Option<Bound<'py, PyTuple>>,
    out: Option<Bound<'py, PyList>>,
) -> PyResult<Bound<'py, PyList>> {
    let py = td.py();
    let imports = imports(py)?;
    if (kind, include_nested, leaves_only) == (1, true, true)
        && is_leaf.is_none()
        && out.is_none()
        && let Some(leaves) = plain_leaves(imports, td)?
    {
        return Ok(leaves);
    }
    let out = out.unwrap_or_else(|| PyList::empty(py));
    let walk = Walk {
        imports,
        listed: match kind {
            0 => Listed::Keys,
            1 => Listed::Values,
            _ => Listed::Items,
        },
        include_nested,
        leaves_only,
        is_leaf,
        out: &out,
    };
    walk.walk(td, &prefix.unwrap_or_else(|| PyTuple::empty(py)))?;
    Ok(out)
}

fn collect_containers<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    out: &Bound<'py, PyList>,
) -> PyResult<()> {
    let _guard = RecursionGuard::enter(td.py())?;
    if !collection::is_dense(imports, td)? {
        td.call_method1(imports.names.method_containers.bind(td.py()), (out,))?;
        return Ok(());
    }
    out.append(td)?;
    for value in ffi::dict_values(&collection::entries(imports, td)?) {
        if kind(imports, &value)?.is_collection() {
            collect_containers(imports, &value, out)?;
        }
    }
    Ok(())
}

/// `td` and every collection below it, parents first.
#[pyfunction]
#[pyo3(signature = (td, out = None))]
pub(crate) fn containers<'py>(
    td: &Bound<'py, PyAny>,
    out: Option<Bound<'py, PyList>>,
) -> PyResult<Bound<'py, PyList>> {
    let out = out.unwrap_or_else(|| PyList::empty(td.py()));
    collect_containers(imports(td.py())?, td, &out)?;
    Ok(out)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(walk, module)?)?;
    module.add_function(wrap_pyfunction!(containers, module)?)?;
    Ok(())
}
