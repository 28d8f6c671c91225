//! Rows of many leaves at given positions, copied to where they are wanted.
//!
//! Rows in memory are copied from there. Others are asked for from the device all at once, and
//! then read by positioned reads of exactly these bytes, straight into the result: the read-ahead of
//! a page fault would multiply them. Whether something is in memory is found by reads that do not
//! wait; after enough of them that all went well a file counts as being in memory, and rows are
//! copied from the mapping until a page fault had to wait for the device.

mod file;
mod prefetch;

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

pub use file::RowFile;
pub use prefetch::{OwnedLeaf, Prefetcher, Ticket};

use crate::storage::region::prefetch;
use crate::storage::{StorageError, StorageResult, thread_count};
use crate::threads::{ROWS, locked};

/// Neighbouring rows: `count` of them from `row` on go to `place` and after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first row of the source.
    pub row: usize,
    /// The first row of the result.
    pub place: usize,
    /// The number of rows.
    pub count: usize,
}

/// The file that a leaf is mapped from.
#[derive(Debug, Clone, Copy)]
pub struct Backing<'f> {
    /// The file.
    pub file: &'f RowFile,
    /// The offset of row 0.
    pub offset: u64,
    /// True if the mapping has stores of this process that the file does not have.
    pub is_private: bool,
}

impl Backing<'_> {
    /// Tells whether some bytes of a part are in memory, all that are looked for.
    fn has_samples(&self, start: usize, length: usize) -> bool {
        let step = length / PROBES as usize;
        (0..PROBES as usize).all(|probe| {
            self.file
                .has_in_memory(self.offset + (start + probe * step) as u64)
        })
    }
}

/// Rows of one leaf, and where they go.
#[derive(Debug)]
pub struct Leaf<'f> {
    /// Row 0 of the source.
    pub source: *const u8,
    /// The bytes from a row of the source to the next.
    pub stride: usize,
    /// The bytes of a row.
    pub row_bytes: usize,
    /// Row 0 of the result, whose rows lie one after the other.
    pub result: *mut u8,
    /// The file of the source, if there is one.
    pub backing: Option<Backing<'f>>,
}

// SAFETY: rows are only read and written through it while `gather` runs, whose caller vouches for
// the memory; no two tasks write to one row of the result.
unsafe impl Send for Leaf<'_> {}
// SAFETY: as above.
unsafe impl Sync for Leaf<'_> {}

/// A task copies about this many bytes.
const TASK_BYTES: usize = 128 << 10;

/// A task has at most this many runs.
const TASK_RUNS: usize = 1024;

/// A call of fewer bytes is done by one thread.
const ALONE_BYTES: usize = 256 << 10;

/// A run is at most about this long, so that threads share a long one.
const RUN_BYTES: usize = 1 << 20;

/// So many rows before it is copied a row is fetched into the cache.
const ROWS_FETCHED: usize = 8;

/// So many threads wait for the device. More gain nothing: it has been asked for all bytes before.
const WAITING_THREADS: usize = 8;

/// Rows that lie no further apart than this are asked for together.
const GROUP_GAP: usize = 8 << 10;

/// The least number of runs that are asked for together.
const GROUP_RUNS: usize = 16;

/// A group of this length is read best by the kernel's own read-ahead: nearly all is asked for.
const LONG_GROUP: usize = 2 << 20;

/// So many bytes of a group are looked for in memory.
const PROBES: u32 = 4;

/// So many bytes apart a long run is probed.
const PROBE_STEP: usize = 64 << 10;

/// Runs of the same rows in the order of the file, neighbours merged and long ones cut.
fn arranged(runs: &[Run], row_bytes: usize) -> Vec<Run> {
    let longest = (RUN_BYTES / row_bytes.max(1)).max(1);
    let mut arranged: Vec<Run> = Vec::with_capacity(runs.len());
    for &run in runs {
        let mut rest = run;
        if let Some(last) = arranged.last_mut()
            && last.row + last.count == run.row
            && last.place + last.count == run.place
        {
            let taken = run.count.min(longest.saturating_sub(last.count));
            last.count += taken;
            rest = skipped(run, taken);
        }
        while rest.count > 0 {
            let count = rest.count.min(longest);
            arranged.push(Run { count, ..rest });
            rest = skipped(rest, count);
        }
    }
    if !arranged.is_sorted_by_key(|run| run.row) {
        arranged.sort_unstable_by_key(|run| run.row);
    }
    arranged
}

fn skipped(run: Run, count: usize) -> Run {
    Run {
        row: run.row + count,
        place: run.place + count,
        count: run.count - count,
    }
}

/// Some runs of a leaf.
struct Task {
    leaf: usize,
    first: usize,
    end: usize,
}

fn tasks_of(leaves: &[Leaf<'_>], runs: &[Run], rows: usize) -> Vec<Task> {
    let mut tasks = Vec::new();
    for (number, leaf) in leaves.iter().enumerate() {
        let bytes = leaf.row_bytes * rows;
        let wanted = bytes
            .div_ceil(TASK_BYTES)
            .max(runs.len().div_ceil(TASK_RUNS));
        let step = runs.len().div_ceil(wanted.max(1)).max(1);
        for first in (0..runs.len()).step_by(step) {
            tasks.push(Task {
                leaf: number,
                first,
                end: (first + step).min(runs.len()),
            });
        }
    }
    tasks
}

struct Gather<'g> {
    leaves: &'g [Leaf<'g>],
    runs: &'g [Run],
    /// The tasks that wait for the device.
    missing: Mutex<Vec<Task>>,
    failed: Mutex<Option<StorageError>>,
    has_failed: AtomicBool,
}

/// Copies rows of all leaves.
///
/// # Errors
/// A file is shorter than the rows that are asked for: somebody cut it. The system refuses to read.
///
/// # Safety
/// For each leaf and run the rows of the source are readable memory, but for a file that was cut,
/// the rows of the result are writable memory that nobody else uses and no other run writes to, and
/// source and result do not overlap.
pub unsafe fn gather(leaves: &[Leaf<'_>], runs: &[Run]) -> StorageResult<()> {
    // SAFETY: the contract of this function.
    unsafe { gather_with(leaves, runs, thread_count(0)) }
}

/// Copies rows of all leaves with at most so many threads, but for those that wait for the device.
///
/// # Errors
/// Those of [`gather`].
///
/// # Safety
/// That of [`gather`].
unsafe fn gather_with(leaves: &[Leaf<'_>], runs: &[Run], threads: usize) -> StorageResult<()> {
    let row_bytes = leaves.iter().map(|leaf| leaf.row_bytes).max();
    let Some(row_bytes) = row_bytes.filter(|_| !runs.is_empty()) else {
        return Ok(());
    };
    let runs = arranged(runs, row_bytes);
    let rows: usize = runs.iter().map(|run| run.count).sum();
    let end = runs
        .iter()
        .map(|run| run.row + run.count)
        .max()
        .unwrap_or(0);
    for leaf in leaves {
        if let Some(backing) = &leaf.backing
            && end > 0
        {
            let reach = (end - 1) * leaf.stride + leaf.row_bytes;
            backing.file.check_length(backing.offset + reach as u64)?;
        }
    }
    let tasks = tasks_of(leaves, &runs, rows);
    let bytes: usize = leaves.iter().map(|leaf| leaf.row_bytes * rows).sum();
    let is_small = bytes < ALONE_BYTES && runs.len() * leaves.len() < TASK_RUNS;
    let threads = if is_small { 1 } else { threads };
    // SAFETY: the contract of this function.
    let call = unsafe { Gather::new(leaves, &runs) };
    ROWS.for_each(tasks.len(), threads, &|task| call.copy(&tasks[task]));
    let missing = std::mem::take(&mut *locked(&call.missing));
    ROWS.for_each(missing.len(), WAITING_THREADS, &|at| {
        call.wait_for(&missing[at]);
    });
    let failed = locked(&call.failed).take();
    failed.map_or(Ok(()), Err)
}

impl<'g> Gather<'g> {
    /// A call for rows of leaves.
    ///
    /// # Safety
    /// That of [`gather`], for as long as the call is used.
    unsafe fn new(leaves: &'g [Leaf<'g>], runs: &'g [Run]) -> Self {
        Self {
            leaves,
            runs,
            missing: Mutex::new(Vec::new()),
            failed: Mutex::new(None),
            has_failed: AtomicBool::new(false),
        }
    }

    /// The rows of a task.
    fn rows_of(&self, task: &Task) -> Rows<'g> {
        Rows {
            leaf: &self.leaves[task.leaf],
            runs: &self.runs[task.first..task.end],
        }
    }

    fn copy(&self, task: &Task) {
        let rows = self.rows_of(task);
        let Rows { leaf, runs } = rows;
        if leaf.row_bytes == 0 {
            return;
        }
        let Some(backing) = &leaf.backing else {
            return rows.copy();
        };
        if backing.file.is_in_memory() {
            let before = waited_faults();
            rows.copy();
            if waited_faults() != before {
                backing.file.remember_missing();
            }
            return;
        }
        let mut missing = Vec::new();
        let mut found = 0;
        let mut at = 0;
        while at < runs.len() {
            let run = &runs[at];
            let group = leaf.group(&runs[at..]);
            if group >= GROUP_RUNS {
                // A request for all of it, also for the little between the rows, and page faults
                // cost less than a read for each row.
                let (start, _) = leaf.extent(run);
                let (last, length) = leaf.extent(&runs[at + group - 1]);
                let length = last + length - start;
                if length >= LONG_GROUP {
                    rows.part(at..at + group).copy();
                } else if backing.has_samples(start, length) {
                    rows.part(at..at + group).copy();
                    found += PROBES;
                } else {
                    backing.file.request(backing.offset + start as u64, length);
                    missing.push(Task {
                        leaf: task.leaf,
                        first: task.first + at,
                        end: task.first + at + group,
                    });
                }
                at += group;
                continue;
            }
            if rows.copy_if_in_memory(at, backing) {
                found += 1;
            } else {
                let (start, length) = leaf.extent(run);
                backing.file.request(backing.offset + start as u64, length);
                missing.push(Task {
                    leaf: task.leaf,
                    first: task.first + at,
                    end: task.first + at + 1,
                });
            }
            at += 1;
        }
        if missing.is_empty() {
            backing.file.remember_found(found);
        } else {
            backing.file.remember_missing();
            locked(&self.missing).append(&mut missing);
        }
    }

    fn wait_for(&self, task: &Task) {
        if self.has_failed.load(Ordering::Relaxed) {
            return;
        }
        let rows = self.rows_of(task);
        let read = if rows.runs.len() == 1 {
            rows.read_first()
        } else {
            // The kernel has been asked for these pages: a fault waits for what it needs, and reads
            // nothing else.
            rows.copy();
            Ok(())
        };
        if let Err(error) = read {
            self.has_failed.store(true, Ordering::Relaxed);
            locked(&self.failed).get_or_insert(error);
        }
    }
}

impl Leaf<'_> {
    /// Tells whether rows of the source lie one after the other.
    fn is_dense(&self) -> bool {
        self.stride == self.row_bytes
    }

    /// Returns the offset of a run in the source, and its length.
    fn extent(&self, run: &Run) -> (usize, usize) {
        let length = (run.count - 1) * self.stride + self.row_bytes;
        (run.row * self.stride, length)
    }

    /// Counts the first runs that lie close together, those of long rows aside.
    fn group(&self, runs: &[Run]) -> usize {
        if self.row_bytes > GROUP_GAP / 4 {
            return 1;
        }
        let close = runs.windows(2).take_while(|pair| {
            let (start, length) = self.extent(&pair[0]);
            self.extent(&pair[1]).0 <= start + length + GROUP_GAP
        });
        1 + close.count()
    }

    /// The pieces of memory that a run is in: how many, and the bytes of each.
    fn pieces(&self, run: &Run) -> (usize, usize) {
        if self.is_dense() {
            (1, run.count * self.row_bytes)
        } else {
            (run.count, self.row_bytes)
        }
    }

    fn source_of(&self, row: usize) -> *const u8 {
        self.source.wrapping_add(row * self.stride)
    }

    fn result_of(&self, place: usize) -> *mut u8 {
        self.result.wrapping_add(place * self.row_bytes)
    }
}

/// A leaf, and runs of its rows, whose memory the caller of [`gather`] vouches for: [`Gather`] makes it.
#[derive(Clone, Copy)]
struct Rows<'g> {
    leaf: &'g Leaf<'g>,
    runs: &'g [Run],
}

impl Rows<'_> {
    /// Some of the runs.
    fn part(&self, range: Range<usize>) -> Self {
        Self {
            runs: &self.runs[range],
            ..*self
        }
    }

    /// Copies all runs.
    fn copy(&self) {
        match self.leaf.row_bytes {
            1 => self.copy_sized::<1>(),
            4 => self.copy_sized::<4>(),
            8 => self.copy_sized::<8>(),
            _ => {
                for (at, run) in self.runs.iter().enumerate() {
                    self.fetch(at);
                    self.copy_run(run);
                }
            }
        }
    }

    /// Has the memory fetched that is copied some runs after that at `at`.
    fn fetch(&self, at: usize) {
        if let Some(next) = self.runs.get(at + ROWS_FETCHED) {
            prefetch(self.leaf.source_of(next.row));
        }
    }

    /// Copies rows of `N` bytes.
    fn copy_sized<const N: usize>(&self) {
        for (at, run) in self.runs.iter().enumerate() {
            self.fetch(at);
            for step in 0..run.count {
                let from = self.leaf.source_of(run.row + step).cast::<[u8; N]>();
                let to = self.leaf.result_of(run.place + step).cast::<[u8; N]>();
                // SAFETY: the contract of `Gather::new`; bytes have no alignment.
                unsafe { to.write(from.read()) };
            }
        }
    }

    /// Copies `run`, which is one of the runs.
    fn copy_run(&self, run: &Run) {
        let (rows, bytes) = self.leaf.pieces(run);
        for step in 0..rows {
            let from = self.leaf.source_of(run.row + step);
            let to = self.leaf.result_of(run.place + step);
            // SAFETY: the contract of `Gather::new`.
            unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
        }
    }

    /// Copies the run at `at` if it is in memory; whether it did.
    fn copy_if_in_memory(&self, at: usize, backing: &Backing<'_>) -> bool {
        let (leaf, run) = (self.leaf, &self.runs[at]);
        let (start, length) = leaf.extent(run);
        let offset = backing.offset + start as u64;
        if leaf.is_dense() && !backing.is_private {
            let buffer = leaf.result_of(run.place);
            // SAFETY: the contract of `Gather::new`.
            return unsafe { backing.file.read_from_memory(buffer, length, offset) };
        }
        let mut probed = (0..length).step_by(PROBE_STEP).chain([length - 1]);
        let is_there = probed.all(|at| backing.file.has_in_memory(offset + at as u64));
        if is_there {
            self.copy_run(run);
        }
        is_there
    }

    /// Reads the first run, and waits for it.
    fn read_first(&self) -> StorageResult<()> {
        let (leaf, run) = (self.leaf, &self.runs[0]);
        let Some(backing) = leaf.backing.as_ref().filter(|backing| !backing.is_private) else {
            // The kernel has been asked for these pages: a fault waits for what it needs.
            self.copy_run(run);
            return Ok(());
        };
        let (rows, bytes) = leaf.pieces(run);
        for step in 0..rows {
            let start = (run.row + step) * leaf.stride;
            let to = leaf.result_of(run.place + step);
            // SAFETY: the contract of `Gather::new`: nobody else uses these bytes. That they may not
            // have been written before is no concern of a system call.
            let buffer = unsafe { std::slice::from_raw_parts_mut(to, bytes) };
            backing.file.read(buffer, backing.offset + start as u64)?;
        }
        Ok(())
    }
}

/// The bytes of a large page.
const LARGE_PAGE: usize = 2 << 20;

/// Tells the kernel that memory which was just allocated may have large pages: one fault instead of
/// five hundred where it is filled. Does nothing for little memory.
///
/// # Safety
/// The memory is the caller's.
pub unsafe fn prefer_large_pages(start: *mut u8, length: usize) {
    let skipped = start.align_offset(LARGE_PAGE);
    let length = length.saturating_sub(skipped) / LARGE_PAGE * LARGE_PAGE;
    if length > 0 {
        // SAFETY: whole pages of the caller's memory, whose content this does not change.
        unsafe {
            let start = start.wrapping_add(skipped).cast();
            libc::madvise(start, length, libc::MADV_HUGEPAGE)
        };
    }
}

/// Counts the page faults of this thread that had to wait for a device.
fn waited_faults() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: there is room for the answer, which may be all zeros.
    unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init().ru_majflt
    }
}

#[cfg(test)]
mod tests;
