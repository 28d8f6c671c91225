//! Memory that belongs to someone else: the bytes of a tensor.
//!
//! A plan refers to the memory of tensors and does not copy it. The one who makes a plan (the
//! bindings) holds the tensors until it is done with the plan; that is the contract of
//! [`Region::new`], and the only thing that the unsafe code of this module rests on.

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

/// Bytes that the maker of the region keeps readable.
#[derive(Debug, Clone, Copy)]
pub struct Region {
    pointer: *const u8,
    length: usize,
}

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
        Self { pointer, length }
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

    /// The bytes, for a system call that reads them.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the maker of the region keeps these bytes readable (contract of `new`); the
        // empty region has a dangling pointer, which a slice of no bytes may have.
        unsafe { std::slice::from_raw_parts(self.pointer, self.length) }
    }
}
