//! What looks like a secret: by the name it has, or by its own looks. A guess that errs on the careful side; it decides
//! what is never copied, never how anything is used.

/// Parts of names that hold secrets.
const NAMES: [&str; 13] = [
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

/// How well-known tokens begin.
const BEGINNINGS: [&str; 22] = [
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

/// Shorter ones are words.
const SHORTEST: usize = 20;

/// Whether something of this name is a secret.
pub(crate) fn in_name(name: &str) -> bool {
    let name = name.trim_start_matches('-').to_ascii_uppercase().replace('-', "_");
    NAMES.iter().any(|part| name.contains(part))
        || ["KEY", "PAT", "AUTH", "PWD"]
            .iter()
            .any(|last| name == *last || name.ends_with(&format!("_{last}")))
}

/// Whether a value is a secret by its looks.
pub(crate) fn in_value(value: &str) -> bool {
    let word = value.rsplit(' ').next().unwrap_or(value);
    let (scheme, long) = (value.len() > word.len(), word.len() >= SHORTEST);
    let known = BEGINNINGS.iter().any(|start| word.starts_with(start) && word.len() >= start.len() + 8);
    let scheme = scheme
        && ["bearer ", "basic ", "token "].iter().any(|start| value.to_ascii_lowercase().starts_with(start));
    known || (scheme && word.len() >= 8) || (long && is_random(word))
}

/// Letters and digits without a pattern: no path, no address, no name of a package.
fn is_random(word: &str) -> bool {
    let legal = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '+' | '=' | '_' | '-');
    let count = |test: fn(&char) -> bool| word.chars().filter(test).count();
    let (digits, upper, lower) =
        (count(char::is_ascii_digit), count(char::is_ascii_uppercase), count(char::is_ascii_lowercase));
    let hex = word.len() >= 32 && word.chars().all(|letter| letter.is_ascii_hexdigit());
    // Words between dashes are a name, however long.
    let wordy = word.split(['-', '_']).all(|part| part.len() <= 12) && word.contains(['-', '_']);
    word.chars().all(legal) && ((hex && digits > 4) || (digits > 2 && upper > 2 && lower > 2 && !wordy))
}

/// A line of somebody's file as it may be shown: a value that may be a secret is not.
pub(crate) fn masked(line: &str) -> String {
    let words = || line.split(|letter: char| letter.is_whitespace() || "\"'`,;:={}[]()".contains(letter));
    let named = words().any(in_name);
    if !named && !words().any(in_value) && !in_value(line.trim()) {
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
    fn names_of_secrets_are_known() {
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
            assert!(in_name(name), "{name}");
        }
        for name in ["PATH", "KEYBOARD", "HOME", "GIT_PAGER", "MONKEY", "--root", "Accept", "AUTHOR"] {
            assert!(!in_name(name), "{name}");
        }
    }

    #[test]
    fn values_are_judged_by_their_looks() {
        let hex = "0123456789abcdef0123456789abcdef";
        for value in
            ["sk-abcdefgh12345678", "ghp_abcdefghijkl", "Bearer abcdefgh", "aB3dE5fG7hI9jK1lM3nO", hex]
        {
            assert!(in_value(value), "{value}");
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
            assert!(!in_value(value), "{value}");
        }
    }

    #[test]
    fn a_line_with_a_secret_is_not_shown() {
        assert_eq!(masked("  \"TOKEN\": \"abc\",\n"), "  … not shown …\n");
        assert_eq!(masked("bearer = 'sk-abcdefgh12345678'"), "… not shown …");
        assert_eq!(masked("  \"command\": \"npx\",\n"), "  \"command\": \"npx\",\n");
    }
}
