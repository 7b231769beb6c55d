//! Connections to a scripted remote server, on real sockets.

mod auth;
mod backoff;
mod failures;
mod list_changes;
mod published_card;
pub(super) mod remote_server;
mod sessions;
mod stateless;
mod unusual_methods;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::spec::{HttpSpec, TransportKind};
use crate::upstream::relist::{EarliestRelist, RelistRequest};
use remote_server::{
    RecordedRequest, RemoteServer, Reply, Step, event, numbered_event, response, session, stateless,
    tool_response,
};

fn http(url: &str) -> ServerSpec {
    ServerSpec::http("remote".parse().unwrap(), HttpSpec::new(url))
}

async fn connect_to(server: &RemoteServer) -> Arc<Connection> {
    connect(&http(&server.url)).await
}

/// Returns the error of a failed start.
async fn start_error(spec: &ServerSpec) -> Error {
    try_connect(spec, None).await.unwrap_err().error
}

/// Waits until lists have to be fetched again.
async fn wait_for_relist(connection: &Connection) -> RelistRequest {
    let now = Instant::now();
    loop {
        connection.wait_for_relist(EarliestRelist::at(now)).await;
        let request = connection.begin_relist();
        if !request.kinds.is_empty() {
            return request;
        }
        connection.finish_relist(request.number);
    }
}

async fn echo(connection: &Connection) -> Result<Outcome, Error> {
    call(connection, "echo", json!({})).await
}

fn text(outcome: Result<Outcome, Error>) -> String {
    let ResponsePayload::Result(result) = outcome.unwrap().answer else { panic!("the response is an error") };
    let result: Value = serde_json::from_slice(&result).unwrap();
    result["content"][0]["text"].as_str().unwrap().to_owned()
}
