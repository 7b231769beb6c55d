//! Reads `[callers.NAME]`: the callers, how they are recognized, access rules and limits.

use std::fmt;
use std::num::NonZeroU32;

use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::node::{ConfigValue, TableEntry};
use super::reader::TableReader;
use super::root::ConfigSections;
use super::{
    CertificatePattern, Origin, Position, Problem, ProblemScope, certificate, expose, groups, quota, rules,
};
use crate::model::caller::AGENT_PREFIX;
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
    pub token: Option<CallerToken>,
    /// Pattern that its client certificate matches. With a token, both are needed.
    pub certificate: Option<CertificatePattern>,
    /// User of this machine that is the caller without a token.
    pub uid: Option<u32>,
    /// True if it may use the admin API.
    pub admin: bool,
    /// True if it may read the metrics.
    pub metrics: bool,
    /// Profile that it is restricted to.
    pub profile: Option<String>,
    /// Groups that it is in.
    pub groups: Vec<String>,
    /// Place where it is declared.
    pub origin: Origin,
}

/// A caller that tokens of an issuer identify, with rights of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct IssuedCallerSpec {
    /// Name of the caller: that of the issuer, `:`, and the claim of its tokens.
    pub name: String,
    /// True if it may use the admin API.
    pub admin: bool,
    /// True if it may read the metrics.
    pub metrics: bool,
    /// Profile that it is restricted to.
    pub profile: Option<String>,
    /// Groups that it is in besides those of its tokens.
    pub groups: Vec<String>,
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

/// Returns the digest of every caller's token, if it has one, in order. References are resolved, and `secret` looks up secrets by name.
///
/// # Errors
///
/// Returns a problem of the whole config if a reference has no value, a token is invalid, or two callers share one.
pub fn resolve_token_digests(
    callers: &[CallerSpec],
    secret: impl Fn(&str) -> Result<Secret, SecretError>,
) -> Result<Vec<Option<Sha256Digest>>, Box<Problem>> {
    let mut digests: Vec<Option<Sha256Digest>> = Vec::with_capacity(callers.len());
    for caller in callers {
        let digest = match &caller.token {
            None => {
                digests.push(None);
                continue;
            }
            Some(CallerToken::Sha256(digest)) => *digest,
            Some(CallerToken::Text(text)) => {
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
        if let Some(index) = digests.iter().position(|other| *other == Some(digest)) {
            let other = &callers[index].name;
            let message = format!("`callers.{other}` and `callers.{}` have the same token", caller.name);
            return Err(caller.problem(message, "give each caller its own token"));
        }
        digests.push(Some(digest));
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
        None | Some(CallerToken::Sha256(_)) => None,
        Some(CallerToken::Text(text)) => Some(Zeroizing::new(text.expand(&secret).ok()?).len()),
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
        let kind = check_name(&mut callers, entry, sections);
        if sections.policy.callers.contains_key(&entry.key) {
            let message = format!("`callers.{}` is defined twice", entry.key);
            callers.error(entry.offset, message, "remove one of the two");
        }
        let Some(mut table) = callers.entry_table(entry) else { continue };
        let rules = rules::read(&mut table, rules::parse_server_rule);
        if let CallerKind::Agent(_) = kind {
            refuse_rights(&mut table);
        }
        let admin = table.boolean("admin").unwrap_or(false);
        let metrics = table.boolean("metrics").unwrap_or(false);
        let proof = match kind {
            CallerKind::WithProof => read_proof(&mut table, &entry.key, sections),
            CallerKind::Issued | CallerKind::Agent(_) => None,
        };
        let limits = quota::read(&mut table);
        let in_flight = table.count("in-flight", 1).and_then(NonZeroU32::new);
        let profile = read_profile(&mut table, sections);
        let groups = groups::read_names(&mut table, sections);
        let mode = expose::read_mode(&mut table, "expose");
        let origin = table.source().origin(entry.offset);
        table.finish();
        sections.policy.callers.insert(entry.key.clone(), rules);
        sections.expose.callers.extend(mode.map(|mode| (entry.key.clone(), mode)));
        sections.usage_limits.callers.insert(entry.key.clone(), limits);
        sections.usage_limits.callers_in_flight.extend(in_flight.map(|calls| (entry.key.clone(), calls)));
        let name = entry.key.clone();
        if let Some(DeclaredProof { token, certificate, uid }) = proof {
            sections.callers.push(CallerSpec {
                name,
                token,
                certificate,
                uid,
                admin,
                metrics,
                profile,
                groups,
                origin,
            });
        } else if let CallerKind::Agent(agent) = kind {
            sections.policy.agents.extend(profile.map(|profile| (agent.to_owned(), profile)));
        } else if let CallerKind::Issued = kind {
            sections.issued_callers.push(IssuedCallerSpec { name, admin, metrics, profile, groups });
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

/// What identifies a caller.
#[derive(Clone, Copy)]
enum CallerKind<'a> {
    /// Its token, certificate or user.
    WithProof,
    /// Tokens of an issuer.
    Issued,
    /// The name that an agent of the local user gives itself.
    Agent(&'a str),
}

/// Checks the name of a caller. Returns its kind.
fn check_name<'a>(
    reader: &mut TableReader<'_>,
    entry: &'a TableEntry,
    sections: &ConfigSections,
) -> CallerKind<'a> {
    let name = &entry.key;
    if let Some(agent) = name.strip_prefix(AGENT_PREFIX) {
        if let Err(error) = agent.parse::<ServerId>() {
            let message = format!("invalid name of an agent `{agent}`: {error}");
            reader.error(entry.offset, message, "write the name of an agent, such as `agent:codex`");
        }
        return CallerKind::Agent(agent);
    }
    if let Some((issuer, subject)) = name.split_once(':') {
        if subject.is_empty() || !sections.issuers.iter().any(|declared| declared.name == issuer) {
            let message = format!("invalid caller name `{name}`: no issuer is called `{issuer}`");
            reader.error(entry.offset, message, "write `ISSUER:SUBJECT` with a name from `[issuers]`");
        }
        return CallerKind::Issued;
    }
    if name == LOCAL {
        let message = format!("the caller name `{name}` is reserved for clients of the gateway's own socket");
        reader.error(entry.offset, message, "choose another name");
    } else if let Err(error) = name.parse::<ServerId>() {
        let message = format!("invalid caller name `{name}`: {error}");
        reader.error(entry.offset, message, "choose another, such as `ci`");
    }
    CallerKind::WithProof
}

/// Reports keys that would give an agent more than the rights of the local caller, or would have to prove who it is.
fn refuse_rights(reader: &mut TableReader<'_>) {
    for key in ["token", "token-sha256", "mtls", "uid", "admin", "metrics", "groups"] {
        if reader.take(key).is_some() {
            let message =
                format!("{} has no meaning: an agent has the rights of `local`", reader.key_path(key));
            reader.error_at_value(key, message, "remove it; rules, limits and `profile` narrow them");
        }
    }
}

/// How a caller is recognized.
struct DeclaredProof {
    token: Option<CallerToken>,
    certificate: Option<CertificatePattern>,
    uid: Option<u32>,
}

/// Reads how a caller is recognized, and reports what another caller has too.
fn read_proof(reader: &mut TableReader<'_>, name: &str, sections: &ConfigSections) -> Option<DeclaredProof> {
    let has_token = reader.has("token") || reader.has("token-sha256");
    let token = read_token(reader, name);
    let certificate = certificate::read(reader);
    let uid = read_uid(reader);
    if !has_token && !reader.has("mtls") && !reader.has("uid") {
        let hint = "write `token = \"${env:NAME}\"`, `token-sha256 = \"…\"`, `mtls = { san = \"…\" }` or `uid = 1000`";
        reader.error_at_table(format!("`callers.{name}` has no `token`, `mtls` or `uid`"), hint);
    }
    if certificate.is_some() && sections.listen.tls.as_ref().is_none_or(|tls| tls.client_ca.is_none()) {
        let message = "`mtls` needs `client-ca` in `listen.tls`";
        let hint =
            "write `tls = { cert = \"…\", key = \"…\", client-ca = \"clients.pem\" }` below `[listen]`";
        reader.error_at_value("mtls", message, hint);
    }
    if uid.is_some() && sections.listen.any_user {
        let message = "`uid` cannot be combined with `listen.any-user`";
        reader.error_at_value("uid", message, "remove `any-user`");
    }
    let same_uid = sections.callers.iter().find(|other| uid.is_some() && other.uid == uid);
    if let Some(other) = same_uid {
        let message = format!("`callers.{}` and `callers.{name}` have the same `uid`", other.name);
        reader.error_at_value("uid", message, "give each caller its own user");
    }
    let overlaps = |other: &CertificatePattern| certificate.as_ref().is_some_and(|own| own.overlaps(other));
    let same_certificate =
        sections.callers.iter().find(|other| other.certificate.as_ref().is_some_and(overlaps));
    if let Some(other) = same_certificate {
        let message =
            format!("one certificate can match `mtls` of `callers.{}` and of `callers.{name}`", other.name);
        reader.error_at_value("mtls", message, "write patterns that no certificate matches both of");
    }
    let is_valid = token.is_some() == has_token && certificate.is_some() == reader.has("mtls");
    let is_recognized = has_token || certificate.is_some() || uid.is_some();
    (is_valid && is_recognized).then_some(DeclaredProof { token, certificate, uid })
}

fn read_uid(reader: &mut TableReader<'_>) -> Option<u32> {
    let node = reader.take("uid")?;
    let uid = match node.value {
        ConfigValue::Number(number) => number.and_then(|number| u32::try_from(number).ok()),
        _ => None,
    };
    if uid.is_none() {
        let message = "`uid` must be the number of a user";
        reader.error_at_value(
            "uid",
            message,
            "write the number that `id -u NAME` prints, such as `uid = 1000`",
        );
    }
    uid
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
        (None, None) => None,
    }
}

fn parse_digest(written: &str) -> Option<Sha256Digest> {
    encoding::parse_hex(written)?.try_into().ok()
}
