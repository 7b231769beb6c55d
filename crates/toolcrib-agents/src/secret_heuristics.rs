//! Guesses which values are secrets, by name or by value. The guess errs on the safe side and only decides what is not
//! copied or shown.

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

/// Masks a line of a user's file if it may contain a secret.
pub(crate) fn mask_line(line: &str) -> String {
    let tokens = || line.split(|c: char| c.is_whitespace() || "\"'`,;:={}[]()".contains(c));
    let has_secret_name = tokens().any(is_secret_name);
    if !has_secret_name && !tokens().any(is_secret_value) && !is_secret_value(line.trim()) {
        return line.to_owned();
    }
    let indent = line.len() - line.trim_start().len();
    let end = if line.ends_with('\n') { "\n" } else { "" };
    format!("{}… not shown …{end}", &line[..indent])
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
    }
}
