//! The layout of one buffer: data, remarks, description, and the length of the description.
//!
//! ```text
//! [leaves, each padded to 8 bytes] [remarks] [description: JSON] [its length: 8 bytes]
//! remarks: [JSON, padded with spaces to 8 bytes] [its length: 8 bytes] [REMARKS_MAGIC]
//! ```
//!
//! Data, description and length are the published format, which is read from its end: its readers
//! take the remarks for data that no leaf is in. Numbers are little-endian. The remarks hold
//! the checksums, by the offset of each leaf, and what else the description has no place for.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::checksums::{Checksums, FileChecksum};
use super::file::{Segment, save_file};
use super::io::{Disk, open_to_read, zeros};
use super::job::Job;
use super::json::{self, Value};
use super::map::{self, Mapping, Mode};
use super::names::display_key;
use super::verify::check::{Expected, Finding, Outcome, Report, Scrutiny, check_all};
use super::{StorageError, StorageResult};

/// The last bytes of the remarks.
pub const REMARKS_MAGIC: &[u8; 8] = b"tdremark";

/// The name under which the remarks hold the checksums.
const CHECKSUMS: &str = "sums";

/// The name of the description among the checksums; leaves are named by their offset.
const DESCRIPTION: &str = "description";

/// Writes a file in one step, and maps it.
///
/// `data_bytes` are the bytes of the data, in which the segments lie; `remarks` is the
/// text of a JSON object, or empty; `description` that of the published format.
///
/// # Errors
/// The operating system refuses; the save was cancelled. The target is then as it was.
pub fn save(
    job: &Job<'_>,
    target: &Path,
    segments: &[Segment],
    data_bytes: u64,
    remarks: &str,
    description: &str,
) -> StorageResult<Mapping> {
    let lengths = segments.iter().map(|segment| segment.source.len());
    job.progress.expect(lengths.sum());
    save_file(job, target, |writer| {
        let written = writer.write_segments(segments)?;
        let mut checksums = Checksums::new();
        for (segment, written) in segments.iter().zip(written) {
            let checksum = FileChecksum {
                content: written.checksum,
                modified_ns: job.stamp_ns,
            };
            if !segment.source.is_empty() {
                checksums.files.insert(segment.offset.to_string(), checksum);
            }
        }
        let checksum = FileChecksum {
            content: super::checksums::Checksum::of(description.as_bytes()),
            modified_ns: job.stamp_ns,
        };
        checksums.files.insert(DESCRIPTION.to_owned(), checksum);
        let mut tail = remarks_bytes(job.has_checksums.then_some(&checksums), remarks);
        tail.extend_from_slice(description.as_bytes());
        tail.extend_from_slice(&(description.len() as u64).to_le_bytes());
        writer.write_at(data_bytes, &tail)?;
        let refused = |source: io::Error| StorageError::io(target, source);
        let length = usize::try_from(data_bytes + tail.len() as u64)
            .map_err(|_| refused(io::ErrorKind::OutOfMemory.into()))?;
        let metadata = writer.file().metadata().map_err(refused)?;
        Mapping::new(writer.file(), &metadata, length, true).map_err(refused)
    })
}

fn remarks_bytes(checksums: Option<&Checksums>, remarks: &str) -> Vec<u8> {
    let fields = remarks.strip_prefix('{').unwrap_or_default();
    let text = match checksums {
        None => remarks.to_owned(),
        Some(checksums) => {
            let comma = if matches!(fields, "" | "}") { "" } else { ", " };
            let rest = if fields.is_empty() { "}" } else { fields };
            format!("{{\"{CHECKSUMS}\": {}{comma}{rest}", checksums.to_text())
        }
    };
    let mut bytes = text.into_bytes();
    if bytes.is_empty() {
        return bytes;
    }
    bytes.resize(bytes.len().next_multiple_of(8), b' ');
    let length = bytes.len() as u64;
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(REMARKS_MAGIC);
    bytes
}

/// The part of a file behind its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tail {
    /// The bytes of the data.
    pub data_bytes: u64,
    /// The JSON of the remarks; empty where there are none.
    pub remarks: String,
    /// The JSON of the description.
    pub description: String,
    /// The offset of the description.
    pub description_offset: u64,
}

/// Reads what lies behind the data of a file.
///
/// # Errors
/// The file cannot be read, or is no file of this layout.
pub fn read_tail(path: &Path) -> StorageResult<Tail> {
    let file = open_to_read(path).map_err(|source| StorageError::io(path, source))?;
    tail_of(&file, path)
}

/// Reads what lies behind the data of a file, and maps it all; stores stay in this process unless the
/// mode is [`Mode::Shared`]. Both are of
/// one file, also where another save takes its place meanwhile.
///
/// # Errors
/// Those of [`read_tail`]; the kernel refuses.
pub fn map(path: &Path, mode: Mode) -> StorageResult<(Tail, Mapping)> {
    let refused = |source: io::Error| StorageError::io(path, source);
    let (file, is_shared) = map::open_whole(path, mode).map_err(refused)?;
    let tail = tail_of(&file, path)?;
    let metadata = file.metadata().map_err(refused)?;
    let length = tail.description_offset + tail.description.len() as u64;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let mapping = Mapping::new(&file, &metadata, length, is_shared).map_err(refused)?;
    Ok((tail, mapping))
}

fn tail_of(file: &File, path: &Path) -> StorageResult<Tail> {
    let refused = |source: io::Error| StorageError::io(path, source);
    let size = file.metadata().map_err(refused)?.len();
    let wrong = |reason: String| StorageError::BadMetadata {
        path: path.to_path_buf(),
        key: String::new(),
        reason,
    };
    let length = size
        .checked_sub(8)
        .map(|at| read_number(file, at))
        .transpose()
        .map_err(refused)?;
    let end = size.saturating_sub(8);
    let Some(length) = length.filter(|&length| 0 < length && length <= end) else {
        let named = length.unwrap_or(0).cast_signed();
        return Err(wrong(format!(
            "it is not a consolidated file, or was cut: its last 8 bytes name a description of \
             {named} bytes, and there are {end} before them"
        )));
    };
    let description_offset = end - length;
    let description = read_text(file, description_offset, length)
        .map_err(refused)?
        .ok_or_else(|| wrong("its description is not UTF-8 text".to_owned()))?;
    let (data_bytes, remarks) = read_remarks(file, description_offset)
        .map_err(refused)?
        .ok_or_else(|| wrong("the remarks before its description are no text".to_owned()))?;
    Ok(Tail {
        data_bytes,
        remarks,
        description,
        description_offset,
    })
}

fn read_remarks(file: &File, end: u64) -> io::Result<Option<(u64, String)>> {
    let none = Some((end, String::new()));
    let Some(at) = end.checked_sub(16) else {
        return Ok(none);
    };
    let mut magic = [0; 8];
    Disk::REAL.read_exact_at(file, &mut magic, at + 8)?;
    if &magic != REMARKS_MAGIC {
        return Ok(none);
    }
    let length = read_number(file, at)?;
    let Some(start) = at.checked_sub(length) else {
        return Ok(None);
    };
    Ok(read_text(file, start, length)?.map(|text| (start, text)))
}

fn read_number(file: &File, at: u64) -> io::Result<u64> {
    let mut bytes = [0; 8];
    Disk::REAL.read_exact_at(file, &mut bytes, at)?;
    Ok(u64::from_le_bytes(bytes))
}

/// None where the bytes are no text.
fn read_text(file: &File, at: u64, length: u64) -> io::Result<Option<String>> {
    let length = usize::try_from(length).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let mut bytes = zeros(length)?;
    Disk::REAL.read_exact_at(file, &mut bytes, at)?;
    Ok(String::from_utf8(bytes).ok())
}

/// Returns whether a file looks like one of this layout.
#[must_use]
pub fn is_consolidated(path: &Path) -> bool {
    open_to_read(path).is_ok_and(|file| is_consolidated_file(&file, path))
}

/// Returns whether an open file is of this layout.
pub(crate) fn is_consolidated_file(file: &File, path: &Path) -> bool {
    tail_of(file, path).is_ok_and(|tail| tail.description.starts_with('{'))
}

/// Compares the leaves of a file, and its description, with their checksums.
///
/// # Errors
/// The file cannot be read, or is no file of this layout.
pub(crate) fn verify(file: File, path: &Path, how: &Scrutiny<'_>) -> StorageResult<Report> {
    let tail = tail_of(&file, path)?;
    let file = Arc::new(file);
    let wrong = |reason: &str| StorageError::BadMetadata {
        path: path.to_path_buf(),
        key: String::new(),
        reason: reason.to_owned(),
    };
    let parsed = |text: &str| json::parse_lossy(text).map_err(|error| wrong(error.message));
    let checksums = if tail.remarks.is_empty() {
        Checksums::default()
    } else {
        match parsed(tail.remarks.trim_end())?.get(CHECKSUMS) {
            None => Checksums::default(),
            Some(value) => Checksums::parse(&value.to_text()).map_err(|reason| wrong(&reason))?,
        }
    };
    let mut leaves = Vec::new();
    collect(&parsed(&tail.description)?, &mut Vec::new(), &mut leaves);
    let mut expected = Vec::new();
    let mut findings = Vec::new();
    for (key, offset, end) in leaves {
        if !how.wants(&key) {
            continue;
        }
        let finding = |outcome, detail| Finding {
            key: key.clone(),
            path: path.to_path_buf(),
            outcome,
            detail,
        };
        if end > tail.data_bytes {
            let detail = format!(
                "its bytes end at {end}, and the data at {}",
                tail.data_bytes
            );
            findings.push(finding(Outcome::Damaged, detail));
        } else if end == offset {
            findings.push(finding(Outcome::Good, String::new()));
        } else {
            let checksum = checksums.files.get(&offset.to_string()).cloned();
            expected.push(Expected {
                key,
                path: path.to_path_buf(),
                file: file.clone(),
                offset,
                length: checksum
                    .as_ref()
                    .map_or(end.saturating_sub(offset), |checksum| {
                        checksum.content.length
                    }),
                checksum,
            });
        }
    }
    if let Some(checksum) = checksums.files.get(DESCRIPTION) {
        expected.push(Expected {
            key: String::new(),
            path: path.to_path_buf(),
            file,
            offset: tail.description_offset,
            length: checksum.content.length,
            checksum: Some(checksum.clone()),
        });
    }
    findings.extend(check_all(&expected, how));
    Ok(Report {
        layout: "consolidated",
        generation: checksums.generation,
        findings,
    })
}

/// The leaves of a level and of those below, each with where its bytes begin and end.
fn collect(level: &Value, keys: &mut Vec<String>, found: &mut Vec<(String, u64, u64)>) {
    let Value::Object(fields) = level else {
        return;
    };
    if let Some(Value::Object(leaves)) = fields.get("leaves") {
        for (name, row) in leaves {
            let Value::Array(row) = row else { continue };
            let number = |place: usize| {
                let number = row.get(place).and_then(Value::as_i64).unwrap_or(0);
                u64::try_from(number).unwrap_or(0)
            };
            keys.push(name.trim_start_matches('\0').to_owned());
            let stop = number(3).saturating_sub(number(4));
            found.push((display_key(keys), number(2), stop));
            keys.pop();
        }
    }
    for (name, child) in fields {
        if matches!(
            name.as_str(),
            "cls" | "leaves" | "non_tensors" | "cls_metadata"
        ) {
            continue;
        }
        keys.push(name.trim_start_matches('\0').to_owned());
        collect(child, keys, found);
        keys.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::job::Progress;
    use crate::storage::source::Source;
    use std::fs;

    const TEXT: &str = r#"{"cls": "TensorDict", "leaves": {"a": ["torch.uint8", [5], 0, 8, 3]}}"#;

    fn saved(folder: &Path, remarks: &str) -> std::path::PathBuf {
        let path = folder.join("file");
        let progress = Progress::default();
        let segments = [Segment::new(0, Source::Bytes(b"12345".to_vec()))];
        let mapping = save(&Job::new(&progress), &path, &segments, 8, remarks, TEXT).unwrap();
        assert_eq!(mapping.len() as u64, fs::metadata(&path).unwrap().len());
        path
    }

    fn verify_save(path: &Path) -> StorageResult<Report> {
        crate::storage::verify::verify(path, &Scrutiny::new(&Progress::default()))
    }

    #[test]
    fn test_the_tail_is_found_from_the_end() {
        let folder = tempfile::tempdir().unwrap();
        for remarks in ["", "{}", r#"{"orders": []}"#] {
            let tail = read_tail(&saved(folder.path(), remarks)).unwrap();
            assert_eq!(tail.data_bytes, 8);
            assert_eq!(tail.description, TEXT);
            let fields = json::parse(tail.remarks.trim_end()).unwrap();
            assert!(fields.get("sums").is_some());
            assert_eq!(fields.get("orders").is_some(), remarks.len() > 2);
        }
    }

    #[test]
    fn test_verify_names_the_leaf() {
        let folder = tempfile::tempdir().unwrap();
        let path = saved(folder.path(), "");
        let report = verify_save(&path).unwrap();
        assert!(
            report
                .findings
                .iter()
                .all(|one| one.outcome == Outcome::Good)
        );
        let mut bytes = fs::read(&path).unwrap();
        bytes[2] ^= 1;
        fs::write(&path, bytes).unwrap();
        let report = verify_save(&path).unwrap();
        assert_eq!(report.findings[0].key, "'a'");
        assert_eq!(report.findings[0].outcome, Outcome::Modified);
    }

    #[test]
    fn test_files_of_others_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for bytes in [&b""[..], b"123", &[255; 32]] {
            fs::write(&path, bytes).unwrap();
            assert!(read_tail(&path).is_err());
        }
    }
}
