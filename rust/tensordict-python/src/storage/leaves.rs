//! Leaves on the Python side, read as memory and metadata.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};
use tensordict_core::storage::dtype;
use tensordict_core::storage::metadata::{LeafMeta, Shape};
use tensordict_core::storage::region::Region;
use tensordict_core::storage::source::{Remote, Source};

use super::devices::DeviceBytes;
use super::dlpack::{self, Memory};
use super::load::num_bytes;
use super::mapped::{cut_file_at, mapped_class};
use crate::collection::{has_signs, signs_of};
use crate::ffi::Resolved;
use crate::shortcuts::tensors::{HeldStorage, Tensor};

struct Imports {
    tensor: Py<PyType>,
    parameter: Py<PyType>,
    prepare: Py<PyAny>,
    /// The function that gives a tensor over the same memory.
    detach: Py<PyAny>,
    /// The class of what has the values of a tensor of another device.
    reader: Py<PyType>,
    describe: Py<PyAny>,
    filename: Py<PyString>,
}

static IMPORTS: Resolved<Imports> = Resolved::new();

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
            tensor,
            parameter: class("torch.nn", "Parameter")?,
            prepare: leaves.getattr("prepare_to_write")?.unbind(),
            detach: leaves.getattr("detach")?.unbind(),
            reader: class("tensordict.storage.devices", "DeviceReader")?,
            describe: leaves.getattr("describe")?.unbind(),
            filename: PyString::intern(py, "_filename").unbind(),
        })
    })
}

/// A leaf about to be planned.
pub(super) struct NewLeaf {
    pub(super) meta: Arc<LeafMeta>,
    /// The bytes, where there are any to write.
    pub(super) values: Option<Values>,
    pub(super) num_bytes: u64,
    pub(super) table: Option<Vec<u8>>,
    /// The number of values of a nested tensor.
    pub(super) num_flat: Option<i64>,
}

/// The holder that keeps the memory of a leaf in place. The tensor itself would not: it can be
/// given other memory while its bytes are written (`tensor.data = ...`, `set_`), and then frees
/// what it had.
pub(crate) enum Kept {
    Storage(HeldStorage),
    /// A tensor or reader that nobody else knows.
    Object(Py<PyAny>),
}

impl Kept {
    /// The object, for the garbage collector.
    pub(super) fn object(&self) -> Option<&Py<PyAny>> {
        match self {
            Self::Storage(_) => None,
            Self::Object(object) => Some(object),
        }
    }

    /// Returns whether the memory is where it was when this was made: a tensor that nobody else knows
    /// keeps it.
    pub(super) fn is_in_place(&self) -> bool {
        match self {
            Self::Storage(held) => held.is_in_place(),
            Self::Object(_) => true,
        }
    }
}

/// The values of a leaf.
pub(crate) struct Values {
    /// The holder of the bytes.
    pub(crate) kept: Kept,
    bytes: Bytes,
}

enum Bytes {
    Memory(Memory),
    Remote(Arc<DeviceBytes>),
}

impl Values {
    /// Takes what `leaves.prepare_to_write` has made of a tensor.
    fn prepared(made: Bound<'_, PyAny>) -> PyResult<Self> {
        let bytes = if made.is_instance(imports(made.py())?.reader.bind(made.py()))? {
            Bytes::Remote(Arc::new(DeviceBytes::new(&made)?))
        } else {
            let memory = required_memory(&made)?;
            check_storage(&made, &memory)?;
            Bytes::Memory(memory)
        };
        let kept = Kept::Object(made.unbind());
        Ok(Self { kept, bytes })
    }

    fn num_bytes(&self) -> u64 {
        match &self.bytes {
            Bytes::Memory(memory) => memory.num_bytes as u64,
            Bytes::Remote(remote) => remote.length(),
        }
    }

    /// Their memory, unless they are elsewhere.
    pub(super) fn memory(&self) -> Option<&Memory> {
        match &self.bytes {
            Bytes::Memory(memory) => Some(memory),
            Bytes::Remote(_) => None,
        }
    }

    /// Returns the source from which a save reads the bytes.
    ///
    /// # Safety
    /// The caller holds what is kept for as long as the source is in use.
    pub(crate) unsafe fn source(&self) -> PyResult<Source> {
        match &self.bytes {
            Bytes::Memory(memory) => {
                // SAFETY: the contract of this function.
                let source = unsafe { memory.source() };
                source.ok_or_else(no_memory)
            }
            Bytes::Remote(remote) => Ok(Source::Remote(remote.clone())),
        }
    }
}

/// Reads a leaf; its description alone where `is_sparse`.
pub(super) fn new_leaf(value: &Bound<'_, PyAny>, is_sparse: bool) -> PyResult<NewLeaf> {
    let py = value.py();
    if let Some((memory, kept)) = plain_memory(value)? {
        let meta = meta_on_cpu(&memory.shape, memory.dtype);
        let num_bytes = memory.num_bytes as u64;
        let bytes = Bytes::Memory(memory);
        let values = (!is_sparse).then_some(Values { kept, bytes });
        return Ok(NewLeaf {
            meta,
            values,
            num_bytes,
            table: None,
            num_flat: None,
        });
    }
    if is_sparse {
        let described = imports(py)?.describe.bind(py).call1((value,))?;
        let (device, shape, dtype, num_items, table): Described = described.extract()?;
        let num_flat = table.is_some().then_some(num_items);
        let num_bytes = match num_flat {
            Some(num_items) => num_bytes(&dtype, &[num_items])?,
            None => num_bytes(&dtype, &shape)?,
        };
        return Ok(NewLeaf {
            num_bytes,
            meta: Arc::new(LeafMeta {
                device: device.into(),
                shape: Shape::from_vec(shape),
                dtype: dtype.into(),
                is_nested: num_flat.is_some(),
            }),
            values: None,
            table,
            num_flat,
        });
    }
    // Everything that is not plain memory: torch makes it so.
    let prepared = imports(py)?.prepare.bind(py).call1((value,))?;
    let (bytes, device, shape, dtype, table): Prepared<'_> = prepared.extract()?;
    let values = Values::prepared(bytes)?;
    let num_flat = match &table {
        Some(_) => {
            let item_size = num_bytes(&dtype, &[])?;
            Some(i64::try_from(values.num_bytes() / item_size)?)
        }
        None => None,
    };
    Ok(NewLeaf {
        meta: Arc::new(LeafMeta {
            device: device.into(),
            shape: Shape::from_vec(shape),
            dtype: dtype.into(),
            is_nested: num_flat.is_some(),
        }),
        num_bytes: values.num_bytes(),
        values: Some(values),
        table,
        num_flat,
    })
}

fn meta_on_cpu(shape: &[i64], dtype: &'static str) -> Arc<LeafMeta> {
    Arc::new(LeafMeta {
        device: "cpu".into(),
        shape: Shape::from_slice(shape),
        dtype: dtype.into(),
        is_nested: false,
    })
}

/// A leaf whose memory is its values, of a kind that most saves are full of.
pub(super) struct PlainLeaf {
    pub(super) meta: Arc<LeafMeta>,
    pub(super) region: Region,
    /// The holder that keeps the region in place.
    pub(super) kept: Kept,
}

/// Reads an ordinary tensor whose memory is its values, in few steps; None for every other one, which
/// [`new_leaf`] reads. Where the tensor before, with the metadata `last`, was like it, the
/// metadata is shared.
///
/// # Safety
/// The caller holds what is kept for as long as the region is in use.
pub(super) unsafe fn plain_leaf(
    value: &Bound<'_, PyAny>,
    last: Option<&Arc<LeafMeta>>,
) -> Option<PlainLeaf> {
    let tensor = Tensor::of(value)?;
    // Asked first: torch gives the interpreter's lock away to answer.
    if has_signs(crate::imports::imports(value.py()).ok()?, &tensor)? {
        return None;
    }
    if !tensor.is_on_cpu()? || !tensor.is_contiguous()? {
        return None;
    }
    let dtype = tensor.dtype_name()?;
    let meta = tensor.with_shape(|shape| match last {
        Some(last) if last.is_plain_on_cpu(shape, dtype) => last.clone(),
        _ => meta_on_cpu(shape, dtype),
    })?;
    let item = dtype::item_size(dtype)?;
    let num_bytes = usize::try_from(dtype::tensor_bytes(&meta.shape, item)?).ok()?;
    let pointer = tensor.data()?;
    if num_bytes > 0 && pointer.is_null() {
        return None;
    }
    let storage = tensor.storage(item)?;
    if !storage.has_all_elements {
        return None;
    }
    // SAFETY: the items of the tensor lie from its pointer on, without gaps; the rest is the contract of
    // this function.
    let region = unsafe { Region::lent(pointer, num_bytes) };
    let kept = Kept::Storage(storage.held);
    Some(PlainLeaf { meta, region, kept })
}

/// The file that a tensor of this package's class is mapped from.
pub(super) fn file_of(value: &Bound<'_, PyAny>) -> PyResult<Option<PathBuf>> {
    let py = value.py();
    if !value.get_type().is(mapped_class(py)?) {
        return Ok(None);
    }
    value.getattr(&imports(py)?.filename)?.extract()
}

/// The class of tensors.
pub(super) fn tensor_class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    Ok(imports(py)?.tensor.bind(py))
}

const MSG_NO_MEMORY: &str = "the tensor has no memory that could be saved";

/// `(device, shape, dtype, number of items, table of sizes)` of `leaves.describe`.
type Described = (String, Vec<i64>, String, i64, Option<Vec<u8>>);

/// `(tensor without gaps or reader, device, shape, dtype, table of sizes)` of
/// `leaves.prepare_to_write`.
type Prepared<'py> = (Bound<'py, PyAny>, String, Vec<i64>, String, Option<Vec<u8>>);

/// The memory of a tensor that is its values as they are, and what keeps it; None where torch has to
/// help.
///
/// Nothing is assumed about other subclasses: a fake tensor has no memory, a wrapper none of its own.
fn plain_memory(value: &Bound<'_, PyAny>) -> PyResult<Option<(Memory, Kept)>> {
    let py = value.py();
    let imports = imports(py)?;
    let class = value.get_type();
    let mapped = mapped_class(py)?;
    let is_known = class.is(&imports.tensor) || class.is(mapped) || class.is(&imports.parameter);
    if !is_known {
        return Ok(None);
    }
    let ordinary = Tensor::of_plain_or_mapped(value);
    let own;
    // A tensor that cannot be asked natively is replaced by another one, which nobody else knows.
    let (value, held) = if let Some(storage) = ordinary.and_then(|tensor| tensor.storage(1)) {
        (value, Some(Kept::Storage(storage.held)))
    } else {
        own = imports.detach.bind(py).call1((value,))?;
        (&own, None)
    };
    let Some(mut memory) = dlpack::strided_memory_of(value)? else {
        return Ok(None);
    };
    check_storage(value, &memory)?;
    if let Some((lowest, highest)) = memory.bounds() {
        check_file(lowest, highest)?;
    }
    let kept = held.unwrap_or_else(|| Kept::Object(value.clone().unbind()));
    // DLPack gives the bytes of such views as they lie.
    let is_complex = memory.is_complex();
    memory.signs = signs_of(crate::imports::imports(py)?, value, is_complex)?;
    // The sign of a float is a bit; that of an integer is not.
    let can_be_negated = !memory.signs.negated || is_complex || memory.dtype.contains("float");
    Ok(can_be_negated.then_some((memory, kept)))
}

/// Refuses a tensor whose storage was made shorter than it is.
fn check_storage(value: &Bound<'_, PyAny>, memory: &Memory) -> PyResult<()> {
    if memory.num_bytes == 0 {
        return Ok(());
    }
    let item_bytes = memory.item_bytes();
    let ordinary = Tensor::of(value).and_then(|tensor| tensor.storage(item_bytes as u64));
    let has_all = if let Some(storage) = ordinary {
        storage.has_all_elements
    } else {
        let storage = value.call_method0("untyped_storage")?;
        let start = storage.call_method0("data_ptr")?.extract::<usize>()?;
        let length = storage.call_method0("nbytes")?.extract::<usize>()?;
        let (lowest, highest) = memory.bounds().ok_or_else(no_memory)?;
        start <= lowest && highest <= start.saturating_add(length)
    };
    if has_all {
        return Ok(());
    }
    Err(PyRuntimeError::new_err(format!(
        "a tensor of the shape {:?} and the dtype {} reaches beyond the end of its storage, which \
         was made shorter: it has no values that could be saved",
        &memory.shape[..],
        memory.dtype
    )))
}

/// Refuses a tensor between two addresses over a file of this package that somebody has cut: to read
/// it would be a bus error.
pub(super) fn check_file(lowest: usize, highest: usize) -> PyResult<()> {
    match cut_file_at(lowest, highest) {
        None => Ok(()),
        Some(path) => Err(PyRuntimeError::new_err(format!(
            "the file '{}' was cut after a tensor was mapped from it: the tensor has no values that \
             could be saved",
            path.display()
        ))),
    }
}

fn no_memory() -> PyErr {
    PyRuntimeError::new_err(MSG_NO_MEMORY)
}

/// The values of any tensor, which are a copy where torch has to help; those of a reader.
pub(crate) fn values_of(value: &Bound<'_, PyAny>) -> PyResult<Values> {
    let py = value.py();
    if let Some((memory, kept)) = plain_memory(value)? {
        let bytes = Bytes::Memory(memory);
        return Ok(Values { kept, bytes });
    }
    let imports = imports(py)?;
    if value.is_instance(imports.reader.bind(py))? {
        return Values::prepared(value.clone());
    }
    let prepared = imports.prepare.bind(py).call1((value,))?;
    Values::prepared(prepared.get_item(0)?)
}

/// The memory of a tensor that was made plain.
pub(super) fn required_memory(tensor: &Bound<'_, PyAny>) -> PyResult<Memory> {
    dlpack::memory_of(tensor)?.ok_or_else(no_memory)
}
