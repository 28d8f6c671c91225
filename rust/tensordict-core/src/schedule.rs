//! The schedule of tasks and workers: a block of memory that processes share.
//!
//! ```text
//! header | per worker: the task it is at, since when | a state byte per task
//! ```
//!
//! Tasks are taken in their order, by a counter, so that each is taken once and a heavy one in
//! the middle is begun before all others are done.
//!
//! Nobody waits for anybody here. Workers that die leave the block as it is: the task that they
//! were at can be read.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::time::{ClockId, clock_gettime};

const NUM_TASKS: usize = 0;
const NUM_WORKERS: usize = 1;
const CANCELLED: usize = 2;
const READY: usize = 3;
const NEXT: usize = 4;
const HEADER_WORDS: usize = 8;

const RUNNING: usize = 0;
const SINCE: usize = 1;
const WORKER_WORDS: usize = 8; // a cache line each

const WORD_BYTES: usize = size_of::<u64>();

/// The tasks of a call, and the workers that share them.
#[derive(Debug)]
pub struct Schedule {
    file: File,
    raw: MmapRaw,
    num_tasks: u32,
    num_workers: u32,
}

impl Schedule {
    /// Makes a block for tasks that nobody has taken, in a file without a name.
    ///
    /// # Errors
    /// The error of the system if it has no memory or no descriptor left.
    ///
    /// # Panics
    /// If there is no worker.
    pub fn in_memory(num_tasks: u32, num_workers: u32) -> io::Result<Self> {
        assert!(num_workers > 0, "the number of workers must be positive");
        let file = File::from(memfd_create("tensordict-schedule", MemfdFlags::CLOEXEC)?);
        let length = length_of(num_tasks, num_workers);
        file.set_len(length as u64)?;
        let schedule = Self::map(file, length, num_tasks, num_workers)?;
        schedule
            .word(NUM_TASKS)
            .store(num_tasks.into(), Ordering::Relaxed);
        schedule
            .word(NUM_WORKERS)
            .store(num_workers.into(), Ordering::Release);
        Ok(schedule)
    }

    /// Opens the block that another process has made.
    ///
    /// # Errors
    /// If the file is no such block, or cannot be mapped.
    pub fn open(file: File) -> io::Result<Self> {
        let length = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let found = || io::Error::new(io::ErrorKind::InvalidData, "this is not a schedule");
        if length < HEADER_WORDS * WORD_BYTES {
            return Err(found());
        }
        let mut schedule = Self::map(file, length, 0, 0)?;
        let read = |at: usize| u32::try_from(schedule.word(at).load(Ordering::Acquire));
        let num_workers = read(NUM_WORKERS).map_err(|_| found())?;
        let num_tasks = read(NUM_TASKS).map_err(|_| found())?;
        if num_workers == 0 || length != length_of(num_tasks, num_workers) {
            return Err(found());
        }
        schedule.num_tasks = num_tasks;
        schedule.num_workers = num_workers;
        Ok(schedule)
    }

    fn map(file: File, length: usize, num_tasks: u32, num_workers: u32) -> io::Result<Self> {
        let raw = MmapOptions::new().len(length).map_raw(&file)?;
        Ok(Self {
            file,
            raw,
            num_tasks,
            num_workers,
        })
    }

    /// The file, whose descriptor other processes need.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the number of tasks.
    #[must_use]
    pub fn num_tasks(&self) -> u32 {
        self.num_tasks
    }

    /// Returns the number of workers that share them.
    #[must_use]
    pub fn num_workers(&self) -> u32 {
        self.num_workers
    }

    /// Takes the next task for a worker, `None` if all are taken or the call was cancelled.
    #[must_use]
    pub fn next(&self, worker: u32, now: u64) -> Option<u32> {
        if self.is_cancelled() {
            return None;
        }
        let next = self.word(NEXT).fetch_add(1, Ordering::AcqRel);
        let task = u32::try_from(next).ok()?;
        if task >= self.num_tasks {
            return None;
        }
        self.of(worker, SINCE).store(now, Ordering::Relaxed);
        self.of(worker, RUNNING)
            .store(u64::from(task) + 1, Ordering::Release);
        Some(task)
    }

    /// Says how a task of a worker ended. States other than 0 are the caller's.
    pub fn finish(&self, worker: u32, task: u32, state: u8) {
        self.state_of(task).store(state, Ordering::Release);
        self.of(worker, RUNNING).store(0, Ordering::Release);
    }

    /// The task that a worker is at, and the time that it gave when it took that.
    #[must_use]
    pub fn running(&self, worker: u32) -> Option<(u32, u64)> {
        let task = self
            .of(worker, RUNNING)
            .load(Ordering::Acquire)
            .checked_sub(1)?;
        let since = self.of(worker, SINCE).load(Ordering::Relaxed);
        Some((u32::try_from(task).ok()?, since))
    }

    /// The state of each task, 0 until it is finished.
    #[must_use]
    pub fn states(&self) -> Vec<u8> {
        (0..self.num_tasks)
            .map(|task| self.state_of(task).load(Ordering::Acquire))
            .collect()
    }

    /// Lets every worker end after the task that it is at.
    pub fn cancel(&self) {
        self.word(CANCELLED).store(1, Ordering::Release);
    }

    /// Returns whether somebody has cancelled the call.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.word(CANCELLED).load(Ordering::Acquire) != 0
    }

    /// A number that the caller publishes for the workers, 0 before.
    #[must_use]
    pub fn ready(&self) -> u64 {
        self.word(READY).load(Ordering::Acquire)
    }

    /// Publishes that number, after everything that was written before.
    pub fn set_ready(&self, number: u64) {
        self.word(READY).store(number, Ordering::Release);
    }

    fn of(&self, worker: u32, what: usize) -> &AtomicU64 {
        assert!(worker < self.num_workers, "there is no worker {worker}");
        self.word(HEADER_WORDS + worker as usize * WORKER_WORDS + what)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(
            (at + 1) * WORD_BYTES <= self.raw.len(),
            "there is no word {at}"
        );
        let pointer = self.pointer().wrapping_add(at);
        // SAFETY: the pointer is within the mapping, which begins at a page and lives as long as
        // `self`. All processes use the words as atomics only.
        unsafe { AtomicU64::from_ptr(pointer) }
    }

    fn pointer(&self) -> *mut u64 {
        self.raw.as_mut_ptr().cast()
    }

    fn state_of(&self, task: u32) -> &AtomicU8 {
        assert!(task < self.num_tasks, "there is no task {task}");
        let at = words_before_states(self.num_workers) * WORD_BYTES + task as usize;
        let pointer = self.raw.as_mut_ptr().wrapping_add(at);
        // SAFETY: as above; the length of the mapping was made for, or compared with, the
        // number of tasks.
        unsafe { AtomicU8::from_ptr(pointer) }
    }
}

/// The clock that all processes of a machine have in common.
#[must_use]
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or_default()
}

fn words_before_states(num_workers: u32) -> usize {
    HEADER_WORDS + num_workers as usize * WORKER_WORDS
}

fn length_of(num_tasks: u32, num_workers: u32) -> usize {
    words_before_states(num_workers) * WORD_BYTES + num_tasks as usize
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn all(schedule: &Schedule, worker: u32) -> Vec<u32> {
        std::iter::from_fn(|| schedule.next(worker, 7)).collect()
    }

    #[test]
    fn each_task_is_taken_once_by_racing_threads() {
        for num_workers in 1..6 {
            let schedule = Schedule::in_memory(3000, num_workers).unwrap();
            let schedule = &schedule;
            let mut taken: Vec<u32> = thread::scope(|scope| {
                let threads: Vec<_> = (0..num_workers)
                    .map(|worker| scope.spawn(move || all(schedule, worker)))
                    .collect();
                threads
                    .into_iter()
                    .flat_map(|thread| thread.join().unwrap())
                    .collect()
            });
            taken.sort_unstable();
            assert!(taken.into_iter().eq(0..3000));
        }
    }

    #[test]
    fn tasks_start_in_their_order() {
        let schedule = Schedule::in_memory(5, 3).unwrap();
        let taken: Vec<_> = [2, 0, 1, 1, 2].map(|w| schedule.next(w, 0)).into();
        assert_eq!(taken, [0, 1, 2, 3, 4].map(Some));
        assert_eq!(schedule.next(0, 0), None);
    }

    #[test]
    fn a_second_mapping_sees_what_a_worker_is_at() {
        let ours = Schedule::in_memory(3, 1).unwrap();
        let theirs = Schedule::open(ours.file().try_clone().unwrap()).unwrap();
        assert_eq!((theirs.num_tasks(), theirs.num_workers()), (3, 1));
        assert_eq!(theirs.next(0, 42), Some(0));
        assert_eq!(ours.running(0), Some((0, 42)));
        theirs.finish(0, 0, 9);
        theirs.set_ready(5);
        assert_eq!(
            (ours.running(0), ours.states(), ours.ready()),
            (None, vec![9, 0, 0], 5)
        );
        ours.cancel();
        assert_eq!(theirs.next(0, 0), None);
    }

    #[test]
    fn another_file_is_refused() {
        let file = tempfile::tempfile().unwrap();
        assert!(Schedule::open(file.try_clone().unwrap()).is_err());
        file.set_len(100).unwrap();
        assert!(Schedule::open(file).is_err());
    }
}
