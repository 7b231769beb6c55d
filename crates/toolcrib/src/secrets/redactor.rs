//! Removes the secrets of one connection from messages, logs and errors. Results of calls pass unchanged.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::sync::RwLock;

use bytes::Bytes;
use serde_json::{Map, Value};
use zeroize::Zeroizing;

use crate::util::encoding;
use crate::util::locks::IgnorePoison as _;

/// The replacement of a secret.
const PLACEHOLDER: &str = "[secret]";

/// Shorter values are not redacted, because they occur in ordinary text.
const MIN_LENGTH: usize = 4;

/// Lines of a multi-line secret are redacted from this length on.
const MIN_LINE_LENGTH: usize = 16;

/// Values that are added later and kept; the oldest ones are forgotten, such as tokens that were replaced long ago.
#[cfg(feature = "http")]
const MAX_ADDED: usize = 32;

/// Replaces values, as they are and in common encodings.
#[derive(Default)]
pub(crate) struct Redactor {
    values: RwLock<RedactedValues>,
}

#[derive(Default)]
struct RedactedValues {
    /// The values of the beginning, encoded.
    fixed: Vec<Zeroizing<String>>,
    /// Values that were added later.
    added: VecDeque<Zeroizing<String>>,
    /// All encoded values, longest first, so that a short value does not leave a part of a longer one.
    forms: Vec<Zeroizing<String>>,
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Redactor")
    }
}

impl Redactor {
    /// Creates a redactor for values.
    pub(crate) fn new<'a>(values: impl Iterator<Item = &'a str>) -> Self {
        let mut values =
            RedactedValues { fixed: values.flat_map(encode).collect(), ..RedactedValues::default() };
        values.sort_forms();
        Self { values: RwLock::new(values) }
    }

    /// Adds a value that became known later, such as a token.
    #[cfg(feature = "http")]
    pub(crate) fn add(&self, value: &str) {
        let mut values = self.values.write().ignore_poison();
        if values.added.iter().any(|added| added.as_str() == value) {
            return;
        }
        if values.added.len() == MAX_ADDED {
            values.added.pop_front();
        }
        values.added.push_back(Zeroizing::new(value.to_owned()));
        values.sort_forms();
    }

    /// Returns the text with all values replaced.
    pub(crate) fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut redacted = Cow::Borrowed(text);
        for form in &self.values.read().ignore_poison().forms {
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
        let values = self.values.read().ignore_poison();
        match values.forms.iter().filter_map(|form| prefix_length(form)).max() {
            Some(length) => Cow::Owned(format!("{}{PLACEHOLDER}", &redacted[..redacted.len() - length])),
            None => redacted,
        }
    }

    /// Returns JSON with the values replaced in all its texts, or unchanged if there are none in it.
    pub(crate) fn redact_json(&self, json: Bytes) -> Bytes {
        if self.is_empty() {
            return json;
        }
        match serde_json::from_slice(&json) {
            Ok(value) => match self.redact_value(&value) {
                Some(redacted) => redacted.to_string().into(),
                None => json,
            },
            // Nested too deeply to be read.
            Err(_) => self.redact_bytes(&json).into_owned().into(),
        }
    }

    /// Returns a value with the secrets in it replaced, or `None` if it has none.
    fn redact_value(&self, value: &Value) -> Option<Value> {
        match value {
            Value::String(text) => match self.redact(text) {
                Cow::Owned(redacted) => Some(redacted.into()),
                Cow::Borrowed(_) => None,
            },
            Value::Array(elements) => {
                let redacted: Vec<Option<Value>> =
                    elements.iter().map(|element| self.redact_value(element)).collect();
                let is_changed = redacted.iter().any(Option::is_some);
                let merged =
                    redacted.into_iter().zip(elements).map(|(new, old)| new.unwrap_or_else(|| old.clone()));
                is_changed.then(|| merged.collect())
            }
            Value::Object(members) => {
                let mut is_changed = false;
                let mut redacted = Map::new();
                for (key, member) in members {
                    let new_key = self.redact(key);
                    let new_member = self.redact_value(member);
                    is_changed |= matches!(new_key, Cow::Owned(_)) || new_member.is_some();
                    redacted.insert(new_key.into_owned(), new_member.unwrap_or_else(|| member.clone()));
                }
                is_changed.then_some(Value::Object(redacted))
            }
            _ => None,
        }
    }

    /// Like [`Redactor::redact`], for bytes; they are returned unchanged if there are no values.
    pub(crate) fn redact_bytes<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        if self.is_empty() {
            return Cow::Borrowed(bytes);
        }
        Cow::Owned(self.redact(&String::from_utf8_lossy(bytes)).into_owned().into_bytes())
    }

    fn is_empty(&self) -> bool {
        self.values.read().ignore_poison().forms.is_empty()
    }
}

impl RedactedValues {
    fn sort_forms(&mut self) {
        let added = self.added.iter().flat_map(|value| encode(value));
        self.forms = self.fixed.iter().cloned().chain(added).collect();
        self.forms.sort_by(|first, second| second.len().cmp(&first.len()).then_with(|| first.cmp(second)));
        self.forms.dedup();
    }
}

/// Returns the forms of a value in which it may occur in a text.
fn encode(value: &str) -> Vec<Zeroizing<String>> {
    let mut forms: Vec<Zeroizing<String>> = Vec::new();
    for value in [value, value.trim()] {
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
    forms
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
    fn secret_is_redacted_in_json_in_any_escaping() {
        let redactor = redactor(&["p&ss/w\"rd"]);
        for text in [
            r#"{"message":"no p&ss/w\"rd","data":[1,{"p&ss\/w\u0022rd":2}]}"#,
            r#"{"message":"\u0070&ss\/w\"rd"}"#,
        ] {
            let redacted = redactor.redact_json(Bytes::from_static(text.as_bytes()));
            let redacted = String::from_utf8(redacted.to_vec()).unwrap();
            assert!(redacted.contains(PLACEHOLDER) && !redacted.contains("&ss"), "{redacted}");
        }
        let deep = format!("{}\"p&ss/w\\\"rd\"{}", "[".repeat(500), "]".repeat(500));
        assert_eq!(redactor.redact_json(Bytes::from_static(b"{ \"x\": 1.0 }")), &b"{ \"x\": 1.0 }"[..]);
        let redacted = redactor.redact_json(deep.into());
        assert!(!String::from_utf8_lossy(&redacted).contains("&ss"), "too deep to be read");
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

    #[cfg(feature = "http")]
    #[test]
    fn added_values_are_redacted_and_old_ones_are_forgotten() {
        let redactor = redactor(&["fixed-secret"]);
        (0..=MAX_ADDED).for_each(|number| redactor.add(&format!("token-<{number}>")));
        redactor.add("token-<1>");
        assert_eq!(redactor.redact("fixed-secret token-<1> token-%3C32%3E"), "[secret] [secret] [secret]");
        assert_eq!(redactor.redact("token-<0>"), "token-<0>", "replaced 32 times");
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
