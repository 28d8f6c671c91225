//! Comparing the entries of an archive with their sums.

use std::fs::File;
use std::path::Path;
use std::sync::OnceLock;

use super::super::sums::{FileSum, SUMS_FILE, Sum, Summer};
use super::super::verify::{Expected, Finding, Outcome, Report, check, judge};
use super::super::{StorageError, StorageResult, names, thread_count, threads};
use super::directory::Entry;
use super::read::Archive;

/// Compares the entries of an archive with its sums, or where it has none with their CRC-32.
///
/// # Errors
/// It is no archive; its sums cannot be read.
pub(crate) fn verify(file: File, path: &Path, threads: usize) -> StorageResult<Report> {
    let archive = Archive::of_file(path, file)?;
    let sums = archive.sums()?;
    let entries: Vec<(&String, &Entry)> = archive
        .entries()
        .iter()
        .filter(|(name, _)| *name != SUMS_FILE)
        .collect();
    let found: Vec<OnceLock<Finding>> = entries.iter().map(|_| OnceLock::new()).collect();
    let done = threads::for_each(entries.len(), thread_count(threads), |number| {
        let (name, entry) = entries[number];
        // Each number is given out once.
        let _ = found[number].set(check_entry(&archive, name, entry, sums.files.get(name)));
        Ok::<_, std::convert::Infallible>(())
    });
    let Ok(()) = done;
    let mut findings: Vec<Finding> = found.into_iter().filter_map(OnceLock::into_inner).collect();
    for name in sums.files.keys() {
        if !archive.entries().contains_key(name) {
            findings.push(Finding {
                key: key_of(name),
                path: archive.root().join(name),
                outcome: Outcome::Damaged,
                detail: "the entry is missing".to_owned(),
            });
        }
    }
    Ok(Report {
        layout: "archive",
        generation: sums.generation,
        findings,
    })
}

/// The key of a leaf's entry, as far as names tell; empty for other files.
fn key_of(name: &str) -> String {
    let Some(stem) = name.strip_suffix(".memmap") else {
        return String::new();
    };
    let keys: Vec<&str> = stem.split('/').collect();
    names::display_key(&keys)
}

fn check_entry(archive: &Archive, name: &str, entry: &Entry, sum: Option<&FileSum>) -> Finding {
    let finding = |outcome, detail: String| Finding {
        key: key_of(name),
        path: archive.root().join(name),
        outcome,
        detail,
    };
    let damaged = |error: StorageError| finding(Outcome::Damaged, error.to_string());
    match sum {
        Some(sum) if entry.method == 0 => match archive.offset(name, entry) {
            Ok(offset) => {
                let mut found = check(&Expected {
                    key: key_of(name),
                    path: archive.path().to_path_buf(),
                    file: archive.file().clone(),
                    offset,
                    sum: sum.clone(),
                });
                found.path = archive.root().join(name);
                found
            }
            Err(error) => damaged(error),
        },
        sum => match archive.stream(name, entry, |_| {}) {
            Ok(crc32) if crc32 == entry.crc32 => finding(Outcome::Good, String::new()),
            Ok(_) => {
                let outcome = match sum {
                    _ if entry.method != 0 => Outcome::Damaged,
                    Some(sum) => judge(archive.file(), sum.modified_ns),
                    None => Outcome::Unclear,
                };
                let detail = "its bytes are not those of its checksum".to_owned();
                finding(outcome, detail)
            }
            Err(error) => damaged(error),
        },
    }
}

/// The sum of an entry, for the archive as it is now.
pub(super) fn sum_of(archive: &Archive, name: &str, entry: &Entry) -> StorageResult<(Sum, u32)> {
    let mut summer = Summer::default();
    let crc32 = archive.stream(name, entry, |piece| summer.update(piece))?;
    Ok((summer.finish(), crc32))
}
