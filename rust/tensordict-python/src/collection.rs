//! Collections as the walks see them: what is one, its four state attributes, new ones.

use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::ffi::PyTypeObject;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PySlice, PyString, PyTuple, PyType};
use smallvec::SmallVec;
use tensordict_core::storage::source::Signs;

use crate::ffi;
use crate::imports::{Imports, from_twin};
use crate::shortcuts::sizes;
use crate::shortcuts::tensors::Tensor;

/// The kind of a value of a collection, for a walk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Called, collected or stored as it is: a tensor, or a value that is no entry yet.
    Tensor,
    /// A leaf whose [`entry_kind`] says what an operation makes of it.
    Special,
    /// Entered: its state is in the four attributes.
    Dense,
    /// Asked to do its part itself, by the protocol's methods.
    Foreign,
}

impl Kind {
    /// Returns whether it is no collection.
    #[inline]
    pub(crate) fn is_leaf(self) -> bool {
        matches!(self, Self::Tensor | Self::Special)
    }

    #[inline]
    pub(crate) fn is_collection(self) -> bool {
        !self.is_leaf()
    }
}

/// Types that are known to be dense, so that most values are told apart by comparing
/// pointers. A type that is entered here is kept alive for good, so that its address is
/// never that of another one; there are no more than these places.
static DENSE_TYPES: [AtomicPtr<PyTypeObject>; 4] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; 4];

fn is_known_dense(class: *mut PyTypeObject) -> bool {
    DENSE_TYPES
        .iter()
        .any(|place| place.load(Ordering::Relaxed) == class)
}

fn remember_dense(class: &Bound<'_, PyType>) {
    let raw = class.as_type_ptr();
    for place in &DENSE_TYPES {
        let free = std::ptr::null_mut();
        match place.compare_exchange(free, raw, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => {
                std::mem::forget(class.clone());
                return;
            }
            Err(known) if known == raw => return,
            Err(_) => {}
        }
    }
}

/// Returns whether `value` is a tensor or a parameter, of no class derived from them.
#[inline]
pub(crate) fn is_plain_leaf(imports: &Imports, value: &Bound<'_, PyAny>) -> bool {
    let class = value.get_type_ptr();
    std::ptr::addr_eq(class, imports.tensor.as_ptr())
        || std::ptr::addr_eq(class, imports.parameter.as_ptr())
}

/// Returns the kind of `value`. For types that are not known yet this may run Python code.
#[inline]
pub(crate) fn kind(imports: &Imports, value: &Bound<'_, PyAny>) -> PyResult<Kind> {
    if is_plain_leaf(imports, value) {
        return Ok(Kind::Tensor);
    }
    if is_known_dense(value.get_type_ptr()) {
        return Ok(Kind::Dense);
    }
    kind_of_other(imports, value)
}

#[cold]
fn kind_of_other(imports: &Imports, value: &Bound<'_, PyAny>) -> PyResult<Kind> {
    let is_collection = ffi::is_subtype(value, &imports.protocol)
        || (!ffi::is_subtype(value, &imports.tensor)
            && value.is_instance(imports.protocol.bind(value.py()))?);
    if !is_collection {
        return Ok(match entry_kind(imports, value) {
            Some(_) => Kind::Special,
            None => Kind::Tensor,
        });
    }
    Ok(if is_dense(imports, value)? {
        Kind::Dense
    } else {
        Kind::Foreign
    })
}

/// Returns whether the state of the collection `td` may be read directly.
#[inline]
pub(crate) fn is_dense(imports: &Imports, td: &Bound<'_, PyAny>) -> PyResult<bool> {
    if is_known_dense(td.get_type_ptr()) {
        return Ok(true);
    }
    let class = td.get_type();
    let is_dense = td
        .getattr(imports.names.is_dense.bind(td.py()))?
        .is_truthy()?;
    if is_dense && ffi::is_subtype(td, &imports.protocol) {
        remember_dense(&class);
    }
    Ok(is_dense)
}

/// The kind of the special entry `value`, which answers for it: see
/// `tensordict.primitives.special`. None for any other leaf.
#[inline]
pub(crate) fn entry_kind<'py>(
    imports: &Imports,
    value: &Bound<'py, PyAny>,
) -> Option<Bound<'py, PyAny>> {
    let py = value.py();
    let classes = imports.entry_classes.bind(py);
    let at = classes
        .iter()
        .position(|class| ffi::is_subclass(value.get_type().as_any(), &class))?;
    imports.entry_kinds.bind(py).get_item(at).ok()
}

/// Calls a method of the kind of the special entry `value`.
#[cold]
pub(crate) fn ask_kind<'py>(
    imports: &Imports,
    method: &Py<PyString>,
    value: &Bound<'py, PyAny>,
    arguments: impl pyo3::call::PyCallArgs<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let kind = entry_kind(imports, value)
        .ok_or_else(|| PyRuntimeError::new_err("the kind of an entry was taken off the list"))?;
    kind.call_method1(method.bind(value.py()), arguments)
}

/// The leaf `value` in a collection of batch size `size`, if it keeps its elements then.
/// None where it is any other leaf.
#[inline]
pub(crate) fn resized<'py>(
    imports: &Imports,
    value: &Bound<'py, PyAny>,
    size: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    if is_plain_leaf(imports, value) {
        return Ok(None);
    }
    let Some(kind) = entry_kind(imports, value) else {
        return Ok(None);
    };
    let name = imports.names.method_resized.bind(value.py());
    let kept = kind.call_method1(name, (value, size))?;
    Ok((!kept.is_none()).then_some(kept))
}

/// Calls `op` on a leaf that torch refused with `error`: a nested tensor may be one without a
/// class of its own.
///
/// # Errors
/// `error`, where the leaf has no kind, or its kind does not do it either.
#[cold]
pub(crate) fn rescued<'py>(
    op: &Bound<'py, PyAny>,
    leaf: &Bound<'py, PyAny>,
    arguments: &Bound<'py, PyTuple>,
    error: PyErr,
) -> PyResult<Bound<'py, PyAny>> {
    let py = leaf.py();
    let is_refusal =
        error.is_instance_of::<PyRuntimeError>(py) || error.is_instance_of::<PyValueError>(py);
    if !is_refusal {
        return Err(error);
    }
    let made = from_twin(py, "special", "instead", (leaf, op, arguments))?;
    if made.is_none() { Err(error) } else { Ok(made) }
}

/// Returns which values of a tensor have the other sign than in memory.
pub(crate) fn signs_of(
    imports: &Imports,
    tensor: &Bound<'_, PyAny>,
    is_complex: bool,
) -> PyResult<Signs> {
    let py = tensor.py();
    let is = |method: &Py<PyAny>| method.bind(py).call1((tensor,))?.is_truthy();
    Ok(Signs {
        negated: is(&imports.is_neg)?,
        conjugated: is_complex && is(&imports.is_conj)?,
    })
}

/// Returns whether values of a tensor have the other sign than in memory; None where its dtype has no
/// form in memory.
pub(crate) fn has_signs(imports: &Imports, tensor: &Tensor<'_, '_>) -> Option<bool> {
    let is_complex = tensor.dtype_name()?.contains("complex");
    let signs = signs_of(imports, tensor.object(), is_complex).ok()?;
    Some(signs != Signs::default())
}

/// Returns whether a foreign collection is one value that is no tensor.
pub(crate) fn is_non_tensor(imports: &Imports, td: &Bound<'_, PyAny>) -> PyResult<bool> {
    td.getattr(imports.names.is_non_tensor.bind(td.py()))?
        .is_truthy()
}

/// The entries of a tensordict: the live dictionary.
#[inline]
pub(crate) fn entries<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyDict>> {
    let entries = td.getattr(imports.names.entries.bind(td.py()))?;
    Ok(entries.cast_into::<PyDict>()?)
}

#[inline]
pub(crate) fn batch_size<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyTuple>> {
    let size = td.getattr(imports.names.batch_size.bind(td.py()))?;
    Ok(size.cast_into::<PyTuple>()?)
}

#[inline]
pub(crate) fn device<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    td.getattr(imports.names.device.bind(td.py()))
}

#[inline]
pub(crate) fn dim_names<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    td.getattr(imports.names.dim_names.bind(td.py()))
}

pub(crate) fn is_locked(imports: &Imports, td: &Bound<'_, PyAny>) -> PyResult<bool> {
    td.getattr(imports.names.is_locked.bind(td.py()))?
        .is_truthy()
}

/// Returns whether the leaves of `td` are mapped or in shared memory: then it is locked, too.
pub(crate) fn has_storage(imports: &Imports, td: &Bound<'_, PyAny>) -> PyResult<bool> {
    let names = &imports.names;
    Ok(is_locked(imports, td)?
        && (td.getattr(names.memmap.bind(td.py()))?.is_truthy()?
            || td.getattr(names.shared.bind(td.py()))?.is_truthy()?))
}

/// The number of attributes that a tensordict is made of.
const NUM_ATTRIBUTES: usize = 4;

/// The four attributes of a tensordict, read at once.
pub(crate) struct State<'py> {
    pub(crate) entries: Bound<'py, PyDict>,
    pub(crate) batch_size: Bound<'py, PyTuple>,
    pub(crate) device: Bound<'py, PyAny>,
    pub(crate) dim_names: Bound<'py, PyAny>,
}

impl<'py> State<'py> {
    pub(crate) fn of(imports: &Imports, td: &Bound<'py, PyAny>) -> PyResult<Self> {
        Ok(Self {
            entries: self::entries(imports, td)?,
            batch_size: self::batch_size(imports, td)?,
            device: self::device(imports, td)?,
            dim_names: self::dim_names(imports, td)?,
        })
    }
}

/// A tensordict of type `class` around `entries`, made without `__init__`.
pub(crate) fn new<'py>(
    imports: &Imports,
    class: &Bound<'py, PyType>,
    entries: &Bound<'py, PyAny>,
    batch_size: &Bound<'py, PyAny>,
    device: &Bound<'py, PyAny>,
    dim_names: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let values = [entries, batch_size, device, dim_names].map(Clone::clone);
    new_of(imports, class, values)
}

/// Does the work of [`new`], with the four attributes in the order of [`state_names`].
pub(crate) fn new_of<'py>(
    imports: &Imports,
    class: &Bound<'py, PyType>,
    values: [Bound<'py, PyAny>; NUM_ATTRIBUTES],
) -> PyResult<Bound<'py, PyAny>> {
    let td = match ffi::allocate(class)? {
        Some(td) => td,
        None => class.call_method1(imports.names.method_new.bind(class.py()), (class,))?,
    };
    set_state(imports, &td, values)?;
    Ok(td)
}

/// Does the work of [`new_of`], with the type of `td`.
#[inline]
pub(crate) fn new_like<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    values: [Bound<'py, PyAny>; NUM_ATTRIBUTES],
) -> PyResult<Bound<'py, PyAny>> {
    match ffi::allocate_like(td)? {
        Some(made) => {
            set_state(imports, &made, values)?;
            Ok(made)
        }
        None => new_of(imports, &td.get_type(), values),
    }
}

/// Sets the four attributes of a tensordict.
pub(crate) fn fill<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    entries: &Bound<'py, PyAny>,
    batch_size: &Bound<'py, PyAny>,
    device: &Bound<'py, PyAny>,
    dim_names: &Bound<'py, PyAny>,
) -> PyResult<()> {
    set_state(
        imports,
        td,
        [entries, batch_size, device, dim_names].map(Clone::clone),
    )
}

fn set_state<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    values: [Bound<'py, PyAny>; NUM_ATTRIBUTES],
) -> PyResult<()> {
    for (name, value) in state_names(imports).into_iter().zip(values) {
        td.setattr(name.bind(td.py()), value)?;
    }
    Ok(())
}

/// The names of the four attributes, in the order in which they are set.
fn state_names(imports: &Imports) -> [&Py<PyString>; NUM_ATTRIBUTES] {
    let names = &imports.names;
    [
        &names.entries,
        &names.batch_size,
        &names.device,
        &names.dim_names,
    ]
}

/// The attribute of state at `place`, as any instance has it.
pub(crate) fn state_of<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    place: usize,
) -> PyResult<Bound<'py, PyAny>> {
    td.getattr(state_names(imports)[place].bind(td.py()))
}

/// Returns whether `td` is of the plain dense class itself, whose methods are known.
pub(crate) fn is_plain(imports: &Imports, td: &Bound<'_, PyAny>) -> bool {
    imports
        .plain_type(td.py())
        .is_some_and(|class| td.get_type_ptr().cast() == class.as_ptr())
}

/// The `names` that a walk is given for its results.
pub(crate) enum Names<'py> {
    /// Each collection keeps its own.
    Keep,
    /// No dim is named.
    Drop,
    /// Those of the root's dims; a nested collection keeps those of its further dims.
    Given(Bound<'py, PyAny>),
    /// For each of the root's new dims the old dim whose name it takes, -1 for none.
    Moved(Order),
}

/// For each new dim the old one, -1 where there is none.
pub(crate) type Order = SmallVec<[i64; 8]>;

impl<'a, 'py> FromPyObject<'a, 'py> for Names<'py> {
    type Error = PyErr;

    fn extract(names: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(if names.is_none() {
            Self::Drop
        } else if names.is(&*PyBool::new(names.py(), true)) {
            Self::Keep
        } else if let Ok(sources) = names.cast::<PyTuple>() {
            let mut order = Order::new();
            for source in sources.iter_borrowed() {
                order.push(source.extract()?);
            }
            Self::Moved(order)
        } else {
            Self::Given(names.to_owned())
        })
    }
}

impl<'py> Names<'py> {
    /// The argument as Python passed it.
    pub(crate) fn to_object(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self {
            Self::Keep => PyBool::new(py, true).to_owned().into_any(),
            Self::Drop => py.None().into_bound(py),
            Self::Given(names) => names.clone(),
            Self::Moved(order) => PyTuple::new(py, order)?.into_any(),
        })
    }
}

/// The change of the batch sizes and names of the collections that a walk meets: the first `k` dims,
/// those of the root, are replaced.
pub(crate) struct Splice<'a, 'py> {
    imports: &'static Imports,
    k: usize,
    names: &'a Names<'py>,
    // The last size that had to be made: collections of equal size share one object.
    last: Option<LastSize<'py>>,
}

struct LastSize<'py> {
    prefix: Bound<'py, PyAny>,
    old: Bound<'py, PyTuple>,
    size: Bound<'py, PyAny>,
}

impl<'a, 'py> Splice<'a, 'py> {
    pub(crate) fn new(imports: &'static Imports, k: usize, names: &'a Names<'py>) -> Self {
        Self {
            imports,
            k,
            names,
            last: None,
        }
    }

    /// The batch size of the result for a collection of batch size `old`, where `prefix`
    /// is that of the root's result (None: all keep theirs).
    #[inline]
    pub(crate) fn size(
        &mut self,
        prefix: Option<&Bound<'py, PyAny>>,
        old: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(prefix) = prefix else {
            return Ok(old.clone().into_any());
        };
        if old.len() == self.k {
            return Ok(prefix.clone());
        }
        self.other_size(prefix, old)
    }

    /// That for a collection that does not have as many dims as the root.
    fn other_size(
        &mut self,
        prefix: &Bound<'py, PyAny>,
        old: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Some(last) = &self.last
            && last.old.is(old)
            && last.prefix.is(prefix)
        {
            return Ok(last.size.clone());
        }
        let mut dims = joined_dims(prefix, old, self.k)?;
        if let Some(kept) = self.kept_dims(dims.len(), old.len()) {
            dims.truncate(kept);
        }
        let size = sizes::new_size(self.imports.size.bind(old.py()), &dims)?;
        self.last = Some(LastSize {
            prefix: prefix.clone(),
            old: old.clone(),
            size: size.clone(),
        });
        Ok(size)
    }

    /// Returns the number of the root's `new` dims that a collection gets that had `old` dims, fewer
    /// than the root: as many as before if the dims that it lacks stay in their places.
    fn kept_dims(&self, new: usize, old: usize) -> Option<usize> {
        let missing = self.k.checked_sub(old).filter(|&missing| missing > 0)?;
        let kept = new.checked_sub(missing)?;
        let in_place = match self.names {
            Names::Keep => new == self.k,
            Names::Moved(order) => order.get(kept..).is_some_and(|last| {
                let lacking = old..self.k;
                last.len() == missing
                    && last
                        .iter()
                        .zip(lacking)
                        .all(|(&at, dim)| usize::try_from(at) == Ok(dim))
            }),
            Names::Drop | Names::Given(_) => false,
        };
        in_place.then_some(kept)
    }

    /// The names of a result of batch size `size` for a collection with the names `old`.
    #[inline]
    pub(crate) fn dim_names(
        &self,
        old: &Bound<'py, PyAny>,
        size: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if old.is_none() && !matches!(self.names, Names::Given(_)) {
            return Ok(old.clone());
        }
        self.some_names(old, size)
    }

    fn some_names(
        &self,
        old: &Bound<'py, PyAny>,
        size: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = old.py();
        match self.names {
            Names::Keep => copied_names(old),
            Names::Drop => Ok(py.None().into_bound(py)),
            Names::Given(head) => {
                let names = PyList::empty(py);
                for name in head.try_iter()?.take(size.len()?) {
                    names.append(name?)?;
                }
                if old.is_none() {
                    for _ in names.len()..size.len()? {
                        names.append(py.None())?;
                    }
                } else {
                    self.append_further(&names, old)?;
                }
                Ok(names.into_any())
            }
            Names::Moved(order) => {
                let names = PyList::empty(py);
                let num_old = old.len()?;
                for &source in order.iter().take(size.len()?) {
                    match usize::try_from(source) {
                        Ok(dim) if dim < num_old => names.append(old.get_item(dim)?)?,
                        _ => names.append(py.None())?,
                    }
                }
                self.append_further(&names, old)?;
                if names.iter().all(|name| name.is_none()) {
                    return Ok(py.None().into_bound(py));
                }
                Ok(names.into_any())
            }
        }
    }

    /// Appends `old[k:]`.
    fn append_further(&self, names: &Bound<'py, PyList>, old: &Bound<'py, PyAny>) -> PyResult<()> {
        let from = isize::try_from(self.k)?;
        let further = old.get_item(PySlice::new(old.py(), from, isize::MAX, 1))?;
        for name in further.try_iter()? {
            names.append(name?)?;
        }
        Ok(())
    }
}

/// A list of its own with the names `old`, or None.
#[inline]
pub(crate) fn copied_names<'py>(old: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    if old.is_none() {
        return Ok(old.clone());
    }
    copied_list(old)
}

fn copied_list<'py>(old: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    if let Ok(list) = old.cast_exact::<PyList>() {
        return Ok(list.get_slice(0, list.len()).into_any());
    }
    let names = PyList::empty(old.py());
    for name in old.try_iter()? {
        names.append(name?)?;
    }
    Ok(names.into_any())
}

/// Returns whether `value` is a number that some dtypes of integers do not have.
pub(crate) fn is_rare_number(value: &Bound<'_, PyAny>) -> bool {
    if value.is_exact_instance_of::<PyBool>() {
        return false;
    }
    let is_number =
        value.is_exact_instance_of::<PyFloat>() || value.is_exact_instance_of::<PyInt>();
    is_number
        && !value
            .extract()
            .is_ok_and(|number: f64| number.abs() < 128.0)
}

/// The `torch.Size` of plain numbers.
pub(crate) fn size_of<'py>(
    imports: &Imports,
    py: Python<'py>,
    dims: &[i64],
) -> PyResult<Bound<'py, PyAny>> {
    let mut numbers = ffi::Values::with_capacity(dims.len());
    for dim in dims {
        numbers.push(dim.into_pyobject(py)?.into_any());
    }
    sizes::new_size(imports.size.bind(py), &numbers)
}

/// `(*head, *tail[from:])`.
pub(crate) fn concatenated<'py>(
    head: &Bound<'py, PyAny>,
    tail: &Bound<'py, PyTuple>,
    from: usize,
) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(head.py(), joined_dims(head, tail, from)?)
}

/// The items of [`concatenated`].
pub(crate) fn joined_dims<'py>(
    head: &Bound<'py, PyAny>,
    tail: &Bound<'py, PyTuple>,
    from: usize,
) -> PyResult<ffi::Values<'py>> {
    let owned;
    let head = if let Ok(head) = head.cast::<PyTuple>() {
        head
    } else {
        owned = head
            .py()
            .get_type::<PyTuple>()
            .call1((head,))?
            .cast_into::<PyTuple>()?;
        &owned
    };
    let mut dims = ffi::Values::with_capacity(head.len() + tail.len());
    dims.extend(head.iter_borrowed().map(Borrowed::to_owned));
    dims.extend(tail.iter_borrowed().skip(from).map(Borrowed::to_owned));
    Ok(dims)
}
