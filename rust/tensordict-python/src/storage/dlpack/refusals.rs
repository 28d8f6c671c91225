//! The tensors that torch does not hand out as memory, told without asking it.
//!
//! A refusal costs milliseconds: torch collects and names the frames of a C++ exception. So the
//! first one of a kind is remembered, and from then on a glance of some nanoseconds tells tensors
//! of that kind. Programs that never meet the kind pay for one load of an integer.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::ffi::Resolved;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// It is wrapped by a function transform, such as `torch.vmap`.
const TRANSFORMED: u8 = 1;
/// It has no memory.
const META: u8 = 2;
/// It is sparse, or laid out otherwise.
const NOT_STRIDED: u8 = 4;
/// Its values need a scale.
const QUANTIZED: u8 = 8;
/// It is of a subclass that has no memory of its own, such as that of fake tensors.
const SUBCLASS: u8 = 16;

static SEEN: AtomicU8 = AtomicU8::new(0);

/// The subclasses of [`SUBCLASS`].
static SUBCLASSES: Mutex<Vec<Py<PyType>>> = Mutex::new(Vec::new());

static PEEK: Resolved<Py<PyAny>> = Resolved::new();

/// Returns whether a refusal of this kind of tensor has been met before.
pub(super) fn is_expected(tensor: &Bound<'_, PyAny>) -> bool {
    let seen = SEEN.load(Ordering::Relaxed);
    seen != 0
        && ((seen & TRANSFORMED != 0 && is_in_transform(tensor.py()))
            || (seen & META != 0 && is_meta(tensor))
            || (seen & NOT_STRIDED != 0 && !is_strided(tensor))
            || (seen & QUANTIZED != 0 && is_quantized(tensor))
            || (seen & SUBCLASS != 0 && is_listed(tensor)))
}

/// Remembers what kind of tensor has been refused.
pub(super) fn learn(tensor: &Bound<'_, PyAny>) {
    let kind = if is_in_transform(tensor.py()) {
        TRANSFORMED
    } else if is_meta(tensor) {
        META
    } else if !is_strided(tensor) {
        NOT_STRIDED
    } else if is_quantized(tensor) {
        QUANTIZED
    } else if list(tensor) {
        SUBCLASS
    } else {
        return;
    };
    SEEN.fetch_or(kind, Ordering::Relaxed);
}

fn is_in_transform(py: Python<'_>) -> bool {
    let peek = PEEK.get_or_try_init(py, || {
        let functorch = py.import("torch._C._functorch")?;
        functorch
            .getattr("peek_interpreter_stack")
            .map(Bound::unbind)
    });
    peek.and_then(|peek| peek.bind(py).call0().map(|top| !top.is_none()))
        .unwrap_or(false)
}

fn is_meta(tensor: &Bound<'_, PyAny>) -> bool {
    flag(tensor.getattr(intern!(tensor.py(), "is_meta")))
}

fn is_quantized(tensor: &Bound<'_, PyAny>) -> bool {
    flag(tensor.getattr(intern!(tensor.py(), "is_quantized")))
}

fn flag(attribute: PyResult<Bound<'_, PyAny>>) -> bool {
    attribute
        .and_then(|value| value.is_truthy())
        .unwrap_or(false)
}

fn is_strided(tensor: &Bound<'_, PyAny>) -> bool {
    static STRIDED: Resolved<Py<PyAny>> = Resolved::new();
    let py = tensor.py();
    let strided = STRIDED.get_or_try_init(py, || {
        py.import("torch")?.getattr("strided").map(Bound::unbind)
    });
    match (strided, tensor.getattr(intern!(py, "layout"))) {
        (Ok(strided), Ok(layout)) => layout.is(strided),
        _ => true,
    }
}

fn is_listed(tensor: &Bound<'_, PyAny>) -> bool {
    let class = tensor.get_type();
    SUBCLASSES
        .lock()
        .is_ok_and(|listed| listed.iter().any(|one| one.is(&class)))
}

/// Lists the class of a tensor, unless most tensors of that class have memory.
fn list(tensor: &Bound<'_, PyAny>) -> bool {
    let class = tensor.get_type();
    let is_common = class
        .getattr(intern!(tensor.py(), "__module__"))
        .and_then(|module| Ok(module.eq("torch")? || module.eq("torch.nn.parameter")?))
        .unwrap_or(true);
    if is_common {
        return false;
    }
    match SUBCLASSES.lock() {
        Ok(mut listed) => {
            if !listed.iter().any(|one| one.is(&class)) {
                listed.push(class.unbind());
            }
            true
        }
        Err(_) => false,
    }
}
