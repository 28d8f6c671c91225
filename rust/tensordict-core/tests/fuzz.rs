//! The readers of files, given changed files: a short run of what `rust/fuzz` does at length.

#[path = "../../fuzz/src/readers.rs"]
#[expect(unreachable_pub, reason = "the fuzz targets are another crate")]
mod readers;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use proptest::sample::Index;
use tempfile::TempDir;
use tensordict_core::storage::archive::{self, Method};
use tensordict_core::storage::commit::{self, SaveOptions};
use tensordict_core::storage::consolidated;
use tensordict_core::storage::file::Segment;
use tensordict_core::storage::job::{Job, Progress};
use tensordict_core::storage::metadata::{LeafMeta, LevelFields};
use tensordict_core::storage::plan::{Content, Plan};
use tensordict_core::storage::safetensors::{self, NewFile, NewTensor};
use tensordict_core::storage::source::Source;
use tensordict_core::storage::verify::{Scrutiny, verify};
use tensordict_core::storage::{MAX_LEVELS, StorageError};

/// Remembers the largest allocation.
struct Watching;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the promises of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

/// More than any reader needs for files of some kilobytes, its buffers included.
const MOST_BYTES: usize = 64 << 20;

fn plan() -> Plan {
    let mut plan = Plan::new(true);
    let child = plan.add_child(Plan::ROOT, "n", "TensorDict").unwrap();
    for (level, key, length) in [(Plan::ROOT, "a", 64), (child, "b c", 300)] {
        let meta = LeafMeta {
            device: "cpu".into(),
            shape: vec![length].into(),
            dtype: "torch.uint8".into(),
            is_nested: false,
        };
        let length = length.unsigned_abs();
        let bytes = vec![7; usize::try_from(length).unwrap()];
        let content = Content::Data(Source::Bytes(bytes));
        plan.add_leaf(level, key, meta, length, content, None)
            .unwrap();
    }
    for level in [child, Plan::ROOT] {
        let fields = LevelFields {
            class_text: Some("tensordict:TensorDict".to_owned()),
            ..LevelFields::default()
        };
        plan.close_level(level, &fields).unwrap();
    }
    plan
}

type Reader = fn(&[u8]);

/// Real files, each with its reader.
fn files() -> Vec<(Vec<u8>, Reader)> {
    let place = TempDir::new().unwrap();
    let at = |name: &str| place.path().join(name);
    let progress = Progress::default();
    let job = Job::new(&progress);
    let options = SaveOptions {
        exist_ok: true,
        in_place: false,
    };
    commit::save(&job, &plan(), &at("tree"), options).unwrap();
    let methods = [
        Method::Stored,
        Method::Deflate(6),
        Method::Bzip2(9),
        Method::Lzma,
    ];
    let read = |path: &Path| fs::read(path).unwrap();
    let mut files: Vec<(Vec<u8>, Reader)> = Vec::new();
    for method in methods {
        archive::save(&job, &plan(), &at("x.tdz"), method).unwrap();
        files.push((read(&at("x.tdz")), readers::archive));
    }
    let tensor = NewTensor {
        name: "a.b".to_owned(),
        dtype: "I16",
        shape: vec![2, 3],
        source: Source::Bytes(vec![1; 12]),
        item_bytes: 2,
    };
    let new = NewFile {
        path: at("x.safetensors"),
        other_path: None,
        tensors: vec![
            NewTensor {
                name: "c".to_owned(),
                ..tensor.clone()
            },
            tensor,
        ],
        metadata: vec![("who".to_owned(), "me".to_owned())],
    };
    safetensors::save(&job, &[new], None, None, false).unwrap();
    files.push((read(&at("x.safetensors")), readers::safetensors));
    let index =
        r#"{"metadata": {"total_size": 24}, "weight_map": {"a.b": "x.safetensors", "c": "y"}}"#;
    files.push((index.as_bytes().to_vec(), readers::index));
    let text = r#"{"cls": "TensorDict", "leaves": {"a": ["torch.uint8", [5], 0, 8, 3]}, "n": {"leaves": {}}}"#;
    let segments = [Segment::new(0, Source::Bytes(b"12345".to_vec()))];
    consolidated::save(&job, &at("cons"), &segments, 8, r#"{"orders": []}"#, text).unwrap();
    files.push((read(&at("cons")), readers::consolidated));
    files.push((read(&at("tree/meta.json")), readers::tree));
    files.push((read(&at("tree/.tensordict-sums.json")), readers::checksums));
    files.push((b"a/b %..".to_vec(), readers::names));
    files
}

/// A change of a file.
#[derive(Debug, Clone)]
enum Change {
    Flip(Index, u8),
    Cut(Index),
    /// A number, in place of four or eight bytes.
    Number(Index, u64, bool),
    /// A part once more, at another place.
    Repeat(Index, Index, Index),
    /// Digits of a text become those of another number.
    Digits(Index, i64),
    Remove(Index, Index),
    Nest(Index, u16),
}

fn change() -> impl Strategy<Value = Change> {
    let numbers = prop_oneof![
        Just(0_u64),
        Just(1),
        Just(u64::MAX),
        Just(u64::from(u32::MAX)),
        Just(i64::MAX.unsigned_abs()),
        (0_u64..4096),
        any::<u64>(),
    ];
    let at = any::<Index>;
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, bits)| Change::Flip(at, bits)),
        at().prop_map(Change::Cut),
        (at(), numbers, any::<bool>()).prop_map(|(at, to, wide)| Change::Number(at, to, wide)),
        (at(), at(), at()).prop_map(|(from, to, at)| Change::Repeat(from, to, at)),
        (at(), any::<i64>()).prop_map(|(at, to)| Change::Digits(at, to)),
        (at(), at()).prop_map(|(from, to)| Change::Remove(from, to)),
        (at(), any::<u16>()).prop_map(|(at, depth)| Change::Nest(at, depth)),
    ]
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let length = bytes.len();
        match self {
            Self::Flip(at, bits) => bytes[at.index(length)] ^= bits,
            Self::Cut(at) => bytes.truncate(at.index(length)),
            Self::Number(at, to, is_wide) => {
                let new = to.to_le_bytes();
                let new = if *is_wide { &new[..] } else { &new[..4] };
                let at = at.index(length);
                for (place, byte) in bytes[at..].iter_mut().zip(new) {
                    *place = *byte;
                }
            }
            Self::Repeat(from, to, at) => {
                let (from, to) = (from.index(length), to.index(length));
                let part = bytes[from.min(to)..from.max(to)].to_vec();
                let at = at.index(length);
                bytes.splice(at..at, part);
            }
            Self::Digits(at, to) => {
                let at = at.index(length);
                let is_digit = |byte: &u8| byte.is_ascii_digit();
                if let Some(first) = bytes[at..].iter().position(is_digit) {
                    let first = at + first;
                    let count = bytes[first..]
                        .iter()
                        .take_while(|byte| is_digit(byte))
                        .count();
                    bytes.splice(first..first + count, to.to_string().into_bytes());
                }
            }
            Self::Remove(from, to) => {
                let (from, to) = (from.index(length), to.index(length));
                bytes.drain(from.min(to)..from.max(to));
            }
            Self::Nest(at, depth) => {
                let at = at.index(length);
                bytes.splice(at..at, b"[".repeat(usize::from(*depth)));
            }
        }
    }
}

/// A save of one leaf in as many levels, whose metadata gives it this shape.
fn nested(levels: usize, shape: i64) -> Plan {
    let mut plan = Plan::new(true);
    let mut level = Plan::ROOT;
    let mut made = vec![level];
    for _ in 0..levels {
        level = plan.add_child(level, "n", "TensorDict").unwrap();
        made.push(level);
    }
    let meta = LeafMeta {
        device: "cpu".into(),
        shape: vec![shape].into(),
        dtype: "torch.uint8".into(),
        is_nested: false,
    };
    let content = Content::Data(Source::Bytes(vec![7; 64]));
    plan.add_leaf(level, "a", meta, 64, content, None).unwrap();
    for level in made.into_iter().rev() {
        let fields = LevelFields {
            class_text: Some("tensordict:TensorDict".to_owned()),
            ..LevelFields::default()
        };
        plan.close_level(level, &fields).unwrap();
    }
    plan
}

fn archive_of(plan: &Plan, method: Method) -> Vec<u8> {
    let place = TempDir::new().unwrap();
    let progress = Progress::default();
    let path = place.path().join("x");
    archive::save(&Job::new(&progress), plan, &path, method).unwrap();
    fs::read(path).unwrap()
}

/// Returns the last position of bytes.
fn position(bytes: &[u8], part: &[u8]) -> usize {
    let mut windows = bytes.windows(part.len());
    windows
        .rposition(|window| window == part)
        .expect("it is there")
}

/// All of it is one test, since it watches allocations of the process.
#[test]
fn test_changed_files_are_read_or_refused() {
    // With the stack that the main thread of a process has.
    let claims = std::thread::Builder::new().stack_size(8 << 20);
    claims.spawn(claims_of_archives).unwrap().join().unwrap();
    changed_files();
}

fn claims_of_archives() {
    LARGEST.store(0, Ordering::Relaxed);
    // A leaf of 4 GiB that is compressed to some bytes.
    let claimed = u32::MAX - 15;
    for method in [Method::Deflate(6), Method::Bzip2(9), Method::Lzma] {
        let mut bytes = archive_of(&nested(0, i64::from(claimed)), method);
        // The name is in the central directory, behind the 46 bytes of a record.
        let record = position(&bytes, b"a.memmap") - 46;
        assert_eq!(bytes[record..record + 4], *b"PK\x01\x02");
        bytes[record + 24..record + 28].copy_from_slice(&claimed.to_le_bytes());
        readers::archive(&bytes);
    }
    // A window of 4 GiB.
    let mut bytes = archive_of(&nested(0, 64), Method::Lzma);
    let header = position(&bytes, &[9, 4, 5, 0]);
    bytes[header + 5..header + 9].copy_from_slice(&u32::MAX.to_le_bytes());
    readers::archive(&bytes);
    // The most levels that can be saved, and more.
    readers::archive(&archive_of(&nested(MAX_LEVELS, 64), Method::Stored));
    let place = TempDir::new().unwrap();
    let mut level = place.path().to_path_buf();
    for _ in 0..1000 {
        level.push("n");
    }
    fs::create_dir_all(&level).unwrap();
    let text = r#"{"n": {"type": "TensorDict"}, "_class": "tensordict:TensorDict"}"#;
    while level.starts_with(place.path()) {
        fs::write(level.join("meta.json"), text).unwrap();
        level.pop();
    }
    let progress = Progress::default();
    let path = place.path().with_extension("tdz");
    archive::pack(&Job::new(&progress), place.path(), &path, Method::Stored).unwrap();
    eprintln!("P2");
    readers::archive(&fs::read(&path).unwrap());
    fs::remove_file(&path).unwrap();
    let report = verify(place.path(), &Scrutiny::new(&progress));
    assert!(matches!(report, Err(StorageError::TooDeep { .. })));
    let largest = LARGEST.load(Ordering::Relaxed);
    // The archive itself, which is read as a whole here, has some 32 MiB.
    assert!(largest < 2 * MOST_BYTES, "{largest} bytes were asked for");
}

fn changed_files() {
    let files = files();
    for (bytes, read) in &files {
        read(bytes);
    }
    let config = ProptestConfig {
        cases: std::env::var("TENSORDICT_FUZZ")
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(1500),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let cases = (any::<Index>(), prop::collection::vec(change(), 1..4));
    proptest!(config, |((file, changes) in cases)| {
        let (bytes, read) = &files[file.index(files.len())];
        let mut bytes = bytes.clone();
        for change in &changes {
            change.apply(&mut bytes);
        }
        LARGEST.store(0, Ordering::Relaxed);
        read(&bytes);
        let largest = LARGEST.load(Ordering::Relaxed);
        prop_assert!(largest < MOST_BYTES, "{largest} bytes were asked for");
    });
}
