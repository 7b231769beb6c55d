//! An embedder's own servers that are slow to be dropped, or panic, cost nobody else anything.

use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, Sender};

use tokio::io::DuplexStream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;
use toolcrib::spec::Restarts;
use toolcrib::{Crib, ErrorKind, InProcess, Lifecycle, Roster, ServerSpec, StateName};

use crate::fake::Fake;
use crate::house::{SECOND, id, kind, on, roster, spec, status};

/// A server whose drop says that it began, and ends when it is let go.
struct Clinging {
    fake: Fake,
    leaving: Mutex<Option<oneshot::Sender<()>>>,
    let_go: Mutex<Receiver<()>>,
}

impl InProcess for Clinging {
    fn serve(&self, pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.fake.serve(pipe)
    }
}

impl Drop for Clinging {
    fn drop(&mut self) {
        if let Some(leaving) = self.leaving.lock().unwrap().take() {
            let _ = leaving.send(());
        }
        let _ = self.let_go.lock().unwrap().recv();
    }
}

/// The server, when its drop begins, and what lets it end.
fn clinging(enabled: bool) -> (ServerSpec, oneshot::Receiver<()>, Sender<()>) {
    let (leaving, left) = oneshot::channel();
    let (hold, let_go) = mpsc::channel();
    let server =
        Clinging { fake: Fake::new(), leaving: Mutex::new(Some(leaving)), let_go: Mutex::new(let_go) };
    let mut spec = ServerSpec::in_process(id("own"), server);
    spec.enabled = enabled;
    (spec, left, hold)
}

/// While the drop of the server called `own` lasts, everybody else is served.
async fn assert_nobody_waits(enabled: bool, other: &ServerSpec, after: Option<Roster>) {
    let (own, left, hold) = clinging(enabled);
    let crib = Crib::builder().server(own).server(other.clone()).build().unwrap();
    crib.list().await;
    let (ending, closes) = (crib.clone(), after.is_none());
    let mut busy = JoinSet::new();
    busy.spawn(async move {
        match after {
            Some(after) => drop(ending.apply(after).await),
            None => ending.shutdown(SECOND).await,
        }
    });
    timeout(20 * SECOND, left).await.unwrap().unwrap();
    let mut asked = JoinSet::new();
    let asking = crib.clone();
    asked.spawn_blocking(move || asking.status());
    let answered = timeout(10 * SECOND, asked.join_next()).await;
    assert!(answered.is_ok(), "the status waits for the drop");
    if !closes {
        timeout(10 * SECOND, crib.call(on("other", "echo"))).await.unwrap().unwrap();
    }
    drop(hold);
    busy.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_waits_for_the_drop_of_a_server_that_left() {
    let other = spec("other", &Fake::new());
    for enabled in [true, false] {
        assert_nobody_waits(enabled, &other, Some(roster([other.clone()]))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_waits_for_the_drop_of_a_server_that_was_replaced() {
    let other = spec("other", &Fake::new());
    for enabled in [true, false] {
        assert_nobody_waits(enabled, &other, Some(roster([other.clone(), spec("own", &Fake::new())]))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_waits_for_the_drop_of_a_server_at_the_end() {
    let other = spec("other", &Fake::new());
    for enabled in [true, false] {
        assert_nobody_waits(enabled, &other, None).await;
    }
}

/// A server that panics: before it serves, or as soon as it does.
struct Panicking {
    at_once: bool,
}

impl InProcess for Panicking {
    fn serve(&self, _: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        assert!(!self.at_once, "no luck");
        Box::pin(async { panic!("out of luck") })
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_panics_is_one_that_crashed_and_costs_nobody_else_anything() {
    for at_once in [true, false] {
        let care =
            Lifecycle { restarts: Restarts { at_most: 2, within: 300 * SECOND }, ..Lifecycle::default() };
        let own = ServerSpec::in_process(id("own"), Panicking { at_once }).lifecycle(care);
        let crib = Crib::builder().server(own).server(spec("other", &Fake::new())).build().unwrap();
        assert_eq!(kind(crib.call(on("own", "echo")).await), ErrorKind::CouldNotStart, "{at_once}");
        assert_eq!(kind(crib.call(on("own", "echo")).await), ErrorKind::Ejected, "{at_once}");
        assert_eq!((status(&crib, "own").state, crib.status().len()), (StateName::Ejected, 2));
        crib.call(on("other", "echo")).await.unwrap();
        crib.shutdown(SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_panics_is_a_tool_that_failed_at_once() {
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
