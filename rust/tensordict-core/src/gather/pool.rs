//! Threads that stay: made on first use, of this process only.
//!
//! A call hands out tasks by number. The thread that calls works on them as well, so a call ends
//! also where no other thread comes by, and an idle thread takes whatever task is next. In the child
//! of a fork there are no such threads, and a lock may be held by nobody who is there: the child
//! forgets the pool and makes its own.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::thread;

/// No process has more threads than this.
const MOST_THREADS: usize = 64;

static POOL: AtomicPtr<Pool> = AtomicPtr::new(ptr::null_mut());

static FORGETS: Once = Once::new();

extern "C" fn forget_pool() {
    // Its content is left to the parent, and to the kernel.
    POOL.store(ptr::null_mut(), Ordering::Release);
}

/// The function that is called with the numbers of tasks.
struct Work(*const (dyn Fn(usize) + Sync));

// SAFETY: what it points to may be called by several threads, and lives until the last of them has
// left (`Call::run` waits for that).
unsafe impl Send for Work {}
// SAFETY: as above.
unsafe impl Sync for Work {}

/// Tasks of one call.
struct Call {
    work: Work,
    count: usize,
    next: AtomicUsize,
    /// The number of threads of the pool that are in it.
    inside: Mutex<usize>,
    left: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// A call, and how many threads may still come to it.
struct Offer {
    call: Arc<Call>,
    places: usize,
}

#[derive(Default)]
struct State {
    offers: VecDeque<Offer>,
    threads: usize,
}

#[derive(Default)]
struct Pool {
    state: Mutex<State>,
    offered: Condvar,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pool of this process.
fn pool() -> &'static Pool {
    FORGETS.call_once(|| {
        // SAFETY: the function stays where it is: neither a program nor an extension module of
        // Python is ever unloaded. Where it is refused there is no memory for anything else either.
        unsafe { libc::pthread_atfork(None, None, Some(forget_pool)) };
    });
    let mut known = POOL.load(Ordering::Acquire);
    if known.is_null() {
        let made = Box::into_raw(Box::<Pool>::default());
        known = match POOL.compare_exchange(known, made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => made,
            Err(other) => {
                // SAFETY: nobody has seen it.
                drop(unsafe { Box::from_raw(made) });
                other
            }
        };
    }
    // SAFETY: a pool that was published is never freed.
    unsafe { &*known }
}

impl Call {
    fn work(&self) {
        loop {
            let task = self.next.fetch_add(1, Ordering::Relaxed);
            if task >= self.count {
                return;
            }
            // SAFETY: the caller of `for_each` waits until nobody is inside.
            let work = unsafe { &*self.work.0 };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(task))) {
                self.next.store(self.count, Ordering::Relaxed);
                locked(&self.panic).get_or_insert(panic);
            }
        }
    }
}

impl Pool {
    /// Offers a call to so many threads, of which there are as many afterwards if the system has them.
    fn offer(&'static self, call: &Arc<Call>, places: usize) {
        let mut state = locked(&self.state);
        let more = places.min(MOST_THREADS).saturating_sub(state.threads);
        state.offers.push_back(Offer {
            call: call.clone(),
            places,
        });
        for _ in 0..more {
            let builder = thread::Builder::new().name("tensordict-rows".to_owned());
            if builder.spawn(|| self.serve()).is_err() {
                break;
            }
            state.threads += 1;
        }
        drop(state);
        for _ in 0..places.min(MOST_THREADS) {
            self.offered.notify_one();
        }
    }

    /// Waits for offers, for ever.
    fn serve(&self) {
        let mut state = locked(&self.state);
        loop {
            let Some(offer) = state.offers.front_mut() else {
                state = self
                    .offered
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let call = offer.call.clone();
            offer.places -= 1;
            if offer.places == 0 {
                state.offers.pop_front();
            }
            *locked(&call.inside) += 1;
            drop(state);
            call.work();
            let mut inside = locked(&call.inside);
            *inside -= 1;
            if *inside == 0 {
                call.left.notify_all();
            }
            drop(inside);
            state = locked(&self.state);
        }
    }

    fn withdraw(&self, call: &Arc<Call>) {
        let mut state = locked(&self.state);
        state.offers.retain(|offer| !Arc::ptr_eq(&offer.call, call));
    }
}

/// Calls `work` with every number below `count`, on at most `threads` threads, this one included.
///
/// # Panics
/// If `work` does, after all threads have left it.
pub(crate) fn for_each(count: usize, threads: usize, work: &(dyn Fn(usize) + Sync)) {
    let helpers = threads.min(count).min(MOST_THREADS + 1).saturating_sub(1);
    if helpers == 0 {
        (0..count).for_each(work);
        return;
    }
    // SAFETY: only the lifetime changes, and this function does not return while somebody is inside.
    let work: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(work) };
    let call = Arc::new(Call {
        work: Work(work),
        count,
        next: AtomicUsize::new(0),
        inside: Mutex::new(0),
        left: Condvar::new(),
        panic: Mutex::new(None),
    });
    let pool = pool();
    pool.offer(&call, helpers);
    call.work();
    // A thread that comes from now on would find no task, and none comes after this.
    pool.withdraw(&call);
    let mut inside = locked(&call.inside);
    while *inside > 0 {
        inside = call
            .left
            .wait(inside)
            .unwrap_or_else(PoisonError::into_inner);
    }
    drop(inside);
    let panic = locked(&call.panic).take();
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_every_task_is_done_once() {
        for threads in [1, 2, 5] {
            let counts: Vec<AtomicUsize> = (0..1000).map(|_| AtomicUsize::new(0)).collect();
            for_each(counts.len(), threads, &|task| {
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
    fn test_calls_of_several_threads_do_not_wait_for_each_other() {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let sum = AtomicUsize::new(0);
                        for_each(20, 3, &|task| {
                            sum.fetch_add(task, Ordering::Relaxed);
                        });
                        assert_eq!(sum.into_inner(), 190);
                    }
                });
            }
        });
    }

    #[test]
    fn test_a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let outcome = catch_unwind(|| for_each(50, 3, &|task| assert!(task != 30)));
        assert!(outcome.is_err());
        let done = AtomicUsize::new(0);
        for_each(10, 3, &|_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 10);
    }

    #[test]
    fn test_a_child_has_threads_of_its_own() {
        for_each(10, 3, &|_| {});
        // SAFETY: the child calls nothing but what the pool does, and ends without unwinding.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let sum = AtomicUsize::new(0);
            for_each(20, 3, &|task| {
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
