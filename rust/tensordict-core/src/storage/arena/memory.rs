//! The memory of an arena that processes share: words, and a mutex among them.

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

pub(super) type Word = AtomicU64;

/// The words of the header.
pub(super) const HEADER_WORDS: usize = 16;

/// The first of the words that the mutex takes, up to the end of the header.
pub(super) const MUTEX_WORD: usize = 8;

const _: () =
    assert!(size_of::<libc::pthread_mutex_t>() <= (HEADER_WORDS - MUTEX_WORD) * size_of::<Word>());
const _: () = assert!(align_of::<libc::pthread_mutex_t>() <= align_of::<Word>());

/// The first words of a file, mapped.
#[derive(Debug)]
pub(super) struct Table {
    raw: MmapRaw,
    num_words: usize,
}

impl Table {
    /// Maps the first `num_words` of a file, which has them.
    pub(super) fn map(file: &File, num_words: usize) -> io::Result<Self> {
        let length = num_words * size_of::<Word>();
        let raw = MmapOptions::new().len(length).map_raw(file)?;
        Ok(Self { raw, num_words })
    }

    pub(super) fn word(&self, at: usize) -> &Word {
        assert!(at < self.num_words, "there is no word {at}");
        let pointer = self.pointer().wrapping_add(at);
        // SAFETY: the pointer is within the mapping, aligned (a mapping begins at a page), and the
        // mapping lives as long as `self`. All processes use the words as atomics only; a
        // caller never asks for those of the mutex.
        unsafe { Word::from_ptr(pointer) }
    }

    /// Makes the mutex. Nobody else may have the file yet.
    pub(super) fn make_mutex(&self) -> io::Result<()> {
        // SAFETY: it is memory of its own in the mapping, which nobody else uses yet.
        unsafe { make_mutex(self.mutex()) }
    }

    /// Returns whether there is a mutex such as [`Self::make_mutex`] makes, whoever holds it.
    pub(super) fn has_mutex(&self) -> io::Result<bool> {
        let mut fresh = [0_u64; HEADER_WORDS - MUTEX_WORD];
        // SAFETY: it is memory of our own, large enough and aligned.
        unsafe { make_mutex(fresh.as_mut_ptr().cast())? };
        Ok(fresh.iter().zip(MUTEX_WORD..).all(|(fresh, at)| {
            let found = self.word(at).load(Ordering::Relaxed).to_ne_bytes();
            // The bytes that are not zero while nobody holds it name its kind.
            let mut bytes = fresh.to_ne_bytes().into_iter().zip(found);
            bytes.all(|(fresh, found)| fresh == 0 || fresh == found)
        }))
    }

    /// Keeps all others from locking, in this process and in others, until it is dropped. If a
    /// thread or process ends that holds it, the next one gets it.
    pub(super) fn lock(&self) -> io::Result<Locked<'_>> {
        // SAFETY: the mutex was made before anybody could open the file, and lives in the mapping.
        let answer = unsafe { libc::pthread_mutex_lock(self.mutex()) };
        if answer == libc::EOWNERDEAD {
            // Whatever its owner was doing: what is published is whole at any time.
            // SAFETY: this thread holds the mutex, whose owner died.
            check(unsafe { libc::pthread_mutex_consistent(self.mutex()) })?;
        } else {
            check(answer)?;
        }
        Ok(Locked {
            table: self,
            _stays: PhantomData,
        })
    }

    fn mutex(&self) -> *mut libc::pthread_mutex_t {
        self.pointer().wrapping_add(MUTEX_WORD).cast()
    }

    fn pointer(&self) -> *mut u64 {
        self.raw.as_mut_ptr().cast()
    }
}

/// A lock that is held. It must be given back by the thread that took it, so it is not `Send`.
pub(super) struct Locked<'t> {
    table: &'t Table,
    _stays: PhantomData<*const ()>,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread holds the mutex.
        unsafe { libc::pthread_mutex_unlock(self.table.mutex()) };
    }
}

/// # Safety
/// There is room for a mutex, which nobody else uses yet.
unsafe fn make_mutex(mutex: *mut libc::pthread_mutex_t) -> io::Result<()> {
    let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
    let attributes = attributes.as_mut_ptr();
    // SAFETY: the attributes are used after they were initialised and until they are destroyed;
    // the rest is the contract of this function.
    unsafe {
        check(libc::pthread_mutexattr_init(attributes))?;
        let made = check(libc::pthread_mutexattr_setpshared(
            attributes,
            libc::PTHREAD_PROCESS_SHARED,
        ))
        .and_then(|()| {
            check(libc::pthread_mutexattr_setrobust(
                attributes,
                libc::PTHREAD_MUTEX_ROBUST,
            ))
        })
        .and_then(|()| check(libc::pthread_mutex_init(mutex, attributes)));
        libc::pthread_mutexattr_destroy(attributes);
        made
    }
}

fn check(answer: i32) -> io::Result<()> {
    match answer {
        0 => Ok(()),
        number => Err(io::Error::from_raw_os_error(number)),
    }
}
