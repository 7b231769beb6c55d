//! Age files: reading never panics, and what was encrypted is decrypted unchanged.

#![no_main]

use libfuzzer_sys::fuzz_target;
use toolcrib_cli::fuzzing::{age_round_trip, read_age};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        read_age(text);
        read_age(&format!("-----BEGIN AGE ENCRYPTED FILE-----\n{text}\n-----END AGE ENCRYPTED FILE-----\n"));
    }
    if let Some(plain) = age_round_trip(bytes) {
        assert_eq!(plain, bytes);
    }
});
