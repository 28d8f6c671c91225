//! Comparing a file, or an entry's part of one, with its checksums, and what is said of it.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use super::super::checksums::{self, BLOCK_BYTES, Checksum, Checksummer, FileChecksum};
use super::super::io::Disk;
use super::super::job::Progress;
use super::super::names::{display_key, display_key_before};
use super::super::{StorageError, StorageResult, thread_count};
use crate::threads::STORAGE;

/// The outcome for the bytes of a file, or for an entry's part of one.
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
    /// There is no checksum to compare them with.
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

/// The finding about a file, or about an entry's part of one.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The entry as messages show it: `'a'` or `('n', 'a')`. Empty for files that are no leaf.
    pub key: String,
    /// The file.
    pub path: PathBuf,
    /// The outcome for its bytes.
    pub outcome: Outcome,
    /// The problem in words; empty if there is none.
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

/// The findings about a save.
#[derive(Debug, Clone)]
pub struct Report {
    /// `tree`, `archive`, or what other layouts call themselves.
    pub layout: &'static str,
    /// The text that tells this save from others; empty where there are no checksums.
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

/// The options of a check of a save.
#[derive(Debug, Clone, Copy)]
pub struct Scrutiny<'s> {
    /// The most threads; 0 for the cores of this process, at most 8.
    pub threads: usize,
    /// True if bytes without a checksum are read, too, and entries of archives are compared with
    /// the CRC-32 that other tools look at.
    pub is_deep: bool,
    /// Only what is at this key, or below it; files that are no leaf always are.
    pub part: Option<&'s [String]>,
    /// The progress of the check.
    pub progress: &'s Progress,
}

impl<'s> Scrutiny<'s> {
    /// By the checksums that there are, with as many threads as there are cores.
    #[must_use]
    pub fn new(progress: &'s Progress) -> Self {
        Self {
            threads: 0,
            is_deep: false,
            part: None,
            progress,
        }
    }

    /// Returns whether an entry is looked at, by its key as messages show it.
    #[must_use]
    pub(crate) fn wants(&self, key: &str) -> bool {
        let Some(part) = self.part.filter(|_| !key.is_empty()) else {
            return true;
        };
        key == display_key(part) || key.starts_with(&display_key_before(part))
    }
}

/// Bytes and what they were.
#[derive(Debug, Clone)]
pub(crate) struct Expected {
    /// The entry as messages show it; empty for none.
    pub key: String,
    /// The name of the file.
    pub path: PathBuf,
    /// The file, which stays that of one save, whatever takes its place meanwhile.
    pub file: Arc<File>,
    /// The offset of the bytes in the file.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
    /// The checksum, with the time of the file when it was right; None where none was taken.
    pub checksum: Option<FileChecksum>,
}

/// Compares bytes with their checksums, in parallel; what was found of each, in order.
#[must_use]
pub(crate) fn check_all(expected: &[Expected], how: &Scrutiny<'_>) -> Vec<Finding> {
    let is_read = |one: &&Expected| how.is_deep || one.checksum.is_some();
    let lengths = expected.iter().filter(is_read).map(|one| one.length);
    how.progress.expect_more(lengths);
    in_parallel(expected.len(), how, |number| check(&expected[number], how))
}

/// Collects what is found by each number below `count`, in order.
pub(in super::super) fn in_parallel(
    count: usize,
    how: &Scrutiny<'_>,
    find: impl Fn(usize) -> Finding + Sync,
) -> Vec<Finding> {
    let found: Vec<OnceLock<Finding>> = (0..count).map(|_| OnceLock::new()).collect();
    // One that is to stop is an error in `verify`.
    let _ = STORAGE.try_for_each(count, thread_count(how.threads), |number| {
        how.progress.check()?;
        // Each number is given out once.
        let _ = found[number].set(find(number));
        Ok::<_, StorageError>(())
    });
    found.into_iter().filter_map(OnceLock::into_inner).collect()
}

/// Compares bytes with their checksum. Without one they are only read, and that where all is.
#[must_use]
pub(crate) fn check(expected: &Expected, how: &Scrutiny<'_>) -> Finding {
    let finding = |outcome, detail: String| Finding {
        key: expected.key.clone(),
        path: expected.path.clone(),
        outcome,
        detail,
    };
    let Some(checksum) = &expected.checksum else {
        let read = if how.is_deep {
            read_blocks(expected, how, |_, _| true)
        } else {
            Ok(None)
        };
        return match read {
            Ok(None) => finding(Outcome::Unchecked, String::new()),
            Ok(Some(detail)) => finding(Outcome::Damaged, detail),
            Err(error) => finding(Outcome::Damaged, error.to_string()),
        };
    };
    match compare(expected, &checksum.content, how) {
        Ok(None) => finding(Outcome::Good, String::new()),
        Ok(Some(detail)) => finding(judge(&expected.file, checksum.modified_ns), detail),
        Err(error) => finding(Outcome::Damaged, error.to_string()),
    }
}

/// Decides by the time of the file what it means that the bytes are others than were saved.
#[must_use]
pub(crate) fn judge(file: &File, modified_ns: i64) -> Outcome {
    let is_same_time = file
        .metadata()
        .is_ok_and(|metadata| checksums::modified_ns(&metadata) == modified_ns);
    match (is_same_time, checksums::follows_stores(file)) {
        (false, _) => Outcome::Modified,
        (true, true) => Outcome::Damaged,
        (true, false) => Outcome::Unclear,
    }
}

/// None where the bytes are those of the checksum; else where they are not.
fn compare(
    expected: &Expected,
    checksum: &Checksum,
    how: &Scrutiny<'_>,
) -> io::Result<Option<String>> {
    let mut checksummer = Checksummer::default();
    let difference = read_blocks(expected, how, |number, block| {
        if checksum.blocks.is_empty() {
            checksummer.update(block);
        }
        checksum
            .blocks
            .get(number)
            .is_none_or(|&checksum| checksums::crc32c(block) == checksum)
    })?;
    if difference.is_none()
        && checksum.blocks.is_empty()
        && checksummer.finish().whole != checksum.whole
    {
        return Ok(Some("its bytes are not those that were saved".to_owned()));
    }
    Ok(difference)
}

/// Shows each block to `is_good`; what is wrong with the first that is not, or with the file.
fn read_blocks(
    expected: &Expected,
    how: &Scrutiny<'_>,
    mut is_good: impl FnMut(usize, &[u8]) -> bool,
) -> io::Result<Option<String>> {
    let file = &expected.file;
    let length = expected.length;
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
    let mut at = 0;
    for number in 0.. {
        let left = usize::try_from(length - at).unwrap_or(usize::MAX);
        if left == 0 {
            break;
        }
        let block = &mut buffer[..left.min(BLOCK_BYTES)];
        Disk::REAL.read_exact_at(file, block, expected.offset + at)?;
        how.progress.count(block.len() as u64);
        // Errors found from then on are not shown.
        how.progress.check().map_err(io::Error::other)?;
        if !is_good(number, block) {
            let first = expected.offset + at;
            let last = first + block.len() as u64;
            return Ok(Some(format!(
                "bytes {first} to {last} are not those that were saved"
            )));
        }
        at += block.len() as u64;
    }
    Ok(None)
}
