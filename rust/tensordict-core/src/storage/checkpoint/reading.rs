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
use super::super::safetensors::{CHECKSUMS_ENTRY, Header, Tensor, damaged, header_of};
use super::super::{StorageError, StorageResult, thread_count};
use crate::threads::STORAGE;

/// The bytes of a read: a whole number of blocks, each of which has a checksum.
const PART_BYTES: usize = 4 << 20;
const _: () = assert!(PART_BYTES.is_multiple_of(BLOCK_BYTES));

/// A tensor that is read, or the bytes of a part of it.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Its name in the file.
    pub name: String,
    /// Its dtype, as torch names it.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<i64>,
    /// The first of its bytes that is wanted.
    pub start: usize,
    /// The number of bytes that are wanted.
    pub length: usize,
    /// The memory that they are read into, of this length. None where they are only compared with their
    /// checksums.
    pub target: Option<Target>,
}

struct Part<'w> {
    file: usize,
    offset: u64,
    num_bytes: usize,
    wanted: &'w Wanted,
    checksum: Option<Checksum>,
}

/// Reads tensors of files, or ranges of their bytes. Before the first byte is read it is known that all
/// are there, of these dtypes and shapes.
///
/// A block of which a range has only a part is read as a whole, since its checksum is that of the whole.
///
/// # Errors
/// A file cannot be read, or has no such tensor or bytes; bytes are not those of the checksums, and are in the
/// targets by then; the job was cancelled.
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
        let known = match known.map(|text| Checksums::parse(text)) {
            None => Checksums::default(),
            Some(Ok(known)) => known,
            Some(Err(reason)) => return Err(damaged(path, "", reason)),
        };
        for wanted in tensors {
            let name = &wanted.name;
            let found = found_in(&header, path, name, &wanted.dtype, &wanted.shape)?;
            let num_bytes = usize::try_from(found.length).unwrap_or(usize::MAX);
            let end = wanted.start.checked_add(wanted.length);
            if end.is_none_or(|end| end > num_bytes) {
                let reason = format!("it has {num_bytes} bytes, and more were expected");
                return Err(damaged(path, name, reason));
            }
            // Several ranges of a tensor have the same checksums.
            let checksum = known.files.get(name).map(|known| known.content.clone());
            let checksum = checksum.filter(|checksum| checksum.length == found.length);
            if wanted.target.is_none() && checksum.is_none() {
                continue;
            }
            parts.push(Part {
                file: files.len(),
                offset: found.offset,
                num_bytes,
                wanted,
                checksum,
            });
        }
        files.push((file, path));
    }
    read_parts(job, &files, &parts)
}

/// Finds a tensor in the header of a file.
///
/// # Errors
/// It is not there, or of another dtype or shape.
pub(super) fn found_in<'h>(
    header: &'h Header,
    path: &Path,
    name: &str,
    dtype: &str,
    shape: &[i64],
) -> StorageResult<&'h Tensor> {
    let Some(found) = header.tensors.get(name) else {
        return Err(damaged(path, name, "it is not in the file".to_owned()));
    };
    if format!("torch.{}", found.dtype) != dtype || found.shape != shape {
        let reason = format!(
            "it is of the dtype torch.{} and the shape {:?}, where {dtype} and {shape:?} were expected",
            found.dtype, found.shape
        );
        return Err(damaged(path, name, reason));
    }
    Ok(found)
}

/// The parts of tensors that a thread reads at a time: several small ones together.
fn tasks(parts: &[Part<'_>]) -> Vec<(std::ops::Range<usize>, usize)> {
    let mut tasks: Vec<(std::ops::Range<usize>, usize)> = Vec::new();
    let mut filled = PART_BYTES;
    for (number, part) in parts.iter().enumerate() {
        let length = part.wanted.length;
        if length > PART_BYTES {
            // Cut where blocks end, so that none is read by two threads.
            let first = part.wanted.start;
            let aligned = (first - first % PART_BYTES..first + length).step_by(PART_BYTES);
            let starts = aligned.map(|start| start.max(first));
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
    STORAGE.try_for_each(tasks.len(), thread_count(job.threads), |task| {
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

/// Reads from the byte `start` of a tensor to the end of its [`PART_BYTES`], or of what is wanted; whether the
/// bytes have their checksums.
fn read_part(file: &File, part: &Part<'_>, start: usize) -> io::Result<bool> {
    let wanted = part.wanted;
    let last = wanted.start + wanted.length;
    let start = start.max(wanted.start);
    let end = last.min(start - start % PART_BYTES + PART_BYTES);
    let mut scratch = Vec::new();
    let mut is_good = true;
    let mut at = start;
    // A block is compared while it is in the cache.
    while at < end {
        let first = at - at % BLOCK_BYTES;
        let block = first..part.num_bytes.min(first + BLOCK_BYTES);
        let next = end.min(block.end);
        let is_whole = (at, next) == (block.start, block.end);
        let expected = part.checksum.as_ref().map(|checksum| {
            let blocks = &checksum.blocks;
            *blocks.get(at / BLOCK_BYTES).unwrap_or(&checksum.whole)
        });
        // SAFETY: no other task has this part of the target, and it lies in what is wanted.
        let target = wanted
            .target
            .as_ref()
            .map(|target| unsafe { target.part(at - wanted.start, next - at) });
        match (expected, target) {
            (Some(expected), Some(bytes)) if is_whole => {
                Disk::REAL.read_exact_at(file, bytes, part.offset + at as u64)?;
                is_good &= checksums::crc32c(bytes) == expected;
            }
            (Some(expected), target) => {
                scratch.resize(block.len(), 0);
                Disk::REAL.read_exact_at(file, &mut scratch, part.offset + first as u64)?;
                is_good &= checksums::crc32c(&scratch) == expected;
                if let Some(bytes) = target {
                    bytes.copy_from_slice(&scratch[at - first..next - first]);
                }
            }
            (None, Some(bytes)) => {
                Disk::REAL.read_exact_at(file, bytes, part.offset + at as u64)?;
            }
            (None, None) => {}
        }
        at = next;
    }
    Ok(is_good)
}
