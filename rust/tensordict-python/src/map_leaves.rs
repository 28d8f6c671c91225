//! Calling torch on every leaf: one result for each collection. `splitting` has several.
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
use crate::imports::{Imports, from_twin, imports};
use crate::leaf_call::{LeafCall, Tail};
use crate::lock;

/// The number of the root's batch dims: `k`, or those of `td` where `k` is negative.
pub(crate) fn root_dims(imports: &Imports, td: &Bound<'_, PyAny>, k: i64) -> PyResult<usize> {
    match usize::try_from(k) {
        Ok(k) => Ok(k),
        Err(_) => Ok(collection::batch_size(imports, td)?.len()),
    }
}

struct MapLeaves<'a, 'py> {
    imports: &'static Imports,
    op: &'a Bound<'py, PyAny>,
    args: &'a Bound<'py, PyTuple>,
    prefix: Option<&'a Bound<'py, PyAny>>,
    names: &'a Names<'py>,
    tail: Tail,
    // True if nested collections that are locked on their own stay locked.
    lock: bool,
    k: usize,
    call: LeafCall<'a, 'py>,
    splice: Splice<'a, 'py>,
}

impl<'py> MapLeaves<'_, 'py> {
    fn walk(&mut self, td: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = td.py();
        let imports = self.imports;
        let _guard = RecursionGuard::enter(py)?;
        let state = State::of(imports, td)?;
        let size = self.splice.size(self.prefix, &state.batch_size)?;
        let entries = ffi::copy_dict(&state.entries)?;
        ffi::replace_values(&entries, |value| {
            Ok(Some(match kind(imports, value)? {
                Kind::Leaf => match collection::entry_kind(imports, value) {
                    Some(kind) => self.special(&kind, value, &size)?,
                    None => self.call.call(value)?,
                },
                Kind::Dense => {
                    let part = self.walk(value)?;
                    lock::lock_like(imports, value, &part, self.lock)?;
                    part
                }
                Kind::Foreign => value.call_method1(
                    imports.names.method_map_leaves.bind(py),
                    (
                        self.op,
                        self.args,
                        self.prefix,
                        self.names.to_object(py)?,
                        self.tail.code(),
                        self.lock,
                        self.k,
                    ),
                )?,
            }))
        })?;
        let dim_names = self.splice.dim_names(&state.dim_names, &size)?;
        let values = [entries.into_any(), size, state.device, dim_names];
        collection::new_like(imports, td, values)
    }

    /// Lets the kind of a special entry call the operation.
    #[cold]
    fn special(
        &self,
        kind: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        size: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = value.py();
        let tail = (value, self.args, self.tail.code(), self.k);
        let args = from_twin(py, "common", "with_tail", tail)?;
        let size = self.prefix.map(|_| size);
        let name = self.imports.names.method_mapped.bind(py);
        kind.call_method1(name, (value, self.op, args, size))
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
    let py = td.py();
    let imports = imports(py)?;
    let args = args.unwrap_or_else(|| PyTuple::empty(py));
    if !collection::is_dense(imports, td)? {
        return td.call_method1(
            imports.names.method_map_leaves.bind(py),
            (op, args, prefix, names.to_object(py)?, tail, lock, k),
        );
    }
    let k = root_dims(imports, td, k)?;
    let tail = Tail::from_code(tail);
    map_from(imports, td, op, &args, prefix, &names, tail, lock, k)
}

/// [`map_leaves`] of a member of a stack. Unlocked.
#[expect(clippy::too_many_arguments, reason = "those of the twin")]
pub(crate) fn map_any<'py>(
    td: &Bound<'py, PyAny>,
    op: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    prefix: Option<&Bound<'py, PyAny>>,
    names: &Names<'py>,
    tail: i64,
    k: i64,
    lock: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let py = td.py();
    let imports = imports(py)?;
    if !collection::is_dense(imports, td)? {
        return td.call_method1(
            imports.names.method_map_leaves.bind(py),
            (op, args, prefix, names.to_object(py)?, tail, lock, k),
        );
    }
    let k = root_dims(imports, td, k)?;
    let tail = Tail::from_code(tail);
    map_from(imports, td, op, args, prefix, names, tail, lock, k)
}

/// [`map_leaves`] of a tensordict that is the root of the walk.
#[expect(clippy::too_many_arguments, reason = "those of the twin")]
pub(crate) fn map_dense<'py>(
    imports: &'static Imports,
    td: &Bound<'py, PyAny>,
    op: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    prefix: Option<&Bound<'py, PyAny>>,
    names: &Names<'py>,
    tail: Tail,
    lock: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let k = collection::batch_size(imports, td)?.len();
    map_from(imports, td, op, args, prefix, names, tail, lock, k)
}

#[expect(clippy::too_many_arguments, reason = "those of the twin")]
fn map_from<'py>(
    imports: &'static Imports,
    td: &Bound<'py, PyAny>,
    op: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    prefix: Option<&Bound<'py, PyAny>>,
    names: &Names<'py>,
    tail: Tail,
    lock: bool,
    k: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let mut walk = MapLeaves {
        imports,
        op,
        args,
        prefix,
        names,
        tail,
        lock: lock && prefix.is_some() && !collection::is_locked(imports, td)?,
        k,
        call: LeafCall::new(imports, op, args, tail, k)?,
        splice: Splice::new(imports, k, names),
    };
    let result = walk.walk(td)?;
    lock::lock_like(imports, td, &result, lock)?;
    Ok(result)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(map_leaves, module)?)
}
