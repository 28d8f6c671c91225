//! Putting parameters into modules, and taking them back: one walk over a module tree.
//!
//! A swap is planned first and carried out when every entry has its place: a key that the
//! module lacks leaves it as it was. Failures, and a module that is a collection itself,
//! are the twin's: nothing has been changed then.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};

use crate::collection::{self, Kind, kind};
use crate::ffi::{self, Getter, RecursionGuard, Resolved};
use crate::imports::{Imports, from_twin, imports, primitives};
use crate::shortcuts::tensors::Tensor;
use crate::storage::dlpack::begin_together;

/// The objects of torch and its modules that the walk needs.
struct Modules {
    parameters: Py<PyString>,
    buffers: Py<PyString>,
    children: Py<PyString>,
    attributes: Py<PyString>,
    // The descriptor of the attribute.
    requires_grad: Py<PyAny>,
    dense_type: Py<PyString>,
    no_dims: Py<PyAny>,
    // The constructor of a parameter, without its checks of unusual tensors.
    make_subclass: Py<PyAny>,
    is_functorch_wrapped: Py<PyAny>,
    functorch_stack: Py<PyAny>,
    is_alias_of: Py<PyAny>,
    as_kind_of: Py<PyAny>,
}

static MODULES: Resolved<Modules> = Resolved::new();

fn modules(py: Python<'_>) -> PyResult<&'static Modules> {
    if let Some(found) = MODULES.get(py) {
        return Ok(found);
    }
    let torch = py.import("torch")?;
    let native = torch.getattr("_C")?;
    let name = |text: &str| PyString::intern(py, text).unbind();
    let fresh = Modules {
        parameters: name("_parameters"),
        buffers: name("_buffers"),
        children: name("_modules"),
        attributes: name("__dict__"),
        requires_grad: torch.getattr("Tensor")?.getattr("requires_grad")?.unbind(),
        dense_type: name("_dense_type"),
        no_dims: torch.getattr("Size")?.call0()?.unbind(),
        make_subclass: torch.getattr("Tensor")?.getattr("_make_subclass")?.unbind(),
        is_functorch_wrapped: native
            .getattr("_functorch")?
            .getattr("is_functorch_wrapped_tensor")?
            .unbind(),
        functorch_stack: native
            .getattr("_functorch")?
            .getattr("peek_interpreter_stack")?
            .unbind(),
        is_alias_of: native.getattr("_is_alias_of")?.unbind(),
        as_kind_of: primitives(py, "modules")?.getattr("_as_kind_of")?.unbind(),
    };
    // Another thread may have been first, in which case its objects are the same ones.
    MODULES.set(py, fresh);
    Ok(MODULES
        .get(py)
        .expect("the cell was filled by the line above or before it"))
}

/// The place in a module that a tensor goes to.
struct Slot<'py> {
    slots: Bound<'py, PyDict>,
    /// The tensor that the module has.
    old: Bound<'py, PyAny>,
    /// The dictionary that has it, if not that one.
    before: Option<Bound<'py, PyDict>>,
}

/// A slot of a module, and the tensor that it will get.
struct Write<'py> {
    slots: Bound<'py, PyDict>,
    key: Bound<'py, PyAny>,
    value: Bound<'py, PyAny>,
    /// The dictionary that has had it, if not that one.
    before: Option<Bound<'py, PyDict>>,
}

/// An entry of the source of a swap whose slot may hold another tensor by now.
struct Held<'py> {
    source: Bound<'py, PyAny>,
    key: Bound<'py, PyAny>,
    current: Bound<'py, PyAny>,
    /// The owner of the entry that was put there: the source, or what the module has got at its
    /// first place.
    given: Bound<'py, PyAny>,
    /// That entry, if it is known already.
    own: Option<Bound<'py, PyAny>>,
}

/// A module that was visited.
#[derive(Clone)]
struct Seen<'py> {
    result: Bound<'py, PyAny>,
    /// The collection that its entries were compared with.
    like: Option<Bound<'py, PyAny>>,
}

#[expect(
    clippy::struct_excessive_bools,
    reason = "independent of each other, set once"
)]
struct Walk<'py> {
    imports: &'static Imports,
    modules: &'static Modules,
    requires_grad: Option<Getter<'py>>,
    preserve: bool,
    // True if a value that replaces a parameter, and is none, becomes an attribute.
    moves: bool,
    // True if values must have the shapes of what they replace.
    checks: bool,
    // True if the old values of the modules are wanted.
    collects: bool,
    // True if tensors may be those of a function that torch.func transforms.
    is_transformed: bool,
    // A module that is at two places is visited once: the first place decides.
    seen: HashMap<usize, Seen<'py>, FixedState>,
    writes: Vec<Write<'py>>,
    held: Vec<Held<'py>>,
}

/// The entries of a collection: the live dictionary, or what a foreign one gives.
fn entries_of<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    if collection::is_dense(imports, td)? {
        return collection::entries(imports, td).map(Some);
    }
    let found = td.call_method0(imports.names.method_entries.bind(td.py()))?;
    Ok(found.cast_into::<PyDict>().ok())
}

/// An attribute that is a dictionary; None where the twin must look.
fn slots_of<'py>(
    module: &Bound<'py, PyAny>,
    name: &Py<PyString>,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    let name = name.bind(module.py());
    // A module has them in its own dict: its `__getattr__` need not be searched for.
    let found = ffi::plain_attribute(module, name).or_else(|_| module.getattr(name))?;
    Ok(found.cast_into_exact::<PyDict>().ok())
}

/// Returns whether a tensor is known to have another shape than `old`, dims in front aside.
fn do_not_fit(imports: &Imports, value: &Bound<'_, PyAny>, old: &Bound<'_, PyAny>) -> bool {
    let fits = match (Tensor::of(value), Tensor::of(old)) {
        (Some(value), Some(old)) => {
            old.with_shape(|own| value.with_shape(|shape| shape.ends_with(own)))
        }
        _ if [value, old]
            .iter()
            .all(|one| ffi::is_subtype(one, &imports.tensor)) =>
        {
            Some(has_shape_of(value, old).ok())
        }
        _ => None,
    };
    !fits.flatten().unwrap_or(true)
}

/// Returns whether the shape of a tensor, dims in front aside, is that of `old`, by their attributes.
///
/// # Errors
/// One of them has no shape yet, as a parameter of a lazy module.
fn has_shape_of(value: &Bound<'_, PyAny>, old: &Bound<'_, PyAny>) -> PyResult<bool> {
    let name = pyo3::intern!(value.py(), "shape");
    let shape = value.getattr(name)?.cast_into::<PyTuple>()?;
    let own = old.getattr(name)?.cast_into::<PyTuple>()?;
    match shape.len().checked_sub(own.len()) {
        Some(start) => shape.get_slice(start, shape.len()).eq(own),
        None => Ok(false),
    }
}

/// Returns whether two tensors begin in one place of one memory.
fn is_one_place(first: &Bound<'_, PyAny>, second: &Bound<'_, PyAny>) -> bool {
    if let (Some(one), Some(other)) = (Tensor::of(first), Tensor::of(second))
        && (one.is_on_cpu(), other.is_on_cpu()) == (Some(true), Some(true))
        && let (Some(begin), Some(other)) = (one.data(), other.data())
    {
        return !begin.is_null() && begin == other;
    }
    begin_together(first, second)
}

impl<'py> Walk<'py> {
    fn new(py: Python<'py>, preserve: bool, moves: bool, collects: bool) -> PyResult<Self> {
        let modules = modules(py)?;
        let stack = &modules.functorch_stack;
        Ok(Self {
            imports: imports(py)?,
            modules,
            requires_grad: Getter::of(modules.requires_grad.bind(py).clone()),
            preserve,
            moves,
            checks: false,
            collects,
            is_transformed: preserve && !stack.bind(py).call0()?.is_none(),
            seen: HashMap::default(),
            writes: Vec::new(),
            held: Vec::new(),
        })
    }

    /// Collects what `module` has under the keys of `td`, and of `like` if there is one; returns
    /// None if the twin must take over. Python's None where it is not collected.
    fn plan(
        &mut self,
        td: &Bound<'py, PyAny>,
        module: &Bound<'py, PyAny>,
        like: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = td.py();
        let _guard = RecursionGuard::enter(py)?;
        let address = module.as_ptr() as usize;
        let known = self.seen.get(&address).cloned();
        if let (Some(known), None) = (&known, like) {
            return Ok(Some(known.result.clone()));
        }
        if kind(self.imports, module)? != Kind::Leaf {
            return Ok(None);
        }
        // With `like` the module is looked at again: its other place has its own entries.
        let is_again = known.is_some();
        let found = (self.collects && !is_again).then(|| PyDict::new(py));
        let (result, given) = match (known, &found) {
            (Some(known), _) => (known.result, known.like),
            (None, Some(found)) => (self.collection_of(td, found)?, like.cloned()),
            (None, None) => (py.None().into_bound(py), like.cloned()),
        };
        if !is_again {
            let (result, like) = (result.clone(), given.clone());
            self.seen.insert(address, Seen { result, like });
        }
        let (Some(entries), Some(parameters), Some(buffers)) = (
            entries_of(self.imports, td)?,
            slots_of(module, &self.modules.parameters)?,
            slots_of(module, &self.modules.buffers)?,
        ) else {
            return Ok(None);
        };
        let own = match like {
            Some(like) => entries_of(self.imports, like)?,
            None => None,
        };
        if like.is_some() && own.is_none() {
            return Ok(None);
        }
        let put = match &given {
            Some(given) if is_again => entries_of(self.imports, given)?,
            _ => own.clone(),
        };
        let has_entries = match &given {
            Some(given) => collection::is_dense(self.imports, given)?,
            None => false,
        };
        for (key, value) in ffi::dict_pairs(&entries) {
            let below = match &own {
                Some(own) => match own.get_item(&key)? {
                    Some(below) => Some(below),
                    None => continue,
                },
                None => None,
            };
            if kind(self.imports, &value)? != Kind::Leaf {
                let Some(child) = self.child_of(module, &key)? else {
                    return Ok(None);
                };
                let Some(nested) = self.plan(&value, &child, below.as_ref())? else {
                    return Ok(None);
                };
                if let Some(found) = &found {
                    found.set_item(key, nested)?;
                }
                continue;
            }
            let Some(Slot { slots, old, before }) =
                self.slot_of(module, &parameters, &buffers, &key, &value)?
            else {
                return Ok(None);
            };
            let is_buffer = slots.is(&buffers);
            if let Some(found) = &found {
                found.set_item(&key, &old)?;
            }
            if let (Some(like), Some(given), Some(put)) = (like, &given, &put)
                && let Some(put) = put.get_item(&key)?
                && !put.is(&old)
            {
                self.held.push(Held {
                    source: like.clone(),
                    key: key.clone(),
                    current: old.clone(),
                    given: given.clone(),
                    own: has_entries.then_some(put),
                });
            }
            if is_again {
                continue;
            }
            let Some(value) = self.given(value, &old, is_buffer)? else {
                return Ok(None);
            };
            self.writes.push(Write {
                slots,
                key,
                value,
                before,
            });
        }
        Ok(Some(result))
    }

    /// The submodule under `key`; None where the twin must look.
    fn child_of(
        &self,
        module: &Bound<'py, PyAny>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        match slots_of(module, &self.modules.children)? {
            Some(children) => children.get_item(key),
            None => Ok(None),
        }
    }

    /// A collection of `entries`, of the class that results of `td` have.
    fn collection_of(
        &self,
        td: &Bound<'py, PyAny>,
        entries: &Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = td.py();
        let class = if collection::is_dense(self.imports, td)? {
            td.get_type()
        } else {
            td.call_method0(self.modules.dense_type.bind(py))?
                .cast_into::<PyType>()?
        };
        let none = py.None().into_bound(py);
        collection::new(
            self.imports,
            &class,
            entries.as_any(),
            self.modules.no_dims.bind(py),
            &none,
            &none,
        )
    }

    /// The slot of a module that `value` goes to; None where the twin must look.
    fn slot_of(
        &self,
        module: &Bound<'py, PyAny>,
        parameters: &Bound<'py, PyDict>,
        buffers: &Bound<'py, PyDict>,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Slot<'py>>> {
        let is_parameter = || ffi::is_subtype(value, &self.imports.parameter);
        let attributes = || slots_of(module, &self.modules.attributes);
        let (slots, old, before) = if let Some(old) = parameters.get_item(key)? {
            if !self.moves || is_parameter() {
                (parameters.clone(), old, None)
            } else {
                let Some(attributes) = attributes()? else {
                    return Ok(None);
                };
                (attributes, old, Some(parameters.clone()))
            }
        } else if let Some(old) = buffers.get_item(key)? {
            (buffers.clone(), old, None)
        } else {
            let Some(attributes) = attributes()? else {
                return Ok(None);
            };
            match attributes.get_item(key)? {
                Some(old) if !ffi::is_subtype(&old, &self.imports.tensor) => return Ok(None),
                None => return Ok(None),
                Some(old) if is_parameter() => (parameters.clone(), old, Some(attributes)),
                Some(old) => (attributes, old, None),
            }
        };
        Ok(Some(Slot { slots, old, before }))
    }

    /// Returns what a module gets for `value`; None if the twin must tell which do not fit.
    fn given(
        &self,
        value: Bound<'py, PyAny>,
        old: &Bound<'py, PyAny>,
        is_buffer: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        if self.checks && do_not_fit(self.imports, &value, old) {
            return Ok(None);
        }
        if !self.preserve {
            return Ok(Some(value));
        }
        self.as_kind_of(value, old, is_buffer).map(Some)
    }

    /// A tensor without gradient as a parameter, where it replaces one.
    fn as_kind_of(
        &self,
        value: Bound<'py, PyAny>,
        old: &Bound<'py, PyAny>,
        is_buffer: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = value.py();
        let (tensor, parameter) = (&self.imports.tensor, &self.imports.parameter);
        let class = value.get_type();
        let old_class = old.get_type();
        if old_class.is(&class) && (class.is(tensor) || class.is(parameter)) {
            return Ok(value);
        }
        if old_class.is(parameter) && class.is(tensor) {
            let Some(getter) = &self.requires_grad else {
                return self.as_rare_kind_of(&value, old, is_buffer);
            };
            let has_gradient = getter.get(&value)?.is_truthy()?;
            let wrapped = &self.modules.is_functorch_wrapped;
            if has_gradient
                || (self.is_transformed && wrapped.bind(py).call1((&value,))?.is_truthy()?)
            {
                return Ok(value);
            }
            let requires_grad = getter.get(old)?;
            return self
                .modules
                .make_subclass
                .bind(py)
                .call1((parameter, value, requires_grad));
        }
        self.as_rare_kind_of(&value, old, is_buffer)
    }

    fn as_rare_kind_of(
        &self,
        value: &Bound<'py, PyAny>,
        old: &Bound<'py, PyAny>,
        is_buffer: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let as_kind_of = self.modules.as_kind_of.bind(value.py());
        as_kind_of.call1((value, old, is_buffer))
    }

    fn carry_out(&self) -> PyResult<()> {
        for write in &self.writes {
            write.slots.set_item(&write.key, &write.value)?;
            if let Some(before) = &write.before {
                before.del_item(&write.key)?;
            }
        }
        Ok(())
    }
}

/// Put the entries of `td` into `module`; give what it had under their keys.
#[pyfunction]
#[pyo3(signature = (td, module, preserve = true, plan_only = false))]
fn swap_module<'py>(
    td: &Bound<'py, PyAny>,
    module: &Bound<'py, PyAny>,
    preserve: bool,
    plan_only: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let py = td.py();
    let mut walk = Walk::new(py, preserve, !preserve, true)?;
    walk.checks = !plan_only;
    let Some(swapped) = walk.plan(td, module, None)? else {
        let arguments = (td, module, preserve, plan_only);
        return from_twin(py, "modules", "swap_module", arguments);
    };
    if !plan_only {
        walk.carry_out()?;
    }
    Ok(swapped)
}

/// Put back what [`swap_module`] gave, for the keys of `source`; store in `source` what
/// the module got in place of its entries meanwhile. With `plan_only` the result is what
/// the module has, and nothing is changed; else it is None.
#[pyfunction]
#[pyo3(signature = (td, module, source, plan_only = false))]
fn restore_module<'py>(
    td: &Bound<'py, PyAny>,
    module: &Bound<'py, PyAny>,
    source: &Bound<'py, PyAny>,
    plan_only: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let py = td.py();
    let mut walk = Walk::new(py, false, false, plan_only)?;
    let Some(current) = walk.plan(td, module, Some(source))? else {
        let arguments = (td, module, source, plan_only);
        return from_twin(py, "modules", "restore_module", arguments);
    };
    if plan_only {
        return Ok(current);
    }
    walk.carry_out()?;
    let names = &walk.imports.names;
    let mut replaced = Vec::new();
    for held in &walk.held {
        let (key, current) = (&held.key, &held.current);
        let own = match &held.own {
            Some(own) => own.clone(),
            None => held.given.call_method1(
                names.method_get_entry.bind(py),
                (key, walk.imports.no_default.bind(py)),
            )?,
        };
        let is_alias_of = walk.modules.is_alias_of.bind(py);
        let is_same = ffi::is_subtype(current, &walk.imports.tensor)
            && (is_one_place(current, &own) || is_alias_of.call1((current, own))?.is_truthy()?);
        if !is_same {
            replaced.push(held);
        }
    }
    for held in replaced {
        // The lock guards the structure, which stays.
        let method = names.method_set_entry.bind(py);
        held.source
            .call_method1(method, (&held.key, &held.current))?;
    }
    Ok(current)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(swap_module, module)?)?;
    module.add_function(wrap_pyfunction!(restore_module, module)?)?;
    Ok(())
}
