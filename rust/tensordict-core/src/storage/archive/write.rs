//! Writing archives.
//!
//! All offsets are known before the first byte is written. Entries of less than 1 MiB, with their
//! headers, are put together in slabs and written with one call; large ones are written from the
//! tensor's memory, and their headers, which need the checksum, after them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{OFlags, RenameFlags};

use super::super::commit::{keep_length, refuse_symlink};
use super::super::file::{FileWriter, PIECE_BYTES, Segment, combine_crc32, next_crc32, save_file};
use super::super::io::Disk;
use super::super::job::Job;
use super::super::map::Mapping;
use super::super::plan::{Content, FileContent, Plan};
use super::super::region::Region;
use super::super::replace::replace_file;
use super::super::source::Source;
use super::super::sums::{FileSum, SUMS_FILE, Sum, Summer, Sums};
use super::super::work::{WorkArea, is_area};
use super::super::{METADATA_FILE, StorageError, StorageResult, thread_count, threads};
use super::read::{Archive, is_directory};
use super::verify::sum_of;
use super::{
    CENTRAL_SIGNATURE, END_SIGNATURE, END64_BYTES, END64_LOCATOR_SIGNATURE, END64_SIGNATURE,
    LOCAL_BYTES, LOCAL_SIGNATURE, Method, PAD_ID, SEE_SIZES, SIZES_BYTES, SIZES_ID, UTF8_FLAG,
    is_leaf,
};

/// Leaves from this size on begin at a page.
const PAGE_LIMIT: u64 = 64 << 10;
const PAGE_BYTES: u64 = 4096;
const LINE_BYTES: u64 = 64;

/// Entries of fewer bytes go into slabs.
const SLAB_LIMIT: u64 = 1 << 20;

/// A slab that is so full is written: it is still in the cache of the core then.
const SLAB_BYTES: usize = 1 << 20;

/// Bytes that are compressed, or read from files, at once.
const WINDOW_BYTES: u64 = 256 << 20;

/// What an entry is to hold.
struct NewEntry {
    name: String,
    /// The key as messages show it, of a leaf that is written by itself.
    key: String,
    /// The leaf of the plan, where it is one.
    leaf: Option<usize>,
    content: NewContent,
}

enum NewContent {
    Data(Source),
    /// Zeros, for which no space is taken.
    Zeros(u64),
    /// A file of this length.
    File(PathBuf, u64),
}

impl NewContent {
    fn len(&self) -> u64 {
        match self {
            Self::Data(source) => source.len(),
            Self::Zeros(length) | Self::File(_, length) => *length,
        }
    }
}

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

/// An entry that is written.
struct Record {
    name: String,
    header: u64,
    method: Method,
    crc32: u32,
    packed: u64,
    length: u64,
    pad: u16,
    sum: Sum,
    leaf: Option<usize>,
}

impl Record {
    /// The bytes of its local header.
    fn header_bytes(&self) -> usize {
        LOCAL_BYTES + self.name.len() + usize::from(self.pad) + SIZES_BYTES
    }
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

/// Makes an archive of zeros for `plan`, which takes no space until it is stored to; the archive.
///
/// # Errors
/// As [`save`].
pub fn create(job: &Job<'_>, plan: &Plan, target: &Path) -> StorageResult<Written> {
    refuse_directory(target)?;
    // What is to be filled has no sums until it is sealed.
    let job = Job {
        has_sums: false,
        ..*job
    };
    let entries = planned(plan, true);
    write_archive(&job, target, entries, Method::Stored, |file, records| {
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

/// The files of a plan as entries, in the order of archives: of each level the metadata, then the other
/// files by name, then the levels below by name.
fn planned(plan: &Plan, is_sparse: bool) -> Vec<NewEntry> {
    let mut levels: Vec<usize> = (0..plan.levels.len()).collect();
    levels.sort_by(|&left, &right| plan.level_path(left).cmp(plan.level_path(right)));
    let mut ranks = vec![0; levels.len()];
    for (rank, level) in levels.into_iter().enumerate() {
        ranks[level] = rank;
    }
    let mut files: Vec<_> = plan
        .files
        .iter()
        .map(|file| {
            let name = file.name.as_str();
            (ranks[file.level], name != METADATA_FILE, name, file)
        })
        .collect();
    files.sort_by_key(|&(rank, is_other, name, _)| (rank, is_other, name));
    files
        .into_iter()
        .map(|(.., file)| {
            let mut key = String::new();
            let mut leaf_number = None;
            let content = match &file.content {
                FileContent::Bytes(bytes) => {
                    // The plan holds the bytes while it is written.
                    NewContent::Data(Source::Memory(Region::of(bytes)))
                }
                FileContent::Leaf(number) => {
                    let leaf = &plan.leaves[*number];
                    leaf_number = Some(*number);
                    if leaf.length >= SLAB_LIMIT {
                        key = plan.display_leaf(leaf);
                    }
                    match &leaf.content {
                        _ if is_sparse => NewContent::Zeros(leaf.length),
                        Content::Data(source) => NewContent::Data(source.clone()),
                        Content::Link { memory, .. } => NewContent::Data(Source::Memory(*memory)),
                        Content::Absent => NewContent::Zeros(leaf.length),
                    }
                }
            };
            NewEntry {
                name: plan.file_path(file).to_string_lossy().into_owned(),
                key,
                leaf: leaf_number,
                content,
            }
        })
        .collect()
}

/// The files of a directory and of those below it, in the order of archives.
fn collect(source: &Path) -> StorageResult<Vec<NewEntry>> {
    let mut entries = Vec::new();
    // Those that wait are kept in a list, so that depth costs no stack.
    let mut waiting = vec![(source.to_path_buf(), String::new())];
    while let Some((directory, prefix)) = waiting.pop() {
        let refused = |source: io::Error| StorageError::io(&directory, source);
        let (mut files, mut directories) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(&directory).map_err(refused)? {
            let path = entry.map_err(refused)?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let Some(name) = name.map(str::to_owned) else {
                let text = "names in archives are UTF-8, and this one is not";
                let error = io::Error::new(io::ErrorKind::InvalidInput, text);
                return Err(StorageError::io(path, error));
            };
            let metadata = fs::metadata(&path).map_err(|source| StorageError::io(&path, source))?;
            let full = format!("{prefix}{name}");
            if metadata.is_dir() {
                if !is_area(&name) {
                    directories.push((path, format!("{full}/")));
                }
            } else if metadata.is_file() && full != SUMS_FILE {
                files.push((name != METADATA_FILE, full, path, metadata.len()));
            }
        }
        files.sort();
        entries.extend(files.into_iter().map(|(_, name, path, length)| NewEntry {
            name,
            key: String::new(),
            leaf: None,
            content: NewContent::File(path, length),
        }));
        // The first is taken first.
        directories.sort_by(|left, right| right.cmp(left));
        waiting.extend(directories);
    }
    Ok(entries)
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

    fn window(&mut self, entries: Vec<NewEntry>, method: Method) -> StorageResult<()> {
        let mut ready: Vec<(NewEntry, Method)> = Vec::with_capacity(entries.len());
        for mut entry in entries {
            if let NewContent::File(path, length) = &entry.content
                && *length < SLAB_LIMIT
            {
                let bytes = self.job.disk.read(path);
                let bytes = bytes.map_err(|source| StorageError::io(path, source))?;
                entry.content = NewContent::Data(Source::Bytes(bytes));
            }
            let method = if is_leaf(&entry.name) {
                method
            } else {
                Method::Stored
            };
            ready.push((entry, method));
        }
        let packed: Vec<OnceLock<Packed>> = ready.iter().map(|_| OnceLock::new()).collect();
        if method != Method::Stored {
            threads::for_each(ready.len(), thread_count(self.job.threads), |number| {
                let (entry, method) = &ready[number];
                if *method != Method::Stored {
                    self.job.progress.check()?;
                    // Each number is given out once.
                    let _ = packed[number].set(compress(self.job.disk, entry, *method)?);
                }
                Ok::<_, StorageError>(())
            })?;
        }
        for ((entry, method), packed) in ready.into_iter().zip(packed) {
            let length = entry.content.len();
            let is_large = !matches!(entry.content, NewContent::Zeros(_)) && length >= SLAB_LIMIT;
            match packed.into_inner() {
                Some(packed) => self.add_packed(entry.name, method, packed)?,
                // Large ones say themselves how far they are.
                None if is_large => {
                    self.add_stored(entry)?;
                    continue;
                }
                None => self.add_stored(entry)?,
            }
            self.job.progress.advance(length)?;
        }
        Ok(())
    }

    fn add_packed(&mut self, name: String, method: Method, packed: Packed) -> StorageResult<()> {
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
            record.crc32 = next_crc32(0, bytes);
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
        let mut crc32 = 0;
        let mut place = place;
        let writer = &*self.writer;
        for_each_piece(disk, path, length, &mut self.bounce, |piece| {
            if has_sums {
                summer.update(piece);
            }
            crc32 = next_crc32(crc32, piece);
            writer.write_at(place, piece)?;
            place += piece.len() as u64;
            progress.advance(piece.len() as u64)
        })?;
        Ok((crc32, summer.finish()))
    }

    /// Adds the sums of all entries so far, as an entry.
    fn sums(&mut self) -> StorageResult<()> {
        let mut sums = Sums::new();
        for record in &mut self.records {
            let sum = std::mem::take(&mut record.sum);
            let modified_ns = self.job.stamp_ns;
            sums.files
                .insert(record.name.clone(), FileSum { sum, modified_ns });
        }
        self.add_stored(NewEntry {
            name: SUMS_FILE.to_owned(),
            key: String::new(),
            leaf: None,
            content: NewContent::Data(Source::Bytes(sums.to_text().into_bytes())),
        })
    }

    fn directory(&mut self) -> StorageResult<()> {
        let start = self.end();
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
    let mut crc32 = 0;
    let refused = |source| StorageError::io_of(entry.key.clone(), Path::new(&entry.name), source);
    let mut buffer = Vec::new();
    let bytes = method.compress(refused, |out| {
        let mut take = |piece: &[u8]| {
            summer.update(piece);
            crc32 = next_crc32(crc32, piece);
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
        crc32,
        sum: summer.finish(),
    })
}

/// The CRC-32 of zeros, without going through them.
fn crc32_of_zeros(length: u64) -> u32 {
    // Of 1, 2, 4 ... zeros; those that the bits of the length name are put together.
    let (mut piece, mut piece_bytes) = (next_crc32(0, &[0]), 1);
    let mut crc32 = 0;
    let mut left = length;
    while left > 0 {
        if left & 1 == 1 {
            crc32 = combine_crc32(crc32, piece, piece_bytes);
        }
        piece = combine_crc32(piece, piece, piece_bytes);
        piece_bytes *= 2;
        left >>= 1;
    }
    crc32
}

/// The bytes of the block that aligns an entry, its id and length included.
fn pad_bytes(header: u64, name_bytes: usize, length: u64) -> u16 {
    let step = if length >= PAGE_LIMIT {
        PAGE_BYTES
    } else {
        LINE_BYTES
    };
    let end = header + (LOCAL_BYTES + name_bytes + SIZES_BYTES) as u64;
    let mut pad = end.next_multiple_of(step) - end;
    if (1..4).contains(&pad) {
        pad += step;
    }
    u16::try_from(pad).expect("a page is short")
}

fn flags(record: &Record) -> u16 {
    let names = if record.name.is_ascii() { 0 } else { UTF8_FLAG };
    names | record.method.flags()
}

fn put16(value: u16, out: &mut Vec<u8>) {
    out.extend(value.to_le_bytes());
}

fn put32(value: u32, out: &mut Vec<u8>) {
    out.extend(value.to_le_bytes());
}

fn put64(value: u64, out: &mut Vec<u8>) {
    out.extend(value.to_le_bytes());
}

fn put_pad(pad: u16, out: &mut Vec<u8>) {
    if pad > 0 {
        put16(PAD_ID, out);
        put16(pad - 4, out);
        out.resize(out.len() + usize::from(pad) - 4, 0);
    }
}

/// Where the checksum is in a local header.
const CRC32_OFFSET: usize = 14;

fn local_header(record: &Record, date: (u16, u16), out: &mut Vec<u8>) {
    let extra_bytes = usize::from(record.pad) + SIZES_BYTES;
    put32(LOCAL_SIGNATURE, out);
    put_fields(record, date, (SEE_SIZES, SEE_SIZES), extra_bytes, out);
    out.extend(record.name.as_bytes());
    put_pad(record.pad, out);
    put16(SIZES_ID, out);
    put16(16, out);
    put64(record.length, out);
    put64(record.packed, out);
}

/// What a local header and a record of the directory have in common: `sizes` are those of the packed
/// bytes and of the bytes.
fn put_fields(
    record: &Record,
    date: (u16, u16),
    sizes: (u32, u32),
    extra_bytes: usize,
    out: &mut Vec<u8>,
) {
    put16(record.method.version(), out);
    put16(flags(record), out);
    put16(record.method.number(), out);
    put16(date.0, out);
    put16(date.1, out);
    put32(record.crc32, out);
    put32(sizes.0, out);
    put32(sizes.1, out);
    put16(short(record.name.len()), out);
    put16(short(extra_bytes), out);
}

fn short(length: usize) -> u16 {
    u16::try_from(length).expect("names and blocks are short")
}

fn central_record(record: &Record, date: (u16, u16), out: &mut Vec<u8>) {
    let mut sizes = Vec::new();
    let mut field = |value: u64| match u32::try_from(value) {
        Ok(value) if value != SEE_SIZES => value,
        _ => {
            put64(value, &mut sizes);
            SEE_SIZES
        }
    };
    let (length, packed, header) = (
        field(record.length),
        field(record.packed),
        field(record.header),
    );
    let sizes_bytes = if sizes.is_empty() { 0 } else { 4 + sizes.len() };
    let extra_bytes = usize::from(record.pad) + sizes_bytes;
    put32(CENTRAL_SIGNATURE, out);
    // Made by: Unix.
    put16(record.method.version() | 3 << 8, out);
    put_fields(record, date, (packed, length), extra_bytes, out);
    // No comment, the first disk, no attributes but those of Unix: -rw-r--r--.
    put16(0, out);
    put16(0, out);
    put16(0, out);
    put32(0o644 << 16, out);
    put32(header, out);
    out.extend(record.name.as_bytes());
    put_pad(record.pad, out);
    if !sizes.is_empty() {
        put16(SIZES_ID, out);
        put16(short(sizes.len()), out);
        out.extend(sizes);
    }
}

fn end_records(count: u64, size: u64, start: u64, out: &mut Vec<u8>) {
    let short_count = u16::try_from(count).unwrap_or(u16::MAX);
    let short_size = u32::try_from(size).unwrap_or(u32::MAX);
    let short_start = u32::try_from(start).unwrap_or(u32::MAX);
    if short_count == u16::MAX || short_size == u32::MAX || short_start == u32::MAX {
        put32(END64_SIGNATURE, out);
        put64(END64_BYTES as u64 - 12, out);
        put16(Method::Stored.version() | 3 << 8, out);
        put16(Method::Stored.version(), out);
        put32(0, out);
        put32(0, out);
        put64(count, out);
        put64(count, out);
        put64(size, out);
        put64(start, out);
        put32(END64_LOCATOR_SIGNATURE, out);
        put32(0, out);
        put64(start + size, out);
        put32(1, out);
    }
    put32(END_SIGNATURE, out);
    put16(0, out);
    put16(0, out);
    put16(short_count, out);
    put16(short_count, out);
    put32(short_size, out);
    put32(short_start, out);
    put16(0, out);
}

/// Time and date as zip files have them, in UTC.
fn dos_date(time_ns: i64) -> (u16, u16) {
    let seconds = time_ns.div_euclid(1_000_000_000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Years that begin in March, so that the leap day is the last.
    let from_march = days + 719_468;
    let era = from_march.div_euclid(146_097);
    let day_of_era = from_march.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let years = year - 1980;
    if !(0..128).contains(&years) {
        // The first date that there is.
        return (0, 1 << 5 | 1);
    }
    let time = ((second / 3600) << 11) | ((second / 60 % 60) << 5) | (second % 60 / 2);
    let date = (years << 9) | (month << 5) | day;
    (
        u16::try_from(time).unwrap_or(0),
        u16::try_from(date).unwrap_or(0),
    )
}

/// Writes the files of an archive into the directory `target`, over those that are there.
///
/// # Errors
/// The archive is damaged, or names a file outside of `target`; the operating system refuses. A target
/// that was not there is then not there.
pub fn unpack(job: &Job<'_>, path: &Path, target: &Path) -> StorageResult<()> {
    let archive = Archive::open(path)?;
    for name in archive.entries().keys() {
        let is_inside = name
            .split('/')
            .all(|part| !part.is_empty() && part != "." && part != ".." && !part.contains('\0'));
        if !is_inside {
            return Err(archive.damaged(name, "its name leads out of the directory"));
        }
    }
    let made = job.disk.make_directories(target);
    let made = made.map_err(|source| StorageError::io(target, source))?;
    let mut unpacking = Unpacking {
        job,
        archive: &archive,
        target,
        directories: made,
        placed: Vec::new(),
    };
    let is_new = !unpacking.directories.is_empty();
    let done = unpacking.run();
    if done.is_err() && is_new {
        for file in &unpacking.placed {
            let _ = job.disk.remove_file(file);
        }
    }
    if done.is_err() {
        job.disk.remove_empty(&unpacking.directories);
    }
    done
}

struct Unpacking<'u> {
    job: &'u Job<'u>,
    archive: &'u Archive,
    target: &'u Path,
    /// Those that were made.
    directories: Vec<PathBuf>,
    /// The files that are in their places.
    placed: Vec<PathBuf>,
}

impl Unpacking<'_> {
    fn run(&mut self) -> StorageResult<()> {
        let Self {
            job,
            archive,
            target,
            ..
        } = *self;
        let names: Vec<&String> = archive
            .entries()
            .keys()
            .filter(|name| *name != SUMS_FILE)
            .collect();
        // What a process leaves here that is killed, the next one sweeps.
        let work = WorkArea::inside(job.disk, target)?;
        let found: Vec<OnceLock<Sum>> = names.iter().map(|_| OnceLock::new()).collect();
        threads::for_each(names.len(), thread_count(job.threads), |number| {
            let sum = unpack_entry(job, archive, names[number], &work.numbered_path(number))?;
            // Each number is given out once.
            let _ = found[number].set(sum);
            Ok::<_, StorageError>(())
        })?;
        self.make_directories(&names)?;
        // The root's metadata comes last: without it there is no save.
        let (last, others): (Vec<usize>, Vec<usize>) =
            (0..names.len()).partition(|&number| names[number] == METADATA_FILE);
        for number in others {
            self.place(&work.numbered_path(number), names[number])?;
        }
        let mut sums = Sums::new();
        for (name, sum) in names.iter().zip(found) {
            let modified_ns = job.stamp_ns;
            let sum = sum.into_inner().unwrap_or_default();
            sums.files
                .insert((*name).clone(), FileSum { sum, modified_ns });
        }
        if job.has_sums {
            let place = target.join(SUMS_FILE);
            replace_file(job.disk, &place, sums.to_text().as_bytes())?;
            self.placed.push(place);
        }
        for number in last {
            self.place(&work.numbered_path(number), names[number])?;
        }
        Ok(())
    }

    /// Makes the directories that files go to, where they are missing.
    fn make_directories(&mut self, names: &[&String]) -> StorageResult<()> {
        let directories: BTreeSet<&Path> = names
            .iter()
            .flat_map(|name| Path::new(name.as_str()).ancestors().skip(1))
            .filter(|directory| !directory.as_os_str().is_empty())
            .collect();
        // Those above come first in this order.
        for directory in directories {
            let path = self.target.join(directory);
            refuse_symlink(&path)?;
            let made = self.job.disk.make_directories(&path);
            self.directories
                .extend(made.map_err(|source| StorageError::io(&path, source))?);
        }
        Ok(())
    }

    fn place(&mut self, from: &Path, name: &str) -> StorageResult<()> {
        let place = self.target.join(name);
        let disk = self.job.disk;
        keep_length(disk, from, &place)
            .and_then(|()| disk.rename(from, &place, RenameFlags::empty()))
            .map_err(|source| StorageError::io(&place, source))?;
        self.placed.push(place);
        Ok(())
    }
}

/// Writes an entry to the file `path`; its sum.
fn unpack_entry(job: &Job<'_>, archive: &Archive, name: &str, path: &Path) -> StorageResult<Sum> {
    let entry = &archive.entries()[name];
    let refused = |source: io::Error| StorageError::io(path, source);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let file = job.disk.open(path, flags).map_err(refused)?;
    let (mut at, mut failure) = (0, None);
    let mut summer = Summer::default();
    let crc32 = archive.stream(name, entry, |piece| {
        summer.update(piece);
        if failure.is_none()
            && let Err(error) = job.disk.write_all_at(&file, piece, at)
        {
            failure = Some(error);
        }
        at += piece.len() as u64;
    })?;
    if let Some(error) = failure {
        return Err(refused(error));
    }
    if crc32 != entry.crc32 {
        return Err(archive.damaged(name, "its bytes are not those of its checksum"));
    }
    job.disk
        .set_modified(&file, job.stamp_ns)
        .map_err(refused)?;
    Ok(summer.finish())
}

/// Takes the checksums of an archive anew, in place, after it was stored to through a mapping; of
/// how many entries.
///
/// # Errors
/// It is no archive; it is damaged in a way that stores do not explain; it is not writable.
pub fn refresh(job: &Job<'_>, path: &Path) -> StorageResult<usize> {
    let refused = |source: io::Error| StorageError::io(path, source);
    let opened = job.disk.open(path, OFlags::RDWR).map_err(refused)?;
    let archive = Archive::of_file(path, opened)?;
    let file = archive.file();
    // Stores that wait in memory come first, so that a later one gives a newer time.
    job.disk.sync(file).map_err(refused)?;
    let old = archive.sums().unwrap_or_default();
    let names: Vec<&String> = archive
        .entries()
        .keys()
        .filter(|name| *name != SUMS_FILE)
        .collect();
    let found: Vec<OnceLock<(Sum, u32)>> = names.iter().map(|_| OnceLock::new()).collect();
    threads::for_each(names.len(), thread_count(job.threads), |number| {
        let name = names[number];
        let sum = sum_of(&archive, name, &archive.entries()[name])?;
        // Each number is given out once.
        let _ = found[number].set(sum);
        Ok::<_, StorageError>(())
    })?;
    let set_crc32 = |name: &str, crc32: u32| -> StorageResult<()> {
        let entry = &archive.entries()[name];
        let bytes = crc32.to_le_bytes();
        // The local header is checked before it is written to.
        archive.offset(name, entry)?;
        job.disk
            .write_all_at(file, &bytes, entry.header + 14)
            .and_then(|()| job.disk.write_all_at(file, &bytes, entry.record + 16))
            .map_err(refused)
    };
    let mut sums = Sums {
        generation: old.generation,
        ..Sums::default()
    };
    let found: Vec<(Sum, u32)> = found
        .into_iter()
        .map(|found| found.into_inner().unwrap_or_default())
        .collect();
    // Nothing is written before all of it was looked at.
    for (&name, (_, crc32)) in names.iter().zip(&found) {
        let entry = &archive.entries()[name];
        if *crc32 != entry.crc32 && entry.method != 0 {
            return Err(archive.damaged(name, "its bytes are not those of its checksum"));
        }
    }
    for (name, (sum, crc32)) in names.into_iter().zip(found) {
        if crc32 != archive.entries()[name].crc32 {
            set_crc32(name, crc32)?;
        }
        let modified_ns = job.stamp_ns;
        sums.files
            .insert(name.clone(), FileSum { sum, modified_ns });
    }
    if let Some(entry) = archive.entries().get(SUMS_FILE) {
        // The text is as long as before: the files, their sizes and the digits of a time are.
        let mut text = sums.to_text().into_bytes();
        let length = usize::try_from(entry.length).unwrap_or(usize::MAX);
        if text.len() <= length && entry.method == 0 {
            text.resize(length, b' ');
            let offset = archive.offset(SUMS_FILE, entry)?;
            job.disk
                .write_all_at(file, &text, offset)
                .map_err(refused)?;
            set_crc32(SUMS_FILE, next_crc32(0, &text))?;
        }
    }
    job.disk.set_modified(file, job.stamp_ns).map_err(refused)?;
    if job.is_durable {
        job.disk.sync(file).map_err(refused)?;
    }
    Ok(sums.files.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_crc32_of_zeros() {
        for length in [0, 1, 2, 3, 100, 70_001] {
            assert_eq!(
                crc32_of_zeros(length as u64),
                next_crc32(0, &vec![0; length])
            );
        }
    }

    #[test]
    fn test_dos_date() {
        // 2026-11-21 22:30:34
        let (time, date) = dos_date(1_795_300_234_000_000_000);
        assert_eq!((time >> 11, time >> 5 & 63, time & 31), (22, 30, 17));
        assert_eq!((date >> 9, date >> 5 & 15, date & 31), (46, 11, 21));
        assert_eq!(dos_date(0), (0, 33));
    }

    #[test]
    fn test_leaves_begin_at_multiples() {
        for header in 0..200 {
            for (length, step) in [(5, 64), (70_000, 4096)] {
                let pad = pad_bytes(header, 8, length);
                let start = header + (LOCAL_BYTES + 8 + SIZES_BYTES) as u64 + u64::from(pad);
                assert_eq!(start % step, 0);
                assert!(pad == 0 || pad >= 4);
            }
        }
    }
}
