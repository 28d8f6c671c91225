//! The files that the metadata of a save names, each with its key.

use std::path::{Path, PathBuf};

use super::super::json::Value;
use super::super::names::{self, display_key};
use super::super::read::Files;
use super::super::{
    MAX_LEVELS, METADATA_FILE, StorageError, StorageResult, VALUE_NOTES_FILE, dtype, metadata,
};

/// The files beside the metadata of a value that is no tensor.
const VALUE_FILES: [&str; 4] = [
    "other.pickle",
    "json_types.json",
    "pickle.pkl",
    VALUE_NOTES_FILE,
];

/// A file that the metadata names.
pub(crate) struct NamedFile {
    /// The entry as messages show it; empty for the root.
    pub(crate) key: String,
    /// Relative to the root, with `/` between the parts.
    pub(crate) name: String,
    /// The bytes that shape and dtype need.
    pub(crate) least: u64,
}

/// The files that the metadata of a tree, or of an archive, names, in its order.
///
/// # Errors
/// Metadata cannot be read.
pub(crate) fn named_files(files: &dyn Files, root: &Path) -> StorageResult<Vec<NamedFile>> {
    let mut walk = Walk {
        files,
        root,
        named: Vec::new(),
    };
    walk.all()?;
    Ok(walk.named)
}

/// Goes through the metadata of levels of all classes.
struct Walk<'w> {
    files: &'w dyn Files,
    root: &'w Path,
    named: Vec<NamedFile>,
}

/// A level that waits: its key, and its directory relative to the root.
type Level = (Vec<String>, PathBuf);

impl Walk<'_> {
    /// The root and all below it. Levels that wait are in a list, so that depth costs no stack.
    fn all(&mut self) -> StorageResult<()> {
        let mut waiting = vec![Level::default()];
        while let Some((mut keys, level)) = waiting.pop() {
            let children = self.level(&level, &mut keys)?;
            waiting.extend(children.into_iter().rev());
        }
        Ok(())
    }

    /// Names the files of a level; the levels right below it.
    fn level(&mut self, level: &Path, keys: &mut Vec<String>) -> StorageResult<Vec<Level>> {
        let directory = self.root.join(level);
        if level.components().count() > MAX_LEVELS {
            return Err(StorageError::TooDeep { path: directory });
        }
        let path = directory.join(METADATA_FILE);
        let Value::Object(fields) = metadata::parse_json(&path, self.files.read(&path)?)? else {
            return Ok(Vec::new());
        };
        let own_key = match &keys[..] {
            [] => String::new(),
            keys => display_key(keys),
        };
        self.name(level, METADATA_FILE, own_key.clone(), 0);
        let mut children: Vec<Level> = Vec::new();
        for (key, entry) in &fields {
            keys.push(key.clone());
            if entry.get("type").and_then(Value::as_str).is_some() {
                children.push((keys.clone(), level.join(self.present(level, key, ""))));
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
                if least > 0 || self.files.exists(&directory.join(&name)) {
                    self.name(level, &name, display_key(keys), least);
                }
                if is_nested {
                    let table = self.present(level, key, ".shape.memmap");
                    let bytes = dtype::tensor_bytes(&shape, 8).unwrap_or(0);
                    if bytes > 0 {
                        self.name(level, &table, display_key(keys), bytes);
                    }
                }
            }
            keys.pop();
        }
        if fields.get("_type").and_then(Value::as_str) == Some(metadata::DENSE_CLASS) {
            return Ok(children);
        }
        // Levels of other classes have files and members under names of their own.
        let has = |name: &str| self.files.exists(&directory.join(name));
        let files: Vec<&str> = VALUE_FILES.into_iter().filter(|name| has(name)).collect();
        let inner = ["_tensordict", "_source"].map(|name| (keys.clone(), name.to_owned()));
        let members = (0..)
            .map(|number: usize| number.to_string())
            .take_while(|name| fields.contains_key("stack_dim") && has(name))
            .map(|name| ([&keys[..], std::slice::from_ref(&name)].concat(), name));
        let inner = inner.into_iter().filter(|(_, name)| has(name));
        for (key, name) in inner.chain(members) {
            let path = level.join(name);
            if !children.iter().any(|(_, named)| *named == path) {
                children.push((key, path));
            }
        }
        for name in files {
            self.name(level, name, own_key.clone(), 0);
        }
        Ok(children)
    }

    /// The name of a key's file: escaped, or as it is where only that is there.
    fn present(&self, level: &Path, key: &str, suffix: &str) -> String {
        let escaped = format!("{}{suffix}", names::escape(key));
        let raw = format!("{key}{suffix}");
        let directory = self.root.join(level);
        if raw != escaped
            && names::is_safe_raw_name(key)
            && !self.files.exists(&directory.join(&escaped))
            && self.files.exists(&directory.join(&raw))
        {
            return raw;
        }
        escaped
    }

    fn name(&mut self, level: &Path, name: &str, key: String, least: u64) {
        let name = level.join(name).to_string_lossy().into_owned();
        self.named.push(NamedFile { key, name, least });
    }
}
