//! The build of this extension, which `python -m tensordict doctor` and the warning about debug
//! builds read.

use pyo3::prelude::*;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("core_version", tensordict_core::VERSION)?;
    module.add("is_debug_build", cfg!(debug_assertions))?;
    Ok(())
}
