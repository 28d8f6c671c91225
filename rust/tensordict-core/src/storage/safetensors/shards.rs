//! Several files that an index names, and those that a killed save left.

use std::fs::File;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;

use super::super::json::{self, Value};
use super::super::{StorageError, StorageResult};
use super::read::{damaged, read_header};
use super::{INDEX_SUFFIX, SAVE_ENTRY, SUFFIX};

/// The lock on the folder of a file.
pub(super) struct FolderLock(File);

impl FolderLock {
    /// None on a file system without locks.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let folder = File::open(path.parent().filter(|folder| *folder != Path::new(""))?).ok()?;
        rustix::fs::flock(&folder, rustix::fs::FlockOperation::LockExclusive).ok()?;
        Some(Self(folder))
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // Closing alone does not unlock it where a process was forked meanwhile.
        let _ = rustix::fs::flock(&self.0, rustix::fs::FlockOperation::Unlock);
    }
}

/// The shards of this package that lie beside an index and have names like those of its own.
pub(super) fn left_shards(index: &Path) -> Vec<PathBuf> {
    let name = index.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_suffix(INDEX_SUFFIX).unwrap_or(&name);
    let stem = stem.strip_suffix(SUFFIX).unwrap_or(stem);
    let Some(entries) = index.parent().and_then(|folder| folder.read_dir().ok()) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| is_shard_name(&entry.file_name().to_string_lossy(), stem))
        .map(|entry| entry.path())
        .filter(|path| {
            read_header(path).is_ok_and(|header| header.metadata.contains_key(SAVE_ENTRY))
        })
        .collect()
}

/// Returns whether a name is `stem-00001-of-00004.safetensors`, or that with the text of a save
/// after the stem.
pub(super) fn is_shard_name(name: &str, stem: &str) -> bool {
    let is_number = |text: &str| text.len() >= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some(rest) = name
        .strip_prefix(stem)
        .and_then(|rest| rest.strip_prefix('-'))
        .and_then(|rest| rest.strip_suffix(SUFFIX))
    else {
        return false;
    };
    let is_save = |text: &str| text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let rest = match rest.split_once('-') {
        Some((save, rest)) if is_save(save) => rest,
        _ => rest,
    };
    rest.split_once("-of-")
        .is_some_and(|(number, count)| is_number(number) && is_number(count))
}

/// The files that an index names, in the order in which it names them first, with the names of the
/// tensors in each.
///
/// # Errors
/// The index cannot be read or is invalid; it names a file that is not beside it.
pub fn read_index(path: &Path) -> StorageResult<(IndexMap<PathBuf, Vec<String>>, Value)> {
    let text = std::fs::read_to_string(path).map_err(|source| StorageError::io(path, source))?;
    let (value, repeated) = json::parse_with_repeats(&text)
        .map_err(|error| damaged(path, "", format!("it is not JSON: {}", error.message)))?;
    if let Some(name) = repeated {
        return Err(damaged(path, &name, "it is in the index twice".to_owned()));
    }
    let Some(Value::Object(map)) = value.get("weight_map") else {
        return Err(damaged(
            path,
            "",
            "it is an index without weight_map".to_owned(),
        ));
    };
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut files: IndexMap<PathBuf, Vec<String>> = IndexMap::new();
    for (name, file) in map {
        let is_beside = |file: &&str| Path::new(file).file_name() == Some(file.as_ref());
        let Some(file) = file.as_str().filter(is_beside) else {
            let reason = "the index names no file beside itself for it".to_owned();
            return Err(damaged(path, name, reason));
        };
        files
            .entry(folder.join(file))
            .or_default()
            .push(name.clone());
    }
    let metadata = value.get("metadata").cloned().unwrap_or(Value::Null);
    Ok((files, metadata))
}

/// The files of an older save: an index, and those that it names.
#[must_use]
pub fn files_of(index: &Path) -> Vec<PathBuf> {
    let Ok((files, _)) = read_index(index) else {
        return Vec::new();
    };
    files.into_keys().chain([index.to_path_buf()]).collect()
}
