//! Public names: valid for every model API, deterministic, and different for different tools.

#![no_main]

use libfuzzer_sys::fuzz_target;
use toolcrib::ServerId;
use toolcrib::catalog::public_name::{MAX_LENGTH, SEPARATOR, public_name};

fuzz_target!(|input: (&str, &str, &str)| {
    let (server, tool, other) = input;
    let Ok(server) = server.parse::<ServerId>() else { return };
    assert!(!server.as_str().contains(SEPARATOR) && !server.as_str().ends_with('_'));
    let name = public_name(&server, tool);
    assert!(!name.is_empty() && name.len() <= MAX_LENGTH);
    assert!(name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-'));
    assert_eq!(name, public_name(&server, tool));
    assert_eq!(name.split_once(SEPARATOR).map(|(before, _)| before), Some(server.as_str()));
    assert_eq!(tool == other, name == public_name(&server, other), "{tool:?} and {other:?} are both {name}");
});
