//! At-most-once delivery: a call that may have run is retried only if its tool is idempotent.

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use toolcrib::spec::{NamePattern, ToolsSpec, Trust};
use toolcrib::{Crib, Delivery, ErrorKind, ServerLimits, ServerSpec};

use crate::fake::{FakeServer, FakeStart};
use crate::support::{CallResult, SECOND, on, settle, spawn, spec};

/// Makes a call whose server is killed `times` times while the call is in flight.
async fn call_with_kills(spec: ServerSpec, fake: &FakeServer, times: usize) -> CallResult {
    let crib = Crib::builder().server(spec).build().unwrap();
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, on("git", "hold"));
    for time in 1..=times {
        while fake.called_tools().len() < time {
            assert!(timeout(60 * SECOND, settle()).await.is_ok());
            tokio::time::sleep(SECOND / 100).await;
        }
        fake.kill();
        settle().await;
    }
    fake.set_hold_open(true);
    calls.join_next().await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn call_that_may_have_run_is_not_retried() {
    let fake = FakeServer::new();
    let error = call_with_kills(spec("git", &fake), &fake, 1).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.delivery(), fake.called_tools().len()),
        (ErrorKind::Lost, Delivery::MaybeSent, 1)
    );
    assert!(error.to_string().ends_with("; the call may have run"), "{error}");
    assert_eq!(error.data()["sent"], "maybe");
}

#[tokio::test(start_paused = true)]
async fn idempotent_tool_of_trusted_server_is_retried() {
    for hint in ["readOnlyHint", "idempotentHint"] {
        let fake = FakeServer::new().with_hint("hold", hint);
        call_with_kills(spec("git", &fake).trust(Trust::Trusted), &fake, 1).await.unwrap();
        assert_eq!(fake.called_tools().len(), 2, "{hint}");
    }
    let fake = FakeServer::new().with_hint("hold", "readOnlyHint");
    call_with_kills(spec("git", &fake), &fake, 1).await.unwrap_err();
    assert_eq!(fake.called_tools().len(), 1, "hints of an untrusted server do not count");
    let fake = FakeServer::new().with_hint("hold", "openWorldHint").with_hint("echo", "readOnlyHint");
    call_with_kills(spec("git", &fake).trust(Trust::Trusted), &fake, 1).await.unwrap_err();
    assert_eq!(fake.called_tools().len(), 1, "other hints and hints of other tools do not count");
}

#[tokio::test(start_paused = true)]
async fn tool_configured_as_idempotent_is_retried_once() {
    let tools =
        |pattern: &str| ToolsSpec { idempotent: vec![pattern.parse().unwrap()], ..ToolsSpec::default() };
    let fake = FakeServer::new();
    call_with_kills(spec("git", &fake).tools(tools("ho*")), &fake, 1).await.unwrap();
    assert_eq!(fake.called_tools().len(), 2);
    let fake = FakeServer::new();
    let error = call_with_kills(spec("git", &fake).tools(tools("*")), &fake, 2).await.unwrap_err();
    assert_eq!((error.kind(), fake.called_tools().len()), (ErrorKind::Lost, 2));
    let fake = FakeServer::new();
    call_with_kills(spec("git", &fake).tools(tools("get_*")), &fake, 1).await.unwrap_err();
    assert_eq!(fake.called_tools().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn retry_uses_the_remaining_time_of_the_call() {
    let fake = FakeServer::new();
    let tools = ToolsSpec { idempotent: vec![NamePattern::any()], ..ToolsSpec::default() };
    let limits = ServerLimits { call_timeout: 10 * SECOND, ..ServerLimits::default() };
    let crib = Crib::builder().server(spec("git", &fake).tools(tools).limits(limits)).build().unwrap();
    crib.call(on("git", "echo")).await.unwrap();
    let fake = fake.next_starts(&[FakeStart::SlowHandshake(25 * SECOND)]);
    let before = Instant::now();
    let error = crib.call(on("git", "die")).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.delivery()),
        (ErrorKind::Lost, Delivery::MaybeSent),
        "the first error is reported"
    );
    assert_eq!((before.elapsed().as_secs(), fake.called_tools().len()), (10, 2));
}
