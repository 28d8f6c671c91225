//! The storage without Python: saves of byte arrays, committed, read back, damaged.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use proptest::prelude::*;
use tempfile::TempDir;
use tensordict_core::storage::checksums::CHECKSUMS_FILE;
use tensordict_core::storage::commit::SaveOptions;
use tensordict_core::storage::io::{Call, Disk, Io};
use tensordict_core::storage::job::{Job, Progress};
use tensordict_core::storage::json::{self, Value};
use tensordict_core::storage::lock::LockedLevel;
use tensordict_core::storage::map::{FileIdentity, Mode, Root};
use tensordict_core::storage::metadata::{self, LeafMeta, LevelFields};
use tensordict_core::storage::plan::{Content, Link, Plan};
use tensordict_core::storage::read::{Node, ReadOptions, Tree, map_leaves, read_tree};
use tensordict_core::storage::region::Region;
use tensordict_core::storage::source::Source;
use tensordict_core::storage::{MAX_LEVELS, StorageError, StorageResult, commit};

const OPTIONS: SaveOptions = SaveOptions {
    exist_ok: true,
    in_place: false,
};

const CLASS: &str = "tensordict:TensorDict";

/// Leaves of bytes, by name; a name with a slash is in a nested level.
type Leaves = BTreeMap<String, Vec<u8>>;

fn leaves(entries: &[(&str, &[u8])]) -> Leaves {
    entries
        .iter()
        .map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec()))
        .collect()
}

fn plan(leaves: &Leaves) -> Plan {
    let mut plan = Plan::new(true);
    let mut levels = BTreeMap::from([(String::new(), Plan::ROOT)]);
    for (name, bytes) in leaves {
        let (parent, key) = name.rsplit_once('/').unwrap_or(("", name));
        let level = *levels
            .entry(parent.to_owned())
            .or_insert_with(|| plan.add_child(Plan::ROOT, parent, "TensorDict").unwrap());
        let meta = LeafMeta {
            device: "cpu".into(),
            shape: vec![i64::try_from(bytes.len()).unwrap()].into(),
            dtype: "torch.uint8".into(),
            is_nested: false,
        };
        // SAFETY: the caller's map holds the bytes until it is done with the plan.
        let region = unsafe { Region::new(bytes.as_ptr(), bytes.len()) };
        let length = bytes.len() as u64;
        plan.add_leaf(
            level,
            key,
            meta,
            length,
            Content::Data(Source::Memory(region)),
            None,
        )
        .unwrap();
    }
    for level in levels.into_values() {
        let fields = LevelFields {
            class_text: Some(CLASS.to_owned()),
            ..LevelFields::default()
        };
        plan.close_level(level, &fields).unwrap();
    }
    plan
}

fn save(leaves: &Leaves, target: &Path) -> StorageResult<()> {
    save_plan(&plan(leaves), target)
}

fn save_plan(plan: &Plan, target: &Path) -> StorageResult<()> {
    let progress = Progress::default();
    commit::save(&Job::new(&progress), plan, target, OPTIONS).map(drop)
}

fn read(target: &Path) -> StorageResult<Tree> {
    let known_classes = [CLASS.to_owned()];
    let options = ReadOptions {
        escapes_keys: true,
        known_classes: &known_classes,
    };
    read_tree(target, options)
}

fn load(target: &Path) -> StorageResult<Leaves> {
    let tree = read(target)?;
    let mappings = map_leaves(
        &Root::open_path(target).unwrap(),
        &tree.leaves,
        Mode::Private,
        2,
    )?;
    let bytes = tree.leaves.iter().zip(mappings).map(|(leaf, mapping)| {
        let bytes = mapping.map_or_else(Vec::new, |mapping| {
            // SAFETY: nothing writes to the files of this test while they are mapped.
            unsafe { std::slice::from_raw_parts(mapping.as_mut_ptr(), mapping.len()) }.to_vec()
        });
        (leaf.keys().join("/"), bytes)
    });
    Ok(bytes.collect())
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            let name = PathBuf::from(entry.file_name());
            found.extend(files(&entry.path()).into_iter().map(|path| name.join(path)));
        } else {
            found.push(entry.file_name().into());
        }
    }
    found.sort();
    found
}

fn names(paths: &[&str]) -> Vec<PathBuf> {
    paths.iter().map(PathBuf::from).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn test_what_is_saved_is_loaded(
        old in prop::collection::btree_map("[a-c]{1,2}(/[ -~]{0,3})?", prop::collection::vec(any::<u8>(), 0..9), 0..5),
        new in prop::collection::btree_map("[a-c]{1,2}(/[ -~]{0,3})?", prop::collection::vec(any::<u8>(), 0..9), 0..5),
    ) {
        // A key that is a leaf and a level at once is no tree.
        let is_tree = |leaves: &Leaves| {
            leaves.keys().all(|name| !leaves.keys().any(|other| other.starts_with(&format!("{name}/"))))
                && leaves.keys().all(|name| name.matches('/').count() < 2)
        };
        prop_assume!(is_tree(&old) && is_tree(&new));
        let place = TempDir::new().unwrap();
        let target = place.path().join("td");
        save(&old, &target).unwrap();
        prop_assert_eq!(&load(&target).unwrap(), &old);
        save(&new, &target).unwrap();
        prop_assert_eq!(&load(&target).unwrap(), &new);
        prop_assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    fn test_any_text_is_json_or_an_error(text in "\\PC{0,40}") {
        if let Ok(value) = json::parse(&text) {
            prop_assert_eq!(json::parse(&value.to_text()), Ok(value));
        }
    }

    #[test]
    fn test_damaged_metadata_is_an_error_and_never_a_panic(cut in 0usize..400, byte in any::<u8>()) {
        let place = TempDir::new().unwrap();
        let target = place.path().join("td");
        save(&leaves(&[("a", b"12"), ("n/b", b"3")]), &target).unwrap();
        let path = target.join("meta.json");
        let mut text = fs::read(&path).unwrap();
        let cut = cut % text.len();
        text[cut] = byte;
        fs::write(&path, &text).unwrap();
        let before = files(&target);
        let _ = load(&target);
        prop_assert_eq!(files(&target), before);
    }
}

#[test]
fn test_a_target_with_other_files_keeps_them() {
    let place = TempDir::new().unwrap();
    let target = place.path().join("td");
    save(&leaves(&[("a", b"1"), ("n/b", b"2")]), &target).unwrap();
    fs::write(target.join("notes.txt"), "mine").unwrap();
    let new = leaves(&[("c", b"3")]);
    save(&new, &target).unwrap();
    assert_eq!(load(&target).unwrap(), new);
    assert_eq!(
        files(&target),
        names(&[CHECKSUMS_FILE, "c.memmap", "meta.json", "notes.txt"])
    );
}

#[test]
fn test_a_whole_save_is_exchanged_and_readers_keep_the_old_one() {
    let place = TempDir::new().unwrap();
    let target = place.path().join("td");
    save(&leaves(&[("a", b"old")]), &target).unwrap();
    let inode = fs::metadata(&target).unwrap().ino();
    let tree = read(&target).unwrap();
    let mapping = map_leaves(
        &Root::open_path(&target).unwrap(),
        &tree.leaves,
        Mode::Shared,
        1,
    )
    .unwrap()
    .remove(0)
    .unwrap();
    save(&leaves(&[("a", b"new")]), &target).unwrap();
    assert_ne!(fs::metadata(&target).unwrap().ino(), inode);
    // SAFETY: the file behind the mapping has no name any more; nothing writes to it.
    let bytes = unsafe { std::slice::from_raw_parts(mapping.as_mut_ptr(), mapping.len()) };
    assert_eq!(bytes, b"old");
}

/// The calls of a save; a file system whose renames know no flags, where it is one.
#[derive(Debug, Default)]
struct Watched {
    calls: Mutex<Vec<Call>>,
    has_no_flags: bool,
}

impl Io for Watched {
    fn admit(&self, call: Call) -> io::Result<usize> {
        let mut calls = self.calls.lock().unwrap();
        calls.push(call);
        // The flags are in the first rename.
        let renames = calls.iter().filter(|&&call| call == Call::Rename).count();
        if self.has_no_flags && call == Call::Rename && renames == 1 {
            return Err(io::Error::from_raw_os_error(22));
        }
        Ok(usize::MAX)
    }
}

fn save_watched(
    leaves: &Leaves,
    target: &Path,
    disk: &Watched,
    is_durable: bool,
) -> StorageResult<()> {
    let progress = Progress::default();
    let job = Job {
        disk: Disk(disk),
        threads: 1,
        has_checksums: false,
        is_durable,
        ..Job::new(&progress)
    };
    commit::save(&job, &plan(leaves), target, OPTIONS).map(drop)
}

/// The calls of a save of so many small leaves.
fn calls_of(count: usize, is_durable: bool) -> Vec<Call> {
    let place = TempDir::new().unwrap();
    let saved: Leaves = (0..count)
        .map(|number| (format!("k{number}"), vec![1; 10]))
        .collect();
    let disk = Watched::default();
    save_watched(&saved, &place.path().join("td"), &disk, is_durable).unwrap();
    disk.calls.into_inner().unwrap()
}

#[test]
fn test_many_small_files_are_synced_at_once_and_few_one_by_one() {
    let syncs = |count: usize| {
        let calls = calls_of(count, true);
        calls.iter().filter(|&&call| call == Call::Sync).count()
    };
    assert!((11..20).contains(&syncs(10)), "{}", syncs(10));
    assert!(syncs(1000) < 10, "{}", syncs(1000));
    assert!(!calls_of(10, false).contains(&Call::Sync));
}

#[test]
fn test_plain_renames_do_where_a_file_system_has_no_others() {
    let place = TempDir::new().unwrap();
    let target = place.path().join("td");
    for content in [b"old", b"new"] {
        let disk = Watched {
            has_no_flags: true,
            ..Watched::default()
        };
        let saved = leaves(&[("a", content), ("n/b", content)]);
        save_watched(&saved, &target, &disk, false).unwrap();
        let calls = disk.calls.into_inner().unwrap();
        assert!(calls.iter().filter(|&&call| call == Call::Rename).count() > 1);
        assert_eq!(load(&target).unwrap(), saved);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }
}

#[test]
fn test_a_small_leaf_is_opened_written_and_closed() {
    let (few, many) = (calls_of(10, false), calls_of(110, false));
    let more = |call: Call| {
        let count = |calls: &[Call]| calls.iter().filter(|&&other| other == call).count();
        count(&many) - count(&few)
    };
    // Closing is no call of this kind; mapping is what the save returns. The directory is opened once for
    // some dozens of leaves.
    assert!((100..110).contains(&more(Call::Open)));
    assert_eq!([Call::Write, Call::Map].map(more), [100; 2]);
    assert!(many.len() - few.len() < 310);
}

#[test]
fn test_what_a_dead_owner_left_is_swept_and_what_is_in_use_is_not() {
    let place = TempDir::new().unwrap();
    let target = place.path().join("td");
    let area = place.path().join(".td.tdtmp");
    fs::create_dir_all(area.join("1-0/new")).unwrap();
    fs::write(area.join("1-0/new/a.memmap"), "half").unwrap();
    fs::create_dir_all(area.join("2-0/new")).unwrap();
    let in_use = fs::File::open(area.join("2-0")).unwrap();
    rustix::fs::flock(&in_use, rustix::fs::FlockOperation::LockExclusive).unwrap();
    save(&leaves(&[("a", b"1")]), &target).unwrap();
    assert!(!area.join("1-0").exists());
    assert!(area.join("2-0/new").exists());
    drop(in_use);
    save(&leaves(&[("a", b"1")]), &target).unwrap();
    assert!(!area.exists());
}

#[test]
fn test_a_linked_leaf_stays_the_same_file() {
    let place = TempDir::new().unwrap();
    let target = place.path().join("td");
    let content = leaves(&[("a", b"kept")]);
    save(&content, &target).unwrap();
    let path = target.join("a.memmap");
    let inode = fs::metadata(&path).unwrap().ino();
    let mut plan = plan(&leaves(&[("a", b"kept"), ("b", b"new")]));
    // SAFETY: `content` outlives the plan.
    let memory = unsafe { Region::new(content["a"].as_ptr(), 4) };
    plan.set_content(
        0,
        Content::Link(Box::new(Link {
            path: path.clone(),
            memory,
            file: FileIdentity::of_path(&path).unwrap(),
        })),
    );
    // The other leaf's memory is gone by now, so it is given anew.
    let new = b"new";
    // SAFETY: the array is static.
    plan.set_content(
        1,
        Content::Data(Source::Memory(unsafe { Region::new(new.as_ptr(), 3) })),
    );
    save_plan(&plan, &target).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
    assert_eq!(
        load(&target).unwrap(),
        leaves(&[("a", b"kept"), ("b", b"new")])
    );
}

#[test]
fn test_files_of_zeros_take_the_place_of_what_is_there() {
    let place = TempDir::new().unwrap();
    let target = place.path().join("td");
    save(&leaves(&[("a", b"12")]), &target).unwrap();
    let opened = fs::File::open(target.join("a.memmap")).unwrap();
    let mut zeros = plan(&leaves(&[("a", b"0000"), ("b", b"00")]));
    for leaf in 0..2 {
        zeros.set_content(leaf, Content::Absent);
    }
    save_plan(&zeros, &target).unwrap();
    assert_eq!(
        load(&target).unwrap(),
        leaves(&[("a", b"\0\0\0\0"), ("b", b"\0\0")])
    );
    assert_eq!(fs::read(target.join("a.memmap")).unwrap(), b"\0\0\0\0");
    assert_eq!(std::io::read_to_string(opened).unwrap(), "12");
}

#[test]
fn test_short_and_missing_files_are_named() {
    let place = TempDir::new().unwrap();
    let target = place.path().join("td");
    save(&leaves(&[("n/a", b"1234")]), &target).unwrap();
    fs::write(target.join("n/a.memmap"), "123").unwrap();
    let error = load(&target).unwrap_err();
    assert!(matches!(
        &error,
        StorageError::ShortFile {
            found: 3,
            expected: 4,
            ..
        }
    ));
    assert!(error.to_string().contains("('n', 'a')"), "{error}");
    fs::remove_file(target.join("n/a.memmap")).unwrap();
    let error = load(&target).unwrap_err();
    assert!(matches!(error, StorageError::MissingFile { .. }), "{error}");
}

#[test]
fn test_levels_of_other_classes_are_left_to_their_readers() {
    let place = TempDir::new().unwrap();
    let target = place.path().join("td");
    save(&leaves(&[("a", b"1"), ("n/b", b"2")]), &target).unwrap();
    let path = target.join("n/meta.json");
    let text = fs::read_to_string(&path)
        .unwrap()
        .replace(CLASS, "other:Class");
    fs::write(&path, text).unwrap();
    let tree = read(&target).unwrap();
    let is_foreign = |node: &Node| matches!(node, Node::Foreign { key, path } if key == "n" && *path == target.join("n"));
    assert!(tree.levels[0].nodes.iter().any(is_foreign));
    assert_eq!(tree.leaves.len(), 1);
}

#[test]
fn test_an_entry_is_added_after_all_others() {
    let place = TempDir::new().unwrap();
    let target = place.path().join("td");
    save(&leaves(&[("a", b"1")]), &target).unwrap();
    let entry = metadata::Entry::Child("TensorDict".to_owned());
    let level = LockedLevel::wait(Disk::REAL, &target).unwrap();
    assert_eq!(level.entry("later").unwrap(), None);
    level.add("later", &entry).unwrap();
    assert_eq!(level.entry("later").unwrap(), Some(entry));
    let value = metadata::read_json(&target.join("meta.json")).unwrap();
    let Value::Object(fields) = value else {
        panic!("no object")
    };
    assert_eq!(fields.keys().last().map(String::as_str), Some("later"));
    assert_eq!(
        files(&target),
        names(&[CHECKSUMS_FILE, "a.memmap", "meta.json"])
    );
}

/// A chain of as many collections, each in the one before.
fn chain(levels: usize) -> Plan {
    let mut plan = Plan::new(true);
    let mut open = vec![Plan::ROOT];
    for _ in 0..levels {
        let child = plan.add_child(open[open.len() - 1], "n", "TensorDict");
        open.push(child.unwrap());
    }
    let fields = LevelFields {
        class_text: Some(CLASS.to_owned()),
        ..LevelFields::default()
    };
    for level in open.into_iter().rev() {
        plan.close_level(level, &fields).unwrap();
    }
    plan
}

#[test]
fn test_depth_costs_no_stack() {
    let place = TempDir::new().unwrap();
    let target = place.path().join("td");
    save_plan(&chain(MAX_LEVELS), &target).unwrap();
    let read = std::thread::Builder::new()
        // Enough for the metadata of one level, and far too little for that of all.
        .stack_size(96 << 10)
        .spawn(move || {
            let tree = read(&target).unwrap();
            // Each level names the next one only.
            let is_chain = tree.levels.iter().enumerate().all(|(number, level)| {
                level
                    .nodes
                    .iter()
                    .all(|node| matches!(node, Node::Level { number: child, .. } if *child == number + 1))
            });
            (tree.levels.len(), is_chain)
        });
    assert_eq!(read.unwrap().join().unwrap(), (MAX_LEVELS + 1, true));
}
