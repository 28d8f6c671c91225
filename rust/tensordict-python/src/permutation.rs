//! The order of the rows of an epoch, found where it is needed.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use tensordict_core::permutation::{BlockPermutation, Permutation, RowOrder};

use crate::imports::imports;
use crate::storage::dlpack::memory_of;

#[pyclass(frozen, name = "RowOrder", module = "tensordict._rust")]
struct PyRowOrder(RowOrder);

#[pymethods]
impl PyRowOrder {
    /// The order of `length` rows that belongs to the numbers of `key`: shuffled, or blocks of `block`
    /// neighbours. Without a key rows are as they are.
    #[new]
    #[pyo3(signature = (length, key=None, block=None))]
    fn new(length: u64, key: Option<Vec<u64>>, block: Option<u64>) -> PyResult<Self> {
        let order = match (key, block) {
            (_, Some(0)) => return Err(PyValueError::new_err("a block has a row")),
            (None, _) => RowOrder::InTurn(length),
            (Some(key), None) => RowOrder::Shuffled(Permutation::new(length, &key)),
            (Some(key), Some(block)) => {
                RowOrder::Blocks(BlockPermutation::new(length, block, &key))
            }
        };
        Ok(Self(order))
    }

    fn __len__(&self) -> usize {
        usize::try_from(self.0.len()).unwrap_or(usize::MAX)
    }

    /// Writes the rows at the positions from `start` on into a tensor of `int64`. After the last
    /// position comes the first.
    fn fill(&self, start: u64, out: &Bound<'_, PyAny>) -> PyResult<()> {
        imports(out.py())?;
        let memory = memory_of(out)?.filter(|memory| {
            memory.dtype == "torch.int64" && memory.is_plain() && memory.shape.len() == 1
        });
        let Some(memory) = memory else {
            return Err(PyTypeError::new_err(
                "rows are written into a plain tensor of int64 of one dim",
            ));
        };
        let count = memory.num_bytes / size_of::<i64>();
        if count > 0 && self.0.is_empty() {
            return Err(PyValueError::new_err("there is no row"));
        }
        let pointer = memory.pointer.cast_mut().cast::<[u8; size_of::<i64>()]>();
        let mut at = 0;
        self.0.each(start, count as u64, |row| {
            // SAFETY: the tensor is held and has that many numbers without gaps; nothing but torch with
            // the interpreter's lock gives it other memory.
            unsafe { pointer.add(at).write(row.to_ne_bytes()) };
            at += 1;
        });
        Ok(())
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyRowOrder>()
}
