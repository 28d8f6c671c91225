//! Reading archives.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use foldhash::quality::RandomState;
use rustix::fs::OFlags;

use super::super::io::{Disk, open_to_read};
use super::super::map::{FileIdentity, Mapping, relative};
use super::super::read::{Files, Leaf};
use super::super::sums::{FileSum, SUMS_FILE, Sum, Sums};
use super::super::verify::{Expected, Finding, Outcome, Report, check, judge};
use super::super::{
    METADATA_FILE, Named, StorageError, StorageResult, dtype, file, thread_count, threads,
};
use super::{
    CENTRAL_BYTES, CENTRAL_SIGNATURE, ENCRYPTED_FLAG, END_BYTES, END_SIGNATURE, END64_BYTES,
    END64_LOCATOR_BYTES, END64_LOCATOR_SIGNATURE, END64_SIGNATURE, LOCAL_BYTES, LOCAL_SIGNATURE,
    Method, SEE_SIZES, SIZES_ID,
};

/// Leaves that a thread looks up before it asks for more.
const LOCATE_BATCH: usize = 256;

/// So much memory is taken at once for an entry that is stored as it is.
const SURE_BYTES: usize = 64 << 20;

/// Bytes of an archive that are read at once where headers are looked at.
const WINDOW_BYTES: usize = 32 << 10;

/// An entry, as the central directory has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where its local header begins.
    pub header: u64,
    /// The bytes in the archive.
    pub packed: u64,
    /// The bytes of the file.
    pub length: u64,
    /// The CRC-32 of the file.
    pub crc32: u32,
    /// The number of the method of compression.
    pub method: u16,
    flags: u16,
    /// Where its record in the central directory begins.
    pub(super) record: u64,
}

/// An open archive.
#[derive(Debug)]
pub struct Archive {
    path: PathBuf,
    /// The name that paths of entries begin with.
    root: PathBuf,
    file: Arc<File>,
    entries: Named<Entry>,
    /// Where the central directory begins: entries end before.
    directory: u64,
}

impl Archive {
    /// Opens an archive and reads its directory; nothing is written.
    ///
    /// # Errors
    /// There is no such file, or it is no archive.
    pub fn open(path: &Path) -> StorageResult<Self> {
        Self::of_file(
            path,
            open_to_read(path).map_err(|source| StorageError::io(path, source))?,
        )
    }

    /// Opens an archive that is to be written to.
    ///
    /// # Errors
    /// As [`Archive::open`]; the file is not writable.
    pub fn open_writable(path: &Path) -> StorageResult<Self> {
        let file = Disk::REAL.open(path, OFlags::RDWR | OFlags::NONBLOCK);
        Self::of_file(path, file.map_err(|source| StorageError::io(path, source))?)
    }

    pub(super) fn of_file(path: &Path, file: File) -> StorageResult<Self> {
        let not_archive = |reason: String| StorageError::NotArchive {
            path: path.to_path_buf(),
            reason,
        };
        let (entries, directory) = read_directory(&file).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => not_archive(error.to_string()),
            _ => StorageError::io(path, error),
        })?;
        if !entries.contains_key(METADATA_FILE) {
            return Err(not_archive(format!(
                "it is a zip file without a '{METADATA_FILE}' at the top"
            )));
        }
        let mut root = path.as_os_str().to_owned();
        root.push("::");
        Ok(Self {
            path: path.to_path_buf(),
            root: PathBuf::from(root),
            file: Arc::new(file),
            entries,
            directory,
        })
    }

    /// The archive.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What paths of entries begin with, in messages and for [`Files`].
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The open file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Whether the name leads to the archive that is open.
    #[must_use]
    pub fn is_current(&self) -> bool {
        FileIdentity::of_open(&self.file)
            .is_some_and(|opened| FileIdentity::of_path(&self.path) == Some(opened))
    }

    /// The entries, in the order of the directory.
    #[must_use]
    pub fn entries(&self) -> &Named<Entry> {
        &self.entries
    }

    /// The name of an entry, of a path that begins with [`Archive::root`].
    #[must_use]
    pub fn name_of<'p>(&self, path: &'p Path) -> Option<&'p str> {
        relative(path, &self.root)?.to_str()
    }

    /// Where the bytes of an entry begin.
    ///
    /// # Errors
    /// Its local header is damaged, speaks of another entry, or reaches beyond the end.
    pub fn offset(&self, name: &str, entry: &Entry) -> StorageResult<u64> {
        self.offset_in(&mut Window::default(), name, entry)
    }

    /// [`Archive::offset`], by what is read of the archive so far, or further.
    fn offset_in(&self, window: &mut Window, name: &str, entry: &Entry) -> StorageResult<u64> {
        let damaged = |reason: &str| self.damaged(name, reason);
        if entry.flags & ENCRYPTED_FLAG != 0 {
            return Err(damaged("it is encrypted"));
        }
        let Some(header) = window.read(&self.file, entry.header, LOCAL_BYTES + name.len()) else {
            return Err(damaged("its header is not there"));
        };
        if u32_at(header, 0) != LOCAL_SIGNATURE {
            return Err(damaged("its header is none"));
        }
        if usize::from(u16_at(header, 26)) != name.len() || &header[30..] != name.as_bytes() {
            return Err(damaged("its header names another entry"));
        }
        let offset =
            entry.header + (LOCAL_BYTES + name.len()) as u64 + u64::from(u16_at(header, 28));
        let end = offset.checked_add(entry.packed);
        if end.is_none_or(|end| end > self.directory) {
            return Err(damaged("it ends beyond the archive"));
        }
        Ok(offset)
    }

    /// The bytes of an entry, checked against its CRC-32 where they are compressed.
    ///
    /// # Errors
    /// The entry is damaged, or compressed by a method that is not known.
    pub fn read_entry(&self, name: &str, entry: &Entry) -> StorageResult<Vec<u8>> {
        let length = usize::try_from(entry.length).unwrap_or(usize::MAX);
        if entry.method == 0 && entry.packed == entry.length && length <= SURE_BYTES {
            let offset = self.offset(name, entry)?;
            let mut bytes = vec![0; length];
            Disk::REAL
                .read_exact_at(&self.file, &mut bytes, offset)
                .map_err(|error| self.damaged(name, &error.to_string()))?;
            return Ok(bytes);
        }
        let mut bytes = Vec::new();
        if entry.method != 0 || entry.packed == entry.length {
            bytes.try_reserve_exact(length.min(1 << 20)).ok();
        }
        let crc32 = self.stream(name, entry, |piece| bytes.extend_from_slice(piece))?;
        if entry.method != 0 && crc32 != entry.crc32 {
            return Err(self.damaged(name, "its bytes are not those of its checksum"));
        }
        Ok(bytes)
    }

    /// Shows the bytes of an entry to `take`, in order; their CRC-32.
    pub(super) fn stream(
        &self,
        name: &str,
        entry: &Entry,
        mut take: impl FnMut(&[u8]),
    ) -> StorageResult<u32> {
        let method = Method::from_number(entry.method)
            .ok_or_else(|| self.damaged(name, "its method of compression is not known"))?;
        let range = Range {
            file: &self.file,
            at: self.offset(name, entry)?,
            left: entry.packed,
        };
        let broken = |error: io::Error| self.damaged(name, &error.to_string());
        let mut reader = method
            .decompress(BufReader::with_capacity(1 << 18, range), entry.length)
            .map_err(broken)?;
        let mut buffer = vec![0; 1 << 18];
        let (mut length, mut crc32) = (0_u64, 0);
        loop {
            let read = match reader.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read.map_err(broken)?,
            };
            length += read as u64;
            if length > entry.length {
                return Err(self.damaged(name, "it is longer than the directory says"));
            }
            if read == 0 {
                break;
            }
            crc32 = file::next_crc32(crc32, &buffer[..read]);
            take(&buffer[..read]);
        }
        if length != entry.length {
            return Err(self.damaged(name, "it is shorter than the directory says"));
        }
        Ok(crc32)
    }

    /// The sums that the archive has; none for one of the published release.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn sums(&self) -> StorageResult<Sums> {
        let Some(entry) = self.entries.get(SUMS_FILE) else {
            return Ok(Sums::default());
        };
        let bytes = self.read_entry(SUMS_FILE, entry)?;
        String::from_utf8(bytes)
            .map_err(|_| "they are no text".to_owned())
            .and_then(|text| Sums::parse(&text))
            .map_err(|reason| self.damaged(SUMS_FILE, &reason))
    }

    pub(super) fn damaged(&self, name: &str, reason: &str) -> StorageError {
        StorageError::BadEntry {
            path: self.path.clone(),
            name: name.to_owned(),
            reason: reason.to_owned(),
        }
    }
}

/// A piece of an archive in memory: the headers of small leaves lie near each other.
#[derive(Default)]
struct Window {
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    /// The `length` bytes at `offset`; None where the file ends before.
    fn read(&mut self, file: &File, offset: u64, length: usize) -> Option<&[u8]> {
        let end = self.start + self.bytes.len() as u64;
        let is_there = offset >= self.start && offset.checked_add(length as u64)? <= end;
        if !is_there {
            self.start = offset;
            self.bytes.resize(length.max(WINDOW_BYTES), 0);
            let read = Disk::REAL
                .read_at_most(file, &mut self.bytes, offset)
                .ok()?;
            self.bytes.truncate(read);
            if read < length {
                return None;
            }
        }
        let at = usize::try_from(offset - self.start).ok()?;
        self.bytes.get(at..at + length)
    }
}

/// Where the bytes of a leaf of an archive are.
#[derive(Debug)]
pub enum LeafBytes {
    /// At an offset of the archive, which is mapped.
    At(u64),
    /// In memory, aligned for any item; the leaf is a prefix.
    Copy(Vec<u128>),
    /// Nowhere: there are none.
    Nothing,
}

impl Archive {
    /// Finds the bytes of leaves: in the file where they can be mapped, otherwise in memory.
    ///
    /// # Errors
    /// An entry is missing, too short or damaged; for `is_writable` one that cannot be mapped.
    pub fn locate(
        &self,
        leaves: &[Leaf],
        is_writable: bool,
        threads: usize,
    ) -> StorageResult<Vec<LeafBytes>> {
        let found: Vec<OnceLock<LeafBytes>> = leaves.iter().map(|_| OnceLock::new()).collect();
        let batches = leaves.len().div_ceil(LOCATE_BATCH);
        threads::for_each(batches, thread_count(threads), |batch| {
            let start = batch * LOCATE_BATCH;
            let end = (start + LOCATE_BATCH).min(leaves.len());
            let mut window = Window::default();
            for (leaf, slot) in leaves[start..end].iter().zip(&found[start..end]) {
                // Each leaf is in one batch.
                let _ = slot.set(self.locate_leaf(&mut window, leaf, is_writable)?);
            }
            Ok::<_, StorageError>(())
        })?;
        Ok(found.into_iter().filter_map(OnceLock::into_inner).collect())
    }

    fn locate_leaf(
        &self,
        window: &mut Window,
        leaf: &Leaf,
        is_writable: bool,
    ) -> StorageResult<LeafBytes> {
        if leaf.meta.is_nested && is_writable {
            return Err(self.not_writable(format!(
                "the entry {} is a nested tensor, which is copied when it is loaded",
                leaf.display()
            )));
        }
        if leaf.length == 0 {
            return Ok(LeafBytes::Nothing);
        }
        let (name, entry) = self.leaf_entry(leaf, &leaf.path)?;
        if entry.length < leaf.length {
            return Err(StorageError::ShortFile {
                path: leaf.path.clone(),
                key: leaf.display(),
                found: entry.length,
                expected: leaf.length,
            });
        }
        let item_size = dtype::item_size(&leaf.meta.dtype).unwrap_or(1);
        if entry.method == 0 {
            let offset = self.offset_in(window, name, entry)?;
            if entry.packed < leaf.length {
                return Err(self.damaged(name, "it is shorter than the directory says"));
            }
            if offset % item_size == 0 {
                return Ok(LeafBytes::At(offset));
            }
        }
        if is_writable {
            let state = if entry.method == 0 {
                "not aligned"
            } else {
                "compressed"
            };
            return Err(self.not_writable(format!(
                "entry '{name}' is {state}, so in-place writes cannot propagate to the file. \
                 Re-save the archive without compression to make it writable."
            )));
        }
        self.copy(name, entry, leaf.length).map(LeafBytes::Copy)
    }

    /// The first `length` bytes of an entry, in memory.
    fn copy(&self, name: &str, entry: &Entry, length: u64) -> StorageResult<Vec<u128>> {
        let too_large = || self.damaged(name, "it is larger than the memory");
        let length = usize::try_from(length).map_err(|_| too_large())?;
        let mut memory: Vec<u128> = Vec::new();
        let items = length.div_ceil(size_of::<u128>());
        // Memory is taken as the bytes come: what the directory says of their number may be a lie.
        let sure = items.min(usize::try_from(entry.packed).unwrap_or(items));
        memory.try_reserve_exact(sure).map_err(|_| too_large())?;
        let (mut at, mut has_room) = (0, true);
        let crc32 = self.stream(name, entry, |piece| {
            let most = piece.len().min(length - at);
            let filled = (at + most).div_ceil(size_of::<u128>());
            has_room = has_room && memory.try_reserve(filled - memory.len()).is_ok();
            if has_room {
                memory.resize(filled, 0);
                let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut memory);
                bytes[at..at + most].copy_from_slice(&piece[..most]);
                at += most;
            }
        })?;
        if !has_room {
            return Err(too_large());
        }
        if entry.method != 0 && crc32 != entry.crc32 {
            return Err(self.damaged(name, "its bytes are not those of its checksum"));
        }
        Ok(memory)
    }

    /// The sizes of a nested tensor's components, row by row, and its items, in memory.
    ///
    /// # Errors
    /// An entry is missing or damaged.
    pub fn nested(&self, leaf: &Leaf) -> StorageResult<(Vec<i64>, Vec<u128>)> {
        let bad = |reason: &str| self.damaged(&leaf.display(), reason);
        let cells = dtype::tensor_bytes(&leaf.meta.shape, 1).ok_or_else(|| bad("its table"))?;
        let mut table = Vec::new();
        if cells > 0 {
            let path = leaf.table_path();
            let (name, entry) = self.leaf_entry(leaf, &path)?;
            let bytes = self.read_entry(name, entry)?;
            table = bytes
                .as_chunks::<8>()
                .0
                .iter()
                .map(|cell| i64::from_le_bytes(*cell))
                .collect();
        }
        if table.len() as u64 != cells {
            return Err(bad("its table of sizes is not of its shape"));
        }
        let columns = usize::try_from(leaf.meta.shape.get(1).copied().unwrap_or(0)).unwrap_or(0);
        let items = if columns == 0 {
            leaf.meta
                .shape
                .first()
                .and_then(|&rows| u64::try_from(rows).ok())
        } else {
            table.chunks(columns).try_fold(0_u64, |sum, row| {
                dtype::tensor_bytes(row, 1).and_then(|items| sum.checked_add(items))
            })
        };
        let item_size = dtype::item_size(&leaf.meta.dtype).unwrap_or(1);
        let length = items
            .and_then(|items| items.checked_mul(item_size))
            .ok_or_else(|| bad("its table holds no sizes"))?;
        if length == 0 {
            return Ok((table, Vec::new()));
        }
        let (name, entry) = self.leaf_entry(leaf, &leaf.path)?;
        if entry.length < length {
            return Err(bad("it is shorter than its table of sizes says"));
        }
        Ok((table, self.copy(name, entry, length)?))
    }

    fn leaf_entry<'p>(&self, leaf: &Leaf, path: &'p Path) -> StorageResult<(&'p str, &Entry)> {
        self.name_of(path)
            .and_then(|name| Some((name, self.entries.get(name)?)))
            .ok_or_else(|| StorageError::MissingFile {
                path: path.to_path_buf(),
                key: leaf.display(),
            })
    }

    fn not_writable(&self, reason: String) -> StorageError {
        StorageError::NotWritable {
            path: self.path.clone(),
            reason,
        }
    }

    /// Maps all of the archive.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn map(&self, is_shared: bool) -> StorageResult<Mapping> {
        let refused = |source| StorageError::io(&self.path, source);
        let metadata = self.file.metadata().map_err(refused)?;
        let length = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
        Mapping::new(&self.file, &metadata, length, is_shared).map_err(refused)
    }
}

impl Files for Archive {
    fn read(&self, path: &Path) -> StorageResult<Vec<u8>> {
        let found = self
            .name_of(path)
            .and_then(|name| Some((name, self.entries.get(name)?)));
        match found {
            Some((name, entry)) => self.read_entry(name, entry),
            None => Err(StorageError::io(
                path,
                io::Error::from(io::ErrorKind::NotFound),
            )),
        }
    }

    fn exists(&self, path: &Path) -> bool {
        let Some(name) = self.name_of(path) else {
            return false;
        };
        self.entries.contains_key(name)
            || self
                .entries
                .contains_key(&format!("{name}/{METADATA_FILE}"))
    }
}

/// Part of a file, as a stream.
struct Range<'f> {
    file: &'f File,
    at: u64,
    left: u64,
}

impl Read for Range<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        use std::os::unix::fs::FileExt;
        let most = usize::try_from(self.left).unwrap_or(usize::MAX);
        let most = buffer.len().min(most);
        let read = self.file.read_at(&mut buffer[..most], self.at)?;
        self.at += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}

fn invalid(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.to_owned())
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The entries of a zip file, and where its directory begins.
fn read_directory(file: &File) -> io::Result<(Named<Entry>, u64)> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(invalid("it is no regular file"));
    }
    let length = metadata.len();
    // The end record is the last, but for a comment.
    let tail_bytes = length.min((END_BYTES + usize::from(u16::MAX)) as u64);
    let mut tail = vec![0; usize::try_from(tail_bytes).unwrap_or(0)];
    Disk::REAL.read_exact_at(file, &mut tail, length - tail_bytes)?;
    let end = (0..(tail.len() + 1).saturating_sub(END_BYTES))
        .rev()
        .find(|&at| {
            u32_at(&tail, at) == END_SIGNATURE
                && at + END_BYTES + usize::from(u16_at(&tail, at + 20)) <= tail.len()
        })
        .ok_or_else(|| invalid("it is no zip file"))?;
    let record = &tail[end..];
    let mut count = u64::from(u16_at(record, 10));
    let mut size = u64::from(u32_at(record, 12));
    let mut start = u64::from(u32_at(record, 16));
    let end_at = length - tail_bytes + end as u64;
    if let Some(at) = end_at.checked_sub(END64_LOCATOR_BYTES as u64) {
        let mut locator = [0; END64_LOCATOR_BYTES];
        Disk::REAL.read_exact_at(file, &mut locator, at)?;
        if u32_at(&locator, 0) == END64_LOCATOR_SIGNATURE {
            let mut record = [0; END64_BYTES];
            Disk::REAL
                .read_exact_at(file, &mut record, u64_at(&locator, 8))
                .map_err(|_| invalid("its 64-bit end record is not there"))?;
            if u32_at(&record, 0) != END64_SIGNATURE {
                return Err(invalid("its 64-bit end record is none"));
            }
            count = u64_at(&record, 32);
            size = u64_at(&record, 40);
            start = u64_at(&record, 48);
        }
    }
    if start.checked_add(size).is_none_or(|end| end > end_at) {
        return Err(invalid("its directory is not there"));
    }
    let mut bytes = vec![0; usize::try_from(size).map_err(|_| invalid("it is too large"))?];
    Disk::REAL.read_exact_at(file, &mut bytes, start)?;
    let room = usize::try_from(count)
        .unwrap_or(0)
        .min(bytes.len() / CENTRAL_BYTES);
    let mut entries = Named::with_capacity_and_hasher(room, RandomState::default());
    let mut at = 0;
    for _ in 0..count {
        let (name, mut entry, next) = read_record(&bytes, at)?;
        entry.record = start + at as u64;
        at = next;
        if name.ends_with('/') {
            continue;
        }
        if entries.insert(name, entry).is_some() {
            return Err(invalid("two of its entries have one name"));
        }
    }
    Ok((entries, start))
}

/// A record of the central directory, and where the next one begins.
fn read_record(bytes: &[u8], at: usize) -> io::Result<(String, Entry, usize)> {
    let cut = || invalid("its directory is cut");
    let record = bytes.get(at..).ok_or_else(cut)?;
    if record.len() < CENTRAL_BYTES || u32_at(record, 0) != CENTRAL_SIGNATURE {
        return Err(cut());
    }
    let name_bytes = usize::from(u16_at(record, 28));
    let extra_bytes = usize::from(u16_at(record, 30));
    let comment_bytes = usize::from(u16_at(record, 32));
    let name_end = CENTRAL_BYTES + name_bytes;
    let extra_end = name_end + extra_bytes;
    let end = extra_end + comment_bytes;
    if record.len() < end {
        return Err(cut());
    }
    let name = std::str::from_utf8(&record[CENTRAL_BYTES..name_end])
        .map_err(|_| invalid("a name in it is not UTF-8"))?;
    let mut fields = [
        (u32_at(record, 24), 0_u64),
        (u32_at(record, 20), 0),
        (u32_at(record, 42), 0),
    ];
    for field in &mut fields {
        field.1 = u64::from(field.0);
    }
    let mut extra = &record[name_end..extra_end];
    while extra.len() >= 4 {
        let (id, length) = (u16_at(extra, 0), usize::from(u16_at(extra, 2)));
        let Some(block) = extra.get(4..4 + length) else {
            break;
        };
        if id == SIZES_ID {
            // Only the fields that say so are there, in this order.
            let mut values = block.chunks_exact(8);
            for field in &mut fields {
                if field.0 == SEE_SIZES
                    && let Some(value) = values.next()
                {
                    field.1 = u64_at(value, 0);
                }
            }
        }
        extra = &extra[4 + length..];
    }
    let entry = Entry {
        header: fields[2].1,
        packed: fields[1].1,
        length: fields[0].1,
        crc32: u32_at(record, 16),
        method: u16_at(record, 10),
        flags: u16_at(record, 8),
        record: 0,
    };
    Ok((name.to_owned(), entry, at + end))
}

/// Compares the entries of an archive with its sums, or where it has none with their CRC-32.
///
/// # Errors
/// It is no archive; its sums cannot be read.
pub(crate) fn verify(file: File, path: &Path, threads: usize) -> StorageResult<Report> {
    let archive = Archive::of_file(path, file)?;
    let sums = archive.sums()?;
    let entries: Vec<(&String, &Entry)> = archive
        .entries
        .iter()
        .filter(|(name, _)| *name != SUMS_FILE)
        .collect();
    let found: Vec<OnceLock<Finding>> = entries.iter().map(|_| OnceLock::new()).collect();
    let done = threads::for_each(entries.len(), thread_count(threads), |number| {
        let (name, entry) = entries[number];
        // Each number is given out once.
        let _ = found[number].set(check_entry(&archive, name, entry, sums.files.get(name)));
        Ok::<_, std::convert::Infallible>(())
    });
    let Ok(()) = done;
    let mut findings: Vec<Finding> = found.into_iter().filter_map(OnceLock::into_inner).collect();
    for name in sums.files.keys() {
        if !archive.entries.contains_key(name) {
            findings.push(Finding {
                key: key_of(name),
                path: archive.root.join(name),
                outcome: Outcome::Damaged,
                detail: "the entry is missing".to_owned(),
            });
        }
    }
    Ok(Report {
        layout: "archive",
        generation: sums.generation,
        findings,
    })
}

/// The key of a leaf's entry, as far as names tell; empty for other files.
fn key_of(name: &str) -> String {
    let Some(stem) = name.strip_suffix(".memmap") else {
        return String::new();
    };
    let keys: Vec<&str> = stem.split('/').collect();
    super::super::names::display_key(&keys)
}

fn check_entry(archive: &Archive, name: &str, entry: &Entry, sum: Option<&FileSum>) -> Finding {
    let finding = |outcome, detail: String| Finding {
        key: key_of(name),
        path: archive.root.join(name),
        outcome,
        detail,
    };
    let damaged = |error: StorageError| finding(Outcome::Damaged, error.to_string());
    match sum {
        Some(sum) if entry.method == 0 => match archive.offset(name, entry) {
            Ok(offset) => {
                let mut found = check(&Expected {
                    key: key_of(name),
                    path: archive.path.clone(),
                    file: archive.file.clone(),
                    offset,
                    sum: sum.clone(),
                });
                found.path = archive.root.join(name);
                found
            }
            Err(error) => damaged(error),
        },
        sum => match archive.stream(name, entry, |_| {}) {
            Ok(crc32) if crc32 == entry.crc32 => finding(Outcome::Good, String::new()),
            Ok(_) => {
                let outcome = match sum {
                    _ if entry.method != 0 => Outcome::Damaged,
                    Some(sum) => judge(&archive.file, sum.modified_ns),
                    None => Outcome::Unclear,
                };
                let detail = "its bytes are not those of its checksum".to_owned();
                finding(outcome, detail)
            }
            Err(error) => damaged(error),
        },
    }
}

/// The sum of an entry, for the archive as it is now.
pub(super) fn sum_of(archive: &Archive, name: &str, entry: &Entry) -> StorageResult<(Sum, u32)> {
    let mut summer = super::super::sums::Summer::default();
    let crc32 = archive.stream(name, entry, |piece| summer.update(piece))?;
    Ok((summer.finish(), crc32))
}

/// Whether a path leads to a directory.
pub(super) fn is_directory(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_dir())
}
