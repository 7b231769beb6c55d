//! Removes the secrets of one connection from messages and logs. Answers to callers pass unchanged.

use std::borrow::Cow;
use std::fmt;

use zeroize::Zeroizing;

use crate::util::encoding;

/// The replacement of a secret.
const PLACEHOLDER: &str = "[secret]";

/// Shorter values are not redacted, because they occur in ordinary text.
const MIN_LENGTH: usize = 4;

/// Lines of a multi-line secret are redacted from this length on.
const MIN_LINE_LENGTH: usize = 16;

/// Replaces values, as they are and in common encodings.
#[derive(Default)]
pub(crate) struct Redactor {
    /// The encoded values, longest first, so that a short value does not leave a part of a longer one.
    forms: Vec<Zeroizing<String>>,
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Redactor")
    }
}

impl Redactor {
    /// Creates a redactor for values.
    pub(super) fn new<'a>(values: impl Iterator<Item = &'a str>) -> Self {
        let mut forms: Vec<Zeroizing<String>> = Vec::new();
        for value in values.flat_map(|value| [value, value.trim()]) {
            let lines = value.lines().map(str::trim).filter(|line| line.len() >= MIN_LINE_LENGTH);
            let whole = std::iter::once(value).chain(lines).map(str::to_owned);
            let escaped = value.escape_default().to_string();
            let encoded = [
                escaped,
                encoding::percent_encode(value),
                encoding::to_base64(whole_groups(value)),
                encoding::to_base64_url(whole_groups(value)),
            ];
            forms.extend(whole.chain(encoded).filter(|form| form.len() >= MIN_LENGTH).map(Zeroizing::new));
        }
        forms.sort_by(|first, second| second.len().cmp(&first.len()).then_with(|| first.cmp(second)));
        forms.dedup();
        Self { forms }
    }

    /// Returns the text with all values replaced.
    pub(crate) fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut redacted = Cow::Borrowed(text);
        for form in &self.forms {
            if redacted.contains(form.as_str()) {
                redacted = Cow::Owned(redacted.replace(form.as_str(), PLACEHOLDER));
            }
        }
        redacted
    }

    /// Like [`Redactor::redact`], for a text that may end in the middle of a value.
    pub(crate) fn redact_truncated<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let redacted = self.redact(text);
        let prefix_length = |form: &str| {
            let ends = form.char_indices().map(|(at, _)| at).skip(1);
            ends.filter(|end| redacted.ends_with(&form[..*end])).max()
        };
        match self.forms.iter().filter_map(|form| prefix_length(form)).max() {
            Some(length) => Cow::Owned(format!("{}{PLACEHOLDER}", &redacted[..redacted.len() - length])),
            None => redacted,
        }
    }

    /// Like [`Redactor::redact`], for bytes; they are returned unchanged if there are no values.
    pub(crate) fn redact_bytes<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        if self.forms.is_empty() {
            return Cow::Borrowed(bytes);
        }
        Cow::Owned(self.redact(&String::from_utf8_lossy(bytes)).into_owned().into_bytes())
    }
}

/// Returns the whole groups of three bytes, which base64 encodes independently. The digits of the rest depend on the bytes
/// that follow the value, so it is left out.
fn whole_groups(value: &str) -> &[u8] {
    &value.as_bytes()[..value.len() / 3 * 3]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redactor(values: &[&str]) -> Redactor {
        Redactor::new(values.iter().copied())
    }

    #[test]
    fn secret_is_redacted_in_every_encoding() {
        let redactor = redactor(&["p&ss w\"rd+1\n", "p&ss w\"rd+12345"]);
        for text in [
            "p&ss w\"rd+1",
            "p%26ss%20w%22rd%2B1",
            r#"p&ss w\"rd+1\n"#,
            "cCZzcyB3InJkKzE",
            "x=p&ss w\"rd+12345;p&ss w\"rd+1",
        ] {
            let redacted = redactor.redact(text);
            assert!(redacted.contains(PLACEHOLDER) && !redacted.contains("ss"), "{text}: {redacted}");
        }
        assert!(matches!(redactor.redact("nothing here"), Cow::Borrowed(_)));
    }

    #[test]
    fn lines_of_a_key_are_redacted() {
        let redactor =
            redactor(&["-----BEGIN-----\nMIIEvQIBADANBgkqhkiG9w0B\nAQEFAASCBKcwggSjAgEAAoIB\n-----END-----"]);
        assert_eq!(redactor.redact("x AQEFAASCBKcwggSjAgEAAoIB y"), "x [secret] y");
    }

    #[test]
    fn truncated_secret_is_redacted() {
        let redactor = redactor(&["s3cret-token"]);
        assert_eq!(redactor.redact_truncated("the token is s3cret-t"), "the token is [secret]");
        assert_eq!(
            redactor.redact_truncated("the token is s3cret-token and s"),
            "the token is [secret] and [secret]"
        );
        assert_eq!(redactor.redact_truncated("all is well"), "all is well");
    }

    #[test]
    fn short_values_are_not_redacted() {
        assert_eq!(redactor(&["", "a", "abc"]).redact("abcabc"), "abcabc");
    }

    #[test]
    fn base64_of_a_secret_is_redacted_inside_longer_text() {
        let redactor = redactor(&["hello world!?", "a?~>b?"]);
        assert_eq!(redactor.redact("aGVsbG8gd29ybGQhPzEyMw=="), "[secret]PzEyMw==");
        assert_eq!(redactor.redact("YT9-PmI_"), "[secret]");
    }
}
