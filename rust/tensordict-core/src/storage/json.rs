//! JSON as Python's standard library reads and writes it.
//!
//! Metadata files are written by `json.dumps`, which knows the tokens `NaN` and `Infinity` and ints
//! of any size, and whose text must be matched to the byte. `serde_json` refuses the tokens,
//! rounds the ints and keeps no raw text; a reader that does neither is as short as the work
//! around it. Numbers stay text: who needs one parses it.

use std::borrow::Cow;
use std::fmt::Write as _;

use smallvec::SmallVec;

use super::{MAX_LEVELS, Named};

/// The depth to which arrays and objects may be nested: a value as deep as can be saved, in a
/// collection as deep as can be saved, and what the formats put around them.
const MAX_DEPTH: usize = 2 * MAX_LEVELS + 16;

/// The message for a `\ud800` without its other half.
const HALF_A_CHARACTER: &str = "Lone surrogate";

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number as written, `NaN` and infinities included.
    Number(String),
    /// A string.
    String(String),
    /// An array.
    Array(Vec<Value>),
    /// An object, in the order written. Of a repeated key the last value counts.
    Object(Named<Value>),
}

/// Text that is not JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyntaxError {
    /// The text of what was expected, in the words of Python's reader.
    pub message: &'static str,
    /// The position, in characters from the start.
    pub position: usize,
}

impl SyntaxError {
    /// Returns whether it is JSON that Python reads, but for a string that is no text.
    #[must_use]
    pub fn is_half_a_character(&self) -> bool {
        self.message == HALF_A_CHARACTER
    }
}

impl Value {
    /// An object's value under `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        match self {
            Value::Object(fields) => fields.get(key),
            _ => None,
        }
    }

    /// The text of a string.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// A number that is a 64-bit int.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Value::Number(text) => text.parse().ok(),
            _ => None,
        }
    }

    /// A list of 64-bit ints.
    #[must_use]
    pub fn as_ints(&self) -> Option<Vec<i64>> {
        match self {
            Value::Array(items) => items.iter().map(Value::as_i64).collect(),
            _ => None,
        }
    }

    /// A list of 64-bit ints as a value.
    #[must_use]
    pub fn from_ints(ints: &[i64]) -> Self {
        Value::Array(
            ints.iter()
                .map(|int| Value::Number(int.to_string()))
                .collect(),
        )
    }

    /// The text that Python's `json.dumps` gives: ASCII, `", "` and `": "` between items.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text);
        text
    }

    /// Appends [`Value::to_text`] to `text`.
    pub fn write(&self, text: &mut String) {
        match self {
            Value::Null => text.push_str("null"),
            Value::Bool(true) => text.push_str("true"),
            Value::Bool(false) => text.push_str("false"),
            Value::Number(number) => text.push_str(number),
            Value::String(string) => write_string(string, text),
            Value::Array(items) => {
                text.push('[');
                for (position, item) in items.iter().enumerate() {
                    if position > 0 {
                        text.push_str(", ");
                    }
                    item.write(text);
                }
                text.push(']');
            }
            Value::Object(fields) => {
                text.push('{');
                for (position, (key, value)) in fields.iter().enumerate() {
                    if position > 0 {
                        text.push_str(", ");
                    }
                    write_string(key, text);
                    text.push_str(": ");
                    value.write(text);
                }
                text.push('}');
            }
        }
    }
}

/// Appends a list of ints.
pub fn write_ints(ints: &[i64], text: &mut String) {
    text.push('[');
    for (position, int) in ints.iter().enumerate() {
        if position > 0 {
            text.push_str(", ");
        }
        write!(text, "{int}").expect("a String takes all that is written");
    }
    text.push(']');
}

/// Appends a JSON string in ASCII, escaped as Python does.
pub fn write_string(string: &str, text: &mut String) {
    text.push('"');
    if string.bytes().all(is_plain) {
        text.push_str(string);
        text.push('"');
        return;
    }
    for character in string.chars() {
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\u{8}' => text.push_str("\\b"),
            '\u{c}' => text.push_str("\\f"),
            ' '..='~' => text.push(character),
            _ => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    write!(text, "\\u{unit:04x}").expect("a String takes all that is written");
                }
            }
        }
    }
    text.push('"');
}

/// Returns whether a byte stands for itself in a JSON string.
fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\')
}

/// Reads a text that holds one JSON value.
///
/// # Errors
/// [`SyntaxError`] for anything that Python's `json.loads` refuses, and for a lone surrogate,
/// which is no text.
pub fn parse(text: &str) -> Result<Value, SyntaxError> {
    parse_with_repeats(text).map(|(value, _)| value)
}

/// Does the work of [`parse`], with the replacement character for each half of a character: for
/// those who do not pass on what texts say.
///
/// # Errors
/// The text is not JSON.
pub fn parse_lossy(text: &str) -> Result<Value, SyntaxError> {
    let mut reader = Reader::lossy(text);
    let value = reader.value()?;
    reader.end()?;
    Ok(value)
}

/// Does the work of [`parse`], and returns a key that an object has twice, if any does.
///
/// # Errors
/// The text is not JSON.
pub fn parse_with_repeats(text: &str) -> Result<(Value, Option<String>), SyntaxError> {
    let mut reader = Reader::new(text);
    let value = reader.value()?;
    let repeated = reader.repeated.take();
    reader.end()?;
    Ok((value, repeated))
}

/// Reads a text piece by piece, for those who know what to expect: a text with many thousand entries
/// is read without a value for each word of it.
pub struct Reader<'t> {
    text: &'t str,
    at: usize,
    /// The first key that an object has twice.
    repeated: Option<String>,
    /// The replacement for half of a character, which is an error without it.
    half: Option<char>,
}

/// An array or object that is being read.
enum Open {
    Array(Vec<Value>),
    /// With the key of the next value.
    Object(Named<Value>, String),
}

impl Open {
    fn end(&self) -> u8 {
        match self {
            Self::Array(_) => b']',
            Self::Object(..) => b'}',
        }
    }

    fn close(self) -> Value {
        match self {
            Self::Array(items) => Value::Array(items),
            Self::Object(fields, _) => Value::Object(fields),
        }
    }
}

impl<'t> Reader<'t> {
    /// A reader of a text that holds one value.
    #[must_use]
    pub fn new(text: &'t str) -> Self {
        let mut reader = Self {
            text,
            at: 0,
            repeated: None,
            half: None,
        };
        reader.skip_space();
        reader
    }

    /// A reader that takes the replacement character for each half of one, which texts in Python have and
    /// those of Rust cannot have.
    #[must_use]
    pub fn lossy(text: &'t str) -> Self {
        Self {
            half: Some(char::REPLACEMENT_CHARACTER),
            ..Self::new(text)
        }
    }

    /// Returns the number of bytes that are not read yet.
    #[must_use]
    pub fn left(&self) -> usize {
        self.text.len() - self.at
    }

    /// Returns whether an object comes next.
    #[must_use]
    pub fn is_object(&self) -> bool {
        self.peek() == Some(b'{')
    }

    /// Returns whether a string comes next.
    #[must_use]
    pub fn is_string(&self) -> bool {
        self.peek() == Some(b'"')
    }

    /// Returns what `read` makes of the next value; if that is None, nothing is read.
    pub fn attempt<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let start = self.at;
        let found = read(self);
        if found.is_none() {
            self.at = start;
        }
        found
    }

    /// Passes `text`; None where something else comes next.
    pub fn pass(&mut self, text: &str) -> Option<()> {
        let rest = &self.text.as_bytes()[self.at..];
        rest.starts_with(text.as_bytes()).then(|| {
            self.at += text.len();
        })
    }

    /// Reads an object: `each` gets every key, repeated ones too, and reads the value.
    ///
    /// # Errors
    /// The text is not JSON.
    pub fn object(
        &mut self,
        mut each: impl FnMut(&mut Self, Cow<'t, str>) -> Result<(), SyntaxError>,
    ) -> Result<(), SyntaxError> {
        if self.begins(b'}') {
            return Ok(());
        }
        loop {
            let key = self.key()?;
            each(self, key)?;
            self.skip_space();
            match self.peek() {
                Some(b',') => {
                    self.at += 1;
                    self.skip_space();
                }
                Some(b'}') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.error("Expecting ',' delimiter")),
            }
        }
    }

    /// Reads a value: its ints if it is a list of 64-bit ints.
    ///
    /// # Errors
    /// The text is not JSON.
    pub fn ints(&mut self) -> Result<Option<SmallVec<[i64; 4]>>, SyntaxError> {
        let plain = self.attempt(Self::plain_ints);
        if plain.is_some() {
            return Ok(plain);
        }
        Ok(self.value()?.as_ints().map(SmallVec::from_vec))
    }

    /// A list of ints of few digits, none of them negative; None for anything else, of which some is
    /// read.
    pub fn plain_ints(&mut self) -> Option<SmallVec<[i64; 4]>> {
        let mut ints = SmallVec::new();
        if self.peek() != Some(b'[') {
            return None;
        }
        if self.begins(b']') {
            return Some(ints);
        }
        loop {
            let start = self.at;
            let mut int = 0_i64;
            while let Some(digit @ b'0'..=b'9') = self.peek() {
                int = int.checked_mul(10)?.checked_add(i64::from(digit - b'0'))?;
                self.at += 1;
            }
            let has_zero = self.at > start + 1 && self.text.as_bytes()[start] == b'0';
            if self.at == start || has_zero {
                return None;
            }
            ints.push(int);
            self.skip_space();
            let found = self.peek()?;
            self.at += 1;
            match found {
                b',' => self.skip_space(),
                b']' => return Some(ints),
                _ => return None,
            }
        }
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// There is more than one value.
    pub fn end(mut self) -> Result<(), SyntaxError> {
        self.skip_space();
        if self.at < self.text.len() {
            return Err(self.error("Extra data"));
        }
        Ok(())
    }

    fn error(&self, message: &'static str) -> SyntaxError {
        self.error_at(message, self.at)
    }

    fn error_at(&self, message: &'static str, at: usize) -> SyntaxError {
        let position = self.text[..at].chars().count();
        SyntaxError { message, position }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Reads a value. What is open is kept in a list, so that depth costs no stack.
    ///
    /// # Errors
    /// The text is not JSON.
    pub fn value(&mut self) -> Result<Value, SyntaxError> {
        let mut open: Vec<Open> = Vec::new();
        loop {
            let mut value = match self.peek() {
                Some(b'"') => Value::String(self.string()?.into_owned()),
                Some(b'{' | b'[') if open.len() == MAX_DEPTH => {
                    return Err(self.error("Too deeply nested"));
                }
                Some(b'{') => {
                    let mut object = Open::Object(Named::default(), String::new());
                    if self.begins(b'}') {
                        object.close()
                    } else {
                        self.next_key(&mut object)?;
                        open.push(object);
                        continue;
                    }
                }
                Some(b'[') => {
                    let array = Open::Array(Vec::new());
                    if self.begins(b']') {
                        array.close()
                    } else {
                        open.push(array);
                        continue;
                    }
                }
                _ => self.word()?,
            };
            // The value is the last of what is open, or ends it.
            loop {
                let Some(mut holder) = open.pop() else {
                    return Ok(value);
                };
                self.add(&mut holder, value);
                self.skip_space();
                match (self.peek(), holder.end()) {
                    (Some(b','), _) => {
                        self.at += 1;
                        self.skip_space();
                        self.next_key(&mut holder)?;
                        open.push(holder);
                        break;
                    }
                    (Some(found), end) if found == end => {
                        self.at += 1;
                        value = holder.close();
                    }
                    _ => return Err(self.error("Expecting ',' delimiter")),
                }
            }
        }
    }

    /// Passes the first character of an array or object, and the last one too where it is empty.
    fn begins(&mut self, end: u8) -> bool {
        self.at += 1;
        self.skip_space();
        let is_empty = self.peek() == Some(end);
        self.at += usize::from(is_empty);
        is_empty
    }

    /// Reads the key of the next value; arrays have none.
    fn next_key(&mut self, holder: &mut Open) -> Result<(), SyntaxError> {
        if let Open::Object(_, key) = holder {
            *key = self.key()?.into_owned();
        }
        Ok(())
    }

    /// Reads a key and what stands between it and its value.
    fn key(&mut self) -> Result<Cow<'t, str>, SyntaxError> {
        const PROPERTY: &str = "Expecting property name enclosed in double quotes";
        if self.peek() != Some(b'"') {
            return Err(self.error(PROPERTY));
        }
        let key = self.string()?;
        self.skip_space();
        if self.peek() != Some(b':') {
            return Err(self.error("Expecting ':' delimiter"));
        }
        self.at += 1;
        self.skip_space();
        Ok(key)
    }

    fn add(&mut self, holder: &mut Open, value: Value) {
        match holder {
            Open::Array(items) => items.push(value),
            Open::Object(fields, key) => {
                let (place, earlier) = fields.insert_full(std::mem::take(key), value);
                if earlier.is_some() && self.repeated.is_none() {
                    self.repeated = fields.get_index(place).map(|(key, _)| key.clone());
                }
            }
        }
    }

    fn word(&mut self) -> Result<Value, SyntaxError> {
        let rest = &self.text[self.at..];
        for (token, value) in [
            ("null", Value::Null),
            ("true", Value::Bool(true)),
            ("false", Value::Bool(false)),
        ] {
            if rest.starts_with(token) {
                self.at += token.len();
                return Ok(value);
            }
        }
        for token in ["NaN", "Infinity", "-Infinity"] {
            if rest.starts_with(token) {
                self.at += token.len();
                return Ok(Value::Number(token.to_owned()));
            }
        }
        self.number()
    }

    fn number(&mut self) -> Result<Value, SyntaxError> {
        let start = self.at;
        let bytes = self.text.as_bytes();
        let digits = |mut at: usize| {
            while bytes.get(at).is_some_and(u8::is_ascii_digit) {
                at += 1;
            }
            at
        };
        let mut at = start + usize::from(self.peek() == Some(b'-'));
        let whole = digits(at);
        if whole == at {
            return Err(self.error("Expecting value"));
        }
        // A leading zero ends the whole part, as in `01`, whose rest is then extra data.
        at = if bytes[at] == b'0' { at + 1 } else { whole };
        if bytes.get(at) == Some(&b'.') && digits(at + 1) > at + 1 {
            at = digits(at + 1);
        }
        if matches!(bytes.get(at), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
            let end = digits(at + 1 + sign);
            if end > at + 1 + sign {
                at = end;
            }
        }
        self.at = at;
        Ok(Value::Number(self.text[start..at].to_owned()))
    }

    /// Reads a string, which comes next. It is borrowed where nothing in it is escaped.
    ///
    /// # Errors
    /// The text is not JSON.
    pub fn string(&mut self) -> Result<Cow<'t, str>, SyntaxError> {
        let start = self.at;
        self.at += 1;
        let mut string = String::new();
        loop {
            let rest = &self.text[self.at..];
            let plain = rest
                .bytes()
                .position(|c| matches!(c, b'"' | b'\\' | ..b' '));
            let Some(length) = plain else {
                return Err(self.error_at("Unterminated string starting at", start));
            };
            let piece = &rest[..length];
            self.at += length;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    if string.is_empty() {
                        return Ok(Cow::Borrowed(piece));
                    }
                    string.push_str(piece);
                    return Ok(Cow::Owned(string));
                }
                Some(b'\\') => {
                    string.push_str(piece);
                    string.push(self.escape(start)?);
                }
                _ => return Err(self.error("Invalid control character at")),
            }
        }
    }

    fn escape(&mut self, start: usize) -> Result<char, SyntaxError> {
        let at = self.at;
        self.at += 1;
        let letter = self.peek();
        self.at += 1;
        Ok(match letter {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                let first = self.unit(at)?;
                if let Some(character) = char::from_u32(u32::from(first)) {
                    return Ok(character);
                }
                let after = self.at;
                if self.text[after..].starts_with("\\u") {
                    self.at += 2;
                    let second = self.unit(at)?;
                    if let Some(Ok(character)) = char::decode_utf16([first, second]).next() {
                        return Ok(character);
                    }
                }
                self.at = after;
                self.half
                    .ok_or_else(|| self.error_at(HALF_A_CHARACTER, at))?
            }
            None => return Err(self.error_at("Unterminated string starting at", start)),
            Some(_) => return Err(self.error_at("Invalid \\escape", at)),
        })
    }

    fn unit(&mut self, at: usize) -> Result<u16, SyntaxError> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4);
        let unit = digits
            .filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u16::from_str_radix(digits, 16).ok());
        self.at += 4;
        unit.ok_or_else(|| self.error_at("Invalid \\uXXXX escape", at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn round_trip(text: &str) {
        assert_eq!(parse(text).expect(text).to_text(), text);
    }

    #[test]
    fn test_text_of_python_is_kept_to_the_byte() {
        round_trip(r#"{"a": [1, -2.5e+30, NaN, Infinity, -Infinity], "b": {}, "c": []}"#);
        round_trip(r#"{"\u00e9\ud83d\ude00\u007f\n\"\\": 123456789012345678901234567890}"#);
        round_trip(r#"[null, true, false, "x"]"#);
    }

    #[test]
    fn test_space_and_raw_utf8_are_read() {
        let value = parse(" {\n\"é\" :\t[ 1 ,2 ] }\r\n").unwrap();
        assert_eq!(value.to_text(), r#"{"\u00e9": [1, 2]}"#);
    }

    #[test]
    fn test_of_a_repeated_key_the_last_value_counts() {
        assert_eq!(
            parse(r#"{"a": 1, "b": 2, "a": 3}"#).unwrap().to_text(),
            r#"{"a": 3, "b": 2}"#
        );
    }

    #[test]
    fn test_errors_say_what_python_says() {
        for (text, message, position) in [
            ("{", "Expecting property name enclosed in double quotes", 1),
            ("", "Expecting value", 0),
            ("[1", "Expecting ',' delimiter", 2),
            ("{\"é\"", "Expecting ':' delimiter", 4),
            ("[1] x", "Extra data", 4),
            ("\"a", "Unterminated string starting at", 0),
            ("\"\\", "Unterminated string starting at", 0),
            ("\"\\q\"", "Invalid \\escape", 1),
            ("\"\\u12\"", "Invalid \\uXXXX escape", 1),
            ("\"\\ud800\"", HALF_A_CHARACTER, 1),
            ("01", "Extra data", 1),
            ("-", "Expecting value", 0),
        ] {
            assert_eq!(
                parse(text),
                Err(SyntaxError { message, position }),
                "{text}"
            );
        }
    }

    #[test]
    fn test_ints_are_those_of_the_value() {
        for text in [
            "[]",
            "[ ]",
            "[1]",
            "[ 1 ,2 ]",
            "[0, 10]",
            "[-3]",
            "[1.0]",
            "[[1]]",
            "3",
            "null",
            "[9223372036854775807]",
            "[9223372036854775808]",
            "[true]",
            "[1e3]",
            "{\"a\": 1}",
        ] {
            let mut reader = Reader::new(text);
            let ints = reader.ints().unwrap();
            reader.end().expect(text);
            assert_eq!(
                ints.map(SmallVec::into_vec),
                parse(text).unwrap().as_ints(),
                "{text}"
            );
        }
        for text in ["[01]", "[1", "[1,]", "[,]", "[1 2]", "", "[-]"] {
            let error = Reader::new(text).ints().expect_err(text);
            assert_eq!(error, parse(text).unwrap_err(), "{text}");
        }
    }

    #[test]
    fn test_an_object_is_read_key_by_key() {
        let mut reader = Reader::new(r#" {"a": [1], "\u0062" : "x\n", "a": {} } "#);
        let mut seen = Vec::new();
        reader
            .object(|reader, key| {
                seen.push((key.into_owned(), reader.value()?.to_text()));
                Ok(())
            })
            .unwrap();
        reader.end().unwrap();
        let expected = [("a", "[1]"), ("b", "\"x\\n\""), ("a", "{}")];
        assert!(
            seen.iter()
                .map(|(key, text)| (&**key, &**text))
                .eq(expected)
        );
        for text in ["{", "{1: 2}", "{\"a\"}", "{\"a\": 1 \"b\"}", "{\"a\": 1,}"] {
            let read = Reader::new(text).object(|reader, _| reader.value().map(drop));
            assert_eq!(read, parse(text).map(drop), "{text}");
        }
    }

    #[test]
    fn test_deep_nesting_is_an_error() {
        let text = "[".repeat(100_000);
        assert_eq!(parse(&text).unwrap_err().message, "Too deeply nested");
    }
}
