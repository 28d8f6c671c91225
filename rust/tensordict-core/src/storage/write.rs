//! Writing the files of a plan with a few threads.
//!
//! Bytes go from the tensor's memory to the file with positioned writes. A store through a
//! mapping would cost a third more for page faults, and turn a full disk into a bus error. At most
//! one thread is in a file at a time: the kernel's inode lock takes back what a second one gains.
//! A small file is opened relative to its directory, written, mapped and closed.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, openat};

use super::map::{Mapping, no_mapping};
use super::plan::{Content, FileContent, Plan, PlannedFile, PlannedLeaf};
use super::region::Region;
use super::{StorageError, StorageResult, thread_count, threads};

/// The bytes of one write: large enough to cost nothing, small enough to be interrupted.
const WRITE_BYTES: usize = 8 << 20;

/// A file of this size is a task of its own.
const LARGE_BYTES: u64 = 1 << 20;

/// Small files of one directory that make a task.
const BATCH_FILES: usize = 32;

/// Below this many files and bytes a second thread costs more than it brings.
const SERIAL_FILES: usize = 24;
const SERIAL_BYTES: u64 = 1 << 20;

/// Writes all files of `plan` into the directory `root`, which is empty, and maps the leaves.
///
/// The mappings are by leaf; None for a leaf of no bytes and for one whose file was linked.
/// With `threads` 0, the cores of this process, at most 8.
///
/// # Errors
/// The operating system refuses a file: no space left, a file size limit, permissions. What was
/// written stays in `root`.
///
/// # Panics
/// A level of the plan was not closed.
pub fn write(plan: &Plan, root: &Path, threads: usize) -> StorageResult<Vec<Option<Mapping>>> {
    assert!(plan.is_complete(), "a level of the plan has no metadata");
    for level in &plan.levels[1..] {
        let path = root.join(&level.path);
        fs::create_dir(&path).map_err(|source| StorageError::io(&path, source))?;
    }
    let mappings: Vec<OnceLock<Mapping>> = plan.leaves.iter().map(|_| OnceLock::new()).collect();
    let (tasks, bytes) = tasks(plan);
    let is_small = plan.files.len() <= SERIAL_FILES && bytes <= SERIAL_BYTES;
    let threads = if is_small { 1 } else { thread_count(threads) };
    threads::for_each(tasks.len(), threads, |task| {
        write_batch(plan, root, &plan.files[tasks[task].clone()], &mappings)
    })?;
    Ok(mappings.into_iter().map(OnceLock::into_inner).collect())
}

/// The files of the plan in tasks, the largest first, and the bytes of all.
fn tasks(plan: &Plan) -> (Vec<Range<usize>>, u64) {
    let mut large = Vec::new();
    let mut small: Vec<Range<usize>> = Vec::new();
    let mut bytes_of_all = 0;
    let mut bytes_of_batch = 0;
    for (index, file) in plan.files.iter().enumerate() {
        let bytes = file_bytes(plan, file);
        bytes_of_all += bytes;
        if bytes >= LARGE_BYTES {
            large.push((bytes, index..index + 1));
            continue;
        }
        bytes_of_batch += bytes;
        match small.last_mut() {
            Some(batch)
                if batch.end == index
                    && batch.len() < BATCH_FILES
                    && bytes_of_batch <= LARGE_BYTES
                    && plan.files[batch.start].level == file.level =>
            {
                batch.end += 1;
            }
            _ => {
                bytes_of_batch = bytes;
                small.push(index..index + 1);
            }
        }
    }
    large.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    let tasks = large
        .into_iter()
        .map(|(_, range)| range)
        .chain(small)
        .collect();
    (tasks, bytes_of_all)
}

fn file_bytes(plan: &Plan, file: &PlannedFile) -> u64 {
    match &file.content {
        FileContent::Leaf(leaf) => plan.leaves[*leaf].length,
        FileContent::Bytes(bytes) => bytes.len() as u64,
    }
}

/// Writes files of one level.
fn write_batch(
    plan: &Plan,
    root: &Path,
    files: &[PlannedFile],
    mappings: &[OnceLock<Mapping>],
) -> StorageResult<()> {
    let Some(first) = files.first() else {
        return Ok(());
    };
    let path = root.join(&plan.levels[first.level].path);
    let directory = openat(
        CWD,
        &path,
        OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|errno| StorageError::io(&path, errno))?;
    for file in files {
        match &file.content {
            FileContent::Bytes(bytes) => create(&directory, &file.name)
                .and_then(|created| write_all(&created, bytes))
                .map_err(|source| StorageError::io(path.join(&file.name), source))?,
            FileContent::Leaf(number) => {
                let leaf = &plan.leaves[*number];
                if let Some(mapping) = write_leaf(&directory, leaf)
                    .map_err(|source| {
                        StorageError::io_of(plan.display_leaf(leaf), path.join(&leaf.name), source)
                    })?
                    .map_or(Ok(None), |file| {
                        map_written(&file, leaf).map(Some).map_err(|source| {
                            no_mapping(&path.join(&leaf.name), plan.display_leaf(leaf), source)
                        })
                    })?
                {
                    // Each leaf is in one task, so its place is empty.
                    let _ = mappings[*number].set(mapping);
                }
            }
        }
    }
    Ok(())
}

/// Writes the file of a leaf; None where the file was linked and not written.
fn write_leaf(directory: &OwnedFd, leaf: &PlannedLeaf) -> io::Result<Option<File>> {
    let memory = match &leaf.content {
        Content::Memory(memory) => *memory,
        Content::Link { path, memory } => {
            if linkat(CWD, path, directory, leaf.name.as_str(), AtFlags::empty()).is_ok() {
                return Ok(None);
            }
            *memory
        }
        Content::Absent => Region::EMPTY,
    };
    if memory.len() as u64 != leaf.length {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the memory of the leaf is not of its size",
        ));
    }
    let file = create(directory, &leaf.name)?;
    write_all(&file, memory.bytes())?;
    Ok(Some(file))
}

fn map_written(file: &File, leaf: &PlannedLeaf) -> io::Result<Mapping> {
    let length = usize::try_from(leaf.length).map_err(|_| io::ErrorKind::OutOfMemory)?;
    Mapping::new(file, &file.metadata()?, length, true)
}

fn create(directory: &OwnedFd, name: impl AsRef<OsStr>) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(
        directory.as_fd(),
        name.as_ref(),
        flags,
        Mode::from_raw_mode(0o666),
    )?;
    Ok(File::from(file))
}

fn write_all(file: &File, bytes: &[u8]) -> io::Result<()> {
    let mut offset = 0;
    for unit in bytes.chunks(WRITE_BYTES) {
        file.write_all_at(unit, offset)?;
        offset += unit.len() as u64;
    }
    Ok(())
}

/// Writes one file in one step: to a temporary name beside `path`, then renamed. The bytes of
/// `memory` are repeated until there are `length`.
///
/// # Errors
/// The operating system refuses; `path` is then as it was.
pub fn write_file(path: &Path, memory: Region, length: u64) -> StorageResult<Option<Mapping>> {
    let temporary = temporary_path(path);
    let written = (|| -> io::Result<_> {
        if memory.is_empty() && length > 0 {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&temporary)?;
        let mut offset = 0;
        while offset < length {
            let left = usize::try_from(length - offset).unwrap_or(usize::MAX);
            let unit = memory.len().min(WRITE_BYTES).min(left);
            let start = usize::try_from(offset % memory.len() as u64).unwrap_or(0);
            let unit = unit.min(memory.len() - start);
            file.write_all_at(&memory.bytes()[start..start + unit], offset)?;
            offset += unit as u64;
        }
        let mapped = usize::try_from(length).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mapping = match mapped {
            0 => None,
            _ => Some(Mapping::new(&file, &file.metadata()?, mapped, true)?),
        };
        fs::rename(&temporary, path)?;
        Ok(mapping)
    })();
    written.map_err(|source| {
        // The error that matters is the first one.
        let _ = fs::remove_file(&temporary);
        StorageError::io(path, source)
    })
}

/// A name beside `path` that no other call of this process uses, and that readers ignore.
pub(crate) fn temporary_path(path: &Path) -> PathBuf {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    path.with_file_name(format!(".tdtmp-{}-{count}", std::process::id()))
}
