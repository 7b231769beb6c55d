//! What is made of a remote server that cannot be asked: it is left alone, said so, and never given up.

use tokio::time::sleep;

use super::*;
use crate::class::FailureClass;
use crate::status::StateName;
use crate::supervisor::{Supervisor, Surroundings};

fn supervised(url: &str) -> Supervisor {
    Supervisor::start(http(url), None, None, Surroundings::default())
}

async fn refusal(supervisor: &Supervisor) -> Error {
    supervisor.lease().await.unwrap_err()
}

#[tokio::test]
async fn a_server_that_has_too_many_requests_or_does_not_know_us_is_not_asked_again_at_once() {
    for (status, after, kind, class) in [
        (429, "30", ErrorKind::CouldNotStart, FailureClass::RateLimited),
        (503, "1000000000", ErrorKind::CouldNotStart, FailureClass::RateLimited),
        (401, "soon", ErrorKind::AuthNeeded, FailureClass::NeedsAuth),
        (403, "soon", ErrorKind::AuthNeeded, FailureClass::NeedsAuth),
    ] {
        let far =
            Far::start(move |_| Reply::text(status, "text/plain", "no").with("retry-after", after)).await;
        let supervisor = supervised(&far.url);
        let first = refusal(&supervisor).await;
        assert_eq!((first.kind(), first.class()), (kind, Some(class)), "{first}");
        let asked = far.story().len();
        for _ in 0..20 {
            let again = refusal(&supervisor).await;
            assert_eq!((again.kind(), again.class()), (kind, Some(class)));
            assert!(
                again.wait().unwrap() <= SECOND * 60 && again.to_string().contains("next attempt in"),
                "{again}"
            );
        }
        assert_eq!(far.story().len(), asked, "nobody asked it meanwhile");
        let status = supervisor.status(Instant::now());
        assert_eq!((status.state, status.restarts), (StateName::BackingOff, 0));
        assert!(status.next_attempt_in.unwrap() > SECOND);
        supervisor.retire(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn a_call_that_is_one_too_many_has_everybody_wait_as_long_as_the_server_wants() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let far = Far::start(move |seen| match seen.what() {
        "tools/call" if counted.fetch_add(1, Ordering::Relaxed) == 0 => {
            Reply::text(429, "text/plain", "slowly").with("retry-after", "1")
        }
        _ => stateless(seen),
    });
    let far = far.await;
    let supervisor = supervised(&far.url);
    let ask = async || {
        let mut lease = supervisor.lease().await?;
        lease.send(&mut Call::tool("echo"), "echo", Instant::now()).await
    };
    let first = ask().await.unwrap_err();
    assert_eq!((first.class(), first.wait()), (Some(FailureClass::RateLimited), Some(SECOND)));
    let second = ask().await.unwrap_err();
    assert_eq!((second.kind(), second.class()), (ErrorKind::Tripped, Some(FailureClass::RateLimited)));
    assert_eq!((second.data()["sent"].clone(), calls.load(Ordering::Relaxed)), (json!("never"), 1));
    assert_eq!(supervisor.status(Instant::now()).state, StateName::Tripped);
    sleep(second.wait().unwrap()).await; // as long as it wants
    assert_eq!(text(ask().await), "echo");
    assert_eq!(supervisor.status(Instant::now()).consecutive_failures, 0);
    supervisor.retire(Duration::ZERO).await;
}

#[tokio::test]
async fn a_living_server_that_wants_to_know_who_asks_is_left_alone_and_then_asked_anew() {
    let (calls, known) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(403)));
    let (counted, answers) = (calls.clone(), known.clone());
    let far = Far::start(move |seen| match (seen.what(), answers.load(Ordering::Relaxed)) {
        ("tools/call", status @ 400..) => {
            counted.fetch_add(1, Ordering::Relaxed);
            Reply::text(u16::try_from(status).unwrap(), "text/plain", "no")
        }
        _ => stateless(seen),
    });
    let far = far.await;
    let supervisor = supervised(&far.url);
    let ask = async || {
        let mut lease = supervisor.lease().await?;
        lease.send(&mut Call::tool("echo"), "echo", Instant::now()).await
    };
    // One thing that somebody may not do says nothing about the others.
    for _ in 0..2 {
        assert_eq!(ask().await.unwrap_err().kind(), ErrorKind::AuthNeeded);
    }
    assert_eq!(
        (calls.load(Ordering::Relaxed), supervisor.status(Instant::now()).state),
        (2, StateName::Ready)
    );
    known.store(401, Ordering::Relaxed);
    assert_eq!(ask().await.unwrap_err().class(), Some(FailureClass::NeedsAuth));
    let mut refused = ask().await.unwrap_err();
    for _ in 0..20 {
        refused = ask().await.unwrap_err();
        assert_eq!((refused.kind(), refused.class()), (ErrorKind::AuthNeeded, Some(FailureClass::NeedsAuth)));
        assert_eq!(refused.data()["sent"], json!("never"));
    }
    assert_eq!(calls.load(Ordering::Relaxed), 3, "nobody asked it meanwhile");
    let status = supervisor.status(Instant::now());
    assert_eq!((status.state, status.generation), (StateName::Tripped, 1));
    assert_eq!(status.last_error.unwrap().class, Some(FailureClass::NeedsAuth));
    assert!(status.next_attempt_in.unwrap() > SECOND);
    known.store(0, Ordering::Relaxed);
    sleep(refused.wait().unwrap()).await; // as long as it says
    assert_eq!(text(ask().await), "echo");
    assert_eq!(supervisor.status(Instant::now()).generation, 2, "with what it is shown looked up anew");
    supervisor.retire(Duration::ZERO).await;
}

#[tokio::test]
async fn a_server_that_is_down_is_not_hammered_and_never_given_up() {
    let url = Far::start(stateless).await.url;
    let supervisor = supervised(&url);
    for _ in 0..500 {
        let error = refusal(&supervisor).await;
        assert_eq!(
            (error.kind(), error.class()),
            (ErrorKind::CouldNotStart, Some(FailureClass::Unreachable))
        );
        assert!(error.wait().is_some() && error.to_string().contains("next attempt in"), "{error}");
    }
    let status = supervisor.status(Instant::now());
    assert!(status.generation < 100, "asked {} times for 500 callers", status.generation);
    assert_eq!((status.restarts, status.restarts_left), (0, 5));
    assert!(matches!(status.state, StateName::BackingOff | StateName::Asleep));
    supervisor.retire(Duration::ZERO).await;
}
