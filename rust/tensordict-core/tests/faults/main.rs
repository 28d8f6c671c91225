//! Every system call of a small save fails once, in every way: what is left is the old save
//! or the new one, and nothing else. The same for what makes, changes or packs a save in another way.
//!
//! All of it is one test, in a process of its own: it counts descriptors and threads.

mod others;
mod saves;
mod small;
mod steps;

use std::fs;
use std::thread;
use std::time::Duration;

use small::count;

#[test]
fn test_every_call_fails_once() {
    let (descriptors, threads) = (count("/proc/self/fd"), num_threads());
    others::fail_all();
    saves::fail_all();
    steps::fail_all();
    assert_eq!(count("/proc/self/fd"), descriptors, "descriptors are left");
    // The kernel lists a thread a little longer than it runs.
    let settled = (0..100).any(|_| {
        thread::sleep(Duration::from_millis(10));
        num_threads() == threads
    });
    assert!(settled, "threads are left");
}

/// Counts the threads of this process but those of the pool, which stay.
fn num_threads() -> usize {
    let all = fs::read_dir("/proc/self/task").expect("Linux lists threads");
    all.filter(|thread| {
        let path = thread.as_ref().expect("a thread").path();
        // One that has ended meanwhile has no name.
        fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim_end() != "td-storage")
    })
    .count()
}
