//! Reading at an index, and the batch sizes that views and indices give.
//!
//! The core plans the common case: numbers, slices, `None`, ellipses and tensors.
//! Everything else (lists, arrays, symbolic sizes) and every failure is the twin's: it
//! gives the same plan, or the error.

use pyo3::exceptions::{PyIndexError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyEllipsis, PyFloat, PyInt, PyList, PySlice, PyTuple, PyType};
use smallvec::SmallVec;
use tensordict_core::batch::{self, Dims};
use tensordict_core::index::{self as core_index, Item, Range, Step};

use crate::collection::{self, Kind, Names, Order, Splice, State, kind};
use crate::ffi::{self, Operation, RecursionGuard, RepeatedCall};
use crate::gather::{Jobs, Rows};
use crate::imports::{Imports, from_twin, imports};
use crate::shortcuts::tensors::shape_of;

/// An index planned against a batch size.
enum Plan<'py> {
    /// It takes everything as it is.
    Whole,
    At {
        /// The index of each leaf.
        index: Bound<'py, PyAny>,
        /// The batch size of the result.
        size: Bound<'py, PyAny>,
        /// For each of its dims the dim whose name it takes, -1 for none.
        sources: Order,
    },
}

/// The sizes of a shape's dims; None where one is no plain number.
pub(crate) fn plain_dims(shape: &Bound<'_, PyTuple>) -> Option<Dims> {
    shape
        .iter_borrowed()
        .map(|length| {
            length
                .is_exact_instance_of::<PyInt>()
                .then(|| length.extract().ok())
                .flatten()
        })
        .collect()
}

/// [`plain_dims`] of a tuple or a list; None of anything else.
fn listed_dims(shape: &Bound<'_, PyAny>) -> Option<Dims> {
    if let Ok(shape) = shape.cast::<PyTuple>() {
        return plain_dims(shape);
    }
    plain_dims(&shape.cast_exact::<PyList>().ok()?.to_tuple())
}

/// One item of an index as the core and the leaves see it.
struct ParsedItem<'py> {
    item: Item,
    // The index of the leaves; for a mask the positions along each of its axes.
    index: Bound<'py, PyAny>,
}

/// `item` for the core; None where the twin must plan.
fn parse_item<'py>(
    imports: &Imports,
    item: &Bound<'py, PyAny>,
) -> PyResult<Option<ParsedItem<'py>>> {
    let parsed = if item.is_none() {
        Item::NewDim
    } else if let Ok(value) = item.cast_exact::<PyBool>() {
        Item::Bool(value.is_true())
    } else if item.is_exact_instance_of::<PyInt>() {
        let Ok(position) = item.extract() else {
            return Ok(None);
        };
        Item::Position(position)
    } else if let Ok(slice) = item.cast_exact::<PySlice>() {
        let Some(range) = parse_slice(slice) else {
            return Ok(None);
        };
        Item::Slice(range)
    } else if item.is_exact_instance_of::<PyEllipsis>() {
        Item::Ellipsis
    } else if item.get_type().is(&imports.tensor) {
        return parse_tensor(imports, item);
    } else if let Ok(list) = item.cast_exact::<PyList>() {
        return parse_list(imports, list);
    } else {
        return Ok(None);
    };
    Ok(Some(ParsedItem {
        item: parsed,
        index: item.clone(),
    }))
}

fn parse_slice(slice: &Bound<'_, PySlice>) -> Option<Range> {
    let mut range = [None; 3];
    for (bound, value) in range.iter_mut().zip(ffi::slice_bounds(slice)) {
        if value.is_none() {
            continue;
        }
        match value
            .cast_exact::<PyInt>()
            .ok()
            .and_then(|value| value.extract().ok())
        {
            Some(value) => *bound = Some(value),
            None => return None,
        }
    }
    Some(Range {
        start: range[0],
        stop: range[1],
        step: range[2],
    })
}

/// A list of positions becomes a tensor once, and not again for each leaf.
fn parse_list<'py>(
    imports: &Imports,
    list: &Bound<'py, PyList>,
) -> PyResult<Option<ParsedItem<'py>>> {
    let positions = list.to_tuple();
    let is_plain = positions
        .iter_borrowed()
        .all(|position| position.is_exact_instance_of::<PyInt>());
    if positions.is_empty() || !is_plain {
        return Ok(None);
    }
    let mut shape = Dims::new();
    shape.push(i64::try_from(positions.len())?);
    match imports.make_tensor.bind(list.py()).call1((positions,)) {
        Ok(index) => Ok(Some(ParsedItem {
            item: Item::Positions(shape),
            index,
        })),
        // A number that is too large: the twin says so.
        Err(_) => Ok(None),
    }
}

fn parse_tensor<'py>(
    imports: &Imports,
    tensor: &Bound<'py, PyAny>,
) -> PyResult<Option<ParsedItem<'py>>> {
    let py = tensor.py();
    let names = &imports.names;
    let shape = tensor.getattr(names.shape.bind(py))?;
    let Some(shape) = shape.cast::<PyTuple>().ok().and_then(plain_dims) else {
        return Ok(None);
    };
    if shape.is_empty() {
        return Ok(None);
    }
    let dtype = tensor.getattr(names.dtype.bind(py))?;
    if dtype.is(&imports.int64) {
        return Ok(Some(ParsedItem {
            item: Item::Positions(shape),
            index: tensor.clone(),
        }));
    }
    // The native gather reads positions of int64. It checks the length of mapped files, torch does
    // not.
    if dtype.is(&imports.int32) {
        return Ok(Some(ParsedItem {
            item: Item::Positions(shape),
            index: tensor.call_method1(names.to.bind(py), (imports.int64.bind(py),))?,
        }));
    }
    if !dtype.is(&imports.bool) {
        return Ok(None);
    }
    let kwargs = PyDict::new(py);
    kwargs.set_item(names.as_tuple.bind(py), true)?;
    let parts = tensor.call_method(names.nonzero.bind(py), (), Some(&kwargs))?;
    let count = parts.get_item(0)?.len()?;
    Ok(Some(ParsedItem {
        item: Item::Mask {
            shape,
            count: i64::try_from(count)?,
        },
        index: parts,
    }))
}

/// The plan of the core; None where the twin must plan, or fail.
fn plan_in_core<'py>(
    imports: &Imports,
    batch_size: &Bound<'py, PyTuple>,
    index: &Bound<'py, PyAny>,
) -> PyResult<Option<Plan<'py>>> {
    let py = index.py();
    let Some(dims) = plain_dims(batch_size) else {
        return Ok(None);
    };
    let mut parsed: SmallVec<[ParsedItem<'py>; 4]> = SmallVec::new();
    if let Ok(items) = index.cast_exact::<PyTuple>() {
        for item in items.iter_borrowed() {
            match parse_item(imports, &item)? {
                Some(item) => parsed.push(item),
                None => return Ok(None),
            }
        }
    } else {
        match parse_item(imports, index)? {
            Some(item) => parsed.push(item),
            None => return Ok(None),
        }
    }
    let items: SmallVec<[Item; 4]> = parsed.iter().map(|parsed| parsed.item.clone()).collect();
    let Ok(plan) = core_index::plan(&dims, &items) else {
        return Ok(None);
    };
    if plan.is_whole {
        return Ok(Some(Plan::Whole));
    }
    let mut steps = ffi::Values::with_capacity(plan.steps.len());
    for step in &plan.steps {
        steps.push(match *step {
            Step::Item(position) => parsed[position].index.clone(),
            Step::MaskAxis { item, axis } => parsed[item].index.get_item(axis)?,
            Step::Whole => PySlice::full(py).into_any(),
        });
    }
    let index = if steps.len() == 1 {
        steps.remove(0)
    } else {
        PyTuple::new(py, steps)?.into_any()
    };
    let size = collection::size_of(imports, py, &plan.size)?;
    let sources = plan
        .sources
        .iter()
        .map(|source| source.map_or(-1, |dim| i64::try_from(dim).unwrap_or(-1)));
    Ok(Some(Plan::At {
        index,
        size,
        sources: sources.collect(),
    }))
}

fn plan<'py>(
    imports: &Imports,
    batch_size: &Bound<'py, PyTuple>,
    index: &Bound<'py, PyAny>,
    td: Option<&Bound<'py, PyAny>>,
) -> PyResult<Plan<'py>> {
    if let Some(plan) = plan_in_core(imports, batch_size, index)? {
        return Ok(plan);
    }
    let plan = from_twin(index.py(), "index", "index_plan", (batch_size, index, td))?;
    if plan.is_none() {
        return Ok(Plan::Whole);
    }
    let (index, size, sources): (_, _, Vec<i64>) = plan.extract()?;
    Ok(Plan::At {
        index,
        size,
        sources: Order::from_vec(sources),
    })
}

/// The plan of `index` on `batch_size`; None where it takes everything as it is.
#[pyfunction]
#[pyo3(signature = (batch_size, index, td = None))]
fn index_plan<'py>(
    batch_size: &Bound<'py, PyTuple>,
    index: &Bound<'py, PyAny>,
    td: Option<&Bound<'py, PyAny>>,
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let py = index.py();
    match plan(imports(py)?, batch_size, index, td)? {
        Plan::Whole => Ok(None),
        Plan::At {
            index,
            size,
            sources,
        } => {
            let sources = PyTuple::new(py, sources)?;
            Ok(Some((index, size, sources).into_pyobject(py)?))
        }
    }
}

/// The batch size of what `index` takes of a collection of `batch_size`.
#[pyfunction]
fn index_shape<'py>(
    batch_size: &Bound<'py, PyTuple>,
    index: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    match plan(imports(index.py())?, batch_size, index, None)? {
        Plan::Whole => Ok(batch_size.clone().into_any()),
        Plan::At { size, .. } => Ok(size),
    }
}

struct ReadAt<'a, 'py> {
    imports: &'static Imports,
    place: &'a Bound<'py, PyAny>,
    size: &'a Bound<'py, PyAny>,
    splice: Splice<'a, 'py>,
    call: RepeatedCall<'py>,
    // The rows that the index means, and the leaves whose rows are copied together at the end.
    rows: Option<Rows>,
    jobs: Jobs<'py>,
}

impl<'py> ReadAt<'_, 'py> {
    fn walk(&mut self, td: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = td.py();
        let imports = self.imports;
        let _guard = RecursionGuard::enter(py)?;
        let state = State::of(imports, td)?;
        let size = self.splice.size(Some(self.size), &state.batch_size)?;
        let entries = ffi::copy_dict(&state.entries)?;
        ffi::replace_values(&entries, |value| {
            Ok(Some(match kind(imports, value)? {
                Kind::Tensor => match self.leaf(value) {
                    Ok(part) => part,
                    Err(error) => {
                        let op = imports.names.method_getitem.bind(py).as_any();
                        let arguments = PyTuple::new(py, [self.place])?;
                        collection::rescued(op, value, &arguments, error)?
                    }
                },
                Kind::Special => {
                    let arguments = (value, self.place, &size);
                    collection::ask_kind(imports, &imports.names.method_at, value, arguments)?
                }
                Kind::Dense => self.walk(value)?,
                Kind::Foreign => {
                    value.call_method1(imports.names.method_index.bind(py), (self.place,))?
                }
            }))
        })?;
        let dim_names = self.splice.dim_names(&state.dim_names, &size)?;
        let values = [entries.into_any(), size, state.device, dim_names];
        collection::new_like(imports, td, values)
    }

    /// Returns what the index takes of a leaf.
    fn leaf(&mut self, leaf: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if let Some(rows) = &self.rows
            && let Some(part) = self.jobs.take(self.imports, leaf, rows)?
        {
            return Ok(part);
        }
        self.call.call(leaf)
    }
}

/// The collection of every entry of `td` at `index`; `td` if that is all of it.
#[pyfunction]
pub(crate) fn index<'py>(
    td: &Bound<'py, PyAny>,
    index: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = td.py();
    let imports = imports(py)?;
    if !collection::is_dense(imports, td)? {
        return td.call_method1(imports.names.method_index.bind(py), (index,));
    }
    let batch_size = collection::batch_size(imports, td)?;
    let planned = match plan(imports, &batch_size, index, Some(td)) {
        Err(error) if error.is_instance_of::<PyIndexError>(py) => {
            let error = error.into_value(py);
            return from_twin(py, "feature_index", "features_at", (td, index, error));
        }
        planned => planned?,
    };
    let Plan::At {
        index,
        size,
        sources,
    } = planned
    else {
        return Ok(td.clone());
    };
    let names = Names::Moved(sources);
    let arguments = PyTuple::new(py, [&index])?;
    let mut walk = ReadAt {
        imports,
        place: &index,
        size: &size,
        splice: Splice::new(imports, batch_size.len(), &names),
        call: RepeatedCall::new(Operation::GetItem, &arguments),
        rows: batch_size
            .get_item(0)
            .and_then(|length| length.extract())
            .ok()
            .and_then(|length| Rows::at(imports, &index, length)),
        jobs: Jobs::default(),
    };
    let made = walk.walk(td)?;
    walk.jobs.run(py, walk.rows.as_ref())?;
    Ok(made)
}

// Writing -----------------------------------------------------------------------------

/// Entries, and what is written into each.
type Writes<'py> = Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>;

/// The writes of a value at an index, all of them checked before the first.
struct WriteAt<'py> {
    imports: &'static Imports,
    // The number of the root's batch dims, and what the index leaves of them.
    k: usize,
    dims: Dims,
    // True if torch casts at this index, whatever tensors are in it.
    casts: bool,
    // The class that all collections must have, if any.
    class: Option<Bound<'py, PyType>>,
    // True if non-tensor values may be taken whole.
    takes_values: bool,
    writes: Writes<'py>,
    // Values, and those that they take.
    values: Writes<'py>,
}

impl<'py> WriteAt<'py> {
    /// Adds every leaf of the dense `td`, each with `value`, which fits in any: a number.
    fn fill(&mut self, td: &Bound<'py, PyAny>, value: &Bound<'py, PyAny>) -> PyResult<bool> {
        let _guard = RecursionGuard::enter(td.py())?;
        for entry in ffi::dict_values(&collection::entries(self.imports, td)?) {
            match kind(self.imports, &entry)? {
                Kind::Tensor if self.dims_of(&entry)?.is_some() => {
                    self.writes.push((entry, value.clone()));
                }
                Kind::Dense => {
                    if !self.fill(&entry, value)? {
                        return Ok(false);
                    }
                }
                Kind::Tensor | Kind::Special | Kind::Foreign => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Adds the leaves of the dense `source`, each with the entry of `td` at its key;
    /// false where one is missing, or is not exactly of the size that the index leaves.
    fn pair(&mut self, td: &Bound<'py, PyAny>, source: &Bound<'py, PyAny>) -> PyResult<bool> {
        let imports = self.imports;
        let _guard = RecursionGuard::enter(td.py())?;
        if let Some(class) = &self.class
            && !(td.get_type().is(class) && source.get_type().is(class))
        {
            return Ok(false);
        }
        let own = plain_dims(&collection::batch_size(imports, td)?);
        let theirs = plain_dims(&collection::batch_size(imports, source)?);
        let (Some(own), Some(theirs)) = (own, theirs) else {
            return Ok(false);
        };
        if !self.leaves_of(&own, &theirs) {
            return Ok(false);
        }
        let held = collection::entries(imports, td)?;
        for (key, item) in ffi::dict_pairs(&collection::entries(imports, source)?) {
            let Some(entry) = held.get_item(&key)? else {
                return Ok(false);
            };
            match (kind(imports, &entry)?, kind(imports, &item)?) {
                (Kind::Tensor, Kind::Tensor) => {
                    let fits = match (self.dims_of(&entry)?, self.dims_of(&item)?) {
                        (Some(own), Some(theirs)) => {
                            self.leaves_of(&own, &theirs)
                                && (self.casts || is_same_dtype(imports, &entry, &item)?)
                        }
                        _ => false,
                    };
                    if !fits {
                        return Ok(false);
                    }
                    self.writes.push((entry, item));
                }
                (Kind::Dense, Kind::Dense) => {
                    if !self.pair(&entry, &item)? {
                        return Ok(false);
                    }
                }
                (Kind::Foreign, Kind::Foreign) if self.takes_values => {
                    let can_put = imports.names.method_can_put.bind(td.py());
                    if !entry.call_method1(can_put, (&item,))?.is_truthy()? {
                        return Ok(false);
                    }
                    self.values.push((entry, item));
                }
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// The shape of a leaf of which the index means the first dims; None for any other.
    fn dims_of(&self, leaf: &Bound<'py, PyAny>) -> PyResult<Option<Dims>> {
        let imports = self.imports;
        if leaf.get_type().is(&imports.tensor) {
            return Ok(shape_of(leaf));
        }
        // A subclass, such as a mapped tensor.
        if !ffi::is_subtype(leaf, &imports.tensor) {
            return Ok(None);
        }
        match leaf.getattr(imports.names.shape.bind(leaf.py())) {
            Ok(shape) => Ok(shape.cast::<PyTuple>().ok().and_then(plain_dims)),
            // A nested tensor has none.
            Err(error) if error.is_instance_of::<PyRuntimeError>(leaf.py()) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns whether the index leaves `theirs` of a shape `own`.
    fn leaves_of(&self, own: &[i64], theirs: &[i64]) -> bool {
        theirs.starts_with(&self.dims) && own.get(self.k..) == theirs.get(self.dims.len()..)
    }
}

fn is_same_dtype(
    imports: &Imports,
    tensor: &Bound<'_, PyAny>,
    other: &Bound<'_, PyAny>,
) -> PyResult<bool> {
    let name = imports.names.dtype.bind(tensor.py());
    Ok(tensor.getattr(name)?.is(other.getattr(name)?))
}

/// Returns whether the index of a plan is of numbers, slices and None alone.
fn holds_no_tensor(at: &Bound<'_, PyAny>) -> bool {
    let is_plain = |item: &Bound<'_, PyAny>| {
        item.is_exact_instance_of::<PyInt>()
            || item.is_exact_instance_of::<PySlice>()
            || item.is_none()
    };
    match at.cast_exact::<PyTuple>() {
        Ok(items) => items.iter_borrowed().all(|item| is_plain(&item)),
        Err(_) => is_plain(at),
    }
}

/// The index of each leaf of the dense `td`, and the batch size there; None where the twin
/// must plan.
fn plan_place<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    index: &Bound<'py, PyAny>,
) -> PyResult<Option<[Bound<'py, PyAny>; 2]>> {
    let batch_size = collection::batch_size(imports, td)?;
    Ok(match plan_in_core(imports, &batch_size, index)? {
        Some(Plan::At { index, size, .. }) => Some([index, size]),
        Some(Plan::Whole) => {
            let py = td.py();
            let whole = PyTuple::new(py, vec![PySlice::full(py); batch_size.len()])?;
            Some([whole.into_any(), batch_size.into_any()])
        }
        None => None,
    })
}

/// The writes of `value` into the leaves of the dense `td` at a place; None where the twin
/// must look. With `class` all collections must have it. With `takes_values` the second are
/// values that take others whole.
fn plan_writes<'py>(
    imports: &'static Imports,
    td: &Bound<'py, PyAny>,
    [at, size]: &[Bound<'py, PyAny>; 2],
    value: &Bound<'py, PyAny>,
    class: Option<Bound<'py, PyType>>,
    takes_values: bool,
) -> PyResult<Option<[Writes<'py>; 2]>> {
    let Some(dims) = size.cast::<PyTuple>().ok().and_then(plain_dims) else {
        return Ok(None);
    };
    let mut write = WriteAt {
        imports,
        k: collection::batch_size(imports, td)?.len(),
        dims,
        casts: holds_no_tensor(at),
        class,
        takes_values,
        writes: Vec::new(),
        values: Vec::new(),
    };
    let is_number = value.is_exact_instance_of::<PyFloat>()
        || value.is_exact_instance_of::<PyInt>()
        || value.is_exact_instance_of::<PyBool>();
    let is_planned = if is_number {
        write.fill(td, value)?
    } else if kind(imports, value)? == Kind::Dense {
        write.pair(td, value)?
    } else {
        false
    };
    Ok(is_planned.then_some([write.writes, write.values]))
}

/// Write `value` into every entry of `td` at `index`.
#[pyfunction]
fn set_index<'py>(
    td: &Bound<'py, PyAny>,
    index: &Bound<'py, PyAny>,
    value: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let py = td.py();
    let imports = imports(py)?;
    if collection::is_dense(imports, td)?
        && let Some(place) = plan_place(imports, td, index)?
        && let Some([writes, _]) = plan_writes(imports, td, &place, value, None, false)?
    {
        if collection::is_rare_number(value) {
            let leaves = PyList::new(py, writes.iter().map(|(entry, _)| entry))?;
            from_twin(py, "common", "check_number", (leaves, value, true))?;
        }
        return write_all(imports, writes, &place[0]);
    }
    from_twin(py, "index", "set_index", (td, index, value)).map(drop)
}

/// Do all `writes` at an index. Those that torch refuses come first: nothing is written then.
fn write_all(imports: &Imports, mut writes: Writes<'_>, at: &Bound<'_, PyAny>) -> PyResult<()> {
    let mut are_any_trained = false;
    for (entry, _) in &writes {
        are_any_trained |= requires_grad(imports, entry)?;
    }
    if are_any_trained {
        let is_leaf = imports.names.is_leaf.bind(at.py());
        let is_trained = |entry: &Bound<'_, PyAny>| -> PyResult<bool> {
            Ok(requires_grad(imports, entry)? && entry.getattr(is_leaf)?.is_truthy()?)
        };
        let mut others = Vec::new();
        let mut trained = Vec::new();
        for (entry, item) in writes {
            if is_trained(&entry)? {
                trained.push((entry, item));
            } else {
                others.push((entry, item));
            }
        }
        trained.append(&mut others);
        writes = trained;
    }
    for (entry, item) in writes {
        entry.set_item(at, item)?;
    }
    Ok(())
}

/// Returns whether gradients are followed through an entry, which need not be a tensor.
fn requires_grad(imports: &Imports, entry: &Bound<'_, PyAny>) -> PyResult<bool> {
    match entry.getattr_opt(imports.names.requires_grad.bind(entry.py()))? {
        Some(answer) => answer.is_truthy(),
        None => Ok(false),
    }
}

/// Returns whether an index has an ellipsis, which each tensor reads in its own way.
fn has_ellipsis(index: &Bound<'_, PyAny>) -> bool {
    match index.cast::<PyTuple>() {
        Ok(items) => items
            .iter_borrowed()
            .any(|item| item.is_exact_instance_of::<PyEllipsis>()),
        Err(_) => index.is_exact_instance_of::<PyEllipsis>(),
    }
}

/// Write the leaves of `source` into those of `td` at `index`, if each has a place of its
/// shape there and all collections are of one class. Says whether it did.
#[pyfunction]
fn write_fitting<'py>(
    td: &Bound<'py, PyAny>,
    index: &Bound<'py, PyAny>,
    source: &Bound<'py, PyAny>,
) -> PyResult<bool> {
    let imports = imports(td.py())?;
    let are_dense = collection::is_dense(imports, td)? && kind(imports, source)? == Kind::Dense;
    if !are_dense || has_ellipsis(index) {
        return Ok(false);
    }
    let Some(place) = plan_place(imports, td, index)? else {
        let done = from_twin(td.py(), "index", "write_fitting", (td, index, source))?;
        return done.extract();
    };
    let class = Some(td.get_type());
    let Some([writes, _]) = plan_writes(imports, td, &place, source, class, false)? else {
        return Ok(false);
    };
    write_all(imports, writes, &place[0])?;
    Ok(true)
}

/// Write into each of `members`, at the place of its number in `places`, the part of that
/// number, a number or a collection, if all are plain writes that fit. Says whether it did:
/// else nothing is written.
#[pyfunction]
fn write_members<'py>(
    members: &Bound<'py, PyList>,
    places: &Bound<'py, PyList>,
    parts: &Bound<'py, PyList>,
) -> PyResult<bool> {
    let imports = imports(members.py())?;
    let mut planned = Vec::with_capacity(members.len());
    for (position, member) in members.iter().enumerate() {
        let (index, part) = (places.get_item(position)?, parts.get_item(position)?);
        if !collection::is_dense(imports, &member)?
            || has_ellipsis(&index)
            || collection::is_rare_number(&part)
        {
            return Ok(false);
        }
        let Some(place) = plan_place(imports, &member, &index)? else {
            return Ok(false);
        };
        let is_whole = index.cast::<PyTuple>().is_ok_and(PyTupleMethods::is_empty);
        let Some([writes, values]) = plan_writes(imports, &member, &place, &part, None, is_whole)?
        else {
            return Ok(false);
        };
        for (entry, _) in &writes {
            if requires_grad(imports, entry)? {
                return Ok(false);
            }
        }
        let [at, _] = place;
        planned.push((at, writes, values));
    }
    let put = imports.names.method_put.bind(members.py());
    for (at, writes, values) in planned {
        for (entry, item) in writes {
            entry.set_item(&at, item)?;
        }
        for (entry, item) in values {
            entry.call_method1(put, (item,))?;
        }
    }
    Ok(true)
}

// Shapes ------------------------------------------------------------------------------

/// `shape` with its -1 replaced, checked against the elements of `batch_size`.
#[pyfunction]
fn view_shape<'py>(
    batch_size: &Bound<'py, PyAny>,
    shape: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = shape.py();
    let imports = imports(py)?;
    let asked = listed_dims(shape).or_else(|| {
        let only = shape.cast::<PyTuple>().ok().filter(|all| all.len() == 1)?;
        listed_dims(&only.get_item(0).ok()?)
    });
    let old = batch_size.cast::<PyTuple>().ok().and_then(plain_dims);
    if let (Some(asked), Some(old)) = (asked, old)
        && let Ok(dims) = batch::infer_view(&old, &asked)
    {
        return collection::size_of(imports, py, &dims);
    }
    from_twin(py, "index", "view_shape", (batch_size, shape))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(index_plan, module)?)?;
    module.add_function(wrap_pyfunction!(index_shape, module)?)?;
    module.add_function(wrap_pyfunction!(index, module)?)?;
    module.add_function(wrap_pyfunction!(set_index, module)?)?;
    module.add_function(wrap_pyfunction!(write_fitting, module)?)?;
    module.add_function(wrap_pyfunction!(write_members, module)?)?;
    module.add_function(wrap_pyfunction!(view_shape, module)?)?;
    Ok(())
}
