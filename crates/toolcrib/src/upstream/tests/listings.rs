//! Listings besides tools.

use tokio::time::Instant;

use super::*;
use crate::model::listing::ListedItem;
use crate::protocol::list_kind::ListKind;

/// A session-era server with one tool and these capabilities.
fn server_with(capabilities: &str) -> FakeServer {
    let initialize = format!(
        r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"protocolVersion":"2025-11-25","capabilities":{capabilities},"instructions":"be kind"}}}}"#
    );
    FakeServer::with_tools(&["t"]).script("initialize", &[&initialize])
}

fn response(result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{result}}}"#)
}

async fn listing(fake: &FakeServer) -> Listing {
    try_connect(&spec(fake), None).await.unwrap().1
}

fn names(listed: &[ListedItem]) -> Vec<&str> {
    listed.iter().map(|listed| &*listed.name).collect()
}

const ALL: &str = r#"{"tools":{},"prompts":{},"resources":{ "subscribe":true}}"#;
const ERROR: &str = r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32603,"message":"no"}}"#;

#[tokio::test(start_paused = true)]
async fn every_page_of_every_list_is_read() {
    let fake = server_with(ALL)
        .script("prompts/list", &[&response(r#"{"prompts":[{"name":"p"}]}"#)])
        .script(
            "resources/list",
            &[
                &response(r#"{"resources":[{"uri":"x://1","name":"n"}],"nextCursor":""}"#),
                &response(r#"{"resources":[{"uri":"x://2"},{"name":"no address"}]}"#),
            ],
        )
        .script(
            "resources/templates/list",
            &[&response(r#"{"resourceTemplates":[{"uriTemplate":"x://{n}"}]}"#)],
        );
    let listing = listing(&fake).await;
    let all = ListKind::ALL.map(|kind| names(listing.items(kind)));
    assert_eq!(all, [vec!["t"], vec!["p"], vec!["x://1", "x://2"], vec!["x://{n}"]]);
    assert_eq!((&*listing.capabilities, listing.instructions.as_deref()), (ALL.as_bytes(), Some("be kind")));
}

#[tokio::test(start_paused = true)]
async fn only_declared_lists_are_fetched() {
    let fake = server_with(r#"{"tools":{},"logging":{}}"#);
    listing(&fake).await;
    for kind in [ListKind::Prompts, ListKind::Resources, ListKind::Templates] {
        assert!(fake.received(kind.method()).is_empty(), "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn refused_list_is_unknown_and_does_not_fail_the_start() {
    let fake = server_with(ALL)
        .script("prompts/list", &[ERROR])
        .script("resources/list", &[&response(r#"{"resources":[{"uri":"x://1"}]}"#)]);
    let found = listing(&fake).await;
    assert_eq!(names(&found.tools), ["t"]);
    assert_eq!((found.prompts.len(), names(&found.resources), found.templates.len()), (0, vec!["x://1"], 0));
    let unknown = |listing: &Listing| ListKind::ALL.map(|kind| listing.unknown_list(kind).is_some());
    assert_eq!(unknown(&found), [false, true, false, false]);
    let found = listing(&server_with(r#"{"tools":{}}"#).script("tools/list", &[ERROR])).await;
    assert_eq!(unknown(&found), [true, false, false, false]);
    let failure = found.unknown_list(ListKind::Tools).unwrap();
    assert_eq!(&*failure.error, br#"{"code":-32603,"message":"no"}"#);
    assert!(failure.cause.is_none());
}

#[tokio::test(start_paused = true)]
async fn unanswered_list_delays_the_listing_briefly() {
    let page = response(r#"{"resources":[{"uri":"x://1"}]}"#);
    // Not a response.
    let notification = r#"{"jsonrpc":"2.0","method":"notifications/nothing"}"#;
    let fake = server_with(ALL).script("prompts/list", &[notification]).script("resources/list", &[&page]);
    let before = Instant::now();
    let found = listing(&fake).await;
    assert_eq!(
        (before.elapsed().as_secs(), names(&found.tools), names(&found.resources)),
        (5, vec!["t"], vec!["x://1"])
    );
}

#[tokio::test(start_paused = true)]
async fn server_that_refuses_discovery_is_asked_for_all_lists() {
    let refusal = r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32021,"message":"who are you?"}}"#;
    let fake = FakeServer::with_tools(&["t"]).script("server/discover", &[refusal]);
    let (connection, found) = try_connect(&spec(&fake), None).await.unwrap();
    assert_eq!(connection.handshake.revision, Revision::V2026_07_28);
    assert_eq!((names(&found.tools), found.prompts.len()), (vec!["t"], 0));
    assert!(fake.received("initialize").is_empty());
}

#[tokio::test(start_paused = true)]
async fn long_list_and_large_definitions_are_left_out() {
    let large = format!(r#"{{"name":"large","description":"{}"}}"#, "x".repeat(2000));
    let lookalike = r#"{"name":"odd","description":"good","Description":"evil"}"#;
    let pages = [
        response(&format!(
            r#"{{"tools":[{{"name":"a"}},{large},{lookalike},{{"name":"b"}}],"nextCursor":"2"}}"#
        )),
        response(r#"{"tools":[{"name":"c"},{"name":"d"}],"nextCursor":"3"}"#),
        response(r#"{"tools":[{"name":"e"}]}"#),
    ];
    let fake = server_with(ALL).script("tools/list", &pages.each_ref().map(String::as_str));
    let mut spec = spec(&fake);
    spec.limits.tools = 3;
    spec.limits.definition = 1000;
    let found = try_connect(&spec, None).await.unwrap().1;
    assert_eq!(names(&found.tools), ["a", "b", "c"]);
    assert_eq!(fake.received("tools/list").len(), 2, "no page is requested that would be left out");
    assert_eq!(
        found.left_out[ListKind::Tools as usize],
        [
            "its tools after the first 3 are left out: `limits.tools`",
            "1 of its tools are left out: larger than 1000 bytes, `limits.definition`",
            "1 items of the tool list have no usable name or ambiguous members"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn page_with_a_lookalike_member_is_refused() {
    let page = response(r#"{"tools":[{"name":"a"}],"NextCursor":"2"}"#);
    let fake = server_with(ALL).script("tools/list", &[&page]);
    let failure = try_connect(&spec(&fake), None).await.unwrap_err();
    assert!(failure.error.to_string().contains("`result.NextCursor` is refused"), "{}", failure.error);
}
