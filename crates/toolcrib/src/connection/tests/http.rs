//! What a connection makes of a remote server, on real sockets, against a scripted one.

mod failures;
pub(super) mod far;
mod odd;
mod resting;
mod sessions;
mod stateless;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::spec::{HttpSpec, Transport};
use far::{Far, Reply, Seen, Step, answer, event, numbered, said, session, stateless};

fn http(url: &str) -> ServerSpec {
    ServerSpec::http("far".parse().unwrap(), HttpSpec::new(url))
}

async fn to(far: &Far) -> Arc<Connection> {
    connected(&http(&far.url)).await
}

/// Why a server could not be started.
async fn refused(spec: &ServerSpec) -> Error {
    launched(spec, None).await.unwrap_err().error
}

async fn echo(connection: &Connection) -> Result<Outcome, Error> {
    call(connection, "echo", json!({})).await
}

fn text(outcome: Result<Outcome, Error>) -> String {
    let Answer::Result(result) = outcome.unwrap().answer else { panic!("an error") };
    let result: Value = serde_json::from_slice(&result).unwrap();
    result["content"][0]["text"].as_str().unwrap().to_owned()
}
