//! Paths of the admin API: every fixed segment has one spelling, so that a check of the path and its route agree.

#![no_main]

use libfuzzer_sys::fuzz_target;
use toolcrib_cli::fuzzing::admin_segments;

fuzz_target!(|path: &str| {
    let segments = admin_segments(path);
    if segments.iter().any(|segment| segment == "approve") && segments.first().is_some_and(|first| first == "api") {
        let name = segments.iter().position(|segment| segment == "approve");
        // The name of a server is the only segment that may be encoded.
        assert!(name == Some(3) || path.contains("approve"), "{path}");
    }
    assert_eq!(segments.len(), path.strip_prefix('/').unwrap_or_default().split('/').count(), "{path}");
});
