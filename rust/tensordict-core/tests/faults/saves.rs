//! Saves of all layouts.

use std::fs;
use std::path::{Path, PathBuf};

use tensordict_core::storage::StorageResult;
use tensordict_core::storage::archive::{self, Method};
use tensordict_core::storage::commit::{self, SaveOptions};
use tensordict_core::storage::consolidated;
use tensordict_core::storage::file::Segment;
use tensordict_core::storage::io::{Call, Disk, Fault, Faulty};
use tensordict_core::storage::job::{Job, Progress};
use tensordict_core::storage::safetensors::{self, NewFile, NewIndex, NewTensor};
use tensordict_core::storage::source::Source;
use tensordict_core::storage::verify::{Outcome, Scrutiny, verify};

use super::small::{EIO, FAULTS, copy_into, count, place, plan, side_by_side, values};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Target {
    Absent,
    Whole,
    Mixed,
    /// A directory with a save of longer leaves, and other files.
    MixedLonger,
    AbsentArchive,
    Archive,
    AbsentSafetensors,
    Safetensors,
    AbsentShards,
    Shards,
    AbsentConsolidated,
    Consolidated,
}

/// The tensors of a safetensors file of one value.
fn tensors(value: u8) -> Vec<NewTensor> {
    [("a", 5), ("b", 3), ("large", 1 << 20)]
        .map(|(name, length)| NewTensor {
            name: name.to_owned(),
            dtype: "U8",
            shape: vec![i64::try_from(length).unwrap()],
            source: Source::Bytes(vec![value; length]),
            item_bytes: 1,
        })
        .to_vec()
}

fn save_safetensors(job: &Job<'_>, value: u8, path: &Path) -> StorageResult<()> {
    let file = NewFile {
        path: path.to_path_buf(),
        other_path: None,
        tensors: tensors(value),
        metadata: Vec::new(),
    };
    safetensors::save(job, &[file], None, None, true).map(drop)
}

/// Three shards, whose index has the name `path`.
fn save_shards(job: &Job<'_>, value: u8, path: &Path) -> StorageResult<()> {
    let stem = path.to_str().unwrap();
    let stem = stem.strip_suffix(".safetensors.index.json").unwrap();
    let names = |save: &str| -> Vec<PathBuf> {
        (1..4)
            .map(|number| format!("{stem}{save}-{number:05}-of-00003.safetensors").into())
            .collect()
    };
    let (usual, own) = (names(""), names(&format!("-{value:016x}")));
    let text = |files: &[PathBuf]| {
        let rows: Vec<String> = tensors(value)
            .iter()
            .zip(files)
            .map(|(one, file)| {
                let file = file.file_name().unwrap().to_str().unwrap();
                format!("\"{}\": \"{file}\"", one.name)
            })
            .collect();
        format!("{{\"weight_map\": {{{}}}}}", rows.join(", "))
    };
    let index = NewIndex {
        path: path.to_path_buf(),
        text: text(&usual),
        other_text: text(&own),
    };
    let files: Vec<NewFile> = tensors(value)
        .into_iter()
        .zip(usual.iter().zip(own))
        .map(|(tensor, (path, other))| NewFile {
            path: path.clone(),
            other_path: Some(other),
            tensors: vec![tensor],
            metadata: vec![("tensordict.save".to_owned(), value.to_string())],
        })
        .collect();
    let stale = path.exists().then_some(path);
    safetensors::save(job, &files, Some(&index), stale, false).map(drop)
}

fn save_consolidated(job: &Job<'_>, value: u8, path: &Path) -> StorageResult<()> {
    let segments = [
        Segment::new(0, Source::Bytes(vec![value; 5])),
        Segment::new(8, Source::Bytes(vec![value; 1 << 20])),
    ];
    let text = r#"{"cls": "TensorDict", "leaves": {"a": ["torch.uint8", [5], 0, 8, 3], "large": ["torch.uint8", [1048576], 8, 1048584, 0]}}"#;
    consolidated::save(job, path, &segments, 8 + (1 << 20), "", text).map(drop)
}

impl Target {
    fn is_absent(self) -> bool {
        matches!(
            self,
            Self::Absent
                | Self::AbsentArchive
                | Self::AbsentSafetensors
                | Self::AbsentShards
                | Self::AbsentConsolidated
        )
    }

    /// The name of the save in its folder.
    fn name(self) -> &'static str {
        match self {
            Self::AbsentShards | Self::Shards => "save.safetensors.index.json",
            _ => "save",
        }
    }

    /// Returns the number of files beside the one that has the name.
    fn count_beside(self) -> usize {
        3 * usize::from(matches!(self, Self::AbsentShards | Self::Shards))
    }

    fn save(self, job: &Job<'_>, value: u8, length: usize, path: &Path) -> StorageResult<()> {
        let plan = &plan(value, length);
        match self {
            Self::Archive | Self::AbsentArchive => {
                return archive::save(job, plan, path, Method::Stored).map(drop);
            }
            Self::Safetensors | Self::AbsentSafetensors => {
                return save_safetensors(job, value, path);
            }
            Self::Shards | Self::AbsentShards => return save_shards(job, value, path),
            Self::Consolidated | Self::AbsentConsolidated => {
                return save_consolidated(job, value, path);
            }
            _ => {}
        }
        let options = SaveOptions {
            exist_ok: true,
            in_place: false,
        };
        commit::save(job, plan, path, options).map(drop)
    }

    fn prepare(self, path: &Path) {
        if self.is_absent() {
            return;
        }
        let length = if self == Self::MixedLonger { 9000 } else { 5 };
        let progress = Progress::default();
        self.save(&Job::new(&progress), 1, length, path).unwrap();
        if matches!(self, Self::Mixed | Self::MixedLonger) {
            fs::write(path.join("notes.txt"), "mine").unwrap();
        }
    }
}

/// Lets every call of every save fail.
pub(crate) fn fail_all() {
    let targets = [
        Target::Absent,
        Target::Whole,
        Target::Mixed,
        Target::MixedLonger,
        Target::AbsentArchive,
        Target::Archive,
        Target::AbsentSafetensors,
        Target::Safetensors,
        Target::AbsentShards,
        Target::Shards,
        Target::AbsentConsolidated,
        Target::Consolidated,
    ];
    let mut tasks = Vec::new();
    for target in targets {
        tasks.extend(FAULTS.map(|fault| (target, fault, false)));
        // Syncs add calls that fail, and no bytes.
        let fails = |fault: &Fault| matches!(fault, Fault::Error { number: EIO, .. });
        let fault = FAULTS.into_iter().find(fails).expect("it is one of them");
        tasks.push((target, fault, true));
    }
    side_by_side(&tasks, |(target, fault, is_durable)| {
        let found = place();
        target.prepare(&found.path().join(target.name()));
        let calls = (0..10_000)
            .take_while(|&at| run(target, fault, is_durable, at, found.path()))
            .count();
        assert!(calls > 8, "{target:?}: only {calls} calls were made");
    });
}

/// Returns whether the call with the number `at` was made, where the save finds what is in
/// `before`.
fn run(target: Target, fault: Fault, is_durable: bool, at: usize, before: &Path) -> bool {
    let place = place();
    let path = place.path().join(target.name());
    copy_into(place.path(), before);
    let old = values(&path);
    let io = Faulty::new(at, fault);
    let progress = Progress::default();
    let job = Job {
        disk: Disk(&io),
        threads: 2,
        is_durable,
        ..Job::new(&progress)
    };
    let result = target.save(&job, 2, 5, &path);
    let Some(call) = io.hit() else {
        result.unwrap();
        return false;
    };
    let shown = format!("{target:?}, {fault:?} of call {at}, {call:?}: {result:?}");
    let found = values(&path);
    let new = Some(vec![2]);
    if matches!(fault, Fault::Short | Fault::Interrupted) {
        assert!(result.is_ok(), "{shown}");
    }
    match (&result, target) {
        (Ok(()), _) => assert_eq!(found, new, "{shown}"),
        // Leaves of both saves can be there, each whole.
        (Err(_), Target::Mixed | Target::MixedLonger) => {
            let found = found.as_ref().expect("a save is there");
            assert!(
                found.iter().all(|value| [0, 1, 2].contains(value)),
                "{shown}"
            );
            assert_eq!(fs::read(path.join("notes.txt")).unwrap(), b"mine");
        }
        (Err(_), _) => assert!(found == old || found == new, "{shown}"),
    }
    if found == new {
        let report = verify(&path, &Scrutiny::new(&Progress::default())).unwrap();
        assert!(report.lines(Outcome::Damaged).is_empty(), "{shown}");
    }
    // A work directory stays only where it could not be removed; the next save removes it, and
    // shards that no index names.
    let areas = || {
        let beside = count(place.path().to_str().unwrap()) - usize::from(path.exists());
        beside + usize::from(path.join(".tdtmp").exists())
    };
    if call != Call::Remove && (result.is_ok() || target.count_beside() == 0) {
        assert_eq!(areas(), target.count_beside(), "{shown}");
    }
    drop(result);
    // It is not about checksums any more, which take their time in a debug build.
    let next = Job {
        has_checksums: false,
        ..Job::new(&progress)
    };
    target.save(&next, 3, 5, &path).unwrap();
    assert_eq!(values(&path), Some(vec![3]), "{shown}");
    if call != Call::Remove {
        assert_eq!(areas(), target.count_beside(), "{shown}");
    }
    true
}
