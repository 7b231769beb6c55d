//! What a connection makes of everything a server can send, on a paused clock, against a scripted server.

mod endings;
mod errands;
mod fairness;
mod greeting;
mod http;
mod lists;
mod progress;
mod questions;
mod replies;
mod secrets;

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::launch::{Around, StartFailure, launch};
use super::listing::Listing;
use super::stderr::StderrTail;
use super::*;
use crate::class::FailureClass;
use crate::secret::Source;
use crate::spec::ServerSpec;
use crate::supervisor::fake::{Boot, Fake};
use crate::wire::revision::Revision;

const SECOND: Duration = Duration::from_secs(1);

fn spec(fake: &Fake) -> ServerSpec {
    ServerSpec::in_process("fake".parse().unwrap(), fake.clone())
}

async fn launched(
    spec: &ServerSpec,
    remembered: Option<Revision>,
) -> Result<(Connection, Listing), StartFailure> {
    launched_with(spec, remembered, None).await.0
}

/// The same by somebody who knows secrets, and what was written to stderr.
async fn launched_with(
    spec: &ServerSpec,
    remembered: Option<Revision>,
    secrets: Option<Source>,
) -> (Result<(Connection, Listing), StartFailure>, Arc<StderrTail>) {
    let (tasks, lives) = (TaskTracker::new(), TaskTracker::new());
    let (stderr, news) = (Arc::<StderrTail>::default(), tokio::sync::broadcast::channel(8).0);
    let (strange, whose) = (Arc::default(), Arc::default());
    let (nursery, cache) = (Arc::default(), Arc::default());
    let around = Around { tasks, lives, nursery, stderr, news, cache, strange, whose, secrets };
    (launch(spec, remembered, &around).await, around.stderr)
}

async fn connected(spec: &ServerSpec) -> Arc<Connection> {
    Arc::new(launched(spec, None).await.unwrap().0)
}

async fn call(connection: &Connection, tool: &str, arguments: Value) -> Result<Outcome, Error> {
    connection.call(&mut Call::tool(tool).arguments(&arguments), tool, Instant::now()).await
}

/// Has the server send these lines instead of an answer.
async fn say(connection: &Connection, lines: &[&str]) -> Result<Outcome, Error> {
    call(connection, "say", json!({ "lines": lines })).await
}

/// A call that the server works on until it is let go.
fn held(connection: &Arc<Connection>, tasks: &mut JoinSet<Result<Outcome, Error>>) {
    let connection = connection.clone();
    tasks.spawn(async move { call(&connection, "hold", Value::Null).await });
}

/// Lets everything that can happen without time passing happen.
async fn breath() {
    for _ in 0..500 {
        tokio::task::yield_now().await;
    }
}
