//! A JSON object parsed one level deep.
//!
//! Values are slices of the bytes they arrived in: validated, never decoded, and written back unchanged. Number
//! spelling, member order and unknown members survive.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use bytes::Bytes;

use super::scan::{self, QuotedString, ScanError, Scanner};

/// Length from which `memchr` is cheaper than a simple loop.
const SHORT_STRING: usize = 24;

/// A JSON object whose values stay raw JSON.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Object {
    members: Vec<(MemberName, Bytes)>,
}

/// A member's name, decoded. A borrowed one is a constant of this program and needs no escapes.
type MemberName = Cow<'static, str>;

/// Makes a member name static. Common names are not copied.
fn intern_name(name: &[u8]) -> MemberName {
    Cow::Borrowed(match name {
        b"name" => "name",
        b"arguments" => "arguments",
        b"_meta" => "_meta",
        b"content" => "content",
        b"isError" => "isError",
        b"structuredContent" => "structuredContent",
        b"resultType" => "resultType",
        b"ttlMs" => "ttlMs",
        b"cacheScope" => "cacheScope",
        b"title" => "title",
        b"description" => "description",
        b"inputSchema" => "inputSchema",
        b"outputSchema" => "outputSchema",
        b"annotations" => "annotations",
        _ => return Cow::Owned(String::from_utf8_lossy(name).into_owned()),
    })
}

/// The error for bytes that are not the expected JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BadJson {
    /// The mistake and its position.
    pub reason: String,
    /// Whether the bytes are JSON at all.
    pub is_json: bool,
}

impl BadJson {
    pub(crate) fn unexpected_shape(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_json: true }
    }
}

impl From<ScanError> for BadJson {
    fn from(error: ScanError) -> Self {
        Self { reason: format!("expected {} at byte {}", error.expected, error.offset), is_json: false }
    }
}

impl fmt::Display for BadJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for BadJson {}

impl Object {
    /// Parses one object and validates all of it. A repeated member name is rejected, because two readers could see two
    /// different values.
    ///
    /// # Errors
    /// Fails if the text is not valid JSON, not an object, or has a member twice.
    pub fn parse(source: &Bytes) -> Result<Self, BadJson> {
        let mut object = Self::default();
        for_each_member(source, usize::MAX, |key, value| {
            object.push(&key, source.slice_ref(value));
            Ok(())
        })?;
        object.without_repeated()
    }

    /// Parses one object like [`Object::parse`] and, in the same scan, the elements of the array that is its member `list`. They
    /// are `None` if there is no such member or it is not an array.
    pub(crate) fn parse_with_list(source: &Bytes, list: &str) -> Result<ObjectWithList, BadJson> {
        let mut object = Self::default();
        let mut elements = None;
        let mut scanner = scanner_of_object(source, usize::MAX)?;
        scanner.scan_members(|scanner, name| {
            let name = decode_name(source, name)?;
            let value = match *name == *list.as_bytes() && scanner.is_at(b'[') {
                true => {
                    let elements = elements.insert(Vec::new());
                    scanner.scan_array_value(|scanner| {
                        elements.push(ListElement::scan(scanner, source)?);
                        Ok(())
                    })?
                }
                false => scanner.scan_value()?,
            };
            object.push(&name, source.slice(value));
            Ok::<_, BadJson>(())
        })?;
        scanner.expect_end()?;
        Ok(ObjectWithList { object: object.without_repeated()?, elements })
    }

    /// Returns an object without members, with memory for as many as most parameters have.
    pub(crate) fn for_params() -> Self {
        Self { members: Vec::with_capacity(4) }
    }

    /// Adds a member without looking for one of the same name. [`Object::without_repeated`] must follow.
    pub(crate) fn push(&mut self, name: &[u8], value: Bytes) {
        self.members.push((intern_name(name), value));
    }

    /// Returns the object unless it has a member twice.
    pub(crate) fn without_repeated(self) -> Result<Self, BadJson> {
        match self.find_repeated() {
            Some(key) => Err(BadJson::unexpected_shape(format!("the member `{key}` appears twice"))),
            None => Ok(self),
        }
    }

    /// Returns whether there are no members.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns a member's raw value.
    pub fn get(&self, key: &str) -> Option<&Bytes> {
        self.members.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// Returns a member's value, if it is a string.
    pub fn get_string(&self, key: &str) -> Option<Cow<'_, str>> {
        as_string(self.get(key)?)
    }

    /// Returns names and raw values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.members.iter().map(|(key, value)| (&**key, value))
    }

    /// Returns the names that are not among the common ones, in order.
    pub(crate) fn uncommon_names(&self) -> impl Iterator<Item = &str> {
        self.members.iter().filter_map(|(name, _)| match name {
            Cow::Borrowed(_) => None,
            Cow::Owned(name) => Some(name.as_str()),
        })
    }

    /// Replaces a member in its place, or adds it at the end.
    ///
    /// # Errors
    /// Fails, and leaves the object as it is, if `value` is not exactly one JSON value.
    pub fn set(&mut self, key: &'static str, value: impl Into<Bytes>) -> Result<(), BadJson> {
        let value = value.into();
        check_value(&value)?;
        self.set_unchecked(key, value);
        Ok(())
    }

    /// Like [`Object::set`], for a value that is known to be JSON because it was scanned or encoded before. Anything else
    /// would end up in a message as it is.
    #[doc(hidden)]
    pub fn set_unchecked(&mut self, key: &'static str, value: impl Into<Bytes>) {
        let value = value.into();
        debug_assert!(check_value(&value).is_ok(), "the value of `{key}` is not JSON");
        match self.members.iter_mut().find(|(name, _)| name == key) {
            Some(member) => member.1 = value,
            None => self.members.push((Cow::Borrowed(key), value)),
        }
    }

    /// Replaces a member by a string, unless it is this string in any spelling, or adds it at the end.
    pub(crate) fn set_string(&mut self, key: &'static str, text: &str) {
        match self.members.iter_mut().find(|(name, _)| name == key) {
            Some((_, value)) if is_string(value, text) => {}
            Some((_, value)) => *value = to_json_string(text),
            None => self.members.push((Cow::Borrowed(key), to_json_string(text))),
        }
    }

    /// Removes a member and returns its raw value.
    pub fn remove(&mut self, key: &str) -> Option<Bytes> {
        let index = self.members.iter().position(|(name, _)| name == key)?;
        Some(self.members.remove(index).1)
    }

    /// Keeps the members for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(&str) -> bool) {
        self.members.retain(|(key, _)| keep(key));
    }

    /// Appends the object as JSON without whitespace between members.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        for (index, (key, value)) in self.members.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            match key {
                Cow::Borrowed(key) => write_plain(out, key),
                Cow::Owned(key) => write_string(out, key),
            }
            out.push(b':');
            out.extend_from_slice(value);
        }
        out.push(b'}');
    }

    /// Returns the object as JSON.
    pub fn to_bytes(&self) -> Bytes {
        let mut out =
            Vec::with_capacity(self.members.iter().map(|(key, value)| key.len() + value.len() + 4).sum());
        self.write_to(&mut out);
        out.into()
    }

    fn find_repeated(&self) -> Option<&str> {
        let names = self.members.iter().map(|(name, _)| name.as_bytes());
        let index = find_repeated_name(names)?;
        Some(&self.members[index].0)
    }
}

/// Returns the index of the first name that was there before.
fn find_repeated_name<'a>(names: impl ExactSizeIterator<Item = &'a [u8]> + Clone) -> Option<usize> {
    if names.len() <= 16 {
        let mut indexed = names.clone().enumerate();
        return indexed
            .find(|(index, name)| names.clone().take(*index).any(|other| other == *name))
            .map(|(index, _)| index);
    }
    let mut seen = HashSet::new();
    names.enumerate().find(|(_, name)| !seen.insert(*name)).map(|(index, _)| index)
}

/// An object and the elements of a list in it.
#[derive(Debug)]
pub(crate) struct ObjectWithList {
    pub(crate) object: Object,
    pub(crate) elements: Option<Vec<ListElement>>,
}

/// An element of a list of objects.
#[derive(Debug)]
pub(crate) struct ListElement {
    pub(crate) raw: Bytes,
    /// Its members; `None` if [`Object::parse`] would reject it.
    pub(crate) object: Option<Object>,
}

impl ListElement {
    /// Parses a raw JSON array and, in the same scan, the objects in it.
    pub(crate) fn parse_all(array: &Bytes) -> Result<Vec<Self>, BadJson> {
        let mut scanner = Scanner::new(array);
        if !scanner.is_ascii() {
            utf8(array)?;
        }
        let mut elements = Vec::new();
        scanner.scan_elements(|scanner| {
            elements.push(Self::scan(scanner, array)?);
            Ok(())
        })?;
        scanner.expect_end()?;
        Ok(elements)
    }

    fn scan(scanner: &mut Scanner<'_>, source: &Bytes) -> scan::ScanResult<Self> {
        if !scanner.is_at(b'{') {
            return Ok(Self { raw: source.slice(scanner.scan_value()?), object: None });
        }
        let mut object = Object::default();
        let mut is_readable = true;
        let raw = scanner.scan_object_value(|scanner, name| {
            let value = source.slice(scanner.scan_value()?);
            match decode_name(source, name) {
                Ok(name) => object.push(&name, value),
                Err(_) => is_readable = false,
            }
            Ok::<_, ScanError>(())
        })?;
        let object = object.without_repeated().ok().filter(|_| is_readable);
        Ok(Self { raw: source.slice(raw), object })
    }
}

/// A JSON object whose members are slices of its text.
#[derive(Debug)]
pub(crate) struct BorrowedObject<'a> {
    pub(crate) members: Vec<BorrowedMember<'a>>,
}

/// A member of a [`BorrowedObject`].
#[derive(Debug)]
pub(crate) struct BorrowedMember<'a> {
    pub(crate) name: Cow<'a, [u8]>,
    pub(crate) value: &'a [u8],
}

impl<'a> BorrowedObject<'a> {
    /// Parses an object; `None` if [`Object::parse`] would reject it.
    pub(crate) fn parse(source: &'a [u8]) -> Option<Self> {
        let mut members = Vec::new();
        let read = for_each_member(source, usize::MAX, |name, value| {
            members.push(BorrowedMember { name, value });
            Ok(())
        });
        read.ok()?;
        let is_repeated = find_repeated_name(members.iter().map(|member| &*member.name)).is_some();
        (!is_repeated).then_some(Self { members })
    }

    /// Returns the length of the object as JSON without whitespace between members, if no name needs escapes.
    pub(crate) fn compact_len(&self) -> usize {
        let members = self.members.iter().map(|member| member.name.len() + member.value.len() + 4);
        members.sum::<usize>().max(1) + 1
    }

    /// Returns a member's raw value.
    pub(crate) fn get(&self, name: &str) -> Option<&'a [u8]> {
        let member = self.members.iter().find(|member| *member.name == *name.as_bytes())?;
        Some(member.value)
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.members.iter().map(|(key, value)| (key, String::from_utf8_lossy(value))))
            .finish()
    }
}

/// Calls `visit` with the decoded name and raw value of each member of the object in `source`, which is valid UTF-8 then. Values
/// nested deeper than `max_depth` are rejected.
pub(crate) fn for_each_member<'a>(
    source: &'a [u8],
    max_depth: usize,
    mut visit: impl FnMut(Cow<'a, [u8]>, &'a [u8]) -> Result<(), BadJson>,
) -> Result<(), BadJson> {
    scanner_of_object(source, max_depth)?
        .scan_object(|name, value| visit(decode_name(source, name)?, &source[value]))
}

/// Returns a scanner of a text that is an object, if it is JSON at all, and valid UTF-8.
pub(crate) fn scanner_of_object(source: &[u8], max_depth: usize) -> Result<Scanner<'_>, BadJson> {
    let scanner = Scanner::new(source).max_depth(max_depth);
    if !scanner.is_ascii() {
        utf8(source)?;
    }
    if source.trim_ascii_start().first() != Some(&b'{') && scan::is_json(source) {
        return Err(BadJson::unexpected_shape("expected an object"));
    }
    Ok(scanner)
}

/// Decodes a member's name. Fails if it has an invalid escape.
#[inline]
pub(crate) fn decode_name(source: &[u8], name: QuotedString) -> Result<Cow<'_, [u8]>, BadJson> {
    match name.has_escapes {
        false => Ok(Cow::Borrowed(&source[name.range.start + 1..name.range.end - 1])),
        true => decode_escaped_name(&source[name.range]),
    }
}

#[cold]
fn decode_escaped_name(raw: &[u8]) -> Result<Cow<'_, [u8]>, BadJson> {
    as_string(raw)
        .map(|name| Cow::Owned(name.into_owned().into_bytes()))
        .ok_or_else(|| BadJson::unexpected_shape("a member name cannot be decoded"))
}

/// Parses a raw JSON array into its raw elements.
///
/// # Errors
/// Fails if the text is not a valid JSON array.
pub fn parse_array(array: &Bytes) -> Result<Vec<Bytes>, BadJson> {
    let scanner = Scanner::new(array);
    if !scanner.is_ascii() {
        utf8(array)?;
    }
    let mut elements = Vec::new();
    scanner.scan_array(|element| elements.push(array.slice(element)))?;
    Ok(elements)
}

/// Checks that a text is exactly one JSON value.
pub(crate) fn check_value(value: &[u8]) -> Result<(), BadJson> {
    utf8(value)?;
    Ok(scan::check_json(value)?)
}

fn utf8(source: &[u8]) -> Result<&str, BadJson> {
    std::str::from_utf8(source).map_err(|error| BadJson {
        reason: format!("invalid UTF-8 at byte {}", error.valid_up_to()),
        is_json: false,
    })
}

/// Returns whether the text between the quotes of a JSON string has escapes.
fn has_escapes(inner: &[u8]) -> bool {
    match inner.len() < SHORT_STRING {
        true => inner.contains(&b'\\'),
        false => memchr::memchr(b'\\', inner).is_some(),
    }
}

/// Decodes a raw JSON string. Returns `None` for any other value.
pub fn as_string(raw: &[u8]) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    match has_escapes(inner) {
        false => std::str::from_utf8(inner).ok().map(Cow::Borrowed),
        true => decode_escaped(raw).map(Cow::Owned),
    }
}

#[cold]
fn decode_escaped(raw: &[u8]) -> Option<String> {
    serde_json::from_slice(raw).ok()
}

/// Returns whether a raw JSON value is this string, in any spelling.
fn is_string(raw: &[u8], text: &str) -> bool {
    let inner = raw.strip_prefix(b"\"").and_then(|raw| raw.strip_suffix(b"\""));
    match inner {
        Some(inner) if inner == text.as_bytes() => !text.contains('\\'),
        // Another spelling of the same text has escapes.
        Some(inner) => has_escapes(inner) && as_string(raw).as_deref() == Some(text),
        None => false,
    }
}

/// Decodes decimal digits.
fn parse_digits(digits: &[u8]) -> Option<u64> {
    let first = if digits.is_empty() { None } else { Some(0_u64) };
    digits.iter().fold(first, |number, digit| {
        let digit = digit.wrapping_sub(b'0');
        number.filter(|_| digit <= 9)?.checked_mul(10)?.checked_add(digit.into())
    })
}

/// Decodes a raw non-negative JSON integer; `1.0` and `1e0` are integers too.
pub fn as_integer(raw: &[u8]) -> Option<u64> {
    if let Some(number) = parse_digits(raw) {
        return Some(number);
    }
    let text = std::str::from_utf8(raw).ok()?;
    let number: f64 = text.parse().ok().filter(|_| raw.first().is_some_and(u8::is_ascii_digit))?;
    let is_integer = number.fract() == 0.0 && (0.0..9_007_199_254_740_992.0).contains(&number);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to be an integer in range"
    )]
    is_integer.then_some(number as u64)
}

/// Returns a number that is zero if none of eight bytes needs an escape in a JSON string.
fn find_escaped(bytes: [u8; 8]) -> u64 {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGH_BITS: u64 = u64::from_ne_bytes([0x80; 8]);
    let bytes = u64::from_ne_bytes(bytes);
    // The high bit of a byte is set if it was less than `bound`, or if a lower byte was.
    let below = |bytes: u64, bound: u8| bytes.wrapping_sub(ONES * u64::from(bound)) & !bytes;
    let equals = |byte: u8| below(bytes ^ (ONES * u64::from(byte)), 1);
    (below(bytes, 0x20) | equals(b'"') | equals(b'\\')) & HIGH_BITS
}

/// Returns whether a text is the same as a JSON string. Reads eight bytes at the same time: names are short, and several of them
/// are written per call.
fn is_plain(text: &[u8]) -> bool {
    let Some(last) = text.last_chunk() else {
        return text.iter().all(|byte| *byte >= 0x20 && !matches!(byte, b'"' | b'\\'));
    };
    // No early exit, so that the compiler vectorizes the loop.
    let (words, _) = text.as_chunks();
    words.iter().fold(find_escaped(*last), |found, word| found | find_escaped(*word)) == 0
}

/// Appends `text` as a JSON string.
pub fn write_string(out: &mut Vec<u8>, text: &str) {
    match is_plain(text.as_bytes()) {
        true => write_plain(out, text),
        false => write_escaped(out, text),
    }
}

/// Appends a text without characters that need an escape.
fn write_plain(out: &mut Vec<u8>, text: &str) {
    debug_assert!(is_plain(text.as_bytes()), "`{text}` needs escapes");
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

#[cold]
fn write_escaped(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(serde_json::Value::from(text).to_string().as_bytes());
}

/// Appends a number in decimal.
pub fn write_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(format_u64(number, &mut [0; 20]));
}

/// Formats a number in decimal. This runs several times per call and is much faster than `fmt`.
pub(crate) fn format_u64(mut number: u64, buffer: &mut [u8; 20]) -> &[u8] {
    let mut start = buffer.len();
    loop {
        start -= 1;
        buffer[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &buffer[start..];
        }
    }
}

/// Returns `text` as a JSON string.
pub fn to_json_string(text: &str) -> Bytes {
    let mut out = Vec::with_capacity(text.len() + 2);
    write_string(&mut out, text);
    out.into()
}

#[cfg(test)]
mod tests;
