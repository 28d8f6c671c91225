//! Checkpoints, for Python: steps that are written at once or in the background, and read back.

#![expect(
    clippy::needless_pass_by_value,
    reason = "arguments from Python are converted to values"
)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use tensordict_core::storage::checkpoint::{
    self, Background, Copied, Gathered, Order, Part, Staging, Step, StepFile, Wanted,
};
use tensordict_core::storage::full::Target;
use tensordict_core::storage::io::Disk;
use tensordict_core::storage::safetensors::NewFile;
use tensordict_core::storage::source::Source;

use super::dlpack::{memory_of, strided_memory_of};
use super::exception;
use super::leaves::{Kept, values_of};
use super::safetensors::{Tensor, planned_tensors};
use super::save::{SaveProgress, detached};

/// `(folder of the steps, directory, [(name, tensors, texts)], [(name, bytes)], [(name, file of an older
/// step)], steps to delete, ([(part, process that writes it, its rank)], seconds to wait for them))`.
type Planned<'py> = (
    PathBuf,
    PathBuf,
    Vec<(String, Vec<Tensor<'py>>, Vec<(String, String)>)>,
    Vec<(String, Vec<u8>)>,
    Vec<(String, PathBuf)>,
    Vec<PathBuf>,
    (Vec<(PathBuf, String, usize)>, f64),
);

/// The most threads, whether the save is durable, whether checksums are taken.
type How = (usize, bool, bool);

/// A step, and what holds the bytes of its tensors.
fn planned(step: Planned<'_>) -> PyResult<(Step, Vec<Kept>)> {
    let (folder, target, tensors, known, linked, retired, (parts, seconds)) = step;
    let mut held = Vec::new();
    let mut files = Vec::new();
    for (name, tensors, metadata) in tensors {
        files.push(StepFile::Tensors(NewFile {
            path: name.into(),
            other_path: None,
            tensors: planned_tensors(tensors, &mut held)?,
            metadata,
        }));
    }
    let known = known.into_iter();
    files.extend(known.map(|(name, bytes)| StepFile::Bytes(name, bytes)));
    let linked = linked.into_iter();
    files.extend(linked.map(|(name, from)| StepFile::Linked(name, from)));
    let parts = parts.into_iter();
    let step = Step {
        folder,
        target,
        files,
        retired,
        gathered: Gathered {
            parts: parts
                .map(|(path, writer, rank)| Part { path, writer, rank })
                .collect(),
            limit: Duration::try_from_secs_f64(seconds).unwrap_or_default(),
        },
    };
    Ok((step, held))
}

/// Writes a step of a checkpoint, and deletes those that it makes superfluous.
#[pyfunction]
#[pyo3(signature = (step, how, progress))]
fn save_step(py: Python<'_>, step: Planned<'_>, how: How, progress: &SaveProgress) -> PyResult<()> {
    let (step, held) = planned(step)?;
    let saved = progress.saving(py, &held, how, |job| checkpoint::save(job, &step));
    drop(held);
    saved.map_err(|error| progress.exception(py, &error))
}

/// Deletes steps of a folder, each at once.
#[pyfunction]
fn remove_steps(py: Python<'_>, folder: PathBuf, steps: Vec<PathBuf>) -> PyResult<()> {
    py.detach(|| checkpoint::remove(Disk::REAL, &folder, &steps))
        .map_err(|error| exception(py, &error))
}

/// A name of this process, by which others on the machine can tell whether it still runs.
#[pyfunction]
fn process_name() -> String {
    checkpoint::process_name()
}

/// Returns whether the process of a name that it gave itself is known to have ended: on this machine.
#[pyfunction]
fn process_has_ended(name: &str) -> bool {
    checkpoint::process_has_ended(name)
}

/// Returns whether the process of a name that it gave itself is known to run: on this machine.
#[pyfunction]
fn process_is_running(name: &str) -> bool {
    checkpoint::process_is_running(name)
}

/// Checksums of 64 bits that tell whether tensors changed.
#[pyfunction]
#[pyo3(signature = (tensors, num_threads))]
fn tensor_digests(
    py: Python<'_>,
    tensors: Vec<Bound<'_, PyAny>>,
    num_threads: usize,
) -> PyResult<Vec<u64>> {
    let mut held = Vec::with_capacity(tensors.len());
    let mut sources: Vec<Source> = Vec::with_capacity(tensors.len());
    for tensor in &tensors {
        let values = values_of(tensor)?;
        // SAFETY: what is kept is held until the checksums are taken.
        sources.push(unsafe { values.source() }?);
        held.push(values.kept);
    }
    let found = detached(py, held.iter().all(Kept::is_in_place), || {
        checkpoint::digests(&sources, num_threads)
    });
    drop(held);
    Ok(found?)
}

/// `(name, dtype, shape, first byte, number of bytes, tensor of bytes that takes them)`. Without a
/// tensor they are only compared with their checksums.
type Range<'py> = (
    String,
    String,
    Vec<i64>,
    usize,
    usize,
    Option<Bound<'py, PyAny>>,
);

/// A file, and the ranges of its tensors that are read.
type Filled<'py> = (PathBuf, Vec<Range<'py>>);

/// Reads ranges of the tensors of safetensors files into memory of the CPU without gaps. A tensor
/// of any dtype is memory as a tensor of bytes.
#[pyfunction]
#[pyo3(signature = (files, num_threads, checks, progress))]
fn read_safetensors_into(
    py: Python<'_>,
    files: Vec<Filled<'_>>,
    num_threads: usize,
    checks: bool,
    progress: &SaveProgress,
) -> PyResult<()> {
    let mut wanted = Vec::with_capacity(files.len());
    for (path, tensors) in &files {
        let tensors = tensors
            .iter()
            .map(|(name, dtype, shape, start, length, tensor)| {
                let target = tensor.as_ref().map(|tensor| {
                    let memory = memory_of(tensor)?.filter(|memory| memory.num_bytes == *length);
                    let memory = memory.ok_or_else(|| {
                        let text =
                            format!("the tensor for {name:?} is not {length} bytes of memory");
                        PyValueError::new_err(text)
                    })?;
                    // SAFETY: `files` holds the tensors during the call; that nobody else uses their
                    // memory meanwhile is for the caller, as with any tensor that is written to.
                    Ok::<_, PyErr>(unsafe {
                        Target::new(memory.pointer.cast_mut(), memory.num_bytes)
                    })
                });
                Ok(Wanted {
                    name: name.clone(),
                    dtype: dtype.clone(),
                    shape: shape.clone(),
                    start: *start,
                    length: *length,
                    target: target.transpose()?,
                })
            });
        wanted.push((path.clone(), tensors.collect::<PyResult<Vec<_>>>()?));
    }
    py.detach(|| {
        let job = progress.job((num_threads, false, checks));
        checkpoint::read_tensors(&job, &wanted)
    })
    .map_err(|error| progress.exception(py, &error))
}

/// `(name, dtype, shape, first index in each dim, tensor that takes the part of its shape)`.
type Boxed<'py> = (String, String, Vec<i64>, Vec<usize>, Bound<'py, PyAny>);

/// Copies parts of the tensors of safetensors files into memory of the CPU, also with gaps, from what the
/// system has of them in memory. They are not compared with checksums. A tensor may be of any dtype whose
/// items have as many bytes.
#[pyfunction]
#[pyo3(signature = (files, num_threads, progress))]
fn copy_safetensors_into(
    py: Python<'_>,
    files: Vec<(PathBuf, Vec<Boxed<'_>>)>,
    num_threads: usize,
    progress: &SaveProgress,
) -> PyResult<()> {
    let mut wanted = Vec::with_capacity(files.len());
    for (path, parts) in &files {
        let copies = parts.iter().map(|(name, dtype, shape, first, tensor)| {
            let placed = strided_memory_of(tensor)?.and_then(|memory| {
                let (start, end) = memory.bounds()?;
                let sizes = memory.shape.iter().map(|&size| usize::try_from(size).ok());
                Some((
                    memory.steps()?,
                    sizes.collect::<Option<_>>()?,
                    memory.pointer,
                    (end - start, memory.item_bytes()),
                ))
            });
            let (strides, sizes, pointer, (extent, item)) = placed.ok_or_else(|| {
                PyValueError::new_err(format!("the tensor for {name:?} is no memory of the CPU"))
            })?;
            Ok(Copied {
                name: name.clone(),
                dtype: dtype.clone(),
                shape: shape.clone(),
                first: first.clone(),
                sizes,
                strides,
                // SAFETY: as in `read_safetensors_into`; no stride is negative, so it begins there.
                target: unsafe { Target::new(pointer.cast_mut(), extent) },
                extent,
                item,
            })
        });
        wanted.push((path.clone(), copies.collect::<PyResult<Vec<_>>>()?));
    }
    py.detach(|| checkpoint::copy_tensors(&progress.job((num_threads, false, false)), &wanted))
        .map_err(|error| progress.exception(py, &error))
}

/// A step that is written in the background.
#[pyclass(module = "tensordict._rust", frozen)]
struct BackgroundSave {
    shared: Arc<Background>,
    process: u32,
}

#[pymethods]
impl BackgroundSave {
    /// Returns whether it has ended, well or not: in the process that saves; in a child nobody
    /// knows.
    fn is_done(&self) -> bool {
        self.is_here() && self.shared.is_done()
    }

    /// Returns whether this process is the one that saves, and not a child of it.
    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    /// Waits for its end, or for so many seconds; whether it has ended. Signals are handled meanwhile.
    #[pyo3(signature = (timeout_s = None))]
    fn wait(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<bool> {
        if !self.is_here() {
            return Err(PyRuntimeError::new_err(
                "The checkpoint is saved by the process that this one was forked from: wait for it \
                 there.",
            ));
        }
        let mut left = timeout_s.map(|seconds| Duration::from_secs_f64(seconds.max(0.0)));
        loop {
            let step = left.map_or(LOOK_EVERY, |left| left.min(LOOK_EVERY));
            if py.detach(|| self.shared.wait(Some(step))) {
                return Ok(true);
            }
            py.check_signals()?;
            if let Some(left) = &mut left {
                *left = left.saturating_sub(step);
                if left.is_zero() {
                    return Ok(false);
                }
            }
        }
    }

    /// Raises why it failed, once.
    fn raise_error(&self, py: Python<'_>) -> PyResult<()> {
        if !self.is_here() {
            return Ok(());
        }
        match self.shared.take_error() {
            None => Ok(()),
            Some(error) => Err(exception(py, &error)),
        }
    }

    /// Asks it to stop: the step is not there then.
    fn cancel(&self) {
        self.shared.progress().cancel();
    }

    /// Bytes written, and bytes to write.
    fn bytes(&self) -> (u64, u64) {
        self.shared.progress().bytes()
    }
}

/// The time between two looks at signals while a save is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Memory in which the values of a step stay as they are while it is written.
#[pyclass(module = "tensordict._rust", frozen)]
#[derive(Default)]
struct StagingMemory {
    staging: Mutex<Staging>,
}

#[pymethods]
impl StagingMemory {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Copies the tensors of a step and has it written by a thread, after the save before.
    #[pyo3(signature = (step, how, after, progress))]
    fn save(
        &self,
        py: Python<'_>,
        step: Planned<'_>,
        how: How,
        after: Option<Py<BackgroundSave>>,
        progress: &SaveProgress,
    ) -> PyResult<BackgroundSave> {
        let (mut step, held) = planned(step)?;
        // Taken out for the while: another save may be asked for by a signal handler meanwhile.
        let mut staging = std::mem::take(&mut *self.staging.lock());
        let staged = progress.saving(py, &held, how, |job| staging.take(job, &mut step));
        drop(held);
        let memory = staged.map_err(|error| progress.exception(py, &error))?;
        staging.keep(&memory);
        *self.staging.lock() = staging;
        let after = after
            .as_ref()
            .map(Py::get)
            .filter(|save| save.is_here() && !save.is_done())
            .map(|save| Arc::clone(&save.shared));
        let order = Order {
            step,
            memory,
            how,
            after,
        };
        let shared = Background::start(order)
            .map_err(|error| PyOSError::new_err(format!("no thread can be started: {error}")))?;
        Ok(BackgroundSave {
            shared,
            process: std::process::id(),
        })
    }

    /// Returns the number of bytes that are kept.
    fn num_bytes(&self) -> usize {
        self.staging.lock().len()
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<BackgroundSave>()?;
    module.add_class::<StagingMemory>()?;
    module.add_function(wrap_pyfunction!(save_step, module)?)?;
    module.add_function(wrap_pyfunction!(remove_steps, module)?)?;
    module.add_function(wrap_pyfunction!(process_name, module)?)?;
    module.add_function(wrap_pyfunction!(process_has_ended, module)?)?;
    module.add_function(wrap_pyfunction!(process_is_running, module)?)?;
    module.add_function(wrap_pyfunction!(tensor_digests, module)?)?;
    module.add_function(wrap_pyfunction!(copy_safetensors_into, module)?)?;
    module.add_function(wrap_pyfunction!(read_safetensors_into, module)?)
}
