//! The system calls of a save, each of which can be made to fail.
//!
//! Everything that changes the disk goes through a [`Disk`]. It asks an [`Io`] before each call:
//! [`System`] lets all pass; [`Faulty`], for tests, lets one of them fail, so that every way in which
//! a save can end is gone once. Interrupted calls and short writes are continued here, and
//! nowhere else.

use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_OMIT, futimens, linkat,
    openat, renameat_with, unlinkat,
};
use rustix::io::{Errno, pwritev};

/// The purpose of a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Call {
    /// A file or directory is opened or made.
    Open,
    /// Bytes are written.
    Write,
    /// Bytes are read.
    Read,
    /// A directory is made.
    MakeDirectory,
    /// A name is given to a file or directory, or two change places.
    Rename,
    /// A file gets a second name.
    Link,
    /// A file or directory is removed.
    Remove,
    /// Bytes are brought to the disk.
    Sync,
    /// Space is reserved, a file lengthened or shortened.
    Resize,
    /// Times or permissions are set.
    Attributes,
    /// A file is mapped.
    Map,
}

/// The most parts that the kernel takes in one call.
const MAX_PARTS: usize = 1024;

/// So many zeros, or an error where there is no memory for them: the length of a file is what somebody
/// says, and it need not have as many bytes on its disk.
pub(crate) fn zeros(length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if bytes.try_reserve_exact(length).is_err() {
        return Err(Errno::NOMEM.into());
    }
    bytes.resize(length, 0);
    Ok(bytes)
}

/// Opens a file that is to be read, without waiting: a pipe in its place is found, and not waited for.
pub(crate) fn open_to_read(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?.into())
}

/// Returns whether a file is on ext4.
pub(crate) fn is_ext4(file: impl AsFd) -> bool {
    #[cfg(target_os = "linux")]
    {
        const EXT4: rustix::fs::FsWord = 0xef53;
        rustix::fs::fstatfs(file).is_ok_and(|system| system.f_type == EXT4)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = file;
        false
    }
}

/// An observer that is asked before each system call.
pub trait Io: Debug + Sync {
    /// Returns the most bytes that the call may move (other calls ignore it), or the error that
    /// takes the place of the call.
    ///
    /// # Errors
    /// The call is to fail.
    fn admit(&self, call: Call) -> io::Result<usize>;
}

/// The operating system as it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct System;

impl Io for System {
    fn admit(&self, _call: Call) -> io::Result<usize> {
        Ok(usize::MAX)
    }
}

/// The fate of a call of [`Faulty`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails with this number, as does every later one of its kind where `lasts`.
    Error {
        /// The number: `EIO`, `ENOSPC`.
        number: i32,
        /// True if the disk stays so.
        lasts: bool,
    },
    /// It moves one byte only. Calls that move none are as always.
    Short,
    /// It is interrupted before it does anything.
    Interrupted,
}

/// A system in which one call fails: the one with the number `at`, counted from 0.
#[derive(Debug)]
pub struct Faulty {
    at: usize,
    fault: Fault,
    calls: AtomicUsize,
    kind: std::sync::OnceLock<Call>,
}

impl Faulty {
    /// The call with the number `at` is to have this fault.
    #[must_use]
    pub fn new(at: usize, fault: Fault) -> Self {
        Self {
            at,
            fault,
            calls: AtomicUsize::new(0),
            kind: std::sync::OnceLock::new(),
        }
    }

    /// Returns the number of calls so far.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// Returns the call that had the fault; None if there were too few.
    #[must_use]
    pub fn hit(&self) -> Option<Call> {
        self.kind.get().copied()
    }
}

impl Io for Faulty {
    fn admit(&self, call: Call) -> io::Result<usize> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let is_hit = number == self.at;
        if is_hit {
            let _ = self.kind.set(call);
        }
        match self.fault {
            Fault::Error {
                number: errno,
                lasts,
            } if is_hit || (lasts && number > self.at && self.hit() == Some(call)) => {
                Err(io::Error::from_raw_os_error(errno))
            }
            Fault::Interrupted if is_hit => Err(Errno::INTR.into()),
            Fault::Short if is_hit => Ok(1),
            _ => Ok(usize::MAX),
        }
    }
}

/// The calls, each asked for first and continued where it was interrupted.
#[derive(Debug, Clone, Copy)]
pub struct Disk<'i>(pub &'i dyn Io);

impl Disk<'static> {
    /// The disk as it is.
    pub const REAL: Self = Disk(&System);
}

impl Disk<'_> {
    fn call<T>(self, call: Call, mut work: impl FnMut(usize) -> io::Result<T>) -> io::Result<T> {
        loop {
            match self.0.admit(call).and_then(&mut work) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    /// Makes a file that is not there, in an open directory.
    ///
    /// # Errors
    /// The operating system refuses; something has the name.
    pub fn create(self, directory: BorrowedFd<'_>, name: impl AsRef<OsStr>) -> io::Result<File> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.open_at(directory, name, flags)
    }

    /// Opens a file, in an open directory.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn open_at(
        self,
        directory: BorrowedFd<'_>,
        name: impl AsRef<OsStr>,
        flags: OFlags,
    ) -> io::Result<File> {
        let mode = Mode::from_raw_mode(0o666);
        self.call(Call::Open, |_| {
            Ok(File::from(openat(directory, name.as_ref(), flags, mode)?))
        })
    }

    /// Opens a directory, for the calls that take names in it.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn open_directory(self, path: &Path) -> io::Result<OwnedFd> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        self.call(Call::Open, |_| Ok(openat(CWD, path, flags, Mode::empty())?))
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// The operating system refuses; something has the name.
    pub fn make_directory(self, path: &Path) -> io::Result<()> {
        self.call(Call::MakeDirectory, |_| fs::create_dir(path))
    }

    /// Opens a file by its path.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn open(self, path: &Path, flags: OFlags) -> io::Result<File> {
        self.open_at(CWD, path, flags | OFlags::CLOEXEC)
    }

    /// Makes a directory and those above it, where they are missing: those that were made, the
    /// outermost first.
    ///
    /// # Errors
    /// The operating system refuses. None is made then.
    pub fn make_directories(self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let mut missing = vec![path];
        let mut made = Vec::new();
        // Somebody may remove a parent that is there. But where a parent is there and takes
        // no directories, as in /proc, the system says without end that it is missing.
        let mut retries = 3 * path.components().count();
        while let Some(&next) = missing.last() {
            let parent = next
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty());
            match (self.make_directory(next), parent) {
                (Err(error), _)
                    if error.kind() == io::ErrorKind::AlreadyExists && next.is_dir() =>
                {
                    missing.pop();
                }
                (Err(error), Some(parent))
                    if error.kind() == io::ErrorKind::NotFound && retries > 0 =>
                {
                    retries -= 1;
                    missing.push(parent);
                }
                (Err(error), _) => {
                    self.remove_empty(&made);
                    return Err(error);
                }
                (Ok(()), _) => {
                    made.push(next.to_path_buf());
                    missing.pop();
                }
            }
        }
        Ok(made)
    }

    /// Removes directories, the last first, as far as nothing is in them.
    pub(crate) fn remove_empty(self, directories: &[PathBuf]) {
        for directory in directories.iter().rev() {
            // Somebody may have put something there meanwhile.
            let _ = self.remove_directory(directory);
        }
    }

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// The operating system refuses: no space is left, for example.
    pub fn write_all_at(self, file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = self.call(Call::Write, |most| {
                file.write_at(&bytes[..bytes.len().min(most)], offset)
            })?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            bytes = &bytes[written..];
            offset += written as u64;
        }
        Ok(())
    }

    /// Writes parts that follow each other from `offset` on, many with one call.
    ///
    /// # Errors
    /// Those of [`Disk::write_all_at`].
    pub fn write_all_parts_at(
        self,
        file: &File,
        parts: &[&[u8]],
        mut offset: u64,
    ) -> io::Result<()> {
        let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut left = slices.as_mut_slice();
        // Parts without bytes at the start are passed.
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            let written = self.call(Call::Write, |most| {
                let first = &left[0];
                if first.len() > most {
                    return file.write_at(&first[..most], offset);
                }
                Ok(pwritev(file, &left[..left.len().min(MAX_PARTS)], offset)?)
            })?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            IoSlice::advance_slices(&mut left, written);
            offset += written as u64;
        }
        Ok(())
    }

    /// Fills `bytes` from `offset`.
    ///
    /// # Errors
    /// The operating system refuses; the file ends before.
    pub fn read_exact_at(
        self,
        file: &File,
        mut bytes: &mut [u8],
        mut offset: u64,
    ) -> io::Result<()> {
        while !bytes.is_empty() {
            let read = self.call(Call::Read, |most| {
                let most = bytes.len().min(most);
                file.read_at(&mut bytes[..most], offset)
            })?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            bytes = &mut bytes[read..];
            offset += read as u64;
        }
        Ok(())
    }

    /// Fills `bytes` from `offset` as far as the file goes; how many there are.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn read_at_most(self, file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < bytes.len() {
            let read = self.call(Call::Read, |most| {
                let most = (bytes.len() - filled).min(most);
                file.read_at(&mut bytes[filled..filled + most], offset + filled as u64)
            })?;
            if read == 0 {
                break;
            }
            filled += read;
        }
        Ok(filled)
    }

    /// The bytes of a small file.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn read(self, path: &Path) -> io::Result<Vec<u8>> {
        let file = self.open(path, OFlags::RDONLY | OFlags::NONBLOCK)?;
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(Errno::ISDIR.into());
        }
        if !metadata.is_file() {
            let text = "not a regular file";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let length = usize::try_from(metadata.len()).map_err(|_| Errno::FBIG)?;
        let mut bytes = zeros(length)?;
        let read = self.read_at_most(&file, &mut bytes, 0)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    /// Renames, with the flags of `renameat2`: replace nothing, or exchange.
    ///
    /// # Errors
    /// The operating system refuses; the file system does not know the flags.
    pub fn rename(self, from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
        self.call(Call::Rename, |_| {
            if flags.is_empty() {
                return fs::rename(from, to);
            }
            Ok(renameat_with(CWD, from, CWD, to, flags)?)
        })
    }

    /// Gives a file a second name, in an open directory.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn link(
        self,
        from: &Path,
        directory: BorrowedFd<'_>,
        name: impl AsRef<OsStr>,
    ) -> io::Result<()> {
        self.call(Call::Link, |_| {
            Ok(linkat(
                CWD,
                from,
                directory,
                name.as_ref(),
                AtFlags::empty(),
            )?)
        })
    }

    /// Removes a file.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn remove_file(self, path: &Path) -> io::Result<()> {
        self.call(Call::Remove, |_| fs::remove_file(path))
    }

    /// Removes a file, in an open directory.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn remove_at(self, directory: BorrowedFd<'_>, name: impl AsRef<OsStr>) -> io::Result<()> {
        self.call(Call::Remove, |_| {
            Ok(unlinkat(directory, name.as_ref(), AtFlags::empty())?)
        })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// The operating system refuses; something is in it.
    pub fn remove_directory(self, path: &Path) -> io::Result<()> {
        self.call(Call::Remove, |_| fs::remove_dir(path))
    }

    /// Removes a directory with all that it holds.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn remove_tree(self, path: &Path) -> io::Result<()> {
        self.call(Call::Remove, |_| fs::remove_dir_all(path))
    }

    /// Brings the bytes of a file, and its size, to the disk; of a directory, its names.
    ///
    /// # Errors
    /// The disk failed.
    pub fn sync(self, file: impl AsFd) -> io::Result<()> {
        self.call(Call::Sync, |_| Ok(rustix::fs::fdatasync(file.as_fd())?))
    }

    /// Begins to bring bytes of a file to the disk, and does not wait for them. It is a hint: where it
    /// fails, the sync that follows does the work.
    pub fn begin_writeback(self, file: &File, offset: u64, length: u64) {
        #[cfg(target_os = "linux")]
        {
            use std::os::fd::AsRawFd;
            let (Ok(offset), Ok(length)) = (i64::try_from(offset), i64::try_from(length)) else {
                return;
            };
            // SAFETY: the call takes numbers only; the descriptor is open while `file` lives.
            unsafe {
                libc::sync_file_range(
                    file.as_raw_fd(),
                    offset,
                    length,
                    libc::SYNC_FILE_RANGE_WRITE,
                );
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (file, offset, length);
    }

    /// Sets space aside for bytes that are written next. On ext4 that takes a third off the time of writing
    /// them, which otherwise accounts for space page by page; the file gets no longer, so that after a
    /// power cut one without its bytes is still too short. It is a hint: where there is no such
    /// space, the write says so.
    pub fn set_aside(self, file: &File, offset: u64, length: u64) {
        #[cfg(target_os = "linux")]
        {
            if is_ext4(file) {
                let keep = rustix::fs::FallocateFlags::KEEP_SIZE;
                let _ = rustix::fs::fallocate(file, keep, offset, length);
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (file, offset, length);
    }

    /// Brings everything of a file's file system to the disk.
    ///
    /// # Errors
    /// The disk failed.
    pub fn sync_file_system(self, file: impl AsFd) -> io::Result<()> {
        self.call(Call::Sync, |_| {
            #[cfg(target_os = "linux")]
            rustix::fs::syncfs(file.as_fd())?;
            #[cfg(not(target_os = "linux"))]
            rustix::fs::fsync(file.as_fd())?;
            Ok(())
        })
    }

    /// Reserves the space of a file, which gets this length if it is shorter.
    ///
    /// # Errors
    /// There is no such space, or the file system cannot reserve any.
    pub fn reserve(self, file: &File, length: u64) -> io::Result<()> {
        self.call(Call::Resize, |_| {
            Ok(rustix::fs::fallocate(
                file,
                rustix::fs::FallocateFlags::empty(),
                0,
                length,
            )?)
        })
    }

    /// Gives a file a length.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn set_length(self, file: &File, length: u64) -> io::Result<()> {
        self.call(Call::Resize, |_| file.set_len(length))
    }

    /// Sets the time at which a file was modified, in nanoseconds since 1970.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn set_modified(self, file: &File, time_ns: i64) -> io::Result<()> {
        let last_modification = Timespec {
            tv_sec: time_ns.div_euclid(1_000_000_000),
            tv_nsec: time_ns.rem_euclid(1_000_000_000),
        };
        let last_access = Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        };
        self.call(Call::Attributes, |_| {
            Ok(futimens(
                file,
                &Timestamps {
                    last_access,
                    last_modification,
                },
            )?)
        })
    }

    /// Gives a file or directory the permissions of another.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn copy_permissions(self, from: &Path, to: &Path) -> io::Result<()> {
        let permissions = fs::metadata(from)?.permissions();
        self.call(Call::Attributes, |_| {
            fs::set_permissions(to, permissions.clone())
        })
    }

    /// Does what maps a file.
    ///
    /// # Errors
    /// Those of `work`.
    pub(crate) fn map<T>(self, mut work: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        self.call(Call::Map, |_| work())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_short_and_interrupted_calls_are_continued() {
        let folder = tempfile::tempdir().unwrap();
        for at in 0..2 {
            for fault in [Fault::Short, Fault::Interrupted] {
                let io = Faulty::new(at, fault);
                let path = folder.path().join(format!("{at}{fault:?}"));
                let file = File::create_new(&path).unwrap();
                Disk(&io).write_all_at(&file, b"abcd", 0).unwrap();
                let mut read = [0; 4];
                let file = File::open(&path).unwrap();
                Disk(&io).read_exact_at(&file, &mut read, 0).unwrap();
                assert_eq!(&read, b"abcd");
                assert!(io.calls() == 3);
                assert!(io.hit().is_some());
            }
        }
    }

    #[test]
    fn test_space_that_is_set_aside_makes_a_file_no_longer() {
        use std::os::unix::fs::MetadataExt;
        let file = tempfile::tempfile().unwrap();
        Disk::REAL.set_aside(&file, 0, 1 << 20);
        let metadata = file.metadata().unwrap();
        assert_eq!(metadata.len(), 0);
        let is_ext4 = rustix::fs::fstatfs(&file).unwrap().f_type == 0xef53;
        assert_eq!(metadata.blocks() >= 2048, is_ext4);
    }

    #[test]
    fn test_the_call_that_is_to_fail_fails() {
        let folder = tempfile::tempdir().unwrap();
        let io = Faulty::new(
            1,
            Fault::Error {
                number: 28,
                lasts: false,
            },
        );
        let file = File::create_new(folder.path().join("a")).unwrap();
        let disk = Disk(&io);
        disk.write_all_at(&file, b"a", 0).unwrap();
        let error = disk.write_all_at(&file, b"b", 1).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(28));
        disk.write_all_at(&file, b"b", 1).unwrap();
    }
}
