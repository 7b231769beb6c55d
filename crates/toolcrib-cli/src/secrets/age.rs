//! The age format, version 1, for one reader with an X25519 key: files that `age -d -i KEY` opens too. The parts that
//! need care are `ring`'s and `curve25519-dalek`'s; here they are put together as the specification says.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use bech32::{Bech32, Hrp};
use curve25519_dalek::MontgomeryPoint;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::{hkdf, hmac};
use zeroize::Zeroizing;

const VERSION: &str = "age-encryption.org/v1";
const WRAP: &[u8] = b"age-encryption.org/v1/X25519";
const KEY_NAME: Hrp = Hrp::parse_unchecked("age-secret-key-");
const BEGIN: &str = "-----BEGIN AGE ENCRYPTED FILE-----";
const END: &str = "-----END AGE ENCRYPTED FILE-----";

/// What is sealed at a time.
const CHUNK: usize = 64 << 10;
/// What a seal adds.
const TAG: usize = 16;
/// Letters of a line.
const LINE: usize = 64;

/// Why a text cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closed {
    /// It is no age file.
    NotAge,
    /// It is for another key.
    OtherKey,
    /// Somebody changed it.
    Damaged,
}

impl std::fmt::Display for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NotAge => "it is no age file",
            Self::OtherKey => "it was written with another key",
            Self::Damaged => "it is damaged",
        })
    }
}

/// A key that opens what was sealed for it.
pub(super) struct Identity(Zeroizing<[u8; 32]>);

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identity")
    }
}

impl Identity {
    /// One that nobody has yet.
    pub(super) fn new() -> Result<Self, getrandom::Error> {
        random().map(Self)
    }

    /// The one that is written here, comments around it allowed.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let line = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'))?;
        let (name, bytes) = bech32::decode(line).ok()?;
        let bytes = Zeroizing::new(bytes);
        if name != KEY_NAME {
            return None;
        }
        <[u8; 32]>::try_from(bytes.as_slice()).ok().map(|key| Self(Zeroizing::new(key)))
    }

    /// As age writes it.
    pub(super) fn to_text(&self) -> Zeroizing<String> {
        // Letters for 32 bytes are never too many.
        Zeroizing::new(bech32::encode_upper::<Bech32>(KEY_NAME, self.0.as_slice()).unwrap_or_default())
    }

    fn public(&self) -> [u8; 32] {
        MontgomeryPoint::mul_base_clamped(*self.0).to_bytes()
    }

    /// The file key in the stanzas of a header.
    fn unwrap(&self, stanzas: &[(Vec<&str>, Vec<u8>)]) -> Option<Zeroizing<[u8; 16]>> {
        stanzas.iter().find_map(|(words, body)| {
            let ["X25519", share] = words[..] else { return None };
            let share: [u8; 32] = STANDARD_NO_PAD.decode(share).ok()?.try_into().ok()?;
            let wrap = wrap_key(&self.0, &share, &share, &self.public())?;
            let mut sealed = Zeroizing::new(body.clone());
            let key = wrap.open_in_place(nonce(0, false), Aad::empty(), &mut sealed).ok()?;
            <[u8; 16]>::try_from(&*key).ok().map(Zeroizing::new)
        })
    }
}

fn random<const N: usize>() -> Result<Zeroizing<[u8; N]>, getrandom::Error> {
    let mut bytes = Zeroizing::new([0; N]);
    getrandom::fill(bytes.as_mut_slice())?;
    Ok(bytes)
}

/// Seals bytes for one key, as text.
pub(super) fn seal(plain: &[u8], reader: &Identity) -> Result<String, String> {
    let no_random = |error: getrandom::Error| format!("no random numbers: {error}");
    let (file_key, ephemeral) = (random::<16>().map_err(no_random)?, random::<32>().map_err(no_random)?);
    let salt = random::<16>().map_err(no_random)?;
    let sealed = put_together(plain, reader, &file_key, &ephemeral, &salt);
    sealed.map(|bytes| armour(&bytes)).ok_or_else(|| "it cannot be sealed".to_owned())
}

fn put_together(
    plain: &[u8],
    reader: &Identity,
    file_key: &[u8; 16],
    ephemeral: &[u8; 32],
    salt: &[u8; 16],
) -> Option<Vec<u8>> {
    let (public, share) = (reader.public(), MontgomeryPoint::mul_base_clamped(*ephemeral).to_bytes());
    let wrap = wrap_key(ephemeral, &public, &share, &public)?;
    let mut wrapped = file_key.to_vec();
    wrap.seal_in_place_append_tag(nonce(0, false), Aad::empty(), &mut wrapped).ok()?;
    let (share, wrapped) = (STANDARD_NO_PAD.encode(share), STANDARD_NO_PAD.encode(wrapped));
    let header = format!("{VERSION}\n-> X25519 {share}\n{wrapped}\n---");
    let sum = hmac::sign(&header_key(file_key)?, header.as_bytes());
    let mut out = format!("{header} {}\n", STANDARD_NO_PAD.encode(sum)).into_bytes();
    out.extend_from_slice(salt);
    let key = payload_key(file_key, salt)?;
    let count = plain.len().div_ceil(CHUNK).max(1);
    for number in 0..count {
        let chunk = &plain[number * CHUNK..plain.len().min((number + 1) * CHUNK)];
        let mut chunk = Zeroizing::new(chunk.to_vec());
        let nonce = nonce(u64::try_from(number).ok()?, number + 1 == count);
        let tag = key.seal_in_place_separate_tag(nonce, Aad::empty(), &mut chunk).ok()?;
        out.extend_from_slice(&chunk);
        out.extend_from_slice(tag.as_ref());
    }
    Some(out)
}

/// Opens what was sealed.
pub(super) fn open(text: &str, reader: &Identity) -> Result<Zeroizing<Vec<u8>>, Closed> {
    let bytes = bare(text).ok_or(Closed::NotAge)?;
    let (header, sum, payload) = split(&bytes).ok_or(Closed::NotAge)?;
    let stanzas = stanzas(header).ok_or(Closed::NotAge)?;
    let file_key = reader.unwrap(&stanzas).ok_or(Closed::OtherKey)?;
    let key = header_key(&file_key).ok_or(Closed::Damaged)?;
    hmac::verify(&key, header.as_bytes(), &sum).map_err(|_| Closed::Damaged)?;
    opened(&file_key, payload).ok_or(Closed::Damaged)
}

fn opened(file_key: &[u8; 16], payload: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let (salt, sealed) = payload.split_first_chunk::<16>()?;
    let key = payload_key(file_key, salt)?;
    let count = sealed.len().div_ceil(CHUNK + TAG).max(1);
    let mut plain = Zeroizing::new(Vec::with_capacity(sealed.len()));
    for number in 0..count {
        let end = sealed.len().min((number + 1) * (CHUNK + TAG));
        let mut chunk = Zeroizing::new(sealed[number * (CHUNK + TAG)..end].to_vec());
        let nonce = nonce(u64::try_from(number).ok()?, number + 1 == count);
        let chunk = key.open_in_place(nonce, Aad::empty(), &mut chunk).ok()?;
        if chunk.is_empty() && number > 0 {
            return None;
        }
        plain.extend_from_slice(chunk);
    }
    Some(plain)
}

/// The header with its `---`, the sum behind that, and what follows.
fn split(bytes: &[u8]) -> Option<(&str, Vec<u8>, &[u8])> {
    let mark = memchr::memmem::find(bytes, b"\n--- ")?;
    let end = memchr::memchr(b'\n', &bytes[mark + 1..])? + mark + 1;
    let header = std::str::from_utf8(&bytes[..mark + 4]).ok()?;
    let sum = STANDARD_NO_PAD.decode(&bytes[mark + 5..end]).ok()?;
    Some((header, sum, &bytes[end + 1..]))
}

/// For whom a file is: the words of each stanza and its body.
fn stanzas(header: &str) -> Option<Vec<(Vec<&str>, Vec<u8>)>> {
    let mut lines = header.strip_prefix(VERSION)?.strip_prefix('\n')?.lines().peekable();
    let mut stanzas = Vec::new();
    loop {
        let line = lines.next()?;
        if line == "---" {
            return lines.next().is_none().then_some(stanzas);
        }
        let words = line.strip_prefix("-> ")?.split(' ').collect();
        let mut body = String::new();
        loop {
            let line = lines.next()?;
            body.push_str(line);
            if line.len() < LINE {
                break;
            }
        }
        stanzas.push((words, STANDARD_NO_PAD.decode(body).ok()?));
    }
}

fn wrap_key(own: &[u8; 32], other: &[u8; 32], share: &[u8; 32], public: &[u8; 32]) -> Option<LessSafeKey> {
    let shared = Zeroizing::new(MontgomeryPoint(*other).mul_clamped(*own).to_bytes());
    // A point of low order, which would make the key known to everybody.
    if *shared == [0; 32] {
        return None;
    }
    derived(&[&share[..], &public[..]].concat(), shared.as_slice(), WRAP)
}

fn payload_key(file_key: &[u8; 16], salt: &[u8; 16]) -> Option<LessSafeKey> {
    derived(salt, file_key, b"payload")
}

fn derived(salt: &[u8], key: &[u8], purpose: &[u8]) -> Option<LessSafeKey> {
    let secret = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(key);
    Some(LessSafeKey::new(UnboundKey::from(secret.expand(&[purpose], &CHACHA20_POLY1305).ok()?)))
}

fn header_key(file_key: &[u8; 16]) -> Option<hmac::Key> {
    let secret = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(file_key);
    Some(hmac::Key::from(secret.expand(&[b"header"], hmac::HMAC_SHA256).ok()?))
}

/// Eleven bytes count the chunks, one says which is the last. A file key is wrapped under the very first.
fn nonce(number: u64, last: bool) -> Nonce {
    let mut bytes = [0; 12];
    bytes[3..11].copy_from_slice(&number.to_be_bytes());
    bytes[11] = last.into();
    Nonce::assume_unique_for_key(bytes)
}

fn armour(bytes: &[u8]) -> String {
    let letters = STANDARD.encode(bytes);
    let lines: Vec<&str> =
        letters.as_bytes().chunks(LINE).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    format!("{BEGIN}\n{}\n{END}\n", lines.join("\n"))
}

fn bare(text: &str) -> Option<Vec<u8>> {
    let letters = text.trim().strip_prefix(BEGIN)?.strip_suffix(END)?;
    let letters: String = letters.split_ascii_whitespace().collect();
    STANDARD.decode(letters).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by `age` 1.1.1 for the key below: `printf 'from age itself\n' | age -a -r age1…`.
    const KEY: &str = "AGE-SECRET-KEY-1VF5PK8YQ94X7FW5UL6X2AZMSFV972W2MPLFQP5S2YYVLZQRGNEESQXYN2T";
    const THEIRS: &str = "-----BEGIN AGE ENCRYPTED FILE-----\n\
        YWdlLWVuY3J5cHRpb24ub3JnL3YxCi0+IFgyNTUxOSAwZkd6TmhnMGdEZVYzQlpq\n\
        Q2lrRzc2SGgzVEphQmYyRGovOGh1RFlUMFdNCkZvclYwVGJhbTUwSDZCR2htZUho\n\
        Z09velhtSjBvYjZ5YXByNnRuVk1qalEKLS0tIDVkNk9lOHd3RlNyemU5OWtzM3lo\n\
        MkNzN3dIdnNSMUQzUHE0dDRuZmU0UzgKjhu1sVHuxTjPJbV/li35q4M2yazxuTKH\n\
        zxAzRldrcfdxtJy7vDloLPmm/2JOcqOS\n\
        -----END AGE ENCRYPTED FILE-----";

    #[test]
    fn what_age_itself_wrote_can_be_read() {
        let key = Identity::parse(&format!("# created: today\n\n{KEY}\n")).unwrap();
        assert_eq!(&**key.to_text(), KEY);
        assert_eq!(&**open(THEIRS, &key).unwrap(), b"from age itself\n");
    }

    #[test]
    fn what_was_sealed_is_opened_by_its_own_key_alone() {
        let (key, other) = (Identity::new().unwrap(), Identity::new().unwrap());
        for length in [0, 1, 100, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK] {
            let plain = vec![b'x'; length];
            let sealed = seal(&plain, &key).unwrap();
            assert_eq!(*open(&sealed, &key).unwrap(), plain, "{length}");
            assert_eq!(open(&sealed, &other).unwrap_err(), Closed::OtherKey);
            assert!(length < 20 || !sealed.contains("xxxxxxxxxxxxxxxxxxxx"));
        }
    }

    #[test]
    fn whatever_was_changed_is_noticed() {
        let key = Identity::new().unwrap();
        let whole = bare(&seal(b"some words that matter", &key).unwrap()).unwrap();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            assert!(open(&armour(&changed), &key).is_err(), "byte {at}");
            assert!(open(&armour(&whole[..at]), &key).is_err(), "cut at {at}");
        }
        assert!(open(&armour(&[&whole[..], b"x"].concat()), &key).is_err());
        for strange in
            ["", "hello", BEGIN, "-----BEGIN AGE ENCRYPTED FILE-----\n!\n-----END AGE ENCRYPTED FILE-----"]
        {
            assert_eq!(open(strange, &key).unwrap_err(), Closed::NotAge, "{strange}");
        }
    }

    #[test]
    fn a_key_is_never_shown() {
        let key = Identity::parse(KEY).unwrap();
        assert_eq!(format!("{key:?}"), "Identity");
        assert!(Identity::parse("hunter2").is_none() && Identity::parse("").is_none());
    }
}
