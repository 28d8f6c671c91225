//! The plan of a save, taken together from Python collections, and its writing.

#![expect(
    clippy::needless_pass_by_value,
    reason = "arguments from Python are converted to values"
)]

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use pyo3::{PyTraverseError, PyVisit};
use tensordict_core::storage::archive::Written;
use tensordict_core::storage::commit::SaveOptions;
use tensordict_core::storage::io::Disk;
use tensordict_core::storage::job::{Job, Progress, Unmoved};
use tensordict_core::storage::map::Mapping;
use tensordict_core::storage::metadata::{LeafMeta, LevelFields, Shape};
use tensordict_core::storage::plan::{Content, Link, Plan};
use tensordict_core::storage::region::{self, Region, Undisturbed};
use tensordict_core::storage::source::Source;
use tensordict_core::storage::{
    StorageError, StorageResult, archive, commit, names, replace, sparse,
};

use super::archive::OpenArchive;
use super::entries::{self, MappedLeaf, SavedLeaf};
use super::exception;
use super::leaves::{Kept, values_of};
use super::load::num_bytes;
use super::mapped::{Recorded, file_at, mapped_tensor, whole_file_at};
use super::saved::{Place, Saved, SavedTensors};
use crate::ffi::{PausedCollector, dict_pairs};

/// A save being planned. Collections add their levels and entries; `write` does it.
///
/// The tensors are held until the plan is dropped, which keeps their memory in place.
#[pyclass(module = "tensordict._rust", frozen)]
pub(crate) struct SavePlan {
    target: PathBuf,
    copies_existing: bool,
    /// True if files of zeros are made, and nothing is written: `memmap_like`.
    is_sparse: bool,
    /// The most threads; 0 for the cores of this process.
    threads: usize,
    state: Mutex<State>,
}

struct State {
    plan: Plan,
    /// The objects that the collections hold for the leaves.
    originals: Vec<Py<PyAny>>,
    leaves: Vec<SavedLeaf>,
}

impl State {
    /// Dtype and shape of the tensor over the file of a leaf.
    fn of_file(&self, number: usize, leaf: &SavedLeaf) -> (Cow<'static, str>, Shape) {
        let meta = self.meta(number);
        match leaf.num_flat {
            None => (meta.dtype.clone(), meta.shape.clone()),
            Some(num_items) => (meta.dtype.clone(), Shape::from_slice(&[num_items])),
        }
    }

    /// Returns whether the memory of all leaves is where it was when they were planned.
    fn is_in_place(&self) -> bool {
        let mut kept = self.leaves.iter().filter_map(|leaf| leaf.kept.as_ref());
        kept.all(Kept::is_in_place)
    }

    fn meta(&self, number: usize) -> &Arc<LeafMeta> {
        let meta = self.plan.leaf_meta(number);
        meta.expect("leaves of the plan are leaves of its levels")
    }
}

#[pymethods]
impl SavePlan {
    #[new]
    #[pyo3(signature = (target, escapes_keys, copies_existing, is_sparse, threads=0))]
    fn new(
        target: PathBuf,
        escapes_keys: bool,
        copies_existing: bool,
        is_sparse: bool,
        threads: usize,
    ) -> Self {
        let state = State {
            plan: Plan::new(escapes_keys),
            originals: Vec::new(),
            leaves: Vec::new(),
        };
        Self {
            target,
            copies_existing,
            is_sparse,
            threads,
            state: Mutex::new(state),
        }
    }

    /// Adds the entries of a level: tensors as leaves. Returns the others, each with the level that
    /// was opened for it, which is theirs to fill: `(key, level, value)`.
    fn add_entries<'py>(
        &self,
        level: usize,
        entries: &Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyList>> {
        let py = entries.py();
        // Python runs below (a subclass of Tensor may do anything), so the pairs are owned.
        let pairs = dict_pairs(entries);
        // The plan is taken out for the while, for the same reason. One that fails is done with.
        let mut plan = std::mem::replace(&mut self.state.lock().plan, Plan::new(true));
        let added = entries::add(&mut plan, level, pairs, self.is_sparse, self.threads)?;
        for leaf in added.mapped {
            let content = self.content_of_mapped(&plan, &leaf)?;
            plan.set_content(leaf.number, content);
        }
        let mut state = self.state.lock();
        state.plan = plan;
        // Mostly there is one level of many leaves, which is taken as it is.
        if state.leaves.is_empty() {
            (state.originals, state.leaves) = (added.originals, added.leaves);
        } else {
            state.originals.extend(added.originals);
            state.leaves.extend(added.leaves);
        }
        drop(state);
        let others = PyList::empty(py);
        for child in added.children {
            others.append(child)?;
        }
        Ok(others)
    }

    /// Closes a level of the layout with a batch size.
    #[pyo3(signature = (level, batch_size, names, type_text, class_text))]
    fn close_level(
        &self,
        py: Python<'_>,
        level: usize,
        batch_size: Vec<i64>,
        names: Option<Vec<Option<String>>>,
        type_text: String,
        class_text: Option<String>,
    ) -> PyResult<()> {
        let fields = LevelFields {
            batch_size,
            type_text,
            class_text,
            names,
        };
        self.state
            .lock()
            .plan
            .close_level(level, &fields)
            .map_err(|error| exception(py, &error))
    }

    /// Closes a level of another layout with the text of its metadata.
    fn close_level_as(&self, level: usize, text: String) {
        self.state.lock().plan.close_level_as(level, text);
    }

    /// Adds a file whose bytes are known to a level: what a collection keeps beside its metadata.
    fn add_file(&self, py: Python<'_>, level: usize, name: &str, content: Vec<u8>) -> PyResult<()> {
        self.state
            .lock()
            .plan
            .add_file(level, name, content)
            .map_err(|error| exception(py, &error))
    }

    /// The directory of a level once saved.
    fn level_directory(&self, level: usize) -> PathBuf {
        self.target.join(self.state.lock().plan.level_path(level))
    }

    /// Writes the plan and makes it the target; the tensors over its files, in the order in which
    /// the leaves were added. `how` is (threads, durable, checks).
    #[pyo3(signature = (exist_ok, in_place, how, progress))]
    fn write(
        &self,
        py: Python<'_>,
        exist_ok: bool,
        in_place: bool,
        how: How,
        progress: &SaveProgress,
    ) -> PyResult<SavedTensors> {
        let mappings = detached(py, self.is_in_place(), || {
            let mut job = progress.job(how);
            let options = SaveOptions { exist_ok, in_place };
            if in_place {
                self.copy_what_is_overwritten()?;
            }
            let state = self.state.lock();
            let is_in_place = || state.is_in_place();
            job.memory = Some(Unmoved(&is_in_place));
            commit::save(&job, &state.plan, &self.target, options)
        });
        let mappings = mappings.map_err(|error| progress.exception(py, &error))?;
        self.tensors(py, mappings)
    }

    /// Writes the plan as an archive, of zeros for a sparse plan, which take their space now if
    /// they are reserved; the tensors over it, in the order in which the leaves were added.
    #[pyo3(signature = (compression, is_reserved, how, progress))]
    fn write_archive(
        &self,
        py: Python<'_>,
        compression: u16,
        is_reserved: bool,
        how: How,
        progress: &SaveProgress,
    ) -> PyResult<SavedTensors> {
        let method = super::archive::method(compression, None)?;
        let threads = how.0;
        let written = detached(py, self.is_in_place(), || {
            let state = self.state.lock();
            let mut job = progress.job(how);
            let is_in_place = || state.is_in_place();
            job.memory = Some(Unmoved(&is_in_place));
            if self.is_sparse {
                archive::create(&job, &state.plan, &self.target, is_reserved)
            } else {
                archive::save(&job, &state.plan, &self.target, method)
            }
        });
        let written = written.map_err(|error| progress.exception(py, &error))?;
        let archive = match written {
            Written::Mapped { mapping, offsets } => {
                let state = self.state.lock();
                let places = state.leaves.iter().zip(offsets).enumerate();
                let places = places.map(|(number, (leaf, offset))| Place {
                    offset,
                    meta: state.meta(number).clone(),
                    num_flat: leaf.num_flat,
                });
                let recorded = Recorded::new(mapping, &self.target);
                let tensors = SavedTensors::in_archive(recorded, places.collect());
                drop(state);
                return Ok(tensors.in_place_of(self.take_leaves().0));
            }
            Written::Packed(archive) => archive,
        };
        // Taken out for the while, since Python runs: the plan is done with.
        let (originals, leaves) = self.take_leaves();
        let opened = OpenArchive::of(archive);
        let files: Vec<_> = {
            let state = self.state.lock();
            let leaves = leaves.iter().enumerate();
            leaves
                .map(|(number, leaf)| (state.plan.leaf_path(number), state.of_file(number, leaf)))
                .collect()
        };
        let wanted = files
            .iter()
            .map(|(path, (dtype, shape))| (path.clone(), &**dtype, shape.as_slice()));
        let tensors = opened.tensors(py, wanted, threads).inspect_err(|error| {
            let note = format!("the archive '{}' is written", self.target.display());
            // Without a note it is raised as well.
            let _ = error.value(py).call_method1("add_note", (note,));
        })?;
        Ok(saved(originals, &leaves, tensors))
    }

    /// Saves the plan with zeros as the values of all leaves; the tensors over the files.
    fn create(&self, py: Python<'_>, exist_ok: bool, is_reserved: bool) -> PyResult<SavedTensors> {
        let progress = SaveProgress::default();
        let made = py.detach(|| {
            let mut job = Job::new(progress.watched());
            // They are filled afterwards.
            job.has_checksums = false;
            job.is_reserved = is_reserved;
            let options = SaveOptions {
                exist_ok,
                in_place: false,
            };
            commit::save(&job, &self.state.lock().plan, &self.target, options)
        });
        let mappings = made.map_err(|error| progress.exception(py, &error))?;
        self.tensors(py, mappings)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Held by a writer, the tensors are in use and not garbage.
        if let Some(state) = self.state.try_lock() {
            for original in &state.originals {
                visit.call(original)?;
            }
            for leaf in &state.leaves {
                visit.call(leaf.kept.as_ref().and_then(Kept::object))?;
            }
        }
        Ok(())
    }

    fn __clear__(&self) {
        drop(self.take_leaves());
    }
}

/// The most threads, whether the save is durable, whether checksums are taken.
type How = (usize, bool, bool);

/// The progress of a save; shared with whoever watches it or stops it.
#[pyclass(module = "tensordict._rust", frozen)]
#[derive(Default)]
pub(crate) struct SaveProgress {
    progress: Progress,
    /// The exception that a signal raised meanwhile: the work ends with it.
    raised: Arc<Mutex<Option<PyErr>>>,
}

#[pymethods]
impl SaveProgress {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Bytes written, and bytes to write; 0 before they are known.
    fn bytes(&self) -> (u64, u64) {
        self.progress.bytes()
    }

    /// Asks the save to stop.
    fn cancel(&self) {
        self.progress.cancel();
    }
}

/// Does work on the memory of tensors, without the interpreter. `is_in_place` says that all memory is there.
pub(super) fn detached<T: Send>(
    py: Python<'_>,
    is_in_place: bool,
    work: impl FnOnce() -> T + Send,
) -> T {
    let num_others = py
        .import("_thread")
        .and_then(|module| module.call_method0("_count")?.extract::<usize>());
    // Where that cannot be asked, there may be others.
    let is_alone = is_in_place && matches!(num_others, Ok(0));
    let _undisturbed = is_alone.then(Undisturbed::begin);
    py.detach(work)
}

impl SaveProgress {
    /// Does a save without the interpreter. It fails if `held` memory has moved before the save is in place.
    pub(super) fn saving<T: Send>(
        &self,
        py: Python<'_>,
        held: &[Kept],
        how: How,
        save: impl FnOnce(&Job<'_>) -> T + Send,
    ) -> T {
        detached(py, held.iter().all(Kept::is_in_place), || {
            let is_in_place = || held.iter().all(Kept::is_in_place);
            let mut job = self.job(how);
            job.memory = Some(Unmoved(&is_in_place));
            save(&job)
        })
    }

    /// The progress of work that this thread is about to do, which ends where a signal raises an
    /// exception.
    pub(super) fn watched(&self) -> &Progress {
        let raised = Arc::clone(&self.raised);
        self.progress.watch(move || {
            region::disturb();
            // Only the main thread handles signals; others find none.
            Python::attach(|py| match py.check_signals() {
                Ok(()) => false,
                Err(error) => {
                    *raised.lock() = Some(error);
                    true
                }
            })
        });
        &self.progress
    }

    /// The exception of work that failed: what a signal raised, if that is why.
    pub(super) fn exception(&self, py: Python<'_>, error: &StorageError) -> PyErr {
        let raised = match error {
            StorageError::Cancelled => self.raised.lock().take(),
            _ => None,
        };
        raised.unwrap_or_else(|| exception(py, error))
    }

    /// A job that this watches: the most threads, whether it is durable, whether checksums are taken.
    pub(super) fn job(&self, (threads, is_durable, has_checksums): How) -> Job<'_> {
        Job {
            threads,
            is_durable,
            has_checksums,
            ..Job::new(self.watched())
        }
    }
}

impl SavePlan {
    /// Returns whether the memory of all leaves is known to be where it was.
    fn is_in_place(&self) -> bool {
        // Whoever has the lock may wait for the interpreter.
        self.state
            .try_lock()
            .is_some_and(|state| state.is_in_place())
    }

    /// The leaves, of a plan that is done with.
    fn take_leaves(&self) -> (Vec<Py<PyAny>>, Vec<SavedLeaf>) {
        let mut state = self.state.lock();
        (
            std::mem::take(&mut state.originals),
            std::mem::take(&mut state.leaves),
        )
    }

    /// Copies the leaves that are in memory only as views of files that the plan writes over.
    fn copy_what_is_overwritten(&self) -> StorageResult<()> {
        let State { plan, leaves, .. } = &mut *self.state.lock();
        let mapped: Vec<_> = (0..leaves.len())
            .filter(|&number| !plan.is_link(number))
            .filter_map(|number| Some((number, file_at(leaves[number].address)?)))
            .collect();
        plan.copy_overwritten(&self.target, mapped.into_iter())
            .map_err(|source| StorageError::io(&self.target, source))
    }

    /// Decides whether a leaf that is a file already is linked, copied, or refused.
    fn content_of_mapped(&self, plan: &Plan, leaf: &MappedLeaf) -> PyResult<Content> {
        let path = self.target.join(plan.leaf_path(leaf.number));
        if is_same_path(&leaf.filename, &path) {
            if let Source::Memory(memory) = leaf.source
                && let Some(file) = whole_file_at(leaf.pointer, leaf.num_bytes, &path)
            {
                return Ok(Content::Link(Box::new(Link { path, memory, file })));
            }
        } else if !self.copies_existing {
            return Err(PyRuntimeError::new_err(format!(
                "A filename was provided but the tensor already has a file associated ({}). To \
                 copy the tensor onto the new location, pass copy_existing=True.",
                leaf.filename.display()
            )));
        }
        Ok(Content::Data(leaf.source.clone()))
    }

    /// The tensors over the files: new ones, and those that are there where the file was linked.
    fn tensors(&self, py: Python<'_>, mappings: Vec<Option<Mapping>>) -> PyResult<SavedTensors> {
        let _paused = PausedCollector::new(py);
        // Taken out for the while, since Python runs: the plan is done with.
        let (originals, leaves) = self.take_leaves();
        let mut tensors = Vec::with_capacity(leaves.len());
        for (number, (leaf, mapping)) in leaves.iter().zip(mappings).enumerate() {
            let (is_linked, path, (dtype, shape)) = {
                let state = self.state.lock();
                (
                    state.plan.is_link(number),
                    self.target.join(state.plan.leaf_path(number)),
                    state.of_file(number, leaf),
                )
            };
            tensors.push(match mapping {
                None if is_linked => originals[number].bind(py).clone(),
                mapping => mapped_tensor(py, mapping, &path, &dtype, &shape, None)?,
            });
        }
        Ok(saved(originals, &leaves, tensors))
    }
}

/// Tensors over the files of leaves, for the collections to take.
fn saved(
    originals: Vec<Py<PyAny>>,
    leaves: &[SavedLeaf],
    tensors: Vec<Bound<'_, PyAny>>,
) -> SavedTensors {
    let made = originals.iter().zip(leaves).zip(tensors);
    let made = made.map(|((original, leaf), tensor)| Saved {
        is_flat: leaf.num_flat.is_some() && !tensor.is(original),
        tensor: tensor.unbind(),
    });
    SavedTensors::made(made.collect()).in_place_of(originals)
}

fn is_same_path(left: &Path, right: &Path) -> bool {
    // Only names that differ are looked up: a save has thousands, mostly equal.
    left == right
        || matches!((left.canonicalize(), right.canonicalize()), (Ok(left), Ok(right)) if left == right)
}

/// Writes a tensor's bytes to a file, repeated to fill the shape, and maps it.
#[pyfunction]
#[pyo3(signature = (path, source, dtype, shape))]
fn write_file<'py>(
    py: Python<'py>,
    path: PathBuf,
    source: &Bound<'py, PyAny>,
    dtype: &str,
    shape: Vec<i64>,
) -> PyResult<Bound<'py, PyAny>> {
    let length = num_bytes(dtype, &shape)?;
    let values = values_of(source)?;
    let memory = values.memory().filter(|memory| memory.is_plain());
    let memory = memory.ok_or_else(|| PyRuntimeError::new_err("the tensor has gaps"))?;
    // SAFETY: the values are held during the call, and with them the memory.
    let region = unsafe { Region::lent(memory.pointer, memory.num_bytes) };
    let written = py.detach(|| replace::write_file(Disk::REAL, &path, region, length));
    let mapping = written.map_err(|error| exception(py, &error))?;
    mapped_tensor(py, mapping, &path, dtype, &shape, None)
}

/// Maps a file of zeros, or what is there already, as a tensor.
#[pyfunction]
#[pyo3(signature = (path, dtype, shape))]
fn create_file<'py>(
    py: Python<'py>,
    path: PathBuf,
    dtype: &str,
    shape: Vec<i64>,
) -> PyResult<Bound<'py, PyAny>> {
    let length = num_bytes(dtype, &shape)?;
    let made = py.detach(|| sparse::create_file(Disk::REAL, &path, length));
    let mapping = made.map_err(|error| exception(py, &error))?;
    mapped_tensor(py, mapping, &path, dtype, &shape, None)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<SavePlan>()?;
    module.add_class::<SaveProgress>()?;
    module.add_function(wrap_pyfunction!(write_file, module)?)?;
    module.add_function(wrap_pyfunction!(create_file, module)?)?;
    module.add_function(wrap_pyfunction!(escape_key, module)?)
}

/// The file name, without suffix, of a key.
#[pyfunction]
fn escape_key(key: &str) -> std::borrow::Cow<'_, str> {
    names::escape(key)
}
