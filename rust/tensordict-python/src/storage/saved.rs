//! The tensors over the files of a save, given out to the collections that they belong to.

use std::collections::VecDeque;
use std::sync::Arc;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use pyo3::{PyTraverseError, PyVisit};
use tensordict_core::storage::metadata::LeafMeta;

use super::archive::{Written, written};
use super::leaves::tensor_class;
use super::mapped::Recorded;
use crate::ffi::{PausedCollector, copy_dict, replace_entries};

/// The tensors over the files of a save, in the order in which the leaves were added to its plan.
///
/// Collections take theirs in the order in which they added them: one by one as from any iterator, or
/// all leaves of a level at once. Those over an archive are made when they are taken.
#[pyclass(module = "tensordict._rust", frozen)]
pub(crate) struct SavedTensors {
    left: parking_lot::Mutex<Left>,
    /// The tensors that were saved, where they are to be compared: while files are written others can
    /// change the collections, whose keys would get wrong tensors then.
    originals: parking_lot::Mutex<Originals>,
}

/// The tensors that were saved and how many of them have had their turn.
#[derive(Default)]
struct Originals {
    tensors: Vec<Py<PyAny>>,
    compared: usize,
}

/// A tensor over a file.
pub(super) struct Saved {
    pub(super) tensor: Py<PyAny>,
    /// True if it has the values of a nested tensor, flat.
    pub(super) is_flat: bool,
}

/// The place of the bytes of a leaf in an archive.
pub(super) struct Place {
    pub(super) offset: u64,
    pub(super) meta: Arc<LeafMeta>,
    /// The number of values of a nested tensor, which lie flat.
    pub(super) num_flat: Option<i64>,
}

impl Place {
    /// The shape of the tensor that is made first.
    pub(super) fn shape(&self) -> &[i64] {
        match &self.num_flat {
            Some(num_items) => std::slice::from_ref(num_items),
            None => &self.meta.shape,
        }
    }
}

/// The number of tensors over an archive that are prepared at once.
const BATCH_TENSORS: usize = 256;

/// The tensors over an archive that are not made yet.
struct InArchive {
    mapping: Arc<Recorded>,
    left: std::vec::IntoIter<Place>,
    prepared: VecDeque<(Written, bool)>,
}

impl InArchive {
    fn next(&mut self, py: Python<'_>) -> PyResult<Option<Saved>> {
        if self.prepared.is_empty() {
            let batch: Vec<Place> = self.left.by_ref().take(BATCH_TENSORS).collect();
            let are_flat: Vec<bool> = batch.iter().map(|place| place.num_flat.is_some()).collect();
            let prepared = written(&self.mapping, batch)?;
            self.prepared.extend(prepared.into_iter().zip(are_flat));
        }
        let Some((next, is_flat)) = self.prepared.pop_front() else {
            return Ok(None);
        };
        let tensor = next.make(py)?.unbind();
        Ok(Some(Saved { tensor, is_flat }))
    }
}

/// The tensors that have not been taken yet.
enum Left {
    Made(std::vec::IntoIter<Saved>),
    InArchive(InArchive),
}

impl Left {
    fn nothing() -> Self {
        Self::Made(Vec::new().into_iter())
    }

    fn next(&mut self, py: Python<'_>) -> PyResult<Option<Saved>> {
        match self {
            Self::Made(left) => Ok(left.next()),
            Self::InArchive(left) => left.next(py),
        }
    }
}

#[pymethods]
impl SavedTensors {
    /// Takes tensors, each with true if it has the values of a nested tensor, flat.
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
        self.originals.lock().compared += 1;
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
        let tensor = tensor_class(py)?;
        let taken = copy_dict(entries)?;
        let (flat, others) = (PyList::empty(py), PyList::empty(py));
        let _paused = PausedCollector::new(py);
        self.with_left(|left| {
            replace_entries(&taken, |key, value| {
                if !value.is_instance(tensor)? {
                    others.append(key)?;
                    return Ok(None);
                }
                let next = left.next(py)?.filter(|_| self.was_saved(value));
                let Some(saved) = next else {
                    return Err(PyRuntimeError::new_err(MSG_CHANGED));
                };
                if saved.is_flat {
                    flat.append(key)?;
                }
                Ok(Some(saved.tensor.into_bound(py)))
            })
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
        if let Some(originals) = self.originals.try_lock() {
            for original in &originals.tensors {
                visit.call(original)?;
            }
        }
        Ok(())
    }

    fn __clear__(&self) {
        let left = std::mem::replace(&mut *self.left.lock(), Left::nothing());
        let originals = std::mem::take(&mut *self.originals.lock());
        drop((left, originals));
    }
}

const MSG_CHANGED: &str = "an entry was added to the collection, replaced or removed while it was \
                           saved: the save is there, and can be loaded";

impl SavedTensors {
    /// Takes tensors that are there.
    pub(super) fn made(tensors: Vec<Saved>) -> Self {
        Self::of(Left::Made(tensors.into_iter()))
    }

    fn of(left: Left) -> Self {
        Self {
            left: parking_lot::Mutex::new(left),
            originals: parking_lot::Mutex::default(),
        }
    }

    /// These, which come in the place of `originals`.
    pub(super) fn in_place_of(self, originals: Vec<Py<PyAny>>) -> Self {
        self.originals.lock().tensors = originals;
        self
    }

    /// Returns whether a tensor is the one whose turn it is. Where nothing is known, it is.
    fn was_saved(&self, tensor: &Bound<'_, PyAny>) -> bool {
        let mut originals = self.originals.lock();
        let place = originals.compared;
        originals.compared += 1;
        let original = originals.tensors.get(place);
        originals.tensors.is_empty() || original.is_some_and(|original| tensor.is(original))
    }

    /// Takes the bytes of an archive.
    pub(super) fn in_archive(mapping: Recorded, places: Vec<Place>) -> Self {
        let left = InArchive {
            mapping: Arc::new(mapping),
            left: places.into_iter(),
            prepared: VecDeque::new(),
        };
        Self::of(Left::InArchive(left))
    }

    /// Calls `take` with what is left, which is taken out meanwhile: Python may run.
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
