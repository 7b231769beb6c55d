//! A call that may have run is made once more only if running twice does no harm, and every error says which it was.

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use toolcrib::spec::{Pattern, ToolsSpec, Trust};
use toolcrib::{Crib, ErrorKind, Limits, Sent, ServerSpec};

use crate::fake::{Boot, Fake};
use crate::house::{Ended, SECOND, breath, on, spawn, spec};

/// A call that is in flight when its server dies, this often; `hold` answers from then on.
async fn lost(spec: ServerSpec, fake: &Fake, times: usize) -> Ended {
    let crib = Crib::builder().server(spec).build().unwrap();
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, on("git", "hold"));
    for time in 1..=times {
        while fake.called().len() < time {
            assert!(timeout(60 * SECOND, breath()).await.is_ok());
            tokio::time::sleep(SECOND / 100).await;
        }
        fake.kill();
        breath().await;
    }
    fake.open(true);
    calls.join_next().await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_call_that_may_have_run_is_not_made_again() {
    let fake = Fake::new();
    let error = lost(spec("git", &fake), &fake, 1).await.unwrap_err();
    assert_eq!((error.kind(), error.sent(), fake.called().len()), (ErrorKind::Lost, Sent::Maybe, 1));
    assert!(error.to_string().ends_with("(it may have run)"), "{error}");
    assert_eq!(error.data()["sent"], "maybe");
}

#[tokio::test(start_paused = true)]
async fn what_a_trusted_server_calls_harmless_is_made_once_more() {
    for hint in ["readOnlyHint", "idempotentHint"] {
        let fake = Fake::new().hinting("hold", hint);
        lost(spec("git", &fake).trust(Trust::Trusted), &fake, 1).await.unwrap();
        assert_eq!(fake.called().len(), 2, "{hint}");
    }
    let fake = Fake::new().hinting("hold", "readOnlyHint");
    lost(spec("git", &fake), &fake, 1).await.unwrap_err();
    assert_eq!(fake.called().len(), 1, "its word alone does not count");
    let fake = Fake::new().hinting("hold", "openWorldHint").hinting("echo", "readOnlyHint");
    lost(spec("git", &fake).trust(Trust::Trusted), &fake, 1).await.unwrap_err();
    assert_eq!(fake.called().len(), 1, "nor does another hint, or another tool's");
}

#[tokio::test(start_paused = true)]
async fn what_the_config_calls_harmless_is_made_once_more_and_only_once() {
    let tools =
        |pattern: &str| ToolsSpec { idempotent: vec![pattern.parse().unwrap()], ..ToolsSpec::default() };
    let fake = Fake::new();
    lost(spec("git", &fake).tools(tools("ho*")), &fake, 1).await.unwrap();
    assert_eq!(fake.called().len(), 2);
    let fake = Fake::new();
    let error = lost(spec("git", &fake).tools(tools("*")), &fake, 2).await.unwrap_err();
    assert_eq!((error.kind(), fake.called().len()), (ErrorKind::Lost, 2));
    let fake = Fake::new();
    lost(spec("git", &fake).tools(tools("get_*")), &fake, 1).await.unwrap_err();
    assert_eq!(fake.called().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_second_try_has_only_the_time_that_the_first_has_left() {
    let fake = Fake::new();
    let tools = ToolsSpec { idempotent: vec![Pattern::any()], ..ToolsSpec::default() };
    let limits = Limits { call_timeout: 10 * SECOND, ..Limits::default() };
    let crib = Crib::builder().server(spec("git", &fake).tools(tools).limits(limits)).build().unwrap();
    crib.call(on("git", "echo")).await.unwrap();
    let fake = fake.boots(&[Boot::Late(25 * SECOND)]);
    let before = Instant::now();
    let error = crib.call(on("git", "die")).await.unwrap_err();
    assert_eq!((error.kind(), error.sent()), (ErrorKind::Lost, Sent::Maybe), "what happened first is told");
    assert_eq!((before.elapsed().as_secs(), fake.called().len()), (10, 2));
}
