//! Entry points for the fuzz targets in `fuzz/`. They are no part of any interface.

use crate::admin;
use crate::secrets::fuzzing;

/// Reads an age file. Must not panic.
pub fn read_age(text: &str) {
    fuzzing::read_age(text);
}

/// Encrypts and decrypts a text. Returns the decrypted text, or `None` without random numbers.
pub fn age_round_trip(plain: &[u8]) -> Option<Vec<u8>> {
    fuzzing::age_round_trip(plain)
}

/// Reads the header fields and the body of a D-Bus message. Must not panic.
pub fn read_dbus_message(bytes: &[u8]) {
    fuzzing::read_dbus_message(bytes);
}

/// Splits the path of an admin request into its segments.
pub fn admin_segments(path: &str) -> Vec<String> {
    admin::parse_path(path).into_iter().map(std::borrow::Cow::into_owned).collect()
}
