//! Work directories: where a save is written before it takes the place of its target.
//!
//! A work directory is `.<target>.tdtmp/<owner>`, beside the target or inside of it. Its name says who
//! owns it: the machine's boot, the namespace of process numbers, the process with the time
//! at which it began. So the next save to the same target can tell whether the owner is
//! gone, and deletes what it left. A lock on the directory says the same across namespaces; alone it
//! would not do, since a forked child inherits it.
//!
//! A single small file ([`NewFile`]) is made in the same place, without a directory of its own.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, RenameFlags, flock, openat};
use rustix::io::Errno;

use super::io::Disk;
use super::spread::{MAX_PLACES, is_slow, spread};
use super::{StorageError, StorageResult};

use std::os::unix::fs::MetadataExt;

/// The name of a work directory inside of its target, and the end of the names of all others.
const INSIDE: &str = ".tdtmp";

/// Returns whether a directory of this name is one that work directories are in.
pub(crate) fn is_area(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(INSIDE)
}

/// Returns the directory of the work directories beside a target.
fn area_beside(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default();
    // A name that is as long as can be leaves no room for more.
    let name: String = name.to_string_lossy().chars().take(50).collect();
    target.with_file_name(format!(".{name}{INSIDE}"))
}

/// A name in an area that nothing else has, which tells who owns it.
fn owned_path(area: &Path) -> PathBuf {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    area.join(format!("{}-{count}", Owner::this().to_name()))
}

/// A directory to write a save in. Dropped, it is deleted with what it holds.
#[derive(Debug)]
pub(crate) struct WorkArea<'i> {
    disk: Disk<'i>,
    area: PathBuf,
    owned: PathBuf,
    /// Held locked, and so not closed, while the directory is in use.
    lock: File,
}

impl<'i> WorkArea<'i> {
    /// A directory beside `target`, for about this many files.
    pub(crate) fn beside(disk: Disk<'i>, target: &Path, num_files: usize) -> StorageResult<Self> {
        Self::create(disk, &area_beside(target), num_files)
    }

    /// A directory inside `target`, for about this many files.
    pub(crate) fn inside(disk: Disk<'i>, target: &Path, num_files: usize) -> StorageResult<Self> {
        Self::create(disk, &target.join(INSIDE), num_files)
    }

    fn create(disk: Disk<'i>, area: &Path, num_files: usize) -> StorageResult<Self> {
        sweep(disk, area);
        // They stay until the last one is made, which is elsewhere then.
        let mut slow = Vec::new();
        loop {
            match Self::try_create(disk, area, num_files) {
                Ok(Some(work)) => {
                    if slow.len() + 1 < MAX_PLACES && is_slow(disk, &work.lock, num_files) {
                        slow.push(work);
                    } else {
                        return Ok(work);
                    }
                }
                Ok(None) => {}
                Err(source) => {
                    // It stays if something else is in it.
                    let _ = disk.remove_directory(area);
                    return Err(StorageError::io(area, source));
                }
            }
        }
    }

    /// None where another save swept the directory before it was locked.
    fn try_create(disk: Disk<'i>, area: &Path, num_files: usize) -> io::Result<Option<Self>> {
        let owned = owned_path(area);
        match disk.make_directory(area) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        spread(disk, area, num_files);
        match disk.make_directory(&owned) {
            Err(error) if is_changed_by_others(&error) => return Ok(None),
            made => made?,
        }
        let lock = match disk.open_directory(&owned) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                let _ = disk.remove_directory(&owned);
                return Err(error);
            }
            Ok(lock) => File::from(lock),
        };
        if is_held_by_sweep(&lock) || !owned.is_dir() {
            return Ok(None);
        }
        Ok(Some(Self {
            disk,
            area: area.to_path_buf(),
            owned,
            lock,
        }))
    }

    /// A name in the directory, for what becomes the save.
    pub(crate) fn new_path(&self) -> PathBuf {
        self.owned.join("new")
    }

    /// A name in the directory, for one of several files.
    pub(crate) fn numbered_path(&self, number: usize) -> PathBuf {
        self.owned.join(format!("new-{number}"))
    }

    /// A name in the directory, for what was there before.
    pub(crate) fn old_path(&self) -> PathBuf {
        self.owned.join("old")
    }
}

impl Drop for WorkArea<'_> {
    fn drop(&mut self) {
        // The next save sweeps the rest.
        let _ = self.disk.remove_tree(&self.owned);
        let _ = self.disk.remove_directory(&self.area);
    }
}

/// A file that is made beside its target, to take its place in one step. Dropped before that, it is
/// deleted.
#[derive(Debug)]
pub(crate) struct NewFile<'i> {
    disk: Disk<'i>,
    area: PathBuf,
    path: PathBuf,
    /// Held locked, and so not closed, until it has its name.
    file: File,
    is_in_place: bool,
}

impl<'i> NewFile<'i> {
    /// An empty file beside `target`.
    pub(crate) fn beside(disk: Disk<'i>, target: &Path) -> io::Result<Self> {
        let area = area_beside(target);
        loop {
            match disk.make_directory(&area) {
                // Mostly nothing is there, and then nothing is looked for.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => sweep(disk, &area),
                made => made?,
            }
            match Self::try_create(disk, &area) {
                Ok(Some(new)) => return Ok(new),
                Ok(None) => {}
                Err(error) => {
                    // It stays if something else is in it.
                    let _ = disk.remove_directory(&area);
                    return Err(error);
                }
            }
        }
    }

    /// None where somebody removed the area, or swept the file before it was locked.
    fn try_create(disk: Disk<'i>, area: &Path) -> io::Result<Option<Self>> {
        let path = owned_path(area);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let file = match disk.open(&path, flags) {
            Err(error) if is_changed_by_others(&error) => return Ok(None),
            opened => opened?,
        };
        let new = Self {
            disk,
            area: area.to_path_buf(),
            path,
            file,
            is_in_place: false,
        };
        let is_swept = is_held_by_sweep(&new.file) || new.file.metadata()?.nlink() == 0;
        Ok((!is_swept).then_some(new))
    }

    /// The open file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file the name `target`, and the permissions of the file that had it.
    pub(crate) fn put_in_place(mut self, target: &Path) -> io::Result<()> {
        if target.exists() {
            self.disk.copy_permissions(target, &self.path)?;
        }
        self.disk.rename(&self.path, target, RenameFlags::empty())?;
        self.is_in_place = true;
        // A process that maps the file keeps it open, and the lock was for the work alone.
        let _ = flock(&self.file, FlockOperation::Unlock);
        Ok(())
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        // The next save sweeps the rest.
        if !self.is_in_place {
            let _ = self.disk.remove_file(&self.path);
        }
        let _ = self.disk.remove_directory(&self.area);
    }
}

/// Returns whether other processes made or removed what a name stands for, just now.
pub(crate) fn is_changed_by_others(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound
    )
}

/// Locks what this process made; whether a sweep was first. Nobody else takes the lock. On a file
/// system without locks the process in the name decides.
fn is_held_by_sweep(made: &File) -> bool {
    flock(made, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
}

/// Deletes the work directories whose owner is gone, and the area itself where nothing is left in it.
pub(crate) fn sweep_area(disk: Disk<'_>, area: &Path) {
    sweep(disk, area);
    let _ = disk.remove_directory(area);
}

/// Deletes the work directories whose owner is gone.
fn sweep(disk: Disk<'_>, area: &Path) {
    let Ok(entries) = fs::read_dir(area) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        // Nothing is waited for, should it be a pipe.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(opened) = openat(CWD, &path, flags, Mode::empty()) else {
            continue;
        };
        let owner = entry.file_name().to_str().and_then(Owner::parse);
        let is_ours = owner == Some(Owner::this());
        let is_gone = match owner.map(|owner| owner.state()) {
            Some(State::Running) if !is_ours => false,
            Some(State::Gone) => true,
            // It is of another machine or namespace, of an older version, or one that this process
            // could not delete: this process has the locks of all that it works with.
            _ => flock(&opened, FlockOperation::NonBlockingLockExclusive).is_ok(),
        };
        if is_gone {
            // The next sweep takes the rest.
            let _ = match entry.file_type() {
                Ok(kind) if kind.is_dir() => disk.remove_tree(&path),
                _ => disk.remove_file(&path),
            };
        }
    }
}

/// A process, told apart from all others.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    /// The first part of the machine's boot id.
    boot: String,
    /// The namespace in which the process has its number.
    namespace: u64,
    process: u32,
    /// The time at which the process began, in ticks since the boot.
    began: u64,
}

/// A name of this process, by which others on the machine can tell whether it still runs.
#[must_use]
pub fn process_name() -> String {
    format!("{}-0", Owner::this().to_name())
}

/// Returns whether the process of a name is known to have ended: of one on another machine nothing
/// is known.
#[must_use]
pub fn has_ended(process_name: &str) -> bool {
    let owner = Owner::parse(process_name);
    matches!(owner.map(|owner| owner.state()), Some(State::Gone))
}

/// Returns whether the process of a name is known to run: this one, or another on this machine.
#[must_use]
pub fn is_running(process_name: &str) -> bool {
    Owner::parse(process_name)
        .is_some_and(|owner| owner == Owner::this() || matches!(owner.state(), State::Running))
}

/// The state of an owner, as far as it is known.
enum State {
    Running,
    Gone,
    Unknown,
}

impl Owner {
    /// This process. What was found out once is kept for the thread, and is of no use to a child that
    /// is forked, which is another process.
    fn this() -> Self {
        thread_local! {
            static KNOWN: RefCell<Option<Owner>> = const { RefCell::new(None) };
        }
        let process = std::process::id();
        KNOWN.with_borrow_mut(|known| match known {
            Some(owner) if owner.process == process => owner.clone(),
            _ => known.insert(Self::find(process)).clone(),
        })
    }

    fn find(process: u32) -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self {
            boot: boot
                .chars()
                .take(8)
                .filter(char::is_ascii_hexdigit)
                .collect(),
            namespace: namespace(),
            process,
            began: began(process).unwrap_or(0),
        }
    }

    fn to_name(&self) -> String {
        format!(
            "{}-{}-{}-{}",
            self.boot, self.namespace, self.process, self.began
        )
    }

    /// The owner of a work directory of this name.
    fn parse(name: &str) -> Option<Self> {
        let mut parts = name.split('-');
        let owner = Self {
            boot: parts.next()?.to_owned(),
            namespace: parts.next()?.parse().ok()?,
            process: parts.next()?.parse().ok()?,
            began: parts.next()?.parse().ok()?,
        };
        let _count: u64 = parts.next()?.parse().ok()?;
        parts.next().is_none().then_some(owner)
    }

    fn state(&self) -> State {
        let this = Self::this();
        if self.boot != this.boot || self.namespace != this.namespace || self.boot.is_empty() {
            return State::Unknown;
        }
        match began(self.process) {
            Some(began) if began == self.began => State::Running,
            Some(_) => State::Gone,
            None if Path::new("/proc/self/stat").exists() => State::Gone,
            None => State::Unknown,
        }
    }
}

/// The number of the namespace of process numbers; 0 where there are none.
fn namespace() -> u64 {
    let Ok(link) = fs::read_link("/proc/self/ns/pid") else {
        return 0;
    };
    let digits: String = link
        .to_string_lossy()
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    digits.parse().unwrap_or(0)
}

/// Returns the time at which a process began; None if there is no such process, or if that cannot
/// be known.
fn began(process: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program comes second, in parentheses, and may hold anything.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    // A process that ended and was not waited for holds nothing any more.
    if matches!(fields.first(), Some(&("Z" | "X"))) {
        return None;
    }
    fields.get(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_an_owner_is_read_from_its_name() {
        let owner = Owner::this();
        assert_eq!(Owner::parse(&format!("{}-7", owner.to_name())), Some(owner));
        assert_eq!(Owner::parse("1234-0"), None);
    }

    #[test]
    fn test_work_directories_of_the_dead_are_swept() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("x");
        let area = folder.path().join(".x.tdtmp");
        let mut dead = Owner::this();
        dead.began += 1;
        let mut other = Owner::this();
        other.boot = "0".to_owned();
        let left = [
            area.join(format!("{}-0", dead.to_name())),
            area.join(format!("{}-0", other.to_name())),
            area.join("1-0"),
            // Files that this process could not delete: it has no lock of them any more.
            area.join(format!("{}-left", Owner::this().to_name())),
        ];
        for path in &left {
            fs::create_dir_all(path.join("new")).unwrap();
        }
        let first = WorkArea::beside(Disk::REAL, &target, 1).unwrap();
        assert!(left.iter().all(|path| !path.exists()));
        let second = WorkArea::beside(Disk::REAL, &target, 1).unwrap();
        assert!(first.owned.exists() && second.owned.exists());
        drop((first, second));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn test_files_of_the_dead_are_swept_and_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("x");
        let area = folder.path().join(".x.tdtmp");
        fs::create_dir(&area).unwrap();
        let mut dead = Owner::this();
        dead.began += 1;
        let left = area.join(format!("{}-0", dead.to_name()));
        fs::write(&left, "half of it").unwrap();
        let first = NewFile::beside(Disk::REAL, &target).unwrap();
        assert!(!left.exists());
        // That of a process that runs in another namespace is locked.
        let mut other = Owner::this();
        other.namespace += 1;
        let foreign = area.join(format!("{}-0", other.to_name()));
        let held = File::create_new(&foreign).unwrap();
        flock(&held, FlockOperation::LockExclusive).unwrap();
        let second = NewFile::beside(Disk::REAL, &target).unwrap();
        assert!(first.path.exists() && second.path.exists() && foreign.exists());
        drop(held);
        second.put_in_place(&target).unwrap();
        drop(first);
        drop(NewFile::beside(Disk::REAL, &target).unwrap());
        let names: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["x"]);
    }

    #[test]
    fn test_a_new_file_keeps_the_permissions_of_the_old() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("x");
        fs::write(&target, "old").unwrap();
        fs::set_permissions(&target, fs::Permissions::from_mode(0o640)).unwrap();
        let new = NewFile::beside(Disk::REAL, &target).unwrap();
        new.put_in_place(&target).unwrap();
        let metadata = fs::metadata(&target).unwrap();
        assert_eq!((metadata.len(), metadata.mode() & 0o777), (0, 0o640));
    }
}
