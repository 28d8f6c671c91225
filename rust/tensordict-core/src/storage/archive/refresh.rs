//! Taking the checksums of an archive anew, in place.

use std::io;
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::OFlags;

use super::super::checksums::{CHECKSUMS_FILE, Checksum, Checksums, FileChecksum};
use super::super::file::crc32;
use super::super::job::Job;
use super::super::{StorageError, StorageResult, thread_count};
use super::read::Archive;
use super::verify::checksum_of;
use crate::threads::STORAGE;

/// Takes the checksums of an archive anew, in place, after it was stored to through a mapping; of
/// how many entries.
///
/// # Errors
/// It is not an archive; it is damaged in a way that stores do not explain; it is not writable.
pub fn refresh(job: &Job<'_>, path: &Path) -> StorageResult<usize> {
    let refused = |source: io::Error| StorageError::io(path, source);
    let opened = job.disk.open(path, OFlags::RDWR).map_err(refused)?;
    let archive = Archive::of_file(path, opened)?;
    let file = archive.file();
    // Stores that wait in memory come first, so that a later one gives a newer time.
    job.disk.sync(file).map_err(refused)?;
    let old = archive.checksums().unwrap_or_default();
    let names: Vec<&String> = archive
        .entries()
        .keys()
        .filter(|name| *name != CHECKSUMS_FILE)
        .collect();
    let lengths = names.iter().map(|name| archive.entries()[*name].length);
    job.progress.expect_more(lengths);
    let found: Vec<OnceLock<(Checksum, u32)>> = names.iter().map(|_| OnceLock::new()).collect();
    STORAGE.try_for_each(names.len(), thread_count(job.threads), |number| {
        let name = names[number];
        let entry = &archive.entries()[name];
        let checksum = checksum_of(&archive, name, entry)?;
        // Each number is given out once.
        let _ = found[number].set(checksum);
        job.progress.advance(entry.length)
    })?;
    let set_crc32 = |name: &str, crc32: u32| -> StorageResult<()> {
        let entry = &archive.entries()[name];
        let bytes = crc32.to_le_bytes();
        // The local header is checked before it is written to.
        archive.offset(name, entry)?;
        job.disk
            .write_all_at(file, &bytes, entry.header + 14)
            .and_then(|()| job.disk.write_all_at(file, &bytes, entry.record + 16))
            .map_err(refused)
    };
    let mut checksums = Checksums {
        generation: old.generation,
        ..Checksums::default()
    };
    let found: Vec<(Checksum, u32)> = found
        .into_iter()
        .map(|found| found.into_inner().unwrap_or_default())
        .collect();
    // Nothing is written before all of it was looked at.
    for (&name, (_, crc32)) in names.iter().zip(&found) {
        let entry = &archive.entries()[name];
        if *crc32 != entry.crc32 && entry.method != 0 {
            return Err(archive.damaged(name, "its bytes are not those of its checksum"));
        }
    }
    for (name, (checksum, crc32)) in names.into_iter().zip(found) {
        if crc32 != archive.entries()[name].crc32 {
            set_crc32(name, crc32)?;
        }
        let modified_ns = job.stamp_ns;
        checksums.files.insert(
            name.clone(),
            FileChecksum {
                content: checksum,
                modified_ns,
            },
        );
    }
    if let Some(entry) = archive.entries().get(CHECKSUMS_FILE) {
        // The text is as long as before: the files, their sizes and the digits of a time are.
        let mut text = checksums.to_text().into_bytes();
        let length = usize::try_from(entry.length).unwrap_or(usize::MAX);
        if text.len() <= length && entry.method == 0 {
            text.resize(length, b' ');
            let offset = archive.offset(CHECKSUMS_FILE, entry)?;
            job.disk
                .write_all_at(file, &text, offset)
                .map_err(refused)?;
            set_crc32(CHECKSUMS_FILE, crc32(&text))?;
        }
    }
    job.disk.set_modified(file, job.stamp_ns).map_err(refused)?;
    if job.is_durable {
        job.disk.sync(file).map_err(refused)?;
    }
    Ok(checksums.files.len())
}
