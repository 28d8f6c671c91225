//! Stacking and concatenating containers: one torch call per entry.
//!
//! The plain case is native: dense containers with the same keys and batch sizes. In any
//! other one nothing has been made yet, and the twin takes over: it joins what can be
//! joined, or says why it cannot.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyInt, PyList, PySequence, PyTuple};
use smallvec::SmallVec;

use crate::container::{self, Kind, State, kind};
use crate::ffi::{self, Filling, RecursionGuard};
use crate::imports::{Imports, from_twin, imports};

const TWINS: &str = "tensordict.interop.index_twins";

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

/// The values of each container, in the order of the keys of the first.
type Columns<'py> = SmallVec<[ffi::Values<'py>; 2]>;

/// The states of the containers; None where they are not all dense.
fn states_of<'py>(
    imports: &Imports,
    tds: &[Bound<'py, PyAny>],
) -> PyResult<Option<SmallVec<[State<'py>; 4]>>> {
    let mut states = SmallVec::new();
    for td in tds {
        if kind(imports, td)? != Kind::Dense {
            return Ok(None);
        }
        states.push(State::of(imports, td)?);
    }
    Ok(Some(states))
}

/// The values of all but the first container at the keys of the first, owned, since torch may
/// run Python, which may change the containers; None where the keys are not the same.
fn columns<'py>(
    entries: &Bound<'py, PyDict>,
    others: &[State<'py>],
) -> PyResult<Option<Columns<'py>>> {
    let mut columns = Columns::new();
    for other in others {
        let mut column = ffi::Values::with_capacity(entries.len());
        if ffi::visit_pairs(entries, &other.entries, |_, value| {
            column.push(value.to_owned());
            true
        }) {
            columns.push(column);
            continue;
        }
        if other.entries.len() != entries.len() {
            return Ok(None);
        }
        column.clear();
        for (key, _) in ffi::dict_pairs(entries) {
            match other.entries.get_item(key)? {
                Some(value) => column.push(value),
                None => return Ok(None),
            }
        }
        columns.push(column);
    }
    Ok(Some(columns))
}

/// The batch sizes of the containers that are joined.
type Sizes<'py> = SmallVec<[Bound<'py, PyTuple>; 4]>;

struct Joining<'py> {
    imports: &'static Imports,
    how: Join,
    dim: usize,
    // The dim as torch is given it.
    place: Bound<'py, PyAny>,
    // The batch sizes that they had last, and what these became.
    last: Option<(Sizes<'py>, Bound<'py, PyAny>)>,
}

impl<'py> Joining<'py> {
    /// The joined container, or None where the twin must take over.
    fn join(&mut self, tds: &[Bound<'py, PyAny>]) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = self.place.py();
        let imports = self.imports;
        let _guard = RecursionGuard::enter(py)?;
        let Some(states) = states_of(imports, tds)? else {
            return Ok(None);
        };
        let Some(size) = self.joined_size(&states)? else {
            return Ok(None);
        };
        let first = &states[0];
        for state in &states {
            // Names, and devices that differ, are for the twin.
            if !state.dim_names.is_none()
                || (self.how == Join::Cat
                    && !first.device.is_none()
                    && state.device.ne(&first.device)?)
            {
                return Ok(None);
            }
        }
        let entries = ffi::copy_dict(&first.entries)?;
        let Some(columns) = columns(&entries, &states[1..])? else {
            return Ok(None);
        };
        let function = match self.how {
            Join::Stack => imports.stack.bind(py),
            Join::Cat => imports.cat.bind(py),
        };
        let mut filling = Filling::new(&entries);
        let mut group = ffi::Values::with_capacity(tds.len());
        for (at, (key, value)) in ffi::dict_pairs(&entries).into_iter().enumerate() {
            let is_leaf = kind(imports, &value)? == Kind::Leaf;
            group.clear();
            group.push(value);
            group.extend(columns.iter().map(|column| column[at].clone()));
            for item in &group {
                if (kind(imports, item)? == Kind::Leaf) != is_leaf
                    || (is_leaf && container::is_unbatched(imports, item))
                {
                    return Ok(None);
                }
            }
            let item = if is_leaf {
                let group = PyList::new(py, &group)?.into_any();
                match ffi::call(function, &[group, self.place.clone()]) {
                    Ok(item) => item,
                    // The twin says which entry it was.
                    Err(error) if error.is_instance_of::<PyRuntimeError>(py) => return Ok(None),
                    Err(error) => return Err(error),
                }
            } else {
                match self.join(&group)? {
                    Some(item) => item,
                    None => return Ok(None),
                }
            };
            filling.put(&key, item)?;
        }
        let none = py.None().into_bound(py);
        let class = tds[0].get_type();
        container::new(imports, &class, &entries, &size, &first.device, &none).map(Some)
    }

    /// The batch size of the result; None where those of the containers do not allow one.
    fn joined_size(&mut self, states: &[State<'py>]) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (py, dim) = (self.place.py(), self.dim);
        let size = &states[0].batch_size;
        // What is nested mostly has the very sizes of what it is in.
        if let Some((old, new)) = &self.last
            && old
                .iter()
                .zip(states)
                .all(|(old, state)| state.batch_size.is(old))
        {
            return Ok(Some(new.clone()));
        }
        if dim > size.len() || (self.how == Join::Cat && dim == size.len()) {
            return Ok(None);
        }
        let mut dims: Vec<Bound<'py, PyAny>> = size.iter().collect();
        match self.how {
            Join::Stack => {
                for state in &states[1..] {
                    if !state.batch_size.is(size) && state.batch_size.ne(size)? {
                        return Ok(None);
                    }
                }
                dims.insert(dim, states.len().into_pyobject(py)?.into_any());
            }
            Join::Cat => {
                for state in &states[1..] {
                    if state.batch_size.len() != size.len() {
                        return Ok(None);
                    }
                    for (at, length) in state.batch_size.iter_borrowed().enumerate() {
                        if at == dim {
                            dims[at] = dims[at].add(length)?;
                        } else if length.ne(&dims[at])? {
                            return Ok(None);
                        }
                    }
                }
            }
        }
        let joined = ffi::new_size(self.imports.size.bind(py), &dims)?;
        let sizes = states.iter().map(|state| state.batch_size.clone());
        self.last = Some((sizes.collect(), joined.clone()));
        Ok(Some(joined))
    }
}

fn join_or_twin<'py>(how: Join, tds: &Bound<'py, PyAny>, dim: i64) -> PyResult<Bound<'py, PyAny>> {
    let py = tds.py();
    let imports = imports(py)?;
    if let (Ok(tds), Ok(dim)) = (tds.cast::<PySequence>(), usize::try_from(dim))
        && !tds.is_empty()?
    {
        let tds = tds.try_iter()?.collect::<PyResult<ffi::Values<'py>>>()?;
        let place = dim.into_pyobject(py)?.into_any();
        let last = None;
        let mut joining = Joining {
            imports,
            how,
            dim,
            place,
            last,
        };
        if let Some(result) = joining.join(&tds)? {
            return Ok(result);
        }
    }
    from_twin(py, TWINS, how.twin(), (tds, dim))
}

/// What the handlers of `torch.stack` and `torch.cat` give for the arguments `args`; None where
/// these are not plain containers and a dim that they have.
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
    let tds: ffi::Values<'py> = if let Ok(list) = tds.cast_exact::<PyList>() {
        list.iter().collect()
    } else if let Ok(tuple) = tds.cast_exact::<PyTuple>() {
        tuple.iter().collect()
    } else {
        return Ok(None);
    };
    if tds.is_empty() || !tds.iter().all(|td| container::is_plain(imports, td)) {
        return Ok(None);
    }
    let num_dims = container::batch_size(imports, &tds[0])?.len();
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
    let place = dim.into_pyobject(py)?.into_any();
    let last = None;
    Joining {
        imports,
        how,
        dim,
        place,
        last,
    }
    .join(&tds)
}

/// Whether `torch.stack` makes a lazy stack, as the process was told.
fn is_lazy_by_default(py: Python<'_>) -> PyResult<bool> {
    static OPTIONS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let options = OPTIONS.get_or_try_init(py, || {
        Ok::<_, PyErr>(py.import("tensordict._options")?.unbind())
    })?;
    let name = pyo3::intern!(py, "_lazy_legacy");
    options.bind(py).getattr(name)?.is_truthy()
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
