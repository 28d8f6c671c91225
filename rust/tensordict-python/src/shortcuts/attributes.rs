//! The four attributes that a tensordict is made of, read and written in place.
//!
//! They are ordinary attributes of an ordinary instance. `CPython` keeps those of an
//! instance that nobody has asked for its `__dict__` in an array, in the order in which
//! the first instance of the class got them. A walk reads four and writes four for each
//! collection that it meets, and each costs a search by name: together more than half of
//! what a collection costs. Where the layout is known, they are taken from their places,
//! and what stands there is compared with the name first. In any other case, and in
//! other versions of Python, they are asked for by name.
//!
//! This is one of the modules that may hold `unsafe`: it has the layout of `CPython` 3.11,
//! of 3.12 and of 3.13. [`learn`] tries it on a class made for it, so that an
//! interpreter that was built in another way is noticed before the first collection is made.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};

use crate::shortcuts::Shortcut;
use crate::shortcuts::dictionaries::Keys;

/// The number of attributes, whose places are below it.
pub(crate) const COUNT: usize = 4;

/// The layout below that was found to be that of this interpreter.
static LAYOUT: AtomicU8 = AtomicU8::new(UNKNOWN);

const UNKNOWN: u8 = 0;
/// That of 3.11: in front of the instance is the address of the array, or null.
const POINTER: u8 = 1;
/// That of 3.12: the same place has the address less one, or that of a dict.
const TAGGED: u8 = 2;
/// That of 3.13: the array is inside of the instance, and a dict shows the same array.
const INLINE: u8 = 3;

/// The class of most collections, which is never freed.
static USUAL_CLASS: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(std::ptr::null_mut());

/// The names that its instances share, once the first of them were found to be the four.
static USUAL_KEYS: AtomicPtr<Keys> = AtomicPtr::new(std::ptr::null_mut());

/// Notes the class of most collections, whose names are compared once and not each time.
pub(crate) fn remember(class: &'static Py<PyType>) {
    USUAL_CLASS.store(class.as_ptr().cast(), Ordering::Relaxed);
}

/// The flag of a type whose instances have their attributes, or a dict, in front of them.
const MANAGED_DICT: std::ffi::c_ulong = 1 << 4;

/// The flag of a type whose instances have their attributes inside (3.13).
const INLINE_VALUES: std::ffi::c_ulong = 1 << 2;

/// The offset of the address of the array, in pointers in front of the instance (3.11).
const VALUES: usize = 4;

/// The offset of the address of the array or of the dict, as above (3.12 and 3.13).
const VALUES_OR_DICT: usize = 3;

/// The bytes in front of the array inside of an instance: its capacity, the number in use,
/// whether it is inside, whether it is valid, and a gap (3.13).
const HEADER: usize = 8;

/// The attributes of one instance.
#[derive(Clone, Copy)]
struct Places {
    layout: u8,
    values: *mut *mut ffi::PyObject,
    keys: *const Keys,
}

impl Places {
    /// Those of `instance`; None where they are kept in another way.
    #[inline]
    fn of(instance: &Bound<'_, PyAny>) -> Option<Self> {
        let layout = LAYOUT.load(Ordering::Relaxed);
        if layout == UNKNOWN {
            return None;
        }
        // SAFETY: the instance is alive, and so is its type. With the flag set the type is
        // a heap type, and what `array` reads is there (tried by `learn`). With its
        // own `__getattribute__` a class says for itself what its attributes are.
        unsafe {
            let class = instance.get_type_ptr();
            let reads_plainly = (*class).tp_getattro.map(|read| read as usize)
                == Some(ffi::PyObject_GenericGetAttr as *const c_void as usize);
            if (*class).tp_flags & MANAGED_DICT == 0 || !reads_plainly {
                return None;
            }
            let values = Self::array(layout, instance.as_ptr(), (*class).tp_flags);
            let keys = (*class.cast::<ffi::PyHeapTypeObject>()).ht_cached_keys;
            (!values.is_null() && !keys.is_null()).then(|| Self {
                layout,
                values,
                keys: keys.cast_const().cast(),
            })
        }
    }

    /// The array of an instance; null where its attributes are in a dict.
    ///
    /// # Safety
    /// The instance is alive, `layout` is that of this interpreter, and `flags` are those of
    /// the type, [`MANAGED_DICT`] among them.
    #[inline]
    unsafe fn array(
        layout: u8,
        instance: *mut ffi::PyObject,
        flags: std::ffi::c_ulong,
    ) -> *mut *mut ffi::PyObject {
        let null = std::ptr::null_mut();
        // SAFETY: as the caller says.
        unsafe {
            match layout {
                POINTER => *instance.cast::<*mut *mut ffi::PyObject>().sub(VALUES),
                TAGGED => {
                    let word = *instance.cast::<*mut u8>().sub(VALUES_OR_DICT);
                    if word.addr() & 1 == 0 {
                        return null;
                    }
                    word.add(1).cast()
                }
                _ => {
                    if flags & INLINE_VALUES == 0 {
                        return null;
                    }
                    let values = instance.add(1).cast::<u8>().add(HEADER);
                    let is_valid = *values.sub(HEADER - 3) != 0;
                    if is_valid { values.cast() } else { null }
                }
            }
        }
    }

    /// Returns whether `names` are those of the first attributes, in this order.
    #[inline]
    fn begin_with(self, names: [&Py<PyString>; COUNT]) -> bool {
        self.are_usual() || self.are(names)
    }

    /// Returns whether the four are known to be the first.
    #[inline]
    fn are_usual(self) -> bool {
        // The keys of a class live as long as it does, and those that are there stay.
        USUAL_KEYS.load(Ordering::Relaxed).cast_const() == self.keys
    }

    fn are(self, names: [&Py<PyString>; COUNT]) -> bool {
        let are_they = (0..)
            .zip(names)
            .all(|(place, name)| self.is_at(place, name));
        if are_they {
            let class = USUAL_CLASS.load(Ordering::Relaxed);
            // SAFETY: a class that is remembered is a heap type and never freed.
            let usual = unsafe {
                (!class.is_null()).then(|| (*class.cast::<ffi::PyHeapTypeObject>()).ht_cached_keys)
            };
            if usual.is_some_and(|keys| std::ptr::addr_eq(keys, self.keys)) {
                USUAL_KEYS.store(self.keys.cast_mut(), Ordering::Relaxed);
            }
        }
        are_they
    }

    /// Returns whether the attribute at `place` is `name`.
    #[inline]
    fn is_at(self, place: usize, name: &Py<PyString>) -> bool {
        // SAFETY: it is below the number of names.
        place < self.num_keys() && std::ptr::eq(unsafe { self.name_at(place) }, name.as_ptr())
    }

    /// The name of the attribute at `place`, which is below the number of names.
    unsafe fn name_at(self, place: usize) -> *mut ffi::PyObject {
        // SAFETY: the keys live as long as the type. Entries below their number are
        // filled and never change.
        unsafe { (*Keys::entries(self.keys).add(place)).key }
    }

    /// Returns the number of names that the instances of the class share.
    fn num_keys(self) -> usize {
        // SAFETY: the keys live as long as the type.
        unsafe { Keys::num_entries(self.keys) }
    }

    /// Returns the place of the number of attributes that the instance has.
    #[inline]
    fn count(self) -> *mut u8 {
        let back = if self.layout == INLINE { HEADER - 1 } else { 2 };
        // SAFETY: in front of the array lie its capacity and the number in use, a byte each.
        unsafe { self.values.cast::<u8>().sub(back) }
    }

    /// Returns the number of attributes that the instance has.
    #[inline]
    fn len(self) -> u8 {
        // SAFETY: the byte is there, and nobody changes it now.
        unsafe { *self.count() }
    }

    /// Returns the place where the attribute is noted that was set as the `number`th, from 0 on.
    #[inline]
    fn noted(self, number: usize) -> *mut u8 {
        // SAFETY: the notes are a byte each, as many as the array has places. They grow
        // downwards from the count, and inside of an instance upwards behind the array.
        unsafe {
            if self.layout == INLINE {
                let capacity = usize::from(*self.values.cast::<u8>().sub(HEADER));
                self.values.add(capacity).cast::<u8>().add(number)
            } else {
                self.count().sub(1 + number)
            }
        }
    }

    /// Returns whether the instance has no attribute yet, and no dict that would count them.
    #[inline]
    fn are_unused(self, instance: &Bound<'_, PyAny>) -> bool {
        if self.len() != 0 {
            return false;
        }
        // SAFETY: an instance with its attributes inside has a place for a dict in front.
        self.layout != INLINE
            || unsafe {
                let dict = *instance
                    .as_ptr()
                    .cast::<*mut ffi::PyObject>()
                    .sub(VALUES_OR_DICT);
                dict.is_null()
            }
    }
}

/// The attribute `name` of the four, which stands at `place` where nothing else came
/// before it.
#[inline]
pub(crate) fn get<'py>(
    td: &Bound<'py, PyAny>,
    place: usize,
    name: &Py<PyString>,
) -> PyResult<Bound<'py, PyAny>> {
    if let Some(places) = Places::of(td)
        && (places.are_usual() || places.is_at(place, name))
    {
        // SAFETY: an array has a place for each of the keys; the interpreter is attached,
        // so nobody else changes it (3.11 has a global lock). What is there is owned at
        // once.
        let value = unsafe { Bound::from_borrowed_ptr_or_opt(td.py(), *places.values.add(place)) };
        if let Some(value) = value {
            return Ok(value);
        }
    }
    td.getattr(name.bind(td.py()))
}

/// The attributes `names`, which stand in this order where nothing else came before them.
#[inline]
pub(crate) fn get_all<'py>(
    td: &Bound<'py, PyAny>,
    names: [&Py<PyString>; COUNT],
) -> PyResult<[Bound<'py, PyAny>; COUNT]> {
    if let Some(places) = Places::of(td)
        && places.begin_with(names)
    {
        let py = td.py();
        // SAFETY: as in `get`, for the four at once.
        let found = [0, 1, 2, 3]
            .map(|place| unsafe { Bound::from_borrowed_ptr_or_opt(py, *places.values.add(place)) });
        if let [Some(first), Some(second), Some(third), Some(fourth)] = found {
            return Ok([first, second, third, fourth]);
        }
    }
    let [first, second, third, fourth] = names.map(|name| td.getattr(name.bind(td.py())));
    Ok([first?, second?, third?, fourth?])
}

/// The attribute of the four at `place`, lent: no Python code may run while it is held.
/// None where it is not kept as those of most collections are.
#[inline]
pub(crate) fn lent<'a, 'py>(
    td: &'a Bound<'py, PyAny>,
    place: usize,
) -> Option<Borrowed<'a, 'py, PyAny>> {
    let places = Places::of(td)?;
    if !places.are_usual() {
        return None;
    }
    // SAFETY: as in `get`. The instance holds what is lent as long as nobody changes it,
    // which takes Python code.
    unsafe {
        let value = *places.values.add(place);
        (!value.is_null()).then(|| Borrowed::from_ptr(td.py(), value))
    }
}

/// Sets the attributes `names`, in this order, of an instance that may be new.
#[inline]
pub(crate) fn set_all<'py>(
    td: &Bound<'py, PyAny>,
    names: [&Py<PyString>; COUNT],
    values: [Bound<'py, PyAny>; COUNT],
) -> PyResult<()> {
    if let Some(places) = Places::of(td)
        && places.are_unused(td)
        && places.begin_with(names)
    {
        // SAFETY: the instance has no attribute yet, so that every place is null. Each of
        // the four takes over a reference, and is noted in the order of setting.
        unsafe {
            for (place, value) in (0..).zip(values) {
                *places.values.add(usize::from(place)) = value.into_ptr();
                *places.noted(usize::from(place)) = place;
            }
            *places.count() = 4;
        }
        return Ok(());
    }
    for (name, value) in names.into_iter().zip(values) {
        td.setattr(name.bind(td.py()), value)?;
    }
    Ok(())
}

/// An attribute of an instance, apart from what its class says.
pub(crate) enum Own<'py> {
    Value(Bound<'py, PyAny>),
    /// The instance has none of that name.
    Absent,
    /// It cannot be told in this way.
    Unknown,
}

/// The attribute `name` of the instance itself, which may stand at any place.
#[inline]
pub(crate) fn own<'py>(td: &Bound<'py, PyAny>, name: &Py<PyString>) -> Own<'py> {
    let Some(places) = Places::of(td) else {
        return Own::Unknown;
    };
    let place = (COUNT..places.num_keys()).find(|&place| places.is_at(place, name));
    let Some(place) = place else {
        return Own::Absent;
    };
    // SAFETY: as in `get`.
    let value = unsafe { Bound::from_borrowed_ptr_or_opt(td.py(), *places.values.add(place)) };
    value.map_or(Own::Absent, Own::Value)
}

/// The attributes of an instance, in the order in which they were set; None if they are not kept in
/// this way.
pub(crate) fn copied<'py>(td: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyDict>>> {
    let py = td.py();
    let Some(places) = Places::of(td) else {
        return Ok(None);
    };
    let mut owned = Vec::with_capacity(usize::from(places.len()));
    for number in 0..usize::from(places.len()) {
        // SAFETY: the order of setting names places that are filled.
        unsafe {
            let place = usize::from(*places.noted(number));
            owned.push((
                Bound::from_borrowed_ptr(py, places.name_at(place)),
                Bound::from_borrowed_ptr(py, *places.values.add(place)),
            ));
        }
    }
    let copy = PyDict::new(py);
    for (name, value) in owned {
        copy.set_item(name, value)?;
    }
    Ok(Some(copy))
}

/// Returns whether a layout of this interpreter was found.
pub(crate) fn is_known() -> bool {
    LAYOUT.load(Ordering::Relaxed) != UNKNOWN
}

/// Tries the layout of this version on a class made for it, and uses it if it holds.
pub(crate) fn learn(py: Python<'_>) -> PyResult<()> {
    let version = py.version_info();
    let layout = match (version.major, version.minor) {
        (3, 11) => POINTER,
        (3, 12) => TAGGED,
        (3, 13) => INLINE,
        _ => UNKNOWN,
    };
    if layout == UNKNOWN || !Shortcut::Attributes.is_allowed() {
        return Ok(());
    }
    let class = py
        .get_type::<PyType>()
        .call1(("Probe", PyTuple::empty(py), PyDict::new(py)))?;
    let names = ["a", "b", "c", "d"].map(|name| PyString::intern(py, name).unbind());
    let [a, b, c, d] = &names;
    let values = [1, 2, 3, 4].map(|number: i32| {
        number
            .into_pyobject(py)
            .map_or_else(|never| match never {}, Bound::into_any)
    });
    let [first, second, third, fourth] = &values;
    let known = class.call0()?;
    for (name, value) in names.iter().zip(&values) {
        known.setattr(name.bind(py), value)?;
    }
    LAYOUT.store(layout, Ordering::Relaxed);
    let made = class.call0()?;
    let further = PyString::intern(py, "e").unbind();
    // If one of the two has no array, all that follows would hold by name.
    let is_read = Places::of(&known).is_some_and(|places| places.len() == 4)
        && Places::of(&made).is_some_and(|places| places.are_unused(&made))
        && get(&known, 3, d)?.is(fourth)
        && matches!(own(&known, &further), Own::Absent);
    let holds = is_read && {
        known.setattr(further.bind(py), first)?;
        let reversed = [fourth, third, second, first].map(Clone::clone);
        set_all(&made, [a, b, c, d], reversed)?;
        matches!(own(&known, &further), Own::Value(value) if value.is(first))
            && matches!(own(&made, &further), Own::Absent)
            && get(&made, 1, b)?.is(third)
    };
    let seen = made.getattr("__dict__")?;
    let expected = PyDict::new(py);
    if holds {
        for (name, value) in names.iter().zip([fourth, third, second, first]) {
            expected.set_item(name.bind(py), value)?;
        }
    }
    let set = copied(&known)?.unwrap_or_else(|| PyDict::new(py));
    let is_in_order = set.keys().eq(["a", "b", "c", "d", "e"])?;
    if !(holds && is_in_order && seen.eq(&expected)? && get(&made, 0, a)?.is(fourth)) {
        LAYOUT.store(UNKNOWN, Ordering::Relaxed);
    }
    Ok(())
}
