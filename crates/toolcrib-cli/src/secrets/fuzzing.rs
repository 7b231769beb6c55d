//! Parsers of secrets for the fuzz targets, which cannot reach private modules.

use super::age::{self, AgeIdentity};
use super::dbus;
use super::marshal::DbusReader;

/// Reads an age file. Must not panic.
pub(crate) fn read_age(text: &str) {
    let _ = AgeIdentity::parse(text);
    if let Ok(identity) = AgeIdentity::generate() {
        let _ = age::decrypt(text, &identity);
    }
}

/// Encrypts and decrypts a text. Returns the decrypted text.
pub(crate) fn age_round_trip(plain: &[u8]) -> Option<Vec<u8>> {
    let identity = AgeIdentity::generate().ok()?;
    let encrypted = age::encrypt(plain, &identity).ok()?;
    age::decrypt(&encrypted, &identity).ok().map(|plain| plain.to_vec())
}

/// Reads the header fields and the body of a D-Bus message. Must not panic.
pub(crate) fn read_dbus_message(bytes: &[u8]) {
    let _ = dbus::parse_fields(bytes);
    let mut reader = DbusReader::new(bytes.to_vec());
    let _ = reader.read_string_map();
    let _ = reader.read_array(8, |reader| Some((reader.read_signature()?, reader.read_bool()?)));
    let _ = reader.read_bytes();
}
