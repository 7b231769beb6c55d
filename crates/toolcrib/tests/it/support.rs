//! Helpers for all tests: names, specs, cribs, and waiting without sleeping.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;
use toolcrib::{Call, Crib, Error, ErrorKind, Outcome, Roster, ServerId, ServerSpec, ServerStatus};

use crate::fake::FakeServer;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// The default time that a list waits for lists that are out of date.
pub(crate) const LISTING_WAIT: Duration = Duration::from_millis(300);

/// The default time that a list waits for servers that were never listed, if others have answered.
pub(crate) const FIRST_WAIT: Duration = Duration::from_millis(6500);

pub(crate) type CallResult = Result<Outcome, Error>;

pub(crate) fn id(name: &str) -> ServerId {
    name.parse().unwrap()
}

pub(crate) fn spec(name: &str, fake: &FakeServer) -> ServerSpec {
    ServerSpec::in_process(id(name), fake.clone())
}

pub(crate) fn roster(servers: impl IntoIterator<Item = ServerSpec>) -> Roster {
    let mut roster = Roster::default();
    servers.into_iter().for_each(|spec| roster.add(spec).unwrap());
    roster
}

/// A crib with these servers.
pub(crate) fn crib(servers: &[(&str, &FakeServer)]) -> Crib {
    let servers = servers.iter().map(|(name, fake)| spec(name, fake));
    Crib::builder().roster(roster(servers)).build().unwrap()
}

pub(crate) fn status(crib: &Crib, server: &str) -> ServerStatus {
    crib.status().into_iter().find(|status| status.server.as_str() == server).unwrap()
}

/// Spawns a call.
pub(crate) fn spawn(calls: &mut JoinSet<CallResult>, crib: &Crib, call: Call) {
    let crib = crib.clone();
    calls.spawn(async move { crib.call(call).await });
}

pub(crate) fn on(server: &str, tool: &str) -> Call {
    Call::tool_on(id(server), tool)
}

pub(crate) fn with(server: &str, tool: &str, arguments: &Value) -> Call {
    on(server, tool).arguments(arguments)
}

pub(crate) fn kind(ended: CallResult) -> ErrorKind {
    ended.unwrap_err().kind()
}

/// The public names of all tools.
pub(crate) fn names(catalog: &Arc<toolcrib::Catalog>) -> Vec<String> {
    catalog.tools().iter().map(|tool| tool.public_name.to_string()).collect()
}

/// Runs other tasks until they are idle, without advancing the clock.
pub(crate) async fn settle() {
    for _ in 0..500 {
        tokio::task::yield_now().await;
    }
}
