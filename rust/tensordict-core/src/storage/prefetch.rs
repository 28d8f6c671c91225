//! Work that other threads do while the caller goes on with what is done.
//!
//! Tensors are made by one thread, the one that holds Python's interpreter; finding and mapping their
//! bytes needs none. So [`prefetch_batches`] hands the latter out in batches and gives the caller a
//! [`Prefetch`], from which it takes them in order.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::{StorageError, StorageResult};
use crate::threads::{Help, STORAGE, locked};

/// Work in batches.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batches {
    /// The number of batches.
    pub(super) count: usize,
    /// The number of threads that take part, the caller included.
    pub(super) threads: usize,
    /// So many parts of all batches, of four, a helper does while the caller makes something of all.
    pub(super) helper_quarters: usize,
}

/// Does `work` for each batch with a few threads while `take` goes on with those that are done.
pub(super) fn prefetch_batches<T: Send, R>(
    batches: Batches,
    work: &(dyn Fn(usize) -> StorageResult<T> + Sync),
    take: impl FnOnce(Prefetch<'_, T>) -> R,
) -> R {
    let count = batches.count;
    let shared = Shared {
        work,
        done: (0..count).map(|_| Mutex::default()).collect(),
        next: AtomicUsize::new(0),
        error: Mutex::default(),
        has_failed: AtomicBool::new(false),
    };
    let helpers = batches.threads.min(count).saturating_sub(1);
    STORAGE.while_helped(helpers, &|| shared.run(count), |help| {
        let left = count * help.helpers() * batches.helper_quarters / 4;
        take(Prefetch {
            shared: &shared,
            most: count.saturating_sub(left),
            help,
            taken: 0,
        })
    })
}

/// Batches that are being worked on, to be taken in order.
pub struct Prefetch<'a, T> {
    shared: &'a Shared<'a, T>,
    help: &'a Help,
    /// After so many batches the rest is better left to the helpers.
    most: usize,
    taken: usize,
}

impl<T> Prefetch<'_, T> {
    /// Takes part until there is a batch to take, and what is left will be done by the other threads while
    /// this one goes on.
    ///
    /// # Errors
    /// The work failed. There is nothing to be taken then.
    pub fn begin(&mut self) -> StorageResult<()> {
        self.shared.run(self.most);
        while !self.shared.is_done(self.taken) {
            let begun = self.shared.next.load(Ordering::Relaxed);
            if begun >= self.shared.done.len() || self.shared.has_failed.load(Ordering::Acquire) {
                return self.finish();
            }
            self.shared.run(begun + 1);
        }
        Ok(())
    }

    /// Does what is left, and waits for the other threads.
    ///
    /// # Errors
    /// Those of [`Prefetch::begin`].
    pub fn finish(&mut self) -> StorageResult<()> {
        self.shared.run(self.shared.done.len());
        self.help.end();
        locked(&self.shared.error).take().map_or(Ok(()), Err)
    }

    /// Takes the next batch; None where it is not done yet, or at the end.
    pub fn next_batch(&mut self) -> Option<T> {
        let batch = self.shared.done.get(self.taken)?;
        let found = locked(batch).take()?;
        self.taken += 1;
        Some(found)
    }
}

/// All that is left, in order.
///
/// # Errors
/// Those of [`Prefetch::begin`].
pub(super) fn take_all<T: IntoIterator>(
    mut prefetch: Prefetch<'_, T>,
) -> StorageResult<Vec<T::Item>> {
    prefetch.finish()?;
    let mut all = Vec::new();
    while let Some(batch) = prefetch.next_batch() {
        all.extend(batch);
    }
    Ok(all)
}

/// State that the threads share.
struct Shared<'w, T> {
    work: &'w (dyn Fn(usize) -> StorageResult<T> + Sync),
    /// Results that are done and not taken yet, by batch.
    done: Vec<Mutex<Option<T>>>,
    next: AtomicUsize,
    /// The first one.
    error: Mutex<Option<StorageError>>,
    has_failed: AtomicBool,
}

impl<T> Shared<'_, T> {
    /// Does batches that nobody has begun, until `most` of them are begun or something fails.
    fn run(&self, most: usize) {
        while !self.has_failed.load(Ordering::Relaxed) && self.next.load(Ordering::Relaxed) < most {
            let batch = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(slot) = self.done.get(batch) else {
                break;
            };
            match (self.work)(batch) {
                Ok(found) => {
                    *locked(slot) = Some(found);
                }
                Err(error) => {
                    locked(&self.error).get_or_insert(error);
                    self.has_failed.store(true, Ordering::Release);
                }
            }
        }
    }

    fn is_done(&self, batch: usize) -> bool {
        let slot = self.done.get(batch);
        slot.is_some_and(|slot| locked(slot).is_some())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn batches(threads: usize, helper_quarters: usize) -> Batches {
        Batches {
            count: 100,
            threads,
            helper_quarters,
        }
    }

    #[test]
    fn test_batches_are_taken_in_order() {
        for (threads, quarters) in [(1, 1), (2, 1), (2, 12), (4, 4)] {
            let taken = prefetch_batches(
                batches(threads, quarters),
                &|batch| Ok(batch),
                |mut prefetch| {
                    prefetch.begin().unwrap();
                    let mut taken = vec![prefetch.next_batch().expect("the first is there")];
                    while taken.len() < 100 {
                        match prefetch.next_batch() {
                            Some(batch) => taken.push(batch),
                            None => prefetch.finish().unwrap(),
                        }
                    }
                    assert_eq!(prefetch.next_batch(), None);
                    taken
                },
            );
            assert_eq!(taken, (0..100).collect::<Vec<_>>());
        }
    }

    #[test]
    fn test_an_error_is_given_where_the_caller_waits() {
        for threads in [1, 3] {
            let failed = prefetch_batches(
                batches(threads, 12),
                &|batch| match batch {
                    7 => Err(StorageError::Replaced {
                        path: PathBuf::from("x"),
                    }),
                    _ => Ok([batch]),
                },
                take_all,
            );
            assert!(matches!(failed, Err(StorageError::Replaced { .. })));
        }
    }
}
