//! Files of zeros to be filled through their mappings: `memmap_like`.
//!
//! This is not a save: it works in the target itself, keeps the files that are there, with
//! their bytes, and lengthens those that are too short.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use super::map::{Mapping, no_mapping};
use super::plan::{FileContent, Plan};
use super::{METADATA_FILE, StorageError, StorageResult, commit};

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
/// # Errors
/// The operating system refuses a file; one is a symbolic link.
pub fn create(plan: &Plan, target: &Path) -> StorageResult<(Vec<Option<Mapping>>, Vec<Grown>)> {
    fs::create_dir_all(target).map_err(|source| StorageError::io(target, source))?;
    commit::ensure_directories(plan, target)?;
    let mut mappings = Vec::with_capacity(plan.leaves.len());
    let mut grown = Vec::new();
    for (number, leaf) in plan.leaves.iter().enumerate() {
        if leaf.length == 0 {
            mappings.push(None);
            continue;
        }
        let path = target.join(plan.leaf_path(number));
        let refused = |source| StorageError::io_of(plan.display_leaf(leaf), &path, source);
        commit::refuse_symlink(&path)?;
        let file = open(&path).map_err(refused)?;
        let from = file.metadata().map_err(refused)?.len();
        if from < leaf.length {
            file.set_len(leaf.length).map_err(refused)?;
            if from > 0 {
                grown.push(Grown { leaf: number, path: path.clone(), from, to: leaf.length });
            }
        }
        let length = usize::try_from(leaf.length)
            .map_err(|_| refused(io::Error::from(io::ErrorKind::OutOfMemory)))?;
        let mapping = Mapping::new(&file, length, true)
            .map_err(|source| no_mapping(&path, plan.display_leaf(leaf), source))?;
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

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

/// Replaces a small file in one step: readers see the old bytes or the new ones.
///
/// # Errors
/// The operating system refuses.
pub fn replace_file(path: &Path, bytes: &[u8]) -> StorageResult<()> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or(METADATA_FILE);
    let temporary = path.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
    fs::write(&temporary, bytes)
        .and_then(|()| fs::rename(&temporary, path))
        .map_err(|source| {
            // The error that matters is the first one.
            let _ = fs::remove_file(&temporary);
            StorageError::io(path, source)
        })
}
