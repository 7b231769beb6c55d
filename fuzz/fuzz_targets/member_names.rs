//! Members that some readers take for another: no name that differs from a known one only in case or in a trailing NUL passes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use toolcrib::protocol::json::object::Object;
use toolcrib::protocol::member_names::check_params;

const KNOWN: [&str; 7] = ["name", "arguments", "uri", "taskId", "ref", "cursor", "_meta"];

fuzz_target!(|bytes: &[u8]| {
    let Ok(params) = Object::parse(&bytes.to_vec().into()) else { return };
    let is_lookalike = |name: &str| {
        let read = name.trim_end_matches('\0');
        KNOWN.iter().any(|known| read.eq_ignore_ascii_case(known) && name != *known)
    };
    if params.iter().any(|(name, _)| is_lookalike(name)) {
        assert!(check_params(&params).is_err(), "{params:?}");
    }
});
