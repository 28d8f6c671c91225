//! The entries that an archive is to have, in their order.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::super::checksums::{CHECKSUMS_FILE, Checksum};
use super::super::file::SLAB_LIMIT;
use super::super::plan::{Content, Plan, PlannedFile};
use super::super::region::Region;
use super::super::source::Source;
use super::super::work::is_area;
use super::super::{METADATA_FILE, StorageError, StorageResult};
use super::Method;

/// The content of a new entry.
pub(super) struct NewEntry<'p> {
    pub(super) name: Cow<'p, str>,
    /// The key as messages show it, of a leaf that is written by itself.
    pub(super) key: String,
    /// The leaf of the plan, where it is one.
    pub(super) leaf: Option<usize>,
    pub(super) content: NewContent,
}

pub(super) enum NewContent {
    Data(Source),
    /// Zeros, for which no space is taken.
    Zeros(u64),
    /// A file of this length.
    File(PathBuf, u64),
    /// Bytes that are compressed already.
    Packed(Box<Packed>),
}

/// Compressed bytes, and what is to be said of them.
pub(super) struct Packed {
    pub(super) method: Method,
    pub(super) bytes: Vec<u8>,
    /// The CRC-32 of the uncompressed bytes.
    pub(super) crc32: u32,
    pub(super) checksum: Checksum,
}

impl NewContent {
    /// Returns the number of bytes that readers of the entry get.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Data(source) => source.len(),
            Self::Zeros(length) | Self::File(_, length) => *length,
            Self::Packed(packed) => packed.checksum.length,
        }
    }

    /// Returns the number of bytes that it takes in the archive.
    pub(super) fn stored_len(&self) -> u64 {
        match self {
            Self::Packed(packed) => packed.bytes.len() as u64,
            _ => self.len(),
        }
    }
}

/// The files of a plan as entries, in the order of archives: of each level the metadata, then the other
/// files by name, then the levels below by name.
pub(super) fn planned(plan: &Plan, is_sparse: bool) -> Vec<NewEntry<'_>> {
    ordered(plan)
        .into_iter()
        .map(|number| {
            let file = &plan.files[number];
            let mut key = String::new();
            let mut leaf_number = None;
            let content = match file {
                PlannedFile::Bytes(file) => {
                    // The plan holds the bytes while it is written.
                    NewContent::Data(Source::Memory(Region::of(file.bytes())))
                }
                PlannedFile::Leaf(number) => {
                    let leaf = &plan.leaves[*number];
                    leaf_number = Some(*number);
                    if leaf.length >= SLAB_LIMIT {
                        key = plan.display_leaf(leaf);
                    }
                    match &leaf.content {
                        _ if is_sparse => NewContent::Zeros(leaf.length),
                        Content::Data(source) => NewContent::Data(source.clone()),
                        Content::Link(link) => NewContent::Data(Source::Memory(link.memory)),
                        Content::Absent => NewContent::Zeros(leaf.length),
                    }
                }
            };
            NewEntry {
                name: if plan.file_level(file) == Plan::ROOT {
                    Cow::Borrowed(plan.file_name(file))
                } else {
                    Cow::Owned(plan.file_path(file).to_string_lossy().into_owned())
                },
                key,
                leaf: leaf_number,
                content,
            }
        })
        .collect()
}

/// The numbers of the files of a plan, in the order of archives.
fn ordered(plan: &Plan) -> Vec<usize> {
    let mut levels: Vec<usize> = (0..plan.levels.len()).collect();
    levels.sort_by(|&left, &right| plan.level_path(left).cmp(plan.level_path(right)));
    let mut ranks = vec![0; levels.len()];
    for (rank, level) in levels.into_iter().enumerate() {
        ranks[level] = rank;
    }
    // Level, whether it is the metadata, the first bytes of the name, and the number of the file: one
    // number of 16 bytes, since thousands of them are sorted by one thread.
    let mut files: Vec<u128> = plan
        .files
        .iter()
        .enumerate()
        .map(|(number, file)| {
            let name = plan.file_name(file);
            let rank = 2 * ranks[plan.file_level(file)] + usize::from(name != METADATA_FILE);
            (rank as u128) << 96 | u128::from(beginning(name)) << 32 | number as u128
        })
        .collect();
    files.sort_unstable();
    let number_of = |file: u128| (file & u128::from(u32::MAX)) as usize;
    for same in files.chunk_by_mut(|left, right| left >> 32 == right >> 32) {
        if same.len() > 1 {
            same.sort_by_key(|&file| plan.file_name(&plan.files[number_of(file)]));
        }
    }
    files.into_iter().map(number_of).collect()
}

/// The first bytes of a name as a number of the same order: most names are told apart by it.
fn beginning(name: &str) -> u64 {
    let mut first = [0; 8];
    let length = name.len().min(first.len());
    first[..length].copy_from_slice(&name.as_bytes()[..length]);
    u64::from_be_bytes(first)
}

/// The files of a directory and of those below it, in the order of archives.
pub(super) fn collect(source: &Path) -> StorageResult<Vec<NewEntry<'static>>> {
    let mut entries = Vec::new();
    // Those that wait are kept in a list, so that depth costs no stack.
    let mut waiting = vec![(source.to_path_buf(), String::new())];
    while let Some((directory, prefix)) = waiting.pop() {
        let refused = |source: io::Error| StorageError::io(&directory, source);
        let (mut files, mut directories) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(&directory).map_err(refused)? {
            let path = entry.map_err(refused)?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let Some(name) = name.map(str::to_owned) else {
                let text = "names in archives are UTF-8, and this one is not";
                let error = io::Error::new(io::ErrorKind::InvalidInput, text);
                return Err(StorageError::io(path, error));
            };
            let metadata = fs::metadata(&path).map_err(|source| StorageError::io(&path, source))?;
            let full = format!("{prefix}{name}");
            if metadata.is_dir() {
                if !is_area(&name) {
                    directories.push((path, format!("{full}/")));
                }
            } else if metadata.is_file() && full != CHECKSUMS_FILE {
                files.push((name != METADATA_FILE, full, path, metadata.len()));
            }
        }
        files.sort();
        entries.extend(files.into_iter().map(|(_, name, path, length)| NewEntry {
            name: Cow::Owned(name),
            key: String::new(),
            leaf: None,
            content: NewContent::File(path, length),
        }));
        // The first is taken first.
        directories.sort_by(|left, right| right.cmp(left));
        waiting.extend(directories);
    }
    Ok(entries)
}
