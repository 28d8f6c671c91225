//! Comparing files with their sums.
//!
//! [`verify`] takes the path of a save of any layout and reports on every file that the save
//! names. Layouts of one file keep their sums in their metadata; they name what is to be
//! compared with [`Expected`] and have it done by [`check_all`].

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use rustix::fs::OFlags;

use super::io::{Disk, open_to_read};
use super::job::Job;
use super::json::Value;
use super::map::{FileIdentity, Root};
use super::metadata;
use super::names::{self, display_key};
use super::read::Files;
use super::sums::{self, BLOCK_BYTES, FileSum, SUMS_FILE, Sum, Summer, Sums};
use super::{MAX_LEVELS, METADATA_FILE, StorageError, StorageResult, dtype, thread_count, threads};

/// What became of the bytes of a file, or of an entry's part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// They are those that were saved.
    Good,
    /// They are others, and the file was modified since the save.
    Modified,
    /// They are others, and the file system does not tell when it was modified.
    Unclear,
    /// They are others, though nobody modified the file; or it cannot be read, is missing or cut.
    Damaged,
    /// There is no sum to compare them with.
    Unchecked,
}

impl Outcome {
    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Modified => "modified since the save",
            Self::Unclear => "changed or damaged",
            Self::Damaged => "damaged",
            Self::Unchecked => "unchecked",
        }
    }
}

/// What was found out about a file, or about an entry's part of one.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The entry as messages show it: `'a'` or `('n', 'a')`. Empty for files that are no leaf.
    pub key: String,
    /// The file.
    pub path: PathBuf,
    /// What became of its bytes.
    pub outcome: Outcome,
    /// What is wrong, in words; empty where nothing is.
    pub detail: String,
}

impl Finding {
    /// A line for people.
    #[must_use]
    pub fn to_line(&self) -> String {
        let of = if self.key.is_empty() {
            String::new()
        } else {
            format!("the entry {} ", self.key)
        };
        let detail = if self.detail.is_empty() {
            String::new()
        } else {
            format!(": {}", self.detail)
        };
        format!(
            "{of}('{}') is {}{detail}",
            self.path.display(),
            self.outcome.name()
        )
    }
}

/// What was found out about a save.
#[derive(Debug, Clone)]
pub struct Report {
    /// `tree`, `archive`, or what other layouts call themselves.
    pub layout: &'static str,
    /// The text that tells this save from others; empty where there are no sums.
    pub generation: String,
    /// Each file that the save names, in its order.
    pub findings: Vec<Finding>,
}

impl Report {
    /// The lines of one outcome.
    #[must_use]
    pub fn lines(&self, outcome: Outcome) -> Vec<String> {
        self.findings
            .iter()
            .filter(|finding| finding.outcome == outcome)
            .map(Finding::to_line)
            .collect()
    }

    /// Fails where anything is damaged.
    ///
    /// # Errors
    /// [`StorageError::Damaged`], with a line for each finding.
    pub fn refuse_damage(&self) -> StorageResult<()> {
        let damages = self.lines(Outcome::Damaged);
        if damages.is_empty() {
            return Ok(());
        }
        Err(StorageError::Damaged { damages })
    }
}

/// Bytes and what they were.
#[derive(Debug, Clone)]
pub struct Expected {
    /// The entry as messages show it; empty for none.
    pub key: String,
    /// The name of the file.
    pub path: PathBuf,
    /// The file, which stays that of one save, whatever takes its place meanwhile.
    pub file: Arc<File>,
    /// Where the bytes begin in it.
    pub offset: u64,
    /// The sum, with the time of the file when it was right.
    pub sum: FileSum,
}

/// Compares bytes with their sums, in parallel; what was found of each, in order.
#[must_use]
pub fn check_all(expected: &[Expected], threads: usize) -> Vec<Finding> {
    let found: Vec<OnceLock<Finding>> = expected.iter().map(|_| OnceLock::new()).collect();
    let done = threads::for_each(expected.len(), thread_count(threads), |number| {
        // Each number is given out once.
        let _ = found[number].set(check(&expected[number]));
        Ok::<_, std::convert::Infallible>(())
    });
    let Ok(()) = done;
    found.into_iter().filter_map(OnceLock::into_inner).collect()
}

/// Compares bytes with their sum.
#[must_use]
pub fn check(expected: &Expected) -> Finding {
    let finding = |outcome, detail: String| Finding {
        key: expected.key.clone(),
        path: expected.path.clone(),
        outcome,
        detail,
    };
    match compare(expected) {
        Ok(None) => finding(Outcome::Good, String::new()),
        Ok(Some(detail)) => finding(judge(&expected.file, expected.sum.modified_ns), detail),
        Err(error) => finding(Outcome::Damaged, error.to_string()),
    }
}

/// What other bytes than the saved ones mean, by the time of the file.
#[must_use]
pub fn judge(file: &File, modified_ns: i64) -> Outcome {
    let is_same_time = file
        .metadata()
        .is_ok_and(|metadata| sums::modified_ns(&metadata) == modified_ns);
    match (is_same_time, sums::follows_stores(file)) {
        (false, _) => Outcome::Modified,
        (true, true) => Outcome::Damaged,
        (true, false) => Outcome::Unclear,
    }
}

/// None where the bytes are those of the sum; else where they are not.
fn compare(expected: &Expected) -> io::Result<Option<String>> {
    let file = &expected.file;
    let Sum {
        length,
        whole,
        ref blocks,
    } = expected.sum.sum;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let end = expected.offset.saturating_add(length);
    if metadata.len() < end {
        return Ok(Some(format!(
            "the file has {} bytes and not {end}",
            metadata.len()
        )));
    }
    let mut buffer = vec![0; BLOCK_BYTES.min(usize::try_from(length).unwrap_or(BLOCK_BYTES))];
    let mut summer = Summer::default();
    let mut at = 0;
    for number in 0.. {
        let left = usize::try_from(length - at).unwrap_or(usize::MAX);
        if left == 0 {
            break;
        }
        let block = &mut buffer[..left.min(BLOCK_BYTES)];
        Disk::REAL.read_exact_at(file, block, expected.offset + at)?;
        if let Some(&sum) = blocks.get(number)
            && sums::crc32c(block) != sum
        {
            let first = expected.offset + at;
            let last = first + block.len() as u64;
            return Ok(Some(format!(
                "bytes {first} to {last} are not those that were saved"
            )));
        }
        if blocks.is_empty() {
            summer.update(block);
        }
        at += block.len() as u64;
    }
    if blocks.is_empty() && summer.finish().whole != whole {
        return Ok(Some("its bytes are not those that were saved".to_owned()));
    }
    Ok(None)
}

/// Compares all files of a save with their sums.
///
/// All of it is of one save, also where others take its place meanwhile. A file without a sum is
/// unchecked, but for its size; so is all of a save of the published release.
///
/// # Errors
/// There is no save at `path`, or its metadata cannot be read; it is replaced again and again.
pub fn verify(path: &Path, threads: usize) -> StorageResult<Report> {
    for _ in 0..MAX_ATTEMPTS {
        let file = open_to_read(path).map_err(|source| StorageError::io(path, source))?;
        // Held open, so that no other file gets its number.
        let held = file
            .try_clone()
            .map_err(|source| StorageError::io(path, source))?;
        let verified = verify_open(file, path, threads);
        let lacks_files = match &verified {
            Ok((_, lacks_files)) => *lacks_files,
            Err(_) => true,
        };
        // The files of a save that is replaced are deleted.
        if !lacks_files || FileIdentity::of_path(path) == FileIdentity::of_open(&held) {
            return verified.map(|(report, _)| report);
        }
    }
    Err(StorageError::Replaced {
        path: path.to_path_buf(),
    })
}

/// How often a save that is replaced while it is read is read again.
const MAX_ATTEMPTS: usize = 1000;

/// Compares the files of an open save with their sums; whether one that it names was not there, too.
fn verify_open(file: File, path: &Path, threads: usize) -> StorageResult<(Report, bool)> {
    let is_directory = file.metadata().is_ok_and(|metadata| metadata.is_dir());
    if is_directory {
        let root = Root::of_open(path, file);
        let report = verify_tree(&root, threads)?;
        return Ok((report, root.has_missed()));
    }
    if path
        .to_string_lossy()
        .ends_with(super::safetensors::INDEX_SUFFIX)
    {
        return super::safetensors::verify_shards(path, threads);
    }
    let report = if super::safetensors::is_safetensors_file(&file, path) {
        super::safetensors::verify(file, path, threads)
    } else if super::consolidated::is_consolidated_file(&file, path) {
        super::consolidated::verify(file, path, threads)
    } else {
        super::archive::verify(file, path, threads)
    };
    Ok((report?, false))
}

/// How many files are opened before any is read, so that a small save is seen whole even where
/// others take its place all the time. More would use up the descriptors of the process.
const OPENED_FIRST: usize = 256;

fn verify_tree(root: &Root, threads: usize) -> StorageResult<Report> {
    let path = root.path().join(SUMS_FILE);
    let sums = match root.read(&path) {
        Ok(bytes) => Sums::parse(&String::from_utf8_lossy(&bytes)).map_err(|reason| {
            StorageError::BadMetadata {
                path,
                key: String::new(),
                reason,
            }
        })?,
        Err(StorageError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Sums::default()
        }
        Err(error) => return Err(error),
    };
    let mut walk = Walk {
        root,
        files: Vec::new(),
    };
    walk.all()?;
    let known: HashSet<&str> = walk.files.iter().map(|file| file.name.as_str()).collect();
    let mut rest: Vec<NamedFile> = Vec::new();
    for (name, _) in &sums.files {
        if !known.contains(name.as_str()) {
            rest.push(NamedFile {
                key: String::new(),
                name: name.clone(),
                least: 0,
            });
        }
    }
    let files: Vec<NamedFile> = walk.files.into_iter().chain(rest).collect();
    let opened = files.iter().take(OPENED_FIRST).map(|file| file.open(root));
    let opened: Vec<Mutex<Option<io::Result<File>>>> =
        opened.map(|file| Mutex::new(Some(file))).collect();
    let found: Vec<OnceLock<Finding>> = files.iter().map(|_| OnceLock::new()).collect();
    let done = threads::for_each(files.len(), thread_count(threads), |number| {
        let named = &files[number];
        let first = opened.get(number).and_then(|slot| slot.lock().ok()?.take());
        let file = first.unwrap_or_else(|| named.open(root));
        // Each number is given out once.
        let _ = found[number].set(named.check(root, file, sums.files.get(&named.name)));
        Ok::<_, std::convert::Infallible>(())
    });
    let Ok(()) = done;
    Ok(Report {
        layout: "tree",
        generation: sums.generation,
        findings: found.into_iter().filter_map(OnceLock::into_inner).collect(),
    })
}

/// A file that the metadata of a tree names.
struct NamedFile {
    key: String,
    /// Relative to the root, with `/` between the parts.
    name: String,
    /// The bytes that shape and dtype need.
    least: u64,
}

impl NamedFile {
    fn open(&self, root: &Root) -> io::Result<File> {
        root.open(&root.path().join(&self.name), false)
    }

    fn check(&self, root: &Root, file: io::Result<File>, sum: Option<&FileSum>) -> Finding {
        let path = root.path().join(&self.name);
        let finding = |outcome, detail| Finding {
            key: self.key.clone(),
            path: path.clone(),
            outcome,
            detail,
        };
        let damaged = |detail: String| finding(Outcome::Damaged, detail);
        let opened = file.and_then(|file| Ok((file.metadata()?.len(), file)));
        let file = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return damaged("the file is missing".to_owned());
            }
            Err(error) => return damaged(error.to_string()),
            Ok((length, _)) if length < self.least => {
                return damaged(format!(
                    "the file has {length} bytes and its shape and dtype need {}",
                    self.least
                ));
            }
            Ok((_, file)) => file,
        };
        match sum {
            None => finding(Outcome::Unchecked, String::new()),
            Some(sum) => check(&Expected {
                key: self.key.clone(),
                path: path.clone(),
                file: Arc::new(file),
                offset: 0,
                sum: sum.clone(),
            }),
        }
    }
}

/// Goes through the metadata of levels of all classes.
struct Walk<'w> {
    root: &'w Root,
    files: Vec<NamedFile>,
}

impl Walk<'_> {
    /// A level and all below it. Those that wait are kept in a list, so that depth costs no stack.
    fn all(&mut self) -> StorageResult<()> {
        let mut waiting = vec![(Vec::new(), PathBuf::new())];
        while let Some((mut keys, level)) = waiting.pop() {
            let mut children = self.level(&level, &mut keys)?;
            while let Some((key, path)) = children.pop() {
                let below = keys.iter().cloned().chain([key]).collect();
                waiting.push((below, path));
            }
        }
        Ok(())
    }

    /// The files of a level; the keys and the directories of its children.
    fn level(
        &mut self,
        level: &Path,
        keys: &mut Vec<String>,
    ) -> StorageResult<Vec<(String, PathBuf)>> {
        let directory = self.root.path().join(level);
        if keys.len() > MAX_LEVELS {
            return Err(StorageError::TooDeep { path: directory });
        }
        let path = directory.join(METADATA_FILE);
        let Value::Object(fields) = metadata::parse_json(&path, self.root.read(&path)?)? else {
            return Ok(Vec::new());
        };
        self.file(level, METADATA_FILE, String::new(), 0);
        let mut children: Vec<(String, PathBuf)> = Vec::new();
        for (key, entry) in &fields {
            keys.push(key.clone());
            if entry.get("type").and_then(Value::as_str).is_some() {
                children.push((key.clone(), level.join(self.present(level, key, ""))));
            } else if let (Some(dtype), Some(shape)) = (
                entry.get("dtype").and_then(Value::as_str),
                entry.get("shape").and_then(Value::as_ints),
            ) {
                let is_nested = entry.get("is_nested") == Some(&Value::Bool(true));
                let least = dtype::item_size(dtype)
                    .and_then(|item| dtype::tensor_bytes(&shape, item))
                    .filter(|_| !is_nested)
                    .unwrap_or(0);
                let name = self.present(level, key, ".memmap");
                // A leaf without items has no file.
                if least > 0 || self.root.has(&directory.join(&name)) {
                    self.file(level, &name, display_key(keys), least);
                }
                if is_nested {
                    let table = self.present(level, key, ".shape.memmap");
                    let bytes = dtype::tensor_bytes(&shape, 8).unwrap_or(0);
                    if bytes > 0 {
                        self.file(level, &table, display_key(keys), bytes);
                    }
                }
            }
            keys.pop();
        }
        if fields.get("_type").and_then(Value::as_str) == Some(metadata::DENSE_CLASS) {
            return Ok(children);
        }
        // Levels of other classes have members under names of their own.
        let own = ["_tensordict", "_source"].map(str::to_owned);
        let has = |name: &str| self.root.has(&directory.join(name).join(METADATA_FILE));
        let members = (0..)
            .map(|number| number.to_string())
            .take_while(|name| fields.contains_key("stack_dim") && has(name));
        for name in own.into_iter().filter(|name| has(name)).chain(members) {
            if !children.iter().any(|(key, _)| *key == name) {
                children.push((name.clone(), level.join(name)));
            }
        }
        Ok(children)
    }

    /// The name of a key's file: escaped, or as it is where only that is there.
    fn present(&self, level: &Path, key: &str, suffix: &str) -> String {
        let escaped = format!("{}{suffix}", names::escape(key));
        let raw = format!("{key}{suffix}");
        let directory = self.root.path().join(level);
        if raw != escaped
            && names::is_safe_raw_name(key)
            && !self.root.has(&directory.join(&escaped))
            && self.root.has(&directory.join(&raw))
        {
            return raw;
        }
        escaped
    }

    fn file(&mut self, level: &Path, name: &str, key: String, least: u64) {
        let name = level.join(name).to_string_lossy().into_owned();
        self.files.push(NamedFile { key, name, least });
    }
}

/// Takes the sums of a tree as it is now, and writes them: what [`verify`] compares with from
/// then on. For a save that was filled in place and is finished.
///
/// # Errors
/// A file is missing or too short; the operating system refuses.
pub fn seal(job: &Job<'_>, root: &Path) -> StorageResult<Sums> {
    let opened = Root::open_path(root).map_err(|source| StorageError::io(root, source))?;
    let mut walk = Walk {
        root: &opened,
        files: Vec::new(),
    };
    walk.all()?;
    let found: Vec<OnceLock<FileSum>> = walk.files.iter().map(|_| OnceLock::new()).collect();
    threads::for_each(walk.files.len(), thread_count(job.threads), |number| {
        let named = &walk.files[number];
        let path = root.join(&named.name);
        let sum = seal_file(job.disk, &path, named.least)
            .map_err(|source| StorageError::io_of(named.key.clone(), &path, source))?;
        // Each number is given out once.
        let _ = found[number].set(sum);
        Ok(())
    })?;
    let mut sums = Sums::new();
    for (named, sum) in walk.files.into_iter().zip(found) {
        if let Some(sum) = sum.into_inner() {
            sums.files.insert(named.name, sum);
        }
    }
    super::replace::replace_file(job.disk, &root.join(SUMS_FILE), sums.to_text().as_bytes())?;
    Ok(sums)
}

fn seal_file(disk: Disk<'_>, path: &Path, least: u64) -> io::Result<FileSum> {
    // Nothing is waited for, should it be a pipe.
    let file = disk.open(path, OFlags::RDONLY | OFlags::NONBLOCK)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let too_short = "the file is shorter than its shape and dtype need";
    // Bytes that were stored through a mapping are written back first: from then on the next
    // store gives the file a new time, which a store to a page that waits to be written does not.
    disk.sync(&file)?;
    let stamp = sums::stamp();
    if let Ok(writable) = disk.open(path, OFlags::WRONLY) {
        disk.set_modified(&writable, stamp)?;
    }
    let before = file.metadata()?;
    if before.len() < least {
        return Err(io::Error::new(io::ErrorKind::InvalidData, too_short));
    }
    let mut summer = Summer::default();
    let mut buffer = vec![0; BLOCK_BYTES];
    let mut at = 0;
    while at < before.len() {
        let left = usize::try_from(before.len() - at).unwrap_or(usize::MAX);
        let block = &mut buffer[..left.min(BLOCK_BYTES)];
        disk.read_exact_at(&file, block, at)?;
        summer.update(block);
        at += block.len() as u64;
    }
    Ok(FileSum {
        sum: summer.finish(),
        modified_ns: sums::modified_ns(&before),
    })
}
