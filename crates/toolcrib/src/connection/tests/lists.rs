//! What a server offers besides tools: all of it, and none of it at the price of the tools.

use tokio::time::Instant;

use super::*;
use crate::connection::listing::Listed;
use crate::wire::kind::Kind;

/// A session-era server with one tool that declares these.
fn declaring(capabilities: &str) -> Fake {
    let welcome = format!(
        r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"protocolVersion":"2025-11-25","capabilities":{capabilities},"instructions":"be kind"}}}}"#
    );
    Fake::offering(&["t"]).script("initialize", &[&welcome])
}

fn page(result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{result}}}"#)
}

async fn listing(fake: &Fake) -> Listing {
    launched(&spec(fake), None).await.unwrap().1
}

fn names(listed: &[Listed]) -> Vec<&str> {
    listed.iter().map(|listed| &*listed.name).collect()
}

const ALL: &str = r#"{"tools":{},"prompts":{},"resources":{ "subscribe":true}}"#;
const NO: &str = r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32603,"message":"no"}}"#;

#[tokio::test(start_paused = true)]
async fn every_page_of_every_list_is_read() {
    let fake = declaring(ALL)
        .script("prompts/list", &[&page(r#"{"prompts":[{"name":"p"}]}"#)])
        .script(
            "resources/list",
            &[
                &page(r#"{"resources":[{"uri":"x://1","name":"n"}],"nextCursor":""}"#),
                &page(r#"{"resources":[{"uri":"x://2"},{"name":"no address"}]}"#),
            ],
        )
        .script("resources/templates/list", &[&page(r#"{"resourceTemplates":[{"uriTemplate":"x://{n}"}]}"#)]);
    let listing = listing(&fake).await;
    let all = Kind::ALL.map(|kind| names(listing.of(kind)));
    assert_eq!(all, [vec!["t"], vec!["p"], vec!["x://1", "x://2"], vec!["x://{n}"]]);
    assert_eq!((&*listing.capabilities, listing.instructions.as_deref()), (ALL.as_bytes(), Some("be kind")));
}

#[tokio::test(start_paused = true)]
async fn a_server_is_asked_only_for_what_it_declares() {
    let fake = declaring(r#"{"tools":{},"logging":{}}"#);
    listing(&fake).await;
    for kind in [Kind::Prompts, Kind::Resources, Kind::Templates] {
        assert!(fake.heard(kind.method()).is_empty(), "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_costs_only_itself() {
    let fake = declaring(ALL)
        .script("prompts/list", &[NO])
        .script("resources/list", &[&page(r#"{"resources":[{"uri":"x://1"}]}"#)]);
    let found = listing(&fake).await;
    assert_eq!(names(&found.tools), ["t"]);
    assert_eq!((found.prompts.len(), names(&found.resources), found.templates.len()), (0, vec!["x://1"], 0));
    let failure = launched(&spec(&declaring(ALL).script("tools/list", &[NO])), None).await.unwrap_err();
    assert!(failure.error.to_string().contains("`tools/list` failed: no"), "{}", failure.error);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_never_comes_holds_nobody_up_for_long() {
    let page = page(r#"{"resources":[{"uri":"x://1"}]}"#);
    // A line that is no answer.
    let silence = r#"{"jsonrpc":"2.0","method":"notifications/nothing"}"#;
    let fake = declaring(ALL).script("prompts/list", &[silence]).script("resources/list", &[&page]);
    let before = Instant::now();
    let found = listing(&fake).await;
    assert_eq!(
        (before.elapsed().as_secs(), names(&found.tools), names(&found.resources)),
        (5, vec!["t"], vec!["x://1"])
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_to_be_discovered_is_asked_for_everything() {
    let refusal = r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32021,"message":"who are you?"}}"#;
    let fake = Fake::offering(&["t"]).script("server/discover", &[refusal]);
    let (connection, found) = launched(&spec(&fake), None).await.unwrap();
    assert_eq!(connection.welcome.revision, Revision::V2026_07_28);
    assert_eq!((names(&found.tools), found.prompts.len()), (vec!["t"], 0));
    assert!(fake.heard("initialize").is_empty());
}
