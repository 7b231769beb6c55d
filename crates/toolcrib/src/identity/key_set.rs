//! Sets of public keys (RFC 7517), and signatures that are checked with them.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use serde_json::Value;

use crate::config::SignatureAlgorithm;

/// Maximum number of keys of one issuer.
const MAX_KEYS: usize = 100;
/// Smallest RSA modulus, 2048 bits.
const MIN_RSA_BYTES: usize = 256;
/// Maximum size of a file with keys.
const MAX_FILE_BYTES: u64 = 256 << 10;

/// The keys of one issuer that can check signatures.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KeySet {
    keys: Vec<PublicKey>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct PublicKey {
    id: Option<String>,
    /// The only algorithm that the key is for, if it says so.
    algorithm: Option<SignatureAlgorithm>,
    material: KeyMaterial,
}

#[derive(Debug, PartialEq, Eq)]
enum KeyMaterial {
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl KeySet {
    /// Parses a document. Keys of other kinds, and keys that are not for signatures, are left out.
    pub(super) fn parse(document: &[u8]) -> Result<Self, String> {
        let document: Value =
            serde_json::from_slice(document).map_err(|error| format!("it is not JSON: {error}"))?;
        let keys = document.get("keys").and_then(Value::as_array).ok_or("it has no array `keys`")?;
        if keys.len() > MAX_KEYS {
            return Err(format!("it has {} keys, at most {MAX_KEYS} are supported", keys.len()));
        }
        let keys: Vec<PublicKey> = keys.iter().filter_map(PublicKey::from_json).collect();
        if keys.is_empty() {
            return Err("it has no key for signatures: RSA with 2048 bits or more, P-256, P-384 or Ed25519"
                .to_owned());
        }
        Ok(Self { keys })
    }

    /// Reads a file.
    pub(super) fn read_file(path: &Path) -> Result<Self, String> {
        let mut text = Vec::new();
        let opened = File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut text));
        let name = path.display();
        opened.map_err(|error| format!("cannot read `{name}`: {error}"))?;
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(format!("`{name}` is larger than {} KiB", MAX_FILE_BYTES >> 10));
        }
        Self::parse(&text).map_err(|reason| format!("`{name}` cannot be used: {reason}"))
    }

    /// Returns the key for a signature. A token that names no key can only be checked if there is one possible key.
    pub(super) fn find(&self, id: Option<&str>, algorithm: SignatureAlgorithm) -> Option<&PublicKey> {
        let is_named = |key: &&PublicKey| id.is_none_or(|id| key.id.as_deref() == Some(id));
        let mut usable = self.keys.iter().filter(is_named).filter(|key| key.is_for(algorithm));
        let first = usable.next()?;
        if id.is_none() && usable.next().is_some() { None } else { Some(first) }
    }
}

impl PublicKey {
    fn from_json(key: &Value) -> Option<Self> {
        let text = |name: &str| key.get(name).and_then(Value::as_str);
        let bytes = |name: &str| URL_SAFE_NO_PAD.decode(text(name)?).ok();
        let point = |size: usize| {
            let x = bytes("x").filter(|x| x.len() == size)?;
            let y = bytes("y").filter(|y| y.len() == size)?;
            Some([vec![4], x, y].concat())
        };
        if text("use").is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let operations = key.get("key_ops").and_then(Value::as_array);
        if operations.is_some_and(|operations| !operations.iter().any(|name| name == "verify")) {
            return None;
        }
        let material = match (text("kty")?, text("crv")) {
            ("RSA", _) => {
                let modulus = bytes("n").filter(|modulus| modulus.len() >= MIN_RSA_BYTES)?;
                KeyMaterial::Rsa { modulus, exponent: bytes("e")? }
            }
            ("EC", Some("P-256")) => KeyMaterial::P256(point(32)?),
            ("EC", Some("P-384")) => KeyMaterial::P384(point(48)?),
            ("OKP", Some("Ed25519")) => KeyMaterial::Ed25519(bytes("x").filter(|x| x.len() == 32)?),
            _ => return None,
        };
        let algorithm = match text("alg") {
            Some(name) => Some(SignatureAlgorithm::from_name(name)?),
            None => None,
        };
        let key = Self { id: text("kid").map(str::to_owned), algorithm, material };
        SignatureAlgorithm::ALL.into_iter().any(|algorithm| key.is_for(algorithm)).then_some(key)
    }

    /// Returns whether the kind of the key is that of an algorithm, and the key is not reserved for another one.
    fn is_for(&self, algorithm: SignatureAlgorithm) -> bool {
        use SignatureAlgorithm::{EdDsa, Es256, Es384, Ps256, Ps384, Ps512, Rs256, Rs384, Rs512};
        let is_kind = match &self.material {
            KeyMaterial::Rsa { .. } => {
                matches!(algorithm, Rs256 | Rs384 | Rs512 | Ps256 | Ps384 | Ps512)
            }
            KeyMaterial::P256(_) => algorithm == Es256,
            KeyMaterial::P384(_) => algorithm == Es384,
            KeyMaterial::Ed25519(_) => algorithm == EdDsa,
        };
        is_kind && self.algorithm.is_none_or(|own| own == algorithm)
    }

    /// Returns whether a signature of a message is valid.
    pub(super) fn verify(&self, algorithm: SignatureAlgorithm, message: &[u8], signature: &[u8]) -> bool {
        if !self.is_for(algorithm) {
            return false;
        }
        let unparsed = |algorithm, key| UnparsedPublicKey::new(algorithm, key).verify(message, signature);
        let verified = match &self.material {
            KeyMaterial::Rsa { modulus, exponent } => match rsa_parameters(algorithm) {
                Some(parameters) => {
                    let key = RsaPublicKeyComponents { n: modulus, e: exponent };
                    key.verify(parameters, message, signature)
                }
                None => Err(ring::error::Unspecified),
            },
            KeyMaterial::P256(point) => unparsed(&signature::ECDSA_P256_SHA256_FIXED, point),
            KeyMaterial::P384(point) => unparsed(&signature::ECDSA_P384_SHA384_FIXED, point),
            KeyMaterial::Ed25519(key) => unparsed(&signature::ED25519, key),
        };
        verified.is_ok()
    }
}

fn rsa_parameters(algorithm: SignatureAlgorithm) -> Option<&'static signature::RsaParameters> {
    Some(match algorithm {
        SignatureAlgorithm::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
        SignatureAlgorithm::Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
        SignatureAlgorithm::Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
        SignatureAlgorithm::Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
        SignatureAlgorithm::Ps384 => &signature::RSA_PSS_2048_8192_SHA384,
        SignatureAlgorithm::Ps512 => &signature::RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}
