//! Writing archives.
//!
//! Entries that are stored as they are have their offsets before the first byte is written, those
//! that are compressed once they are; how they are written is said in [`runs`](super::runs).

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use super::super::checksums::{CHECKSUMS_FILE, Checksummer, Checksums};
use super::super::file::{Crc32, FileWriter, save_file};
use super::super::job::Job;
use super::super::map::Mapping;
use super::super::plan::Plan;
use super::super::{StorageError, StorageResult, thread_count};
use super::entries::{NewContent, NewEntry, Packed, collect, planned};
use super::read::{Archive, is_directory};
use super::records::{Record, central_record, dos_date, end_records, local_header};
use super::runs::{RunWriter, for_each_piece, place};
use super::{Method, is_leaf};
use crate::threads::STORAGE;

/// Bytes that are compressed, or read from files, at once.
const WINDOW_BYTES: u64 = 256 << 20;

/// An archive that was just written: of the very file, also where another has its name by now.
#[derive(Debug)]
pub enum Written {
    /// Its leaves are stored as they are.
    Mapped {
        /// All of it.
        mapping: Mapping,
        /// The offsets of the leaves of the plan; 0 for a leaf without bytes.
        offsets: Vec<u64>,
    },
    /// Its leaves are compressed.
    Packed(Archive),
}

/// Saves `plan` as the archive `target`; the archive, whatever takes its place later.
///
/// # Errors
/// The operating system refuses, the job was cancelled, the target is a directory. What was there is
/// then as it was.
pub fn save(job: &Job<'_>, plan: &Plan, target: &Path, method: Method) -> StorageResult<Written> {
    refuse_directory(target)?;
    let entries = planned(plan, false);
    write_archive(job, target, entries, method, |file, places| {
        if method == Method::Stored {
            return map_written(plan, target, file, &places, false);
        }
        let file = file.try_clone();
        let file = file.map_err(|source| StorageError::io(target, source))?;
        Archive::of_file(target, file).map(Written::Packed)
    })
}

fn map_written(
    plan: &Plan,
    target: &Path,
    file: &File,
    places: &[(usize, u64)],
    is_shared: bool,
) -> StorageResult<Written> {
    let refused = |source| StorageError::io(target, source);
    let mut offsets = vec![0; plan.leaves.len()];
    for &(leaf, offset) in places {
        offsets[leaf] = offset;
    }
    let metadata = file.metadata().map_err(refused)?;
    let length = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
    let mapping = Mapping::new(file, &metadata, length, is_shared).map_err(refused)?;
    Ok(Written::Mapped { mapping, offsets })
}

/// Makes an archive of zeros for `plan`, which takes no space until it is stored to unless it
/// `is_reserved`; the archive.
///
/// # Errors
/// Those of [`save`].
pub fn create(
    job: &Job<'_>,
    plan: &Plan,
    target: &Path,
    is_reserved: bool,
) -> StorageResult<Written> {
    refuse_directory(target)?;
    // An archive that is to be filled has no checksums until it is sealed.
    let job = Job {
        has_checksums: false,
        ..*job
    };
    let entries = planned(plan, true);
    write_archive(&job, target, entries, Method::Stored, |file, places| {
        if is_reserved {
            file.metadata()
                .and_then(|metadata| job.disk.reserve(file, metadata.len()))
                .map_err(|source| StorageError::io(target, source))?;
        }
        map_written(plan, target, file, &places, true)
    })
}

/// Makes an archive of the directory `source`, of all files but those of this package.
///
/// # Errors
/// Those of [`save`]; `source` is not a saved directory, or `target` is in it.
pub fn pack(job: &Job<'_>, source: &Path, target: &Path, method: Method) -> StorageResult<()> {
    refuse_directory(target)?;
    write_archive(job, target, collect(source)?, method, |_, _| Ok(()))
}

fn refuse_directory(target: &Path) -> StorageResult<()> {
    if is_directory(target) {
        return Err(StorageError::IsDirectory {
            path: target.to_path_buf(),
        });
    }
    Ok(())
}

/// Writes an archive; what `finish` makes of the file and of where the bytes of each leaf begin.
fn write_archive<T>(
    job: &Job<'_>,
    target: &Path,
    entries: Vec<NewEntry<'_>>,
    method: Method,
    finish: impl FnOnce(&File, Vec<(usize, u64)>) -> StorageResult<T>,
) -> StorageResult<T> {
    job.progress
        .expect(entries.iter().map(|entry| entry.content.len()).sum());
    save_file(job, target, |writer| {
        writer.take_crc32();
        let mut out = Out {
            job,
            writer,
            offset: 0,
            date: dos_date(job.stamp_ns),
            count: 0,
            places: Vec::with_capacity(entries.len()),
            checksums: Vec::new(),
            directory: Vec::new(),
        };
        if method == Method::Stored {
            out.write(&entries)?;
        } else {
            let mut entries = entries.into_iter().peekable();
            while entries.peek().is_some() {
                let mut window = Vec::new();
                let mut bytes = 0;
                while let Some(entry) = entries.peek() {
                    bytes += entry.content.len();
                    if !window.is_empty() && bytes > WINDOW_BYTES {
                        break;
                    }
                    window.extend(entries.next());
                }
                compress_all(job, &mut window, method)?;
                out.write(&window)?;
            }
        }
        let places = std::mem::take(&mut out.places);
        out.end()?;
        finish(writer.file(), places)
    })
}

/// An archive on its way.
struct Out<'o, 'w> {
    job: &'o Job<'o>,
    writer: &'o FileWriter<'w>,
    /// The offset of the next entry.
    offset: u64,
    /// Time and date.
    date: (u16, u16),
    /// The number of entries that are written.
    count: u64,
    /// The offsets of the bytes of leaves.
    places: Vec<(usize, u64)>,
    /// Parts of the text of the checksums.
    checksums: Vec<String>,
    /// Parts of the directory.
    directory: Vec<Vec<u8>>,
}

impl Out<'_, '_> {
    /// Writes entries, one after the other in the file.
    fn write(&mut self, entries: &[NewEntry<'_>]) -> StorageResult<()> {
        let (placed, end) = place(entries, self.offset);
        self.offset = end;
        self.count += placed.len() as u64;
        self.places.extend(
            placed
                .iter()
                .filter_map(|one| Some((one.entry.leaf?, one.data))),
        );
        let writer = RunWriter::new(self.job, self.writer, self.date);
        for (checksums, directory) in writer.write(&placed)? {
            self.checksums.push(checksums);
            self.directory.push(directory);
        }
        Ok(())
    }

    /// Writes what follows the entries: that of their checksums, and the directory. The parts are written as
    /// they are, which is cheaper than putting them together.
    fn end(self) -> StorageResult<()> {
        let mut count = self.count;
        let entries: Vec<&str> = self.checksums.iter().map(String::as_str).collect();
        let text = Checksums::new().parts_around(&entries);
        let mut header = Vec::new();
        let mut last = Vec::new();
        let mut parts: Vec<&[u8]> = Vec::new();
        if self.job.has_checksums {
            let length = text.iter().map(|part| part.len() as u64).sum();
            let mut crc32 = Crc32::default();
            for part in &text {
                crc32.update(part.as_bytes());
            }
            let record = Record {
                name: CHECKSUMS_FILE,
                header: self.offset,
                method: Method::Stored,
                crc32: crc32.finish(),
                packed: length,
                length,
                pad: 0,
            };
            local_header(&record, self.date, &mut header);
            central_record(&record, self.date, &mut last);
            count += 1;
            parts.push(&header);
            parts.extend(text.iter().map(|part| part.as_bytes()));
        }
        let start = bytes_of(&parts);
        let directory = self.directory.iter().chain([&last]);
        parts.extend(directory.map(Vec::as_slice));
        let size = bytes_of(&parts) - start;
        let mut records = Vec::new();
        end_records(count, size, self.offset + start, &mut records);
        parts.push(&records);
        self.writer.write_parts_at(self.offset, &parts)
    }
}

fn bytes_of(parts: &[&[u8]]) -> u64 {
    parts.iter().map(|part| part.len() as u64).sum()
}

/// Compresses the leaves among the entries, side by side.
fn compress_all(job: &Job<'_>, entries: &mut [NewEntry<'_>], method: Method) -> StorageResult<()> {
    let packed: Vec<OnceLock<Packed>> = entries.iter().map(|_| OnceLock::new()).collect();
    STORAGE.try_for_each(entries.len(), thread_count(job.threads), |number| {
        let entry = &entries[number];
        if is_leaf(&entry.name) {
            job.progress.check()?;
            // Each number is given out once.
            let _ = packed[number].set(compress(job, entry, method)?);
        }
        Ok::<_, StorageError>(())
    })?;
    for (entry, packed) in entries.iter_mut().zip(packed) {
        if let Some(packed) = packed.into_inner() {
            entry.content = NewContent::Packed(Box::new(packed));
        }
    }
    Ok(())
}

fn compress(job: &Job<'_>, entry: &NewEntry<'_>, method: Method) -> StorageResult<Packed> {
    let mut checksummer = Checksummer::default();
    let mut crc32 = Crc32::default();
    let refused =
        |source: io::Error| StorageError::io_of(entry.key.clone(), Path::new(&*entry.name), source);
    let mut buffer = Vec::new();
    let bytes = method.compress(refused, |out| {
        let mut take = |piece: &[u8]| {
            checksummer.update(piece);
            crc32.update(piece);
            out.write_all(piece).map_err(refused)
        };
        match &entry.content {
            NewContent::Data(source) => source.units(&mut buffer, |_, unit| take(unit), refused),
            NewContent::File(path, length) => {
                for_each_piece(job.disk, path, *length, &mut buffer, take)
            }
            NewContent::Zeros(length) => {
                let zeros = [0; 1 << 12];
                let mut left = *length;
                while left > 0 {
                    let piece =
                        usize::try_from(left).map_or(zeros.len(), |left| left.min(zeros.len()));
                    take(&zeros[..piece])?;
                    left -= piece as u64;
                }
                Ok(())
            }
            NewContent::Packed(packed) => take(&packed.bytes),
        }
    })?;
    Ok(Packed {
        method,
        bytes,
        crc32: crc32.finish(),
        checksum: checksummer.finish(),
    })
}
