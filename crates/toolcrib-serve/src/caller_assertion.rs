//! `CallerAssertion`: what a replica states about the caller of a request that it forwards.
//!
//! The replica that gets a request authenticates its caller, and the owner of the session believes the signed statement
//! instead of a token. A statement is valid for one request, with its body, to one replica, for half a minute. No I/O.

use std::time::{Duration, SystemTime};

use hyper::header::HeaderName;
use hyper::{HeaderMap, Method, Uri};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use toolcrib::store::Replica;
use toolcrib::util::encoding;

/// The header of a forwarded request.
pub(crate) const FORWARDED: HeaderName = HeaderName::from_static("toolcrib-forwarded");

/// Largest difference between the clocks of two replicas, and the time for which a statement is valid.
pub(crate) const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(30);

/// A caller that another replica has authenticated. The rights of the caller follow from the config of this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallerAssertion {
    /// A client that needs no token, because no callers are declared.
    Local,
    /// A declared caller, by the digest of its proof and rights.
    Declared {
        /// The digest.
        credential: String,
    },
    /// A caller that the token of an issuer identifies.
    Issued(IssuedAssertion),
}

/// What a token of an issuer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IssuedAssertion {
    pub(crate) issuer: String,
    pub(crate) subject: String,
    pub(crate) client: Option<String>,
    pub(crate) groups: Vec<String>,
    /// When the last token expires, in seconds since 1970.
    pub(crate) expires: u64,
}

/// The request that a statement belongs to.
pub(crate) struct ForwardedTarget<'a> {
    /// The address of the replica that gets it.
    pub(crate) owner: &'a str,
    pub(crate) method: &'a Method,
    /// The path with its query.
    pub(crate) path: &'a str,
    /// The id of the session, or nothing.
    pub(crate) session: &'a str,
}

/// A reason why a statement is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AssertionError {
    Malformed,
    Signature,
    Expired,
}

/// A statement whose signature is valid.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct VerifiedAssertion {
    pub(crate) caller: CallerAssertion,
    /// A random number. A second request with the same one is a copy.
    pub(crate) nonce: u128,
    /// When the statement was made, in seconds since 1970.
    pub(crate) time: u64,
    /// The digest of the request's body, which the reader of the body compares.
    pub(crate) body: BodyDigest,
}

/// The digest of the body of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BodyDigest([u8; 32]);

impl BodyDigest {
    pub(crate) fn new(body: &[u8]) -> Self {
        Self(Sha256::digest(body).into())
    }

    fn parse(text: &str) -> Option<Self> {
        encoding::parse_hex(text)?.try_into().ok().map(Self)
    }
}

impl AssertionError {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "its `toolcrib-forwarded` header is malformed",
            Self::Signature => "its signature is invalid; give all replicas the same `store.key`",
            Self::Expired => {
                "it is too old or from the future; the clocks of replicas may differ by at most 30 seconds"
            }
        }
    }
}

impl<'a> ForwardedTarget<'a> {
    /// Describes a request that arrived at the replica with this address.
    pub(crate) fn new(owner: &'a str, method: &'a Method, target: &'a Uri, headers: &'a HeaderMap) -> Self {
        let session = headers.get("mcp-session-id").and_then(|id| id.to_str().ok()).unwrap_or_default();
        Self { owner, method, path: request_path(target), session: session.trim() }
    }

    fn sign(&self, replica: &Replica, statement: &str) -> Option<String> {
        let parts = ["forward", self.owner, self.method.as_str(), self.path, self.session, statement];
        replica.sign(&parts).map(|signature| encoding::to_hex(&signature))
    }
}

/// Returns the path of a request with its query.
pub(crate) fn request_path(target: &Uri) -> &str {
    target.path_and_query().map_or("/", |path| path.as_str())
}

impl CallerAssertion {
    /// Returns the value of the header. Returns `None` without a source of random numbers.
    pub(crate) fn encode(
        &self,
        replica: &Replica,
        target: &ForwardedTarget<'_>,
        body: BodyDigest,
        now: SystemTime,
    ) -> Option<String> {
        let statement = json!({
            "caller": self.to_json(),
            "time": unix_seconds(now),
            "nonce": encoding::random_hex()?,
            "body": encoding::to_hex(&body.0),
        });
        let statement = encoding::to_base64_name(statement.to_string().as_bytes());
        let signature = target.sign(replica, &statement)?;
        Some(format!("{statement}.{signature}"))
    }

    /// Checks the value of the header of a request.
    pub(crate) fn verify(
        header: &str,
        replica: &Replica,
        target: &ForwardedTarget<'_>,
        now: SystemTime,
    ) -> Result<VerifiedAssertion, AssertionError> {
        let (statement, signature) = header.split_once('.').ok_or(AssertionError::Malformed)?;
        let expected = target.sign(replica, statement).ok_or(AssertionError::Signature)?;
        if !encoding::constant_time_eq(expected.as_bytes(), signature.as_bytes()) {
            return Err(AssertionError::Signature);
        }
        let statement = encoding::parse_base64_name(statement).ok_or(AssertionError::Malformed)?;
        let statement: Value = serde_json::from_slice(&statement).map_err(|_| AssertionError::Malformed)?;
        let time = statement["time"].as_u64().ok_or(AssertionError::Malformed)?;
        if unix_seconds(now).abs_diff(time) > MAX_CLOCK_DIFFERENCE.as_secs() {
            return Err(AssertionError::Expired);
        }
        let nonce = statement["nonce"].as_str().and_then(|nonce| u128::from_str_radix(nonce, 16).ok());
        let nonce = nonce.ok_or(AssertionError::Malformed)?;
        let body = statement["body"].as_str().and_then(BodyDigest::parse).ok_or(AssertionError::Malformed)?;
        let caller = Self::from_json(&statement["caller"]).ok_or(AssertionError::Malformed)?;
        Ok(VerifiedAssertion { caller, nonce, time, body })
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Local => json!({"kind": "local"}),
            Self::Declared { credential } => json!({"kind": "declared", "credential": credential}),
            Self::Issued(IssuedAssertion { issuer, subject, client, groups, expires }) => json!({
                "kind": "issued",
                "issuer": issuer,
                "subject": subject,
                "client": client,
                "groups": groups,
                "expires": expires,
            }),
        }
    }

    fn from_json(value: &Value) -> Option<Self> {
        let text = |name: &str| value[name].as_str().map(str::to_owned);
        match value["kind"].as_str()? {
            "local" => Some(Self::Local),
            "declared" => Some(Self::Declared { credential: text("credential")? }),
            "issued" => {
                let groups = value["groups"].as_array()?.iter();
                Some(Self::Issued(IssuedAssertion {
                    issuer: text("issuer")?,
                    subject: text("subject")?,
                    client: text("client"),
                    groups: groups.map(|group| group.as_str().map(str::to_owned)).collect::<Option<_>>()?,
                    expires: value["expires"].as_u64()?,
                }))
            }
            _ => None,
        }
    }
}

/// Returns a time in seconds since 1970.
pub(crate) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use toolcrib::store::SigningKey;

    use super::*;

    fn replica(key: u8) -> Replica {
        Replica::new("http://a:1", SigningKey::from_bytes(&[key; 32]).unwrap()).unwrap()
    }

    fn target() -> ForwardedTarget<'static> {
        ForwardedTarget { owner: "http://b:1", method: &Method::POST, path: "/mcp", session: "s" }
    }

    #[test]
    fn assertion_is_valid_for_its_request_and_time_only() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let issued = IssuedAssertion {
            issuer: "i".to_owned(),
            subject: "ann".to_owned(),
            client: None,
            groups: vec!["dev".to_owned()],
            expires: 2_000_000,
        };
        let declared = CallerAssertion::Declared { credential: "c".to_owned() };
        let body = BodyDigest::new(b"{}");
        for caller in [CallerAssertion::Local, declared, CallerAssertion::Issued(issued)] {
            let header = caller.encode(&replica(1), &target(), body, now).unwrap();
            let verify = |target: &ForwardedTarget<'_>, now: SystemTime| {
                let verified = CallerAssertion::verify(&header, &replica(1), target, now);
                verified.inspect(|verified| assert_eq!(verified.body, body)).map(|verified| verified.caller)
            };
            let late = MAX_CLOCK_DIFFERENCE + Duration::from_secs(1);
            for time in [now - MAX_CLOCK_DIFFERENCE, now, now + MAX_CLOCK_DIFFERENCE] {
                assert_eq!(verify(&target(), time), Ok(caller.clone()));
            }
            for time in [now - late, now + late] {
                assert_eq!(verify(&target(), time), Err(AssertionError::Expired));
            }
            for other in [
                ForwardedTarget { owner: "http://c:1", ..target() },
                ForwardedTarget { method: &Method::GET, ..target() },
                ForwardedTarget { path: "/mcp/p/x", ..target() },
                ForwardedTarget { session: "other", ..target() },
            ] {
                assert_eq!(verify(&other, now), Err(AssertionError::Signature));
            }
            let other_key = CallerAssertion::verify(&header, &replica(2), &target(), now);
            assert_eq!(other_key, Err(AssertionError::Signature));
        }
    }

    #[test]
    fn header_without_a_valid_signature_is_refused() {
        let now = SystemTime::UNIX_EPOCH;
        for header in ["", "x", ".", "e30.", "e30.00", "local"] {
            assert!(CallerAssertion::verify(header, &replica(1), &target(), now).is_err(), "{header}");
        }
        let unsigned = encoding::to_base64_name(br#"{"caller":{"kind":"local"},"time":0,"nonce":"n"}"#);
        let verified = CallerAssertion::verify(&format!("{unsigned}."), &replica(1), &target(), now);
        assert_eq!(verified, Err(AssertionError::Signature));
    }
}
