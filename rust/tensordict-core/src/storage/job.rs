//! The companions of a running save: its options, its progress, and the request to stop.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use super::checksums;
use super::io::Disk;
use super::region::MemoryGone;
use super::{StorageError, StorageResult};

/// The progress of a save, shared with whoever watches it.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    total: AtomicU64,
    is_cancelled: AtomicBool,
    watch: OnceLock<Watch>,
}

/// The state that the thread which asked for a save looks at while it takes part.
struct Watch {
    thread: ThreadId,
    began: Instant,
    /// Milliseconds from the beginning to the last look.
    looked: AtomicU64,
    is_to_stop: Box<dyn Fn() -> bool + Send + Sync>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Watch").finish_non_exhaustive()
    }
}

/// The time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Small pieces are counted without a look until there are so many bytes of them.
const LOOK_BYTES: u64 = 64 << 10;

impl Progress {
    /// Has this thread, which takes part in the save, ask now and then whether to stop: signals reach it
    /// alone. Only the first such question counts.
    pub fn watch(&self, is_to_stop: impl Fn() -> bool + Send + Sync + 'static) {
        self.watch.get_or_init(|| Watch {
            thread: thread::current().id(),
            began: Instant::now(),
            looked: AtomicU64::new(0),
            is_to_stop: Box::new(is_to_stop),
        });
    }

    fn look(&self) {
        let Some(watch) = self.watch.get() else {
            return;
        };
        if watch.thread != thread::current().id() {
            return;
        }
        let elapsed = watch.began.elapsed();
        let looked = Duration::from_millis(watch.looked.load(Ordering::Relaxed));
        if elapsed < looked + LOOK_EVERY {
            return;
        }
        let now = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        watch.looked.store(now, Ordering::Relaxed);
        if (watch.is_to_stop)() {
            self.cancel();
        }
    }

    /// Bytes written, and bytes to write: 0 before they are known.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        (
            self.done.load(Ordering::Relaxed),
            self.total.load(Ordering::Relaxed),
        )
    }

    /// Asks the save to stop: it fails, and the target stays as it is. A save that is past its
    /// commit is not stopped.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Says how many bytes there are to write.
    pub fn expect(&self, total: u64) {
        self.total.store(total, Ordering::Relaxed);
    }

    /// Says that there are so many bytes more. What a damaged file says may be any number.
    pub fn expect_more(&self, lengths: impl Iterator<Item = u64>) {
        let bytes = lengths.fold(0, u64::saturating_add);
        self.total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Says that bytes are about to be written.
    ///
    /// # Errors
    /// The save is to stop.
    pub fn advance(&self, bytes: u64) -> StorageResult<()> {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed);
        if done / LOOK_BYTES == done.wrapping_add(bytes) / LOOK_BYTES {
            return self.go_on();
        }
        self.check()
    }

    /// Says that bytes were read.
    pub fn count(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Fails where the save is to stop.
    ///
    /// # Errors
    /// [`StorageError::Cancelled`].
    pub fn check(&self) -> StorageResult<()> {
        self.look();
        self.go_on()
    }

    fn go_on(&self) -> StorageResult<()> {
        if self.is_cancelled.load(Ordering::Relaxed) {
            return Err(StorageError::Cancelled);
        }
        Ok(())
    }
}

/// Tells whether the memory that a save reads is where it was when the save was planned.
#[derive(Clone, Copy)]
pub struct Unmoved<'j>(pub &'j (dyn Fn() -> bool + Sync));

impl fmt::Debug for Unmoved<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Unmoved").finish_non_exhaustive()
    }
}

/// The options of a save.
#[derive(Debug, Clone, Copy)]
pub struct Job<'j> {
    /// The system calls.
    pub disk: Disk<'j>,
    /// The most threads; 0 for the cores of this process, at most 8.
    pub threads: usize,
    /// True if the save is on the disk when it is done, and survives a power cut.
    pub is_durable: bool,
    /// True if checksums are taken.
    pub has_checksums: bool,
    /// True if files of zeros take their space at once, so that a disk without room is an error now, and
    /// not at some later store.
    pub is_reserved: bool,
    /// The progress of the save.
    pub progress: &'j Progress,
    /// The time that the files get.
    pub stamp_ns: i64,
    /// The question about the memory that is read, asked before what was written takes its place.
    pub memory: Option<Unmoved<'j>>,
}

impl<'j> Job<'j> {
    /// A save on the real disk, not durable, with checksums.
    #[must_use]
    pub fn new(progress: &'j Progress) -> Self {
        Self {
            disk: Disk::REAL,
            threads: 0,
            is_durable: false,
            has_checksums: true,
            is_reserved: false,
            progress,
            stamp_ns: checksums::stamp(),
            memory: None,
        }
    }

    /// Fails where what was written for `target` must not take its place.
    ///
    /// # Errors
    /// The save is to stop; memory that was read has been freed meanwhile, so that the bytes may be
    /// anything.
    pub fn check(&self, target: &Path) -> StorageResult<()> {
        if self
            .memory
            .is_some_and(|Unmoved(is_in_place)| !is_in_place())
        {
            return Err(StorageError::io(target, io::Error::other(MemoryGone)));
        }
        self.progress.check()
    }
}
