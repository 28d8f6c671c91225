//! Steps of checkpoints: a call that fails leaves those that were there, and no half of a new one.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use tensordict_core::storage::StorageResult;
use tensordict_core::storage::checkpoint::{self, Gathered, Part, Step, StepFile, process_name};
use tensordict_core::storage::io::{Call, Disk, Fault, Faulty};
use tensordict_core::storage::job::{Job, Progress};
use tensordict_core::storage::safetensors::{NewFile, NewTensor, read_header};
use tensordict_core::storage::source::Source;

use super::small::{EIO, FAULTS, copy_into, place, side_by_side};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Task {
    /// The first one of a folder that is not there.
    First,
    /// One that makes another superfluous, of which it has a file.
    Next,
    /// One in the place of another of this number.
    Over,
    /// One to which another process adds files.
    Gathered,
}

type Steps = BTreeMap<String, BTreeMap<String, Vec<u8>>>;

/// The bytes of the large file, which takes several writes.
const LARGE: usize = 1 << 20;

fn step(folder: &Path, number: u8, task: Task) -> Step {
    let tensor = |name: &str, length: usize| NewTensor {
        name: name.to_owned(),
        dtype: "U8",
        shape: vec![i64::try_from(length).unwrap()],
        source: Source::Bytes(vec![number; length]),
        item_bytes: 1,
    };
    let tensors = vec![tensor("large", LARGE), tensor("small", 3)];
    let old = folder.join("step-1");
    let mut files = vec![
        StepFile::Bytes("meta.json".to_owned(), vec![number; 5]),
        StepFile::Tensors(NewFile {
            path: "model.safetensors".into(),
            other_path: None,
            tensors,
            metadata: Vec::new(),
        }),
    ];
    let (mut target, mut retired, mut gathered) =
        (folder.join("step-2"), Vec::new(), Gathered::default());
    match task {
        Task::First => {}
        Task::Next => {
            files.push(StepFile::Linked("linked".to_owned(), old.join("meta.json")));
            retired.push(old);
        }
        Task::Over => target = old,
        Task::Gathered => {
            gathered.limit = Duration::from_secs(60);
            gathered.parts.push(Part {
                path: folder.join(".parts/rank-1"),
                writer: process_name(),
                rank: 1,
            });
        }
    }
    Step {
        folder: folder.to_path_buf(),
        target,
        files,
        retired,
        gathered,
    }
}

impl Task {
    /// Makes what the task finds in `folder`.
    fn prepare(self, folder: &Path) {
        if self == Self::First {
            return;
        }
        let run = folder.join("run");
        let progress = Progress::default();
        checkpoint::save(&Job::new(&progress), &step(&run, 1, Self::Over)).unwrap();
        if self == Self::Gathered {
            let part = run.join(".parts/rank-1");
            fs::create_dir_all(&part).unwrap();
            fs::write(part.join("of another"), "x").unwrap();
        }
    }

    fn run(self, job: &Job<'_>, folder: &Path) -> StorageResult<()> {
        checkpoint::save(job, &step(&folder.join("run"), 2, self))
    }
}

/// The bytes of a file; of tensors without the header, which has the time of the save.
fn content(path: &Path) -> Vec<u8> {
    let mut bytes = fs::read(path).unwrap();
    if path.extension().is_some_and(|end| end == "safetensors") {
        let tensors = read_header(path).unwrap().tensors;
        let begin = tensors.values().map(|one| one.offset).min().unwrap();
        bytes.drain(..usize::try_from(begin).unwrap());
    }
    bytes
}

/// The steps of a folder, each with its files and their bytes; and whether there is something else.
fn state(folder: &Path) -> (Steps, bool) {
    let (mut steps, mut has_more) = (BTreeMap::new(), false);
    let Ok(entries) = fs::read_dir(folder.join("run")) else {
        return (steps, false);
    };
    for entry in entries {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !name.starts_with("step-") {
            has_more = true;
            continue;
        }
        let files = fs::read_dir(&path).unwrap().map(|file| {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, content(&path))
        });
        steps.insert(name, files.collect());
    }
    (steps, has_more)
}

/// Lets every call of every task fail.
pub(crate) fn fail_all() {
    let mut tasks = Vec::new();
    for task in [Task::First, Task::Next, Task::Over, Task::Gathered] {
        tasks.extend(FAULTS.map(|fault| (task, fault, false)));
        let fault = Fault::Error {
            number: EIO,
            lasts: false,
        };
        tasks.push((task, fault, true));
    }
    side_by_side(&tasks, |(task, fault, is_durable)| {
        let found = place();
        task.prepare(found.path());
        let new = {
            let place = place();
            copy_into(place.path(), found.path());
            let progress = Progress::default();
            task.run(&Job::new(&progress), place.path()).unwrap();
            state(place.path()).0
        };
        let calls = (0..10_000)
            .take_while(|&at| run((task, fault, is_durable), at, found.path(), &new))
            .count();
        assert!(calls > 8, "{task:?}: only {calls} calls were made");
    });
}

/// Returns whether the call with the number `at` was made, where the task finds what is in
/// `before`.
fn run(
    (task, fault, is_durable): (Task, Fault, bool),
    at: usize,
    before: &Path,
    new: &Steps,
) -> bool {
    let place = place();
    let folder = place.path();
    copy_into(folder, before);
    let (old, _) = state(folder);
    let io = Faulty::new(at, fault);
    let progress = Progress::default();
    let faulty = Job {
        disk: Disk(&io),
        threads: 2,
        is_durable,
        ..Job::new(&progress)
    };
    let result = task.run(&faulty, folder);
    let Some(call) = io.hit() else {
        result.unwrap();
        return false;
    };
    let shown = format!("{task:?}, {fault:?} of call {at}, {call:?}: {result:?}");
    if matches!(fault, Fault::Short | Fault::Interrupted) {
        assert!(result.is_ok(), "{shown}");
    }
    let (found, has_more) = state(folder);
    // A step that could not be deleted is tried again by the next save.
    let with_old: Steps = old.clone().into_iter().chain(new.clone()).collect();
    let is_new = found == *new || found == with_old;
    if result.is_ok() {
        assert!(is_new, "{shown}");
    } else {
        assert!(found == old || is_new, "{shown}");
    }
    if call != Call::Remove && task != Task::Gathered {
        assert!(!has_more, "{shown}");
    }
    if task == Task::Gathered {
        // Files that were moved out of a part of another process are lost with the step.
        return true;
    }
    // Afterwards it works.
    task.run(&Job::new(&progress), folder)
        .unwrap_or_else(|error| {
            // The step that is linked to has gone by then.
            assert!(task == Task::Next && is_new, "{shown}: {error}");
        });
    let (found, has_more) = state(folder);
    assert!(found == *new && !has_more, "{shown}");
    true
}
