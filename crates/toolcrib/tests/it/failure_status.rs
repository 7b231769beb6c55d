//! The status of a server shows the failure of a call when that call returns, and the error of the call has its class.

use std::num::NonZeroU32;

use serde_json::json;
use toolcrib::spec::BreakerSpec;
use toolcrib::{Crib, ErrorKind, FailureClass, Lifecycle, ServerLimits, ServerState};

use crate::fake::FakeServer;
use crate::support::{SECOND, id, on, spec, status, with};

/// A crib whose server trips after three failures.
fn tripping_crib(fake: &FakeServer) -> Crib {
    let breaker = BreakerSpec { failures: NonZeroU32::new(3).unwrap(), cool_off: 30 * SECOND };
    let lifecycle = Lifecycle { breaker, ..Lifecycle::default() };
    let limits = ServerLimits { call_timeout: SECOND, ..ServerLimits::default() };
    Crib::builder().server(spec("git", fake).lifecycle(lifecycle).limits(limits)).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn status_counts_the_failure_of_the_call_that_returned() {
    let invalid = json!({"lines": [r#"{"jsonrpc":"2.0","id":$ID,"result":7}"#]});
    for (call, kind) in
        [(with("git", "say", &invalid), ErrorKind::BadReply), (on("git", "hang"), ErrorKind::TimedOut)]
    {
        let crib = tripping_crib(&FakeServer::new());
        crib.call(on("git", "echo")).await.unwrap();
        for failures in 1..=3 {
            assert_eq!(crib.call(call.clone()).await.unwrap_err().kind(), kind);
            let status = status(&crib, "git");
            assert_eq!(status.consecutive_failures, failures);
            let expected = if failures == 3 { ServerState::Tripped } else { ServerState::Ready };
            assert_eq!((status.state, status.errors), (expected, u64::from(failures)), "{failures}");
            assert_eq!(status.breaker(), if failures == 3 { "open" } else { "closed" });
        }
    }
}

#[tokio::test(start_paused = true)]
async fn status_shows_the_crash_of_the_call_that_returned() {
    let crib = tripping_crib(&FakeServer::new());
    crib.call(on("git", "echo")).await.unwrap();
    let error = crib.call(on("git", "die")).await.unwrap_err();
    let status = status(&crib, "git");
    assert_ne!(status.state, ServerState::Ready);
    assert_eq!(status.restarts, 1);
    assert_eq!(status.last_error.unwrap().class, error.class());
}

#[tokio::test(start_paused = true)]
async fn lost_call_has_the_class_of_the_crash() {
    let crib = tripping_crib(&FakeServer::new());
    let error = crib.call(on("git", "die")).await.unwrap_err();
    assert_eq!((error.kind(), error.class()), (ErrorKind::Lost, Some(FailureClass::Crashed)));
    assert_eq!((&error.data()["class"], &error.data()["sent"]), (&json!("crashed"), &json!("maybe")));
}

#[tokio::test(start_paused = true)]
async fn call_lost_by_a_command_has_no_class() {
    let fake = FakeServer::new();
    let crib = tripping_crib(&fake);
    crib.call(on("git", "echo")).await.unwrap();
    let server = id("git");
    let (lost, stopped) = tokio::join!(crib.call(on("git", "hold")), crib.stop(&server));
    stopped.unwrap();
    let error = lost.unwrap_err();
    assert_eq!((error.kind(), error.class()), (ErrorKind::Lost, None), "{error}");
}
