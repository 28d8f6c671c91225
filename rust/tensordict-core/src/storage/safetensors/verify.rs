//! Comparing tensors with their checksums.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::checksums::Checksums;
use super::super::io::open_to_read;
use super::super::names::display_key;
use super::super::verify::check::{Expected, Finding, Outcome, Report, Scrutiny, check_all};
use super::super::{StorageError, StorageResult};
use super::CHECKSUMS_ENTRY;
use super::read::{damaged, header_of};
use super::shards::read_index;

/// Compares the tensors of an open file with their checksums.
///
/// # Errors
/// The file cannot be read, or is none of this format.
pub(crate) fn verify(file: File, path: &Path, how: &Scrutiny<'_>) -> StorageResult<Report> {
    let mut report = empty_report();
    verify_file(&Arc::new(file), path, how, &mut report)?;
    Ok(report)
}

/// Compares the tensors of the files of an index with their checksums; whether one was not there, too.
///
/// # Errors
/// A file cannot be read, or is none of this format.
pub(crate) fn verify_shards(index: &Path, how: &Scrutiny<'_>) -> StorageResult<(Report, bool)> {
    let mut report = empty_report();
    let paths: Vec<PathBuf> = read_index(index)?.0.into_keys().collect();
    // All are opened before any is read: those of a save that is replaced are deleted.
    let files: Vec<io::Result<File>> = paths.iter().map(|path| open_to_read(path)).collect();
    let mut lacks_files = false;
    for (path, file) in paths.iter().zip(files) {
        match file {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                lacks_files = true;
                report.findings.push(Finding {
                    key: String::new(),
                    path: path.clone(),
                    outcome: Outcome::Damaged,
                    detail: "the file is missing".to_owned(),
                });
            }
            file => {
                let file = file.map_err(|source| StorageError::io(path, source))?;
                verify_file(&Arc::new(file), path, how, &mut report)?;
            }
        }
    }
    Ok((report, lacks_files))
}

fn empty_report() -> Report {
    Report {
        layout: "safetensors",
        generation: String::new(),
        findings: Vec::new(),
    }
}

/// Returns whether a tensor is looked at: names are keys that are joined by dots.
fn is_wanted(name: &str, how: &Scrutiny<'_>) -> bool {
    how.part.is_none_or(|part| {
        let joined = part.join(".");
        name.strip_prefix(joined.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

fn verify_file(
    file: &Arc<File>,
    path: &Path,
    how: &Scrutiny<'_>,
    report: &mut Report,
) -> StorageResult<()> {
    let header = header_of(file, path)?;
    let checksums = match header.metadata.get(CHECKSUMS_ENTRY) {
        None => Checksums::default(),
        Some(text) => Checksums::parse(text).map_err(|reason| damaged(path, "", reason))?,
    };
    report.generation.clone_from(&checksums.generation);
    let mut expected = Vec::new();
    for (name, tensor) in &header.tensors {
        if !is_wanted(name, how) {
            continue;
        }
        let checksum = checksums.files.get(name);
        expected.push(Expected {
            key: display_key(&[name]),
            path: path.to_path_buf(),
            file: file.clone(),
            offset: tensor.offset,
            length: tensor.length,
            checksum: checksum
                .filter(|checksum| checksum.content.length == tensor.length)
                .cloned(),
        });
    }
    report.findings.extend(check_all(&expected, how));
    Ok(())
}
