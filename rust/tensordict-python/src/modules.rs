//! Putting parameters into modules, and taking them back: one walk over a module tree.
//!
//! A swap is planned first and carried out when every entry has its place: a key that the
//! module lacks leaves it as it was. Failures, and a module that is a collection itself,
//! are the twin's: nothing has been changed then.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple, PyType};

use crate::collection::{self, kind};
use crate::ffi::{self, Getter, RecursionGuard, Resolved};
use crate::imports::{Imports, from_twin, imports, primitives};
use crate::shortcuts::tensors::Tensor;
use crate::storage::dlpack::begin_together;
use crate::storage::mapped::is_mapped;

/// The objects of torch and its modules that the walk needs.
struct Modules {
    parameters: Py<PyString>,
    buffers: Py<PyString>,
    children: Py<PyString>,
    attributes: Py<PyString>,
    // The names of the buffers that are no part of a module's state.
    optional: Py<PyString>,
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
    is_one: Py<PyAny>,
    refuse_missing: Py<PyAny>,
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
        optional: name("_non_persistent_buffers_set"),
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
        is_one: primitives(py, "tied")?.getattr("is_one")?.unbind(),
        refuse_missing: primitives(py, "tied")?.getattr("refuse_missing")?.unbind(),
    };
    // Another thread may have been first, in which case its objects are the same ones.
    MODULES.set(py, fresh);
    Ok(MODULES
        .get(py)
        .expect("the cell was filled by the line above or before it"))
}

/// The kind of place that a module has a tensor at.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Parameter,
    Buffer,
    Attribute,
}

/// A module that entries were put into.
struct Visited<'py> {
    module: Bound<'py, PyAny>,
    /// The entries; None for a module without any.
    entries: Option<Bound<'py, PyDict>>,
    /// True if there are as many entries as the module has tensors and children.
    is_whole: bool,
}

/// A module, a name and the tensor that was there, as Python gets it.
type ModuleSlot<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>);

/// A slot of a module, and the tensor that it will get.
struct Write<'py> {
    module: Bound<'py, PyAny>,
    /// The tensor that it has.
    old: Bound<'py, PyAny>,
    /// True if the value is one that was made for the module.
    is_made: bool,
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
    // None if values are checked where they were loaded, false if they are not.
    strict: Option<bool>,
    has_attributes: bool,
    visited: Vec<Visited<'py>>,
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

/// Returns whether a tensor is known to have another shape than `old`, dims in front aside. What
/// has no elements, or is on the meta device, only keeps a place.
fn do_not_fit(imports: &Imports, value: &Bound<'_, PyAny>, old: &Bound<'_, PyAny>) -> bool {
    let fits = match (Tensor::of(value), Tensor::of(old)) {
        (Some(value), Some(old)) => old.with_shape(|own| {
            let fits = value.with_shape(|shape| shape.ends_with(own));
            fits.map(|fits| fits || own.contains(&0))
        }),
        _ if [value, old]
            .iter()
            .all(|one| ffi::is_subtype(one, &imports.tensor)) =>
        {
            Some(has_shape_of(value, old).ok())
        }
        _ => None,
    };
    !fits.flatten().unwrap_or(true) && !is_meta(old)
}

fn is_meta(tensor: &Bound<'_, PyAny>) -> bool {
    let found = tensor.getattr(pyo3::intern!(tensor.py(), "is_meta"));
    found.is_ok_and(|found| found.is_truthy().unwrap_or(false))
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
        Some(start) => Ok(shape.get_slice(start, shape.len()).eq(&own)? || own.contains(0)?),
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
            strict: None,
            has_attributes: false,
            visited: Vec::new(),
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
        if kind(self.imports, module)?.is_collection() {
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
        let own = if let Some(like) = like {
            let Some(own) = entries_of(self.imports, like)? else {
                return Ok(None);
            };
            Some(own)
        } else {
            if !self.visit(module, &entries, parameters.len() + buffers.len())? {
                return Ok(None);
            }
            None
        };
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
            if kind(self.imports, &value)?.is_collection() {
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
            let Some((old, place)) = self.tensor_at(module, &parameters, &buffers, &key)? else {
                return Ok(None);
            };
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
            let Some(kept) = self.given(value.clone(), &old, place == Place::Buffer)? else {
                return Ok(None);
            };
            let is_made = !kept.is(&value);
            let slots = (&parameters, &buffers);
            if !self.plan_write(module, slots, (key, old, place), kept, is_made)? {
                return Ok(None);
            }
        }
        Ok(Some(result))
    }

    /// Notes that `module`, of so many parameters and buffers, has the values of `entries`; returns
    /// false if the twin must look.
    fn visit(
        &mut self,
        module: &Bound<'py, PyAny>,
        entries: &Bound<'py, PyDict>,
        num_tensors: usize,
    ) -> PyResult<bool> {
        let Some(children) = slots_of(module, &self.modules.children)? else {
            return Ok(false);
        };
        self.visited.push(Visited {
            module: module.clone(),
            is_whole: entries.len() == num_tensors + children.len(),
            entries: Some(entries.clone()),
        });
        Ok(true)
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

    /// The tensor that a module has at `key`, and where; None where the twin must look.
    fn tensor_at(
        &mut self,
        module: &Bound<'py, PyAny>,
        parameters: &Bound<'py, PyDict>,
        buffers: &Bound<'py, PyDict>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Option<(Bound<'py, PyAny>, Place)>> {
        if let Some(old) = parameters.get_item(key)? {
            return Ok(Some((old, Place::Parameter)));
        }
        if let Some(old) = buffers.get_item(key)? {
            return Ok(Some((old, Place::Buffer)));
        }
        self.has_attributes = true;
        let Some(attributes) = slots_of(module, &self.modules.attributes)? else {
            return Ok(None);
        };
        let found = attributes.get_item(key)?;
        let found = found.filter(|old| ffi::is_subtype(old, &self.imports.tensor));
        Ok(found.map(|old| (old, Place::Attribute)))
    }

    /// Plans that `value` goes to a place, or to the place of its kind; returns false where the
    /// twin must look.
    fn plan_write(
        &mut self,
        module: &Bound<'py, PyAny>,
        (parameters, buffers): (&Bound<'py, PyDict>, &Bound<'py, PyDict>),
        (key, old, place): (Bound<'py, PyAny>, Bound<'py, PyAny>, Place),
        value: Bound<'py, PyAny>,
        is_made: bool,
    ) -> PyResult<bool> {
        let is_parameter = ffi::is_subtype(&value, &self.imports.parameter);
        let attributes = match place {
            Place::Buffer => None,
            Place::Parameter if !self.moves || is_parameter => None,
            Place::Parameter | Place::Attribute => {
                let Some(attributes) = slots_of(module, &self.modules.attributes)? else {
                    return Ok(false);
                };
                Some(attributes)
            }
        };
        let (slots, before) = match (place, attributes) {
            (Place::Buffer, _) => (buffers.clone(), None),
            (Place::Parameter, None) => (parameters.clone(), None),
            (Place::Parameter, Some(attributes)) => (attributes, Some(parameters.clone())),
            (Place::Attribute, before) if is_parameter => (parameters.clone(), before),
            (Place::Attribute, Some(attributes)) => (attributes, None),
            (Place::Attribute, None) => return Ok(false),
        };
        self.writes.push(Write {
            module: module.clone(),
            old,
            is_made,
            slots,
            key,
            value,
            before,
        });
        Ok(true)
    }

    /// Plans that a tensor which the module has at several places stays one, where the values for
    /// it are one. Returns where each tensor is replaced, by its address, and those of the places
    /// that get another value than the collection has; None where the twin must tell what differs.
    #[expect(clippy::type_complexity, reason = "returned to one caller")]
    fn tie(&mut self) -> PyResult<Option<(Vec<(usize, usize)>, Vec<ModuleSlot<'py>>)>> {
        let mut places: Vec<(usize, usize)> = self
            .writes
            .iter()
            .enumerate()
            .map(|(number, write)| (write.old.as_ptr() as usize, number))
            .collect();
        places.sort_unstable();
        let mut found = Vec::new();
        let mut first = 0;
        for at in 1..places.len() {
            if places[at].0 != places[first].0 {
                first = at;
                continue;
            }
            let (one, other) = (&self.writes[places[first].1], &self.writes[places[at].1]);
            if one.value.is(&other.value) || other.old.is_none() {
                continue;
            }
            let is_one_of = self.modules.is_one.bind(one.old.py());
            let arguments = (&one.value, &other.value, self.strict, other.is_made);
            // It raises where values differ: the twin names them.
            let Ok(is_one) = is_one_of.call1(arguments) else {
                return Ok(None);
            };
            if is_one.is_truthy()? {
                let value = one.value.clone();
                let slot = (other.module.clone(), other.key.clone(), other.old.clone());
                found.push(slot);
                self.writes[places[at].1].value = value;
            }
        }
        Ok(Some((places, found)))
    }

    /// Plans for what the modules have beside the entries: other places of what is replaced. Returns
    /// those, or None where the twin must look.
    ///
    /// # Errors
    /// The collection lacks what it should have.
    fn others(
        &mut self,
        td: &Bound<'py, PyAny>,
        module: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Vec<ModuleSlot<'py>>>> {
        let Some((places, mut found)) = self.tie()? else {
            return Ok(None);
        };
        let mut is_whole = true;
        let mut rest = std::mem::take(&mut self.visited);
        while let Some(visited) = rest.pop() {
            if visited.is_whole && !self.has_attributes {
                continue;
            }
            let Some(is_covered) = self.look_at(&visited, &places, &mut rest, &mut found)? else {
                return Ok(None);
            };
            is_whole &= is_covered;
        }
        if !is_whole && self.is_to_be_whole() {
            let refuse_missing = self.modules.refuse_missing.bind(td.py());
            refuse_missing.call1((td, module, self.strict))?;
        }
        Ok(Some(found))
    }

    /// Returns whether a collection with the values that are put into the module may have to have
    /// all that the module has.
    fn is_to_be_whole(&self) -> bool {
        let first = self.writes.first().map(|write| &write.value);
        self.strict.unwrap_or_else(|| {
            first
                .and_then(Tensor::of)
                .and_then(|tensor| tensor.data())
                .is_none_or(|address| is_mapped(address as usize))
        })
    }

    /// Plans for the rest of one module, whose children join `rest`; returns whether nothing is
    /// missing, or None where the twin must look.
    fn look_at(
        &mut self,
        visited: &Visited<'py>,
        places: &[(usize, usize)],
        rest: &mut Vec<Visited<'py>>,
        found: &mut Vec<ModuleSlot<'py>>,
    ) -> PyResult<Option<bool>> {
        let module = &visited.module;
        let names = self.modules;
        let (Some(parameters), Some(buffers), Some(children)) = (
            slots_of(module, &names.parameters)?,
            slots_of(module, &names.buffers)?,
            slots_of(module, &names.children)?,
        ) else {
            return Ok(None);
        };
        let is_given = |key: &Bound<'py, PyAny>| match &visited.entries {
            Some(entries) => entries.contains(key),
            None => Ok(false),
        };
        let mut is_whole = true;
        let attributes = if self.has_attributes {
            slots_of(module, &names.attributes)?
        } else {
            None
        };
        let kinds = [
            (Some(&parameters), Place::Parameter),
            (Some(&buffers), Place::Buffer),
            (attributes.as_ref(), Place::Attribute),
        ];
        for (slots, place) in kinds {
            for (key, old) in slots.map(ffi::dict_pairs).unwrap_or_default() {
                if !ffi::is_subtype(&old, &self.imports.tensor) || is_given(&key)? {
                    continue;
                }
                let address = old.as_ptr() as usize;
                let known = places.partition_point(|(other, _)| *other < address);
                if let Some((_, number)) = places.get(known).filter(|(at, _)| *at == address) {
                    let value = self.writes[*number].value.clone();
                    found.push((module.clone(), key.clone(), old.clone()));
                    let slots = (&parameters, &buffers);
                    if !self.plan_write(module, slots, (key, old, place), value, false)? {
                        return Ok(None);
                    }
                } else if is_whole {
                    is_whole = match place {
                        Place::Parameter => false,
                        Place::Buffer => module
                            .getattr(names.optional.bind(module.py()))?
                            .contains(&key)?,
                        Place::Attribute => true,
                    };
                }
            }
        }
        for (key, child) in ffi::dict_pairs(&children) {
            let address = child.as_ptr() as usize;
            if child.is_none() || self.seen.contains_key(&address) || is_given(&key)? {
                continue;
            }
            if kind(self.imports, &child)?.is_collection() {
                return Ok(None);
            }
            let result = child.py().None().into_bound(child.py());
            self.seen.insert(address, Seen { result, like: None });
            rest.push(Visited {
                module: child,
                entries: None,
                is_whole: false,
            });
        }
        Ok(Some(is_whole))
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

/// Put the entries of `td` into `module`; give what it had under their keys. The list `tied` gets
/// the places that `td` does not have, but whose tensor it replaces.
#[pyfunction]
#[pyo3(signature = (td, module, preserve = true, plan_only = false, strict = None, tied = None))]
fn swap_module<'py>(
    td: &Bound<'py, PyAny>,
    module: &Bound<'py, PyAny>,
    preserve: bool,
    plan_only: bool,
    strict: Option<bool>,
    tied: Option<&Bound<'py, PyList>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = td.py();
    let mut walk = Walk::new(py, preserve, !preserve, true)?;
    walk.checks = !plan_only;
    walk.strict = strict;
    let planned = match walk.plan(td, module, None)? {
        Some(swapped) => walk.others(td, module)?.map(|others| (swapped, others)),
        None => None,
    };
    let Some((swapped, others)) = planned else {
        let arguments = (td, module, preserve, plan_only, strict, tied);
        return from_twin(py, "modules", "swap_module", arguments);
    };
    if !plan_only {
        walk.carry_out()?;
    }
    if let Some(tied) = tied {
        for other in others {
            tied.append(other)?;
        }
    }
    Ok(swapped)
}

/// Put back what [`swap_module`] gave, for the keys of `source`; store in `source` what
/// the module got in place of its entries meanwhile. With `merged` some of them had not been put
/// there: the twin looks. With `plan_only` the result is what
/// the module has, and nothing is changed; else it is None.
#[pyfunction]
#[pyo3(signature = (td, module, source, plan_only = false, merged = false))]
fn restore_module<'py>(
    td: &Bound<'py, PyAny>,
    module: &Bound<'py, PyAny>,
    source: &Bound<'py, PyAny>,
    plan_only: bool,
    merged: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let py = td.py();
    let mut walk = Walk::new(py, false, false, plan_only)?;
    let planned = if merged {
        None
    } else {
        walk.plan(td, module, Some(source))?
    };
    let Some(current) = planned else {
        let arguments = (td, module, source, plan_only, merged);
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
