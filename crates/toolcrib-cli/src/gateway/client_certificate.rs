//! Reads the names in certificates.

use std::time::SystemTime;

use toolcrib::config::{CertificateNames, SubjectAttribute};
use x509_cert::Certificate;
use x509_cert::attr::AttributeTypeAndValue;
use x509_cert::der::Decode as _;
use x509_cert::der::asn1::{Ia5StringRef, ObjectIdentifier};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::{DirectoryString, GeneralName};

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
