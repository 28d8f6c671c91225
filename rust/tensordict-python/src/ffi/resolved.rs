//! Objects that are looked up once.

use std::sync::OnceLock;

use pyo3::prelude::*;

/// A place for what the first one that needs it looks up.
///
/// No lock is held meanwhile, unlike by a `PyOnceLock`: looking up runs Python, another thread can
/// fork then, and nobody would ever unlock it in the child. Two threads may both look up, and
/// the first one's result stays.
pub(crate) struct Resolved<T>(OnceLock<T>);

impl<T> Resolved<T> {
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    #[inline]
    pub(crate) fn get(&self, _py: Python<'_>) -> Option<&T> {
        self.0.get()
    }

    /// Keeps `value`, unless there is one.
    pub(crate) fn set(&self, _py: Python<'_>, value: T) {
        // The interpreter stays attached for the moment that this takes, so that nobody forks.
        drop(self.0.set(value));
    }

    #[inline]
    pub(crate) fn get_or_try_init(
        &self,
        py: Python<'_>,
        resolve: impl FnOnce() -> PyResult<T>,
    ) -> PyResult<&T> {
        if let Some(value) = self.get(py) {
            return Ok(value);
        }
        let fresh = resolve()?;
        Ok(self.0.get_or_init(|| fresh))
    }
}
