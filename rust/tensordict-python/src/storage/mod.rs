//! Saving and loading: the core's storage, driven from Python.
//!
//! [`entries`] takes a plan together from Python collections, whose tensors [`leaves`] reads, and [`save`]
//! writes it; [`load`] gives
//! entries to Python collections. Memory goes to and from torch by [`dlpack`]; [`mapped`] makes the
//! tensors over files. The GIL is released while files are written, opened or mapped.

mod archive;
mod arena;
mod checkpoint;
mod checks;
mod consolidated;
mod devices;
pub(crate) mod dlpack;
mod entries;
mod errors;
mod leaves;
mod load;
mod lock;
pub(crate) mod mapped;
mod safetensors;
mod save;
mod saved;

pub(crate) use errors::exception;
use pyo3::prelude::*;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    mapped::register(module)?;
    save::register(module)?;
    saved::register(module)?;
    load::register(module)?;
    lock::register(module)?;
    archive::register(module)?;
    arena::register(module)?;
    checkpoint::register(module)?;
    checks::register(module)?;
    consolidated::register(module)?;
    safetensors::register(module)
}
