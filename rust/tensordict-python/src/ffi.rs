//! The unsafe half of the bindings: calls into the C API that `PyO3` has no safe form of.
//!
//! Every function here is safe to call; what keeps it so stands at each block. Objects
//! are handed about as owned or borrowed [`Bound`]s, so that nothing outlives its
//! reference, and dictionaries are only iterated where no Python code can run.

use std::cell::Cell;

use pyo3::exceptions::PyRecursionError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::critical_section::{with_critical_section, with_critical_section2};
use pyo3::types::{PyDict, PyInt, PyList, PySlice, PyString, PyTuple, PyType};
use smallvec::SmallVec;

use crate::slots::{self, Place};

/// How many entries of one container fit on the stack of a walk.
const INLINE_ENTRIES: usize = 16;

pub(crate) type Values<'py> = SmallVec<[Bound<'py, PyAny>; INLINE_ENTRIES]>;
/// The leaves of a whole container, of which many have some dozens.
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
/// in the same order, which those of similar containers mostly do.
pub(crate) fn paired_values<'py>(
    first: &Bound<'py, PyDict>,
    second: &Bound<'py, PyDict>,
) -> Option<Pairs<'py>> {
    let mut pairs = Pairs::new();
    visit_pairs(first, second, |value, other| {
        pairs.push((value.to_owned(), other.to_owned()));
        true
    })
    .then_some(pairs)
}

/// Calls `visit` with the values of two dicts at each key: false where the two do not have
/// the same keys in the same order, or as soon as `visit` says so. It must not run Python code.
pub(crate) fn visit_pairs<'py>(
    first: &Bound<'py, PyDict>,
    second: &Bound<'py, PyDict>,
    mut visit: impl FnMut(Borrowed<'_, 'py, PyAny>, Borrowed<'_, 'py, PyAny>) -> bool,
) -> bool {
    if first.len() != second.len() {
        return false;
    }
    if let Some(answer) = slots::visit_pairs(first, second, &mut visit) {
        return answer;
    }
    let (mut place, mut other_place, mut seen) = (0, 0, 0);
    let null = std::ptr::null_mut;
    let (mut key, mut value, mut other_key, mut other_value) = (null(), null(), null(), null());
    with_critical_section2(first, second, || {
        // SAFETY: both are dicts that the caller keeps alive and, on free-threaded builds,
        // locked. No Python code runs here, so the entries that they lend stay valid.
        unsafe {
            let py = first.py();
            while ffi::PyDict_Next(first.as_ptr(), &raw mut place, &raw mut key, &raw mut value)
                != 0
                && ffi::PyDict_Next(
                    second.as_ptr(),
                    &raw mut other_place,
                    &raw mut other_key,
                    &raw mut other_value,
                ) != 0
                && is_same_key(key, other_key)
                && visit(
                    Borrowed::from_ptr(py, value),
                    Borrowed::from_ptr(py, other_value),
                )
            {
                seen += 1;
            }
        }
    });
    seen == first.len()
}

/// Whether two keys are one object, or equal strings. Runs no Python code.
///
/// # Safety
/// Both are objects that are alive.
pub(crate) unsafe fn is_same_key(key: *mut ffi::PyObject, other: *mut ffi::PyObject) -> bool {
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

/// Whether a string has one byte for each character, as nearly all keys do.
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
    if let Some(answer) = slots::visit(dict, &mut visit) {
        return answer;
    }
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

/// Whether `accepts` is true of every entry. It must not run Python code.
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
    loop {
        let found = slots::value_at(dict, place.cast_unsigned());
        if matches!(found, Place::Value(_) | Place::Hole) {
            *place += 1;
        }
        match found {
            Place::Value(value) => return Some(value),
            Place::Hole => {}
            Place::End => return None,
            Place::Unknown => break,
        }
    }
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
    if !slots::can_replace(dict) {
        return replace_entries(dict, |_, value| replace(value));
    }
    let mut place = 0;
    loop {
        match slots::value_at(dict, place) {
            Place::Value(value) => {
                if let Some(replacement) = replace(&value)? {
                    slots::replace(dict, place, &value, replacement);
                }
            }
            Place::Hole => {}
            Place::End | Place::Unknown => return Ok(()),
        }
        place += 1;
    }
}

/// As [`replace_values`], where values that `is_leaf` accepts stay.
#[inline]
pub(crate) fn replace_others<'py>(
    dict: &Bound<'py, PyDict>,
    is_leaf: impl Fn(&Bound<'py, PyAny>) -> bool,
    mut replace: impl FnMut(&Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>>,
) -> PyResult<()> {
    if !slots::can_replace(dict) {
        return replace_entries(dict, |_, value| {
            if is_leaf(value) {
                return Ok(None);
            }
            replace(value)
        });
    }
    let mut next = 0;
    while let Some((place, value)) = slots::other_from(dict, next, &is_leaf) {
        if let Some(new) = replace(&value)? {
            slots::replace(dict, place, &value, new);
        }
        next = place + 1;
    }
    Ok(())
}

/// As [`replace_values`] for what needs the key, too.
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
    if !slots::can_replace(dict) {
        return replace_entries(dict, |_, _| Ok(values.next()));
    }
    let mut place = 0;
    loop {
        let next = slots::put_leaves(dict, place, |_| true, || values.next());
        if next == place {
            return Ok(());
        }
        place = next;
    }
}

/// A dict that nobody else knows yet, whose values are replaced in the order of its keys.
pub(crate) struct Filling<'a, 'py> {
    dict: &'a Bound<'py, PyDict>,
    is_in_place: bool,
    place: usize,
}

impl<'a, 'py> Filling<'a, 'py> {
    pub(crate) fn new(dict: &'a Bound<'py, PyDict>) -> Self {
        Self {
            dict,
            is_in_place: slots::can_replace(dict),
            place: 0,
        }
    }

    /// Stores `value` under `key`, one of the dict's own, behind those that had a turn.
    pub(crate) fn put(
        &mut self,
        key: &Bound<'py, PyAny>,
        value: Bound<'py, PyAny>,
    ) -> PyResult<()> {
        if !self.is_in_place {
            return self.dict.set_item(key, value);
        }
        slots::replace_next(self.dict, &mut self.place, key, value)
            .or_else(|value| self.dict.set_item(key, value))
    }
}

/// A new dict with the entries of `dict`, laid out alike: cheaper than inserting them.
pub(crate) fn copy_dict<'py>(dict: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyDict>> {
    dict.copy()
}

/// Whether `value`'s type is `class` or derives from it. Runs no Python code.
pub(crate) fn is_subtype(value: &Bound<'_, PyAny>, class: &Py<PyType>) -> bool {
    // SAFETY: both are types that are alive for the call.
    unsafe { ffi::PyType_IsSubtype(value.get_type_ptr(), class.as_ptr().cast()) != 0 }
}

/// A new instance of `class` without any attribute, as `object.__new__` makes it; None
/// where the class has a `__new__` of its own.
pub(crate) fn allocate<'py>(class: &Bound<'py, PyType>) -> PyResult<Option<Bound<'py, PyAny>>> {
    // SAFETY: the type is alive for the call.
    unsafe { allocate_raw(class.py(), class.as_type_ptr()) }
}

/// As [`allocate`], of the type of `value`.
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

/// The `torch.Size` of `dims`, made as torch itself makes it where they are plain numbers.
pub(crate) fn new_size<'py>(
    size: &Bound<'py, PyType>,
    dims: &[Bound<'py, PyAny>],
) -> PyResult<Bound<'py, PyAny>> {
    let py = size.py();
    let are_plain = dims.iter().all(PyAnyMethods::is_exact_instance_of::<PyInt>);
    let raw = size.as_type_ptr();
    // SAFETY: `raw` is `torch.Size`, a type alive for the call that derives from tuple and
    // adds nothing to it, so that its allocator takes the number of items. The tuple is
    // new and known to nobody, and each place of it is filled once.
    unsafe {
        let Some(allocate) = (*raw).tp_alloc.filter(|_| are_plain) else {
            return size.call1((PyTuple::new(py, dims)?,));
        };
        let made = Bound::from_owned_ptr_or_err(py, allocate(raw, dims.len().cast_signed()))?;
        for (place, dim) in (0..).zip(dims) {
            ffi::PyTuple_SetItem(made.as_ptr(), place, dim.clone().into_ptr());
        }
        Ok(made)
    }
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

/// The items of a tuple that nobody else has, moved out of it: to share them first would touch
/// each of them twice more, when most are no longer at hand.
pub(crate) struct MovedItems<'py> {
    tuple: Bound<'py, PyTuple>,
    place: usize,
}

impl<'py> MovedItems<'py> {
    /// Those of `tuple`, or the tuple, where somebody else has it, too.
    pub(crate) fn of(tuple: Bound<'py, PyTuple>) -> Result<Self, Bound<'py, PyTuple>> {
        // SAFETY: the tuple is alive.
        if unsafe { ffi::Py_REFCNT(tuple.as_ptr()) } != 1 {
            return Err(tuple);
        }
        Ok(Self { tuple, place: 0 })
    }
}

impl<'py> Iterator for MovedItems<'py> {
    type Item = Bound<'py, PyAny>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.place >= self.tuple.len() {
            return None;
        }
        // SAFETY: the place is one of the tuple's, which holds an object. The caller takes
        // over the reference to it, the tuple one to None. Nobody else looks at the tuple.
        let item = unsafe {
            let raw = self.tuple.as_ptr().cast::<ffi::PyTupleObject>();
            let slot = (&raw mut (*raw).ob_item)
                .cast::<*mut ffi::PyObject>()
                .add(self.place);
            let item = std::mem::replace(&mut *slot, ffi::Py_NewRef(ffi::Py_None()));
            Bound::from_owned_ptr(self.tuple.py(), item)
        };
        self.place += 1;
        Some(item)
    }
}

/// A callable that is called many times: how it is called (PEP 590) is looked up once.
#[derive(Clone)]
pub(crate) struct Callee<'py> {
    function: Bound<'py, PyAny>,
    vectorcall: Option<ffi::vectorcallfunc>,
}

impl<'py> Callee<'py> {
    pub(crate) fn new(function: Bound<'py, PyAny>) -> Self {
        // SAFETY: the function is alive.
        let vectorcall = unsafe { ffi::PyVectorcall_Function(function.as_ptr()) };
        Self {
            function,
            vectorcall,
        }
    }

    pub(crate) fn function(&self) -> &Bound<'py, PyAny> {
        &self.function
    }

    /// `function(argument)`.
    #[inline]
    pub(crate) fn call1(&self, argument: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let mut slots = [std::ptr::null_mut(), argument.as_ptr()];
        // SAFETY: the argument is alive for the call.
        unsafe { self.call_slots(&mut slots) }
    }

    /// `function(first, second)`.
    #[inline]
    pub(crate) fn call2(
        &self,
        first: &Bound<'py, PyAny>,
        second: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut slots = [std::ptr::null_mut(), first.as_ptr(), second.as_ptr()];
        // SAFETY: the arguments are alive for the call.
        unsafe { self.call_slots(&mut slots) }
    }

    /// Calls with the arguments in the slots from 1 on.
    ///
    /// # Safety
    /// They are objects that are alive for the call.
    #[inline]
    unsafe fn call_slots(&self, slots: &mut [*mut ffi::PyObject]) -> PyResult<Bound<'py, PyAny>> {
        let nargsf = (slots.len() - 1) | ffi::PY_VECTORCALL_ARGUMENTS_OFFSET;
        let callee = self.function.as_ptr();
        // SAFETY: the arguments are as the caller says; slot 0 is the scratch slot that the
        // offset flag promises, and the callee restores what it changes.
        unsafe {
            let arguments = slots.as_mut_ptr().add(1).cast_const();
            let no_keywords = std::ptr::null_mut();
            let result = match self.vectorcall {
                Some(call) => call(callee, arguments, nargsf, no_keywords),
                None => ffi::PyObject_Vectorcall(callee, arguments, nargsf, no_keywords),
            };
            Bound::from_owned_ptr_or_err(self.function.py(), result)
        }
    }
}

/// What is called on each leaf: a method by name, or a callable.
#[derive(Clone)]
pub(crate) enum Operation<'py> {
    Method(Bound<'py, PyString>),
    Function(Bound<'py, PyAny>),
    /// `leaf[argument]`, the operator: cheaper than looking its method up.
    GetItem,
}

/// An [`Operation`], looked up as far as it can be.
enum Target<'py> {
    Method(Bound<'py, PyString>),
    Function(Callee<'py>),
    GetItem,
}

/// A call that is repeated with another first argument each time: one argument array for
/// all of them, passed to the callee in place.
pub(crate) struct RepeatedCall<'py> {
    operation: Target<'py>,
    // [scratch, leaf, arguments...]: the callee may use the scratch slot (PEP 590).
    slots: SmallVec<[*mut ffi::PyObject; 12]>,
    arguments: Bound<'py, PyTuple>,
}

/// Where the arguments begin among the slots.
const FIRST: usize = 2;

impl<'py> RepeatedCall<'py> {
    pub(crate) fn new(operation: Operation<'py>, arguments: &Bound<'py, PyTuple>) -> Self {
        let mut slots = SmallVec::with_capacity(arguments.len() + FIRST);
        slots.push(std::ptr::null_mut());
        slots.push(std::ptr::null_mut());
        slots.extend(arguments.iter_borrowed().map(Borrowed::as_ptr));
        let operation = match operation {
            Operation::Method(name) => Target::Method(name),
            Operation::Function(function) => Target::Function(Callee::new(function)),
            Operation::GetItem => Target::GetItem,
        };
        Self {
            operation,
            slots,
            arguments: arguments.clone(),
        }
    }

    pub(crate) fn num_arguments(&self) -> usize {
        self.arguments.len()
    }

    /// Calls `op(leaf, *arguments)`.
    pub(crate) fn call(&mut self, leaf: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.slots[1] = leaf.as_ptr();
        self.call_slots()
    }

    /// Calls `op(leaf, first, *arguments[1:])`.
    pub(crate) fn call_with_first(
        &mut self,
        leaf: &Bound<'py, PyAny>,
        first: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.slots[1] = leaf.as_ptr();
        self.slots[FIRST] = first.as_ptr();
        self.call_slots()
    }

    /// Calls `op(leaf, *arguments, *further)`.
    pub(crate) fn call_with_further(
        &mut self,
        leaf: &Bound<'py, PyAny>,
        further: &[Bound<'py, PyAny>],
    ) -> PyResult<Bound<'py, PyAny>> {
        self.slots[1] = leaf.as_ptr();
        self.slots.truncate(FIRST + self.arguments.len());
        self.slots.extend(further.iter().map(Bound::as_ptr));
        self.call_slots()
    }

    fn call_slots(&mut self) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: the slots from 1 on are objects that the caller of this function and
        // `self.arguments` keep alive for the call; slot 0 is the scratch slot that the
        // offset flag promises, and the callee restores what it changes.
        unsafe {
            let result = match &self.operation {
                Target::Function(function) => return function.call_slots(&mut self.slots),
                Target::Method(name) => ffi::PyObject_VectorcallMethod(
                    name.as_ptr(),
                    self.slots.as_mut_ptr().add(1).cast_const(),
                    (self.slots.len() - 1) | ffi::PY_VECTORCALL_ARGUMENTS_OFFSET,
                    std::ptr::null_mut(),
                ),
                Target::GetItem => ffi::PyObject_GetItem(self.slots[1], self.slots[FIRST]),
            };
            Bound::from_owned_ptr_or_err(self.arguments.py(), result)
        }
    }
}

/// `function(*arguments)`.
#[inline]
pub(crate) fn call<'py>(
    function: &Bound<'py, PyAny>,
    arguments: &[Bound<'py, PyAny>],
) -> PyResult<Bound<'py, PyAny>> {
    let mut slots: SmallVec<[*mut ffi::PyObject; 4]> = SmallVec::new();
    slots.push(std::ptr::null_mut());
    slots.extend(arguments.iter().map(Bound::as_ptr));
    let nargsf = arguments.len() | ffi::PY_VECTORCALL_ARGUMENTS_OFFSET;
    // SAFETY: the slots from 1 on are objects that `arguments` keeps alive for the call;
    // slot 0 is the scratch slot that the offset flag promises.
    unsafe {
        let first = slots.as_mut_ptr().add(1).cast_const();
        let result =
            ffi::PyObject_Vectorcall(function.as_ptr(), first, nargsf, std::ptr::null_mut());
        Bound::from_owned_ptr_or_err(function.py(), result)
    }
}

/// `arguments[0].name(*arguments[1:])`, without a bound method between.
pub(crate) fn call_method<'py>(
    name: &Bound<'py, PyString>,
    arguments: &[Bound<'py, PyAny>],
) -> PyResult<Bound<'py, PyAny>> {
    let pointers: SmallVec<[*mut ffi::PyObject; 4]> = arguments.iter().map(Bound::as_ptr).collect();
    // SAFETY: the pointers are objects that `arguments` keeps alive for the call.
    unsafe {
        let result = ffi::PyObject_VectorcallMethod(
            name.as_ptr(),
            pointers.as_ptr(),
            pointers.len(),
            std::ptr::null_mut(),
        );
        Bound::from_owned_ptr_or_err(name.py(), result)
    }
}

/// An attribute that the instances of a class have by a descriptor, looked up once.
pub(crate) struct Getter<'py> {
    descriptor: Bound<'py, PyAny>,
    get: ffi::descrgetfunc,
}

impl<'py> Getter<'py> {
    /// That of `descriptor`, an attribute of a class; None where it is no descriptor.
    pub(crate) fn of(descriptor: Bound<'py, PyAny>) -> Option<Self> {
        // SAFETY: the descriptor is alive, and so is its type.
        let get = unsafe { (*descriptor.get_type_ptr()).tp_descr_get }?;
        Some(Self { descriptor, get })
    }

    /// The attribute of `instance`.
    #[inline]
    pub(crate) fn get(&self, instance: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: the descriptor, the instance and its type are alive for the call, which is
        // the one that reading the attribute comes to.
        unsafe {
            let class = instance.get_type_ptr().cast();
            let value = (self.get)(self.descriptor.as_ptr(), instance.as_ptr(), class);
            Bound::from_owned_ptr_or_err(instance.py(), value)
        }
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

unsafe extern "C" {
    /// What runs a frame of Python where nothing else was put in its place.
    fn _PyEval_EvalFrameDefault();
}

/// Whether frames are watched (PEP 523), as the compiler does where compiled code runs: what
/// runs natively then is code that it does not see.
pub(crate) fn frames_are_watched(_: Python<'_>) -> bool {
    // SAFETY: the thread is attached, so that it has an interpreter.
    unsafe {
        let run = ffi::_PyInterpreterState_GetEvalFrameFunc(ffi::PyInterpreterState_Get());
        run as usize != _PyEval_EvalFrameDefault as *const () as usize
    }
}

/// The dict of an instance's own attributes; None where it has none.
pub(crate) fn instance_dict<'py>(
    value: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    // SAFETY: the instance is alive for the call, and no closure is asked for.
    let found = unsafe {
        let dict = ffi::PyObject_GenericGetDict(value.as_ptr(), std::ptr::null_mut());
        Bound::from_owned_ptr_or_err(value.py(), dict)?
    };
    Ok(found.cast_into::<PyDict>().ok())
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

/// One level of a walk, counted and given back on drop.
///
/// The interpreter counts its own frames: those of a walk would only be seen by it where it is
/// told, which costs more than all else that a level of a small container does.
pub(crate) struct RecursionGuard<'py> {
    depth: u32,
    /// The thread's count: to ask for it is a call.
    count: *const Cell<u32>,
    _py: Python<'py>,
}

/// How deep containers may be nested: Python's own default limit.
const MAX_DEPTH: u32 = 1000;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

impl<'py> RecursionGuard<'py> {
    /// Counts one level.
    ///
    /// # Errors
    /// `RecursionError` where the limit is reached.
    #[inline]
    pub(crate) fn enter(py: Python<'py>) -> PyResult<Self> {
        DEPTH.with(|count| {
            let depth = count.get();
            if depth >= MAX_DEPTH {
                return Err(too_deep());
            }
            count.set(depth + 1);
            Ok(Self {
                depth,
                count,
                _py: py,
            })
        })
    }
}

#[cold]
fn too_deep() -> PyErr {
    PyRecursionError::new_err("maximum recursion depth exceeded while walking nested containers")
}

impl Drop for RecursionGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the guard stays in its thread, as the interpreter's token does, and the
        // count lives as long as that.
        unsafe { (*self.count).set(self.depth) };
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
