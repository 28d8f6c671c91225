//! Writing the files of an archive into a directory.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{OFlags, RenameFlags};

use super::super::checksums::{CHECKSUMS_FILE, Checksum, Checksummer, Checksums, FileChecksum};
use super::super::commit::{keep_length, refuse_symlink};
use super::super::job::Job;
use super::super::replace::replace_file;
use super::super::work::WorkArea;
use super::super::{METADATA_FILE, StorageError, StorageResult, thread_count};
use super::read::Archive;
use crate::threads::STORAGE;

/// Writes the files of an archive into the directory `target`, over those that are there.
///
/// # Errors
/// The archive is damaged, or names a file outside of `target`; the operating system refuses. A target
/// that was not there is then not there.
pub fn unpack(job: &Job<'_>, path: &Path, target: &Path) -> StorageResult<()> {
    let archive = Archive::open(path)?;
    for name in archive.entries().keys() {
        let is_inside = name
            .split('/')
            .all(|part| !part.is_empty() && part != "." && part != ".." && !part.contains('\0'));
        if !is_inside {
            return Err(archive.damaged(name, "its name leads out of the directory"));
        }
    }
    let made = job.disk.make_directories(target);
    let made = made.map_err(|source| StorageError::io(target, source))?;
    let mut unpacking = Unpacking {
        job,
        archive: &archive,
        target,
        directories: made,
        placed: Vec::new(),
    };
    let is_new = !unpacking.directories.is_empty();
    let done = unpacking.run();
    if done.is_err() && is_new {
        for file in &unpacking.placed {
            let _ = job.disk.remove_file(file);
        }
    }
    if done.is_err() {
        job.disk.remove_empty(&unpacking.directories);
    }
    done
}

struct Unpacking<'u> {
    job: &'u Job<'u>,
    archive: &'u Archive,
    target: &'u Path,
    /// Those that were made.
    directories: Vec<PathBuf>,
    /// The files that are in their places.
    placed: Vec<PathBuf>,
}

impl Unpacking<'_> {
    fn run(&mut self) -> StorageResult<()> {
        let Self {
            job,
            archive,
            target,
            ..
        } = *self;
        let names: Vec<&String> = archive
            .entries()
            .keys()
            .filter(|name| *name != CHECKSUMS_FILE)
            .collect();
        // The next process sweeps what a killed one leaves here.
        let work = WorkArea::inside(job.disk, target, names.len())?;
        let found: Vec<OnceLock<Checksum>> = names.iter().map(|_| OnceLock::new()).collect();
        STORAGE.try_for_each(names.len(), thread_count(job.threads), |number| {
            let checksum = unpack_entry(job, archive, names[number], &work.numbered_path(number))?;
            // Each number is given out once.
            let _ = found[number].set(checksum);
            Ok::<_, StorageError>(())
        })?;
        self.make_directories(&names)?;
        // The root's metadata comes last: without it there is no save.
        let (last, others): (Vec<usize>, Vec<usize>) =
            (0..names.len()).partition(|&number| names[number] == METADATA_FILE);
        for number in others {
            self.place(&work.numbered_path(number), names[number])?;
        }
        let mut checksums = Checksums::new();
        for (name, checksum) in names.iter().zip(found) {
            let modified_ns = job.stamp_ns;
            let checksum = checksum.into_inner().unwrap_or_default();
            checksums.files.insert(
                (*name).clone(),
                FileChecksum {
                    content: checksum,
                    modified_ns,
                },
            );
        }
        if job.has_checksums {
            let place = target.join(CHECKSUMS_FILE);
            replace_file(job.disk, &place, checksums.to_text().as_bytes())?;
            self.placed.push(place);
        }
        for number in last {
            self.place(&work.numbered_path(number), names[number])?;
        }
        Ok(())
    }

    /// Makes the directories that files go to, where they are missing.
    fn make_directories(&mut self, names: &[&String]) -> StorageResult<()> {
        let directories: BTreeSet<&Path> = names
            .iter()
            .flat_map(|name| Path::new(name.as_str()).ancestors().skip(1))
            .filter(|directory| !directory.as_os_str().is_empty())
            .collect();
        // Those above come first in this order.
        for directory in directories {
            let path = self.target.join(directory);
            refuse_symlink(&path)?;
            let made = self.job.disk.make_directories(&path);
            self.directories
                .extend(made.map_err(|source| StorageError::io(&path, source))?);
        }
        Ok(())
    }

    fn place(&mut self, from: &Path, name: &str) -> StorageResult<()> {
        let place = self.target.join(name);
        let disk = self.job.disk;
        keep_length(disk, from, &place)
            .and_then(|()| disk.rename(from, &place, RenameFlags::empty()))
            .map_err(|source| StorageError::io(&place, source))?;
        self.placed.push(place);
        Ok(())
    }
}

/// Writes an entry to the file `path`; its checksum.
fn unpack_entry(
    job: &Job<'_>,
    archive: &Archive,
    name: &str,
    path: &Path,
) -> StorageResult<Checksum> {
    let entry = &archive.entries()[name];
    let refused = |source: io::Error| StorageError::io(path, source);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let file = job.disk.open(path, flags).map_err(refused)?;
    let (mut at, mut failure) = (0, None);
    let mut checksummer = Checksummer::default();
    let crc32 = archive.stream(name, entry, |piece| {
        checksummer.update(piece);
        if failure.is_none()
            && let Err(error) = job.disk.write_all_at(&file, piece, at)
        {
            failure = Some(error);
        }
        at += piece.len() as u64;
    })?;
    if let Some(error) = failure {
        return Err(refused(error));
    }
    if crc32 != entry.crc32 {
        return Err(archive.damaged(name, "its bytes are not those of its checksum"));
    }
    job.disk
        .set_modified(&file, job.stamp_ns)
        .map_err(refused)?;
    Ok(checksummer.finish())
}
