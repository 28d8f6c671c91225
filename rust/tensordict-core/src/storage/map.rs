//! Mapped files: memory whose pages are those of a file.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{
    AtFlags, FileType, Mode as RawMode, OFlags, ResolveFlags, openat, openat2, statat,
};
use rustix::io::Errno;

use memmap2::{MmapMut, MmapOptions, MmapRaw};

use super::io::{Disk, open_to_read};
use super::{StorageError, StorageResult};

/// The way in which a file is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Stores reach the file; it must be writable.
    Shared,
    /// Stores stay in this process and never reach the file.
    Private,
    /// Shared where the file is writable, private where not.
    SharedIfWritable,
}

/// The memory of a mapped file, unmapped when dropped.
///
/// It hands out an address and never a slice: other processes may write to the file, so
/// no reference to its bytes could keep the promises that Rust's references make.
#[derive(Debug)]
pub struct Mapping {
    raw: Arc<MmapRaw>,
    /// The offset of the file's bytes in the mapping: not 0 if small files share one.
    start: usize,
    length: usize,
    file: FileIdentity,
    is_shared: bool,
    /// True if the memory is a copy of the file, and no mapping of it.
    is_copy: bool,
}

/// The identity of a file, whatever its name is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    /// The file that a path leads to now, if any.
    #[must_use]
    pub fn of_path(path: &Path) -> Option<Self> {
        fs::metadata(path).ok().as_ref().map(Self::of)
    }

    /// The file of a name in an open directory, if any. A link is a file of its own.
    pub(crate) fn of_entry(directory: impl AsFd, name: &str) -> Option<Self> {
        let found = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(Self {
            device: found.st_dev,
            inode: found.st_ino,
        })
    }

    /// That of an open file or directory.
    #[must_use]
    pub fn of_open(file: &File) -> Option<Self> {
        file.metadata().ok().as_ref().map(Self::of)
    }

    /// That of a file whose metadata is known.
    #[must_use]
    pub fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

impl Mapping {
    /// Returns the start of the memory.
    #[must_use]
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.raw.as_mut_ptr().wrapping_add(self.start)
    }

    /// Returns the number of bytes that are mapped.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether nothing is mapped, which is never so.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Copies what is at an offset into `buffer`; false where less is mapped.
    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let Ok(offset) = usize::try_from(offset) else {
            return false;
        };
        let end = offset.checked_add(buffer.len());
        if end.is_none_or(|end| end > self.length) {
            return false;
        }
        let from = self.as_mut_ptr().wrapping_add(offset);
        // SAFETY: the bytes lie in the mapping, as just compared, which lives as long as this and
        // overlaps with no buffer of ours. Another process that stores to them changes what is copied,
        // as with a read of the file.
        unsafe { std::ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), buffer.len()) };
        true
    }

    /// The file that is mapped.
    #[must_use]
    pub fn file(&self) -> FileIdentity {
        self.file
    }

    /// Returns whether stores reach the file.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Returns whether the memory is a copy that was made when the file was opened.
    #[must_use]
    pub fn is_copy(&self) -> bool {
        self.is_copy
    }

    /// Maps the first `length` bytes (not zero) of an open file, whose metadata is known.
    pub(crate) fn new(
        file: &File,
        metadata: &Metadata,
        length: usize,
        is_shared: bool,
    ) -> io::Result<Self> {
        let mut options = MmapOptions::new();
        options.len(length);
        let raw = if is_shared {
            options.map_raw(file)?
        } else {
            // No space is set aside for pages that may never be stored to: a file can be larger
            // than the memory.
            // SAFETY: the mapping is turned into a `MmapRaw` at once, which lends no slices,
            // so nothing is assumed about bytes that another process may change or cut.
            MmapRaw::from(unsafe { options.no_reserve_swap().map_copy(file)? })
        };
        Ok(Self {
            raw: Arc::new(raw),
            start: 0,
            length,
            file: FileIdentity::of(metadata),
            is_shared,
            is_copy: false,
        })
    }
}

/// The bytes that each file begins at a multiple of in memory that they share.
const SHARE_STEP: usize = 64;

/// Reads small files into memory that they share: what takes the place of mappings where there are
/// more files than the kernel maps. Stores stay in this process.
///
/// # Errors
/// Those of [`open`], for any of the files.
pub(crate) fn read_together(
    requests: &[(MapRequest<'_>, &dyn Fn() -> String)],
) -> StorageResult<Vec<Mapping>> {
    let mut starts = Vec::with_capacity(requests.len());
    let mut end = 0_usize;
    for (request, _) in requests {
        starts.push(end);
        let length = usize::try_from(request.length).unwrap_or(usize::MAX);
        end = end.saturating_add(length).next_multiple_of(SHARE_STEP);
    }
    let mut memory = MmapMut::map_anon(end.max(SHARE_STEP))
        .map_err(|source| StorageError::io("memory", source))?;
    let mut files = Vec::with_capacity(requests.len());
    for ((request, key), &start) in requests.iter().zip(&starts) {
        let (file, metadata, length, _) = open_file(request, Mode::Private, key)?;
        let bytes = &mut memory[start..start + length];
        Disk::REAL
            .read_exact_at(&file, bytes, 0)
            .map_err(|source| StorageError::io_of(key(), request.path, source))?;
        files.push((FileIdentity::of(&metadata), length));
    }
    let raw = Arc::new(MmapRaw::from(memory));
    Ok(files
        .into_iter()
        .zip(starts)
        .map(|((file, length), start)| Mapping {
            raw: raw.clone(),
            start,
            length,
            file,
            is_shared: false,
            is_copy: true,
        })
        .collect())
}

/// Returns the number of files that this process may map, with room left for what else it maps.
#[must_use]
pub fn mapping_limit() -> usize {
    const USUAL: usize = 65_530;
    let limit = fs::read_to_string("/proc/sys/vm/max_map_count")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(USUAL);
    limit - limit / 8
}

/// The directory of a save, held open: what is opened by it is of this save, and not of one that takes
/// its place meanwhile.
#[derive(Debug)]
pub struct Root {
    path: PathBuf,
    directory: File,
    /// True if a file was asked for that is not there.
    has_missed: AtomicBool,
}

impl Root {
    /// Opens the directory of a save.
    ///
    /// # Errors
    /// There is no such directory.
    pub fn open_path(path: &Path) -> io::Result<Self> {
        let directory = open_to_read(path)?;
        if !directory.metadata()?.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        Ok(Self::of_open(path, directory))
    }

    /// The save in an open directory.
    pub(crate) fn of_open(path: &Path, directory: File) -> Self {
        Self {
            path: path.to_path_buf(),
            directory,
            has_missed: AtomicBool::new(false),
        }
    }

    /// Returns whether a file was asked for that is not there.
    pub(crate) fn has_missed(&self) -> bool {
        self.has_missed.load(Ordering::Relaxed)
    }

    /// The name of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the name leads to the directory that is open.
    #[must_use]
    pub fn is_current(&self) -> bool {
        FileIdentity::of_open(&self.directory)
            .is_some_and(|opened| FileIdentity::of_path(&self.path) == Some(opened))
    }

    /// Returns whether another save took the place of this one so early that what was read may lack
    /// files: the files of a save that is replaced are deleted. `is_read` says whether reading went
    /// well.
    #[must_use]
    pub fn was_replaced(&self, is_read: bool) -> bool {
        (!is_read || self.has_missed()) && !self.is_current()
    }

    /// Opens a file by its path, which begins with that of the directory.
    ///
    /// # Errors
    /// The operating system refuses; the path [leads out](leads_out) of the directory, by its names
    /// or by a symbolic link.
    pub(crate) fn open(&self, path: &Path, is_writable: bool) -> io::Result<File> {
        let access = if is_writable {
            OFlags::RDWR
        } else {
            OFlags::RDONLY
        };
        // A pipe in the place of a file is not waited for.
        let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let (name, mode) = (self.name_of(path), RawMode::empty());
        let file = match openat2(&self.directory, name, flags, mode, ResolveFlags::BENEATH) {
            // Links with absolute targets are refused wherever these are, and where there are names
            // like `..` a rename elsewhere makes the kernel give up. Early kernels, and some
            // sandboxes, do not have the call.
            Err(Errno::XDEV | Errno::AGAIN | Errno::NOSYS | Errno::PERM) => {
                if !is_inside(path, &self.path) {
                    return Err(Errno::XDEV.into());
                }
                openat(&self.directory, name, flags, mode)
            }
            file => file,
        };
        if matches!(file, Err(Errno::NOENT)) {
            self.has_missed.store(true, Ordering::Relaxed);
        }
        Ok(File::from(file?))
    }

    /// Returns whether there is a file or directory of this path.
    pub(crate) fn has(&self, path: &Path) -> bool {
        let has = statat(&self.directory, self.name_of(path), AtFlags::empty()).is_ok();
        if !has {
            self.has_missed.store(true, Ordering::Relaxed);
        }
        has
    }

    /// Returns whether a path is a symbolic link that leads out of the directory.
    pub(crate) fn is_link_out(&self, path: &Path) -> bool {
        let found = statat(
            &self.directory,
            self.name_of(path),
            AtFlags::SYMLINK_NOFOLLOW,
        );
        found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Symlink)
            && !is_inside(path, &self.path)
    }

    fn name_of<'p>(&self, path: &'p Path) -> &'p Path {
        relative(path, &self.path).unwrap_or(path)
    }
}

/// Returns whether [`Root::open`] refused a path since it leads out of the directory.
pub(crate) fn leads_out(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::XDEV)
}

/// A path relative to a directory that it begins with, as [`Path::strip_prefix`] gives it; `.` for the
/// directory itself.
pub(crate) fn relative<'p>(path: &'p Path, directory: &Path) -> Option<&'p Path> {
    // Nearly all paths were made by joining: then it is enough to compare bytes.
    let rest = path
        .as_os_str()
        .as_bytes()
        .strip_prefix(directory.as_os_str().as_bytes());
    if let Some([b'/', name @ ..]) = rest
        && !matches!(name, [] | [b'/', ..])
    {
        return Some(Path::new(OsStr::from_bytes(name)));
    }
    match path.strip_prefix(directory) {
        Ok(name) if !name.as_os_str().is_empty() => Some(name),
        Ok(_) => Some(Path::new(".")),
        Err(_) => None,
    }
}

/// A leaf to be mapped.
#[derive(Debug, Clone)]
pub struct MapRequest<'p> {
    /// The file.
    pub path: &'p Path,
    /// The bytes that its shape and dtype need, not zero.
    pub length: u64,
    /// The save that it belongs to, where there is one: a link must not lead out of it.
    pub root: Option<&'p Root>,
}

/// Opens a file, checks that it is long enough, and maps it. Nothing is written.
///
/// `key` gives the displayed key of the entry and is called only for a message.
///
/// # Errors
/// The file is missing, too short, or not writable in [`Mode::Shared`].
pub fn open(
    request: &MapRequest<'_>,
    mode: Mode,
    key: &dyn Fn() -> String,
) -> StorageResult<Mapping> {
    let (file, metadata, length, is_shared) = open_file(request, mode, key)?;
    Mapping::new(&file, &metadata, length, is_shared)
        .map_err(|source| no_mapping(request.path, key(), source))
}

/// Opens a whole file as `mode` asks; and whether stores are to reach it.
///
/// Reads and mappings of the returned file are of one save, even if another one takes its place
/// meanwhile.
///
/// # Errors
/// There is no such file, or it is not writable in [`Mode::Shared`].
pub(crate) fn open_whole(path: &Path, mode: Mode) -> io::Result<(File, bool)> {
    if mode != Mode::Private {
        let flags = OFlags::RDWR | OFlags::NONBLOCK;
        match Disk::REAL.open(path, flags) {
            Err(error) if mode == Mode::SharedIfWritable && is_read_only(&error) => {}
            opened => return Ok((opened?, true)),
        }
    }
    Ok((open_to_read(path)?, false))
}

fn is_read_only(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
    )
}

/// Opens a file and checks that it is long enough: the file, its metadata, the bytes to be mapped, and
/// whether stores are to reach it.
fn open_file(
    request: &MapRequest<'_>,
    mode: Mode,
    key: &dyn Fn() -> String,
) -> StorageResult<(File, Metadata, usize, bool)> {
    let MapRequest { path, length, root } = *request;
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => StorageError::MissingFile {
            path: path.to_path_buf(),
            key: key(),
        },
        _ if leads_out(&source) => StorageError::LeadsOut {
            path: path.to_path_buf(),
            key: key(),
        },
        _ => StorageError::io_of(key(), path, source),
    };
    let mut is_shared = mode != Mode::Private;
    let open = |is_writable: bool| match root {
        Some(root) => root.open(path, is_writable),
        None => OpenOptions::new().read(true).write(is_writable).open(path),
    };
    let file = match open(is_shared) {
        Err(error) if mode == Mode::SharedIfWritable && is_read_only(&error) => {
            is_shared = false;
            open(false).map_err(failed)?
        }
        opened => opened.map_err(failed)?,
    };
    let metadata = file.metadata().map_err(failed)?;
    let found = metadata.len();
    if !metadata.is_file() {
        return Err(failed(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        )));
    }
    let too_short = || StorageError::ShortFile {
        path: path.to_path_buf(),
        key: key(),
        found,
        expected: length,
    };
    if found < length {
        return Err(too_short());
    }
    let length = usize::try_from(length).map_err(|_| too_short())?;
    Ok((file, metadata, length, is_shared))
}

/// Returns whether a path leads to something in the directory `root`, all links followed. What
/// leads nowhere is not outside.
pub(crate) fn is_inside(path: &Path, root: &Path) -> bool {
    match (fs::canonicalize(path), fs::canonicalize(root)) {
        (Ok(path), Ok(root)) => path.starts_with(root),
        _ => true,
    }
}

/// Counts the mappings of this process without asking for memory, of which there may be none.
fn num_mappings() -> io::Result<usize> {
    let mut listed = File::open("/proc/self/maps")?;
    let mut part = [0; 4096];
    let mut count = 0;
    loop {
        let length = listed.read(&mut part)?;
        if length == 0 {
            return Ok(count);
        }
        for &byte in &part[..length] {
            count += usize::from(byte == b'\n');
        }
    }
}

/// Builds the error of a refused mapping: there are too many of them, or the process may have no
/// more memory.
pub(crate) fn no_mapping(path: &Path, key: String, source: io::Error) -> StorageError {
    if source.kind() == io::ErrorKind::OutOfMemory
        && num_mappings().is_ok_and(|count| count >= mapping_limit())
    {
        return StorageError::NoMapping {
            path: path.to_path_buf(),
            key,
            source,
        };
    }
    StorageError::io_of(key, path, source)
}
