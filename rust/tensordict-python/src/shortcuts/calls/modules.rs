//! Calls of modules of collections, without running bytecode: the `forward` of a module of
//! tensors and of a sequence.
//!
//! Each does what its Python function does in the plain case. It is called
//! natively (see [`crate::shortcuts::calls`]) and gives None where a case is not plain, before
//! anything has been done. Then the function's own code runs.

use pyo3::call::PyCallArgs;
use pyo3::exceptions::{PyBaseException, PyException};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple, PyType};
use smallvec::SmallVec;

use crate::collection;
use crate::ffi::{self, Resolved};
use crate::imports::Imports;
use crate::nested_key;
use crate::set::{self, Inplace};

/// The key of outputs that are dropped.
const SINK: &str = "_";

/// The objects of torch, and the classes of modules, that the calls need.
struct Calls {
    module_class: Py<PyType>,
    /// `torch.nn.Module.__call__`, as torch defines it.
    module_call: Py<PyAny>,
    /// `forward` of a module of tensors.
    forward: Py<PyAny>,
    /// `forward` of a sequence.
    forward_all: Py<PyAny>,
    /// The methods that a class may have its own of, with those of a module of tensors.
    steps: [(Py<PyString>, Py<PyAny>); 3],
    /// The hooks that all modules have.
    global_hooks: [Py<PyDict>; 4],
    tracing_state: Py<PyAny>,
    /// The setting by which modules are left out.
    skip: Py<PyAny>,
    /// Adds to an error what a module was called with.
    explain: Py<PyAny>,
    /// Adds to an error whose output was to be written.
    explain_output: Py<PyAny>,
    /// Adds to an error at which module of a sequence it was raised.
    note_place: Py<PyAny>,
    names: Names,
}

struct Names {
    own_hooks: [Py<PyString>; 4],
    compiled: Py<PyString>,
    call: Py<PyString>,
    forward: Py<PyString>,
    module: Py<PyString>,
    modules: Py<PyString>,
    in_keys: Py<PyString>,
    out_keys: Py<PyString>,
    inplace: Py<PyString>,
    method: Py<PyString>,
    kwargs: Py<PyString>,
    method_kwargs: Py<PyString>,
    get_kwargs: Py<PyString>,
    strict: Py<PyString>,
    selects: Py<PyString>,
    partial_tolerant: Py<PyString>,
    value: Py<PyString>,
    by_thread: Py<PyString>,
    write: Py<PyString>,
    as_outputs: Py<PyString>,
}

static CALLS: Resolved<Calls> = Resolved::new();

fn calls(py: Python<'_>) -> PyResult<&'static Calls> {
    if let Some(found) = CALLS.get(py) {
        return Ok(found);
    }
    let fresh = Calls::resolve(py)?;
    // Another thread may have been first, in which case its objects are the same ones.
    CALLS.set(py, fresh);
    Ok(CALLS
        .get(py)
        .expect("the cell was filled by the line above or before it"))
}

impl Calls {
    #[cold]
    fn resolve(py: Python<'_>) -> PyResult<Self> {
        let torch_modules = py.import("torch.nn.modules.module")?;
        let module_class = torch_modules.getattr("Module")?.cast_into::<PyType>()?;
        let common = py.import("tensordict.nn.common")?;
        let sequence = py.import("tensordict.nn.sequence")?;
        let class = common.getattr("TensorDictModule")?;
        let hooks = |name: &str| -> PyResult<Py<PyDict>> {
            Ok(torch_modules.getattr(name)?.cast_into::<PyDict>()?.unbind())
        };
        let name = |text: &str| PyString::intern(py, text).unbind();
        let step = |text: &str| -> PyResult<_> { Ok((name(text), class.getattr(text)?.unbind())) };
        Ok(Self {
            module_call: module_class.getattr("_wrapped_call_impl")?.unbind(),
            module_class: module_class.unbind(),
            forward: class.getattr("forward")?.unbind(),
            forward_all: sequence
                .getattr("TensorDictSequential")?
                .getattr("forward")?
                .unbind(),
            steps: [
                step("_call_module")?,
                step("_write_to_tensordict")?,
                step("_as_outputs")?,
            ],
            global_hooks: [
                hooks("_global_backward_pre_hooks")?,
                hooks("_global_backward_hooks")?,
                hooks("_global_forward_hooks")?,
                hooks("_global_forward_pre_hooks")?,
            ],
            tracing_state: py
                .import("torch")?
                .getattr("_C")?
                .getattr("_get_tracing_state")?
                .unbind(),
            skip: py
                .import("tensordict.nn.settings")?
                .getattr("SKIP")?
                .unbind(),
            explain: common.getattr("_explain")?.unbind(),
            explain_output: common.getattr("_explain_output")?.unbind(),
            note_place: sequence.getattr("_note_place")?.unbind(),
            names: Names {
                own_hooks: [
                    name("_backward_hooks"),
                    name("_backward_pre_hooks"),
                    name("_forward_hooks"),
                    name("_forward_pre_hooks"),
                ],
                compiled: name("_compiled_call_impl"),
                call: name("__call__"),
                forward: name("forward"),
                module: name("module"),
                modules: name("_modules"),
                in_keys: name("_in_keys"),
                out_keys: name("_out_keys"),
                inplace: name("inplace"),
                method: name("method"),
                kwargs: name("_kwargs"),
                method_kwargs: name("method_kwargs"),
                get_kwargs: name("_get_kwargs"),
                strict: name("strict"),
                selects: name("_select_before_return"),
                partial_tolerant: name("partial_tolerant"),
                value: name("value"),
                by_thread: name("by_thread"),
                write: name("_write_to_tensordict"),
                as_outputs: name("_as_outputs"),
            },
        })
    }

    /// Returns whether modules are called though their outputs are there.
    fn run_all(&self, py: Python<'_>) -> PyResult<bool> {
        let skip = self.skip.bind(py);
        Ok(is_false(&skip.getattr(self.names.value.bind(py))?)
            && is_empty_dict(&skip.getattr(self.names.by_thread.bind(py))?))
    }
}

/// Returns whether a call with `td` can be one that runs no bytecode.
fn is_plain(imports: &Imports, calls: &Calls, td: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = td.py();
    Ok(collection::is_plain(imports, td) && !ffi::frames_are_watched(py) && calls.run_all(py)?)
}

/// Returns whether `value` is the object False.
fn is_false(value: &Bound<'_, PyAny>) -> bool {
    value.is(pyo3::types::PyBool::new(value.py(), false))
}

fn is_true(value: &Bound<'_, PyAny>) -> bool {
    value.is(pyo3::types::PyBool::new(value.py(), true))
}

fn is_empty_dict(value: &Bound<'_, PyAny>) -> bool {
    value.cast::<PyDict>().is_ok_and(PyDictMethods::is_empty)
}

/// The attributes of a module itself.
struct Attributes<'py>(Bound<'py, PyDict>);

impl<'py> Attributes<'py> {
    fn of(module: &Bound<'py, PyAny>) -> PyResult<Option<Self>> {
        Ok(ffi::instance_dict(module)?.map(Self))
    }

    fn get(&self, name: &Py<PyString>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.0.get_item(name.bind(self.0.py()))
    }

    /// Returns whether the attribute is there and `is_so`.
    fn has(&self, name: &Py<PyString>, is_so: fn(&Bound<'py, PyAny>) -> bool) -> PyResult<bool> {
        Ok(self.get(name)?.is_some_and(|value| is_so(&value)))
    }

    /// Returns whether the attribute is not there, or `is_so`.
    fn lacks_or(
        &self,
        name: &Py<PyString>,
        is_so: fn(&Bound<'py, PyAny>) -> bool,
    ) -> PyResult<bool> {
        Ok(self.get(name)?.is_none_or(|value| is_so(&value)))
    }

    /// The submodule of a name.
    fn child(&self, calls: &Calls, name: &Py<PyString>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(children) = self.get(&calls.names.modules)? else {
            return Ok(None);
        };
        let Ok(children) = children.cast::<PyDict>() else {
            return Ok(None);
        };
        children.get_item(name.bind(children.py()))
    }
}

type Inputs<'py> = SmallVec<[Bound<'py, PyAny>; 6]>;

/// The inputs of a module, if each is there, and a tensor or a plain tensordict.
fn inputs<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    in_keys: &Bound<'py, PyList>,
) -> PyResult<Option<Inputs<'py>>> {
    let mut found = Inputs::new();
    for key in in_keys.iter() {
        let mut value = td.clone();
        let parts = if key.is_exact_instance_of::<PyString>() {
            nested_key::Path::from_iter([key])
        } else {
            nested_key::path_of(&key)?
        };
        if parts.is_empty() {
            return Ok(None);
        }
        for part in parts {
            if !collection::is_plain(imports, &value) {
                return Ok(None);
            }
            match collection::entries(imports, &value)?.get_item(part)? {
                Some(next) => value = next,
                None => return Ok(None),
            }
        }
        if !ffi::is_subtype(&value, &imports.tensor) && !collection::is_plain(imports, &value) {
            return Ok(None);
        }
        found.push(value);
    }
    Ok(Some(found))
}

/// `TensorDictModule.forward(module, td)`; None where the case is not plain.
pub(crate) fn forward<'py>(
    imports: &Imports,
    module: &Bound<'py, PyAny>,
    td: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = module.py();
    let calls = calls(py)?;
    let names = &calls.names;
    if !is_plain(imports, calls, td)? {
        return Ok(None);
    }
    let class = module.get_type();
    for (name, own) in &calls.steps {
        if !class.getattr(name.bind(py))?.is(own) {
            return Ok(None);
        }
    }
    let Some(attributes) = Attributes::of(module)? else {
        return Ok(None);
    };
    let has_plain_options = attributes.has(&names.inplace, is_true)?
        && attributes.has(&names.strict, is_false)?
        && attributes.has(&names.method, PyAnyMethods::is_none)?
        && attributes.has(&names.kwargs, PyAnyMethods::is_none)?
        && attributes.has(&names.method_kwargs, is_empty_dict)?
        && attributes.has(&names.get_kwargs, is_empty_dict)?;
    if !has_plain_options {
        return Ok(None);
    }
    let Some(called) = (match attributes.child(calls, &names.module)? {
        Some(found) => Some(found),
        None => attributes.get(&names.module)?,
    }) else {
        return Ok(None);
    };
    let Some(in_keys) = attributes.get(&names.in_keys)? else {
        return Ok(None);
    };
    let Ok(in_keys) = in_keys.cast::<PyList>() else {
        return Ok(None);
    };
    let Some(tensors) = inputs(imports, td, in_keys)? else {
        return Ok(None);
    };
    let outputs = match ffi::call(&called, &tensors) {
        Ok(outputs) => outputs,
        Err(error) => {
            let tensors = PyList::new(py, tensors)?;
            return Err(noted(py, &calls.explain, error, |error| {
                (module, tensors, error.clone())
            }));
        }
    };
    // Those of now: the call may have changed them.
    let out_keys = module.getattr(names.out_keys.bind(py))?;
    write(imports, calls, module, td, &outputs, out_keys.cast()?)?;
    Ok(Some(td.clone()))
}

/// Writes the outputs of a module to their keys.
fn write<'py>(
    imports: &Imports,
    calls: &Calls,
    module: &Bound<'py, PyAny>,
    td: &Bound<'py, PyAny>,
    outputs: &Bound<'py, PyAny>,
    out_keys: &Bound<'py, PyList>,
) -> PyResult<()> {
    let py = td.py();
    let count = out_keys.len();
    if count == 1 && ffi::is_subtype(outputs, &imports.tensor) {
        return set(calls, module, td, &out_keys.get_item(0)?, outputs);
    }
    let tuple = if let Ok(tuple) = outputs.cast::<PyTuple>() {
        tuple.clone()
    } else {
        module
            .call_method1(calls.names.as_outputs.bind(py), (outputs,))?
            .cast_into::<PyTuple>()?
    };
    let are_tensors = |tuple: &Bound<'py, PyTuple>| {
        tuple
            .iter()
            .all(|value| ffi::is_subtype(&value, &imports.tensor))
    };
    if tuple.len() != count || !are_tensors(&tuple) {
        // It says what is wrong, and makes entries of what is none.
        module.call_method1(calls.names.write.bind(py), (td, tuple))?;
        return Ok(());
    }
    for (key, value) in out_keys.iter().zip(tuple.iter()) {
        set(calls, module, td, &key, &value)?;
    }
    Ok(())
}

fn set<'py>(
    calls: &Calls,
    module: &Bound<'py, PyAny>,
    td: &Bound<'py, PyAny>,
    key: &Bound<'py, PyAny>,
    value: &Bound<'py, PyAny>,
) -> PyResult<()> {
    if key.cast::<PyString>().is_ok_and(|text| text == SINK) {
        return Ok(());
    }
    set::set_entry(td, key, value, Inplace::Replace, None, false, false).map_err(|error| {
        noted(td.py(), &calls.explain_output, error, |error| {
            (module, error.clone())
        })
    })
}

/// An error, to which `note` adds something where it is an exception.
#[cold]
fn noted<'py, A: PyCallArgs<'py>>(
    py: Python<'py>,
    note: &Py<PyAny>,
    error: PyErr,
    arguments: impl FnOnce(&Bound<'py, PyBaseException>) -> A,
) -> PyErr {
    if error.is_instance_of::<PyException>(py) {
        let arguments = arguments(error.value(py));
        if let Err(failure) = note.bind(py).call1(arguments) {
            return failure;
        }
    }
    error
}

/// `TensorDictSequential.forward(sequence, td)`; None where the case is not plain.
pub(crate) fn forward_all<'py>(
    imports: &Imports,
    sequence: &Bound<'py, PyAny>,
    td: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = sequence.py();
    let calls = calls(py)?;
    let names = &calls.names;
    if !is_plain(imports, calls, td)? {
        return Ok(None);
    }
    let Some(attributes) = Attributes::of(sequence)? else {
        return Ok(None);
    };
    // The two flags are those of the class where an instance has none of its own.
    let has_plain_options = attributes.has(&names.inplace, PyAnyMethods::is_none)?
        && attributes.lacks_or(&names.selects, is_false)?
        && attributes.lacks_or(&names.partial_tolerant, is_false)?
        && calls.tracing_state.bind(py).call0()?.is_none();
    if !has_plain_options {
        return Ok(None);
    }
    let Some(held) = attributes.child(calls, &names.module)? else {
        return Ok(None);
    };
    let Some(modules) = Attributes::of(&held)? else {
        return Ok(None);
    };
    let Some(modules) = modules.get(&names.modules)? else {
        return Ok(None);
    };
    let Ok(modules) = modules.cast::<PyDict>() else {
        return Ok(None);
    };
    let mut current = td.clone();
    for (name, module) in ffi::dict_pairs(modules) {
        current = call(imports, calls, &module, &current)
            .map_err(|error| noted(py, &calls.note_place, error, |error| (error.clone(), name)))?;
    }
    Ok(Some(current))
}

/// `module(td)`.
fn call<'py>(
    imports: &Imports,
    calls: &Calls,
    module: &Bound<'py, PyAny>,
    td: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    if let Some(is_sequence) = called_directly(calls, module)? {
        let result = if is_sequence {
            forward_all(imports, module, td)?
        } else {
            forward(imports, module, td)?
        };
        if let Some(result) = result {
            return Ok(result);
        }
    }
    module.call1((td,))
}

/// Returns which `forward` a call of the module is: that of a module of tensors (false) or of a
/// sequence (true); None if there is more to it.
fn called_directly(calls: &Calls, module: &Bound<'_, PyAny>) -> PyResult<Option<bool>> {
    let py = module.py();
    let names = &calls.names;
    let class = module.get_type();
    if !ffi::is_subtype(module, &calls.module_class)
        || !class.getattr(names.call.bind(py))?.is(&calls.module_call)
        || calls
            .global_hooks
            .iter()
            .any(|hooks| !hooks.bind(py).is_empty())
    {
        return Ok(None);
    }
    let Some(attributes) = Attributes::of(module)? else {
        return Ok(None);
    };
    for hooks in &names.own_hooks {
        if !attributes.has(hooks, is_empty_dict)? {
            return Ok(None);
        }
    }
    if attributes.get(&names.forward)?.is_some()
        || !attributes.lacks_or(&names.compiled, PyAnyMethods::is_none)?
    {
        return Ok(None);
    }
    let forward = class.getattr(names.forward.bind(py))?;
    Ok(if forward.is(&calls.forward) {
        Some(false)
    } else if forward.is(&calls.forward_all) {
        Some(true)
    } else {
        None
    })
}
