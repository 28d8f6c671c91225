//! Rows that are copied while the caller does something else.
//!
//! The threads are of one [`Ahead`], and end with it. In the child of a fork there are none of them,
//! and a lock may be held by nobody who is there: there an [`Ahead`] and its [`Ticket`]s are left as
//! they are, and the caller makes new ones.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use super::{Backing, Leaf, RowFile, Run, gather, locked};
use crate::storage::StorageResult;

/// As [`Leaf`], and keeps the file open.
#[derive(Debug)]
pub struct OwnedLeaf {
    /// Row 0 of the source.
    pub source: *const u8,
    /// The bytes from a row of the source to the next.
    pub stride: usize,
    /// The bytes of a row.
    pub row_bytes: usize,
    /// Row 0 of the result.
    pub result: *mut u8,
    /// The file, where in it row 0 begins, and whether the mapping has stores that it does not have.
    pub file: Option<(Arc<RowFile>, u64, bool)>,
}

// SAFETY: whoever submits it says that its memory may be used by another thread.
unsafe impl Send for OwnedLeaf {}

impl OwnedLeaf {
    /// The leaf as a gather takes it.
    #[must_use]
    pub fn as_leaf(&self) -> Leaf<'_> {
        let file = self.file.as_ref();
        Leaf {
            source: self.source,
            stride: self.stride,
            row_bytes: self.row_bytes,
            result: self.result,
            backing: file.map(|&(ref file, offset, is_private)| Backing {
                file,
                offset,
                is_private,
            }),
        }
    }
}

/// Where a gather is.
enum Stage {
    Waiting,
    Running,
    /// Nobody wants it any more.
    Left,
    Done(thread::Result<StorageResult<()>>),
    /// What became of it was told.
    Told,
}

struct Slot {
    stage: Mutex<Stage>,
    changed: Condvar,
}

struct Task {
    leaves: Vec<OwnedLeaf>,
    runs: Vec<Run>,
    slot: Arc<Slot>,
}

impl Task {
    fn run(self) {
        let mut stage = locked(&self.slot.stage);
        if !matches!(*stage, Stage::Waiting) {
            return;
        }
        *stage = Stage::Running;
        drop(stage);
        let leaves: Vec<Leaf<'_>> = self.leaves.iter().map(OwnedLeaf::as_leaf).collect();
        // SAFETY: the contract of `Ahead::submit`: the memory is there until the ticket has waited.
        let work = || unsafe { gather(&leaves, &self.runs) };
        let outcome = catch_unwind(AssertUnwindSafe(work));
        *locked(&self.slot.stage) = Stage::Done(outcome);
        self.slot.changed.notify_all();
    }
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    is_closed: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Shared {
    fn serve(&self) {
        let mut queue = locked(&self.queue);
        loop {
            if let Some(task) = queue.tasks.pop_front() {
                drop(queue);
                task.run();
                queue = locked(&self.queue);
            } else if queue.is_closed {
                return;
            } else {
                queue = self
                    .changed
                    .wait(queue)
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
            }
        }
    }
}

/// Threads that copy rows, one call after the other.
pub struct Ahead {
    shared: Arc<Shared>,
    has_threads: bool,
    owner: u32,
}

impl Ahead {
    /// Starts so many threads.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared::default());
        let mut has_threads = false;
        for _ in 0..threads {
            let served = shared.clone();
            let builder = thread::Builder::new().name("tensordict-ahead".to_owned());
            has_threads |= builder.spawn(move || served.serve()).is_ok();
        }
        Self {
            shared,
            has_threads,
            owner: std::process::id(),
        }
    }

    /// Begins a gather. Without a thread, and in the child of a fork, it is done at once.
    ///
    /// # Safety
    /// That of [`gather`], until the ticket is dropped.
    #[must_use]
    pub unsafe fn submit(&self, leaves: Vec<OwnedLeaf>, runs: Vec<Run>) -> Ticket {
        let slot = Arc::new(Slot {
            stage: Mutex::new(Stage::Waiting),
            changed: Condvar::new(),
        });
        let task = Task {
            leaves,
            runs,
            slot: slot.clone(),
        };
        let owner = std::process::id();
        if self.has_threads && owner == self.owner {
            locked(&self.shared.queue).tasks.push_back(task);
            self.shared.changed.notify_one();
        } else {
            task.run();
        }
        Ticket { slot, owner }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        if std::process::id() == self.owner {
            locked(&self.shared.queue).is_closed = true;
            self.shared.changed.notify_all();
        }
    }
}

/// A gather that was begun. Dropping it waits for one that is running, and takes one back that is not.
pub struct Ticket {
    slot: Arc<Slot>,
    owner: u32,
}

impl Ticket {
    /// Whether somebody of this process works on it, or has.
    #[must_use]
    pub fn is_of_this_process(&self) -> bool {
        std::process::id() == self.owner
    }

    /// Waits until the rows are there, but not longer than that: None after it. The outcome is told
    /// once.
    ///
    /// # Errors
    /// Those of [`gather`].
    ///
    /// # Panics
    /// Where the gather did.
    pub fn wait(&self, at_most: Duration) -> Option<StorageResult<()>> {
        let stage = locked(&self.slot.stage);
        let is_open = |stage: &mut Stage| matches!(stage, Stage::Waiting | Stage::Running);
        let (mut stage, _) = self
            .slot
            .changed
            .wait_timeout_while(stage, at_most, is_open)
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if is_open(&mut stage) {
            return None;
        }
        match std::mem::replace(&mut *stage, Stage::Told) {
            Stage::Done(Ok(outcome)) => Some(outcome),
            Stage::Done(Err(panic)) => {
                drop(stage);
                resume_unwind(panic)
            }
            _ => Some(Ok(())),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.is_of_this_process() {
            return;
        }
        let mut stage = locked(&self.slot.stage);
        if matches!(*stage, Stage::Waiting) {
            *stage = Stage::Left;
        }
        while matches!(*stage, Stage::Running) {
            stage = self
                .slot
                .changed
                .wait(stage)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn leaf(source: &[u8], result: &mut [u8]) -> OwnedLeaf {
        OwnedLeaf {
            source: source.as_ptr(),
            stride: 4,
            row_bytes: 4,
            result: result.as_mut_ptr(),
            file: None,
        }
    }

    fn run(row: usize) -> Run {
        Run {
            row,
            place: 0,
            count: 1,
        }
    }

    #[test]
    fn test_rows_arrive_in_any_number_of_threads() {
        let source: Vec<u8> = (0..200).collect();
        for threads in 0..3 {
            let ahead = Ahead::new(threads);
            let mut results = [[0; 4]; 50];
            // SAFETY: source and results outlive the tickets, and each row is one of the source.
            let tickets: Vec<Ticket> = results
                .iter_mut()
                .enumerate()
                .map(|(row, result)| unsafe {
                    ahead.submit(vec![leaf(&source, result)], vec![run(row)])
                })
                .collect();
            for ticket in tickets {
                assert!(ticket.wait(LONG).expect("it ends").is_ok());
            }
            assert_eq!(results.concat(), source);
        }
    }

    #[test]
    fn test_what_is_dropped_is_not_written_afterwards() {
        let source = [7; 4];
        for _ in 0..200 {
            let ahead = Ahead::new(1);
            let mut result = [0; 4];
            // SAFETY: as above.
            drop(unsafe { ahead.submit(vec![leaf(&source, &mut result)], vec![run(0)]) });
            let seen = result;
            drop(ahead);
            assert_eq!(seen, result);
        }
    }

    #[test]
    fn test_the_child_of_a_fork_copies_itself_and_waits_for_nobody() {
        let source = [7; 4];
        let ahead = Ahead::new(1);
        let mut result = [0; 4];
        // SAFETY: as above.
        let ticket = unsafe { ahead.submit(vec![leaf(&source, &mut result)], vec![run(0)]) };
        // SAFETY: the child calls nothing but what is tested, and ends without unwinding.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut own = [0; 4];
            // SAFETY: as above.
            let mine = unsafe { ahead.submit(vec![leaf(&source, &mut own)], vec![run(0)]) };
            let is_done = mine.wait(LONG).is_some_and(|outcome| outcome.is_ok());
            let is_apart = !ticket.is_of_this_process();
            drop((mine, ticket, ahead));
            let is_right = is_done && is_apart && own == source;
            // SAFETY: it ends this process and nothing else.
            unsafe { libc::_exit(i32::from(!is_right)) };
        }
        let mut status = 0;
        // SAFETY: the child is ours, and there is room for the status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(ticket.wait(LONG).expect("it ends").is_ok());
        assert_eq!(result, source);
    }
}
