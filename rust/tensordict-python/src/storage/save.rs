//! The plan of a save, taken together from Python containers, and its writing.

#![expect(
    clippy::needless_pass_by_value,
    reason = "arguments from Python are converted to values"
)]

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::{PyOnceLock, critical_section::with_critical_section};
use pyo3::types::{PyDict, PyList, PyString, PyType};
use pyo3::{PyTraverseError, PyVisit};
use tensordict_core::storage::archive::Written;
use tensordict_core::storage::commit::SaveOptions;
use tensordict_core::storage::io::Disk;
use tensordict_core::storage::job::{Job, Progress};
use tensordict_core::storage::map::Mapping;
use tensordict_core::storage::metadata::{LeafMeta, LevelFields, Shape};
use tensordict_core::storage::plan::{Content, Link, Plan};
use tensordict_core::storage::region::Region;
use tensordict_core::storage::source::{Signs, Source};
use tensordict_core::storage::{archive, commit, names, replace, sparse};

use super::archive::OpenArchive;
use super::dlpack::{self, Memory};
use super::exception;
use super::load::num_bytes;
use super::mapped::{file_at, mapped_class, mapped_tensor, whole_file_at};
use super::saved::{Place, Saved, SavedTensors};
use crate::ffi::PausedCollector;

/// How many entries are read while memory fetches a later one.
const FETCHED_AHEAD: usize = 6;

/// How many entries of a level are taken in at once.
type Pairs<'py> = Vec<(Bound<'py, PyString>, Bound<'py, PyAny>)>;

struct Imports {
    tensor: Py<PyType>,
    parameter: Py<PyType>,
    prepare: Py<PyAny>,
    describe: Py<PyAny>,
    filename: Py<PyString>,
    /// `Tensor.is_neg` and `Tensor.is_conj`: looked up once, not for each tensor.
    is_neg: Py<PyAny>,
    is_conj: Py<PyAny>,
}

static IMPORTS: PyOnceLock<Imports> = PyOnceLock::new();

fn imports(py: Python<'_>) -> PyResult<&Imports> {
    IMPORTS.get_or_try_init(py, || {
        let class = |module: &str, name: &str| -> PyResult<Py<PyType>> {
            Ok(py
                .import(module)?
                .getattr(name)?
                .cast_into::<PyType>()?
                .unbind())
        };
        let leaves = py.import("tensordict.storage.leaves")?;
        let tensor = class("torch", "Tensor")?;
        Ok(Imports {
            is_neg: tensor.getattr(py, "is_neg")?,
            is_conj: tensor.getattr(py, "is_conj")?,
            tensor,
            parameter: class("torch.nn", "Parameter")?,
            prepare: leaves.getattr("prepare")?.unbind(),
            describe: leaves.getattr("describe")?.unbind(),
            filename: PyString::intern(py, "_filename").unbind(),
        })
    })
}

/// A leaf on the Python side.
struct SavedLeaf {
    /// What the container holds.
    original: Py<PyAny>,
    /// What holds the bytes that are written, where it is a copy without gaps.
    copied: Option<Py<PyAny>>,
    /// Where its bytes begin in memory, where there are any to write.
    address: usize,
    /// Of a nested tensor, whose file has its values flat: how many they are.
    num_flat: Option<i64>,
}

/// A save being planned. Containers add their levels and entries; `write` does it.
///
/// The tensors are held until the plan is dropped, which keeps their memory in place.
#[pyclass(module = "tensordict._rust", frozen)]
pub(crate) struct SavePlan {
    target: PathBuf,
    copies_existing: bool,
    /// Whether files of zeros are made, and nothing is written: `memmap_like`.
    is_sparse: bool,
    state: parking_lot::Mutex<State>,
}

struct State {
    plan: Plan,
    leaves: Vec<SavedLeaf>,
}

impl State {
    /// Dtype and shape of the tensor over the file of a leaf.
    fn of_file(&self, number: usize, leaf: &SavedLeaf) -> (Cow<'static, str>, Shape) {
        let meta = self.plan.leaf_meta(number);
        match (leaf.num_flat, meta) {
            (None, Some(meta)) => (meta.dtype.clone(), meta.shape.clone()),
            (Some(num_items), Some(meta)) => (meta.dtype.clone(), Shape::from_slice(&[num_items])),
            (_, None) => unreachable!("leaves of the plan are leaves of its levels"),
        }
    }
}

#[pymethods]
impl SavePlan {
    #[new]
    fn new(target: PathBuf, escapes_keys: bool, copies_existing: bool, is_sparse: bool) -> Self {
        let state = State {
            plan: Plan::new(escapes_keys),
            leaves: Vec::new(),
        };
        Self {
            target,
            copies_existing,
            is_sparse,
            state: parking_lot::Mutex::new(state),
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
        let mut pairs = Pairs::with_capacity(entries.len());
        // Python runs below (a subclass of Tensor may do anything), so the pairs are owned.
        with_critical_section(entries, || -> PyResult<()> {
            for (key, value) in entries {
                pairs.push((key.cast_into::<PyString>()?, value));
            }
            Ok(())
        })?;
        let others = PyList::empty(py);
        let imports = imports(py)?;
        {
            let mut state = self.state.lock();
            state.plan.reserve(level, pairs.len());
            state.leaves.reserve(pairs.len());
        }
        let tensor_class = imports.tensor.bind(py);
        for (number, (key, value)) in pairs.iter().enumerate() {
            if let Some((key, value)) = pairs.get(number + 2 * FETCHED_AHEAD) {
                dlpack::fetch_ahead(key);
                dlpack::fetch_ahead(value);
            }
            if let Some((_, value)) = pairs.get(number + FETCHED_AHEAD) {
                dlpack::fetch_tensor_ahead(value, tensor_class);
            }
            let name = key.to_str()?;
            if value.is_instance(tensor_class)? {
                self.add_leaf(level, name, value)?;
                continue;
            }
            let class_name = value.get_type().name()?;
            let child = self
                .state
                .lock()
                .plan
                .add_child(level, name, class_name.to_str()?);
            let child = child.map_err(|error| exception(py, &error))?;
            others.append((key, child, value))?;
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

    /// Adds a file whose bytes are known to a level: what a container keeps beside its metadata.
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
        let mappings = py.detach(|| {
            let job = progress.job(how);
            let options = SaveOptions { exist_ok, in_place };
            if in_place {
                self.copy_what_is_overwritten();
            }
            let state = self.state.lock();
            commit::save(&job, &state.plan, &self.target, options)
        });
        let mappings = mappings.map_err(|error| exception(py, &error))?;
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
        let written = py.detach(|| {
            let state = self.state.lock();
            let job = progress.job(how);
            if self.is_sparse {
                archive::create(&job, &state.plan, &self.target, is_reserved)
            } else {
                archive::save(&job, &state.plan, &self.target, method)
            }
        });
        let written = written.map_err(|error| exception(py, &error))?;
        // Taken out for the while, since Python runs: the plan is done with.
        let leaves = std::mem::take(&mut self.state.lock().leaves);
        let archive = match written {
            Written::Mapped { mapping, offsets } => {
                let state = self.state.lock();
                let places = leaves.iter().zip(offsets).enumerate();
                let places = places.map(|(number, (leaf, offset))| {
                    let (dtype, shape) = state.of_file(number, leaf);
                    Place {
                        offset,
                        dtype,
                        shape,
                        is_flat: leaf.num_flat.is_some(),
                    }
                });
                return Ok(SavedTensors::in_archive(mapping, places.collect()));
            }
            Written::Packed(archive) => archive,
        };
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
        let tensors = opened.tensors(py, wanted, threads)?;
        Ok(saved(&leaves, tensors))
    }

    /// Makes the files of the plan, of zeros where they are not there; the tensors over them, and
    /// `(file, bytes before, bytes now, key, dtype)` of those that were too short.
    #[expect(clippy::type_complexity, reason = "it is what Python unpacks")]
    fn create(
        &self,
        py: Python<'_>,
        exist_ok: bool,
        is_reserved: bool,
    ) -> PyResult<(SavedTensors, Vec<(PathBuf, u64, u64, String)>)> {
        let progress = SaveProgress::default();
        let made = py.detach(|| {
            let job = Job::new(&progress.progress);
            let state = self.state.lock();
            if !exist_ok {
                commit::refuse_existing(&state.plan, &self.target)?;
            }
            sparse::create(&job, &state.plan, &self.target, is_reserved)
        });
        let (mappings, grown) = made.map_err(|error| exception(py, &error))?;
        let grown = {
            let state = self.state.lock();
            let shown = |leaf: usize| {
                let (dtype, _) = state.of_file(leaf, &state.leaves[leaf]);
                let key = state.plan.display_leaf_number(leaf);
                format!("{key} of dtype {dtype}")
            };
            grown
                .into_iter()
                .map(|one| (one.path, one.from, one.to, shown(one.leaf)))
                .collect()
        };
        Ok((self.tensors(py, mappings)?, grown))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Held by a writer, the tensors are in use and not garbage.
        if let Some(state) = self.state.try_lock() {
            for leaf in &state.leaves {
                visit.call(&leaf.original)?;
                visit.call(&leaf.copied)?;
            }
        }
        Ok(())
    }

    fn __clear__(&self) {
        let leaves = std::mem::take(&mut self.state.lock().leaves);
        drop(leaves);
    }
}

/// The most threads, whether the save is durable, whether sums are taken.
type How = (usize, bool, bool);

/// How far a save is; shared with whoever watches it or stops it.
#[pyclass(module = "tensordict._rust", frozen)]
#[derive(Default)]
pub(crate) struct SaveProgress {
    pub(crate) progress: Progress,
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

impl SaveProgress {
    fn job(&self, (threads, is_durable, has_sums): How) -> Job<'_> {
        Job {
            threads,
            is_durable,
            has_sums,
            ..Job::new(&self.progress)
        }
    }
}

/// A leaf about to be planned.
struct NewLeaf<'py> {
    meta: LeafMeta,
    /// What holds the bytes, where there are any to write.
    source: Option<(Bound<'py, PyAny>, Memory)>,
    num_bytes: u64,
    table: Option<Vec<u8>>,
    /// Of a nested tensor, how many values there are.
    num_flat: Option<i64>,
}

impl SavePlan {
    /// Copies the leaves that are in memory only as views of files that the plan writes over.
    fn copy_what_is_overwritten(&self) {
        let State { plan, leaves } = &mut *self.state.lock();
        let mapped: Vec<_> = (0..leaves.len())
            .filter(|&number| !plan.is_link(number))
            .filter_map(|number| Some((number, file_at(leaves[number].address)?)))
            .collect();
        plan.copy_overwritten(&self.target, mapped.into_iter());
    }

    fn add_leaf(&self, level: usize, key: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = value.py();
        let NewLeaf {
            meta,
            source,
            num_bytes,
            table,
            num_flat,
        } = self.new_leaf(value)?;
        let mut content = Content::Absent;
        let saved = SavedLeaf {
            original: value.clone().unbind(),
            copied: source
                .as_ref()
                .filter(|(held, _)| !held.is(value))
                .map(|(held, _)| held.clone().unbind()),
            address: source
                .as_ref()
                .map_or(0, |(_, memory)| memory.pointer.addr()),
            num_flat,
        };
        let number = {
            let mut state = self.state.lock();
            let number = state
                .plan
                .add_leaf(level, key, meta, num_bytes, Content::Absent, table)
                .map_err(|error| exception(py, &error))?;
            state.leaves.push(saved);
            number
        };
        if let Some((_, memory)) = &source {
            content = self.content(value, memory, number)?;
        }
        self.state.lock().plan.set_content(number, content);
        Ok(())
    }

    fn new_leaf<'py>(&self, value: &Bound<'py, PyAny>) -> PyResult<NewLeaf<'py>> {
        let py = value.py();
        if let Some(memory) = plain_memory(value)? {
            let meta = LeafMeta {
                device: "cpu".into(),
                shape: Shape::from_slice(&memory.shape),
                dtype: memory.dtype.into(),
                is_nested: false,
            };
            let num_bytes = memory.num_bytes as u64;
            let source = (!self.is_sparse).then(|| (value.clone(), memory));
            return Ok(NewLeaf {
                meta,
                source,
                num_bytes,
                table: None,
                num_flat: None,
            });
        }
        if self.is_sparse {
            let described = imports(py)?.describe.bind(py).call1((value,))?;
            let (device, shape, dtype, num_items, table): Described = described.extract()?;
            let num_flat = table.is_some().then_some(num_items);
            let num_bytes = match num_flat {
                Some(num_items) => num_bytes(&dtype, &[num_items])?,
                None => num_bytes(&dtype, &shape)?,
            };
            return Ok(NewLeaf {
                num_bytes,
                meta: LeafMeta {
                    device: device.into(),
                    shape: Shape::from_vec(shape),
                    dtype: dtype.into(),
                    is_nested: num_flat.is_some(),
                },
                source: None,
                table,
                num_flat,
            });
        }
        // Everything that is not plain memory: torch makes it so.
        let prepared = imports(py)?.prepare.bind(py).call1((value,))?;
        let (bytes, device, shape, dtype, table): Prepared<'py> = prepared.extract()?;
        let memory = required_memory(&bytes)?;
        let num_flat = match &table {
            Some(_) => {
                let item_size = num_bytes(&dtype, &[])?;
                Some(i64::try_from(memory.num_bytes as u64 / item_size)?)
            }
            None => None,
        };
        Ok(NewLeaf {
            meta: LeafMeta {
                device: device.into(),
                shape: Shape::from_vec(shape),
                dtype: dtype.into(),
                is_nested: num_flat.is_some(),
            },
            num_bytes: memory.num_bytes as u64,
            source: Some((bytes, memory)),
            table,
            num_flat,
        })
    }

    /// Whether a leaf that is a file already is linked, copied, or refused.
    fn content(&self, value: &Bound<'_, PyAny>, memory: &Memory, leaf: usize) -> PyResult<Content> {
        let py = value.py();
        // SAFETY: the state holds the tensor of this memory as long as the plan.
        let source = unsafe { source_of(memory) }?;
        if !value.get_type().is(mapped_class(py)?) {
            return Ok(Content::Data(source));
        }
        let filename: Option<PathBuf> = value.getattr(&imports(py)?.filename)?.extract()?;
        let Some(filename) = filename else {
            return Ok(Content::Data(source));
        };
        let path = self.target.join(self.state.lock().plan.leaf_path(leaf));
        if is_same_path(&filename, &path) {
            if let Source::Memory(region) = source
                && let Some(file) = whole_file_at(memory.pointer, memory.num_bytes, &path)
            {
                return Ok(Content::Link(Box::new(Link {
                    path,
                    memory: region,
                    file,
                })));
            }
        } else if !self.copies_existing {
            return Err(PyRuntimeError::new_err(format!(
                "A filename was provided but the tensor already has a file associated ({}). To \
                 copy the tensor onto the new location, pass copy_existing=True.",
                filename.display()
            )));
        }
        Ok(Content::Data(source))
    }

    /// The tensors over the files: new ones, and those that are there where the file was linked.
    fn tensors(&self, py: Python<'_>, mappings: Vec<Option<Mapping>>) -> PyResult<SavedTensors> {
        let _paused = PausedCollector::new(py);
        // Taken out for the while, since Python runs: the plan is done with.
        let leaves = std::mem::take(&mut self.state.lock().leaves);
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
                None if is_linked => leaf.original.bind(py).clone(),
                mapping => mapped_tensor(py, mapping, &path, &dtype, &shape, None)?,
            });
        }
        Ok(saved(&leaves, tensors))
    }
}

/// Tensors over the files of leaves, for the containers to take.
fn saved(leaves: &[SavedLeaf], tensors: Vec<Bound<'_, PyAny>>) -> SavedTensors {
    let tensors = leaves.iter().zip(tensors);
    SavedTensors::made(
        tensors
            .map(|(leaf, tensor)| Saved {
                is_flat: leaf.num_flat.is_some() && !tensor.is(&leaf.original),
                tensor: tensor.unbind(),
            })
            .collect(),
    )
}

/// The class of tensors.
pub(super) fn tensor_class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    Ok(imports(py)?.tensor.bind(py))
}

const MSG_NO_MEMORY: &str = "the tensor has no memory that could be saved";

/// `(device, shape, dtype, number of items, table of sizes)` of `leaves.describe`.
type Described = (String, Vec<i64>, String, i64, Option<Vec<u8>>);

/// `(tensor without gaps, device, shape, dtype, table of sizes)` of `leaves.prepare`.
type Prepared<'py> = (Bound<'py, PyAny>, String, Vec<i64>, String, Option<Vec<u8>>);

/// The memory of a tensor that is its values as they are; None where torch has to help.
///
/// Of other subclasses nothing is assumed: a fake tensor has no memory, a wrapper is not its own.
fn plain_memory(value: &Bound<'_, PyAny>) -> PyResult<Option<Memory>> {
    let py = value.py();
    let imports = imports(py)?;
    let class = value.get_type();
    let is_known =
        class.is(&imports.tensor) || class.is(mapped_class(py)?) || class.is(&imports.parameter);
    if !is_known {
        return Ok(None);
    }
    let Some(mut memory) = dlpack::strided_memory_of(value)? else {
        return Ok(None);
    };
    // DLPack gives the bytes of such views as they lie.
    let is_complex = memory.is_complex();
    memory.signs = Signs {
        negated: imports.is_neg.bind(py).call1((value,))?.is_truthy()?,
        conjugated: is_complex && imports.is_conj.bind(py).call1((value,))?.is_truthy()?,
    };
    // The sign of a float is a bit; that of an integer is not.
    let can_be_negated = !memory.signs.negated || is_complex || memory.dtype.contains("float");
    Ok(can_be_negated.then_some(memory))
}

/// Where a save reads the bytes of a tensor.
///
/// # Safety
/// As for [`Memory::source`].
pub(crate) unsafe fn source_of(memory: &Memory) -> PyResult<Source> {
    // SAFETY: the contract of this function.
    unsafe { memory.source() }.ok_or_else(|| PyRuntimeError::new_err(MSG_NO_MEMORY))
}

/// The values of any tensor as memory, and the tensor that holds it: a copy where torch has to
/// help.
pub(crate) fn values_of<'py>(value: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, Memory)> {
    let py = value.py();
    if let Some(memory) = plain_memory(value)? {
        return Ok((value.clone(), memory));
    }
    let prepared = imports(py)?.prepare.bind(py).call1((value,))?;
    let plain = prepared.get_item(0)?;
    let memory = required_memory(&plain)?;
    Ok((plain, memory))
}

/// The memory of a tensor that was made plain.
fn required_memory(tensor: &Bound<'_, PyAny>) -> PyResult<Memory> {
    dlpack::memory_of(tensor)?.ok_or_else(|| PyRuntimeError::new_err(MSG_NO_MEMORY))
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
    let memory = required_memory(source)?;
    // SAFETY: the caller's reference holds the tensor, and with it its memory, during the call.
    let region = unsafe { Region::new(memory.pointer, memory.num_bytes) };
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
