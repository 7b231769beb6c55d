//! Values as D-Bus writes them, little end first, each at its own multiple of bytes. Only the kinds that secrets need.

use zeroize::Zeroizing;

/// What is being written. Wiped when it is dropped: it may hold a secret.
#[derive(Default)]
pub(super) struct Writer(Zeroizing<Vec<u8>>);

impl Writer {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn into_bytes(mut self) -> Vec<u8> {
        std::mem::take(&mut *self.0)
    }

    pub(super) fn align(&mut self, to: usize) {
        let length = self.0.len().next_multiple_of(to);
        self.0.resize(length, 0);
    }

    pub(super) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(super) fn number(&mut self, number: u32) {
        self.align(4);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub(super) fn flag(&mut self, flag: bool) {
        self.number(flag.into());
    }

    /// A string, or the path of an object.
    pub(super) fn string(&mut self, text: &str) {
        self.data(text.as_bytes());
        self.0.push(0);
    }

    /// An array of bytes.
    pub(super) fn data(&mut self, bytes: &[u8]) {
        self.number(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn signature(&mut self, signature: &str) {
        self.0.push(u8::try_from(signature.len()).unwrap_or(u8::MAX));
        self.0.extend_from_slice(signature.as_bytes());
        self.0.push(0);
    }

    /// An array whose members begin at multiples of `each`.
    pub(super) fn array(&mut self, each: usize, write: impl FnOnce(&mut Self)) {
        self.number(0);
        let length_at = self.0.len() - 4;
        self.align(each);
        let start = self.0.len();
        write(self);
        let length = u32::try_from(self.0.len() - start).unwrap_or(u32::MAX);
        self.0[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
    }

    /// Strings by their names.
    pub(super) fn strings(&mut self, pairs: &[(&str, &str)]) {
        self.array(8, |writer| {
            for (key, value) in pairs {
                writer.align(8);
                writer.string(key);
                writer.string(value);
            }
        });
    }
}

/// What is being read. Wiped when it is dropped.
pub(super) struct Reader {
    bytes: Zeroizing<Vec<u8>>,
    at: usize,
}

impl Reader {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes: Zeroizing::new(bytes), at: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    pub(super) fn skip(&mut self, count: usize) {
        self.at += count;
    }

    pub(super) fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    fn take(&mut self, count: usize) -> Option<&[u8]> {
        let end = self.at.checked_add(count)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    pub(super) fn number(&mut self) -> Option<u32> {
        self.align(4);
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    pub(super) fn flag(&mut self) -> Option<bool> {
        self.number().map(|number| number != 0)
    }

    pub(super) fn string(&mut self) -> Option<String> {
        let text = String::from_utf8(self.data()?.to_vec()).ok()?;
        self.skip(1);
        Some(text)
    }

    pub(super) fn data(&mut self) -> Option<&[u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        self.take(length)
    }

    pub(super) fn signature(&mut self) -> Option<String> {
        let length = self.byte()?.into();
        let text = String::from_utf8(self.take(length)?.to_vec()).ok()?;
        self.skip(1);
        Some(text)
    }

    /// Each member of an array, which begin at multiples of `each`.
    pub(super) fn array<T>(&mut self, each: usize, read: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let length = usize::try_from(self.number()?).ok()?;
        self.align(each);
        let (end, mut members) = (self.at.checked_add(length)?, Vec::new());
        while self.at < end {
            self.align(each);
            members.push(read(self)?);
        }
        (self.at == end).then_some(members)
    }

    /// Strings by their names.
    pub(super) fn strings(&mut self) -> Option<Vec<(String, String)>> {
        self.array(8, |reader| Some((reader.string()?, reader.string()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let mut writer = Writer::default();
        writer.byte(1);
        writer.strings(&[("a", "bc"), ("name", "ä")]);
        writer.data(b"secret");
        writer.flag(true);
        writer.array(4, |writer| ["/x", "/yy"].iter().for_each(|path| writer.string(path)));
        writer.signature("a{ss}");
        let mut reader = Reader::new(writer.bytes().to_vec());
        assert_eq!(reader.byte(), Some(1));
        let pairs = [("a", "bc"), ("name", "ä")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(reader.strings(), Some(pairs.to_vec()));
        assert_eq!(reader.data(), Some(&b"secret"[..]));
        assert_eq!(reader.flag(), Some(true));
        assert_eq!(reader.array(4, Reader::string), Some(vec!["/x".to_owned(), "/yy".to_owned()]));
        assert_eq!(reader.signature().as_deref(), Some("a{ss}"));
        assert!(reader.is_empty() && reader.byte().is_none());
    }

    #[test]
    fn nonsense_is_no_value_and_no_panic() {
        for bytes in [&b"\xff\xff\xff\xff"[..], b"\x05\0\0\0ab", b"", b"\x01\0\0\0\xff\0"] {
            let reader = || Reader::new(bytes.to_vec());
            assert!(reader().string().is_none() && reader().strings().is_none(), "{bytes:?}");
            assert!(reader().array(1, Reader::byte).is_none_or(|all| all.len() <= 1), "{bytes:?}");
        }
    }
}
