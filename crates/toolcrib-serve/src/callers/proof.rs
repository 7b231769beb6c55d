//! How a declared caller is recognized.

use sha2::{Digest as _, Sha256};
use toolcrib::Caller;
use toolcrib::config::{CallerSpec, CertificateNames, CertificatePattern, Sha256Digest};
use toolcrib::util::encoding;

use crate::connection_peer::ConnectionPeer;

/// The token, certificate and user of a declared caller. A certificate is needed in addition to one of the others.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CallerProof {
    token_digest: Option<Sha256Digest>,
    certificate: Option<CertificatePattern>,
    uid: Option<u32>,
}

impl CallerProof {
    pub(super) fn new(token_digest: Option<Sha256Digest>, spec: &CallerSpec) -> Self {
        Self { token_digest, certificate: spec.certificate.clone(), uid: spec.uid }
    }

    pub(super) fn has_user(&self) -> bool {
        self.uid.is_some()
    }

    /// Returns whether this is the token, compared in constant time.
    pub(super) fn has_token(&self, digest: &Sha256Digest) -> bool {
        self.token_digest.as_ref().is_some_and(|own| encoding::constant_time_eq(own, digest))
    }

    /// Returns whether a certificate is not needed or matches.
    pub(super) fn accepts_certificate(&self, certificate: Option<&CertificateNames>) -> bool {
        match (&self.certificate, certificate) {
            (Some(pattern), Some(names)) => pattern.matches(names),
            (Some(_), None) => false,
            (None, _) => true,
        }
    }

    /// Returns whether a connection without a token is that of the caller.
    pub(super) fn accepts_connection(&self, peer: &ConnectionPeer) -> bool {
        let is_user = self.uid.is_some() && self.uid == peer.uid;
        match &peer.certificate {
            // A certificate that is presented decides.
            Some(names) => {
                let is_enough = self.token_digest.is_none() && self.uid.is_none();
                let is_certificate = self.certificate.as_ref().is_some_and(|own| own.matches(names));
                is_certificate && (is_enough || is_user)
            }
            None => self.certificate.is_none() && is_user,
        }
    }

    /// Returns the digest of the proof and the rights that it gives. It does not reveal the token.
    pub(super) fn credential_id(&self, caller: &Caller, admin: bool) -> String {
        let mut digest = Sha256::new();
        match &self.token_digest {
            Some(token_digest) => digest.update(token_digest),
            None => digest.update([0; 32]),
        }
        for part in [caller.as_str(), caller.profile().unwrap_or_default()] {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part.as_bytes());
        }
        digest.update([u8::from(caller.profile().is_some()), u8::from(admin)]);
        for group in caller.groups() {
            digest.update((group.len() as u64).to_le_bytes());
            digest.update(group.as_bytes());
        }
        if self.certificate.is_some() || self.uid.is_some() {
            digest.update(format!("{:?} {:?}", self.certificate, self.uid));
        }
        encoding::to_hex(&digest.finalize())
    }
}
