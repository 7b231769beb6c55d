//! References in the ways of other programs → `${env:X}` and `${file:PATH}`.

use crate::agents::References;

/// What editors have values for, and nobody else.
const EDITORS: [&str; 6] =
    ["workspaceFolder", "workspaceFolderBasename", "workspaceRoot", "file", "fileDirname", "pathSeparator"];

/// Which ways a program knows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ways {
    /// `${X}` and `${X:-default}`.
    braces: bool,
    /// `$X`.
    bare: bool,
    /// `${env:X}`, `${input:X}`, `${file:PATH}`.
    prefixed: bool,
    /// `{env:X}` and `{file:PATH}`.
    opencode: bool,
    /// `${{ secrets.X }}`.
    secrets: bool,
}

impl Ways {
    /// Those of a file whose program is not known: every way that cannot be taken for anything else.
    pub(super) const ANY: Self =
        Self { braces: true, bare: false, prefixed: true, opencode: true, secrets: true };

    /// Those of an agent.
    pub(super) fn of(references: References) -> Self {
        let none = Self { braces: false, bare: false, prefixed: false, opencode: false, secrets: false };
        match references {
            References::None => none,
            References::Shell { bare } => Self { braces: true, bare, ..none },
            References::Braces | References::Headers => Self { braces: true, ..none },
            References::Dollar => Self { braces: true, bare: true, ..none },
            References::Env { defaults, .. } => Self { braces: defaults, prefixed: true, ..none },
            References::Opencode => Self { opencode: true, ..none },
            References::Secrets => Self { secrets: true, ..none },
        }
    }
}

/// A text with its references in our way; else what it refers to that has no meaning here.
pub(super) fn ours(ways: Ways, text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(['$', '{']) {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        match reference(ways, rest)? {
            Some((written, length)) => {
                out.push_str(&written);
                rest = &rest[length..];
            }
            None if rest.starts_with("${") => {
                return Err(rest.split_inclusive('}').next().unwrap_or(rest).to_owned());
            }
            None => {
                out.push_str(&rest[..1]);
                rest = &rest[1..];
            }
        }
    }
    Ok(out + rest)
}

/// The reference that a text begins with, in our way, and its length.
fn reference(ways: Ways, text: &str) -> Result<Option<(String, usize)>, String> {
    let between = |open: &str, close: &str| {
        let inner = text.strip_prefix(open)?;
        let end = inner.find(close)?;
        Some((&inner[..end], open.len() + end + close.len()))
    };
    if let Some((inner, length)) = between("${{", "}}").filter(|_| ways.secrets) {
        let name = inner.trim().strip_prefix("secrets.").filter(|name| is_variable(name));
        return name.map(|name| Some((variable(name), length))).ok_or_else(|| text[..length].to_owned());
    }
    if let Some((inner, length)) = between("${", "}") {
        let (kind, name) = inner.split_once(':').unwrap_or(("", inner));
        let known = match kind {
            "env" if ways.prefixed => Some(format!("${{{inner}}}")),
            "file" if ways.prefixed => Some(format!("${{{inner}}}")),
            "input" if ways.prefixed => Some(variable(&shouted(name))),
            "" if ways.prefixed && name == "userHome" => Some(variable("HOME")),
            "" if ways.braces && is_variable(name) && !EDITORS.contains(&name) => Some(variable(name)),
            _ if ways.braces && name.starts_with('-') && is_variable(kind) => {
                Some(format!("${{env:{inner}}}"))
            }
            _ => None,
        };
        return known.map(|known| Some((known, length))).ok_or_else(|| text[..length].to_owned());
    }
    if let Some((inner, length)) = between("{", "}").filter(|_| ways.opencode)
        && (inner.starts_with("env:") || inner.starts_with("file:"))
    {
        return Ok(Some((format!("${{{inner}}}"), length)));
    }
    if let Some(name) = text.strip_prefix('$').filter(|_| ways.bare) {
        let end =
            name.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').unwrap_or(name.len());
        if is_variable(&name[..end]) {
            return Ok(Some((variable(&name[..end]), end + 1)));
        }
    }
    Ok(None)
}

fn variable(name: &str) -> String {
    format!("${{env:{name}}}")
}

fn is_variable(name: &str) -> bool {
    name.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_')
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

/// A name as variables have them.
pub(super) fn shouted(name: &str) -> String {
    let letter =
        |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' };
    let name: String = name.chars().map(letter).collect();
    let name = name.trim_matches('_').to_owned();
    if name.starts_with(|letter: char| letter.is_ascii_digit()) { format!("_{name}") } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_becomes_ours_and_only_its_own() {
        let shell = Ways::of(References::Shell { bare: false });
        let all = Ways::of(References::Shell { bare: true });
        let code = Ways::of(References::Env { defaults: false, files: false });
        let ours = |ways, text| ours(ways, text).unwrap();
        assert_eq!(ours(shell, "a ${X} ${Y:-z} $X"), "a ${env:X} ${env:Y:-z} $X");
        assert_eq!(ours(all, "$X-${Y} $5"), "${env:X}-${env:Y} $5");
        assert_eq!(
            ours(code, "${env:X} ${input:my-key} ${userHome}/x"),
            "${env:X} ${env:MY_KEY} ${env:HOME}/x"
        );
        assert_eq!(ours(Ways::of(References::Opencode), "{env:X} {a}"), "${env:X} {a}");
        assert_eq!(ours(Ways::of(References::Secrets), "B ${{ secrets.X }}"), "B ${env:X}");
        assert_eq!(ours(Ways::of(References::None), "{\"a\": \"$X\"}"), "{\"a\": \"$X\"}");
        assert_eq!(
            ours(Ways::ANY, "${{ secrets.A }} ${B} ${env:C} {env:D}"),
            "${env:A} ${env:B} ${env:C} ${env:D}"
        );
    }

    #[test]
    fn what_has_no_meaning_here_is_named() {
        let code = Ways::of(References::Env { defaults: false, files: false });
        assert_eq!(ours(code, "x ${workspaceFolder}/y"), Err("${workspaceFolder}".to_owned()));
        assert_eq!(ours(Ways::of(References::None), "${X}"), Err("${X}".to_owned()));
        assert_eq!(ours(Ways::ANY, "${X"), Err("${X".to_owned()));
    }
}
