//! Comparing files with their checksums.
//!
//! [`verify`] takes the path of a save of any layout and reports on every file that the save
//! names. Layouts of one file keep their checksums in their metadata; they name what is to be
//! compared with [`Expected`](check::Expected) and have it done by [`check`]. `tree` has those of
//! directories.

pub(super) mod check;
mod tree;
pub(super) mod walk;

use std::fs::File;
use std::path::Path;

use super::io::open_to_read;
use super::map::{FileIdentity, Root};
use super::{StorageError, StorageResult};

pub use check::{Finding, Outcome, Report, Scrutiny};
pub use tree::seal;

/// Compares all files of a save with their checksums.
///
/// All of it is of one save, also where others take its place meanwhile. A file without a checksum is
/// unchecked, but for its size; so is all of a save of the published release.
///
/// # Errors
/// There is no save at `path`, or its metadata cannot be read; it is replaced again and again; the
/// work was cancelled.
pub fn verify(path: &Path, how: &Scrutiny<'_>) -> StorageResult<Report> {
    for _ in 0..MAX_ATTEMPTS {
        let file = open_to_read(path).map_err(|source| StorageError::io(path, source))?;
        // Held open, so that no other file gets its number.
        let held = file
            .try_clone()
            .map_err(|source| StorageError::io(path, source))?;
        let verified = verify_open(file, path, how);
        how.progress.check()?;
        let lacks_files = match &verified {
            Ok((_, lacks_files)) => *lacks_files,
            Err(_) => true,
        };
        // The files of a save that is replaced are deleted.
        if !lacks_files || FileIdentity::of_path(path) == FileIdentity::of_open(&held) {
            return verified.map(|(report, _)| report);
        }
    }
    Err(StorageError::Replaced {
        path: path.to_path_buf(),
    })
}

/// The number of times that a save that is replaced while it is read is read again.
const MAX_ATTEMPTS: usize = 1000;

/// Compares the files of an open save with their checksums; whether one that it names was not there, too.
fn verify_open(file: File, path: &Path, how: &Scrutiny<'_>) -> StorageResult<(Report, bool)> {
    let is_directory = file.metadata().is_ok_and(|metadata| metadata.is_dir());
    if is_directory {
        let root = Root::of_open(path, file);
        let report = tree::verify(&root, how)?;
        return Ok((report, root.has_missed()));
    }
    if path
        .to_string_lossy()
        .ends_with(super::safetensors::INDEX_SUFFIX)
    {
        return super::safetensors::verify_shards(path, how);
    }
    let report = if super::safetensors::is_safetensors_file(&file, path) {
        super::safetensors::verify(file, path, how)
    } else if super::consolidated::is_consolidated_file(&file, path) {
        super::consolidated::verify(file, path, how)
    } else {
        super::archive::verify(file, path, how)
    };
    Ok((report?, false))
}
