//! Writing files side by side.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::super::checksums::{BLOCK_BYTES, Checksum, Checksums, FileChecksum};
use super::super::file::{FileSet, FileWriter, Segment};
use super::super::job::Job;
use super::super::json;
use super::super::map::Mapping;
use super::super::source::Source;
use super::super::{StorageResult, thread_count};
use super::read::{Header, map_file};
use super::shards::{FolderLock, files_of, left_shards};
use super::{CHECKSUMS_ENTRY, METADATA};
use crate::threads::STORAGE;

/// A tensor to be written.
#[derive(Debug, Clone)]
pub struct NewTensor {
    /// Its name in the file.
    pub name: String,
    /// Its dtype in the format.
    pub dtype: &'static str,
    /// Its shape in the format.
    pub shape: Vec<i64>,
    /// Its bytes.
    pub source: Source,
    /// Bytes of one item, by which tensors are ordered.
    pub item_bytes: u64,
}

/// A file to be written.
#[derive(Debug, Clone)]
pub struct NewFile {
    /// The path of the file.
    pub path: PathBuf,
    /// The path to use instead if one of the files of the save is there already. An index names its
    /// files, so replacing it is the one step from an older save to this one: what it names is not
    /// written over.
    pub other_path: Option<PathBuf>,
    /// The tensors of the file.
    pub tensors: Vec<NewTensor>,
    /// The texts of `__metadata__`, without the checksums.
    pub metadata: Vec<(String, String)>,
}

/// An index to be written.
#[derive(Debug, Clone)]
pub struct NewIndex {
    /// The path of the index.
    pub path: PathBuf,
    /// Its text.
    pub text: String,
    /// Its text where the files are at their other paths.
    pub other_text: String,
}

/// The files that were written, mapped.
pub type Written = Vec<(Header, Mapping)>;

/// Writes files side by side, one thread in each, and then `index`, and commits them: the index
/// last. What the index `stale` names and this save does not write is deleted then, as are shards
/// that a killed save left. Where `maps`, what was written is mapped, whatever takes its place since.
///
/// # Errors
/// The operating system refuses; the save was cancelled. Until the files are renamed into place
/// everything is as it was.
pub fn save(
    job: &Job<'_>,
    files: &[NewFile],
    index: Option<&NewIndex>,
    stale: Option<&Path>,
    maps: bool,
) -> StorageResult<Written> {
    let bytes = |file: &NewFile| -> u64 { file.tensors.iter().map(|one| one.source.len()).sum() };
    job.progress.expect(files.iter().map(bytes).sum());
    let mut targets: Vec<PathBuf> = files.iter().map(|file| file.path.clone()).collect();
    targets.extend(index.map(|index| index.path.clone()));
    let mut set = FileSet::new(*job, &targets)?;
    STORAGE.try_for_each(files.len(), thread_count(job.threads), |number| {
        write_file(job, &set.writer(number), &files[number])
    })?;
    let written = (0..if maps { files.len() } else { 0 })
        .map(|number| map_file(set.writer(number).file(), &targets[number], false))
        .collect::<StorageResult<_>>()?;
    let named = index.map(|index| index.path.as_path()).or(stale);
    // One save at a time: another begins with what this one left, and does not take shards that no
    // index names yet for left over.
    let _lock = named.and_then(FolderLock::of);
    let mut old = stale.map_or_else(Vec::new, files_of);
    if let Some(index) = index {
        let is_taken = files
            .iter()
            .any(|file| file.other_path.is_some() && file.path.symlink_metadata().is_ok());
        let mut text = &index.text;
        if is_taken {
            text = &index.other_text;
            for (number, file) in files.iter().enumerate() {
                if let Some(other) = &file.other_path {
                    targets[number].clone_from(other);
                    set.redirect(number, other)?;
                }
            }
        }
        set.writer(files.len()).write_at(0, text.as_bytes())?;
    }
    set.commit()?;
    old.extend(named.map_or_else(Vec::new, left_shards));
    for file in old.iter().filter(|file| !targets.contains(*file)) {
        // A stale file that cannot be deleted is not part of the save.
        let _ = job.disk.remove_file(file);
    }
    Ok(written)
}

/// Writes what is in a file: the tensors, and then the header, which has their checksums.
pub(crate) fn write_file(
    job: &Job<'_>,
    writer: &FileWriter<'_>,
    file: &NewFile,
) -> StorageResult<()> {
    let layout = Layout::new(job, file);
    let written = writer.write_segments(&layout.segments)?;
    let mut checksums = layout.checksums;
    for (name, written) in layout.names.iter().zip(written) {
        if let Some(file) = checksums.files.get_mut(*name) {
            file.content = written.checksum;
        }
    }
    let header = header(file, &layout.order, job.has_checksums.then_some(&checksums));
    debug_assert_eq!(header.len() as u64, layout.data_start);
    writer.write_at(0, &header)
}

/// The places of everything in a file.
struct Layout<'f> {
    order: Vec<usize>,
    names: Vec<&'f str>,
    segments: Vec<Segment>,
    checksums: Checksums,
    data_start: u64,
}

impl<'f> Layout<'f> {
    fn new(job: &Job<'_>, file: &'f NewFile) -> Self {
        let mut order: Vec<usize> = (0..file.tensors.len()).collect();
        order.sort_by_key(|&number| std::cmp::Reverse(file.tensors[number].item_bytes));
        let mut checksums = Checksums::new();
        for &number in &order {
            let length = file.tensors[number].source.len();
            let blocks = match length.div_ceil(BLOCK_BYTES as u64) {
                0 | 1 => 0,
                several => usize::try_from(several).unwrap_or(0),
            };
            let checksum = Checksum {
                length,
                whole: 0,
                blocks: vec![0; blocks],
            };
            let modified_ns = job.stamp_ns;
            let name = file.tensors[number].name.clone();
            checksums.files.insert(
                name,
                FileChecksum {
                    content: checksum,
                    modified_ns,
                },
            );
        }
        let data_start = header(file, &order, job.has_checksums.then_some(&checksums)).len() as u64;
        let mut offset = data_start;
        let mut segments = Vec::with_capacity(order.len());
        let mut names = Vec::with_capacity(order.len());
        for &number in &order {
            let tensor = &file.tensors[number];
            segments.push(Segment {
                offset,
                source: tensor.source.clone(),
                key: format!("'{}'", tensor.name),
            });
            names.push(tensor.name.as_str());
            offset += tensor.source.len();
        }
        Self {
            order,
            names,
            segments,
            checksums,
            data_start,
        }
    }
}

/// Data of fewer bytes begins at a line of the cache, and not at a page.
const PAGE_LIMIT: u64 = 64 << 10;

/// The bytes before the data.
fn header(file: &NewFile, order: &[usize], checksums: Option<&Checksums>) -> Vec<u8> {
    let mut text = String::from("{");
    let checksums = checksums.map(|checksums| (CHECKSUMS_ENTRY.to_owned(), checksums.to_text()));
    let mut is_first = true;
    let mut separate = |text: &mut String| {
        if !std::mem::take(&mut is_first) {
            text.push(',');
        }
    };
    if checksums.is_some() || !file.metadata.is_empty() {
        separate(&mut text);
        write!(text, "\"{METADATA}\":{{").expect("a String takes all that is written");
        for (number, (key, value)) in file.metadata.iter().chain(checksums.iter()).enumerate() {
            if number > 0 {
                text.push(',');
            }
            json::write_string(key, &mut text);
            text.push(':');
            json::write_string(value, &mut text);
        }
        text.push('}');
    }
    let mut start = 0;
    for &number in order {
        let tensor = &file.tensors[number];
        let end = start + tensor.source.len();
        separate(&mut text);
        json::write_string(&tensor.name, &mut text);
        let shape: Vec<String> = tensor.shape.iter().map(ToString::to_string).collect();
        write!(
            text,
            ":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{start},{end}]}}",
            tensor.dtype,
            shape.join(",")
        )
        .expect("a String takes all that is written");
        start = end;
    }
    text.push('}');
    let mut bytes = text.into_bytes();
    // The format lets spaces end the text; so the data begins where a page or, in a small file, a
    // line of the cache does, which is faster to write and to map.
    let step = if start < PAGE_LIMIT { 64 } else { 4096 };
    bytes.resize((8 + bytes.len()).next_multiple_of(step) - 8, b' ');
    let mut header = (bytes.len() as u64).to_le_bytes().to_vec();
    header.append(&mut bytes);
    header
}
