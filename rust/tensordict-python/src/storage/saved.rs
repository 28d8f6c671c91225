//! The tensors over the files of a save, given out to the containers that they belong to.

use std::borrow::Cow;
use std::sync::Arc;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::{PyDict, PyList, PyString};
use pyo3::{PyTraverseError, PyVisit};
use tensordict_core::storage::map::Mapping;
use tensordict_core::storage::metadata::Shape;

use super::archive::written_tensor;
use super::leaves::tensor_class;
use crate::ffi::PausedCollector;

/// The tensors over the files of a save, in the order in which the leaves were added to its plan.
///
/// Containers take theirs in the order in which they added them: one by one as from any iterator, or
/// all leaves of a level at once. Those over an archive are made when they are taken.
#[pyclass(module = "tensordict._rust", frozen)]
pub(crate) struct SavedTensors {
    left: parking_lot::Mutex<Left>,
}

/// A tensor over a file.
pub(super) struct Saved {
    pub(super) tensor: Py<PyAny>,
    /// Whether it has the values of a nested tensor, flat.
    pub(super) is_flat: bool,
}

/// Where the bytes of a leaf are in an archive.
pub(super) struct Place {
    pub(super) offset: u64,
    pub(super) dtype: Cow<'static, str>,
    pub(super) shape: Shape,
    /// Whether they are the values of a nested tensor, flat.
    pub(super) is_flat: bool,
}

/// What has not been taken yet.
enum Left {
    Made(std::vec::IntoIter<Saved>),
    InArchive(Arc<Mapping>, std::vec::IntoIter<Place>),
}

impl Left {
    fn nothing() -> Self {
        Self::Made(Vec::new().into_iter())
    }

    fn next(&mut self, py: Python<'_>) -> PyResult<Option<Saved>> {
        match self {
            Self::Made(left) => Ok(left.next()),
            Self::InArchive(mapping, left) => left
                .next()
                .map(|place| {
                    let made =
                        written_tensor(py, mapping, place.offset, &place.dtype, &place.shape)?;
                    Ok(Saved {
                        tensor: made.unbind(),
                        is_flat: place.is_flat,
                    })
                })
                .transpose(),
        }
    }
}

#[pymethods]
impl SavedTensors {
    /// Of tensors, and of whether each has the values of a nested tensor, flat.
    #[new]
    fn new(tensors: Vec<(Py<PyAny>, bool)>) -> Self {
        let tensors = tensors.into_iter();
        Self::made(
            tensors
                .map(|(tensor, is_flat)| Saved { tensor, is_flat })
                .collect(),
        )
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.with_left(|left| Ok(left.next(py)?.map(|saved| saved.tensor)))
    }

    /// The entries of a level with its tensors replaced by those over the files: `(entries, flat,
    /// others)`, of which `flat` are the keys of nested tensors, whose values come flat, and `others`
    /// those of what is no tensor.
    fn take_level<'py>(
        &self,
        entries: &Bound<'py, PyDict>,
    ) -> PyResult<(Bound<'py, PyDict>, Bound<'py, PyList>, Bound<'py, PyList>)> {
        let py = entries.py();
        let mut pairs = Vec::with_capacity(entries.len());
        // Python can run below, so the pairs are owned.
        with_critical_section(entries, || -> PyResult<()> {
            for (key, value) in entries {
                pairs.push((key.cast_into::<PyString>()?, value));
            }
            Ok(())
        })?;
        let tensor = tensor_class(py)?;
        let taken = PyDict::new(py);
        let (flat, others) = (PyList::empty(py), PyList::empty(py));
        let _paused = PausedCollector::new(py);
        self.with_left(|left| {
            for (key, value) in pairs {
                if !value.is_instance(tensor)? {
                    others.append(&key)?;
                    taken.set_item(key, value)?;
                    continue;
                }
                let Some(saved) = left.next(py)? else {
                    let message = "a leaf was added to the container while it was saved";
                    return Err(PyRuntimeError::new_err(message));
                };
                if saved.is_flat {
                    flat.append(&key)?;
                }
                taken.set_item(key, saved.tensor)?;
            }
            Ok(())
        })?;
        Ok((taken, flat, others))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Some(left) = self.left.try_lock()
            && let Left::Made(left) = &*left
        {
            for saved in left.as_slice() {
                visit.call(&saved.tensor)?;
            }
        }
        Ok(())
    }

    fn __clear__(&self) {
        let left = std::mem::replace(&mut *self.left.lock(), Left::nothing());
        drop(left);
    }
}

impl SavedTensors {
    /// Of tensors that are there.
    pub(super) fn made(tensors: Vec<Saved>) -> Self {
        Self {
            left: parking_lot::Mutex::new(Left::Made(tensors.into_iter())),
        }
    }

    /// Of the bytes of an archive.
    pub(super) fn in_archive(mapping: Mapping, places: Vec<Place>) -> Self {
        let left = Left::InArchive(Arc::new(mapping), places.into_iter());
        Self {
            left: parking_lot::Mutex::new(left),
        }
    }

    /// What `take` makes of what is left, which is taken out meanwhile: Python may run.
    fn with_left<T>(&self, take: impl FnOnce(&mut Left) -> PyResult<T>) -> PyResult<T> {
        let mut left = std::mem::replace(&mut *self.left.lock(), Left::nothing());
        let taken = take(&mut left);
        *self.left.lock() = left;
        taken
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<SavedTensors>()
}
