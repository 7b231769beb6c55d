//! `Text`: a configured string that may refer to the environment, to a file or to a secret.
//!
//! References are resolved when a connection starts and nowhere else, so specs can be compared, digested and
//! printed without ever holding a secret's value.

mod secret;

use std::fmt;
use std::path::{Path, PathBuf};

pub use secret::{NoSecret, Secret, is_secret_name};

/// The largest file a reference may name.
const LARGEST_FILE: u64 = 1 << 20;

/// A string with `${env:X}`, `${env:X:-default}`, `${file:PATH}` and `${secret:NAME}` in it.
#[derive(Clone, PartialEq, Eq)]
pub struct Text {
    written: String,
    parts: Vec<Part>,
}

#[derive(Clone, PartialEq, Eq)]
enum Part {
    Literal(String),
    Env { name: String, default: Option<String> },
    File(PathBuf),
    Secret(String),
}

/// A part of a `Text`, for those who write it in other words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Exactly these characters.
    Literal(&'a str),
    /// The value of a variable.
    Env {
        /// Its name.
        name: &'a str,
        /// What stands for it when it is not set.
        default: Option<&'a str>,
    },
    /// What a file holds.
    File(&'a Path),
    /// The value of a secret.
    Secret(&'a str),
}

/// Why a string with references cannot be understood; `at` is the byte where the reference starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadReference {
    /// Offset of `${` in the string.
    pub at: usize,
    /// What is wrong with it.
    pub why: BadReferenceKind,
}

/// What is wrong with a reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BadReferenceKind {
    /// `${` without `}`.
    Unclosed,
    /// `${secret:NAME}` with what is no name.
    Secret(String),
    /// Neither `env:`, `file:` nor `secret:`.
    UnknownKind(String),
    /// Nothing after the colon.
    Empty,
}

impl fmt::Display for BadReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            BadReferenceKind::Unclosed => f.write_str("`${` is never closed with `}`"),
            BadReferenceKind::Secret(name) => write!(f, "no secret can be called `{name}`"),
            BadReferenceKind::UnknownKind(kind) => write!(f, "`${{{kind}}}` is not a reference"),
            BadReferenceKind::Empty => f.write_str("the reference names nothing"),
        }
    }
}

/// A reference that had no value when the connection started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unresolved {
    /// The variable is not set and the reference has no default.
    Env(String),
    /// The file could not be read.
    File(PathBuf, String),
    /// The secret cannot be had.
    Secret(String, NoSecret),
}

impl fmt::Display for Unresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => {
                write!(f, "the variable `{name}` is not set (`${{env:{name}:-…}}` gives a default)")
            }
            Self::File(path, why) => write!(f, "cannot read `{}`: {why}", path.display()),
            Self::Secret(name, none) => f.write_str(&none.of(name)),
        }
    }
}

impl Text {
    /// Exactly these characters; `${` has no meaning in them.
    pub fn literal(text: impl Into<String>) -> Self {
        let written = text.into();
        Self { parts: vec![Part::Literal(written.clone())], written }
    }

    /// Reads references; relative `${file:}` paths are below `base`.
    pub fn parse(written: &str, base: &Path) -> Result<Self, BadReference> {
        let mut parts = Vec::new();
        let mut rest = written;
        while let Some(start) = rest.find("${") {
            let at = written.len() - rest.len() + start;
            let bad = |why| BadReference { at, why };
            if start > 0 {
                parts.push(Part::Literal(rest[..start].to_owned()));
            }
            let end = rest[start..].find('}').ok_or_else(|| bad(BadReferenceKind::Unclosed))? + start;
            parts.push(Part::parse(&rest[start + 2..end], base).map_err(bad)?);
            rest = &rest[end + 1..];
        }
        if !rest.is_empty() || parts.is_empty() {
            parts.push(Part::Literal(rest.to_owned()));
        }
        Ok(Self { written: written.to_owned(), parts })
    }

    /// The string as it was written, references unresolved.
    pub fn written(&self) -> &str {
        &self.written
    }

    /// The string in parts, references unresolved.
    pub fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        self.parts.iter().map(|part| match part {
            Part::Literal(text) => Piece::Literal(text),
            Part::Env { name, default } => Piece::Env { name, default: default.as_deref() },
            Part::File(path) => Piece::File(path),
            Part::Secret(name) => Piece::Secret(name),
        })
    }

    /// The names of the secrets in it.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        self.pieces().filter_map(|piece| match piece {
            Piece::Secret(name) => Some(name),
            _ => None,
        })
    }

    /// The string with every reference replaced by its value now; secrets are asked for by name.
    pub fn expand(&self, secret: impl Fn(&str) -> Result<Secret, NoSecret>) -> Result<String, Unresolved> {
        self.expand_with(|name| std::env::var(name).ok(), secret)
    }

    fn expand_with(
        &self,
        env: impl Fn(&str) -> Option<String>,
        secret: impl Fn(&str) -> Result<Secret, NoSecret>,
    ) -> Result<String, Unresolved> {
        let mut out = String::new();
        for part in &self.parts {
            match part {
                Part::Literal(text) => out.push_str(text),
                Part::Env { name, default } => {
                    let value = env(name).or_else(|| default.clone());
                    out.push_str(&value.ok_or_else(|| Unresolved::Env(name.clone()))?);
                }
                Part::File(path) => {
                    let text = read(path).map_err(|why| Unresolved::File(path.clone(), why))?;
                    out.push_str(text.trim_end_matches(['\r', '\n']));
                }
                Part::Secret(name) => {
                    let value = secret(name).map_err(|none| Unresolved::Secret(name.clone(), none))?;
                    out.push_str(value.expose());
                }
            }
        }
        Ok(out)
    }
}

/// Reads a small file; what is no file, or never ends, is not waited for.
fn read(path: &Path) -> Result<String, String> {
    let kind = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if !kind.is_file() || kind.len() > LARGEST_FILE {
        return Err("it is not a file of at most 1 MiB".to_owned());
    }
    std::fs::read_to_string(path).map_err(|error| error.to_string())
}

impl Part {
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
            "secret" if is_secret_name(name) => Ok(Self::Secret(name.to_owned())),
            "secret" => Err(BadReferenceKind::Secret(name.to_owned())),
            _ => Err(BadReferenceKind::UnknownKind(reference.to_owned())),
        }
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.written, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(written: &str) -> Result<String, Unresolved> {
        let env = |name: &str| (name == "SET").then(|| "value".to_owned());
        let secret = |name: &str| match name {
            "token" => Ok(Secret::new("s3cret")),
            _ => Err(NoSecret::NotFound),
        };
        Text::parse(written, Path::new("/base")).unwrap().expand_with(env, secret)
    }

    #[test]
    fn references_take_their_value_late() {
        assert_eq!(expand("a ${env:SET} b").unwrap(), "a value b");
        assert_eq!(expand("${env:UNSET:-x:-y}").unwrap(), "x:-y");
        assert_eq!(expand("plain").unwrap(), "plain");
        assert_eq!(expand("").unwrap(), "");
        assert_eq!(expand("${env:UNSET}"), Err(Unresolved::Env("UNSET".into())));
        assert_eq!(expand("Bearer ${secret:token}").unwrap(), "Bearer s3cret");
        assert_eq!(expand("${secret:other}"), Err(Unresolved::Secret("other".into(), NoSecret::NotFound)));
    }

    #[test]
    fn the_parts_of_a_string_can_be_told_apart() {
        let text = Text::parse("a ${env:X:-y}${file:z}${secret:s}", Path::new("/base")).unwrap();
        let env = Piece::Env { name: "X", default: Some("y") };
        let file = Piece::File(Path::new("/base/z"));
        assert_eq!(text.pieces().collect::<Vec<_>>(), [Piece::Literal("a "), env, file, Piece::Secret("s")]);
        assert_eq!(text.secrets().collect::<Vec<_>>(), ["s"]);
    }

    #[test]
    fn bad_references_say_where_and_why() {
        let bad = |written| Text::parse(written, Path::new("/")).unwrap_err();
        assert_eq!(bad("ab${env:X"), BadReference { at: 2, why: BadReferenceKind::Unclosed });
        assert_eq!(bad("${secret:x:-y}").why, BadReferenceKind::Secret("x:-y".into()));
        assert_eq!(bad("${X}").why, BadReferenceKind::UnknownKind("X".into()));
        assert_eq!(bad("${env:}").why, BadReferenceKind::Empty);
    }

    #[test]
    fn files_are_read_relative_to_the_declaring_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("token"), "abc\n").unwrap();
        assert_eq!(
            Text::parse("<${file:token}>", dir.path()).unwrap().expand(|_| Err(NoSecret::NotFound)).unwrap(),
            "<abc>"
        );
    }
}
