//! Consolidated files, for Python.

#![expect(
    clippy::needless_pass_by_value,
    reason = "arguments from Python are converted to values"
)]

use std::path::PathBuf;

use pyo3::prelude::*;
use tensordict_core::storage::consolidated;
use tensordict_core::storage::file::Segment;
use tensordict_core::storage::map::Mode;

use super::exception;
use super::leaves::{Kept, values_of};
use super::load::parse_mode;
use super::mapped::bytes_over;
use super::save::SaveProgress;

/// A segment as the bindings get it: the offset, a tensor, and the key for messages.
pub(crate) type Part<'py> = (u64, Bound<'py, PyAny>, String);

/// Segments of tensors, and what holds their memory.
fn segments_of(parts: Vec<Part<'_>>) -> PyResult<(Vec<Segment>, Vec<Kept>)> {
    let mut held = Vec::with_capacity(parts.len());
    let mut segments = Vec::with_capacity(parts.len());
    for (offset, tensor, key) in parts {
        let values = values_of(&tensor)?;
        // SAFETY: what is kept is returned, and the caller holds it until the segments are
        // written.
        let source = unsafe { values.source() }?;
        held.push(values.kept);
        segments.push(Segment {
            offset,
            source,
            key,
        });
    }
    Ok((segments, held))
}

/// Writes a consolidated file in one step; its bytes, mapped. `behind` has the bytes of data, and the
/// remarks and the description behind them; `how` is (durable, checks).
#[pyfunction]
#[pyo3(signature = (path, parts, behind, how, progress))]
fn write_consolidated<'py>(
    py: Python<'py>,
    path: PathBuf,
    parts: Vec<Part<'py>>,
    behind: (u64, String, String),
    how: (bool, bool),
    progress: &SaveProgress,
) -> PyResult<Bound<'py, PyAny>> {
    let (segments, held) = segments_of(parts)?;
    let (data_bytes, remarks, description) = behind;
    let saved = progress.saving(py, &held, (0, how.0, how.1), |job| {
        consolidated::save(job, &path, &segments, data_bytes, &remarks, &description)
    });
    drop(held);
    bytes_over(
        py,
        saved.map_err(|error| progress.exception(py, &error))?,
        &path,
    )
}

/// Reads the part behind the data of a consolidated file: `(bytes of data, remarks, description)`.
#[pyfunction]
fn read_consolidated(py: Python<'_>, path: PathBuf) -> PyResult<(u64, String, String)> {
    let tail = py.detach(|| consolidated::read_tail(&path));
    let tail = tail.map_err(|error| exception(py, &error))?;
    Ok((tail.data_bytes, tail.remarks, tail.description))
}

/// A consolidated file: `(its bytes, mapped, bytes of data, remarks, description)`. Stores into the
/// bytes reach the file with the mode `r+`, and stay in this process otherwise.
#[pyfunction]
#[pyo3(signature = (path, mode=None))]
fn map_consolidated<'py>(
    py: Python<'py>,
    path: PathBuf,
    mode: Option<&str>,
) -> PyResult<(Bound<'py, PyAny>, u64, String, String)> {
    let mode = match parse_mode(mode)? {
        Mode::Shared => Mode::Shared,
        _ => Mode::Private,
    };
    let mapped = py.detach(|| consolidated::map(&path, mode));
    let (tail, mapping) = mapped.map_err(|error| exception(py, &error))?;
    let bytes = bytes_over(py, mapping, &path)?;
    Ok((bytes, tail.data_bytes, tail.remarks, tail.description))
}

/// Returns whether a file looks like a consolidated one.
#[pyfunction]
fn is_consolidated(path: PathBuf) -> bool {
    consolidated::is_consolidated(&path)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(write_consolidated, module)?)?;
    module.add_function(wrap_pyfunction!(is_consolidated, module)?)?;
    module.add_function(wrap_pyfunction!(map_consolidated, module)?)?;
    module.add_function(wrap_pyfunction!(read_consolidated, module)?)
}
