//! Files of zeros to be filled through their mappings: `memmap_like`.
//!
//! This is not a save: it works in the target itself, keeps the files that are there, with
//! their bytes, and lengthens those that are too short.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use super::commit::{ensure_directories, refuse_symlink};
use super::io::Disk;
use super::job::Job;
use super::map::{Mapping, no_mapping};
use super::plan::{FileContent, Plan};
use super::write::temporary_path;
use super::{StorageError, StorageResult};

/// A file that was there and too short.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grown {
    /// The number of the leaf in the plan.
    pub leaf: usize,
    /// The file.
    pub path: PathBuf,
    /// Its bytes before.
    pub from: u64,
    /// Its bytes now.
    pub to: u64,
}

/// Makes the files of `plan` in `target` and maps them. The metadata is written last, that of
/// the root at the very end.
///
/// With `is_reserved` the space of the files is set aside now, so that a disk without room is an error
/// here, and not at some later store.
///
/// # Errors
/// The operating system refuses a file; one is a symbolic link.
pub fn create(
    job: &Job<'_>,
    plan: &Plan,
    target: &Path,
    is_reserved: bool,
) -> StorageResult<(Vec<Option<Mapping>>, Vec<Grown>)> {
    fs::create_dir_all(target).map_err(|source| StorageError::io(target, source))?;
    ensure_directories(job.disk, plan, target)?;
    let mut mappings = Vec::with_capacity(plan.leaves.len());
    let mut grown = Vec::new();
    for (number, leaf) in plan.leaves.iter().enumerate() {
        if leaf.length == 0 {
            mappings.push(None);
            continue;
        }
        let path = target.join(plan.leaf_path(number));
        refuse_symlink(&path)?;
        let reserve = is_reserved.then_some(job.disk);
        let (mapping, from) = lengthen(&path, leaf.length, reserve)
            .map_err(|source| no_mapping(&path, plan.display_leaf(leaf), source))?;
        if 0 < from && from < leaf.length {
            grown.push(Grown {
                leaf: number,
                path,
                from,
                to: leaf.length,
            });
        }
        mappings.push(Some(mapping));
    }
    // Children come after their parents in a plan, so backwards the root is last.
    for file in plan.files.iter().rev() {
        if let FileContent::Bytes(bytes) = &file.content {
            replace_file(&target.join(plan.file_path(file)), bytes)?;
        }
    }
    Ok((mappings, grown))
}

/// Replaces a small file in one step: readers see the old bytes or the new ones.
///
/// # Errors
/// The operating system refuses.
pub fn replace_file(path: &Path, bytes: &[u8]) -> StorageResult<()> {
    let temporary = temporary_path(path);
    fs::write(&temporary, bytes)
        .and_then(|()| fs::rename(&temporary, path))
        .map_err(|source| {
            // The error that matters is the first one.
            let _ = fs::remove_file(&temporary);
            StorageError::io(path, source)
        })
}

/// Maps `length` bytes of a file that is made, or lengthened, with zeros where there is less.
///
/// # Errors
/// The operating system refuses; the file is a symbolic link.
pub fn create_file(path: &Path, length: u64) -> StorageResult<Option<Mapping>> {
    refuse_symlink(path)?;
    let refused = |source| StorageError::io(path, source);
    if length == 0 {
        return Ok(None);
    }
    let (mapping, _) = lengthen(path, length, None).map_err(refused)?;
    Ok(Some(mapping))
}

/// Maps a file that has at least `length` bytes from now on, and how many it had.
fn lengthen(path: &Path, length: u64, reserve: Option<Disk<'_>>) -> io::Result<(Mapping, u64)> {
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    let metadata = file.metadata()?;
    let mapped = usize::try_from(length).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let grown = if metadata.len() < length {
        file.set_len(length)
    } else {
        Ok(())
    };
    let reserved = grown.and_then(|()| reserve.map_or(Ok(()), |disk| disk.reserve(&file, length)));
    reserved.inspect_err(|_| {
        // A file that was made for this alone goes; one that was there gets its length back.
        let _ = file.set_len(metadata.len());
        if metadata.len() == 0 {
            let _ = fs::remove_file(path);
        }
    })?;
    Ok((
        Mapping::new(&file, &metadata, mapped, true)?,
        metadata.len(),
    ))
}
