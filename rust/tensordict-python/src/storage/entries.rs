//! The entries of a collection, taken into the plan of a save.
//!
//! Tensors are read under the interpreter's lock. What the plan makes of them, names and metadata, needs
//! none: of thousands of entries that is done meanwhile, by a thread of its own.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;

use pyo3::prelude::*;
use pyo3::types::PyString;
use tensordict_core::storage::metadata::LeafMeta;
use tensordict_core::storage::plan::{Content, Plan};
use tensordict_core::storage::source::Source;
use tensordict_core::storage::{StorageResult, thread_count};

use super::dlpack;
use super::exception;
use super::leaves::{
    Kept, NewLeaf, PlainLeaf, check_file, file_of, new_leaf, plain_leaf, tensor_class,
};
use crate::ffi::Pairs;
use crate::shortcuts::tensors;

/// From so many entries on a second thread is worth its start.
const SHARED_FROM: usize = 2048;

/// The number of entries that the other thread is given at once.
const BATCH_ENTRIES: usize = 256;

/// The number of entries that are read while memory fetches a later one.
const PREFETCH_DISTANCE: usize = 6;

/// A leaf on the Python side, beside what the collection holds.
pub(super) struct SavedLeaf {
    /// The holder of the bytes that are written, if there are any.
    pub(super) kept: Option<Kept>,
    /// The address of its bytes, if there are any to write.
    pub(super) address: usize,
    /// The number of values of a nested tensor, whose file has them flat.
    pub(super) num_flat: Option<i64>,
}

/// A leaf that is a file already.
pub(super) struct MappedLeaf {
    /// Its place among the entries, and then its number in the plan.
    pub(super) number: usize,
    pub(super) filename: PathBuf,
    pub(super) source: Source,
    pub(super) pointer: *const u8,
    pub(super) num_bytes: usize,
}

/// The results for entries.
pub(super) struct Added<'py> {
    /// The objects that the collection holds for the leaves, in the order of their numbers.
    pub(super) originals: Vec<Py<PyAny>>,
    /// The leaves, in the same order.
    pub(super) leaves: Vec<SavedLeaf>,
    /// Those that are files.
    pub(super) mapped: Vec<MappedLeaf>,
    /// The entries that are no leaves: key, level that was opened for it, value.
    pub(super) children: Vec<(Bound<'py, PyAny>, usize, Bound<'py, PyAny>)>,
}

/// Adds entries to a level of a plan.
///
/// `is_sparse` says that leaves are only described. `threads` is the most to use, 0 for as many as
/// this process has cores.
pub(super) fn add<'py>(
    plan: &mut Plan,
    level: usize,
    pairs: Pairs<'py>,
    is_sparse: bool,
    threads: usize,
) -> PyResult<Added<'py>> {
    plan.reserve(level, pairs.len());
    let mut reader = Reader {
        pairs: &pairs,
        is_sparse,
        leaves: Vec::with_capacity(pairs.len()),
        mapped: Vec::new(),
        children: Vec::new(),
        last: None,
    };
    let is_shared = pairs.len() >= SHARED_FROM && thread_count(threads) > 1;
    let shared = if is_shared {
        reader.read_beside(plan, level)
    } else {
        None
    };
    let (read, taken) = shared.unwrap_or_else(|| {
        let mut entries = Vec::with_capacity(pairs.len());
        let read = reader.read(0..pairs.len(), &mut entries);
        (read, take_in(plan, level, entries))
    });
    // Errors of planning come before errors of reading.
    let numbers = match pairs.first() {
        Some((key, _)) => taken.map_err(|error| exception(key.py(), &error))?,
        None => Vec::new(),
    };
    read?;
    let Reader {
        leaves,
        mut mapped,
        children,
        ..
    } = reader;
    for leaf in &mut mapped {
        leaf.number = numbers[leaf.number];
    }
    // The plan holds what was held to be read.
    let mut originals = Vec::with_capacity(leaves.len());
    let mut others = Vec::with_capacity(children.len());
    let mut places = children.into_iter().peekable();
    for (place, (key, value)) in pairs.into_iter().enumerate() {
        if places.next_if_eq(&place).is_some() {
            others.push((key, numbers[place], value));
        } else {
            originals.push(value.unbind());
        }
    }
    Ok(Added {
        originals,
        leaves,
        mapped,
        children: others,
    })
}

/// An entry that was read.
enum Entry<'k> {
    Leaf {
        key: &'k str,
        meta: Arc<LeafMeta>,
        num_bytes: u64,
        table: Option<Vec<u8>>,
        content: Content,
    },
    Child {
        key: &'k str,
        class_name: String,
    },
}

/// Plans entries; of each its number: that of the leaf, or of the level that was opened.
fn take_in<'k>(
    plan: &mut Plan,
    level: usize,
    entries: impl IntoIterator<Item = Entry<'k>>,
) -> StorageResult<Vec<usize>> {
    entries
        .into_iter()
        .map(|entry| match entry {
            Entry::Leaf {
                key,
                meta,
                num_bytes,
                table,
                content,
            } => plan.add_leaf(level, key, meta, num_bytes, content, table),
            Entry::Child { key, class_name } => plan.add_child(level, key, &class_name),
        })
        .collect()
}

struct Reader<'r, 'py> {
    pairs: &'r Pairs<'py>,
    is_sparse: bool,
    leaves: Vec<SavedLeaf>,
    mapped: Vec<MappedLeaf>,
    /// The places of the entries that are no leaves.
    children: Vec<usize>,
    /// The metadata of the last ordinary tensor.
    last: Option<Arc<LeafMeta>>,
}

impl<'r> Reader<'r, '_> {
    /// Reads all entries while another thread plans those that are read; None where there is no
    /// other thread to be had.
    fn read_beside(
        &mut self,
        plan: &mut Plan,
        level: usize,
    ) -> Option<(PyResult<()>, StorageResult<Vec<usize>>)> {
        let (sender, receiver) = mpsc::channel::<Vec<Entry<'r>>>();
        thread::scope(|scope| {
            let planner = thread::Builder::new()
                .name("tensordict-plan".to_owned())
                .spawn_scoped(scope, || {
                    take_in(plan, level, receiver.into_iter().flatten())
                })
                .ok()?;
            let read = self.read_in_batches(|batch| sender.send(batch).is_ok());
            drop(sender);
            match planner.join() {
                Ok(taken) => Some((read, taken)),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Reads all entries; `take` says whether more are wanted.
    fn read_in_batches(&mut self, take: impl Fn(Vec<Entry<'r>>) -> bool) -> PyResult<()> {
        let mut start = 0;
        while start < self.pairs.len() {
            let end = self.pairs.len().min(start + BATCH_ENTRIES);
            let mut batch = Vec::with_capacity(end - start);
            let read = self.read(start..end, &mut batch);
            if !take(batch) {
                break;
            }
            read?;
            start = end;
        }
        Ok(())
    }

    fn read(&mut self, range: Range<usize>, entries: &mut Vec<Entry<'r>>) -> PyResult<()> {
        let pairs = self.pairs;
        let Some((first, _)) = pairs.first() else {
            return Ok(());
        };
        let class = tensor_class(first.py())?;
        for place in range {
            if let Some((key, value)) = pairs.get(place + 2 * PREFETCH_DISTANCE) {
                dlpack::prefetch(key);
                dlpack::prefetch(value);
            }
            if let Some((_, value)) = pairs.get(place + PREFETCH_DISTANCE) {
                tensors::prefetch(value);
            }
            let (key, value) = &pairs[place];
            let key = key.cast::<PyString>()?.to_str()?;
            entries.push(if value.is_instance(class)? {
                self.leaf(place, key, value)?
            } else {
                self.children.push(place);
                let class_name = value.get_type().name()?.to_str()?.to_owned();
                Entry::Child { key, class_name }
            });
        }
        Ok(())
    }

    fn leaf<'k>(
        &mut self,
        place: usize,
        key: &'k str,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<Entry<'k>> {
        let plain = if self.is_sparse {
            None
        } else {
            // SAFETY: what is kept is held by the state of the plan as long as the plan.
            unsafe { plain_leaf(value, self.last.as_ref()) }
        };
        if let Some(PlainLeaf { meta, region, kept }) = plain {
            check_file(region.address(), region.address() + region.len())?;
            self.last = Some(meta.clone());
            self.leaves.push(SavedLeaf {
                kept: Some(kept),
                address: region.address(),
                num_flat: None,
            });
            return Ok(Entry::Leaf {
                key,
                meta,
                num_bytes: region.len() as u64,
                table: None,
                content: Content::Data(Source::Memory(region)),
            });
        }
        let NewLeaf {
            meta,
            values,
            num_bytes,
            table,
            num_flat,
        } = new_leaf(value, self.is_sparse)?;
        let mut saved = SavedLeaf {
            kept: None,
            address: 0,
            num_flat,
        };
        let mut content = Content::Absent;
        if let Some(values) = values {
            // SAFETY: what is kept is held by the state of the plan as long as the plan.
            let source = unsafe { values.source() }?;
            if let Some(memory) = values.memory() {
                saved.address = memory.pointer.addr();
            }
            if let Some(memory) = values.memory()
                && let Some(filename) = file_of(value)?
            {
                self.mapped.push(MappedLeaf {
                    number: place,
                    filename,
                    source: source.clone(),
                    pointer: memory.pointer,
                    num_bytes: memory.num_bytes,
                });
            }
            content = Content::Data(source);
            saved.kept = Some(values.kept);
        }
        self.leaves.push(saved);
        Ok(Entry::Leaf {
            key,
            meta,
            num_bytes,
            table,
            content,
        })
    }
}
