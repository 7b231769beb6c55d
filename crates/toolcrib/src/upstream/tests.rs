//! Connections to a scripted server, on a paused clock.

mod connection_loss;
mod delivery;
mod fairness;
mod handshakes;
mod http;
mod listings;
mod progress;
mod responses;
mod secrets;
mod server_requests;
mod task_calls;

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::handshake::HandshakePlan;
use super::launch::{LaunchContext, RefusedEra, StartFailure, launch};
use super::mux::MuxContext;
use super::*;
use crate::model::failure_class::FailureClass;
use crate::model::listing::Listing;
use crate::observer::event_channel::EventChannel;
use crate::process::stderr::StderrTail;
use crate::protocol::versions::Revision;
use crate::secrets::SecretStoreHandle;
use crate::spec::ServerSpec;
use crate::supervisor::fake::{FakeServer, FakeStart};

const SECOND: Duration = Duration::from_secs(1);

fn spec(fake: &FakeServer) -> ServerSpec {
    ServerSpec::in_process("fake".parse().unwrap(), fake.clone())
}

async fn try_connect(
    spec: &ServerSpec,
    remembered: Option<Revision>,
) -> Result<(Connection, Listing), StartFailure> {
    try_connect_with(spec, remembered, None).await.0
}

/// Connects with a secret store; also returns the stderr tail.
async fn try_connect_with(
    spec: &ServerSpec,
    remembered: Option<Revision>,
    secrets: Option<SecretStoreHandle>,
) -> (Result<(Connection, Listing), StartFailure>, Arc<StderrTail>) {
    let context = launch_context(secrets);
    let plan = HandshakePlan::from_config(spec).unwrap_or(match remembered {
        Some(revision) => HandshakePlan::Expect(revision.era()),
        None => HandshakePlan::Prefer(Era::Stateless),
    });
    let launched = launch(spec, plan, &context, true).await;
    let listed = launched.map(|launched| {
        let listing = launched.fetched.merge(None, Instant::now());
        (launched.connection, listing)
    });
    (listed, context.stderr)
}

fn launch_context(secrets: Option<SecretStoreHandle>) -> LaunchContext {
    LaunchContext {
        tasks: TaskTracker::new(),
        running: TaskTracker::new(),
        spawner: Arc::default(),
        stderr: Arc::default(),
        notifications: EventChannel::default(),
        cache: Arc::default(),
        first_garbage_line: Arc::default(),
        owner: Arc::default(),
        declaration: Arc::default(),
        secrets,
        on_question: None,
        known_callers: crate::secrets::KnownCallers::default(),
        #[cfg(feature = "http")]
        logins: None,
        published_card: None,
    }
}

fn mux_context() -> MuxContext {
    MuxContext {
        owner: Arc::default(),
        notifications: EventChannel::default(),
        cache: Arc::default(),
        first_garbage_line: Arc::default(),
        redactor: Arc::default(),
        tasks: TaskTracker::new(),
        logs_name_requests: false,
        on_question: None,
        handlers: None,
    }
}

async fn connect(spec: &ServerSpec) -> Arc<Connection> {
    Arc::new(try_connect(spec, None).await.unwrap().0)
}

async fn call(connection: &Connection, tool: &str, arguments: Value) -> Result<Outcome, Error> {
    connection.call(&mut Call::tool(tool).arguments(&arguments), tool, Instant::now()).await
}

/// Calls a tool whose server sends these lines instead of a response.
async fn call_with_lines(connection: &Connection, lines: &[&str]) -> Result<Outcome, Error> {
    call(connection, "say", json!({ "lines": lines })).await
}

/// Spawns a call that the server holds until it is released.
fn spawn_held_call(connection: &Arc<Connection>, tasks: &mut JoinSet<Result<Outcome, Error>>) {
    let connection = connection.clone();
    tasks.spawn(async move { call(&connection, "hold", Value::Null).await });
}

/// Lets all tasks run that can proceed without time passing.
async fn settle() {
    for _ in 0..500 {
        tokio::task::yield_now().await;
    }
}
