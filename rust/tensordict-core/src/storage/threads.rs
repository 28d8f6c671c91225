//! Threads for one call: made when it begins, gone when it ends.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};

/// No more threads than this unless asked for: a disk gains nothing from more.
const DEFAULT_LIMIT: usize = 8;

/// The cores that this process may use; 0 before they are known: asked for once, since that reads a
/// dozen files of the system. (No lock is held meanwhile, as another thread may fork.)
static AVAILABLE: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of threads to use: `asked`, or for 0 the cores this process may use, at most
/// 8.
#[must_use]
pub fn thread_count(asked: usize) -> usize {
    if asked > 0 {
        return asked;
    }
    let known = AVAILABLE.load(Ordering::Relaxed);
    if known > 0 {
        return known;
    }
    let found = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let found = found.min(DEFAULT_LIMIT);
    AVAILABLE.store(found, Ordering::Relaxed);
    found
}

/// Calls `work` with every index below `count`, on at most `threads` threads, this one
/// included. Indices are handed out in order. After the first error no more are.
///
/// A thread that cannot be started is done without: this one does what is left.
pub(crate) fn for_each<E: Send>(
    count: usize,
    threads: usize,
    work: impl Fn(usize) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let run = || {
        while !failed.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            if let Err(error) = work(index) {
                failed.store(true, Ordering::Relaxed);
                return Err(error);
            }
        }
        Ok(())
    };
    let helpers = threads.min(count).saturating_sub(1);
    if helpers == 0 {
        return run();
    }
    thread::scope(|scope| {
        let started = start(scope, helpers, run);
        let mut outcome = run();
        for helper in started {
            match helper.join() {
                Ok(result) => outcome = outcome.and(result),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        outcome
    })
}

/// Starts threads that do the same; fewer where the system has no more.
pub(crate) fn start<'s, R: Send + 's>(
    scope: &'s Scope<'s, '_>,
    count: usize,
    run: impl Fn() -> R + Copy + Send + 's,
) -> Vec<ScopedJoinHandle<'s, R>> {
    (0..count)
        .map_while(|_| {
            thread::Builder::new()
                .name("tensordict-io".to_owned())
                .spawn_scoped(scope, run)
                .ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn test_every_index_is_worked_on_once() {
        for threads in [1, 4] {
            let seen = Mutex::new(Vec::new());
            for_each(100, threads, |index| {
                seen.lock().unwrap().push(index);
                Ok::<_, ()>(())
            })
            .unwrap();
            let mut seen = seen.into_inner().unwrap();
            seen.sort_unstable();
            assert_eq!(seen, (0..100).collect::<Vec<_>>());
        }
    }

    #[test]
    fn test_an_error_ends_the_work() {
        let outcome = for_each(
            1_000_000,
            3,
            |index| if index == 7 { Err(index) } else { Ok(()) },
        );
        assert_eq!(outcome, Err(7));
    }
}
