//! Copies of parts of tensors of safetensors files, from the pages that the system has of them in memory.
//!
//! Bytes that were compared with their checksums a moment ago are still there, so they are not read once
//! more: a window of the file is mapped, copied from, and forgotten.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::{Advice, MmapOptions};

use super::super::full::Target;
use super::super::io::{Disk, open_to_read};
use super::super::job::Job;
use super::super::names::display_key;
use super::super::safetensors::{damaged, header_of};
use super::super::{StorageError, StorageResult, thread_count};
use super::reading::found_in;
use crate::threads::STORAGE;

/// The most bytes of a file that a thread has mapped at a time, but for gaps.
const WINDOW_BYTES: usize = 4 << 20;

/// The bytes between two pieces that are mapped with them.
const MAX_GAP: usize = 64 << 10;

/// A part of a tensor of a file, and the memory that it is copied to.
#[derive(Debug, Clone)]
pub struct Copied {
    /// The name of the tensor in the file.
    pub name: String,
    /// Its dtype, as torch names it.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<i64>,
    /// The first index of the part in each dim.
    pub first: Vec<usize>,
    /// The number of indices in each dim.
    pub sizes: Vec<usize>,
    /// The bytes from one index to the next in the memory, for each dim.
    pub strides: Vec<usize>,
    /// The memory, from the first item to the last.
    pub target: Target,
    /// The number of its bytes.
    pub extent: usize,
    /// The bytes of an item.
    pub item: usize,
}

/// Pieces that lie in one run in the file and in the memory, and how one follows the other.
#[derive(Debug)]
struct Pieces {
    file: usize,
    /// The offset of the first one in the file.
    start: u64,
    /// The bytes of each.
    length: usize,
    /// Number, step in the file, and step in the memory, of each dim along which there are several.
    dims: Vec<(usize, usize, usize)>,
    target: Target,
}

impl Pieces {
    /// Finds the pieces of a part; None where it does not lie in the tensor or the memory.
    fn of(copied: &Copied, file: usize, offset: u64, num_bytes: usize) -> Option<Self> {
        let mut shape: Vec<usize> = copied
            .shape
            .iter()
            .map(|&size| usize::try_from(size).ok())
            .collect::<Option<_>>()?;
        if copied.item == 1 && copied.first.len() == 1 {
            // A row of bytes takes those of any tensor.
            shape = vec![num_bytes];
        }
        let count = shape
            .iter()
            .try_fold(1_usize, |all, &size| all.checked_mul(size))?;
        let lengths = [&copied.first, &copied.sizes, &copied.strides].map(Vec::len);
        let item = copied.item;
        if lengths != [shape.len(); 3] || count.checked_mul(item) != Some(num_bytes) {
            return None;
        }
        let (mut start, mut length, mut step, mut reach) = (0, item, item, 0_usize);
        let mut dims = Vec::new();
        for (dim, &whole) in shape.iter().enumerate().rev() {
            let (first, size, stride) = (copied.first[dim], copied.sizes[dim], copied.strides[dim]);
            if size == 0 || first.checked_add(size)? > whole {
                return None;
            }
            start += first * step;
            reach = reach.checked_add(stride.checked_mul(size - 1)?)?;
            if size > 1 && dims.is_empty() && length == step && length == stride {
                length *= size;
            } else if size > 1 {
                dims.insert(0, (size, step, stride));
            }
            step *= whole;
        }
        (reach + item <= copied.extent).then_some(Self {
            file,
            start: offset + start as u64,
            length,
            dims,
            target: copied.target,
        })
    }

    fn count(&self) -> usize {
        self.dims.iter().map(|&(count, ..)| count).product()
    }

    /// The place of a piece in the file and in the memory.
    fn place(&self, number: usize) -> (u64, usize) {
        let (mut left, mut in_file, mut in_target) = (number, self.start, 0);
        for &(count, file_step, target_step) in self.dims.iter().rev() {
            let index = left % count;
            left /= count;
            in_file += (index * file_step) as u64;
            in_target += index * target_step;
        }
        (in_file, in_target)
    }

    /// Divides the work of threads: some pieces whole at a time, or a part of one that is large.
    fn tasks(&self) -> Vec<(Range<usize>, Range<usize>)> {
        let count = self.count();
        if self.length > WINDOW_BYTES {
            let windows = (0..self.length).step_by(WINDOW_BYTES);
            let windows: Vec<_> = windows
                .map(|start| start..self.length.min(start + WINDOW_BYTES))
                .collect();
            let pieces = (0..count).map(|number| number..number + 1);
            return pieces
                .flat_map(|piece| {
                    windows
                        .iter()
                        .map(move |window| (piece.clone(), window.clone()))
                })
                .collect();
        }
        let step = (WINDOW_BYTES / self.length).max(1);
        (0..count)
            .step_by(step)
            .map(|first| (first..count.min(first + step), 0..self.length))
            .collect()
    }
}

/// Copies parts of tensors of files. They are not compared with checksums.
///
/// # Errors
/// A file cannot be read, or has no such tensor; the job was cancelled.
pub fn copy_tensors(job: &Job<'_>, wanted: &[(PathBuf, Vec<Copied>)]) -> StorageResult<()> {
    let mut files: Vec<(File, &Path)> = Vec::with_capacity(wanted.len());
    let mut all = Vec::new();
    for (path, copies) in wanted {
        let file = open_to_read(path).map_err(|source| StorageError::io(path, source))?;
        let header = header_of(&file, path)?;
        for copied in copies {
            let name = &copied.name;
            let found = found_in(&header, path, name, &copied.dtype, &copied.shape)?;
            let num_bytes = usize::try_from(found.length).unwrap_or(usize::MAX);
            let pieces = Pieces::of(copied, files.len(), found.offset, num_bytes);
            let pieces = pieces.ok_or_else(|| {
                let reason = "it has no such part, or the memory does not hold it".to_owned();
                damaged(path, name, reason)
            })?;
            all.push((name, pieces));
        }
        files.push((file, path));
    }
    let tasks: Vec<_> = all
        .iter()
        .enumerate()
        .flat_map(|(number, (_, pieces))| {
            let tasks = pieces.tasks().into_iter();
            tasks.map(move |(some, bytes)| (number, some, bytes))
        })
        .collect();
    STORAGE.try_for_each(tasks.len(), thread_count(job.threads), |task| {
        job.progress.check()?;
        let (number, some, bytes) = &tasks[task];
        let (name, pieces) = &all[*number];
        let (file, path) = &files[pieces.file];
        copy_some(file, pieces, some.clone(), bytes.clone())
            .map_err(|source| StorageError::io_of(display_key(&[name]), *path, source))
    })
}

/// Copies some pieces, or the bytes `bytes` of one: those that are near each other from one window.
fn copy_some(
    file: &File,
    pieces: &Pieces,
    some: Range<usize>,
    bytes: Range<usize>,
) -> io::Result<()> {
    let mut near: Vec<(u64, usize)> = Vec::new();
    let mut end = 0;
    for number in some {
        let (mut in_file, mut in_target) = pieces.place(number);
        in_file += bytes.start as u64;
        in_target += bytes.start;
        let is_near = near.first().is_none_or(|&(first, _)| {
            in_file <= end + MAX_GAP as u64 && in_file - first < WINDOW_BYTES as u64
        });
        if !is_near {
            copy_window(file, pieces, &near, bytes.len())?;
            near.clear();
        }
        near.push((in_file, in_target));
        end = in_file + bytes.len() as u64;
    }
    copy_window(file, pieces, &near, bytes.len())
}

fn copy_window(
    file: &File,
    pieces: &Pieces,
    near: &[(u64, usize)],
    length: usize,
) -> io::Result<()> {
    let (Some(&(first, _)), Some(&(last, _))) = (near.first(), near.last()) else {
        return Ok(());
    };
    let extent = usize::try_from(last - first).map_err(io::Error::other)? + length;
    let mut scratch = Vec::new();
    let map = MmapOptions::new()
        .offset(first)
        .len(extent)
        .map_raw_read_only(file)
        .and_then(|map| map.advise(Advice::PopulateRead).map(|()| map));
    let start = if let Ok(map) = &map {
        map.as_ptr()
    } else {
        // The file system maps no files, or has an error to tell.
        scratch.resize(extent, 0);
        Disk::REAL.read_exact_at(file, &mut scratch, first)?;
        scratch.as_ptr()
    };
    for &(in_file, in_target) in near {
        let offset = usize::try_from(in_file - first).map_err(io::Error::other)?;
        // SAFETY: the pieces lie in the window, which is mapped or read until the end of this function, and
        // in the target, as `Pieces::of` has compared; no other task has these bytes of it.
        unsafe {
            let target = pieces.target.part(in_target, length);
            std::ptr::copy_nonoverlapping(start.add(offset), target.as_mut_ptr(), length);
        }
    }
    Ok(())
}
