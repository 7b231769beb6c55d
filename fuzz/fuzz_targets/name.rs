//! Names: every server name that is taken makes public names that every model API takes, always the same ones.

#![no_main]

use libfuzzer_sys::fuzz_target;
use toolcrib::ServerId;
use toolcrib::catalog::name::{LONGEST, SEPARATOR, public};

fuzz_target!(|input: (&str, &str, &str)| {
    let (server, tool, other) = input;
    let Ok(server) = server.parse::<ServerId>() else { return };
    assert!(!server.as_str().contains(SEPARATOR) && !server.as_str().ends_with('_'));
    let name = public(&server, tool);
    assert!(!name.is_empty() && name.len() <= LONGEST);
    assert!(name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-'));
    assert_eq!(name, public(&server, tool));
    assert_eq!(name.split_once(SEPARATOR).map(|(before, _)| before), Some(server.as_str()));
    assert_eq!(tool == other, name == public(&server, other), "{tool:?} and {other:?} are both {name}");
});
