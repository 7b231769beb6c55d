//! Reads `[issuers.NAME]`: authorization servers whose tokens identify callers.

use std::path::PathBuf;

use http::Uri;

use super::node::TableEntry;
use super::reader::TableReader;
use super::root::ConfigSections;
use super::server::resolve_path;
use super::{Origin, groups};
use crate::spec::ServerId;
use crate::spec::url::parse_url;

/// The part before the `:` in the names of agents, which no token gets.
const AGENT_ISSUER: &str = "agent";
/// Default of `caller-claim`.
const CALLER_CLAIM: &str = "sub";
/// Default of `groups-claim`.
const GROUPS_CLAIM: &str = "groups";

/// An authorization server whose tokens identify callers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct IssuerSpec {
    /// Name of the issuer, the first part of the names of its callers.
    pub name: String,
    /// Value of `iss` in its tokens.
    pub issuer: String,
    /// Value of `aud` in its tokens; if absent, the URL of this gateway.
    pub audience: Option<String>,
    /// Where its public keys are found.
    pub keys: KeySource,
    /// Signature algorithms that are accepted.
    pub algorithms: Vec<SignatureAlgorithm>,
    /// Claim with the name of the caller.
    pub caller_claim: String,
    /// Claim with the groups of the caller.
    pub groups_claim: String,
    /// Scopes that clients are told to ask for besides that of a profile. Tokens need not have them.
    pub scopes: Vec<String>,
    /// Groups of which a caller must be in one; if empty, every caller is accepted.
    pub groups: Vec<String>,
    /// Place where it is declared.
    pub origin: Origin,
}

/// The source of the public keys of an issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeySource {
    /// The URL that the metadata of the issuer names.
    Metadata,
    /// A URL.
    Url(String),
    /// A file.
    File(PathBuf),
}

/// An algorithm for signatures with a public and a private key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names are those of RFC 7518 and RFC 8037")]
pub enum SignatureAlgorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    EdDsa,
}

impl SignatureAlgorithm {
    /// Every algorithm.
    pub const ALL: [Self; 9] = [
        Self::Rs256,
        Self::Rs384,
        Self::Rs512,
        Self::Ps256,
        Self::Ps384,
        Self::Ps512,
        Self::Es256,
        Self::Es384,
        Self::EdDsa,
    ];

    /// Returns the name in the header of a token.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Ps256 => "PS256",
            Self::Ps384 => "PS384",
            Self::Ps512 => "PS512",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::EdDsa => "EdDSA",
        }
    }

    /// Returns the algorithm of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.as_str() == name)
    }
}

/// Reads every issuer.
pub(super) fn read(reader: &mut TableReader<'_>, sections: &mut ConfigSections) {
    let Some(mut issuers) = reader.table("issuers") else { return };
    for entry in issuers.entries() {
        if let Err(error) = entry.key.parse::<ServerId>() {
            let message = format!("invalid issuer name `{}`: {error}", entry.key);
            issuers.error(entry.offset, message, "choose another, such as `corp`");
        }
        if entry.key == AGENT_ISSUER {
            let message = format!("the issuer name `{AGENT_ISSUER}` is reserved for the agents of this user");
            issuers.error(entry.offset, message, "choose another, such as `corp`");
        }
        let Some(table) = issuers.entry_table(entry) else { continue };
        let Some(spec) = read_issuer(table, entry, sections) else { continue };
        if let Some(other) = sections.issuers.iter().find(|other| other.issuer == spec.issuer) {
            let message =
                format!("`issuers.{}` and `issuers.{}` have the same `issuer`", other.name, spec.name);
            issuers.error(entry.offset, message, "remove one of the two");
        }
        sections.issuers.push(spec);
    }
}

fn read_issuer(
    mut reader: TableReader<'_>,
    entry: &TableEntry,
    sections: &ConfigSections,
) -> Option<IssuerSpec> {
    let issuer = reader.string("issuer");
    if issuer.is_none() && !reader.has("issuer") {
        let hint = "write `issuer = \"https://login.example\"`, exactly as in `iss` of its tokens";
        reader.error_at_table(format!("`issuers.{}` has no `issuer`", entry.key), hint);
    }
    if let Some(issuer) = issuer {
        check_url(&mut reader, "issuer", issuer);
    }
    let audience = read_text(&mut reader, "audience");
    let keys = match reader.string("jwks") {
        None => Some(KeySource::Metadata),
        Some(url) if url.starts_with("https://") || url.starts_with("http://") => {
            check_url(&mut reader, "jwks", url);
            Some(KeySource::Url(url.to_owned()))
        }
        Some(file) => resolve_path(&mut reader, "jwks", file).map(KeySource::File),
    };
    let spec = IssuerSpec {
        name: entry.key.clone(),
        issuer: issuer.unwrap_or_default().to_owned(),
        audience,
        keys: keys.unwrap_or(KeySource::Metadata),
        algorithms: read_algorithms(&mut reader),
        caller_claim: read_text(&mut reader, "caller-claim").unwrap_or_else(|| CALLER_CLAIM.to_owned()),
        groups_claim: read_text(&mut reader, "groups-claim").unwrap_or_else(|| GROUPS_CLAIM.to_owned()),
        scopes: read_scopes(&mut reader),
        groups: groups::read_names(&mut reader, sections),
        origin: reader.source().origin(entry.offset),
    };
    reader.finish();
    issuer.map(|_| spec)
}

/// Reads a string that must not be empty.
fn read_text(reader: &mut TableReader<'_>, key: &'static str) -> Option<String> {
    let text = reader.string(key)?;
    if text.is_empty() {
        reader.error_at_value(
            key,
            format!("{} is empty", reader.key_path(key)),
            "remove it, or give it a value",
        );
    }
    Some(text.to_owned())
}

fn read_scopes(reader: &mut TableReader<'_>) -> Vec<String> {
    let mut scopes = Vec::new();
    for (node, scope) in reader.strings("scopes").unwrap_or_default() {
        // The characters of RFC 6749.
        let is_valid = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
        if scope.is_empty() || !scope.bytes().all(is_valid) {
            reader.error(node.span.start, format!("`{scope}` is not a scope"), "write one scope per text");
        }
        scopes.push(scope.to_owned());
    }
    scopes
}

/// Checks a URL of an issuer: only https shows who answers.
fn check_url(reader: &mut TableReader<'_>, key: &'static str, url: &str) {
    let path = reader.key_path(key);
    match parse_url(url) {
        Err(reason) => reader.error_at_value(key, format!("{path}: {reason}"), "write `\"https://…\"`"),
        Ok(url) if url.scheme_str() == Some("https") || is_loopback(&url) => {}
        Ok(_) => {
            let message = format!("{path} must use https: anyone on the network could forge tokens");
            reader.error_at_value(key, message, "write `\"https://…\"`; `http` is allowed on loopback only");
        }
    }
}

fn is_loopback(url: &Uri) -> bool {
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    host.eq_ignore_ascii_case("localhost")
        || host.parse().is_ok_and(|address: std::net::IpAddr| address.to_canonical().is_loopback())
}

fn read_algorithms(reader: &mut TableReader<'_>) -> Vec<SignatureAlgorithm> {
    let Some(names) = reader.strings("algorithms") else { return SignatureAlgorithm::ALL.to_vec() };
    let hint = format!("use {}", SignatureAlgorithm::ALL.map(SignatureAlgorithm::as_str).join(", "));
    if names.is_empty() {
        reader.error_at_value(
            "algorithms",
            "`algorithms` is empty: no token would be accepted",
            hint.as_str(),
        );
    }
    let mut algorithms = Vec::new();
    for (node, name) in names {
        let message = match SignatureAlgorithm::from_name(name) {
            Some(algorithm) => {
                algorithms.push(algorithm);
                continue;
            }
            None if name == "none" => "tokens without a signature are never accepted".to_owned(),
            None if name.starts_with("HS") => format!("`{name}` needs a shared secret and is not supported"),
            None => format!("unknown signature algorithm `{name}`"),
        };
        reader.error(node.span.start, message, hint.as_str());
    }
    algorithms
}
