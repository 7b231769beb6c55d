//! The first words with servers of either era, and listings in every shape.

use super::*;
use crate::spec::EraChoice;
use crate::wire::revision::Era;

async fn names(fake: &Fake) -> Vec<String> {
    let (_, listing) = launched(&spec(fake), None).await.unwrap();
    listing.tools.iter().map(|tool| tool.name.to_string()).collect()
}

async fn refusal(spec: &ServerSpec, remembered: Option<Revision>) -> StartFailure {
    launched(spec, remembered).await.unwrap_err()
}

#[tokio::test(start_paused = true)]
async fn a_session_server_that_refuses_the_probe_is_kept() {
    let fake = Fake::new();
    let connection = connected(&spec(&fake)).await;
    assert_eq!((fake.starts(), connection.welcome.revision), (1, Revision::V2025_11_25));
    assert_eq!(fake.heard("notifications/initialized").len(), 1);
    call(&connection, "echo", Value::Null).await.unwrap();
    assert!(fake.heard("tools/call")[0]["params"].get("_meta").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_stateless_server_is_greeted_once_and_never_offered_a_session() {
    let fake = Fake::new().usually(Boot::Stateless);
    let connection = connected(&spec(&fake)).await;
    assert_eq!(connection.welcome.revision, Revision::V2026_07_28);
    assert!(fake.heard("initialize").is_empty() && fake.heard("notifications/initialized").is_empty());
    call(&connection, "echo", Value::Null).await.unwrap();
    let meta = &fake.heard("tools/call")[0]["params"]["_meta"];
    assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_silent_on_the_probe_is_offered_a_session_on_the_same_pipe() {
    let fake = Fake::new().usually(Boot::SilentOnProbe);
    let before = Instant::now();
    let connection = connected(&spec(&fake)).await;
    assert_eq!((fake.starts(), before.elapsed().as_secs()), (1, 2));
    assert_eq!(connection.welcome.revision.era(), Era::Session);
    assert!(fake.heard("notifications/cancelled").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_lists_only_old_revisions_means_a_session() {
    let refused = r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32022,"message":"no","data":{"supported":["2025-06-18"]}}}"#;
    let fake = Fake::new().script("server/discover", &[refused]);
    let connection = connected(&spec(&fake)).await;
    assert_eq!((fake.starts(), connection.welcome.revision.era()), (1, Era::Session));
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_the_probe_that_makes_no_sense_means_a_session() {
    let answers = [
        r#"{"jsonrpc":"2.0","id":$ID,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":"$ID","result":{}}"#,
        r#"{"jsonrpc":"2.0","id":$ID,"result":{"supportedVersions":"all"}}"#,
    ];
    for answer in answers {
        let fake = Fake::new().script("server/discover", &[answer]);
        assert_eq!(connected(&spec(&fake)).await.welcome.revision.era(), Era::Session, "{answer}");
        assert_eq!(fake.starts(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_on_the_probe_is_started_once_more() {
    let fake = Fake::new().usually(Boot::DiesOnProbe);
    let connection = connected(&spec(&fake)).await;
    assert_eq!((fake.starts(), fake.living()), (2, (1, 1)));
    assert_eq!((fake.heard("server/discover").len(), fake.heard("initialize").len()), (1, 1));
    call(&connection, "echo", Value::Null).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stateless_server_that_dies_by_accident_when_probed_is_still_found_to_be_one() {
    let refused = r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32601,"message":"no such method"}}"#;
    let fake = Fake::new().usually(Boot::Stateless).boots(&[Boot::Dies]).script("initialize", &[refused]);
    let connection = connected(&spec(&fake)).await;
    assert_eq!((fake.starts(), connection.welcome.revision), (2, Revision::V2026_07_28));
}

#[tokio::test(start_paused = true)]
async fn a_remembered_session_server_is_not_probed_again() {
    let fake = Fake::new().usually(Boot::DiesOnProbe);
    launched(&spec(&fake), Some(Revision::V2025_06_18)).await.unwrap();
    assert_eq!((fake.starts(), fake.heard("server/discover").len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_remembered_session_server_that_has_moved_to_the_stateless_era_is_found_out() {
    let refused = r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32601,"message":"no such method"}}"#;
    let fake = Fake::new().usually(Boot::Stateless).script("initialize", &[refused]);
    let (connection, _) = launched(&spec(&fake), Some(Revision::V2025_11_25)).await.unwrap();
    assert_eq!((fake.starts(), connection.welcome.revision), (1, Revision::V2026_07_28));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_on_the_probe_and_on_the_greeting_is_a_failed_start() {
    let fake = Fake::new().usually(Boot::Dies);
    let failure = refusal(&spec(&fake), None).await;
    assert_eq!(failure.error.class(), Some(FailureClass::Crashed));
    assert_eq!((failure.error.kind(), fake.starts()), (ErrorKind::CouldNotStart, 2));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_a_session_is_a_failed_start_that_says_why() {
    let fake = Fake::new()
        .script("initialize", &[r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":1,"message":"go away"}}"#]);
    let failure = refusal(&spec(&fake), None).await;
    assert_eq!(failure.error.class(), Some(FailureClass::Refused));
    assert!(failure.error.to_string().contains("go away"), "{}", failure.error);
}

#[tokio::test(start_paused = true)]
async fn a_fixed_era_is_not_negotiated() {
    let fake = Fake::new();
    let failure = refusal(&spec(&fake).era(EraChoice::Era(Era::Stateless)), None).await;
    assert!(failure.error.to_string().contains("stateless"), "{}", failure.error);
    let fake = Fake::new().usually(Boot::Stateless);
    connected(&spec(&fake).era(EraChoice::Revision(Revision::V2025_03_26))).await;
    assert_eq!(fake.heard("initialize")[0]["params"]["protocolVersion"], "2025-03-26");
    assert!(fake.heard("server/discover").is_empty());
}

#[tokio::test(start_paused = true)]
async fn every_page_of_a_listing_is_read_and_an_empty_cursor_is_one() {
    let pages = [
        r#"{"jsonrpc":"2.0","id":$ID,"result":{"tools":[{"name":"a"}],"nextCursor":""}}"#,
        r#"{"jsonrpc":"2.0","id":$ID,"result":{"tools":[],"nextCursor":"x"}}"#,
        r#"{"jsonrpc":"2.0","id":$ID,"result":{"tools":[{"name":"b"},{"name":"c"}],"nextCursor":null}}"#,
    ];
    let fake = Fake::new().script("tools/list", &pages);
    assert_eq!(names(&fake).await, ["a", "b", "c"]);
    let cursors: Vec<Value> =
        fake.heard("tools/list").iter().map(|page| page["params"]["cursor"].clone()).collect();
    assert_eq!(cursors, [Value::Null, json!(""), json!("x")]);
}

#[tokio::test(start_paused = true)]
async fn a_listing_that_runs_in_a_circle_is_a_failed_start() {
    let page = r#"{"jsonrpc":"2.0","id":$ID,"result":{"tools":[],"nextCursor":"again"}}"#;
    let fake = Fake::new().script("tools/list", &[page; 5]);
    let failure = refusal(&spec(&fake), None).await;
    assert!(failure.error.to_string().contains("runs in a circle"), "{}", failure.error);
    assert_eq!(fake.heard("tools/list").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn one_bad_tool_costs_only_itself() {
    let page = r#"{"jsonrpc":"2.0","id":$ID,"result":{"tools":[{"name":"a"},{"name":7},{},[],null,{"name":"x","name":"y"},{"name":"b","inputSchema":1e400}]}}"#;
    assert_eq!(names(&Fake::new().script("tools/list", &[page])).await, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_without_tools_is_not_asked_for_any() {
    let welcome = r#"{"jsonrpc":"2.0","id":$ID,"result":{"protocolVersion":"2025-06-18","capabilities":{"prompts":{}}}}"#;
    let fake = Fake::new().script("initialize", &[welcome]);
    assert!(names(&fake).await.is_empty());
    assert!(fake.heard("tools/list").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_start_that_is_given_up_leaves_nothing() {
    for boot in [Boot::Silent, Boot::SilentOnProbe, Boot::Late(20 * SECOND)] {
        let fake = Fake::new().usually(boot);
        assert!(timeout(SECOND, launched(&spec(&fake), None)).await.is_err());
        breath().await;
        assert_eq!((fake.starts(), fake.living().0), (1, 0), "{boot:?}");
    }
}
