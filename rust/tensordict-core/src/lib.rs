//! Structure, storage and scheduling of collections of tensors. Knows nothing of Python.
//!
//! Start reading at [`error`], which names everything that can go wrong here; each other
//! module is one topic and has the same name in the bindings and in the Python package.

pub mod batch;
pub mod error;
pub mod gather;
pub mod index;
pub mod keys;
pub mod lanes;
pub mod lazy;
pub mod permutation;
pub mod schedule;
pub mod storage;

pub use error::{Error, Result};

/// The version of this crate, as `python -m tensordict doctor` shows it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
