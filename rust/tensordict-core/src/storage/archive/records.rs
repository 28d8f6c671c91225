//! The headers and records of archives, byte by byte.

use super::super::file::crc32;
use super::{
    CENTRAL_BYTES, CENTRAL_SIGNATURE, END_SIGNATURE, END64_BYTES, END64_LOCATOR_SIGNATURE,
    END64_SIGNATURE, LOCAL_BYTES, LOCAL_SIGNATURE, Method, PAD_ID, SEE_SIZES, SIZES_BYTES,
    SIZES_ID, UTF8_FLAG,
};

/// Leaves from this size on begin at a page.
const PAGE_LIMIT: u64 = 64 << 10;
const PAGE_BYTES: u64 = 4096;
const LINE_BYTES: u64 = 64;

/// An entry that is written.
pub(super) struct Record<'n> {
    pub(super) name: &'n str,
    pub(super) header: u64,
    pub(super) method: Method,
    pub(super) crc32: u32,
    pub(super) packed: u64,
    pub(super) length: u64,
    pub(super) pad: u16,
}

impl Record<'_> {
    /// The bytes of its local header.
    pub(super) fn header_bytes(&self) -> usize {
        header_bytes(self.name.len(), self.pad)
    }
}

/// The bytes of a local header.
pub(super) fn header_bytes(name_bytes: usize, pad: u16) -> usize {
    LOCAL_BYTES + name_bytes + usize::from(pad) + SIZES_BYTES
}

/// The CRC-32 of zeros, without going through them.
pub(super) fn crc32_of_zeros(length: u64) -> u32 {
    // Checksums of 1, 2, 4 ... zeros; those that the bits of the length name are put together.
    let (mut piece, mut piece_bytes) = (crc32(&[0]), 1);
    let mut whole = 0;
    let mut left = length;
    while left > 0 {
        if left & 1 == 1 {
            whole = combine(whole, piece, piece_bytes);
        }
        piece = combine(piece, piece, piece_bytes);
        piece_bytes *= 2;
        left >>= 1;
    }
    whole
}

/// The CRC-32 of bytes and of those that follow, from theirs.
#[expect(clippy::cast_possible_truncation, reason = "the checksum has 32 bits")]
fn combine(left: u32, right: u32, right_bytes: u64) -> u32 {
    use crc_fast::CrcAlgorithm::Crc32IsoHdlc;
    crc_fast::checksum_combine(Crc32IsoHdlc, left.into(), right.into(), right_bytes) as u32
}

/// The bytes of the block that aligns an entry, its id and length included.
pub(super) fn pad_bytes(header: u64, name_bytes: usize, length: u64) -> u16 {
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

fn flags(record: &Record<'_>) -> u16 {
    let names = if record.name.is_ascii() { 0 } else { UTF8_FLAG };
    names | record.method.flags()
}

fn put16(value: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put32(value: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put64(value: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_pad(pad: u16, out: &mut Vec<u8>) {
    if pad > 0 {
        put16(PAD_ID, out);
        put16(pad - 4, out);
        out.resize(out.len() + usize::from(pad) - 4, 0);
    }
}

/// The offset of the checksum in a local header.
pub(super) const CRC32_OFFSET: usize = 14;

pub(super) fn local_header(record: &Record<'_>, date: (u16, u16), out: &mut Vec<u8>) {
    let extra_bytes = usize::from(record.pad) + SIZES_BYTES;
    out.reserve(record.header_bytes());
    out.extend_from_slice(&LOCAL_SIGNATURE.to_le_bytes());
    let sizes = (SEE_SIZES, SEE_SIZES);
    out.extend_from_slice(&fields(record, date, sizes, extra_bytes));
    out.extend_from_slice(record.name.as_bytes());
    put_pad(record.pad, out);
    let mut sizes = [0; SIZES_BYTES];
    sizes[..2].copy_from_slice(&SIZES_ID.to_le_bytes());
    sizes[2..4].copy_from_slice(&16_u16.to_le_bytes());
    sizes[4..12].copy_from_slice(&record.length.to_le_bytes());
    sizes[12..].copy_from_slice(&record.packed.to_le_bytes());
    out.extend_from_slice(&sizes);
}

/// Builds the fields that a local header and a record of the directory share, from the version on:
/// `sizes` are those of the packed bytes and of the bytes.
fn fields(
    record: &Record<'_>,
    date: (u16, u16),
    sizes: (u32, u32),
    extra_bytes: usize,
) -> [u8; LOCAL_BYTES - 4] {
    let method = record.method;
    let mut fields = [0; LOCAL_BYTES - 4];
    fields[..2].copy_from_slice(&method.version().to_le_bytes());
    fields[2..4].copy_from_slice(&flags(record).to_le_bytes());
    fields[4..6].copy_from_slice(&method.number().to_le_bytes());
    fields[6..8].copy_from_slice(&date.0.to_le_bytes());
    fields[8..10].copy_from_slice(&date.1.to_le_bytes());
    fields[10..14].copy_from_slice(&record.crc32.to_le_bytes());
    fields[14..18].copy_from_slice(&sizes.0.to_le_bytes());
    fields[18..22].copy_from_slice(&sizes.1.to_le_bytes());
    fields[22..24].copy_from_slice(&short(record.name.len()).to_le_bytes());
    fields[24..].copy_from_slice(&short(extra_bytes).to_le_bytes());
    fields
}

fn short(length: usize) -> u16 {
    u16::try_from(length).expect("names and blocks are short")
}

pub(super) fn central_record(record: &Record<'_>, date: (u16, u16), out: &mut Vec<u8>) {
    // None of an entry that is not large: no memory is taken then.
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
    let mut fixed = [0; CENTRAL_BYTES];
    fixed[..4].copy_from_slice(&CENTRAL_SIGNATURE.to_le_bytes());
    // Made by: Unix.
    let made_by = record.method.version() | 3 << 8;
    fixed[4..6].copy_from_slice(&made_by.to_le_bytes());
    fixed[6..32].copy_from_slice(&fields(record, date, (packed, length), extra_bytes));
    // No comment, the first disk, no attributes but those of Unix: -rw-r--r--.
    fixed[38..42].copy_from_slice(&(0o644_u32 << 16).to_le_bytes());
    fixed[42..].copy_from_slice(&header.to_le_bytes());
    out.extend_from_slice(&fixed);
    out.extend_from_slice(record.name.as_bytes());
    put_pad(record.pad, out);
    if !sizes.is_empty() {
        put16(SIZES_ID, out);
        put16(short(sizes.len()), out);
        out.extend(sizes);
    }
}

pub(super) fn end_records(count: u64, size: u64, start: u64, out: &mut Vec<u8>) {
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
pub(super) fn dos_date(time_ns: i64) -> (u16, u16) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_crc32_of_zeros() {
        for length in [0, 1, 2, 3, 100, 70_001] {
            assert_eq!(crc32_of_zeros(length as u64), crc32(&vec![0; length]));
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
