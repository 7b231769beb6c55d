//! Certificates of clients: the names in them, and the open connections that depend on them.

use std::sync::OnceLock;
use std::time::SystemTime;

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use tokio_util::sync::CancellationToken;
use toolcrib::config::{CertificateNames, SubjectAttribute};
use x509_cert::Certificate;
use x509_cert::attr::AttributeTypeAndValue;
use x509_cert::der::Decode as _;
use x509_cert::der::asn1::{Ia5StringRef, ObjectIdentifier};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::{DirectoryString, GeneralName};

/// An open connection, which is closed when the certificate of its client is no longer accepted.
#[derive(Debug, Default)]
pub(super) struct CertificateConnection {
    certificate: OnceLock<PresentedCertificate>,
    closed: CancellationToken,
}

/// The certificate that a client presented.
#[derive(Debug)]
struct PresentedCertificate {
    /// The certificate and those of the authorities between it and a trusted one.
    chain: Vec<CertificateDer<'static>>,
    expires: Option<SystemTime>,
}

impl CertificateConnection {
    /// Sets the certificates that the client presented, its own first.
    pub(super) fn set_certificate(&self, chain: &[CertificateDer<'_>]) {
        self.certificate.get_or_init(|| PresentedCertificate {
            expires: chain.first().and_then(|certificate| read_expiry(certificate)),
            chain: chain.iter().map(|certificate| certificate.clone().into_owned()).collect(),
        });
    }

    pub(super) fn has_certificate(&self) -> bool {
        self.certificate.get().is_some()
    }

    /// Returns whether the certificate is accepted. Without a verifier none is.
    pub(super) fn is_accepted_by(&self, verifier: Option<&dyn ClientCertVerifier>) -> bool {
        let Some(certificate) = self.certificate.get() else { return true };
        match (verifier, certificate.chain.split_first()) {
            (Some(verifier), Some((own, others))) => {
                verifier.verify_client_cert(own, others, UnixTime::now()).is_ok()
            }
            _ => false,
        }
    }

    pub(super) fn has_expired(&self, now: SystemTime) -> bool {
        self.certificate
            .get()
            .and_then(|certificate| certificate.expires)
            .is_some_and(|expires| expires <= now)
    }

    /// Closes the connection and drops what is in flight on it.
    pub(super) fn close(&self) {
        tracing::info!("closed a connection whose client certificate is no longer accepted");
        self.closed.cancel();
    }

    /// Returns the token that is cancelled when the connection is closed.
    pub(super) fn closed(&self) -> &CancellationToken {
        &self.closed
    }
}

/// The attributes of a subject that patterns can name.
const ATTRIBUTES: [(&str, ObjectIdentifier); 10] = [
    ("CN", ObjectIdentifier::new_unwrap("2.5.4.3")),
    ("serialNumber", ObjectIdentifier::new_unwrap("2.5.4.5")),
    ("C", ObjectIdentifier::new_unwrap("2.5.4.6")),
    ("L", ObjectIdentifier::new_unwrap("2.5.4.7")),
    ("ST", ObjectIdentifier::new_unwrap("2.5.4.8")),
    ("O", ObjectIdentifier::new_unwrap("2.5.4.10")),
    ("OU", ObjectIdentifier::new_unwrap("2.5.4.11")),
    ("UID", ObjectIdentifier::new_unwrap("0.9.2342.19200300.100.1.1")),
    ("DC", ObjectIdentifier::new_unwrap("0.9.2342.19200300.100.1.25")),
    ("emailAddress", ObjectIdentifier::new_unwrap("1.2.840.113549.1.9.1")),
];

/// Returns the names in a certificate, or `None` if it cannot be read.
pub(super) fn read_names(der: &[u8]) -> Option<CertificateNames> {
    let certificate = Certificate::from_der(der).ok()?;
    let certificate = certificate.tbs_certificate();
    let alternative = certificate.get_extension::<SubjectAltName>().ok()?;
    let alternative = alternative.map(|(_, names)| names.0).unwrap_or_default();
    Some(CertificateNames {
        alternative: alternative.iter().filter_map(alternative_name).collect(),
        subject: certificate.subject().iter().filter_map(subject_attribute).collect(),
    })
}

fn alternative_name(name: &GeneralName) -> Option<String> {
    match name {
        GeneralName::DnsName(name) => Some(name.as_str().to_ascii_lowercase()),
        GeneralName::Rfc822Name(name) | GeneralName::UniformResourceIdentifier(name) => {
            Some(name.as_str().to_owned())
        }
        _ => None,
    }
}

fn subject_attribute(attribute: &AttributeTypeAndValue) -> Option<SubjectAttribute> {
    let (name, _) = ATTRIBUTES.iter().find(|(_, oid)| *oid == attribute.oid)?;
    let directory = attribute.value.decode_as::<DirectoryString>();
    let value = match &directory {
        Ok(text) => text.value().into_owned(),
        Err(_) => attribute.value.decode_as::<Ia5StringRef<'_>>().ok()?.as_str().to_owned(),
    };
    Some(SubjectAttribute { name: (*name).to_owned(), value })
}

/// Returns the end of the validity of a certificate, or `None` if it cannot be read.
pub(super) fn read_expiry(der: &[u8]) -> Option<SystemTime> {
    let certificate = Certificate::from_der(der).ok()?;
    let end = certificate.tbs_certificate().validity().not_after.to_unix_duration();
    SystemTime::UNIX_EPOCH.checked_add(end)
}
