//! Arguments that say yes or no, as Python reads them: anything may be given, `0` or `None` too.

use pyo3::prelude::*;

/// Returns what Python's `bool` says of a flag.
pub(crate) fn truth(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    value.is_truthy()
}

/// The same for a flag that has a default, which None stands for.
pub(crate) fn truth_or_none(value: &Bound<'_, PyAny>) -> PyResult<Option<bool>> {
    if value.is_none() {
        Ok(None)
    } else {
        value.is_truthy().map(Some)
    }
}
