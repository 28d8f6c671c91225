//! The layout of a collection that is sent, and its leaves copied to and from one buffer.
//!
//! Other cases (a collection that is not dense, a tensor with gaps or on a device) are left to
//! `tensordict.distributed.plans`, which asks torch.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use crate::collection::{self, has_signs};
use crate::ffi::{self, RecursionGuard};
use crate::imports::{Imports, imports};
use crate::shortcuts::tensors::Tensor;
use crate::storage::dlpack::DataType;

/// A tensor whose bytes lie on the CPU in a row, with the signs that are in memory.
fn as_bytes<'a, 'py>(object: &'a Bound<'py, PyAny>) -> Option<Tensor<'a, 'py>> {
    let tensor = Tensor::of(object)?;
    let is_plain = tensor.is_on_cpu()?
        && tensor.is_contiguous()?
        && !has_signs(imports(object.py()).ok()?, &tensor)?;
    is_plain.then_some(tensor)
}

/// Adds a number in seven bits a byte, of which only the last one is below 128: small numbers are
/// one byte, so that a text is hashed soon.
fn push_number(text: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        #[expect(clippy::cast_possible_truncation, reason = "the low bits are meant")]
        text.push(number as u8 | 0x80);
        number >>= 7;
    }
    #[expect(clippy::cast_possible_truncation, reason = "it is below 128")]
    text.push(number as u8);
}

/// Adds keys, dtypes and shapes of the plain tensordict `td`; false where something in it has no
/// plain bytes.
fn describe<'py>(
    imports: &Imports,
    td: &Bound<'py, PyAny>,
    text: &mut Vec<u8>,
    leaves: &mut ffi::Leaves<'py>,
) -> PyResult<bool> {
    let _guard = RecursionGuard::enter(td.py())?;
    text.push(b'{');
    for (key, value) in ffi::dict_pairs(&collection::entries(imports, td)?) {
        let Ok(key) = key.cast_into_exact::<PyString>() else {
            return Ok(false);
        };
        let key = key.to_str()?;
        push_number(text, key.len() as u64);
        text.extend_from_slice(key.as_bytes());
        if collection::is_plain_leaf(imports, &value) {
            let Some(tensor) = as_bytes(&value) else {
                return Ok(false);
            };
            let Some(dtype) = tensor.dtype() else {
                return Ok(false);
            };
            text.push(b't');
            push_number(text, u64::from(dtype.cast_unsigned()));
            let is_written = tensor.with_shape(|shape| {
                push_number(text, shape.len() as u64);
                for length in shape {
                    push_number(text, length.cast_unsigned());
                }
            });
            if is_written.is_none() {
                return Ok(false);
            }
            leaves.push(value);
        } else if !collection::is_plain(imports, &value)
            || !describe(imports, &value, text, leaves)?
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
    if !collection::is_plain(imports, td) {
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

/// Describes a plain collection as [`wire_layout`] does, with the address of each leaf, in eight bytes
/// each, in the place of the leaves; None if it is not plain.
#[pyfunction]
fn wire_places<'py>(td: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let py = td.py();
    let imports = imports(py)?;
    if !collection::is_plain(imports, td) {
        return Ok(None);
    }
    let mut text = Vec::with_capacity(256);
    let mut leaves = ffi::Leaves::new();
    if !describe(imports, td, &mut text, &mut leaves)? {
        return Ok(None);
    }
    let leaves = ffi::list_of(py, &mut leaves)?;
    let mut places = Vec::with_capacity(leaves.len() * size_of::<usize>());
    for leaf in leaves.iter() {
        let Some(data) = Tensor::of(&leaf).and_then(|tensor| tensor.data()) else {
            return Ok(None);
        };
        places.extend_from_slice(&data.addr().to_ne_bytes());
    }
    let found = (PyBytes::new(py, &text), PyBytes::new(py, &places));
    found.into_pyobject(py).map(Some)
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

/// The places of leaves in one buffer, which are the same for all collections of a structure.
#[pyclass(frozen, name = "Packing", module = "tensordict._rust")]
struct PyPacking {
    /// The number of a leaf in its list, and the place of its first byte in the buffer.
    places: Vec<(usize, usize)>,
}

#[pymethods]
impl PyPacking {
    #[new]
    fn new(leaves: Vec<usize>, starts: Vec<usize>) -> PyResult<Self> {
        if leaves.len() != starts.len() {
            return Err(PyValueError::new_err(format!(
                "{} leaves have {} places: there is one for each of them",
                leaves.len(),
                starts.len()
            )));
        }
        let places = leaves.into_iter().zip(starts).collect();
        Ok(Self { places })
    }

    /// Copies leaves of a list to the buffer, or with `unpack` from there.
    ///
    /// Returns false, and has copied nothing, where a tensor has no plain bytes, or its place is not in
    /// the buffer.
    fn copy(&self, leaves: &Bound<'_, PyList>, buffer: &Bound<'_, PyAny>, unpack: bool) -> bool {
        self.bytes(leaves, buffer).is_some_and(|(base, bytes)| {
            for (data, start, num_bytes) in bytes {
                // SAFETY: the tensors are held by the list, and their memory is theirs while the
                // interpreter's lock is held, as nothing runs Python here; both ends were compared
                // with the lengths; `copy` allows a tensor that lies in the buffer.
                unsafe {
                    let place = base.add(start);
                    let (from, to) = if unpack { (place, data) } else { (data, place) };
                    std::ptr::copy(from.cast_const(), to, num_bytes);
                }
            }
            true
        })
    }
}

/// The first byte of a tensor, where it begins in the buffer, and its length.
type Bytes = (*mut u8, usize, usize);

impl PyPacking {
    /// The first byte of the buffer, and what is copied.
    fn bytes(
        &self,
        leaves: &Bound<'_, PyList>,
        buffer: &Bound<'_, PyAny>,
    ) -> Option<(*mut u8, Vec<Bytes>)> {
        let mut known = (-1, 0);
        let (base, length) = place_of(buffer, &mut known)?;
        let mut found = Vec::with_capacity(self.places.len());
        for &(number, start) in &self.places {
            let leaf = leaves.get_item(number).ok()?;
            let (data, num_bytes) = place_of(&leaf, &mut known)?;
            if start.checked_add(num_bytes)? > length {
                return None;
            }
            if num_bytes > 0 {
                found.push((data, start, num_bytes));
            }
        }
        Some((base, found))
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(wire_layout, module)?)?;
    module.add_function(wrap_pyfunction!(wire_places, module)?)?;
    module.add_class::<PyPacking>()
}
