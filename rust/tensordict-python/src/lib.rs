//! The bindings, `tensordict._rust`: walks containers, converts, calls the core.
//!
//! This file is a list. Each topic is a module of its own with a `register` function that
//! adds what it offers; the same topic has the same name in the core and in the Python
//! package.

mod access;
mod accessors;
mod aligning;
mod applying;
mod build;
mod calling;
mod container;
mod copying;
mod dims;
mod error;
mod ffi;
mod fields;
mod flags;
mod foreach;
mod imports;
mod index;
mod joining;
mod keys;
mod lazy;
mod leaf_call;
mod listing;
mod locking;
mod mapping;
mod merging;
mod modules;
mod regrouping;
mod shortcuts;
mod slots;
mod splitting;
mod state;
mod storage;
mod storing;
mod tensors;
mod views;
mod walks;

use pyo3::prelude::*;

/// The native half of `tensordict`. Its names are private: use the Python package.
///
/// Walks look into dictionaries and tuples while nobody else can change them, which takes the
/// interpreter's lock: a build without one takes it for this module.
#[pymodule(gil_used = true)]
fn _rust(module: &Bound<'_, PyModule>) -> PyResult<()> {
    shortcuts::register(module)?;
    slots::register(module)?;
    state::register(module)?;
    build::register(module)?;
    keys::register(module)?;
    walks::register(module)?;
    listing::register(module)?;
    mapping::register(module)?;
    splitting::register(module)?;
    dims::register(module)?;
    locking::register(module)?;
    index::register(module)?;
    joining::register(module)?;
    access::register(module)?;
    storing::register(module)?;
    applying::register(module)?;
    copying::register(module)?;
    merging::register(module)?;
    modules::register(module)?;
    fields::register(module)?;
    accessors::register(module)?;
    regrouping::register(module)?;
    aligning::register(module)?;
    foreach::register(module)?;
    lazy::register(module)?;
    storage::register(module)?;
    views::register(module)?;
    Ok(())
}
