//! Configured strings that may refer to environment variables, files and secrets.
//!
//! References are only resolved when a connection starts, so that specs can be compared and printed without holding a
//! secret's value.

use std::fmt;
use std::path::{Path, PathBuf};

pub use super::secret::{Secret, SecretError, is_valid_secret_name};

/// The maximum size of a referenced file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A string that may contain `${env:X}`, `${env:X:-default}`, `${file:PATH}` and `${secret:NAME}`.
#[derive(Clone, PartialEq, Eq)]
pub struct TemplateText {
    source: String,
    parts: Vec<TemplatePart>,
}

#[derive(Clone, PartialEq, Eq)]
enum TemplatePart {
    Literal(String),
    Env { name: String, default: Option<String> },
    File(PathBuf),
    Secret(String),
}

/// A part of a [`TemplateText`], for conversion to other formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TemplatePiece<'a> {
    /// Literal text.
    Literal(&'a str),
    /// The value of an environment variable.
    Env {
        /// The name of the variable.
        name: &'a str,
        /// The value if the variable is not set.
        default: Option<&'a str>,
    },
    /// The content of a file.
    File(&'a Path),
    /// The value of a secret.
    Secret(&'a str),
}

/// An invalid reference in a string.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BadReference {
    /// The byte offset of `${` in the string.
    pub offset: usize,
    /// The kind of mistake.
    pub kind: BadReferenceKind,
}

/// The kind of mistake in a reference.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadReferenceKind {
    /// `${` without `}`.
    Unclosed,
    /// `${secret:NAME}` with an invalid name.
    Secret(String),
    /// Neither `env:`, `file:` nor `secret:`.
    UnknownKind(String),
    /// Nothing after the colon.
    Empty,
}

impl fmt::Display for BadReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            BadReferenceKind::Unclosed => f.write_str("`${` is not closed with `}`"),
            BadReferenceKind::Secret(name) => write!(f, "`{name}` is not a valid secret name"),
            BadReferenceKind::UnknownKind(kind) => write!(f, "`${{{kind}}}` is not a reference"),
            BadReferenceKind::Empty => f.write_str("the reference has no name"),
        }
    }
}

/// A reference without a value.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnresolvedReference {
    /// The variable is not set and the reference has no default.
    Env(String),
    /// The file could not be read.
    File(PathBuf, String),
    /// The secret is not available.
    Secret(String, SecretError),
}

impl fmt::Display for UnresolvedReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => {
                write!(f, "environment variable `{name}` is not set (`${{env:{name}:-…}}` gives a default)")
            }
            Self::File(path, reason) => write!(f, "cannot read `{}`: {reason}", path.display()),
            Self::Secret(name, error) => f.write_str(&error.message(name)),
        }
    }
}

impl TemplateText {
    /// Creates a literal string, in which `${` has no meaning.
    pub fn literal(text: impl Into<String>) -> Self {
        let source = text.into();
        Self { parts: vec![TemplatePart::Literal(source.clone())], source }
    }

    /// Parses references; relative `${file:}` paths are relative to `base`.
    ///
    /// # Errors
    /// Fails at the first invalid reference.
    pub fn parse(source: &str, base: &Path) -> Result<Self, BadReference> {
        let mut parts = Vec::new();
        let mut rest = source;
        while let Some(start) = rest.find("${") {
            let offset = source.len() - rest.len() + start;
            let bad = |kind| BadReference { offset, kind };
            if start > 0 {
                parts.push(TemplatePart::Literal(rest[..start].to_owned()));
            }
            let end = rest[start..].find('}').ok_or_else(|| bad(BadReferenceKind::Unclosed))? + start;
            parts.push(TemplatePart::parse(&rest[start + 2..end], base).map_err(bad)?);
            rest = &rest[end + 1..];
        }
        if !rest.is_empty() || parts.is_empty() {
            parts.push(TemplatePart::Literal(rest.to_owned()));
        }
        Ok(Self { source: source.to_owned(), parts })
    }

    /// Returns the string as written, with unresolved references.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the parts of the string, with unresolved references.
    pub fn pieces(&self) -> impl Iterator<Item = TemplatePiece<'_>> {
        self.parts.iter().map(|part| match part {
            TemplatePart::Literal(text) => TemplatePiece::Literal(text),
            TemplatePart::Env { name, default } => TemplatePiece::Env { name, default: default.as_deref() },
            TemplatePart::File(path) => TemplatePiece::File(path),
            TemplatePart::Secret(name) => TemplatePiece::Secret(name),
        })
    }

    /// Returns the names of the referenced secrets.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        self.pieces().filter_map(|piece| match piece {
            TemplatePiece::Secret(name) => Some(name),
            _ => None,
        })
    }

    /// Returns the string with every reference replaced by its current value. `secret` resolves secrets by name.
    ///
    /// # Errors
    /// Fails at the first reference without a value.
    pub fn expand(
        &self,
        secret: impl Fn(&str) -> Result<Secret, SecretError>,
    ) -> Result<String, UnresolvedReference> {
        self.expand_with(|name| std::env::var(name).ok(), secret)
    }

    fn expand_with(
        &self,
        env: impl Fn(&str) -> Option<String>,
        secret: impl Fn(&str) -> Result<Secret, SecretError>,
    ) -> Result<String, UnresolvedReference> {
        let mut out = String::new();
        for part in &self.parts {
            match part {
                TemplatePart::Literal(text) => out.push_str(text),
                TemplatePart::Env { name, default } => {
                    let value = env(name).or_else(|| default.clone());
                    out.push_str(&value.ok_or_else(|| UnresolvedReference::Env(name.clone()))?);
                }
                TemplatePart::File(path) => {
                    let text = read_small_file(path)
                        .map_err(|reason| UnresolvedReference::File(path.clone(), reason))?;
                    out.push_str(text.trim_end_matches(['\r', '\n']));
                }
                TemplatePart::Secret(name) => {
                    let value =
                        secret(name).map_err(|error| UnresolvedReference::Secret(name.clone(), error))?;
                    out.push_str(value.expose());
                }
            }
        }
        Ok(out)
    }
}

/// Reads a small regular file. Devices and pipes are refused, because reading them may never end.
fn read_small_file(path: &Path) -> Result<String, String> {
    let metadata = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if !metadata.is_file() || metadata.len() > MAX_FILE_BYTES {
        return Err("not a regular file of at most 1 MiB".to_owned());
    }
    std::fs::read_to_string(path).map_err(|error| error.to_string())
}

impl TemplatePart {
    fn parse(reference: &str, base: &Path) -> Result<Self, BadReferenceKind> {
        let (kind, name) = reference.split_once(':').unwrap_or((reference, ""));
        match kind {
            "env" | "file" | "secret" if name.is_empty() => Err(BadReferenceKind::Empty),
            "env" => Ok(match name.split_once(":-") {
                Some((name, default)) => {
                    Self::Env { name: name.to_owned(), default: Some(default.to_owned()) }
                }
                None => Self::Env { name: name.to_owned(), default: None },
            }),
            "file" => Ok(Self::File(base.join(name))),
            "secret" if is_valid_secret_name(name) => Ok(Self::Secret(name.to_owned())),
            "secret" => Err(BadReferenceKind::Secret(name.to_owned())),
            _ => Err(BadReferenceKind::UnknownKind(reference.to_owned())),
        }
    }
}

impl fmt::Debug for TemplateText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.source, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(source: &str) -> Result<String, UnresolvedReference> {
        let env = |name: &str| (name == "SET").then(|| "value".to_owned());
        let secret = |name: &str| match name {
            "token" => Ok(Secret::new("s3cret")),
            _ => Err(SecretError::NotFound),
        };
        TemplateText::parse(source, Path::new("/base")).unwrap().expand_with(env, secret)
    }

    #[test]
    fn references_are_replaced_by_current_values() {
        assert_eq!(expand("a ${env:SET} b").unwrap(), "a value b");
        assert_eq!(expand("${env:UNSET:-x:-y}").unwrap(), "x:-y");
        assert_eq!(expand("plain").unwrap(), "plain");
        assert_eq!(expand("").unwrap(), "");
        assert_eq!(expand("${env:UNSET}"), Err(UnresolvedReference::Env("UNSET".into())));
        assert_eq!(expand("Bearer ${secret:token}").unwrap(), "Bearer s3cret");
        assert_eq!(
            expand("${secret:other}"),
            Err(UnresolvedReference::Secret("other".into(), SecretError::NotFound))
        );
    }

    #[test]
    fn pieces_distinguish_literals_and_references() {
        let text = TemplateText::parse("a ${env:X:-y}${file:z}${secret:s}", Path::new("/base")).unwrap();
        let env = TemplatePiece::Env { name: "X", default: Some("y") };
        let file = TemplatePiece::File(Path::new("/base/z"));
        assert_eq!(
            text.pieces().collect::<Vec<_>>(),
            [TemplatePiece::Literal("a "), env, file, TemplatePiece::Secret("s")]
        );
        assert_eq!(text.secrets().collect::<Vec<_>>(), ["s"]);
    }

    #[test]
    fn bad_reference_has_offset_and_kind() {
        let bad = |source| TemplateText::parse(source, Path::new("/")).unwrap_err();
        assert_eq!(bad("ab${env:X"), BadReference { offset: 2, kind: BadReferenceKind::Unclosed });
        assert_eq!(bad("${secret:x:-y}").kind, BadReferenceKind::Secret("x:-y".into()));
        assert_eq!(bad("${X}").kind, BadReferenceKind::UnknownKind("X".into()));
        assert_eq!(bad("${env:}").kind, BadReferenceKind::Empty);
    }

    #[test]
    fn files_are_read_relative_to_the_declaring_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("token"), "abc\n").unwrap();
        assert_eq!(
            TemplateText::parse("<${file:token}>", dir.path())
                .unwrap()
                .expand(|_| Err(SecretError::NotFound))
                .unwrap(),
            "<abc>"
        );
    }
}
