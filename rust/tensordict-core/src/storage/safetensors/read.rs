//! Reading and checking headers.

use std::fs::File;
use std::io;
use std::path::Path;

use indexmap::IndexMap;

use super::super::consolidated::is_consolidated_file;
use super::super::dtype::{self, tensor_bytes};
use super::super::io::{Disk, open_to_read};
use super::super::json::{self, Value};
use super::super::map::{self, Mapping, Mode};
use super::super::{StorageError, StorageResult};
use super::dtypes::{torch_dtype, torch_shape};
use super::{MAX_HEADER_BYTES, METADATA};

/// A tensor in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its dtype, as torch names it.
    pub dtype: &'static str,
    /// Its shape.
    pub shape: Vec<i64>,
    /// The offset of its bytes in the file.
    pub offset: u64,
    /// The number of its bytes.
    pub length: u64,
}

/// The content of a file, as its header says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Header {
    /// The texts of `__metadata__`.
    pub metadata: IndexMap<String, String>,
    /// The tensors by name, in the order of the header.
    pub tensors: IndexMap<String, Tensor>,
    /// The bytes of the file.
    pub file_bytes: u64,
}

/// Returns whether a file begins as one of this format does.
#[must_use]
pub fn is_safetensors(path: &Path) -> bool {
    open_to_read(path).is_ok_and(|file| is_safetensors_file(&file, path))
}

/// Returns whether an open file begins as one of this format does.
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
    begins && !(is_consolidated_file(file, path) && header_of(file, path).is_err())
}

/// Reads and checks the header of a file.
///
/// # Errors
/// The file cannot be read; the header is invalid, or says what cannot be: the message names the
/// tensor.
pub fn read_header(path: &Path) -> StorageResult<Header> {
    let file = open_to_read(path).map_err(|source| StorageError::io(path, source))?;
    header_of(&file, path)
}

/// Reads and checks the header of a file, and maps it. Both are of one file, also where another save
/// takes its place meanwhile.
///
/// # Errors
/// Those of [`read_header`]; the file is not writable in [`Mode::Shared`].
pub fn map(path: &Path, mode: Mode) -> StorageResult<(Header, Mapping)> {
    let refused = |source: io::Error| StorageError::io(path, source);
    let (file, is_shared) = map::open_whole(path, mode).map_err(refused)?;
    map_file(&file, path, is_shared)
}

pub(super) fn map_file(
    file: &File,
    path: &Path,
    is_shared: bool,
) -> StorageResult<(Header, Mapping)> {
    let refused = |source: io::Error| StorageError::io(path, source);
    let header = header_of(file, path)?;
    let length = usize::try_from(header.file_bytes).unwrap_or(usize::MAX);
    let metadata = file.metadata().map_err(refused)?;
    let mapping = Mapping::new(file, &metadata, length, is_shared).map_err(refused)?;
    Ok((header, mapping))
}

pub(crate) fn header_of(file: &File, path: &Path) -> StorageResult<Header> {
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
            "it is not a safetensors file: it has {size} bytes, and the length of a header has 8"
        )));
    }
    let mut length = [0; 8];
    Disk::REAL
        .read_exact_at(file, &mut length, 0)
        .map_err(refused)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        return Err(wrong(format!(
            "it is not a safetensors file: its header would have {length} bytes, and none has more \
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
    let text =
        String::from_utf8(bytes).map_err(|_| wrong("its header is not UTF-8 text".to_owned()))?;
    parse_header(&text, 8 + length, size).map_err(|(name, reason)| damaged(path, &name, reason))
}

/// The error of a file whose header is wrong, or whose tensor `name` is.
pub(crate) fn damaged(path: &Path, name: &str, reason: String) -> StorageError {
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
pub(super) fn parse_header(
    text: &str,
    data_start: u64,
    size: u64,
) -> Result<Header, (String, String)> {
    let none = String::new;
    let (value, repeated) = json::parse_with_repeats(text)
        .map_err(|error| (none(), format!("its header is not JSON: {}", error.message)))?;
    if let Some(name) = repeated {
        return Err((name, "it is in the header twice".to_owned()));
    }
    let Value::Object(fields) = value else {
        return Err((none(), "its header is not a JSON object".to_owned()));
    };
    let mut header = Header {
        file_bytes: size,
        ..Header::default()
    };
    for (name, field) in &fields {
        if name == METADATA {
            let Value::Object(texts) = field else {
                return Err((none(), "its __metadata__ is not a JSON object".to_owned()));
            };
            for (key, text) in texts {
                let Some(text) = text.as_str() else {
                    let reason = format!("the entry {key:?} of its __metadata__ is not a string");
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
    let (mut end, mut before) = (data_start, "");
    for (offset, length, name) in places {
        if offset < end {
            let reason = format!("its bytes are those of '{before}' too");
            return Err((name.to_owned(), reason));
        }
        (end, before) = (offset + length, name);
    }
    if end != size {
        let reason = format!(
            "its header names the bytes up to {end}, and the file has {size}: something was \
             appended, or the header is of another file"
        );
        return Err((none(), reason));
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
    let shape = torch_shape(name, shape)
        .ok_or("its last dim is not even, and two of its items are one byte")?;
    let length = tensor_bytes(&shape, item_size)
        .ok_or_else(|| format!("{shape:?} is not the shape of a tensor"))?;
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
