//! Converts references in the syntax of other programs to `${env:X}` and `${file:PATH}`.

use crate::agents::VariableSyntax;

/// Variables that only editors can resolve.
const EDITOR_VARIABLES: [&str; 6] =
    ["workspaceFolder", "workspaceFolderBasename", "workspaceRoot", "file", "fileDirname", "pathSeparator"];

/// Reference forms that a program supports.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReferenceSyntax {
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

impl ReferenceSyntax {
    /// Forms for a file of an unknown program: all that are unambiguous.
    pub(super) const ANY: Self =
        Self { braces: true, bare: false, prefixed: true, opencode: true, secrets: true };

    /// Returns the same forms and `${X}`.
    pub(super) fn with_braces(self) -> Self {
        Self { braces: true, ..self }
    }

    /// Returns the forms that an agent supports.
    pub(super) fn for_agent(syntax: VariableSyntax) -> Self {
        let none = Self { braces: false, bare: false, prefixed: false, opencode: false, secrets: false };
        match syntax {
            VariableSyntax::None => none,
            VariableSyntax::Shell { bare } => Self { braces: true, bare, ..none },
            VariableSyntax::Braces | VariableSyntax::HeadersOnly => Self { braces: true, ..none },
            VariableSyntax::Dollar => Self { braces: true, bare: true, ..none },
            VariableSyntax::Env { defaults, .. } => Self { braces: defaults, prefixed: true, ..none },
            VariableSyntax::Opencode => Self { opencode: true, ..none },
            VariableSyntax::Secrets => Self { secrets: true, ..none },
        }
    }
}

/// A text with converted references.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ConvertedText {
    pub(super) text: String,
    /// Values that the editor asks for, by the names it gives them.
    pub(super) inputs: Vec<String>,
}

/// Converts the references of a text. `to_secret` returns the reference to a value that the editor asks for. The error is
/// the first reference that toolcrib cannot resolve.
pub(super) fn to_toolcrib_syntax(
    syntax: ReferenceSyntax,
    text: &str,
    to_secret: &dyn Fn(&str) -> String,
) -> Result<ConvertedText, String> {
    let mut out = String::new();
    let mut inputs = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(['$', '{']) {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        match parse_reference(syntax, rest)? {
            Some((Reference::Text(converted), length)) => {
                out.push_str(&converted);
                rest = &rest[length..];
            }
            Some((Reference::Input(name), length)) => {
                out.push_str(&to_secret(&name));
                inputs.push(name);
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
    Ok(ConvertedText { text: out + rest, inputs })
}

/// A reference in the syntax of another program.
enum Reference {
    /// The reference in toolcrib's syntax.
    Text(String),
    /// The name of a value that the editor asks for.
    Input(String),
}

/// Parses the reference at the start of a text. Returns it and its length in the text.
fn parse_reference(syntax: ReferenceSyntax, text: &str) -> Result<Option<(Reference, usize)>, String> {
    let between = |open: &str, close: &str| {
        let inner = text.strip_prefix(open)?;
        let end = inner.find(close)?;
        Some((&inner[..end], open.len() + end + close.len()))
    };
    if let Some((inner, length)) = between("${{", "}}").filter(|_| syntax.secrets) {
        let name = inner.trim().strip_prefix("secrets.").filter(|name| is_variable_name(name));
        let reference = name.map(|name| Some((Reference::Text(env_reference(name)), length)));
        return reference.ok_or_else(|| text[..length].to_owned());
    }
    if let Some((inner, length)) = between("${", "}") {
        let (kind, name) = inner.split_once(':').unwrap_or(("", inner));
        if kind == "input" && syntax.prefixed {
            return Ok(Some((Reference::Input(name.to_owned()), length)));
        }
        let converted = match kind {
            "env" if syntax.prefixed => Some(format!("${{{inner}}}")),
            "file" if syntax.prefixed => Some(format!("${{{inner}}}")),
            "" if syntax.prefixed && name == "userHome" => Some(env_reference("HOME")),
            "" if syntax.braces && is_variable_name(name) && !EDITOR_VARIABLES.contains(&name) => {
                Some(env_reference(name))
            }
            _ if syntax.braces && name.starts_with('-') && is_variable_name(kind) => {
                Some(format!("${{env:{inner}}}"))
            }
            _ => None,
        };
        let reference = converted.map(|converted| Some((Reference::Text(converted), length)));
        return reference.ok_or_else(|| text[..length].to_owned());
    }
    if let Some((inner, length)) = between("{", "}").filter(|_| syntax.opencode)
        && (inner.starts_with("env:") || inner.starts_with("file:"))
    {
        return Ok(Some((Reference::Text(format!("${{{inner}}}")), length)));
    }
    if let Some(name) = text.strip_prefix('$').filter(|_| syntax.bare) {
        let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len());
        if is_variable_name(&name[..end]) {
            return Ok(Some((Reference::Text(env_reference(&name[..end])), end + 1)));
        }
    }
    Ok(None)
}

fn env_reference(name: &str) -> String {
    format!("${{env:{name}}}")
}

fn is_variable_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Converts a name to the form of an environment variable.
pub(super) fn to_variable_name(name: &str) -> String {
    let normalize = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    let name: String = name.chars().map(normalize).collect();
    let name = name.trim_matches('_').to_owned();
    if name.starts_with(|c: char| c.is_ascii_digit()) { format!("_{name}") } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_convert_in_every_syntax() {
        let shell = ReferenceSyntax::for_agent(VariableSyntax::Shell { bare: false });
        let bare = ReferenceSyntax::for_agent(VariableSyntax::Shell { bare: true });
        let vscode = ReferenceSyntax::for_agent(VariableSyntax::Env { defaults: false, files: false });
        let to_secret = |name: &str| format!("${{secret:{name}}}");
        let convert = |syntax, text| to_toolcrib_syntax(syntax, text, &to_secret).unwrap().text;
        assert_eq!(convert(shell, "a ${X} ${Y:-z} $X"), "a ${env:X} ${env:Y:-z} $X");
        assert_eq!(convert(bare, "$X-${Y} $5"), "${env:X}-${env:Y} $5");
        assert_eq!(
            convert(vscode, "${env:X} ${input:my-key} ${userHome}/x"),
            "${env:X} ${secret:my-key} ${env:HOME}/x"
        );
        assert_eq!(
            convert(ReferenceSyntax::for_agent(VariableSyntax::Opencode), "{env:X} {a}"),
            "${env:X} {a}"
        );
        assert_eq!(
            convert(ReferenceSyntax::for_agent(VariableSyntax::Secrets), "B ${{ secrets.X }}"),
            "B ${env:X}"
        );
        assert_eq!(
            convert(ReferenceSyntax::for_agent(VariableSyntax::None), "{\"a\": \"$X\"}"),
            "{\"a\": \"$X\"}"
        );
        assert_eq!(
            convert(ReferenceSyntax::ANY, "${{ secrets.A }} ${B} ${env:C} {env:D}"),
            "${env:A} ${env:B} ${env:C} ${env:D}"
        );
    }

    #[test]
    fn unresolvable_references_are_errors() {
        let vscode = ReferenceSyntax::for_agent(VariableSyntax::Env { defaults: false, files: false });
        let convert = |syntax, text| to_toolcrib_syntax(syntax, text, &str::to_owned);
        assert_eq!(convert(vscode, "x ${workspaceFolder}/y"), Err("${workspaceFolder}".to_owned()));
        let none = ReferenceSyntax::for_agent(VariableSyntax::None);
        assert_eq!(convert(none, "${X}"), Err("${X}".to_owned()));
        assert_eq!(convert(ReferenceSyntax::ANY, "${X"), Err("${X".to_owned()));
    }
}
