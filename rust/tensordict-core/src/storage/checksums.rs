//! Checksums of what was written, to tell damage from change.
//!
//! A save keeps the CRC32C of each block of 1 MiB and of each file, with the file's size and the time
//! at which it was modified. Filling a dataset through its mapping is normal use, so the time
//! decides what other bytes mean:
//!
//! * the bytes that were written: *good*, whatever the time;
//! * other bytes under the same time: *damaged*;
//! * other bytes under another time: *modified since the save*.
//!
//! Times on disk come from a clock with ticks of some milliseconds, so a store right after a
//! save could leave the time as it is. Therefore the files of a save get a time that is a
//! few ticks in the past ([`stamp`]): each later store gives a newer one. On file systems
//! where stores through a mapping leave the time alone ([`follows_stores`]) other bytes are
//! *changed or damaged*: nobody can tell.
//!
//! In a tree the checksums are a file of their own, [`CHECKSUMS_FILE`], which readers of the
//! published format ignore; in a single file they are part of its metadata.

use std::borrow::Cow;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use foldhash::quality::RandomState;

use super::Named;
use super::json::{self, Value};
use super::map::Root;
use super::read::Files;
use crc_fast::CrcAlgorithm::Crc32Iscsi;
use crc_fast::{Digest, checksum, checksum_combine};

/// The file of the checksums, in the root of a tree.
pub const CHECKSUMS_FILE: &str = ".tensordict-sums.json";

/// The bytes that a checksum stands for, but for the last of a file.
pub const BLOCK_BYTES: usize = 1 << 20;

/// The version of the format of the checksums.
const VERSION: i64 = 1;

/// Longer than a tick of any kernel's clock of times, twice.
const TICKS_NS: i64 = 20_000_000;

/// The CRC32C of some bytes and of their blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checksum {
    /// The number of bytes.
    pub length: u64,
    /// The checksum of all bytes.
    pub whole: u32,
    /// The checksum of each block, if there is more than one.
    pub blocks: Vec<u32>,
}

impl Checksum {
    /// The checksum of bytes that are all there.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        if bytes.len() <= BLOCK_BYTES {
            return Self {
                length: bytes.len() as u64,
                whole: crc32c(bytes),
                blocks: Vec::new(),
            };
        }
        let mut checksummer = Checksummer::default();
        checksummer.update(bytes);
        checksummer.finish()
    }
}

/// Takes checksums as bytes come.
#[derive(Debug)]
pub struct Checksummer {
    blocks: Vec<u32>,
    /// The checksum of the block that is not full yet.
    current: Digest,
    filled: usize,
    length: u64,
}

impl Default for Checksummer {
    fn default() -> Self {
        Self {
            blocks: Vec::new(),
            current: Digest::new(Crc32Iscsi),
            filled: 0,
            length: 0,
        }
    }
}

impl Checksummer {
    /// Takes the next bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.length += bytes.len() as u64;
        while !bytes.is_empty() {
            let (piece, rest) = bytes.split_at(bytes.len().min(BLOCK_BYTES - self.filled));
            self.current.update(piece);
            self.filled += piece.len();
            bytes = rest;
            if self.filled == BLOCK_BYTES {
                self.end_block();
            }
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "the checksum has 32 bits")]
    fn end_block(&mut self) {
        self.blocks.push(self.current.finalize_reset() as u32);
        self.filled = 0;
    }

    /// The checksum of all bytes that came.
    #[must_use]
    pub fn finish(mut self) -> Checksum {
        if self.filled > 0 {
            self.end_block();
        }
        let mut left = self.length;
        let mut whole = 0;
        for (number, &block) in self.blocks.iter().enumerate() {
            let bytes = left.min(BLOCK_BYTES as u64);
            left -= bytes;
            whole = match number {
                0 => block,
                _ if bytes == BLOCK_BYTES as u64 => shift_by_block(whole) ^ block,
                _ => combine(whole, block, bytes),
            };
        }
        if self.blocks.len() < 2 {
            self.blocks.clear();
        }
        Checksum {
            length: self.length,
            whole,
            blocks: self.blocks,
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the checksum has 32 bits")]
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    checksum(Crc32Iscsi, bytes) as u32
}

#[expect(clippy::cast_possible_truncation, reason = "the checksum has 32 bits")]
fn combine(left: u32, right: u32, right_bytes: u64) -> u32 {
    checksum_combine(Crc32Iscsi, left.into(), right.into(), right_bytes) as u32
}

/// The checksum of bytes with the given checksum and a block of zeros after them: what [`combine`] xors with
/// the checksum of a full block.
///
/// It is linear, so 32 results are enough for all; each takes [`combine`] many microseconds.
fn shift_by_block(checksum: u32) -> u32 {
    static OF_BIT: LazyLock<[u32; 32]> =
        LazyLock::new(|| std::array::from_fn(|bit| combine(1 << bit, 0, BLOCK_BYTES as u64)));
    let shifted = |bit: usize| {
        if checksum >> bit & 1 == 1 {
            OF_BIT[bit]
        } else {
            0
        }
    };
    (0..32).fold(0, |so_far, bit| so_far ^ shifted(bit))
}

/// The checksum of a file of a save, and the time at which it was right.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileChecksum {
    /// The checksum of its bytes.
    pub content: Checksum,
    /// The time at which the file was modified, in nanoseconds since 1970.
    pub modified_ns: i64,
}

/// The checksums of a save.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checksums {
    /// A text that no other save has.
    pub generation: String,
    /// By file, relative to the root of the save, with `/` between the parts.
    pub files: Named<FileChecksum>,
}

impl Checksums {
    /// Those of a new save, without files.
    #[must_use]
    pub fn new() -> Self {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        Self {
            generation: format!("{:x}-{process:x}-{count:x}", now_ns()),
            files: Named::default(),
        }
    }

    /// Those of the save in an open directory; none where they cannot be read.
    #[must_use]
    pub fn of_save(root: &Root) -> Self {
        root.read(&root.path().join(CHECKSUMS_FILE))
            .ok()
            .and_then(|bytes| Self::parse(std::str::from_utf8(&bytes).ok()?).ok())
            .unwrap_or_default()
    }

    /// The text of [`CHECKSUMS_FILE`].
    #[must_use]
    pub fn to_text(&self) -> String {
        let files = self.files.iter();
        self.text_of(files.map(|(name, file)| (&**name, &file.content, file.modified_ns)))
    }

    /// The text of [`CHECKSUMS_FILE`] with these files, by name, and the times at which their checksums were
    /// right, in the place of those that are here.
    #[must_use]
    pub fn text_of<'s>(&self, files: impl Iterator<Item = (&'s str, &'s Checksum, i64)>) -> String {
        let mut entries = String::with_capacity(files.size_hint().0 * 96);
        // Files of one save have one time, which is put into words once.
        let mut time = (0, "0".to_owned());
        for (name, checksum, modified_ns) in files {
            if modified_ns != time.0 {
                time = (modified_ns, modified_ns.to_string());
            }
            push_entry(name, checksum, &time.1, &mut entries);
        }
        self.parts_around(&[&entries]).concat()
    }

    /// The text of [`CHECKSUMS_FILE`] with the entries that [`push_entry`] made, in parts that follow each
    /// other.
    pub(crate) fn parts_around<'e>(&self, entries: &[&'e str]) -> Vec<Cow<'e, str>> {
        let mut head = format!(
            "{{\"version\": {VERSION}, \"algorithm\": \"crc32c\", \"block_bytes\": {BLOCK_BYTES}, \
             \"generation\": "
        );
        json::write_string(&self.generation, &mut head);
        head.push_str(", \"files\": {");
        let mut parts = vec![Cow::Owned(head)];
        let mut entries = entries.iter().filter(|part| !part.is_empty()).peekable();
        while let Some(&part) = entries.next() {
            // The comma of the last is none.
            let is_last = entries.peek().is_none();
            let end = part.len() - if is_last { SEPARATOR.len() } else { 0 };
            parts.push(Cow::Borrowed(&part[..end]));
        }
        parts.push(Cow::Borrowed("}}"));
        parts
    }

    /// Reads the text of [`CHECKSUMS_FILE`].
    ///
    /// # Errors
    /// A description of the defect of the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let value = json::parse(text).map_err(|error| error.message.to_owned())?;
        if value.get("version").and_then(Value::as_i64) != Some(VERSION)
            || value.get("block_bytes").and_then(Value::as_i64)
                != Some(i64::try_from(BLOCK_BYTES).unwrap_or(0))
        {
            return Err("the checksums are of another version".to_owned());
        }
        let generation = value.get("generation").and_then(Value::as_str);
        let Some(Value::Object(entries)) = value.get("files") else {
            return Err("the checksums name no files".to_owned());
        };
        let mut files = Named::with_capacity_and_hasher(entries.len(), RandomState::default());
        for (name, entry) in entries {
            let file =
                parse_entry(entry).ok_or_else(|| format!("the checksum of '{name}' is invalid"))?;
            files.insert(name.clone(), file);
        }
        Ok(Self {
            generation: generation.unwrap_or_default().to_owned(),
            files,
        })
    }
}

/// The end of each entry of the text of checksums.
const SEPARATOR: &str = ", ";

/// Appends the entry of a file to a part of the text of checksums. `modified_ns` is the time at which the
/// checksum was right, in words.
pub(crate) fn push_entry(name: &str, checksum: &Checksum, modified_ns: &str, entries: &mut String) {
    json::write_string(name, entries);
    entries.push_str(": [");
    push_number(checksum.length, entries);
    entries.push_str(", ");
    entries.push_str(modified_ns);
    entries.push_str(", \"");
    push_hex(checksum.whole, entries);
    if !checksum.blocks.is_empty() {
        entries.push_str("\", \"");
        for &block in &checksum.blocks {
            push_hex(block, entries);
        }
    }
    entries.push_str("\"]");
    entries.push_str(SEPARATOR);
}

/// Appends eight hexadecimal digits.
fn push_hex(checksum: u32, text: &mut String) {
    let digits: [u8; 8] = std::array::from_fn(|place| {
        let digit = checksum.to_be_bytes()[place / 2] >> (4 * (1 - place % 2)) & 0xF;
        b"0123456789abcdef"[usize::from(digit)]
    });
    text.push_str(std::str::from_utf8(&digits).unwrap_or_default());
}

/// Appends a number, without the machinery of formats: there is one for each file.
fn push_number(mut number: u64, text: &mut String) {
    let mut digits = [b'0'; 20];
    let mut start = digits.len();
    while start == digits.len() || number > 0 {
        start -= 1;
        digits[start] += (number % 10).to_le_bytes()[0];
        number /= 10;
    }
    text.push_str(std::str::from_utf8(&digits[start..]).unwrap_or_default());
}

fn parse_entry(entry: &Value) -> Option<FileChecksum> {
    let Value::Array(items) = entry else {
        return None;
    };
    let length = u64::try_from(items.first()?.as_i64()?).ok()?;
    let modified_ns = items.get(1)?.as_i64()?;
    let whole = u32::from_str_radix(items.get(2)?.as_str()?, 16).ok()?;
    let digits = items.get(3).map_or(Some(""), Value::as_str)?;
    if !digits.is_ascii() || digits.len() % 8 != 0 {
        return None;
    }
    let blocks = (0..digits.len() / 8)
        .map(|block| u32::from_str_radix(&digits[block * 8..][..8], 16).ok())
        .collect::<Option<Vec<_>>>()?;
    let expected = match length.div_ceil(BLOCK_BYTES as u64) {
        0 | 1 => 0,
        several => several,
    };
    (blocks.len() as u64 == expected).then_some(FileChecksum {
        content: Checksum {
            length,
            whole,
            blocks,
        },
        modified_ns,
    })
}

/// The time for the files of a save that begins now: every later store gives a newer one.
#[must_use]
pub fn stamp() -> i64 {
    now_ns() - TICKS_NS
}

fn now_ns() -> i64 {
    let passed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    passed.map_or(0, |passed| i64::try_from(passed.as_nanos()).unwrap_or(0))
}

/// Returns the time at which a file was modified, in nanoseconds since 1970.
#[must_use]
pub fn modified_ns(metadata: &Metadata) -> i64 {
    metadata
        .mtime()
        .saturating_mul(1_000_000_000)
        .saturating_add(metadata.mtime_nsec())
}

/// Returns whether the times of a file's file system follow stores through a mapping.
///
/// Those of memory do not, and of network file systems nobody knows when.
#[must_use]
pub fn follows_stores(file: &File) -> bool {
    // ext2 to ext4, XFS, Btrfs, F2FS, and overlays of them, by the numbers of statfs(2).
    const KNOWN: [u32; 5] = [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010, 0x794C_7630];
    rustix::fs::fstatfs(file)
        .is_ok_and(|found| u32::try_from(found.f_type).is_ok_and(|number| KNOWN.contains(&number)))
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "the numbers are small")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn test_checksum_is_crc32c() {
        assert_eq!(Checksum::of(b"123456789").whole, 0xE306_9283);
        assert_eq!(Checksum::of(b"").whole, 0);
    }

    #[test]
    fn test_the_whole_is_combined_from_blocks() {
        let bytes: Vec<u8> = (0..3 * BLOCK_BYTES + 5)
            .map(|at| (at % 251) as u8)
            .collect();
        let checksum = Checksum::of(&bytes);
        assert_eq!(checksum.blocks.len(), 4);
        assert_eq!(checksum.blocks[3], crc32c(&bytes[3 * BLOCK_BYTES..]));
        assert_eq!(checksum.whole, crc32c(&bytes));
        let mut checksummer = Checksummer::default();
        for piece in bytes.chunks(70_001) {
            checksummer.update(piece);
        }
        assert_eq!(checksummer.finish(), checksum);
    }

    proptest! {
        #[test]
        fn test_parse_is_the_inverse_of_to_text(
            names in proptest::collection::btree_map(".*", (0_u64..5 << 20, any::<i64>(), any::<u32>()), 0..8)
        ) {
            let mut checksums = Checksums::new();
            for (name, (length, modified_ns, whole)) in names {
                let blocks = if length > BLOCK_BYTES as u64 {
                    vec![whole; usize::try_from(length.div_ceil(BLOCK_BYTES as u64)).unwrap()]
                } else {
                    Vec::new()
                };
                let checksum = Checksum { length, whole, blocks };
                checksums.files.insert(name, FileChecksum { content: checksum, modified_ns });
            }
            prop_assert_eq!(Checksums::parse(&checksums.to_text()).unwrap(), checksums);
        }

        #[test]
        fn test_any_text_is_read_or_refused(text in ".{0,200}") {
            let _ = Checksums::parse(&text);
            let _ = Checksums::parse(&format!("{{\"version\": 1, \"block_bytes\": 1048576, \"files\": {text}}}"));
        }
    }
}
