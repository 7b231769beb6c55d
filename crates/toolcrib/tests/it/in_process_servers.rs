//! In-process servers that are slow to drop, or that panic, do not affect others.

use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, Sender};

use tokio::io::DuplexStream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;
use toolcrib::spec::Restarts;
use toolcrib::{Crib, ErrorKind, InProcess, Lifecycle, Roster, ServerSpec, ServerState};

use crate::fake::FakeServer;
use crate::support::{SECOND, id, kind, on, roster, spec, status};

/// A server whose drop announces itself and blocks until it is released.
struct SlowDrop {
    fake: FakeServer,
    drop_started: Mutex<Option<oneshot::Sender<()>>>,
    release: Mutex<Receiver<()>>,
}

impl InProcess for SlowDrop {
    fn serve(&self, pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.fake.serve(pipe)
    }
}

impl Drop for SlowDrop {
    fn drop(&mut self) {
        if let Some(drop_started) = self.drop_started.lock().unwrap().take() {
            let _ = drop_started.send(());
        }
        let _ = self.release.lock().unwrap().recv();
    }
}

/// Returns the server, a receiver for the start of its drop, and a sender that releases the drop when dropped.
fn slow_drop(enabled: bool) -> (ServerSpec, oneshot::Receiver<()>, Sender<()>) {
    let (drop_started, dropping) = oneshot::channel();
    let (hold, release) = mpsc::channel();
    let server = SlowDrop {
        fake: FakeServer::new(),
        drop_started: Mutex::new(Some(drop_started)),
        release: Mutex::new(release),
    };
    let mut spec = ServerSpec::in_process(id("own"), server);
    spec.enabled = enabled;
    (spec, dropping, hold)
}

/// Checks that status and other servers respond while the server `own` is being dropped.
async fn assert_others_respond(enabled: bool, other: &ServerSpec, after: Option<Roster>) {
    let (own, dropping, hold) = slow_drop(enabled);
    let crib = Crib::builder().server(own).server(other.clone()).build().unwrap();
    crib.list().await;
    let ending = crib.clone();
    let closes = after.is_none();
    let mut busy = JoinSet::new();
    busy.spawn(async move {
        match after {
            Some(after) => drop(ending.apply_roster(after).await.unwrap()),
            None => ending.shutdown(SECOND).await,
        }
    });
    timeout(20 * SECOND, dropping).await.unwrap().unwrap();
    let mut statuses = JoinSet::new();
    let status_crib = crib.clone();
    statuses.spawn_blocking(move || status_crib.status());
    let answered = timeout(10 * SECOND, statuses.join_next()).await;
    assert!(answered.is_ok(), "the status waits for the drop");
    if !closes {
        timeout(10 * SECOND, crib.call(on("other", "echo"))).await.unwrap().unwrap();
    }
    drop(hold);
    busy.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn drop_of_removed_server_blocks_no_caller() {
    let other = spec("other", &FakeServer::new());
    for enabled in [true, false] {
        assert_others_respond(enabled, &other, Some(roster([other.clone()]))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn drop_of_replaced_server_blocks_no_caller() {
    let other = spec("other", &FakeServer::new());
    for enabled in [true, false] {
        assert_others_respond(
            enabled,
            &other,
            Some(roster([other.clone(), spec("own", &FakeServer::new())])),
        )
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn drop_of_server_at_shutdown_blocks_no_caller() {
    let other = spec("other", &FakeServer::new());
    for enabled in [true, false] {
        assert_others_respond(enabled, &other, None).await;
    }
}

/// A server that panics in `serve` itself or in the future it returns.
struct Panicking {
    in_serve: bool,
}

impl InProcess for Panicking {
    fn serve(&self, _: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        assert!(!self.in_serve, "panic in serve");
        Box::pin(async { panic!("panic in the future") })
    }
}

#[tokio::test(start_paused = true)]
async fn panicking_server_counts_as_crashed() {
    for in_serve in [true, false] {
        let lifecycle =
            Lifecycle { restarts: Restarts { at_most: 2, within: 300 * SECOND }, ..Lifecycle::default() };
        let own = ServerSpec::in_process(id("own"), Panicking { in_serve }).lifecycle(lifecycle);
        let crib = Crib::builder().server(own).server(spec("other", &FakeServer::new())).build().unwrap();
        assert_eq!(kind(crib.call(on("own", "echo")).await), ErrorKind::CouldNotStart, "{in_serve}");
        assert_eq!(kind(crib.call(on("own", "echo")).await), ErrorKind::Ejected, "{in_serve}");
        assert_eq!((status(&crib, "own").state, crib.status().len()), (ServerState::Ejected, 2));
        crib.call(on("other", "echo")).await.unwrap();
        crib.shutdown(SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn panicking_tool_fails_immediately() {
    let tools =
        toolcrib::Toolbox::new().tool("burst", "panics", &serde_json::json!({}), |arguments| async move {
            assert!(arguments.is_array(), "on purpose");
            Ok(String::new())
        });
    let crib = Crib::builder().server(ServerSpec::in_process(id("own"), tools)).build().unwrap();
    let before = tokio::time::Instant::now();
    let outcome = crib.call(on("own", "burst")).await.unwrap();
    assert!(outcome.is_error() && before.elapsed() < SECOND, "{outcome:?} {:?}", before.elapsed());
}
