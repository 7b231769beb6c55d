//! Guesses which values are secrets, by name or by value. The guess errs on the safe side and only decides what is not
//! copied or shown.

use std::ops::Range;

/// Text that is shown instead of a secret.
pub(crate) const MASK: &str = "…";

/// Parts of names that mark a secret.
const SECRET_NAME_PARTS: [&str; 13] = [
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "APIKEY",
    "API_KEY",
    "ACCESS_KEY",
    "PRIVATE_KEY",
    "CREDENTIAL",
    "AUTHORIZATION",
    "COOKIE",
    "BEARER",
];

/// Words that say that a value is a secret, and not whose.
const GENERIC_WORDS: [&str; 17] = [
    "ACCESS",
    "API",
    "APIKEY",
    "AUTH",
    "AUTHORIZATION",
    "BEARER",
    "CREDENTIALS",
    "DB",
    "KEY",
    "MCP",
    "PASS",
    "PASSPHRASE",
    "PASSWORD",
    "PAT",
    "PWD",
    "SECRET",
    "TOKEN",
];

/// Prefixes of well-known token formats.
const TOKEN_PREFIXES: [&str; 22] = [
    "sk-",
    "sk_",
    "rk_",
    "pk_live_",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "xapp-",
    "AKIA",
    "ASIA",
    "AIza",
    "eyJ",
    "hf_",
    "npm_",
    "pypi-",
    "ya29.",
    "dop_v1_",
];

/// Minimum length of a random-looking value.
const MIN_RANDOM_LENGTH: usize = 20;

/// Returns whether a variable, header or flag with this name holds a secret.
pub(crate) fn is_secret_name(name: &str) -> bool {
    let name = name.trim_start_matches('-').to_ascii_uppercase().replace('-', "_");
    SECRET_NAME_PARTS.iter().any(|part| name.contains(part))
        || ["KEY", "PAT", "AUTH", "PWD"]
            .iter()
            .any(|suffix| name == *suffix || name.ends_with(&format!("_{suffix}")))
}

/// Returns whether the name of a variable does not say which service its secret belongs to.
pub(crate) fn is_generic_name(name: &str) -> bool {
    name.split('_')
        .all(|word| word.is_empty() || GENERIC_WORDS.iter().any(|part| part.eq_ignore_ascii_case(word)))
}

/// Returns whether a value looks like a secret.
pub(crate) fn is_secret_value(value: &str) -> bool {
    let token = value.rsplit(' ').next().unwrap_or(value);
    let has_known_prefix =
        TOKEN_PREFIXES.iter().any(|prefix| token.starts_with(prefix) && token.len() >= prefix.len() + 8);
    let has_auth_scheme = value.len() > token.len()
        && ["bearer ", "basic ", "token "]
            .iter()
            .any(|scheme| value.to_ascii_lowercase().starts_with(scheme));
    has_known_prefix
        || (has_auth_scheme && token.len() >= 8)
        || (token.len() >= MIN_RANDOM_LENGTH && is_random(token))
}

/// Returns whether a token looks random, unlike a path, a URL or a package name.
fn is_random(token: &str) -> bool {
    let is_token_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '=' | '_' | '-');
    let count = |test: fn(&char) -> bool| token.chars().filter(test).count();
    let digits = count(char::is_ascii_digit);
    let uppercase = count(char::is_ascii_uppercase);
    let lowercase = count(char::is_ascii_lowercase);
    let is_hex = token.len() >= 32 && token.chars().all(|c| c.is_ascii_hexdigit());
    // Short parts between dashes are words of a name.
    let is_name = token.split(['-', '_']).all(|part| part.len() <= 12) && token.contains(['-', '_']);
    let is_mixed = digits > 2 && uppercase > 2 && lowercase > 2;
    token.chars().all(is_token_char) && ((is_hex && digits > 4) || (is_mixed && !is_name))
}

/// Returns the byte range of the password in `SCHEME://USER:PASSWORD@HOST`, anywhere in a text. A reference is not a
/// password.
pub(crate) fn find_url_password(text: &str) -> Option<Range<usize>> {
    let mut rest_start = 0;
    while let Some(at) = text[rest_start..].find("://") {
        let authority_start = rest_start + at + 3;
        let authority = &text[authority_start..];
        let end = authority.find(['/', '?', '#', '"', '\'', ' ', '\t']).unwrap_or(authority.len());
        let password = authority[..end].rfind('@').and_then(|at_sign| {
            let colon = authority[..at_sign].find(':')?;
            Some(authority_start + colon + 1..authority_start + at_sign)
        });
        let is_literal = |range: &Range<usize>| {
            let password = &text[range.clone()];
            !password.is_empty() && password != MASK && !password.contains("${")
        };
        if let Some(range) = password.filter(is_literal) {
            return Some(range);
        }
        rest_start = authority_start;
    }
    None
}

/// Returns whether a text is a connection string with a password, such as `host=db password=x` or `Server=db;Pwd=x`.
pub(crate) fn is_connection_string(text: &str) -> bool {
    let parts = text.split([' ', ';']).filter_map(|part| part.split_once('='));
    let has_password = |(name, value): (&str, &str)| is_secret_name(name) && !value.is_empty();
    text.contains([' ', ';']) && !text.contains("${") && parts.into_iter().any(has_password)
}

/// Masks a line of a user's file if it may contain a secret.
pub(crate) fn mask_line(line: &str) -> String {
    let has_secret_name = tokens(line).any(is_secret_name);
    let has_secret_value = tokens(line).any(is_secret_value) || is_secret_value(line.trim());
    if !has_secret_name && !has_secret_value && find_url_password(line).is_none() {
        return line.to_owned();
    }
    let indent = line.len() - line.trim_start().len();
    let end = if line.ends_with('\n') { "\n" } else { "" };
    format!("{}… not shown …{end}", &line[..indent])
}

/// Masks the parts of a line that look like secrets, and keeps the rest.
pub(crate) fn mask_tokens(line: &str) -> String {
    let mut masked = line.to_owned();
    while let Some(password) = find_url_password(&masked) {
        masked.replace_range(password, MASK);
    }
    for secret in tokens(line).filter(|token| is_secret_value(token)) {
        masked = masked.replace(secret, MASK);
    }
    masked
}

/// Returns the words of a line in any of the languages of config files.
fn tokens(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| c.is_whitespace() || "\"'`,;:={}[]()".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_names_are_recognized() {
        for name in [
            "GITHUB_TOKEN",
            "api-key",
            "--api-key",
            "X-Api-Key",
            "Authorization",
            "DB_PASSWORD",
            "KEY",
            "SSH_KEY",
            "GH_PAT",
        ] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in ["PATH", "KEYBOARD", "HOME", "GIT_PAGER", "MONKEY", "--root", "Accept", "AUTHOR"] {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn secret_values_are_recognized() {
        let hex = "0123456789abcdef0123456789abcdef";
        for value in
            ["sk-abcdefgh12345678", "ghp_abcdefghijkl", "Bearer abcdefgh", "aB3dE5fG7hI9jK1lM3nO", hex]
        {
            assert!(is_secret_value(value), "{value}");
        }
        for value in [
            "cat",
            "/usr/local/bin/some-server-With-2-Names",
            "@modelcontextprotocol/server-filesystem",
            "https://example.com/mcp",
            "server.mjs",
            "claude-sonnet-4-20250514",
            "mcp-server-git@2025.1.14",
            "two words",
            "ABCDEFGHIJKLMNOPQRSTUVWX",
            "",
        ] {
            assert!(!is_secret_value(value), "{value}");
        }
    }

    #[test]
    fn lines_with_secrets_are_masked() {
        assert_eq!(mask_line("  \"TOKEN\": \"abc\",\n"), "  … not shown …\n");
        assert_eq!(mask_line("bearer = 'sk-abcdefgh12345678'"), "… not shown …");
        assert_eq!(mask_line("  \"command\": \"npx\",\n"), "  \"command\": \"npx\",\n");
        assert_eq!(mask_line("  'postgres://me:pw@db/x'"), "  … not shown …");
        assert_eq!(
            mask_tokens("[\"redis://:pw@a/1\", \"sk-abcdefgh12345678\"]"),
            "[\"redis://:…@a/1\", \"…\"]"
        );
    }

    #[test]
    fn passwords_in_connection_strings_are_found() {
        let password = |text: &'static str| find_url_password(text).map(|range| &text[range]);
        assert_eq!(password("postgres://me:p@ss:w@db:5432/x"), Some("p@ss:w"));
        assert_eq!(password("https://x/y and amqp://:pw@host"), Some("pw"));
        for text in ["https://host:80/a@b:c", "https://me@host", "x://u:${secret:p}@h", "git@host:a/b"] {
            assert_eq!(password(text), None, "{text}");
        }
        assert!(is_connection_string("host=db password=x") && is_connection_string("Server=db;Pwd=x;"));
        assert!(!is_connection_string("host=db user=x") && !is_connection_string("password=x"));
    }
}
