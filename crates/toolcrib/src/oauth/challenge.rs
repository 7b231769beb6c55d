//! The `WWW-Authenticate` header of a server that requires a token.

/// What a server says about the token that it requires.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Challenge {
    /// URL of the server's metadata.
    pub(crate) resource_metadata: Option<String>,
    /// Scopes that the request needs.
    pub(crate) scopes: Vec<String>,
    /// Code of the error, such as `insufficient_scope`.
    pub(crate) error: Option<String>,
    /// The error in words.
    pub(crate) error_description: Option<String>,
}

impl Challenge {
    /// Reads the `Bearer` challenge of a header. Other schemes are ignored.
    pub(crate) fn parse(header: &str) -> Option<Self> {
        let mut found: Option<Self> = None;
        let mut rest = header.trim_start_matches([' ', ',']);
        while !rest.is_empty() {
            let name_end = rest.find([' ', '=', ',']).unwrap_or(rest.len());
            let (name, after) = rest.split_at(name_end);
            if let Some(value) = after.trim_start().strip_prefix('=').filter(|_| !name.is_empty()) {
                let (value, next) = read_value(value.trim_start());
                if let Some(challenge) = &mut found {
                    challenge.set(name, value);
                }
                rest = next;
            } else if name.eq_ignore_ascii_case("bearer") {
                found = found.or_else(|| Some(Self::default()));
                rest = after;
            } else if found.is_some() {
                break; // the challenge of another scheme
            } else {
                rest = after.trim_start_matches('=');
            }
            rest = rest.trim_start_matches([' ', ',']);
        }
        found
    }

    /// Returns whether the token lacks a scope.
    pub(crate) fn is_insufficient_scope(&self) -> bool {
        self.error.as_deref() == Some("insufficient_scope")
    }

    fn set(&mut self, name: &str, value: String) {
        match name.to_ascii_lowercase().as_str() {
            "resource_metadata" => self.resource_metadata = Some(value),
            "scope" => self.scopes = value.split_ascii_whitespace().map(str::to_owned).collect(),
            "error" => self.error = Some(value),
            "error_description" => self.error_description = Some(value),
            _ => {}
        }
    }
}

/// Splits a text after a token or a quoted string, and returns the value without quotes.
fn read_value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([' ', ',']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, letter)) = chars.next() {
        match letter {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(chars.next().map(|(_, escaped)| escaped)),
            _ => value.push(letter),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bearer_challenge_is_read() {
        let challenge = Challenge::parse(
            r#"Basic realm="x, y", Bearer realm="a \"b\"", error=insufficient_scope, error_description="for \"b\"", scope="read write", resource_metadata="https://s.example/m""#,
        );
        let challenge = challenge.unwrap();
        assert_eq!(challenge.resource_metadata.as_deref(), Some("https://s.example/m"));
        assert_eq!(challenge.scopes, ["read", "write"]);
        assert!(challenge.is_insufficient_scope());
        assert_eq!(challenge.error_description.as_deref(), Some("for \"b\""));
        assert_eq!(Challenge::parse("bearer"), Some(Challenge::default()));
        assert_eq!(Challenge::parse("Basic realm=x"), None);
        assert_eq!(Challenge::parse("=="), None);
        let other = Challenge::parse(r#"Bearer scope="a", Digest scope="b""#).unwrap();
        assert_eq!(other.scopes, ["a"], "the members of another scheme are not its own");
    }

    proptest! {
        #[test]
        fn any_header_is_read_to_its_end(header in ".{0,200}") {
            let _ = Challenge::parse(&header);
            let _ = Challenge::parse(&format!("Bearer {header}"));
        }
    }
}
