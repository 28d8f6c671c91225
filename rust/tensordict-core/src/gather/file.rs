//! A mapped file that rows are read from: what of it is in memory, and how the rest gets there.
//!
//! The descriptor is one of its own, so that advice about it concerns gathers only: who reads the
//! mapping from front to back keeps the kernel's read-ahead.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::storage::map::FileIdentity;
use crate::storage::{StorageError, StorageResult};

/// After so many reads in a row that found their bytes in memory, rows are copied from the mapping
/// without asking.
pub(super) const READS_TO_TRUST: u32 = 1024;

/// A file that is open to read rows of.
#[derive(Debug)]
pub struct RowFile {
    file: File,
    path: PathBuf,
    /// The number of reads in a row that found their bytes in memory.
    found: AtomicU32,
}

impl RowFile {
    /// Opens `path` where it still leads to the file that was mapped.
    #[must_use]
    pub fn open(path: &Path, mapped: FileIdentity) -> Option<Self> {
        let file = File::open(path).ok()?;
        if FileIdentity::of_open(&file) != Some(mapped) {
            return None;
        }
        // SAFETY: a call with numbers. What it says is advice, so a refusal is none of ours.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
        Some(Self {
            file,
            path: path.to_path_buf(),
            found: AtomicU32::new(0),
        })
    }

    /// Raises where the file ends before `end`: what is mapped behind that must not be touched.
    pub(super) fn check_length(&self, end: u64) -> StorageResult<()> {
        let metadata = self.file.metadata();
        let metadata = metadata.map_err(|source| StorageError::io(&self.path, source))?;
        if metadata.len() < end {
            return Err(self.cut(metadata.len(), end));
        }
        Ok(())
    }

    fn cut(&self, found: u64, expected: u64) -> StorageError {
        StorageError::CutFile {
            path: self.path.clone(),
            found,
            expected,
        }
    }

    /// Tells whether all reads of late found their bytes in memory.
    pub(super) fn is_in_memory(&self) -> bool {
        self.found.load(Ordering::Relaxed) >= READS_TO_TRUST
    }

    /// Remembers that so many reads found their bytes in memory.
    pub(super) fn remember_found(&self, count: u32) {
        // A count that another thread adds meanwhile may be lost, and is not needed.
        let found = self.found.load(Ordering::Relaxed);
        if found < READS_TO_TRUST {
            self.found
                .store(found.saturating_add(count), Ordering::Relaxed);
        }
    }

    /// Remembers that something was not in memory.
    pub(super) fn remember_missing(&self) {
        self.found.store(0, Ordering::Relaxed);
    }

    /// Reads `length` bytes into `buffer` if they are in memory; false where they may not be.
    ///
    /// # Safety
    /// `buffer` has room for them.
    pub(super) unsafe fn read_from_memory(
        &self,
        buffer: *mut u8,
        length: usize,
        offset: u64,
    ) -> bool {
        let part = libc::iovec {
            iov_base: buffer.cast(),
            iov_len: length,
        };
        let Ok(offset) = libc::off_t::try_from(offset) else {
            return false;
        };
        // SAFETY: the contract of this function, and one part that lives during the call.
        let read = unsafe {
            let descriptor = self.file.as_raw_fd();
            libc::preadv2(descriptor, &raw const part, 1, offset, libc::RWF_NOWAIT)
        };
        usize::try_from(read) == Ok(length)
    }

    /// Tells whether the byte at `offset` is in memory.
    pub(super) fn has_in_memory(&self, offset: u64) -> bool {
        let mut byte = 0_u8;
        // SAFETY: there is room for one byte.
        unsafe { self.read_from_memory(&raw mut byte, 1, offset) }
    }

    /// Asks the kernel to read these bytes, and does not wait for it.
    pub(super) fn request(&self, offset: u64, length: usize) {
        let (Ok(offset), Ok(length)) = (offset.try_into(), length.try_into()) else {
            return;
        };
        // SAFETY: a call with numbers.
        unsafe {
            let descriptor = self.file.as_raw_fd();
            libc::posix_fadvise(descriptor, offset, length, libc::POSIX_FADV_WILLNEED)
        };
    }

    /// Reads exactly these bytes, and waits for them.
    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> StorageResult<()> {
        self.file
            .read_exact_at(buffer, offset)
            .map_err(|source| match source.kind() {
                io::ErrorKind::UnexpectedEof => {
                    let found = self.file.metadata().map_or(0, |metadata| metadata.len());
                    self.cut(found, offset.saturating_add(buffer.len() as u64))
                }
                _ => StorageError::io(&self.path, source),
            })
    }
}
