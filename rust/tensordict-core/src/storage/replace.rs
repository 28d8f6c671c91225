//! Files that are replaced in one step: readers see the old bytes or the new ones.

use std::io;
use std::path::Path;

use super::io::Disk;
use super::map::Mapping;
use super::region::Region;
use super::source::Source;
use super::work::NewFile;
use super::{StorageError, StorageResult};

/// Replaces a small file, or makes it.
///
/// # Errors
/// The operating system refuses; `path` is then as it was.
pub fn replace_file(disk: Disk<'_>, path: &Path, bytes: &[u8]) -> StorageResult<()> {
    replace_at(disk, path, bytes, None)
}

/// Replaces a small file, or makes it, and gives it a time.
pub(crate) fn replace_at(
    disk: Disk<'_>,
    path: &Path,
    bytes: &[u8],
    modified_ns: Option<i64>,
) -> StorageResult<()> {
    let replaced = NewFile::beside(disk, path).and_then(|new| {
        disk.write_all_at(new.file(), bytes, 0)?;
        if let Some(time_ns) = modified_ns {
            disk.set_modified(new.file(), time_ns)?;
        }
        new.put_in_place(path)
    });
    replaced.map_err(|source| StorageError::io(path, source))
}

/// Replaces a file by the bytes of `memory`, repeated until there are `length`, and maps it.
///
/// # Errors
/// The operating system refuses; `path` is then as it was.
pub fn write_file(
    disk: Disk<'_>,
    path: &Path,
    memory: Region,
    length: u64,
) -> StorageResult<Option<Mapping>> {
    let written = (|| -> io::Result<_> {
        if memory.is_empty() && length > 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let new = NewFile::beside(disk, path)?;
        let source = Source::Memory(memory);
        let mut bounce = Vec::new();
        let mut first = 0;
        while first < length {
            let write = |at, unit: &[u8]| {
                let offset = first + at;
                let left = usize::try_from(length.saturating_sub(offset)).unwrap_or(usize::MAX);
                disk.write_all_at(new.file(), &unit[..unit.len().min(left)], offset)
            };
            source.units(&mut bounce, write, |error| error)?;
            first += source.len();
        }
        let mapped = usize::try_from(length).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mapping = if mapped == 0 {
            None
        } else {
            let metadata = new.file().metadata()?;
            Some(disk.map(|| Mapping::new(new.file(), &metadata, mapped, true))?)
        };
        new.put_in_place(path)?;
        Ok(mapping)
    })();
    written.map_err(|source| StorageError::io(path, source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn test_bytes_are_repeated_to_the_length() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        for length in [0, 1, 3, 7] {
            let mapping = write_file(Disk::REAL, &path, Region::of(b"abc"), length).unwrap();
            assert_eq!(mapping.map_or(0, |mapping| mapping.len() as u64), length);
            let expected: Vec<u8> = b"abcabca"[..usize::try_from(length).unwrap()].to_vec();
            assert_eq!(fs::read(&path).unwrap(), expected);
        }
        assert!(write_file(Disk::REAL, &path, Region::of(b""), 1).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
