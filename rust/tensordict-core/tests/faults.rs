//! Every system call of a small save fails once, in every way: what is left is the old save
//! or the new one, and nothing else.
//!
//! All of it is one test, in a process of its own: it counts descriptors and threads.

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use tensordict_core::storage::StorageResult;
use tensordict_core::storage::archive::{self, Archive, Method};
use tensordict_core::storage::commit::{self, SaveOptions};
use tensordict_core::storage::io::{Call, Disk, Fault, Faulty};
use tensordict_core::storage::job::{Job, Progress};
use tensordict_core::storage::map::{Mode, Root};
use tensordict_core::storage::metadata::{LeafMeta, LevelFields};
use tensordict_core::storage::plan::{Content, Plan};
use tensordict_core::storage::read::{ReadOptions, map_leaves, read_tree};
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
            device: "cpu".to_owned(),
            shape: vec![i64::try_from(length).unwrap()],
            dtype: "torch.uint8".to_owned(),
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
    if target.is_file() {
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
}

impl Target {
    fn is_archive(self) -> bool {
        matches!(self, Self::Archive | Self::AbsentArchive)
    }

    fn save(self, job: &Job<'_>, plan: &Plan, path: &Path) -> StorageResult<()> {
        if self.is_archive() {
            return archive::save(job, plan, path, Method::Stored).map(drop);
        }
        let options = SaveOptions {
            exist_ok: true,
            in_place: false,
        };
        commit::save(job, plan, path, options).map(drop)
    }

    fn prepare(self, path: &Path) {
        if matches!(self, Self::Absent | Self::AbsentArchive) {
            return;
        }
        let length = if self == Self::MixedLonger { 9000 } else { 5 };
        let progress = Progress::default();
        self.save(&Job::new(&progress), &plan(1, length), path)
            .unwrap();
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
    let path = place.path().join("save");
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
    let result = target.save(&job, &plan(2, 5), &path);
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
    // A work directory stays only where it could not be removed; the next save removes it.
    let areas = || {
        let beside = count(place.path().to_str().unwrap()) - usize::from(path.exists());
        beside + usize::from(path.join(".tdtmp").exists())
    };
    if call != Call::Remove {
        assert_eq!(areas(), 0, "{shown}");
    }
    drop(result);
    target
        .save(&Job::new(&progress), &plan(3, 5), &path)
        .unwrap();
    assert_eq!(values(&path), Some(vec![3]), "{shown}");
    true
}
