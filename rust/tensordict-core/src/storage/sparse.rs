//! Files of zeros to be filled through their mappings: `memmap_like`.
//!
//! This is not a save: it works in the target itself, keeps the files that are there, with
//! their bytes, and lengthens those that are too short.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::commit::refuse_symlink;
use super::io::Disk;
use super::job::Job;
use super::lock::putting;
use super::map::{FileIdentity, Mapping, no_mapping};
use super::plan::{Plan, PlannedFile};
use super::replace::replace_file;
use super::{METADATA_FILE, StorageError, StorageResult};

/// A file that was there and too short.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grown {
    /// The number of the leaf in the plan.
    pub leaf: usize,
    /// The file.
    pub path: PathBuf,
    /// Its bytes before.
    pub from: u64,
    /// Its bytes now.
    pub to: u64,
}

/// Makes the files of `plan` in `target` and maps them. The metadata is written last, that of
/// the root at the very end.
///
/// With `is_reserved` the space of the files is set aside now, so that a disk without room is an error
/// here, and not at some later store.
///
/// # Errors
/// The operating system refuses a file; one is a symbolic link. What was made is then removed.
pub fn create(
    job: &Job<'_>,
    plan: &Plan,
    target: &Path,
    is_reserved: bool,
) -> StorageResult<(Vec<Option<Mapping>>, Vec<Grown>)> {
    let mut made = Made::new(job.disk, target);
    let created = make(job, plan, target, is_reserved, &mut made);
    if created.is_err() {
        made.take_back();
    }
    created
}

fn make(
    job: &Job<'_>,
    plan: &Plan,
    target: &Path,
    is_reserved: bool,
    made: &mut Made<'_>,
) -> StorageResult<(Vec<Option<Mapping>>, Vec<Grown>)> {
    let disk = job.disk;
    made.directories = disk
        .make_directories(target)
        .map_err(|source| StorageError::io(target, source))?;
    for level in &plan.levels[1..] {
        let path = target.join(&level.path);
        refuse_symlink(&path)?;
        let directories = disk.make_directories(&path);
        made.directories
            .extend(directories.map_err(|source| StorageError::io(&path, source))?);
    }
    let mut mappings = Vec::with_capacity(plan.leaves.len());
    let mut grown = Vec::new();
    for (number, leaf) in plan.leaves.iter().enumerate() {
        if leaf.length == 0 {
            mappings.push(None);
            continue;
        }
        let path = target.join(plan.leaf_path(number));
        refuse_symlink(&path)?;
        let (mapping, from) = lengthen(disk, &path, leaf.length, is_reserved)
            .map_err(|source| no_mapping(&path, plan.display_leaf(leaf), source))?;
        match from {
            None => made.files.push(path),
            Some(from) if 0 < from && from < leaf.length => grown.push(Grown {
                leaf: number,
                path,
                from,
                to: leaf.length,
            }),
            Some(_) => {}
        }
        mappings.push(Some(mapping));
    }
    for (_, file) in plan.files_root_last() {
        if let PlannedFile::Bytes(known) = file {
            let path = target.join(plan.file_path(file));
            let is_new = !path.exists();
            putting(disk, &path, || replace_file(disk, &path, known.bytes()))?;
            if is_new {
                made.files.push(path);
            }
        }
    }
    Ok((mappings, grown))
}

/// The things that a call that may fail made in its target.
struct Made<'d> {
    disk: Disk<'d>,
    root: PathBuf,
    /// The metadata that was there before.
    before: Option<FileIdentity>,
    directories: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

impl<'d> Made<'d> {
    fn new(disk: Disk<'d>, target: &Path) -> Self {
        let root = target.join(METADATA_FILE);
        Self {
            disk,
            before: FileIdentity::of_path(&root),
            root,
            directories: Vec::new(),
            files: Vec::new(),
        }
    }

    /// Removes what was made, unless another process made a save of it meanwhile. Files that were
    /// lengthened stay so: others may have mapped what is new of them.
    fn take_back(self) {
        if FileIdentity::of_path(&self.root) != self.before {
            return;
        }
        for file in self.files {
            let _ = self.disk.remove_file(&file);
        }
        self.disk.remove_empty(&self.directories);
    }
}

/// Maps `length` bytes of a file that is made, or lengthened, with zeros where there is less.
///
/// # Errors
/// The operating system refuses; the file is a symbolic link.
pub fn create_file(disk: Disk<'_>, path: &Path, length: u64) -> StorageResult<Option<Mapping>> {
    refuse_symlink(path)?;
    if length == 0 {
        return Ok(None);
    }
    let (mapping, _) =
        lengthen(disk, path, length, false).map_err(|source| StorageError::io(path, source))?;
    Ok(Some(mapping))
}

/// Maps a file that has at least `length` bytes from now on, and how many it had; None for one that was
/// made. Where that fails the file is as it was.
fn lengthen(
    disk: Disk<'_>,
    path: &Path,
    length: u64,
    is_reserved: bool,
) -> io::Result<(Mapping, Option<u64>)> {
    let mapped = usize::try_from(length).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let (file, is_new) = open_or_make(disk, path)?;
    let metadata = file.metadata()?;
    let resized = (|| {
        if metadata.len() < length {
            disk.set_length(&file, length)?;
        }
        if is_reserved {
            disk.reserve(&file, length)?;
        }
        disk.map(|| Mapping::new(&file, &metadata, mapped, true))
    })();
    let mapping = resized.inspect_err(|_| {
        if is_new {
            let _ = disk.remove_file(path);
        } else if metadata.len() < length {
            let _ = disk.set_length(&file, metadata.len());
        }
    })?;
    Ok((mapping, (!is_new).then_some(metadata.len())))
}

/// Opens a file, or makes it; and whether it was made.
fn open_or_make(disk: Disk<'_>, path: &Path) -> io::Result<(File, bool)> {
    loop {
        match disk.open(path, OFlags::RDWR) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return Ok((opened?, false)),
        }
        match disk.open(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL) {
            // Another process made it just now.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            opened => return Ok((opened?, true)),
        }
    }
}
