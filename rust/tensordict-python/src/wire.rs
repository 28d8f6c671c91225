//! The layout of a collection that is sent, and its leaves copied to and from one buffer.
//!
//! What is not the plain case (a collection that is not dense, a tensor with gaps or on a device) is left to
//! `tensordict.distributed.plans`, which asks torch.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use crate::container;
use crate::ffi::{self, RecursionGuard};
use crate::imports::{Imports, imports};
use crate::storage::dlpack::DataType;
use crate::tensors::Tensor;

/// A tensor whose bytes lie on the CPU in a row, with the signs that are in memory.
fn as_bytes<'a, 'py>(object: &'a Bound<'py, PyAny>) -> Option<Tensor<'a, 'py>> {
    let tensor = Tensor::of(object)?;
    let signs = tensor.signs()?;
    let is_plain =
        tensor.is_on_cpu()? && tensor.is_contiguous()? && !signs.negated && !signs.conjugated;
    is_plain.then_some(tensor)
}

/// Adds keys, dtypes and shapes of the plain container `td`; false where something in it has no
/// plain bytes.
fn describe<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    text: &mut Vec<u8>,
    leaves: &mut ffi::Leaves<'py>,
) -> PyResult<bool> {
    let _guard = RecursionGuard::enter(td.py())?;
    text.push(b'{');
    for (key, value) in ffi::dict_pairs(&container::entries(imports, td)?) {
        let Ok(key) = key.cast_into_exact::<PyString>() else {
            return Ok(false);
        };
        let key = key.to_str()?;
        text.extend_from_slice(&key.len().to_le_bytes());
        text.extend_from_slice(key.as_bytes());
        if container::is_plain_leaf(imports, &value) {
            let Some(tensor) = as_bytes(&value) else {
                return Ok(false);
            };
            let Some(dtype) = tensor.dtype() else {
                return Ok(false);
            };
            text.push(b't');
            text.extend_from_slice(&dtype.to_le_bytes());
            let is_written = tensor.with_shape(|shape| {
                text.extend_from_slice(&shape.len().to_le_bytes());
                for length in shape {
                    text.extend_from_slice(&length.to_le_bytes());
                }
            });
            if is_written.is_none() {
                return Ok(false);
            }
            leaves.push(value);
        } else if !container::is_plain(imports, &value) || !describe(imports, &value, text, leaves)?
        {
            return Ok(false);
        }
    }
    text.push(b'}');
    Ok(true)
}

/// Describes a plain collection in bytes that equal those of another one of the same keys in the
/// same order, dtypes and shapes, and returns its leaves; None if it is not plain.
#[pyfunction]
fn wire_layout<'py>(
    td: &Bound<'py, PyAny>,
) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyList>)>> {
    let py = td.py();
    let imports = imports(py)?;
    if !container::is_plain(imports, td) {
        return Ok(None);
    }
    let mut text = Vec::with_capacity(256);
    let mut leaves = ffi::Leaves::new();
    if !describe(imports, td, &mut text, &mut leaves)? {
        return Ok(None);
    }
    let leaves = ffi::list_of(py, &mut leaves)?;
    Ok(Some((PyBytes::new(py, &text), leaves)))
}

/// The first byte of a tensor, and how many there are.
fn place_of(object: &Bound<'_, PyAny>, known: &mut (i32, usize)) -> Option<(*mut u8, usize)> {
    let tensor = as_bytes(object)?;
    let dtype = tensor.dtype()?;
    if known.0 != dtype {
        *known = (dtype, DataType::of(tensor.dtype_name()?)?.num_bytes());
    }
    let count = tensor.with_shape(|shape| {
        let mut count = 1_usize;
        for &length in shape {
            count = count.checked_mul(usize::try_from(length).ok()?)?;
        }
        Some(count)
    })??;
    let num_bytes = count.checked_mul(known.1)?;
    let data = tensor.data()?.cast_mut();
    (num_bytes == 0 || !data.is_null()).then_some((data, num_bytes))
}

/// Copies tensors to their places in a buffer, or with `unpack` from there.
///
/// Returns false, and has copied nothing, where a tensor has no plain bytes, or its place is not in the
/// buffer.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "made of Python's list")]
fn copy_parts(
    parts: Vec<Bound<'_, PyAny>>,
    starts: Vec<usize>,
    buffer: &Bound<'_, PyAny>,
    unpack: bool,
) -> bool {
    let mut known = (-1, 0);
    let Some((base, length)) = place_of(buffer, &mut known) else {
        return false;
    };
    if parts.len() != starts.len() {
        return false;
    }
    let mut places = Vec::with_capacity(parts.len());
    for (part, &start) in parts.iter().zip(&starts) {
        let Some((data, num_bytes)) = place_of(part, &mut known) else {
            return false;
        };
        if start.checked_add(num_bytes).is_none_or(|end| end > length) {
            return false;
        }
        if num_bytes > 0 {
            places.push((data, start, num_bytes));
        }
    }
    for (data, start, num_bytes) in places {
        // SAFETY: the tensors are held by the list, and their memory is theirs while the interpreter's lock
        // is held, as nothing runs Python here; both ends were compared with the lengths; `copy`
        // allows a tensor that lies in the buffer.
        unsafe {
            let place = base.add(start);
            let (from, to) = if unpack { (place, data) } else { (data, place) };
            std::ptr::copy(from.cast_const(), to, num_bytes);
        }
    }
    true
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(wire_layout, module)?)?;
    module.add_function(wrap_pyfunction!(copy_parts, module)?)
}
