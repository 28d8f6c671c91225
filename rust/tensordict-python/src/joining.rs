//! Stacking and concatenating containers: one torch call per entry.
//!
//! The plain case is native: dense containers with the same keys and batch sizes. In any
//! other one nothing has been made yet, and the twin takes over: it joins what can be
//! joined, or says why it cannot.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PySequence};

use crate::container::{self, Kind, kind};
use crate::ffi::{self, RecursionGuard};
use crate::imports::{Imports, from_twin, imports};

const TWINS: &str = "tensordict.interop.index_twins";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Join {
    Stack,
    Cat,
}

impl Join {
    fn twin(self) -> &'static str {
        match self {
            Self::Stack => "stack",
            Self::Cat => "cat",
        }
    }
}

/// One container of several, as far as they are alike.
struct Joined<'py> {
    tds: Vec<Bound<'py, PyAny>>,
    // Copies: torch may run Python, which may change the containers.
    entries: Vec<Bound<'py, PyDict>>,
}

impl<'py> Joined<'py> {
    /// None where the containers are not all dense, or have not the same keys.
    fn of(imports: &Imports, tds: Vec<Bound<'py, PyAny>>) -> PyResult<Option<Self>> {
        let mut entries = Vec::with_capacity(tds.len());
        for td in &tds {
            if kind(imports, td)? != Kind::Dense {
                return Ok(None);
            }
            entries.push(ffi::copy_dict(&container::entries(imports, td)?)?);
        }
        let num_entries = entries.first().map_or(0, PyDictMethods::len);
        let alike = entries.iter().all(|entries| entries.len() == num_entries);
        Ok((alike && !tds.is_empty()).then_some(Self { tds, entries }))
    }

    /// The values of all containers at `key`; None where one has no such entry.
    fn group(&self, key: &Bound<'py, PyAny>) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        self.entries
            .iter()
            .map(|entries| entries.get_item(key))
            .collect()
    }
}

/// The joined container, or None where the twin must take over.
fn join<'py>(
    imports: &'static Imports,
    how: Join,
    tds: Vec<Bound<'py, PyAny>>,
    dim: usize,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = tds[0].py();
    let _guard = RecursionGuard::enter(py)?;
    let Some(joined) = Joined::of(imports, tds)? else {
        return Ok(None);
    };
    let first = &joined.tds[0];
    let Some(size) = joined_size(imports, how, &joined.tds, dim)? else {
        return Ok(None);
    };
    let device = container::device(imports, first)?;
    for td in &joined.tds {
        // Names, and devices that differ, are for the twin.
        if !container::dim_names(imports, td)?.is_none()
            || (how == Join::Cat
                && !device.is_none()
                && container::device(imports, td)?.ne(&device)?)
        {
            return Ok(None);
        }
    }
    let function = match how {
        Join::Stack => imports.stack.bind(py),
        Join::Cat => imports.cat.bind(py),
    };
    let entries = ffi::copy_dict(&joined.entries[0])?;
    for (key, value) in ffi::dict_pairs(&entries) {
        let Some(group) = joined.group(&key)? else {
            return Ok(None);
        };
        let is_leaf = kind(imports, &value)? == Kind::Leaf;
        for item in &group {
            if (kind(imports, item)? == Kind::Leaf) != is_leaf
                || container::is_unbatched(imports, item)
            {
                return Ok(None);
            }
        }
        let item = if is_leaf {
            match function.call1((PyList::new(py, group)?, dim)) {
                Ok(item) => item,
                // The twin says which entry it was.
                Err(error) if error.is_instance_of::<PyRuntimeError>(py) => return Ok(None),
                Err(error) => return Err(error),
            }
        } else {
            match join(imports, how, group, dim)? {
                Some(item) => item,
                None => return Ok(None),
            }
        };
        entries.set_item(key, item)?;
    }
    let none = py.None().into_bound(py);
    container::new(imports, &first.get_type(), &entries, &size, &device, &none).map(Some)
}

/// The batch size of the result; None where those of `tds` do not allow one.
fn joined_size<'py>(
    imports: &Imports,
    how: Join,
    tds: &[Bound<'py, PyAny>],
    dim: usize,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = tds[0].py();
    let size = container::batch_size(imports, &tds[0])?;
    if dim > size.len() || (how == Join::Cat && dim == size.len()) {
        return Ok(None);
    }
    let mut dims: Vec<Bound<'py, PyAny>> = size.iter().collect();
    match how {
        Join::Stack => {
            for td in &tds[1..] {
                let other = container::batch_size(imports, td)?;
                if !other.is(&size) && other.ne(&size)? {
                    return Ok(None);
                }
            }
            dims.insert(dim, tds.len().into_pyobject(py)?.into_any());
        }
        Join::Cat => {
            for td in &tds[1..] {
                let other = container::batch_size(imports, td)?;
                if other.len() != size.len() {
                    return Ok(None);
                }
                for (at, length) in other.iter_borrowed().enumerate() {
                    if at == dim {
                        dims[at] = dims[at].add(length)?;
                    } else if length.ne(&dims[at])? {
                        return Ok(None);
                    }
                }
            }
        }
    }
    ffi::new_size(imports.size.bind(py), &dims).map(Some)
}

fn join_or_twin<'py>(how: Join, tds: &Bound<'py, PyAny>, dim: i64) -> PyResult<Bound<'py, PyAny>> {
    let py = tds.py();
    let imports = imports(py)?;
    if let (Ok(tds), Ok(dim)) = (tds.cast::<PySequence>(), usize::try_from(dim))
        && !tds.is_empty()?
    {
        let tds = tds.try_iter()?.collect::<PyResult<Vec<_>>>()?;
        if let Some(result) = join(imports, how, tds, dim)? {
            return Ok(result);
        }
    }
    from_twin(py, TWINS, how.twin(), (tds, dim))
}

/// A new container of the type of the first of `tds`, stacked along `dim`.
#[pyfunction]
fn stack<'py>(tds: &Bound<'py, PyAny>, dim: i64) -> PyResult<Bound<'py, PyAny>> {
    join_or_twin(Join::Stack, tds, dim)
}

/// A new container of the type of the first of `tds`, joined along `dim`.
#[pyfunction]
fn cat<'py>(tds: &Bound<'py, PyAny>, dim: i64) -> PyResult<Bound<'py, PyAny>> {
    join_or_twin(Join::Cat, tds, dim)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(stack, module)?)?;
    module.add_function(wrap_pyfunction!(cat, module)?)?;
    Ok(())
}
