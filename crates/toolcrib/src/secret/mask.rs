//! `Mask`: takes the secrets of one connection out of what is said about it. What a server answers to its callers is
//! theirs, and passes unmasked.

use std::borrow::Cow;
use std::fmt;
use std::fmt::Write as _;

use zeroize::Zeroizing;

/// What stands where a secret was.
const HIDDEN: &str = "[secret]";

/// A shorter value is found in every other word, and hides nothing.
const SHORTEST: usize = 4;

/// Lines of a longer secret are secrets from this length on.
const SHORTEST_LINE: usize = 16;

/// Hides values, as they are and in the ways that programs like to write them.
#[derive(Default)]
pub(crate) struct Mask {
    /// The longest first, so that no part of one is left by another.
    forms: Vec<Zeroizing<String>>,
}

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mask")
    }
}

impl Mask {
    /// Hides these.
    pub(super) fn of<'a>(values: impl Iterator<Item = &'a str>) -> Self {
        let mut forms: Vec<Zeroizing<String>> = Vec::new();
        for value in values.flat_map(|value| [value, value.trim()]) {
            let lines = value.lines().map(str::trim).filter(|line| line.len() >= SHORTEST_LINE);
            let whole = std::iter::once(value).chain(lines).map(str::to_owned);
            let escaped = value.escape_default().to_string();
            let said = [escaped, percent(value), base64(value, b"+/"), base64(value, b"-_")];
            forms.extend(whole.chain(said).filter(|form| form.len() >= SHORTEST).map(Zeroizing::new));
        }
        forms.sort_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
        forms.dedup();
        Self { forms }
    }

    /// The text without any of them.
    pub(crate) fn hide<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut hidden = Cow::Borrowed(text);
        for form in &self.forms {
            if hidden.contains(form.as_str()) {
                hidden = Cow::Owned(hidden.replace(form.as_str(), HIDDEN));
            }
        }
        hidden
    }

    /// The same for a text that may have been cut off in the middle of one.
    pub(crate) fn hide_cut<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let hidden = self.hide(text);
        let begun = |form: &str| {
            let ends = form.char_indices().map(|(at, _)| at).skip(1);
            ends.filter(|end| hidden.ends_with(&form[..*end])).max()
        };
        match self.forms.iter().filter_map(|form| begun(form)).max() {
            Some(length) => Cow::Owned(format!("{}{HIDDEN}", &hidden[..hidden.len() - length])),
            None => hidden,
        }
    }

    /// The same for bytes that somebody else wrote; they are left alone if there is nothing to hide.
    pub(crate) fn hide_bytes<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        if self.forms.is_empty() {
            return Cow::Borrowed(bytes);
        }
        Cow::Owned(self.hide(&String::from_utf8_lossy(bytes)).into_owned().into_bytes())
    }
}

/// As in an address.
fn percent(value: &str) -> String {
    value.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(byte.into()),
            _ => {
                // Writing to a string does not fail.
                let _ = write!(out, "%{byte:02X}");
            }
        }
        out
    })
}

/// Without its padding: what ends in the middle of a group depends on what comes behind it, so that is left out, too.
fn base64(value: &str, last: &[u8; 2]) -> String {
    let digit = |six: u32| match u8::try_from(six & 63).unwrap_or(0) {
        six @ 0..26 => b'A' + six,
        six @ 26..52 => b'a' + six - 26,
        six @ 52..62 => b'0' + six - 52,
        six => last[usize::from(six - 62)],
    };
    let groups = value.as_bytes().chunks_exact(3);
    let numbers = groups.map(|three| three.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)));
    numbers.flat_map(|number| [18, 12, 6, 0].map(|by| char::from(digit(number >> by)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(values: &[&str]) -> Mask {
        Mask::of(values.iter().copied())
    }

    #[test]
    fn a_secret_is_hidden_however_it_is_written() {
        let mask = mask(&["p&ss w\"rd+1\n", "p&ss w\"rd+12345"]);
        for said in [
            "p&ss w\"rd+1",
            "p%26ss%20w%22rd%2B1",
            r#"p&ss w\"rd+1\n"#,
            "cCZzcyB3InJkKzE",
            "x=p&ss w\"rd+12345;p&ss w\"rd+1",
        ] {
            let hidden = mask.hide(said);
            assert!(hidden.contains(HIDDEN) && !hidden.contains("ss"), "{said}: {hidden}");
        }
        assert!(matches!(mask.hide("nothing to see"), Cow::Borrowed(_)));
    }

    #[test]
    fn lines_of_a_key_are_secrets_too() {
        let mask =
            mask(&["-----BEGIN-----\nMIIEvQIBADANBgkqhkiG9w0B\nAQEFAASCBKcwggSjAgEAAoIB\n-----END-----"]);
        assert_eq!(mask.hide("x AQEFAASCBKcwggSjAgEAAoIB y"), "x [secret] y");
    }

    #[test]
    fn what_was_cut_off_shows_no_beginning() {
        let mask = mask(&["s3cret-token"]);
        assert_eq!(mask.hide_cut("the token is s3cret-t"), "the token is [secret]");
        assert_eq!(mask.hide_cut("the token is s3cret-token and s"), "the token is [secret] and [secret]");
        assert_eq!(mask.hide_cut("all is well"), "all is well");
    }

    #[test]
    fn a_value_that_is_a_word_hides_nothing() {
        assert_eq!(mask(&["", "a", "abc"]).hide("abcabc"), "abcabc");
    }

    #[test]
    fn base64_is_that_of_everybody_else() {
        assert_eq!(base64("hello world!", b"+/"), "aGVsbG8gd29ybGQh");
        assert_eq!(base64("a?~>b?", b"-_"), "YT9-PmI_");
    }
}
