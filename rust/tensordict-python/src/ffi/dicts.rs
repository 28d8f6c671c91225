//! Dictionaries: their entries, owned, and their values, replaced.
//!
//! They are only iterated where no Python code can run.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::critical_section::{with_critical_section, with_critical_section2};
use pyo3::types::{PyDict, PyList};
use smallvec::SmallVec;

/// The number of entries of one collection that fit on the stack of a walk.
const INLINE_ENTRIES: usize = 16;

pub(crate) type Values<'py> = SmallVec<[Bound<'py, PyAny>; INLINE_ENTRIES]>;
/// The leaves of a whole collection, of which many have some dozens.
pub(crate) type Leaves<'py> = SmallVec<[Bound<'py, PyAny>; 64]>;
pub(crate) type Pairs<'py> = SmallVec<[(Bound<'py, PyAny>, Bound<'py, PyAny>); INLINE_ENTRIES]>;

/// The values of `dict`, owned: what a walk works on while Python may change the dict.
pub(crate) fn dict_values<'py>(dict: &Bound<'py, PyDict>) -> Values<'py> {
    let mut values = Values::with_capacity(dict.len());
    with_critical_section(dict, || {
        visit(dict, |_, value| {
            values.push(value.to_owned());
            true
        });
    });
    values
}

/// The entries of `dict`, owned.
pub(crate) fn dict_pairs<'py>(dict: &Bound<'py, PyDict>) -> Pairs<'py> {
    let mut pairs = Pairs::with_capacity(dict.len());
    with_critical_section(dict, || {
        visit(dict, |key, value| {
            pairs.push((key.to_owned(), value.to_owned()));
            true
        });
    });
    pairs
}

/// The values of two dicts side by side; None where the two do not have the same keys
/// in the same order, which those of similar collections mostly do.
pub(crate) fn paired_values<'py>(
    first: &Bound<'py, PyDict>,
    second: &Bound<'py, PyDict>,
) -> Option<Pairs<'py>> {
    let mut pairs = Pairs::new();
    let end = PairWalk::new(first, second).next(|value, other| {
        pairs.push((value.to_owned(), other.to_owned()));
        true
    });
    matches!(end, NextPair::End).then_some(pairs)
}

/// The next step of two dictionaries that are walked side by side.
pub(crate) enum NextPair<'py> {
    /// Two values at the same key.
    Pair(Bound<'py, PyAny>, Bound<'py, PyAny>),
    /// Both are at their ends.
    End,
    /// The keys are other ones.
    Differ,
}

/// A walk over two dicts side by side.
pub(crate) struct PairWalk<'a, 'py> {
    first: &'a Bound<'py, PyDict>,
    second: &'a Bound<'py, PyDict>,
    /// The number of pairs that have had their turn.
    seen: usize,
    /// The places at which `PyDict_Next` goes on.
    places: [isize; 2],
}

impl<'a, 'py> PairWalk<'a, 'py> {
    #[inline]
    pub(crate) fn new(first: &'a Bound<'py, PyDict>, second: &'a Bound<'py, PyDict>) -> Self {
        Self {
            first,
            second,
            seen: 0,
            places: [0, 0],
        }
    }

    /// Calls `accept` with the values at each key until it says false: those, owned. It must not
    /// run Python code. Between two calls that may run, and change the dicts: places are
    /// compared with their sizes each time.
    #[inline]
    pub(crate) fn next(
        &mut self,
        mut accept: impl FnMut(Borrowed<'_, 'py, PyAny>, Borrowed<'_, 'py, PyAny>) -> bool,
    ) -> NextPair<'py> {
        if self.first.len() != self.second.len() {
            return NextPair::Differ;
        }
        let (first, second) = (self.first, self.second);
        let (seen, [place, other_place]) = (&mut self.seen, &mut self.places);
        let null = std::ptr::null_mut;
        let (mut key, mut value, mut other_key, mut other_value) = (null(), null(), null(), null());
        with_critical_section2(first, second, || {
            // SAFETY: both are dicts that the caller keeps alive and, on free-threaded builds,
            // locked. No Python code runs here, so the entries that they lend stay valid.
            unsafe {
                let py = first.py();
                while ffi::PyDict_Next(first.as_ptr(), place, &raw mut key, &raw mut value) != 0
                    && ffi::PyDict_Next(
                        second.as_ptr(),
                        other_place,
                        &raw mut other_key,
                        &raw mut other_value,
                    ) != 0
                    && is_same_key(key, other_key)
                {
                    *seen += 1;
                    let value = Borrowed::from_ptr(py, value);
                    let other = Borrowed::from_ptr(py, other_value);
                    if !accept(value, other) {
                        return NextPair::Pair(value.to_owned(), other.to_owned());
                    }
                }
            }
            if *seen == first.len() {
                NextPair::End
            } else {
                NextPair::Differ
            }
        })
    }
}

/// Calls `accept` with the values from `place` on until it says false, and moves `place` behind
/// that one, which is returned; None behind the last one. `accept` must not run Python code;
/// between two calls it may run, and change the dict: the place is compared with its size
/// each time.
#[inline]
pub(crate) fn other_value<'py>(
    dict: &Bound<'py, PyDict>,
    place: &mut usize,
    mut accept: impl FnMut(&Bound<'py, PyAny>) -> bool,
) -> Option<Bound<'py, PyAny>> {
    let mut position = place.cast_signed();
    let (null, mut value) = (std::ptr::null_mut(), std::ptr::null_mut());
    let found = with_critical_section(dict, || {
        // SAFETY: `dict` is alive and, on free-threaded builds, locked. A value is lent for the
        // call alone, or owned.
        unsafe {
            while ffi::PyDict_Next(dict.as_ptr(), &raw mut position, null, &raw mut value) != 0 {
                let value = Borrowed::from_ptr(dict.py(), value);
                if !accept(&value) {
                    return Some(value.to_owned());
                }
            }
            None
        }
    });
    *place = position.cast_unsigned();
    found
}

/// Returns whether two keys are one object, or equal strings. Runs no Python code.
///
/// # Safety
/// Both are objects that are alive.
unsafe fn is_same_key(key: *mut ffi::PyObject, other: *mut ffi::PyObject) -> bool {
    if key == other {
        return true;
    }
    // SAFETY: as the caller says. Two strings can be compared without an error.
    unsafe {
        if ffi::PyUnicode_CheckExact(key) == 0 || ffi::PyUnicode_CheckExact(other) == 0 {
            return false;
        }
        if is_one_byte(key) && is_one_byte(other) {
            return one_byte_text(key) == one_byte_text(other);
        }
        ffi::PyUnicode_Compare(key, other) == 0
    }
}

/// Returns whether a string has one byte for each character, as nearly all keys do.
///
/// # Safety
/// It is a string that is alive.
unsafe fn is_one_byte(text: *mut ffi::PyObject) -> bool {
    // SAFETY: as the caller says.
    unsafe { ffi::PyUnicode_KIND(text) == ffi::PyUnicode_1BYTE_KIND }
}

/// The characters of a string that has one byte for each.
///
/// # Safety
/// It is such a string, and lives as long as the bytes are used.
unsafe fn one_byte_text<'a>(text: *mut ffi::PyObject) -> &'a [u8] {
    // SAFETY: as the caller says.
    unsafe {
        let length = ffi::PyUnicode_GET_LENGTH(text).cast_unsigned();
        std::slice::from_raw_parts(ffi::PyUnicode_1BYTE_DATA(text), length)
    }
}

/// The values in a new list, taken out of where they are.
pub(crate) fn list_of<'py>(
    py: Python<'py>,
    values: &mut Leaves<'py>,
) -> PyResult<Bound<'py, PyList>> {
    // SAFETY: the list is new, known to nobody, and each of its places is filled once, with a
    // reference that it takes over, before anything else can happen.
    unsafe {
        let list = ffi::PyList_New(values.len().cast_signed());
        let list = Bound::from_owned_ptr_or_err(py, list)?;
        for (place, value) in (0..).zip(values.drain(..)) {
            ffi::PyList_SET_ITEM(list.as_ptr(), place, value.into_ptr());
        }
        Ok(list.cast_into_unchecked())
    }
}

/// Calls `visit` with each entry until it says false: whether it never did. `visit` must not
/// run Python code: it may own and store what it is given, nothing else, and the callers
/// keep to that.
fn visit<'py>(
    dict: &Bound<'py, PyDict>,
    mut visit: impl FnMut(Borrowed<'_, 'py, PyAny>, Borrowed<'_, 'py, PyAny>) -> bool,
) -> bool {
    let mut position = 0;
    let mut key = std::ptr::null_mut();
    let mut value = std::ptr::null_mut();
    // SAFETY: `dict` is a dict that the caller keeps alive and, on free-threaded builds,
    // locked. The entries it lends stay valid during `visit`, which runs no Python.
    unsafe {
        while ffi::PyDict_Next(
            dict.as_ptr(),
            &raw mut position,
            &raw mut key,
            &raw mut value,
        ) != 0
        {
            if !visit(
                Borrowed::from_ptr(dict.py(), key),
                Borrowed::from_ptr(dict.py(), value),
            ) {
                return false;
            }
        }
    }
    true
}

/// Returns whether `accepts` is true of every entry. It must not run Python code.
pub(crate) fn all_entries<'py>(
    dict: &Bound<'py, PyDict>,
    mut accepts: impl FnMut(&Bound<'py, PyAny>, &Bound<'py, PyAny>) -> bool,
) -> bool {
    with_critical_section(dict, || visit(dict, |key, value| accepts(&key, &value)))
}

/// The value that `PyDict_Next` gives at `place`, which moves on to the next one.
///
/// Python code may run between two calls: the place is checked against the dict's size at
/// each of them, so that a change of the dict stays harmless.
pub(crate) fn value_at<'py>(
    dict: &Bound<'py, PyDict>,
    place: &mut isize,
) -> Option<Bound<'py, PyAny>> {
    let mut value = std::ptr::null_mut();
    let null = std::ptr::null_mut();
    with_critical_section(dict, || {
        // SAFETY: `dict` is alive and, on free-threaded builds, locked; the value is owned
        // before anything else happens.
        unsafe {
            (ffi::PyDict_Next(dict.as_ptr(), place, null, &raw mut value) != 0)
                .then(|| Bound::from_borrowed_ptr(dict.py(), value))
        }
    })
}

/// Replaces each value of `dict`, which nobody else knows yet, by what `replace` makes of
/// it; None keeps the value. `replace` may run Python code.
pub(crate) fn replace_values<'py>(
    dict: &Bound<'py, PyDict>,
    mut replace: impl FnMut(&Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>>,
) -> PyResult<()> {
    replace_entries(dict, |_, value| replace(value))
}

/// Does the work of [`replace_values`], but keeps the values that `is_leaf` accepts.
#[inline]
pub(crate) fn replace_others<'py>(
    dict: &Bound<'py, PyDict>,
    is_leaf: impl Fn(&Bound<'py, PyAny>) -> bool,
    mut replace: impl FnMut(&Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>>,
) -> PyResult<()> {
    replace_entries(dict, |_, value| {
        if is_leaf(value) {
            return Ok(None);
        }
        replace(value)
    })
}

/// Does the work of [`replace_values`] for a function that needs the key, too.
pub(crate) fn replace_entries<'py>(
    dict: &Bound<'py, PyDict>,
    mut replace: impl FnMut(
        &Bound<'py, PyAny>,
        &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>>,
) -> PyResult<()> {
    let mut position = 0;
    let mut key = std::ptr::null_mut();
    let mut value = std::ptr::null_mut();
    // SAFETY: key and value are owned before Python runs. Storing under a key that exists
    // is allowed during `PyDict_Next`, which checks its position against the dict's size
    // at each call, so that even a stranger's change to the dict stays harmless.
    unsafe {
        while ffi::PyDict_Next(
            dict.as_ptr(),
            &raw mut position,
            &raw mut key,
            &raw mut value,
        ) != 0
        {
            let value = Bound::from_borrowed_ptr(dict.py(), value);
            let key = Bound::from_borrowed_ptr(dict.py(), key);
            if let Some(replacement) = replace(&key, &value)? {
                dict.set_item(key, replacement)?;
            }
        }
    }
    Ok(())
}

/// Puts `values` in the places of those of `dict`, which nobody else knows yet, as many as
/// there are. To take one must not run Python code.
#[inline]
pub(crate) fn put_values<'py>(
    dict: &Bound<'py, PyDict>,
    mut values: impl Iterator<Item = Bound<'py, PyAny>>,
) -> PyResult<()> {
    replace_entries(dict, |_, _| Ok(values.next()))
}

/// A new dict with the entries of `dict`, laid out alike: cheaper than inserting them.
pub(crate) fn copy_dict<'py>(dict: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyDict>> {
    dict.copy()
}
