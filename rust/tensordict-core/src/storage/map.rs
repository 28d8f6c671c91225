//! Mapped files: memory whose pages are those of a file.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use memmap2::{MmapOptions, MmapRaw};

use super::{StorageError, StorageResult};

/// How a file is mapped.
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
    raw: MmapRaw,
    file: FileIdentity,
    is_shared: bool,
}

/// Which file it is, whatever its name is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

impl Mapping {
    /// Where the memory begins.
    #[must_use]
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.raw.as_mut_ptr()
    }

    /// How many bytes are mapped.
    #[must_use]
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Whether nothing is mapped, which is never so.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.raw.len() == 0
    }

    /// The file that is mapped.
    #[must_use]
    pub fn file(&self) -> FileIdentity {
        self.file
    }

    /// Whether stores reach the file.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.is_shared
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
            raw,
            file: FileIdentity::of(metadata),
            is_shared,
        })
    }
}

/// A leaf to be mapped.
#[derive(Debug, Clone)]
pub struct MapRequest<'p> {
    /// The file.
    pub path: &'p Path,
    /// The bytes that its shape and dtype need, not zero.
    pub length: u64,
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
    let MapRequest { path, length } = *request;
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => StorageError::MissingFile {
            path: path.to_path_buf(),
            key: key(),
        },
        _ => StorageError::io_of(key(), path, source),
    };
    let mut is_shared = mode != Mode::Private;
    let file = match OpenOptions::new().read(true).write(is_shared).open(path) {
        Err(error)
            if mode == Mode::SharedIfWritable
                && matches!(
                    error.kind(),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
                ) =>
        {
            is_shared = false;
            File::open(path).map_err(failed)?
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
    Mapping::new(&file, &metadata, length, is_shared)
        .map_err(|source| no_mapping(path, key(), source))
}

/// What a refused mapping means.
pub(crate) fn no_mapping(path: &Path, key: String, source: io::Error) -> StorageError {
    if source.kind() == io::ErrorKind::OutOfMemory {
        return StorageError::NoMapping {
            path: path.to_path_buf(),
            key,
            source,
        };
    }
    StorageError::io_of(key, path, source)
}
