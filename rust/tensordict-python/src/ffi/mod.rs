//! The unsafe half of the bindings: calls into the C API that `PyO3` has no safe form of.
//!
//! Every function here is safe to call; what keeps it so stands at each block. Objects
//! are handed about as owned or borrowed [`Bound`]s, so that nothing outlives its
//! reference.

mod calls;
mod dicts;
mod recursion;
mod resolved;

use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyList, PySlice, PyString, PyTuple, PyType};

pub(crate) use calls::{Callee, Getter, Operation, RepeatedCall, call, call_method};
pub(crate) use dicts::{
    Leaves, NextPair, PairWalk, Pairs, Values, all_entries, copy_dict, dict_pairs, dict_values,
    list_of, other_value, paired_values, put_values, replace_entries, replace_others,
    replace_values, value_at,
};
pub(crate) use recursion::RecursionGuard;
pub(crate) use resolved::Resolved;

/// Returns whether `value`'s type is `class` or derives from it. Runs no Python code.
pub(crate) fn is_subtype(value: &Bound<'_, PyAny>, class: &Py<PyType>) -> bool {
    // SAFETY: both are types that are alive for the call.
    unsafe { ffi::PyType_IsSubtype(value.get_type_ptr(), class.as_ptr().cast()) != 0 }
}

/// Returns whether `other` is the class `class` or one that inherits from it, whatever a metaclass
/// says.
pub(crate) fn is_subclass(other: &Bound<'_, PyAny>, class: &Bound<'_, PyAny>) -> bool {
    if other.is(class) {
        return true;
    }
    let (Ok(other), Ok(class)) = (other.cast::<PyType>(), class.cast::<PyType>()) else {
        return false;
    };
    // SAFETY: both are classes, alive.
    unsafe { ffi::PyType_IsSubtype(other.as_ptr().cast(), class.as_ptr().cast()) != 0 }
}

/// A new instance of `class` without any attribute, as `object.__new__` makes it; None
/// where the class has a `__new__` of its own.
pub(crate) fn allocate<'py>(class: &Bound<'py, PyType>) -> PyResult<Option<Bound<'py, PyAny>>> {
    // SAFETY: the type is alive for the call.
    unsafe { allocate_raw(class.py(), class.as_type_ptr()) }
}

/// Does the work of [`allocate`], with the type of `value`.
#[inline]
pub(crate) fn allocate_like<'py>(value: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    // SAFETY: the value is alive for the call, and so is its type.
    unsafe { allocate_raw(value.py(), value.get_type_ptr()) }
}

/// # Safety
/// `raw` is a type that is alive for the call.
#[inline]
unsafe fn allocate_raw(
    py: Python<'_>,
    raw: *mut ffi::PyTypeObject,
) -> PyResult<Option<Bound<'_, PyAny>>> {
    let address = |new: Option<ffi::newfunc>| new.map(|new| new as usize);
    // SAFETY: both types are alive for the call, and a type whose `tp_new` is that of
    // `object` is what `object.__new__` takes. (Not `tp_alloc`: in Python 3.11 that leaves
    // out the place for the attributes, and each instance would get a dict of its own.)
    unsafe {
        let object = &raw const ffi::PyBaseObject_Type;
        let Some(new) = (*object).tp_new else {
            return Ok(None);
        };
        if address((*raw).tp_new) != Some(new as usize) {
            return Ok(None);
        }
        let no_arguments = PyTuple::empty(py);
        let instance = new(raw, no_arguments.as_ptr(), std::ptr::null_mut());
        Bound::from_owned_ptr_or_err(py, instance).map(Some)
    }
}

/// The least bytes that one of many collections takes, with all that belongs to it.
const COLLECTION_BYTES: usize = 256;

/// So many are made without a look at the memory.
const FEW: usize = 1 << 16;

/// Refuses to make so many collections where the memory does not have room for them.
///
/// # Errors
/// `MemoryError`.
pub(crate) fn check_room(count: usize) -> PyResult<()> {
    if count <= FEW {
        return Ok(());
    }
    // SAFETY: the function takes a number and gives one.
    let [num_pages, page_bytes] =
        [libc::_SC_PHYS_PAGES, libc::_SC_PAGESIZE].map(|name| unsafe { libc::sysconf(name) });
    let memory = u64::try_from(num_pages.saturating_mul(page_bytes)).unwrap_or(u64::MAX);
    let needed = count.checked_mul(COLLECTION_BYTES);
    let has_room = needed.is_some_and(|needed| {
        needed as u64 <= memory && Vec::<u8>::new().try_reserve_exact(needed).is_ok()
    });
    if has_room {
        return Ok(());
    }
    Err(PyMemoryError::new_err(format!(
        "there is no memory for {count} collections"
    )))
}

/// A list with `item` for each of so many collections that are to be made.
///
/// # Errors
/// `MemoryError` where they do not fit into memory.
pub(crate) fn repeated<'py>(
    item: &Bound<'py, PyAny>,
    count: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyList>> {
    let py = item.py();
    let count: isize = count.extract()?;
    check_room(count.max(0).cast_unsigned())?;
    let one = PyList::new(py, [item])?;
    // SAFETY: the list is alive.
    let made = unsafe {
        let made = ffi::PySequence_Repeat(one.as_ptr(), count);
        Bound::from_owned_ptr_or_err(py, made)?
    };
    Ok(made.cast_into::<PyList>()?)
}

/// `start`, `stop` and `step` of a slice.
pub(crate) fn slice_bounds<'py>(slice: &Bound<'py, PySlice>) -> [Bound<'py, PyAny>; 3] {
    // SAFETY: the object is a slice, whose three fields never change and are never null.
    unsafe {
        let raw = slice.as_ptr().cast::<ffi::PySliceObject>();
        [(*raw).start, (*raw).stop, (*raw).step]
            .map(|bound| Bound::from_borrowed_ptr(slice.py(), bound))
    }
}

/// `value.name`, as `object.__getattribute__` finds it: without the class's `__getattr__`.
pub(crate) fn plain_attribute<'py>(
    value: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: both are alive for the call.
    unsafe {
        Bound::from_owned_ptr_or_err(
            value.py(),
            ffi::PyObject_GenericGetAttr(value.as_ptr(), name.as_ptr()),
        )
    }
}

/// `value.name = attribute`, as `object.__setattr__` does it.
pub(crate) fn set_plain_attribute<'py>(
    value: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
    attribute: &Bound<'py, PyAny>,
) -> PyResult<()> {
    // SAFETY: all three are alive for the call.
    let failed = unsafe {
        ffi::PyObject_GenericSetAttr(value.as_ptr(), name.as_ptr(), attribute.as_ptr()) != 0
    };
    if failed {
        return Err(PyErr::fetch(value.py()));
    }
    Ok(())
}

/// A weak reference to `value`, as `weakref.ref(value)` gives it.
pub(crate) fn weak_reference<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: `value` is alive; a null callback means none.
    unsafe {
        Bound::from_owned_ptr_or_err(
            value.py(),
            ffi::PyWeakref_NewRef(value.as_ptr(), std::ptr::null_mut()),
        )
    }
}

/// Python's cyclic garbage collector, paused until this is dropped: while many objects are made that
/// all live on, it would look at them again and again, and find nothing.
pub(crate) struct PausedCollector<'py> {
    was_enabled: bool,
    _py: Python<'py>,
}

impl<'py> PausedCollector<'py> {
    pub(crate) fn new(py: Python<'py>) -> Self {
        // SAFETY: the interpreter is attached, as `py` shows.
        let was_enabled = unsafe { ffi::PyGC_Disable() } == 1;
        Self {
            was_enabled,
            _py: py,
        }
    }
}

impl Drop for PausedCollector<'_> {
    fn drop(&mut self) {
        if self.was_enabled {
            // SAFETY: the interpreter is attached, as `_py` shows.
            unsafe { ffi::PyGC_Enable() };
        }
    }
}
