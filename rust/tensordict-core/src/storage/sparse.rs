//! A file to be filled through its mapping, made where it is missing and lengthened where it is short.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::OFlags;

use super::commit::refuse_symlink;
use super::io::Disk;
use super::map::Mapping;
use super::{StorageError, StorageResult};

/// Maps `length` bytes of a file that is made, or lengthened, with zeros where there is less.
///
/// # Errors
/// The operating system refuses; the file is a symbolic link.
pub fn create_file(disk: Disk<'_>, path: &Path, length: u64) -> StorageResult<Option<Mapping>> {
    refuse_symlink(path)?;
    if length == 0 {
        return Ok(None);
    }
    let mapping = lengthen(disk, path, length).map_err(|source| StorageError::io(path, source))?;
    Ok(Some(mapping))
}

/// Maps a file that has at least `length` bytes from now on. Where that fails it is as it was.
fn lengthen(disk: Disk<'_>, path: &Path, length: u64) -> io::Result<Mapping> {
    let mapped = usize::try_from(length).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let (file, is_new) = open_or_make(disk, path)?;
    let metadata = file.metadata()?;
    let resized = (|| {
        if metadata.len() < length {
            disk.set_length(&file, length)?;
        }
        disk.map(|| Mapping::new(&file, &metadata, mapped, true))
    })();
    resized.inspect_err(|_| {
        if is_new {
            let _ = disk.remove_file(path);
        } else if metadata.len() < length {
            let _ = disk.set_length(&file, metadata.len());
        }
    })
}

/// Opens a file, or makes it; and whether it was made.
fn open_or_make(disk: Disk<'_>, path: &Path) -> io::Result<(File, bool)> {
    loop {
        match disk.open(path, OFlags::RDWR) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return Ok((opened?, false)),
        }
        match disk.open(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL) {
            // Another process made it just now.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            opened => return Ok((opened?, true)),
        }
    }
}
