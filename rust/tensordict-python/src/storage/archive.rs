//! Archives: opened once, read and mapped as a whole.

#![expect(
    clippy::needless_pass_by_value,
    reason = "arguments from Python are converted to values"
)]

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use pyo3::exceptions::{PyFileNotFoundError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tensordict_core::storage::StorageResult;
use tensordict_core::storage::archive::{self, Archive, LeafBytes, Method};
use tensordict_core::storage::dtype;
use tensordict_core::storage::map::Mode;
use tensordict_core::storage::metadata::LeafMeta;
use tensordict_core::storage::prefetch::Prefetch;
use tensordict_core::storage::read::{Leaf, ReadOptions, read_tree_of};

use super::dlpack::{self, DataType, Prepared};
use super::exception;
use super::load::{Backing, LoadedLevel, Maker, parse_mode, prefetched_tensors};
use super::mapped::{Recorded, empty, tensor_at};
use super::save::SaveProgress;
use super::saved::Place;
use crate::ffi::PausedCollector;

/// An open archive.
#[pyclass(module = "tensordict._rust", name = "Archive", frozen)]
pub(crate) struct OpenArchive {
    archive: Archive,
    /// The mapping that all tensors stand on, from the first of them on.
    recorded: OnceLock<Arc<Recorded>>,
}

#[pymethods]
impl OpenArchive {
    #[new]
    #[pyo3(signature = (path, mode=None))]
    pub(crate) fn new(py: Python<'_>, path: PathBuf, mode: Option<&str>) -> PyResult<Self> {
        // Without a mode stores stay in this process, as with "r": an archive is one file.
        let is_shared = parse_mode(mode)? == Mode::Shared;
        let archive = py.detach(|| {
            if is_shared {
                Archive::open_writable(&path)
            } else {
                Archive::open(&path)
            }
        });
        Ok(Self::of(archive.map_err(|error| exception(py, &error))?))
    }

    /// Returns whether the name still leads to this archive.
    fn is_current(&self) -> bool {
        self.archive.is_current()
    }

    /// Returns whether another save took the place of this one before all was read: one file is
    /// read whole, whatever its name leads to.
    #[expect(clippy::unused_self, reason = "directories have to look")]
    fn was_replaced(&self, _is_read: bool) -> bool {
        false
    }

    /// The names of all entries.
    fn names(&self) -> Vec<&str> {
        self.archive.entries().keys().map(String::as_str).collect()
    }

    /// Returns whether there is an entry of this name.
    fn has(&self, name: &str) -> bool {
        self.archive.entries().contains_key(name)
    }

    /// The bytes of an entry.
    fn read<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyBytes>> {
        let Some(entry) = self.archive.entries().get(name) else {
            let root = self.archive.root().display();
            return Err(PyFileNotFoundError::new_err(format!("{root}/{name}")));
        };
        let bytes = py
            .detach(|| self.archive.read_entry(name, entry))
            .map_err(|error| exception(py, &error))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Reads the level in the directory `level` of the archive, and those below.
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
            let directory = self.archive.root().join(level);
            read_tree_of(&self.archive, &directory, options)
        });
        let tree = tree.map_err(|error| exception(py, &error))?;
        let _paused = PausedCollector::new(py);
        let tensors = if is_mapped {
            self.loaded_tensors(py, &tree.leaves, num_threads)?
        } else {
            Vec::new()
        };
        let mut maker = Maker {
            leaves: tree.leaves,
            tensors,
            backing: Backing::Archive(self),
            is_mapped,
        };
        maker.tree(py, tree.levels)
    }
}

impl OpenArchive {
    /// An archive that was written just now.
    pub(super) fn of(archive: Archive) -> Self {
        Self {
            archive,
            recorded: OnceLock::new(),
        }
    }

    /// The archive's mapping, on record.
    fn mapping(&self) -> StorageResult<&Arc<Recorded>> {
        if let Some(recorded) = self.recorded.get() {
            return Ok(recorded);
        }
        let mapping = self.archive.mapping()?;
        let recorded = || Arc::new(Recorded::new(mapping.clone(), self.archive.path()));
        Ok(self.recorded.get_or_init(recorded))
    }

    /// The tensors of leaves, made while other threads find the bytes of what comes after.
    fn loaded_tensors<'py>(
        &self,
        py: Python<'py>,
        leaves: &[Leaf],
        num_threads: usize,
    ) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
        // If it cannot be mapped, the first tensor that needs it says why.
        let mapping = self.mapping().ok();
        let prepare = |leaves: &[Leaf], found: Vec<LeafBytes>| {
            Ok(match mapping {
                Some(mapping) => prepared(mapping, leaves, found),
                None => found.into_iter().map(Ready::Bytes).collect(),
            })
        };
        let take = |prefetch: Prefetch<'_, Vec<Ready>>| {
            prefetched_tensors(py, leaves, prefetch, |leaf, ready| match ready {
                Ready::Tensor(prepared) => prepared.make(py),
                Ready::Bytes(bytes) => self.tensor(py, bytes, &leaf.meta.dtype, &leaf.meta.shape),
            })
        };
        let archive = &self.archive;
        archive.prefetch_locations(leaves, num_threads, prepare, take)
    }

    /// A plain tensor over bytes of the archive, or over a copy of them.
    pub(super) fn tensor<'py>(
        &self,
        py: Python<'py>,
        bytes: LeafBytes,
        dtype_name: &str,
        shape: &[i64],
    ) -> PyResult<Bound<'py, PyAny>> {
        let length = memory_bytes(dtype_name, shape)?;
        match bytes {
            LeafBytes::Nothing => empty(py, dtype_name, shape),
            LeafBytes::At(offset) => {
                let mapping = self.mapping().map_err(|error| exception(py, &error))?;
                tensor_in(py, mapping, offset, dtype_name, shape, length)
            }
            LeafBytes::Copy(memory) => copy_tensor(py, memory, dtype_name, shape, length),
        }
    }

    /// `(values, table)` of a nested tensor: the values flat, and the table of sizes.
    pub(super) fn nested_tensor<'py>(
        &self,
        py: Python<'py>,
        leaf: &Leaf,
    ) -> PyResult<Bound<'py, PyAny>> {
        let read = py.detach(|| self.archive.nested(leaf));
        let (table, values) = read.map_err(|error| exception(py, &error))?;
        let item_size = dtype::item_size(&leaf.meta.dtype).unwrap_or(1);
        let columns = leaf.meta.shape.get(1).copied().unwrap_or(0);
        let num_items = if columns == 0 {
            leaf.meta.shape.first().copied().unwrap_or(0)
        } else {
            table
                .chunks(usize::try_from(columns)?)
                .map(|row| row.iter().product::<i64>())
                .sum()
        };
        let length = usize::try_from(u64::try_from(num_items)? * item_size)?;
        let values = copy_tensor(py, values, &leaf.meta.dtype, &[num_items], length)?;
        let table_bytes = table.len() * size_of::<i64>();
        let mut cells = vec![0_u128; table_bytes.div_ceil(size_of::<u128>())];
        for (number, cell) in table.iter().enumerate() {
            let shift = 64 * (number % 2);
            cells[number / 2] |= u128::from(cell.cast_unsigned()) << shift;
        }
        let table = copy_tensor(py, cells, "int64", &leaf.meta.shape, table_bytes)?;
        Ok((values, table).into_pyobject(py)?.into_any())
    }

    /// The tensors over entries with these paths, dtypes and shapes, which were written just now.
    pub(super) fn tensors<'py, 'l>(
        &self,
        py: Python<'py>,
        wanted: impl Iterator<Item = (PathBuf, &'l str, &'l [i64])>,
        threads: usize,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let leaves: Vec<Leaf> = wanted
            .map(|(path, dtype_name, shape)| {
                let length = dtype::item_size(dtype_name)
                    .and_then(|item| dtype::tensor_bytes(shape, item))
                    .unwrap_or(0);
                let meta = LeafMeta {
                    device: "cpu".into(),
                    shape: shape.into(),
                    dtype: dtype::intern(dtype_name),
                    is_nested: false,
                };
                Leaf::of_file(&self.archive.root().join(path), meta, length)
            })
            .collect();
        let found = py
            .detach(|| self.archive.locate(&leaves, threads))
            .map_err(|error| exception(py, &error))?;
        leaves
            .iter()
            .zip(found)
            .map(|(leaf, bytes)| self.tensor(py, bytes, &leaf.meta.dtype, &leaf.meta.shape))
            .collect()
    }
}

/// A leaf of which a thread without the interpreter has done what it can.
enum Ready {
    Tensor(Prepared),
    Bytes(LeafBytes),
}

/// Leaves whose bytes were found, prepared to be made tensors of.
fn prepared(recorded: &Arc<Recorded>, leaves: &[Leaf], found: Vec<LeafBytes>) -> Vec<Ready> {
    let mapping = recorded.mapping();
    let place = |leaf: &Leaf, bytes: &LeafBytes| {
        let LeafBytes::At(offset) = bytes else {
            return None;
        };
        let (start, length) = (
            usize::try_from(*offset).ok()?,
            usize::try_from(leaf.length).ok()?,
        );
        // Making the tensor fails if it is not within the file.
        let is_inside = start.checked_add(length)? <= mapping.len();
        let dtype = DataType::of(&leaf.meta.dtype).filter(|_| is_inside)?;
        Some((mapping.as_mut_ptr().wrapping_add(start), dtype))
    };
    let places: Vec<_> = leaves
        .iter()
        .zip(&found)
        .map(|(leaf, bytes)| place(leaf, bytes))
        .collect();
    let known: Vec<dlpack::Place<'_>> = leaves
        .iter()
        .zip(&places)
        .filter_map(|(leaf, place)| Some(((*place)?.0, (*place)?.1, &*leaf.meta.shape)))
        .collect();
    // SAFETY: the bytes are within the mapping, as just compared, as long as dtype and shape need,
    // aligned for the items (the core has compared the offset), writable, and live as long as the
    // mapping.
    let mut tensors = unsafe { dlpack::prepare(&known, recorded.clone()) }.into_iter();
    found
        .into_iter()
        .zip(places)
        .map(|(bytes, place)| match place.and_then(|_| tensors.next()) {
            Some(tensor) => Ready::Tensor(tensor),
            None => Ready::Bytes(bytes),
        })
        .collect()
}

fn memory_bytes(dtype_name: &str, shape: &[i64]) -> PyResult<usize> {
    dtype::item_size(dtype_name)
        .and_then(|item| dtype::tensor_bytes(shape, item))
        .and_then(|length| usize::try_from(length).ok())
        .ok_or_else(|| PyValueError::new_err("the tensor is larger than the memory"))
}

/// A plain tensor over `length` bytes of a mapped archive, whose offset is one that the core gave.
fn tensor_in<'py>(
    py: Python<'py>,
    recorded: &Arc<Recorded>,
    offset: u64,
    dtype_name: &str,
    shape: &[i64],
    length: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let mapping = recorded.mapping();
    let offset = usize::try_from(offset)?;
    let end = offset.checked_add(length);
    if end.is_none_or(|end| end > mapping.len()) {
        return Err(PyValueError::new_err("the archive was cut"));
    }
    let pointer = mapping.as_mut_ptr().wrapping_add(offset);
    // SAFETY: the bytes are within the mapping, as just compared, aligned for the items (the core
    // has compared the offset), writable, and live as long as the mapping.
    unsafe { tensor_at(py, pointer, length, dtype_name, shape, recorded.clone()) }
}

/// A leaf of an archive that was just written.
pub(super) enum Written {
    Prepared(Prepared),
    /// One of no bytes, or of a dtype that takes a detour.
    Other(Arc<Recorded>, Place),
}

impl Written {
    /// The tensor over its bytes.
    pub(super) fn make(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        let (mapping, place) = match self {
            Self::Prepared(prepared) => return prepared.make(py),
            Self::Other(mapping, place) => (mapping, place),
        };
        let (dtype, shape) = (&*place.meta.dtype, place.shape());
        let length = memory_bytes(dtype, shape)?;
        if length == 0 {
            return empty(py, dtype, shape);
        }
        tensor_in(py, &mapping, place.offset, dtype, shape, length)
    }
}

/// Leaves of an archive that was just written, prepared to be made tensors of.
pub(super) fn written(recorded: &Arc<Recorded>, places: Vec<Place>) -> PyResult<Vec<Written>> {
    let mapping = recorded.mapping();
    let start = |place: &Place| -> PyResult<Option<(*mut u8, DataType)>> {
        let length = memory_bytes(&place.meta.dtype, place.shape())?;
        let start = usize::try_from(place.offset)?;
        let end = start.checked_add(length);
        let is_inside = end.is_some_and(|end| end <= mapping.len());
        let dtype = DataType::of(&place.meta.dtype).filter(|_| is_inside && length > 0);
        Ok(dtype.map(|dtype| (mapping.as_mut_ptr().wrapping_add(start), dtype)))
    };
    let starts: Vec<_> = places.iter().map(start).collect::<PyResult<_>>()?;
    let known: Vec<dlpack::Place<'_>> = places
        .iter()
        .zip(&starts)
        .filter_map(|(place, start)| start.map(|(pointer, dtype)| (pointer, dtype, place.shape())))
        .collect();
    // SAFETY: the bytes are within the mapping, as just compared, aligned for the items (leaves begin at
    // multiples of 64), writable, and live as long as the mapping.
    let mut tensors = unsafe { dlpack::prepare(&known, recorded.clone()) }.into_iter();
    drop(known);
    Ok(places
        .into_iter()
        .zip(starts)
        .map(|(place, start)| match start.and_then(|_| tensors.next()) {
            Some(prepared) => Written::Prepared(prepared),
            None => Written::Other(recorded.clone(), place),
        })
        .collect())
}

/// A tensor over memory of our own.
fn copy_tensor<'py>(
    py: Python<'py>,
    mut memory: Vec<u128>,
    dtype: &str,
    shape: &[i64],
    length: usize,
) -> PyResult<Bound<'py, PyAny>> {
    if length == 0 {
        return empty(py, dtype, shape);
    }
    if memory.len() * size_of::<u128>() < length {
        return Err(PyValueError::new_err("the leaf is shorter than its shape"));
    }
    let pointer = memory.as_mut_ptr().cast::<u8>();
    // SAFETY: the memory is long enough, as just compared, aligned for 16 bytes, and lives as
    // long as the vector, whose buffer does not move with it.
    unsafe { tensor_at(py, pointer, length, dtype, shape, memory) }
}

/// The method of compression of a number of zip files.
pub(super) fn method(number: u16, level: Option<u32>) -> PyResult<Method> {
    Ok(match (Method::from_number(number), level) {
        (Some(Method::Deflate(_)), Some(level)) => Method::Deflate(level.min(9)),
        (Some(Method::Bzip2(_)), Some(level)) => Method::Bzip2(level.clamp(1, 9)),
        (Some(method), _) => method,
        (None, _) => {
            return Err(PyValueError::new_err(format!(
                "{number} is not a compression method"
            )));
        }
    })
}

/// Makes an archive of a directory.
#[pyfunction]
#[pyo3(signature = (source, target, compression, level, num_threads, progress))]
fn pack_tree(
    py: Python<'_>,
    source: PathBuf,
    target: PathBuf,
    compression: u16,
    level: Option<u32>,
    num_threads: usize,
    progress: &SaveProgress,
) -> PyResult<()> {
    let method = method(compression, level)?;
    let packed = py.detach(|| {
        let job = progress.job((num_threads, false, true));
        archive::pack(&job, &source, &target, method)
    });
    packed.map_err(|error| progress.exception(py, &error))
}

/// Writes the files of an archive into a directory.
#[pyfunction]
#[pyo3(signature = (path, target, num_threads))]
fn unpack_archive(
    py: Python<'_>,
    path: PathBuf,
    target: PathBuf,
    num_threads: usize,
) -> PyResult<()> {
    let progress = SaveProgress::default();
    let unpacked = py.detach(|| {
        let job = progress.job((num_threads, false, true));
        archive::unpack(&job, &path, &target)
    });
    unpacked.map_err(|error| progress.exception(py, &error))
}

/// Takes the checksums of an archive anew, in place; of how many entries.
#[pyfunction]
#[pyo3(signature = (path, num_threads, progress))]
fn refresh_archive(
    py: Python<'_>,
    path: PathBuf,
    num_threads: usize,
    progress: &SaveProgress,
) -> PyResult<usize> {
    let refreshed = py.detach(|| {
        let job = progress.job((num_threads, false, true));
        archive::refresh(&job, &path)
    });
    refreshed.map_err(|error| progress.exception(py, &error))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<OpenArchive>()?;
    module.add_function(wrap_pyfunction!(pack_tree, module)?)?;
    module.add_function(wrap_pyfunction!(unpack_archive, module)?)?;
    module.add_function(wrap_pyfunction!(refresh_archive, module)?)
}
