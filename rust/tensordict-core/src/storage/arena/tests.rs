//! Arenas in several threads and processes. A child process is this test binary again,
//! which runs one of the tests named `child_*`: without their variable they do nothing.

use std::cell::Cell;
use std::env;
use std::fs::OpenOptions;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{self, Child, Command};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use super::*;

const FILE: &str = "ARENA_FILE";

fn file_at(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.open(path).unwrap()
}

fn child(test: &str, path: &Path, setting: &str) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", &format!("storage::arena::tests::{test}")])
        .env(FILE, path)
        .env("ARENA_SETTING", setting)
        .stdout(process::Stdio::null())
        .spawn()
        .unwrap()
}

/// The arena and the setting of a child; None where this is none.
fn of_child() -> Option<(Arena, String)> {
    let path = PathBuf::from(env::var_os(FILE)?);
    let arena = Arena::open(file_at(&path)).unwrap();
    Some((arena, env::var("ARENA_SETTING").unwrap()))
}

fn value(arena: &Arena, slot: usize) -> Vec<u8> {
    arena.read(slot).unwrap().1
}

/// Bytes of which each part tells whether it belongs to the others.
fn whole(number: u64, length: usize) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().repeat(length / 8 + 1);
    bytes.truncate(length.max(8));
    bytes
}

fn is_whole(bytes: &[u8]) -> bool {
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    bytes == whole(number, bytes.len())
}

#[test]
fn a_slot_holds_what_was_written_last() {
    let arena = Arena::in_memory(&["one", "", "three"]).unwrap();
    assert_eq!(arena.num_slots(), 3);
    assert_eq!(value(&arena, 0), b"one");
    assert_eq!(value(&arena, 1), b"");
    let before = arena.generation(1);
    let after = arena.write(1, b"two").unwrap();
    assert_eq!(after, before + 1);
    assert_eq!(arena.read(1).unwrap(), (after, b"two".to_vec()));
    assert_eq!(value(&arena, 2), b"three");
    assert_eq!(Arena::in_memory::<&str>(&[]).unwrap().num_slots(), 0);
}

#[test]
fn others_that_open_the_file_see_what_is_written() {
    let arena = Arena::in_memory(&["old"]).unwrap();
    let other = arena.file().try_clone_to_owned().unwrap();
    let other = Arena::open(File::from(other)).unwrap();
    arena.write(0, b"new").unwrap();
    assert_eq!(value(&other, 0), b"new");
    other.write(0, b"newer").unwrap();
    assert_eq!(value(&arena, 0), b"newer");
}

#[test]
fn a_file_that_is_no_arena_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    for (name, length) in [("empty", 0), ("zeros", 100_000)] {
        let file = file_at(&directory.path().join(name));
        file.set_len(length).unwrap();
        assert!(matches!(
            Arena::open(file),
            Err(StorageError::Damaged { .. })
        ));
    }
    let path = directory.path().join("cut");
    Arena::create(file_at(&path), &["value"; 1000]).unwrap();
    file_at(&path).set_len(4096).unwrap();
    let error = Arena::open(file_at(&path)).unwrap_err();
    assert!(error.to_string().contains("shorter than its table"));
}

#[test]
fn other_bytes_than_those_written_are_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("arena");
    let arena = Arena::create(file_at(&path), &["value"]).unwrap();
    let offset = arena.current(0).offset;
    file_at(&path).write_all_at(b"V", offset).unwrap();
    let error = arena.read(0).unwrap_err();
    assert!(error.to_string().contains("the checksum of slot 0"));
}

#[test]
fn dead_bytes_are_given_back() {
    let arena = Arena::in_memory(&[whole(1, 8), whole(2, 300_000)]).unwrap();
    for number in 0..400 {
        arena.write(0, &whole(number, 100_000)).unwrap();
    }
    assert_eq!(value(&arena, 0), whole(399, 100_000));
    assert_eq!(value(&arena, 1), whole(2, 300_000));
    let metadata = arena.file.metadata().unwrap();
    let held = std::os::unix::fs::MetadataExt::blocks(&metadata) * 512;
    assert!(metadata.len() > 40_000_000, "{}", metadata.len());
    assert!(held < 3_000_000, "{held} bytes are held");
}

#[test]
fn readers_see_whole_values_while_writers_write() {
    let arena = Arena::in_memory(&[whole(0, 8), whole(0, 8)]).unwrap();
    let is_over = AtomicBool::new(false);
    let counts = thread::scope(|scope| {
        for writer in 0..2 {
            let (arena, is_over) = (&arena, &is_over);
            scope.spawn(move || {
                for number in 0..1500_u64 {
                    let length = 8 + usize::try_from(number % 97).unwrap() * 150;
                    let slot = usize::try_from((number + writer) % 2).unwrap();
                    arena.write(slot, &whole(number, length)).unwrap();
                }
                is_over.store(true, Ordering::Relaxed);
            });
        }
        let readers = [0, 1].map(|slot| {
            let (arena, is_over) = (&arena, &is_over);
            scope.spawn(move || {
                let (mut count, mut last) = (0, 0);
                while !is_over.load(Ordering::Relaxed) {
                    let (generation, bytes) = arena.read(slot).unwrap();
                    assert!(is_whole(&bytes));
                    assert!(generation >= last, "a reader sees no older value later");
                    last = generation;
                    count += 1;
                }
                count
            })
        });
        readers.map(|reader| reader.join().unwrap())
    });
    assert!(counts.iter().all(|count| *count > 0));
    // Writers did not lose one another's writes: each made one generation.
    let moves_aside = arena.generation(0) + arena.generation(1);
    assert!(moves_aside >= 3002, "{moves_aside}");
}

#[test]
fn child_dies_at_a_step() {
    let Some((arena, setting)) = of_child() else {
        return;
    };
    let (step, setting) = setting.split_once(' ').unwrap();
    let (times, length) = setting.split_once(' ').unwrap();
    let left = Cell::new(times.parse::<usize>().unwrap());
    let value = whole(7, length.parse().unwrap());
    let _ = arena.write_in_steps(0, &value, |reached| {
        if format!("{reached:?}") == step {
            left.set(left.get() - 1);
            if left.get() == 0 {
                process::abort();
            }
        }
    });
    unreachable!("the step {step} is not reached");
}

#[test]
fn a_writer_killed_at_any_step_leaves_the_old_value() {
    let directory = tempfile::tempdir().unwrap();
    for step in [Step::Bytes, Step::MoreBytes, Step::Entry, Step::Publish] {
        let path = directory.path().join(format!("{step:?}"));
        let arena = Arena::create(file_at(&path), &[whole(1, 100), whole(2, 100)]).unwrap();
        let mut child = child("child_dies_at_a_step", &path, &format!("{step:?} 1 5000"));
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGABRT), "{step:?}");
        assert_eq!(value(&arena, 0), whole(1, 100), "{step:?}");
        // The lock is free, and what is written next is not written over.
        arena.write(0, &whole(3, 50)).unwrap();
        arena.write(1, &whole(4, 5000)).unwrap();
        assert_eq!(value(&arena, 0), whole(3, 50));
        assert_eq!(value(&arena, 1), whole(4, 5000));
    }
}

#[test]
fn a_writer_killed_while_it_moves_the_heap_leaves_all_values() {
    let directory = tempfile::tempdir().unwrap();
    let values: Vec<_> = (0..50).map(|number| whole(number, 100)).collect();
    for times in [1, 25, 50] {
        let path = directory.path().join(times.to_string());
        let arena = Arena::create(file_at(&path), &values).unwrap();
        let start = arena.word(header::HEAP_START).load(Ordering::Relaxed);
        // Dead bytes, which nobody counts before the child.
        let count_at = arena.word(header::COUNT_AT);
        count_at.store(u64::MAX, Ordering::Relaxed);
        let dead = vec![0; 2 * usize::try_from(SLACK_BYTES).unwrap()];
        arena.write(0, &dead).unwrap();
        arena.write(0, &values[0]).unwrap();
        count_at.store(0, Ordering::Relaxed);

        let mut child = child("child_dies_at_a_step", &path, &format!("Moved {times} 100"));
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGABRT), "{times}");
        let all = |arena: &Arena| (0..50).map(|slot| value(arena, slot)).collect::<Vec<_>>();
        assert_eq!(all(&arena), values);
        // The next writer does it again, and whole.
        arena.write(1, &values[1]).unwrap();
        assert_eq!(all(&arena), values);
        let now = arena.word(header::HEAP_START).load(Ordering::Relaxed);
        assert!(now > start + 2 * SLACK_BYTES);
    }
}

#[test]
fn child_writes_without_end() {
    let Some((arena, setting)) = of_child() else {
        return;
    };
    let length = setting.parse().unwrap();
    for number in 0.. {
        arena.write(0, &whole(number, length)).unwrap();
    }
}

#[test]
fn writers_killed_anywhere_leave_whole_values() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("arena");
    let arena = Arena::create(file_at(&path), &[whole(0, 8), whole(0, 8)]).unwrap();
    for round in 0..10_u64 {
        let mut child = child("child_writes_without_end", &path, "30000");
        let before = arena.generation(0);
        let patience = Instant::now() + Duration::from_secs(20);
        while arena.generation(0) < before + 20 + 7 * round {
            assert!(Instant::now() < patience, "the child writes nothing");
            assert!(is_whole(&value(&arena, 0)));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_whole(&value(&arena, 0)));
        arena.write(1, &whole(round, 500)).unwrap();
        assert_eq!(value(&arena, 1), whole(round, 500));
    }
}
