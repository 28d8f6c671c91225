//! Memory that belongs to someone else: the bytes of a tensor.
//!
//! A plan refers to the memory of tensors and does not copy it. The bindings, which make a plan, hold
//! the storages of the tensors until they are done with the plan. Python can free the memory of a storage
//! all the same (`resize_`, `share_memory_`), while threads read it. So the memory of a tensor is *lent*:
//! the kernel copies it, and a read of an address that is gone is an error, and no fault.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use thiserror::Error;

/// The bytes that a processor fetches at once.
const LINE_BYTES: usize = 64;

/// Asks the processor to fetch the line of memory at an address, whatever is there: whoever goes through
/// thousands of small objects waits for memory most of the time, unless it asks for what comes
/// some steps later.
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables))]
pub fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every such processor has the instruction, and no address is wrong for it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
}

/// True while the only thread of Python waits for a save: nobody frees memory then, and lent memory is read
/// where it lies, which costs less.
static IS_UNDISTURBED: AtomicBool = AtomicBool::new(false);

/// The time for which no other thread can free lent memory.
#[derive(Debug)]
pub struct Undisturbed(());

impl Undisturbed {
    /// Begins that time, which ends when this is dropped or at [`disturb`].
    #[must_use]
    pub fn begin() -> Self {
        IS_UNDISTURBED.store(true, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        disturb();
    }
}

/// Says that Python is about to run.
pub fn disturb() {
    IS_UNDISTURBED.store(false, Ordering::Relaxed);
}

/// The memory of a tensor was freed while a save read it.
#[derive(Debug, Error)]
#[error(
    "the memory of a tensor was freed or moved while the tensor was being saved. Do not resize a tensor \
     (`resize_`) nor move it to shared memory (`share_memory_`) before its save has ended, or save a clone"
)]
pub struct MemoryGone;

/// Bytes in memory.
#[derive(Debug, Clone, Copy)]
pub struct Region {
    pointer: *const u8,
    length: usize,
    /// True if the memory may be freed while the region is in use.
    is_lent: bool,
}

/// True once the kernel has refused to copy memory of this process (a sandbox may forbid the call): then
/// lent memory is read as any other.
#[cfg(target_os = "linux")]
static IS_REFUSED: AtomicBool = AtomicBool::new(false);

// SAFETY: a region is an address and a length. Reading through it from any thread is what
// the contract of `Region::new` allows.
unsafe impl Send for Region {}
// SAFETY: as above; a region is never written through.
unsafe impl Sync for Region {}

impl Region {
    /// No bytes.
    pub const EMPTY: Self = Self {
        pointer: std::ptr::NonNull::dangling().as_ptr(),
        length: 0,
        is_lent: false,
    };

    /// A region of `length` bytes from `pointer`.
    ///
    /// # Safety
    /// The bytes stay allocated and readable for as long as this region, or any copy of
    /// it, is in use. Others may write to them meanwhile: what is read is then a mixture, as with any
    /// tensor that is written while it is saved.
    #[must_use]
    pub unsafe fn new(pointer: *const u8, length: usize) -> Self {
        if length == 0 {
            return Self::EMPTY;
        }
        Self {
            pointer,
            length,
            is_lent: false,
        }
    }

    /// A region of `length` bytes from `pointer`, which Python may free while they are read.
    ///
    /// # Safety
    /// The same as for [`Self::new`] where the kernel does not copy memory of this process
    /// (`process_vm_readv`). Where it does, a read of memory that is gone is an error.
    #[must_use]
    pub unsafe fn lent(pointer: *const u8, length: usize) -> Self {
        // SAFETY: the contract of this function.
        let region = unsafe { Self::new(pointer, length) };
        Self {
            is_lent: length > 0,
            ..region
        }
    }

    /// Bytes of our own, which outlive every use of the region.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        // SAFETY: callers use the region while they hold the bytes: within one function.
        unsafe { Self::new(bytes.as_ptr(), bytes.len()) }
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn address(&self) -> usize {
        self.pointer.addr()
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Asks the processor to fetch the bytes, the first `limit` of them.
    pub(crate) fn prefetch(&self, limit: usize) {
        for at in (0..self.length.min(limit)).step_by(LINE_BYTES) {
            prefetch(self.pointer.wrapping_add(at));
        }
    }

    /// The bytes, for whoever reads them where they lie. Lent memory must not be freed meanwhile.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the maker of the region keeps these bytes readable (contract of `new`); the
        // empty region has a dangling pointer, which a slice of no bytes may have.
        unsafe { std::slice::from_raw_parts(self.pointer, self.length) }
    }

    /// The bytes of memory that nobody frees; None of other memory, which [`Self::copy_to`] reads.
    pub(crate) fn own_bytes(&self) -> Option<&[u8]> {
        (!self.is_lent || IS_UNDISTURBED.load(Ordering::Relaxed)).then(|| self.bytes())
    }

    /// The `length` bytes from `start` on.
    ///
    /// # Panics
    /// There are fewer.
    #[must_use]
    pub(crate) fn part(&self, start: usize, length: usize) -> Self {
        assert!(start <= self.length && length <= self.length - start);
        Self {
            pointer: self.pointer.wrapping_add(start),
            length,
            ..*self
        }
    }

    /// Copies the bytes from `start` on into `buffer`.
    ///
    /// # Errors
    /// The memory was lent and is gone: [`MemoryGone`].
    pub(crate) fn copy_to(&self, start: usize, buffer: &mut [u8]) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        if self.own_bytes().is_none() && !IS_REFUSED.load(Ordering::Relaxed) {
            let end = start.checked_add(buffer.len());
            if end.is_none_or(|end| end > self.length) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            match copy_by_kernel(self.pointer.wrapping_add(start), buffer) {
                Ok(()) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                    return Err(io::Error::other(MemoryGone));
                }
                Err(_) => IS_REFUSED.store(true, Ordering::Relaxed),
            }
        }
        buffer.copy_from_slice(&self.bytes()[start..start + buffer.len()]);
        Ok(())
    }
}

/// Has the kernel copy memory of this process: an address at which there is none is an error.
#[cfg(target_os = "linux")]
fn copy_by_kernel(pointer: *const u8, buffer: &mut [u8]) -> io::Result<()> {
    let process = rustix::process::getpid().as_raw_nonzero().get();
    let mut done = 0;
    while done < buffer.len() {
        let rest = &mut buffer[done..];
        let to = libc::iovec {
            iov_base: rest.as_mut_ptr().cast(),
            iov_len: rest.len(),
        };
        let from = libc::iovec {
            iov_base: pointer.wrapping_add(done).cast_mut().cast(),
            iov_len: rest.len(),
        };
        // SAFETY: the kernel writes to `rest` alone, and checks every address that it reads.
        let copied =
            unsafe { libc::process_vm_readv(process, &raw const to, 1, &raw const from, 1, 0) };
        match usize::try_from(copied) {
            Ok(0) | Err(_) => return Err(io::Error::last_os_error()),
            Ok(copied) => done += copied,
        }
    }
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use memmap2::MmapMut;

    use super::*;

    #[test]
    fn test_lent_memory_that_is_gone_is_an_error() {
        let length = 3 << 16;
        let mut pages = MmapMut::map_anon(length).unwrap();
        pages.fill(7);
        // SAFETY: the kernel reads it, and says so where it is gone.
        let region = unsafe { Region::lent(pages.as_ptr(), length) };
        let mut buffer = vec![0; 1 << 16];
        region.copy_to(5, &mut buffer).unwrap();
        assert!(buffer.iter().all(|&byte| byte == 7));
        assert!(
            region.copy_to(length - 5, &mut buffer).is_err(),
            "it ends before"
        );
        drop(pages);
        let refused = region.copy_to(0, &mut buffer).unwrap_err();
        assert!(refused.get_ref().unwrap().is::<MemoryGone>());
        assert!(region.own_bytes().is_none());
        assert_eq!(Region::of(b"abc").own_bytes(), Some(&b"abc"[..]));
    }
}
