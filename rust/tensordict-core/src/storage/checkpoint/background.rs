//! A step that a thread writes, which knows nothing of Python.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::super::job::{Job, Progress};
use super::super::{StorageError, StorageResult};
use super::staging::Memory;
use super::step::{Step, save};

/// The outcome of a save.
#[derive(Debug, Default)]
struct State {
    is_done: bool,
    error: Option<StorageError>,
}

/// A save on its way, shared with whoever waits for it.
#[derive(Debug, Default)]
pub struct Background {
    state: Mutex<State>,
    ended: Condvar,
    progress: Progress,
}

/// The orders for writing a step.
#[derive(Debug)]
pub struct Order {
    /// The step, whose tensors are in the staging memory.
    pub step: Step,
    /// The memory that holds the bytes.
    pub memory: Arc<Memory>,
    /// The most threads; whether the step is durable; whether checksums are taken.
    pub how: (usize, bool, bool),
    /// The save that comes before.
    pub after: Option<Arc<Background>>,
}

impl Background {
    /// Has a step written by a thread of its own, after the one before.
    ///
    /// # Errors
    /// There are no more threads to be had.
    pub fn start(order: Order) -> io::Result<Arc<Self>> {
        let made = Arc::new(Self::default());
        let shared = Arc::clone(&made);
        thread::Builder::new()
            .name("tensordict-checkpoint".to_owned())
            .spawn(move || {
                // Whoever waits is told also of a defect of ours.
                let saved = catch_unwind(AssertUnwindSafe(|| shared.write(order)));
                let saved = saved.unwrap_or_else(|_| {
                    let text = "the thread that writes the checkpoint has panicked";
                    Err(StorageError::io("checkpoint", io::Error::other(text)))
                });
                let mut state = shared.state();
                state.error = saved.err();
                state.is_done = true;
                drop(state);
                shared.ended.notify_all();
            })?;
        Ok(made)
    }

    fn write(&self, order: Order) -> StorageResult<()> {
        let Order {
            step,
            memory,
            how: (threads, is_durable, has_checksums),
            after,
        } = order;
        if let Some(before) = after {
            before.wait(None);
        }
        let job = Job {
            threads,
            is_durable,
            has_checksums,
            ..Job::new(&self.progress)
        };
        let saved = save(&job, &step);
        drop(memory);
        saved
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the progress of the save.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Returns whether it has ended, well or not.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state().is_done
    }

    /// Waits for its end, or for so long; whether it has ended.
    pub fn wait(&self, limit: Option<Duration>) -> bool {
        let until = limit.map(|limit| Instant::now() + limit);
        let mut state = self.state();
        while !state.is_done {
            let Some(until) = until else {
                state = self
                    .ended
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.ended.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.is_done
    }

    /// Takes why it failed, which is said once.
    pub fn take_error(&self) -> Option<StorageError> {
        self.state().error.take()
    }
}
