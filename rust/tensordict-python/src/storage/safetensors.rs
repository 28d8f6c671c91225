//! Safetensors files, for Python.

#![expect(
    clippy::needless_pass_by_value,
    reason = "arguments from Python are converted to values"
)]

use std::path::{Path, PathBuf};

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tensordict_core::storage::map::Mapping;
use tensordict_core::storage::safetensors::{self, Header, NewFile, NewIndex, NewTensor};
use tensordict_core::storage::source::{Joined, Source};

use super::exception;
use super::leaves::{Kept, values_of};
use super::load::parse_mode;
use super::mapped::Shared;
use super::save::SaveProgress;

/// `(name, tensors, dtype, shape, bytes of an item)`: one tensor, or those of a stack, which are joined in
/// so many chunks each.
pub(super) type Tensor<'py> = (
    String,
    (Vec<Bound<'py, PyAny>>, usize),
    String,
    Vec<i64>,
    u64,
);

/// `(path, other path, tensors, texts of __metadata__)`.
type Shard<'py> = (
    PathBuf,
    Option<PathBuf>,
    Vec<Tensor<'py>>,
    Vec<(String, String)>,
);

/// Writes files, and after them the index (a path, its text, and that where the files are at their
/// other paths), and puts them in place. What the index `stale` names and this save does not write is
/// deleted then. `how` is (threads, durable, checks). Where `maps`: what [`read_safetensors`] returns, of
/// each file that was written.
#[pyfunction]
#[pyo3(signature = (files, index, stale, how, progress, maps))]
fn write_safetensors<'py>(
    py: Python<'py>,
    files: Vec<Shard<'py>>,
    index: Option<(PathBuf, String, String)>,
    stale: Option<PathBuf>,
    how: (usize, bool, bool),
    progress: &SaveProgress,
    maps: bool,
) -> PyResult<Vec<(Texts, Bound<'py, PyDict>)>> {
    // The owners of the regions, held until all is written.
    let mut held = Vec::new();
    let mut planned = Vec::with_capacity(files.len());
    for (path, other_path, tensors, metadata) in files {
        let tensors = planned_tensors(tensors, &mut held)?;
        planned.push(NewFile {
            path,
            other_path,
            tensors,
            metadata,
        });
    }
    let index = index.map(|(path, text, other_text)| NewIndex {
        path,
        text,
        other_text,
    });
    let saved = progress.saving(py, &held, how, |job| {
        safetensors::save(job, &planned, index.as_ref(), stale.as_deref(), maps)
    });
    drop(held);
    let written = saved.map_err(|error| progress.exception(py, &error))?;
    let paths = planned.iter().map(|file| file.path.as_path());
    written
        .into_iter()
        .zip(paths)
        .map(|((header, mapping), path)| over_mapping(py, header, mapping, path))
        .collect()
}

/// Tensors about to be written; what holds their bytes is added to `held`, which lives until then.
pub(super) fn planned_tensors(
    tensors: Vec<Tensor<'_>>,
    held: &mut Vec<Kept>,
) -> PyResult<Vec<NewTensor>> {
    let planned = tensors.into_iter().map(
        |(name, (parts, num_chunks), torch_dtype, shape, item_bytes)| {
            let dtype = safetensors::format_dtype(&torch_dtype).ok_or_else(|| {
                PyTypeError::new_err(format!(
                    "Cannot save the tensor {name:?} as safetensors: the format has no dtype \
                     {torch_dtype}."
                ))
            })?;
            let shape = safetensors::format_shape(dtype, &shape).ok_or_else(|| {
                PyTypeError::new_err(format!(
                    "Cannot save the tensor {name:?} as safetensors: the format has no \
                     {torch_dtype} of the shape {shape:?}."
                ))
            })?;
            let mut sources = parts.iter().map(|part| {
                let values = values_of(part)?;
                // SAFETY: what is kept is held until all is written.
                let source = unsafe { values.source() };
                held.push(values.kept);
                source
            });
            let source = if parts.len() == 1 {
                sources.next().transpose()?.unwrap_or(Source::EMPTY)
            } else {
                joined(sources.collect::<PyResult<_>>()?, num_chunks)?
            };
            Ok(NewTensor {
                name,
                dtype,
                shape,
                source,
                item_bytes,
            })
        },
    );
    planned.collect()
}

/// The bytes of a stack.
fn joined(parts: Vec<Source>, num_chunks: usize) -> PyResult<Source> {
    let regions = parts.into_iter().map(|part| match part {
        Source::Memory(region) => Some(region),
        _ => None,
    });
    regions
        .collect::<Option<Vec<_>>>()
        .and_then(|regions| Joined::new(regions, num_chunks))
        .map(|joined| Source::Joined(Box::new(joined)))
        .ok_or_else(|| PyRuntimeError::new_err("the parts of a stack have gaps"))
}

/// Texts by name.
type Texts = Vec<(String, String)>;

/// The texts of `__metadata__` of a file, and its tensors by name, over one mapping.
#[pyfunction]
#[pyo3(signature = (path, mode))]
fn read_safetensors<'py>(
    py: Python<'py>,
    path: PathBuf,
    mode: Option<&str>,
) -> PyResult<(Texts, Bound<'py, PyDict>)> {
    let map_mode = parse_mode(mode)?;
    let read = py.detach(|| safetensors::map(&path, map_mode));
    let (header, mapping) = read.map_err(|error| exception(py, &error))?;
    over_mapping(py, header, mapping, &path)
}

fn over_mapping<'py>(
    py: Python<'py>,
    header: Header,
    mapping: Mapping,
    path: &Path,
) -> PyResult<(Texts, Bound<'py, PyDict>)> {
    let shared = Shared::new(mapping, path);
    let tensors = PyDict::new(py);
    for (name, tensor) in header.tensors {
        let value = shared.tensor(
            py,
            tensor.offset,
            tensor.length,
            tensor.dtype,
            &tensor.shape,
        )?;
        tensors.set_item(name, value)?;
    }
    Ok((header.metadata.into_iter().collect(), tensors))
}

/// Reads the header of a file: `(texts of __metadata__, [(name, dtype, shape, offset, bytes)],
/// bytes of all)`.
#[pyfunction]
#[expect(clippy::type_complexity, reason = "it is what Python unpacks")]
fn safetensors_header(
    py: Python<'_>,
    path: PathBuf,
) -> PyResult<(
    Vec<(String, String)>,
    Vec<(String, &'static str, Vec<i64>, u64, u64)>,
    u64,
)> {
    let header = py.detach(|| safetensors::read_header(&path));
    let header = header.map_err(|error| exception(py, &error))?;
    let tensors = header.tensors.into_iter().map(|(name, tensor)| {
        (
            name,
            tensor.dtype,
            tensor.shape,
            tensor.offset,
            tensor.length,
        )
    });
    Ok((
        header.metadata.into_iter().collect(),
        tensors.collect(),
        header.file_bytes,
    ))
}

/// A file and the names of its tensors.
type Shards = (PathBuf, Vec<String>);

/// The files that an index names, each with the names of its tensors, and the text of its metadata.
#[pyfunction]
fn read_safetensors_index(py: Python<'_>, path: PathBuf) -> PyResult<(Vec<Shards>, String)> {
    let read = py.detach(|| safetensors::read_index(&path));
    let (files, metadata) = read.map_err(|error| exception(py, &error))?;
    Ok((files.into_iter().collect(), metadata.to_text()))
}

/// Returns whether a file begins as a safetensors file does.
#[pyfunction]
fn is_safetensors(path: PathBuf) -> bool {
    safetensors::is_safetensors(&path)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(write_safetensors, module)?)?;
    module.add_function(wrap_pyfunction!(read_safetensors, module)?)?;
    module.add_function(wrap_pyfunction!(safetensors_header, module)?)?;
    module.add_function(wrap_pyfunction!(read_safetensors_index, module)?)?;
    module.add_function(wrap_pyfunction!(is_safetensors, module)?)
}
