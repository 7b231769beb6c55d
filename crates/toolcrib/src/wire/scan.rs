//! Checks JSON and finds where its values begin and end, without decoding any of it.
//!
//! Every message passes here once, the large ones mostly as long strings, so strings are searched at memory speed:
//! cheaper than with a general parser that hands out raw values. It accepts exactly what `serde_json` accepts,
//! which a property test and a fuzz target hold it to. Nesting costs memory, never stack.

use std::ops::Range;

/// Where JSON stops being JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The offset of the first byte that makes no sense.
    pub(crate) at: usize,
    /// What should have been there.
    pub(crate) expected: &'static str,
}

/// A text of at most so many bytes is small.
const SMALL: usize = 1 << 10;

type Scanned<T> = Result<T, Fault>;

/// A string in its quotes.
#[derive(Debug)]
pub(crate) struct Quoted {
    /// Where it stands, quotes included.
    pub(crate) range: Range<usize>,
    /// Whether it holds escapes.
    pub(crate) escaped: bool,
}

/// Reads a text from its beginning to its end.
#[derive(Debug)]
pub(crate) struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    /// The openers of the arrays and objects that the present value is in.
    nesting: Vec<u8>,
    /// How deep values may be nested.
    deepest: usize,
    /// Whether there is a control character anywhere; without one, strings need not be searched for them.
    controls: bool,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0, nesting: Vec::new(), deepest: usize::MAX, controls: has_controls(text) }
    }

    /// Refuses values that are nested deeper.
    pub(crate) fn at_most(self, deepest: usize) -> Self {
        Self { deepest, ..self }
    }

    /// Calls `member` with the name and the value of every member of the one object there is.
    pub(crate) fn object<E: From<Fault>>(
        mut self,
        mut member: impl FnMut(Quoted, Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.open(b'{', "an object")?;
        let mut more = !self.closes(b'}');
        while more {
            let name = self.name()?;
            let value = self.value()?;
            member(name, value)?;
            more = self.another(b'}')?;
        }
        Ok(self.end()?)
    }

    /// Calls `element` with every element of the one array there is.
    pub(crate) fn array(mut self, mut element: impl FnMut(Range<usize>)) -> Scanned<()> {
        self.open(b'[', "an array")?;
        let mut more = !self.closes(b']');
        while more {
            element(self.value()?);
            more = self.another(b']')?;
        }
        self.end()
    }

    /// One value of any kind; its range has no blanks around it.
    fn value(&mut self) -> Scanned<Range<usize>> {
        self.blanks();
        let start = self.at;
        loop {
            self.blanks();
            let opened = match self.peek() {
                Some(b'"') => self.string().map(|_| false)?,
                Some(b'{') => self.enter(b'{', b'}')?,
                Some(b'[') => self.enter(b'[', b']')?,
                Some(b'-' | b'0'..=b'9') => self.number().map(|()| false)?,
                Some(b't') => self.word(b"true")?,
                Some(b'f') => self.word(b"false")?,
                Some(b'n') => self.word(b"null")?,
                _ => return self.fault("a value"),
            };
            if !opened && !self.proceed()? {
                return Ok(start..self.at);
            }
        }
    }

    /// Enters an object or array up to its first value; `false` if it is empty and over already.
    fn enter(&mut self, opener: u8, closer: u8) -> Scanned<bool> {
        self.at += 1;
        if self.closes(closer) {
            return Ok(false);
        }
        if self.nesting.len() >= self.deepest {
            return self.fault("less nesting");
        }
        self.nesting.push(opener);
        if opener == b'{' {
            self.name()?;
        }
        Ok(true)
    }

    /// After a value: leaves what ends here; `true` if another value follows.
    fn proceed(&mut self) -> Scanned<bool> {
        while let Some(opener) = self.nesting.last().copied() {
            let closer = if opener == b'{' { b'}' } else { b']' };
            if self.another(closer)? {
                if opener == b'{' {
                    self.name()?;
                }
                return Ok(true);
            }
            self.nesting.pop();
        }
        Ok(false)
    }

    /// A comma, after which there is more, or the end of what is open.
    fn another(&mut self, closer: u8) -> Scanned<bool> {
        self.blanks();
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(true)
            }
            Some(byte) if byte == closer => {
                self.at += 1;
                Ok(false)
            }
            _ => self.fault(if closer == b'}' { "`,` or `}`" } else { "`,` or `]`" }),
        }
    }

    /// A member's name and the colon after it.
    fn name(&mut self) -> Scanned<Quoted> {
        self.blanks();
        if self.peek() != Some(b'"') {
            return self.fault("a name in quotes");
        }
        let name = self.string()?;
        self.open(b':', "`:`")?;
        Ok(name)
    }

    fn string(&mut self) -> Scanned<Quoted> {
        let start = self.at;
        let mut escaped = false;
        self.at += 1;
        loop {
            let rest = &self.text[self.at..];
            let plain = if escaped { searched(rest) } else { plain(rest) };
            if self.controls && has_controls(&rest[..plain]) {
                return self.fault("a string without control characters");
            }
            self.at += plain;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(Quoted { range: start..self.at, escaped });
                }
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                _ => return self.fault("the end of a string"),
            }
        }
    }

    fn escape(&mut self) -> Scanned<()> {
        self.at += 1;
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
            Some(b'u') => {
                self.at += 1;
                for _ in 0..4 {
                    match self.peek() {
                        Some(byte) if byte.is_ascii_hexdigit() => self.at += 1,
                        _ => return self.fault("four hexadecimal digits"),
                    }
                }
            }
            _ => return self.fault("an escape"),
        }
        Ok(())
    }

    fn number(&mut self) -> Scanned<()> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            _ => self.digits()?,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Scanned<()> {
        let count = self.text[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        if count > 0 { Ok(()) } else { self.fault("a digit") }
    }

    /// A word stands alone: it opens nothing.
    fn word(&mut self, word: &[u8]) -> Scanned<bool> {
        if self.text[self.at..].starts_with(word) {
            self.at += word.len();
            return Ok(false);
        }
        self.fault("`true`, `false` or `null`")
    }

    fn open(&mut self, byte: u8, expected: &'static str) -> Scanned<()> {
        self.blanks();
        if self.peek() != Some(byte) {
            return self.fault(expected);
        }
        self.at += 1;
        Ok(())
    }

    fn closes(&mut self, closer: u8) -> bool {
        self.blanks();
        let closes = self.peek() == Some(closer);
        self.at += usize::from(closes);
        closes
    }

    fn end(&mut self) -> Scanned<()> {
        self.blanks();
        if self.at == self.text.len() { Ok(()) } else { self.fault("the end") }
    }

    fn blanks(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn fault<T>(&self, expected: &'static str) -> Scanned<T> {
        Err(Fault { at: self.at, expected })
    }
}

/// Where a name in quotes stands first. In a small text its rarest letter is looked for, which is cheaper than to make a
/// searcher for all of it.
pub(crate) fn find(text: &[u8], quoted: &[u8]) -> Option<usize> {
    if text.len() > SMALL {
        return memchr::memmem::find(text, quoted);
    }
    let rare = quoted.iter().position(|byte| !byte.is_ascii_lowercase() && *byte != b'"').unwrap_or(0);
    let mut starts = memchr::memchr_iter(*quoted.get(rare)?, text).filter_map(|at| at.checked_sub(rare));
    starts.find(|start| text[*start..].starts_with(quoted))
}

/// Whether `text` is one JSON value.
pub(crate) fn is_json(text: &[u8]) -> bool {
    let mut scanner = Scanner::new(text);
    scanner.value().and_then(|_| scanner.end()).is_ok()
}

/// How many bytes stand before the next quote or backslash. Most names are short, and a call to search them costs more
/// than a look at their first sixteen bytes, eight at a time.
pub(crate) fn plain(text: &[u8]) -> usize {
    for (index, eight) in text.as_chunks::<8>().0.iter().take(2).enumerate() {
        let bytes = u64::from_le_bytes(*eight);
        let found = zero_bytes(bytes ^ (EACH * 0x22)) | zero_bytes(bytes ^ (EACH * 0x5c));
        if found != 0 {
            return index * 8 + found.trailing_zeros() as usize / 8;
        }
    }
    searched(text)
}

/// The same for long strings.
fn searched(text: &[u8]) -> usize {
    memchr::memchr2(b'"', b'\\', text).unwrap_or(text.len())
}

/// A one in every byte.
const EACH: u64 = 0x0101_0101_0101_0101;

/// The highest bit of the lowest byte that is zero, if one is; bits above it may be set too.
fn zero_bytes(bytes: u64) -> u64 {
    bytes.wrapping_sub(EACH) & !bytes & (EACH << 7)
}

/// Whether there is a control character in `text`. A minimum has no branches, so the compiler makes it vector
/// instructions.
fn has_controls(text: &[u8]) -> bool {
    text.iter().fold(u8::MAX, |least, byte| least.min(*byte)) < 0x20
}

#[cfg(test)]
mod tests;
