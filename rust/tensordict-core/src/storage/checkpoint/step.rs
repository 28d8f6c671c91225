//! Writing a step, and deleting those that it makes superfluous.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, RenameFlags};
use rustix::io::Errno;

use super::super::file::FileWriter;
use super::super::io::Disk;
use super::super::job::Job;
use super::super::safetensors::{NewFile, write_file};
use super::super::work::{WorkArea, has_ended};
use super::super::{StorageError, StorageResult, thread_count};
use crate::threads::STORAGE;

/// A file of a step.
#[derive(Debug, Clone)]
pub enum StepFile {
    /// Tensors in the safetensors format. Its path is a name.
    Tensors(NewFile),
    /// A name and bytes.
    Bytes(String, Vec<u8>),
    /// A name, and the file of an older step that has the same bytes.
    Linked(String, PathBuf),
}

impl StepFile {
    fn name(&self) -> &Path {
        match self {
            Self::Tensors(file) => &file.path,
            Self::Bytes(name, _) | Self::Linked(name, _) => Path::new(name),
        }
    }

    fn num_bytes(&self) -> u64 {
        match self {
            Self::Tensors(file) => file.tensors.iter().map(|one| one.source.len()).sum(),
            Self::Bytes(_, bytes) => bytes.len() as u64,
            Self::Linked(..) => 0,
        }
    }
}

/// A step, planned.
#[derive(Debug, Clone)]
pub struct Step {
    /// The folder of the steps, and meanwhile of the work directory.
    pub folder: PathBuf,
    /// The directory that it becomes.
    pub target: PathBuf,
    /// The files of the step.
    pub files: Vec<StepFile>,
    /// Steps that are deleted once this one is there.
    pub retired: Vec<PathBuf>,
    /// Parts of the step that other processes write.
    pub gathered: Gathered,
}

/// Directories that other processes write, whose files become part of a step.
#[derive(Debug, Clone, Default)]
pub struct Gathered {
    /// The directories.
    pub parts: Vec<Part>,
    /// The longest time that they are waited for.
    pub limit: Duration,
}

/// The part that one other process writes.
#[derive(Debug, Clone)]
pub struct Part {
    /// The directory that it makes. Where the name with `.failed` behind it is there, it will not.
    pub path: PathBuf,
    /// The name of the process. Once that has ended, nothing more will come.
    pub writer: String,
    /// The number by which errors name the process.
    pub rank: usize,
}

/// Writes a step. Where something is at its place already, that is replaced. Processes that wait for
/// this one, since it writes a part or gathers them, find a mark if it fails.
///
/// # Errors
/// The operating system refuses something, or the job was cancelled: everything is as it was.
pub fn save(job: &Job<'_>, step: &Step) -> StorageResult<()> {
    let saved = write_step(job, step);
    if let Err(error) = &saved {
        let parts = &step.gathered.parts;
        let is_part = step.target.parent() != Some(&step.folder);
        let waited_for = is_part.then_some(step.target.as_path());
        let all = parts.first().and_then(|part| part.path.parent());
        for path in [waited_for, all].into_iter().flatten() {
            // Without it they give up in time. Where nobody can wait any more, none is made.
            if path.parent().is_some_and(Path::is_dir) {
                let _ = fs::write(mark_of(path), error.to_string());
            }
        }
    }
    saved
}

fn write_step(job: &Job<'_>, step: &Step) -> StorageResult<()> {
    let disk = job.disk;
    let parent = step.target.parent().unwrap_or(Path::new("."));
    for folder in [step.folder.as_path(), parent] {
        disk.make_directories(folder)
            .map_err(|source| StorageError::io(folder, source))?;
    }
    job.progress
        .expect(step.files.iter().map(StepFile::num_bytes).sum());
    let work = WorkArea::inside(disk, &step.folder, step.files.len())?;
    let new = work.new_path();
    let refused = |source: io::Error| StorageError::io(&new, source);
    disk.make_directory(&new).map_err(refused)?;
    // The largest first: the last file that is written is a small one then.
    let mut order: Vec<&StepFile> = step.files.iter().collect();
    order.sort_by_key(|file| std::cmp::Reverse(file.num_bytes()));
    STORAGE.try_for_each(order.len(), thread_count(job.threads), |number| {
        write(job, &new, order[number], &step.target)
    })?;
    gather(job, &step.gathered, &new)?;
    if job.is_durable {
        STORAGE.try_for_each(order.len(), thread_count(job.threads), |number| {
            let path = new.join(order[number].name());
            let file = disk.open(&path, OFlags::RDONLY);
            file.and_then(|file| disk.sync(&file))
                .map_err(|source| StorageError::io(&path, source))
        })?;
        sync_directory(disk, &new)?;
    }
    job.check(&step.target)?;
    publish(disk, &new, &step.target)?;
    if job.is_durable {
        sync_directory(disk, parent)?;
    }
    for Part { path, .. } in &step.gathered.parts {
        // It is empty now, and so is the directory that it is in when the others are done.
        let _ = disk.remove_directory(path);
        let _ = path.parent().map(|folder| disk.remove_directory(folder));
    }
    for (number, old) in step.retired.iter().enumerate() {
        // A step leaves its place in one step, too: nobody sees half of it. What cannot be
        // deleted is tried again by the next save.
        let aside = work.numbered_path(number);
        let _ = disk.rename(old, &aside, RenameFlags::empty());
    }
    Ok(())
}

/// Deletes steps, each of which leaves its place at once.
///
/// # Errors
/// The operating system refuses.
pub fn remove(disk: Disk<'_>, folder: &Path, steps: &[PathBuf]) -> StorageResult<()> {
    let work = WorkArea::inside(disk, folder, 1)?;
    for (number, step) in steps.iter().enumerate() {
        disk.rename(step, &work.numbered_path(number), RenameFlags::empty())
            .map_err(|source| StorageError::io(step, source))?;
    }
    Ok(())
}

/// The end of the name of a file that says why a part will not come.
const FAILED: &str = ".failed";

fn mark_of(path: &Path) -> PathBuf {
    let mut mark = path.to_path_buf().into_os_string();
    mark.push(FAILED);
    mark.into()
}

/// The time between two looks for parts.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The number of looks for a part before its process is asked about.
const LOOKS_PER_WRITER: usize = 16;

/// Waits for the parts of other processes, and moves their files, which are on the disk if they are to
/// be, into the directory `new`.
fn gather(job: &Job<'_>, gathered: &Gathered, new: &Path) -> StorageResult<()> {
    let disk = job.disk;
    let began = Instant::now();
    for Part { path, writer, rank } in &gathered.parts {
        let refused = |source: io::Error| StorageError::io(path, source);
        let failed = |text: String| Err(refused(io::Error::other(text)));
        let mark = mark_of(path);
        let (mut looks, mut is_without_writer) = (0, false);
        while !path.is_dir() {
            if mark.exists() {
                let why = fs::read_to_string(&mark).unwrap_or_default();
                return failed(format!(
                    "the rank that writes this part has failed, rank {rank}: {why}"
                ));
            }
            // It was looked for once more since, for it may have come in the last moment.
            if is_without_writer {
                return failed(format!(
                    "the process that writes this part has ended, that of rank {rank}"
                ));
            }
            if began.elapsed() > gathered.limit {
                return Err(refused(Errno::TIMEDOUT.into()));
            }
            job.progress.check()?;
            is_without_writer = looks % LOOKS_PER_WRITER == 0 && has_ended(writer);
            looks += 1;
            thread::sleep(LOOK_EVERY);
        }
        for entry in fs::read_dir(path).map_err(refused)? {
            let entry = entry.map_err(refused)?;
            let to = new.join(entry.file_name());
            disk.rename(&entry.path(), &to, RenameFlags::NOREPLACE)
                .map_err(refused)?;
        }
    }
    Ok(())
}

fn sync_directory(disk: Disk<'_>, path: &Path) -> StorageResult<()> {
    disk.open_directory(path)
        .and_then(|directory| disk.sync(&directory))
        .map_err(|source| StorageError::io(path, source))
}

/// Writes a file into the directory `new`, which becomes `target`.
fn write(job: &Job<'_>, new: &Path, file: &StepFile, target: &Path) -> StorageResult<()> {
    let Job { disk, .. } = *job;
    let shown = target.join(file.name());
    let refused = |source: io::Error| StorageError::io(&shown, source);
    let directory = disk.open_directory(new).map_err(refused)?;
    if let StepFile::Linked(name, from) = file {
        return match disk.link(from, directory.as_fd(), name) {
            Ok(()) => Ok(()),
            Err(error) if has_no_links(&error) => copy(job, from, &directory, name),
            Err(error) => Err(StorageError::io(from, error)),
        };
    }
    let made = disk
        .create(directory.as_fd(), file.name())
        .map_err(refused)?;
    let writer = FileWriter::new(job, &made, &shown);
    match file {
        StepFile::Tensors(file) => write_file(job, &writer, file)?,
        StepFile::Bytes(_, bytes) => {
            job.progress.advance(bytes.len() as u64)?;
            writer.write_at(0, bytes)?;
        }
        StepFile::Linked(..) => {}
    }
    disk.set_modified(&made, job.stamp_ns).map_err(refused)
}

/// Returns whether a file system has no second names for files, or not that many.
fn has_no_links(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::PERM | Errno::MLINK | Errno::XDEV | Errno::NOTSUP | Errno::NOSYS)
    )
}

/// The bytes that are copied at once.
const COPIED_BYTES: usize = 4 << 20;

fn copy(job: &Job<'_>, from: &Path, directory: impl AsFd, name: &str) -> StorageResult<()> {
    let Job { disk, .. } = *job;
    let refused = |source: io::Error| StorageError::io(from, source);
    let old = disk.open(from, OFlags::RDONLY).map_err(refused)?;
    let new = disk.create(directory.as_fd(), name).map_err(refused)?;
    let mut buffer = vec![0; COPIED_BYTES];
    let mut offset = 0;
    loop {
        job.progress.check()?;
        let length = disk
            .read_at_most(&old, &mut buffer, offset)
            .map_err(refused)?;
        if length == 0 {
            break;
        }
        disk.write_all_at(&new, &buffer[..length], offset)
            .map_err(refused)?;
        offset += length as u64;
    }
    let time = old.metadata().map_err(refused)?;
    disk.set_modified(&new, super::super::checksums::modified_ns(&time))
        .map_err(refused)
}

/// Gives the directory `new` the name `target`. What was there is in the place of `new` then, and is
/// deleted with the work directory.
fn publish(disk: Disk<'_>, new: &Path, target: &Path) -> StorageResult<()> {
    let refused = |source: io::Error| StorageError::io(target, source);
    match fs::symlink_metadata(target) {
        Ok(there) if !there.is_dir() => return Err(refused(Errno::NOTDIR.into())),
        Ok(_) => {
            let exchanged = disk.rename(new, target, RenameFlags::EXCHANGE);
            match exchanged.as_ref().map_err(Errno::from_io_error) {
                // Somebody deleted it meanwhile; or a file system cannot exchange.
                Err(Some(Errno::NOENT)) => {}
                Err(Some(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP)) => {
                    let old = new.with_file_name("old");
                    disk.rename(target, &old, RenameFlags::empty())
                        .map_err(refused)?;
                }
                _ => return exchanged.map_err(refused),
            }
        }
        Err(_) => {}
    }
    disk.rename(new, target, RenameFlags::empty())
        .map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::super::super::job::Progress;
    use super::super::super::safetensors::{NewTensor, read_header};
    use super::super::super::source::Source;
    use super::super::process_name;
    use super::*;

    fn step(folder: &Path, number: u8, retired: Vec<PathBuf>) -> Step {
        let tensor = NewTensor {
            name: "w".to_owned(),
            dtype: "U8",
            shape: vec![3],
            source: Source::Bytes(vec![number; 3]),
            item_bytes: 1,
        };
        let file = NewFile {
            path: "model.safetensors".into(),
            other_path: None,
            tensors: vec![tensor],
            metadata: Vec::new(),
        };
        Step {
            folder: folder.to_path_buf(),
            target: folder.join(format!("step-{number}")),
            files: vec![
                StepFile::Bytes("meta.json".to_owned(), vec![number]),
                StepFile::Tensors(file),
            ],
            retired,
            gathered: Gathered::default(),
        }
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn test_a_step_appears_and_others_go() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("run");
        let progress = Progress::default();
        for is_durable in [false, true] {
            let job = Job {
                is_durable,
                ..Job::new(&progress)
            };
            save(&job, &step(&place, 1, Vec::new())).unwrap();
            save(&job, &step(&place, 2, vec![place.join("step-1")])).unwrap();
            assert_eq!(names(&place), ["step-2"]);
            let header = read_header(&place.join("step-2/model.safetensors")).unwrap();
            assert_eq!(header.tensors["w"].shape, [3]);
        }
        // Over itself.
        let mut other = step(&place, 2, Vec::new());
        other.files.push(StepFile::Linked(
            "linked".to_owned(),
            place.join("step-2/meta.json"),
        ));
        save(&Job::new(&progress), &other).unwrap();
        assert_eq!(names(&place.join("step-2")).len(), 3);
        remove(Disk::REAL, &place, &[place.join("step-2")]).unwrap();
        assert!(names(&place).is_empty());
    }

    #[test]
    fn test_parts_of_other_processes() {
        let folder = tempfile::tempdir().unwrap();
        let progress = Progress::default();
        let part = folder.path().join("part-1");
        let mut whole = step(folder.path(), 1, Vec::new());
        let writer = process_name();
        whole.gathered = Gathered {
            parts: vec![Part {
                path: part.clone(),
                writer: writer.clone(),
                rank: 1,
            }],
            limit: Duration::from_millis(1),
        };
        let error = save(&Job::new(&progress), &whole).unwrap_err();
        assert!(error.to_string().contains("timed out"), "{error}");
        whole.gathered.limit = Duration::from_secs(60);
        // A process of the same number that began at another time is another one.
        let (before, began) = writer[..writer.len() - 2].rsplit_once('-').unwrap();
        let other: u64 = began.parse::<u64>().unwrap() + 1;
        whole.gathered.parts[0].writer = format!("{before}-{other}-0");
        let error = save(&Job::new(&progress), &whole).unwrap_err();
        assert!(error.to_string().contains("has ended"), "{error}");
        whole.gathered.parts[0].writer = writer;
        fs::write(folder.path().join("part-1.failed"), "").unwrap();
        assert!(save(&Job::new(&progress), &whole).is_err());
        fs::create_dir(&part).unwrap();
        fs::write(part.join("of another"), "x").unwrap();
        save(&Job::new(&progress), &whole).unwrap();
        let found = names(&folder.path().join("step-1"));
        assert_eq!(found, ["meta.json", "model.safetensors", "of another"]);
    }

    #[test]
    fn test_a_step_that_is_cancelled_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let progress = Progress::default();
        progress.cancel();
        let saved = save(
            &Job::new(&progress),
            &step(folder.path(), 1, vec![folder.path().join("other")]),
        );
        assert!(matches!(saved, Err(StorageError::Cancelled)));
        assert!(names(folder.path()).is_empty());
    }
}
