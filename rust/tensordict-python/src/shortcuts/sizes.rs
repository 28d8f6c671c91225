//! Make a `torch.Size` by the allocator of its type.
//!
//! This is one of the modules that may hold `unsafe`.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyTuple, PyType};

use super::Shortcut;

/// The `torch.Size` of `dims`, made as torch itself makes it where they are plain numbers.
pub(crate) fn new_size<'py>(
    size: &Bound<'py, PyType>,
    dims: &[Bound<'py, PyAny>],
) -> PyResult<Bound<'py, PyAny>> {
    let py = size.py();
    let are_plain = dims.iter().all(PyAnyMethods::is_exact_instance_of::<PyInt>);
    let raw = size.as_type_ptr();
    // SAFETY: `raw` is `torch.Size`, a type alive for the call that derives from tuple and
    // adds nothing to it, so that its allocator takes the number of items. The tuple is
    // new and known to nobody, and each place of it is filled once.
    unsafe {
        let Some(allocate) = (*raw)
            .tp_alloc
            .filter(|_| are_plain && Shortcut::Sizes.is_allowed())
        else {
            return size.call1((PyTuple::new(py, dims)?,));
        };
        let made = Bound::from_owned_ptr_or_err(py, allocate(raw, dims.len().cast_signed()))?;
        for (place, dim) in (0..).zip(dims) {
            ffi::PyTuple_SetItem(made.as_ptr(), place, dim.clone().into_ptr());
        }
        Ok(made)
    }
}
