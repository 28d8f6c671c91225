//! Writing archives.
//!
//! All offsets are known before the first byte is written. Entries of less than 1 MiB, with their
//! headers, are put together in slabs and written with one call; large ones are written from the
//! tensor's memory, and their headers, which need the checksum, after them.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustix::fs::OFlags;

use super::super::file::{Crc32, FileWriter, PIECE_BYTES, Segment, crc32, save_file};
use super::super::io::Disk;
use super::super::job::Job;
use super::super::map::Mapping;
use super::super::plan::Plan;
use super::super::source::Source;
use super::super::sums::{SUMS_FILE, Sum, Summer, Sums};
use super::super::{StorageError, StorageResult, thread_count, threads};
use super::entries::{NewContent, NewEntry, collect, planned};
use super::read::{Archive, is_directory};
use super::records::{
    CRC32_OFFSET, Record, central_record, crc32_of_zeros, dos_date, end_records, local_header,
    pad_bytes,
};
use super::{CENTRAL_BYTES, Method, is_leaf};

/// Entries of fewer bytes go into slabs.
pub(super) const SLAB_LIMIT: u64 = 1 << 20;

/// A slab that is so full is written: it is still in the cache of the core then.
const SLAB_BYTES: usize = 1 << 20;

/// Bytes that are compressed, or read from files, at once.
const WINDOW_BYTES: u64 = 256 << 20;

/// An archive that was just written: of the very file, also where another has its name by now.
#[derive(Debug)]
pub enum Written {
    /// Its leaves are stored as they are.
    Mapped {
        /// All of it.
        mapping: Mapping,
        /// Where the bytes of each leaf of the plan begin; 0 for a leaf of none.
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
    write_archive(job, target, entries, method, |file, records| {
        if method == Method::Stored {
            return map_written(plan, target, file, records, false);
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
    records: &[Record],
    is_shared: bool,
) -> StorageResult<Written> {
    let refused = |source| StorageError::io(target, source);
    let mut offsets = vec![0; plan.leaves.len()];
    for record in records {
        if let Some(leaf) = record.leaf {
            offsets[leaf] = record.header + record.header_bytes() as u64;
        }
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
/// As [`save`].
pub fn create(
    job: &Job<'_>,
    plan: &Plan,
    target: &Path,
    is_reserved: bool,
) -> StorageResult<Written> {
    refuse_directory(target)?;
    // What is to be filled has no sums until it is sealed.
    let job = Job {
        has_sums: false,
        ..*job
    };
    let entries = planned(plan, true);
    write_archive(&job, target, entries, Method::Stored, |file, records| {
        if is_reserved {
            file.metadata()
                .and_then(|metadata| job.disk.reserve(file, metadata.len()))
                .map_err(|source| StorageError::io(target, source))?;
        }
        map_written(plan, target, file, records, true)
    })
}

/// Makes an archive of the directory `source`, of all files but those of this package.
///
/// # Errors
/// As [`save`]; `source` is no saved directory, or `target` is in it.
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

/// Writes an archive; what `finish` makes of the file and its records.
fn write_archive<T>(
    job: &Job<'_>,
    target: &Path,
    entries: Vec<NewEntry>,
    method: Method,
    finish: impl FnOnce(&File, &[Record]) -> StorageResult<T>,
) -> StorageResult<T> {
    job.progress
        .expect(entries.iter().map(|entry| entry.content.len()).sum());
    save_file(job, target, |writer| {
        writer.take_crc32();
        let bytes: u64 = entries.iter().map(|entry| entry.content.len()).sum();
        let room = usize::try_from(bytes).map_or(SLAB_BYTES, |bytes| bytes.min(SLAB_BYTES));
        let mut out = Out {
            job,
            writer: &mut *writer,
            offset: 0,
            slab: Vec::with_capacity(room),
            records: Vec::with_capacity(entries.len() + 1),
            date: dos_date(job.stamp_ns),
            bounce: Vec::new(),
        };
        if method == Method::Stored {
            for entry in entries {
                out.add(entry)?;
            }
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
                out.window(window, method)?;
            }
        }
        if job.has_sums {
            out.sums()?;
        }
        out.directory()?;
        let records = out.records;
        finish(writer.file(), &records)
    })
}

/// An archive on its way.
struct Out<'o, 'w> {
    job: &'o Job<'o>,
    writer: &'o mut FileWriter<'w>,
    /// Where the slab begins.
    offset: u64,
    slab: Vec<u8>,
    records: Vec<Record>,
    /// Time and date.
    date: (u16, u16),
    bounce: Vec<u8>,
}

impl Out<'_, '_> {
    fn end(&self) -> u64 {
        self.offset + self.slab.len() as u64
    }

    fn flush(&mut self) -> StorageResult<()> {
        self.writer.write_at(self.offset, &self.slab)?;
        self.offset = self.end();
        self.slab.clear();
        Ok(())
    }

    /// Adds entries whose leaves are compressed side by side.
    fn window(&mut self, mut entries: Vec<NewEntry>, method: Method) -> StorageResult<()> {
        for entry in &mut entries {
            self.take_small_file(entry)?;
        }
        let packed: Vec<OnceLock<Packed>> = entries.iter().map(|_| OnceLock::new()).collect();
        threads::for_each(entries.len(), thread_count(self.job.threads), |number| {
            let entry = &entries[number];
            if is_leaf(&entry.name) {
                self.job.progress.check()?;
                // Each number is given out once.
                let _ = packed[number].set(compress(self.job.disk, entry, method)?);
            }
            Ok::<_, StorageError>(())
        })?;
        for (entry, packed) in entries.into_iter().zip(packed) {
            let length = entry.content.len();
            match packed.into_inner() {
                Some(packed) => {
                    self.add_packed(entry.name, method, packed)?;
                    self.job.progress.advance(length)?;
                }
                None => self.add(entry)?,
            }
        }
        Ok(())
    }

    /// Adds an entry as it is.
    fn add(&mut self, mut entry: NewEntry) -> StorageResult<()> {
        self.take_small_file(&mut entry)?;
        let length = entry.content.len();
        let is_large = !matches!(entry.content, NewContent::Zeros(_)) && length >= SLAB_LIMIT;
        self.add_stored(entry)?;
        // Large ones say themselves how far they are.
        if is_large {
            return Ok(());
        }
        self.job.progress.advance(length)
    }

    /// Reads what an entry is to hold, where that is a small file.
    fn take_small_file(&self, entry: &mut NewEntry) -> StorageResult<()> {
        if let NewContent::File(path, length) = &entry.content
            && *length < SLAB_LIMIT
        {
            let bytes = self.job.disk.read(path);
            let bytes = bytes.map_err(|source| StorageError::io(path, source))?;
            entry.content = NewContent::Data(Source::Bytes(bytes));
        }
        Ok(())
    }

    fn add_packed(&mut self, name: Arc<str>, method: Method, packed: Packed) -> StorageResult<()> {
        let record = Record {
            header: self.end(),
            method,
            crc32: packed.crc32,
            packed: packed.bytes.len() as u64,
            length: packed.sum.length,
            pad: 0,
            sum: packed.sum,
            leaf: None,
            name,
        };
        local_header(&record, self.date, &mut self.slab);
        if packed.bytes.len() as u64 >= SLAB_LIMIT {
            self.flush()?;
            self.writer.write_at(self.offset, &packed.bytes)?;
            self.offset += packed.bytes.len() as u64;
        } else {
            self.slab.extend(packed.bytes);
            self.flush_full()?;
        }
        self.records.push(record);
        Ok(())
    }

    fn flush_full(&mut self) -> StorageResult<()> {
        if self.slab.len() >= SLAB_BYTES {
            return self.flush();
        }
        Ok(())
    }

    fn add_stored(&mut self, entry: NewEntry) -> StorageResult<()> {
        let length = entry.content.len();
        let header = self.end();
        let pad = if is_leaf(&entry.name) {
            pad_bytes(header, entry.name.len(), length)
        } else {
            0
        };
        let mut record = Record {
            header,
            method: Method::Stored,
            crc32: 0,
            packed: length,
            length,
            pad,
            sum: Sum::default(),
            leaf: entry.leaf,
            name: entry.name,
        };
        let header_bytes = record.header_bytes();
        let source = match entry.content {
            NewContent::Data(source) => source,
            NewContent::Zeros(length) => {
                // The space is a hole: the next entry is written beyond it.
                record.crc32 = crc32_of_zeros(length);
                local_header(&record, self.date, &mut self.slab);
                self.flush()?;
                self.offset += length;
                self.records.push(record);
                return Ok(());
            }
            NewContent::File(path, length) => {
                self.flush()?;
                let place = self.offset + header_bytes as u64;
                let (crc32, sum) = self.copy_file(&path, length, place)?;
                (record.crc32, record.sum) = (crc32, sum);
                return self.end_large(record);
            }
        };
        if length < SLAB_LIMIT {
            // With a checksum of 0, for which there is none yet.
            let start = self.slab.len();
            local_header(&record, self.date, &mut self.slab);
            let slab = &mut self.slab;
            let taken = source.units(&mut self.bounce, |_, unit| {
                slab.extend_from_slice(unit);
                Ok::<_, std::convert::Infallible>(())
            });
            let Ok(()) = taken;
            let bytes = &self.slab[start + header_bytes..];
            record.crc32 = crc32(bytes);
            if self.job.has_sums {
                record.sum = Sum::of(bytes);
            }
            let place = start + CRC32_OFFSET;
            self.slab[place..place + 4].copy_from_slice(&record.crc32.to_le_bytes());
            self.flush_full()?;
        } else {
            self.flush()?;
            let segment = Segment {
                offset: self.offset + header_bytes as u64,
                source,
                key: entry.key,
            };
            let written = self.writer.write_large(&segment, &mut self.bounce)?;
            record.crc32 = written.crc32;
            record.sum = written.sum;
            return self.end_large(record);
        }
        self.records.push(record);
        Ok(())
    }

    /// Writes the header of an entry whose bytes are written, which is where the slab would begin.
    fn end_large(&mut self, record: Record) -> StorageResult<()> {
        let mut header = Vec::with_capacity(record.header_bytes());
        local_header(&record, self.date, &mut header);
        self.writer.write_at(self.offset, &header)?;
        self.offset += record.header_bytes() as u64 + record.length;
        self.records.push(record);
        Ok(())
    }

    /// Copies the bytes of a file to an offset; their sums.
    fn copy_file(&mut self, path: &Path, length: u64, place: u64) -> StorageResult<(u32, Sum)> {
        let Job {
            disk,
            progress,
            has_sums,
            ..
        } = *self.job;
        let mut summer = Summer::default();
        let mut crc32 = Crc32::default();
        let mut place = place;
        let writer = &*self.writer;
        for_each_piece(disk, path, length, &mut self.bounce, |piece| {
            if has_sums {
                summer.update(piece);
            }
            crc32.update(piece);
            writer.write_at(place, piece)?;
            place += piece.len() as u64;
            progress.advance(piece.len() as u64)
        })?;
        Ok((crc32.finish(), summer.finish()))
    }

    /// Adds the sums of all entries so far, as an entry.
    fn sums(&mut self) -> StorageResult<()> {
        let modified_ns = self.job.stamp_ns;
        let files = self.records.iter();
        let text = Sums::new().text_of(files.map(|record| {
            let Record { name, sum, .. } = record;
            (&**name, sum, modified_ns)
        }));
        self.add_stored(NewEntry {
            name: SUMS_FILE.into(),
            key: String::new(),
            leaf: None,
            content: NewContent::Data(Source::Bytes(text.into_bytes())),
        })
    }

    fn directory(&mut self) -> StorageResult<()> {
        let start = self.end();
        // The names and numbers of a record are about as long as the pad of an entry.
        self.slab.reserve(self.records.len() * (2 * CENTRAL_BYTES));
        for record in &self.records {
            central_record(record, self.date, &mut self.slab);
        }
        let size = self.end() - start;
        end_records(self.records.len() as u64, size, start, &mut self.slab);
        self.flush()
    }
}

/// Shows the bytes of a file to `take`, piece by piece. A file that was cut meanwhile is an error, which
/// it would not be through a mapping.
fn for_each_piece(
    disk: Disk<'_>,
    path: &Path,
    length: u64,
    buffer: &mut Vec<u8>,
    mut take: impl FnMut(&[u8]) -> StorageResult<()>,
) -> StorageResult<()> {
    let refused = |source: io::Error| StorageError::io(path, source);
    let file = disk.open(path, OFlags::RDONLY).map_err(refused)?;
    let mut at = 0;
    while at < length {
        let left = usize::try_from(length - at).unwrap_or(usize::MAX);
        buffer.resize(left.min(PIECE_BYTES), 0);
        disk.read_exact_at(&file, buffer, at).map_err(refused)?;
        take(buffer)?;
        at += buffer.len() as u64;
    }
    Ok(())
}

struct Packed {
    bytes: Vec<u8>,
    crc32: u32,
    sum: Sum,
}

fn compress(disk: Disk<'_>, entry: &NewEntry, method: Method) -> StorageResult<Packed> {
    let mut summer = Summer::default();
    let mut crc32 = Crc32::default();
    let refused = |source| StorageError::io_of(entry.key.clone(), Path::new(&*entry.name), source);
    let mut buffer = Vec::new();
    let bytes = method.compress(refused, |out| {
        let mut take = |piece: &[u8]| {
            summer.update(piece);
            crc32.update(piece);
            out.write_all(piece).map_err(refused)
        };
        match &entry.content {
            NewContent::Data(source) => source.units(&mut buffer, |_, unit| take(unit)),
            NewContent::File(path, length) => {
                for_each_piece(disk, path, *length, &mut buffer, take)
            }
            NewContent::Zeros(length) => {
                let zeros = Source::Bytes(vec![0; usize::try_from(*length).unwrap_or(0)]);
                zeros.units(&mut buffer, |_, unit| take(unit))
            }
        }
    })?;
    Ok(Packed {
        bytes,
        crc32: crc32.finish(),
        sum: summer.finish(),
    })
}
