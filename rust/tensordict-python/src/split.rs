//! Calling torch on every leaf where it gives several tensors: as many collections.
//!
//! The specification of each function is its namesake in `tensordict.primitives`.

#![expect(
    clippy::needless_pass_by_value,
    reason = "functions of the module own what they make of Python's arguments"
)]

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::iter::BoundTupleIterator;
use pyo3::types::{PyList, PyTuple};
use smallvec::SmallVec;

use crate::collection::{self, Kind, Names, Splice, State, kind};
use crate::ffi::{self, RecursionGuard};
use crate::imports::{Imports, imports};
use crate::leaf_call::{LeafCall, Tail};
use crate::lock;
use crate::map_leaves::root_dims;

/// The call that [`split_leaves`] makes on each leaf, and what its results are part of.
pub(crate) struct SplitFrame<'a, 'py> {
    pub(crate) op: &'a Bound<'py, PyAny>,
    pub(crate) args: &'a Bound<'py, PyTuple>,
    /// The batch sizes of the results.
    pub(crate) prefixes: &'a Bound<'py, PyList>,
    pub(crate) names: &'a Names<'py>,
    /// True if the results of a locked collection are locked.
    pub(crate) lock: bool,
}

struct SplitLeaves<'a, 'py> {
    imports: &'static Imports,
    frame: &'a SplitFrame<'a, 'py>,
    // The same as in `MapLeaves`.
    lock: bool,
    k: usize,
    call: LeafCall<'a, 'py>,
    splice: Splice<'a, 'py>,
}

/// The collections that a walk makes of one.
type Results<'py> = Vec<Bound<'py, PyAny>>;

/// The parts of one entry, one for each of the results.
enum Parts<'py> {
    /// A tuple, or a type derived from it, as torch returns several values.
    Tuple(BoundTupleIterator<'py>),
    Others(std::vec::IntoIter<Bound<'py, PyAny>>),
}

impl<'py> Parts<'py> {
    fn new(parts: Bound<'py, PyAny>, expected: usize) -> PyResult<Self> {
        let parts = match parts.cast_into::<PyTuple>() {
            Ok(tuple) => {
                check_length(tuple.len(), expected)?;
                return Ok(Self::Tuple(tuple.iter()));
            }
            Err(error) => error.into_inner(),
        };
        let parts = parts.try_iter()?.collect::<PyResult<Results<'py>>>()?;
        check_length(parts.len(), expected)?;
        Ok(Self::Others(parts.into_iter()))
    }

    /// The part in the next of the results.
    #[inline]
    fn next(&mut self) -> Option<Bound<'py, PyAny>> {
        match self {
            Self::Tuple(parts) => parts.next(),
            Self::Others(parts) => parts.next(),
        }
    }
}

impl<'py> SplitLeaves<'_, 'py> {
    fn walk(&mut self, td: &Bound<'py, PyAny>) -> PyResult<Results<'py>> {
        let py = td.py();
        let imports = self.imports;
        let _guard = RecursionGuard::enter(py)?;
        let state = State::of(imports, td)?;
        let entries = ffi::copy_dict(&state.entries)?;
        let num_parts = self.frame.prefixes.len();
        ffi::check_room(num_parts)?;
        let mut rows = SmallVec::<[Parts<'py>; 8]>::with_capacity(entries.len());
        let mut place = 0;
        while let Some(value) = ffi::value_at(&entries, &mut place) {
            rows.push(self.parts(&value, &state)?);
        }
        // One part after the other is made whole, while what it consists of is at hand.
        let mut results = Results::with_capacity(num_parts);
        for (at, prefix) in self.frame.prefixes.iter().enumerate() {
            let part = if at + 1 == num_parts {
                entries.clone()
            } else {
                ffi::copy_dict(&entries)?
            };
            ffi::put_values(&part, rows.iter_mut().filter_map(Parts::next))?;
            let size = self.splice.size(Some(&prefix), &state.batch_size)?;
            let dim_names = self.splice.dim_names(&state.dim_names, &size)?;
            let values = [part.into_any(), size, state.device.clone(), dim_names];
            results.push(collection::new_like(imports, td, values)?);
        }
        Ok(results)
    }

    /// The parts of `value`, an entry of a collection with the attributes `state`.
    fn parts(&mut self, value: &Bound<'py, PyAny>, state: &State<'py>) -> PyResult<Parts<'py>> {
        let imports = self.imports;
        let given = match kind(imports, value)? {
            Kind::Tensor => self.call.call(value)?,
            Kind::Special => {
                let sizes = self
                    .frame
                    .prefixes
                    .iter()
                    .map(|prefix| self.splice.size(Some(&prefix), &state.batch_size))
                    .collect::<PyResult<Results<'py>>>()?;
                let arguments = (value, self.frame.op, self.frame.args, sizes);
                collection::ask_kind(imports, &imports.names.method_split, value, arguments)?
            }
            Kind::Dense => {
                let parts = self.walk(value)?;
                if self.lock {
                    for part in &parts {
                        lock::lock_like(imports, value, part, true)?;
                    }
                }
                return Ok(Parts::Others(parts.into_iter()));
            }
            Kind::Foreign => value.call_method1(
                imports.names.method_split_leaves.bind(value.py()),
                (
                    self.frame.op,
                    self.frame.args,
                    self.frame.prefixes,
                    self.frame.names.to_object(value.py())?,
                    self.lock,
                    self.k,
                ),
            )?,
        };
        Parts::new(given, self.frame.prefixes.len())
    }
}

/// The error of `zip(entries, parts, strict=True)` where the lengths differ.
fn check_length(found: usize, expected: usize) -> PyResult<()> {
    if found == expected {
        return Ok(());
    }
    let relation = if found < expected {
        "shorter"
    } else {
        "longer"
    };
    Err(PyValueError::new_err(format!(
        "zip() argument 2 is {relation} than argument 1"
    )))
}

/// Does the work of `map_leaves` for an `op` that gives a sequence: one collection per item.
#[pyfunction]
#[pyo3(
    signature = (td, op, args, prefixes, names = Names::Keep, lock = false, k = -1),
    text_signature = "(td, op, args, prefixes, names=True, lock=False, k=-1)"
)]
fn split_leaves<'py>(
    td: &Bound<'py, PyAny>,
    op: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    prefixes: &Bound<'py, PyList>,
    names: Names<'py>,
    lock: bool,
    k: i64,
) -> PyResult<Bound<'py, PyAny>> {
    let py = td.py();
    let imports = imports(py)?;
    if !collection::is_dense(imports, td)? {
        return td.call_method1(
            imports.names.method_split_leaves.bind(py),
            (op, args, prefixes, names.to_object(py)?, lock, k),
        );
    }
    let k = root_dims(imports, td, k)?;
    // A copy: the operation may change the list while it is walked.
    let prefixes = prefixes.get_slice(0, prefixes.len());
    let frame = SplitFrame {
        op,
        args,
        prefixes: &prefixes,
        names: &names,
        lock,
    };
    split_from(imports, td, &frame, k)
}

/// [`split_leaves`] of a tensordict that is the root of the walk.
pub(crate) fn split_dense<'py>(
    imports: &'static Imports,
    td: &Bound<'py, PyAny>,
    frame: &SplitFrame<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let k = collection::batch_size(imports, td)?.len();
    split_from(imports, td, frame, k)
}

fn split_from<'py>(
    imports: &'static Imports,
    td: &Bound<'py, PyAny>,
    frame: &SplitFrame<'_, 'py>,
    k: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let lock = frame.lock;
    let mut walk = SplitLeaves {
        imports,
        frame,
        lock: lock && !collection::is_locked(imports, td)?,
        k,
        call: LeafCall::new(imports, frame.op, frame.args, Tail::Nothing, k)?,
        splice: Splice::new(imports, k, frame.names),
    };
    let results = walk.walk(td)?;
    for result in &results {
        lock::lock_like(imports, td, result, lock)?;
    }
    Ok(PyList::new(td.py(), results)?.into_any())
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(split_leaves, module)?)
}
