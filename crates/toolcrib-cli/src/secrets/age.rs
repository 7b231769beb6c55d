//! The age file format, version 1, for a single X25519 recipient. `age -d -i KEY` decrypts the same files. The primitives
//! come from `ring` and `curve25519-dalek`.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use bech32::{Bech32, Hrp};
use curve25519_dalek::MontgomeryPoint;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::{hkdf, hmac};
use zeroize::Zeroizing;

const VERSION: &str = "age-encryption.org/v1";
const WRAP_KEY_LABEL: &[u8] = b"age-encryption.org/v1/X25519";
const KEY_PREFIX: Hrp = Hrp::parse_unchecked("age-secret-key-");
const ARMOR_BEGIN: &str = "-----BEGIN AGE ENCRYPTED FILE-----";
const ARMOR_END: &str = "-----END AGE ENCRYPTED FILE-----";

/// Plaintext bytes per encrypted chunk.
const CHUNK_BYTES: usize = 64 << 10;
/// Bytes of the authentication tag of each chunk.
const TAG_BYTES: usize = 16;
/// Length of a line of base64.
const LINE_LENGTH: usize = 64;

/// Reason why a text cannot be decrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AgeError {
    NotAge,
    /// The file is encrypted for a different key.
    WrongKey,
    /// Authentication failed.
    Damaged,
}

impl std::fmt::Display for AgeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NotAge => "not an age file",
            Self::WrongKey => "encrypted with a different key",
            Self::Damaged => "the file is damaged",
        })
    }
}

/// An X25519 private key.
pub(super) struct AgeIdentity(Zeroizing<[u8; 32]>);

impl std::fmt::Debug for AgeIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AgeIdentity")
    }
}

impl AgeIdentity {
    /// Generates a new key.
    pub(super) fn generate() -> Result<Self, getrandom::Error> {
        random_bytes().map(Self)
    }

    /// Parses a key file. Empty lines and comments are skipped.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let line = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'))?;
        let (prefix, bytes) = bech32::decode(line).ok()?;
        let bytes = Zeroizing::new(bytes);
        if prefix != KEY_PREFIX {
            return None;
        }
        <[u8; 32]>::try_from(bytes.as_slice()).ok().map(|key| Self(Zeroizing::new(key)))
    }

    /// Returns the key in age's text form.
    pub(super) fn to_text(&self) -> Zeroizing<String> {
        // 32 bytes never exceed the length limit.
        Zeroizing::new(bech32::encode_upper::<Bech32>(KEY_PREFIX, self.0.as_slice()).unwrap_or_default())
    }

    fn public_key(&self) -> [u8; 32] {
        MontgomeryPoint::mul_base_clamped(*self.0).to_bytes()
    }

    /// Decrypts the file key from the header's recipient stanzas.
    fn unwrap_file_key(&self, stanzas: &[Stanza<'_>]) -> Option<Zeroizing<[u8; 16]>> {
        stanzas.iter().find_map(|stanza| {
            let ["X25519", share] = stanza.arguments[..] else { return None };
            let share: [u8; 32] = STANDARD_NO_PAD.decode(share).ok()?.try_into().ok()?;
            let wrap = derive_wrap_key(&self.0, &share, &share, &self.public_key())?;
            let mut encrypted = Zeroizing::new(stanza.body.clone());
            let key = wrap.open_in_place(nonce(0, false), Aad::empty(), &mut encrypted).ok()?;
            <[u8; 16]>::try_from(&*key).ok().map(Zeroizing::new)
        })
    }
}

fn random_bytes<const N: usize>() -> Result<Zeroizing<[u8; N]>, getrandom::Error> {
    let mut bytes = Zeroizing::new([0; N]);
    getrandom::fill(bytes.as_mut_slice())?;
    Ok(bytes)
}

/// Encrypts bytes for one key, as ASCII armor.
pub(super) fn encrypt(plain: &[u8], identity: &AgeIdentity) -> Result<String, String> {
    let no_random = |error: getrandom::Error| format!("no random numbers: {error}");
    let file_key = random_bytes::<16>().map_err(no_random)?;
    let ephemeral = random_bytes::<32>().map_err(no_random)?;
    let salt = random_bytes::<16>().map_err(no_random)?;
    let encrypted = encrypt_with(plain, identity, &file_key, &ephemeral, &salt);
    encrypted.map(|bytes| armor(&bytes)).ok_or_else(|| "encryption failed".to_owned())
}

fn encrypt_with(
    plain: &[u8],
    identity: &AgeIdentity,
    file_key: &[u8; 16],
    ephemeral: &[u8; 32],
    salt: &[u8; 16],
) -> Option<Vec<u8>> {
    let public = identity.public_key();
    let share = MontgomeryPoint::mul_base_clamped(*ephemeral).to_bytes();
    let wrap = derive_wrap_key(ephemeral, &public, &share, &public)?;
    let mut wrapped = file_key.to_vec();
    wrap.seal_in_place_append_tag(nonce(0, false), Aad::empty(), &mut wrapped).ok()?;
    let share = STANDARD_NO_PAD.encode(share);
    let wrapped = STANDARD_NO_PAD.encode(wrapped);
    let header = format!("{VERSION}\n-> X25519 {share}\n{wrapped}\n---");
    let mac = hmac::sign(&derive_header_key(file_key)?, header.as_bytes());
    let mut out = format!("{header} {}\n", STANDARD_NO_PAD.encode(mac)).into_bytes();
    out.extend_from_slice(salt);
    let key = derive_payload_key(file_key, salt)?;
    let count = plain.len().div_ceil(CHUNK_BYTES).max(1);
    for number in 0..count {
        let chunk = &plain[number * CHUNK_BYTES..plain.len().min((number + 1) * CHUNK_BYTES)];
        let mut chunk = Zeroizing::new(chunk.to_vec());
        let nonce = nonce(u64::try_from(number).ok()?, number + 1 == count);
        let tag = key.seal_in_place_separate_tag(nonce, Aad::empty(), &mut chunk).ok()?;
        out.extend_from_slice(&chunk);
        out.extend_from_slice(tag.as_ref());
    }
    Some(out)
}

/// Decrypts ASCII armor.
pub(super) fn decrypt(text: &str, identity: &AgeIdentity) -> Result<Zeroizing<Vec<u8>>, AgeError> {
    let bytes = dearmor(text).ok_or(AgeError::NotAge)?;
    let AgeFile { header, mac, payload } = split_header(&bytes).ok_or(AgeError::NotAge)?;
    let stanzas = parse_stanzas(header).ok_or(AgeError::NotAge)?;
    let file_key = identity.unwrap_file_key(&stanzas).ok_or(AgeError::WrongKey)?;
    let key = derive_header_key(&file_key).ok_or(AgeError::Damaged)?;
    hmac::verify(&key, header.as_bytes(), &mac).map_err(|_| AgeError::Damaged)?;
    decrypt_payload(&file_key, payload).ok_or(AgeError::Damaged)
}

fn decrypt_payload(file_key: &[u8; 16], payload: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let (salt, encrypted) = payload.split_first_chunk::<16>()?;
    let key = derive_payload_key(file_key, salt)?;
    let count = encrypted.len().div_ceil(CHUNK_BYTES + TAG_BYTES).max(1);
    let mut plain = Zeroizing::new(Vec::with_capacity(encrypted.len()));
    for number in 0..count {
        let end = encrypted.len().min((number + 1) * (CHUNK_BYTES + TAG_BYTES));
        let mut chunk = Zeroizing::new(encrypted[number * (CHUNK_BYTES + TAG_BYTES)..end].to_vec());
        let nonce = nonce(u64::try_from(number).ok()?, number + 1 == count);
        let chunk = key.open_in_place(nonce, Aad::empty(), &mut chunk).ok()?;
        if chunk.is_empty() && number > 0 {
            return None;
        }
        plain.extend_from_slice(chunk);
    }
    Some(plain)
}

/// The parts of a binary age file.
struct AgeFile<'a> {
    /// Header up to and including its final `---`.
    header: &'a str,
    mac: Vec<u8>,
    payload: &'a [u8],
}

/// A recipient stanza of the header.
struct Stanza<'a> {
    arguments: Vec<&'a str>,
    body: Vec<u8>,
}

fn split_header(bytes: &[u8]) -> Option<AgeFile<'_>> {
    let header_end = memchr::memmem::find(bytes, b"\n--- ")?;
    let line_end = memchr::memchr(b'\n', &bytes[header_end + 1..])? + header_end + 1;
    let header = std::str::from_utf8(&bytes[..header_end + 4]).ok()?;
    let mac = STANDARD_NO_PAD.decode(&bytes[header_end + 5..line_end]).ok()?;
    Some(AgeFile { header, mac, payload: &bytes[line_end + 1..] })
}

fn parse_stanzas(header: &str) -> Option<Vec<Stanza<'_>>> {
    let mut lines = header.strip_prefix(VERSION)?.strip_prefix('\n')?.lines().peekable();
    let mut stanzas = Vec::new();
    loop {
        let line = lines.next()?;
        if line == "---" {
            return lines.next().is_none().then_some(stanzas);
        }
        let arguments = line.strip_prefix("-> ")?.split(' ').collect();
        let mut body = String::new();
        loop {
            let line = lines.next()?;
            body.push_str(line);
            if line.len() < LINE_LENGTH {
                break;
            }
        }
        stanzas.push(Stanza { arguments, body: STANDARD_NO_PAD.decode(body).ok()? });
    }
}

fn derive_wrap_key(
    own: &[u8; 32],
    other: &[u8; 32],
    share: &[u8; 32],
    public: &[u8; 32],
) -> Option<LessSafeKey> {
    let shared = Zeroizing::new(MontgomeryPoint(*other).mul_clamped(*own).to_bytes());
    // A low-order point would make the key predictable.
    if *shared == [0; 32] {
        return None;
    }
    derive_key(&[&share[..], &public[..]].concat(), shared.as_slice(), WRAP_KEY_LABEL)
}

fn derive_payload_key(file_key: &[u8; 16], salt: &[u8; 16]) -> Option<LessSafeKey> {
    derive_key(salt, file_key, b"payload")
}

fn derive_key(salt: &[u8], key: &[u8], purpose: &[u8]) -> Option<LessSafeKey> {
    let secret = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(key);
    Some(LessSafeKey::new(UnboundKey::from(secret.expand(&[purpose], &CHACHA20_POLY1305).ok()?)))
}

fn derive_header_key(file_key: &[u8; 16]) -> Option<hmac::Key> {
    let secret = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(file_key);
    Some(hmac::Key::from(secret.expand(&[b"header"], hmac::HMAC_SHA256).ok()?))
}

/// Returns the nonce of a chunk: an 11-byte counter and a flag for the last chunk. The file key is wrapped with nonce 0.
fn nonce(number: u64, last: bool) -> Nonce {
    let mut bytes = [0; 12];
    bytes[3..11].copy_from_slice(&number.to_be_bytes());
    bytes[11] = last.into();
    Nonce::assume_unique_for_key(bytes)
}

fn armor(bytes: &[u8]) -> String {
    let base64 = STANDARD.encode(bytes);
    let lines: Vec<&str> =
        base64.as_bytes().chunks(LINE_LENGTH).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    format!("{ARMOR_BEGIN}\n{}\n{ARMOR_END}\n", lines.join("\n"))
}

fn dearmor(text: &str) -> Option<Vec<u8>> {
    let lines = text.trim().strip_prefix(ARMOR_BEGIN)?.strip_suffix(ARMOR_END)?;
    let base64: String = lines.split_ascii_whitespace().collect();
    STANDARD.decode(base64).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by `age` 1.1.1 for the key below: `printf 'from age itself\n' | age -a -r age1…`.
    const KEY: &str = "AGE-SECRET-KEY-1VF5PK8YQ94X7FW5UL6X2AZMSFV972W2MPLFQP5S2YYVLZQRGNEESQXYN2T";
    const ENCRYPTED: &str = "-----BEGIN AGE ENCRYPTED FILE-----\n\
        YWdlLWVuY3J5cHRpb24ub3JnL3YxCi0+IFgyNTUxOSAwZkd6TmhnMGdEZVYzQlpq\n\
        Q2lrRzc2SGgzVEphQmYyRGovOGh1RFlUMFdNCkZvclYwVGJhbTUwSDZCR2htZUho\n\
        Z09velhtSjBvYjZ5YXByNnRuVk1qalEKLS0tIDVkNk9lOHd3RlNyemU5OWtzM3lo\n\
        MkNzN3dIdnNSMUQzUHE0dDRuZmU0UzgKjhu1sVHuxTjPJbV/li35q4M2yazxuTKH\n\
        zxAzRldrcfdxtJy7vDloLPmm/2JOcqOS\n\
        -----END AGE ENCRYPTED FILE-----";

    #[test]
    fn files_of_the_age_program_are_decrypted() {
        let key = AgeIdentity::parse(&format!("# created: today\n\n{KEY}\n")).unwrap();
        assert_eq!(&**key.to_text(), KEY);
        assert_eq!(&**decrypt(ENCRYPTED, &key).unwrap(), b"from age itself\n");
    }

    #[test]
    fn encrypted_text_is_decrypted_only_with_its_key() {
        let key = AgeIdentity::generate().unwrap();
        let other = AgeIdentity::generate().unwrap();
        for length in [0, 1, 100, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES] {
            let plain = vec![b'x'; length];
            let encrypted = encrypt(&plain, &key).unwrap();
            assert_eq!(*decrypt(&encrypted, &key).unwrap(), plain, "{length}");
            assert_eq!(decrypt(&encrypted, &other).unwrap_err(), AgeError::WrongKey);
            assert!(length < 20 || !encrypted.contains("xxxxxxxxxxxxxxxxxxxx"));
        }
    }

    #[test]
    fn every_change_is_detected() {
        let key = AgeIdentity::generate().unwrap();
        let original = dearmor(&encrypt(b"some words that matter", &key).unwrap()).unwrap();
        for index in 0..original.len() {
            let mut changed = original.clone();
            changed[index] ^= 1;
            assert!(decrypt(&armor(&changed), &key).is_err(), "byte {index}");
            assert!(decrypt(&armor(&original[..index]), &key).is_err(), "cut at {index}");
        }
        assert!(decrypt(&armor(&[&original[..], b"x"].concat()), &key).is_err());
        for invalid in [
            "",
            "hello",
            ARMOR_BEGIN,
            "-----BEGIN AGE ENCRYPTED FILE-----\n!\n-----END AGE ENCRYPTED FILE-----",
        ] {
            assert_eq!(decrypt(invalid, &key).unwrap_err(), AgeError::NotAge, "{invalid}");
        }
    }

    #[test]
    fn debug_output_hides_the_key() {
        let key = AgeIdentity::parse(KEY).unwrap();
        assert_eq!(format!("{key:?}"), "AgeIdentity");
        assert!(AgeIdentity::parse("hunter2").is_none() && AgeIdentity::parse("").is_none());
    }
}
