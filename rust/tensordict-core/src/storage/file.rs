//! One file, written and committed in one step.
//!
//! [`save_file`] makes the file beside its target and renames it into place; what is in it is written
//! by the caller, mostly with [`FileWriter::write_segments`], from segments whose offsets are planned.
//! It gives the checksum of each segment, which the layout keeps in its own metadata; so
//! the metadata is usually written last, into room that was left for it.
//!
//! ```
//! use tensordict_core::storage::file::{Segment, save_file};
//! use tensordict_core::storage::job::{Job, Progress};
//! use tensordict_core::storage::source::Source;
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("file");
//! let progress = Progress::default();
//! save_file(&Job::new(&progress), &path, |writer| {
//!     let checksums = writer.write_segments(&[
//!         Segment::new(4, Source::Bytes(b"data".to_vec())),
//!     ])?;
//!     let header = u32::to_le_bytes(checksums[0].checksum.whole);
//!     writer.write_at(0, &header)
//! })?;
//! assert_eq!(std::fs::read(path)?.len(), 8);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crc_fast::CrcAlgorithm::Crc32IsoHdlc;
use crc_fast::{Digest, checksum};
use indexmap::IndexMap;
use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::checksums::{BLOCK_BYTES, Checksum, Checksummer};
use super::io::Disk;
use super::job::Job;
use super::source::{Source, UNIT_BYTES};
use super::work::{NewFile, WorkArea};
use super::{StorageError, StorageResult};

/// Segments of fewer bytes are put together in memory and written with one call.
pub(crate) const SLAB_LIMIT: u64 = 1 << 20;

/// Space for as many bytes is set aside before they are written.
const ASIDE_BYTES: u64 = 1 << 20;

/// The number of bytes that are read for their checksum, then written: half of what the nearer caches of a core hold.
pub(crate) const PIECE_BYTES: usize = 512 << 10;
const _: () = assert!(BLOCK_BYTES.is_multiple_of(PIECE_BYTES));

/// Bytes that belong at an offset of a file.
#[derive(Debug, Clone)]
pub struct Segment {
    /// The offset of the bytes.
    pub offset: u64,
    /// The source of the bytes.
    pub source: Source,
    /// The entry whose bytes they are, as messages show it; empty for none.
    pub key: String,
}

impl Segment {
    /// Bytes that belong at `offset`.
    #[must_use]
    pub fn new(offset: u64, source: Source) -> Self {
        Self {
            offset,
            source,
            key: String::new(),
        }
    }
}

/// Facts about a segment that are known once it is written.
#[derive(Debug, Clone, Default)]
pub struct Written {
    /// The CRC32C; without blocks, and zero, where no checksums are asked for.
    pub checksum: Checksum,
    /// The CRC-32 of zip files.
    pub crc32: u32,
}

/// A file that is being made.
///
/// Threads that share it write one at a time: the kernel's lock of the file would take back what a
/// second one gains.
#[derive(Debug)]
pub struct FileWriter<'w> {
    job: &'w Job<'w>,
    file: &'w File,
    /// The name for messages: that of the target.
    path: &'w Path,
    takes_crc32: bool,
    turn: Mutex<()>,
}

impl<'w> FileWriter<'w> {
    pub(crate) fn new(job: &'w Job<'w>, file: &'w File, target: &'w Path) -> Self {
        Self {
            job,
            file,
            path: target,
            takes_crc32: false,
            turn: Mutex::new(()),
        }
    }

    /// Writes parts that follow each other from an offset on, with few calls.
    ///
    /// # Errors
    /// Those of [`FileWriter::write_at`].
    pub(super) fn write_parts_at(&self, offset: u64, parts: &[&[u8]]) -> StorageResult<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.job
            .disk
            .write_all_parts_at(self.file, parts, offset)
            .map_err(|source| StorageError::io(self.path, source))
    }

    /// Writes bytes at an offset.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> StorageResult<()> {
        self.write_in_turn(offset, bytes)
            .map_err(|source| StorageError::io(self.path, source))
    }

    fn write_in_turn(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.job.disk.write_all_at(self.file, bytes, offset)
    }

    /// The file: for what is not here.
    #[must_use]
    pub fn file(&self) -> &File {
        self.file
    }

    /// Takes the CRC-32 of zip files of what is written from now on.
    pub(crate) fn take_crc32(&mut self) {
        self.takes_crc32 = true;
    }

    /// Writes segments, which are in the order of their offsets and do not overlap; what is
    /// known of each. Gaps between small segments are written as zeros, others are left out.
    ///
    /// # Errors
    /// The operating system refuses; the save was cancelled.
    pub fn write_segments(&self, segments: &[Segment]) -> StorageResult<Vec<Written>> {
        let mut written = Vec::with_capacity(segments.len());
        let mut bounce = Vec::new();
        let mut slab = Slab::default();
        for (number, segment) in segments.iter().enumerate() {
            if let Some(next) = segments.get(number + 1) {
                next.source.begin();
            }
            let length = segment.source.len();
            if length < SLAB_LIMIT {
                if !slab.has_room(segment.offset, length) {
                    slab.flush(self)?;
                }
                written.push(slab.add(self, segment, &mut bounce)?);
                self.job.progress.advance(length)?;
                continue;
            }
            slab.flush(self)?;
            written.push(self.write_large(segment, &mut bounce)?);
        }
        slab.flush(self)?;
        Ok(written)
    }

    pub(super) fn write_large(
        &self,
        segment: &Segment,
        bounce: &mut Vec<u8>,
    ) -> StorageResult<Written> {
        let mut checksummer = Checksummer::default();
        let mut crc32 = Crc32::default();
        let failed =
            |source: io::Error| StorageError::io_of(segment.key.clone(), self.path, source);
        let write = |place: u64, block: &[u8]| {
            if self.job.has_checksums {
                checksummer.update(block);
            }
            if self.takes_crc32 {
                crc32.update(block);
            }
            self.write_in_turn(place, block)
        };
        let source = &segment.source;
        pour(
            self.job,
            self.file,
            segment.offset,
            source,
            bounce,
            write,
            &failed,
        )?;
        let checksum = self.finish(checksummer, segment.source.len());
        Ok(Written {
            checksum,
            crc32: crc32.finish(),
        })
    }

    fn finish(&self, checksummer: Checksummer, length: u64) -> Checksum {
        if self.job.has_checksums {
            return checksummer.finish();
        }
        Checksum {
            length,
            ..Checksum::default()
        }
    }
}

/// Has the bytes of a source, which belong at an offset of a file, written by `write`, piece by
/// piece: a piece that it checksums before is still in the cache of the core then.
pub(crate) fn pour(
    job: &Job<'_>,
    file: &File,
    offset: u64,
    source: &Source,
    bounce: &mut Vec<u8>,
    mut write: impl FnMut(u64, &[u8]) -> io::Result<()>,
    failed: &dyn Fn(io::Error) -> StorageError,
) -> StorageResult<()> {
    if source.len() >= ASIDE_BYTES {
        job.disk.set_aside(file, offset, source.len());
    }
    let write_unit = |at, unit: &[u8]| {
        job.progress.check()?;
        let mut place = offset + at;
        for block in unit.chunks(PIECE_BYTES) {
            write(place, block).map_err(failed)?;
            place += block.len() as u64;
        }
        if job.is_durable {
            job.disk
                .begin_writeback(file, offset + at, unit.len() as u64);
        }
        job.progress.advance(unit.len() as u64)
    };
    source.units(bounce, write_unit, failed)
}

/// Takes the CRC-32 of zip files as bytes come.
pub(crate) struct Crc32(Digest);

impl Default for Crc32 {
    fn default() -> Self {
        Self(Digest::new(Crc32IsoHdlc))
    }
}

impl Crc32 {
    /// Takes the next bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all bytes that came.
    #[expect(clippy::cast_possible_truncation, reason = "the checksum has 32 bits")]
    pub(crate) fn finish(&self) -> u32 {
        self.0.finalize() as u32
    }
}

/// The CRC-32 of zip files.
#[expect(clippy::cast_possible_truncation, reason = "the checksum has 32 bits")]
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    checksum(Crc32IsoHdlc, bytes) as u32
}

/// Small segments, with the gaps between them, to be written in one call.
#[derive(Default)]
struct Slab {
    offset: u64,
    bytes: Vec<u8>,
}

impl Slab {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }

    /// Returns whether a segment is near enough, and small enough, to be added.
    fn has_room(&self, offset: u64, length: u64) -> bool {
        self.bytes.is_empty()
            || (offset - self.end() <= SLAB_LIMIT
                && offset + length - self.offset <= UNIT_BYTES as u64)
    }

    fn add(
        &mut self,
        writer: &FileWriter<'_>,
        segment: &Segment,
        bounce: &mut Vec<u8>,
    ) -> StorageResult<Written> {
        if self.bytes.is_empty() {
            self.offset = segment.offset;
        }
        let start = usize::try_from(segment.offset - self.offset).unwrap_or(usize::MAX);
        self.bytes.resize(start, 0);
        let slab = &mut self.bytes;
        let extend = |_, unit: &[u8]| {
            slab.extend_from_slice(unit);
            Ok(())
        };
        segment.source.units(bounce, extend, |source| {
            StorageError::io_of(segment.key.clone(), writer.path, source)
        })?;
        let bytes = &self.bytes[start..];
        let mut checksummer = Checksummer::default();
        if writer.job.has_checksums {
            checksummer.update(bytes);
        }
        let crc32 = if writer.takes_crc32 { crc32(bytes) } else { 0 };
        let checksum = writer.finish(checksummer, bytes.len() as u64);
        Ok(Written { checksum, crc32 })
    }

    fn flush(&mut self, writer: &FileWriter<'_>) -> StorageResult<()> {
        writer.write_at(self.offset, &self.bytes)?;
        self.bytes.clear();
        Ok(())
    }
}

/// Makes the file `target`, or replaces it, in one step; what `write` returns.
///
/// A symbolic link to a file stays one. The file gets the job's time, and the permissions of
/// the one that it replaces. Readers that have that one open keep it. Where `write` fails, the target
/// is as it was.
///
/// # Errors
/// The operating system refuses; what `write` returns.
pub fn save_file<T>(
    job: &Job<'_>,
    target: &Path,
    write: impl FnOnce(&mut FileWriter<'_>) -> StorageResult<T>,
) -> StorageResult<T> {
    let target = resolve_file(job.disk, target)?;
    let refused = |source: io::Error| StorageError::io(&target, source);
    let new = NewFile::beside(job.disk, &target).map_err(refused)?;
    let result = write(&mut FileWriter::new(job, new.file(), &target))?;
    job.check(&target)?;
    job.disk
        .set_modified(new.file(), job.stamp_ns)
        .map_err(refused)?;
    if job.is_durable {
        job.disk.sync(new.file()).map_err(refused)?;
    }
    new.put_in_place(&target).map_err(refused)?;
    if job.is_durable {
        sync_parent(job.disk, &target)?;
    }
    Ok(result)
}

fn sync_parent(disk: Disk<'_>, target: &Path) -> StorageResult<()> {
    let Some(parent) = target.parent() else {
        return Ok(());
    };
    disk.open_directory(parent)
        .and_then(|parent| disk.sync(&parent))
        .map_err(|source| StorageError::io(target, source))
}

/// Several files that are written side by side, by one thread each, and committed one after the
/// other: shards, and last the file that names them.
#[derive(Debug)]
pub struct FileSet<'w> {
    job: Job<'w>,
    made: Vec<(PathBuf, PathBuf, File)>,
    _work: IndexMap<PathBuf, WorkArea<'w>>,
}

impl<'w> FileSet<'w> {
    /// Opens new files, to become `targets`.
    ///
    /// # Errors
    /// The operating system refuses; a target is a directory.
    pub fn new(job: Job<'w>, targets: &[PathBuf]) -> StorageResult<Self> {
        let targets: Vec<PathBuf> = targets
            .iter()
            .map(|target| resolve_file(job.disk, target))
            .collect::<StorageResult<_>>()?;
        // One work directory for the files of a folder. It has the name of the last of them, the index,
        // by which the next save finds it: shards can have other names each time.
        let mut work: IndexMap<PathBuf, WorkArea<'w>> = IndexMap::new();
        for target in targets.iter().rev() {
            let folder = target.parent().unwrap_or(target).to_path_buf();
            if !work.contains_key(&folder) {
                work.insert(folder, WorkArea::beside(job.disk, target, targets.len())?);
            }
        }
        let mut made = Vec::with_capacity(targets.len());
        for (number, target) in targets.into_iter().enumerate() {
            let area = &work[target.parent().unwrap_or(&target)];
            let path = area.numbered_path(number);
            let directory = path.parent().unwrap_or(&path).to_path_buf();
            let opened = job
                .disk
                .open_directory(&directory)
                .and_then(|directory| {
                    use std::os::fd::AsFd;
                    job.disk
                        .create(directory.as_fd(), path.file_name().unwrap_or_default())
                })
                .map_err(|source| StorageError::io(&target, source))?;
            made.push((path, target, opened));
        }
        Ok(Self {
            job,
            made,
            _work: work,
        })
    }

    /// The writer of one of the files.
    ///
    /// # Panics
    /// There is no file of this number.
    #[must_use]
    pub fn writer(&self, number: usize) -> FileWriter<'_> {
        let (_, target, file) = &self.made[number];
        FileWriter::new(&self.job, file, target)
    }

    /// Gives a file another target, in the same folder.
    ///
    /// # Errors
    /// It is a directory.
    pub fn redirect(&mut self, number: usize, target: &Path) -> StorageResult<()> {
        self.made[number].1 = resolve_file(self.job.disk, target)?;
        Ok(())
    }

    /// Puts the files in their places, in the order in which they were named.
    ///
    /// # Errors
    /// The operating system refuses: files that were renamed before stay.
    pub fn commit(self) -> StorageResult<()> {
        let Job {
            disk, is_durable, ..
        } = self.job;
        if let Some((_, target, _)) = self.made.first() {
            self.job.check(target)?;
        }
        for (path, target, file) in &self.made {
            let refused = |source: io::Error| StorageError::io(target, source);
            if target.exists() {
                disk.copy_permissions(target, path).map_err(refused)?;
            }
            disk.set_modified(file, self.job.stamp_ns)
                .map_err(refused)?;
            if is_durable {
                disk.sync(file).map_err(refused)?;
            }
        }
        for (path, target, _) in &self.made {
            let refused = |source: io::Error| StorageError::io(target, source);
            disk.rename(path, target, RenameFlags::empty())
                .map_err(refused)?;
            if is_durable {
                sync_parent(disk, target)?;
            }
        }
        Ok(())
    }
}

/// The file that a name leads to, now or once it is made. Directories above it are made.
fn resolve_file(disk: Disk<'_>, target: &Path) -> StorageResult<PathBuf> {
    let refused = |source| StorageError::io(target, source);
    let absolute = std::path::absolute(target).map_err(refused)?;
    match fs::symlink_metadata(&absolute) {
        Ok(_) => {
            let path = match fs::canonicalize(&absolute) {
                Err(_) if fs::symlink_metadata(&absolute).is_err() => {
                    // Another save removed it meanwhile, as a shard that is left over.
                    return resolve_file(disk, &absolute);
                }
                path => path.map_err(refused)?,
            };
            if path.is_dir() {
                return Err(refused(Errno::ISDIR.into()));
            }
            Ok(path)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
                return Err(refused(error));
            };
            disk.make_directories(parent)
                .map_err(|source| StorageError::io(parent, source))?;
            Ok(fs::canonicalize(parent).map_err(refused)?.join(name))
        }
        Err(error) => Err(refused(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::job::Progress;

    #[test]
    fn test_segments_are_written_where_they_belong() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let large = vec![7_u8; 5 << 20];
        let progress = Progress::default();
        let written = save_file(&Job::new(&progress), &path, |writer| {
            writer.take_crc32();
            writer.write_segments(&[
                Segment::new(2, Source::Bytes(b"ab".to_vec())),
                Segment::new(10, Source::Bytes(b"123456789".to_vec())),
                Segment::new(4096, Source::Bytes(large.clone())),
                Segment::new(6 << 20, Source::Bytes(b"z".to_vec())),
            ])
        })
        .unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len(), (6 << 20) + 1);
        assert_eq!(&bytes[..4], b"\0\0ab");
        assert_eq!(&bytes[10..19], b"123456789");
        assert_eq!(bytes[4096..][..5 << 20], large);
        assert_eq!(written[1].crc32, 0xCBF4_3926);
        assert_eq!(written[1].checksum.whole, 0xE306_9283);
        assert_eq!(written[2].checksum, Checksum::of(&large));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn test_a_save_that_fails_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "old").unwrap();
        let progress = Progress::default();
        let result = save_file(&Job::new(&progress), &path, |writer| {
            writer.write_at(0, b"new")?;
            progress.cancel();
            progress.check()
        });
        assert!(matches!(result, Err(StorageError::Cancelled)));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn test_a_link_to_a_file_stays_one() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&path, "old").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let progress = Progress::default();
        save_file(&Job::new(&progress), &link, |writer| {
            writer.write_at(0, b"new")
        })
        .unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }
}
