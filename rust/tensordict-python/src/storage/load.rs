//! Entries for Python collections from the directories of a save.

#![expect(
    clippy::needless_pass_by_value,
    reason = "arguments from Python are converted to values"
)]

use std::path::{Path, PathBuf};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use tensordict_core::storage::full::{self, Request, Target};
use tensordict_core::storage::map::{self, MapRequest, Mapping, Mode, Root};
use tensordict_core::storage::metadata::LeafMeta;
use tensordict_core::storage::prefetch::Prefetch;
use tensordict_core::storage::read::{
    Files, Leaf, Level, Node, ReadOptions, prefetch_mappings, read_tree_of,
};
use tensordict_core::storage::{METADATA_FILE, StorageError, dtype};

use super::archive::OpenArchive;
use super::dlpack::memory_of;
use super::exception;
use super::mapped::{empty, mapped_tensor, torch_dtype};
use super::save::SaveProgress;
use crate::ffi::PausedCollector;

/// A level that was read, for Python to make a collection of.
///
/// `entries` holds the tensors; for the keys in `nested` it holds such a level again, and for those
/// in `special` what Python has to finish: the directory of a class of another layout, or the
/// `(flat values, table of sizes)` of a nested tensor.
#[pyclass(module = "tensordict._rust", frozen, get_all)]
pub(crate) struct LoadedLevel {
    entries: Py<PyDict>,
    batch_size: Py<PyTuple>,
    names: Option<Vec<Option<String>>>,
    has_device: bool,
    type_text: Option<String>,
    class_text: Option<String>,
    directory: std::ffi::OsString,
    nested: Py<PyList>,
    special: Py<PyList>,
    /// True if the class is one that was named to the reader; if not, nothing was read.
    is_known: bool,
}

pub(super) fn parse_mode(mode: Option<&str>) -> PyResult<Mode> {
    match mode {
        None => Ok(Mode::SharedIfWritable),
        Some("r") => Ok(Mode::Private),
        Some("r+") => Ok(Mode::Shared),
        Some(other) => Err(PyValueError::new_err(format!(
            "mode must be 'r', 'r+' or None, got '{other}'."
        ))),
    }
}

/// The directory of a save, held open: what is read by it is of one save, also where another
/// takes its place meanwhile.
#[pyclass(module = "tensordict._rust", name = "Directory", frozen)]
pub(crate) struct OpenDirectory {
    root: Root,
    mode: Option<String>,
    map_mode: Mode,
}

#[pymethods]
impl OpenDirectory {
    #[new]
    #[pyo3(signature = (path, mode=None))]
    fn new(py: Python<'_>, path: PathBuf, mode: Option<String>) -> PyResult<Self> {
        let map_mode = parse_mode(mode.as_deref())?;
        let root = Root::open_path(&path).map_err(|source| {
            // The caller asks for the metadata, so the error names that.
            exception(py, &StorageError::io(path.join(METADATA_FILE), source))
        })?;
        Ok(Self {
            root,
            mode,
            map_mode,
        })
    }

    /// Returns whether the name still leads to this directory.
    fn is_current(&self) -> bool {
        self.root.is_current()
    }

    /// Returns whether another save took the place of this one before all was read.
    fn was_replaced(&self, is_read: bool) -> bool {
        self.root.was_replaced(is_read)
    }

    /// Returns whether there is a file or directory of this name.
    fn has(&self, name: &str) -> bool {
        self.root.exists(&self.root.path().join(name))
    }

    /// The bytes of a file.
    fn read<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyBytes>> {
        let path = self.root.path().join(name);
        let bytes = py
            .detach(|| self.root.read(&path))
            .map_err(|error| exception(py, &error))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Reads the level in the directory `level` and those below. With `is_mapped` false no
    /// leaf file is opened, and the entries are `(shape, dtype)` pairs.
    #[pyo3(signature = (level, known_classes, escapes_keys, num_threads, is_mapped))]
    fn load_tree<'py>(
        &self,
        py: Python<'py>,
        level: &str,
        known_classes: Vec<String>,
        escapes_keys: bool,
        num_threads: usize,
        is_mapped: bool,
    ) -> PyResult<Bound<'py, LoadedLevel>> {
        let options = ReadOptions {
            escapes_keys,
            known_classes: &known_classes,
        };
        let tree = py.detach(|| {
            let directory = self.root.path().join(level);
            read_tree_of(&self.root, &directory, options)
        });
        let tree = tree.map_err(|error| exception(py, &error))?;
        let _paused = PausedCollector::new(py);
        let tensors = if is_mapped {
            self.tensors(py, &tree.leaves, num_threads)?
        } else {
            Vec::new()
        };
        let mut maker = Maker {
            leaves: tree.leaves,
            tensors,
            backing: Backing::Files {
                root: &self.root,
                mode: self.mode.as_deref(),
                map_mode: self.map_mode,
            },
            is_mapped,
        };
        maker.tree(py, tree.levels)
    }

    /// Reads files of the save into tensors of the CPU without gaps: `(key, file, tensor)`.
    fn read_into(
        &self,
        py: Python<'_>,
        wanted: Vec<(String, PathBuf, Bound<'_, PyAny>)>,
        num_threads: usize,
    ) -> PyResult<()> {
        let mut requests = Vec::with_capacity(wanted.len());
        for (key, path, tensor) in &wanted {
            let memory = memory_of(tensor)?.ok_or_else(|| {
                PyValueError::new_err(format!("the tensor {key} is not plain memory"))
            })?;
            requests.push(Request {
                key: key.clone(),
                path: path.clone(),
                // SAFETY: `wanted` holds the tensors during the call; that nobody else uses their
                // memory meanwhile is for the caller, as with any tensor that is written to.
                target: unsafe { Target::new(memory.pointer.cast_mut(), memory.num_bytes) },
            });
        }
        let progress = SaveProgress::default();
        py.detach(|| {
            full::read_all(
                &progress.job((num_threads, false, true)),
                &self.root,
                &requests,
            )
        })
        .map_err(|error| progress.exception(py, &error))
    }
}

impl OpenDirectory {
    /// The tensors of leaves, made while other threads map what comes after; none for a nested one.
    fn tensors<'py>(
        &self,
        py: Python<'py>,
        leaves: &[Leaf],
        num_threads: usize,
    ) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
        let mode = self.mode.as_deref();
        prefetch_mappings(&self.root, leaves, self.map_mode, num_threads, |prefetch| {
            prefetched_tensors(py, leaves, prefetch, |leaf, mapping| {
                let LeafMeta { dtype, shape, .. } = &leaf.meta;
                match mapping {
                    // The release does the same: a tensor without bytes is not one over a file.
                    None => empty(py, dtype, shape),
                    some => mapped_tensor(py, some, &leaf.path(), dtype, shape, mode),
                }
            })
        })
        .map_err(|error: StorageError| exception(py, &error))?
    }
}

/// The tensors that `make` makes of leaves and of where their bytes are, while other threads find out
/// the latter; none for a nested one.
pub(super) fn prefetched_tensors<'py, B: Send>(
    py: Python<'py>,
    leaves: &[Leaf],
    mut prefetch: Prefetch<'_, Vec<B>>,
    mut make: impl FnMut(&Leaf, B) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
    let refused = |error: StorageError| exception(py, &error);
    // Others may take the interpreter when it is let go: that is done twice at most.
    py.detach(|| prefetch.begin()).map_err(refused)?;
    let mut tensors = Vec::with_capacity(leaves.len());
    while tensors.len() < leaves.len() {
        let Some(batch) = prefetch.next_batch() else {
            py.detach(|| prefetch.finish()).map_err(refused)?;
            continue;
        };
        for place in batch {
            let leaf = &leaves[tensors.len()];
            let is_nested = leaf.meta.is_nested;
            tensors.push((!is_nested).then(|| make(leaf, place)).transpose()?);
        }
    }
    Ok(tensors)
}

/// The place of the bytes of leaves.
pub(super) enum Backing<'m> {
    /// In a mapped file each.
    Files {
        root: &'m Root,
        mode: Option<&'m str>,
        map_mode: Mode,
    },
    /// In an archive.
    Archive(&'m OpenArchive),
}

/// Makes what Python makes collections of.
pub(super) struct Maker<'m, 'py> {
    pub(super) leaves: Vec<Leaf>,
    /// The tensors of the leaves, unless only shapes and dtypes are wanted; none for a nested one.
    pub(super) tensors: Vec<Option<Bound<'py, PyAny>>>,
    pub(super) backing: Backing<'m>,
    pub(super) is_mapped: bool,
}

impl<'py> Maker<'_, 'py> {
    /// The root of levels, of which each comes after the one that it is in.
    pub(super) fn tree(
        &mut self,
        py: Python<'py>,
        levels: Vec<Level>,
    ) -> PyResult<Bound<'py, LoadedLevel>> {
        let mut made: Vec<_> = levels.iter().map(|_| None).collect();
        // Backwards, so that a level finds those that are in it made, and depth costs no stack.
        for (number, level) in levels.into_iter().enumerate().rev() {
            made[number] = Some(self.level(py, level, &mut made)?);
        }
        let root = made.into_iter().next().flatten();
        Ok(root.expect("the level that was asked for is the first"))
    }

    fn level(
        &mut self,
        py: Python<'py>,
        level: Level,
        made: &mut [Option<Bound<'py, LoadedLevel>>],
    ) -> PyResult<Bound<'py, LoadedLevel>> {
        let entries = PyDict::new(py);
        let nested = PyList::empty(py);
        let special = PyList::empty(py);
        for node in level.nodes {
            match node {
                Node::Leaves(numbers) => {
                    for number in numbers {
                        let key = PyString::new(py, &self.leaves[number].key);
                        if self.leaves[number].meta.is_nested {
                            special.append(&key)?;
                            entries.set_item(key, self.nested_tensor(py, number)?)?;
                        } else {
                            entries.set_item(key, self.leaf(py, number)?)?;
                        }
                    }
                }
                Node::Level { key, number } => {
                    nested.append(&key)?;
                    entries.set_item(&key, made[number].take())?;
                }
                Node::Foreign { key, path } => {
                    special.append(&key)?;
                    entries.set_item(&key, path.into_os_string())?;
                }
            }
        }
        let loaded = LoadedLevel {
            entries: entries.unbind(),
            batch_size: PyTuple::new(py, level.batch_size)?.unbind(),
            names: level.names,
            has_device: level.has_device,
            type_text: level.type_text,
            class_text: level.class_text,
            directory: level.directory.into_os_string(),
            nested: nested.unbind(),
            special: special.unbind(),
            is_known: level.is_known,
        };
        Bound::new(py, loaded)
    }

    fn leaf(&mut self, py: Python<'py>, number: usize) -> PyResult<Bound<'py, PyAny>> {
        let leaf = &self.leaves[number];
        let (dtype, shape) = (&leaf.meta.dtype, &leaf.meta.shape);
        if !self.is_mapped {
            let shape = PyTuple::new(py, shape)?;
            return Ok((shape, torch_dtype(py, dtype)?)
                .into_pyobject(py)?
                .into_any());
        }
        let tensor = self.tensors[number].take();
        Ok(tensor.expect("each leaf is taken once"))
    }

    /// `(values, table)`: the values flat, and the table of sizes, both mapped.
    fn nested_tensor(&self, py: Python<'py>, number: usize) -> PyResult<Bound<'py, PyAny>> {
        let leaf = &self.leaves[number];
        let (root, mode, map_mode) = match &self.backing {
            Backing::Files {
                root,
                mode,
                map_mode,
            } => (*root, *mode, *map_mode),
            Backing::Archive(archive) => return archive.nested_tensor(py, leaf),
        };
        let open = |path: &Path, length: u64| open_leaf(root, path, length, leaf, map_mode);
        let fail = |error: &StorageError| exception(py, error);
        let rows = leaf.meta.shape.clone();
        let table_bytes = dtype::tensor_bytes(&rows, 8).unwrap_or(0);
        let table_path = leaf.table_path();
        let table = open(&table_path, table_bytes).map_err(|error| fail(&error))?;
        let table = mapped_tensor(py, table, &table_path, "int64", &rows, None)?;
        let num_items: i64 = if rows.get(1) == Some(&0) {
            rows[0]
        } else {
            table
                .call_method1("prod", (1,))?
                .call_method0("sum")?
                .call_method0("item")?
                .extract()?
        };
        let item_size = dtype::item_size(&leaf.meta.dtype).unwrap_or(1);
        let bytes = dtype::tensor_bytes(&[num_items], item_size).ok_or_else(|| {
            fail(&StorageError::BadMetadata {
                path: table_path.clone(),
                key: leaf.display(),
                reason: "its table holds no sizes".to_owned(),
            })
        })?;
        let path = leaf.path();
        let values = open(&path, bytes).map_err(|error| fail(&error))?;
        let values = mapped_tensor(py, values, &path, &leaf.meta.dtype, &[num_items], mode)?;
        Ok((values, table).into_pyobject(py)?.into_any())
    }
}

fn open_leaf(
    root: &Root,
    path: &Path,
    length: u64,
    leaf: &Leaf,
    mode: Mode,
) -> Result<Option<Mapping>, StorageError> {
    if length == 0 {
        return Ok(None);
    }
    let request = MapRequest {
        path,
        length,
        root: Some(root),
    };
    map::open(&request, mode, &|| leaf.display()).map(Some)
}

/// Maps a file as a tensor: `MemoryMappedTensor.from_filename` without its index.
#[pyfunction]
#[pyo3(signature = (path, dtype, shape, mode))]
fn map_file<'py>(
    py: Python<'py>,
    path: PathBuf,
    dtype: &str,
    shape: Vec<i64>,
    mode: Option<&str>,
) -> PyResult<Bound<'py, PyAny>> {
    let map_mode = parse_mode(mode)?;
    let length = num_bytes(dtype, &shape)?;
    let mapping = if length == 0 {
        None
    } else {
        let request = MapRequest {
            path: &path,
            length,
            root: None,
        };
        let opened = py.detach(|| map::open(&request, map_mode, &|| "of this file".to_owned()));
        Some(opened.map_err(|error| exception(py, &error))?)
    };
    mapped_tensor(py, mapping, &path, dtype, &shape, mode)
}

/// The bytes of a tensor, or an exception where there is no such tensor.
pub(crate) fn num_bytes(dtype: &str, shape: &[i64]) -> PyResult<u64> {
    let item_size = dtype::item_size(dtype).ok_or_else(|| {
        PyValueError::new_err(format!("tensors of {dtype} cannot be mapped from a file"))
    })?;
    dtype::tensor_bytes(shape, item_size)
        .ok_or_else(|| PyValueError::new_err(format!("{shape:?} is not the shape of a tensor")))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<LoadedLevel>()?;
    module.add_class::<OpenDirectory>()?;
    module.add_function(wrap_pyfunction!(map_file, module)?)
}
