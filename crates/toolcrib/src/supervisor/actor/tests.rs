//! One test per transition of a server's life, on a paused clock, against a scripted server.

mod breaking;
mod classes;
mod hanging;
mod living;
mod restarting;
mod room;
mod stopping;

use std::num::NonZeroU32;

use serde_json::json;
use tokio::task::JoinSet;

use super::fake::{Boot, Fake};
use super::*;
use crate::call::{Call, Outcome};
use crate::spec::{BreakerSpec, Lifecycle, Restarts, ServerId};
use crate::status::ServerStatus;
use crate::supervisor::Supervisor;
use crate::supervisor::room::Room;

const SECOND: Duration = Duration::from_secs(1);
const NOTHING: serde_json::Value = serde_json::Value::Null;

/// One supervised fake.
#[derive(Clone)]
struct House {
    fake: Fake,
    supervisor: Supervisor,
    around: Surroundings,
}

/// With a keep-alive of a minute, two restarts in five minutes, and a breaker that trips at three.
fn care() -> Lifecycle {
    Lifecycle {
        keep_alive: KeepAlive::For(60 * SECOND),
        restarts: Restarts { at_most: 2, within: 300 * SECOND },
        breaker: BreakerSpec { failures: NonZeroU32::new(3).unwrap(), cool_off: 30 * SECOND },
        ..Lifecycle::default()
    }
}

fn id() -> ServerId {
    "fake".parse().unwrap()
}

fn spec(fake: &Fake, care: Lifecycle) -> ServerSpec {
    ServerSpec::in_process(id(), fake.clone()).lifecycle(care)
}

fn house(fake: Fake) -> House {
    house_with(fake, care())
}

fn house_with(fake: Fake, care: Lifecycle) -> House {
    house_in(&surroundings(usize::MAX), fake, care)
}

fn house_in(around: &Surroundings, fake: Fake, care: Lifecycle) -> House {
    let supervisor = Supervisor::start(spec(&fake, care), None, None, around.clone());
    House { fake, supervisor, around: around.clone() }
}

/// With this many seats.
fn surroundings(seats: usize) -> Surroundings {
    let sleeps = clock::Sleeps::Told(Arc::default());
    Surroundings { sleeps, room: Arc::new(Room::new(seats)), ..Surroundings::default() }
}

impl House {
    async fn lease(&self) -> Result<Lease, Error> {
        self.supervisor.lease().await
    }

    async fn call(&self, tool: &str, arguments: serde_json::Value) -> Result<Outcome, Error> {
        let mut lease = self.supervisor.lease().await?;
        let mut call = Call::on(id(), tool).arguments(&arguments);
        lease.send(&mut call, tool, Instant::now()).await
    }

    async fn echo(&self) -> Result<Outcome, Error> {
        self.call("echo", NOTHING).await
    }

    /// As many calls at once, each on a task of its own.
    fn calls(&self, count: usize, tool: &'static str) -> JoinSet<Result<Outcome, Error>> {
        let mut calls = JoinSet::new();
        for _ in 0..count {
            let house = self.clone();
            calls.spawn(async move { house.call(tool, NOTHING).await });
        }
        calls
    }

    /// Lets the machine have slept for a while.
    fn doze(&self, seconds: u64) {
        let clock::Sleeps::Told(slept) = &self.around.sleeps else { panic!("a clock of our own") };
        slept.fetch_add(seconds, Ordering::Relaxed);
    }

    fn status(&self) -> ServerStatus {
        self.supervisor.status(Instant::now())
    }

    fn state(&self) -> StateName {
        self.status().state
    }

    /// Waits until it is in this state.
    async fn until(&self, state: StateName) {
        let mut snapshot = self.supervisor.0.snapshot.clone();
        snapshot.wait_for(|snapshot| snapshot.state == state).await.unwrap();
    }

    /// Waits until the server was called this often.
    async fn called(&self, times: usize) {
        settled(|| self.fake.called().len() >= times).await;
    }

    /// Kills it and waits until that was noticed.
    async fn crash(&self) {
        self.fake.kill();
        let mut snapshot = self.supervisor.0.snapshot.clone();
        snapshot.wait_for(|snapshot| snapshot.since.is_none()).await.unwrap();
    }

    /// Trips it with calls that never answer.
    async fn trip(&self) {
        for kind in kinds(self.calls(3, "hang")).await {
            assert_eq!(kind, Some(ErrorKind::TimedOut));
        }
        self.until(StateName::Tripped).await;
    }
}

/// Lets everything that can happen without time passing happen, until `done`.
async fn settled(done: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if done() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("it never happened");
}

/// Lets everything that can happen without time passing happen.
async fn breath() {
    for _ in 0..500 {
        tokio::task::yield_now().await;
    }
}

/// How calls failed, or that they did not.
async fn kinds(calls: JoinSet<Result<Outcome, Error>>) -> Vec<Option<ErrorKind>> {
    calls.join_all().await.into_iter().map(|outcome| outcome.err().map(|error| error.kind())).collect()
}

fn kind(outcome: Result<Outcome, Error>) -> ErrorKind {
    outcome.unwrap_err().kind()
}
