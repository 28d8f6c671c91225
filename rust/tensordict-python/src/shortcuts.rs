//! The shortcuts into `CPython` and torch that are taken.
//!
//! A shortcut reads or writes what the other side keeps private, or relies on how it behaves
//! today, and is there for speed alone: whatever takes one can do the same by public
//! interfaces. Each is tried when this is imported and taken where it holds.
//! `docs/dev/native.md` describes them. Here is decided, once, whether they are taken at
//! all: `TENSORDICT_SHORTCUTS=0` in the environment turns all of them off, and a list of names
//! all but those. An interpreter without a global lock turns all of them off, since
//! most rely on it.

use std::sync::atomic::{AtomicU16, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::imports::imports;
use crate::{slots, state, tensors};

/// A shortcut, by its place in the table of [`NAMES`].
#[derive(Clone, Copy)]
pub(crate) enum Shortcut {
    Attributes,
    Dictionaries,
    Calls,
    Tensors,
    Signs,
    Graphs,
    Layouts,
    Sizes,
    MovedItems,
}

const NAMES: [&str; 9] = [
    "attributes",
    "dictionaries",
    "calls",
    "tensors",
    "signs",
    "graphs",
    "layouts",
    "sizes",
    "moved items",
];

/// A bit for each that may be taken.
static ALLOWED: AtomicU16 = AtomicU16::new(0);

impl Shortcut {
    /// Returns whether it may be taken.
    #[inline]
    pub(crate) fn is_allowed(self) -> bool {
        ALLOWED.load(Ordering::Relaxed) & (1 << self as u16) != 0
    }
}

/// Returns which shortcuts are taken, by their names in `docs/dev/native.md`.
#[pyfunction]
fn shortcuts(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    // Those of torch are tried with the first primitive that needs them.
    imports(py)?;
    let [tensors, signs, graphs] = tensors::are_known(py);
    let are_taken = [
        state::is_known(),
        slots::is_known(),
        Shortcut::Calls.is_allowed(),
        tensors,
        signs,
        graphs,
        Shortcut::Layouts.is_allowed(),
        Shortcut::Sizes.is_allowed(),
        Shortcut::MovedItems.is_allowed(),
    ];
    let taken = PyDict::new(py);
    for (name, is_taken) in NAMES.iter().zip(are_taken) {
        taken.set_item(name, is_taken)?;
    }
    Ok(taken)
}

/// Decides; to be called before anything is tried.
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
    Ok(())
}
