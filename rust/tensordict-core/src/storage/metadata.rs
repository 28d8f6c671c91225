//! `meta.json`: what a level says about itself and its entries.
//!
//! ```json
//! {"obs": {"device": "cpu", "shape": [3, 2], "dtype": "torch.float32", "is_nested": false},
//!  "nested": {"type": "TensorDict"},
//!  "shape": [3], "device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>",
//!  "_format_version": 1, "_class": "tensordict:TensorDict", "_names": ["time"]}
//! ```
//!
//! An entry that is an object with `type` is a child directory, one with `dtype` and
//! `shape` a leaf. Everything else that is an object is ignored, so that other versions may add to it.

use std::borrow::Cow;
use std::path::Path;
use std::ptr;

use foldhash::quality::RandomState;
use smallvec::SmallVec;

use super::io::Disk;
use super::json::{self, Reader, SyntaxError, Value};
use super::{FORMAT_VERSION, StorageError, StorageResult, dtype};

/// The text of the class of dense collections.
pub(crate) const DENSE_CLASS: &str = "<class 'tensordict._td.TensorDict'>";

/// Fields of a level that an entry of the same name would overwrite for good.
const LOST_UNDER_FIELDS: [&str; 3] = ["shape", "device", "_type"];

/// The sizes of a tensor.
pub type Shape = SmallVec<[i64; 4]>;

/// The metadata of a leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafMeta {
    /// The device that the tensor was on. For people: loading ignores it.
    pub device: Cow<'static, str>,
    /// The tensor's shape; for a nested tensor that of its table of sizes.
    pub shape: Shape,
    /// `torch.<name>`.
    pub dtype: Cow<'static, str>,
    /// True if it is a nested tensor of the strided layout.
    pub is_nested: bool,
}

impl LeafMeta {
    /// Returns whether it is that of a tensor on the CPU of this shape and dtype.
    #[must_use]
    pub fn is_plain_on_cpu(&self, shape: &[i64], dtype: &str) -> bool {
        *self.shape == *shape && self.dtype == dtype && self.device == "cpu" && !self.is_nested
    }
}

/// The kind of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A tensor in a file.
    Leaf(LeafMeta),
    /// A collection in a directory; the bare name of its class, for people.
    Child(String),
}

/// The entries of a level with their keys, each key once, in their order.
pub type LevelEntries = Vec<(Box<str>, Entry)>;

/// The fields of a level about itself, after its entries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LevelFields {
    /// The batch size.
    pub batch_size: Vec<i64>,
    /// The text of the class: [`DENSE_CLASS`].
    pub type_text: String,
    /// `module:qualname`, absent in version 0.
    pub class_text: Option<String>,
    /// The names of the dims, where there are any.
    pub names: Option<Vec<Option<String>>>,
}

/// Returns whether the format keeps a field of a level under this name, so that an entry of the
/// same name would be lost.
#[must_use]
pub fn is_reserved(key: &str) -> bool {
    LOST_UNDER_FIELDS.contains(&key)
}

/// The description of an entry in the text of a level.
#[derive(Debug, Clone, Copy)]
pub enum Described<'e> {
    /// A tensor in a file.
    Leaf(&'e LeafMeta),
    /// A collection in a directory: the bare name of its class.
    Child(&'e str),
}

impl<'e> From<&'e Entry> for Described<'e> {
    fn from(entry: &'e Entry) -> Self {
        match entry {
            Entry::Leaf(meta) => Self::Leaf(meta),
            Entry::Child(class_name) => Self::Child(class_name),
        }
    }
}

/// The text of a level's metadata file.
#[must_use]
pub fn level_text<'e>(
    entries: &(impl Iterator<Item = (&'e str, Described<'e>)> + Clone),
    fields: &LevelFields,
) -> String {
    let mut text = String::with_capacity(96 * entries.size_hint().0 + 256);
    text.push('{');
    // Leaves that share their metadata have one text.
    let mut last: Option<(&LeafMeta, String)> = None;
    for (key, entry) in entries.clone() {
        json::write_string(key, &mut text);
        text.push_str(": ");
        match (entry, &last) {
            (Described::Leaf(meta), Some((known, said))) if ptr::eq(meta, *known) => {
                text.push_str(said);
            }
            _ => {
                let start = text.len();
                write_entry(entry, &mut text);
                if let Described::Leaf(meta) = entry {
                    last = Some((meta, text[start..].to_owned()));
                }
            }
        }
        text.push_str(", ");
    }
    // An entry named like one of the last three fields stays, in place of the field.
    let mut ends = vec![("_format_version", Value::Number(FORMAT_VERSION.to_string()))];
    if let Some(class_text) = &fields.class_text {
        ends.push(("_class", Value::String(class_text.clone())));
    }
    if let Some(names) = &fields.names {
        let names = names
            .iter()
            .map(|name| name.clone().map_or(Value::Null, Value::String));
        ends.push(("_names", Value::Array(names.collect())));
    }
    let first = [
        ("shape", Value::from_ints(&fields.batch_size)),
        ("device", Value::String("cpu".to_owned())),
        ("_type", Value::String(fields.type_text.clone())),
    ];
    let kept = ends
        .into_iter()
        .filter(|(name, _)| !has_key(entries.clone(), name));
    for (position, (name, value)) in first.into_iter().chain(kept).enumerate() {
        if position > 0 {
            text.push_str(", ");
        }
        json::write_string(name, &mut text);
        text.push_str(": ");
        value.write(&mut text);
    }
    text.push('}');
    text
}

/// Returns whether there is an entry of this key.
pub(super) fn has_key<'e>(
    mut entries: impl Iterator<Item = (&'e str, Described<'e>)>,
    wanted: &str,
) -> bool {
    entries.any(|(key, _)| key == wanted)
}

/// Appends an entry as JSON.
fn write_entry(entry: Described<'_>, text: &mut String) {
    match entry {
        Described::Child(name) => {
            text.push_str("{\"type\": ");
            json::write_string(name, text);
        }
        Described::Leaf(leaf) => {
            text.push_str("{\"device\": ");
            json::write_string(&leaf.device, text);
            text.push_str(", \"shape\": ");
            json::write_ints(&leaf.shape, text);
            text.push_str(", \"dtype\": ");
            json::write_string(&leaf.dtype, text);
            text.push_str(", \"is_nested\": ");
            text.push_str(if leaf.is_nested { "true" } else { "false" });
        }
    }
    text.push('}');
}

/// An entry as JSON.
#[must_use]
pub fn entry_value(entry: &Entry) -> Value {
    let mut text = String::new();
    write_entry(entry.into(), &mut text);
    json::parse(&text).unwrap_or_else(|_| unreachable!("it was written as JSON"))
}

/// A level as its metadata file has it.
#[derive(Debug, Clone)]
pub struct LevelMeta {
    /// The entries.
    pub entries: Entries,
    /// `_type`, the text of the class.
    pub type_text: Option<String>,
    /// `_class`, `module:qualname`.
    pub class_text: Option<String>,
    /// `shape`, the batch size, where this is a level that has one.
    pub batch_size: Option<Vec<i64>>,
    /// `_names`.
    pub names: Option<Vec<Option<String>>>,
    /// True if the collection had a device: its `device` is not "None".
    pub has_device: bool,
}

/// Reads a metadata file as JSON.
///
/// # Errors
/// The file cannot be read, is not UTF-8, or is not JSON.
pub fn read_json(path: &Path) -> StorageResult<Value> {
    let text = text_of(path, read(path)?)?;
    json::parse(&text).map_err(|error| bad_json(path, &error, text))
}

/// The bytes of a metadata file.
pub(super) fn read(path: &Path) -> StorageResult<Vec<u8>> {
    let bytes = Disk::REAL.read(path);
    bytes.map_err(|source| StorageError::io(path, source))
}

/// Reads the bytes of a metadata file as JSON, for those who go by its entries: texts of other values
/// may come out with another character. `path` is for messages.
///
/// # Errors
/// They are not UTF-8, or not JSON.
pub fn parse_json(path: &Path, bytes: Vec<u8>) -> StorageResult<Value> {
    let text = text_of(path, bytes)?;
    json::parse_lossy(&text).map_err(|error| bad_json(path, &error, text))
}

fn text_of(path: &Path, bytes: Vec<u8>) -> StorageResult<String> {
    String::from_utf8(bytes).map_err(|_| damaged(path, "", "it is not UTF-8 text"))
}

fn bad_json(path: &Path, error: &SyntaxError, text: String) -> StorageError {
    StorageError::BadJson {
        path: path.to_path_buf(),
        message: error.message.to_owned(),
        position: error.position,
        text,
    }
}

/// Reads the metadata of a level from the bytes of its file. `path` is for messages.
///
/// Values that are no tensors may hold half a character, as texts of Python may: their own reader, which
/// is Python's, takes them from the file. Keys and names of dims have whole ones.
///
/// # Errors
/// They are not UTF-8, or not a JSON object; a newer format version; an entry that is invalid.
pub fn read_level(path: &Path, bytes: Vec<u8>) -> StorageResult<LevelMeta> {
    let text = text_of(path, bytes)?;
    let fields = read_fields(Reader::new(&text)).or_else(|error| {
        if !error.is_half_a_character() {
            return Err(error);
        }
        match read_fields(Reader::lossy(&text))? {
            // Levels of tensors have a batch size.
            Some(fields) if !fields.contains_key("shape") => Ok(Some(fields)),
            _ => Err(error),
        }
    });
    match fields {
        Ok(Some(fields)) => level_of(path, fields),
        Ok(None) => Err(damaged(path, "", "it holds no JSON object")),
        Err(error) => Err(bad_json(path, &error, text)),
    }
}

/// Keys and entries of a level, in the order of the file.
#[derive(Debug, Clone, Default)]
pub struct Entries {
    fields: Fields,
}

impl Entries {
    /// Returns an upper bound of the number of entries.
    #[must_use]
    pub fn most(&self) -> usize {
        self.fields.len()
    }
}

/// The iterator over [`Entries`].
#[derive(Debug)]
pub struct EntriesIter(indexmap::map::IntoIter<String, Field>);

impl IntoIterator for Entries {
    type Item = (String, Entry);
    type IntoIter = EntriesIter;

    fn into_iter(self) -> EntriesIter {
        EntriesIter(self.fields.into_iter())
    }
}

impl Iterator for EntriesIter {
    type Item = (String, Entry);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.find_map(|(key, field)| match field {
            Field::Entry(Ok(Some(entry))) => Some((key, entry)),
            _ => None,
        })
    }
}

/// A field of a level, in the order of the file. Of a repeated one the last value counts.
type Fields = indexmap::IndexMap<String, Field, RandomState>;

#[derive(Debug, Clone)]
enum Field {
    /// An object, as far as it is an entry; or what is wrong with it.
    Entry(Result<Option<Entry>, &'static str>),
    /// Anything else.
    Value(Value),
}

/// The least bytes of a leaf in a metadata file.
const LEAF_BYTES: usize = 64;

/// The fields of a level; None where the text is no object.
fn read_fields(mut reader: Reader<'_>) -> Result<Option<Fields>, SyntaxError> {
    if !reader.is_object() {
        reader.value()?;
        reader.end()?;
        return Ok(None);
    }
    let room = reader.left() / LEAF_BYTES;
    let mut fields = Fields::with_capacity_and_hasher(room, RandomState::default());
    reader.object(|reader, key| {
        let field = if reader.is_object() {
            Field::Entry(read_entry(reader)?)
        } else {
            Field::Value(reader.value()?)
        };
        fields.insert(key.into_owned(), field);
        Ok(())
    })?;
    reader.end()?;
    Ok(Some(fields))
}

/// A field of an object: missing, of no sense, or as wanted.
#[derive(Default)]
enum Said<T> {
    #[default]
    Nothing,
    Nonsense,
    This(T),
}

impl<T> Said<T> {
    fn of(value: Option<T>) -> Self {
        value.map_or(Said::Nonsense, Said::This)
    }
}

/// Reads a leaf that is written as this package and the published release write leaves.
fn read_usual_leaf(reader: &mut Reader<'_>) -> Option<LeafMeta> {
    reader.pass(r#"{"device": "cpu", "shape": "#)?;
    let shape = reader.plain_ints()?;
    reader.pass(r#", "dtype": "#)?;
    if !reader.is_string() {
        return None;
    }
    let dtype = dtype::intern(&reader.string().ok()?);
    reader.pass(r#", "is_nested": false}"#)?;
    Some(LeafMeta {
        device: Cow::Borrowed("cpu"),
        shape,
        dtype,
        is_nested: false,
    })
}

/// Reads an object as an entry; what is wrong with it where it is meant to be one.
fn read_entry(reader: &mut Reader<'_>) -> Result<Result<Option<Entry>, &'static str>, SyntaxError> {
    if let Some(leaf) = reader.attempt(read_usual_leaf) {
        return Ok(Ok(Some(Entry::Leaf(leaf))));
    }
    let (mut class, mut dtype, mut shape) = (Said::Nothing, Said::Nothing, Said::Nothing);
    let mut device = Cow::Borrowed("cpu");
    let mut is_nested = false;
    reader.object(|reader, key| {
        match &*key {
            "type" if reader.is_string() => class = Said::This(reader.string()?),
            "type" => {
                class = match reader.value()? {
                    Value::Null => Said::Nothing,
                    _ => Said::Nonsense,
                }
            }
            "dtype" if reader.is_string() => dtype = Said::This(dtype::intern(&reader.string()?)),
            "dtype" => {
                reader.value()?;
                dtype = Said::Nonsense;
            }
            "shape" => shape = Said::of(reader.ints()?.filter(|shape| are_sizes(shape))),
            "device" if reader.is_string() => {
                device = match reader.string()? {
                    device if device == "cpu" => Cow::Borrowed("cpu"),
                    device => Cow::Owned(device.into_owned()),
                }
            }
            "device" => {
                reader.value()?;
                device = Cow::Borrowed("cpu");
            }
            "is_nested" => is_nested = reader.value()? == Value::Bool(true),
            _ => {
                reader.value()?;
            }
        }
        Ok(())
    })?;
    let leaf = |dtype, shape| LeafMeta {
        device,
        shape,
        dtype,
        is_nested,
    };
    Ok(match (class, dtype, shape) {
        (Said::This(name), ..) => Ok(Some(Entry::Child(name.into_owned()))),
        (Said::Nonsense, ..) => Err("its 'type' is not a string"),
        (_, Said::Nothing, _) | (_, _, Said::Nothing) => Ok(None),
        (_, Said::Nonsense, _) => Err("its 'dtype' is not a string"),
        (_, _, Said::Nonsense) => Err("its 'shape' is not a list of sizes"),
        (_, Said::This(dtype), Said::This(shape)) => Ok(Some(Entry::Leaf(leaf(dtype, shape)))),
    })
}

fn are_sizes(ints: &[i64]) -> bool {
    ints.iter().all(|&size| size >= 0)
}

fn level_of(path: &Path, fields: Fields) -> StorageResult<LevelMeta> {
    let value = |name: &str| match fields.get(name) {
        Some(Field::Value(value)) => Some(value),
        _ => None,
    };
    if let Some(found) = value("_format_version").and_then(Value::as_i64)
        && found > FORMAT_VERSION
    {
        return Err(StorageError::NewerVersion {
            path: path.to_path_buf(),
            found,
        });
    }
    let text = |name: &str| value(name).and_then(Value::as_str).map(str::to_owned);
    let batch_size = match value("shape") {
        Some(value @ Value::Array(_)) => match value.as_ints() {
            Some(sizes) if are_sizes(&sizes) => Some(sizes),
            _ => return Err(damaged(path, "", "its 'shape' is not a list of sizes")),
        },
        _ => None,
    };
    let names = match value("_names") {
        Some(Value::Array(names)) => Some(
            names
                .iter()
                .map(|name| name.as_str().map(str::to_owned))
                .collect(),
        ),
        _ => None,
    };
    let nonsense = fields.iter().find_map(|(key, field)| match field {
        Field::Entry(Err(reason)) => Some((key, reason)),
        _ => None,
    });
    if let Some((key, reason)) = nonsense {
        return Err(damaged(path, key, reason));
    }
    Ok(LevelMeta {
        type_text: text("_type"),
        class_text: text("_class"),
        batch_size,
        names,
        has_device: text("device").is_some_and(|device| device != "None"),
        entries: Entries { fields },
    })
}

/// Fails where the format keeps a field of a level under this name.
pub(crate) fn refuse_reserved(key: &str) -> StorageResult<()> {
    if is_reserved(key) {
        return Err(StorageError::ReservedKey {
            key: format!("'{key}'"),
            field: key.to_owned(),
        });
    }
    Ok(())
}

pub(crate) fn damaged(path: &Path, key: &str, reason: &str) -> StorageError {
    StorageError::BadMetadata {
        path: path.to_path_buf(),
        key: if key.is_empty() {
            String::new()
        } else {
            format!("'{key}'")
        },
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_usual_leaf_is_read_as_any_other() {
        for text in [
            r#"{"device": "cpu", "shape": [3, 2], "dtype": "torch.float32", "is_nested": false}"#,
            r#"{"device": "cpu", "shape": [], "dtype": "torch.\u0062ool", "is_nested": false}"#,
            r#"{"device": "cpu", "shape": [3], "dtype": "torch.later", "is_nested": false}"#,
        ] {
            let spaced = text.replace(", ", " , ");
            let usual = read_usual_leaf(&mut Reader::new(text)).expect(text);
            assert_eq!(read_usual_leaf(&mut Reader::new(&spaced)), None);
            let other = read_entry(&mut Reader::new(&spaced)).unwrap();
            assert_eq!(other, Ok(Some(Entry::Leaf(usual))), "{text}");
        }
        for text in [
            r#"{"device": "cpu", "shape": [-3], "dtype": "torch.bool", "is_nested": false}"#,
            r#"{"device": "cpu", "shape": [3], "dtype": null, "is_nested": false}"#,
            r#"{"device": "cpu", "shape": [3], "dtype": "torch.bool", "is_nested": true}"#,
            r#"{"device": "cpu", "shape": [3], "dtype": "torch.bool", "is_nested": false, "a": 1}"#,
        ] {
            assert_eq!(read_usual_leaf(&mut Reader::new(text)), None, "{text}");
        }
    }

    #[test]
    fn test_level_text_is_the_published_one() {
        let leaf = |shape: &[i64], dtype: &'static str| LeafMeta {
            device: "cpu".into(),
            shape: shape.into(),
            dtype: dtype.into(),
            is_nested: false,
        };
        let (obs, done) = (leaf(&[3, 2], "torch.float32"), leaf(&[3], "torch.bool"));
        let entries = [
            ("obs", Described::Leaf(&obs)),
            ("done", Described::Leaf(&done)),
            ("nested", Described::Child("TensorDict")),
        ];
        let fields = LevelFields {
            batch_size: vec![3],
            type_text: "<class 'tensordict._td.TensorDict'>".into(),
            class_text: Some("tensordict:TensorDict".into()),
            names: Some(vec![Some("time".into())]),
        };
        let text = level_text(&entries.into_iter(), &fields);
        assert_eq!(text.len(), 363);
        assert!(text.starts_with(
            r#"{"obs": {"device": "cpu", "shape": [3, 2], "dtype": "torch.float32", "is_nested": false}, "done""#
        ));
        assert!(text.ends_with(
            r#""_format_version": 1, "_class": "tensordict:TensorDict", "_names": ["time"]}"#
        ));
    }
}
