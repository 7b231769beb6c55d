//! Servers that answer the request for a list with an error: they are up, and the list is requested again.

use std::time::Duration;

use serde_json::json;
use tokio::time::advance;
use toolcrib::{Call, Catalog, Crib, ListKind, ServerCard, ServerState, Sharing};

use crate::fake::FakeServer;
use crate::support::{SECOND, crib, id, names, settle, spec, status, with};

const REFUSED: &str =
    r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32050,"message":"no token","data":{"login":"https://x"}}}"#;
const CAPABILITIES: &str = r#"{"jsonrpc":"2.0","id":$ID,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{},"resources":{}}}}"#;
const PROMPTS: &str = r#"{"jsonrpc":"2.0","id":$ID,"result":{"prompts":[{"name":"p"}]}}"#;
const MORE_PROMPTS: &str = r#"{"jsonrpc":"2.0","id":$ID,"result":{"prompts":[{"name":"p"},{"name":"q"}]}}"#;
const RESOURCES: &str = r#"{"jsonrpc":"2.0","id":$ID,"result":{"resources":[{"uri":"x:1","name":"x"}]}}"#;
const CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;

fn prompts(catalog: &Catalog) -> Vec<String> {
    catalog.prompts().iter().map(|prompt| prompt.public_name.to_string()).collect()
}

/// A server with all lists, whose first answers to `tools/list` are errors.
fn refusing(times: usize) -> FakeServer {
    FakeServer::new()
        .script("initialize", &[CAPABILITIES])
        .script("tools/list", &vec![REFUSED; times])
        .script("prompts/list", &[PROMPTS; 100])
        .script("resources/list", &[RESOURCES; 100])
}

#[tokio::test(start_paused = true)]
async fn server_without_a_tool_list_is_up_and_callable() {
    let refusing = refusing(3);
    let good = FakeServer::with_tools(&["t"]);
    let crib = crib(&[("bad", &refusing), ("good", &good)]);
    let listed = crib.list().await;
    assert_eq!((names(&listed), prompts(&listed)), (vec!["good__t".to_owned()], vec!["bad__p".to_owned()]));
    assert_eq!((status(&crib, "bad").state, refusing.starts()), (ServerState::Ready, 1));
    assert_eq!(status(&crib, "bad").tools, None);
    let shown = &status(&crib, "bad").listing_errors[0];
    assert_eq!((shown.list, shown.code, &*shown.message), (ListKind::Tools, Some(-32050), "no token"));
    assert_eq!(shown.data.as_deref(), Some(&br#"{"login":"https://x"}"#[..]));
    let discovered = crib.discover().await;
    let error = discovered[0].tools.as_ref().unwrap_err();
    assert_eq!(error.to_string(), "`bad` cannot list its tools: no token");
    assert_eq!(crib.call(with("bad", "echo", &json!({"x": 1}))).await.unwrap().text(), r#"{"x":1}"#);
    // Tried again after 1, 2 and 4 seconds.
    for (wait, requests) in [(1, 2), (2, 3), (4, 4)] {
        advance(wait * SECOND).await;
        settle().await;
        assert_eq!(refusing.received("tools/list").len(), requests);
    }
    assert!(names(&crib.list().await).contains(&"bad__echo".to_owned()));
    assert_eq!((refusing.starts(), status(&crib, "bad").listing_errors.len()), (1, 0));
    crib.call(Call::tool("bad__echo")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn last_known_list_stays_when_the_next_one_fails() {
    let fake = FakeServer::new()
        .script("initialize", &[CAPABILITIES])
        .script("prompts/list", &[PROMPTS; 3])
        .script("resources/list", &[RESOURCES; 3]);
    let crib = crib(&[("git", &fake)]);
    let before = names(&crib.list().await);
    let fake = fake.script("tools/list", &[REFUSED]);
    crib.call(with("git", "say", &json!({"lines": [CHANGED, r#"{"jsonrpc":"2.0","id":$ID,"result":{}}"#]})))
        .await
        .unwrap();
    settle().await;
    assert_eq!(fake.received("tools/list").len(), 2);
    assert_eq!((names(&crib.list().await), status(&crib, "git").state), (before, ServerState::Ready));
    assert_eq!(status(&crib, "git").listing_errors.len(), 1);
    let discovered = crib.discover().await;
    assert!(discovered[0].tools.is_ok() && discovered[0].listing_error.is_some());
}

#[tokio::test(start_paused = true)]
async fn sleeping_server_without_known_tools_is_discovered_again() {
    for sharing in [Sharing::Shared, Sharing::PerClient] {
        let fake = FakeServer::new().script("tools/list", &[REFUSED]);
        let crib = Crib::builder().server(spec("git", &fake).sharing(sharing)).build().unwrap();
        assert!(names(&crib.list().await).is_empty());
        crib.stop(&id("git")).await.unwrap();
        crib.list().await;
        settle().await;
        assert_eq!((fake.starts(), status(&crib, "git").listing_errors.len()), (1, 1), "{sharing:?}");
        advance(300 * SECOND).await;
        crib.list().await;
        let mut catalog = crib.watch_catalog();
        catalog.wait_for(|catalog| !catalog.tools().is_empty()).await.unwrap();
        assert_eq!(fake.starts(), 2);
        crib.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test(start_paused = true)]
async fn declared_tools_stay_while_the_server_cannot_list() {
    let fake = FakeServer::new().script("tools/list", &[REFUSED; 10]);
    let card = ServerCard::new().tool(&json!({"name": "echo"})).unwrap();
    let crib = Crib::builder().server(spec("git", &fake).card(card)).build().unwrap();
    crib.call(with("git", "echo", &json!({}))).await.unwrap();
    settle().await;
    assert_eq!(names(&crib.list().await), ["git__echo"]);
    assert_eq!(status(&crib, "git").listing_errors.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn failed_prompt_list_is_requested_again() {
    let fake = FakeServer::new()
        .script("initialize", &[CAPABILITIES])
        .script("prompts/list", &[REFUSED, REFUSED, MORE_PROMPTS])
        .script("resources/list", &[RESOURCES; 100]);
    let crib = crib(&[("git", &fake)]);
    assert_eq!(prompts(&*crib.list().await), Vec::<String>::new());
    advance(SECOND).await;
    settle().await;
    advance(2 * SECOND).await;
    settle().await;
    assert_eq!(prompts(&*crib.list().await), ["git__p", "git__q"]);
    assert_eq!((fake.received("prompts/list").len(), fake.received("tools/list").len()), (3, 1));
    advance(100 * SECOND).await;
    settle().await;
    assert_eq!(fake.received("prompts/list").len(), 3, "not requested again once it is known");
}
