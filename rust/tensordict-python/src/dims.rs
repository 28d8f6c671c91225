//! Moving, adding and removing batch dims, in one crossing with what is noted for `with`.
//!
//! The plain case is native: a tensordict, dims that are Python's own integers and
//! in range. In any other one nothing has been made yet, and the twin takes over.

use pyo3::prelude::*;
use pyo3::types::{PyInt, PyList, PyString, PyTuple};

use crate::collection::{self, Kind, Names, Order, kind};
use crate::ffi;
use crate::imports::{Imports, from_twin, imports};
use crate::leaf_call::Tail;
use crate::lock;
use crate::map_leaves::{self, Frame};
use crate::shortcuts::sizes;
use crate::split::{self, SplitFrame};

const NEW: i64 = -1;

/// A tensordict with its batch size.
struct Source<'a, 'py> {
    imports: &'static Imports,
    td: &'a Bound<'py, PyAny>,
    size: Bound<'py, PyTuple>,
}

impl<'a, 'py> Source<'a, 'py> {
    /// None where the twin must take over.
    fn of(td: &'a Bound<'py, PyAny>) -> PyResult<Option<Self>> {
        let imports = imports(td.py())?;
        if kind(imports, td)? != Kind::Dense {
            return Ok(None);
        }
        let size = collection::batch_size(imports, td)?;
        Ok(Some(Self { imports, td, size }))
    }

    fn num_dims(&self) -> i64 {
        i64::try_from(self.size.len()).unwrap_or(i64::MAX)
    }

    fn in_place(&self) -> Order {
        (0..self.num_dims()).collect()
    }

    /// The dim that a number names, counted from the front; None where there is none.
    fn dim(&self, number: &Bound<'py, PyAny>) -> Option<i64> {
        position(number, self.num_dims())
    }

    fn is_one(&self, dim: i64) -> PyResult<bool> {
        let length = self.size.get_item(usize::try_from(dim)?)?;
        Ok(length.is_exact_instance_of::<PyInt>() && length.extract::<i64>()? == 1)
    }

    /// The sizes of the dims in `order`, 1 for new ones.
    fn sizes(&self, order: &Order) -> PyResult<ffi::Values<'py>> {
        order
            .iter()
            .map(|&dim| match usize::try_from(dim) {
                Ok(dim) => self.size.get_item(dim),
                Err(_) => Ok(1_i64.into_pyobject(self.td.py())?.into_any()),
            })
            .collect()
    }

    /// `op(leaf, *args)` on every leaf, which gives the dims `order` of these `sizes`.
    fn moved(
        &self,
        op: &Bound<'py, PyString>,
        args: Args<'_>,
        sizes: &[Bound<'py, PyAny>],
        order: &Order,
        call: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let result = self.mapped(op, args, sizes, order, true)?;
        if collection::has_storage(self.imports, self.td)? {
            lock::keep_storage(self.td, &result)?;
        }
        self.remembered(result, call)
    }

    /// Does the work of [`Self::moved`] for results that no `with` statement undoes.
    fn mapped(
        &self,
        op: &Bound<'py, PyString>,
        args: Args<'_>,
        sizes: &[Bound<'py, PyAny>],
        order: &Order,
        lock: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = self.td.py();
        let prefix = sizes::new_size(self.imports.size.bind(py), sizes)?;
        let (args, tail) = match args {
            Args::Dims(dims) => (PyTuple::new(py, dims)?, Tail::Nothing),
            Args::GoneDims(dims) => {
                let dims = PyTuple::new(py, dims)?;
                (PyTuple::new(py, [dims])?, Tail::Nothing)
            }
            Args::Order => (PyTuple::new(py, [PyTuple::new(py, order)?])?, Tail::Dims),
            Args::Size => (PyTuple::new(py, [&prefix])?, Tail::Shape),
        };
        let frame = Frame {
            op,
            args: &args,
            prefix: Some(&prefix),
            names: &Names::Moved(order.clone()),
            tail,
            lock,
        };
        map_leaves::map_dense(self.imports, self.td, &frame)
    }

    /// The collections that `op(leaf, dim)` gives, which have the dims `order`.
    fn split(
        &self,
        op: &Bound<'py, PyString>,
        dim: i64,
        prefixes: &Bound<'py, PyList>,
        order: Order,
    ) -> PyResult<Bound<'py, PyAny>> {
        let frame = SplitFrame {
            op,
            args: &PyTuple::new(self.td.py(), [dim])?,
            prefixes,
            names: &Names::Moved(order),
            lock: false,
        };
        split::split_dense(self.imports, self.td, &frame)
    }

    /// This collection itself: nothing moves.
    fn unmoved(&self, call: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
        self.remembered(self.td.clone(), call)
    }

    /// `result` with the note that it is `call` of this collection.
    fn remembered(
        &self,
        result: Bound<'py, PyAny>,
        call: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = self.td.py();
        let mut note = ffi::Values::new();
        note.extend(call.iter());
        note.push(ffi::weak_reference(self.td)?);
        let note = PyTuple::new(py, note)?;
        result.setattr(self.imports.names.last_op.bind(py), note)?;
        Ok(result)
    }
}

/// The arguments that are passed to the leaves.
#[derive(Clone, Copy)]
enum Args<'a> {
    Dims(&'a [i64]),
    /// The dims as one tuple.
    GoneDims(&'a [i64]),
    /// The new order, with the leaf's further dims.
    Order,
    /// The new size, with the leaf's further dims.
    Size,
}

/// A place among `count` that a number names, counted from the front; None where it is no
/// plain integer or out of range.
fn position(number: &Bound<'_, PyAny>, count: i64) -> Option<i64> {
    if !number.is_exact_instance_of::<PyInt>() {
        return None;
    }
    let number = number.extract::<i64>().ok()?;
    let place = if number < 0 { number + count } else { number };
    (0..count).contains(&place).then_some(place)
}

/// Add a batch dim of size 1 at `dim`.
#[pyfunction]
pub(crate) fn unsqueeze<'py>(
    td: &Bound<'py, PyAny>,
    dim: &Bound<'py, PyAny>,
    call: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    if let Some(source) = Source::of(td)?
        && let Some(at) = position(dim, source.num_dims() + 1)
    {
        let mut order = source.in_place();
        order.insert(usize::try_from(at)?, NEW);
        let op = source.imports.names.unsqueeze.bind(td.py());
        let sizes = source.sizes(&order)?;
        return source.moved(op, Args::Dims(&[at]), &sizes, &order, call);
    }
    from_twin(td.py(), "dims", "unsqueeze", (td, dim, call))
}

/// Remove the batch dim `dim`, or all (None), where they have size 1.
#[pyfunction]
pub(crate) fn squeeze<'py>(
    td: &Bound<'py, PyAny>,
    dim: &Bound<'py, PyAny>,
    call: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    if let Some(source) = Source::of(td)?
        && (dim.is_none() || source.dim(dim).is_some())
    {
        let mut gone = Order::new();
        for at in 0..source.num_dims() {
            if source.dim(dim).is_none_or(|dim| dim == at) && source.is_one(at)? {
                gone.push(at);
            }
        }
        if gone.is_empty() {
            return source.unmoved(call);
        }
        let mut order = source.in_place();
        order.retain(|at| !gone.contains(at));
        let op = source.imports.names.squeeze.bind(td.py());
        let sizes = source.sizes(&order)?;
        if dim.is_none() {
            // The result does not count as mapped or shared memory.
            let result = source.mapped(op, Args::GoneDims(&gone), &sizes, &order, true)?;
            return source.remembered(result, call);
        }
        return source.moved(op, Args::Dims(&gone), &sizes, &order, call);
    }
    from_twin(td.py(), "dims", "squeeze", (td, dim, call))
}

/// Swap two batch dims.
#[pyfunction]
fn transpose<'py>(
    td: &Bound<'py, PyAny>,
    dim0: &Bound<'py, PyAny>,
    dim1: &Bound<'py, PyAny>,
    call: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    if let Some(source) = Source::of(td)?
        && let (Some(first), Some(second)) = (source.dim(dim0), source.dim(dim1))
    {
        if first == second {
            return source.unmoved(call);
        }
        let mut order = source.in_place();
        order.swap(usize::try_from(first)?, usize::try_from(second)?);
        let op = source.imports.names.transpose.bind(td.py());
        let sizes = source.sizes(&order)?;
        return source.moved(op, Args::Dims(&[first, second]), &sizes, &order, call);
    }
    from_twin(td.py(), "dims", "transpose", (td, dim0, dim1, call))
}

/// Reorder the batch dims.
#[pyfunction]
fn permute<'py>(
    td: &Bound<'py, PyAny>,
    dims: &Bound<'py, PyAny>,
    call: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    if let Some(source) = Source::of(td)?
        && let Ok(given) = dims.cast::<PyTuple>()
        && given.len() == source.size.len()
        && let Some(order) = given.iter().map(|dim| source.dim(&dim)).collect()
        && is_permutation(&order)
    {
        return permuted(&source, &order, call);
    }
    from_twin(td.py(), "dims", "permute", (td, dims, call))
}

fn is_permutation(order: &Order) -> bool {
    (0..).zip(order).all(|(at, _)| order.contains(&at))
}

fn permuted<'py>(
    source: &Source<'_, 'py>,
    order: &Order,
    call: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    if *order == source.in_place() {
        return source.unmoved(call);
    }
    let op = source.imports.names.permute.bind(source.td.py());
    source.moved(op, Args::Order, &source.sizes(order)?, order, call)
}

/// Move batch dims to other places.
#[pyfunction]
fn movedim<'py>(
    td: &Bound<'py, PyAny>,
    source: &Bound<'py, PyAny>,
    destination: &Bound<'py, PyAny>,
    call: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    if let Some(from) = Source::of(td)?
        && let (Some(dim), Some(place)) = (from.dim(source), from.dim(destination))
    {
        let mut order = from.in_place();
        order.remove(usize::try_from(dim)?);
        order.insert(usize::try_from(place)?, dim);
        return permuted(&from, &order, call);
    }
    from_twin(td.py(), "dims", "movedim", (td, source, destination, call))
}

/// Join the batch dims from `start_dim` to `end_dim` into one.
#[pyfunction]
fn flatten<'py>(
    td: &Bound<'py, PyAny>,
    start_dim: &Bound<'py, PyAny>,
    end_dim: &Bound<'py, PyAny>,
    call: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    if let Some(source) = Source::of(td)?
        && let (Some(start), Some(end)) = (source.dim(start_dim), source.dim(end_dim))
        && start <= end
        && !collection::has_storage(source.imports, td)?
    {
        let (first, last) = (usize::try_from(start)?, usize::try_from(end)?);
        let mut joined = source.size.get_item(first)?;
        for dim in first + 1..=last {
            joined = joined.mul(source.size.get_item(dim)?)?;
        }
        let mut order = source.in_place();
        order.drain(first..last);
        order[first] = NEW;
        let mut sizes = source.sizes(&order)?;
        sizes[first] = joined;
        let op = source.imports.names.flatten.bind(td.py());
        return source.moved(op, Args::Dims(&[start, end]), &sizes, &order, call);
    }
    from_twin(td.py(), "dims", "flatten", (td, start_dim, end_dim, call))
}

/// Add leading batch dims of size 1 until there are `ndim`.
#[pyfunction]
fn at_least<'py>(
    td: &Bound<'py, PyAny>,
    ndim: usize,
    call: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    if let Some(source) = Source::of(td)? {
        let missing = ndim.saturating_sub(source.size.len());
        if missing == 0 {
            return source.unmoved(call);
        }
        let mut order = source.in_place();
        order.insert_many(0, std::iter::repeat_n(NEW, missing));
        let sizes = source.sizes(&order)?;
        let names = &source.imports.names;
        // Torch adds one dim in less time than it reads a shape.
        let (op, args) = if missing == 1 {
            (&names.unsqueeze, Args::Dims(&[0]))
        } else {
            (&names.reshape, Args::Size)
        };
        return source.moved(op.bind(td.py()), args, &sizes, &order, call);
    }
    from_twin(td.py(), "dims", "at_least", (td, ndim, call))
}

/// Reduce the batch dim `dim` of every leaf by its method `op`.
#[pyfunction]
fn reduce_dim<'py>(
    td: &Bound<'py, PyAny>,
    op: &Bound<'py, PyString>,
    dim: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    if let Some(source) = Source::of(td)?
        && let Some(dim) = source.dim(dim)
    {
        let mut order = source.in_place();
        order.remove(usize::try_from(dim)?);
        let sizes = source.sizes(&order)?;
        return source.mapped(op, Args::Dims(&[dim]), &sizes, &order, false);
    }
    from_twin(td.py(), "dims", "reduce_dim", (td, op, dim))
}

/// The two collections that the method `op` of every leaf gives for the batch dim `dim`,
/// which they have where it stays.
#[pyfunction]
#[pyo3(signature = (td, op, dim, stays = false))]
fn extrema<'py>(
    td: &Bound<'py, PyAny>,
    op: &Bound<'py, PyString>,
    dim: &Bound<'py, PyAny>,
    stays: bool,
) -> PyResult<Bound<'py, PyAny>> {
    if let Some(source) = Source::of(td)?
        && let Some(dim) = source.dim(dim)
    {
        let py = td.py();
        let mut order = source.in_place();
        if !stays {
            order.remove(usize::try_from(dim)?);
        }
        let sizes = source.sizes(&order)?;
        let prefix = sizes::new_size(source.imports.size.bind(py), &sizes)?;
        let prefixes = PyList::new(py, [&prefix, &prefix])?;
        return source.split(op, dim, &prefixes, order);
    }
    from_twin(td.py(), "dims", "extrema", (td, op, dim, stays))
}

/// The collections along the batch dim `dim`, without that dim.
#[pyfunction]
fn unbind<'py>(td: &Bound<'py, PyAny>, dim: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    if let Some(source) = Source::of(td)?
        && let Some(at) = source.dim(dim)
        && let length = source.size.get_item(usize::try_from(at)?)?
        && length.is_exact_instance_of::<PyInt>()
    {
        let py = td.py();
        let mut order = source.in_place();
        order.remove(usize::try_from(at)?);
        let sizes = source.sizes(&order)?;
        let prefix = sizes::new_size(source.imports.size.bind(py), &sizes)?;
        let prefixes = ffi::repeated(&prefix, &length)?;
        let op = source.imports.names.unbind.bind(py);
        return source.split(op, at, &prefixes, order);
    }
    from_twin(td.py(), "dims", "unbind", (td, dim))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(unsqueeze, module)?)?;
    module.add_function(wrap_pyfunction!(squeeze, module)?)?;
    module.add_function(wrap_pyfunction!(transpose, module)?)?;
    module.add_function(wrap_pyfunction!(permute, module)?)?;
    module.add_function(wrap_pyfunction!(movedim, module)?)?;
    module.add_function(wrap_pyfunction!(flatten, module)?)?;
    module.add_function(wrap_pyfunction!(at_least, module)?)?;
    module.add_function(wrap_pyfunction!(reduce_dim, module)?)?;
    module.add_function(wrap_pyfunction!(extrema, module)?)?;
    module.add_function(wrap_pyfunction!(unbind, module)?)?;
    Ok(())
}
