//! Tensors as memory, both ways, through `DLPack`'s C exchange interface.
//!
//! torch publishes a table of C functions: one fills a [`DLTensor`] (pointer, shape,
//! strides, dtype, device) in a twentieth of a microsecond, where the four Python attributes cost
//! six times that; another makes a tensor over memory that we own.
//!
//! The unsafe code here rests on the layout of the structs, which is that of `DLPack` 1.3 (the
//! version in the table is checked), and on the rule that a function of the table is called
//! with the GIL held.

mod refusals;

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods};
use smallvec::SmallVec;
use tensordict_core::storage::region::{self, Region};
use tensordict_core::storage::source::{Signs, Source, Strided};

use crate::ffi::Resolved;
use crate::shortcuts::tensors::Tensor;

const CPU: i32 = 1;
const MAJOR_VERSION: u32 = 1;

#[repr(C)]
#[derive(Clone, Copy)]
struct Version {
    major: u32,
    minor: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Device {
    kind: i32,
    index: i32,
}

/// The kind of the items of a tensor.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
struct DLTensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct ManagedTensor {
    version: Version,
    manager_ctx: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedTensor)>,
    flags: u64,
    tensor: DLTensor,
}

/// `DLPackExchangeAPI`.
#[repr(C)]
struct ExchangeApi {
    version: Version,
    previous: *mut c_void,
    allocate: *const c_void,
    managed_from_object: *const c_void,
    managed_to_object: Option<unsafe extern "C" fn(*mut ManagedTensor, *mut *mut c_void) -> i32>,
    tensor_from_object: Option<unsafe extern "C" fn(*mut c_void, *mut DLTensor) -> i32>,
    current_stream: *const c_void,
}

/// The table, which lives as long as the process.
struct Table(NonNull<ExchangeApi>);

// SAFETY: the table is a constant of torch's library; it is only read.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

static TABLE: Resolved<Table> = Resolved::new();

fn table(py: Python<'_>) -> PyResult<&ExchangeApi> {
    let table = TABLE.get_or_try_init(py, || {
        let attribute = py
            .import("torch")?
            .getattr("Tensor")?
            .getattr("__dlpack_c_exchange_api__")?;
        let capsule = attribute.cast::<PyCapsule>()?;
        let pointer = capsule
            .pointer_checked(Some(c"dlpack_exchange_api"))?
            .cast::<ExchangeApi>();
        // SAFETY: a capsule of this name holds such a table, of which the version comes first
        // whatever the version is.
        let major = unsafe { (*pointer.as_ptr()).version.major };
        if major != MAJOR_VERSION {
            return Err(PyImportError::new_err(format!(
                "this version of torch exchanges tensors by DLPack {major}, and this version of \
                 tensordict by DLPack {MAJOR_VERSION}"
            )));
        }
        Ok(Table(pointer))
    })?;
    // SAFETY: the table is a constant of torch's library, which is never unloaded.
    Ok(unsafe { table.0.as_ref() })
}

/// The beginning of the names of dtypes.
const MODULE: &str = "torch.";

const DTYPES: [(&str, DataType); 17] = [
    ("torch.float32", of(2, 32)),
    ("torch.int64", of(0, 64)),
    ("torch.bool", of(6, 8)),
    ("torch.uint8", of(1, 8)),
    ("torch.float64", of(2, 64)),
    ("torch.int32", of(0, 32)),
    ("torch.bfloat16", of(4, 16)),
    ("torch.float16", of(2, 16)),
    ("torch.int8", of(0, 8)),
    ("torch.int16", of(0, 16)),
    ("torch.uint16", of(1, 16)),
    ("torch.uint32", of(1, 32)),
    ("torch.uint64", of(1, 64)),
    ("torch.complex32", of(5, 32)),
    ("torch.complex64", of(5, 64)),
    ("torch.complex128", of(5, 128)),
    // Listed so that a name is found; torch's own import does not take all of its kin.
    ("torch.float8_e4m3fn", of(10, 8)),
];

const fn of(code: u8, bits: u8) -> DataType {
    DataType {
        code,
        bits,
        lanes: 1,
    }
}

/// The names of the dtypes whose memory is read.
pub(crate) fn dtype_names() -> impl Iterator<Item = &'static str> {
    DTYPES.iter().map(|(name, _)| *name)
}

impl DataType {
    pub(crate) const BYTES: Self = of(1, 8);

    /// The size of an item.
    pub(crate) fn num_bytes(self) -> usize {
        usize::from(self.bits).div_ceil(8) * usize::from(self.lanes)
    }

    /// That of a dtype, by its name with or without the module; None where [`tensor_over`] cannot
    /// make tensors of it.
    pub(crate) fn of(dtype: &str) -> Option<Self> {
        let short = dtype.strip_prefix(MODULE).unwrap_or(dtype);
        DTYPES
            .iter()
            .find(|(name, _)| name[MODULE.len()..] == *short)
            .filter(|_| !short.starts_with("float8"))
            .map(|(_, found)| *found)
    }
}

/// The struct of a tensor; None where torch refuses it.
fn filled(tensor: &Bound<'_, PyAny>) -> PyResult<Option<DLTensor>> {
    let py = tensor.py();
    let Some(fill) = table(py)?.tensor_from_object else {
        return Ok(None);
    };
    if refusals::is_expected(tensor) {
        return Ok(None);
    }
    let mut filled = MaybeUninit::<DLTensor>::uninit();
    // SAFETY: the GIL is held, the object is alive, and there is room for the struct.
    if unsafe { fill(tensor.as_ptr().cast(), filled.as_mut_ptr()) } != 0 {
        // A refusal comes with an exception, which is only a detour here.
        drop(PyErr::take(py));
        refusals::learn(tensor);
        return Ok(None);
    }
    // SAFETY: the call returned 0, so the struct is filled.
    Ok(Some(unsafe { filled.assume_init() }))
}

/// Asks the processor to fetch an object.
pub(crate) fn prefetch(object: &Bound<'_, PyAny>) {
    region::prefetch(object.as_ptr().cast());
}

/// Returns whether two tensors are known to begin at one place of one device. They may share memory
/// where this is false.
pub(crate) fn begin_together(first: &Bound<'_, PyAny>, second: &Bound<'_, PyAny>) -> bool {
    let (Ok(Some(first)), Ok(Some(second))) = (filled(first), filled(second)) else {
        return false;
    };
    !first.data.is_null()
        && first.data == second.data
        && first.byte_offset == second.byte_offset
        && (first.device.kind, first.device.index) == (second.device.kind, second.device.index)
}

/// The memory of a tensor on the CPU.
pub(crate) struct Memory {
    /// Its first item.
    pub(crate) pointer: *const u8,
    /// The bytes of its items.
    pub(crate) num_bytes: usize,
    pub(crate) shape: SmallVec<[i64; 6]>,
    /// In items; None where the items lie in order without gaps.
    strides: Option<SmallVec<[i64; 6]>>,
    /// `torch.float32`.
    pub(crate) dtype: &'static str,
    /// Conjugated and negated views are not noticed when this is made.
    pub(crate) signs: Signs,
}

impl Memory {
    /// Returns whether the values are complex numbers.
    pub(crate) fn is_complex(&self) -> bool {
        self.dtype.starts_with("torch.complex")
    }

    /// Returns whether the bytes are the values, in order.
    pub(crate) fn is_plain(&self) -> bool {
        self.strides.is_none() && self.signs == Signs::default()
    }

    /// The bytes of a row of the first dim, and the bytes from one to the next. None where there
    /// are none, or the items of a row do not lie one after the other.
    pub(crate) fn rows(&self) -> Option<(usize, usize)> {
        let (&length, rest) = self.shape.split_first()?;
        if self.num_bytes == 0 || self.signs != Signs::default() {
            return None;
        }
        let row_bytes = self.num_bytes / usize::try_from(length).ok()?;
        let Some(strides) = &self.strides else {
            return Some((row_bytes, row_bytes));
        };
        let stride = usize::try_from(*strides.first()?).ok()?;
        is_contiguous(rest, strides.get(1..)?)
            .then(|| Some((row_bytes, stride.checked_mul(self.item_bytes())?)))?
    }

    /// The bytes from one index to the next in each dim. None where there are no items, they are not the
    /// values, or a dim goes backwards.
    pub(crate) fn steps(&self) -> Option<Vec<usize>> {
        if self.num_bytes == 0 || self.signs != Signs::default() {
            return None;
        }
        let item = self.item_bytes();
        if let Some(strides) = &self.strides {
            let steps = strides.iter();
            return steps
                .map(|&stride| usize::try_from(stride).ok()?.checked_mul(item))
                .collect();
        }
        let mut steps = vec![item; self.shape.len()];
        for dim in (1..self.shape.len()).rev() {
            steps[dim - 1] = steps[dim] * usize::try_from(self.shape[dim]).ok()?;
        }
        Some(steps)
    }

    /// The bytes of an item, of a tensor that has some.
    pub(crate) fn item_bytes(&self) -> usize {
        let num_items: i64 = self.shape.iter().product();
        self.num_bytes / usize::try_from(num_items).unwrap_or(1).max(1)
    }

    /// The addresses between which its items lie; None for a tensor that is larger than any memory.
    pub(crate) fn bounds(&self) -> Option<(usize, usize)> {
        let first = self.pointer.addr();
        let Some(strides) = self.strides.as_ref().filter(|_| self.num_bytes > 0) else {
            return Some((first, first.checked_add(self.num_bytes)?));
        };
        let (below, above) = self.reach(strides)?;
        let item_bytes = self.item_bytes();
        let lowest = first.checked_sub(below.checked_mul(item_bytes)?)?;
        let length = above.checked_add(1)?.checked_mul(item_bytes)?;
        Some((lowest, first.checked_add(length)?))
    }

    /// Returns the number of items below the first one, and above it, as far as the tensor reaches.
    fn reach(&self, strides: &[i64]) -> Option<(usize, usize)> {
        let (mut lowest, mut highest) = (0_i64, 0_i64);
        for (&size, &stride) in self.shape.iter().zip(strides) {
            let reach = stride.checked_mul(size - 1)?;
            lowest = lowest.checked_add(reach.min(0))?;
            highest = highest.checked_add(reach.max(0))?;
        }
        let below = usize::try_from(lowest.unsigned_abs()).ok()?;
        Some((below, usize::try_from(highest).ok()?))
    }

    /// Returns the source from which a save reads the bytes. None for a tensor that is larger than
    /// any memory.
    ///
    /// # Safety
    /// The tensor, and with it its memory, is held for as long as the source is in use.
    pub(crate) unsafe fn source(&self) -> Option<Source> {
        if self.is_plain() || self.num_bytes == 0 {
            // SAFETY: the contract of this function.
            let region = unsafe { Region::lent(self.pointer, self.num_bytes) };
            return Some(Source::Memory(region));
        }
        let item_bytes = self.item_bytes();
        let strides = self
            .strides
            .clone()
            .unwrap_or_else(|| row_major(&self.shape));
        let (below, above) = self.reach(&strides)?;
        let start = below.checked_mul(item_bytes)?;
        let num_items = below.checked_add(above)?.checked_add(1)?;
        let length = num_items.checked_mul(item_bytes)?;
        // SAFETY: the items of the tensor lie between the lowest and the highest of them; the rest
        // is the contract of this function.
        let region = unsafe { Region::lent(self.pointer.wrapping_sub(start), length) };
        Strided::new(
            region,
            start,
            &self.shape,
            &strides,
            item_bytes,
            self.is_complex(),
            self.signs,
        )
        .map(|strided| Source::Strided(Box::new(strided)))
    }
}

/// The strides of a tensor without gaps.
fn row_major(shape: &[i64]) -> SmallVec<[i64; 6]> {
    let mut strides: SmallVec<[i64; 6]> = SmallVec::from_elem(1, shape.len());
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim] * shape[dim].max(1);
    }
    strides
}

/// The memory of a tensor without gaps; None where it has none that can be read as its values: it
/// is on another device, has gaps, is sparse, fake, of an uncommon dtype.
///
/// Conjugated and negated views are not noticed here.
pub(crate) fn memory_of(tensor: &Bound<'_, PyAny>) -> PyResult<Option<Memory>> {
    Ok(strided_memory_of(tensor)?.filter(|memory| memory.strides.is_none()))
}

/// Does the work of [`memory_of`], also for tensors with gaps.
pub(crate) fn strided_memory_of(tensor: &Bound<'_, PyAny>) -> PyResult<Option<Memory>> {
    if let Some(memory) = Tensor::of(tensor).and_then(|tensor| ordinary_memory(&tensor)) {
        return Ok(Some(memory));
    }
    let Some(filled) = filled(tensor)? else {
        return Ok(None);
    };
    let Some(&(dtype, _)) = DTYPES.iter().find(|(_, dtype)| *dtype == filled.dtype) else {
        return Ok(None);
    };
    // torch hands its integers of 1 to 7 bits out as those of 8.
    if filled.dtype.bits == 8 && !is_of_dtype(tensor, dtype)? {
        return Ok(None);
    }
    let Ok(ndim) = usize::try_from(filled.ndim) else {
        return Ok(None);
    };
    // SAFETY: shape and strides, where they are not null, are those of the tensor, `ndim` long,
    // and live while it does; the slices are dropped before this function returns.
    let (shape, strides) = unsafe { (ints(filled.shape, ndim), ints(filled.strides, ndim)) };
    let item = u64::from(filled.dtype.bits) / 8;
    let Some(num_bytes) = tensordict_core::storage::dtype::tensor_bytes(shape, item) else {
        return Ok(None);
    };
    let Ok(num_bytes) = usize::try_from(num_bytes) else {
        return Ok(None);
    };
    let is_readable = filled.device.kind == CPU && (num_bytes == 0 || !filled.data.is_null());
    if !is_readable {
        return Ok(None);
    }
    let Ok(offset) = usize::try_from(filled.byte_offset) else {
        return Ok(None);
    };
    Ok(Some(Memory {
        pointer: filled.data.cast::<u8>().cast_const().wrapping_add(offset),
        num_bytes,
        shape: SmallVec::from_slice(shape),
        strides: (num_bytes > 0 && !is_contiguous(shape, strides))
            .then(|| SmallVec::from_slice(strides)),
        dtype,
        signs: Signs::default(),
    }))
}

/// Returns whether a tensor has the dtype of a name.
fn is_of_dtype(tensor: &Bound<'_, PyAny>, name: &str) -> PyResult<bool> {
    if let Some(found) = Tensor::of(tensor).and_then(|tensor| tensor.dtype_name()) {
        return Ok(found == name);
    }
    let dtype = tensor.getattr(pyo3::intern!(tensor.py(), "dtype"))?;
    Ok(dtype.str()?.to_str()? == name)
}

/// The memory of an ordinary tensor without gaps, without `DLPack`; None where that has to say.
fn ordinary_memory(tensor: &Tensor<'_, '_>) -> Option<Memory> {
    if !tensor.is_on_cpu()? || !tensor.is_contiguous()? {
        return None;
    }
    let dtype = tensor.dtype_name()?;
    let item = tensordict_core::storage::dtype::item_size(dtype)?;
    let shape = tensor.with_shape(SmallVec::from_slice)?;
    let num_bytes = tensordict_core::storage::dtype::tensor_bytes(&shape, item)?;
    let num_bytes = usize::try_from(num_bytes).ok()?;
    let pointer = tensor.data()?;
    (num_bytes == 0 || !pointer.is_null()).then_some(Memory {
        pointer,
        num_bytes,
        shape,
        strides: None,
        dtype,
        signs: Signs::default(),
    })
}

/// # Safety
/// `pointer` is null or points to `length` ints that outlive the slice.
unsafe fn ints<'i>(pointer: *const i64, length: usize) -> &'i [i64] {
    if pointer.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: the contract of this function.
    unsafe { std::slice::from_raw_parts(pointer, length) }
}

/// Returns whether strides (none means row-major) are those of a tensor without gaps.
fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    if strides.is_empty() {
        return true;
    }
    let mut expected = 1;
    shape.iter().zip(strides).rev().all(|(&size, &stride)| {
        let fits = size == 1 || stride == expected;
        expected *= size;
        fits
    })
}

/// The owner that keeps the memory of tensors alive, with the structs that torch holds of them:
/// those of many small tensors lie together.
struct Owner<T> {
    managed: Vec<ManagedTensor>,
    sizes: Vec<i64>,
    /// The number of tensors that are left.
    left: AtomicUsize,
    _kept: T,
}

/// Called by torch when the last tensor over the memory is gone, on any thread.
unsafe extern "C" fn release<T>(managed: *mut ManagedTensor) {
    // SAFETY: `manager_ctx` is the box that `prepare` leaked, and this is called once for each of its
    // tensors: the last one frees it.
    unsafe {
        let owner = (*managed).manager_ctx.cast::<Owner<T>>();
        if (*owner).left.fetch_sub(1, Ordering::AcqRel) == 1 {
            drop(Box::from_raw(owner));
        }
    }
}

/// The place of a new tensor: its first item, the kind of its items, its shape.
pub(crate) type Place<'s> = (*mut u8, DataType, &'s [i64]);

/// A tensor for torch to make, which needs the interpreter, unlike this.
pub(crate) struct Prepared {
    managed: NonNull<ManagedTensor>,
}

// SAFETY: the struct, and what keeps the memory alive, may be used and dropped on any thread.
unsafe impl Send for Prepared {}

/// Tensors over memory that `kept` keeps alive, to be made.
///
/// # Safety
/// From each pointer there is room for a tensor of this shape and dtype, aligned for its items,
/// readable and writable for as long as `kept` lives, which may be dropped on any thread.
pub(crate) unsafe fn prepare<T: Send + 'static>(places: &[Place<'_>], kept: T) -> Vec<Prepared> {
    if places.is_empty() {
        // Nothing would ever release what is kept.
        return Vec::new();
    }
    let num_sizes = places.iter().map(|(_, _, shape)| shape.len()).sum();
    let mut sizes = Vec::with_capacity(num_sizes);
    for (_, _, shape) in places {
        sizes.extend_from_slice(shape);
    }
    let owner = Box::leak(Box::new(Owner {
        managed: Vec::with_capacity(places.len()),
        sizes,
        left: AtomicUsize::new(places.len()),
        _kept: kept,
    }));
    let context = ptr::from_mut(owner);
    // Neither the box nor the two lists move any more, so what is inside may be pointed to.
    let mut left = owner.sizes.as_mut_slice();
    for &(pointer, dtype, shape) in places {
        let (own, others) = left.split_at_mut(shape.len());
        left = others;
        owner.managed.push(ManagedTensor {
            version: Version {
                major: MAJOR_VERSION,
                minor: 1,
            },
            manager_ctx: context.cast(),
            deleter: Some(release::<T>),
            flags: 0,
            tensor: DLTensor {
                data: pointer.cast(),
                device: Device {
                    kind: CPU,
                    index: 0,
                },
                ndim: i32::try_from(shape.len()).unwrap_or(i32::MAX),
                dtype,
                shape: own.as_mut_ptr(),
                // In this version of the struct: the items lie in order without gaps.
                strides: ptr::null_mut(),
                byte_offset: 0,
            },
        });
    }
    let managed = owner.managed.iter_mut().map(NonNull::from);
    managed.map(|managed| Prepared { managed }).collect()
}

impl Prepared {
    /// Has torch make the tensor.
    pub(crate) fn make(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        let make = table(py)?.managed_to_object;
        let make =
            make.ok_or_else(|| PyImportError::new_err("torch makes no tensors by DLPack"))?;
        let mut object: *mut c_void = ptr::null_mut();
        // SAFETY: the struct is complete; the memory is good for the tensor by the contract of
        // `prepare`.
        let status = unsafe { make(self.managed.as_ptr(), &raw mut object) };
        if status != 0 || object.is_null() {
            return Err(PyErr::fetch(py));
        }
        // Torch took the struct, and releases it.
        std::mem::forget(self);
        // SAFETY: the call gave a new reference.
        Ok(unsafe { Bound::from_owned_ptr(py, object.cast::<ffi::PyObject>()) })
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        let managed = self.managed.as_ptr();
        // SAFETY: torch did not take the struct, so it is ours to release, once.
        unsafe {
            if let Some(release) = (*managed).deleter {
                release(managed);
            }
        }
    }
}

/// A tensor over memory that `kept` keeps alive.
///
/// # Safety
/// The same as for [`prepare`].
pub(crate) unsafe fn tensor_over<'py, T: Send + 'static>(
    py: Python<'py>,
    pointer: *mut u8,
    dtype: DataType,
    shape: &[i64],
    kept: T,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the contract of this function.
    let prepared = unsafe { prepare(&[(pointer, dtype, shape)], kept) };
    let only = prepared.into_iter().next();
    only.expect("it was prepared").make(py)
}
