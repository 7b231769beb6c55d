//! Tokens: parsing, and the checks of their claims and signatures.

use std::fmt;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use serde_json::Value;

use super::key_set::KeySet;
use crate::config::{IssuerSpec, SignatureAlgorithm};
use crate::protocol::json::object::Object;

/// Maximum size of a token in bytes.
const MAX_BYTES: usize = 16 << 10;
/// Time by which the clock of an issuer may be ahead. A token that has expired gets no such time, so that clocks that differ
/// only make tokens expire sooner.
const CLOCK_SKEW: Duration = Duration::from_secs(60);
/// Maximum length of a caller's name in bytes.
const MAX_SUBJECT_BYTES: usize = 256;
/// Groups, scopes and audiences of a token that are read.
const MAX_VALUES: usize = 512;

/// The reason why a token is not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenError {
    /// It is not a signed token of this format.
    Malformed(&'static str),
    /// Its issuer is not declared.
    UnknownIssuer,
    /// It is signed with an algorithm that the config does not accept.
    Algorithm,
    /// The issuer has no such key.
    UnknownKey,
    /// The keys of the issuer are not known; the reason says why.
    KeysUnavailable(String),
    /// The signature is not valid.
    Signature,
    /// It has expired.
    Expired,
    /// It is not valid yet.
    NotYetValid,
    /// It was issued for another server.
    Audience,
    /// A claim is missing, or has another type.
    InvalidClaim(String),
    /// It can be used only by the holder of a key, which is not checked here.
    BoundToKey,
    /// The caller is in none of the groups that are accepted.
    NotInGroups,
    /// More callers are logged in than are supported.
    TooManyLogins,
    /// The caller is logged in at more clients than are supported.
    TooManyClients,
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(reason) => write!(f, "the token is malformed: {reason}"),
            Self::UnknownIssuer => f.write_str("the issuer of the token is not declared in `[issuers]`"),
            Self::Algorithm => f.write_str("the signature algorithm of the token is not accepted"),
            Self::UnknownKey => f.write_str("the issuer has no key that the token could be signed with"),
            Self::KeysUnavailable(reason) => {
                write!(f, "the keys of the issuer are not available: {reason}")
            }
            Self::Signature => f.write_str("the signature of the token is not valid"),
            Self::Expired => f.write_str("the token has expired"),
            Self::NotYetValid => f.write_str("the token is not valid yet"),
            Self::Audience => f.write_str("the token was issued for another resource"),
            Self::InvalidClaim(name) => write!(f, "the claim `{name}` of the token is missing or invalid"),
            Self::BoundToKey => f.write_str("the token is bound to a key (`cnf`), which is not supported"),
            Self::NotInGroups => f.write_str("the caller is in none of the accepted groups"),
            Self::TooManyLogins => f.write_str("too many callers are logged in"),
            Self::TooManyClients => {
                f.write_str("the caller is logged in at too many clients at the same time")
            }
        }
    }
}

impl std::error::Error for TokenError {}

/// What a valid token says about its caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedToken {
    /// Name of the issuer in the config.
    pub issuer: String,
    /// The caller, by its name at the issuer.
    pub subject: String,
    /// The client program that the token was issued to, if it is known.
    pub client: Option<String>,
    /// The groups of the caller at the issuer.
    pub groups: Vec<String>,
    /// The scopes of the token.
    pub scopes: Vec<String>,
    /// The servers that the token is for, to be compared with this one. Absent if the config names the audience, which was
    /// checked.
    pub audiences: Option<Vec<String>>,
    /// Time at which it expires.
    pub expires: SystemTime,
}

/// A token that was parsed. Nothing in it can be trusted yet.
pub(super) struct UnverifiedToken<'a> {
    /// The part that the signature covers.
    signed: &'a str,
    signature: Vec<u8>,
    algorithm: SignatureAlgorithm,
    key_id: Option<String>,
    claims: Object,
}

impl<'a> UnverifiedToken<'a> {
    pub(super) fn parse(token: &'a str) -> Result<Self, TokenError> {
        if token.len() > MAX_BYTES {
            return Err(TokenError::Malformed("it is larger than 16 KiB"));
        }
        let malformed = || TokenError::Malformed("it does not have three parts in base64url");
        let (signed, signature) = token.rsplit_once('.').ok_or_else(malformed)?;
        let (header, payload) = signed.split_once('.').ok_or_else(malformed)?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| malformed());
        let signature = decode(signature)?;
        let header = parse_object(decode(header)?)?;
        let claims = parse_object(decode(payload)?)?;
        check_type(&header)?;
        // Keys that a token brings itself (`jwk`, `jku`, `x5c`, `x5u`) are never used.
        let algorithm = header.get_string("alg").and_then(|name| SignatureAlgorithm::from_name(&name));
        Ok(Self {
            signed,
            signature,
            algorithm: algorithm.ok_or(TokenError::Algorithm)?,
            key_id: read_key_id(&header)?,
            claims,
        })
    }

    /// Returns whether a token says that it is from an issuer.
    pub(super) fn is_from(&self, issuer: &IssuerSpec) -> bool {
        self.claims.get_string("iss").is_some_and(|name| *name == *issuer.issuer)
    }

    /// Checks the claims and the algorithm against the declaration of the issuer.
    pub(super) fn check_claims(&self, issuer: &IssuerSpec, now: SystemTime) -> Result<(), TokenError> {
        if !issuer.algorithms.contains(&self.algorithm) {
            return Err(TokenError::Algorithm);
        }
        if now >= self.expires()? {
            return Err(TokenError::Expired);
        }
        for name in ["nbf", "iat"] {
            if self.time(name)?.is_some_and(|time| time > now + CLOCK_SKEW) {
                return Err(TokenError::NotYetValid);
            }
        }
        if self.claims.get("cnf").is_some() {
            return Err(TokenError::BoundToKey);
        }
        let audiences = self.audiences()?;
        match &issuer.audience {
            Some(expected) if !audiences.contains(expected) => Err(TokenError::Audience),
            _ => Ok(()),
        }
    }

    pub(super) fn check_signature(&self, keys: &KeySet) -> Result<(), TokenError> {
        let key = keys.find(self.key_id.as_deref(), self.algorithm).ok_or(TokenError::UnknownKey)?;
        match key.verify(self.algorithm, self.signed.as_bytes(), &self.signature) {
            true => Ok(()),
            false => Err(TokenError::Signature),
        }
    }

    /// Returns the contents of a token whose signature and claims were checked.
    pub(super) fn into_verified(self, issuer: &IssuerSpec) -> Result<VerifiedToken, TokenError> {
        let subject = self.claim(&issuer.caller_claim);
        let subject = subject.as_ref().and_then(Value::as_str).filter(|name| is_subject(name));
        let subject = subject.ok_or_else(|| TokenError::InvalidClaim(issuer.caller_claim.clone()))?;
        let client = self.claims.get_string("client_id").or_else(|| self.claims.get_string("azp"));
        let scopes = ["scope", "scp"].iter().filter_map(|name| self.claim(name));
        Ok(VerifiedToken {
            issuer: issuer.name.clone(),
            subject: subject.to_owned(),
            client: client.map(std::borrow::Cow::into_owned),
            groups: self.claim(&issuer.groups_claim).map(|value| words(&value)).unwrap_or_default(),
            scopes: scopes.flat_map(|value| words(&value)).collect(),
            audiences: if issuer.audience.is_some() { None } else { Some(self.audiences()?) },
            expires: self.expires()?,
        })
    }

    fn expires(&self) -> Result<SystemTime, TokenError> {
        self.time("exp")?.ok_or_else(|| TokenError::InvalidClaim("exp".to_owned()))
    }

    /// Returns a claim that is a time in seconds, which may have a fraction.
    fn time(&self, name: &str) -> Result<Option<SystemTime>, TokenError> {
        let Some(raw) = self.claims.get(name) else { return Ok(None) };
        let invalid = || TokenError::InvalidClaim(name.to_owned());
        let seconds: f64 = serde_json::from_slice(raw).map_err(|_| invalid())?;
        let since = Duration::try_from_secs_f64(seconds).map_err(|_| invalid())?;
        SystemTime::UNIX_EPOCH.checked_add(since).map(Some).ok_or_else(invalid)
    }

    fn audiences(&self) -> Result<Vec<String>, TokenError> {
        let invalid = || TokenError::InvalidClaim("aud".to_owned());
        match self.claim("aud") {
            Some(Value::String(one)) => Ok(vec![one]),
            Some(Value::Array(several)) => Ok(strings(&several)),
            _ => Err(invalid()),
        }
    }

    /// Returns a claim, or a member of nested claims with a name such as `realm_access.roles`. Nested claims in which a member
    /// appears twice count as absent.
    fn claim(&self, name: &str) -> Option<Value> {
        if let Some(raw) = self.claims.get(name) {
            return serde_json::from_slice(raw).ok();
        }
        let (outer, inner) = name.split_once('.')?;
        let mut raw = self.claims.get(outer)?.clone();
        for part in inner.split('.') {
            raw = Object::parse(&raw).ok()?.get(part)?.clone();
        }
        serde_json::from_slice(&raw).ok()
    }
}

/// Parses a JSON object in which no member appears twice, so that every reader sees the same claims.
fn parse_object(text: Vec<u8>) -> Result<Object, TokenError> {
    let invalid = TokenError::Malformed("a part is not a JSON object, or has a member twice");
    Object::parse(&Bytes::from(text)).map_err(|_| invalid)
}

/// Checks the members of a header that say what kind of token it is.
fn check_type(header: &Object) -> Result<(), TokenError> {
    if header.get("crit").is_some() {
        return Err(TokenError::Malformed("it has critical header members, and none is supported"));
    }
    let Some(kind) = header.get("typ") else { return Ok(()) };
    let kind: String = serde_json::from_slice(kind).unwrap_or_default();
    let kind = kind.to_ascii_lowercase();
    match kind.strip_prefix("application/").unwrap_or(&kind) {
        "jwt" | "at+jwt" => Ok(()),
        _ => Err(TokenError::Malformed("its `typ` is not that of an access token")),
    }
}

fn read_key_id(header: &Object) -> Result<Option<String>, TokenError> {
    match header.get("kid") {
        None => Ok(None),
        Some(raw) => serde_json::from_slice(raw)
            .map(Some)
            .map_err(|_| TokenError::Malformed("its `kid` is not a string")),
    }
}

fn is_subject(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_SUBJECT_BYTES && !name.chars().any(char::is_control)
}

/// Returns the values of a claim that is an array of strings, or a string of words.
fn words(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => text.split_whitespace().take(MAX_VALUES).map(str::to_owned).collect(),
        Value::Array(values) => strings(values),
        _ => Vec::new(),
    }
}

fn strings(values: &[Value]) -> Vec<String> {
    values.iter().filter_map(Value::as_str).take(MAX_VALUES).map(str::to_owned).collect()
}
