//! Making a work directory the save, in one step.
//!
//! A save is written beside its target, into `.<target>.tdtmp/<owner>/new`, and then takes the
//! target's place. A process that is killed before leaves the old data, one that is killed after
//! leaves the new. What the step is depends on the target:
//!
//! * absent: a rename that replaces nothing;
//! * empty, or wholly a save (every file in it is named by its metadata): an exchange of the two
//!   directories, after which the old one is deleted;
//! * with other files in it, a mount point, or the working directory of this process: each file is
//!   renamed into place by itself, metadata after leaves, the root's last. After a kill no leaf is
//!   torn, but leaves of both saves can be there. The work directory is then inside the target.
//!
//! [`super::work`] says who owns a work directory, and when it is swept.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, OFlags, RenameFlags, StatxAttributes, StatxFlags, statx};
use rustix::io::Errno;

use super::checksums::{CHECKSUMS_FILE, Checksums, modified_ns};
use super::io::{Disk, open_to_read};
use super::job::Job;
use super::json::Value;
use super::lock::putting;
use super::map::{FileIdentity, Mapping, Mode, Root, mapping_limit};
use super::metadata::{self, LeafMeta};
use super::names;
use super::plan::{Content, Plan, PlannedFile, PlannedLeaf, PlannedLevel};
use super::read::{Home, Leaf, map_leaves};
use super::replace::replace_file;
use super::work::{WorkArea, is_area, is_changed_by_others, sweep_area};
use super::write::{Place, sync, write};
use super::{METADATA_FILE, StorageError, StorageResult, VALUE_NOTES_FILE};

/// Rules for a save that finds something in its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaveOptions {
    /// True if leaves may be there. If not, a leaf whose file exists is an error.
    pub exist_ok: bool,
    /// True if files are written over in their place, as the published release does. Readers see
    /// the change; after a kill old and new bytes are mixed.
    pub in_place: bool,
}

/// Saves `plan` as the directory `target`; the mappings of the leaves, None for one of no bytes and for
/// one whose file was linked.
///
/// # Errors
/// The operating system refuses something, or the job was cancelled. The target is then as it was.
pub fn save(
    job: &Job<'_>,
    plan: &Plan,
    target: &Path,
    options: SaveOptions,
) -> StorageResult<Vec<Option<Mapping>>> {
    let target = resolve(job.disk, target)?;
    if !options.exist_ok {
        refuse_existing(plan, &target)?;
    }
    if options.in_place {
        return save_in_place(job, plan, &target);
    }
    let state = survey(job.disk, &target)?;
    if let State::Mixed { .. } = state {
        check_moves(plan, &target)?;
    }
    let (disk, num_files) = (job.disk, plan.leaves.len());
    let (work, state) = match state {
        State::Absent => (WorkArea::beside(disk, &target, num_files)?, State::Absent),
        State::Whole { named } => match WorkArea::beside(disk, &target, num_files) {
            // A target that may be written in a directory that may not.
            Err(StorageError::Io { source, .. })
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                (
                    WorkArea::inside(disk, &target, num_files)?,
                    State::Mixed { named },
                )
            }
            work => (work?, State::Whole { named }),
        },
        mixed @ State::Mixed { .. } => (WorkArea::inside(disk, &target, num_files)?, mixed),
    };
    let new = work.new_path();
    let make = |path: &Path| {
        disk.make_directory(path)
            .map_err(|source| StorageError::io(path, source))
    };
    make(&new)?;
    for level in &plan.levels[1..] {
        make(&new.join(&level.path))?;
    }
    // Files of zeros are made to be stored to.
    let is_mapped = plan.leaves.len() <= mapping_limit() || plan.has_zeros();
    // Before anything is linked: a file that is linked later is one that these checksums are of.
    let kept = (job.has_checksums && plan.has_links()).then(|| read_checksums(&target));
    let mut written = write(job, plan, &new, Place::New, is_mapped)?;
    if job.has_checksums {
        write_checksums(job, plan, &new, kept, &mut written.checksums)?;
    }
    if job.is_durable {
        let checksums: &[&str] = if job.has_checksums {
            &[CHECKSUMS_FILE]
        } else {
            &[]
        };
        sync(job, plan, &new, checksums)?;
    }
    job.check(&target)?;
    let is_moved = match state {
        State::Mixed { named } => move_files(job, plan, &new, &target, named).map(|()| true)?,
        State::Absent | State::Whole { .. } => replace(job, plan, &work, &target)?,
    };
    if job.is_durable {
        sync_directories(disk, if is_moved { &plan.levels } else { &[] }, &target)?;
    }
    if !is_mapped {
        return read_back(job, plan, &target);
    }
    Ok(written.mappings)
}

/// Writes over the files of the target, metadata last.
fn save_in_place(job: &Job<'_>, plan: &Plan, target: &Path) -> StorageResult<Vec<Option<Mapping>>> {
    job.disk
        .make_directories(target)
        .map_err(|source| StorageError::io(target, source))?;
    check_places(plan, target)?;
    ensure_directories(job.disk, plan, target)?;
    // Checksums that are not right any more go first: without them nothing is said to be damaged.
    let old = target.join(CHECKSUMS_FILE);
    let kept = read_checksums(target);
    let is_mapped = plan.leaves.len() <= mapping_limit();
    match job.disk.remove_file(&old) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        removed => removed.map_err(|source| StorageError::io(&old, source))?,
    }
    let mut written = write(job, plan, target, Place::Existing, is_mapped)?;
    job.check(target)?;
    if job.has_checksums {
        keep_checksums(plan, kept, &mut written.checksums);
        let text = written.checksums.to_text();
        replace_file(job.disk, &old, text.as_bytes())?;
    }
    if job.is_durable {
        let checksums: &[&str] = if job.has_checksums {
            &[CHECKSUMS_FILE]
        } else {
            &[]
        };
        sync(job, plan, target, checksums)?;
        sync_directories(job.disk, &[], target)?;
    }
    if !is_mapped {
        return read_back(job, plan, target);
    }
    Ok(written.mappings)
}

/// The leaves of a save of more of them than the kernel maps files: small ones are read together, and
/// stores to them stay in this process.
fn read_back(job: &Job<'_>, plan: &Plan, target: &Path) -> StorageResult<Vec<Option<Mapping>>> {
    let home_of = |level: &PlannedLevel| Home {
        keys: level.keys.clone(),
        directory: target.join(&level.path),
    };
    let homes: Vec<Arc<Home>> = plan
        .levels
        .iter()
        .map(|level| Arc::new(home_of(level)))
        .collect();
    let leaves: Vec<Leaf> = (0..plan.leaves.len())
        .map(|number| {
            let PlannedLeaf { level, length, .. } = &plan.leaves[number];
            let name = plan.leaf_name(number);
            let key = plan.leaf_key(number);
            Leaf {
                home: homes[*level].clone(),
                key: key.to_owned(),
                is_raw: name.strip_suffix(".memmap") == Some(key),
                meta: LeafMeta {
                    device: "".into(),
                    shape: metadata::Shape::new(),
                    dtype: "".into(),
                    is_nested: false,
                },
                length: *length,
            }
        })
        .collect();
    let root = Root::open_path(target).map_err(|source| StorageError::io(target, source))?;
    map_leaves(&root, &leaves, Mode::Private, job.threads)
}

/// Writes the checksums of a save. Of leaves whose files were linked they are those of the old save.
fn write_checksums(
    job: &Job<'_>,
    plan: &Plan,
    new: &Path,
    kept: Option<Checksums>,
    checksums: &mut Checksums,
) -> StorageResult<()> {
    if let Some(kept) = kept {
        keep_checksums(plan, kept, checksums);
    }
    let path = new.join(CHECKSUMS_FILE);
    let refused = |source| StorageError::io(&path, source);
    let directory = job.disk.open_directory(new).map_err(refused)?;
    let file = job
        .disk
        .create(directory.as_fd(), CHECKSUMS_FILE)
        .map_err(refused)?;
    job.disk
        .write_all_at(&file, checksums.to_text().as_bytes(), 0)
        .map_err(refused)
}

fn keep_checksums(plan: &Plan, mut old: Checksums, checksums: &mut Checksums) {
    for number in 0..plan.leaves.len() {
        if plan.is_link(number) {
            let name = plan.leaf_path(number).to_string_lossy().into_owned();
            if let Some(checksum) = old.files.swap_remove(&name)
                && !checksums.files.contains_key(&name)
            {
                checksums.files.insert(name, checksum);
            }
        }
    }
}

/// The checksums of the save in a directory; none where they cannot be read.
fn read_checksums(target: &Path) -> Checksums {
    fs::read_to_string(target.join(CHECKSUMS_FILE))
        .ok()
        .and_then(|text| Checksums::parse(&text).ok())
        .unwrap_or_default()
}

/// The content of a target. Paths are relative to it.
enum State {
    Absent,
    Whole { named: BTreeSet<PathBuf> },
    Mixed { named: BTreeSet<PathBuf> },
}

/// The target with its symbolic links followed, so that a link to a directory stays one. Directories
/// above it are made.
fn resolve(disk: Disk<'_>, target: &Path) -> StorageResult<PathBuf> {
    let refused = |source| StorageError::io(target, source);
    let absolute = std::path::absolute(target).map_err(refused)?;
    match fs::symlink_metadata(&absolute) {
        Ok(_) => {
            let path = fs::canonicalize(&absolute).map_err(refused)?;
            if path.is_dir() {
                return Ok(path);
            }
            Err(refused(Errno::NOTDIR.into()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
                return Err(refused(error));
            };
            disk.make_directories(parent)
                .map_err(|source| StorageError::io(parent, source))?;
            let parent = fs::canonicalize(parent).map_err(refused)?;
            Ok(parent.join(name))
        }
        Err(error) => Err(refused(error)),
    }
}

/// Fails where a leaf's file is there already, and is not the one that the leaf is mapped from.
///
/// # Errors
/// [`StorageError::FileExists`].
pub fn refuse_existing(plan: &Plan, target: &Path) -> StorageResult<()> {
    for (number, leaf) in plan.leaves.iter().enumerate() {
        let path = target.join(plan.leaf_path(number));
        let own = match &leaf.content {
            Content::Link(link) => Some(link.file),
            _ => None,
        };
        let there = (leaf.length > 0)
            .then(|| FileIdentity::of_path(&path))
            .flatten();
        if there.is_some() && there != own {
            return Err(StorageError::FileExists { path });
        }
    }
    Ok(())
}

/// Fails where a symbolic link stands.
pub(crate) fn refuse_symlink(path: &Path) -> StorageResult<()> {
    if path.is_symlink() {
        return Err(StorageError::Symlink {
            path: path.to_path_buf(),
        });
    }
    Ok(())
}

/// Makes the directories of the levels in `target`, which exists, where they are missing.
pub(crate) fn ensure_directories(disk: Disk<'_>, plan: &Plan, target: &Path) -> StorageResult<()> {
    for level in &plan.levels[1..] {
        let path = target.join(&level.path);
        refuse_symlink(&path)?;
        if path.is_dir() {
            continue;
        }
        match disk.make_directory(&path) {
            // Another save made it just now.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
            made => made.map_err(|source| StorageError::io(&path, source))?,
        }
    }
    Ok(())
}

/// Checks, before anything is written, that every file of the plan can take its place.
fn check_places(plan: &Plan, target: &Path) -> StorageResult<()> {
    for level in &plan.levels[1..] {
        refuse_symlink(&target.join(&level.path))?;
    }
    for file in &plan.files {
        let path = target.join(plan.file_path(file));
        if let PlannedFile::Leaf(_) = file {
            refuse_symlink(&path)?;
        }
        if path.is_dir() {
            return Err(StorageError::io(path, Errno::ISDIR));
        }
    }
    Ok(())
}

/// Checks, before anything is written, that every file of the plan can be moved to its place: not
/// to where another directory is mounted.
fn check_moves(plan: &Plan, target: &Path) -> StorageResult<()> {
    for level in &plan.levels[1..] {
        let path = target.join(&level.path);
        if is_mount_point(&path) {
            return Err(StorageError::io(path, Errno::XDEV));
        }
    }
    check_places(plan, target)
}

fn survey(disk: Disk<'_>, target: &Path) -> StorageResult<State> {
    for _ in 0..MAX_ATTEMPTS {
        match try_survey(disk, target) {
            // It was replaced while it was looked at.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            state => return state.map_err(|source| StorageError::io(target, source)),
        }
    }
    try_survey(disk, target).map_err(|source| StorageError::io(target, source))
}

fn try_survey(disk: Disk<'_>, target: &Path) -> io::Result<State> {
    let own = match fs::symlink_metadata(target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(State::Absent),
        own => own?,
    };
    // Held open, so that no other directory gets its number meanwhile.
    let held = open_to_read(target)?;
    let mut named = BTreeSet::new();
    let is_whole = survey_level(disk, target, Path::new(""), &mut named)?;
    if FileIdentity::of_path(target) != FileIdentity::of_open(&held) {
        // The files that were seen are partly of another directory.
        return Err(io::ErrorKind::NotFound.into());
    }
    let is_mount = match target.parent().map(fs::metadata) {
        Some(Ok(parent)) => parent.dev() != own.dev(),
        _ => true,
    };
    let is_occupied = std::env::current_dir().is_ok_and(|here| here.starts_with(target));
    if is_whole && !is_mount && !is_occupied {
        Ok(State::Whole { named })
    } else {
        Ok(State::Mixed { named })
    }
}

/// Returns whether something is mounted at a directory, be it another directory of the same file
/// system: it cannot be renamed then. Kernels before 5.8 do not tell.
fn is_mount_point(directory: &Path) -> bool {
    statx(
        CWD,
        directory,
        AtFlags::SYMLINK_NOFOLLOW,
        StatxFlags::empty(),
    )
    .is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Adds the files that the metadata of a level names to `named`; whether there are no others. What
/// processes left that were killed while they replaced a file is deleted.
fn survey_level(
    disk: Disk<'_>,
    root: &Path,
    level: &Path,
    named: &mut BTreeSet<PathBuf>,
) -> io::Result<bool> {
    let directory = root.join(level);
    let found: BTreeMap<OsString, fs::FileType> = fs::read_dir(&directory)?
        .map(|entry| entry.and_then(|entry| Ok((entry.file_name(), entry.file_type()?))))
        .collect::<io::Result<_>>()?;
    let file = directory.join(METADATA_FILE);
    let known = metadata::read(&file)
        .and_then(|bytes| metadata::parse_json(&file, bytes))
        .map(|value| names_in(&value, &found, level.as_os_str().is_empty()))
        .unwrap_or_default();
    let mut is_whole = !is_mount_point(&directory);
    for (name, kind) in found {
        let Some(is_directory) = name.to_str().and_then(|name| known.get(name)) else {
            let area = directory.join(&name);
            if kind.is_dir() && name.to_str().is_some_and(is_area) {
                sweep_area(disk, &area);
            }
            is_whole &= fs::symlink_metadata(&area).is_err();
            continue;
        };
        let path = level.join(&name);
        if *is_directory && kind.is_dir() {
            is_whole &= survey_level(disk, root, &path, named)?;
        } else if !*is_directory && kind.is_file() {
            named.insert(path);
        } else {
            is_whole = false;
        }
    }
    Ok(is_whole)
}

/// The names that belong to a level of any class, each with whether it is a directory.
fn names_in(
    value: &Value,
    found: &BTreeMap<OsString, fs::FileType>,
    is_root: bool,
) -> BTreeMap<String, bool> {
    let mut known = BTreeMap::new();
    let Value::Object(fields) = value else {
        return known;
    };
    for name in [
        METADATA_FILE,
        "other.pickle",
        "json_types.json",
        "pickle.pkl",
        VALUE_NOTES_FILE,
    ] {
        known.insert(name.to_owned(), false);
    }
    if is_root {
        known.insert(CHECKSUMS_FILE.to_owned(), false);
    }
    for name in ["_tensordict", "_source"] {
        known.insert(name.to_owned(), true);
    }
    if fields.contains_key("stack_dim") {
        let members = found.keys().filter_map(|name| name.to_str());
        let members = members.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        known.extend(members.map(|name| (name.to_owned(), true)));
    }
    for (key, entry) in fields {
        for stem in [names::escape(key).as_ref(), key.as_str()] {
            if entry.get("type").is_some() {
                known.insert(stem.to_owned(), true);
            } else if entry.get("dtype").is_some() {
                known.insert(format!("{stem}.memmap"), false);
                if entry.get("is_nested") == Some(&Value::Bool(true)) {
                    known.insert(format!("{stem}.shape.memmap"), false);
                }
            }
        }
    }
    known
}

/// The number of times that the target may become something else before the save gives up.
const MAX_ATTEMPTS: usize = 100;

/// Puts the new directory in the place of the target, whatever that is by now: other processes may have
/// made, replaced or deleted it while this save was written, or have put files into it. True where the
/// files were moved one by one.
fn replace(job: &Job<'_>, plan: &Plan, work: &WorkArea<'_>, target: &Path) -> StorageResult<bool> {
    let (disk, new) = (job.disk, work.new_path());
    let mut attempts = 0..MAX_ATTEMPTS;
    loop {
        let is_last = attempts.next().is_none();
        let done = match survey(disk, target)? {
            State::Absent => publish(disk, &new, target),
            State::Whole { .. } => exchange(disk, work, target),
            State::Mixed { named } => {
                check_moves(plan, target)?;
                return move_files(job, plan, &new, target, named).map(|()| true);
            }
        };
        match done {
            Err(StorageError::Io { source, .. }) if !is_last && is_changed_by_others(&source) => {}
            Err(error) => return Err(error),
            Ok(Replaced::Done) => return Ok(false),
            // Somebody put files into the target just before the exchange: they go back, and
            // the save takes the place of what is there file by file.
            Ok(Replaced::Others) => disk
                .rename(&new, target, RenameFlags::EXCHANGE)
                .map_err(|source| StorageError::io(target, source))?,
        }
    }
}

/// The kind of the target that was replaced.
enum Replaced {
    /// Nothing, or wholly a save.
    Done,
    /// A directory with other files in it, which is now where the new one was.
    Others,
}

/// Returns whether a file system does not know the flags of a rename.
fn is_unsupported(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP)
    )
}

/// Renames `new` to `target`, which does not exist.
fn publish(disk: Disk<'_>, new: &Path, target: &Path) -> StorageResult<Replaced> {
    let renamed = match disk.rename(new, target, RenameFlags::NOREPLACE) {
        Err(error) if is_unsupported(&error) => disk.rename(new, target, RenameFlags::empty()),
        renamed => renamed,
    };
    renamed.map_err(|source| StorageError::io(target, source))?;
    Ok(Replaced::Done)
}

/// Puts the new directory in the place of the target; the old one stays in the work directory and
/// is deleted with it.
fn exchange(disk: Disk<'_>, work: &WorkArea<'_>, target: &Path) -> StorageResult<Replaced> {
    let refused = |source: io::Error| StorageError::io(target, source);
    let new = work.new_path();
    disk.copy_permissions(target, &new).map_err(refused)?;
    match disk.rename(&new, target, RenameFlags::EXCHANGE) {
        Err(error) if is_unsupported(&error) => {
            let old = work.old_path();
            disk.rename(target, &old, RenameFlags::empty())
                .map_err(refused)?;
            disk.rename(&new, target, RenameFlags::empty())
                .map_err(|source| {
                    // Without the old data in place there would be none: it goes back.
                    let _ = disk.rename(&old, target, RenameFlags::empty());
                    refused(source)
                })?;
            Ok(Replaced::Done)
        }
        exchanged => {
            exchanged.map_err(refused)?;
            // The old files are in the work directory, and are deleted with it.
            let is_whole = survey_level(disk, &new, Path::new(""), &mut BTreeSet::new());
            Ok(match is_whole {
                Ok(false) => Replaced::Others,
                _ => Replaced::Done,
            })
        }
    }
}

/// Renames each file into place, leaves first, then checksums, then metadata, that of the root last; then
/// deletes the files that only the old metadata named.
fn move_files(
    job: &Job<'_>,
    plan: &Plan,
    new: &Path,
    target: &Path,
    mut named: BTreeSet<PathBuf>,
) -> StorageResult<()> {
    ensure_directories(job.disk, plan, target)?;
    let mut order: Vec<PathBuf> = plan
        .files_root_last()
        .into_iter()
        .map(|(_, file)| plan.file_path(file))
        .collect();
    if job.has_checksums {
        // Before all metadata, which is one file for each level.
        order.insert(
            order.len() - plan.levels.len(),
            PathBuf::from(CHECKSUMS_FILE),
        );
    }
    for path in order {
        let place = target.join(&path);
        let put = || {
            keep_length(job.disk, &new.join(&path), &place)
                .and_then(|()| {
                    job.disk
                        .rename(&new.join(&path), &place, RenameFlags::empty())
                })
                .map_err(|source| StorageError::io(&place, source))
        };
        putting(job.disk, &place, put)?;
        named.remove(&path);
    }
    let mut directories = BTreeSet::new();
    for path in named {
        // A stale file that cannot be deleted is not part of the save.
        let _ = job.disk.remove_file(&target.join(&path));
        let above = path.ancestors().skip(1);
        let above = above.filter(|directory| !directory.as_os_str().is_empty());
        directories.extend(above.map(|directory| target.join(directory)));
    }
    // A directory comes before what is in it, so all go where nothing else is in them.
    let directories: Vec<PathBuf> = directories.into_iter().collect();
    job.disk.remove_empty(&directories);
    Ok(())
}

/// Makes a new leaf at least as long as the one that it replaces, by a hole: after a kill the
/// old metadata may still stand beside it, and must find its bytes.
pub(crate) fn keep_length(disk: Disk<'_>, new: &Path, old: &Path) -> io::Result<()> {
    if old.extension().is_none_or(|suffix| suffix != "memmap") {
        return Ok(());
    }
    let (Ok(new_length), Ok(old_length)) = (
        fs::metadata(new).map(|metadata| metadata.len()),
        fs::metadata(old).map(|metadata| metadata.len()),
    ) else {
        return Ok(());
    };
    if old_length <= new_length {
        return Ok(());
    }
    let file = disk.open(new, OFlags::WRONLY)?;
    let modified_ns = modified_ns(&file.metadata()?);
    disk.set_length(&file, old_length)?;
    disk.set_modified(&file, modified_ns)
}

/// Brings the names in these levels of the target, and its own, to the disk.
fn sync_directories(disk: Disk<'_>, levels: &[PlannedLevel], target: &Path) -> StorageResult<()> {
    let levels = levels.iter().map(|level| target.join(&level.path));
    let parent = target.parent().map(Path::to_path_buf);
    for path in levels.chain(parent) {
        let refused = |source: io::Error| StorageError::io(&path, source);
        let directory = disk.open_directory(&path).map_err(refused)?;
        disk.sync(&directory).map_err(refused)?;
    }
    Ok(())
}
