//! Writes messages in the encoding of Protocol Buffers, as far as OTLP needs it.

/// A message that is being written. Fields with default values may be left out.
#[derive(Debug, Default)]
pub(super) struct Message(Vec<u8>);

/// Wire types of the encoding.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH_DELIMITED: u64 = 2;
/// The tags of a name or text, and of the value of an attribute.
const TEXT_TAG: u8 = 1 << 3 | 2;
const VALUE_TAG: u8 = 2 << 3 | 2;

impl Message {
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Makes room for more bytes.
    pub(super) fn reserve(&mut self, bytes: usize) {
        self.0.reserve(bytes);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Removes all fields. The memory is kept for the next ones.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds the fields of another message.
    pub(super) fn append(&mut self, other: &Self) {
        self.0.extend_from_slice(&other.0);
    }

    /// Starts a field of `length` bytes, which the caller appends.
    pub(super) fn start_bytes(&mut self, field: u64, length: usize) {
        self.push_tag(field, LENGTH_DELIMITED);
        self.push_varint(length as u64);
    }

    fn push_varint(&mut self, mut value: u64) {
        while value > 0x7f {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }

    fn push_tag(&mut self, field: u64, wire_type: u64) {
        self.push_varint(field << 3 | wire_type);
    }

    /// Writes an integer, a boolean or an enum.
    pub(super) fn varint(&mut self, field: u64, value: u64) {
        self.push_tag(field, VARINT);
        self.push_varint(value);
    }

    pub(super) fn fixed64(&mut self, field: u64, value: u64) {
        self.push_tag(field, FIXED64);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn double(&mut self, field: u64, value: f64) {
        self.fixed64(field, value.to_bits());
    }

    pub(super) fn bytes(&mut self, field: u64, value: &[u8]) {
        self.start_bytes(field, value.len());
        self.0.extend_from_slice(value);
    }

    pub(super) fn text(&mut self, field: u64, value: &str) {
        self.bytes(field, value.as_bytes());
    }

    pub(super) fn message(&mut self, field: u64, value: &Self) {
        self.bytes(field, &value.0);
    }

    /// Writes a message whose fields `write` adds, in the buffer of this one.
    pub(super) fn nested(&mut self, field: u64, write: impl FnOnce(&mut Self)) {
        self.push_tag(field, LENGTH_DELIMITED);
        let start = self.0.len();
        // Most messages need one byte for their length.
        self.0.push(0);
        write(self);
        let length = self.0.len() - start - 1;
        match u8::try_from(length) {
            Ok(short) if short <= 0x7f => self.0[start] = short,
            _ => {
                let mut prefix = Self::default();
                prefix.push_varint(length as u64);
                self.0.splice(start..=start, prefix.0);
            }
        }
    }

    /// Writes an attribute: a message of a name and of a message with a text. Nearly all are so short that each tag and each
    /// length is one byte.
    pub(super) fn text_attribute(&mut self, field: u64, name: &str, value: &str) {
        let (name_length, value_length) = (u8::try_from(name.len()), u8::try_from(value.len()));
        if let (Ok(name_length @ ..0x40), Ok(value_length @ ..0x38), Ok(field @ ..0x10)) =
            (name_length, value_length, u8::try_from(field))
        {
            let length = name_length + value_length + 6;
            self.0.extend_from_slice(&[field << 3 | TEXT_TAG & 7, length, TEXT_TAG, name_length]);
            self.0.extend_from_slice(name.as_bytes());
            self.0.extend_from_slice(&[VALUE_TAG, value_length + 2, TEXT_TAG, value_length]);
            self.0.extend_from_slice(value.as_bytes());
        } else {
            self.nested(field, |attribute| {
                attribute.text(1, name);
                attribute.nested(2, |any| any.text(1, value));
            });
        }
    }

    /// Writes a list of numbers of 64 bits.
    pub(super) fn packed_fixed64(&mut self, field: u64, values: impl Iterator<Item = u64>) {
        let packed: Vec<u8> = values.flat_map(u64::to_le_bytes).collect();
        self.bytes(field, &packed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_message_of_any_length_equals_a_separate_one() {
        for length in [0, 1, 125, 126, 127, 128, 16_381, 20_000] {
            let text = "x".repeat(length);
            let mut inner = Message::default();
            inner.text(1, &text);
            let mut expected = Message::default();
            expected.message(9, &inner);
            expected.varint(1, 7);
            let mut nested = Message::default();
            nested.nested(9, |inner| inner.text(1, &text));
            nested.varint(1, 7);
            assert_eq!(nested.0, expected.0, "{length}");
        }
    }

    #[test]
    fn attribute_of_any_length_equals_nested_messages() {
        for (field, name, value) in [
            (9, 0, 0),
            (9, 0x3f, 0x37),
            (9, 0x40, 0x37),
            (9, 0x3f, 0x38),
            (15, 10, 10),
            (16, 10, 10),
            (7, 10, 300),
        ] {
            let (name, value) = ("n".repeat(name), "v".repeat(value));
            let mut expected = Message::default();
            expected.nested(field, |attribute| {
                attribute.text(1, &name);
                attribute.nested(2, |any| any.text(1, &value));
            });
            let mut written = Message::default();
            written.text_attribute(field, &name, &value);
            assert_eq!(written.0, expected.0, "{field} {name} {value}");
        }
    }

    /// The examples of the documentation of Protocol Buffers.
    #[test]
    fn fields_are_encoded_as_documented() {
        let mut inner = Message::default();
        inner.varint(1, 150);
        assert_eq!(inner.0, [0x08, 0x96, 0x01]);
        let mut outer = Message::default();
        outer.text(2, "testing");
        outer.message(3, &inner);
        outer.nested(3, |inner| inner.varint(1, 150));
        let mut expected = vec![0x12, 0x07];
        expected.extend(b"testing");
        expected.extend([0x1a, 0x03, 0x08, 0x96, 0x01].repeat(2));
        assert_eq!(outer.into_bytes(), expected);
        let mut numbers = Message::default();
        numbers.double(16, 1.0);
        numbers.packed_fixed64(6, [1].into_iter());
        let expected = [0x81, 0x01, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0x32, 8, 1, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(numbers.into_bytes(), expected);
    }
}
