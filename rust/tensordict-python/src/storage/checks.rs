//! Comparing saves with their checksums, for Python.

#![expect(
    clippy::needless_pass_by_value,
    reason = "arguments from Python are converted to values"
)]

use std::path::PathBuf;

use pyo3::prelude::*;
use tensordict_core::storage::checksums::{BLOCK_BYTES, Checksum};
use tensordict_core::storage::verify::{self, Scrutiny};

use super::save::SaveProgress;

/// The result of [`verify_save`]: the layout, the generation, and for each file of the save the
/// key, the file, the outcome, the problem, and all that as a line.
type Found = (
    &'static str,
    String,
    Vec<(String, PathBuf, &'static str, String, String)>,
);

/// Compares the files of a save of any layout, or of what is at a key of it, with their checksums.
#[pyfunction]
#[pyo3(signature = (path, num_threads, is_deep, progress, part = None))]
fn verify_save(
    py: Python<'_>,
    path: PathBuf,
    num_threads: usize,
    is_deep: bool,
    progress: &SaveProgress,
    part: Option<Vec<String>>,
) -> PyResult<Found> {
    let how = Scrutiny {
        threads: num_threads,
        is_deep,
        part: part.as_deref(),
        progress: progress.watched(),
    };
    let report = py
        .detach(|| verify::verify(&path, &how))
        .map_err(|error| progress.exception(py, &error))?;
    let findings = report.findings.into_iter().map(|finding| {
        let line = finding.to_line();
        let outcome = finding.outcome.name();
        (finding.key, finding.path, outcome, finding.detail, line)
    });
    Ok((report.layout, report.generation, findings.collect()))
}

/// Takes the checksums of a tree as it is; how many files have one.
#[pyfunction]
#[pyo3(signature = (path, num_threads, progress))]
fn seal_tree(
    py: Python<'_>,
    path: PathBuf,
    num_threads: usize,
    progress: &SaveProgress,
) -> PyResult<usize> {
    let checksums = py.detach(|| {
        let job = progress.job((num_threads, false, true));
        verify::seal(&job, &path)
    });
    Ok(checksums
        .map_err(|error| progress.exception(py, &error))?
        .files
        .len())
}

/// The CRC-32C of each MiB of some bytes, and of the shorter rest, as in the checksums of a save.
#[pyfunction]
fn block_checksums(py: Python<'_>, content: &[u8]) -> Vec<u32> {
    py.detach(|| {
        let blocks = content.chunks(BLOCK_BYTES);
        blocks.map(|block| Checksum::of(block).whole).collect()
    })
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(block_checksums, module)?)?;
    module.add_function(wrap_pyfunction!(verify_save, module)?)?;
    module.add_function(wrap_pyfunction!(seal_tree, module)?)
}
