//! Stacking and concatenating collections: one torch call per entry.
//!
//! The plain case is native: tensordicts with the same keys and batch sizes. In any
//! other one nothing has been made yet, and the twin takes over: it joins what can be
//! joined, or says why it cannot.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyList, PySequence, PyTuple};
use smallvec::SmallVec;

use crate::collection::{self, Kind, State, kind};
use crate::ffi::NextPair;
use crate::ffi::{self, Operation, RecursionGuard, RepeatedCall, Resolved};
use crate::imports::{Imports, from_twin, imports};
use crate::shortcuts::sizes;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Join {
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

/// Adds the values of `other` at the keys of `entries` to `column`, owned, since torch may run
/// Python, which may change the collection: whether the keys are the same.
fn add_column<'py>(
    entries: &Bound<'py, PyDict>,
    other: &Bound<'py, PyDict>,
    column: &mut Vec<Bound<'py, PyAny>>,
) -> PyResult<bool> {
    let start = column.len();
    let end = ffi::PairWalk::new(entries, other).next(|_, value| {
        column.push(value.to_owned());
        true
    });
    if matches!(end, NextPair::End) {
        return Ok(true);
    }
    if other.len() != entries.len() {
        return Ok(false);
    }
    column.truncate(start);
    for (key, _) in ffi::dict_pairs(entries) {
        match other.get_item(key)? {
            Some(value) => column.push(value),
            None => return Ok(false),
        }
    }
    Ok(true)
}

/// The collections that are joined, or their entries at one key.
type Group<'py> = SmallVec<[Bound<'py, PyAny>; 4]>;

/// The batch sizes of the collections that are joined.
type Sizes<'py> = SmallVec<[Bound<'py, PyTuple>; 4]>;

struct Joining<'py> {
    imports: &'static Imports,
    how: Join,
    dim: usize,
    // `function(list, dim)`, called on each list of leaves.
    call: RepeatedCall<'py>,
    // The batch sizes that they had last, and what these became.
    last: Option<(Sizes<'py>, Bound<'py, PyAny>)>,
    // The values of all but the first collection of each level that the walk is in, in the
    // order of the keys of the first.
    columns: Vec<Bound<'py, PyAny>>,
}

impl<'py> Joining<'py> {
    fn new(py: Python<'py>, imports: &'static Imports, how: Join, dim: usize) -> PyResult<Self> {
        let function = match how {
            Join::Stack => &imports.stack,
            Join::Cat => &imports.cat,
        };
        let operation = Operation::Function(function.bind(py).clone());
        Ok(Self {
            imports,
            how,
            dim,
            call: RepeatedCall::new(operation, &(dim,).into_pyobject(py)?),
            last: None,
            columns: Vec::new(),
        })
    }

    /// The joined collection, or None where the twin must take over.
    fn join(&mut self, tds: &[Bound<'py, PyAny>]) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = tds[0].py();
        let imports = self.imports;
        let _guard = RecursionGuard::enter(py)?;
        for td in tds {
            if kind(imports, td)? != Kind::Dense {
                return Ok(None);
            }
        }
        let Some(size) = self.joined_size(tds)? else {
            return Ok(None);
        };
        let first = State::of(imports, &tds[0])?;
        if !first.dim_names.is_none() {
            return Ok(None);
        }
        let entries = ffi::copy_dict(&first.entries)?;
        let start = self.columns.len();
        for td in &tds[1..] {
            let state = State::of(imports, td)?;
            // Names, and devices that differ, are for the twin.
            if !state.dim_names.is_none()
                || (self.how == Join::Cat
                    && !first.device.is_none()
                    && state.device.ne(&first.device)?)
                || !add_column(&entries, &state.entries, &mut self.columns)?
            {
                return Ok(None);
            }
        }
        let num_entries = entries.len();
        let mut group = Group::new();
        let mut at = start;
        let mut must_be_left = false;
        ffi::replace_values(&entries, |value| {
            if must_be_left {
                return Ok(None);
            }
            group.clear();
            group.push(value.clone());
            let others = (0..tds.len() - 1).map(|column| at + column * num_entries);
            group.extend(others.map(|place| self.columns[place].clone()));
            at += 1;
            let item = self.item(&group)?;
            must_be_left = item.is_none();
            Ok(item)
        })?;
        if must_be_left {
            return Ok(None);
        }
        self.columns.truncate(start);
        let none = py.None().into_bound(py);
        let values = [entries.into_any(), size, first.device, none];
        collection::new_like(imports, &tds[0], values).map(Some)
    }

    /// Joins the entries at one key; returns None if the twin must take over.
    #[inline]
    fn item(&mut self, group: &[Bound<'py, PyAny>]) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = group[0].py();
        let imports = self.imports;
        let is_leaf = kind(imports, &group[0])?.is_leaf();
        for item in group {
            let item_kind = kind(imports, item)?;
            if item_kind.is_leaf() != is_leaf || item_kind == Kind::Special {
                return Ok(None);
            }
        }
        if !is_leaf {
            return self.join(group);
        }
        match self.call.call(PyList::new(py, group)?.as_any()) {
            Ok(item) => Ok(Some(item)),
            // The twin says which entry it was.
            Err(error) if error.is_instance_of::<PyRuntimeError>(py) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The batch size of the result; None where those of the collections do not allow one.
    fn joined_size(&mut self, tds: &[Bound<'py, PyAny>]) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (py, dim) = (tds[0].py(), self.dim);
        let mut sizes = Sizes::new();
        for td in tds {
            sizes.push(collection::batch_size(self.imports, td)?);
        }
        // A nested collection mostly has the very sizes of the one around it.
        if let Some((old, new)) = &self.last
            && old.iter().zip(&sizes).all(|(old, size)| size.is(old))
        {
            return Ok(Some(new.clone()));
        }
        let size = &sizes[0];
        if dim > size.len() || (self.how == Join::Cat && dim == size.len()) {
            return Ok(None);
        }
        let mut dims: Vec<Bound<'py, PyAny>> = size.iter().collect();
        match self.how {
            Join::Stack => {
                for other in &sizes[1..] {
                    if !other.is(size) && other.ne(size)? {
                        return Ok(None);
                    }
                }
                dims.insert(dim, sizes.len().into_pyobject(py)?.into_any());
            }
            Join::Cat => {
                for other in &sizes[1..] {
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
        let joined = sizes::new_size(self.imports.size.bind(py), &dims)?;
        self.last = Some((sizes, joined.clone()));
        Ok(Some(joined))
    }
}

fn join_or_twin<'py>(how: Join, tds: &Bound<'py, PyAny>, dim: i64) -> PyResult<Bound<'py, PyAny>> {
    let py = tds.py();
    let imports = imports(py)?;
    if let (Ok(tds), Ok(dim)) = (tds.cast::<PySequence>(), usize::try_from(dim))
        && !tds.is_empty()?
    {
        let tds = tds.try_iter()?.collect::<PyResult<Group<'py>>>()?;
        if let Some(result) = Joining::new(py, imports, how, dim)?.join(&tds)? {
            return Ok(result);
        }
    }
    from_twin(py, "join", how.twin(), (tds, dim))
}

/// Does what the handlers of `torch.stack` and `torch.cat` do for the arguments `args`; returns
/// None if these are not plain tensordicts and a dim that they have.
pub(crate) fn join_plain<'py>(
    imports: &'static Imports,
    how: Join,
    args: &Bound<'py, PyTuple>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = args.py();
    let (tds, given) = match args.as_slice() {
        [tds] => (tds, 0),
        [tds, dim] if dim.is_exact_instance_of::<PyInt>() => match dim.extract::<i64>() {
            Ok(dim) => (tds, dim),
            Err(_) => return Ok(None),
        },
        _ => return Ok(None),
    };
    let tds: Group<'py> = if let Ok(list) = tds.cast_exact::<PyList>() {
        list.iter().collect()
    } else if let Ok(tuple) = tds.cast_exact::<PyTuple>() {
        tuple.iter().collect()
    } else {
        return Ok(None);
    };
    if tds.is_empty() || !tds.iter().all(|td| collection::is_plain(imports, td)) {
        return Ok(None);
    }
    let num_dims = collection::batch_size(imports, &tds[0])?.len();
    let num_places = num_dims + usize::from(how == Join::Stack);
    let from_front = if given < 0 {
        given + i64::try_from(num_places)?
    } else {
        given
    };
    let dim = match usize::try_from(from_front) {
        Ok(dim) if dim < num_places => dim,
        _ => return Ok(None),
    };
    if how == Join::Stack && is_lazy_by_default(py)? {
        return Ok(None);
    }
    Joining::new(py, imports, how, dim)?.join(&tds)
}

/// Returns whether `torch.stack` makes a lazy stack, as the process was told.
pub(crate) fn is_lazy_by_default(py: Python<'_>) -> PyResult<bool> {
    static OPTIONS: Resolved<Py<PyModule>> = Resolved::new();
    let options = OPTIONS.get_or_try_init(py, || {
        Ok::<_, PyErr>(py.import("tensordict.primitives.options")?.unbind())
    })?;
    let name = pyo3::intern!(py, "_lazy_legacy");
    options.bind(py).getattr(name)?.is_truthy()
}

/// A new collection of the type of the first of `tds`, stacked along `dim`.
#[pyfunction]
fn stack<'py>(tds: &Bound<'py, PyAny>, dim: i64) -> PyResult<Bound<'py, PyAny>> {
    join_or_twin(Join::Stack, tds, dim)
}

/// A new collection of the type of the first of `tds`, joined along `dim`.
#[pyfunction]
fn cat<'py>(tds: &Bound<'py, PyAny>, dim: i64) -> PyResult<Bound<'py, PyAny>> {
    join_or_twin(Join::Cat, tds, dim)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(stack, module)?)?;
    module.add_function(wrap_pyfunction!(cat, module)?)?;
    Ok(())
}
