//! Structure, storage and scheduling of collections of tensors. Knows nothing of Python.
//!
//! Each module is one topic. [`index`], [`keys`], [`lazy`], [`gather`] and [`storage`] have the same name
//! in the bindings; the others are used by several of those.

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
mod threads;

pub use error::{Refused, Result};

/// The version of this crate, as `python -m tensordict doctor` shows it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
