//! Work directories: where a save is written before it takes the place of its target.
//!
//! A work directory is `.<target>.tdtmp/<owner>`, beside the target or inside of it. Its name says who
//! owns it: the machine's boot, the namespace of process numbers, the process with the time
//! at which it began. So the next save to the same target can tell whether the owner is
//! gone, and deletes what it left. A lock on the directory says the same across namespaces; alone it
//! would not do, since a forked child inherits it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::io::Disk;
use super::{StorageError, StorageResult};

/// The name of a work directory inside of its target.
pub(crate) const INSIDE: &str = ".tdtmp";

/// A directory to write a save in. Dropped, it is deleted with what it holds.
#[derive(Debug)]
pub(crate) struct WorkArea<'i> {
    disk: Disk<'i>,
    area: PathBuf,
    owned: PathBuf,
    /// Held locked, and so not closed, while the directory is in use.
    _lock: File,
}

impl<'i> WorkArea<'i> {
    /// A directory beside `target`.
    pub(crate) fn beside(disk: Disk<'i>, target: &Path) -> StorageResult<Self> {
        let name = target.file_name().unwrap_or_default();
        // A name that is as long as can be leaves no room for more.
        let name: String = name.to_string_lossy().chars().take(50).collect();
        Self::create(disk, &target.with_file_name(format!(".{name}.tdtmp")))
    }

    /// A directory inside `target`.
    pub(crate) fn inside(disk: Disk<'i>, target: &Path) -> StorageResult<Self> {
        Self::create(disk, &target.join(INSIDE))
    }

    fn create(disk: Disk<'i>, area: &Path) -> StorageResult<Self> {
        sweep(disk, area);
        loop {
            match Self::try_create(disk, area) {
                Ok(Some(work)) => return Ok(work),
                Ok(None) => {}
                Err(source) => {
                    // Where nothing else is in it.
                    let _ = fs::remove_dir(area);
                    return Err(StorageError::io(area, source));
                }
            }
        }
    }

    /// None where another save swept the directory before it was locked.
    fn try_create(disk: Disk<'i>, area: &Path) -> io::Result<Option<Self>> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let owned = area.join(format!("{}-{count}", Owner::this().to_name()));
        match disk.make_directory(area) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        match disk.make_directory(&owned) {
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
        let lock = match disk.open_directory(&owned) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                let _ = fs::remove_dir(&owned);
                return Err(error);
            }
            Ok(lock) => File::from(lock),
        };
        // Only a sweep can hold the lock. On a file system without locks the process decides.
        if flock(&lock, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
            || !owned.is_dir()
        {
            return Ok(None);
        }
        Ok(Some(Self {
            disk,
            area: area.to_path_buf(),
            owned,
            _lock: lock,
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
        // What cannot be deleted now is swept by the next save.
        let _ = self.disk.remove_tree(&self.owned);
        let _ = fs::remove_dir(&self.area);
    }
}

/// Deletes the work directories whose owner is gone.
fn sweep(disk: Disk<'_>, area: &Path) {
    let Ok(entries) = fs::read_dir(area) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(directory) = File::open(&path) else {
            continue;
        };
        let name = entry.file_name();
        let is_gone = match name
            .to_str()
            .and_then(Owner::parse)
            .map(|owner| owner.state())
        {
            Some(State::Running) => false,
            Some(State::Gone) => true,
            // Of another machine or namespace, or of older versions.
            Some(State::Unknown) | None => {
                flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok()
            }
        };
        if is_gone {
            // What cannot be deleted stays for the next sweep.
            let _ = disk.remove_tree(&path);
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
    /// When the process began, in ticks since the boot.
    began: u64,
}

/// What is known of an owner.
enum State {
    Running,
    Gone,
    Unknown,
}

impl Owner {
    fn this() -> Self {
        // Read anew each time: a forked child is another process.
        let process = std::process::id();
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

/// When a process began; None where there is none, or where that cannot be known.
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
        ];
        for path in &left {
            fs::create_dir_all(path.join("new")).unwrap();
        }
        let first = WorkArea::beside(Disk::REAL, &target).unwrap();
        assert!(left.iter().all(|path| !path.exists()));
        let second = WorkArea::beside(Disk::REAL, &target).unwrap();
        assert!(first.owned.exists() && second.owned.exists());
        drop((first, second));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
