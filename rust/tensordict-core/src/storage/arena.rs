//! Values that processes share: one file of numbered slots, each of which holds some bytes.
//!
//! A write in one process is what every later read in any process gives. Nobody serves
//! the file: each process maps its table and reads and writes its heap.
//!
//! ```text
//! header | table: one slot after the other | heap: bytes, only ever added to
//! ```
//!
//! * A **slot** has a generation and two entries; the lowest bit of the generation says which
//!   entry counts. A writer appends the bytes to the heap, fills the entry that does not
//!   count, and publishes it by adding one to the generation: a single store. So a
//!   writer that is killed leaves the old value or the new one.
//! * A **reader** takes no lock. It reads generation, entry and bytes, and reads again if the
//!   generation is another one by then: only then can the entry, or the bytes, have been
//!   given away. A checksum of the bytes tells damage from that.
//! * **Writers** exclude each other by a robust mutex in the header, which the kernel
//!   releases if its owner dies.
//! * A heap with more dead bytes than live ones is **moved**: the live bytes are appended as a
//!   new generation of the heap, slot by slot, and the room of the old one is given back as a
//!   hole. Since the file stays the same, nobody has to find another one.
//!
//! The bytes of the heap are read and written by system calls and not through the mapping: a
//! lack of memory is an error and no bus error, and growth needs no new mapping.

mod memory;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};

use crc_fast::CrcAlgorithm::Crc32Iscsi;
use crc_fast::checksum;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals,
    memfd_create,
};

use self::memory::{Table, Word};
use super::io::zeros;
use super::{StorageError, StorageResult};

const MAGIC: u64 = u64::from_le_bytes(*b"tdvalues");
const VERSION: u64 = 1;

/// The name that messages have for the file, which has none of its own.
const NAME: &str = "shared values";

/// The heap is not moved for fewer dead bytes than this.
const SLACK_BYTES: u64 = 1 << 20;

/// The number of bytes that are moved at once. Tests move little, and in many steps.
const MOVED_BYTES: usize = if cfg!(test) { 256 } else { 4 << 20 };

const PAGE_BYTES: u64 = 4096;

/// The number of times that a reader tries before it asks the writers to wait.
const TRIES: usize = 100;

/// The words of the header. The mutex takes those from [`memory::MUTEX_WORD`].
mod header {
    pub(super) const MAGIC: usize = 0;
    pub(super) const VERSION: usize = 1;
    pub(super) const SLOTS: usize = 2;
    /// The start of the heap: everything from the table to here is given back.
    pub(super) const HEAP_START: usize = 3;
    /// The place of the next bytes. It moves before bytes are written there.
    pub(super) const HEAP_END: usize = 4;
    /// The end of the heap until somebody counts the live bytes.
    pub(super) const COUNT_AT: usize = 5;
}

/// The words of a slot: its generation, and from 2 and from 5 its entries.
const SLOT_WORDS: usize = 8;

/// The place of the bytes of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    offset: u64,
    length: u64,
    checksum: u64,
}

/// A file of slots, open in this process.
#[derive(Debug)]
pub struct Arena {
    file: File,
    table: Table,
    num_slots: usize,
}

impl Arena {
    /// Makes an arena in memory, which lives for as long as a process holds it open. It has a slot
    /// for each of `values`, in their order.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn in_memory<B: AsRef<[u8]>>(values: &[B]) -> StorageResult<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("tensordict-values", flags).map_err(failed)?;
        // A file that was cut under a mapping of it would be a bus error.
        fcntl_add_seals(&file, SealFlags::SHRINK).map_err(failed)?;
        Self::create(File::from(file), values)
    }

    /// Opens an arena that [`Self::in_memory`] made, here or in another process.
    ///
    /// # Errors
    /// The file is none.
    pub fn open_shared(file: File) -> StorageResult<Self> {
        match fcntl_get_seals(&file) {
            Ok(seals) if seals.contains(SealFlags::SHRINK) => Self::open(file),
            _ => Err(damaged("it is not memory of a fixed size")),
        }
    }

    /// Makes an arena in an empty file.
    ///
    /// # Errors
    /// There is not enough space.
    pub fn create<B: AsRef<[u8]>>(file: File, values: &[B]) -> StorageResult<Self> {
        let heap_start = table_bytes(values.len()).next_multiple_of(PAGE_BYTES);
        // The space is taken now: a store to a table without it would be a bus error.
        fallocate(&file, FallocateFlags::empty(), 0, heap_start).map_err(failed)?;
        let table = Table::map(&file, table_words(values.len())).map_err(failed)?;
        table.make_mutex().map_err(failed)?;
        let arena = Self {
            file,
            table,
            num_slots: values.len(),
        };
        let words = [
            (header::VERSION, VERSION),
            (header::SLOTS, values.len() as u64),
            (header::HEAP_START, heap_start),
            (header::HEAP_END, heap_start),
        ];
        for (at, value) in words {
            arena.word(at).store(value, Ordering::Relaxed);
        }
        let lengths = values.iter().map(|value| value.as_ref().len());
        let mut batch = Batch::new(&arena, lengths.map(|length| length as u64).sum());
        for (slot, value) in values.iter().enumerate() {
            batch.add(slot, value.as_ref())?;
        }
        batch.flush()?;
        arena.count_later(arena.heap_end() - heap_start);
        arena.word(header::MAGIC).store(MAGIC, Ordering::Release);
        Ok(arena)
    }

    /// Opens an arena that another process made.
    ///
    /// # Errors
    /// The file is none.
    pub fn open(file: File) -> StorageResult<Self> {
        let length = file.metadata().map_err(failed)?.len();
        if length < table_bytes(0) {
            return Err(damaged("it is too short"));
        }
        let table = Table::map(&file, table_words(0)).map_err(failed)?;
        let read = |at: usize| table.word(at).load(Ordering::Acquire);
        if read(header::MAGIC) != MAGIC || read(header::VERSION) != VERSION {
            return Err(damaged("it has another format"));
        }
        let num_slots = usize::try_from(read(header::SLOTS)).unwrap_or(usize::MAX);
        if num_slots > MAX_SLOTS || length < table_bytes(num_slots) {
            return Err(damaged("it is shorter than its table"));
        }
        let table = Table::map(&file, table_words(num_slots)).map_err(failed)?;
        if !table.has_mutex().map_err(failed)? {
            return Err(damaged("its lock is invalid"));
        }
        Ok(Self {
            file,
            table,
            num_slots,
        })
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn num_slots(&self) -> usize {
        self.num_slots
    }

    /// The file, to be handed to another process.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The generation of the value of a slot: as long as it stays, so does the value.
    ///
    /// # Panics
    /// There is no such slot.
    #[must_use]
    pub fn generation(&self, slot: usize) -> u64 {
        self.slot_word(slot, 0).load(Ordering::Acquire)
    }

    /// The checksum of the generations of some slots: as long as it stays, so do their values.
    ///
    /// # Panics
    /// There is no such slot.
    #[must_use]
    pub fn generation_of(&self, slots: Range<usize>) -> u64 {
        slots.map(|slot| self.generation(slot)).sum()
    }

    /// The value of a slot and its generation.
    ///
    /// # Errors
    /// The bytes are not those that were written.
    ///
    /// # Panics
    /// There is no such slot.
    pub fn read(&self, slot: usize) -> StorageResult<(u64, Vec<u8>)> {
        for _ in 0..TRIES {
            if let Some(found) = self.try_read(slot)? {
                return Ok(found);
            }
        }
        // Writers that are faster than a reader wait for it once.
        let _lock = self.table.lock().map_err(failed)?;
        let found = self.try_read(slot)?;
        found.ok_or_else(|| damaged("a value was written to without its lock"))
    }

    /// Gives a slot another value; its generation. Where this fails the old value stays.
    ///
    /// # Errors
    /// There is not enough memory.
    ///
    /// # Panics
    /// There is no such slot.
    pub fn write(&self, slot: usize, value: &[u8]) -> StorageResult<u64> {
        self.write_in_steps(slot, value, |_| ())
    }

    /// Does the work of [`Self::write`]; `reached` is told each step before it is taken.
    fn write_in_steps(
        &self,
        slot: usize,
        value: &[u8],
        reached: impl Fn(Step),
    ) -> StorageResult<u64> {
        assert!(slot < self.num_slots, "there is no slot {slot}");
        let _lock = self.table.lock().map_err(failed)?;
        let length = value.len() as u64;
        if self.heap_end() + length > self.word(header::COUNT_AT).load(Ordering::Relaxed) {
            self.make_room(length, &reached)?;
        }
        let offset = self.reserve(length);
        let (first, second) = value.split_at(value.len() / 2);
        reached(Step::Bytes);
        self.file.write_all_at(first, offset).map_err(failed)?;
        reached(Step::MoreBytes);
        let middle = offset + first.len() as u64;
        self.file.write_all_at(second, middle).map_err(failed)?;
        let entry = Entry {
            offset,
            length,
            checksum: checksum_of(value),
        };
        Ok(self.publish(slot, entry, &reached))
    }

    /// The value of a slot; None where it was written to meanwhile.
    fn try_read(&self, slot: usize) -> StorageResult<Option<(u64, Vec<u8>)>> {
        let generation = self.generation(slot);
        let entry = self.entry(slot, generation);
        let is_current = || {
            // The loads and reads before are done before the generation is loaded again.
            fence(Ordering::Acquire);
            self.slot_word(slot, 0).load(Ordering::Relaxed) == generation
        };
        // A length that is half of another entry must not be allocated.
        if !is_current() {
            return Ok(None);
        }
        let mut bytes = room_for(entry)?;
        let found = self.file.read_exact_at(&mut bytes, entry.offset);
        if !is_current() {
            return Ok(None);
        }
        found.map_err(failed)?;
        if checksum_of(&bytes) != entry.checksum {
            return Err(damaged(&format!(
                "the checksum of slot {slot} is another one"
            )));
        }
        Ok(Some((generation, bytes)))
    }

    /// Moves the heap where most of its bytes are dead.
    fn make_room(&self, length: u64, reached: &impl Fn(Step)) -> StorageResult<()> {
        let live = (0..self.num_slots).map(|slot| self.current(slot).length);
        let live: u64 = live.sum();
        let start = self.word(header::HEAP_START).load(Ordering::Relaxed);
        let used = self.heap_end() - start;
        if used > 2 * live + SLACK_BYTES {
            self.move_heap(start, live, reached)?;
        }
        self.count_later(live + length);
        Ok(())
    }

    fn move_heap(&self, start: u64, live: u64, reached: &impl Fn(Step)) -> StorageResult<()> {
        let target = self.heap_end().next_multiple_of(PAGE_BYTES);
        self.word(header::HEAP_END).store(target, Ordering::Relaxed);
        let mut batch = Batch::new(self, live);
        for slot in 0..self.num_slots {
            let entry = self.current(slot);
            let mut bytes = room_for(entry)?;
            let found = self.file.read_exact_at(&mut bytes, entry.offset);
            found.map_err(failed)?;
            batch.add(slot, &bytes)?;
            reached(Step::Moved);
        }
        batch.flush()?;
        // Now that no slot leads there. Readers that are still there notice a new generation.
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // A file system that cannot do it keeps the bytes, and that is all.
        let _ = fallocate(&self.file, hole, start, target - start);
        let word = self.word(header::HEAP_START);
        word.store(target, Ordering::Relaxed);
        Ok(())
    }

    /// Has the live bytes counted when there may be as many dead ones.
    fn count_later(&self, live: u64) {
        let start = self.word(header::HEAP_START).load(Ordering::Relaxed);
        let at = start + 2 * live + SLACK_BYTES;
        self.word(header::COUNT_AT).store(at, Ordering::Relaxed);
    }

    /// Takes room in the heap: where it is. A writer that is killed right now leaves a gap, and no
    /// later one can write over what this one publishes.
    fn reserve(&self, length: u64) -> u64 {
        let word = self.word(header::HEAP_END);
        word.fetch_add(length, Ordering::Relaxed)
    }

    /// Makes `entry` what a slot holds, in one store.
    fn publish(&self, slot: usize, entry: Entry, reached: &impl Fn(Step)) -> u64 {
        let generation = self.generation(slot) + 1;
        // Readers of the entry that is filled now find the generation that put it out of
        // use, which is stored before this.
        fence(Ordering::Release);
        let at = entry_word(generation);
        let words = [entry.offset, entry.length, entry.checksum];
        for (number, value) in words.into_iter().enumerate() {
            reached(Step::Entry);
            let word = self.slot_word(slot, at + number);
            word.store(value, Ordering::Relaxed);
        }
        reached(Step::Publish);
        let word = self.slot_word(slot, 0);
        word.store(generation, Ordering::Release);
        generation
    }

    fn current(&self, slot: usize) -> Entry {
        self.entry(slot, self.generation(slot))
    }

    fn entry(&self, slot: usize, generation: u64) -> Entry {
        let at = entry_word(generation);
        let read = |number| self.slot_word(slot, at + number).load(Ordering::Relaxed);
        Entry {
            offset: read(0),
            length: read(1),
            checksum: read(2),
        }
    }

    fn heap_end(&self) -> u64 {
        self.word(header::HEAP_END).load(Ordering::Relaxed)
    }

    fn word(&self, at: usize) -> &Word {
        self.table.word(at)
    }

    fn slot_word(&self, slot: usize, at: usize) -> &Word {
        assert!(slot < self.num_slots, "there is no slot {slot}");
        self.table.word(table_words(slot) + at)
    }
}

/// A step that a writer is about to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Bytes,
    MoreBytes,
    Entry,
    Publish,
    Moved,
}

/// Values on their way to the heap, many in one system call.
struct Batch<'a> {
    arena: &'a Arena,
    /// The place of the next bytes; the end of the room that was taken is behind it.
    offset: u64,
    bytes: Vec<u8>,
    entries: Vec<(usize, Entry)>,
}

impl<'a> Batch<'a> {
    /// A batch of values that are `length` bytes together.
    fn new(arena: &'a Arena, length: u64) -> Self {
        Self {
            arena,
            offset: arena.reserve(length),
            bytes: Vec::new(),
            entries: Vec::new(),
        }
    }

    fn add(&mut self, slot: usize, value: &[u8]) -> StorageResult<()> {
        let entry = Entry {
            offset: self.offset + self.bytes.len() as u64,
            length: value.len() as u64,
            checksum: checksum_of(value),
        };
        self.entries.push((slot, entry));
        self.bytes.extend_from_slice(value);
        if self.bytes.len() >= MOVED_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> StorageResult<()> {
        let written = self.arena.file.write_all_at(&self.bytes, self.offset);
        written.map_err(failed)?;
        self.offset += self.bytes.len() as u64;
        self.bytes.clear();
        for (slot, entry) in self.entries.drain(..) {
            self.arena.publish(slot, entry, &|_| ());
        }
        Ok(())
    }
}

/// More than any memory holds; the sizes of all tables that are not refused fit into 64 bits.
const MAX_SLOTS: usize = 1 << 48;

fn table_words(num_slots: usize) -> usize {
    memory::HEADER_WORDS + num_slots * SLOT_WORDS
}

fn table_bytes(num_slots: usize) -> u64 {
    (table_words(num_slots) * size_of::<Word>()) as u64
}

/// Returns the place in a slot of the entry of a generation.
fn entry_word(generation: u64) -> usize {
    if generation & 1 == 0 { 2 } else { 5 }
}

fn checksum_of(bytes: &[u8]) -> u64 {
    checksum(Crc32Iscsi, bytes)
}

fn failed(error: impl Into<io::Error>) -> StorageError {
    StorageError::io(Path::new(NAME), error)
}

fn damaged(reason: &str) -> StorageError {
    StorageError::Damaged {
        damages: vec![format!("the file of {NAME} is damaged: {reason}")],
    }
}

/// Memory for the bytes of a value.
fn room_for(entry: Entry) -> StorageResult<Vec<u8>> {
    let length = usize::try_from(entry.length).ok();
    let bytes = length.and_then(|length| zeros(length).ok());
    bytes.ok_or_else(|| damaged("a value is longer than the memory"))
}

#[cfg(test)]
mod tests;
