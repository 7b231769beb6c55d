//! `[callers.NAME]`: who may come in, by which token, and what each may use, and how much.

use std::fmt;

use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::node::Entry;
use super::reader::Reader;
use super::root::Sections;
use super::{Concern, Origin, Position, Problem, quota, rules};
use crate::spec::ServerId;
use crate::spelling;
use crate::text::{NoSecret, Secret, Text, Unresolved};

/// A token that nobody can read any more.
pub type Digest = [u8; 32];

/// Somebody who may come in.
#[derive(Debug, Clone, PartialEq)]
pub struct CallerSpec {
    /// Its name here.
    pub name: String,
    /// What it shows.
    pub token: Token,
    /// Whether it may use the admin API.
    pub admin: bool,
    /// The profile that it looks through, if it has to.
    pub profile: Option<String>,
    /// Where it is declared.
    pub origin: Origin,
}

/// What a caller shows to be let in.
#[derive(Clone, PartialEq)]
pub enum Token {
    /// The token itself, or a reference to it.
    Text(Text),
    /// Its SHA-256.
    Sha256(Digest),
}

/// Whatever it is, it is nothing to show.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// The digest of every caller's token, in order. References are resolved here, secrets by asking for them by name; one without a value, and a token that two
/// callers share, is a problem of the whole file.
pub fn digests(
    callers: &[CallerSpec],
    secret: impl Fn(&str) -> Result<Secret, NoSecret>,
) -> Result<Vec<Digest>, Box<Problem>> {
    let mut digests: Vec<Digest> = Vec::with_capacity(callers.len());
    for caller in callers {
        let problem = |message: String, hint: &str| {
            let Origin { file, line } = caller.origin.clone();
            let (at, concerns) = (Some(Position { line, column: 1 }), Concern::Whole);
            Box::new(Problem { file, at, concerns, message, hint: Some(hint.to_owned()) })
        };
        let digest = match &caller.token {
            Token::Sha256(digest) => *digest,
            Token::Text(text) => {
                let token = text.expand(&secret).map(Zeroizing::new).map_err(|why| {
                    let hint = match &why {
                        Unresolved::Secret(name, none) => none.hint(name),
                        Unresolved::Env(_) | Unresolved::File(..) => "give it a value".to_owned(),
                    };
                    problem(format!("the token of `callers.{}`: {why}", caller.name), &hint)
                })?;
                if !is_token(&token) {
                    let message =
                        format!("the token of `callers.{}` cannot be sent in a header", caller.name);
                    return Err(problem(message, TOKENS));
                }
                Sha256::digest(token.as_bytes()).into()
            }
        };
        if let Some(at) = digests.iter().position(|known| *known == digest) {
            let message =
                format!("`callers.{}` and `callers.{}` have the same token", callers[at].name, caller.name);
            return Err(problem(message, "give each caller a token of its own"));
        }
        digests.push(digest);
    }
    Ok(digests)
}

/// Who needs no token.
const LOCAL: &str = "local";

const TOKENS: &str =
    "a token is letters, digits and signs without blanks, such as `openssl rand -hex 32` makes";

fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Reads every caller and its rules.
pub(super) fn read(reader: &mut Reader<'_>, sections: &mut Sections) {
    let Some(mut callers) = reader.table("callers") else { return };
    for entry in callers.entries() {
        is_name(&mut callers, entry);
        if sections.policy.callers.contains_key(&entry.key) {
            callers.wrong(entry.at, format!("`callers.{}` is there twice", entry.key), "keep one of the two");
        }
        let Some(mut table) = callers.table_at(entry) else { continue };
        let rules = rules::read(&mut table, rules::over_servers);
        let admin = table.boolean("admin").unwrap_or(false);
        let token = token(&mut table, &entry.key);
        let limits = quota::read(&mut table);
        let profile = profile(&mut table, sections);
        let origin = table.page().origin(entry.at);
        table.finish();
        sections.policy.callers.insert(entry.key.clone(), rules);
        sections.quota.callers.insert(entry.key.clone(), limits);
        if let Some(token) = token {
            sections.callers.push(CallerSpec { name: entry.key.clone(), token, admin, profile, origin });
        }
    }
}

/// The profile of a caller, which must be there.
fn profile(reader: &mut Reader<'_>, sections: &Sections) -> Option<String> {
    let name = reader.string("profile")?;
    let known = || sections.policy.profiles.keys().map(String::as_str);
    if !known().any(|known| known == name) {
        let hint = match spelling::nearest(name, known()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("declare `[profiles.{name}]`"),
        };
        reader.wrong_value("profile", format!("there is no profile `{name}`"), hint);
    }
    Some(name.to_owned())
}

fn is_name(reader: &mut Reader<'_>, entry: &Entry) {
    let name = &entry.key;
    if name == LOCAL {
        let message = format!("`{name}` is whoever comes by the gateway's own socket, and needs no token");
        reader.wrong(entry.at, message, "choose another name");
    } else if let Err(bad) = name.parse::<ServerId>() {
        reader.wrong(entry.at, format!("`{name}` cannot be a caller: {bad}"), "choose another, such as `ci`");
    }
}

fn token(reader: &mut Reader<'_>, name: &str) -> Option<Token> {
    let (text, digest) = (reader.string("token"), reader.string("token-sha256"));
    match (text, digest) {
        (Some(_), Some(_)) => {
            let message = format!("`callers.{name}` has both `token` and `token-sha256`");
            reader.wrong_value("token", message, "keep one of the two");
            None
        }
        (Some(written), None) => {
            let node = reader.value("token")?;
            let text = reader.text(node, written)?;
            if !is_token(written) && !written.contains("${") {
                reader.wrong_value("token", "`token` cannot be sent in a header", TOKENS);
                return None;
            }
            Some(Token::Text(text))
        }
        (None, Some(written)) => {
            let read = from_hex(written);
            if read.is_none() {
                let hint = "write the 64 digits that `printf %s TOKEN | sha256sum` prints";
                reader.wrong_value("token-sha256", "`token-sha256` is no SHA-256 in hexadecimal", hint);
            }
            read.map(Token::Sha256)
        }
        (None, None) => {
            if !reader.has("token") && !reader.has("token-sha256") {
                let hint = "write `token = \"${env:NAME}\"` or `token-sha256 = \"…\"`";
                reader.lacking(format!("`callers.{name}` has no `token`"), hint);
            }
            None
        }
    }
}

fn from_hex(written: &str) -> Option<Digest> {
    let digits = written.as_bytes();
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut digest = Digest::default();
    for (byte, two) in digest.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok()?;
    }
    Some(digest)
}
