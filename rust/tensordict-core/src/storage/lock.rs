//! Changing the metadata of a level that other processes may change, too.
//!
//! Metadata is replaced by a rename, so a reader sees the old text or the new. Two writers that
//! both read the old text would each leave out what the other adds. Whoever reads metadata to
//! write it again, and whoever replaces it, therefore holds a lock on the level's directory
//! meanwhile. The kernel takes the lock away from a process that ends, however it ends.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::io::Disk;
use super::json::Value;
use super::map::FileIdentity;
use super::metadata::{self, Entry};
use super::replace::replace_file;
use super::{METADATA_FILE, Named, StorageError, StorageResult};

/// A lock on a directory, held until it is dropped.
#[derive(Debug)]
struct DirectoryLock(File);

impl DirectoryLock {
    /// Waits for the lock.
    ///
    /// # Errors
    /// The directory cannot be opened; the wait was interrupted by a signal.
    fn wait(disk: Disk<'_>, directory: &Path) -> io::Result<Self> {
        let held = File::from(disk.open_directory(directory)?);
        match flock(&held, FlockOperation::LockExclusive) {
            Err(Errno::INTR) => Err(Errno::INTR.into()),
            // A file system without locks: there writers are on their own.
            _ => Ok(Self(held)),
        }
    }
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // Closing alone would leave it to a child that was forked meanwhile.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Does what puts a file at `path`; metadata while nobody else changes it.
///
/// # Errors
/// The directory cannot be opened; those of `put`.
pub(crate) fn putting(
    disk: Disk<'_>,
    path: &Path,
    put: impl FnOnce() -> StorageResult<()>,
) -> StorageResult<()> {
    let (Some(directory), true) = (path.parent(), path.ends_with(METADATA_FILE)) else {
        return put();
    };
    let _held = loop {
        match DirectoryLock::wait(disk, directory) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            held => break held.map_err(|source| StorageError::io(directory, source))?,
        }
    };
    put()
}

/// A level of a save that nobody else changes until this is dropped.
#[derive(Debug)]
pub struct LockedLevel<'i> {
    disk: Disk<'i>,
    directory: PathBuf,
    lock: DirectoryLock,
}

impl<'i> LockedLevel<'i> {
    /// Waits until nobody else changes the level.
    ///
    /// # Errors
    /// The directory cannot be opened. [`io::ErrorKind::Interrupted`]: a signal came, and one may
    /// try again.
    pub fn wait(disk: Disk<'i>, directory: &Path) -> StorageResult<Self> {
        loop {
            let lock = DirectoryLock::wait(disk, directory)
                .map_err(|source| StorageError::io(directory, source))?;
            let level = Self {
                disk,
                directory: directory.to_path_buf(),
                lock,
            };
            // Else another save took its place during the wait, and that is the one to hold.
            if level.is_in_place() {
                return Ok(level);
            }
        }
    }

    fn is_in_place(&self) -> bool {
        FileIdentity::of_path(&self.directory) == FileIdentity::of_open(&self.lock.0)
    }

    /// Returns the kind of the entry of a key, as the metadata says.
    ///
    /// # Errors
    /// The metadata cannot be read, or is invalid.
    pub fn entry(&self, key: &str) -> StorageResult<Option<Entry>> {
        let path = self.directory.join(METADATA_FILE);
        let bytes = self
            .disk
            .read(&path)
            .map_err(|source| StorageError::io(&path, source))?;
        let level = metadata::read_level(&path, bytes)?;
        let found = level.entries.into_iter().find(|(name, _)| name == key);
        Ok(found.map(|(_, entry)| entry))
    }

    /// Adds an entry after everything that is there, in one step.
    ///
    /// # Errors
    /// The key is reserved; the metadata is damaged or cannot be written.
    pub fn add(&self, key: &str, entry: &Entry) -> StorageResult<()> {
        metadata::refuse_reserved(key)?;
        self.change(|fields| {
            fields.insert(key.to_owned(), metadata::entry_value(entry));
        })
    }

    /// Gives fields of the metadata their values, or removes those without one, in one step. A field
    /// in whose place an entry of the same name stands stays as it is. Nothing is written where
    /// all have them.
    ///
    /// # Errors
    /// The metadata is damaged or cannot be written.
    pub fn set_fields(&self, changes: Vec<(String, Option<Value>)>) -> StorageResult<()> {
        self.change(|fields| {
            for (name, value) in changes {
                match (fields.get(&name), value) {
                    (Some(Value::Object(_)), _) => {}
                    (_, Some(value)) => drop(fields.insert(name, value)),
                    (_, None) => drop(fields.shift_remove(&name)),
                }
            }
        })
    }

    fn change(&self, work: impl FnOnce(&mut Named<Value>)) -> StorageResult<()> {
        let path = self.directory.join(METADATA_FILE);
        let mut value = metadata::read_json(&path)?;
        let Value::Object(fields) = &mut value else {
            return Err(metadata::damaged(&path, "", "it holds no JSON object"));
        };
        let before = fields.clone();
        work(fields);
        if *fields == before {
            return Ok(());
        }
        if !self.is_in_place() {
            let text = "another save took the place of this one";
            return Err(StorageError::io(&path, io::Error::other(text)));
        }
        replace_file(self.disk, &path, value.to_text().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::sync::mpsc;
    use std::thread;

    fn child() -> Entry {
        Entry::Child("TensorDict".to_owned())
    }

    /// A directory whose metadata has an entry `a`.
    fn level() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"a": {"type": "TensorDict"}, "shape": [3], "_names": ["x"]}"#;
        fs::write(folder.path().join(METADATA_FILE), text).unwrap();
        folder
    }

    fn text(folder: &tempfile::TempDir) -> String {
        fs::read_to_string(folder.path().join(METADATA_FILE)).unwrap()
    }

    #[test]
    fn test_who_waits_adds_to_what_the_other_wrote() {
        let folder = level();
        let path = folder.path().to_path_buf();
        let held = LockedLevel::wait(Disk::REAL, &path).unwrap();
        let (began, begins) = mpsc::channel();
        let other = thread::spawn(move || {
            began.send(()).unwrap();
            let level = LockedLevel::wait(Disk::REAL, &path).unwrap();
            level.add("of the other", &child()).unwrap();
        });
        begins.recv().unwrap();
        held.add("mine", &child()).unwrap();
        drop(held);
        other.join().unwrap();
        let last = r#""mine": {"type": "TensorDict"}, "of the other": {"type": "TensorDict"}}"#;
        assert!(text(&folder).ends_with(last), "{}", text(&folder));
    }

    #[test]
    fn test_fields_are_set_and_removed_and_entries_stay() {
        let folder = level();
        let level = LockedLevel::wait(Disk::REAL, folder.path()).unwrap();
        let fields = vec![
            ("shape".to_owned(), Some(Value::from_ints(&[3, 2]))),
            ("_names".to_owned(), None),
            ("a".to_owned(), None),
        ];
        level.set_fields(fields).unwrap();
        let expected = r#"{"a": {"type": "TensorDict"}, "shape": [3, 2]}"#;
        assert_eq!(text(&folder), expected);

        let before = FileIdentity::of_path(&folder.path().join(METADATA_FILE));
        let same = vec![("shape".to_owned(), Some(Value::from_ints(&[3, 2])))];
        level.set_fields(same).unwrap();
        let after = FileIdentity::of_path(&folder.path().join(METADATA_FILE));
        assert_eq!(before, after);
    }

    #[test]
    fn test_the_save_that_took_the_place_is_not_changed() {
        let folder = level();
        let (place, other) = (folder.path().join("x"), folder.path().join("y"));
        for path in [&place, &other] {
            fs::create_dir(path).unwrap();
            fs::write(path.join(METADATA_FILE), "{}").unwrap();
        }
        let level = LockedLevel::wait(Disk::REAL, &place).unwrap();
        fs::rename(&place, folder.path().join("old")).unwrap();
        fs::rename(&other, &place).unwrap();
        let error = level.add("z", &child()).unwrap_err();
        assert!(error.to_string().contains("another save"), "{error}");
        assert_eq!(fs::read(place.join(METADATA_FILE)).unwrap(), b"{}");
    }
}
