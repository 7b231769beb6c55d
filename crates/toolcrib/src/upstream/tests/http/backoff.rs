//! Remote servers that refuse or cannot be reached: backoff, breaker and recovery.

use tokio::time::sleep;

use super::*;
use crate::model::failure_class::FailureClass;
use crate::model::status::ServerState;
use crate::supervisor::{Supervisor, SupervisorServices};

fn supervised(url: &str) -> Supervisor {
    Supervisor::start(http(url), None, None, SupervisorServices::default())
}

async fn lease_error(supervisor: &Supervisor) -> Error {
    supervisor.lease(Era::Session).await.unwrap_err()
}

#[tokio::test]
async fn rate_limit_and_auth_failures_back_off() {
    for (status, after, kind, class) in [
        (429, "30", ErrorKind::CouldNotStart, FailureClass::RateLimited),
        (503, "1000000000", ErrorKind::CouldNotStart, FailureClass::RateLimited),
        (401, "soon", ErrorKind::AuthNeeded, FailureClass::NeedsAuth),
        (403, "soon", ErrorKind::AuthNeeded, FailureClass::NeedsAuth),
    ] {
        let server =
            RemoteServer::start(move |_| Reply::text(status, "text/plain", "no").with("retry-after", after))
                .await;
        let supervisor = supervised(&server.url);
        let first = lease_error(&supervisor).await;
        assert_eq!((first.kind(), first.class()), (kind, Some(class)), "{first}");
        let requests_before = server.methods().len();
        for _ in 0..20 {
            let again = lease_error(&supervisor).await;
            assert_eq!((again.kind(), again.class()), (kind, Some(class)));
            assert!(
                again.retry_in().unwrap() <= SECOND * 60 && again.to_string().contains("next attempt in"),
                "{again}"
            );
        }
        assert_eq!(server.methods().len(), requests_before, "no request was sent meanwhile");
        let status = supervisor.status(Instant::now());
        assert_eq!((status.state, status.restarts), (ServerState::BackingOff, 0));
        assert!(status.next_attempt_in.unwrap() > SECOND);
        supervisor.retire(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn rate_limited_call_trips_the_breaker_for_retry_after() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = calls.clone();
    let server = RemoteServer::start(move |request| match request.method() {
        "tools/call" if counter.fetch_add(1, Ordering::Relaxed) == 0 => {
            Reply::text(429, "text/plain", "slowly").with("retry-after", "1")
        }
        _ => stateless(request),
    });
    let server = server.await;
    let supervisor = supervised(&server.url);
    let send_call = async || {
        let mut lease = supervisor.lease(Era::Session).await?;
        lease.send(&mut Call::tool("echo"), "echo", Instant::now()).await
    };
    let first = send_call().await.unwrap_err();
    assert_eq!((first.class(), first.retry_in()), (Some(FailureClass::RateLimited), Some(SECOND)));
    assert_eq!(first.data()["sent"], "never");
    let second = send_call().await.unwrap_err();
    assert_eq!((second.kind(), second.class()), (ErrorKind::Tripped, Some(FailureClass::RateLimited)));
    assert_eq!((second.data()["sent"].clone(), calls.load(Ordering::Relaxed)), (json!("never"), 1));
    assert_eq!(supervisor.status(Instant::now()).state, ServerState::Tripped);
    sleep(second.retry_in().unwrap()).await; // until the next attempt
    assert_eq!(text(send_call().await), "echo");
    assert_eq!(supervisor.status(Instant::now()).consecutive_failures, 0);
    supervisor.retire(Duration::ZERO).await;
}

#[tokio::test]
async fn unauthorized_call_pauses_the_server_and_reconnects() {
    let (calls, status_now) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(403)));
    let (counter, answers) = (calls.clone(), status_now.clone());
    let server =
        RemoteServer::start(move |request| match (request.method(), answers.load(Ordering::Relaxed)) {
            ("tools/call", status @ 400..) => {
                counter.fetch_add(1, Ordering::Relaxed);
                Reply::text(u16::try_from(status).unwrap(), "text/plain", "no")
            }
            _ => stateless(request),
        });
    let server = server.await;
    let supervisor = supervised(&server.url);
    let send_call = async || {
        let mut lease = supervisor.lease(Era::Session).await?;
        lease.send(&mut Call::tool("echo"), "echo", Instant::now()).await
    };
    // A forbidden call does not affect others.
    for _ in 0..2 {
        assert_eq!(send_call().await.unwrap_err().kind(), ErrorKind::AuthNeeded);
    }
    assert_eq!(
        (calls.load(Ordering::Relaxed), supervisor.status(Instant::now()).state),
        (2, ServerState::Ready)
    );
    status_now.store(401, Ordering::Relaxed);
    assert_eq!(send_call().await.unwrap_err().class(), Some(FailureClass::NeedsAuth));
    let mut refused = send_call().await.unwrap_err();
    for _ in 0..20 {
        refused = send_call().await.unwrap_err();
        assert_eq!((refused.kind(), refused.class()), (ErrorKind::AuthNeeded, Some(FailureClass::NeedsAuth)));
        assert_eq!(refused.data()["sent"], json!("never"));
    }
    assert_eq!(calls.load(Ordering::Relaxed), 3, "no request was sent meanwhile");
    let status = supervisor.status(Instant::now());
    assert_eq!((status.state, status.generation), (ServerState::Tripped, 1));
    assert_eq!(status.last_error.unwrap().class, Some(FailureClass::NeedsAuth));
    assert!(status.next_attempt_in.unwrap() > SECOND);
    status_now.store(0, Ordering::Relaxed);
    sleep(refused.retry_in().unwrap()).await; // until the next attempt
    assert_eq!(text(send_call().await), "echo");
    assert_eq!(supervisor.status(Instant::now()).generation, 2, "reconnected with newly resolved secrets");
    supervisor.retire(Duration::ZERO).await;
}

#[tokio::test]
async fn unreachable_server_backs_off_and_is_never_ejected() {
    let url = RemoteServer::start(stateless).await.url;
    let supervisor = supervised(&url);
    for _ in 0..500 {
        let error = lease_error(&supervisor).await;
        assert_eq!(
            (error.kind(), error.class()),
            (ErrorKind::CouldNotStart, Some(FailureClass::Unreachable))
        );
        assert!(error.retry_in().is_some() && error.to_string().contains("next attempt in"), "{error}");
    }
    let status = supervisor.status(Instant::now());
    assert!(status.generation < 100, "asked {} times for 500 callers", status.generation);
    assert_eq!((status.restarts, status.restarts_left), (0, 5));
    assert!(matches!(status.state, ServerState::BackingOff | ServerState::Asleep));
    supervisor.retire(Duration::ZERO).await;
}
