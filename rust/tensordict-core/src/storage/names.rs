//! File names of keys.
//!
//! A key becomes a file name by escaping what no file name may hold. Names are never
//! turned back into keys: those are in the metadata.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The file name, without suffix, of a key.
///
/// The characters `/ < > : " | ? * \ %`, the space, DEL and control characters become `%XX`; the
/// empty key becomes `%`; `.` and `..` are escaped too. Everything else stays.
#[must_use]
pub fn escape(key: &str) -> Cow<'_, str> {
    match key {
        "" => return Cow::Borrowed("%"),
        "." => return Cow::Borrowed("%2E"),
        ".." => return Cow::Borrowed("%2E%2E"),
        _ => {}
    }
    if !key.bytes().any(is_escaped) {
        return Cow::Borrowed(key);
    }
    let mut name = String::with_capacity(key.len() + 8);
    for character in key.chars() {
        match u8::try_from(character) {
            Ok(byte) if is_escaped(byte) => {
                write!(name, "%{byte:02X}").expect("a String takes all that is written");
            }
            _ => name.push(character),
        }
    }
    Cow::Owned(name)
}

fn is_escaped(byte: u8) -> bool {
    matches!(
        byte,
        0..=0x20 | 0x7f | b'/' | b'<' | b'>' | b':' | b'"' | b'|' | b'?' | b'*' | b'\\' | b'%'
    )
}

/// Returns whether a key may be used as a file name as it is, which is how older versions wrote.
///
/// Such names come from a file, so none that could lead out of the save is safe.
#[must_use]
pub fn is_safe_raw_name(key: &str) -> bool {
    let drive = key.as_bytes().get(1) == Some(&b':') && key.as_bytes()[0].is_ascii_alphabetic();
    !(matches!(key, "" | "." | "..") || key.contains(['/', '\\', '\0']) || drive)
}

/// Returns whether a key can be the name of a file as it is.
#[must_use]
pub fn is_file_name(key: &str) -> bool {
    !(matches!(key, "" | "." | "..") || key.contains(['/', '\0']))
}

/// A path of keys for messages, as Python shows the key: `'a'` or `('a', 'b')`.
#[must_use]
pub fn display_key<S: AsRef<str>>(path: &[S]) -> String {
    if let [key] = path {
        return quoted(key.as_ref());
    }
    let parts: Vec<String> = path.iter().map(|key| quoted(key.as_ref())).collect();
    format!("({})", parts.join(", "))
}

/// Returns the beginning of the keys below `path`, for messages.
#[must_use]
pub fn display_key_before<S: AsRef<str>>(path: &[S]) -> String {
    let parts: Vec<String> = path.iter().map(|key| quoted(key.as_ref())).collect();
    format!("({}, ", parts.join(", "))
}

fn quoted(key: &str) -> String {
    format!("'{}'", key.replace('\\', "\\\\").replace('\'', "\\'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_escape_keeps_plain_names() {
        assert_eq!(escape("obs"), "obs");
        assert_eq!(escape("a.b"), "a.b");
        assert_eq!(escape("é…"), "é…");
    }

    #[test]
    fn test_escape_of_what_no_file_name_holds() {
        assert_eq!(escape("a/b c%"), "a%2Fb%20c%25");
        assert_eq!(escape("\u{7f}\n"), "%7F%0A");
        assert_eq!(escape(""), "%");
        assert_eq!(escape("."), "%2E");
        assert_eq!(escape(".."), "%2E%2E");
        assert_eq!(escape("..."), "...");
    }

    #[test]
    fn test_raw_names_cannot_leave_the_directory() {
        for key in ["", ".", "..", "a/b", "a\\b", "C:x"] {
            assert!(!is_safe_raw_name(key), "{key}");
        }
        assert!(is_safe_raw_name("a b"));
    }

    #[test]
    fn test_display_key_is_pythons() {
        assert_eq!(display_key(&["a"]), "'a'");
        assert_eq!(display_key(&["a", "b'"]), "('a', 'b\\'')");
    }
}
