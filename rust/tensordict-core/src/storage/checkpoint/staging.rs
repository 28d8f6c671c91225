//! Memory in which the values of a step stay as they were when it was saved.

use std::io;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use memmap2::{Advice, MmapMut};

use super::super::job::Job;
use super::super::region::Region;
use super::super::source::Source;
use super::super::{StorageError, StorageResult, thread_count};
use super::step::{Step, StepFile};
use crate::threads::STORAGE;

/// Each tensor begins at a line of the cache.
const ALIGNED_TO: usize = 64;

/// The bytes that one thread copies at a time.
const PART_BYTES: usize = 8 << 20;

/// The staging memory of one step: pages of this process, which a forked child does not get.
#[derive(Debug)]
pub struct Memory {
    map: ManuallyDrop<MmapMut>,
    process: u32,
}

impl Memory {
    /// Memory of so many bytes, whose pages are made when they are written to.
    fn new(length: usize) -> io::Result<Self> {
        let map = MmapMut::map_anon(length.max(1))?;
        #[cfg(target_os = "linux")]
        {
            // Both are hints. A child would otherwise have each page copied that is written to.
            let _ = map.advise(Advice::HugePage);
            let _ = map.advise(Advice::DontFork);
        }
        Ok(Self {
            map: ManuallyDrop::new(map),
            process: std::process::id(),
        })
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Returns whether there are none, which is never so.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // In a forked child something else may be at these addresses by now.
        if self.process == std::process::id() {
            // SAFETY: nothing uses the mapping after this.
            unsafe { ManuallyDrop::drop(&mut self.map) };
        }
    }
}

/// The staging memory of a checkpointer: made once, and again where the state has grown or the memory is
/// in use still.
#[derive(Debug, Default)]
pub struct Staging {
    memory: Option<Arc<Memory>>,
}

/// A pointer that several threads write behind, each somewhere else.
#[derive(Clone, Copy)]
struct Place(*mut u8);

// SAFETY: an address; who writes where is said by the tasks.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

impl Place {
    /// Memory from an offset on.
    ///
    /// # Safety
    /// It lies within the staging memory, and nobody else uses it meanwhile.
    unsafe fn slice<'m>(self, offset: usize, length: usize) -> &'m mut [u8] {
        // SAFETY: the contract of this function.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(offset), length) }
    }
}

impl Staging {
    /// Copies the tensors of a step into the staging memory, by several threads; the step then has its
    /// bytes from there. What is returned is held until it is written.
    ///
    /// # Errors
    /// There is not enough memory; bytes that are elsewhere cannot be fetched.
    ///
    /// # Panics
    /// Never: nobody else has the memory that is reserved.
    pub fn take(&mut self, job: &Job<'_>, step: &mut Step) -> StorageResult<Arc<Memory>> {
        let tensors: Vec<_> = step
            .files
            .iter_mut()
            .filter_map(|file| match file {
                StepFile::Tensors(file) => Some(file.tensors.iter_mut()),
                _ => None,
            })
            .flatten()
            .collect();
        let mut length = 0_usize;
        let offsets: Vec<usize> = tensors
            .iter()
            .map(|tensor| {
                let offset = length;
                let bytes = usize::try_from(tensor.source.len()).unwrap_or(usize::MAX);
                length = offset.saturating_add(bytes).next_multiple_of(ALIGNED_TO);
                offset
            })
            .collect();
        let failed = |source: io::Error| StorageError::io("staging memory", source);
        let mut memory = self.reserve(length).map_err(failed)?;
        let base = {
            let memory = Arc::get_mut(&mut memory).expect("nobody else has it");
            Place(memory.map.as_mut_ptr())
        };
        let mut tasks = Vec::new();
        for (number, tensor) in tensors.iter().enumerate() {
            let bytes = usize::try_from(tensor.source.len()).unwrap_or(usize::MAX);
            match &tensor.source {
                Source::Memory(_) => {
                    tasks.extend((0..bytes).step_by(PART_BYTES).map(|start| (number, start)));
                }
                _ => tasks.push((number, 0)),
            }
        }
        STORAGE.try_for_each(tasks.len(), thread_count(job.threads), |task| {
            let (number, start) = tasks[task];
            let offset = offsets[number];
            if let Source::Memory(memory) = &tensors[number].source {
                let length = PART_BYTES.min(memory.len() - start);
                // SAFETY: each part of each tensor has a place of its own, and is one task.
                let place = unsafe { base.slice(offset + start, length) };
                memory.copy_to(start, place).map_err(failed)?;
                return job.progress.check();
            }
            let take = |at: u64, unit: &[u8]| {
                let at = usize::try_from(at).unwrap_or(usize::MAX);
                // SAFETY: as above.
                let place = unsafe { base.slice(offset + at, unit.len()) };
                place.copy_from_slice(unit);
                job.progress.check()
            };
            tensors[number].source.units(&mut Vec::new(), take, failed)
        })?;
        job.check("staging memory".as_ref())?;
        for (tensor, offset) in tensors.into_iter().zip(offsets) {
            let length = usize::try_from(tensor.source.len()).unwrap_or(0);
            // SAFETY: the memory is held, and not written to, until the step is written.
            let region = unsafe { Region::new(base.0.add(offset), length) };
            tensor.source = Source::Memory(region);
        }
        Ok(memory)
    }

    /// Memory of at least so many bytes that nobody uses.
    fn reserve(&mut self, length: usize) -> io::Result<Arc<Memory>> {
        let mut known = self.memory.take();
        let fits = known
            .as_mut()
            .and_then(Arc::get_mut)
            .is_some_and(|memory| memory.len() >= length && memory.process == std::process::id());
        if !fits {
            // First the old one is given back.
            known = None;
        }
        match known {
            Some(memory) => Ok(memory),
            None => Ok(Arc::new(Memory::new(length)?)),
        }
    }

    /// Keeps memory for the next step.
    pub fn keep(&mut self, memory: &Arc<Memory>) {
        self.memory = Some(Arc::clone(memory));
    }

    /// Returns the number of bytes of memory that are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.len())
    }

    /// Returns whether no memory is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
