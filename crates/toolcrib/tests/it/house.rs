//! What the stories have in common: names, specs, cribs, and waiting without sleeping.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;
use toolcrib::{Call, Crib, Error, ErrorKind, Outcome, Roster, ServerId, ServerSpec, ServerStatus};

use crate::fake::Fake;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) type Ended = Result<Outcome, Error>;

pub(crate) fn id(name: &str) -> ServerId {
    name.parse().unwrap()
}

pub(crate) fn spec(name: &str, fake: &Fake) -> ServerSpec {
    ServerSpec::in_process(id(name), fake.clone())
}

pub(crate) fn roster(servers: impl IntoIterator<Item = ServerSpec>) -> Roster {
    let mut roster = Roster::default();
    servers.into_iter().for_each(|spec| roster.add(spec).unwrap());
    roster
}

/// A crib with these servers.
pub(crate) fn crib(servers: &[(&str, &Fake)]) -> Crib {
    let servers = servers.iter().map(|(name, fake)| spec(name, fake));
    Crib::builder().roster(roster(servers)).build().unwrap()
}

pub(crate) fn status(crib: &Crib, server: &str) -> ServerStatus {
    crib.status().into_iter().find(|status| status.server.as_str() == server).unwrap()
}

/// A call on a task of its own.
pub(crate) fn spawn(calls: &mut JoinSet<Ended>, crib: &Crib, call: Call) {
    let crib = crib.clone();
    calls.spawn(async move { crib.call(call).await });
}

pub(crate) fn on(server: &str, tool: &str) -> Call {
    Call::on(id(server), tool)
}

pub(crate) fn with(server: &str, tool: &str, arguments: &Value) -> Call {
    on(server, tool).arguments(arguments)
}

pub(crate) fn kind(ended: Ended) -> ErrorKind {
    ended.unwrap_err().kind()
}

/// The public names on offer.
pub(crate) fn names(catalog: &Arc<toolcrib::Catalog>) -> Vec<String> {
    catalog.tools().iter().map(|tool| tool.public_name.to_string()).collect()
}

/// Lets everything that can happen without time passing happen.
pub(crate) async fn breath() {
    for _ in 0..500 {
        tokio::task::yield_now().await;
    }
}
