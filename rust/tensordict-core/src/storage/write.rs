//! Writing the files of a plan with a few threads.
//!
//! Bytes go from the tensor's memory to the file with positioned writes. A store through a
//! mapping would cost a third more for page faults, and turn a full disk into a bus error. At most
//! one thread is in a file at a time: the kernel's inode lock takes back what a second one gains.
//! A small file is opened relative to its directory, written, mapped and closed. Checksums are taken
//! of each block just before it is written, while it comes into the cache.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::OFlags;

use super::checksums::{Checksum, Checksummer, Checksums, FileChecksum};
use super::file::pour;
use super::job::Job;
use super::lock::putting;
use super::map::{FileIdentity, Mapping, no_mapping};
use super::plan::{Content, Link, Plan, PlannedFile, PlannedLeaf};
use super::region::Region;
use super::replace::replace_at;
use super::source::Source;
use super::{StorageError, StorageResult, thread_count};
use crate::threads::STORAGE;

/// A file of this size is a task of its own.
const LARGE_BYTES: u64 = 1 << 20;

/// Small files of one directory that make a task.
const BATCH_FILES: usize = 32;

/// Below this many files and bytes a second thread costs more than it brings.
const SERIAL_FILES: usize = 24;
const SERIAL_BYTES: u64 = 1 << 20;

/// Facts about the leaves of a plan that are known once they are written, by leaf.
#[derive(Debug, Default)]
pub struct WrittenLeaves {
    /// The mappings; None for a leaf of no bytes and for one whose file was linked.
    pub mappings: Vec<Option<Mapping>>,
    /// The checksums of all files that were written, leaves and others, by path.
    pub checksums: Checksums,
}

/// The place that files are written to: a new one, or one with files: then leaves are written over,
/// and the small files beside them are replaced, metadata last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    New,
    Existing,
}

/// Writes all files of `plan` into the directory `root`, and maps the leaves if asked to.
///
/// # Errors
/// The operating system refuses a file: no space left, a file size limit, permissions. What was
/// written stays in `root`.
///
/// # Panics
/// A level of the plan was not closed.
pub(crate) fn write(
    job: &Job<'_>,
    plan: &Plan,
    root: &Path,
    place: Place,
    is_mapped: bool,
) -> StorageResult<WrittenLeaves> {
    assert!(plan.is_complete(), "a level of the plan has no metadata");
    let (tasks, bytes) = tasks(plan, place);
    job.progress.expect(bytes);
    let writer = Writer {
        job,
        plan,
        root,
        place,
        is_mapped,
        mappings: plan.leaves.iter().map(|_| OnceLock::new()).collect(),
        checksums: plan.files.iter().map(|_| OnceLock::new()).collect(),
    };
    let is_small = plan.files.len() <= SERIAL_FILES && bytes <= SERIAL_BYTES;
    let threads = if is_small {
        1
    } else {
        thread_count(job.threads)
    };
    STORAGE.try_for_each(tasks.len(), threads, |task| {
        if let Some(next) = tasks.get(task + 1) {
            writer.begin(next.start);
        }
        writer.batch(tasks[task].clone())
    })?;
    if place == Place::Existing {
        writer.replace_others()?;
    }
    let mut checksums = Checksums::new();
    if job.has_checksums {
        checksums.files.reserve(plan.files.len());
        for (file, checksum) in plan.files.iter().zip(writer.checksums) {
            if let Some(checksum) = checksum.into_inner() {
                let modified_ns = job.stamp_ns;
                let name = plan.file_path(file).to_string_lossy().into_owned();
                checksums.files.insert(
                    name,
                    FileChecksum {
                        content: checksum,
                        modified_ns,
                    },
                );
            }
        }
    }
    Ok(WrittenLeaves {
        mappings: writer
            .mappings
            .into_iter()
            .map(OnceLock::into_inner)
            .collect(),
        checksums,
    })
}

/// The files of the plan in tasks, the largest first, and the bytes of all. What is replaced is in none.
fn tasks(plan: &Plan, place: Place) -> (Vec<Range<usize>>, u64) {
    let mut large = Vec::new();
    let mut small: Vec<Range<usize>> = Vec::new();
    let mut bytes_of_all = 0;
    let mut bytes_of_batch = 0;
    for (index, file) in plan.files.iter().enumerate() {
        let bytes = file_bytes(plan, file);
        bytes_of_all += bytes;
        if place == Place::Existing && matches!(file, PlannedFile::Bytes(_)) {
            continue;
        }
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
                    && plan.file_level(&plan.files[batch.start]) == plan.file_level(file) =>
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
    match file {
        PlannedFile::Leaf(leaf) => plan.leaves[*leaf].length,
        PlannedFile::Bytes(file) => file.bytes().len() as u64,
    }
}

struct Writer<'w> {
    job: &'w Job<'w>,
    plan: &'w Plan,
    root: &'w Path,
    place: Place,
    is_mapped: bool,
    mappings: Vec<OnceLock<Mapping>>,
    checksums: Vec<OnceLock<Checksum>>,
}

impl Writer<'_> {
    /// Has the first bytes of a file fetched, which is written next.
    fn begin(&self, number: usize) {
        if let PlannedFile::Leaf(leaf) = &self.plan.files[number]
            && let Content::Data(source) = &self.plan.leaves[*leaf].content
        {
            source.begin();
        }
    }

    /// Writes files of one level.
    fn batch(&self, range: Range<usize>) -> StorageResult<()> {
        let files = &self.plan.files[range.clone()];
        let Some(first) = files.first() else {
            return Ok(());
        };
        let path = self
            .root
            .join(self.plan.level_path(self.plan.file_level(first)));
        let directory = self
            .job
            .disk
            .open_directory(&path)
            .map_err(|source| StorageError::io(&path, source))?;
        let mut bounce = Vec::new();
        for (number, file) in range.clone().zip(files) {
            if number + 1 < range.end {
                self.begin(number + 1);
            }
            self.file(number, file, directory.as_fd(), &path, &mut bounce)?;
        }
        Ok(())
    }

    fn file(
        &self,
        number: usize,
        planned: &PlannedFile,
        directory: BorrowedFd<'_>,
        path: &Path,
        bounce: &mut Vec<u8>,
    ) -> StorageResult<()> {
        let Job { disk, .. } = *self.job;
        let name = self.plan.file_name(planned);
        let leaf = match planned {
            PlannedFile::Leaf(leaf) => Some((*leaf, &self.plan.leaves[*leaf])),
            PlannedFile::Bytes(_) => None,
        };
        let failed = |source: io::Error| {
            let key = leaf.map(|(_, leaf)| self.plan.display_leaf(leaf));
            StorageError::io_of(key.unwrap_or_default(), path.join(name), source)
        };
        let linked;
        let source = match (planned, leaf.map(|(_, leaf)| &leaf.content)) {
            (PlannedFile::Bytes(file), _) => {
                linked = Source::Memory(Region::of(file.bytes()));
                &linked
            }
            (_, Some(Content::Data(source))) => source,
            (_, Some(Content::Link(link))) => {
                // In its place already, or given a name in the new place.
                if self.place == Place::Existing || self.link(link, directory, name) {
                    return self.job.progress.advance(link.memory.len() as u64);
                }
                linked = Source::Memory(link.memory);
                &linked
            }
            _ => &Source::EMPTY,
        };
        let zeros = leaf
            .filter(|(_, leaf)| matches!(leaf.content, Content::Absent))
            .map_or(0, |(_, leaf)| leaf.length);
        if leaf.is_some_and(|(_, leaf)| source.len() + zeros != leaf.length) {
            let text = "the memory of the leaf is not of its size";
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, text)));
        }
        let file = match self.place {
            Place::New => disk.create(directory, name),
            Place::Existing => {
                let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                disk.open_at(directory, name, flags)
            }
        };
        let file = file.map_err(failed)?;
        let mut checksummer = Checksummer::default();
        let write = |place: u64, block: &[u8]| {
            if self.job.has_checksums {
                checksummer.update(block);
            }
            disk.write_all_at(&file, block, place)
        };
        if zeros == 0 {
            pour(self.job, &file, 0, source, bounce, write, &failed)?;
        } else {
            self.zeros(&file, zeros).map_err(failed)?;
            self.job.progress.advance(zeros)?;
        }
        if self.job.has_checksums {
            disk.set_modified(&file, self.job.stamp_ns)
                .map_err(failed)?;
            // Each file is in one task, so its place is empty.
            let _ = self.checksums[number].set(checksummer.finish());
        }
        if let Some((number, leaf)) = leaf.filter(|_| self.is_mapped) {
            let mapping = disk.map(|| map_written(&file, leaf)).map_err(|source| {
                no_mapping(&path.join(name), self.plan.display_leaf(leaf), source)
            })?;
            let _ = self.mappings[number].set(mapping);
        }
        Ok(())
    }
}

impl Writer<'_> {
    /// Replaces the files that are no leaves.
    fn replace_others(&self) -> StorageResult<()> {
        let job = self.job;
        for (number, file) in self.plan.files_root_last() {
            let PlannedFile::Bytes(known) = file else {
                continue;
            };
            let bytes = known.bytes();
            let path = self.root.join(self.plan.file_path(file));
            let modified_ns = job.has_checksums.then_some(job.stamp_ns);
            putting(job.disk, &path, || {
                replace_at(job.disk, &path, bytes, modified_ns)
            })?;
            if job.has_checksums {
                // Nobody else writes this file.
                let _ = self.checksums[number].set(Checksum::of(bytes));
            }
            job.progress.advance(bytes.len() as u64)?;
        }
        Ok(())
    }

    /// Makes a new file one of so many zeros.
    fn zeros(&self, file: &File, length: u64) -> io::Result<()> {
        self.job.disk.set_length(file, length)?;
        if self.job.is_reserved {
            self.job.disk.reserve(file, length)?;
        }
        Ok(())
    }

    /// Gives the file a name in `directory`; whether it has it. That of another save can be in its place
    /// by now, which is not linked.
    fn link(&self, link: &Link, directory: BorrowedFd<'_>, name: &str) -> bool {
        if self.job.disk.link(&link.path, directory, name).is_err() {
            return false;
        }
        if FileIdentity::of_entry(directory, name) == Some(link.file) {
            return true;
        }
        // If it cannot be removed, making the file fails and says so.
        let _ = self.job.disk.remove_at(directory, name);
        false
    }
}

fn map_written(file: &File, leaf: &PlannedLeaf) -> io::Result<Mapping> {
    let length = usize::try_from(leaf.length).map_err(|_| io::ErrorKind::OutOfMemory)?;
    Mapping::new(file, &file.metadata()?, length, true)
}

/// More files than this are brought to the disk with all of their file system: the device then
/// orders the writes, and the journal is committed once.
const SYNC_FILES: usize = 300;

/// Brings the files and directories of a plan to the disk.
pub(crate) fn sync(job: &Job<'_>, plan: &Plan, root: &Path, others: &[&str]) -> StorageResult<()> {
    let disk = job.disk;
    let refused = |path: &Path| {
        let path = path.to_path_buf();
        move |source: io::Error| StorageError::io(path, source)
    };
    if plan.files.len() > SYNC_FILES {
        let directory = disk.open_directory(root).map_err(refused(root))?;
        return disk.sync_file_system(&directory).map_err(refused(root));
    }
    let mut paths: Vec<PathBuf> = plan
        .files
        .iter()
        .map(|file| root.join(plan.file_path(file)))
        .collect();
    paths.extend(others.iter().map(|name| root.join(name)));
    STORAGE.try_for_each(paths.len(), thread_count(job.threads), |number| {
        let path = &paths[number];
        let file = disk.open(path, OFlags::RDONLY).map_err(refused(path))?;
        disk.sync(&file).map_err(refused(path))
    })?;
    for level in &plan.levels {
        let path = root.join(&level.path);
        let directory = disk.open_directory(&path).map_err(refused(&path))?;
        disk.sync(&directory).map_err(refused(&path))?;
    }
    Ok(())
}
