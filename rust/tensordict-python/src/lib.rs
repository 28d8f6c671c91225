//! The bindings, `tensordict._rust`: walks collections, converts, calls the core.
//!
//! This file is a list. Each topic is a module of its own with a `register` function that
//! adds what it offers; the same topic has the same name in the core and in the Python
//! package.

mod access;
mod align;
mod apply;
mod build;
mod collection;
mod copy;
mod dims;
mod ffi;
mod fields;
mod flags;
mod foreach;
mod gather;
mod imports;
mod index;
mod items;
mod join;
mod key_views;
mod keys;
mod lanes;
mod lazy;
mod leaf_call;
mod lock;
mod map_leaves;
mod modules;
mod nested_key;
mod permutation;
mod schedule;
mod set;
mod shortcuts;
mod split;
mod storage;
mod tree;
mod update;
mod wire;

use pyo3::prelude::*;

/// The native half of `tensordict`. Its names are private: use the Python package.
///
/// Walks look into dictionaries and tuples while nobody else can change them, which takes the
/// interpreter's lock: a build without one takes it for this module.
#[pymodule(gil_used = true)]
fn _rust(module: &Bound<'_, PyModule>) -> PyResult<()> {
    shortcuts::register(module)?;
    build::register(module)?;
    nested_key::register(module)?;
    tree::register(module)?;
    items::register(module)?;
    map_leaves::register(module)?;
    split::register(module)?;
    dims::register(module)?;
    lock::register(module)?;
    index::register(module)?;
    join::register(module)?;
    access::register(module)?;
    set::register(module)?;
    apply::register(module)?;
    copy::register(module)?;
    update::register(module)?;
    modules::register(module)?;
    fields::register(module)?;
    keys::register(module)?;
    align::register(module)?;
    foreach::register(module)?;
    gather::register(module)?;
    lanes::register(module)?;
    permutation::register(module)?;
    lazy::register(module)?;
    schedule::register(module)?;
    storage::register(module)?;
    key_views::register(module)?;
    wire::register(module)?;
    Ok(())
}
