//! Calling a Python function on every leaf: what `apply` and its kin stand on.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyTuple};

use crate::container::{self, Kind, kind};
use crate::ffi::{self, RecursionGuard};
use crate::imports::{COMMON, Imports, from_twin, imports};
use crate::storing::Target;
use crate::walks::appended;

const TWINS: &str = "tensordict.interop.apply_twins";

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

/// Which values are called as leaves.
enum IsLeaf<'py> {
    /// What is no container.
    Tensors,
    /// Every direct entry.
    All,
    /// Those whose type the function accepts.
    Asked(Bound<'py, PyAny>),
}

/// The arguments that are the same on all levels; those that are passed on to containers
/// that are not dense as they came.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an argument of Python's"
)]
struct Apply<'py> {
    imports: &'static Imports,
    function: Bound<'py, PyAny>,
    batch_size: Option<Bound<'py, PyAny>>,
    device: Bound<'py, PyAny>,
    default: Bound<'py, PyAny>,
    named: bool,
    nested_keys: bool,
    filter_empty: Option<bool>,
    is_leaf: IsLeaf<'py>,
    is_checked: bool,
    // Whether leaves that are held whole are called, too, where the batch size changes.
    on_unbatched: bool,
}

impl<'py> Apply<'py> {
    /// What is left of the dense `td`, or None where that is nothing.
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
        let entries = PyDict::new(py);
        let result = self.empty_like(td, names, &entries)?;
        let mut target = None;
        let mut values = ffi::Values::with_capacity(others.len());
        for (key, value) in ffi::dict_pairs(&container::entries(imports, td)?) {
            values.clear();
            for other in others {
                values.push(self.other_entry(other, &key)?);
            }
            let value_kind = kind(imports, &value)?;
            let is_leaf = match &self.is_leaf {
                IsLeaf::Tensors => value_kind == Kind::Leaf,
                IsLeaf::All => true,
                IsLeaf::Asked(is_leaf) => is_leaf.call1((value.get_type(),))?.is_truthy()?,
            };
            let whole = match &self.batch_size {
                Some(size) if is_leaf && !self.on_unbatched => {
                    container::resized_unbatched(imports, &value, size)?
                }
                _ => None,
            };
            let item = if let Some(whole) = whole {
                Some((whole, false))
            } else if is_leaf {
                self.call(&key, value, &mut values, prefix)?
            } else {
                let below = appended(prefix, &key)?;
                let item = if value_kind == Kind::Dense {
                    self.walk(&value, &values, imports.no_default.bind(py), &below)?
                } else {
                    self.foreign(&value, &values, &below)?
                };
                match item {
                    Some(item) if !self.is_checked && !self.fits(&result, &value, &item)? => {
                        Some((item, true))
                    }
                    item => item.map(|item| (item, false)),
                }
            };
            let Some((item, must_be_checked)) = item else {
                continue;
            };
            if !must_be_checked {
                entries.set_item(key, item)?;
                continue;
            }
            let target = match &target {
                Some(target) => target,
                None => target.insert(Target::new(imports, &result, Kind::Dense)?),
            };
            target.store(&key, &item, &PyBool::new(py, false).to_owned())?;
        }
        let is_kept = !entries.is_empty()
            || match self.filter_empty {
                Some(filters) => !filters,
                None => td
                    .call_method0(imports.names.is_empty.bind(py))?
                    .is_truthy()?,
            };
        Ok(is_kept.then_some(result))
    }

    fn empty_like(
        &self,
        td: &Bound<'py, PyAny>,
        names: &Bound<'py, PyAny>,
        entries: &Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let imports = self.imports;
        let names = if !names.is(&imports.no_default) {
            container::copied_names(names)?
        } else if self.batch_size.is_none() {
            container::copied_names(&container::dim_names(imports, td)?)?
        } else {
            td.py().None().into_bound(td.py())
        };
        let device = if self.device.is(&imports.no_default) {
            container::device(imports, td)?
        } else {
            self.device.clone()
        };
        let size = match &self.batch_size {
            Some(size) => size.clone(),
            None => container::batch_size(imports, td)?.into_any(),
        };
        container::new(imports, &td.get_type(), entries, &size, &device, &names)
    }

    /// The entry of a further container; the marker stands for the default.
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
            container::entries(imports, other)?
                .get_item(key)?
                .unwrap_or_else(|| missing.clone())
        } else {
            other.call_method1(imports.names.method_get_entry.bind(py), (key, missing))?
        };
        if value.is(missing) && self.default.is(missing) {
            return Err(PyErr::from_value(from_twin(
                py,
                COMMON,
                "missing_key",
                (other, key),
            )?));
        }
        Ok(value)
    }

    /// What the function gives for a leaf, and whether that must be checked.
    fn call(
        &self,
        key: &Bound<'py, PyAny>,
        value: Bound<'py, PyAny>,
        others: &mut ffi::Values<'py>,
        prefix: &Bound<'py, PyTuple>,
    ) -> PyResult<Option<(Bound<'py, PyAny>, bool)>> {
        let missing = &self.imports.no_default;
        for other in others.iter_mut() {
            if other.is(missing) {
                *other = self.default.clone();
            }
        }
        let mut arguments = ffi::Values::with_capacity(others.len() + 2);
        if self.named {
            arguments.push(if self.nested_keys && !prefix.is_empty() {
                appended(prefix, key)?.into_any()
            } else {
                key.clone()
            });
        }
        arguments.push(value);
        arguments.append(others);
        let item = ffi::call(&self.function, &arguments)?;
        Ok((!item.is_none()).then_some((item, !self.is_checked)))
    }

    /// What a container that is not dense gives for itself.
    fn foreign(
        &self,
        td: &Bound<'py, PyAny>,
        others: &[Bound<'py, PyAny>],
        prefix: &Bound<'py, PyTuple>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = td.py();
        let mut arguments = vec![self.function.clone()];
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

    /// Whether a nested result needs no check: made by the walk, without names.
    fn fits(
        &self,
        parent: &Bound<'py, PyAny>,
        source: &Bound<'py, PyAny>,
        item: &Bound<'py, PyAny>,
    ) -> PyResult<bool> {
        let imports = self.imports;
        if !container::is_dense(imports, source)?
            || !container::is_dense(imports, item)?
            || !container::dim_names(imports, parent)?.is_none()
            || !container::dim_names(imports, item)?.is_none()
        {
            return Ok(false);
        }
        let device = container::device(imports, parent)?;
        Ok(device.is_none() || device.eq(container::device(imports, item)?)?)
    }
}

/// A container of what `fn` gives for each leaf, or None where nothing is left.
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
    nested_keys: bool,
    filter_empty: Option<bool>,
    is_leaf: Option<Bound<'py, PyAny>>,
    checked: bool,
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
    if !container::is_dense(imports, td)? {
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
        let result = from_twin(py, TWINS, "apply_nest", args.to_tuple()?)?;
        return Ok((!result.is_none()).then_some(result));
    }
    let apply = Apply {
        imports,
        function: r#fn.clone(),
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
