//! Shape, device, dtype and layout of a tensor, asked of torch's own library.
//!
//! A Python attribute makes an object of each answer, and `DLPack` takes the interpreter's
//! lock and makes a struct: some seven hundred instructions for a shape. Torch exports the
//! same questions as plain C functions, whose names and arguments it keeps stable from
//! version to version; each is a dozen instructions.
//!
//! This is one of the modules that may hold `unsafe`: such a function takes the address of
//! the `at::Tensor` inside of the Python object. [`learn`] finds out where that is, by the
//! address that torch gives for the tensor itself (`_cdata`), and tries the functions on
//! tensors whose answers are known. Where one of this does not hold, every answer is None,
//! and callers ask in another way.
//!
//! The questions are asked of ordinary tensors alone: those whose class in C++ is that of a
//! new one, as its table of virtual functions tells. Nested, sparse and transformed ones
//! are of others, which answer by an exception.

use std::ffi::c_void;
use std::mem::transmute;
use std::ptr::NonNull;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;
use smallvec::SmallVec;
use tensordict_core::storage::region;

use super::Shortcut;
use crate::ffi::Resolved;
use crate::storage::dlpack;
use crate::storage::mapped::mapped_class;

/// `AOTITorchError (*)(AtenTensorHandle, int64_t**)` and its like: 0 where it went well.
type Ask<T> = unsafe extern "C" fn(*const c_void, *mut T) -> i32;

/// The lengths of the dims.
pub(crate) type Shape = SmallVec<[i64; 6]>;

/// The functions, and what is known of the tensors that they are given.
struct Access {
    sizes: Ask<*mut i64>,
    num_dims: Ask<i64>,
    device_type: Ask<i32>,
    dtype: Ask<i32>,
    is_contiguous: Ask<bool>,
    data: Ask<*mut c_void>,
    /// The access to the holders of memory, if torch has it.
    storages: Option<Storages>,
    /// The names of dtypes that this package reads as memory, with their numbers.
    dtypes: Vec<(i32, &'static str)>,
    cpu: i32,
    tensor: Py<PyType>,
    parameter: Py<PyType>,
    /// The offset of the `at::Tensor` in the Python object, in pointers.
    place: usize,
    /// The table of virtual functions of an ordinary tensor.
    table: usize,
}

/// The functions for the memory that a tensor lies in.
struct Storages {
    num_bytes: Ask<i64>,
    offset: Ask<i64>,
    strides: Ask<*mut i64>,
    view: View,
    delete: unsafe extern "C" fn(*mut c_void) -> i32,
}

/// `AOTITorchError (*)(AtenTensorHandle, int64_t, const int64_t*, const int64_t*, int64_t,
/// AtenTensorHandle*)`: a tensor over the memory of another one.
type View =
    unsafe extern "C" fn(*const c_void, i64, *const i64, *const i64, i64, *mut *mut c_void) -> i32;

/// The storage that a tensor lies in.
pub(crate) struct Storage {
    pub(crate) held: HeldStorage,
    /// True if it is as long as the tensor needs.
    pub(crate) has_all_elements: bool,
}

/// The memory that a tensor lay in when this was made, whatever becomes of the tensor.
pub(crate) struct HeldStorage {
    handle: NonNull<c_void>,
    data: Ask<*mut c_void>,
    /// The first byte of the storage.
    start: *mut c_void,
    delete: unsafe extern "C" fn(*mut c_void) -> i32,
}

// SAFETY: the handle is a tensor of our own, which may be deleted on any thread.
unsafe impl Send for HeldStorage {}
// SAFETY: nothing is done with the handle by reference.
unsafe impl Sync for HeldStorage {}

impl HeldStorage {
    /// Returns whether the storage has the memory that it had when this was made: `resize_` and
    /// `share_memory_` give it another one, and free what it had.
    pub(crate) fn is_in_place(&self) -> bool {
        let mut start = std::ptr::null_mut();
        // SAFETY: the handle is a tensor of our own, and `start` has the type of the answer.
        let failed = unsafe { (self.data)(self.handle.as_ptr(), &raw mut start) };
        failed == 0 && std::ptr::addr_eq(start, self.start)
    }
}

impl Drop for HeldStorage {
    fn drop(&mut self) {
        // SAFETY: the handle is ours, and deleted once.
        unsafe { (self.delete)(self.handle.as_ptr()) };
    }
}

static ACCESS: Resolved<Option<Access>> = Resolved::new();

/// An ordinary tensor that can be asked, while the Python object lives.
pub(crate) struct Tensor<'a, 'py> {
    access: &'a Access,
    object: &'a Bound<'py, PyAny>,
}

impl<'a, 'py> Tensor<'a, 'py> {
    /// `object` as a tensor; None where it is none, or is not ordinary.
    #[inline]
    pub(crate) fn of(object: &'a Bound<'py, PyAny>) -> Option<Self> {
        Self::by(ACCESS.get(object.py())?.as_ref()?, object)
    }

    /// Does the work of [`Self::of`], also for a tensor over a mapped file.
    #[inline]
    pub(crate) fn of_plain_or_mapped(object: &'a Bound<'py, PyAny>) -> Option<Self> {
        Self::of(object).or_else(|| {
            let access = ACCESS.get(object.py())?.as_ref()?;
            let class = mapped_class(object.py()).ok()?;
            // SAFETY: an object of this class is a tensor.
            let is_ordinary =
                object.get_type().is(class) && unsafe { Self::is_ordinary(access, object) };
            is_ordinary.then_some(Self { access, object })
        })
    }

    /// The object of Python.
    pub(crate) fn object(&self) -> &'a Bound<'py, PyAny> {
        self.object
    }

    #[inline]
    fn by(access: &'a Access, object: &'a Bound<'py, PyAny>) -> Option<Self> {
        let class = object.get_type_ptr();
        let is_tensor = std::ptr::addr_eq(class, access.tensor.as_ptr())
            || std::ptr::addr_eq(class, access.parameter.as_ptr());
        // SAFETY: the object is a tensor.
        let is_ordinary = is_tensor && unsafe { Self::is_ordinary(access, object) };
        is_ordinary.then_some(Self { access, object })
    }

    /// # Safety
    /// The type of the object is `torch.Tensor`, or one that derives from it.
    #[inline]
    unsafe fn is_ordinary(access: &Access, object: &Bound<'_, PyAny>) -> bool {
        // SAFETY: such an object has the `at::Tensor` at its place, which is one pointer; where
        // that is not null, it is to an object that begins with a pointer to its table.
        unsafe {
            let target = *word(object, access.place).cast::<*const usize>();
            !target.is_null() && *target == access.table
        }
    }

    #[inline]
    fn ask<T>(&self, ask: Ask<T>, mut answer: T) -> Option<T> {
        // SAFETY: the handle is that of a tensor which the Python object keeps alive, and
        // `answer` has the type of the function's.
        let failed = unsafe {
            let handle = word(self.object, self.access.place);
            ask(handle.cast(), &raw mut answer)
        };
        (failed == 0).then_some(answer)
    }

    /// Calls `look` with the shape. It must not run Python code.
    #[inline]
    pub(crate) fn with_shape<T>(&self, look: impl FnOnce(&[i64]) -> T) -> Option<T> {
        let num_dims = usize::try_from(self.ask(self.access.num_dims, 0)?).ok()?;
        if num_dims == 0 {
            return Some(look(&[]));
        }
        let sizes = self.ask(self.access.sizes, std::ptr::null_mut())?;
        // SAFETY: the sizes are the tensor's own, as many as it has dims. Nobody changes
        // them while `look` runs, since the interpreter stays attached.
        (!sizes.is_null()).then(|| look(unsafe { std::slice::from_raw_parts(sizes, num_dims) }))
    }

    /// Calls `look` with the shape, and with whether it is on the CPU. It must not run Python code.
    #[inline]
    pub(crate) fn with_layout<T>(&self, look: impl FnOnce(&[i64], bool) -> T) -> Option<T> {
        let is_on_cpu = self.is_on_cpu()?;
        self.with_shape(|shape| look(shape, is_on_cpu))
    }

    /// Returns whether it is on the CPU.
    #[inline]
    pub(crate) fn is_on_cpu(&self) -> Option<bool> {
        Some(self.ask(self.access.device_type, -1)? == self.access.cpu)
    }

    /// Returns whether its elements lie in a row, in order.
    #[inline]
    pub(crate) fn is_contiguous(&self) -> Option<bool> {
        self.ask(self.access.is_contiguous, false)
    }

    /// The first of its elements in memory; null where it has none.
    #[inline]
    pub(crate) fn data(&self) -> Option<*const u8> {
        let data = self.ask(self.access.data, std::ptr::null_mut())?;
        Some(data.cast::<u8>().cast_const())
    }

    /// The memory that it lies in, to be held; `item_bytes` has each of its elements.
    pub(crate) fn storage(&self, item_bytes: u64) -> Option<Storage> {
        let storages = self.access.storages.as_ref()?;
        let num_bytes = self.ask(storages.num_bytes, 0)?;
        let offset = self.ask(storages.offset, 0)?;
        let length = self.reach(storages)?;
        let end = length.checked_add(offset);
        let end = end.and_then(|end| end.checked_mul(i64::try_from(item_bytes).ok()?));
        let has_all_elements = length == 0 || end.is_some_and(|end| end <= num_bytes);
        let mut handle = std::ptr::null_mut();
        let no_dims = [0_i64; 1];
        // SAFETY: the handle is that of a tensor which the Python object keeps alive; the new
        // tensor has no dims, so that nothing is read of the lists.
        let failed = unsafe {
            let own = word(self.object, self.access.place);
            let (sizes, strides) = (no_dims.as_ptr(), no_dims.as_ptr());
            (storages.view)(own.cast(), 0, sizes, strides, 0, &raw mut handle)
        };
        let handle = NonNull::new(handle).filter(|_| failed == 0)?;
        let mut held = HeldStorage {
            handle,
            data: self.access.data,
            start: std::ptr::null_mut(),
            delete: storages.delete,
        };
        // SAFETY: as in `HeldStorage::is_in_place`.
        let failed = unsafe { (held.data)(handle.as_ptr(), &raw mut held.start) };
        (failed == 0).then_some(Storage {
            held,
            has_all_elements,
        })
    }

    /// Returns the number of elements in memory from the first one to the last one.
    fn reach(&self, storages: &Storages) -> Option<i64> {
        let strides = self.ask(storages.strides, std::ptr::null_mut())?;
        self.with_shape(|shape| {
            if shape.contains(&0) {
                return Some(0);
            }
            if shape.is_empty() {
                return Some(1);
            }
            // SAFETY: the strides are the tensor's own, as many as it has dims.
            let strides = unsafe { std::slice::from_raw_parts(strides, shape.len()) };
            let mut length = 1_i64;
            for (&size, &stride) in shape.iter().zip(strides) {
                length = length.checked_add(stride.checked_mul(size - 1)?)?;
            }
            Some(length)
        })?
    }

    /// `torch.float32`; None for a dtype that this package does not read as memory.
    #[inline]
    pub(crate) fn dtype_name(&self) -> Option<&'static str> {
        let number = self.dtype()?;
        let known = self.access.dtypes.iter();
        known
            .clone()
            .find(|(known, _)| *known == number)
            .map(|(_, name)| *name)
    }

    /// The number that torch has for the dtype.
    #[inline]
    pub(crate) fn dtype(&self) -> Option<i32> {
        self.ask(self.access.dtype, -1)
    }
}

/// The number that torch has for a dtype such as `torch.float32`; None as in
/// [`Tensor::dtype_name`].
pub(crate) fn number_of_dtype(py: Python<'_>, name: &str) -> Option<i32> {
    let mut known = ACCESS.get(py)?.as_ref()?.dtypes.iter();
    known
        .find(|(_, known)| *known == name)
        .map(|(number, _)| *number)
}

/// The word at `place` of a Python object.
///
/// # Safety
/// The object is as large as that.
unsafe fn word(object: &Bound<'_, PyAny>, place: usize) -> *const usize {
    // SAFETY: as the caller says.
    unsafe { object.as_ptr().cast::<usize>().cast_const().add(place) }
}

/// Asks the processor to fetch the tensor behind a Python object, which is fetched.
pub(crate) fn prefetch(object: &Bound<'_, PyAny>) {
    if let Some(Some(access)) = ACCESS.get(object.py())
        && std::ptr::addr_eq(object.get_type_ptr(), access.tensor.as_ptr())
    {
        // SAFETY: an object of this type has the address of the tensor at its place.
        let tensor = unsafe { *word(object, access.place).cast::<*const u8>() };
        // Its sizes, its dtype and its device are some lines on.
        for line in 0..3 {
            region::prefetch(tensor.wrapping_add(64 * line));
        }
    }
}

/// Returns whether two tensors are known to have one shape.
pub(crate) fn have_one_shape(first: &Bound<'_, PyAny>, second: &Bound<'_, PyAny>) -> bool {
    let ordinary = (
        Tensor::of_plain_or_mapped(first),
        Tensor::of_plain_or_mapped(second),
    );
    let (Some(first), Some(second)) = ordinary else {
        return false;
    };
    let are_same = first.with_shape(|shape| second.with_shape(|other| other == shape));
    are_same.flatten().unwrap_or(false)
}

/// The shape of a tensor; None if it is not ordinary: then its attributes know.
pub(crate) fn shape_of(tensor: &Bound<'_, PyAny>) -> Option<Shape> {
    Tensor::of_plain_or_mapped(tensor)?.with_shape(Shape::from_slice)
}

/// Finds the functions and the place of the tensor, and tries them.
pub(crate) fn learn(py: Python<'_>) {
    // An error means that torch does not offer this.
    let access = Shortcut::Tensors
        .is_allowed()
        .then(|| found(py).ok().flatten())
        .flatten();
    ACCESS.set(py, access);
}

/// Returns whether tensors can be asked here.
pub(crate) fn are_known(py: Python<'_>) -> bool {
    ACCESS.get(py).is_some_and(Option::is_some)
}

/// The functions, if they give the right answers.
fn found(py: Python<'_>) -> PyResult<Option<Access>> {
    let torch = py.import("torch")?;
    let zeros = torch.getattr("zeros")?;
    let probes = [
        zeros.call1(((),))?,
        zeros.call1(((3, 0, 5, 7, 2, 4, 6),))?,
        zeros
            .call1(((2, 3),))?
            .call_method1("to", (torch.getattr("int64")?,))?,
    ];
    let Some(place) = place_of_tensor(&probes)? else {
        return Ok(None);
    };
    let ctypes = py.import("ctypes")?;
    let file = py.import("torch._C")?.getattr("__file__")?;
    let library = ctypes.getattr("CDLL")?.call1((file,))?;
    let address = |name: &str| -> PyResult<*const c_void> {
        let arguments = (library.getattr(name)?, ctypes.getattr("c_void_p")?);
        let pointer = ctypes.getattr("cast")?.call1(arguments)?;
        let address = pointer.getattr("value")?.extract::<usize>()?;
        Ok(std::ptr::with_exposed_provenance(address))
    };
    // SAFETY: the functions of these names have these types in every version of torch that
    // has them. The library that they are in is never unloaded. The table is read as in
    // `Tensor::by`.
    let mut access = unsafe {
        type Constant = unsafe extern "C" fn() -> i32;
        let cpu = address("aoti_torch_device_type_cpu")?;
        Access {
            sizes: transmute::<*const c_void, Ask<*mut i64>>(address("aoti_torch_get_sizes")?),
            num_dims: transmute::<*const c_void, Ask<i64>>(address("aoti_torch_get_dim")?),
            device_type: transmute::<*const c_void, Ask<i32>>(address(
                "aoti_torch_get_device_type",
            )?),
            dtype: transmute::<*const c_void, Ask<i32>>(address("aoti_torch_get_dtype")?),
            is_contiguous: transmute::<*const c_void, Ask<bool>>(address(
                "aoti_torch_is_contiguous",
            )?),
            data: transmute::<*const c_void, Ask<*mut c_void>>(address("aoti_torch_get_data_ptr")?),
            storages: None,
            dtypes: Vec::new(),
            cpu: transmute::<*const c_void, Constant>(cpu)(),
            tensor: torch.getattr("Tensor")?.cast_into::<PyType>()?.unbind(),
            parameter: py
                .import("torch.nn")?
                .getattr("Parameter")?
                .cast_into::<PyType>()?
                .unbind(),
            place,
            table: **word(&probes[0], place).cast::<*const usize>(),
        }
    };
    let mut dtypes = Vec::new();
    for probe in &probes {
        let Some(tensor) = Tensor::by(&access, probe) else {
            return Ok(None);
        };
        let shape = probe.getattr("shape")?.extract::<Vec<i64>>()?;
        let is_right = tensor.with_shape(|found| found == shape) == Some(true)
            && tensor.is_on_cpu() == Some(true)
            && tensor.is_contiguous() == Some(true)
            && tensor.data().map(<*const u8>::addr)
                == Some(probe.call_method0("data_ptr")?.extract()?);
        if !is_right {
            return Ok(None);
        }
        dtypes.push(tensor.dtype());
    }
    let turned = probes[2].call_method1("transpose", (0, 1))?;
    let on_meta = probes[0].call_method1("to", ("meta",))?;
    for name in dlpack::dtype_names() {
        let short = name.trim_start_matches("torch.");
        if short == "complex32" {
            // Making a tensor of it warns.
            continue;
        }
        let Ok(dtype) = torch.getattr(short) else {
            continue;
        };
        let probe = probes[0].call_method1("new_empty", ((0,),))?;
        let probe = probe.call_method1("to", (dtype,))?;
        if let Some(number) = Tensor::by(&access, &probe).and_then(|tensor| tensor.dtype()) {
            access.dtypes.push((number, name));
        }
    }
    let is_right = dtypes[0] == dtypes[1]
        && dtypes[0] != dtypes[2]
        && Tensor::by(&access, &turned).is_none_or(|tensor| tensor.is_contiguous() == Some(false))
        && Tensor::by(&access, &on_meta).is_none_or(|tensor| tensor.is_on_cpu() == Some(false));
    if !is_right {
        return Ok(None);
    }
    learn_storages(&mut access, address, &probes[2])?;
    Ok(Some(access))
}

/// Finds how the memory of a tensor is held, if that is so in this way.
fn learn_storages(
    access: &mut Access,
    address: impl Fn(&str) -> PyResult<*const c_void>,
    real: &Bound<'_, PyAny>,
) -> PyResult<()> {
    access.storages = storages_by(address).ok();
    if !holds_storages(access, real)? {
        access.storages = None;
    }
    Ok(())
}

/// The functions for the memory of tensors, of which `address` gives the addresses.
fn storages_by(address: impl Fn(&str) -> PyResult<*const c_void>) -> PyResult<Storages> {
    type Delete = unsafe extern "C" fn(*mut c_void) -> i32;
    let num_bytes = address("aoti_torch_get_storage_size")?;
    let offset = address("aoti_torch_get_storage_offset")?;
    let strides = address("aoti_torch_get_strides")?;
    let view = address("aoti_torch__reinterpret_tensor")?;
    let delete = address("aoti_torch_delete_tensor_object")?;
    // SAFETY: the functions of these names have these types in every version of torch that
    // has them. The library that they are in is never unloaded.
    unsafe {
        Ok(Storages {
            num_bytes: transmute::<*const c_void, Ask<i64>>(num_bytes),
            offset: transmute::<*const c_void, Ask<i64>>(offset),
            strides: transmute::<*const c_void, Ask<*mut i64>>(strides),
            view: transmute::<*const c_void, View>(view),
            delete: transmute::<*const c_void, Delete>(delete),
        })
    }
}

/// Returns whether the memory of a tensor can be held in this way.
fn holds_storages(access: &Access, real: &Bound<'_, PyAny>) -> PyResult<bool> {
    let own = real.call_method0("clone")?;
    let part = own.call_method1("__getitem__", (0,))?;
    let (Some(tensor), Some(row)) = (Tensor::by(access, &own), Tensor::by(access, &part)) else {
        return Ok(false);
    };
    let has_all = |tensor: &Tensor<'_, '_>, item_bytes| {
        let storage = tensor.storage(item_bytes);
        storage.map(|storage| storage.has_all_elements)
    };
    let are_inside = has_all(&tensor, 8) == Some(true) && has_all(&row, 8) == Some(true);
    Ok(are_inside && has_all(&tensor, 16) == Some(false))
}

/// Finds the place where all of `tensors` have the address that torch gives for them.
fn place_of_tensor(tensors: &[Bound<'_, PyAny>]) -> PyResult<Option<usize>> {
    let mut addresses = Vec::new();
    for tensor in tensors {
        addresses.push((tensor, tensor.getattr("_cdata")?.extract::<usize>()?));
    }
    let bytes = addresses[0].0.get_type().getattr("__basicsize__")?;
    let num_words = bytes.extract::<usize>()? / size_of::<usize>();
    let is_at = |place: usize| {
        addresses.iter().all(|(tensor, address)| {
            // SAFETY: the place is inside of the object, which is as large as its type says.
            unsafe { *word(tensor, place) == *address }
        })
    };
    let first = size_of::<ffi::PyObject>() / size_of::<usize>();
    Ok((first..num_words).find(|&place| is_at(place)))
}
