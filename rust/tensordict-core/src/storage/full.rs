//! Reading whole leaves into memory that is there: parallel positioned reads, checked on the way.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;

use super::checksums::{self, BLOCK_BYTES, Checksum, Checksums, FileChecksum};
use super::io::Disk;
use super::job::Job;
use super::map::{Root, leads_out};
use super::verify::check::{Finding, Outcome, judge};
use super::{StorageError, StorageResult, thread_count};
use crate::threads::STORAGE;

/// The bytes of a read. A whole number of blocks, so that each can be compared with its checksum.
const READ_BYTES: usize = 8 << 20;
const _: () = assert!(READ_BYTES.is_multiple_of(BLOCK_BYTES));

/// Files of fewer bytes are read several at a time.
const BATCH_BYTES: usize = 1 << 20;

/// Memory that is written to: that of a tensor.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    pointer: *mut u8,
    length: usize,
}

// SAFETY: a target is an address and a length; each is written to by one thread at a time.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

impl Target {
    /// A target of `length` bytes from `pointer`.
    ///
    /// # Safety
    /// The bytes stay allocated and writable, and nobody else reads or writes them, for as long as the
    /// target is in use. Targets of one call of [`read_all`] do not overlap.
    #[must_use]
    pub unsafe fn new(pointer: *mut u8, length: usize) -> Self {
        Self { pointer, length }
    }

    /// Part of the bytes.
    ///
    /// # Safety
    /// It lies within the target, and nobody else uses it meanwhile.
    pub(crate) unsafe fn part<'t>(&self, offset: usize, length: usize) -> &'t mut [u8] {
        // SAFETY: the contract of this function, and that of `new`.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.add(offset), length) }
    }
}

/// A leaf to be read.
#[derive(Debug, Clone)]
pub struct Request {
    /// The entry as messages show it.
    pub key: String,
    /// The file.
    pub path: PathBuf,
    /// The memory that its first bytes go to.
    pub target: Target,
}

/// Part of a leaf, or several small leaves.
enum Task {
    Part { request: usize, offset: usize },
    Batch { start: usize, end: usize },
}

/// Reads leaves of a save.
///
/// Bytes that are not those of the checksums are an error where the file was not modified since the
/// save; the targets are then written to in part.
///
/// # Errors
/// A file is missing or too short; bytes are damaged; the job was cancelled.
pub fn read_all(job: &Job<'_>, root: &Root, requests: &[Request]) -> StorageResult<()> {
    let checksums = Checksums::of_save(root);
    let reader = Reader {
        root,
        requests,
        checksums: requests
            .iter()
            .map(|request| {
                let name = request.path.strip_prefix(root.path()).ok()?;
                checksums.files.get(name.to_str()?)
            })
            .collect(),
        damages: Mutex::new(HashMap::new()),
    };
    let tasks = tasks(requests);
    STORAGE.try_for_each(tasks.len(), thread_count(job.threads), |number| {
        job.progress.check()?;
        match tasks[number] {
            Task::Part { request, offset } => reader.part(request, offset),
            Task::Batch { start, end } => {
                (start..end).try_for_each(|request| reader.part(request, 0))
            }
        }
    })?;
    let mut damages: Vec<(usize, String)> = reader
        .damages
        .into_inner()
        .unwrap_or_default()
        .into_iter()
        .collect();
    if damages.is_empty() {
        return Ok(());
    }
    damages.sort();
    let damages = damages.into_iter().map(|(_, line)| line).collect();
    Err(StorageError::Damaged { damages })
}

fn tasks(requests: &[Request]) -> Vec<Task> {
    let mut tasks = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (number, request) in requests.iter().enumerate() {
        let length = request.target.length;
        if length >= BATCH_BYTES {
            if start < number {
                tasks.push(Task::Batch { start, end: number });
            }
            (start, bytes) = (number + 1, 0);
            tasks.extend((0..length).step_by(READ_BYTES).map(|offset| Task::Part {
                request: number,
                offset,
            }));
            continue;
        }
        bytes += length;
        if bytes >= BATCH_BYTES || number - start >= 64 {
            tasks.push(Task::Batch {
                start,
                end: number + 1,
            });
            (start, bytes) = (number + 1, 0);
        }
    }
    if start < requests.len() {
        tasks.push(Task::Batch {
            start,
            end: requests.len(),
        });
    }
    tasks
}

struct Reader<'r> {
    root: &'r Root,
    requests: &'r [Request],
    checksums: Vec<Option<&'r FileChecksum>>,
    /// The damage that was found, by request.
    damages: Mutex<HashMap<usize, String>>,
}

impl Reader<'_> {
    /// Reads [`READ_BYTES`] of a leaf, or what is left of it.
    fn part(&self, number: usize, offset: usize) -> StorageResult<()> {
        let request = &self.requests[number];
        let Target { pointer, length } = request.target;
        if length == 0 {
            return Ok(());
        }
        let part = READ_BYTES.min(length - offset);
        // SAFETY: the part is within the target, whose maker keeps it writable and to us alone; no
        // other task has this part.
        let bytes = unsafe { std::slice::from_raw_parts_mut(pointer.add(offset), part) };
        let file = self.root.open(&request.path, false);
        let file = file.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => StorageError::MissingFile {
                path: request.path.clone(),
                key: request.key.clone(),
            },
            _ if leads_out(&source) => StorageError::LeadsOut {
                path: request.path.clone(),
                key: request.key.clone(),
            },
            _ => self.refused(number, source),
        })?;
        let checksum =
            self.checksums[number].filter(|checksum| checksum.content.length == length as u64);
        let mut is_same = true;
        let mut at = offset;
        // A block is compared while it is in the cache.
        for block in bytes.chunks_mut(BLOCK_BYTES) {
            Disk::REAL
                .read_exact_at(&file, block, at as u64)
                .map_err(|source| self.refused(number, source))?;
            if let Some(checksum) = checksum {
                is_same &= match checksum.content.blocks.get(at / BLOCK_BYTES) {
                    Some(&expected) => checksums::crc32c(block) == expected,
                    // A leaf of one block has the checksum of all.
                    None => Checksum::of(block).whole == checksum.content.whole,
                };
            }
            at += block.len();
        }
        if let Some(checksum) = checksum
            && !is_same
            && judge(&file, checksum.modified_ns) == Outcome::Damaged
        {
            let line = Finding {
                key: request.key.clone(),
                path: request.path.clone(),
                outcome: Outcome::Damaged,
                detail: format!(
                    "bytes {offset} to {} are not those that were saved",
                    offset + part
                ),
            }
            .to_line();
            if let Ok(mut damages) = self.damages.lock() {
                damages.entry(number).or_insert(line);
            }
        }
        Ok(())
    }

    fn refused(&self, number: usize, source: io::Error) -> StorageError {
        let request = &self.requests[number];
        StorageError::io_of(request.key.clone(), &request.path, source)
    }
}
