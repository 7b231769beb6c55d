//! Tests of the decoded forms of URIs, and the random test of denials.

mod never_bypassed;

use super::*;

#[test]
fn decoded_forms_covers_every_reading_of_a_uri() {
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
    for (uri, forms) in rows {
        let expected = forms.map(|forms| forms.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(decoded_forms(uri), expected, "{uri}");
    }
}
