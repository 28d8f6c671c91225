//! Copy rows while the caller does something else.
//!
//! A [`Prefetcher`] has a queue of gathers, which threads of the pool do one after the other, so many
//! threads at a time. Whoever waits for a gather
//! works as well: it takes the one it needs from the queue, or the next one while a thread is at
//! that. In the child of a fork there are no threads, and a lock may be held by nobody who is there:
//! there a [`Prefetcher`] and its [`Ticket`]s are left as they are, and the caller makes new ones.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::{Backing, Leaf, RowFile, Run, gather_with};
use crate::storage::{StorageResult, thread_count};
use crate::threads::{ROWS, locked};

/// Below this many bytes rows in memory are copied at once: to hand them to a thread, and to wait
/// for it, costs as much as to copy them.
const SMALL_BYTES: usize = 128 << 10;

/// A [`Leaf`] that keeps its file open.
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
    /// Borrow the leaf as a gather takes it.
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

/// Rows to copy.
struct Work {
    leaves: Vec<OwnedLeaf>,
    runs: Vec<Run>,
    threads: usize,
}

impl Work {
    /// Tell whether the rows are few, and in memory.
    fn is_small(&self) -> bool {
        let rows: usize = self.runs.iter().map(|run| run.count).sum();
        let row_bytes: usize = self.leaves.iter().map(|leaf| leaf.row_bytes).sum();
        let is_in_memory = |leaf: &OwnedLeaf| {
            let file = leaf.file.as_ref();
            file.is_none_or(|(file, _, _)| file.is_in_memory())
        };
        rows * row_bytes <= SMALL_BYTES && self.leaves.iter().all(is_in_memory)
    }

    fn run(&self) -> thread::Result<StorageResult<()>> {
        let leaves: Vec<Leaf<'_>> = self.leaves.iter().map(OwnedLeaf::as_leaf).collect();
        // SAFETY: the contract of `Prefetcher::submit`: the memory is there until the ticket has
        // waited.
        let work = || unsafe { gather_with(&leaves, &self.runs, self.threads) };
        catch_unwind(AssertUnwindSafe(work))
    }
}

/// The progress of a gather.
enum Stage {
    Waiting(Work),
    Running,
    /// Nobody wants it any more.
    Abandoned,
    Done(thread::Result<StorageResult<()>>),
    /// The outcome was given to whoever waited.
    Reported,
}

struct Task {
    stage: Mutex<Stage>,
    finished: Condvar,
}

impl Task {
    fn new(stage: Stage) -> Arc<Self> {
        Arc::new(Self {
            stage: Mutex::new(stage),
            finished: Condvar::new(),
        })
    }

    /// Do the work if it waits for somebody; whether it did.
    fn run(&self) -> bool {
        let mut stage = locked(&self.stage);
        let work = match std::mem::replace(&mut *stage, Stage::Running) {
            Stage::Waiting(work) => work,
            other => {
                *stage = other;
                return false;
            }
        };
        drop(stage);
        let outcome = work.run();
        *locked(&self.stage) = Stage::Done(outcome);
        self.finished.notify_all();
        true
    }

    /// Take the outcome if there is one.
    fn outcome(stage: &mut Stage) -> Option<StorageResult<()>> {
        match std::mem::replace(stage, Stage::Reported) {
            Stage::Done(Ok(outcome)) => Some(outcome),
            Stage::Done(Err(panic)) => resume_unwind(panic),
            Stage::Reported => Some(Ok(())),
            other => {
                *stage = other;
                None
            }
        }
    }
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Arc<Task>>,
    /// The number of threads that do tasks, or were asked to.
    num_threads: usize,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
}

impl Shared {
    /// Do tasks until the queue is empty.
    fn serve(&self) {
        let mut queue = locked(&self.queue);
        while let Some(task) = queue.tasks.pop_front() {
            drop(queue);
            task.run();
            queue = locked(&self.queue);
        }
        queue.num_threads -= 1;
    }

    /// Puts a task into the queue, and asks one more thread to come if fewer than `most` are there.
    fn push(self: &Arc<Self>, task: Arc<Task>, most: usize) {
        let mut queue = locked(&self.queue);
        queue.tasks.push_back(task);
        let needs_one = queue.num_threads < most;
        queue.num_threads += usize::from(needs_one);
        drop(queue);
        let shared = self.clone();
        if needs_one && !ROWS.spawn(most, move || shared.serve()) {
            locked(&self.queue).num_threads -= 1;
        }
    }

    fn pop(&self) -> Option<Arc<Task>> {
        locked(&self.queue).tasks.pop_front()
    }
}

/// A queue of gathers.
pub struct Prefetcher {
    shared: Arc<Shared>,
    num_threads: usize,
    owner: u32,
}

impl Prefetcher {
    /// Make a queue whose gathers so many threads do.
    #[must_use]
    pub fn new(num_threads: usize) -> Self {
        Self {
            shared: Arc::default(),
            num_threads,
            owner: std::process::id(),
        }
    }

    /// Begin a gather. One of few rows in memory is done at once, and so is any without a thread, or
    /// in the child of a fork.
    ///
    /// # Safety
    /// That of [`gather`](super::gather), until the ticket is dropped.
    #[must_use]
    pub unsafe fn submit(&self, leaves: Vec<OwnedLeaf>, runs: Vec<Run>) -> Ticket {
        let owner = std::process::id();
        let has_threads = self.num_threads > 0 && owner == self.owner;
        // Waiting threads copy, too: so many gathers may run at the same time.
        let at_once = if has_threads { self.num_threads + 1 } else { 1 };
        let work = Work {
            leaves,
            runs,
            threads: (thread_count(0) / at_once).max(1),
        };
        if has_threads && !work.is_small() {
            let task = Task::new(Stage::Waiting(work));
            self.shared.push(task.clone(), self.num_threads);
            let shared = self.shared.clone();
            return Ticket {
                task,
                shared,
                owner,
            };
        }
        Ticket {
            task: Task::new(Stage::Done(work.run())),
            shared: self.shared.clone(),
            owner,
        }
    }
}

/// A gather that was begun. Dropping it waits for one that is running, and takes one back that is not.
pub struct Ticket {
    task: Arc<Task>,
    shared: Arc<Shared>,
    owner: u32,
}

impl Ticket {
    /// Tell whether a thread of this process works on it, or has.
    #[must_use]
    pub fn is_of_this_process(&self) -> bool {
        std::process::id() == self.owner
    }

    /// Take the outcome, which is given once, if the rows are there; None if they are not.
    ///
    /// # Errors
    /// Those of [`gather`](super::gather).
    ///
    /// # Panics
    /// If the gather did.
    #[must_use]
    pub fn try_wait(&self) -> Option<StorageResult<()>> {
        Task::outcome(&mut locked(&self.task.stage))
    }

    /// Copy rows until those of this ticket are there, and wait at most so long where others are at
    /// it and none are left to copy: None after that.
    ///
    /// # Errors
    /// Those of [`Ticket::try_wait`].
    ///
    /// # Panics
    /// Those of [`Ticket::try_wait`].
    #[must_use]
    pub fn wait(&self, at_most: Duration) -> Option<StorageResult<()>> {
        self.task.run();
        loop {
            if let Some(outcome) = self.try_wait() {
                return Some(outcome);
            }
            // Somebody is at it: the caller needs the next one as well.
            let Some(next) = self.shared.pop() else {
                break;
            };
            next.run();
        }
        let (mut stage, _) = self
            .task
            .finished
            .wait_timeout_while(locked(&self.task.stage), at_most, |stage| {
                matches!(stage, Stage::Waiting(_) | Stage::Running)
            })
            .unwrap_or_else(PoisonError::into_inner);
        Task::outcome(&mut stage)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.is_of_this_process() {
            return;
        }
        let mut stage = locked(&self.task.stage);
        if matches!(*stage, Stage::Waiting(_)) {
            *stage = Stage::Abandoned;
        }
        while matches!(*stage, Stage::Running) {
            stage = self
                .task
                .finished
                .wait(stage)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// A row that is handed to a thread.
    const ROW_BYTES: usize = SMALL_BYTES + 8;

    fn leaf(source: &[u8], result: &mut [u8], row_bytes: usize) -> OwnedLeaf {
        OwnedLeaf {
            source: source.as_ptr(),
            stride: row_bytes,
            row_bytes,
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

    fn rows(count: usize, row_bytes: usize) -> Vec<u8> {
        (0..count * row_bytes)
            .map(|at| (at / row_bytes + at).to_le_bytes()[0])
            .collect()
    }

    #[test]
    fn test_rows_arrive_in_any_number_of_threads() {
        for row_bytes in [4, ROW_BYTES] {
            let source = rows(20, row_bytes);
            for threads in 0..3 {
                let prefetcher = Prefetcher::new(threads);
                let mut result = vec![0; source.len()];
                // SAFETY: source and results outlive the tickets, and each row is one of the source.
                let tickets: Vec<Ticket> = result
                    .chunks_mut(row_bytes)
                    .enumerate()
                    .map(|(row, result)| unsafe {
                        prefetcher.submit(vec![leaf(&source, result, row_bytes)], vec![run(row)])
                    })
                    .collect();
                for ticket in tickets {
                    assert!(ticket.wait(LONG).expect("it ends").is_ok());
                }
                assert!(result == source);
            }
        }
    }

    #[test]
    fn test_few_rows_are_there_at_once() {
        let source = rows(1, 4);
        let prefetcher = Prefetcher::new(1);
        let mut result = vec![0; 4];
        // SAFETY: as above.
        let ticket =
            unsafe { prefetcher.submit(vec![leaf(&source, &mut result, 4)], vec![run(0)]) };
        assert!(ticket.try_wait().expect("it was done").is_ok());
        assert_eq!(result, source);
    }

    #[test]
    fn test_who_waits_copies_what_no_thread_takes() {
        let source = rows(1, ROW_BYTES);
        // Its only thread seems to be at another task.
        let prefetcher = Prefetcher::new(1);
        locked(&prefetcher.shared.queue).num_threads = 1;
        let mut results = vec![vec![0; ROW_BYTES]; 3];
        let tickets: Vec<Ticket> = results
            .iter_mut()
            // SAFETY: as above.
            .map(|result| unsafe {
                prefetcher.submit(vec![leaf(&source, result, ROW_BYTES)], vec![run(0)])
            })
            .collect();
        assert!(tickets[0].try_wait().is_none());
        // The last one first: it does not wait for those before.
        for ticket in tickets.iter().rev() {
            assert!(ticket.wait(LONG).expect("it ends").is_ok());
        }
        drop(tickets);
        assert!(results.iter().all(|result| *result == source));
    }

    #[test]
    fn test_what_is_dropped_is_not_written_afterwards() {
        let source = vec![7; ROW_BYTES];
        for _ in 0..50 {
            let prefetcher = Prefetcher::new(1);
            let mut result = vec![0; ROW_BYTES];
            // SAFETY: as above.
            drop(unsafe {
                prefetcher.submit(vec![leaf(&source, &mut result, ROW_BYTES)], vec![run(0)])
            });
            let seen = result.clone();
            drop(prefetcher);
            assert!(seen == result);
        }
    }

    #[test]
    fn test_the_child_of_a_fork_copies_itself_and_waits_for_nobody() {
        let source = vec![7; ROW_BYTES];
        let prefetcher = Prefetcher::new(1);
        let mut result = vec![0; ROW_BYTES];
        // SAFETY: as above.
        let ticket =
            unsafe { prefetcher.submit(vec![leaf(&source, &mut result, ROW_BYTES)], vec![run(0)]) };
        let mut own = vec![0; ROW_BYTES];
        // SAFETY: the child calls nothing but what is tested, and ends without unwinding.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            let mine = unsafe {
                prefetcher.submit(vec![leaf(&source, &mut own, ROW_BYTES)], vec![run(0)])
            };
            let is_done = mine.wait(LONG).is_some_and(|outcome| outcome.is_ok());
            let is_apart = !ticket.is_of_this_process();
            drop((mine, ticket, prefetcher));
            let is_right = is_done && is_apart && own == source;
            // SAFETY: it ends this process and nothing else.
            unsafe { libc::_exit(i32::from(!is_right)) };
        }
        let mut status = 0;
        // SAFETY: the child is ours, and there is room for the status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(ticket.wait(LONG).expect("it ends").is_ok());
        assert!(result == source);
    }
}
