//! Tests of the actor's transitions, on a paused clock against a scripted server.

mod breaker;
mod eras;
mod failure_classes;
mod keep_alive;
mod limits;
mod pings;
mod restarts;
mod stops;

use std::num::NonZeroU32;

use serde_json::json;
use tokio::task::JoinSet;

use super::fake::{FakeServer, FakeStart};
use super::*;
use crate::call::Call;
use crate::model::outcome::Outcome;
use crate::model::status::ServerStatus;
use crate::spec::{BreakerSpec, Lifecycle, Restarts, ServerId, Sharing};
use crate::supervisor::Supervisor;
use crate::supervisor::slots::SlotPool;

const SECOND: Duration = Duration::from_secs(1);
const NO_ARGUMENTS: serde_json::Value = serde_json::Value::Null;

/// A fake server and its supervisor.
#[derive(Clone)]
struct Fixture {
    fake: FakeServer,
    supervisor: Supervisor,
    services: SupervisorServices,
}

/// Returns a lifecycle with a keep-alive of one minute, two restarts in five minutes and a breaker that trips at three
/// failures.
fn lifecycle() -> Lifecycle {
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

fn spec(fake: &FakeServer, lifecycle: Lifecycle) -> ServerSpec {
    ServerSpec::in_process(id(), fake.clone()).lifecycle(lifecycle).sharing(Sharing::One)
}

fn fixture(fake: FakeServer) -> Fixture {
    fixture_with(fake, lifecycle())
}

fn fixture_with(fake: FakeServer, lifecycle: Lifecycle) -> Fixture {
    fixture_in(&services_with_slots(usize::MAX), fake, lifecycle)
}

fn fixture_in(services: &SupervisorServices, fake: FakeServer, lifecycle: Lifecycle) -> Fixture {
    let supervisor = Supervisor::start(spec(&fake, lifecycle), None, None, services.clone());
    Fixture { fake, supervisor, services: services.clone() }
}

/// Returns services with this many slots and a suspend clock that the test controls.
fn services_with_slots(capacity: usize) -> SupervisorServices {
    let suspend_clock = clock::SuspendClock::Fixed(Arc::default());
    let slots = Arc::new(SlotPool::new(capacity));
    SupervisorServices { suspend_clock, slots, ..SupervisorServices::default() }
}

impl Fixture {
    async fn lease(&self) -> Result<Lease, Error> {
        self.supervisor.lease(Era::Session).await
    }

    async fn call(&self, tool: &str, arguments: serde_json::Value) -> Result<Outcome, Error> {
        let mut lease = self.supervisor.lease(Era::Session).await?;
        let mut call = Call::tool_on(id(), tool).arguments(&arguments);
        lease.send(&mut call, tool, Instant::now()).await
    }

    async fn echo(&self) -> Result<Outcome, Error> {
        self.call("echo", NO_ARGUMENTS).await
    }

    /// Starts several calls at the same time, each in its own task.
    fn calls(&self, count: usize, tool: &'static str) -> JoinSet<Result<Outcome, Error>> {
        let mut calls = JoinSet::new();
        for _ in 0..count {
            let fixture = self.clone();
            calls.spawn(async move { fixture.call(tool, NO_ARGUMENTS).await });
        }
        calls
    }

    /// Pretends that the machine was suspended.
    fn suspend(&self, seconds: u64) {
        let clock::SuspendClock::Fixed(suspended) = &self.services.suspend_clock else {
            panic!("not a test clock")
        };
        suspended.fetch_add(seconds, Ordering::Relaxed);
    }

    fn status(&self) -> ServerStatus {
        self.supervisor.status(Instant::now())
    }

    fn state(&self) -> ServerState {
        self.status().state
    }

    async fn wait_for(&self, state: ServerState) {
        let mut snapshot = self.supervisor.0.snapshot.clone();
        snapshot.wait_for(|snapshot| snapshot.state == state).await.unwrap();
    }

    /// Waits until the server has received `count` calls.
    async fn wait_for_calls(&self, count: usize) {
        yield_until(|| self.fake.called_tools().len() >= count).await;
    }

    /// Kills the server and waits until the actor has noticed.
    async fn crash(&self) {
        self.fake.kill();
        let mut snapshot = self.supervisor.0.snapshot.clone();
        snapshot.wait_for(|snapshot| snapshot.up_since.is_none()).await.unwrap();
    }

    /// Trips the breaker with calls that time out.
    async fn trip(&self) {
        for kind in error_kinds(self.calls(3, "hang")).await {
            assert_eq!(kind, Some(ErrorKind::TimedOut));
        }
        self.wait_for(ServerState::Tripped).await;
    }
}

/// Yields until `done`, without time passing.
async fn yield_until(done: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if done() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("the condition never became true");
}

/// Yields often enough for all tasks to settle, without time passing.
async fn yield_often() {
    for _ in 0..500 {
        tokio::task::yield_now().await;
    }
}

/// Waits for the calls and returns their error kinds, `None` for successes.
async fn error_kinds(calls: JoinSet<Result<Outcome, Error>>) -> Vec<Option<ErrorKind>> {
    calls.join_all().await.into_iter().map(|outcome| outcome.err().map(|error| error.kind())).collect()
}

fn error_kind(outcome: Result<Outcome, Error>) -> ErrorKind {
    outcome.unwrap_err().kind()
}
