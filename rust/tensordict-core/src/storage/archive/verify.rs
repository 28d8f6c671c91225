//! Comparing the entries of an archive with their checksums.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use super::super::StorageResult;
use super::super::checksums::{CHECKSUMS_FILE, Checksum, Checksummer, FileChecksum};
use super::super::verify::check::{
    Expected, Finding, Outcome, Report, Scrutiny, check, in_parallel, judge,
};
use super::super::verify::walk::named_files;
use super::directory::Entry;
use super::read::Archive;

/// Compares the entries of an archive with its checksums, or where it has none with their CRC-32.
///
/// # Errors
/// It is not an archive; its checksums cannot be read.
pub(crate) fn verify(file: File, path: &Path, how: &Scrutiny<'_>) -> StorageResult<Report> {
    let archive = Archive::of_file(path, file)?;
    let checksums = archive.checksums()?;
    let named = named_files(&archive, archive.root());
    let keys: HashMap<&str, &str> = named
        .iter()
        .flatten()
        .map(|file| (file.name.as_str(), file.key.as_str()))
        .collect();
    let key_of = |name: &str| keys.get(name).copied().unwrap_or_default();
    let entries: Vec<(&String, &Entry)> = archive
        .entries()
        .iter()
        .filter(|(name, _)| *name != CHECKSUMS_FILE && how.wants(key_of(name)))
        .collect();
    how.progress
        .expect_more(entries.iter().map(|(_, entry)| entry.length));
    let mut findings = in_parallel(entries.len(), how, |number| {
        let (name, entry) = entries[number];
        let place = Place {
            archive: &archive,
            key: key_of(name),
            name,
        };
        place.check(entry, checksums.files.get(name), how)
    });
    let is_there = |name: &str| archive.entries().contains_key(name);
    let missing = |key: &str, name: &str| Finding {
        key: key.to_owned(),
        path: archive.root().join(name),
        outcome: Outcome::Damaged,
        detail: "the entry is missing".to_owned(),
    };
    // A tensor without bytes has no entry.
    let named_here = named.iter().flatten().filter(|file| how.wants(&file.key));
    let needed = named_here.filter(|file| file.least > 0);
    let absent = needed.filter(|file| !is_there(&file.name));
    findings.extend(absent.map(|file| missing(&file.key, &file.name)));
    let unnamed = checksums
        .files
        .keys()
        .filter(|name| !keys.contains_key(name.as_str()));
    let absent = unnamed.filter(|name| !is_there(name));
    findings.extend(absent.map(|name| missing("", name)));
    let report = Report {
        layout: "archive",
        generation: checksums.generation,
        findings,
    };
    match named {
        // Metadata that cannot be read is among the findings where its bytes are not right.
        Err(error) if report.lines(Outcome::Damaged).is_empty() => Err(error),
        _ => Ok(report),
    }
}

/// An entry of an archive.
struct Place<'p> {
    archive: &'p Archive,
    /// The key as messages show it; empty for none.
    key: &'p str,
    name: &'p str,
}

impl Place<'_> {
    fn check(&self, entry: &Entry, checksum: Option<&FileChecksum>, how: &Scrutiny<'_>) -> Finding {
        match checksum {
            Some(checksum) if entry.method == 0 => self.compare(entry, checksum, how),
            _ => {
                let count = |piece: &[u8]| how.progress.count(piece.len() as u64);
                self.compare_crc32(entry, count).unwrap_or_else(|detail| {
                    let outcome = match checksum {
                        _ if entry.method != 0 => Outcome::Damaged,
                        Some(checksum) => judge(self.archive.file(), checksum.modified_ns),
                        None => Outcome::Unclear,
                    };
                    self.finding(outcome, detail)
                })
            }
        }
    }

    /// Compares stored bytes with their checksum.
    fn compare(&self, entry: &Entry, checksum: &FileChecksum, how: &Scrutiny<'_>) -> Finding {
        if entry.length != checksum.content.length {
            let detail = format!(
                "it has {} bytes and not {}",
                entry.length, checksum.content.length
            );
            return self.finding(Outcome::Damaged, detail);
        }
        let offset = match self.archive.offset(self.name, entry) {
            Ok(offset) => offset,
            Err(error) => return self.finding(Outcome::Damaged, error.to_string()),
        };
        let expected = Expected {
            key: self.key.to_owned(),
            path: self.archive.root().join(self.name),
            file: self.archive.file().clone(),
            offset,
            length: checksum.content.length,
            checksum: Some(checksum.clone()),
        };
        let found = check(&expected, how);
        if !how.is_deep || found.outcome != Outcome::Good {
            return found;
        }
        // Other tools look at this one alone.
        self.compare_crc32(entry, |_| {}).unwrap_or_else(|detail| {
            let detail = format!("{detail}, though they are those that were saved");
            self.finding(judge(self.archive.file(), checksum.modified_ns), detail)
        })
    }

    /// Compares bytes with the CRC-32 of their record; what differs.
    fn compare_crc32(&self, entry: &Entry, take: impl FnMut(&[u8])) -> Result<Finding, String> {
        match self.archive.stream(self.name, entry, take) {
            Ok(crc32) if crc32 == entry.crc32 => Ok(self.finding(Outcome::Good, String::new())),
            Ok(_) => Err("its bytes are not those of its checksum".to_owned()),
            Err(error) => Ok(self.finding(Outcome::Damaged, error.to_string())),
        }
    }

    fn finding(&self, outcome: Outcome, detail: String) -> Finding {
        Finding {
            key: self.key.to_owned(),
            path: self.archive.root().join(self.name),
            outcome,
            detail,
        }
    }
}

/// The checksum of an entry, for the archive as it is now.
pub(super) fn checksum_of(
    archive: &Archive,
    name: &str,
    entry: &Entry,
) -> StorageResult<(Checksum, u32)> {
    let mut checksummer = Checksummer::default();
    let crc32 = archive.stream(name, entry, |piece| checksummer.update(piece))?;
    Ok((checksummer.finish(), crc32))
}
