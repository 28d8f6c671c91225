//! Calls of Python functions and descriptors that are looked up once.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};
use smallvec::SmallVec;

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

/// The operation that is called on each leaf: a method by name, or a callable.
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

/// The place of the first argument among the slots.
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
