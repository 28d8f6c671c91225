//! The shortcuts into `CPython` and torch, and which of them are taken.
//!
//! A shortcut reads or writes what the other side keeps private, or relies on how it behaves
//! today, and is there for speed alone: the code that takes one can do the same by public
//! interfaces. Each is tried on import and taken if it holds. All of them are in this folder;
//! `docs/dev/native.md` says what each assumes and gains. The environment decides once whether
//! they may be taken at all: `TENSORDICT_SHORTCUTS=0` turns all of them off, and a list of names
//! all but those. An interpreter without a global lock turns all of them off, since most rely
//! on it.

pub(crate) mod calls;
pub(crate) mod sizes;
pub(crate) mod tensors;

use std::sync::atomic::{AtomicU8, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::imports::imports;

/// A shortcut, by its place in the table of [`NAMES`].
#[derive(Clone, Copy)]
pub(crate) enum Shortcut {
    Calls,
    Tensors,
    Sizes,
}

const NAMES: [&str; 3] = ["calls", "tensors", "sizes"];

/// A bit for each that may be taken.
static ALLOWED: AtomicU8 = AtomicU8::new(0);

impl Shortcut {
    /// Returns whether it may be taken.
    #[inline]
    pub(crate) fn is_allowed(self) -> bool {
        ALLOWED.load(Ordering::Relaxed) & (1 << self as u8) != 0
    }
}

/// Returns which shortcuts are taken, by their names in `docs/dev/native.md`.
#[pyfunction]
fn shortcuts(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    // Those of torch are tried with the first primitive that needs them.
    imports(py)?;
    let are_taken = [
        Shortcut::Calls.is_allowed(),
        tensors::are_known(py),
        Shortcut::Sizes.is_allowed(),
    ];
    let taken = PyDict::new(py);
    for (name, is_taken) in NAMES.iter().zip(are_taken) {
        taken.set_item(name, is_taken)?;
    }
    Ok(taken)
}

/// Decides which shortcuts are allowed, then tries them.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let build = module.py().import("sys")?.getattr("version")?;
    let has_lock = !build.extract::<&str>()?.contains("free-threading");
    let given = std::env::var("TENSORDICT_SHORTCUTS");
    let is_named = |name: &str| match &given {
        Ok(names) if !matches!(names.as_str(), "" | "1") => {
            names.split(',').any(|given| given.trim() == name)
        }
        _ => true,
    };
    let allowed = (0..)
        .zip(NAMES)
        .filter(|(_, name)| has_lock && is_named(name))
        .fold(0, |allowed, (place, _)| allowed | (1 << place));
    ALLOWED.store(allowed, Ordering::Relaxed);
    module.add_function(wrap_pyfunction!(shortcuts, module)?)?;
    calls::register(module)
}
