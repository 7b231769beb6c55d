//! Handshakes with servers of both eras, and listings.

use super::*;
use crate::protocol::versions::Era;
use crate::spec::EraChoice;

async fn tool_names(fake: &FakeServer) -> Vec<String> {
    let (_, listing) = try_connect(&spec(fake), None).await.unwrap();
    listing.tools.iter().map(|tool| tool.name.to_string()).collect()
}

async fn start_failure(spec: &ServerSpec, remembered: Option<Revision>) -> StartFailure {
    try_connect(spec, remembered).await.unwrap_err()
}

#[tokio::test(start_paused = true)]
async fn session_server_that_refuses_the_probe_is_kept() {
    let fake = FakeServer::new();
    let connection = connect(&spec(&fake)).await;
    assert_eq!((fake.starts(), connection.handshake.revision), (1, Revision::V2025_11_25));
    assert_eq!(fake.received("notifications/initialized").len(), 1);
    call(&connection, "echo", Value::Null).await.unwrap();
    assert!(fake.received("tools/call")[0]["params"].get("_meta").is_none());
}

#[tokio::test(start_paused = true)]
async fn stateless_server_is_probed_once_without_a_session() {
    let fake = FakeServer::new().default_start(FakeStart::Stateless);
    let connection = connect(&spec(&fake)).await;
    assert_eq!(connection.handshake.revision, Revision::V2026_07_28);
    assert!(fake.received("initialize").is_empty() && fake.received("notifications/initialized").is_empty());
    call(&connection, "echo", Value::Null).await.unwrap();
    let meta = &fake.received("tools/call")[0]["params"]["_meta"];
    assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
}

#[tokio::test(start_paused = true)]
async fn unanswered_probe_is_followed_by_initialize() {
    let fake = FakeServer::new().default_start(FakeStart::SilentOnProbe);
    let before = Instant::now();
    let connection = connect(&spec(&fake)).await;
    assert_eq!((fake.starts(), before.elapsed().as_secs()), (1, 2));
    assert_eq!(connection.handshake.revision.era(), Era::Session);
    assert!(fake.received("notifications/cancelled").is_empty());
}

#[tokio::test(start_paused = true)]
async fn probe_error_with_old_revisions_opens_a_session() {
    let refused = r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32022,"message":"no","data":{"supported":["2025-06-18"]}}}"#;
    let fake = FakeServer::new().script("server/discover", &[refused]);
    let connection = connect(&spec(&fake)).await;
    assert_eq!((fake.starts(), connection.handshake.revision.era()), (1, Era::Session));
}

#[tokio::test(start_paused = true)]
async fn invalid_probe_response_opens_a_session() {
    let answers = [
        r#"{"jsonrpc":"2.0","id":$ID,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":"$ID","result":{}}"#,
        r#"{"jsonrpc":"2.0","id":$ID,"result":{"supportedVersions":"all"}}"#,
    ];
    for answer in answers {
        let fake = FakeServer::new().script("server/discover", &[answer]);
        assert_eq!(connect(&spec(&fake)).await.handshake.revision.era(), Era::Session, "{answer}");
        assert_eq!(fake.starts(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn exit_on_probe_restarts_the_server_once() {
    let fake = FakeServer::new().default_start(FakeStart::ExitsOnProbe);
    let connection = connect(&spec(&fake)).await;
    assert_eq!((fake.starts(), fake.running_and_peak()), (2, (1, 1)));
    assert_eq!((fake.received("server/discover").len(), fake.received("initialize").len()), (1, 1));
    call(&connection, "echo", Value::Null).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn stateless_server_is_recognized_after_exit_on_probe() {
    let refused = r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32601,"message":"no such method"}}"#;
    let fake = FakeServer::new()
        .default_start(FakeStart::Stateless)
        .next_starts(&[FakeStart::Exits])
        .script("initialize", &[refused]);
    let connection = connect(&spec(&fake)).await;
    assert_eq!((fake.starts(), connection.handshake.revision), (2, Revision::V2026_07_28));
}

#[tokio::test(start_paused = true)]
async fn remembered_session_server_is_not_probed() {
    let fake = FakeServer::new().default_start(FakeStart::ExitsOnProbe);
    try_connect(&spec(&fake), Some(Revision::V2025_06_18)).await.unwrap();
    assert_eq!((fake.starts(), fake.received("server/discover").len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn remembered_session_server_may_become_stateless() {
    let refused = r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32601,"message":"no such method"}}"#;
    let fake = FakeServer::new().default_start(FakeStart::Stateless).script("initialize", &[refused]);
    let (connection, _) = try_connect(&spec(&fake), Some(Revision::V2025_11_25)).await.unwrap();
    assert_eq!((fake.starts(), connection.handshake.revision), (1, Revision::V2026_07_28));
}

#[tokio::test(start_paused = true)]
async fn exit_on_probe_and_initialize_fails_the_start() {
    let fake = FakeServer::new().default_start(FakeStart::Exits);
    let failure = start_failure(&spec(&fake), None).await;
    assert_eq!(failure.error.class(), Some(FailureClass::Crashed));
    assert_eq!((failure.error.kind(), fake.starts()), (ErrorKind::CouldNotStart, 2));
}

#[tokio::test(start_paused = true)]
async fn refused_session_fails_the_start_with_the_reason() {
    let fake = FakeServer::new()
        .script("initialize", &[r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":1,"message":"not today"}}"#]);
    let failure = start_failure(&spec(&fake), None).await;
    assert_eq!(failure.error.class(), Some(FailureClass::Refused));
    assert!(failure.error.to_string().contains("not today"), "{}", failure.error);
}

#[tokio::test(start_paused = true)]
async fn configured_era_is_not_negotiated() {
    let fake = FakeServer::new();
    let failure = start_failure(&spec(&fake).era(EraChoice::Era(Era::Stateless)), None).await;
    assert!(failure.error.to_string().contains("stateless"), "{}", failure.error);
    let fake = FakeServer::new().default_start(FakeStart::Both);
    connect(&spec(&fake).era(EraChoice::Revision(Revision::V2025_03_26))).await;
    assert_eq!(fake.received("initialize")[0]["params"]["protocolVersion"], "2025-03-26");
    assert!(fake.received("server/discover").is_empty());
}

async fn launch_with(fake: &FakeServer, plan: HandshakePlan) -> Result<launch::Launched, StartFailure> {
    launch(&spec(fake), plan, &launch_context(None), true).await
}

#[tokio::test(start_paused = true)]
async fn server_of_both_eras_is_used_in_the_preferred_one() {
    for era in [Era::Session, Era::Stateless] {
        for plan in [HandshakePlan::Prefer(era), HandshakePlan::Expect(era), HandshakePlan::Require(era)] {
            let fake = FakeServer::new().default_start(FakeStart::Both);
            let launched = launch_with(&fake, plan).await.unwrap();
            assert_eq!((launched.connection.era(), launched.refused_era), (era, None), "{plan:?}");
            let other = if era == Era::Session { "server/discover" } else { "initialize" };
            assert!(fake.received(other).is_empty(), "{plan:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn refused_era_is_followed_by_the_other_one_and_reported() {
    let stateless_only = FakeServer::new().default_start(FakeStart::Stateless);
    let launched = launch_with(&stateless_only, HandshakePlan::Prefer(Era::Session)).await.unwrap();
    let refused = Some(RefusedEra::answered(Era::Session));
    assert_eq!((launched.connection.era(), launched.refused_era), (Era::Stateless, refused));
    let session_only = FakeServer::new();
    let launched = launch_with(&session_only, HandshakePlan::Prefer(Era::Stateless)).await.unwrap();
    let refused = Some(RefusedEra::answered(Era::Stateless));
    assert_eq!((launched.connection.era(), launched.refused_era), (Era::Session, refused));
    assert_eq!((stateless_only.starts(), session_only.starts()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn required_era_that_is_not_spoken_is_not_a_fault_of_the_server() {
    let stateless_only = FakeServer::new().default_start(FakeStart::Stateless);
    let failure = launch_with(&stateless_only, HandshakePlan::Require(Era::Session)).await.unwrap_err();
    assert_eq!(failure.refused_era, Some(RefusedEra::answered(Era::Session)));
    let failure = launch_with(&FakeServer::new(), HandshakePlan::Require(Era::Stateless)).await.unwrap_err();
    assert_eq!(failure.refused_era, Some(RefusedEra::answered(Era::Stateless)));
    let exits = FakeServer::new().default_start(FakeStart::ExitsOnProbe);
    let failure = launch_with(&exits, HandshakePlan::Require(Era::Stateless)).await.unwrap_err();
    assert_eq!(failure.refused_era, Some(RefusedEra { era: Era::Stateless, is_only_exit: true }));
    let refuses_all = FakeServer::new().default_start(FakeStart::RefusesHandshake);
    let failure = launch_with(&refuses_all, HandshakePlan::Require(Era::Stateless)).await.unwrap_err();
    assert_eq!(failure.refused_era, None);
}

#[tokio::test(start_paused = true)]
async fn exit_on_initialize_restarts_the_server_for_the_other_era() {
    let fake = FakeServer::new().default_start(FakeStart::ExitsOnInitialize);
    let launched = launch_with(&fake, HandshakePlan::Prefer(Era::Session)).await.unwrap();
    assert_eq!((launched.connection.era(), fake.starts()), (Era::Stateless, 2));
    assert_eq!(launched.refused_era, None, "it may have crashed");
    let fake = FakeServer::new().default_start(FakeStart::Exits);
    let failure = launch_with(&fake, HandshakePlan::Prefer(Era::Session)).await.unwrap_err();
    assert_eq!((failure.exited_in_both_eras, fake.starts()), (true, 2));
    let failure = launch_with(&fake, HandshakePlan::Expect(Era::Session)).await.unwrap_err();
    assert_eq!((failure.exited_in_both_eras, fake.starts()), (false, 3));
    assert_eq!(failure.error.class(), Some(FailureClass::Crashed));
}

#[tokio::test(start_paused = true)]
async fn server_that_refuses_a_session_and_exits_is_started_for_the_other_era() {
    for plan in [HandshakePlan::Prefer(Era::Session), HandshakePlan::Expect(Era::Session)] {
        let fake = FakeServer::new().default_start(FakeStart::RefusesSessionAndExits);
        let launched = launch_with(&fake, plan).await.unwrap();
        assert_eq!((launched.connection.era(), fake.starts()), (Era::Stateless, 2), "{plan:?}");
        assert_eq!(launched.refused_era, Some(RefusedEra::answered(Era::Session)), "{plan:?}");
    }
    let starts = [FakeStart::RefusesSessionAndExits, FakeStart::Exits];
    let fake = FakeServer::new().next_starts(&starts);
    let failure = launch_with(&fake, HandshakePlan::Prefer(Era::Session)).await.unwrap_err();
    assert!(failure.error.to_string().contains("no sessions"), "{}", failure.error);
}

#[tokio::test(start_paused = true)]
async fn unanswered_initialize_is_followed_by_the_probe() {
    let fake = FakeServer::new().default_start(FakeStart::SilentOnInitialize);
    let before = Instant::now();
    let launched = launch_with(&fake, HandshakePlan::Prefer(Era::Session)).await.unwrap();
    assert_eq!((launched.connection.era(), before.elapsed().as_secs()), (Era::Stateless, 5));
    // A server that only takes long to start gets its session.
    let slow = FakeServer::new().default_start(FakeStart::SlowHandshake(20 * SECOND));
    let launched = launch_with(&slow, HandshakePlan::Prefer(Era::Session)).await.unwrap();
    assert_eq!((launched.connection.era(), slow.starts()), (Era::Session, 1));
    assert_eq!(launched.refused_era, None, "it was asked too early");
}

#[tokio::test(start_paused = true)]
async fn listing_reads_all_pages_with_an_empty_cursor() {
    let pages = [
        r#"{"jsonrpc":"2.0","id":$ID,"result":{"tools":[{"name":"a"}],"nextCursor":""}}"#,
        r#"{"jsonrpc":"2.0","id":$ID,"result":{"tools":[],"nextCursor":"x"}}"#,
        r#"{"jsonrpc":"2.0","id":$ID,"result":{"tools":[{"name":"b"},{"name":"c"}],"nextCursor":null}}"#,
    ];
    let fake = FakeServer::new().script("tools/list", &pages);
    assert_eq!(tool_names(&fake).await, ["a", "b", "c"]);
    let cursors: Vec<Value> =
        fake.received("tools/list").iter().map(|page| page["params"]["cursor"].clone()).collect();
    assert_eq!(cursors, [Value::Null, json!(""), json!("x")]);
}

#[tokio::test(start_paused = true)]
async fn circular_listing_fails_the_start() {
    let page = r#"{"jsonrpc":"2.0","id":$ID,"result":{"tools":[],"nextCursor":"again"}}"#;
    let fake = FakeServer::new().script("tools/list", &[page; 5]);
    let failure = start_failure(&spec(&fake), None).await;
    assert!(failure.error.to_string().contains("is circular"), "{}", failure.error);
    assert_eq!(fake.received("tools/list").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn invalid_tool_is_skipped() {
    let page = r#"{"jsonrpc":"2.0","id":$ID,"result":{"tools":[{"name":"a"},{"name":7},{},[],null,{"name":"x","name":"y"},{"name":"b","inputSchema":1e400}]}}"#;
    assert_eq!(tool_names(&FakeServer::new().script("tools/list", &[page])).await, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn server_without_tools_is_not_asked_for_tools() {
    let response = r#"{"jsonrpc":"2.0","id":$ID,"result":{"protocolVersion":"2025-06-18","capabilities":{"prompts":{}}}}"#;
    let fake = FakeServer::new().script("initialize", &[response]);
    assert!(tool_names(&fake).await.is_empty());
    assert!(fake.received("tools/list").is_empty());
}

#[tokio::test(start_paused = true)]
async fn dropped_start_leaves_nothing_running() {
    for start in [FakeStart::Silent, FakeStart::SilentOnProbe, FakeStart::SlowHandshake(20 * SECOND)] {
        let fake = FakeServer::new().default_start(start);
        assert!(timeout(SECOND, try_connect(&spec(&fake), None)).await.is_err());
        settle().await;
        assert_eq!((fake.starts(), fake.running_and_peak().0), (1, 0), "{start:?}");
    }
}
