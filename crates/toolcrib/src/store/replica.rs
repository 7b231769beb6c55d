//! `Replica`: one of several gateways on one store, and the names of what it owns.
//!
//! A name contains the address of its owner and is signed, so that any replica can find the owner of a name that a client
//! returns, and never connects to an address that a client made up.

use std::fmt;
use std::sync::Arc;

use super::SigningKey;
use crate::util::encoding;

/// Largest size of an address in bytes, which bounds the size of names.
const MAX_ADDRESS: usize = 255;
/// Hexadecimal digits at the start of a name, which cannot be guessed.
const RANDOM_DIGITS: usize = 32;
/// Bytes of the signature that a name contains.
const SIGNATURE_BYTES: usize = 16;
/// Largest size of a name after its random digits: an address and a signature in base64, each after a separator.
const MAX_NAME_REST: usize = 2 + (MAX_ADDRESS * 4).div_ceil(3) + (SIGNATURE_BYTES * 4).div_ceil(3);
/// Separates the parts of a name. It needs no encoding in headers and URLs.
const SEPARATOR: char = '~';

/// One of several gateways on one store: the address at which the others reach it, and the key that all of them have.
#[derive(Debug, Clone)]
pub struct Replica {
    address: Arc<str>,
    key: SigningKey,
}

/// The reason why a text cannot be the address of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidReplicaAddress;

impl fmt::Display for InvalidReplicaAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the address of a replica must be `http://HOST:PORT` or `https://HOST:PORT`, without a path, a user or spaces",
        )
    }
}

impl std::error::Error for InvalidReplicaAddress {}

/// What a name stands for. A name of one kind is not valid as one of another kind.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OwnedKind {
    /// A session of a client.
    Session,
    /// A call that waits for input from a stateless client.
    SuspendedCall,
    /// A result that was too large for its client.
    Result,
}

impl OwnedKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::SuspendedCall => "suspended-call",
            Self::Result => "result",
        }
    }
}

impl Replica {
    /// Describes this process: the URL at which other replicas reach it, such as `http://10.0.0.3:7717`, and the key of all
    /// replicas.
    ///
    /// # Errors
    /// Fails if the URL has more than a scheme, a host and a port.
    pub fn new(address: &str, key: SigningKey) -> Result<Self, InvalidReplicaAddress> {
        let address = address.strip_suffix('/').unwrap_or(address);
        let authority = address.strip_prefix("http://").or_else(|| address.strip_prefix("https://"));
        let authority = authority.ok_or(InvalidReplicaAddress)?;
        let is_allowed = |byte: u8| byte.is_ascii_graphic() && !br#"/?#@\%"<>"#.contains(&byte);
        let has_host = !authority.is_empty() && !authority.starts_with(':');
        match has_host && address.len() <= MAX_ADDRESS && authority.bytes().all(is_allowed) {
            true => Ok(Self { address: address.to_ascii_lowercase().into(), key }),
            false => Err(InvalidReplicaAddress),
        }
    }

    /// Returns the URL at which other replicas reach this one, without a slash at its end.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the key that all replicas have.
    pub(crate) fn key(&self) -> &SigningKey {
        &self.key
    }

    /// Creates a name for something that this replica owns. Returns `None` without a source of random numbers.
    #[doc(hidden)]
    pub fn new_name(&self, kind: OwnedKind) -> Option<String> {
        let random = encoding::random_hex()?;
        let address = encoding::to_base64_name(self.address.as_bytes());
        let signature = self.sign_name(kind, &random, &self.address)?;
        Some(format!("{random}{SEPARATOR}{address}{SEPARATOR}{signature}"))
    }

    /// Returns the address of the replica that has created a name; `None` if no replica with this key has.
    #[doc(hidden)]
    pub fn owner(&self, kind: OwnedKind, name: &str) -> Option<String> {
        let (random, rest) = name.split_once(SEPARATOR)?;
        let (address, signature) = rest.split_once(SEPARATOR)?;
        let address = String::from_utf8(encoding::parse_base64_name(address)?).ok()?;
        let expected = self.sign_name(kind, random, &address)?;
        encoding::constant_time_eq(expected.as_bytes(), signature.as_bytes()).then_some(address)
    }

    fn sign_name(&self, kind: OwnedKind, random: &str, address: &str) -> Option<String> {
        let signature = self.sign(&["name", kind.as_str(), random, address])?;
        Some(encoding::to_base64_name(&signature[..SIGNATURE_BYTES]))
    }

    /// Signs several texts together.
    #[doc(hidden)]
    pub fn sign(&self, parts: &[&str]) -> Option<[u8; 32]> {
        self.key.sign(parts)
    }
}

/// Returns whether a text has the form of a name that a replica creates, or of one without an owner.
#[doc(hidden)]
pub fn has_name_form(text: &str) -> bool {
    let (random, rest) = text.split_at_checked(RANDOM_DIGITS).unwrap_or(("", text));
    let is_encoded = |byte: u8| byte.is_ascii_alphanumeric() || b"-_~".contains(&byte);
    let has_owner =
        rest.len() <= MAX_NAME_REST && rest.starts_with(SEPARATOR) && rest.bytes().all(is_encoded);
    !random.is_empty()
        && random.bytes().all(|byte| byte.is_ascii_hexdigit())
        && (rest.is_empty() || has_owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(address: &str, key: u8) -> Replica {
        Replica::new(address, SigningKey::from_bytes(&[key; 32]).unwrap()).unwrap()
    }

    #[test]
    fn name_tells_its_owner_to_replicas_with_the_key_only() {
        let first = replica("http://10.0.0.3:7717", 1);
        let second = replica("https://b.example", 1);
        let name = first.new_name(OwnedKind::Session).unwrap();
        assert!(name.len() < 100 && name.bytes().all(|byte| byte.is_ascii_graphic()), "{name}");
        assert!(has_name_form(&name) && name != first.new_name(OwnedKind::Session).unwrap());
        assert_eq!(second.owner(OwnedKind::Session, &name).as_deref(), Some("http://10.0.0.3:7717"));
        assert_eq!(second.owner(OwnedKind::Result, &name), None, "a name of another kind");
        assert_eq!(replica("https://b.example", 2).owner(OwnedKind::Session, &name), None);
        let parts: Vec<&str> = name.split('~').collect();
        let foreign = encoding::to_base64_name(b"http://169.254.169.254");
        let other = "0".repeat(32);
        for forged in [
            format!("{}~{foreign}~{}", parts[0], parts[2]),
            format!("{other}~{}~{}", parts[1], parts[2]),
            format!("{}~{}~", parts[0], parts[1]),
            format!("{}~{}~{}x", parts[0], parts[1], parts[2]),
            format!("{name}~{}", parts[2]),
            parts[0].to_owned(),
            String::new(),
        ] {
            assert_eq!(second.owner(OwnedKind::Session, &forged), None, "{forged}");
        }
    }

    #[test]
    fn form_of_a_name_is_bounded() {
        let longest = format!("http://{}", "a".repeat(MAX_ADDRESS - 7));
        let name = replica(&longest, 1).new_name(OwnedKind::Session).unwrap();
        assert!(has_name_form(&name) && has_name_form(&"0".repeat(32)));
        let zeros = "0".repeat(32);
        let too_long = format!("{name}xxxxx");
        for other in ["", "x", "../a", &zeros[1..], &format!("{zeros}0"), &format!("{zeros}~/"), &too_long] {
            assert!(!has_name_form(other), "{other}");
        }
    }

    #[test]
    fn address_has_a_scheme_a_host_and_nothing_else() {
        let key = || SigningKey::from_bytes(&[1; 32]).unwrap();
        for (good, address) in [
            ("http://10.0.0.3:7717", "http://10.0.0.3:7717"),
            ("https://Gateway-0.example/", "https://gateway-0.example"),
            ("http://[fd00::1]:7717", "http://[fd00::1]:7717"),
        ] {
            assert_eq!(Replica::new(good, key()).unwrap().address(), address);
        }
        let long = format!("http://{}", "a".repeat(MAX_ADDRESS));
        let bad = [
            "",
            "10.0.0.3",
            "ftp://a",
            "http://",
            "http://:80",
            "http://a/b",
            "http://u@a",
            "http://a b",
            &long,
        ];
        for bad in bad {
            assert!(Replica::new(bad, key()).is_err(), "{bad}");
        }
    }
}
