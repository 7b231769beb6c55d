//! Reads `mtls` of a caller: a pattern over the names in a client certificate.

use super::reader::TableReader;
use crate::spec::NamePattern;

/// A pattern over the names in a client certificate. All of its parts must match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificatePattern {
    /// Pattern that one of the alternative names must match.
    san: Option<NamePattern>,
    /// Attributes that the subject must have.
    subject: Vec<SubjectPattern>,
}

/// A pattern over an attribute of a subject.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SubjectPattern {
    /// Short name of the attribute in upper case, such as `CN`.
    name: String,
    value: NamePattern,
}

/// The names in a client certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateNames {
    /// The alternative names: DNS names in lower case, URIs and email addresses.
    pub alternative: Vec<String>,
    /// The attributes of the subject.
    pub subject: Vec<SubjectAttribute>,
}

/// An attribute of a subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubjectAttribute {
    /// Short name, such as `CN` or `O`.
    pub name: String,
    /// Its value.
    pub value: String,
}

impl CertificatePattern {
    /// Returns whether a certificate with these names matches.
    pub fn matches(&self, names: &CertificateNames) -> bool {
        let has_attribute = |pattern: &SubjectPattern| {
            let is_match = |attribute: &SubjectAttribute| {
                attribute.name.eq_ignore_ascii_case(&pattern.name) && pattern.value.matches(&attribute.value)
            };
            names.subject.iter().any(is_match)
        };
        let has_name = |pattern: &NamePattern| names.alternative.iter().any(|name| pattern.matches(name));
        self.san.as_ref().is_none_or(has_name) && self.subject.iter().all(has_attribute)
    }

    /// Returns whether both ask for the same kinds of names, and a certificate with one of each can match both.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let own_attributes =
            self.subject.iter().map(|own| (own, other.subject.iter().find(|other| other.name == own.name)));
        let same_attributes: Vec<_> = own_attributes.filter_map(|(own, other)| Some((own, other?))).collect();
        let is_comparable = self.san.is_some() && other.san.is_some() || !same_attributes.is_empty();
        let sans_overlap = match (&self.san, &other.san) {
            (Some(own), Some(other)) => own.overlaps(other),
            _ => true,
        };
        is_comparable
            && sans_overlap
            && same_attributes.iter().all(|(own, other)| own.value.overlaps(&other.value))
    }
}

/// Reads `mtls`.
pub(super) fn read(reader: &mut TableReader<'_>) -> Option<CertificatePattern> {
    let mut table = reader.table("mtls")?;
    let san = table.string("san").map(str::parse::<NamePattern>);
    if let Some(Err(_)) = san {
        table.error_at_value(
            "san",
            "`mtls.san` is empty",
            "write `san = \"ci.example.org\"` or a pattern with `*`",
        );
    }
    let subject = table.string("subject").map(parse_subject);
    if let Some(None) = subject {
        let hint = "write `subject = \"CN=ci\"`, or several attributes with commas between them";
        table.error_at_value("subject", "`mtls.subject` is not a list of attributes", hint);
    }
    if !table.has("san") && !table.has("subject") {
        table.error_at_table(
            "`mtls` has neither `san` nor `subject`",
            "write `mtls = { san = \"ci.example.org\" }`",
        );
    }
    table.finish();
    let pattern = CertificatePattern {
        san: san.transpose().ok()?,
        subject: subject.unwrap_or_else(|| Some(Vec::new()))?,
    };
    (pattern.san.is_some() || !pattern.subject.is_empty()).then_some(pattern)
}

/// Parses attributes such as `CN=ci-*, O=Example`. A comma in a value is written as `\,`.
fn parse_subject(written: &str) -> Option<Vec<SubjectPattern>> {
    split_attributes(written).iter().map(|part| parse_attribute(part)).collect()
}

fn split_attributes(written: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut letters = written.chars();
    while let Some(letter) = letters.next() {
        match letter {
            ',' => parts.push(String::new()),
            '\\' => parts.last_mut().into_iter().for_each(|part| part.extend(letters.next())),
            letter => parts.last_mut().into_iter().for_each(|part| part.push(letter)),
        }
    }
    parts
}

fn parse_attribute(part: &str) -> Option<SubjectPattern> {
    let (name, value) = part.trim().split_once('=')?;
    let is_name =
        !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '.');
    is_name.then_some(())?;
    Some(SubjectPattern { name: name.to_ascii_uppercase(), value: value.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn san(pattern: &str) -> CertificatePattern {
        CertificatePattern { san: pattern.parse().ok(), subject: Vec::new() }
    }

    fn subject(written: &str) -> CertificatePattern {
        CertificatePattern { san: None, subject: parse_subject(written).unwrap() }
    }

    fn names(alternative: &[&str], subject: &[(&str, &str)]) -> CertificateNames {
        let attribute = |(name, value): &(&str, &str)| SubjectAttribute {
            name: (*name).to_owned(),
            value: (*value).to_owned(),
        };
        CertificateNames {
            alternative: alternative.iter().map(|name| (*name).to_owned()).collect(),
            subject: subject.iter().map(attribute).collect(),
        }
    }

    #[test]
    fn certificate_matches_by_alternative_name() {
        let found = names(&["ci.example.org", "spiffe://example.org/ci"], &[("CN", "other")]);
        for matching in ["ci.example.org", "*.example.org", "spiffe://example.org/*", "*"] {
            assert!(san(matching).matches(&found), "{matching}");
        }
        for other in ["example.org", "ci.example", "other", "CI.example.org", "*.example.org.evil"] {
            assert!(!san(other).matches(&found), "{other}");
        }
        assert!(!san("*").matches(&names(&[], &[("CN", "x")])), "a certificate without alternative names");
    }

    #[test]
    fn subject_pattern_compares_whole_attributes() {
        let found = names(&[], &[("C", "DE"), ("O", "Example, Inc."), ("CN", "ci-7")]);
        assert!(subject("CN=ci-*").matches(&found));
        assert!(subject("cn=ci-7, O=Example\\, Inc.").matches(&found));
        for other in ["CN=ci", "O=Example", "CN=ci-*,O=Other", "OU=*", "CN=*,C=FR"] {
            assert!(!subject(other).matches(&found), "{other}");
        }
        let forged = names(&[], &[("CN", "evil,O=Example"), ("O", "Other")]);
        assert!(!subject("CN=*,O=Example").matches(&forged), "a value is never read as an attribute");
        for invalid in ["", "ci", "CN=", "=x", "CN=a,", "C N=a"] {
            assert_eq!(parse_subject(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn patterns_that_one_certificate_can_match_overlap() {
        assert!(san("*.example.org").overlaps(&san("ci.*")));
        assert!(!san("*.example.org").overlaps(&san("*.example.com")));
        assert!(!subject("CN=a,O=x").overlaps(&subject("CN=b,O=x")));
        assert!(subject("CN=a*").overlaps(&subject("CN=ab,O=x")));
        assert!(!subject("CN=a").overlaps(&san("a")), "a certificate decides that");
    }
}
