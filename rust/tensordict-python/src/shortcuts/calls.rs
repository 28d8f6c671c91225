//! Attributes and operators of collections, used without running bytecode.
//!
//! A property's getter, `__setattr__` and `__setitem__` have to be Python functions,
//! because the compiler traces nothing else in their place. In eager code their frames
//! would be most of what an access costs. So the functions stay, with their code for the
//! compiler to trace, and what calls them natively (PEP 590's `vectorcall`, which `CPython`
//! lets an extension exchange from 3.12 on by `PyFunction_SetVectorcall`) is exchanged for
//! one that does the same. What is not the plain case still runs the function's own code.
//!
//! This reaches what the interpreter calls by itself: properties and special methods, from
//! 3.12 on also a method called by name, which 3.11 runs without asking.
//!
//! This is one of the modules that may hold `unsafe`: it reads two attributes and a dict
//! by the C API, as the handful of instructions that they are.

use std::panic::AssertUnwindSafe;
use std::sync::OnceLock;

use pyo3::exceptions::{PySystemError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFunction, PyString, PyTuple};

use crate::access;
use crate::collection::{self, Names};
use crate::ffi::{Resolved, call_method, is_subclass};
use crate::fields;
use crate::foreach;
use crate::imports::{Imports, imports};
use crate::join::{self, Join};
use crate::leaf_call::Tail;
use crate::map_leaves::{self, Frame};
use crate::set;
use crate::shortcuts::Shortcut;

/// The vectorcall that calls a function of Python by running its code.
static RUN: OnceLock<ffi::vectorcallfunc> = OnceLock::new();

/// Let a method or the getter of a property of this name be called natively.
#[pyfunction]
fn call_natively<'py>(function: &Bound<'py, PyFunction>) -> PyResult<Bound<'py, PyFunction>> {
    let call: ffi::vectorcallfunc = match function.getattr("__name__")?.extract::<&str>()? {
        "batch_size" => batch_size,
        "device" => device,
        "is_locked" => is_locked,
        "shape" => shape,
        "batch_dims" | "ndim" => num_dims,
        "__len__" => length,
        "__contains__" => contains,
        "__setitem__" => set_item,
        "__torch_function__" => torch_function,
        other => {
            let message = format!("there is no native form of {other}");
            return Err(PyTypeError::new_err(message));
        }
    };
    exchange(function, call);
    Ok(function.clone())
}

/// Let a method whose body is `foreach(self, op)`, or with `takes_operand`
/// `foreach(self, op, (other,), True)` where that gives something, be called natively. Its
/// `op` is the first variable that it has from around it.
#[pyfunction]
fn call_foreach_natively(function: &Bound<'_, PyFunction>, takes_operand: bool) {
    exchange(
        function,
        if takes_operand {
            foreach_with
        } else {
            foreach_alone
        },
    );
}

/// Returns what `call` gives to the interpreter, or null with the exception set. A panic must not
/// leave the function, and is an exception as well.
///
/// # Safety
/// The thread is attached.
#[inline]
unsafe fn answered(
    call: impl FnOnce(Python<'_>) -> PyResult<*mut ffi::PyObject>,
) -> *mut ffi::PyObject {
    // SAFETY: as the caller says.
    let py = unsafe { Python::assume_attached() };
    match std::panic::catch_unwind(AssertUnwindSafe(|| call(py))) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => failed(py, error),
        Err(panic) => failed(py, panicked(&*panic)),
    }
}

#[cold]
fn panicked(panic: &(dyn std::any::Any + Send)) -> PyErr {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    PySystemError::new_err(format!(
        "tensordict has a bug: {}",
        text.unwrap_or("a panic")
    ))
}

/// A native form of a function: what `$body` gives for the arguments; where it gives None,
/// what the function itself does.
macro_rules! native {
    ($name:ident, |$imports:ident, $($argument:ident),+| $body:expr) => {
        native!($name, of _function, |$imports, $($argument),+| $body);
    };
    ($name:ident, of $function:ident, |$imports:ident, $($argument:ident),+| $body:expr) => {
        unsafe extern "C" fn $name(
            function: *mut ffi::PyObject,
            arguments: *const *mut ffi::PyObject,
            nargsf: usize,
            keywords: *mut ffi::PyObject,
        ) -> *mut ffi::PyObject {
            const COUNT: usize = [$(stringify!($argument)),+].len();
            let call = |py: Python<'_>| {
                // SAFETY: CPython calls this with as many arguments as it says, all of them
                // alive for the call.
                unsafe {
                    let num_arguments = ffi::PyVectorcall_NARGS(nargsf).cast_unsigned();
                    if num_arguments == COUNT && keywords.is_null() {
                        let mut place = arguments;
                        $(
                            let $argument = Bound::from_borrowed_ptr(py, *place);
                            place = place.add(1);
                        )+
                        let _ = place;
                        let $function = Bound::from_borrowed_ptr(py, function);
                        let answer = imports(py).and_then(|$imports| $body)?;
                        if let Some(value) = answer {
                            return Ok(value.into_ptr());
                        }
                    }
                    match RUN.get() {
                        Some(run) => Ok(run(function, arguments, nargsf, keywords)),
                        None => Err(PyTypeError::new_err("a function that cannot be run")),
                    }
                }
            };
            // SAFETY: CPython calls this with the thread attached.
            unsafe { answered(call) }
        }
    };
}

native!(batch_size, |imports, td| {
    collection::state_of(imports, &td, 1).map(Some)
});
native!(device, |imports, td| {
    collection::state_of(imports, &td, 2).map(Some)
});
native!(is_locked, |imports, td| {
    let is_locked = collection::is_locked(imports, &td)?;
    Ok(Some(PyBool::new(td.py(), is_locked).to_owned().into_any()))
});
native!(shape, |imports, td| own_batch_size(imports, &td));
native!(num_dims, |imports, td| {
    Ok(match own_batch_size(imports, &td)? {
        Some(size) => Some(size.len()?.into_pyobject(td.py())?.into_any()),
        None => None,
    })
});
native!(length, |imports, td| {
    Ok(match own_batch_size(imports, &td)? {
        Some(size) if size.is_empty()? => Some(0_i64.into_pyobject(td.py())?.into_any()),
        Some(size) => Some(size.get_item(0)?),
        None => None,
    })
});
native!(contains, |imports, td, key| {
    if !key.is_exact_instance_of::<PyString>() || !collection::is_plain(imports, &td) {
        return Ok(None);
    }
    let found = access::contains(&td, &key)?;
    Ok(Some(PyBool::new(td.py(), found).to_owned().into_any()))
});
native!(set_item, |imports, td, key, value| {
    let is_done = key.is_exact_instance_of::<PyString>()
        && collection::is_plain(imports, &td)
        && set::set_plainly(imports, &td, &key, &value)?;
    Ok(is_done.then(|| td.py().None().into_bound(td.py())))
});

native!(foreach_alone, of function, |_imports, td| {
    foreach::foreach(&td, &first_of_closure(&function)?, None, false)
});
native!(foreach_with, of function, |_imports, td, other| {
    let operands = PyTuple::new(td.py(), [other])?;
    foreach::foreach(&td, &first_of_closure(&function)?, Some(operands), true)
});

/// Returns the first variable of the closure of a function.
fn first_of_closure<'py>(function: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = function.py();
    // SAFETY: `call_foreach_natively` was given a function, which is alive, and with it its
    // closure, a tuple of cells. Both give borrowed references.
    unsafe {
        let closure = ffi::PyFunction_GetClosure(function.as_ptr());
        let closure = Borrowed::from_ptr_or_err(py, closure)?.cast::<PyTuple>()?;
        let cell = closure.get_borrowed_item(0)?;
        Bound::from_owned_ptr_or_err(py, ffi::PyCell_Get(cell.as_ptr()))
    }
}

native!(answer_plainly, |_imports, class, function, types, args| {
    answer(&class, &function, &types, &args, None)
});
native!(answer_fully, |_imports,
                       class,
                       function,
                       types,
                       args,
                       kwargs| {
    answer(&class, &function, &types, &args, Some(&kwargs))
});

/// Answers a call of `__torch_function__`: torch leaves keywords out if there are none.
unsafe extern "C" fn torch_function(
    function: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    nargsf: usize,
    keywords: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: both take what CPython calls this with.
    unsafe {
        if ffi::PyVectorcall_NARGS(nargsf) == 4 {
            answer_plainly(function, arguments, nargsf, keywords)
        } else {
            answer_fully(function, arguments, nargsf, keywords)
        }
    }
}

/// The table of the torch functions that collections take part in, and that of the handlers
/// that have a native form.
static TABLES: Resolved<[Py<PyDict>; 2]> = Resolved::new();

/// Returns the answer of the table's entry for a torch function; None if there is none, or if other
/// types take part.
fn answer<'py>(
    class: &Bound<'py, PyAny>,
    function: &Bound<'py, PyAny>,
    types: &Bound<'py, PyAny>,
    args: &Bound<'py, PyAny>,
    kwargs: Option<&Bound<'py, PyAny>>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = class.py();
    let (Ok(types), Ok(args)) = (types.cast::<PyTuple>(), args.cast::<PyTuple>()) else {
        return Ok(None);
    };
    if !types
        .iter_borrowed()
        .all(|other| is_subclass(&other, class))
    {
        return Ok(None);
    }
    let [table, forms] = TABLES.get_or_try_init(py, || {
        let module = py.import("tensordict.ops.torch_dispatch")?;
        let table = module.getattr("TD_HANDLED_FUNCTIONS")?;
        let forms = module.getattr("NATIVE_FORMS")?;
        let tables = [table.cast_into::<PyDict>()?, forms.cast_into::<PyDict>()?];
        Ok::<_, PyErr>(tables.map(Bound::unbind))
    })?;
    let Some(handler) = table.bind(py).get_item(function)? else {
        return Ok(None);
    };
    let kwargs = kwargs
        .and_then(|given| given.cast::<PyDict>().ok())
        .filter(|given| !given.is_empty());
    if kwargs.is_none()
        && let Some(form) = forms.bind(py).get_item(&handler)?
        && let Some(made) = made_natively(form.cast()?, function, args)?
    {
        return Ok(Some(made));
    }
    handler.call(args, kwargs).map(Some)
}

/// Calls the native form `form` of a handler for `function(*args)`; returns None if the arguments
/// are not plain.
fn made_natively<'py>(
    form: &Bound<'py, PyString>,
    function: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let imports = imports(args.py())?;
    match (form.to_str()?, args.as_slice()) {
        ("stack", _) => join::join_plain(imports, Join::Stack, args),
        ("cat", _) => join::join_plain(imports, Join::Cat, args),
        ("like", [td]) if collection::is_plain(imports, td) => {
            let frame = Frame {
                op: function,
                args: &PyTuple::empty(td.py()),
                prefix: None,
                names: &Names::Keep,
                tail: Tail::Nothing,
                lock: true,
            };
            map_leaves::map_dense(imports, td, &frame).map(Some)
        }
        ("where", [mask, td, other]) if collection::is_plain(imports, td) => {
            call_method(form, &[td.clone(), mask.clone(), other.clone()]).map(Some)
        }
        // Else it is the name of a method.
        ("like" | "where", _) => Ok(None),
        (_, all @ [td, ..]) if collection::is_plain(imports, td) => {
            call_method(form, all).map(Some)
        }
        _ => Ok(None),
    }
}

/// The batch size of a plain tensordict; None where a class may have another one.
fn own_batch_size<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    if !collection::is_plain(imports, td) {
        return Ok(None);
    }
    collection::state_of(imports, td, 1).map(Some)
}

/// Let a getter `def getter(self): return get_field(name, self)`, whose `__name__` is the
/// name of the field, be called natively.
#[pyfunction]
fn read_natively(getter: &Bound<'_, PyFunction>) {
    exchange(getter, get);
}

/// Let `def __setattr__(self, name, value): set_field(self, name, value)` be called natively.
#[pyfunction]
fn write_natively(setter: &Bound<'_, PyFunction>) {
    exchange(setter, set);
}

fn exchange(function: &Bound<'_, PyFunction>, call: ffi::vectorcallfunc) {
    if !Shortcut::Calls.is_allowed() {
        return;
    }
    // SAFETY: it is a function, alive and, as its maker has not handed it on yet, not
    // called by any other thread. The interpreter's own function, where it has one, has the
    // type that is said here.
    unsafe {
        let raw = function.as_ptr().cast::<ffi::PyFunctionObject>();
        if let Some(run) = (*raw).vectorcall {
            RUN.get_or_init(|| run);
        }
        let set = libc::dlsym(libc::RTLD_DEFAULT, c"PyFunction_SetVectorcall".as_ptr());
        if set.is_null() {
            // Python 3.11. The version says which calls may be inlined: none.
            (*raw).vectorcall = Some(call);
            (*raw).func_version = 0;
        } else {
            type Set = unsafe extern "C" fn(*mut ffi::PyObject, ffi::vectorcallfunc);
            std::mem::transmute::<*mut libc::c_void, Set>(set)(function.as_ptr(), call);
        }
    }
}

/// Answers a call of a getter.
unsafe extern "C" fn get(
    getter: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    nargsf: usize,
    keywords: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    let call = |py: Python<'_>| {
        // SAFETY: CPython calls this with a function that `read_natively` was given, and with as
        // many arguments as it says, all of them alive for the call. The name of the function
        // is owned, since it can be given another one. `quick` keeps to that.
        unsafe {
            if ffi::PyVectorcall_NARGS(nargsf) != 1 || !keywords.is_null() {
                return Err(PyTypeError::new_err("a getter takes the instance alone"));
            }
            let tc = *arguments;
            let name = (*getter.cast::<ffi::PyFunctionObject>()).func_name;
            let name = Bound::from_borrowed_ptr(py, name);
            let value = quick(py, imports(py)?, tc, name.as_ptr());
            if !value.is_null() {
                return Ok(value);
            }
            let tc = Bound::from_borrowed_ptr(py, tc);
            fields::get_field(name.cast::<PyString>()?, &tc).map(Bound::into_ptr)
        }
    };
    // SAFETY: CPython calls this with the thread attached.
    unsafe { answered(call) }
}

/// Answers a call of `__setattr__`.
unsafe extern "C" fn set(
    _setter: *mut ffi::PyObject,
    arguments: *const *mut ffi::PyObject,
    nargsf: usize,
    keywords: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    let call = |py: Python<'_>| {
        // SAFETY: CPython calls this with as many arguments as it says, all of them alive for
        // the call.
        let [tc, name, value] = unsafe {
            if ffi::PyVectorcall_NARGS(nargsf) != 3 || !keywords.is_null() {
                let message = "__setattr__ takes the instance, a name and a value";
                return Err(PyTypeError::new_err(message));
            }
            [0, 1, 2].map(|at| Bound::from_borrowed_ptr(py, *arguments.add(at)))
        };
        write(&tc, &name, &value)?;
        Ok(py.None().into_ptr())
    };
    // SAFETY: CPython calls this with the thread attached.
    unsafe { answered(call) }
}

fn write<'py>(
    tc: &Bound<'py, PyAny>,
    name: &Bound<'py, PyAny>,
    value: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let imports = imports(tc.py())?;
    let name_of_inner = imports.names.entries.bind(tc.py());
    if value.get_type().is(&imports.tensor)
        && fields::is_plain_field(imports, tc, name)?
        && let Ok(inner) = crate::ffi::plain_attribute(tc, name_of_inner)
        && collection::is_plain(imports, &inner)
        && set::fits_plainly(imports, &inner, value)?
        && !collection::is_locked(imports, &inner)?
    {
        return collection::entries(imports, &inner)?.set_item(name, value);
    }
    fields::set_field(tc, name, value)
}

/// The tensor in the plain tensordict of `tc`; null, without an error, for all else.
unsafe fn quick(
    py: Python<'_>,
    imports: &'static Imports,
    tc: *mut ffi::PyObject,
    name: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    let Some(plain_type) = imports.plain_type(py) else {
        return std::ptr::null_mut();
    };
    let entries = imports.names.entries.as_ptr();
    // SAFETY: every pointer is to an object that is alive: the arguments by the caller,
    // what is read by the reference that is owned here until it is dropped.
    unsafe {
        let Some(inner) = owned(py, ffi::PyObject_GenericGetAttr(tc, entries)) else {
            return std::ptr::null_mut();
        };
        if !inner.get_type().is(plain_type) {
            return std::ptr::null_mut();
        }
        let dict = ffi::PyObject_GenericGetAttr(inner.as_ptr(), entries);
        let Some(dict) = owned(py, dict) else {
            return std::ptr::null_mut();
        };
        if ffi::PyDict_CheckExact(dict.as_ptr()) == 0 {
            return std::ptr::null_mut();
        }
        let mut value = std::ptr::null_mut();
        if ffi::compat::PyDict_GetItemRef(dict.as_ptr(), name, &raw mut value) != 1 {
            ffi::PyErr_Clear();
            return std::ptr::null_mut();
        }
        let value = Bound::from_owned_ptr(py, value);
        if value.get_type().is(&imports.tensor) {
            return value.into_ptr();
        }
        std::ptr::null_mut()
    }
}

/// A new reference, or None after an error, which is cleared.
unsafe fn owned(py: Python<'_>, pointer: *mut ffi::PyObject) -> Option<Bound<'_, PyAny>> {
    // SAFETY: the pointer is a new reference or null.
    let found = unsafe { Bound::from_owned_ptr_or_opt(py, pointer) };
    if found.is_none() {
        // SAFETY: the thread is attached.
        unsafe { ffi::PyErr_Clear() };
    }
    found
}

fn failed(py: Python<'_>, error: PyErr) -> *mut ffi::PyObject {
    error.restore(py);
    std::ptr::null_mut()
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(call_foreach_natively, module)?)?;
    module.add_function(wrap_pyfunction!(call_natively, module)?)?;
    module.add_function(wrap_pyfunction!(read_natively, module)?)?;
    module.add_function(wrap_pyfunction!(write_natively, module)?)?;
    Ok(())
}
