//! The safetensors format, one file or several with an index.
//!
//! ```text
//! [header length: 8 bytes, little-endian] [header: JSON, padded with spaces] [data]
//! ```
//!
//! The header names each tensor with dtype, shape and its bytes in the data; `__metadata__` holds
//! texts. Several files (shards) are named by an index, as Hugging Face writes it: `weight_map` says
//! which tensor is in which file.
//!
//! Writing plans the header first. The sums go into `__metadata__` and are known last; their text is
//! as long before as after, so room is left for them and the header is written when the data is.
//! Tensors are in the order of their alignment, so that each can be used where it is mapped.
//!
//! Reading checks everything that a header says before a tensor is made of it: files come from
//! anywhere.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use indexmap::IndexMap;

use super::dtype::{self, tensor_bytes};
use super::file::{FileSet, Segment};
use super::io::{Disk, open_to_read};
use super::job::Job;
use super::json::{self, Value};
use super::map::{self, Mapping, Mode};
use super::source::Source;
use super::sums::{FileSum, Sum, Sums};
use super::threads;
use super::verify::{Expected, Finding, Outcome, Report, check_all};
use super::{StorageError, StorageResult, thread_count};

/// The entry of `__metadata__` that holds the sums.
pub const SUMS_ENTRY: &str = "tensordict.sums";

/// The entry of `__metadata__` that tells the shards of one save from those of others.
const SAVE_ENTRY: &str = "tensordict.save";

/// The suffix of a file.
const SUFFIX: &str = ".safetensors";

/// The suffix of an index.
pub const INDEX_SUFFIX: &str = ".index.json";

/// The longest header that is read: the limit of the reference reader.
const MAX_HEADER_BYTES: u64 = 100_000_000;

const METADATA: &str = "__metadata__";

/// The names of dtypes, torch's and the format's.
const DTYPES: [(&str, &str); 19] = [
    ("bool", "BOOL"),
    ("uint8", "U8"),
    ("int8", "I8"),
    ("uint16", "U16"),
    ("int16", "I16"),
    ("uint32", "U32"),
    ("int32", "I32"),
    ("uint64", "U64"),
    ("int64", "I64"),
    ("float16", "F16"),
    ("bfloat16", "BF16"),
    ("float32", "F32"),
    ("float64", "F64"),
    ("complex64", "C64"),
    ("float8_e4m3fn", "F8_E4M3"),
    ("float8_e5m2", "F8_E5M2"),
    ("float8_e4m3fnuz", "F8_E4M3FNUZ"),
    ("float8_e5m2fnuz", "F8_E5M2FNUZ"),
    ("float8_e8m0fnu", "F8_E8M0"),
];

/// The name of one of torch's dtypes in the format; None for one that it does not have.
#[must_use]
pub fn format_dtype(torch: &str) -> Option<&'static str> {
    let short = torch.strip_prefix("torch.").unwrap_or(torch);
    DTYPES
        .iter()
        .find(|(name, _)| *name == short)
        .map(|(_, format)| *format)
}

fn torch_dtype(name: &str) -> Option<&'static str> {
    DTYPES
        .iter()
        .find(|(_, format)| *format == name)
        .map(|(torch, _)| *torch)
}

/// A tensor to be written.
#[derive(Debug, Clone)]
pub struct NewTensor {
    /// Its name in the file.
    pub name: String,
    /// Its dtype in the format.
    pub dtype: &'static str,
    /// Its shape.
    pub shape: Vec<i64>,
    /// Its bytes.
    pub source: Source,
    /// Bytes of one item, by which tensors are ordered.
    pub item_bytes: u64,
}

/// A file to be written.
#[derive(Debug, Clone)]
pub struct NewFile {
    /// Where to.
    pub path: PathBuf,
    /// Where to if one of the files of the save is there already. An index names its files, so replacing
    /// it is the one step from an older save to this one: what it names is not written over.
    pub other_path: Option<PathBuf>,
    /// What is in it.
    pub tensors: Vec<NewTensor>,
    /// The texts of `__metadata__`, without the sums.
    pub metadata: Vec<(String, String)>,
}

/// An index to be written.
#[derive(Debug, Clone)]
pub struct NewIndex {
    /// Where to.
    pub path: PathBuf,
    /// Its text.
    pub text: String,
    /// Its text where the files are at their other paths.
    pub other_text: String,
}

/// What was written, mapped.
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
    threads::for_each(files.len(), thread_count(job.threads), |number| {
        let layout = Layout::new(job, &files[number]);
        let writer = set.writer(number);
        let written = writer.write_segments(&layout.segments)?;
        let mut sums = layout.sums;
        for (name, written) in layout.names.iter().zip(written) {
            if let Some(file) = sums.files.get_mut(*name) {
                file.sum = written.sum;
            }
        }
        let header = header(&files[number], &layout.order, job.has_sums.then_some(&sums));
        debug_assert_eq!(header.len() as u64, layout.data_start);
        writer.write_at(0, &header)
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

/// The lock on the folder of a file.
struct FolderLock(File);

impl FolderLock {
    /// None on a file system without locks.
    fn of(path: &Path) -> Option<Self> {
        let folder = File::open(path.parent().filter(|folder| *folder != Path::new(""))?).ok()?;
        rustix::fs::flock(&folder, rustix::fs::FlockOperation::LockExclusive).ok()?;
        Some(Self(folder))
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // Closing alone does not unlock it where a process was forked meanwhile.
        let _ = rustix::fs::flock(&self.0, rustix::fs::FlockOperation::Unlock);
    }
}

/// The shards of this package that lie beside an index and have names like those of its own.
fn left_shards(index: &Path) -> Vec<PathBuf> {
    let name = index.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_suffix(INDEX_SUFFIX).unwrap_or(&name);
    let stem = stem.strip_suffix(SUFFIX).unwrap_or(stem);
    let Some(entries) = index.parent().and_then(|folder| folder.read_dir().ok()) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| is_shard_name(&entry.file_name().to_string_lossy(), stem))
        .map(|entry| entry.path())
        .filter(|path| {
            read_header(path).is_ok_and(|header| header.metadata.contains_key(SAVE_ENTRY))
        })
        .collect()
}

/// Whether a name is `stem-00001-of-00004.safetensors`, or that with the text of a save after the stem.
fn is_shard_name(name: &str, stem: &str) -> bool {
    let is_number = |text: &str| text.len() >= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some(rest) = name
        .strip_prefix(stem)
        .and_then(|rest| rest.strip_prefix('-'))
        .and_then(|rest| rest.strip_suffix(SUFFIX))
    else {
        return false;
    };
    let is_save = |text: &str| text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let rest = match rest.split_once('-') {
        Some((save, rest)) if is_save(save) => rest,
        _ => rest,
    };
    rest.split_once("-of-")
        .is_some_and(|(number, count)| is_number(number) && is_number(count))
}

/// Where everything goes in a file.
struct Layout<'f> {
    order: Vec<usize>,
    names: Vec<&'f str>,
    segments: Vec<Segment>,
    sums: Sums,
    data_start: u64,
}

impl<'f> Layout<'f> {
    fn new(job: &Job<'_>, file: &'f NewFile) -> Self {
        let mut order: Vec<usize> = (0..file.tensors.len()).collect();
        order.sort_by_key(|&number| std::cmp::Reverse(file.tensors[number].item_bytes));
        let mut sums = Sums::new();
        for &number in &order {
            let length = file.tensors[number].source.len();
            let blocks = match length.div_ceil(super::sums::BLOCK_BYTES as u64) {
                0 | 1 => 0,
                several => usize::try_from(several).unwrap_or(0),
            };
            let sum = Sum {
                length,
                whole: 0,
                blocks: vec![0; blocks],
            };
            let modified_ns = job.stamp_ns;
            let name = file.tensors[number].name.clone();
            sums.files.insert(name, FileSum { sum, modified_ns });
        }
        let data_start = header(file, &order, job.has_sums.then_some(&sums)).len() as u64;
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
            sums,
            data_start,
        }
    }
}

/// Data of fewer bytes begins at a line of the cache, and not at a page.
const PAGE_LIMIT: u64 = 64 << 10;

/// The bytes before the data.
fn header(file: &NewFile, order: &[usize], sums: Option<&Sums>) -> Vec<u8> {
    let mut text = String::from("{");
    let sums = sums.map(|sums| (SUMS_ENTRY.to_owned(), sums.to_text()));
    let mut is_first = true;
    let mut separate = |text: &mut String| {
        if !std::mem::take(&mut is_first) {
            text.push(',');
        }
    };
    if sums.is_some() || !file.metadata.is_empty() {
        separate(&mut text);
        write!(text, "\"{METADATA}\":{{").expect("a String takes all that is written");
        for (number, (key, value)) in file.metadata.iter().chain(sums.iter()).enumerate() {
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

/// A tensor in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its dtype, as torch names it.
    pub dtype: &'static str,
    /// Its shape.
    pub shape: Vec<i64>,
    /// Where its bytes begin in the file.
    pub offset: u64,
    /// How many they are.
    pub length: u64,
}

/// What is in a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Header {
    /// The texts of `__metadata__`.
    pub metadata: IndexMap<String, String>,
    /// The tensors by name, in the order of the header.
    pub tensors: IndexMap<String, Tensor>,
    /// The bytes of the file.
    pub file_bytes: u64,
}

/// Whether a file begins as one of this format does.
#[must_use]
pub fn is_safetensors(path: &Path) -> bool {
    open_to_read(path).is_ok_and(|file| is_safetensors_file(&file, path))
}

/// Whether an open file begins as one of this format does.
pub(crate) fn is_safetensors_file(file: &File, path: &Path) -> bool {
    let Ok(size) = file.metadata().map(|metadata| metadata.len()) else {
        return false;
    };
    let mut start = [0; 9];
    if Disk::REAL.read_exact_at(file, &mut start, 0).is_err() {
        return false;
    }
    let (length, rest) = start.split_at(8);
    let length = u64::from_le_bytes(length.try_into().unwrap_or_default());
    let begins = rest == b"{" && length.saturating_add(8) <= size && length <= MAX_HEADER_BYTES;
    // The numbers at the start of a consolidated file can look so: two of 123 do.
    begins
        && !(super::consolidated::is_consolidated_file(file, path)
            && header_of(file, path).is_err())
}

/// Reads and checks the header of a file.
///
/// # Errors
/// The file cannot be read; the header is none, or says what cannot be: the message names the
/// tensor.
pub fn read_header(path: &Path) -> StorageResult<Header> {
    let file = open_to_read(path).map_err(|source| StorageError::io(path, source))?;
    header_of(&file, path)
}

/// Reads and checks the header of a file, and maps it. Both are of one file, also where another save
/// takes its place meanwhile.
///
/// # Errors
/// As [`read_header`]; the file is not writable in [`Mode::Shared`].
pub fn map(path: &Path, mode: Mode) -> StorageResult<(Header, Mapping)> {
    let refused = |source: io::Error| StorageError::io(path, source);
    let (file, is_shared) = map::open_whole(path, mode).map_err(refused)?;
    map_file(&file, path, is_shared)
}

fn map_file(file: &File, path: &Path, is_shared: bool) -> StorageResult<(Header, Mapping)> {
    let refused = |source: io::Error| StorageError::io(path, source);
    let header = header_of(file, path)?;
    let length = usize::try_from(header.file_bytes).unwrap_or(usize::MAX);
    let metadata = file.metadata().map_err(refused)?;
    let mapping = Mapping::new(file, &metadata, length, is_shared).map_err(refused)?;
    Ok((header, mapping))
}

fn header_of(file: &File, path: &Path) -> StorageResult<Header> {
    let refused = |source: io::Error| StorageError::io(path, source);
    let metadata = file.metadata().map_err(refused)?;
    if !metadata.is_file() {
        return Err(refused(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        )));
    }
    let size = metadata.len();
    let wrong = |reason: String| damaged(path, "", reason);
    if size < 8 {
        return Err(wrong(format!(
            "it is no safetensors file: it has {size} bytes, and the length of a header has 8"
        )));
    }
    let mut length = [0; 8];
    Disk::REAL
        .read_exact_at(file, &mut length, 0)
        .map_err(refused)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        return Err(wrong(format!(
            "it is no safetensors file: its header would have {length} bytes, and none has more \
             than {MAX_HEADER_BYTES}"
        )));
    }
    if length > size - 8 {
        return Err(wrong(format!(
            "its header has {length} bytes, and the file {} after the length: it was cut, or is no \
             safetensors file",
            size - 8
        )));
    }
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    Disk::REAL
        .read_exact_at(file, &mut bytes, 8)
        .map_err(refused)?;
    let text = String::from_utf8(bytes).map_err(|_| wrong("its header is no text".to_owned()))?;
    parse_header(&text, 8 + length, size).map_err(|(name, reason)| damaged(path, &name, reason))
}

fn damaged(path: &Path, name: &str, reason: String) -> StorageError {
    StorageError::BadMetadata {
        path: path.to_path_buf(),
        key: if name.is_empty() {
            String::new()
        } else {
            format!("'{name}'")
        },
        reason,
    }
}

/// Checks the text of a header. The error is the name of the tensor, or nothing, and the reason.
fn parse_header(text: &str, data_start: u64, size: u64) -> Result<Header, (String, String)> {
    let none = String::new;
    let (value, repeated) = json::parse_with_repeats(text)
        .map_err(|error| (none(), format!("its header is no JSON: {}", error.message)))?;
    if let Some(name) = repeated {
        return Err((name, "it is in the header twice".to_owned()));
    }
    let Value::Object(fields) = value else {
        return Err((none(), "its header is no JSON object".to_owned()));
    };
    let mut header = Header {
        file_bytes: size,
        ..Header::default()
    };
    for (name, field) in &fields {
        if name == METADATA {
            let Value::Object(texts) = field else {
                return Err((none(), "its __metadata__ is no JSON object".to_owned()));
            };
            for (key, text) in texts {
                let Some(text) = text.as_str() else {
                    let reason = format!("the entry {key:?} of its __metadata__ is no text");
                    return Err((none(), reason));
                };
                header.metadata.insert(key.clone(), text.to_owned());
            }
            continue;
        }
        let tensor = parse_tensor(field, data_start).map_err(|reason| (name.clone(), reason))?;
        if tensor.offset + tensor.length > size {
            let reason = format!(
                "its bytes end at {} and the file at {size}: it was cut",
                tensor.offset + tensor.length
            );
            return Err((name.clone(), reason));
        }
        header.tensors.insert(name.clone(), tensor);
    }
    let mut places: Vec<(u64, u64, &str)> = header
        .tensors
        .iter()
        .filter(|(_, tensor)| tensor.length > 0)
        .map(|(name, tensor)| (tensor.offset, tensor.length, name.as_str()))
        .collect();
    places.sort_unstable();
    for pair in places.windows(2) {
        let ((offset, length, first), (next, _, second)) = (pair[0], pair[1]);
        if offset + length > next {
            let reason = format!("its bytes are those of '{first}' too");
            return Err((second.to_owned(), reason));
        }
    }
    Ok(header)
}

fn parse_tensor(field: &Value, data_start: u64) -> Result<Tensor, String> {
    let name = field
        .get("dtype")
        .and_then(Value::as_str)
        .ok_or("it has no dtype")?;
    let dtype =
        torch_dtype(name).ok_or_else(|| format!("{name:?} is not a dtype that can be loaded"))?;
    let item_size = dtype::item_size(dtype).ok_or("its dtype has no size")?;
    let shape = field
        .get("shape")
        .and_then(Value::as_ints)
        .ok_or("it has no shape")?;
    let length = tensor_bytes(&shape, item_size)
        .ok_or_else(|| format!("{shape:?} is no shape of a tensor"))?;
    let offsets = field
        .get("data_offsets")
        .and_then(Value::as_ints)
        .ok_or("it has no offsets")?;
    let [start, end] = offsets.as_slice() else {
        return Err(format!("{offsets:?} are no offsets"));
    };
    let (Ok(start), Ok(end)) = (u64::try_from(*start), u64::try_from(*end)) else {
        return Err(format!("{offsets:?} are no offsets"));
    };
    if end.checked_sub(start) != Some(length) {
        return Err(format!(
            "it has the bytes {start} to {end}, and its shape {shape:?} and dtype {name} need {length}"
        ));
    }
    let offset = data_start
        .checked_add(start)
        .filter(|offset| offset.checked_add(length).is_some())
        .ok_or_else(|| format!("{offsets:?} are no offsets"))?;
    Ok(Tensor {
        dtype,
        shape,
        offset,
        length,
    })
}

/// The files that an index names, in the order in which it names them first, with the names of the
/// tensors in each.
///
/// # Errors
/// The index cannot be read or makes no sense; it names a file that is not beside it.
pub fn read_index(path: &Path) -> StorageResult<(IndexMap<PathBuf, Vec<String>>, Value)> {
    let text = std::fs::read_to_string(path).map_err(|source| StorageError::io(path, source))?;
    let (value, repeated) = json::parse_with_repeats(&text)
        .map_err(|error| damaged(path, "", format!("it is no JSON: {}", error.message)))?;
    if let Some(name) = repeated {
        return Err(damaged(path, &name, "it is in the index twice".to_owned()));
    }
    let Some(Value::Object(map)) = value.get("weight_map") else {
        return Err(damaged(
            path,
            "",
            "it is an index without weight_map".to_owned(),
        ));
    };
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut files: IndexMap<PathBuf, Vec<String>> = IndexMap::new();
    for (name, file) in map {
        let is_beside = |file: &&str| Path::new(file).file_name() == Some(file.as_ref());
        let Some(file) = file.as_str().filter(is_beside) else {
            let reason = "the index names no file beside itself for it".to_owned();
            return Err(damaged(path, name, reason));
        };
        files
            .entry(folder.join(file))
            .or_default()
            .push(name.clone());
    }
    let metadata = value.get("metadata").cloned().unwrap_or(Value::Null);
    Ok((files, metadata))
}

/// Compares the tensors of an open file with their sums.
///
/// # Errors
/// The file cannot be read, or is none of this format.
pub(crate) fn verify(file: File, path: &Path, threads: usize) -> StorageResult<Report> {
    let mut report = empty_report();
    verify_file(&Arc::new(file), path, threads, &mut report)?;
    Ok(report)
}

/// Compares the tensors of the files of an index with their sums; whether one was not there, too.
///
/// # Errors
/// A file cannot be read, or is none of this format.
pub(crate) fn verify_shards(index: &Path, threads: usize) -> StorageResult<(Report, bool)> {
    let mut report = empty_report();
    let paths: Vec<PathBuf> = read_index(index)?.0.into_keys().collect();
    // All are opened before any is read: those of a save that is replaced are deleted.
    let files: Vec<io::Result<File>> = paths.iter().map(|path| open_to_read(path)).collect();
    let mut lacks_files = false;
    for (path, file) in paths.iter().zip(files) {
        match file {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                lacks_files = true;
                report.findings.push(Finding {
                    key: String::new(),
                    path: path.clone(),
                    outcome: Outcome::Damaged,
                    detail: "the file is missing".to_owned(),
                });
            }
            file => {
                let file = file.map_err(|source| StorageError::io(path, source))?;
                verify_file(&Arc::new(file), path, threads, &mut report)?;
            }
        }
    }
    Ok((report, lacks_files))
}

fn empty_report() -> Report {
    Report {
        layout: "safetensors",
        generation: String::new(),
        findings: Vec::new(),
    }
}

fn verify_file(
    file: &Arc<File>,
    path: &Path,
    threads: usize,
    report: &mut Report,
) -> StorageResult<()> {
    let header = header_of(file, path)?;
    let sums = match header.metadata.get(SUMS_ENTRY) {
        None => Sums::default(),
        Some(text) => Sums::parse(text).map_err(|reason| damaged(path, "", reason))?,
    };
    report.generation.clone_from(&sums.generation);
    let mut expected = Vec::new();
    for (name, tensor) in &header.tensors {
        let key = super::names::display_key(&[name]);
        match sums.files.get(name) {
            Some(sum) if sum.sum.length == tensor.length => expected.push(Expected {
                key,
                path: path.to_path_buf(),
                file: file.clone(),
                offset: tensor.offset,
                sum: sum.clone(),
            }),
            _ => report.findings.push(Finding {
                key,
                path: path.to_path_buf(),
                outcome: Outcome::Unchecked,
                detail: String::new(),
            }),
        }
    }
    report.findings.extend(check_all(&expected, threads));
    Ok(())
}

/// The files of an older save: an index, and those that it names.
#[must_use]
pub fn files_of(index: &Path) -> Vec<PathBuf> {
    let Ok((files, _)) = read_index(index) else {
        return Vec::new();
    };
    files.into_keys().chain([index.to_path_buf()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::job::Progress;
    use proptest::prelude::*;
    use std::fs;

    fn tensor(name: &str, dtype: &'static str, item_bytes: u64, bytes: Vec<u8>) -> NewTensor {
        let items = bytes.len() as u64 / item_bytes;
        NewTensor {
            name: name.to_owned(),
            dtype,
            shape: vec![i64::try_from(items).unwrap()],
            source: Source::Bytes(bytes),
            item_bytes,
        }
    }

    fn saved(folder: &Path, has_sums: bool) -> PathBuf {
        let path = folder.join("file.safetensors");
        let file = NewFile {
            path: path.clone(),
            other_path: None,
            tensors: vec![
                tensor("flag", "BOOL", 1, vec![1, 0, 1]),
                tensor("x", "F64", 8, vec![7; 3 << 20]),
                tensor("\"é", "I16", 2, vec![1, 2]),
            ],
            metadata: vec![("who".to_owned(), "\"me\"\n".to_owned())],
        };
        let progress = Progress::default();
        let job = Job {
            has_sums,
            ..Job::new(&progress)
        };
        save(&job, &[file], None, None, false).unwrap();
        path
    }

    #[test]
    fn test_what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        for has_sums in [false, true] {
            let path = saved(folder.path(), has_sums);
            assert!(is_safetensors(&path));
            let header = read_header(&path).unwrap();
            assert_eq!(header.metadata["who"], "\"me\"\n");
            let names: Vec<_> = header.tensors.keys().collect();
            assert_eq!(names, ["x", "\"é", "flag"]);
            assert_eq!(header.tensors["x"].offset % 8, 0);
            let flag = &header.tensors["flag"];
            let bytes = fs::read(&path).unwrap();
            let start = usize::try_from(flag.offset).unwrap();
            assert_eq!(bytes[start..], [1, 0, 1]);
            let report = crate::storage::verify::verify(&path, 1).unwrap();
            let expected = if has_sums {
                Outcome::Good
            } else {
                Outcome::Unchecked
            };
            assert!(report.findings.iter().all(|one| one.outcome == expected));
        }
    }

    fn parse(text: &str) -> Result<Header, (String, String)> {
        parse_header(text, 100, 200)
    }

    #[test]
    fn test_headers_that_lie_are_refused() {
        let tensor = |dtype: &str, shape: &str, offsets: &str| {
            let text = format!(
                r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#
            );
            parse(&text)
        };
        assert!(tensor("F32", "[2]", "[0,8]").is_ok());
        assert!(tensor("F32", "[]", "[96,100]").is_ok());
        for (dtype, shape, offsets) in [
            ("F33", "[2]", "[0,8]"),
            ("F32", "[3]", "[0,8]"),
            ("F32", "[-2]", "[0,8]"),
            ("F32", "[9223372036854775807,9223372036854775807]", "[0,8]"),
            ("F32", "[2]", "[8,0]"),
            ("F32", "[2]", "[-8,0]"),
            ("F32", "[2]", "[0,8,9]"),
            ("F32", "[2]", "[96,104]"),
            ("F32", "2", "[0,8]"),
            ("F32", "[0]", "[9223372036854775807,9223372036854775807]"),
        ] {
            let (name, _) = tensor(dtype, shape, offsets).unwrap_err();
            assert_eq!(name, "a");
        }
        let one = r#""a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}"#;
        let other = r#""b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}"#;
        assert_eq!(parse(&format!("{{{one},{one}}}")).unwrap_err().0, "a");
        assert_eq!(parse(&format!("{{{one},{other}}}")).unwrap_err().0, "b");
        assert!(parse(r#"{"__metadata__":{"a":1}}"#).is_err());
        assert!(parse("[]").is_err());
    }

    #[test]
    fn test_an_index_leads_nowhere_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.index.json");
        for file in ["../x", "/x", "a/b", "", ".."] {
            fs::write(&path, format!(r#"{{"weight_map": {{"a": "{file}"}}}}"#)).unwrap();
            assert!(read_index(&path).is_err(), "{file}");
        }
        fs::write(&path, r#"{"weight_map": {"a": "x", "b": "y", "c": "x"}}"#).unwrap();
        let (files, _) = read_index(&path).unwrap();
        assert_eq!(files[&folder.path().join("x")], ["a", "c"]);
    }

    #[test]
    fn test_names_of_shards() {
        for name in [
            "m-00001-of-00002.safetensors",
            "m-0123456789abcdef-00001-of-00002.safetensors",
        ] {
            assert!(is_shard_name(name, "m"), "{name}");
        }
        for name in [
            "m.safetensors",
            "m-1-of-2.safetensors",
            "mm-00001-of-00002.safetensors",
            "m-other-00001-of-00002.safetensors",
            "m-00001-of-00002.safetensors.bak",
        ] {
            assert!(!is_shard_name(name, "m"), "{name}");
        }
    }

    proptest! {
        #[test]
        fn test_any_text_is_read_or_refused(text in ".{0,300}") {
            let _ = parse(&text);
        }

        #[test]
        fn test_any_offsets_are_within_the_file(
            start in any::<i64>(), end in any::<i64>(), size in any::<i64>()
        ) {
            let text = format!(
                r#"{{"a":{{"dtype":"U8","shape":[{size}],"data_offsets":[{start},{end}]}}}}"#
            );
            if let Ok(header) = parse(&text) {
                let tensor = &header.tensors["a"];
                prop_assert!(tensor.offset >= 100 && tensor.offset + tensor.length <= 200);
            }
        }
    }
}
