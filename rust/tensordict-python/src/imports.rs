//! The Python objects that the bindings need, resolved once, at first use.
//!
//! `tensordict._rust` is imported before the modules that these objects live in, so
//! nothing is resolved while the extension itself is imported. No lock is held while
//! Python imports: two threads may both resolve, and the first result stays.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyType};

use crate::ffi::Resolved;
use crate::shortcuts::tensors;

/// The attribute and method names of the protocol, interned.
macro_rules! names {
    ($($field:ident = $text:literal),* $(,)?) => {
        pub(crate) struct Names {
            $(pub(crate) $field: Py<PyString>,)*
        }

        impl Names {
            fn intern(py: Python<'_>) -> Self {
                Self { $($field: PyString::intern(py, $text).unbind(),)* }
            }
        }
    };
}

names! {
    entries = "_tensordict",
    batch_size = "_batch_size",
    device = "_device",
    data = "data",
    dim_names = "_td_dim_names",
    is_dense = "_is_dense",
    is_non_tensor = "_is_non_tensor",
    source_twin = "_source_twin",
    method_getitem = "__getitem__",
    is_locked = "_is_locked",
    lock_parents = "_lock_parents_weakrefs",
    method_new = "__new__",
    method_containers = "_containers",
    method_value_of_entry = "_value_of_entry",
    method_set_attribute = "_set_attribute",
    method_set_field_entry = "_set_field_entry",
    plain_fields = "__plain_fields__",
    expected_keys = "__expected_keys__",
    method_check_keys = "_check_keys",
    non_tensors = "_non_tensordict",
    is_initialized = "_is_initialized",
    method_read_field = "_read_field",
    method_get_index = "_get_index",
    method_value = "_value",
    method_entries = "_entries",
    method_get_entry = "_get_entry",
    method_held_keys = "_held_keys",
    method_sample_entries = "_sample_entries",
    method_sample_entry = "_sample_entry",
    method_rebuild_as = "_rebuild_as",
    method_align_leaves = "_align_leaves",
    method_leaf_batch_dims = "_leaf_batch_dims",
    method_map_leaves = "_map_leaves",
    method_split_leaves = "_split_leaves",
    method_leaves = "_leaves",
    method_rebuild = "_rebuild",
    method_drop_empty = "_drop_empty",
    method_store_leaves = "_store_leaves",
    method_clone_structure = "_clone_structure",
    is_leaf = "is_leaf",
    requires_grad = "requires_grad",
    method_lock_tree = "_lock_tree",
    method_after_unlock = "_after_unlock",
    method_fit_collection = "_fit_collection",
    method_convert_value = "_convert_value",
    method_check_apart = "_check_apart",
    method_hang = "_hang",
    method_has_names = "_has_names",
    method_set_path = "_set_path",
    method_update_parts = "_update_parts",
    method_children = "_children",
    property_batch_size = "batch_size",
    property_device = "device",
    property_names = "names",
    non_blocking = "non_blocking",
    method_apply_nest = "_apply_nest",
    is_empty = "is_empty",
    clone = "clone",
    new_empty = "new_empty",
    copy_ = "copy_",
    fill_ = "fill_",
    method_set_entry = "_set_entry",
    to = "to",
    items = "items",
    method_index = "_index",
    method_can_put = "_can_put",
    method_put = "_put",
    shared = "_is_shared",
    memmap = "_is_memmap",
    property_is_locked = "is_locked",
    dict = "__dict__",
    dtype = "dtype",
    nonzero = "nonzero",
    as_tuple = "as_tuple",
    shape = "shape",
    is_cpu = "is_cpu",
    is_meta = "is_meta",
    dim = "dim",
    last_op = "_last_op",
    unsqueeze = "unsqueeze",
    squeeze = "squeeze",
    transpose = "transpose",
    permute = "permute",
    flatten = "flatten",
    reshape = "reshape",
    unbind = "unbind",
    method_at = "at",
    method_mapped = "mapped",
    method_resized = "resized",
    method_split = "split",
}

/// The classes and constants of torch and of the protocol.
pub(crate) struct Imports {
    pub(crate) tensor: Py<PyType>,
    pub(crate) parameter: Py<PyType>,
    pub(crate) size: Py<PyType>,
    pub(crate) device: Py<PyType>,
    pub(crate) cpu: Py<PyAny>,
    pub(crate) int64: Py<PyAny>,
    pub(crate) int32: Py<PyAny>,
    pub(crate) bool: Py<PyAny>,
    pub(crate) make_tensor: Py<PyAny>,
    pub(crate) stack: Py<PyAny>,
    pub(crate) cat: Py<PyAny>,
    pub(crate) foreach_copy: Py<PyAny>,
    pub(crate) is_grad_enabled: Py<PyAny>,
    pub(crate) foreach_zero: Py<PyAny>,
    pub(crate) is_batched: Py<PyAny>,
    pub(crate) forward_grad: Py<PyAny>,
    pub(crate) is_neg: Py<PyAny>,
    pub(crate) is_conj: Py<PyAny>,
    pub(crate) protocol: Py<PyType>,
    /// The kinds of special entries, and the class of each.
    pub(crate) entry_kinds: Py<PyList>,
    pub(crate) entry_classes: Py<PyList>,
    pub(crate) no_default: Py<PyAny>,
    pub(crate) none_if_missing: Py<PyAny>,
    pub(crate) names: Names,
}

static IMPORTS: Resolved<Imports> = Resolved::new();

impl Imports {
    fn resolve(py: Python<'_>) -> PyResult<Self> {
        let torch = py.import("torch")?;
        let protocol = py.import("tensordict.primitives.protocol")?;
        let special = py.import("tensordict.primitives.special")?;
        Ok(Self {
            tensor: class(&torch, "Tensor")?,
            parameter: class(&py.import("torch.nn")?, "Parameter")?,
            size: class(&torch, "Size")?,
            device: class(&torch, "device")?,
            cpu: torch.getattr("device")?.call1(("cpu",))?.unbind(),
            int64: torch.getattr("int64")?.unbind(),
            int32: torch.getattr("int32")?.unbind(),
            bool: torch.getattr("bool")?.unbind(),
            make_tensor: torch.getattr("tensor")?.unbind(),
            stack: torch.getattr("stack")?.unbind(),
            foreach_copy: torch.getattr("_foreach_copy_")?.unbind(),
            is_grad_enabled: torch.getattr("is_grad_enabled")?.unbind(),
            foreach_zero: torch.getattr("_foreach_zero_")?.unbind(),
            is_batched: py
                .import("torch._C._functorch")?
                .getattr("is_batchedtensor")?
                .unbind(),
            cat: torch.getattr("cat")?.unbind(),
            forward_grad: py.import("torch.autograd.forward_ad")?.into_any().unbind(),
            is_neg: torch.getattr("Tensor")?.getattr("is_neg")?.unbind(),
            is_conj: torch.getattr("Tensor")?.getattr("is_conj")?.unbind(),
            protocol: class(&protocol, "CollectionProtocol")?,
            entry_kinds: special.getattr("KINDS_OF_CLASSES")?.cast_into()?.unbind(),
            entry_classes: special.getattr("CLASSES")?.cast_into()?.unbind(),
            no_default: protocol.getattr("NO_DEFAULT")?.unbind(),
            none_if_missing: protocol.getattr("NONE_IF_MISSING")?.unbind(),
            names: Names::intern(py),
        })
    }
}

static PLAIN_TYPE: Resolved<Py<PyType>> = Resolved::new();

impl Imports {
    /// The plain tensordict's class; None while the package is being imported.
    pub(crate) fn plain_type(&self, py: Python<'_>) -> Option<&'static Py<PyType>> {
        if let Some(class) = PLAIN_TYPE.get(py) {
            return Some(class);
        }
        let class = self.protocol.bind(py).getattr("_plain_type").ok()?;
        PLAIN_TYPE.set(py, class.cast_into::<PyType>().ok()?.unbind());
        PLAIN_TYPE.get(py)
    }
}

fn class(module: &Bound<'_, PyModule>, name: &str) -> PyResult<Py<PyType>> {
    Ok(module.getattr(name)?.cast_into::<PyType>()?.unbind())
}

/// The objects, resolved by the first call.
pub(crate) fn imports(py: Python<'_>) -> PyResult<&'static Imports> {
    if let Some(imports) = IMPORTS.get(py) {
        return Ok(imports);
    }
    resolve_imports(py)
}

#[cold]
fn resolve_imports(py: Python<'_>) -> PyResult<&'static Imports> {
    let fresh = Imports::resolve(py)?;
    // Another thread may have been first, in which case its objects are the same ones.
    IMPORTS.set(py, fresh);
    tensors::learn(py);
    Ok(IMPORTS
        .get(py)
        .expect("the cell was filled by the line above or before it"))
}

/// A name of that module.
#[cold]
pub(crate) fn common_attribute<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    primitives(py, "common")?.getattr(name)
}

/// Calls the Python twin of a primitive with the same arguments: a primitive leaves to it what is
/// not plain, and failures, so that their texts stand in one place.
#[cold]
pub(crate) fn from_twin<'py>(
    py: Python<'py>,
    stem: &str,
    name: &str,
    args: impl pyo3::call::PyCallArgs<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    primitives(py, stem)?.getattr(name)?.call1(args)
}

/// The Python module of the primitives of that stem: `tensordict.primitives.<stem>`.
#[cold]
pub(crate) fn primitives<'py>(py: Python<'py>, stem: &str) -> PyResult<Bound<'py, PyModule>> {
    py.import(format!("tensordict.primitives.{stem}"))
}
