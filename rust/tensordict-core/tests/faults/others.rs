//! Faults in the calls that make, change or pack a save without a plan.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use tensordict_core::storage::archive::{self, Archive, Method};
use tensordict_core::storage::commit::{self, SaveOptions};
use tensordict_core::storage::io::{Call, Disk, Fault, Faulty};
use tensordict_core::storage::job::{Job, Progress};
use tensordict_core::storage::lock::LockedLevel;
use tensordict_core::storage::metadata::{Entry, LeafMeta};
use tensordict_core::storage::plan::Content;
use tensordict_core::storage::region::Region;
use tensordict_core::storage::verify::{Outcome, Scrutiny, seal, verify};
use tensordict_core::storage::{METADATA_FILE, StorageResult, replace, sparse};

use super::small::{EIO, FAULTS, copy_into, listing, place, plan, side_by_side, values};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Task {
    /// Files of zeros, where nothing is.
    Like,
    /// The same, with their space set aside.
    LikeReserved,
    /// In the place of a save of shorter leaves, with their space set aside.
    LikeLonger,
    LikeArchive,
    /// A save that is written over in place.
    InPlace,
    Seal,
    Refresh,
    Pack,
    PackOver,
    PackDeflated,
    Unpack,
    UnpackOver,
    /// Into a directory with a save of longer leaves, and other files.
    UnpackBeside,
    AddEntry,
    WriteFile,
    WriteFileOver,
    CreateFile,
    LengthenFile,
}

/// The states that a call that failed may leave.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Left {
    /// The old one, or the new one.
    OldOrNew,
    /// A save that loads, of the old values and the new.
    Mixed,
    /// The same values, whatever else.
    Same,
}

const TASKS: [Task; 18] = [
    Task::Like,
    Task::LikeReserved,
    Task::LikeLonger,
    Task::LikeArchive,
    Task::InPlace,
    Task::Seal,
    Task::Refresh,
    Task::Pack,
    Task::PackOver,
    Task::PackDeflated,
    Task::Unpack,
    Task::UnpackOver,
    Task::UnpackBeside,
    Task::AddEntry,
    Task::WriteFile,
    Task::WriteFileOver,
    Task::CreateFile,
    Task::LengthenFile,
];

const LONGER: usize = 9000;

fn save_tree(value: u8, length: usize, path: &Path, job: &Job<'_>, in_place: bool) {
    try_save_tree(value, length, path, job, in_place).unwrap();
}

fn try_save_tree(
    value: u8,
    length: usize,
    path: &Path,
    job: &Job<'_>,
    in_place: bool,
) -> StorageResult<()> {
    let options = SaveOptions {
        exist_ok: true,
        in_place,
    };
    commit::save(job, &plan(value, length), path, options).map(drop)
}

impl Task {
    fn left(self) -> Left {
        match self {
            Self::InPlace | Self::UnpackOver | Self::UnpackBeside => Left::Mixed,
            Self::Seal | Self::Refresh | Self::LengthenFile => Left::Same,
            _ => Left::OldOrNew,
        }
    }

    /// Makes what the task finds in `folder`.
    fn prepare(self, folder: &Path) {
        let progress = Progress::default();
        let job = Job::new(&progress);
        let (target, source) = (folder.join("save"), folder.join("source"));
        match self {
            Self::Like
            | Self::LikeReserved
            | Self::LikeArchive
            | Self::WriteFile
            | Self::CreateFile => {}
            Self::LikeLonger | Self::InPlace | Self::AddEntry => {
                save_tree(1, 5, &target, &job, false);
            }
            Self::Seal => {
                save_tree(1, 5, &target, &job, false);
                fs::write(target.join("n/b.memmap"), [2, 2, 2]).unwrap();
            }
            Self::Refresh => {
                archive::save(&job, &plan(1, 5), &target, Method::Stored).unwrap();
                let archive = Archive::open(&target).unwrap();
                let file = fs::File::options().write(true).open(&target).unwrap();
                for name in ["a.memmap", "large.memmap"] {
                    let offset = archive.offset(name, &archive.entries()[name]).unwrap();
                    file.write_all_at(&[2, 2], offset).unwrap();
                }
            }
            Self::Pack | Self::PackOver | Self::PackDeflated => {
                save_tree(2, 5, &source, &job, false);
                if self != Self::Pack {
                    archive::save(&job, &plan(1, 5), &target, Method::Stored).unwrap();
                }
            }
            Self::Unpack | Self::UnpackOver | Self::UnpackBeside => {
                archive::save(&job, &plan(2, 5), &source, Method::Stored).unwrap();
                match self {
                    Self::UnpackOver => save_tree(1, 5, &target, &job, false),
                    Self::UnpackBeside => {
                        save_tree(1, LONGER, &target, &job, false);
                        fs::write(target.join("notes.txt"), "mine").unwrap();
                    }
                    _ => {}
                }
            }
            Self::WriteFileOver | Self::LengthenFile => fs::write(&target, [1; 5]).unwrap(),
        }
    }

    fn run(self, job: &Job<'_>, folder: &Path) -> StorageResult<()> {
        let (target, source) = (folder.join("save"), folder.join("source"));
        let like = |length, is_reserved| {
            let mut zeros = plan(0, length);
            for leaf in 0..3 {
                zeros.set_content(leaf, Content::Absent);
            }
            let job = Job {
                has_checksums: false,
                is_reserved,
                ..*job
            };
            let options = SaveOptions {
                exist_ok: true,
                in_place: false,
            };
            commit::save(&job, &zeros, &target, options)
        };
        match self {
            Self::Like => like(5, false).map(drop),
            Self::LikeReserved => like(5, true).map(drop),
            Self::LikeLonger => like(LONGER, true).map(drop),
            Self::LikeArchive => archive::create(job, &plan(0, 5), &target, true).map(drop),
            Self::InPlace => try_save_tree(2, 5, &target, job, true),
            Self::Seal => seal(job, &target).map(drop),
            Self::Refresh => archive::refresh(job, &target).map(drop),
            Self::Pack | Self::PackOver => archive::pack(job, &source, &target, Method::Stored),
            Self::PackDeflated => archive::pack(job, &source, &target, Method::Deflate(1)),
            Self::Unpack | Self::UnpackOver | Self::UnpackBeside => {
                archive::unpack(job, &source, &target)
            }
            Self::AddEntry => {
                // Without items, and so without a file.
                let entry = Entry::Leaf(LeafMeta {
                    device: "cpu".into(),
                    shape: vec![0].into(),
                    dtype: "torch.uint8".into(),
                    is_nested: false,
                });
                LockedLevel::wait(job.disk, &target)?.add("later", &entry)
            }
            Self::WriteFile | Self::WriteFileOver => {
                let bytes = [2; 7];
                // SAFETY: the bytes outlive the call.
                let region = unsafe { Region::new(bytes.as_ptr(), bytes.len()) };
                replace::write_file(job.disk, &target, region, 3 * 7).map(drop)
            }
            Self::CreateFile | Self::LengthenFile => {
                sparse::create_file(job.disk, &target, LONGER as u64).map(drop)
            }
        }
    }

    /// Returns the text that tells the old from the new: the values of a save; of others the bytes.
    fn state(self, folder: &Path) -> Option<Vec<u8>> {
        let target = folder.join("save");
        match self {
            Self::AddEntry => Some(fs::read(target.join(METADATA_FILE)).unwrap()),
            Self::WriteFile | Self::WriteFileOver | Self::CreateFile | Self::LengthenFile => {
                fs::read(target).ok()
            }
            _ => values(&target),
        }
    }
}

/// Lets every call of every task fail.
pub(crate) fn fail_all() {
    side_by_side(&TASKS, |task| {
        let new = {
            let place = place();
            task.prepare(place.path());
            let progress = Progress::default();
            task.run(&Job::new(&progress), place.path()).unwrap();
            task.state(place.path())
        };
        let found = place();
        task.prepare(found.path());
        for fault in FAULTS {
            // Compression takes its time, and other faults go the same ways.
            if task == Task::PackDeflated && !matches!(fault, Fault::Error { number: EIO, .. }) {
                continue;
            }
            let calls = (0..10_000)
                .take_while(|&at| run(task, fault, at, found.path(), new.as_ref()))
                .count();
            assert!(calls > 2, "{task:?}: only {calls} calls were made");
        }
    });
}

/// Returns whether the call with the number `at` was made, where the task finds what is in
/// `before`.
fn run(task: Task, fault: Fault, at: usize, before: &Path, new: Option<&Vec<u8>>) -> bool {
    let place = place();
    let folder = place.path();
    copy_into(folder, before);
    let (old, files) = (task.state(folder), listing(folder));
    let io = Faulty::new(at, fault);
    let progress = Progress::default();
    let job = Job {
        disk: Disk(&io),
        threads: 2,
        is_durable: true,
        ..Job::new(&progress)
    };
    let result = task.run(&job, folder);
    let Some(call) = io.hit() else {
        result.unwrap();
        return false;
    };
    let shown = format!("{task:?}, {fault:?} of call {at}, {call:?}: {result:?}");
    if matches!(fault, Fault::Short | Fault::Interrupted) {
        assert!(result.is_ok(), "{shown}");
    }
    let found = task.state(folder);
    let is_left = listing(folder)
        .iter()
        .any(|path| path.to_str().unwrap().contains("tdtmp"));
    if call != Call::Remove {
        assert!(!is_left, "{shown}");
    }
    match (&result, task.left()) {
        (Ok(()), _) => assert_eq!(found.as_ref(), new, "{shown}"),
        (Err(_), Left::OldOrNew) => {
            assert!(found == old || found.as_ref() == new, "{shown}");
            if found == old && call != Call::Remove {
                assert_eq!(listing(folder), files, "{shown}");
            }
        }
        (Err(_), Left::Mixed) => {
            let found = found.expect("a save is there");
            assert!(found.iter().all(|value| *value <= 2), "{shown}");
        }
        (Err(_), Left::Same) => {
            let (found, old) = (found.unwrap(), old.unwrap());
            assert_eq!(found[..old.len()], old, "{shown}");
            assert!(
                found[old.len()..].iter().all(|value| *value == 0),
                "{shown}"
            );
        }
    }
    let target = folder.join("save");
    if task == Task::UnpackBeside {
        assert_eq!(fs::read(target.join("notes.txt")).unwrap(), b"mine");
    }
    let is_save = target.join(METADATA_FILE).exists() || Archive::open(&target).is_ok();
    if is_save {
        let report = verify(&target, &Scrutiny::new(&Progress::default())).unwrap();
        assert!(report.lines(Outcome::Damaged).is_empty(), "{shown}");
    }
    // Afterwards it works.
    task.run(&Job::new(&progress), folder).unwrap();
    assert_eq!(task.state(folder).as_ref(), new, "{shown}");
    if matches!(task, Task::Seal | Task::Refresh) {
        let report = verify(&target, &Scrutiny::new(&Progress::default())).unwrap();
        let is_good = |outcome| outcome == Outcome::Good;
        assert!(
            report.findings.iter().all(|one| is_good(one.outcome)),
            "{shown}"
        );
    }
    true
}
