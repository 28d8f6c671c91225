use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::file::READS_TO_TRUST;
use super::*;
use crate::storage::map::{MapRequest, Mapping, Mode, open};

fn run(row: usize, place: usize, count: usize) -> Run {
    Run { row, place, count }
}

fn runs_of(rows: &[usize]) -> Vec<Run> {
    let places = rows.iter().enumerate();
    places.map(|(place, &row)| run(row, place, 1)).collect()
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at * 7 + at / 251).to_le_bytes()[0])
        .collect()
}

fn expected(source: &[u8], stride: usize, row_bytes: usize, rows: &[usize]) -> Vec<u8> {
    let row = |row: &usize| source[row * stride..row * stride + row_bytes].to_vec();
    rows.iter().flat_map(row).collect()
}

/// The rows of one leaf.
fn rows_of(
    source: *const u8,
    (stride, row_bytes): (usize, usize),
    rows: &[usize],
    backing: Option<Backing<'_>>,
) -> StorageResult<Vec<u8>> {
    let mut result = vec![0; rows.len() * row_bytes];
    let leaf = Leaf {
        source,
        stride,
        row_bytes,
        result: result.as_mut_ptr(),
        backing,
    };
    // SAFETY: the tests ask for rows that there are.
    unsafe { gather(&[leaf], &runs_of(rows)) }?;
    Ok(result)
}

#[test]
fn test_neighbours_are_merged_and_long_runs_cut() {
    let merged = arranged(&runs_of(&[3, 4, 5, 0, 1, 9]), 8);
    assert_eq!(merged, [run(0, 3, 2), run(3, 0, 3), run(9, 5, 1)]);
    let cut = arranged(&[run(5, 0, 3)], RUN_BYTES);
    assert_eq!(cut, [run(5, 0, 1), run(6, 1, 1), run(7, 2, 1)]);
    assert_eq!(arranged(&[run(5, 0, 0)], 8), []);
}

proptest! {
    #[test]
    fn test_rows_in_memory(
        row_bytes in prop::sample::select(vec![1_usize, 3, 4, 8, 24, 5000]),
        gap in 0_usize..3,
        rows in prop::collection::vec(0_usize..40, 0..200),
    ) {
        let stride = row_bytes + gap;
        let source = bytes(40 * stride);
        let found = rows_of(source.as_ptr(), (stride, row_bytes), &rows, None).unwrap();
        prop_assert_eq!(found, expected(&source, stride, row_bytes, &rows));
    }
}

#[test]
fn test_rows_of_no_bytes_and_no_rows() {
    let source = bytes(8);
    assert_eq!(rows_of(source.as_ptr(), (0, 0), &[1, 2], None).unwrap(), []);
    assert_eq!(rows_of(source.as_ptr(), (4, 4), &[], None).unwrap(), []);
}

struct Mapped {
    _directory: tempfile::TempDir,
    path: PathBuf,
    mapping: Mapping,
    file: RowFile,
    bytes: Vec<u8>,
}

fn mapped(length: usize, mode: Mode) -> Mapped {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows");
    let bytes = bytes(length);
    File::create(&path).unwrap().write_all(&bytes).unwrap();
    let request = MapRequest {
        path: &path,
        length: length as u64,
        root: None,
    };
    let mapping = open(&request, mode, &String::new).unwrap();
    let file = RowFile::open(&path, mapping.file()).unwrap();
    Mapped {
        _directory: directory,
        path,
        mapping,
        file,
        bytes,
    }
}

impl Mapped {
    fn backing(&self) -> Backing<'_> {
        Backing {
            file: &self.file,
            offset: 0,
            is_private: !self.mapping.is_shared(),
        }
    }

    fn rows(&self, layout: (usize, usize), rows: &[usize]) -> StorageResult<Vec<u8>> {
        rows_of(
            self.mapping.as_mut_ptr(),
            layout,
            rows,
            Some(self.backing()),
        )
    }
}

/// Lets the kernel forget what it has in memory of a file, as far as it does.
fn forget(path: &Path) {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
}

#[test]
fn test_rows_of_a_file_that_may_not_be_in_memory() {
    for mode in [Mode::Shared, Mode::Private] {
        for (stride, row_bytes) in [(4, 4), (24, 24), (5000, 5000), (5000, 17)] {
            let mapped = mapped(100 * stride, mode);
            let rows: Vec<usize> = (0..600).map(|at| (at * 37) % 100).collect();
            for _ in 0..4 {
                forget(&mapped.path);
                let found = mapped.rows((stride, row_bytes), &rows).unwrap();
                assert_eq!(found, expected(&mapped.bytes, stride, row_bytes, &rows));
            }
        }
    }
}

#[test]
fn test_rows_that_lie_close_together_are_read_together() {
    for mode in [Mode::Shared, Mode::Private] {
        let mapped = mapped(1 << 22, mode);
        // A gap in the middle, behind which the rows are few.
        let mut rows: Vec<usize> = (0..3000).map(|at| (at * 977) % 100_000).collect();
        rows.extend([400_000, 410_000, 524_287]);
        for _ in 0..3 {
            forget(&mapped.path);
            let found = mapped.rows((8, 8), &rows).unwrap();
            assert_eq!(found, expected(&mapped.bytes, 8, 8, &rows));
        }
    }
}

#[test]
fn test_large_pages_change_nothing() {
    let mut memory = bytes(5 << 20);
    let before = memory.clone();
    // SAFETY: it is ours.
    unsafe { prefer_large_pages(memory.as_mut_ptr(), memory.len()) };
    assert!(memory == before);
}

#[test]
fn test_a_file_counts_as_in_memory_after_enough_reads() {
    let mapped = mapped(64 * 4096, Mode::Shared);
    let rows: Vec<usize> = (0..64).rev().collect();
    for _ in 0..READS_TO_TRUST {
        mapped.rows((4096, 4096), &rows).unwrap();
    }
    if mapped.file.has_in_memory(0) {
        assert!(mapped.file.is_in_memory());
    }
    mapped.file.remember_missing();
    assert!(!mapped.file.is_in_memory());
    let found = mapped.rows((4096, 4096), &rows).unwrap();
    assert_eq!(found, expected(&mapped.bytes, 4096, 4096, &rows));
}

#[test]
fn test_stores_of_this_process_are_seen() {
    for mode in [Mode::Shared, Mode::Private] {
        let mut mapped = mapped(3 * 5000, mode);
        // SAFETY: the byte lies in the mapping.
        unsafe { mapped.mapping.as_mut_ptr().add(5001).write(99) };
        mapped.bytes[5001] = 99;
        let found = mapped.rows((5000, 5000), &[1, 0]).unwrap();
        assert_eq!(found, expected(&mapped.bytes, 5000, 5000, &[1, 0]));
    }
}

#[test]
fn test_a_file_that_was_cut_is_an_error() {
    for mode in [Mode::Shared, Mode::Private] {
        for in_memory in [false, true] {
            let mapped = mapped(10 * 4096, mode);
            if in_memory {
                mapped.file.remember_found(READS_TO_TRUST);
            }
            let file = OpenOptions::new().write(true).open(&mapped.path).unwrap();
            file.set_len(3 * 4096).unwrap();
            let error = mapped.rows((4096, 4096), &[9, 1]).unwrap_err();
            assert!(matches!(error, StorageError::CutFile { found: 12288, .. }));
            // Rows before the end are still there.
            let found = mapped.rows((4096, 4096), &[2, 1]).unwrap();
            assert_eq!(found, expected(&mapped.bytes, 4096, 4096, &[2, 1]));
        }
    }
}

#[test]
fn test_a_read_behind_the_end_is_an_error() {
    let mapped = mapped(4096, Mode::Shared);
    let mut buffer = vec![0; 4096];
    let error = mapped.file.read(&mut buffer, 100).unwrap_err();
    assert!(matches!(error, StorageError::CutFile { found: 4096, .. }));
}

#[test]
fn test_another_file_of_the_same_name_is_not_opened() {
    let mapped = mapped(4096, Mode::Shared);
    std::fs::remove_file(&mapped.path).unwrap();
    assert!(RowFile::open(&mapped.path, mapped.mapping.file()).is_none());
    File::create(&mapped.path).unwrap();
    assert!(RowFile::open(&mapped.path, mapped.mapping.file()).is_none());
}
