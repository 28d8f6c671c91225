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
//! The owner of a work directory holds a lock on it, which ends with the process: the next save
//! to the same target deletes those that nobody holds.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;

use super::json::Value;
use super::map::Mapping;
use super::metadata;
use super::names;
use super::plan::{FileContent, Plan};
use super::write::write;
use super::{METADATA_FILE, StorageError, StorageResult};

/// Saves `plan` as the directory `target`; the mappings are those of [`write`].
///
/// With `exist_ok` false, a leaf whose file exists in the target is an error.
///
/// # Errors
/// The operating system refuses something. The target is then as it was.
pub fn save(
    plan: &Plan,
    target: &Path,
    threads: usize,
    exist_ok: bool,
) -> StorageResult<Vec<Option<Mapping>>> {
    let target = resolve(target)?;
    if !exist_ok {
        refuse_existing(plan, &target)?;
    }
    let state = survey(&target)?;
    if let State::Mixed { .. } = state {
        check_places(plan, &target)?;
    }
    let (work, state) = match (WorkArea::create(&target, &state), state) {
        // A target that may be written in a directory that may not.
        (Err(StorageError::Io { source, .. }), State::Whole { named })
            if source.kind() == io::ErrorKind::PermissionDenied =>
        {
            let state = State::Mixed { named };
            (WorkArea::create(&target, &state)?, state)
        }
        (work, state) => (work?, state),
    };
    let mappings = write(plan, &work.new, threads)?;
    match state {
        State::Absent => publish(&work.new, &target)?,
        State::Whole { .. } => exchange(&work, &target)?,
        State::Mixed { named } => move_files(plan, &work.new, &target, named)?,
    }
    Ok(mappings)
}

/// What a target holds. Paths are relative to it.
enum State {
    Absent,
    Whole { named: BTreeSet<PathBuf> },
    Mixed { named: BTreeSet<PathBuf> },
}

/// The target with its symbolic links followed, so that a link to a directory stays one. Directories
/// above it are made.
fn resolve(target: &Path) -> StorageResult<PathBuf> {
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
            fs::create_dir_all(parent).map_err(|source| StorageError::io(parent, source))?;
            let parent = fs::canonicalize(parent).map_err(refused)?;
            Ok(parent.join(name))
        }
        Err(error) => Err(refused(error)),
    }
}

/// Fails where a leaf's file is there already.
///
/// # Errors
/// [`StorageError::FileExists`].
pub fn refuse_existing(plan: &Plan, target: &Path) -> StorageResult<()> {
    for (number, leaf) in plan.leaves.iter().enumerate() {
        let path = target.join(plan.leaf_path(number));
        if leaf.length > 0 && path.exists() {
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
pub(crate) fn ensure_directories(plan: &Plan, target: &Path) -> StorageResult<()> {
    for level in &plan.levels[1..] {
        let path = target.join(&level.path);
        refuse_symlink(&path)?;
        if !path.is_dir() {
            fs::create_dir(&path).map_err(|source| StorageError::io(&path, source))?;
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
        if let FileContent::Leaf(_) = file.content {
            refuse_symlink(&path)?;
        }
        if path.is_dir() {
            return Err(StorageError::io(path, Errno::ISDIR));
        }
    }
    Ok(())
}

fn survey(target: &Path) -> StorageResult<State> {
    let Ok(own) = fs::symlink_metadata(target) else {
        return Ok(State::Absent);
    };
    let mut named = BTreeSet::new();
    let is_whole = survey_level(target, Path::new(""), &mut named)
        .map_err(|source| StorageError::io(target, source))?;
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

/// Adds the files that the metadata of a level names to `named`; whether there are no others.
fn survey_level(root: &Path, level: &Path, named: &mut BTreeSet<PathBuf>) -> io::Result<bool> {
    let directory = root.join(level);
    let found: BTreeMap<OsString, fs::FileType> = fs::read_dir(&directory)?
        .map(|entry| entry.and_then(|entry| Ok((entry.file_name(), entry.file_type()?))))
        .collect::<io::Result<_>>()?;
    let known = metadata::read_json(&directory.join(METADATA_FILE))
        .map(|value| names_in(&value, &found))
        .unwrap_or_default();
    let mut is_whole = true;
    for (name, kind) in found {
        let Some(is_directory) = name.to_str().and_then(|name| known.get(name)) else {
            is_whole = false;
            continue;
        };
        let path = level.join(&name);
        if *is_directory && kind.is_dir() {
            is_whole &= survey_level(root, &path, named)?;
        } else if !*is_directory && kind.is_file() {
            named.insert(path);
        } else {
            is_whole = false;
        }
    }
    Ok(is_whole)
}

/// The names that belong to a level of any class, each with whether it is a directory.
fn names_in(value: &Value, found: &BTreeMap<OsString, fs::FileType>) -> BTreeMap<String, bool> {
    let mut known = BTreeMap::new();
    let Value::Object(fields) = value else {
        return known;
    };
    for name in [
        METADATA_FILE,
        "other.pickle",
        "json_types.json",
        "pickle.pkl",
    ] {
        known.insert(name.to_owned(), false);
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

/// A directory to write a save in. Dropped, it is deleted with what it holds.
struct WorkArea {
    area: PathBuf,
    owned: PathBuf,
    new: PathBuf,
    /// Held locked, and so not closed, while the directory is in use.
    _lock: File,
}

impl WorkArea {
    fn create(target: &Path, state: &State) -> StorageResult<Self> {
        let area = match (state, target.parent(), target.file_name()) {
            (State::Absent | State::Whole { .. }, Some(parent), Some(name)) => {
                // A name that is as long as can be leaves no room for more.
                let name: String = name.to_string_lossy().chars().take(50).collect();
                parent.join(format!(".{name}.tdtmp"))
            }
            _ => target.join(".tdtmp"),
        };
        sweep(&area);
        loop {
            match Self::try_create(&area) {
                Ok(Some(work)) => return Ok(work),
                Ok(None) => {}
                Err(source) => return Err(StorageError::io(&area, source)),
            }
        }
    }

    /// None where another save swept the directory before it was locked.
    fn try_create(area: &Path) -> io::Result<Option<Self>> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let owned = area.join(format!("{}-{count}", std::process::id()));
        match fs::create_dir(area) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        match fs::create_dir(&owned) {
            // Of another process of this number (in another container), or swept with the area.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound
                ) =>
            {
                return Ok(None);
            }
            made => made?,
        }
        let is_swept = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        let lock = match File::open(&owned) {
            Err(error) if is_swept(&error) => return Ok(None),
            lock => lock?,
        };
        // Only a sweep can hold the lock. A file system without locks is never swept.
        if flock(&lock, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
            return Ok(None);
        }
        let new = owned.join("new");
        match fs::create_dir(&new) {
            Err(error) if is_swept(&error) => return Ok(None),
            made => made?,
        }
        Ok(Some(Self {
            area: area.to_path_buf(),
            owned,
            new,
            _lock: lock,
        }))
    }
}

impl Drop for WorkArea {
    fn drop(&mut self) {
        // What cannot be deleted now is swept by the next save.
        let _ = fs::remove_dir_all(&self.owned);
        let _ = fs::remove_dir(&self.area);
    }
}

/// Deletes the work directories whose owner is gone.
fn sweep(area: &Path) {
    let Ok(entries) = fs::read_dir(area) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(directory) = File::open(&path) else {
            continue;
        };
        if flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // What cannot be deleted stays for the next sweep.
            let _ = fs::remove_dir_all(&path);
        }
    }
}

fn is_unsupported(errno: Errno) -> bool {
    matches!(errno, Errno::INVAL | Errno::NOSYS | Errno::NOTSUP)
}

/// Renames `new` to `target`, which does not exist.
fn publish(new: &Path, target: &Path) -> StorageResult<()> {
    match renameat_with(CWD, new, CWD, target, RenameFlags::NOREPLACE) {
        Err(errno) if is_unsupported(errno) => {
            fs::rename(new, target).map_err(|source| StorageError::io(target, source))
        }
        renamed => renamed.map_err(|errno| StorageError::io(target, errno)),
    }
}

/// Puts the new directory in the place of the target; the old one stays in the work directory and
/// is deleted with it.
fn exchange(work: &WorkArea, target: &Path) -> StorageResult<()> {
    let refused = |source: io::Error| StorageError::io(target, source);
    let permissions = fs::metadata(target).map_err(refused)?.permissions();
    fs::set_permissions(&work.new, permissions).map_err(refused)?;
    match renameat_with(CWD, &work.new, CWD, target, RenameFlags::EXCHANGE) {
        Err(errno) if is_unsupported(errno) => {
            let old = work.owned.join("old");
            fs::rename(target, &old).map_err(refused)?;
            fs::rename(&work.new, target).map_err(|source| {
                // Without the old data in place there would be none: it goes back.
                let _ = fs::rename(&old, target);
                refused(source)
            })
        }
        exchanged => exchanged.map_err(|errno| refused(errno.into())),
    }
}

/// Renames each file into place, metadata after leaves and that of the root last, then deletes the
/// files that only the old metadata named.
fn move_files(
    plan: &Plan,
    new: &Path,
    target: &Path,
    mut named: BTreeSet<PathBuf>,
) -> StorageResult<()> {
    ensure_directories(plan, target)?;
    let (metadata, others): (Vec<_>, Vec<_>) = plan
        .files
        .iter()
        .partition(|file| file.name == METADATA_FILE);
    // Children come after their parents in a plan, so backwards the root is last.
    let mut metadata = metadata;
    metadata.sort_by_key(|file| std::cmp::Reverse(file.level));
    for file in others.into_iter().chain(metadata) {
        let path = plan.file_path(file);
        let place = target.join(&path);
        fs::rename(new.join(&path), &place).map_err(|source| StorageError::io(&place, source))?;
        named.remove(&path);
    }
    for path in named {
        // A stale file that cannot be deleted is not part of the save.
        let _ = fs::remove_file(target.join(path));
    }
    Ok(())
}
