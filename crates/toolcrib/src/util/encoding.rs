//! Text encodings of bytes: hexadecimal, percent-encoding and base64, and the comparison of secret bytes.

use std::borrow::Cow;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, URL_SAFE, URL_SAFE_NO_PAD};
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC};
use subtle::ConstantTimeEq as _;

const HEX_DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Characters that are encoded in a URL: all but the unreserved ones of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Characters that are encoded in a header.
const NOT_IN_HEADER: &AsciiSet = &CONTROLS.add(b'%').add(b',');

/// Standard alphabet. Padding is required; unused bits in the last digit are ignored.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// Encodes bytes as hexadecimal digits in lower case.
pub fn to_hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(HEX_DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(HEX_DIGITS[usize::from(byte & 15)]));
    }
    text
}

/// Returns 32 random hexadecimal digits, or `None` without a source of random numbers.
pub fn random_hex() -> Option<String> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).ok()?;
    Some(to_hex(&random))
}

/// Decodes hexadecimal digits of either case. Returns `None` if the text has an odd length or other characters.
pub fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| Some(hex_value(*high)? << 4 | hex_value(*low)?)).collect()
}

fn hex_value(digit: u8) -> Option<u8> {
    u8::try_from(char::from(digit).to_digit(16)?).ok()
}

/// Percent-encodes a text as one path segment or query value of a URL.
pub fn percent_encode(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, RESERVED).to_string()
}

/// Percent-encodes what cannot be sent in a header, and `%` and `,`.
#[cfg_attr(not(feature = "http"), expect(dead_code, reason = "only remote servers get headers"))]
pub(crate) fn encode_header(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, NOT_IN_HEADER).to_string()
}

/// Decodes percent-encoding. A `%` without two digits is kept. Returns `None` if the result is not UTF-8.
pub fn percent_decode(text: &str) -> Option<Cow<'_, str>> {
    percent_encoding::percent_decode_str(text).decode_utf8().ok()
}

/// Like [`percent_decode`], but replaces invalid UTF-8 with U+FFFD.
pub fn percent_decode_lossy(text: &str) -> Cow<'_, str> {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy()
}

/// Encodes bytes as base64 with padding.
pub fn to_base64(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// Encodes bytes as base64 with padding, in the alphabet for URLs.
pub fn to_base64_url(bytes: &[u8]) -> String {
    URL_SAFE.encode(bytes)
}

/// Decodes base64. Returns `None` if the padding is missing or the text has characters outside the alphabet.
pub fn parse_base64(text: &str) -> Option<Vec<u8>> {
    BASE64.decode(text).ok()
}

/// Encodes bytes as base64 without padding, in the alphabet for URLs.
pub fn to_base64_name(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Decodes base64 without padding, in the alphabet for URLs.
pub fn parse_base64_name(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// Compares two byte strings. The time depends on their lengths, not on their contents.
pub fn constant_time_eq(first: &[u8], second: &[u8]) -> bool {
    first.ct_eq(second).into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hex_is_written_in_lower_case_and_read_in_both() {
        assert_eq!(to_hex(&[0, 15, 0xab, 255]), "000fabff");
        assert_eq!(parse_hex("000fABff"), Some(vec![0, 15, 0xab, 255]));
        assert_eq!(parse_hex(""), Some(Vec::new()));
        for invalid in ["0", "0g", "+1", " 1", "0x", "é", "00f"] {
            assert_eq!(parse_hex(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn percent_encode_keeps_unreserved_characters() {
        assert_eq!(percent_encode("aZ09-_.~"), "aZ09-_.~");
        assert_eq!(percent_encode("a b/c?ü%+"), "a%20b%2Fc%3F%C3%BC%25%2B");
    }

    #[test]
    fn percent_decode_keeps_stray_percent_signs() {
        for (text, decoded) in
            [("100%", "100%"), ("%zz%4", "%zz%4"), ("%+1", "%+1"), ("%41%c3%BC", "Aü"), ("+", "+")]
        {
            assert_eq!(percent_decode(text).as_deref(), Some(decoded));
            assert_eq!(percent_decode_lossy(text), decoded);
        }
        assert_eq!(percent_decode("%FF"), None);
        assert_eq!(percent_decode_lossy("a%FFb"), "a\u{fffd}b");
    }

    #[test]
    fn percent_decode_borrows_plain_text() {
        assert!(matches!(percent_decode("plain"), Some(Cow::Borrowed("plain"))));
    }

    #[test]
    fn base64_requires_padding_and_ignores_unused_bits() {
        assert_eq!(to_base64(b"eu"), "ZXU=");
        assert_eq!(to_base64_url(&[0xfb, 0xff]), "-_8=");
        for (text, decoded) in [("", ""), ("ZXU=", "eu"), ("ZXV=", "eu"), ("ZQ==", "e")] {
            assert_eq!(parse_base64(text).as_deref(), Some(decoded.as_bytes()), "{text}");
        }
        for invalid in ["ZXU", "Z", "Z===", "====", "ZQ==ZXU=", "ZX U=", "-_8=", "!!!!", "ZXU=\n"] {
            assert_eq!(parse_base64(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn constant_time_eq_compares_lengths_and_contents() {
        assert!(constant_time_eq(b"", b"") && constant_time_eq(b"abc", b"abc"));
        assert!(
            !constant_time_eq(b"abc", b"abd")
                && !constant_time_eq(b"abc", b"ab")
                && !constant_time_eq(b"", b"a")
        );
    }

    proptest! {
        #[test]
        fn bytes_round_trip(bytes: Vec<u8>) {
            prop_assert_eq!(parse_hex(&to_hex(&bytes)), Some(bytes.clone()));
            prop_assert_eq!(parse_base64(&to_base64(&bytes)), Some(bytes));
        }

        #[test]
        fn percent_encoding_round_trips(text in ".*") {
            let encoded = percent_encode(&text);
            prop_assert!(encoded.is_ascii());
            prop_assert_eq!(percent_decode(&encoded), Some(text.as_str().into()));
        }

        #[test]
        fn arbitrary_text_never_panics(text in ".*") {
            let _ = parse_hex(&text);
            let _ = parse_base64(&text);
            prop_assert!(percent_decode_lossy(&text).len() <= text.len() * 3);
        }
    }
}
