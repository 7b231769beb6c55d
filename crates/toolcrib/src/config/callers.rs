//! Reads `[callers.NAME]`: the callers, their tokens, access rules and limits.

use std::fmt;
use std::num::NonZeroU32;

use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::node::TableEntry;
use super::reader::TableReader;
use super::root::ConfigSections;
use super::{Origin, Position, Problem, ProblemScope, expose, quota, rules};
use crate::spec::ServerId;
use crate::spec::template::{Secret, SecretError, TemplateText, UnresolvedReference};
use crate::util::encoding;
use crate::util::format;

/// Name of the caller that needs no token: clients of the gateway's own socket.
const LOCAL: &str = "local";

const TOKEN_HINT: &str = "generate one with `openssl rand -hex 32`";

/// A SHA-256 digest.
pub type Sha256Digest = [u8; 32];

/// A caller.
#[derive(Debug, Clone, PartialEq)]
pub struct CallerSpec {
    /// Name of the caller.
    pub name: String,
    /// Token that identifies it.
    pub token: CallerToken,
    /// True if it may use the admin API.
    pub admin: bool,
    /// True if it may read the metrics.
    pub metrics: bool,
    /// Profile that it is restricted to.
    pub profile: Option<String>,
    /// Place where it is declared.
    pub origin: Origin,
}

/// The token of a caller.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub enum CallerToken {
    /// The token itself, or a reference to it.
    Text(TemplateText),
    /// Its SHA-256 digest.
    Sha256(Sha256Digest),
}

/// Shows nothing of the token.
impl fmt::Debug for CallerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallerToken")
    }
}

/// Returns the digest of every caller's token, in order. References are resolved, and `secret` looks up secrets by name.
///
/// # Errors
///
/// Returns a problem of the whole config if a reference has no value, a token is invalid, or two callers share one.
pub fn resolve_token_digests(
    callers: &[CallerSpec],
    secret: impl Fn(&str) -> Result<Secret, SecretError>,
) -> Result<Vec<Sha256Digest>, Box<Problem>> {
    let mut digests: Vec<Sha256Digest> = Vec::with_capacity(callers.len());
    for caller in callers {
        let digest = match &caller.token {
            CallerToken::Sha256(digest) => *digest,
            CallerToken::Text(text) => {
                let token = text.expand(&secret).map(Zeroizing::new).map_err(|error| {
                    let hint = match &error {
                        UnresolvedReference::Secret(name, error) => error.hint(name),
                        UnresolvedReference::Env(_) | UnresolvedReference::File(..) => {
                            "give it a value".to_owned()
                        }
                    };
                    caller.problem(format!("the token of `callers.{}`: {error}", caller.name), &hint)
                })?;
                if !is_token(&token) {
                    return Err(
                        caller.problem(invalid_token(&format!("callers.{}", caller.name)), TOKEN_HINT)
                    );
                }
                Sha256::digest(token.as_bytes()).into()
            }
        };
        if let Some(index) = digests.iter().position(|other| *other == digest) {
            let other = &callers[index].name;
            let message = format!("`callers.{other}` and `callers.{}` have the same token", caller.name);
            return Err(caller.problem(message, "give each caller its own token"));
        }
        digests.push(digest);
    }
    Ok(digests)
}

impl CallerSpec {
    fn problem(&self, message: String, hint: &str) -> Box<Problem> {
        Box::new(Problem {
            file: self.origin.file.clone(),
            position: Some(Position { line: self.origin.line, column: 1 }),
            scope: ProblemScope::WholeConfig,
            message,
            hint: Some(hint.to_owned()),
        })
    }
}

/// Length under which a token is easy to guess.
const MIN_TOKEN_LENGTH: usize = 16;

/// Returns a note for each caller whose token is so short that it may be guessed. Tokens that cannot be resolved, and digests, are
/// left out; `secret` looks up secrets by name.
pub fn find_short_tokens(
    callers: &[CallerSpec],
    secret: impl Fn(&str) -> Result<Secret, SecretError>,
) -> Vec<Problem> {
    let length = |caller: &CallerSpec| match &caller.token {
        CallerToken::Sha256(_) => None,
        CallerToken::Text(text) => Some(Zeroizing::new(text.expand(&secret).ok()?).len()),
    };
    let note = |caller: &CallerSpec| {
        length(caller).filter(|length| *length < MIN_TOKEN_LENGTH).map(|_| Problem {
            scope: ProblemScope::Note,
            ..*caller.problem(
                format!(
                    "the token of `callers.{}` has fewer than {MIN_TOKEN_LENGTH} characters",
                    caller.name
                ),
                TOKEN_HINT,
            )
        })
    };
    callers.iter().filter_map(note).collect()
}

fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn invalid_token(path: &str) -> String {
    format!("the token of `{path}` must be printable ASCII without spaces, and not empty")
}

/// Reads every caller with its access rules and limits.
pub(super) fn read(reader: &mut TableReader<'_>, sections: &mut ConfigSections) {
    let Some(mut callers) = reader.table("callers") else { return };
    for entry in callers.entries() {
        check_name(&mut callers, entry);
        if sections.policy.callers.contains_key(&entry.key) {
            let message = format!("`callers.{}` is defined twice", entry.key);
            callers.error(entry.offset, message, "remove one of the two");
        }
        let Some(mut table) = callers.entry_table(entry) else { continue };
        let rules = rules::read(&mut table, rules::parse_server_rule);
        let admin = table.boolean("admin").unwrap_or(false);
        let metrics = table.boolean("metrics").unwrap_or(false);
        let token = read_token(&mut table, &entry.key);
        let limits = quota::read(&mut table);
        let in_flight = table.count("in-flight", 1).and_then(NonZeroU32::new);
        let profile = read_profile(&mut table, sections);
        let mode = expose::read_mode(&mut table, "expose");
        let origin = table.source().origin(entry.offset);
        table.finish();
        sections.policy.callers.insert(entry.key.clone(), rules);
        sections.expose.callers.extend(mode.map(|mode| (entry.key.clone(), mode)));
        sections.usage_limits.callers.insert(entry.key.clone(), limits);
        sections.usage_limits.callers_in_flight.extend(in_flight.map(|calls| (entry.key.clone(), calls)));
        if let Some(token) = token {
            let name = entry.key.clone();
            sections.callers.push(CallerSpec { name, token, admin, metrics, profile, origin });
        }
    }
}

fn read_profile(reader: &mut TableReader<'_>, sections: &ConfigSections) -> Option<String> {
    let name = reader.string("profile")?;
    if !sections.policy.profiles.contains_key(name) {
        let profiles = sections.policy.profiles.keys().map(String::as_str);
        let hint = match format::closest_match(name, profiles) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("declare `[profiles.{name}]`"),
        };
        reader.error_at_value("profile", format!("unknown profile `{name}`"), hint);
    }
    Some(name.to_owned())
}

fn check_name(reader: &mut TableReader<'_>, entry: &TableEntry) {
    let name = &entry.key;
    if name == LOCAL {
        let message = format!("the caller name `{name}` is reserved for clients of the gateway's own socket");
        reader.error(entry.offset, message, "choose another name");
    } else if let Err(error) = name.parse::<ServerId>() {
        let message = format!("invalid caller name `{name}`: {error}");
        reader.error(entry.offset, message, "choose another, such as `ci`");
    }
}

fn read_token(reader: &mut TableReader<'_>, name: &str) -> Option<CallerToken> {
    match (reader.string("token"), reader.string("token-sha256")) {
        (Some(_), Some(_)) => {
            let message = format!("`callers.{name}` has both `token` and `token-sha256`");
            reader.error_at_value("token", message, "remove one of the two");
            None
        }
        (Some(written), None) => {
            let node = reader.peek("token")?;
            let text = reader.template(node, written)?;
            if !is_token(written) && !written.contains("${") {
                reader.error_at_value("token", invalid_token(&format!("callers.{name}")), TOKEN_HINT);
                return None;
            }
            Some(CallerToken::Text(text))
        }
        (None, Some(written)) => {
            let digest = parse_digest(written);
            if digest.is_none() {
                let message = "`token-sha256` is not a SHA-256 digest in hexadecimal";
                let hint = "write the 64 digits that `printf %s TOKEN | sha256sum` prints";
                reader.error_at_value("token-sha256", message, hint);
            }
            digest.map(CallerToken::Sha256)
        }
        (None, None) => {
            if !reader.has("token") && !reader.has("token-sha256") {
                let hint = "write `token = \"${env:NAME}\"` or `token-sha256 = \"…\"`";
                reader.error_at_table(format!("`callers.{name}` has no `token`"), hint);
            }
            None
        }
    }
}

fn parse_digest(written: &str) -> Option<Sha256Digest> {
    encoding::parse_hex(written)?.try_into().ok()
}
