//! A small save, what it holds, and the ways in which a call can fail.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tempfile::TempDir;
use tensordict_core::storage::archive::Archive;
use tensordict_core::storage::consolidated;
use tensordict_core::storage::io::Fault;
use tensordict_core::storage::map::{Mode, Root};
use tensordict_core::storage::metadata::{LeafMeta, LevelFields};
use tensordict_core::storage::plan::{Content, Plan};
use tensordict_core::storage::read::{ReadOptions, map_leaves, read_tree};
use tensordict_core::storage::safetensors;
use tensordict_core::storage::source::Source;

const CLASS: &str = "tensordict:TensorDict";

pub(crate) const EIO: i32 = 5;
const ENOSPC: i32 = 28;

pub(crate) const FAULTS: [Fault; 5] = [
    Fault::Error {
        number: EIO,
        lasts: false,
    },
    Fault::Error {
        number: ENOSPC,
        lasts: false,
    },
    Fault::Error {
        number: ENOSPC,
        lasts: true,
    },
    Fault::Short,
    Fault::Interrupted,
];

/// A save of three leaves, one of them nested and one that goes through large writes, of one value.
pub(crate) fn plan(value: u8, length: usize) -> Plan {
    let mut plan = Plan::new(true);
    let child = plan.add_child(Plan::ROOT, "n", "TensorDict").unwrap();
    for (level, key, length) in [
        (Plan::ROOT, "a", length),
        (child, "b", 3),
        (Plan::ROOT, "large", 1 << 20),
    ] {
        let meta = LeafMeta {
            device: "cpu".into(),
            shape: vec![i64::try_from(length).unwrap()].into(),
            dtype: "torch.uint8".into(),
            is_nested: false,
        };
        let content = Content::Data(Source::Bytes(vec![value; length]));
        plan.add_leaf(level, key, meta, length as u64, content, None)
            .unwrap();
    }
    for level in [child, Plan::ROOT] {
        let fields = LevelFields {
            class_text: Some(CLASS.to_owned()),
            ..LevelFields::default()
        };
        plan.close_level(level, &fields).unwrap();
    }
    plan
}

/// The values of all leaves; None where there is no save.
pub(crate) fn values(target: &Path) -> Option<Vec<u8>> {
    let known_classes = [CLASS.to_owned()];
    let options = ReadOptions {
        escapes_keys: true,
        known_classes: &known_classes,
    };
    if !target.exists() {
        return None;
    }
    let mut values = Vec::new();
    let name = target.to_str().unwrap();
    if name.ends_with(".index.json") {
        for (file, _) in safetensors::read_index(target).unwrap().0 {
            add_tensors(&file, &mut values);
        }
    } else if safetensors::is_safetensors(target) {
        add_tensors(target, &mut values);
    } else if consolidated::is_consolidated(target) {
        let bytes = fs::read(target).unwrap();
        add_values(&bytes[..5], &mut values);
        add_values(&bytes[8..][..1 << 20], &mut values);
    } else if target.is_file() {
        let archive = Archive::open(target).unwrap();
        for (name, entry) in archive.entries() {
            if name.ends_with(".memmap") {
                add_values(&archive.read_entry(name, entry).unwrap(), &mut values);
            }
        }
    } else {
        if !target.join("meta.json").exists() {
            return None;
        }
        let tree = read_tree(target, options).unwrap();
        for mapping in map_leaves(
            &Root::open_path(target).unwrap(),
            &tree.leaves,
            Mode::Private,
            1,
        )
        .unwrap()
        {
            let mapping = mapping.unwrap();
            // SAFETY: nobody writes to the file while the test reads.
            let bytes = unsafe { std::slice::from_raw_parts(mapping.as_mut_ptr(), mapping.len()) };
            add_values(bytes, &mut values);
        }
    }
    values.dedup();
    Some(values)
}

fn add_tensors(path: &Path, values: &mut Vec<u8>) {
    let bytes = fs::read(path).unwrap();
    for tensor in safetensors::read_header(path).unwrap().tensors.values() {
        let start = usize::try_from(tensor.offset).unwrap();
        let length = usize::try_from(tensor.length).unwrap();
        add_values(&bytes[start..][..length], values);
    }
}

/// Adds the value of all bytes, or where there are several all of them.
fn add_values(bytes: &[u8], values: &mut Vec<u8>) {
    // Compared as a whole: a debug build takes its time for each byte.
    if bytes[1..] == bytes[..bytes.len() - 1] {
        values.push(bytes[0]);
    } else {
        values.extend_from_slice(bytes);
    }
}

/// Runs tasks on all cores: they wait for the file system, and a debug build for itself.
pub(crate) fn side_by_side<T: Copy + Sync>(tasks: &[T], run: impl Fn(T) + Sync) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(&task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    run(task);
                }
            });
        }
    });
}

pub(crate) fn count(path: &str) -> usize {
    fs::read_dir(path).map_or(0, Iterator::count)
}

/// A folder in memory, where there is such a place: syncs then cost nothing.
pub(crate) fn place() -> TempDir {
    TempDir::new_in("/dev/shm")
        .or_else(|_| TempDir::new())
        .unwrap()
}

/// Copies what is in a folder: quicker than to make it, which takes checksums.
pub(crate) fn copy_into(folder: &Path, from: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let place = folder.join(path.file_name().unwrap());
        if path.is_dir() {
            fs::create_dir(&place).unwrap();
            copy_into(&place, &path);
        } else {
            fs::copy(&path, &place).unwrap();
        }
    }
}

/// The paths of all files and directories below a folder, relative to it.
pub(crate) fn listing(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut waiting) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            found.push(path.strip_prefix(folder).unwrap().to_path_buf());
            if path.is_dir() {
                waiting.push(path);
            }
        }
    }
    found.sort();
    found
}
