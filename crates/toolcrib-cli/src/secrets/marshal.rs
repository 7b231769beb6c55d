//! Encodes and decodes D-Bus values, little-endian and aligned. Only the types that the Secret Service API needs.

use zeroize::Zeroizing;

/// Encoder for D-Bus values. Zeroed on drop because it may hold a secret.
#[derive(Default)]
pub(super) struct DbusWriter(Zeroizing<Vec<u8>>);

impl DbusWriter {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn into_bytes(mut self) -> Vec<u8> {
        std::mem::take(&mut *self.0)
    }

    pub(super) fn align(&mut self, alignment: usize) {
        let length = self.0.len().next_multiple_of(alignment);
        self.0.resize(length, 0);
    }

    pub(super) fn write_byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(super) fn write_u32(&mut self, number: u32) {
        self.align(4);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub(super) fn write_bool(&mut self, flag: bool) {
        self.write_u32(flag.into());
    }

    /// Writes a string or an object path.
    pub(super) fn write_string(&mut self, text: &str) {
        self.write_bytes(text.as_bytes());
        self.0.push(0);
    }

    /// Writes an array of bytes.
    pub(super) fn write_bytes(&mut self, bytes: &[u8]) {
        self.write_u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn write_signature(&mut self, signature: &str) {
        self.0.push(u8::try_from(signature.len()).unwrap_or(u8::MAX));
        self.0.extend_from_slice(signature.as_bytes());
        self.0.push(0);
    }

    /// Writes an array whose items are aligned to `alignment`.
    pub(super) fn write_array(&mut self, alignment: usize, write: impl FnOnce(&mut Self)) {
        self.write_u32(0);
        let length_at = self.0.len() - 4;
        self.align(alignment);
        let start = self.0.len();
        write(self);
        let length = u32::try_from(self.0.len() - start).unwrap_or(u32::MAX);
        self.0[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
    }

    /// Writes a dictionary of strings.
    pub(super) fn write_string_map(&mut self, pairs: &[(&str, &str)]) {
        self.write_array(8, |writer| {
            for (key, value) in pairs {
                writer.align(8);
                writer.write_string(key);
                writer.write_string(value);
            }
        });
    }
}

/// Decoder for D-Bus values. Zeroed on drop.
pub(super) struct DbusReader {
    bytes: Zeroizing<Vec<u8>>,
    position: usize,
}

impl DbusReader {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes: Zeroizing::new(bytes), position: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.position >= self.bytes.len()
    }

    pub(super) fn skip(&mut self, count: usize) {
        self.position += count;
    }

    pub(super) fn align(&mut self, alignment: usize) {
        self.position = self.position.next_multiple_of(alignment);
    }

    fn read_raw(&mut self, count: usize) -> Option<&[u8]> {
        let end = self.position.checked_add(count)?;
        let taken = self.bytes.get(self.position..end)?;
        self.position = end;
        Some(taken)
    }

    pub(super) fn read_byte(&mut self) -> Option<u8> {
        self.read_raw(1)?.first().copied()
    }

    pub(super) fn read_u32(&mut self) -> Option<u32> {
        self.align(4);
        Some(u32::from_le_bytes(self.read_raw(4)?.try_into().ok()?))
    }

    pub(super) fn read_bool(&mut self) -> Option<bool> {
        self.read_u32().map(|number| number != 0)
    }

    pub(super) fn read_string(&mut self) -> Option<String> {
        let text = String::from_utf8(self.read_bytes()?.to_vec()).ok()?;
        self.skip(1);
        Some(text)
    }

    pub(super) fn read_bytes(&mut self) -> Option<&[u8]> {
        let length = usize::try_from(self.read_u32()?).ok()?;
        self.read_raw(length)
    }

    pub(super) fn read_signature(&mut self) -> Option<String> {
        let length = self.read_byte()?.into();
        let text = String::from_utf8(self.read_raw(length)?.to_vec()).ok()?;
        self.skip(1);
        Some(text)
    }

    /// Reads the items of an array, which are aligned to `alignment`.
    pub(super) fn read_array<T>(
        &mut self,
        alignment: usize,
        read: impl Fn(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let length = usize::try_from(self.read_u32()?).ok()?;
        self.align(alignment);
        let end = self.position.checked_add(length)?;
        let mut items = Vec::new();
        while self.position < end {
            self.align(alignment);
            items.push(read(self)?);
        }
        (self.position == end).then_some(items)
    }

    /// Reads a dictionary of strings.
    pub(super) fn read_string_map(&mut self) -> Option<Vec<(String, String)>> {
        self.read_array(8, |reader| Some((reader.read_string()?, reader.read_string()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_values_read_back() {
        let mut writer = DbusWriter::default();
        writer.write_byte(1);
        writer.write_string_map(&[("a", "bc"), ("name", "ä")]);
        writer.write_bytes(b"secret");
        writer.write_bool(true);
        writer.write_array(4, |writer| ["/x", "/yy"].iter().for_each(|path| writer.write_string(path)));
        writer.write_signature("a{ss}");
        let mut reader = DbusReader::new(writer.bytes().to_vec());
        assert_eq!(reader.read_byte(), Some(1));
        let pairs = [("a", "bc"), ("name", "ä")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(reader.read_string_map(), Some(pairs.to_vec()));
        assert_eq!(reader.read_bytes(), Some(&b"secret"[..]));
        assert_eq!(reader.read_bool(), Some(true));
        assert_eq!(
            reader.read_array(4, DbusReader::read_string),
            Some(vec!["/x".to_owned(), "/yy".to_owned()])
        );
        assert_eq!(reader.read_signature().as_deref(), Some("a{ss}"));
        assert!(reader.is_empty() && reader.read_byte().is_none());
    }

    #[test]
    fn malformed_bytes_are_not_values() {
        for bytes in [&b"\xff\xff\xff\xff"[..], b"\x05\0\0\0ab", b"", b"\x01\0\0\0\xff\0"] {
            let reader = || DbusReader::new(bytes.to_vec());
            assert!(reader().read_string().is_none() && reader().read_string_map().is_none(), "{bytes:?}");
            assert!(
                reader().read_array(1, DbusReader::read_byte).is_none_or(|all| all.len() <= 1),
                "{bytes:?}"
            );
        }
    }
}
