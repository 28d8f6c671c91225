//! Rows at positions, copied by the core in one call for all leaves.
//!
//! Reading at an index asks [`Rows::at`] whether the index means rows of the first dim; a leaf
//! whose rows lie in plain memory is then noted as a [`Job`], and the core does them all at the end,
//! with the interpreter released. Everything else is torch's.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use smallvec::SmallVec;
use tensordict_core::batch::Dims;
use tensordict_core::gather::{self, Leaf, OwnedLeaf, Prefetcher, Run, Ticket};

use crate::collection::{self, Kind, has_signs, kind};
use crate::ffi::{self, RecursionGuard};
use crate::imports::{Imports, from_twin, imports};
use crate::shortcuts::tensors::{HeldStorage, Tensor, shape_of};
use crate::storage::dlpack::{self, Memory};
use crate::storage::mapped::row_file_at;

/// Below this many bytes the interpreter is not released for rows in memory.
const RELEASE_BYTES: usize = 64 << 10;

/// From this many bytes on memory is asked to have large pages.
const LARGE_BYTES: usize = 4 << 20;

/// Rows of the first dim, at a tensor of positions.
pub(crate) struct Rows {
    runs: Vec<Run>,
    /// The number of positions.
    count: usize,
    /// The shape of the positions.
    shape: Dims,
    /// The length of the dim.
    length: i64,
}

impl Rows {
    /// The rows that `place` means of a dim of `length`; None where it is no plain tensor of
    /// positions, or one is out of range: then torch says so.
    pub(crate) fn at(imports: &Imports, place: &Bound<'_, PyAny>, length: i64) -> Option<Self> {
        if !place.get_type().is(&imports.tensor) {
            return None;
        }
        let memory = plain_memory(place)?;
        if memory.dtype != "torch.int64" || !memory.is_plain() || memory.num_bytes == 0 {
            return None;
        }
        let count = memory.num_bytes / size_of::<i64>();
        let pointer = memory.pointer.cast::<[u8; size_of::<i64>()]>();
        let mut runs: Vec<Run> = Vec::with_capacity(count);
        for at in 0..count {
            // SAFETY: the tensor is alive, has that many numbers without gaps, and nothing but torch
            // with the interpreter's lock gives it other memory.
            let position = i64::from_ne_bytes(unsafe { pointer.add(at).read() });
            let row = if position < 0 {
                position.checked_add(length)?
            } else {
                position
            };
            if row >= length {
                return None;
            }
            let row = usize::try_from(row).ok()?;
            match runs.last_mut() {
                Some(Run {
                    row: first, count, ..
                }) if *first + *count == row => *count += 1,
                _ => runs.push(Run {
                    row,
                    place: at,
                    count: 1,
                }),
            }
        }
        Some(Self {
            runs,
            count,
            shape: memory.shape,
            length,
        })
    }

    /// The rows of each part that has some, if the rows of part `k` end before row `stops[k]`.
    fn split(&self, stops: &[usize]) -> Vec<(usize, Self)> {
        let mut runs: Vec<Vec<Run>> = vec![Vec::new(); stops.len()];
        let start_of = |part: usize| part.checked_sub(1).map_or(0, |before| stops[before]);
        for run in &self.runs {
            let mut rest = *run;
            while rest.count > 0 {
                let part = stops.partition_point(|&stop| stop <= rest.row);
                let count = rest.count.min(stops[part] - rest.row);
                let row = rest.row - start_of(part);
                runs[part].push(Run { row, count, ..rest });
                rest = Run {
                    row: rest.row + count,
                    place: rest.place + count,
                    count: rest.count - count,
                };
            }
        }
        let with_rows = runs.into_iter().enumerate();
        with_rows
            .filter(|(_, runs)| !runs.is_empty())
            .map(|(part, runs)| {
                let length = i64::try_from(stops[part] - start_of(part)).unwrap_or(i64::MAX);
                let (count, shape) = (self.count, self.shape.clone());
                let own = Self {
                    runs,
                    count,
                    shape,
                    length,
                };
                (part, own)
            })
            .collect()
    }

    /// Tells whether a leaf has that length: somebody may have resized it behind the collection's back.
    fn are_of(&self, leaf: &Memory) -> bool {
        leaf.shape.first() == Some(&self.length)
    }
}

/// The memory of a tensor that torch would only read as it is: outside of graphs, with the signs
/// that are in memory.
pub(crate) fn plain_memory(tensor: &Bound<'_, PyAny>) -> Option<Memory> {
    let ordinary = Tensor::of_plain_or_mapped(tensor)?;
    if takes_part_in_graphs(tensor) || has_signs(imports(tensor.py()).ok()?, &ordinary)? {
        return None;
    }
    dlpack::strided_memory_of(tensor).ok()?
}

/// Tells whether gradients are followed through a tensor, forwards or backwards. A view has the
/// fields for that, and mostly does not use them.
fn takes_part_in_graphs(tensor: &Bound<'_, PyAny>) -> bool {
    let py = tensor.py();
    let ask = || -> PyResult<bool> {
        let imports = imports(py)?;
        if tensor
            .getattr(imports.names.requires_grad.bind(py))?
            .is_truthy()?
        {
            return Ok(true);
        }
        let level = imports.forward_grad.bind(py).getattr("_current_level")?;
        Ok(level.extract::<i64>()? >= 0)
    };
    ask().unwrap_or(true)
}

/// A leaf, and where its rows go.
struct Job<'py> {
    leaf: OwnedLeaf,
    /// The tensors that have the memory.
    held: [Bound<'py, PyAny>; 2],
}

/// The leaves whose rows are copied at the end.
#[derive(Default)]
pub(crate) struct Jobs<'py> {
    list: Vec<Job<'py>>,
}

impl<'py> Jobs<'py> {
    /// A new tensor that will have the rows of `leaf`; None where torch has to make it.
    pub(crate) fn take(
        &mut self,
        imports: &Imports,
        leaf: &Bound<'py, PyAny>,
        rows: &Rows,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(memory) = plain_memory(leaf).filter(|memory| rows.are_of(memory)) else {
            return Ok(None);
        };
        let Some(layout) = memory.rows() else {
            return Ok(None);
        };
        let py = leaf.py();
        let mut shape = rows.shape.clone();
        shape.extend_from_slice(&memory.shape[1..]);
        let shape = PyTuple::new(py, shape)?;
        let new_empty = imports.names.new_empty.bind(py);
        let made = leaf.call_method1(new_empty, (shape,))?;
        let Some(result) = plain_memory(&made).filter(Memory::is_plain) else {
            return Ok(None);
        };
        if result.dtype != memory.dtype || result.num_bytes != layout.0 * rows.count {
            return Ok(None);
        }
        if result.num_bytes >= LARGE_BYTES {
            // SAFETY: the memory was just allocated for this tensor.
            unsafe { gather::prefer_large_pages(result.pointer.cast_mut(), result.num_bytes) };
        }
        self.add(leaf, &memory, layout, &made, &result);
        Ok(Some(made))
    }

    /// Notes that the rows of `leaf` go to `target`; false where they do not fit as they are.
    fn pair(&mut self, leaf: &Bound<'py, PyAny>, target: &Bound<'py, PyAny>, rows: &Rows) -> bool {
        let (Some(memory), Some(result)) = (plain_memory(leaf), plain_memory(target)) else {
            return false;
        };
        let Some(layout) = memory.rows() else {
            return false;
        };
        if !rows.are_of(&memory) {
            return false;
        }
        let apart = match (memory.bounds(), result.bounds()) {
            (Some(own), Some(others)) => own.1 <= others.0 || others.1 <= own.0,
            _ => false,
        };
        let fits = apart
            && result.is_plain()
            && result.dtype == memory.dtype
            && result.num_bytes == layout.0 * rows.count;
        if fits {
            self.add(leaf, &memory, layout, target, &result);
        }
        fits
    }

    fn add(
        &mut self,
        leaf: &Bound<'py, PyAny>,
        memory: &Memory,
        (row_bytes, stride): (usize, usize),
        target: &Bound<'py, PyAny>,
        result: &Memory,
    ) {
        let file = memory
            .bounds()
            .and_then(|(lowest, highest)| row_file_at(lowest, highest));
        self.list.push(Job {
            leaf: OwnedLeaf {
                source: memory.pointer,
                stride,
                row_bytes,
                result: result.pointer.cast_mut(),
                file,
            },
            held: [leaf.clone(), target.clone()],
        });
    }

    /// Copies the rows of all leaves.
    pub(crate) fn run(self, py: Python<'py>, rows: Option<&Rows>) -> PyResult<()> {
        let Some(rows) = rows.filter(|_| !self.list.is_empty()) else {
            return Ok(());
        };
        let leaves: Vec<Leaf<'_>> = self.list.iter().map(|job| job.leaf.as_leaf()).collect();
        let runs = &rows.runs;
        let bytes: usize = leaves.iter().map(|leaf| leaf.row_bytes * rows.count).sum();
        let reads = leaves.iter().any(|leaf| leaf.backing.is_some());
        let copy = || {
            // SAFETY: the tensors are held; each row is one of a tensor, as the positions were
            // compared with its length; the results are as long as there are positions, and overlap
            // with no source. Another thread that takes the memory away from a tensor meanwhile does
            // what torch does not allow either.
            unsafe { gather::gather(&leaves, runs) }
        };
        let copied = if reads || bytes >= RELEASE_BYTES {
            py.detach(copy)
        } else {
            copy()
        };
        copied.map_err(|error| crate::storage::exception(py, &error))
    }
}

/// Entries that are left to torch, and the targets of their rows.
type Pairs<'py> = SmallVec<[(Bound<'py, PyAny>, Bound<'py, PyAny>); 4]>;

struct WriteInto<'a, 'py> {
    imports: &'static Imports,
    rows: &'a Rows,
    jobs: Jobs<'py>,
    // Leaves that torch copies, and collections that are not dense.
    leaves: Pairs<'py>,
    others: Pairs<'py>,
    // Targets that are written natively.
    written: Vec<Bound<'py, PyAny>>,
}

impl<'py> WriteInto<'_, 'py> {
    /// Pairs the entries of two dense collections; false where one of them has no place.
    fn pair(&mut self, td: &Bound<'py, PyAny>, out: &Bound<'py, PyAny>) -> PyResult<bool> {
        let imports = self.imports;
        let _guard = RecursionGuard::enter(td.py())?;
        let held = collection::entries(imports, out)?;
        for (key, value) in ffi::dict_pairs(&collection::entries(imports, td)?) {
            let Some(target) = held.get_item(&key)? else {
                return Ok(false);
            };
            match (kind(imports, &value)?, kind(imports, &target)?) {
                (Kind::Tensor, Kind::Tensor) => {
                    if !self.fits(&value, &target) {
                        return Ok(false);
                    }
                    if self.jobs.pair(&value, &target, self.rows) {
                        self.written.push(target);
                    } else {
                        self.leaves.push((value, target));
                    }
                }
                (Kind::Dense, Kind::Dense) => {
                    if !self.pair(&value, &target)? {
                        return Ok(false);
                    }
                }
                (Kind::Foreign, Kind::Foreign) => self.others.push((value, target)),
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Tells whether `target` has the shape of the rows of `leaf`.
    fn fits(&self, leaf: &Bound<'py, PyAny>, target: &Bound<'py, PyAny>) -> bool {
        let own = shape_of(leaf);
        let theirs = shape_of(target);
        let (Some(own), Some(theirs)) = (own, theirs) else {
            return false;
        };
        let rest = own.get(1..).unwrap_or_default();
        own.len() > rest.len()
            && theirs.len() == self.rows.shape.len() + rest.len()
            && theirs.starts_with(&self.rows.shape)
            && theirs.ends_with(rest)
    }
}

/// Tells torch that tensors have other values now: a graph that needs those of before says so.
fn raise_versions(py: Python<'_>, written: &[Bound<'_, PyAny>]) -> PyResult<()> {
    if written.is_empty() {
        return Ok(());
    }
    let increment = py
        .import("torch.autograd.graph")?
        .getattr("increment_version")?;
    for tensor in written {
        increment.call1((tensor,))?;
    }
    Ok(())
}

/// The rows of a dense collection that an index means, if `out` has as many; None where that is not
/// for the native code.
fn rows_of<'py>(
    imports: &'static Imports,
    td: &Bound<'py, PyAny>,
    index: &Bound<'py, PyAny>,
    out: &Bound<'py, PyAny>,
) -> PyResult<Option<Rows>> {
    if !collection::is_dense(imports, td)? || !collection::is_dense(imports, out)? {
        return Ok(None);
    }
    let size = crate::index::plain_dims(&collection::batch_size(imports, td)?);
    let wanted = crate::index::plain_dims(&collection::batch_size(imports, out)?);
    let (Some(size), Some(wanted)) = (size, wanted) else {
        return Ok(None);
    };
    let Some((&length, rest)) = size.split_first() else {
        return Ok(None);
    };
    let rows = Rows::at(imports, index, length).filter(|rows| {
        wanted.len() == rows.shape.len() + rest.len()
            && wanted.starts_with(&rows.shape)
            && wanted.ends_with(rest)
    });
    Ok(rows)
}

/// Pairs the entries of two dense collections; None where one of them has no place.
fn pairs_of<'a, 'py>(
    imports: &'static Imports,
    td: &Bound<'py, PyAny>,
    rows: &'a Rows,
    out: &Bound<'py, PyAny>,
) -> PyResult<Option<WriteInto<'a, 'py>>> {
    let mut walk = WriteInto {
        imports,
        rows,
        jobs: Jobs::default(),
        leaves: Pairs::new(),
        others: Pairs::new(),
        written: Vec::new(),
    };
    Ok(walk.pair(td, out)?.then_some(walk))
}

/// Writes the rows of `td` at `index` into `out`, a collection of their batch size.
#[pyfunction]
fn gather_into<'py>(
    td: &Bound<'py, PyAny>,
    index: &Bound<'py, PyAny>,
    out: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let py = td.py();
    let imports = imports(py)?;
    let others = |td: &Bound<'py, PyAny>, out: &Bound<'py, PyAny>| {
        from_twin(py, "gather", "gather_into", (td, index, out)).map(drop)
    };
    let Some(rows) = rows_of(imports, td, index, out)? else {
        return others(td, out);
    };
    let Some(walk) = pairs_of(imports, td, &rows, out)? else {
        return others(td, out);
    };
    walk.jobs.run(py, Some(&rows))?;
    raise_versions(py, &walk.written)?;
    for (leaf, target) in walk.leaves {
        let copied = leaf.get_item(index)?;
        target.call_method1(imports.names.copy_.bind(py), (copied,))?;
    }
    for (entry, target) in walk.others {
        others(&entry, &target)?;
    }
    Ok(())
}

/// The longest wait for rows before Python may act on a signal.
const SIGNALS: Duration = Duration::from_millis(200);

/// Threads that copy rows while Python does something else.
#[pyclass(frozen, name = "GatherPrefetcher", module = "tensordict._rust")]
struct PyPrefetcher(Prefetcher);

/// A copy that was begun. Tensors refer to nothing, so there is nothing for the garbage collector.
#[pyclass(frozen, name = "GatherTicket", module = "tensordict._rust")]
struct PyTicket {
    // Dropped first, which waits: the memory has to be there until then.
    ticket: Ticket,
    _held: Vec<Py<PyAny>>,
    // A tensor can be given other memory meanwhile, and then frees what it had.
    _storages: Vec<HeldStorage>,
}

#[pymethods]
impl PyPrefetcher {
    #[new]
    fn new(num_threads: usize) -> Self {
        Self(Prefetcher::new(num_threads))
    }

    /// Begins to write the rows of `td` at `index` into `out`; None where not every entry can be
    /// copied without Python. Versions of the tensors stay as they are: no graph has them.
    fn submit<'py>(
        &self,
        td: &Bound<'py, PyAny>,
        index: &Bound<'py, PyAny>,
        out: &Bound<'py, PyAny>,
    ) -> PyResult<Option<PyTicket>> {
        let py = td.py();
        let imports = imports(py)?;
        let Some(rows) = rows_of(imports, td, index, out)? else {
            return Ok(None);
        };
        self.begin(imports, td, rows, out)
    }

    /// Begins to write rows into `out`, as [`PyPrefetcher::submit`] does, from collections that
    /// follow each other: the rows of `parts[k]` end before row `stops[k]`. Gives a ticket for each
    /// part that has one of the rows.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "arguments of Python arrive by value"
    )]
    fn submit_parts<'py>(
        &self,
        parts: Vec<Bound<'py, PyAny>>,
        stops: Vec<usize>,
        index: &Bound<'py, PyAny>,
        out: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Vec<PyTicket>>> {
        let imports = imports(out.py())?;
        let total = stops.last().copied().unwrap_or(0);
        let length = i64::try_from(total).unwrap_or(i64::MAX);
        let rows = Rows::at(imports, index, length).filter(|_| stops.is_sorted());
        let Some(rows) = rows else {
            return Ok(None);
        };
        let mut tickets = Vec::new();
        for (part, own) in rows.split(&stops) {
            let Some(td) = parts.get(part) else {
                return Ok(None);
            };
            let Some(ticket) = self.begin(imports, td, own, out)? else {
                return Ok(None);
            };
            tickets.push(ticket);
        }
        Ok(Some(tickets))
    }
}

impl PyPrefetcher {
    /// Begins to write rows of `td` into `out`; None where an entry is for torch.
    fn begin<'py>(
        &self,
        imports: &'static Imports,
        td: &Bound<'py, PyAny>,
        rows: Rows,
        out: &Bound<'py, PyAny>,
    ) -> PyResult<Option<PyTicket>> {
        let py = td.py();
        let dense = collection::is_dense(imports, td)? && collection::is_dense(imports, out)?;
        let Some(walk) = dense
            .then(|| pairs_of(imports, td, &rows, out))
            .transpose()?
            .flatten()
        else {
            return Ok(None);
        };
        if !walk.leaves.is_empty() || !walk.others.is_empty() {
            return Ok(None);
        }
        let jobs = walk.jobs.list.into_iter();
        let (leaves, held): (Vec<_>, Vec<_>) = jobs.map(|job| (job.leaf, job.held)).unzip();
        let storages = held.iter().flatten().filter_map(|tensor| {
            let ordinary = Tensor::of_plain_or_mapped(tensor)?;
            Some(ordinary.storage(1)?.held)
        });
        let storages = storages.collect();
        // SAFETY: as in `Jobs::run`; the ticket holds the tensors.
        let ticket = py.detach(|| unsafe { self.0.submit(leaves, rows.runs) });
        Ok(Some(PyTicket {
            ticket,
            _held: held.into_iter().flatten().map(Bound::unbind).collect(),
            _storages: storages,
        }))
    }
}

#[pymethods]
impl PyTicket {
    /// Waits until the rows are there; false where the parent of this process has begun the copy.
    fn wait(&self, py: Python<'_>) -> PyResult<bool> {
        if !self.ticket.is_of_this_process() {
            return Ok(false);
        }
        let mut outcome = self.ticket.try_wait();
        while outcome.is_none() {
            outcome = py.detach(|| self.ticket.wait(SIGNALS));
            py.check_signals()?;
        }
        match outcome {
            Some(Err(error)) => Err(crate::storage::exception(py, &error)),
            _ => Ok(true),
        }
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyPrefetcher>()?;
    module.add_class::<PyTicket>()?;
    module.add_function(wrap_pyfunction!(gather_into, module)?)
}
