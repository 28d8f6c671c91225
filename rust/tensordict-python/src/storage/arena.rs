//! Values that processes share, for Python: slots of bytes in a file without a name.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use pyo3::exceptions::{PyIndexError, PyOSError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use tensordict_core::storage::arena::Arena;

use super::exception;

/// Slots of bytes that every process sees which holds the file open.
#[pyclass(module = "tensordict._rust", name = "SharedValues", frozen)]
pub(crate) struct SharedValues {
    arena: Arena,
}

#[pymethods]
impl SharedValues {
    #[new]
    fn new(py: Python<'_>, values: Vec<PyBackedBytes>) -> PyResult<Self> {
        let arena = py.detach(move || Arena::in_memory(&values));
        let arena = arena.map_err(|error| exception(py, &error))?;
        Ok(Self { arena })
    }

    /// Opens the file of a descriptor, which belongs to the result from now on.
    #[staticmethod]
    fn from_descriptor(py: Python<'_>, descriptor: RawFd) -> PyResult<Self> {
        if descriptor < 0 {
            return Err(PyOSError::new_err("a descriptor is not negative"));
        }
        // SAFETY: the caller gives the descriptor away, as `multiprocessing` does with one that
        // was detached; a number that is not open is refused by the first system call.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
        let arena = Arena::open_shared(file).map_err(|error| exception(py, &error))?;
        Ok(Self { arena })
    }

    /// The descriptor of the file, to be duplicated.
    fn fileno(&self) -> RawFd {
        self.arena.file().as_raw_fd()
    }

    fn __len__(&self) -> usize {
        self.arena.num_slots()
    }

    /// A number that is another one once a value of these slots is.
    #[pyo3(signature = (slot, count = 1))]
    fn generation(&self, slot: usize, count: usize) -> PyResult<u64> {
        Ok(self.arena.generation_of(self.checked(slot, count)?))
    }

    /// The generation of a slot and its bytes.
    fn read<'py>(&self, py: Python<'py>, slot: usize) -> PyResult<(u64, Bound<'py, PyBytes>)> {
        self.checked(slot, 1)?;
        let read = py.detach(|| self.arena.read(slot));
        let (generation, bytes) = read.map_err(|error| exception(py, &error))?;
        Ok((generation, PyBytes::new(py, &bytes)))
    }

    /// Gives a slot other bytes; its generation.
    fn write(&self, py: Python<'_>, slot: usize, value: PyBackedBytes) -> PyResult<u64> {
        self.checked(slot, 1)?;
        let written = py.detach(move || self.arena.write(slot, &value));
        written.map_err(|error| exception(py, &error))
    }
}

impl SharedValues {
    fn checked(&self, slot: usize, count: usize) -> PyResult<Range<usize>> {
        match slot.checked_add(count) {
            Some(end) if end <= self.arena.num_slots() => Ok(slot..end),
            _ => Err(PyIndexError::new_err(format!("there is no slot {slot}"))),
        }
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<SharedValues>()
}
