//! Tensors whose memory is a mapped file, and the record of all such memory.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};
use tensordict_core::gather::RowFile;
use tensordict_core::storage::dtype;
use tensordict_core::storage::map::{FileIdentity, Mapping};

use super::dlpack::{self, DataType};
use crate::ffi::Resolved;

/// The file that is mapped at an address.
#[derive(Clone)]
struct Record {
    length: usize,
    file: FileIdentity,
    is_shared: bool,
    is_copy: bool,
    path: PathBuf,
    /// The file as rows are read of it, once some were.
    rows: Option<Arc<RowFile>>,
}

/// So many files stay open for the rows that are read of them.
const MOST_OPEN: usize = 256;

static NUM_OPEN: AtomicUsize = AtomicUsize::new(0);

/// The records by address.
type Records = BTreeMap<usize, Record>;

/// Every mapping that a tensor stands on. The lock is held for a look-up, never while Python
/// runs, and by the one who forks. (It is one of the standard library: others have tables that
/// a fork can leave locked.)
static MAPPED: Mutex<Records> = Mutex::new(BTreeMap::new());

fn mapped() -> MutexGuard<'static, Records> {
    MAPPED.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// The lock that a thread holds while it forks, so that nobody holds it who is not there in the
    /// child.
    static HELD: RefCell<Option<MutexGuard<'static, Records>>> = const { RefCell::new(None) };
}

extern "C" fn before_fork() {
    // A thread that is about to end has no such place any more, and forks without.
    let _ = HELD.try_with(|held| *held.borrow_mut() = Some(mapped()));
}

extern "C" fn after_fork() {
    let _ = HELD.try_with(|held| drop(held.borrow_mut().take()));
}

/// A mapping that is on record while it lives.
pub(crate) struct Recorded {
    mapping: Arc<Mapping>,
}

impl Recorded {
    pub(crate) fn new(mapping: impl Into<Arc<Mapping>>, path: &Path) -> Self {
        let mapping = mapping.into();
        let record = Record {
            length: mapping.len(),
            file: mapping.file(),
            is_shared: mapping.is_shared(),
            is_copy: mapping.is_copy(),
            rows: None,
            path: path.to_path_buf(),
        };
        mapped().insert(mapping.as_mut_ptr().addr(), record);
        Self { mapping }
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        // Before the memory is unmapped and its address given to another mapping.
        let removed = mapped().remove(&self.mapping.as_mut_ptr().addr());
        if removed.is_some_and(|record| record.rows.is_some()) {
            NUM_OPEN.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Returns whether the `length` bytes at `pointer` are, all of them and shared, the file at `path`.
pub(crate) fn whole_file_at(
    pointer: *const u8,
    length: usize,
    path: &Path,
) -> Option<FileIdentity> {
    let record = mapped().get(&pointer.addr()).cloned()?;
    let is_it = record.is_shared
        && record.length == length
        && FileIdentity::of_path(path) == Some(record.file);
    is_it.then_some(record.file)
}

/// The file that shared memory at an address is mapped from.
pub(crate) fn file_at(address: usize) -> Option<FileIdentity> {
    let mapped = mapped();
    let (start, record) = mapped.range(..=address).next_back()?;
    (record.is_shared && address - start < record.length).then_some(record.file)
}

/// The file that memory between two addresses is mapped from, to read rows of: `(file, offset of
/// the lower address, whether stores of this process are in the memory only)`. None for other
/// memory, and where the name leads to another file by now.
pub(crate) fn row_file_at(lowest: usize, highest: usize) -> Option<(Arc<RowFile>, u64, bool)> {
    let (start, record) = {
        let mapped = mapped();
        let (start, record) = mapped.range(..=lowest).next_back()?;
        if highest - start > record.length || record.is_copy {
            return None;
        }
        if let Some(file) = &record.rows {
            let offset = u64::try_from(lowest - start).ok()?;
            return Some((file.clone(), offset, !record.is_shared));
        }
        (*start, record.clone())
    };
    let file = Arc::new(RowFile::open(&record.path, record.file)?);
    if NUM_OPEN.load(Ordering::Relaxed) < MOST_OPEN
        && let Some(known) = mapped().get_mut(&start)
        && known.file == record.file
        && known.rows.is_none()
    {
        known.rows = Some(file.clone());
        NUM_OPEN.fetch_add(1, Ordering::Relaxed);
    }
    let offset = u64::try_from(lowest - start).ok()?;
    Some((file, offset, !record.is_shared))
}

/// The file that memory between two addresses is mapped from, where it is shorter by now than
/// that. None too where its name leads to another file: only processes that have it open could
/// have cut it.
pub(crate) fn cut_file_at(lowest: usize, highest: usize) -> Option<PathBuf> {
    let (start, record) = {
        let mapped = mapped();
        let (start, record) = mapped.range(..=lowest).next_back()?;
        if lowest - start >= record.length {
            return None;
        }
        (*start, record.clone())
    };
    let metadata = std::fs::metadata(&record.path).ok()?;
    let needed = u64::try_from(highest - start).unwrap_or(u64::MAX);
    let is_cut = metadata.len() < needed && FileIdentity::of(&metadata) == record.file;
    is_cut.then_some(record.path)
}

/// Returns whether an address lies in the mapping of a file.
pub(crate) fn is_mapped(address: usize) -> bool {
    let mapped = mapped();
    let found = mapped.range(..=address).next_back();
    found.is_some_and(|(start, record)| address - start < record.length)
}

/// The mapping that an address lies in: `(file, offset, bytes, is_shared)`, or None.
///
/// The file is the one that the mapping was made from; None too where another file has its name now.
#[pyfunction]
fn mapping_of(address: usize) -> Option<(PathBuf, usize, usize, bool)> {
    let (start, record) = {
        let mapped = mapped();
        let (start, record) = mapped.range(..=address).next_back()?;
        (*start, record.clone())
    };
    let offset = address - start;
    let is_there =
        offset < record.length && FileIdentity::of_path(&record.path) == Some(record.file);
    is_there.then_some((record.path, offset, record.length, record.is_shared))
}

/// Returns whether an address lies in the mapping of a file that had the name of `path` and does
/// not have it any more. Only the last part of the path is compared: a save that takes the place of
/// another one moves the old files first.
#[pyfunction]
#[expect(
    clippy::needless_pass_by_value,
    reason = "functions of the module own what they make of Python's arguments"
)]
fn is_of_replaced_file(address: usize, path: PathBuf) -> bool {
    let record = {
        let mapped = mapped();
        let found = mapped.range(..=address).next_back();
        found
            .filter(|(start, record)| address - **start < record.length)
            .map(|(_, record)| record.clone())
    };
    record.is_some_and(|record| {
        record.path.file_name() == path.file_name()
            && FileIdentity::of_path(&record.path) != Some(record.file)
    })
}

/// The Python objects that tensors over files are made with.
struct Imports {
    class: Py<PyType>,
    torch: Py<PyAny>,
    filename: Py<PyString>,
    mode: Py<PyString>,
    class_attribute: Py<PyString>,
}

static IMPORTS: Resolved<Imports> = Resolved::new();

fn imports(py: Python<'_>) -> PyResult<&Imports> {
    IMPORTS.get_or_try_init(py, || {
        let class = py
            .import("tensordict.memmap")?
            .getattr("MemoryMappedTensor")?;
        Ok(Imports {
            class: class.cast_into::<PyType>()?.unbind(),
            torch: py.import("torch")?.into_any().unbind(),
            filename: PyString::intern(py, "_filename").unbind(),
            mode: PyString::intern(py, "_mode").unbind(),
            class_attribute: PyString::intern(py, "__class__").unbind(),
        })
    })
}

/// `torch.<name>`, from a name with or without the module.
pub(crate) fn torch_dtype<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    let short = name.strip_prefix("torch.").unwrap_or(name);
    imports(py)?.torch.bind(py).getattr(short)
}

/// The class of tensors over files.
pub(crate) fn mapped_class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    Ok(imports(py)?.class.bind(py))
}

/// A `MemoryMappedTensor` of this shape over a mapping (none where there are no bytes).
pub(crate) fn mapped_tensor<'py>(
    py: Python<'py>,
    mapping: Option<Mapping>,
    path: &Path,
    dtype: &str,
    shape: &[i64],
    mode: Option<&str>,
) -> PyResult<Bound<'py, PyAny>> {
    let imports = imports(py)?;
    let tensor = match mapping {
        None => empty(py, dtype, shape)?,
        Some(mapping) => over(py, mapping, path, dtype, shape)?,
    };
    // An instance of torch.Tensor becomes one of its subclass, which adds no storage of its own: a
    // tenth of what torch's as_subclass costs.
    tensor.setattr(&imports.class_attribute, &imports.class)?;
    tensor.setattr(&imports.filename, path.as_os_str())?;
    if let Some(mode) = mode {
        tensor.setattr(&imports.mode, mode)?;
    }
    Ok(tensor)
}

/// A mapping that several plain tensors stand on, each on a part of it.
pub(crate) struct Shared {
    kept: Arc<Recorded>,
}

impl Shared {
    pub(crate) fn new(mapping: Mapping, path: &Path) -> Self {
        Self {
            kept: Arc::new(Recorded::new(mapping, path)),
        }
    }

    /// The tensor of the `length` bytes at `offset`, which are those of this shape and dtype; a copy
    /// where they do not lie as items of the dtype have to.
    pub(crate) fn tensor<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        length: u64,
        dtype: &str,
        shape: &[i64],
    ) -> PyResult<Bound<'py, PyAny>> {
        let mapping = &self.kept.mapping;
        let (Ok(offset), Ok(length)) = (usize::try_from(offset), usize::try_from(length)) else {
            return Err(PyRuntimeError::new_err("the tensor is larger than memory"));
        };
        let is_inside = offset
            .checked_add(length)
            .is_some_and(|end| end <= mapping.len());
        if length == 0 || !is_inside {
            return empty(py, dtype, shape);
        }
        let pointer = mapping.as_mut_ptr().wrapping_add(offset);
        let item_size = usize::try_from(dtype::item_size(dtype).unwrap_or(1)).unwrap_or(1);
        let is_aligned = pointer.addr() % item_size == 0;
        let kept = Arc::clone(&self.kept);
        if is_aligned {
            // SAFETY: the caller's length is that of shape and dtype, and lies within the mapping,
            // which is writable memory (private or shared) and lives as long as `kept`.
            return unsafe { tensor_at(py, pointer, length, dtype, shape, kept) };
        }
        let length = [i64::try_from(length)?];
        // SAFETY: as above, for bytes.
        let bytes = unsafe { dlpack::tensor_over(py, pointer, DataType::BYTES, &length, kept)? };
        view_as(&bytes.call_method0("clone")?, dtype, shape)
    }
}

/// A tensor of bytes as one of a dtype and a shape.
fn view_as<'py>(
    bytes: &Bound<'py, PyAny>,
    dtype: &str,
    shape: &[i64],
) -> PyResult<Bound<'py, PyAny>> {
    let py = bytes.py();
    let viewed = bytes.call_method1("view", (torch_dtype(py, dtype)?,))?;
    viewed.call_method1("view", (PyTuple::new(py, shape)?,))
}

/// A plain tensor of the bytes of a mapping.
pub(crate) fn bytes_over<'py>(
    py: Python<'py>,
    mapping: Mapping,
    path: &Path,
) -> PyResult<Bound<'py, PyAny>> {
    let length = i64::try_from(mapping.len())?;
    over(py, mapping, path, "uint8", &[length])
}

fn over<'py>(
    py: Python<'py>,
    mapping: Mapping,
    path: &Path,
    dtype: &str,
    shape: &[i64],
) -> PyResult<Bound<'py, PyAny>> {
    let pointer = mapping.as_mut_ptr();
    let length = mapping.len();
    let kept = Recorded::new(mapping, path);
    // SAFETY: the mapping is at least as long as shape and dtype need (each caller has
    // compared them), begins at a page, is writable memory (private or shared), and lives
    // as long as `kept`, which any thread may drop.
    unsafe { tensor_at(py, pointer, length, dtype, shape, kept) }
}

/// A plain tensor of this shape over memory that `kept` keeps alive.
///
/// # Safety
/// The same as for [`dlpack::tensor_over`]; `length` is exactly what shape and dtype need where the
/// dtype is one that `DLPack` does not make.
pub(crate) unsafe fn tensor_at<'py, T: Send + 'static>(
    py: Python<'py>,
    pointer: *mut u8,
    length: usize,
    dtype: &str,
    shape: &[i64],
    kept: T,
) -> PyResult<Bound<'py, PyAny>> {
    if let Some(dtype) = DataType::of(dtype) {
        // SAFETY: the contract of this function.
        return unsafe { dlpack::tensor_over(py, pointer, dtype, shape, kept) };
    }
    let length = [i64::try_from(length)?];
    // SAFETY: as above, for bytes.
    let bytes = unsafe { dlpack::tensor_over(py, pointer, DataType::BYTES, &length, kept)? };
    view_as(&bytes, dtype, shape)
}

pub(crate) fn empty<'py>(
    py: Python<'py>,
    dtype: &str,
    shape: &[i64],
) -> PyResult<Bound<'py, PyAny>> {
    let keywords = PyDict::new(py);
    keywords.set_item("dtype", torch_dtype(py, dtype)?)?;
    keywords.set_item("device", "cpu")?;
    let torch = imports(py)?.torch.bind(py);
    torch
        .getattr("empty")?
        .call((PyTuple::new(py, shape)?,), Some(&keywords))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // SAFETY: the functions stay: an extension module is never unloaded.
    let failed =
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork)) };
    if failed != 0 {
        return Err(io::Error::from_raw_os_error(failed).into());
    }
    module.add_function(wrap_pyfunction!(is_of_replaced_file, module)?)?;
    module.add_function(wrap_pyfunction!(mapping_of, module)?)
}
