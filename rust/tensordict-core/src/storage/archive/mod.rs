//! The archive: a zip file that mirrors a tree.

use std::path::Path;

use super::verify::Report;
use super::{StorageError, StorageResult};

/// Compares an archive with its sums.
///
/// # Errors
/// It is no archive.
pub fn verify(path: &Path, _threads: usize) -> StorageResult<Report> {
    Err(StorageError::io(path, std::io::Error::other("not a save")))
}
