//! Threads of this process: private pools of rayon, made on first use.
//!
//! A call hands out tasks by number, and the thread that calls works on them as well: it waits for no
//! thread that has not come yet, so it ends also where every thread of the pool is at something else.
//! In the child of a fork there are no such threads, and a lock may be held by nobody who is there: the
//! child forgets the pools and makes its own. Nothing of rayon's global pool is used, which could not be
//! forgotten.

use std::any::Any;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::thread;

use rayon::{ThreadPool, ThreadPoolBuilder};

/// No more threads than this unless asked for: a disk gains nothing from more.
const DEFAULT_LIMIT: usize = 8;

/// No pool has more threads than this.
const MOST_THREADS: usize = 64;

/// The threads that copy rows. They are not those of [`STORAGE`], whose calls can take minutes.
pub(crate) static ROWS: Pool = Pool::new("td-rows");

/// The threads that read, write and check files.
pub(crate) static STORAGE: Pool = Pool::new("td-storage");

/// The cores that this process may use; 0 before they are known: asked for once, since that reads a
/// dozen files of the system. (No lock is held meanwhile, as another thread may fork.)
static AVAILABLE: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of threads to use: `asked`, or for 0 the cores this process may use by its affinity
/// and its control group, at most 8.
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

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pool of threads of one process, which grows to the most that was asked for.
pub(crate) struct Pool {
    /// The name of its threads, of which the system keeps 15 letters.
    name: &'static str,
    threads: AtomicPtr<ThreadPool>,
}

extern "C" fn forget_pools() {
    // Their content is left to the parent, and to the kernel.
    for pool in [&ROWS, &STORAGE] {
        pool.threads.store(ptr::null_mut(), Ordering::Release);
    }
}

static FORGETS: Once = Once::new();

impl Pool {
    const fn new(name: &'static str) -> Self {
        Self {
            name,
            threads: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Returns the pool with at least so many threads; None where the system has none.
    fn with_threads(&'static self, count: usize) -> Option<&'static ThreadPool> {
        let mut known = self.threads.load(Ordering::Acquire);
        // SAFETY: a pool that was published is never freed.
        let is_enough = |known: *mut ThreadPool| unsafe {
            known
                .as_ref()
                .is_some_and(|pool| pool.current_num_threads() >= count)
        };
        if !is_enough(known) {
            FORGETS.call_once(|| {
                // SAFETY: the function stays where it is: neither a program nor an extension module
                // of Python is ever unloaded. Where it is refused there is no memory for anything
                // else either.
                unsafe { libc::pthread_atfork(None, None, Some(forget_pools)) };
            });
            // Powers of two, so that few pools are made. One that is too small stays, as calls may be
            // on it; its threads sleep.
            let size = count.next_power_of_two().max(thread_count(0));
            let name = self.name;
            let made = ThreadPoolBuilder::new()
                .num_threads(size)
                .thread_name(move |_| name.to_owned())
                .build();
            if let Ok(made) = made {
                let made = Box::into_raw(Box::new(made));
                let swapped =
                    self.threads
                        .compare_exchange(known, made, Ordering::AcqRel, Ordering::Acquire);
                known = match swapped {
                    Ok(_) => made,
                    Err(other) => {
                        // SAFETY: nobody has seen it.
                        drop(unsafe { Box::from_raw(made) });
                        other
                    }
                };
            }
        }
        // SAFETY: as above.
        unsafe { known.as_ref() }
    }

    /// Has `task` done by a thread of the pool, which has at least so many; false where there is none.
    pub(crate) fn spawn(
        &'static self,
        threads: usize,
        task: impl FnOnce() + Send + 'static,
    ) -> bool {
        let pool = self.with_threads(threads.min(MOST_THREADS));
        pool.map(|pool| pool.spawn(task)).is_some()
    }

    /// Calls `body` while at most so many threads of the pool call `work`, each once.
    ///
    /// # Panics
    /// If `body` or `work` does, after all threads have left.
    pub(crate) fn while_helped<R>(
        &'static self,
        helpers: usize,
        work: &(dyn Fn() + Sync),
        body: impl FnOnce(&Help) -> R,
    ) -> R {
        let helpers = helpers.min(MOST_THREADS);
        // SAFETY: only the lifetime changes. `Help` is dropped before this function returns or unwinds,
        // and then nobody is inside of `work`, nor will be.
        let work: &'static (dyn Fn() + Sync) = unsafe { std::mem::transmute(work) };
        let mut help = Help {
            call: Arc::new(Call {
                work,
                presence: Mutex::default(),
                left: Condvar::new(),
                panic: Mutex::new(None),
            }),
            helpers: 0,
        };
        if helpers > 0
            && let Some(pool) = self.with_threads(helpers)
        {
            help.helpers = helpers;
            for _ in 0..helpers {
                let call = help.call.clone();
                pool.spawn(move || call.help());
            }
        }
        let result = body(&help);
        help.end();
        result
    }

    /// Calls `work` with every number below `count`, on at most `threads` threads, this one included.
    /// Numbers are handed out in order.
    ///
    /// # Panics
    /// If `work` does, after all threads have left it.
    pub(crate) fn for_each(
        &'static self,
        count: usize,
        threads: usize,
        work: &(dyn Fn(usize) + Sync),
    ) {
        let helpers = threads.min(count).saturating_sub(1);
        if helpers == 0 {
            (0..count).for_each(work);
            return;
        }
        let next = AtomicUsize::new(0);
        let run = || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    break;
                }
                work(number);
            }
        };
        self.while_helped(helpers, &run, |_| run());
    }

    /// Does the work of [`Pool::for_each`], with work that can fail. After the first error no more
    /// numbers are worked on.
    pub(crate) fn try_for_each<E: Send>(
        &'static self,
        count: usize,
        threads: usize,
        work: impl Fn(usize) -> Result<(), E> + Sync,
    ) -> Result<(), E> {
        let has_failed = AtomicBool::new(false);
        let first = Mutex::new(None);
        self.for_each(count, threads, &|number| {
            if has_failed.load(Ordering::Relaxed) {
                return;
            }
            if let Err(error) = work(number) {
                has_failed.store(true, Ordering::Relaxed);
                locked(&first).get_or_insert(error);
            }
        });
        let error = locked(&first).take();
        error.map_or(Ok(()), Err)
    }
}

/// The threads that are inside of a call.
#[derive(Default)]
struct Presence {
    inside: usize,
    /// True from when the call ends: nobody may come any more.
    is_over: bool,
}

/// Work that is offered to threads, for as long as its caller is there.
struct Call {
    work: &'static (dyn Fn() + Sync),
    presence: Mutex<Presence>,
    left: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Call {
    /// Works, if the call is not over.
    fn help(&self) {
        {
            let mut presence = locked(&self.presence);
            if presence.is_over {
                return;
            }
            presence.inside += 1;
        }
        if let Err(panic) = catch_unwind(AssertUnwindSafe(self.work)) {
            locked(&self.panic).get_or_insert(panic);
        }
        let mut presence = locked(&self.presence);
        presence.inside -= 1;
        if presence.inside == 0 {
            self.left.notify_all();
        }
    }
}

/// The threads that help a call.
pub(crate) struct Help {
    call: Arc<Call>,
    helpers: usize,
}

impl Help {
    /// Returns the number of threads that were asked to come.
    pub(crate) fn helpers(&self) -> usize {
        self.helpers
    }

    /// Waits until the threads that have come have left; no others come.
    ///
    /// # Panics
    /// If one of them did.
    pub(crate) fn end(&self) {
        self.leave();
        let panic = locked(&self.call.panic).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    fn leave(&self) {
        let mut presence = locked(&self.call.presence);
        presence.is_over = true;
        while presence.inside > 0 {
            presence = self
                .call
                .left
                .wait(presence)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Help {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_every_task_is_done_once() {
        for threads in [1, 2, 5] {
            let counts: Vec<AtomicUsize> = (0..1000).map(|_| AtomicUsize::new(0)).collect();
            ROWS.for_each(counts.len(), threads, &|task| {
                counts[task].fetch_add(1, Ordering::Relaxed);
            });
            assert!(
                counts
                    .iter()
                    .all(|count| count.load(Ordering::Relaxed) == 1)
            );
        }
    }

    #[test]
    fn test_an_error_ends_the_work() {
        let outcome =
            STORAGE.try_for_each(
                1_000_000,
                3,
                |index| {
                    if index == 7 { Err(index) } else { Ok(()) }
                },
            );
        assert_eq!(outcome, Err(7));
    }

    #[test]
    fn test_calls_of_several_threads_do_not_wait_for_each_other() {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let sum = AtomicUsize::new(0);
                        ROWS.for_each(20, 3, &|task| {
                            sum.fetch_add(task, Ordering::Relaxed);
                        });
                        assert_eq!(sum.into_inner(), 190);
                    }
                });
            }
        });
    }

    #[test]
    fn test_a_call_ends_while_every_thread_is_at_another_one() {
        let lock = Mutex::new(());
        let entered = AtomicUsize::new(0);
        let guard = locked(&lock);
        thread::scope(|scope| {
            scope.spawn(|| {
                STORAGE.for_each(2 * MOST_THREADS, MOST_THREADS, &|_| {
                    entered.fetch_add(1, Ordering::Relaxed);
                    drop(locked(&lock));
                });
            });
            // Its caller and all threads of the pool.
            while entered.load(Ordering::Relaxed) < MOST_THREADS {
                thread::yield_now();
            }
            STORAGE.for_each(10, 3, &|_| {});
            drop(guard);
        });
    }

    #[test]
    fn test_a_call_within_a_call_ends() {
        let sum = AtomicUsize::new(0);
        ROWS.for_each(10, 3, &|_| {
            ROWS.for_each(10, 3, &|_| {
                sum.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(sum.into_inner(), 100);
    }

    #[test]
    fn test_a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let outcome = catch_unwind(|| ROWS.for_each(50, 3, &|task| assert!(task != 30)));
        assert!(outcome.is_err());
        let done = AtomicUsize::new(0);
        ROWS.for_each(10, 3, &|_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 10);
    }

    #[test]
    fn test_a_child_has_threads_of_its_own() {
        ROWS.for_each(10, 3, &|_| {});
        // SAFETY: the child calls nothing but what the pool does, and ends without unwinding.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let sum = AtomicUsize::new(0);
            ROWS.for_each(20, 3, &|task| {
                sum.fetch_add(task, Ordering::Relaxed);
            });
            // SAFETY: it ends this process and nothing else.
            unsafe { libc::_exit(i32::from(sum.into_inner() != 190)) };
        }
        let mut status = 0;
        // SAFETY: the child is ours, and there is room for the status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
