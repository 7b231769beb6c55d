//! How addresses are judged, and that nothing gets past.

mod never_bypassed;

use super::*;

#[test]
fn an_address_is_judged_by_everything_that_servers_may_take_it_for() {
    let rows: [(&str, Option<&[&str]>); 11] = [
        ("file:///etc/passwd", Some(&[])),
        ("file:///a/%65tc%2Fpasswd", Some(&["file:///a/etc/passwd"])),
        ("file:///%2565tc", Some(&["file:///%65tc", "file:///etc"])),
        ("file:///%252565", Some(&["file:///%2565", "file:///%65", "file:///e"])),
        ("file:///a..b/.c", Some(&[])),
        ("note:one", Some(&[])),
        ("100%", Some(&[])),
        ("file:///a/../etc/passwd", None),
        ("file:///a/%2e%2E/etc", None),
        ("file:///./etc", None),
        ("..\\etc", None),
    ];
    for (written, read) in rows {
        let expected = read.map(|read| read.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(readings(written), expected, "{written}");
    }
}
