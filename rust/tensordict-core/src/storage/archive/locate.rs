//! Finding the bytes of leaves in an archive.

use std::path::Path;

use rustix::io::Errno;

use super::super::prefetch::{Batches, Prefetch, prefetch_batches, take_all};
use super::super::read::Leaf;
use super::super::{StorageError, StorageResult, dtype, thread_count};
use super::directory::Entry;
use super::read::Archive;

/// The place of the bytes of a leaf of an archive.
#[derive(Debug)]
pub enum LeafBytes {
    /// At an offset of the archive, which is mapped.
    At(u64),
    /// In memory, aligned for any item; the leaf is a prefix.
    Copy(Vec<u128>),
    /// Nowhere: there are none.
    Nothing,
}

/// Leaves that a thread looks up before it asks for more.
const LOCATE_BATCH: usize = 256;

/// Finding the bytes of leaves takes about a third of the time that making tensors of them takes: how much
/// a thread finds meanwhile, in quarters of all.
const LOCATING_QUARTERS: usize = 12;

impl Archive {
    /// Finds the bytes of leaves: in the file where they can be mapped, otherwise in memory.
    ///
    /// # Errors
    /// An entry is missing, too short or damaged; the archive was opened to be stored to, and an entry
    /// cannot be mapped.
    pub fn locate(&self, leaves: &[Leaf], threads: usize) -> StorageResult<Vec<LeafBytes>> {
        self.prefetch_locations(leaves, threads, |_, found| Ok(found), take_all)
    }

    /// [`Archive::locate`] by a few threads, which `prepare` what they have found, while `take` goes on
    /// with the leaves that are prepared.
    pub fn prefetch_locations<B: Send, R>(
        &self,
        leaves: &[Leaf],
        threads: usize,
        prepare: impl Fn(&[Leaf], Vec<LeafBytes>) -> StorageResult<Vec<B>> + Sync,
        take: impl FnOnce(Prefetch<'_, Vec<B>>) -> R,
    ) -> R {
        let batches = Batches {
            count: leaves.len().div_ceil(LOCATE_BATCH),
            threads: thread_count(threads),
            helper_quarters: LOCATING_QUARTERS,
        };
        let find = |batch: usize| {
            let start = batch * LOCATE_BATCH;
            let end = leaves.len().min(start + LOCATE_BATCH);
            let batch = &leaves[start..end];
            self.check_length()?;
            let found = batch.iter().map(|leaf| self.locate_leaf(leaf));
            prepare(batch, found.collect::<StorageResult<_>>()?)
        };
        prefetch_batches(batches, &find, take)
    }

    /// Checks that the file has the bytes that are mapped: to look at those that were cut off would
    /// be a bus error.
    fn check_length(&self) -> StorageResult<()> {
        let refused = |source| StorageError::io(self.path(), source);
        let metadata = self.file().metadata().map_err(refused)?;
        if metadata.len() < self.mapped_bytes() {
            return Err(self.damaged("", "the file was cut while it was read"));
        }
        Ok(())
    }

    fn locate_leaf(&self, leaf: &Leaf) -> StorageResult<LeafBytes> {
        if leaf.meta.is_nested && self.is_writable() {
            return Err(self.not_writable(format!(
                "the entry {} is a nested tensor, which is copied when it is loaded",
                leaf.display()
            )));
        }
        if leaf.length == 0 {
            return Ok(LeafBytes::Nothing);
        }
        let path = leaf.path();
        let (name, entry) = self.leaf_entry(leaf, &path)?;
        if entry.length < leaf.length {
            return Err(StorageError::ShortFile {
                path: path.clone(),
                key: leaf.display(),
                found: entry.length,
                expected: leaf.length,
            });
        }
        if entry.method == 0 {
            // The header is looked at where the tensor will look for its bytes, too: to read it would
            // copy what lies around it, all of the archive where leaves are small.
            let mapping = self.mapping()?;
            let offset = self.offset_by(name, entry, |at, header| mapping.read(at, header))?;
            if entry.packed < leaf.length {
                return Err(self.damaged(name, "it is shorter than the directory says"));
            }
            let item_size = dtype::item_size(&leaf.meta.dtype).unwrap_or(1);
            if offset % item_size == 0 {
                return Ok(LeafBytes::At(offset));
            }
        }
        if self.is_writable() {
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
        let no_memory = || StorageError::io_of(format!("'{name}'"), self.path(), Errno::NOMEM);
        let length = usize::try_from(length).map_err(|_| no_memory())?;
        let mut memory: Vec<u128> = Vec::new();
        let items = length.div_ceil(size_of::<u128>());
        // Memory is taken as the bytes come: what the directory says of their number may be a lie.
        let sure = items.min(usize::try_from(entry.packed).unwrap_or(items));
        memory.try_reserve_exact(sure).map_err(|_| no_memory())?;
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
            return Err(no_memory());
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
            table.chunks(columns).try_fold(0_u64, |checksum, row| {
                dtype::tensor_bytes(row, 1).and_then(|items| checksum.checked_add(items))
            })
        };
        let item_size = dtype::item_size(&leaf.meta.dtype).unwrap_or(1);
        let length = items
            .and_then(|items| items.checked_mul(item_size))
            .ok_or_else(|| bad("its table holds no sizes"))?;
        if length == 0 {
            return Ok((table, Vec::new()));
        }
        let path = leaf.path();
        let (name, entry) = self.leaf_entry(leaf, &path)?;
        if entry.length < length {
            return Err(bad("it is shorter than its table of sizes says"));
        }
        Ok((table, self.copy(name, entry, length)?))
    }

    fn leaf_entry<'p>(&self, leaf: &Leaf, path: &'p Path) -> StorageResult<(&'p str, &Entry)> {
        self.name_of(path)
            .and_then(|name| Some((name, self.entries().get(name)?)))
            .ok_or_else(|| StorageError::MissingFile {
                path: path.to_path_buf(),
                key: leaf.display(),
            })
    }

    fn not_writable(&self, reason: String) -> StorageError {
        StorageError::NotWritable {
            path: self.path().to_path_buf(),
            reason,
        }
    }
}
