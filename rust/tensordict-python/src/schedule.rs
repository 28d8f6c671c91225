//! The schedule of tasks and workers, for Python.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use pyo3::exceptions::{PyIndexError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tensordict_core::schedule::{Schedule, now_ns};

/// The tasks of a call, in memory that its workers share.
#[pyclass(module = "tensordict._rust", name = "Schedule", frozen)]
pub(crate) struct PySchedule {
    schedule: Schedule,
}

#[pymethods]
impl PySchedule {
    #[new]
    fn new(num_tasks: u32, num_workers: u32) -> PyResult<Self> {
        if num_workers == 0 {
            return Err(PyValueError::new_err(
                "the number of workers must be positive",
            ));
        }
        let schedule = Schedule::in_memory(num_tasks, num_workers)?;
        Ok(Self { schedule })
    }

    /// Opens the block of a descriptor, which belongs to the result from now on.
    #[staticmethod]
    fn from_descriptor(descriptor: RawFd) -> PyResult<Self> {
        if descriptor < 0 {
            return Err(PyOSError::new_err("a descriptor is not negative"));
        }
        // SAFETY: the caller gives the descriptor away, as `multiprocessing` does with one that
        // was received; a number that is not open is refused by the first system call.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
        let schedule = Schedule::open(file)?;
        Ok(Self { schedule })
    }

    /// The descriptor of the file, to be sent.
    fn fileno(&self) -> RawFd {
        self.schedule.file().as_raw_fd()
    }

    /// Takes the next task for a worker, `None` if all are taken or the call was cancelled.
    fn next(&self, worker: u32) -> PyResult<Option<u32>> {
        self.checked_worker(worker)?;
        Ok(self.schedule.next(worker, now_ns()))
    }

    /// Says how a task of a worker ended.
    fn finish(&self, worker: u32, task: u32, state: u8) -> PyResult<()> {
        self.checked_worker(worker)?;
        if task >= self.schedule.num_tasks() {
            return Err(PyIndexError::new_err(format!("there is no task {task}")));
        }
        self.schedule.finish(worker, task, state);
        Ok(())
    }

    /// The task that a worker is at, and for how many seconds.
    fn running(&self, worker: u32) -> PyResult<Option<(u32, f64)>> {
        self.checked_worker(worker)?;
        let elapsed = |since: u64| Duration::from_nanos(now_ns().saturating_sub(since));
        let running = self.schedule.running(worker);
        Ok(running.map(|(task, since)| (task, elapsed(since).as_secs_f64())))
    }

    /// A byte for each task, 0 until it is finished.
    fn states<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.schedule.states())
    }

    /// Lets every worker end after the task that it is at.
    fn cancel(&self) {
        self.schedule.cancel();
    }

    /// The number that was published for the workers, 0 before.
    fn ready(&self) -> u64 {
        self.schedule.ready()
    }

    /// Publishes a number, after everything that was written before.
    fn set_ready(&self, number: u64) {
        self.schedule.set_ready(number);
    }
}

impl PySchedule {
    fn checked_worker(&self, worker: u32) -> PyResult<()> {
        if worker < self.schedule.num_workers() {
            return Ok(());
        }
        Err(PyIndexError::new_err(format!(
            "there is no worker {worker}"
        )))
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PySchedule>()
}
