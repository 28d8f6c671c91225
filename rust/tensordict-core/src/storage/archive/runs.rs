//! The entries of an archive, written by several threads.
//!
//! The sizes tell the start of each entry. Small entries that follow each other are a run:
//! a thread puts them together in a slab, with their headers and checksums, while another one
//! writes those that are ready, so that only the copying into the file goes one after the other. Large entries
//! are written from the tensor's memory, and their headers, which need the checksum, after them.
//! Each run comes with its part of the directory and of the text of the checksums.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::OFlags;

use super::super::checksums::{self, Checksum, Checksummer};
use super::super::file::{Crc32, FileWriter, PIECE_BYTES, SLAB_LIMIT, Segment, crc32};
use super::super::io::Disk;
use super::super::job::Job;
use super::super::source::Source;
use super::super::{StorageError, StorageResult, thread_count};
use super::entries::{NewContent, NewEntry};
use super::records::{
    CRC32_OFFSET, Record, central_record, crc32_of_zeros, header_bytes, local_header, pad_bytes,
};
use super::{Method, is_leaf};
use crate::threads::STORAGE;

/// A run ends where its slab would grow beyond this: it is still in the cache of the core when it
/// is written.
const SLAB_BYTES: u64 = 256 << 10;

/// The number of entries that are copied while memory fetches a later one.
const PREFETCH_DISTANCE: usize = 2;

/// Beyond so many bytes the processor sees by itself what comes next.
const FETCHED_BYTES: usize = 2048;

/// An entry with its place.
pub(super) struct Placed<'e> {
    pub(super) entry: &'e NewEntry<'e>,
    /// The offset of its header.
    header: u64,
    /// The offset of its bytes.
    pub(super) data: u64,
    pad: u16,
}

impl Placed<'_> {
    fn end(&self) -> u64 {
        self.data + self.entry.content.stored_len()
    }

    /// The record of the entry, but for its checksum where that is not known yet.
    fn record(&self) -> Record<'_> {
        let content = &self.entry.content;
        let (method, crc32) = match content {
            NewContent::Packed(packed) => (packed.method, packed.crc32),
            _ => (Method::Stored, 0),
        };
        Record {
            name: &self.entry.name,
            header: self.header,
            method,
            crc32,
            packed: content.stored_len(),
            length: content.len(),
            pad: self.pad,
        }
    }

    /// Has the first bytes fetched: they are written soon.
    fn begin(&self) {
        match &self.entry.content {
            NewContent::Data(Source::Memory(memory)) => memory.prefetch(FETCHED_BYTES),
            NewContent::Data(source) => source.begin(),
            _ => {}
        }
    }

    /// Returns whether it is written by itself. Zeros are a hole, and the next entry is beyond it.
    fn is_alone(&self) -> bool {
        let content = &self.entry.content;
        matches!(content, NewContent::Zeros(_)) || content.stored_len() >= SLAB_LIMIT
    }
}

/// The places of entries that follow each other from `start`, and where the last one ends.
pub(super) fn place<'e>(entries: &'e [NewEntry<'e>], start: u64) -> (Vec<Placed<'e>>, u64) {
    let mut placed = Vec::with_capacity(entries.len());
    let mut end = start;
    for entry in entries {
        let is_aligned = is_leaf(&entry.name) && !matches!(entry.content, NewContent::Packed(_));
        let pad = if is_aligned {
            pad_bytes(end, entry.name.len(), entry.content.len())
        } else {
            0
        };
        let one = Placed {
            entry,
            header: end,
            data: end + header_bytes(entry.name.len(), pad) as u64,
            pad,
        };
        end = one.end();
        placed.push(one);
    }
    (placed, end)
}

/// The entries that each thread takes at once.
fn runs(placed: &[Placed<'_>]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut is_open = false;
    for (number, one) in placed.iter().enumerate() {
        let is_alone = one.is_alone();
        match runs.last_mut() {
            Some(run)
                if is_open && !is_alone && one.end() - placed[run.start].header <= SLAB_BYTES =>
            {
                run.end = number + 1;
            }
            _ => runs.push(number..number + 1),
        }
        is_open = !is_alone;
    }
    runs
}

/// Memory that is used again.
#[derive(Default)]
struct Pool(Mutex<Vec<Vec<u8>>>);

impl Pool {
    fn take(&self) -> Vec<u8> {
        self.idle().pop().unwrap_or_default()
    }

    fn give(&self, memory: Vec<u8>) {
        self.idle().push(memory);
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Slabs that are ready, with their offsets.
#[derive(Default)]
struct Queue {
    slabs: Vec<(u64, Vec<u8>)>,
    /// True if a thread writes them.
    is_written: bool,
}

/// From so many slabs that wait on, a thread waits for its turn.
const MAX_WAITING: usize = 4;

/// Writes runs of entries.
pub(super) struct RunWriter<'o, 'w> {
    job: &'o Job<'o>,
    writer: &'o FileWriter<'w>,
    /// Time and date.
    date: (u16, u16),
    /// The time of the checksums, in words.
    modified_ns: String,
    slabs: Pool,
    bounces: Pool,
    queue: Mutex<Queue>,
}

impl<'o, 'w> RunWriter<'o, 'w> {
    pub(super) fn new(job: &'o Job<'o>, writer: &'o FileWriter<'w>, date: (u16, u16)) -> Self {
        Self {
            job,
            writer,
            date,
            modified_ns: job.stamp_ns.to_string(),
            slabs: Pool::default(),
            bounces: Pool::default(),
            queue: Mutex::default(),
        }
    }

    /// Writes entries; their parts of the text of the checksums and of the directory, in order.
    pub(super) fn write(&self, placed: &[Placed<'_>]) -> StorageResult<Vec<(String, Vec<u8>)>> {
        let runs = runs(placed);
        let done: Vec<OnceLock<(String, Vec<u8>)>> = runs.iter().map(|_| OnceLock::new()).collect();
        STORAGE.try_for_each(runs.len(), thread_count(self.job.threads), |number| {
            if let Some(next) = runs.get(number + 1) {
                placed[next.start].begin();
            }
            let parts = self.run(&placed[runs[number].clone()])?;
            // Each number is given out once.
            let _ = done[number].set(parts);
            Ok::<_, StorageError>(())
        })?;
        let done = done.into_iter();
        Ok(done.filter_map(OnceLock::into_inner).collect())
    }

    fn run(&self, run: &[Placed<'_>]) -> StorageResult<(String, Vec<u8>)> {
        let mut checksums = String::with_capacity(if self.job.has_checksums {
            run.len() * 96
        } else {
            0
        });
        let mut directory = Vec::with_capacity(run.len() * 192);
        let mut note = |record: &Record<'_>, checksum: &Checksum| {
            if self.job.has_checksums {
                checksums::push_entry(record.name, checksum, &self.modified_ns, &mut checksums);
            }
            central_record(record, self.date, &mut directory);
        };
        let mut bounce = self.bounces.take();
        if let [one] = run
            && one.is_alone()
        {
            let (record, checksum) = self.write_alone(one, &mut bounce)?;
            note(&record, &checksum);
            self.bounces.give(bounce);
            return Ok((checksums, directory));
        }
        let mut slab = self.slabs.take();
        slab.clear();
        if let (Some(first), Some(last)) = (run.first(), run.last()) {
            // One that grows is copied each time.
            slab.reserve(usize::try_from(last.end() - first.header).unwrap_or(0));
        }
        for (number, one) in run.iter().enumerate() {
            if let Some(later) = run.get(number + PREFETCH_DISTANCE) {
                later.begin();
            }
            let (record, checksum) = self.add(one, &mut slab, &mut bounce)?;
            note(&record, &checksum);
        }
        self.bounces.give(bounce);
        if let Some(first) = run.first() {
            let bytes = run.iter().map(|one| one.entry.content.len()).sum();
            self.job.progress.advance(bytes)?;
            self.hand_in(first.header, slab)?;
        }
        Ok((checksums, directory))
    }

    /// Has a slab written: by this thread, or by the one that writes already, so that nobody waits.
    fn hand_in(&self, offset: u64, slab: Vec<u8>) -> StorageResult<()> {
        let mut queue = self.queue();
        if queue.slabs.len() >= MAX_WAITING {
            drop(queue);
            return self.writer.write_at(offset, &slab);
        }
        queue.slabs.push((offset, slab));
        if queue.is_written {
            return Ok(());
        }
        queue.is_written = true;
        while let Some((offset, slab)) = queue.slabs.pop() {
            drop(queue);
            let written = self.writer.write_at(offset, &slab);
            self.slabs.give(slab);
            queue = self.queue();
            if written.is_err() {
                queue.is_written = false;
                return written;
            }
        }
        queue.is_written = false;
        Ok(())
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an entry at the end of a slab.
    fn add<'p>(
        &self,
        one: &'p Placed<'_>,
        slab: &mut Vec<u8>,
        bounce: &mut Vec<u8>,
    ) -> StorageResult<(Record<'p>, Checksum)> {
        let mut record = one.record();
        let start = slab.len();
        local_header(&record, self.date, slab);
        let data = slab.len();
        match &one.entry.content {
            NewContent::Packed(packed) => {
                slab.extend_from_slice(&packed.bytes);
                return Ok((record, packed.checksum.clone()));
            }
            NewContent::Data(source) => {
                let extend = |_, unit: &[u8]| {
                    slab.extend_from_slice(unit);
                    Ok(())
                };
                let entry = one.entry;
                source.units(bounce, extend, |source| {
                    StorageError::io_of(entry.key.clone(), &*entry.name, source)
                })?;
            }
            NewContent::File(path, length) => {
                for_each_piece(self.job.disk, path, *length, bounce, |piece| {
                    slab.extend_from_slice(piece);
                    Ok(())
                })?;
            }
            NewContent::Zeros(_) => {}
        }
        let bytes = &slab[data..];
        record.crc32 = crc32(bytes);
        let checksum = self.checksum_of(bytes);
        let place = start + CRC32_OFFSET;
        slab[place..place + 4].copy_from_slice(&record.crc32.to_le_bytes());
        Ok((record, checksum))
    }

    fn checksum_of(&self, bytes: &[u8]) -> Checksum {
        if self.job.has_checksums {
            return Checksum::of(bytes);
        }
        Checksum::default()
    }

    /// Writes an entry that is in no slab, and then its header.
    fn write_alone<'p>(
        &self,
        one: &'p Placed<'_>,
        bounce: &mut Vec<u8>,
    ) -> StorageResult<(Record<'p>, Checksum)> {
        let mut record = one.record();
        let checksum = match &one.entry.content {
            NewContent::Packed(packed) => {
                self.job.progress.advance(packed.checksum.length)?;
                self.writer.write_at(one.data, &packed.bytes)?;
                packed.checksum.clone()
            }
            NewContent::Zeros(length) => {
                self.job.progress.advance(*length)?;
                record.crc32 = crc32_of_zeros(*length);
                Checksum::default()
            }
            NewContent::Data(source) => {
                let segment = Segment {
                    offset: one.data,
                    source: source.clone(),
                    key: one.entry.key.clone(),
                };
                let written = self.writer.write_large(&segment, bounce)?;
                record.crc32 = written.crc32;
                written.checksum
            }
            NewContent::File(path, length) => {
                let (crc32, checksum) = self.copy_file(path, *length, one.data, bounce)?;
                record.crc32 = crc32;
                checksum
            }
        };
        let mut header = Vec::with_capacity(record.header_bytes());
        local_header(&record, self.date, &mut header);
        self.writer.write_at(one.header, &header)?;
        Ok((record, checksum))
    }

    /// Copies the bytes of a file to an offset; their checksums.
    fn copy_file(
        &self,
        path: &Path,
        length: u64,
        place: u64,
        bounce: &mut Vec<u8>,
    ) -> StorageResult<(u32, Checksum)> {
        let mut checksummer = Checksummer::default();
        let mut crc32 = Crc32::default();
        let mut place = place;
        for_each_piece(self.job.disk, path, length, bounce, |piece| {
            if self.job.has_checksums {
                checksummer.update(piece);
            }
            crc32.update(piece);
            self.writer.write_at(place, piece)?;
            place += piece.len() as u64;
            self.job.progress.advance(piece.len() as u64)
        })?;
        Ok((crc32.finish(), checksummer.finish()))
    }
}

/// Shows the bytes of a file to `take`, piece by piece. A file that was cut meanwhile is an error, which
/// it would not be through a mapping.
pub(super) fn for_each_piece(
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
