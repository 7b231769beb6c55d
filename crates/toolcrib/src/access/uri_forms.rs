//! The forms of a URI that servers may take for the same resource.
//!
//! Servers differ in what they decode and ignore: percent-encoding, the case of scheme and host, repeated slashes,
//! backslashes, `.` and `..` segments, the host of a `file:` URI, the query, and on some file systems case and the
//! composition of letters. A rule that denies a resource must match all of its forms. The work is linear in the length of the URI, which is bounded, as is the number of forms.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt;

use crate::util::encoding::percent_decode_lossy;
use crate::util::unicode_fold::fold;

/// The longest URI that is compared with rules, in bytes.
const MAX_URI_LEN: usize = 8 << 10;
/// The number of times that a URI is decoded.
const MAX_STAGES: usize = 4;

/// The reason why rules cannot be applied to a URI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnclearUri {
    TooLong,
    EncodedTooOften,
    DotSegments,
}

impl fmt::Display for UnclearUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "is longer than {MAX_URI_LEN} bytes"),
            Self::EncodedTooOften => write!(f, "is percent-encoded more than {MAX_STAGES} times"),
            Self::DotSegments => f.write_str("has `.` or `..` segments"),
        }
    }
}

/// Returns every text that a server may read after decoding a URI once or repeatedly, without the URI itself.
///
/// # Errors
/// Fails for a URI that servers read too differently.
pub(super) fn decoded_stages(uri: &str) -> Result<Vec<String>, UnclearUri> {
    if uri.len() > MAX_URI_LEN {
        return Err(UnclearUri::TooLong);
    }
    let mut stages: Vec<String> = Vec::new();
    loop {
        let last = stages.last().map_or(uri, String::as_str);
        if last.split(['/', '\\']).any(|segment| matches!(segment, "." | "..")) {
            return Err(UnclearUri::DotSegments);
        }
        let Cow::Owned(decoded) = percent_decode_lossy(last) else { return Ok(stages) };
        if stages.len() == MAX_STAGES {
            return Err(UnclearUri::EncodedTooOften);
        }
        stages.push(decoded);
    }
}

/// The canonical forms of a name, computed when they are first needed. A name that is not a URI has none.
#[derive(Debug)]
pub(super) struct UriForms<'a> {
    name: Option<&'a str>,
    forms: OnceCell<Vec<String>>,
    folded: OnceCell<Vec<String>>,
}

impl<'a> UriForms<'a> {
    pub(super) fn new(name: Option<&'a str>) -> Self {
        Self { name, forms: OnceCell::new(), folded: OnceCell::new() }
    }

    /// Returns the canonical forms of every stage of decoding.
    pub(super) fn get(&self) -> &[String] {
        self.forms.get_or_init(|| self.name.map(all_forms).unwrap_or_default())
    }

    /// Returns the name and its forms, folded. They are compared with folded patterns.
    pub(super) fn folded(&self) -> &[String] {
        self.folded.get_or_init(|| {
            let name = self.name.filter(|name| name.len() <= MAX_URI_LEN);
            let forms = self.get().iter().map(String::as_str);
            name.into_iter().chain(forms).map(|form| fold(form).into_owned()).collect()
        })
    }
}

fn all_forms(name: &str) -> Vec<String> {
    if name.len() > MAX_URI_LEN {
        return Vec::new();
    }
    let mut forms = Vec::new();
    let mut text = Cow::Borrowed(name);
    for _ in 0..=MAX_STAGES {
        canonical_forms(&text, &mut forms);
        let Cow::Owned(decoded) = percent_decode_lossy(&text) else { break };
        text = Cow::Owned(decoded);
    }
    forms
}

/// Returns the canonical form of a rule's pattern over URIs. Returns `None` if the pattern is not one.
pub(super) fn canonical_pattern(pattern: &str) -> Option<String> {
    let (scheme, rest) = split_scheme(pattern)?;
    let is_host_open = split_authority(rest).is_some_and(|(host, _)| host.contains('*'));
    if scheme.contains('*') || is_host_open {
        return None;
    }
    let mut forms = Vec::new();
    canonical_forms(pattern, &mut forms);
    forms.into_iter().next()
}

/// Appends the forms of one stage; the first is the canonical one.
fn canonical_forms(text: &str, forms: &mut Vec<String>) {
    let is_removed = |char: char| matches!(char, '\t' | '\n' | '\r' | '\0');
    let text = text.trim_matches(|char: char| char.is_whitespace() || char.is_control());
    let text: String = text
        .chars()
        .filter(|char| !is_removed(*char))
        .map(|char| if char == '\\' { '/' } else { char })
        .collect();
    let Some((scheme, rest)) = split_scheme(&text) else {
        forms.push(text);
        return;
    };
    let scheme = scheme.to_ascii_lowercase();
    let suffix_start = rest.find(['?', '#']).unwrap_or(rest.len());
    let (rest, suffix) = rest.split_at(suffix_start);
    let mut add = |form: String| {
        if !suffix.is_empty() {
            forms.push(format!("{form}{suffix}"));
        }
        forms.push(form);
    };
    match (scheme.as_str(), split_authority(rest)) {
        ("file", Some((host, path))) => {
            add(format!("file://{}", resolve_segments(path)));
            if !host.is_empty() {
                // Some servers take the host for the first folder.
                add(format!("file://{}", resolve_segments(rest)));
                add(format!("file://{}{}", host.to_ascii_lowercase(), resolve_segments(path)));
            }
        }
        ("file", None) => add(format!("file://{}", resolve_segments(rest))),
        (_, Some((host, path))) => {
            let host = canonical_host(&scheme, host);
            let path = if path.is_empty() { String::new() } else { resolve_segments(path) };
            add(format!("{scheme}://{host}{path}"));
            add(format!("{scheme}:/{}", resolve_segments(rest)));
        }
        (_, None) => {
            add(format!("{scheme}:{rest}"));
            add(format!("{scheme}:/{}", resolve_segments(rest)));
        }
    }
}

/// Splits a URI after its scheme.
fn split_scheme(uri: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = uri.split_once(':')?;
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.*".contains(&byte);
    (!scheme.is_empty() && scheme.bytes().all(is_valid)).then_some((scheme, rest))
}

/// Splits the part after the scheme into host and path, if it has a host.
fn split_authority(rest: &str) -> Option<(&str, &str)> {
    let rest = rest.strip_prefix("//")?;
    let end = rest.find('/').unwrap_or(rest.len());
    Some(rest.split_at(end))
}

/// Returns a host in lower case, without user, trailing dot and default port.
fn canonical_host(scheme: &str, authority: &str) -> String {
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host).to_ascii_lowercase();
    let default_port = match scheme {
        "http" | "ws" => ":80",
        "https" | "wss" => ":443",
        _ => "",
    };
    let host = host.strip_suffix(default_port).unwrap_or(&host);
    host.strip_suffix('.').unwrap_or(host).to_owned()
}

/// Returns an absolute path without empty, `.` and `..` segments. A trailing slash is kept.
fn resolve_segments(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    let trailing = if path.ends_with('/') && !kept.is_empty() { "/" } else { "" };
    format!("/{}{trailing}", kept.join("/"))
}

/// Returns a URI template with its expressions replaced by values; a variable without a value is empty.
pub(super) fn expand_template<'a>(template: &str, value_of: impl Fn(&str) -> Option<Cow<'a, str>>) -> String {
    let mut out = String::new();
    let mut rest = template;
    while let Some((literal, after)) = rest.split_once('{') {
        out.push_str(literal);
        let Some((expression, tail)) = after.split_once('}') else {
            rest = after;
            break;
        };
        let variables = expression.trim_start_matches(['+', '#', '.', '/', ';', '?', '&']);
        for variable in variables.split(',') {
            let name = variable.split([':', '*']).next().unwrap_or_default();
            out.push_str(&value_of(name).unwrap_or_default());
        }
        rest = tail;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn has_form(uri: &str, form: &str) -> bool {
        UriForms::new(Some(uri)).get().iter().any(|text| text == form)
    }

    #[test]
    fn spellings_of_a_uri_have_a_common_form() {
        for uri in [
            "file:///secret/b",
            "FILE:///secret/b",
            "file:/secret/b",
            "file:secret/b",
            "file:////secret/b",
            "file://localhost/secret/b",
            "file://LocalHost/secret/b",
            "file://127.0.0.1/secret/b",
            "file://secret/b",
            r"file:///secret\b",
            r"file:\\\secret\b",
            "file:///secret//b",
            "file:///./secret/b",
            "file:///pub/../secret/b",
            "file:///%73ecret/b",
            "file:///%2573ecret/b",
            "file:///secret%5Cb",
            "file%3A///secret/b",
            " file:///secret/b\n",
            "file:///sec\tret/b",
            "file:///secret/b?x=1",
            "file:///secret/b#f",
        ] {
            assert!(has_form(uri, "file:///secret/b"), "{uri}: {:?}", UriForms::new(Some(uri)).get());
        }
        assert!(has_form("HTTPS://User@Example.COM:443//a/./b", "https://example.com/a/b"));
        assert!(has_form("note:///one", "note://one") && has_form("NOTE:one", "note://one"));
        assert!(!has_form("file:///secret2/b", "file:///secret/b"));
    }

    #[test]
    fn patterns_are_canonical_unless_scheme_or_host_is_open() {
        for (pattern, canonical) in [
            ("FILE:/secret/*", Some("file:///secret/*")),
            ("file://localhost/secret/*", Some("file:///secret/*")),
            ("HTTP://Example.com:80/*", Some("http://example.com/*")),
            ("file://*", None),
            ("*://x", None),
            ("push*", None),
        ] {
            assert_eq!(canonical_pattern(pattern).as_deref(), canonical, "{pattern}");
        }
    }

    #[test]
    fn unclear_uris_are_refused() {
        let nested = |count: usize| format!("x:%{}41", "25".repeat(count));
        assert_eq!(decoded_stages(&nested(3)).map(|stages| stages.len()), Ok(4));
        assert_eq!(decoded_stages(&nested(4)), Err(UnclearUri::EncodedTooOften));
        assert_eq!(decoded_stages(&nested(20_000)), Err(UnclearUri::TooLong));
        assert_eq!(decoded_stages("x:a/%2e%2e/b"), Err(UnclearUri::DotSegments));
        assert_eq!(decoded_stages(r"x:a\..\b"), Err(UnclearUri::DotSegments));
        assert_eq!(decoded_stages("x:%FF%41"), Ok(vec!["x:\u{fffd}A".to_owned()]));
        assert_eq!(decoded_stages("x:a%zz"), Ok(Vec::new()));
    }

    #[test]
    fn work_is_linear_and_bounded() {
        let work = |count: usize| {
            let uri = format!("file:///%{}41", "25".repeat(count));
            assert!(decoded_stages(&uri).is_err());
            UriForms::new(Some(&uri)).get().iter().map(String::len).sum::<usize>()
        };
        for count in [500, 1000, 2000] {
            assert!(work(2 * count) <= 2 * work(count), "{count}");
        }
        for count in [4100, 40_000, 400_000] {
            assert_eq!(work(count), 0);
        }
    }

    #[test]
    fn template_is_expanded_with_values() {
        let value = |name: &str| (name == "path").then_some(Cow::Borrowed("secret/"));
        assert_eq!(expand_template("file:///{+path}", value), "file:///secret/");
        assert_eq!(expand_template("file:///{host}{/path*}/{path:3}", value), "file:///secret//secret/");
        assert_eq!(expand_template("file:///{path", value), "file:///path");
    }

    proptest! {
        #[test]
        fn forms_are_bounded_for_any_text(text in "(file|FILE|x)?:?[/\\\\.%25a-f?#@ ]{0,200}") {
            let bound = text.len() + 16;
            let forms = UriForms::new(Some(&text));
            prop_assert!(forms.get().len() <= (MAX_STAGES + 1) * 6);
            prop_assert!(forms.get().iter().all(|form| form.len() <= bound * 3));
            let _ = canonical_pattern(&text);
            let _ = decoded_stages(&text);
        }

        #[test]
        fn canonical_form_is_stable(path in "[a-z/]{0,20}") {
            let uri = format!("file://{}", resolve_segments(&path));
            let forms = UriForms::new(Some(&uri));
            prop_assert_eq!(&forms.get()[0], &uri);
        }
    }
}
