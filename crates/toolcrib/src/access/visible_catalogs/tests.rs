//! Tests of rules over resources in many spellings, and the random test of denials.

mod never_bypassed;

use bytes::Bytes;

use super::*;
use crate::access::policy::Rules;
use crate::catalog::Catalog;
use crate::model::listing::{ListedItem, Listing};

fn policy(deny: &str) -> Policy {
    Policy::for_everyone(Rules::default().denying([deny.parse().unwrap()]))
}

/// Returns the catalog of a server that lists these templates.
fn catalog_with_templates(templates: &[&str]) -> Catalog {
    let item = |template: &&str| {
        let text = format!(r#"{{"uriTemplate":"{template}","name":"x"}}"#);
        ListedItem::parse(ListKind::Templates, Bytes::from(text)).unwrap()
    };
    let listing = Listing { templates: templates.iter().map(item).collect(), ..Listing::default() };
    Catalog::build(1, &[("a".parse().unwrap(), Some(Arc::new(listing)))].into())
}

/// Authorizes a request to a server that lists templates for every URI in these tests.
fn authorize_request(policy: &Policy, method: &'static str, name: &str, params: &str) -> Result<(), Error> {
    let server: ServerId = "a".parse().unwrap();
    let params = Object::parse(&Bytes::copy_from_slice(params.as_bytes())).unwrap();
    let call = Call::request(method, Selector::OnServer(server.clone(), name.to_owned()), params);
    let target = Target { server, name: name.into() };
    let visible = catalog_with_templates(&["{+any}", "file:///{+path}"]);
    let unknown = || visible.unknown_server_error("a");
    authorize(policy, &visible, &call, &target, |_| None, unknown)
}

fn can_read(deny: &str, uri: &str) -> bool {
    authorize_request(&policy(deny), "resources/read", uri, "{}").is_ok()
}

#[test]
fn denied_resource_is_denied_in_every_spelling() {
    for deny in ["a.file:///secret/*", "a.FILE:/secret/*", "a.file://localhost/secret/*", "a.*/secret/*"] {
        for uri in [
            "file:///secret/b",
            "FILE:///secret/b",
            "file:/secret/b",
            "file:////secret/b",
            "file://localhost/secret/b",
            "file://Other/secret/b",
            r"file:///secret\b",
            "file:///%73ecret/b",
            "file:///%73ecret/%FF",
            "file:///pub/../secret/b",
            "file:///pub/%2e%2e/secret/b",
            " file:///secret/b",
            "file:///secret//b",
        ] {
            assert!(!can_read(deny, uri), "{deny} {uri}");
        }
        for uri in ["file:///pub/b", "file:///secretary/b", "note:secret", "file:///pub/%41"] {
            assert!(can_read(deny, uri), "{deny} {uri}");
        }
    }
    assert!(!can_read("a.https://example.com/x*", "HTTPS://Example.COM:443//x"));
    for (deny, uri) in [
        ("a.file:///secret/*", "file:///Secret/b"),
        ("a.file:///Secret/*", "FILE:/SECRET/b"),
        ("a.file:///geh\u{e9}im/*", "file:///gehe\u{301}im/b"),
        ("a.file:///gehe\u{301}im/*", "file:///Geh%C3%89im/b"),
        ("a.*/secret/*", "file:///x/SECRET/b"),
    ] {
        assert!(!can_read(deny, uri), "{deny} {uri}");
    }
    assert!(!can_read("a.note://one", "note:///one") && !can_read("a.note://one", "NOTE://one?q"));
}

#[test]
fn allowed_uri_is_allowed_only_as_written() {
    let policy = Policy::for_everyone(Rules::default().allowing(["a.file:///pub/*".parse().unwrap()]));
    let can_read = |uri: &str| authorize_request(&policy, "resources/read", uri, "{}").is_ok();
    assert!(can_read("file:///pub/a"));
    for uri in ["file:///Pub/a", "FILE:///pub/a", "file:/pub/a"] {
        assert!(!can_read(uri), "{uri}");
    }
}

#[test]
fn unlisted_uri_is_denied_where_uris_are_denied() {
    let visible = catalog_with_templates(&["note://{id}"]);
    let server: ServerId = "a".parse().unwrap();
    let request = |policy: &Policy, method: &'static str, name: &str| {
        let call =
            Call::request(method, Selector::OnServer(server.clone(), name.to_owned()), Object::default());
        let target = Target { server: server.clone(), name: name.into() };
        authorize(policy, &visible, &call, &target, |_| None, || visible.unknown_server_error("a"))
    };
    let uris = policy("a.note://private*");
    let tools = policy("a.push");
    for (name, fits) in [("note://one", true), ("note:one", false), ("other:one", false)] {
        for method in ["resources/read", SUBSCRIBE] {
            assert_eq!(request(&uris, method, name).is_ok(), fits, "{method} {name}");
            assert!(request(&tools, method, name).is_ok(), "no rule concerns URIs: {method} {name}");
        }
    }
    assert!(request(&uris, "completion/complete", "note://{id}").is_ok());
    assert!(request(&uris, "completion/complete", "note://{+id}").is_err());
}

#[test]
fn uri_that_cannot_be_judged_is_denied() {
    let nested = format!("file:///%{}41", "25".repeat(5));
    let error = authorize_request(&policy("a.x"), "resources/read", &nested, "{}").unwrap_err();
    assert!(error.to_string().contains("is percent-encoded more than 4 times"), "{error}");
    let long = format!("file:///{}", "%25".repeat(100_000));
    let error = authorize_request(&policy("a.x"), "resources/read", &long, "{}").unwrap_err();
    assert!(
        error.to_string().contains("is longer than 8192 bytes") && error.to_string().len() < 500,
        "{error}"
    );
    assert!(
        authorize_request(&policy("other.x"), "resources/read", &long, "{}").is_ok(),
        "no rule concerns it"
    );
}

#[test]
fn completion_is_judged_by_the_completed_uri() {
    let complete = |template: &str, value: &str| {
        let params = format!(
            r#"{{"ref":{{"type":"ref/resource","uri":"{template}"}},"argument":{{"name":"path","value":"{value}"}},"context":{{"arguments":{{"root":"secret"}}}}}}"#
        );
        authorize_request(&policy("a.file:///secret/*"), "completion/complete", template, &params).is_ok()
    };
    assert!(complete("file:///{+path}", "pub/"));
    assert!(!complete("file:///{+path}", "secret/") && !complete("file:///{+path}", "%73ecret/x"));
    assert!(!complete("file:///{root}/{path}", "x"));
}

#[test]
fn approval_is_required_in_every_spelling() {
    let policy = Policy::for_everyone(Rules::default().asking(["a.note://one".parse().unwrap()]));
    for uri in ["note://one", "NOTE://one", "note://%6Fne", "note:///one"] {
        let server: ServerId = "a".parse().unwrap();
        let selector = Selector::OnServer(server.clone(), uri.to_owned());
        let call = Call::request("resources/read", selector, Object::default());
        let target = Target { server, name: uri.into() };
        assert!(required_approval(&policy, &call, &target).is_some(), "{uri}");
    }
}
