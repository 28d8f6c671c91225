//! A level of a save, held while its metadata is changed.

use std::path::PathBuf;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};
use tensordict_core::storage::StorageError;
use tensordict_core::storage::io::Disk;
use tensordict_core::storage::json::{self, Value};
use tensordict_core::storage::lock::LockedLevel;
use tensordict_core::storage::metadata::{Entry, LeafMeta};

use super::exception;

/// A level that no other thread or process changes inside the `with` statement.
#[pyclass(module = "tensordict._rust", name = "LockedLevel", frozen)]
pub(crate) struct PyLockedLevel {
    directory: PathBuf,
    held: parking_lot::Mutex<Option<LockedLevel<'static>>>,
}

#[pymethods]
impl PyLockedLevel {
    #[new]
    fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            held: parking_lot::Mutex::new(None),
        }
    }

    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let py = slf.py();
        let this = slf.get();
        let level = loop {
            match py.detach(|| LockedLevel::wait(Disk::REAL, &this.directory)) {
                // A signal: its handler may raise, and end the wait.
                Err(error) if is_interrupted(&error) => py.check_signals()?,
                level => break level.map_err(|error| exception(py, &error))?,
            }
        };
        *this.held.lock() = Some(level);
        Ok(slf.clone())
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, _raised: &Bound<'_, PyTuple>) {
        let held = self.held.lock().take();
        drop(held);
    }

    /// Returns the kind of the entry of a key, as the metadata says: None, the class of a
    /// collection, or the dtype, shape, and whether it is nested, of a leaf.
    fn entry<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.with(py, |level| level.entry(key))? {
            None => Ok(None),
            Some(Entry::Child(name)) => Ok(Some(PyString::new(py, &name).into_any())),
            Some(Entry::Leaf(leaf)) => {
                let said = (&*leaf.dtype, leaf.shape.to_vec(), leaf.is_nested);
                Ok(Some(said.into_pyobject(py)?.into_any()))
            }
        }
    }

    /// Adds the entry of a leaf, after everything that is there. `shape` is that of the table of
    /// sizes where the leaf is nested.
    #[pyo3(signature = (key, dtype, shape, is_nested = false))]
    fn add_leaf(
        &self,
        py: Python<'_>,
        key: &str,
        dtype: String,
        shape: Vec<i64>,
        is_nested: bool,
    ) -> PyResult<()> {
        let entry = Entry::Leaf(LeafMeta {
            device: "cpu".into(),
            shape: shape.into(),
            dtype: dtype.into(),
            is_nested,
        });
        self.with(py, |level| level.add(key, &entry))
    }

    /// Adds the entry of a nested collection, after everything that is there.
    fn add_child(&self, py: Python<'_>, key: &str, class_name: String) -> PyResult<()> {
        let entry = Entry::Child(class_name);
        self.with(py, |level| level.add(key, &entry))
    }

    /// Gives fields of the metadata their values as JSON, or removes those that have None.
    fn set_fields(&self, py: Python<'_>, fields: Vec<(String, Option<String>)>) -> PyResult<()> {
        let parsed: Result<Vec<(String, Option<Value>)>, _> = fields
            .into_iter()
            .map(|(name, text)| Ok((name, text.map(|text| json::parse(&text)).transpose()?)))
            .collect();
        let parsed = parsed.map_err(|error: json::SyntaxError| {
            PyRuntimeError::new_err(format!("a field is not JSON: {}", error.message))
        })?;
        self.with(py, |level| level.set_fields(parsed))
    }
}

impl PyLockedLevel {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&LockedLevel<'static>) -> Result<T, StorageError> + Send,
    ) -> PyResult<T> {
        let done = py.detach(|| self.held.lock().as_ref().map(work));
        let Some(done) = done else {
            return Err(PyRuntimeError::new_err("the level is not locked"));
        };
        done.map_err(|error| exception(py, &error))
    }
}

fn is_interrupted(error: &StorageError) -> bool {
    matches!(error, StorageError::Io { source, .. }
        if source.kind() == std::io::ErrorKind::Interrupted)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyLockedLevel>()
}
