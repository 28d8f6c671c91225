//! Reading tensors of safetensors files into memory that is there, checked on the way.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::super::checksums::{self, BLOCK_BYTES, Checksum, Checksums};
use super::super::full::Target;
use super::super::io::{Disk, open_to_read};
use super::super::job::Job;
use super::super::names::display_key;
use super::super::safetensors::{CHECKSUMS_ENTRY, damaged, header_of};
use super::super::{StorageError, StorageResult, thread_count, threads};

/// The bytes of a read: a whole number of blocks, each of which has a checksum.
const PART_BYTES: usize = 4 << 20;
const _: () = assert!(PART_BYTES.is_multiple_of(BLOCK_BYTES));

/// A tensor that is read.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Its name in the file.
    pub name: String,
    /// Its dtype, as torch names it.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<i64>,
    /// The memory that its bytes are read into.
    pub target: Target,
}

struct Part<'w> {
    file: usize,
    offset: u64,
    wanted: &'w Wanted,
    checksum: Option<Checksum>,
}

/// Reads tensors of files. Before the first byte is read it is known that all are there, of these dtypes
/// and shapes.
///
/// # Errors
/// A file cannot be read, or has no such tensor; bytes are not those of the checksums, and are in the targets by
/// then; the job was cancelled.
pub fn read_tensors(job: &Job<'_>, wanted: &[(PathBuf, Vec<Wanted>)]) -> StorageResult<()> {
    let mut files: Vec<(File, &Path)> = Vec::with_capacity(wanted.len());
    let mut parts = Vec::new();
    for (path, tensors) in wanted {
        let file = open_to_read(path).map_err(|source| StorageError::io(path, source))?;
        let header = header_of(&file, path)?;
        let known = header
            .metadata
            .get(CHECKSUMS_ENTRY)
            .filter(|_| job.has_checksums);
        let mut known = match known.map(|text| Checksums::parse(text)) {
            None => Checksums::default(),
            Some(Ok(known)) => known,
            Some(Err(reason)) => return Err(damaged(path, "", reason)),
        };
        for wanted in tensors {
            let name = &wanted.name;
            let Some(found) = header.tensors.get(name) else {
                return Err(damaged(path, name, "it is not in the file".to_owned()));
            };
            if format!("torch.{}", found.dtype) != wanted.dtype || found.shape != wanted.shape {
                let reason = format!(
                    "it is of the dtype torch.{} and the shape {:?}, where {} and {:?} were expected",
                    found.dtype, found.shape, wanted.dtype, wanted.shape
                );
                return Err(damaged(path, name, reason));
            }
            let checksum = known.files.swap_remove(name).map(|known| known.content);
            parts.push(Part {
                file: files.len(),
                offset: found.offset,
                wanted,
                checksum: checksum.filter(|checksum| checksum.length == found.length),
            });
        }
        files.push((file, path));
    }
    read_parts(job, &files, &parts)
}

/// The parts of tensors that a thread reads at a time: several small ones together.
fn tasks(parts: &[Part<'_>]) -> Vec<(std::ops::Range<usize>, usize)> {
    let mut tasks: Vec<(std::ops::Range<usize>, usize)> = Vec::new();
    let mut filled = PART_BYTES;
    for (number, part) in parts.iter().enumerate() {
        let length = part.wanted.target.len();
        if length > PART_BYTES {
            let starts = (0..length).step_by(PART_BYTES);
            tasks.extend(starts.map(|start| (number..number + 1, start)));
            filled = PART_BYTES;
        } else if filled + length <= PART_BYTES
            && let Some((range, _)) = tasks.last_mut()
        {
            range.end = number + 1;
            filled += length;
        } else {
            tasks.push((number..number + 1, 0));
            filled = length;
        }
    }
    tasks
}

fn read_parts(job: &Job<'_>, files: &[(File, &Path)], parts: &[Part<'_>]) -> StorageResult<()> {
    let tasks = tasks(parts);
    let damages = Mutex::new(Vec::new());
    threads::for_each(tasks.len(), thread_count(job.threads), |task| {
        job.progress.check()?;
        let (range, start) = &tasks[task];
        for part in &parts[range.clone()] {
            let (file, path) = &files[part.file];
            let is_good = read_part(file, part, *start).map_err(|source| {
                StorageError::io_of(display_key(&[&part.wanted.name]), *path, source)
            })?;
            if !is_good && let Ok(mut damages) = damages.lock() {
                let name = display_key(&[&part.wanted.name]);
                damages.push(format!(
                    "{name}: '{}': its bytes are not those that were saved",
                    path.display()
                ));
            }
        }
        Ok(())
    })?;
    let mut damages = damages.into_inner().unwrap_or_default();
    if damages.is_empty() {
        return Ok(());
    }
    damages.sort();
    damages.dedup();
    Err(StorageError::Damaged { damages })
}

/// Reads [`PART_BYTES`] of a tensor, or what is left of it; whether they have their checksums.
fn read_part(file: &File, part: &Part<'_>, start: usize) -> io::Result<bool> {
    let length = part.wanted.target.len();
    let count = PART_BYTES.min(length - start);
    if count == 0 {
        return Ok(true);
    }
    // SAFETY: no other task has this part of the target, and parts are not larger than it.
    let bytes = unsafe { part.wanted.target.part(start, count) };
    let mut is_good = true;
    let mut at = start;
    // A block is compared while it is in the cache.
    for block in bytes.chunks_mut(BLOCK_BYTES) {
        Disk::REAL.read_exact_at(file, block, part.offset + at as u64)?;
        if let Some(checksum) = &part.checksum {
            let expected = checksum
                .blocks
                .get(at / BLOCK_BYTES)
                .unwrap_or(&checksum.whole);
            is_good &= checksums::crc32c(block) == *expected;
        }
        at += block.len();
    }
    Ok(is_good)
}
