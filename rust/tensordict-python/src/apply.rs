//! Calling a Python function on every leaf: what `apply` and its kin stand on.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyTuple};

use crate::collection::{self, Kind, State, kind};
use crate::ffi::{self, Callee, RecursionGuard};
use crate::flags::{truth, truth_or_none};
use crate::imports::{Imports, from_twin, imports};
use crate::items::appended;
use crate::set::Target;

/// An argument whose default is the marker of one that was not given.
struct Optional<'py>(Option<Bound<'py, PyAny>>);

impl<'a, 'py> FromPyObject<'a, 'py> for Optional<'py> {
    type Error = PyErr;

    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self(Some(value.to_owned())))
    }
}

impl<'py> Optional<'py> {
    fn or_marker(self, imports: &Imports, py: Python<'py>) -> Bound<'py, PyAny> {
        self.0
            .unwrap_or_else(|| imports.no_default.bind(py).clone())
    }
}

/// The values that are called as leaves.
enum IsLeaf<'py> {
    /// Everything that is no collection.
    Tensors,
    /// Every direct entry.
    All,
    /// Those whose type the function accepts.
    Asked(Bound<'py, PyAny>),
}

/// The arguments that are the same on all levels; those that are passed on to collections
/// that are not dense as they came.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an argument of Python's"
)]
struct Apply<'py> {
    imports: &'static Imports,
    function: Callee<'py>,
    batch_size: Option<Bound<'py, PyAny>>,
    device: Bound<'py, PyAny>,
    default: Bound<'py, PyAny>,
    named: bool,
    nested_keys: bool,
    filter_empty: Option<bool>,
    is_leaf: IsLeaf<'py>,
    is_checked: bool,
    // True if leaves that are held whole are called, too, when the batch size changes.
    on_unbatched: bool,
}

/// The state of a collection made by a walk, besides its entries.
#[derive(Clone)]
struct Made<'py> {
    batch_size: Bound<'py, PyAny>,
    device: Bound<'py, PyAny>,
    dim_names: Bound<'py, PyAny>,
}

impl<'py> Made<'py> {
    /// The attributes of a collection around `entries`.
    fn around(self, entries: Bound<'py, PyDict>) -> [Bound<'py, PyAny>; 4] {
        [
            entries.into_any(),
            self.batch_size,
            self.device,
            self.dim_names,
        ]
    }
}

/// The result for a value, None for nothing, with true if it must be checked.
type Item<'py> = (Option<Bound<'py, PyAny>>, bool);

impl<'py> Apply<'py> {
    /// Walks the dense `td`; returns the result, or None if nothing is left.
    fn walk(
        &self,
        td: &Bound<'py, PyAny>,
        others: &[Bound<'py, PyAny>],
        names: &Bound<'py, PyAny>,
        prefix: &Bound<'py, PyTuple>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = td.py();
        let imports = self.imports;
        let _guard = RecursionGuard::enter(py)?;
        let state = State::of(imports, td)?;
        // Most results take the places of their leaves in a copy.
        let entries = ffi::copy_dict(&state.entries)?;
        let mut made = self.made_of(state, names)?;
        let mut gone = ffi::Values::new();
        let mut fast = None;
        // The result, once there was a value that has to be converted or looked at.
        let mut target: Option<Target<'py>> = None;
        let pairs = ffi::dict_pairs(&entries);
        let mut values = ffi::Values::with_capacity(others.len());
        for (at, (key, value)) in pairs.iter().enumerate() {
            values.clear();
            for other in others {
                values.push(self.other_entry(other, key)?);
            }
            let (item, must_be_checked) = self.item(&made, key, value, &mut values, prefix)?;
            if let Some(target) = &target {
                match item {
                    Some(item) if must_be_checked => {
                        target.store(key, &item, &PyBool::new(py, false).to_owned())?;
                        made.dim_names = collection::dim_names(imports, &target.td)?;
                    }
                    Some(item) => entries.set_item(key, item)?,
                    None => {}
                }
                continue;
            }
            let Some(item) = item else {
                gone.push(key.clone());
                continue;
            };
            let fits = !must_be_checked
                || (self.keeps_places()
                    && item.is(value)
                    && collection::is_plain_leaf(imports, value))
                || (item.get_type().is(&imports.tensor) && {
                    let fast = match &fast {
                        Some(fast) => fast,
                        None => fast.insert(Target::with(
                            imports,
                            td,
                            made.batch_size.clone(),
                            made.device.clone(),
                        )?),
                    };
                    fast.takes(&item)
                });
            if fits {
                entries.set_item(key, item)?;
                continue;
            }
            // From here on the general way, for which the result is as far as it has come.
            let later = pairs[at..].iter().map(|(key, _)| key);
            for key in gone.iter().chain(later) {
                entries.del_item(key)?;
            }
            gone.clear();
            let result = self.result(td, &entries, &made)?;
            let target = target.insert(Target::new(imports, &result, Kind::Dense)?);
            target.store(key, &item, &PyBool::new(py, false).to_owned())?;
            // It took those of the item, if it had none.
            made.dim_names = collection::dim_names(imports, &target.td)?;
        }
        for key in &gone {
            entries.del_item(key)?;
        }
        let result = match target {
            Some(target) => target.td,
            None => self.result(td, &entries, &made)?,
        };
        self.kept(td, entries.is_empty(), result)
    }

    /// `result`, which may be empty, or None where it is filtered out.
    #[inline]
    fn kept(
        &self,
        td: &Bound<'py, PyAny>,
        is_empty: bool,
        result: Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let is_kept = !is_empty
            || match self.filter_empty {
                Some(filters) => !filters,
                None => td
                    .call_method0(self.imports.names.is_empty.bind(td.py()))?
                    .is_truthy()?,
            };
        Ok(is_kept.then_some(result))
    }

    /// Returns the result for a value, None for nothing, with true if it must be checked.
    fn item(
        &self,
        made: &Made<'py>,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        others: &mut ffi::Values<'py>,
        prefix: &Bound<'py, PyTuple>,
    ) -> PyResult<Item<'py>> {
        let imports = self.imports;
        let value_kind = kind(imports, value)?;
        let is_leaf = match &self.is_leaf {
            IsLeaf::Tensors => value_kind.is_leaf(),
            IsLeaf::All => true,
            IsLeaf::Asked(is_leaf) => is_leaf.call1((value.get_type(),))?.is_truthy()?,
        };
        if is_leaf
            && !self.on_unbatched
            && let Some(size) = &self.batch_size
            && let Some(whole) = collection::resized(imports, value, size)?
        {
            return Ok((Some(whole), false));
        }
        if is_leaf {
            return Ok((self.call(key, value, others, prefix)?, !self.is_checked));
        }
        // Nothing reads the keys above, unless they are part of the names.
        let names_whole_keys = self.named && self.nested_keys;
        let below = if names_whole_keys || value_kind == Kind::Foreign {
            appended(prefix, key)?
        } else {
            prefix.clone()
        };
        let item = if value_kind == Kind::Dense {
            self.walk(value, others, imports.no_default.bind(key.py()), &below)?
        } else {
            self.foreign(value, others, &below)?
        };
        let must_be_checked = match &item {
            Some(item) => !self.is_checked && !self.fits(made, value, item)?,
            None => false,
        };
        Ok((item, must_be_checked))
    }

    /// Returns whether a leaf that is given back as it is fits where it was.
    fn keeps_places(&self) -> bool {
        self.batch_size.is_none() && self.device.is(&self.imports.no_default)
    }

    /// The attributes of what is made of a collection with those of `state`.
    #[inline]
    fn made_of(&self, state: State<'py>, names: &Bound<'py, PyAny>) -> PyResult<Made<'py>> {
        let imports = self.imports;
        let dim_names = if !names.is(&imports.no_default) {
            collection::copied_names(names)?
        } else if self.batch_size.is_none() {
            collection::copied_names(&state.dim_names)?
        } else {
            names.py().None().into_bound(names.py())
        };
        let device = if self.device.is(&imports.no_default) {
            state.device
        } else {
            self.device.clone()
        };
        let batch_size = match &self.batch_size {
            Some(size) => size.clone(),
            None => state.batch_size.into_any(),
        };
        Ok(Made {
            batch_size,
            device,
            dim_names,
        })
    }

    fn result(
        &self,
        td: &Bound<'py, PyAny>,
        entries: &Bound<'py, PyDict>,
        made: &Made<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        collection::new_like(self.imports, td, made.clone().around(entries.clone()))
    }

    /// The entry of a further collection; the marker stands for the default.
    fn other_entry(
        &self,
        other: &Bound<'py, PyAny>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = key.py();
        let imports = self.imports;
        let missing = imports.no_default.bind(py);
        if other.is(missing) {
            return Ok(other.clone());
        }
        let value = if kind(imports, other)? == Kind::Dense {
            collection::entries(imports, other)?
                .get_item(key)?
                .unwrap_or_else(|| missing.clone())
        } else {
            other.call_method1(imports.names.method_get_entry.bind(py), (key, missing))?
        };
        if value.is(missing) && self.default.is(missing) {
            return Err(PyErr::from_value(from_twin(
                py,
                "common",
                "missing_key",
                (other, key),
            )?));
        }
        Ok(value)
    }

    /// Calls the function with a leaf; returns None for nothing.
    #[inline]
    fn call(
        &self,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        others: &mut ffi::Values<'py>,
        prefix: &Bound<'py, PyTuple>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        if others.is_empty() {
            let item = if !self.named {
                self.function.call1(value)?
            } else if self.nested_keys && !prefix.is_empty() {
                let name = appended(prefix, key)?.into_any();
                self.function.call2(&name, value)?
            } else {
                self.function.call2(key, value)?
            };
            return Ok((!item.is_none()).then_some(item));
        }
        let missing = &self.imports.no_default;
        if let [other] = others.as_slice()
            && !self.named
        {
            let other = if other.is(missing) {
                &self.default
            } else {
                other
            };
            let item = self.function.call2(value, other)?;
            return Ok((!item.is_none()).then_some(item));
        }
        let mut arguments = ffi::Values::with_capacity(others.len() + 2);
        if self.named {
            arguments.push(if self.nested_keys && !prefix.is_empty() {
                appended(prefix, key)?.into_any()
            } else {
                key.clone()
            });
        }
        arguments.push(value.clone());
        arguments.extend(others.drain(..).map(|other| {
            if other.is(missing) {
                self.default.clone()
            } else {
                other
            }
        }));
        let item = ffi::call(self.function.function(), &arguments)?;
        Ok((!item.is_none()).then_some(item))
    }

    /// Lets a collection that is not dense do the call itself.
    fn foreign(
        &self,
        td: &Bound<'py, PyAny>,
        others: &[Bound<'py, PyAny>],
        prefix: &Bound<'py, PyTuple>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = td.py();
        let mut arguments = vec![self.function.function().clone()];
        arguments.extend_from_slice(others);
        let kwargs = PyDict::new(py);
        kwargs.set_item("batch_size", &self.batch_size)?;
        kwargs.set_item("device", &self.device)?;
        kwargs.set_item("default", &self.default)?;
        kwargs.set_item("named", self.named)?;
        kwargs.set_item("nested_keys", self.nested_keys)?;
        kwargs.set_item("filter_empty", self.filter_empty)?;
        match &self.is_leaf {
            IsLeaf::Tensors => kwargs.set_item("is_leaf", py.None())?,
            IsLeaf::All => kwargs.set_item("is_leaf", true)?,
            IsLeaf::Asked(is_leaf) => kwargs.set_item("is_leaf", is_leaf)?,
        }
        kwargs.set_item("checked", self.is_checked)?;
        kwargs.set_item("prefix", prefix)?;
        kwargs.set_item("call_on_unbatched", self.on_unbatched)?;
        let name = self.imports.names.method_apply_nest.bind(py);
        let arguments = PyTuple::new(py, arguments)?;
        let item = td.call_method(name, arguments, Some(&kwargs))?;
        Ok((!item.is_none()).then_some(item))
    }

    /// Returns whether a nested result needs no check: made by the walk, without names.
    fn fits(
        &self,
        parent: &Made<'py>,
        source: &Bound<'py, PyAny>,
        item: &Bound<'py, PyAny>,
    ) -> PyResult<bool> {
        let imports = self.imports;
        if !collection::is_dense(imports, source)?
            || !collection::is_dense(imports, item)?
            || !parent.dim_names.is_none()
            || !collection::dim_names(imports, item)?.is_none()
        {
            return Ok(false);
        }
        Ok(parent.device.is_none() || parent.device.eq(collection::device(imports, item)?)?)
    }
}

/// A collection of what `fn` gives for each leaf, or None where nothing is left.
#[pyfunction]
#[pyo3(
    name = "apply_nest",
    signature = (
        td, r#fn, others = None, batch_size = None, device = Optional(None),
        names = Optional(None), default = Optional(None), named = false,
        nested_keys = false, filter_empty = None, is_leaf = None, checked = false,
        prefix = None, on_unbatched = false
    ),
    text_signature = "(td, fn, others=(), batch_size=None, device=..., names=..., default=..., named=False, nested_keys=False, filter_empty=None, is_leaf=None, checked=False, prefix=(), on_unbatched=False)"
)]
#[expect(
    clippy::too_many_arguments,
    clippy::fn_params_excessive_bools,
    clippy::similar_names,
    reason = "those of the twin"
)]
fn apply_nest<'py>(
    td: &Bound<'py, PyAny>,
    r#fn: &Bound<'py, PyAny>,
    others: Option<Bound<'py, PyTuple>>,
    batch_size: Option<Bound<'py, PyAny>>,
    device: Optional<'py>,
    names: Optional<'py>,
    default: Optional<'py>,
    named: bool,
    #[pyo3(from_py_with = truth)] nested_keys: bool,
    #[pyo3(from_py_with = truth_or_none)] filter_empty: Option<bool>,
    is_leaf: Option<Bound<'py, PyAny>>,
    #[pyo3(from_py_with = truth)] checked: bool,
    prefix: Option<Bound<'py, PyTuple>>,
    on_unbatched: bool,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = td.py();
    let imports = imports(py)?;
    let others = others.unwrap_or_else(|| PyTuple::empty(py));
    let prefix = prefix.unwrap_or_else(|| PyTuple::empty(py));
    let device = device.or_marker(imports, py);
    let names = names.or_marker(imports, py);
    let default = default.or_marker(imports, py);
    if !collection::is_dense(imports, td)? {
        let args = (
            td,
            r#fn,
            others,
            batch_size,
            device,
            names,
            default,
            named,
            nested_keys,
            filter_empty,
            is_leaf,
            checked,
        );
        // More than a tuple of arguments may have.
        let args = args
            .into_pyobject(py)?
            .as_sequence()
            .concat((prefix, on_unbatched).into_pyobject(py)?.as_sequence())?;
        let result = from_twin(py, "apply", "apply_nest", args.to_tuple()?)?;
        return Ok((!result.is_none()).then_some(result));
    }
    let apply = Apply {
        imports,
        function: Callee::new(r#fn.clone()),
        batch_size,
        device,
        default,
        named,
        nested_keys,
        filter_empty,
        is_leaf: match is_leaf {
            None => IsLeaf::Tensors,
            Some(is_leaf) if is_leaf.is(&*PyBool::new(py, true)) => IsLeaf::All,
            Some(is_leaf) => IsLeaf::Asked(is_leaf),
        },
        is_checked: checked,
        on_unbatched,
    };
    let others: Vec<_> = others.iter().collect();
    apply.walk(td, &others, &names, &prefix)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(apply_nest, module)?)?;
    Ok(())
}
