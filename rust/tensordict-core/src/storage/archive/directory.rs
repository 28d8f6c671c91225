//! The directory of an archive: what entries there are, and where.

use std::fs::File;
use std::io::{self, BufReader, Read};

use foldhash::quality::RandomState;

use super::super::Named;
use super::super::io::Disk;
use super::{
    CENTRAL_BYTES, CENTRAL_SIGNATURE, END_BYTES, END_SIGNATURE, END64_BYTES, END64_LOCATOR_BYTES,
    END64_LOCATOR_SIGNATURE, END64_SIGNATURE, SEE_SIZES, SIZES_ID,
};

/// An entry, as the central directory has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The offset of its local header.
    pub header: u64,
    /// The bytes in the archive.
    pub packed: u64,
    /// The bytes of the file.
    pub length: u64,
    /// The CRC-32 of the file.
    pub crc32: u32,
    /// The number of the method of compression.
    pub method: u16,
    pub(super) flags: u16,
    /// The offset of its record in the central directory.
    pub(super) record: u64,
}

/// Part of a file, as a stream.
pub(super) struct Range<'f> {
    pub(super) file: &'f File,
    pub(super) at: u64,
    pub(super) left: u64,
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

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The entries of a zip file, and where its directory begins.
pub(super) fn read_directory(file: &File) -> io::Result<(Named<Entry>, u64)> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(invalid("it is not a regular file"));
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
        .ok_or_else(|| invalid("it is not a zip file"))?;
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
                return Err(invalid("its 64-bit end record is invalid"));
            }
            count = u64_at(&record, 32);
            size = u64_at(&record, 40);
            start = u64_at(&record, 48);
        }
    }
    if start.checked_add(size).is_none_or(|end| end > end_at) {
        return Err(invalid("its directory is not there"));
    }
    let room = count.min(size / CENTRAL_BYTES as u64);
    let mut entries = Named::with_hasher(RandomState::default());
    entries
        .try_reserve(usize::try_from(room).unwrap_or(usize::MAX))
        .map_err(|_| invalid("its directory does not fit into memory"))?;
    let range = Range {
        file,
        at: start,
        left: size,
    };
    let mut records = BufReader::with_capacity(PIECE_BYTES, range);
    let mut record = Vec::new();
    let mut at = start;
    for _ in 0..count {
        let name = next_record(&mut records, &mut record)?;
        let entry = entry_of(&record, name.len(), at);
        at += record.len() as u64;
        if name.ends_with('/') {
            continue;
        }
        if entries.insert(name, entry).is_some() {
            return Err(invalid("two of its entries have one name"));
        }
    }
    Ok((entries, start))
}

/// Bytes of the directory that are read at once.
const PIECE_BYTES: usize = 64 << 10;

/// Reads a record of the directory into `record`; the name in it.
fn next_record(records: &mut impl Read, record: &mut Vec<u8>) -> io::Result<String> {
    let cut = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => invalid("its directory is cut"),
        _ => error,
    };
    record.resize(CENTRAL_BYTES, 0);
    records.read_exact(record).map_err(cut)?;
    if u32_at(record, 0) != CENTRAL_SIGNATURE {
        return Err(invalid("its directory is cut"));
    }
    let further = [28, 30, 32].map(|at| usize::from(u16_at(record, at)));
    let name_end = CENTRAL_BYTES + further[0];
    record.resize(name_end + further[1] + further[2], 0);
    records
        .read_exact(&mut record[CENTRAL_BYTES..])
        .map_err(cut)?;
    std::str::from_utf8(&record[CENTRAL_BYTES..name_end])
        .map(str::to_owned)
        .map_err(|_| invalid("a name in it is not UTF-8"))
}

/// The entry of a record, which begins at `at` of the archive.
fn entry_of(record: &[u8], name_bytes: usize, at: u64) -> Entry {
    let mut fields = [24, 20, 42].map(|at| (u32_at(record, at), u64::from(u32_at(record, at))));
    let extra_start = CENTRAL_BYTES + name_bytes;
    let extra_bytes = usize::from(u16_at(record, 30));
    let mut extra = &record[extra_start..extra_start + extra_bytes];
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
    let [length, packed, header] = fields.map(|(_, value)| value);
    Entry {
        header,
        packed,
        length,
        crc32: u32_at(record, 16),
        method: u16_at(record, 10),
        flags: u16_at(record, 8),
        record: at,
    }
}
