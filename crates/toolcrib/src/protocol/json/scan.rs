//! Validates JSON and finds the byte ranges of its values, without decoding them.
//!
//! Large messages are mostly long strings, so strings are searched at memory speed, which is cheaper than a general
//! parser that returns raw values. The scanner accepts exactly what `serde_json` accepts (checked by a property test
//! and a fuzz target). Nesting uses heap memory, never the stack.

use std::ops::Range;

/// A syntax error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ScanError {
    /// Offset of the first unexpected byte.
    pub(crate) offset: usize,
    /// The token that was expected there.
    pub(crate) expected: &'static str,
}

/// Longest text that [`find_quoted`] searches for one byte instead of the whole name.
const SMALL_TEXT: usize = 1 << 10;

pub(crate) type ScanResult<T> = Result<T, ScanError>;

/// A JSON string in the text.
#[derive(Debug)]
pub(crate) struct QuotedString {
    /// Its range, quotes included.
    pub(crate) range: Range<usize>,
    /// Whether it contains escapes.
    pub(crate) has_escapes: bool,
}

/// A scanner of one JSON text.
#[derive(Debug)]
pub(crate) struct Scanner<'a> {
    text: &'a [u8],
    position: usize,
    open_containers: OpenContainers,
    max_depth: usize,
    bytes: ByteSummary,
}

/// The range of the bytes of a text.
#[derive(Debug, Clone, Copy)]
struct ByteSummary {
    /// Whether the text contains control characters; if not, strings need not be searched for them.
    has_controls: bool,
    is_ascii: bool,
}

impl ByteSummary {
    /// Reads a text once. The loop has no branches, so the compiler vectorizes it.
    fn new(text: &[u8]) -> Self {
        let mut min = u8::MAX;
        let mut bits = 0;
        for byte in text {
            min = min.min(*byte);
            bits |= byte;
        }
        Self { has_controls: min < 0x20, is_ascii: bits.is_ascii() }
    }
}

/// The kinds of the arrays and objects around a value, innermost last. There is one bit for each, so that a usual text needs
/// no allocation.
#[derive(Debug, Default)]
struct OpenContainers {
    depth: usize,
    /// The kinds of the innermost ones, last in the lowest bit: 1 for an object.
    kinds: u64,
    /// The kinds of the others, 64 in each word.
    outer: Vec<u64>,
}

impl OpenContainers {
    fn push(&mut self, kind: Container) {
        if self.depth > 0 && self.depth.is_multiple_of(64) {
            self.outer.push(self.kinds);
        }
        self.depth += 1;
        self.kinds = self.kinds << 1 | kind as u64;
    }

    fn pop(&mut self) {
        self.depth -= 1;
        self.kinds = match self.depth.is_multiple_of(64) {
            true => self.outer.pop().unwrap_or(0),
            false => self.kinds >> 1,
        };
    }

    fn last(&self) -> Option<Container> {
        let kind = if self.kinds & 1 == 1 { Container::Object } else { Container::Array };
        (self.depth > 0).then_some(kind)
    }
}

/// A value that contains others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Container {
    Array = 0,
    Object = 1,
}

impl Container {
    fn closer(self) -> u8 {
        match self {
            Self::Array => b']',
            Self::Object => b'}',
        }
    }
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(text: &'a [u8]) -> Self {
        Self {
            text,
            position: 0,
            open_containers: OpenContainers::default(),
            max_depth: usize::MAX,
            bytes: ByteSummary::new(text),
        }
    }

    /// Returns whether the text is ASCII, and thus valid UTF-8.
    pub(crate) fn is_ascii(&self) -> bool {
        self.bytes.is_ascii
    }

    /// Limits how deep values may be nested.
    pub(crate) fn max_depth(self, max_depth: usize) -> Self {
        Self { max_depth, ..self }
    }

    /// Scans a text that is one object and calls `visit` with the name and value of each member.
    pub(crate) fn scan_object<E: From<ScanError>>(
        mut self,
        mut visit: impl FnMut(QuotedString, Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.scan_members(|scanner, name| {
            let value = scanner.scan_value()?;
            visit(name, value)
        })?;
        Ok(self.expect_end()?)
    }

    /// Scans an object and calls `visit` with the name of each member. `visit` must scan exactly one value.
    pub(crate) fn scan_members<E: From<ScanError>>(
        &mut self,
        mut visit: impl FnMut(&mut Self, QuotedString) -> Result<(), E>,
    ) -> Result<(), E> {
        self.expect_byte(b'{', "an object")?;
        let mut more = !self.take_byte(b'}');
        while more {
            let name = self.scan_name()?;
            visit(self, name)?;
            more = self.take_comma_or_close(b'}')?;
        }
        Ok(())
    }

    /// Scans a value that is an object as [`scan_members`](Self::scan_members) does, and returns its range. The object is one level
    /// of nesting.
    pub(crate) fn scan_object_value<E: From<ScanError>>(
        &mut self,
        visit: impl FnMut(&mut Self, QuotedString) -> Result<(), E>,
    ) -> Result<Range<usize>, E> {
        self.skip_whitespace();
        let start = self.position;
        self.max_depth -= 1;
        self.scan_members(visit)?;
        self.max_depth += 1;
        Ok(start..self.position)
    }

    /// Scans an array and calls `visit` for each element. `visit` must scan exactly one value.
    pub(crate) fn scan_elements(
        &mut self,
        mut visit: impl FnMut(&mut Self) -> ScanResult<()>,
    ) -> ScanResult<()> {
        self.expect_byte(b'[', "an array")?;
        let mut more = !self.take_byte(b']');
        while more {
            visit(self)?;
            more = self.take_comma_or_close(b']')?;
        }
        Ok(())
    }

    /// Scans a value that is an array as [`scan_elements`](Self::scan_elements) does, and returns its range.
    pub(crate) fn scan_array_value(
        &mut self,
        visit: impl FnMut(&mut Self) -> ScanResult<()>,
    ) -> ScanResult<Range<usize>> {
        self.skip_whitespace();
        let start = self.position;
        self.scan_elements(visit)?;
        Ok(start..self.position)
    }

    /// Returns whether the next value starts with `byte`, such as an object with `{`.
    pub(crate) fn is_at(&mut self, byte: u8) -> bool {
        self.peek_value() == Some(byte)
    }

    /// Returns the first byte of the next value.
    pub(crate) fn peek_value(&mut self) -> Option<u8> {
        self.skip_whitespace();
        self.peek()
    }

    /// Scans a text that is one array and calls `visit` with each element.
    pub(crate) fn scan_array(mut self, mut visit: impl FnMut(Range<usize>)) -> ScanResult<()> {
        self.scan_elements(|scanner| {
            visit(scanner.scan_value()?);
            Ok(())
        })?;
        self.expect_end()
    }

    /// Scans one value and returns its range without surrounding whitespace.
    pub(crate) fn scan_value(&mut self) -> ScanResult<Range<usize>> {
        self.skip_whitespace();
        let start = self.position;
        loop {
            self.skip_whitespace();
            let entered = match self.peek() {
                Some(b'"') => self.scan_string().map(|_| false)?,
                Some(b'{') => self.enter_container(Container::Object)?,
                Some(b'[') => self.enter_container(Container::Array)?,
                Some(b'-' | b'0'..=b'9') => self.scan_number().map(|()| false)?,
                Some(b't') => self.scan_literal(b"true")?,
                Some(b'f') => self.scan_literal(b"false")?,
                Some(b'n') => self.scan_literal(b"null")?,
                _ => return self.error("a value"),
            };
            if !entered && !self.leave_containers()? {
                return Ok(start..self.position);
            }
        }
    }

    /// Enters an object or array up to its first value. Returns `false` if it is empty and thus already complete.
    fn enter_container(&mut self, kind: Container) -> ScanResult<bool> {
        self.position += 1;
        if self.take_byte(kind.closer()) {
            return Ok(false);
        }
        if self.open_containers.depth >= self.max_depth {
            return self.error("less nesting");
        }
        self.open_containers.push(kind);
        if kind == Container::Object {
            self.scan_name()?;
        }
        Ok(true)
    }

    /// Leaves the containers that end after a value. Returns whether another value follows.
    fn leave_containers(&mut self) -> ScanResult<bool> {
        while let Some(kind) = self.open_containers.last() {
            if self.take_comma_or_close(kind.closer())? {
                if kind == Container::Object {
                    self.scan_name()?;
                }
                return Ok(true);
            }
            self.open_containers.pop();
        }
        Ok(false)
    }

    /// Skips a comma (`true`) or the closing byte of the current container (`false`).
    fn take_comma_or_close(&mut self, closer: u8) -> ScanResult<bool> {
        self.skip_whitespace();
        match self.peek() {
            Some(b',') => {
                self.position += 1;
                Ok(true)
            }
            Some(byte) if byte == closer => {
                self.position += 1;
                Ok(false)
            }
            _ => self.error(if closer == b'}' { "`,` or `}`" } else { "`,` or `]`" }),
        }
    }

    /// Scans a member's name and the colon after it.
    fn scan_name(&mut self) -> ScanResult<QuotedString> {
        self.skip_whitespace();
        if self.peek() != Some(b'"') {
            return self.error("a name in quotes");
        }
        let name = self.scan_string()?;
        self.expect_byte(b':', "`:`")?;
        Ok(name)
    }

    /// Scans a string. [`peek_value`](Self::peek_value) must have returned a quote.
    #[inline(always)]
    pub(crate) fn scan_string(&mut self) -> ScanResult<QuotedString> {
        let start = self.position;
        let plain_len = plain_prefix_len(&self.text[start + 1..]);
        let end = start + 1 + plain_len;
        if self.text.get(end) == Some(&b'"') && !self.bytes.has_controls {
            self.position = end + 1;
            return Ok(QuotedString { range: start..self.position, has_escapes: false });
        }
        self.position = start + 1;
        self.scan_special_string(start, plain_len)
    }

    /// Scans a string that may have escapes or control characters; its first `plain_len` bytes are neither quotes nor
    /// backslashes.
    // Not inlined, because the path of plain strings is shorter without it.
    #[inline(never)]
    fn scan_special_string(&mut self, start: usize, mut plain_len: usize) -> ScanResult<QuotedString> {
        let mut has_escapes = false;
        loop {
            let rest = &self.text[self.position..];
            if self.bytes.has_controls && ByteSummary::new(&rest[..plain_len]).has_controls {
                return self.error("a string without control characters");
            }
            self.position += plain_len;
            match self.peek() {
                Some(b'"') => {
                    self.position += 1;
                    return Ok(QuotedString { range: start..self.position, has_escapes });
                }
                Some(b'\\') => {
                    has_escapes = true;
                    self.scan_escape()?;
                    plain_len = find_special(&self.text[self.position..]);
                    if !self.bytes.has_controls {
                        self.position += plain_len;
                        self.skip_short_escapes();
                        plain_len = 0;
                    }
                }
                _ => return self.error("the end of a string"),
            }
        }
    }

    /// Skips escapes of two bytes and what is between them, up to the next quote or other escape. Long texts have many of
    /// them, mostly line breaks.
    fn skip_short_escapes(&mut self) {
        let mut rest = &self.text[self.position..];
        loop {
            rest = skip_blocks(rest);
            let next_block = rest.len().saturating_sub(BLOCK);
            // Each turn takes an escape or is the last one, also at the end of the text.
            loop {
                rest = &rest[find_special(rest)..];
                let [b'\\', b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', after @ ..] = rest else {
                    self.position = self.text.len() - rest.len();
                    return;
                };
                rest = after;
                if rest.len() <= next_block {
                    break;
                }
            }
        }
    }

    fn scan_escape(&mut self) -> ScanResult<()> {
        self.position += 1;
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.position += 1,
            Some(b'u') => {
                self.position += 1;
                for _ in 0..4 {
                    match self.peek() {
                        Some(byte) if byte.is_ascii_hexdigit() => self.position += 1,
                        _ => return self.error("four hexadecimal digits"),
                    }
                }
            }
            _ => return self.error("an escape"),
        }
        Ok(())
    }

    fn scan_number(&mut self) -> ScanResult<()> {
        if self.peek() == Some(b'-') {
            self.position += 1;
        }
        match self.peek() {
            Some(b'0') => self.position += 1,
            _ => self.scan_digits()?,
        }
        if self.peek() == Some(b'.') {
            self.position += 1;
            self.scan_digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.position += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.position += 1;
            }
            self.scan_digits()?;
        }
        Ok(())
    }

    fn scan_digits(&mut self) -> ScanResult<()> {
        let count = self.text[self.position..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.position += count;
        if count > 0 { Ok(()) } else { self.error("a digit") }
    }

    /// Skips a literal. Returns `false`, because no container was opened.
    fn scan_literal(&mut self, literal: &[u8]) -> ScanResult<bool> {
        if self.text[self.position..].starts_with(literal) {
            self.position += literal.len();
            return Ok(false);
        }
        self.error("`true`, `false` or `null`")
    }

    fn expect_byte(&mut self, byte: u8, expected: &'static str) -> ScanResult<()> {
        self.skip_whitespace();
        if self.peek() != Some(byte) {
            return self.error(expected);
        }
        self.position += 1;
        Ok(())
    }

    /// Skips whitespace and then `byte`, if it is next.
    fn take_byte(&mut self, byte: u8) -> bool {
        self.skip_whitespace();
        let is_next = self.peek() == Some(byte);
        self.position += usize::from(is_next);
        is_next
    }

    pub(crate) fn expect_end(&mut self) -> ScanResult<()> {
        self.skip_whitespace();
        if self.position == self.text.len() { Ok(()) } else { self.error("the end") }
    }

    fn skip_whitespace(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.position += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.position).copied()
    }

    fn error<T>(&self, expected: &'static str) -> ScanResult<T> {
        Err(ScanError { offset: self.position, expected })
    }
}

/// Returns the first offset of a name, which is usually passed in quotes. In a small text its rarest byte is searched, which is cheaper than
/// building a searcher for the whole name.
pub(crate) fn find_quoted(text: &[u8], quoted: &[u8]) -> Option<usize> {
    if text.len() > SMALL_TEXT {
        return memchr::memmem::find(text, quoted);
    }
    let rare = quoted.iter().position(|byte| !byte.is_ascii_lowercase() && *byte != b'"').unwrap_or(0);
    let mut starts =
        memchr::memchr_iter(*quoted.get(rare)?, text).filter_map(|offset| offset.checked_sub(rare));
    starts.find(|start| text[*start..].starts_with(quoted))
}

/// Returns whether `text` is one JSON value.
pub(crate) fn is_json(text: &[u8]) -> bool {
    check_json(text).is_ok()
}

/// Checks that `text` is one JSON value. Strings are not checked for valid UTF-8.
pub(crate) fn check_json(text: &[u8]) -> ScanResult<()> {
    let mut scanner = Scanner::new(text);
    scanner.scan_value()?;
    scanner.expect_end()
}

/// Returns the number of bytes before the next quote or backslash. Most names are short, so the first sixteen bytes are
/// checked inline, eight at a time, before a search function is called.
pub(crate) fn plain_prefix_len(text: &[u8]) -> usize {
    for (index, eight) in text.as_chunks::<8>().0.iter().take(2).enumerate() {
        let word = u64::from_le_bytes(*eight);
        let found = zero_byte_mask(word ^ (ONES * 0x22)) | zero_byte_mask(word ^ (ONES * 0x5c));
        if found != 0 {
            return index * 8 + found.trailing_zeros() as usize / 8;
        }
    }
    find_special(text)
}

/// Like [`plain_prefix_len`], for long strings.
fn find_special(text: &[u8]) -> usize {
    memchr::memchr2(b'"', b'\\', text).unwrap_or(text.len())
}

/// Bytes that [`skip_blocks`] checks together.
const BLOCK: usize = 128;

/// Skips blocks of text that contain no quotes and only the escapes of line breaks, tabs and quotes, so that these cost no search of
/// their own, which would be several times as many instructions for JSON within a string.
fn skip_blocks(text: &[u8]) -> &[u8] {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        #[expect(unsafe_code, reason = "the check makes the call sound, which the compiler cannot know")]
        // SAFETY: the processor has the instructions that the function needs.
        return unsafe { skip_blocks_with_avx2(text) };
    }
    skip_blocks_inline(text)
}

/// The same code, compiled for vectors of 32 bytes instead of 16: half the time, and 8 % less CPU for a call with a result of 1 MB.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn skip_blocks_with_avx2(text: &[u8]) -> &[u8] {
    skip_blocks_inline(text)
}

/// The loop over a block has no branches, so the compiler vectorizes it.
#[inline(always)]
fn skip_blocks_inline(mut text: &[u8]) -> &[u8] {
    while let [first, after_first @ ..] = text
        && let (Some(block), Some(following)) =
            (text.first_chunk::<BLOCK>(), after_first.first_chunk::<BLOCK>())
    {
        let mut has_others = *first == b'"';
        for (byte, next) in block.iter().zip(following) {
            let is_escape = *byte == b'\\';
            let is_quote = *next == b'"';
            let is_escaped = (*next == b'n') | (*next == b't') | (*next == b'r') | is_quote;
            has_others |= (is_escape & !is_escaped) | (is_quote & !is_escape);
        }
        if has_others {
            break;
        }
        // The second byte of an escape belongs to its block.
        text = &text[BLOCK + usize::from(block[BLOCK - 1] == b'\\')..];
    }
    text
}

/// A one in each byte.
const ONES: u64 = 0x0101_0101_0101_0101;

/// Sets the highest bit of the lowest zero byte, if there is one. Higher bits may be set too.
fn zero_byte_mask(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & (ONES << 7)
}

#[cfg(test)]
mod tests;
