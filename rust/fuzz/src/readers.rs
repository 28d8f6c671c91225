//! The readers of all files, given any bytes: they read or refuse them. None panics, reads beyond
//! the end, or changes a file; a refusal names the file.
//!
//! The fuzz targets call these functions with what the fuzzer makes up, and the test `fuzz` of the core,
//! which takes this file in, with changed files of its own.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tensordict_core::storage::archive::{self, Archive};
use tensordict_core::storage::checksums::{CHECKSUMS_FILE, Checksums};
use tensordict_core::storage::job::{Job, Progress};
use tensordict_core::storage::map::{Mode, Root};
use tensordict_core::storage::read::{ReadOptions, map_leaves, read_tree_of};
use tensordict_core::storage::verify::{Report, Scrutiny, verify};
use tensordict_core::storage::{
    METADATA_FILE, StorageResult, consolidated as consolidated_file, names as file_names,
    safetensors as safetensors_file,
};

const CLASS: &str = "tensordict:TensorDict";

/// A folder, in memory where that is possible.
fn folder() -> TempDir {
    TempDir::new_in("/dev/shm")
        .or_else(|_| TempDir::new())
        .expect("a folder can be made")
}

/// A file of these bytes.
fn file(place: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = place.path().join(name);
    fs::write(&path, bytes).expect("a small file can be written");
    path
}

/// Everything that verifying looks at.
fn scrutinised(path: &Path) -> StorageResult<Report> {
    let how = Scrutiny {
        threads: 1,
        is_deep: true,
        part: None,
        progress: &Progress::default(),
    };
    verify(path, &how)
}

/// Returns the result of a read; None if it was refused by a message that names the place.
fn checked<T>(result: StorageResult<T>, place: &Path) -> Option<T> {
    match result {
        Ok(read) => Some(read),
        Err(error) => {
            let text = error.to_string();
            let shown = place.to_string_lossy();
            assert!(
                text.contains(shown.as_ref()),
                "the file is not named: {text}"
            );
            None
        }
    }
}

fn unchanged(path: &Path, bytes: &[u8]) {
    assert_eq!(fs::read(path).expect("the file is there"), bytes);
}

/// A safetensors file.
pub fn safetensors(bytes: &[u8]) {
    let place = folder();
    let path = file(&place, "x.safetensors", bytes);
    let _ = safetensors_file::is_safetensors(&path);
    if let Some((header, mapping)) = checked(safetensors_file::map(&path, Mode::Private), &path) {
        assert_eq!(mapping.len(), bytes.len());
        for tensor in header.tensors.values() {
            assert!(tensor.offset + tensor.length <= bytes.len() as u64);
            assert!(tensor.shape.iter().all(|&size| size >= 0));
        }
    }
    checked(scrutinised(&path), &path);
    unchanged(&path, bytes);
}

/// An index of safetensors files.
pub fn index(bytes: &[u8]) {
    let place = folder();
    let path = file(&place, "x.safetensors.index.json", bytes);
    if let Some((files, _)) = checked(safetensors_file::read_index(&path), &path) {
        for named in files.keys() {
            assert_eq!(named.parent(), Some(place.path()));
        }
    }
    // Files that it names are missing, and are named.
    checked(scrutinised(&path), place.path());
    unchanged(&path, bytes);
}

/// A consolidated file.
pub fn consolidated(bytes: &[u8]) {
    let place = folder();
    let path = file(&place, "x", bytes);
    let _ = consolidated_file::is_consolidated(&path);
    if let Some((tail, mapping)) = checked(consolidated_file::map(&path, Mode::Private), &path) {
        assert!(tail.data_bytes <= tail.description_offset);
        assert!(mapping.len() <= bytes.len());
    }
    checked(scrutinised(&path), &path);
    unchanged(&path, bytes);
}

/// An archive.
pub fn archive(bytes: &[u8]) {
    let place = folder();
    let path = file(&place, "x.tdz", bytes);
    checked(scrutinised(&path), &path);
    if let Some(opened) = checked(Archive::open(&path), &path) {
        for (name, entry) in opened.entries() {
            if let Some(read) = checked(opened.read_entry(name, entry), &path) {
                assert_eq!(read.len() as u64, entry.length);
            }
        }
        let known_classes = [CLASS.to_owned()];
        let options = ReadOptions {
            escapes_keys: true,
            known_classes: &known_classes,
        };
        let tree = read_tree_of(&opened, opened.root(), options);
        if let Some(tree) = checked(tree, &path) {
            checked(opened.locate(&tree.leaves, 1), &path);
            for leaf in tree.leaves.iter().filter(|leaf| leaf.meta.is_nested) {
                checked(opened.nested(leaf), &path);
            }
        }
    }
    unchanged(&path, bytes);
    // Nothing is written beside the directory that is asked for.
    let inside = place.path().join("inside");
    let progress = Progress::default();
    let _ = archive::unpack(&Job::new(&progress), &path, &inside);
    let beside = fs::read_dir(place.path()).expect("the folder is there");
    for entry in beside.flatten() {
        assert!(
            ["x.tdz", "inside"]
                .iter()
                .any(|name| entry.file_name() == *name)
        );
    }
}

/// The metadata of a directory.
pub fn tree(bytes: &[u8]) {
    let place = folder();
    let path = file(&place, METADATA_FILE, bytes);
    file(&place, "a.memmap", &[1; 64]);
    fs::create_dir(place.path().join("n")).expect("a folder can be made");
    file(&place, &format!("n/{METADATA_FILE}"), bytes);
    let known_classes = [CLASS.to_owned()];
    let options = ReadOptions {
        escapes_keys: true,
        known_classes: &known_classes,
    };
    let root = Root::open_path(place.path()).expect("the folder was made");
    let loaded = read_tree_of(&root, place.path(), options).and_then(|tree| {
        let mappings = map_leaves(&root, &tree.leaves, Mode::Private, 1)?;
        Ok((tree, mappings))
    });
    if let Some((tree, mappings)) = checked(loaded, place.path()) {
        for (leaf, mapping) in tree.leaves.iter().zip(mappings) {
            assert!(leaf.path().starts_with(place.path()));
            assert_eq!(mapping.map_or(0, |one| one.len() as u64), leaf.length);
        }
    }
    checked(scrutinised(place.path()), place.path());
    unchanged(&path, bytes);
}

/// The checksums of a directory.
pub fn checksums(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(checksums) = Checksums::parse(text)
    {
        assert_eq!(Checksums::parse(&checksums.to_text()), Ok(checksums));
    }
    let place = folder();
    let leaf = r#"{"dtype": "torch.uint8", "shape": [64]}"#;
    let text = format!(r#"{{"a": {leaf}, "shape": [], "_class": "{CLASS}"}}"#);
    file(&place, METADATA_FILE, text.as_bytes());
    file(&place, "a.memmap", &[1; 64]);
    let path = file(&place, CHECKSUMS_FILE, bytes);
    checked(scrutinised(place.path()), place.path());
    unchanged(&path, bytes);
}

/// A key.
pub fn names(bytes: &[u8]) {
    let Ok(key) = std::str::from_utf8(bytes) else {
        return;
    };
    let name = file_names::escape(key);
    assert!(!name.is_empty() && name != "." && name != "..");
    assert!(!name.contains(['/', '\\', '\0']));
    if file_names::is_safe_raw_name(key) {
        assert_eq!(Path::new(key).file_name(), Some(key.as_ref()));
    }
    let _ = file_names::display_key(&[key, key]);
}
