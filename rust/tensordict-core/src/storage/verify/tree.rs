//! Directories: comparing the files that the metadata names with their checksums, and taking these.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use rustix::fs::OFlags;

use super::super::checksums::{
    self, BLOCK_BYTES, CHECKSUMS_FILE, Checksummer, Checksums, FileChecksum,
};
use super::super::io::Disk;
use super::super::job::Job;
use super::super::map::{Root, leads_out};
use super::super::read::Files;
use super::super::{StorageError, StorageResult, replace, thread_count};
use super::check::{Expected, Finding, Outcome, Report, Scrutiny, check, in_parallel};
use super::walk::{NamedFile, named_files};
use crate::threads::STORAGE;

/// The number of files that are opened before any is read, so that a small save is seen whole even
/// where others take its place all the time. More would use up the descriptors of the process.
const OPENED_FIRST: usize = 256;

pub(super) fn verify(root: &Root, how: &Scrutiny<'_>) -> StorageResult<Report> {
    let path = root.path().join(CHECKSUMS_FILE);
    let checksums = match root.read(&path) {
        Ok(bytes) => Checksums::parse(&String::from_utf8_lossy(&bytes)).map_err(|reason| {
            StorageError::BadMetadata {
                path,
                key: String::new(),
                reason,
            }
        })?,
        Err(StorageError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Checksums::default()
        }
        Err(error) => return Err(error),
    };
    let named = named_files(root, root.path())?;
    let known: HashSet<&str> = named.iter().map(|file| file.name.as_str()).collect();
    let mut rest: Vec<NamedFile> = Vec::new();
    for (name, _) in &checksums.files {
        if !known.contains(name.as_str()) {
            rest.push(NamedFile {
                key: String::new(),
                name: name.clone(),
                least: 0,
            });
        }
    }
    let all = named.into_iter().chain(rest);
    let files: Vec<NamedFile> = all.filter(|file| how.wants(&file.key)).collect();
    let opened = files.iter().take(OPENED_FIRST).map(|file| file.open(root));
    let opened: Vec<Mutex<Option<io::Result<File>>>> =
        opened.map(|file| Mutex::new(Some(file))).collect();
    let checksum_of = |file: &NamedFile| checksums.files.get(&file.name);
    let bytes = files.iter().map(|file| match checksum_of(file) {
        Some(checksum) => checksum.content.length,
        None if how.is_deep => file.least,
        None => 0,
    });
    how.progress.expect_more(bytes);
    let findings = in_parallel(files.len(), how, |number| {
        let named = &files[number];
        let first = opened.get(number).and_then(|slot| slot.lock().ok()?.take());
        let file = first.unwrap_or_else(|| named.open(root));
        named.check(root, file, checksum_of(named), how)
    });
    Ok(Report {
        layout: "tree",
        generation: checksums.generation,
        findings,
    })
}

impl NamedFile {
    fn open(&self, root: &Root) -> io::Result<File> {
        root.open(&root.path().join(&self.name), false)
    }

    fn check(
        &self,
        root: &Root,
        file: io::Result<File>,
        checksum: Option<&FileChecksum>,
        how: &Scrutiny<'_>,
    ) -> Finding {
        let path = root.path().join(&self.name);
        let damaged = |detail: String| Finding {
            key: self.key.clone(),
            path: path.clone(),
            outcome: Outcome::Damaged,
            detail,
        };
        let opened = file.and_then(|file| Ok((file.metadata()?.len(), file)));
        let (length, file) = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return damaged("the file is missing".to_owned());
            }
            Err(error) if leads_out(&error) => {
                return damaged("it is a symbolic link that leads out of the save".to_owned());
            }
            Err(error) => return damaged(error.to_string()),
            Ok((length, _)) if length < self.least => {
                return damaged(format!(
                    "the file has {length} bytes and its shape and dtype need {}",
                    self.least
                ));
            }
            Ok(opened) => opened,
        };
        let expected = Expected {
            key: self.key.clone(),
            path,
            file: Arc::new(file),
            offset: 0,
            length: checksum.map_or(length, |checksum| checksum.content.length),
            checksum: checksum.cloned(),
        };
        check(&expected, how)
    }
}

/// Takes the checksums of a tree as it is now, and writes them: what `verify` compares with from
/// then on. For a save that was filled in place and is finished.
///
/// # Errors
/// A file is missing or too short; the operating system refuses.
pub fn seal(job: &Job<'_>, root: &Path) -> StorageResult<Checksums> {
    let opened = Root::open_path(root).map_err(|source| StorageError::io(root, source))?;
    let files = named_files(&opened, root)?;
    job.progress
        .expect_more(files.iter().map(|file| file.least));
    let found: Vec<OnceLock<FileChecksum>> = files.iter().map(|_| OnceLock::new()).collect();
    STORAGE.try_for_each(files.len(), thread_count(job.threads), |number| {
        let named = &files[number];
        let path = root.join(&named.name);
        if opened.is_link_out(&path) {
            let key = named.key.clone();
            return Err(StorageError::LeadsOut { key, path });
        }
        let checksum = seal_file(job.disk, &path, named.least)
            .map_err(|source| StorageError::io_of(named.key.clone(), &path, source))?;
        // Each number is given out once.
        let _ = found[number].set(checksum);
        job.progress.advance(named.least)
    })?;
    let mut checksums = Checksums::new();
    for (named, checksum) in files.into_iter().zip(found) {
        if let Some(checksum) = checksum.into_inner() {
            checksums.files.insert(named.name, checksum);
        }
    }
    replace::replace_file(
        job.disk,
        &root.join(CHECKSUMS_FILE),
        checksums.to_text().as_bytes(),
    )?;
    Ok(checksums)
}

fn seal_file(disk: Disk<'_>, path: &Path, least: u64) -> io::Result<FileChecksum> {
    // Nothing is waited for, should it be a pipe.
    let file = disk.open(path, OFlags::RDONLY | OFlags::NONBLOCK)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let too_short = "the file is shorter than its shape and dtype need";
    // Bytes that were stored through a mapping are written back first: from then on the next
    // store gives the file a new time, which a store to a page that waits to be written does not.
    disk.sync(&file)?;
    let stamp = checksums::stamp();
    if let Ok(writable) = disk.open(path, OFlags::WRONLY) {
        disk.set_modified(&writable, stamp)?;
    }
    let before = file.metadata()?;
    if before.len() < least {
        return Err(io::Error::new(io::ErrorKind::InvalidData, too_short));
    }
    let mut checksummer = Checksummer::default();
    let mut buffer = vec![0; BLOCK_BYTES];
    let mut at = 0;
    while at < before.len() {
        let left = usize::try_from(before.len() - at).unwrap_or(usize::MAX);
        let block = &mut buffer[..left.min(BLOCK_BYTES)];
        disk.read_exact_at(&file, block, at)?;
        checksummer.update(block);
        at += block.len() as u64;
    }
    Ok(FileChecksum {
        content: checksummer.finish(),
        modified_ns: checksums::modified_ns(&before),
    })
}
