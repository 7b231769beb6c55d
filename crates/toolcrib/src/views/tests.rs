//! How addresses are judged, and that nothing gets past.

mod never_bypassed;

use super::*;

#[test]
fn an_address_is_judged_as_servers_would_read_it() {
    for (written, read) in [
        ("file:///etc/passwd", Some("file:///etc/passwd")),
        ("file:///a/%65tc%2Fpasswd", Some("file:///a/etc/passwd")),
        ("file:///%2565tc", Some("file:///etc")),
        ("file:///a..b/.c", Some("file:///a..b/.c")),
        ("note:one", Some("note:one")),
        ("100%", Some("100%")),
        ("file:///a/../etc/passwd", None),
        ("file:///a/%2e%2E/etc", None),
        ("file:///./etc", None),
        ("..\\etc", None),
    ] {
        assert_eq!(plain(written).as_deref(), read, "{written}");
    }
}
