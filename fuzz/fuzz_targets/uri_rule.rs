//! Rules over URIs: the work is bounded for any URI, and a denied path is denied with any scheme case and any number of slashes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use toolcrib::{Caller, Policy, Rules, ServerId};

fuzz_target!(|input: (&str, u8)| {
    let (path, slashes) = input;
    let (Ok(rule), Ok(server)) = ("a.file:///secret/*".parse(), "a".parse::<ServerId>()) else { return };
    let policy = Policy::for_everyone(Rules::default().denying([rule]));
    let is_denied = |uri: &str| policy.authorize(&Caller::local(), &server, Some(uri)).is_err();
    let _ = is_denied(path);
    let is_plain = path.bytes().all(|byte| byte.is_ascii_alphanumeric()) && !path.is_empty();
    if is_plain && path.len() < 1000 {
        let slashes = "/".repeat(1 + usize::from(slashes));
        for scheme in ["file", "FILE", "fIlE"] {
            let uri = format!("{scheme}:{slashes}secret/{path}");
            assert!(is_denied(&uri), "{uri}");
        }
    }
});
