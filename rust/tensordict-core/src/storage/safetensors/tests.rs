//! Tests: what is written is read, and false headers are refused.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::super::job::{Job, Progress};
use super::super::source::Source;
use super::super::verify::{Outcome, Scrutiny, verify};
use super::read::parse_header;
use super::shards::is_shard_name;
use super::*;

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

fn saved(folder: &Path, has_checksums: bool) -> PathBuf {
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
        has_checksums,
        ..Job::new(&progress)
    };
    save(&job, &[file], None, None, false).unwrap();
    path
}

#[test]
fn test_what_is_written_is_read() {
    let folder = tempfile::tempdir().unwrap();
    for has_checksums in [false, true] {
        let path = saved(folder.path(), has_checksums);
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
        let report = verify(&path, &Scrutiny::new(&Progress::default())).unwrap();
        let expected = if has_checksums {
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
        let text =
            format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#);
        parse(&text)
    };
    assert!(tensor("F32", "[25]", "[0,100]").is_ok());
    assert!(tensor("F32", "[]", "[96,100]").is_ok());
    for (dtype, shape, offsets) in [
        ("F33", "[25]", "[0,100]"),
        // Behind the bytes are some that the header does not name.
        ("F32", "[2]", "[0,8]"),
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
        let (name, reason) = tensor(dtype, shape, offsets).unwrap_err();
        assert!(
            name == "a" || reason.contains("appended"),
            "{name}: {reason}"
        );
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

#[test]
fn test_half_bytes_are_counted_one_by_one() {
    let header = |shape: &str| {
        let text =
            format!("{{\"x\":{{\"dtype\":\"F4\",\"shape\":{shape},\"data_offsets\":[0,4]}}}}");
        parse_header(&text, 8, 12)
    };
    assert_eq!(header("[2,4]").unwrap().tensors["x"].shape, [2, 2]);
    for shape in ["[8,1]", "[]", "[4]"] {
        assert_eq!(header(shape).unwrap_err().0, "x");
    }
    assert_eq!(format_shape("F4", &[2, 2]).unwrap(), [2, 4]);
    assert_eq!(format_shape("F32", &[2, 2]).unwrap(), [2, 2]);
    assert_eq!(format_shape("F4", &[]), None);
}
