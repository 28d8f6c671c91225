//! The limit of a walk: by levels, and by what is left of the thread's stack.
//!
//! The interpreter counts its own frames and knows nothing of those of a walk. A thread can
//! have a stack of any size, and what a level needs of it depends on the operation: so the
//! levels are counted, and each of them looks where the stack ends.

use std::cell::Cell;

use pyo3::exceptions::PyRecursionError;
use pyo3::prelude::*;

/// The depth to which collections may be nested: Python's own default limit.
const MAX_DEPTH: u32 = 1000;

/// The bytes of the stack that must be left for a level: its own frames, those of Python methods
/// that it calls, and those of torch for a leaf.
const MARGIN_BYTES: usize = 80 << 10;

/// Stands for a stack whose end nobody has asked for yet.
const NOT_ASKED: usize = usize::MAX;

struct Thread {
    depth: Cell<u32>,
    /// The lowest address of the stack; 0 where it is not known.
    lowest: Cell<usize>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            depth: Cell::new(0),
            lowest: Cell::new(NOT_ASKED),
        }
    };
}

/// One level of a walk, counted and given back on drop.
pub(crate) struct RecursionGuard<'py> {
    depth: u32,
    /// The thread's count: to ask for it is a call.
    count: *const Cell<u32>,
    _py: Python<'py>,
}

impl<'py> RecursionGuard<'py> {
    /// Counts one level.
    ///
    /// # Errors
    /// `RecursionError` where the limit is reached, or little is left of the stack.
    #[inline]
    pub(crate) fn enter(py: Python<'py>) -> PyResult<Self> {
        THREAD.with(|thread| {
            let depth = thread.depth.get();
            if depth >= MAX_DEPTH || is_nearly_full(thread) {
                return Err(too_deep());
            }
            thread.depth.set(depth + 1);
            Ok(Self {
                depth,
                count: &raw const thread.depth,
                _py: py,
            })
        })
    }
}

impl Drop for RecursionGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the guard stays in its thread, as the interpreter's token does, and the
        // count lives as long as that.
        unsafe { (*self.count).set(self.depth) };
    }
}

/// Returns whether less than the margin is left of the stack. One that was exchanged for another,
/// as some libraries do, is not known, and then this says no.
#[inline]
fn is_nearly_full(thread: &Thread) -> bool {
    let here = 0_u8;
    let mut lowest = thread.lowest.get();
    if lowest == NOT_ASKED {
        lowest = end_of_stack();
        thread.lowest.set(lowest);
    }
    (&raw const here).addr().wrapping_sub(lowest) < MARGIN_BYTES
}

#[cold]
fn too_deep() -> PyErr {
    PyRecursionError::new_err("maximum recursion depth exceeded while walking nested collections")
}

/// The lowest address of this thread's stack that can be used; 0 where the system does not tell.
#[cold]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn end_of_stack() -> usize {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut lowest = std::ptr::null_mut();
    let (mut length, mut guard) = (0, 0);
    // SAFETY: the attributes are used after they were filled and until they are destroyed.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return 0;
        }
        let attributes = attributes.as_mut_ptr();
        let failed = libc::pthread_attr_getstack(attributes, &raw mut lowest, &raw mut length) != 0
            || libc::pthread_attr_getguardsize(attributes, &raw mut guard) != 0;
        libc::pthread_attr_destroy(attributes);
        if failed {
            return 0;
        }
    }
    // Versions of the library differ in whether the guard is part of the stack.
    lowest.addr() + guard
}

#[cold]
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn end_of_stack() -> usize {
    0
}
