//! Calling torch on every leaf: one result for each collection. `split` gives several.
//!
//! The specification of each function is its namesake in `tensordict.primitives`.

#![expect(
    clippy::needless_pass_by_value,
    reason = "functions of the module own what they make of Python's arguments"
)]

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::collection::{self, Kind, Names, Splice, State, kind};
use crate::ffi::{self, RecursionGuard};
use crate::imports::{Imports, imports};
use crate::leaf_call::{LeafCall, Tail};
use crate::lock;

/// The number of the root's batch dims: `k`, or those of `td` where `k` is negative.
pub(crate) fn root_dims(imports: &Imports, td: &Bound<'_, PyAny>, k: i64) -> PyResult<usize> {
    match usize::try_from(k) {
        Ok(k) => Ok(k),
        Err(_) => Ok(collection::batch_size(imports, td)?.len()),
    }
}

/// The call that [`map_leaves`] makes on each leaf, and what the results are part of.
#[derive(Clone, Copy)]
pub(crate) struct Frame<'a, 'py> {
    pub(crate) op: &'a Bound<'py, PyAny>,
    pub(crate) args: &'a Bound<'py, PyTuple>,
    /// The root's new batch size; None where all keep theirs.
    pub(crate) prefix: Option<&'a Bound<'py, PyAny>>,
    pub(crate) names: &'a Names<'py>,
    pub(crate) tail: Tail,
    /// True if the result of a locked collection is locked.
    pub(crate) lock: bool,
}

impl<'py> Frame<'_, 'py> {
    /// Leaves a collection that is not dense to itself.
    fn foreign(&self, td: &Bound<'py, PyAny>, lock: bool, k: i64) -> PyResult<Bound<'py, PyAny>> {
        let py = td.py();
        let names = self.names.to_object(py)?;
        td.call_method1(
            imports(py)?.names.method_map_leaves.bind(py),
            (
                self.op,
                self.args,
                self.prefix,
                names,
                self.tail.code(),
                lock,
                k,
            ),
        )
    }
}

struct MapLeaves<'a, 'py> {
    imports: &'static Imports,
    frame: &'a Frame<'a, 'py>,
    // True if nested collections that are locked on their own stay locked.
    lock: bool,
    k: usize,
    call: LeafCall<'a, 'py>,
    splice: Splice<'a, 'py>,
}

impl<'py> MapLeaves<'_, 'py> {
    fn walk(&mut self, td: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let imports = self.imports;
        let _guard = RecursionGuard::enter(td.py())?;
        let state = State::of(imports, td)?;
        let size = self.splice.size(self.frame.prefix, &state.batch_size)?;
        let entries = ffi::copy_dict(&state.entries)?;
        ffi::replace_values(&entries, |value| {
            Ok(Some(match kind(imports, value)? {
                Kind::Tensor => self.call.call(value)?,
                Kind::Special => self.special(value, &size)?,
                Kind::Dense => {
                    let part = self.walk(value)?;
                    lock::lock_like(imports, value, &part, self.lock)?;
                    part
                }
                Kind::Foreign => self
                    .frame
                    .foreign(value, self.lock, i64::try_from(self.k)?)?,
            }))
        })?;
        let dim_names = self.splice.dim_names(&state.dim_names, &size)?;
        let values = [entries.into_any(), size, state.device, dim_names];
        collection::new_like(imports, td, values)
    }

    /// Lets the kind of a special entry call the operation, unless the entry keeps its elements in
    /// a collection of the new batch size `size`.
    #[cold]
    fn special(
        &mut self,
        value: &Bound<'py, PyAny>,
        size: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let imports = self.imports;
        let size = self.frame.prefix.map(|_| size);
        if let Some(size) = size
            && let Some(whole) = collection::resized(imports, value, size)?
        {
            return Ok(whole);
        }
        let args = self.call.arguments_for(value)?;
        let arguments = (value, self.frame.op, args, size);
        collection::ask_kind(imports, &imports.names.method_mapped, value, arguments)
    }
}

/// Calls `op` on every leaf and gives a collection of the same structure.
#[pyfunction]
#[pyo3(
    signature = (td, op, args = None, prefix = None, names = Names::Keep, tail = 0, lock = false, k = -1),
    text_signature = "(td, op, args=(), prefix=None, names=True, tail=0, lock=False, k=-1)"
)]
#[expect(clippy::too_many_arguments, reason = "those of the twin")]
fn map_leaves<'py>(
    td: &Bound<'py, PyAny>,
    op: &Bound<'py, PyAny>,
    args: Option<Bound<'py, PyTuple>>,
    prefix: Option<&Bound<'py, PyAny>>,
    names: Names<'py>,
    tail: i64,
    lock: bool,
    k: i64,
) -> PyResult<Bound<'py, PyAny>> {
    let args = args.unwrap_or_else(|| PyTuple::empty(td.py()));
    let frame = Frame {
        op,
        args: &args,
        prefix,
        names: &names,
        tail: Tail::from_code(tail),
        lock,
    };
    map_any(td, &frame, k)
}

/// Maps the leaves of a collection of any class. `k` is negative where it is the root of the walk.
pub(crate) fn map_any<'py>(
    td: &Bound<'py, PyAny>,
    frame: &Frame<'_, 'py>,
    k: i64,
) -> PyResult<Bound<'py, PyAny>> {
    let imports = imports(td.py())?;
    if !collection::is_dense(imports, td)? {
        return frame.foreign(td, frame.lock, k);
    }
    map_from(imports, td, frame, root_dims(imports, td, k)?)
}

/// [`map_leaves`] of a tensordict that is the root of the walk.
pub(crate) fn map_dense<'py>(
    imports: &'static Imports,
    td: &Bound<'py, PyAny>,
    frame: &Frame<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let k = collection::batch_size(imports, td)?.len();
    map_from(imports, td, frame, k)
}

fn map_from<'py>(
    imports: &'static Imports,
    td: &Bound<'py, PyAny>,
    frame: &Frame<'_, 'py>,
    k: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let lock = frame.lock;
    let mut walk = MapLeaves {
        imports,
        frame,
        lock: lock && frame.prefix.is_some() && !collection::is_locked(imports, td)?,
        k,
        call: LeafCall::new(imports, frame.op, frame.args, frame.tail, k)?,
        splice: Splice::new(imports, k, frame.names),
    };
    let result = walk.walk(td)?;
    lock::lock_like(imports, td, &result, lock)?;
    Ok(result)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(map_leaves, module)?)
}
