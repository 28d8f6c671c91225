//! Storing single entries: fitting a value to a collection, and putting it there.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyInt, PySlice, PyString, PyTuple};

use tensordict_core::batch::Dims;

use crate::collection::{self, Kind, is_plain, kind};
use crate::copy::are_alike;
use crate::ffi::{self, RecursionGuard};
use crate::flags::truth;
use crate::imports::{Imports, from_twin, imports};
use crate::index::plain_dims;
use crate::nested_key;
use crate::shortcuts::tensors::Tensor;

/// The batch size of any collection.
pub(crate) fn batch_size_of<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    kind: Kind,
) -> PyResult<Bound<'py, PyAny>> {
    if kind == Kind::Dense {
        return Ok(collection::batch_size(imports, td)?.into_any());
    }
    let _guard = RecursionGuard::enter(td.py())?;
    td.getattr(imports.names.property_batch_size.bind(td.py()))
}

/// Returns whether `shape` begins with `batch_size`; both are tuples of numbers.
pub(crate) fn has_leading_dims(
    shape: &Bound<'_, PyAny>,
    batch_size: &Bound<'_, PyAny>,
) -> PyResult<bool> {
    let (Ok(shape), Ok(batch_size)) = (shape.cast::<PyTuple>(), batch_size.cast::<PyTuple>())
    else {
        let num_dims = isize::try_from(batch_size.len()?)?;
        let leading = shape.get_item(PySlice::new(shape.py(), 0, num_dims, 1))?;
        return leading.eq(batch_size);
    };
    if shape.len() < batch_size.len() {
        return Ok(false);
    }
    for (length, expected) in shape.iter_borrowed().zip(batch_size.iter_borrowed()) {
        // Small numbers are one object each.
        if !length.is(&*expected) && !length.eq(expected)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The way in which a value is stored if there is an entry.
pub(crate) enum Inplace {
    /// It replaces the entry.
    Replace,
    /// It is written into the entry, in the way that the argument names.
    Write(Py<PyAny>),
}

impl<'a, 'py> FromPyObject<'a, 'py> for Inplace {
    type Error = PyErr;

    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(if value.is(&*PyBool::new(value.py(), false)) {
            Self::Replace
        } else {
            Self::Write(value.to_owned().unbind())
        })
    }
}

/// A value that may be stored, and what it is.
pub(crate) type Fitted<'py> = (Bound<'py, PyAny>, Kind);

/// Returns whether `other` is `td` or lies somewhere in it; both are dense.
fn holds<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    other: &Bound<'py, PyAny>,
) -> PyResult<bool> {
    let _guard = RecursionGuard::enter(td.py())?;
    if td.is(other) {
        return Ok(true);
    }
    for value in ffi::dict_values(&collection::entries(imports, td)?) {
        let inside = match kind(imports, &value)? {
            Kind::Tensor | Kind::Special => false,
            Kind::Dense => holds(imports, &value, other)?,
            // Only the collection itself knows what it holds: ask it.
            Kind::Foreign => true,
        };
        if inside {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether `_fit_collection` of the plain tensordict `td` gives the dense `value` back as it
/// is: a collection that has the batch size and device, meets no names, and does not hold `td`, as
/// nothing does that `is_new`.
fn fits_as_it_is<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    value: &Bound<'py, PyAny>,
    is_new: bool,
) -> PyResult<bool> {
    let device = collection::device(imports, td)?;
    Ok(collection::dim_names(imports, td)?.is_none()
        && has_leading_dims(
            collection::batch_size(imports, value)?.as_any(),
            collection::batch_size(imports, td)?.as_any(),
        )?
        && (device.is_none() || collection::device(imports, value)?.eq(&device)?)
        && (is_new || !holds(imports, value, td)?))
}

/// Does the work of `_convert_value` of the plain tensordict `td` for a dictionary.
fn converted_dict<'py>(
    imports: &'static Imports,
    td: &Bound<'py, PyAny>,
    entries: &Bound<'py, PyDict>,
    non_blocking: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = td.py();
    let _guard = RecursionGuard::enter(py)?;
    let values = [
        PyDict::new(py).into_any(),
        collection::batch_size(imports, td)?.into_any(),
        collection::device(imports, td)?,
        collection::copied_names(&collection::dim_names(imports, td)?)?,
    ];
    let child = collection::new_like(imports, td, values)?;
    store_all(imports, &child, entries, non_blocking)?;
    Ok(child)
}

/// A collection that values are fitted to, with what each of them is compared with: read
/// once for all that a call stores in it.
pub(crate) struct Target<'py> {
    imports: &'static Imports,
    pub(crate) td: Bound<'py, PyAny>,
    batch_size: Bound<'py, PyAny>,
    // The same as numbers; None where one is symbolic.
    batch_dims: Option<Dims>,
    device: Bound<'py, PyAny>,
    // True if a tensor on the CPU is where it belongs.
    takes_cpu: bool,
    // True if it was made for what is stored, so that no value can hold it.
    is_new: bool,
}

impl<'py> Target<'py> {
    pub(crate) fn new(
        imports: &'static Imports,
        td: &Bound<'py, PyAny>,
        td_kind: Kind,
    ) -> PyResult<Self> {
        let batch_size = batch_size_of(imports, td, td_kind)?;
        let device = match td_kind {
            Kind::Dense => collection::device(imports, td)?,
            _ => td.getattr(imports.names.property_device.bind(td.py()))?,
        };
        Self::with(imports, td, batch_size, device)
    }

    /// The target `td`, which has or will have this batch size and device.
    pub(crate) fn with(
        imports: &'static Imports,
        td: &Bound<'py, PyAny>,
        batch_size: Bound<'py, PyAny>,
        device: Bound<'py, PyAny>,
    ) -> PyResult<Self> {
        Ok(Self {
            imports,
            td: td.clone(),
            batch_dims: batch_size.cast::<PyTuple>().ok().and_then(plain_dims),
            batch_size,
            takes_cpu: device.is_none() || device.eq(imports.cpu.bind(td.py()))?,
            device,
            is_new: false,
        })
    }

    /// Returns whether the plain tensor `value` is known to be stored as it is. Runs no Python code.
    pub(crate) fn takes(&self, value: &Bound<'py, PyAny>) -> bool {
        self.takes_every()
            || Tensor::of(value)
                .and_then(|tensor| {
                    tensor.with_layout(|shape, is_on_cpu| self.takes_layout(shape, is_on_cpu))
                })
                .unwrap_or(false)
    }

    /// Returns whether every tensor is stored as it is.
    fn takes_every(&self) -> bool {
        self.device.is_none() && self.batch_dims.as_ref().is_some_and(Dims::is_empty)
    }

    fn takes_layout(&self, shape: &[i64], is_on_cpu: bool) -> bool {
        let Some(dims) = &self.batch_dims else {
            return false;
        };
        shape.starts_with(dims) && (self.device.is_none() || (self.takes_cpu && is_on_cpu))
    }

    /// Returns whether all `entries` are known to be plain tensors under strings that are stored as
    /// they are. Runs no Python code.
    pub(crate) fn takes_all(&self, entries: &Bound<'py, PyDict>) -> bool {
        ffi::all_entries(entries, |key, value| {
            key.is_exact_instance_of::<PyString>()
                && value.get_type_ptr() == self.imports.tensor.as_ptr().cast()
                && self.takes(value)
        })
    }

    /// The form of `value` that may be stored under `key`.
    pub(crate) fn fit(
        &self,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        non_blocking: &Bound<'py, PyAny>,
    ) -> PyResult<Fitted<'py>> {
        if value.get_type().is(&self.imports.tensor) && self.takes(value) {
            return Ok((value.clone(), Kind::Tensor));
        }
        self.fit_any(key, value, non_blocking)
    }

    fn fit_any(
        &self,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        non_blocking: &Bound<'py, PyAny>,
    ) -> PyResult<Fitted<'py>> {
        let (imports, td) = (self.imports, &self.td);
        let py = td.py();
        let names = &imports.names;
        let value_kind = kind(imports, value)?;
        if value_kind.is_collection() {
            if value_kind == Kind::Dense
                && is_plain(imports, td)
                && fits_as_it_is(imports, td, value, self.is_new)?
            {
                return Ok((value.clone(), value_kind));
            }
            let fitted = td.call_method1(
                names.method_fit_collection.bind(py),
                (key, value, non_blocking),
            )?;
            return Ok((fitted, Kind::Foreign));
        }
        let mut value = value.clone();
        if !value.is_instance(imports.tensor.bind(py))? {
            if let Ok(entries) = value.cast_exact::<PyDict>()
                && is_plain(imports, td)
            {
                let child = converted_dict(imports, td, entries, non_blocking)
                    .map_err(|error| below(&error, key))?;
                if !self.is_new && holds(imports, &child, td)? {
                    td.call_method1(names.method_check_apart.bind(py), (key, &child))?;
                }
                return Ok((child, Kind::Dense));
            }
            value = td.call_method1(
                names.method_convert_value.bind(py),
                (key, value, non_blocking),
            )?;
            if kind(imports, &value)?.is_collection() {
                return Ok((value, Kind::Foreign));
            }
        }
        if let Some(whole) = collection::resized(imports, &value, &self.batch_size)? {
            value = whole;
        } else if self.batch_size.len()? != 0 {
            let fits = match value.getattr(names.shape.bind(py)) {
                Ok(shape) => has_leading_dims(&shape, &self.batch_size)?,
                // A nested tensor of the old layout has no shape: the twin knows them.
                Err(_) => false,
            };
            if !fits {
                let fitted = from_twin(py, "set", "validate", (td, key, &value, non_blocking))?;
                return Ok((fitted, Kind::Tensor));
            }
        }
        if !self.device.is_none()
            && value
                .getattr(names.property_device.bind(py))?
                .ne(&self.device)?
        {
            let kwargs = PyDict::new(py);
            kwargs.set_item(names.non_blocking.bind(py), non_blocking)?;
            value = value.call_method(names.to.bind(py), (&self.device,), Some(&kwargs))?;
        }
        Ok((value, Kind::Tensor))
    }

    /// Stores `value` under a direct key of this collection, which is dense and not locked.
    pub(crate) fn store(
        &self,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        non_blocking: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let (value, value_kind) = self.fit(key, value, non_blocking)?;
        put(self.imports, &self.td, key, value, value_kind)
    }
}

/// Stores every entry of `source` in the new, empty tensordict `td`, as `set_entry`
/// does.
pub(crate) fn store_all<'py>(
    imports: &'static Imports,
    td: &Bound<'py, PyAny>,
    source: &Bound<'py, PyDict>,
    non_blocking: &Bound<'py, PyAny>,
) -> PyResult<()> {
    let target = Target {
        is_new: true,
        ..Target::new(imports, td, Kind::Dense)?
    };
    // Most entries are stored as they are, under the keys that they have: in a copy of
    // the source they stand already.
    let entries = ffi::copy_dict(source)?;
    if is_plain(imports, td) && has_plain_entries(imports, &entries) {
        td.setattr(imports.names.entries.bind(td.py()), &entries)?;
        return ffi::replace_entries(&entries, |key, value| {
            let (fitted, _) = target.fit(key, value, non_blocking)?;
            Ok((!fitted.is(value)).then_some(fitted))
        });
    }
    for (key, value) in ffi::dict_pairs(source) {
        if key.is_instance_of::<PyString>() {
            target.store(&key, &value, non_blocking)?;
        } else {
            let path = nested_key::required_path_of(&key)?;
            let how = Storing {
                inplace: Inplace::Replace,
                non_blocking,
                validated: false,
                ignore_lock: false,
            };
            store_at(imports, td, path, &value, how)?;
        }
    }
    Ok(())
}

/// Returns whether all keys are strings and all values plain tensors.
pub(crate) fn has_plain_entries(imports: &Imports, entries: &Bound<'_, PyDict>) -> bool {
    ffi::all_entries(entries, |key, value| {
        key.is_exact_instance_of::<PyString>()
            && value.get_type_ptr() == imports.tensor.as_ptr().cast()
    })
}

/// Stores a value that fits, of the given kind, under a direct key of the dense `td`.
pub(crate) fn put<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    key: &Bound<'py, PyAny>,
    value: Bound<'py, PyAny>,
    value_kind: Kind,
) -> PyResult<()> {
    let is_simple = match value_kind {
        Kind::Tensor | Kind::Special => true,
        // Names of a collection may become those of `td`.
        Kind::Dense => is_plain(imports, td) && collection::dim_names(imports, &value)?.is_none(),
        Kind::Foreign => false,
    };
    if is_simple {
        return collection::entries(imports, td)?.set_item(key, value);
    }
    td.call_method1(imports.names.method_hang.bind(td.py()), (key, value))?;
    Ok(())
}

/// `set_entry(td, key, value, inplace, False, True)`.
pub(crate) fn set_validated<'py>(
    imports: &'static Imports,
    td: &Bound<'py, PyAny>,
    key: &Bound<'py, PyAny>,
    value: &Bound<'py, PyAny>,
    inplace: bool,
) -> PyResult<()> {
    let py = td.py();
    let path = nested_key::required_path_of(key)?;
    let inplace = if inplace {
        Inplace::Write(PyBool::new(py, true).to_owned().into_any().unbind())
    } else {
        Inplace::Replace
    };
    let non_blocking = or_false(py, None);
    let how = Storing {
        inplace,
        non_blocking: &non_blocking,
        validated: true,
        ignore_lock: false,
    };
    store_at(imports, td, path, value, how)
}

/// The way in which a value is stored at a nested key.
struct Storing<'a, 'py> {
    inplace: Inplace,
    non_blocking: &'a Bound<'py, PyAny>,
    /// True if the value is known to fit.
    validated: bool,
    ignore_lock: bool,
}

#[allow(
    clippy::needless_pass_by_value,
    reason = "it is made for this call, and named again where that fails"
)]
fn store_at<'py>(
    imports: &'static Imports,
    td: &Bound<'py, PyAny>,
    path: nested_key::Path<'py>,
    value: &Bound<'py, PyAny>,
    how: Storing<'_, 'py>,
) -> PyResult<()> {
    let py = td.py();
    let Storing {
        inplace,
        non_blocking,
        validated,
        ignore_lock,
    } = how;
    if matches!(inplace, Inplace::Replace)
        // Collections at nested keys are hung in by the general way.
        && (path.len() == 1 || value.get_type().is(&imports.tensor))
        && collection::is_dense(imports, td)?
        && let Some(parent) = dense_parent(imports, td, &path)?
    {
        let key = &path[path.len() - 1];
        // The value comes first: one that does not fit is named, whatever the lock.
        let (value, value_kind) = if validated {
            (value.clone(), Kind::Tensor)
        } else {
            Target::new(imports, &parent, Kind::Dense)?
                .fit(key, value, non_blocking)
                .map_err(|error| below_path(error, py, &path))?
        };
        if !ignore_lock && collection::is_locked(imports, &parent)? {
            return Err(locked(&parent));
        }
        return put(imports, &parent, key, value, value_kind);
    }
    let parts = PyTuple::new(py, &path)?;
    let inplace = match inplace {
        Inplace::Replace => PyBool::new(py, false).to_owned().into_any(),
        Inplace::Write(inplace) => inplace.into_bound(py),
    };
    td.call_method1(
        imports.names.method_set_path.bind(py),
        (parts, value, inplace, non_blocking, validated, ignore_lock),
    )
    .map_err(|error| below_path(error, py, &path))?;
    Ok(())
}

/// The form of `value` that may be stored in `td`, or an error.
#[pyfunction]
#[pyo3(
    signature = (td, key, value, non_blocking = None),
    text_signature = "(td, key, value, non_blocking=False)"
)]
fn validate<'py>(
    td: &Bound<'py, PyAny>,
    key: &Bound<'py, PyAny>,
    value: &Bound<'py, PyAny>,
    non_blocking: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = td.py();
    let imports = imports(py)?;
    let td_kind = if collection::is_dense(imports, td)? {
        Kind::Dense
    } else {
        Kind::Foreign
    };
    let non_blocking = or_false(py, non_blocking);
    Ok(Target::new(imports, td, td_kind)?
        .fit(key, value, &non_blocking)?
        .0)
}

/// An argument as it was passed, or `False`.
pub(crate) fn or_false<'py>(
    py: Python<'py>,
    argument: Option<Bound<'py, PyAny>>,
) -> Bound<'py, PyAny> {
    argument.unwrap_or_else(|| PyBool::new(py, false).to_owned().into_any())
}

/// Returns whether `value` is a plain tensor that the dense `td`, which has no device, takes as it
/// is. Where this says no, it may still fit.
pub(crate) fn fits_plainly(
    imports: &Imports,
    td: &Bound<'_, PyAny>,
    value: &Bound<'_, PyAny>,
) -> PyResult<bool> {
    if !value.get_type().is(&imports.tensor) || !collection::device(imports, td)?.is_none() {
        return Ok(false);
    }
    let batch_size = collection::batch_size(imports, td)?;
    Ok(batch_size.is_empty() || layout_begins_with(value, &batch_size))
}

/// Stores a value under a string in the dense `td` where there is nothing to convert, to
/// move or to refuse; false where there may be.
pub(crate) fn set_plainly<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    key: &Bound<'py, PyAny>,
    value: &Bound<'py, PyAny>,
) -> PyResult<bool> {
    if !fits_plainly(imports, td, value)? || collection::is_locked(imports, td)? {
        return Ok(false);
    }
    collection::entries(imports, td)?.set_item(key, value)?;
    Ok(true)
}

/// Returns whether the shape of a plain tensor is known to begin with `batch_size`.
fn layout_begins_with(value: &Bound<'_, PyAny>, batch_size: &Bound<'_, PyTuple>) -> bool {
    let Some(tensor) = Tensor::of(value) else {
        return false;
    };
    let begins = tensor.with_shape(|shape| {
        shape.len() >= batch_size.len()
            && batch_size
                .iter_borrowed()
                .zip(shape)
                .all(|(expected, length)| {
                    expected.is_exact_instance_of::<PyInt>()
                        && expected
                            .extract::<i64>()
                            .is_ok_and(|expected| expected == *length)
                })
    });
    begins.unwrap_or(false)
}

/// The collection that holds the last part of `path`, if all on the way are dense.
fn dense_parent<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    path: &[Bound<'py, PyAny>],
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let mut parent = td.clone();
    for part in &path[..path.len() - 1] {
        match collection::entries(imports, &parent)?.get_item(part)? {
            Some(child) if kind(imports, &child)? == Kind::Dense => parent = child,
            _ => return Ok(None),
        }
    }
    Ok(Some(parent))
}

/// Store `value` at a nested key, making the collections on the way.
#[pyfunction]
#[pyo3(
    signature = (
        td, key, value, inplace = Inplace::Replace, non_blocking = None, validated = false,
        ignore_lock = false
    ),
    text_signature = "(td, key, value, inplace=False, non_blocking=False, validated=False, ignore_lock=False)"
)]
pub(crate) fn set_entry<'py>(
    td: &Bound<'py, PyAny>,
    key: &Bound<'py, PyAny>,
    value: &Bound<'py, PyAny>,
    inplace: Inplace,
    non_blocking: Option<Bound<'py, PyAny>>,
    #[pyo3(from_py_with = truth)] validated: bool,
    ignore_lock: bool,
) -> PyResult<()> {
    let py = td.py();
    let imports = imports(py)?;
    // The common case, without what the general one has to prepare.
    if matches!(inplace, Inplace::Replace)
        && key.is_exact_instance_of::<PyString>()
        && collection::is_dense(imports, td)?
        && ((validated && value.get_type().is(&imports.tensor))
            || fits_plainly(imports, td, value)?)
        && (ignore_lock || !collection::is_locked(imports, td)?)
    {
        return collection::entries(imports, td)?.set_item(key, value);
    }
    let non_blocking = or_false(py, non_blocking);
    let path = nested_key::required_path_of(key)?;
    if let Inplace::Write(_) = inplace
        && collection::is_dense(imports, td)?
        && let Some(parent) = dense_parent(imports, td, &path)?
        && write_over(
            imports,
            &parent,
            &path[path.len() - 1],
            value,
            &non_blocking,
        )?
    {
        return Ok(());
    }
    let how = Storing {
        inplace,
        non_blocking: &non_blocking,
        validated,
        ignore_lock,
    };
    store_at(imports, td, path, value, how)
}

/// Copies `value` into the entry at `key` where both are plain tensors of one shape: then
/// there is nothing to check or convert. False where it was not done.
fn write_over<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    key: &Bound<'py, PyAny>,
    value: &Bound<'py, PyAny>,
    non_blocking: &Bound<'py, PyAny>,
) -> PyResult<bool> {
    let Some(present) = collection::entries(imports, td)?.get_item(key)? else {
        return Ok(false);
    };
    if !are_alike(imports, &present, value) {
        return Ok(false);
    }
    let copy = imports.names.copy_.bind(td.py());
    match present.call_method1(copy, (value, non_blocking)) {
        Ok(_) => Ok(true),
        // The general way fails, too, and says for which key.
        Err(error) if error.is_instance_of::<PyRuntimeError>(td.py()) => Ok(false),
        Err(error) => Err(error),
    }
}

/// An error of an entry of the collection at `key`, with the whole key in its text.
#[cold]
fn below(error: &PyErr, key: &Bound<'_, PyAny>) -> PyErr {
    let py = key.py();
    match from_twin(py, "errors", "below", (error.value(py), key)) {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

/// An error of the entry at `path`, with all of that in its text.
#[cold]
fn below_path(error: PyErr, py: Python<'_>, path: &[Bound<'_, PyAny>]) -> PyErr {
    if path.len() == 1 {
        return error;
    }
    match PyTuple::new(py, &path[..path.len() - 1]) {
        Ok(parents) => below(&error, parents.as_any()),
        Err(error) => error,
    }
}

#[cold]
fn locked(td: &Bound<'_, PyAny>) -> PyErr {
    match from_twin(td.py(), "errors", "locked_error", (td,)) {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(validate, module)?)?;
    module.add_function(wrap_pyfunction!(set_entry, module)?)?;
    Ok(())
}
