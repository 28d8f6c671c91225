//! Every system call of a small save fails once, in every way: what is left is the old save
//! or the new one, and nothing else.
//!
//! All of it is one test, in a process of its own: it counts descriptors and threads.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tensordict_core::storage::StorageResult;
use tensordict_core::storage::archive::{self, Archive, Method};
use tensordict_core::storage::commit::{self, SaveOptions};
use tensordict_core::storage::consolidated;
use tensordict_core::storage::file::Segment;
use tensordict_core::storage::io::{Call, Disk, Fault, Faulty};
use tensordict_core::storage::job::{Job, Progress};
use tensordict_core::storage::map::{Mode, Root};
use tensordict_core::storage::metadata::{LeafMeta, LevelFields};
use tensordict_core::storage::plan::{Content, Plan};
use tensordict_core::storage::read::{ReadOptions, map_leaves, read_tree};
use tensordict_core::storage::safetensors::{self, NewFile, NewIndex, NewTensor};
use tensordict_core::storage::source::Source;
use tensordict_core::storage::verify::{Outcome, verify};

const CLASS: &str = "tensordict:TensorDict";

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

const FAULTS: [Fault; 5] = [
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
fn plan(value: u8, length: usize) -> Plan {
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
fn values(target: &Path) -> Option<Vec<u8>> {
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

fn count(path: &str) -> usize {
    fs::read_dir(path).map_or(0, Iterator::count)
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Target {
    Absent,
    Whole,
    Mixed,
    /// A directory with a save of longer leaves, and other files.
    MixedLonger,
    AbsentArchive,
    Archive,
    AbsentSafetensors,
    Safetensors,
    AbsentShards,
    Shards,
    AbsentConsolidated,
    Consolidated,
}

/// The tensors of a safetensors file of one value.
fn tensors(value: u8) -> Vec<NewTensor> {
    [("a", 5), ("b", 3), ("large", 1 << 20)]
        .map(|(name, length)| NewTensor {
            name: name.to_owned(),
            dtype: "U8",
            shape: vec![i64::try_from(length).unwrap()],
            source: Source::Bytes(vec![value; length]),
            item_bytes: 1,
        })
        .to_vec()
}

fn save_safetensors(job: &Job<'_>, value: u8, path: &Path) -> StorageResult<()> {
    let file = NewFile {
        path: path.to_path_buf(),
        other_path: None,
        tensors: tensors(value),
        metadata: Vec::new(),
    };
    safetensors::save(job, &[file], None, None, true).map(drop)
}

/// Three shards, whose index has the name `path`.
fn save_shards(job: &Job<'_>, value: u8, path: &Path) -> StorageResult<()> {
    let stem = path.to_str().unwrap();
    let stem = stem.strip_suffix(".safetensors.index.json").unwrap();
    let names = |save: &str| -> Vec<PathBuf> {
        (1..4)
            .map(|number| format!("{stem}{save}-{number:05}-of-00003.safetensors").into())
            .collect()
    };
    let (usual, own) = (names(""), names(&format!("-{value:016x}")));
    let text = |files: &[PathBuf]| {
        let rows: Vec<String> = tensors(value)
            .iter()
            .zip(files)
            .map(|(one, file)| {
                let file = file.file_name().unwrap().to_str().unwrap();
                format!("\"{}\": \"{file}\"", one.name)
            })
            .collect();
        format!("{{\"weight_map\": {{{}}}}}", rows.join(", "))
    };
    let index = NewIndex {
        path: path.to_path_buf(),
        text: text(&usual),
        other_text: text(&own),
    };
    let files: Vec<NewFile> = tensors(value)
        .into_iter()
        .zip(usual.iter().zip(own))
        .map(|(tensor, (path, other))| NewFile {
            path: path.clone(),
            other_path: Some(other),
            tensors: vec![tensor],
            metadata: vec![("tensordict.save".to_owned(), value.to_string())],
        })
        .collect();
    let stale = path.exists().then_some(path);
    safetensors::save(job, &files, Some(&index), stale, false).map(drop)
}

fn save_consolidated(job: &Job<'_>, value: u8, path: &Path) -> StorageResult<()> {
    let segments = [
        Segment::new(0, Source::Bytes(vec![value; 5])),
        Segment::new(8, Source::Bytes(vec![value; 1 << 20])),
    ];
    let text = r#"{"cls": "TensorDict", "leaves": {"a": ["torch.uint8", [5], 0, 8, 3], "large": ["torch.uint8", [1048576], 8, 1048584, 0]}}"#;
    consolidated::save(job, path, &segments, 8 + (1 << 20), "", text).map(drop)
}

impl Target {
    fn is_absent(self) -> bool {
        matches!(
            self,
            Self::Absent
                | Self::AbsentArchive
                | Self::AbsentSafetensors
                | Self::AbsentShards
                | Self::AbsentConsolidated
        )
    }

    /// The name of the save in its folder.
    fn name(self) -> &'static str {
        match self {
            Self::AbsentShards | Self::Shards => "save.safetensors.index.json",
            _ => "save",
        }
    }

    /// How many files there are beside the one that has the name.
    fn count_beside(self) -> usize {
        3 * usize::from(matches!(self, Self::AbsentShards | Self::Shards))
    }

    fn save(self, job: &Job<'_>, value: u8, length: usize, path: &Path) -> StorageResult<()> {
        let plan = &plan(value, length);
        match self {
            Self::Archive | Self::AbsentArchive => {
                return archive::save(job, plan, path, Method::Stored).map(drop);
            }
            Self::Safetensors | Self::AbsentSafetensors => {
                return save_safetensors(job, value, path);
            }
            Self::Shards | Self::AbsentShards => return save_shards(job, value, path),
            Self::Consolidated | Self::AbsentConsolidated => {
                return save_consolidated(job, value, path);
            }
            _ => {}
        }
        let options = SaveOptions {
            exist_ok: true,
            in_place: false,
        };
        commit::save(job, plan, path, options).map(drop)
    }

    fn prepare(self, path: &Path) {
        if self.is_absent() {
            return;
        }
        let length = if self == Self::MixedLonger { 9000 } else { 5 };
        let progress = Progress::default();
        self.save(&Job::new(&progress), 1, length, path).unwrap();
        if matches!(self, Self::Mixed | Self::MixedLonger) {
            fs::write(path.join("notes.txt"), "mine").unwrap();
        }
    }
}

#[test]
fn test_every_call_fails_once() {
    let targets = [
        Target::Absent,
        Target::Whole,
        Target::Mixed,
        Target::MixedLonger,
        Target::AbsentArchive,
        Target::Archive,
        Target::AbsentSafetensors,
        Target::Safetensors,
        Target::AbsentShards,
        Target::Shards,
        Target::AbsentConsolidated,
        Target::Consolidated,
    ];
    let (descriptors, threads) = (count("/proc/self/fd"), count("/proc/self/task"));
    for target in targets {
        for fault in FAULTS {
            for is_durable in [false, true] {
                // What syncs add are calls that fail, and no bytes.
                if is_durable && !matches!(fault, Fault::Error { number: EIO, .. }) {
                    continue;
                }
                let calls = (0..10_000)
                    .take_while(|&at| run(target, fault, is_durable, at))
                    .count();
                assert!(calls > 10, "{target:?}: only {calls} calls were made");
            }
        }
    }
    assert_eq!(count("/proc/self/fd"), descriptors, "descriptors are left");
    assert_eq!(count("/proc/self/task"), threads, "threads are left");
}

/// Whether the call with the number `at` was made.
fn run(target: Target, fault: Fault, is_durable: bool, at: usize) -> bool {
    // In memory, where there is such a place: syncs then cost nothing.
    let place = TempDir::new_in("/dev/shm")
        .or_else(|_| TempDir::new())
        .unwrap();
    let path = place.path().join(target.name());
    target.prepare(&path);
    let old = values(&path);
    let io = Faulty::new(at, fault);
    let progress = Progress::default();
    let job = Job {
        disk: Disk(&io),
        threads: 2,
        is_durable,
        ..Job::new(&progress)
    };
    let result = target.save(&job, 2, 5, &path);
    let Some(call) = io.hit() else {
        result.unwrap();
        return false;
    };
    let shown = format!("{target:?}, {fault:?} of call {at}, {call:?}: {result:?}");
    let found = values(&path);
    let new = Some(vec![2]);
    if matches!(fault, Fault::Short | Fault::Interrupted) {
        assert!(result.is_ok(), "{shown}");
    }
    match (&result, target) {
        (Ok(()), _) => assert_eq!(found, new, "{shown}"),
        // Leaves of both saves can be there, each whole.
        (Err(_), Target::Mixed | Target::MixedLonger) => {
            let found = found.as_ref().expect("a save is there");
            assert!(
                found.iter().all(|value| [0, 1, 2].contains(value)),
                "{shown}"
            );
            assert_eq!(fs::read(path.join("notes.txt")).unwrap(), b"mine");
        }
        (Err(_), _) => assert!(found == old || found == new, "{shown}"),
    }
    if found == new {
        let report = verify(&path, 1).unwrap();
        assert!(report.lines(Outcome::Damaged).is_empty(), "{shown}");
    }
    // A work directory stays only where it could not be removed; the next save removes it, and
    // shards that no index names.
    let areas = || {
        let beside = count(place.path().to_str().unwrap()) - usize::from(path.exists());
        beside + usize::from(path.join(".tdtmp").exists())
    };
    if call != Call::Remove && (result.is_ok() || target.count_beside() == 0) {
        assert_eq!(areas(), target.count_beside(), "{shown}");
    }
    drop(result);
    target.save(&Job::new(&progress), 3, 5, &path).unwrap();
    assert_eq!(values(&path), Some(vec![3]), "{shown}");
    if call != Call::Remove {
        assert_eq!(areas(), target.count_beside(), "{shown}");
    }
    true
}
