//! The values of a dictionary, read and replaced where the interpreter keeps them.
//!
//! A walk looks at every entry of every collection and makes a dictionary of the same keys
//! with other values. By the C API an entry costs some fifty instructions to read and two
//! hundred to replace, since its key is hashed, looked up and compared again. The entries of a
//! dictionary whose keys are strings lie in one array, of a key and a value each: where that is
//! known to be so, a value is one load, and replacing it one store.
//!
//! This is one of the modules that may hold `unsafe`: it has the layout of dictionaries of
//! `CPython` 3.11 to 3.14. [`learn`] tries it on a dictionary made for it, so that an
//! interpreter that was built in another way is noticed before the first collection is made.
//! Everywhere else, and for other dictionaries, callers use the C API.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::ffi::is_same_key;
use crate::shortcuts::Shortcut;

/// Set where the layout below was found to be that of this interpreter.
static IS_KNOWN: AtomicBool = AtomicBool::new(false);

/// `_dictkeysobject`: the keys of a dictionary, or those that the instances of a class share.
#[repr(C)]
pub(crate) struct Keys {
    ref_count: isize,
    log2_size: u8,
    log2_index_bytes: u8,
    kind: u8,
    version: u32,
    usable: isize,
    num_entries: isize,
    // Then 2^log2_index_bytes bytes of an index, then the entries.
}

/// `PyDictUnicodeEntry`.
#[repr(C)]
pub(crate) struct Entry {
    pub(crate) key: *mut ffi::PyObject,
    pub(crate) value: *mut ffi::PyObject,
}

/// The kind of keys that are strings and have their values beside them.
const UNICODE: u8 = 1;

impl Keys {
    /// Returns the number of entries, those that were deleted included.
    ///
    /// # Safety
    /// The keys are alive.
    #[inline]
    pub(crate) unsafe fn num_entries(keys: *const Self) -> usize {
        // SAFETY: as the caller says.
        unsafe { (*keys).num_entries.cast_unsigned() }
    }

    /// The first of the entries.
    ///
    /// # Safety
    /// The keys are alive, and of a kind whose entries are [`Entry`].
    #[inline]
    #[expect(
        clippy::cast_ptr_alignment,
        reason = "the index is of 8 bytes or a multiple of them"
    )]
    pub(crate) unsafe fn entries(keys: *const Self) -> *mut Entry {
        // SAFETY: the entries lie behind the index, whose size stands in front of it.
        unsafe {
            let index = keys.add(1).cast::<u8>();
            index
                .add(1 << (*keys).log2_index_bytes)
                .cast::<Entry>()
                .cast_mut()
        }
    }
}

/// The array of the entries of a dictionary.
#[derive(Clone, Copy)]
struct Slots {
    entries: *mut Entry,
    count: usize,
}

impl Slots {
    /// Those of `dict`; None where they are kept in another way. What is returned is valid
    /// until the dictionary changes, so that no Python code may run while it is held.
    #[inline]
    fn of(dict: &Bound<'_, PyDict>) -> Option<Self> {
        if !IS_KNOWN.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: the dict is alive and the interpreter attached, so that nobody changes
        // it (builds without a global lock are not known). Keys are never null.
        unsafe {
            let raw = dict.as_ptr().cast::<ffi::PyDictObject>();
            let keys = (*raw).ma_keys.cast::<Keys>().cast_const();
            ((*raw).ma_values.is_null() && (*keys).kind == UNICODE).then(|| Self {
                entries: Keys::entries(keys),
                count: Keys::num_entries(keys),
            })
        }
    }

    /// The entry at `place`, which is below the count; its value is null after a deletion.
    #[inline]
    fn at(self, place: usize) -> *mut Entry {
        // SAFETY: the place is inside of the array.
        unsafe { self.entries.add(place) }
    }
}

/// Calls `visit` with each entry of `dict` until it says false: whether it never did. None,
/// and no call, where the entries are kept in another way. `visit` must not run Python code.
#[inline]
pub(crate) fn visit<'py>(
    dict: &Bound<'py, PyDict>,
    mut visit: impl FnMut(Borrowed<'_, 'py, PyAny>, Borrowed<'_, 'py, PyAny>) -> bool,
) -> Option<bool> {
    let slots = Slots::of(dict)?;
    for place in 0..slots.count {
        // SAFETY: the place is below the count, and the entry lent while no Python code runs.
        unsafe {
            let entry = slots.at(place);
            if !(*entry).value.is_null()
                && !visit(
                    Borrowed::from_ptr(dict.py(), (*entry).key),
                    Borrowed::from_ptr(dict.py(), (*entry).value),
                )
            {
                return Some(false);
            }
        }
    }
    Some(true)
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

/// Calls `accept` with the values of two dicts of one size from `place` on, while they have the same
/// keys, until it says false, and moves `place` behind that pair, which is returned. An error where
/// the entries of one of them are kept in another way. `accept` must not run Python code; between
/// two calls it may run.
#[inline]
pub(crate) fn other_pair<'py>(
    first: &Bound<'py, PyDict>,
    second: &Bound<'py, PyDict>,
    place: &mut usize,
    mut accept: impl FnMut(Borrowed<'_, 'py, PyAny>, Borrowed<'_, 'py, PyAny>) -> bool,
) -> Result<NextPair<'py>, Unknown> {
    let slots = Slots::of(first).ok_or(Unknown)?;
    let others = Slots::of(second).ok_or(Unknown)?;
    // After deletions, the places of the other entries do not correspond.
    if slots.count != first.len() || others.count != second.len() {
        return Err(Unknown);
    }
    while *place < slots.count.min(others.count) {
        // SAFETY: the place is below both counts, and neither dict has a hole. No Python code
        // runs while the entries are lent.
        unsafe {
            let (entry, other) = (slots.at(*place), others.at(*place));
            if !is_same_key((*entry).key, (*other).key) {
                return Ok(NextPair::Differ);
            }
            *place += 1;
            let value = Borrowed::from_ptr(first.py(), (*entry).value);
            let found = Borrowed::from_ptr(first.py(), (*other).value);
            if !accept(value, found) {
                return Ok(NextPair::Pair(value.to_owned(), found.to_owned()));
            }
        }
    }
    Ok(NextPair::End)
}

/// Calls `accept` with the values from `place` on until it says false, and moves `place` behind
/// that one, which is returned; None behind the last one. An error where the entries are kept in
/// another way. `accept` must not run Python code; between two calls it may run.
#[inline]
pub(crate) fn other_value<'py>(
    dict: &Bound<'py, PyDict>,
    place: &mut usize,
    mut accept: impl FnMut(Borrowed<'_, 'py, PyAny>) -> bool,
) -> Result<Option<Bound<'py, PyAny>>, Unknown> {
    let slots = Slots::of(dict).ok_or(Unknown)?;
    while *place < slots.count {
        // SAFETY: the place is below the count; the value is lent for the call alone, or owned.
        unsafe {
            let value = (*slots.at(*place)).value;
            *place += 1;
            if !value.is_null() {
                let value = Borrowed::from_ptr(dict.py(), value);
                if !accept(value) {
                    return Ok(Some(value.to_owned()));
                }
            }
        }
    }
    Ok(None)
}

/// The entries of a dictionary are kept in another way than this module knows.
pub(crate) struct Unknown;

/// The content of a place of a dictionary.
pub(crate) enum Place<'py> {
    Value(Bound<'py, PyAny>),
    /// An entry that was deleted.
    Hole,
    /// Behind the last entry.
    End,
    /// The entries are kept in another way.
    Unknown,
}

/// Reads the value at `place`. Python code may run between two calls.
#[inline]
pub(crate) fn value_at<'py>(dict: &Bound<'py, PyDict>, place: usize) -> Place<'py> {
    let Some(slots) = Slots::of(dict) else {
        return Place::Unknown;
    };
    if place >= slots.count {
        return Place::End;
    }
    // SAFETY: the place is below the count; the value is owned at once.
    let value = unsafe { Bound::from_borrowed_ptr_or_opt(dict.py(), (*slots.at(place)).value) };
    value.map_or(Place::Hole, Place::Value)
}

/// Returns the place of `key` among the entries; the place behind the last one if it is not found
/// in this way.
pub(crate) fn place_of(dict: &Bound<'_, PyDict>, key: &Bound<'_, PyAny>) -> usize {
    let Some(slots) = Slots::of(dict) else {
        return 0;
    };
    (0..slots.count)
        // SAFETY: the place is below the count, and both keys are alive.
        .find(|&place| unsafe {
            let own = (*slots.at(place)).key;
            !own.is_null() && is_same_key(own, key.as_ptr())
        })
        .unwrap_or(slots.count)
}

/// The value at `place` if it is the one under `key`. None where it is not, or where that
/// cannot be told: the key may be at another place.
#[inline]
pub(crate) fn value_under<'py>(
    dict: &Bound<'py, PyDict>,
    place: usize,
    key: &Bound<'py, PyAny>,
) -> Option<Bound<'py, PyAny>> {
    let slots = Slots::of(dict).filter(|slots| place < slots.count)?;
    // SAFETY: the place is below the count, and both keys are alive. The value is owned at
    // once; that of an entry that was deleted is null, as its key is.
    unsafe {
        let entry = slots.at(place);
        if (*entry).value.is_null() || !is_same_key((*entry).key, key.as_ptr()) {
            return None;
        }
        Bound::from_borrowed_ptr_or_opt(dict.py(), (*entry).value)
    }
}

/// The content of a place of a dictionary whose leaves are not needed.
pub(crate) enum Found<'py> {
    Leaf,
    Other(Bound<'py, PyAny>),
    /// An entry that was deleted.
    Hole,
    /// Behind the last entry, or kept in another way.
    End,
}

/// Does the work of [`value_at`] without owning what `is_leaf` accepts. That must not run Python
/// code.
#[inline]
pub(crate) fn leaf_at<'py>(
    dict: &Bound<'py, PyDict>,
    place: usize,
    is_leaf: impl Fn(&Bound<'py, PyAny>) -> bool,
) -> Found<'py> {
    let Some(slots) = Slots::of(dict).filter(|slots| place < slots.count) else {
        return Found::End;
    };
    // SAFETY: the place is below the count; the value is lent for the call alone, or owned.
    unsafe {
        let value = (*slots.at(place)).value;
        if value.is_null() {
            return Found::Hole;
        }
        let value = Borrowed::from_ptr(dict.py(), value);
        if is_leaf(&value) {
            Found::Leaf
        } else {
            Found::Other(value.to_owned())
        }
    }
}

/// The first value from `place` on that `is_leaf` does not accept, and its place; None behind
/// the last one, or where they are kept in another way. `is_leaf` must not run Python code;
/// between two calls it may run.
#[inline]
pub(crate) fn other_from<'py>(
    dict: &Bound<'py, PyDict>,
    place: usize,
    is_leaf: impl Fn(&Bound<'py, PyAny>) -> bool,
) -> Option<(usize, Bound<'py, PyAny>)> {
    let slots = Slots::of(dict)?;
    (place..slots.count).find_map(|place| {
        // SAFETY: the place is below the count; the value is lent for the call alone, or owned.
        unsafe {
            let value = (*slots.at(place)).value;
            if value.is_null() {
                return None;
            }
            let value = Borrowed::from_ptr(dict.py(), value);
            (!is_leaf(&value)).then(|| (place, value.to_owned()))
        }
    })
}

/// Puts what `take` gives, until it gives None, at the places from `place` on whose values
/// `is_leaf` accepts: the first place that was not filled, or a later one. Neither may run
/// Python code.
#[inline]
pub(crate) fn put_leaves<'py>(
    dict: &Bound<'py, PyDict>,
    place: usize,
    is_leaf: impl Fn(&Bound<'py, PyAny>) -> bool,
    mut take: impl FnMut() -> Option<Bound<'py, PyAny>>,
) -> usize {
    let Some(slots) = Slots::of(dict) else {
        return place;
    };
    for place in place..slots.count {
        // SAFETY: the place is below the count. The old value is lent until it is replaced. If
        // nobody else has it, what frees it may run Python code, so that nothing follows.
        unsafe {
            let entry = slots.at(place);
            let old = (*entry).value;
            if old.is_null() {
                continue;
            }
            if !is_leaf(&Borrowed::from_ptr(dict.py(), old)) {
                return place;
            }
            let Some(new) = take() else {
                return place;
            };
            (*entry).value = new.into_ptr();
            let is_last = ffi::Py_REFCNT(old) == 1;
            drop(Bound::from_owned_ptr(dict.py(), old));
            if is_last {
                return place + 1;
            }
        }
    }
    slots.count
}

/// Puts `new` at `place`, where a value is. Nothing happens where there is none any more.
#[inline]
pub(crate) fn put<'py>(dict: &Bound<'py, PyDict>, place: usize, new: Bound<'py, PyAny>) {
    let Some(slots) = Slots::of(dict).filter(|slots| place < slots.count) else {
        return;
    };
    // SAFETY: as in `replace`.
    unsafe {
        let entry = slots.at(place);
        if !(*entry).value.is_null() {
            let old = std::mem::replace(&mut (*entry).value, new.into_ptr());
            drop(Bound::from_owned_ptr(dict.py(), old));
        }
    }
}

/// The first entry from `place` on, and its place; None behind the last one, or where they
/// are kept in another way. Python code may run between two calls.
#[inline]
pub(crate) fn entry_from<'py>(
    dict: &Bound<'py, PyDict>,
    place: usize,
) -> Option<(usize, Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let slots = Slots::of(dict)?;
    (place..slots.count).find_map(|place| {
        // SAFETY: the place is below the count; key and value are owned at once.
        unsafe {
            let entry = slots.at(place);
            let value = Bound::from_borrowed_ptr_or_opt(dict.py(), (*entry).value)?;
            let key = Bound::from_borrowed_ptr(dict.py(), (*entry).key);
            Some((place, key, value))
        }
    })
}

/// Returns whether values of `dict`, which nobody else knows yet, can be replaced in their places.
#[inline]
pub(crate) fn can_replace(dict: &Bound<'_, PyDict>) -> bool {
    // SAFETY: the dict is alive. One that the collector does not follow holds nothing that
    // it must know of, and would have to be entered there with the first value that is.
    Slots::of(dict).is_some() && unsafe { ffi::PyObject_GC_IsTracked(dict.as_ptr()) != 0 }
}

/// Puts `new` in the place of `old`. Nothing happens where `old` is not there any more: a
/// stranger has changed the dictionary.
#[inline]
pub(crate) fn replace<'py>(
    dict: &Bound<'py, PyDict>,
    place: usize,
    old: &Bound<'py, PyAny>,
    new: Bound<'py, PyAny>,
) {
    let Some(slots) = Slots::of(dict).filter(|slots| place < slots.count) else {
        return;
    };
    // SAFETY: the place is below the count. It takes over the reference to `new`, and the
    // one to `old` is dropped last, when the dictionary is in order: that may run Python code.
    unsafe {
        let entry = slots.at(place);
        if (*entry).value == old.as_ptr() {
            (*entry).value = new.into_ptr();
            drop(Bound::from_owned_ptr(dict.py(), old.as_ptr()));
        }
    }
}

/// Puts `new` under `key`, which is looked for from `place` on; `place` moves behind it.
///
/// # Errors
/// `new`, where the key is not found in this way.
#[inline]
pub(crate) fn replace_next<'py>(
    dict: &Bound<'py, PyDict>,
    place: &mut usize,
    key: &Bound<'py, PyAny>,
    new: Bound<'py, PyAny>,
) -> Result<(), Bound<'py, PyAny>> {
    let Some(slots) = Slots::of(dict) else {
        return Err(new);
    };
    for at in *place..slots.count {
        // SAFETY: the place is below the count. The reference to the old value is dropped
        // last, as in `replace`.
        unsafe {
            let entry = slots.at(at);
            if (*entry).key == key.as_ptr() && !(*entry).value.is_null() {
                *place = at + 1;
                let old = std::mem::replace(&mut (*entry).value, new.into_ptr());
                drop(Bound::from_owned_ptr(dict.py(), old));
                return Ok(());
            }
        }
    }
    Err(new)
}

/// Returns whether the layout was found to be that of this interpreter.
pub(crate) fn is_known() -> bool {
    IS_KNOWN.load(Ordering::Relaxed)
}

/// Tries the layout on a dictionary made for it, and uses it if it holds.
pub(crate) fn learn(py: Python<'_>) -> PyResult<()> {
    let version = py.version_info();
    let has_layout = version.major == 3 && (11..=14).contains(&version.minor);
    if !has_layout || !Shortcut::Dictionaries.is_allowed() {
        return Ok(());
    }
    let known = PyDict::new(py);
    let values = PyDict::new(py);
    for name in ["a", "b", "c", "d", "e", "f"] {
        known.set_item(name, &values)?;
    }
    known.del_item("b")?;
    let known = known.copy()?;
    IS_KNOWN.store(true, Ordering::Relaxed);
    let mut seen = Vec::new();
    let visited = visit(&known, |key, value| {
        seen.push((key.to_owned(), value.is(&values)));
        true
    });
    let mut is_same = visited == Some(true) && seen.len() == known.len() && can_replace(&known);
    for ((key, is_value), expected) in seen.iter().zip(known.keys()) {
        is_same &= *is_value && key.is(&expected);
    }
    if is_same {
        let new = PyDict::new(py).into_any();
        replace(&known, 0, values.as_any(), new.clone());
        is_same = known.get_item("a")?.is_some_and(|value| value.is(&new));
    }
    IS_KNOWN.store(is_same, Ordering::Relaxed);
    Ok(())
}
