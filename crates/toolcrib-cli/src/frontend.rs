//! What clients see: MCP over HTTP and over pipes, and the admin API. Decode, `Call`, encode; nothing else.

pub(crate) mod admin;
pub(crate) mod batch;
mod body;
pub(crate) mod callers;
mod face;
mod guard;
pub(crate) mod http;
pub(crate) mod lasting;
mod line;
mod mcp;
mod outbox;
mod session;
pub(crate) mod stdio;
mod stretch;
mod taken;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tokio_util::task::TaskTracker;
use toolcrib::Crib;
use toolcrib::config::HostLimits;

use admin::Admin;
pub(crate) use face::Face;
pub(crate) use face::listening::ended as listen_ended;
use guard::Guard;
use session::Sessions;

use crate::advice::Advice;

/// Which way a client came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    /// The address the gateway listens on.
    Tcp,
    /// The daemon's own socket, which only its user can open.
    Socket,
}

/// The counter of the crib: everything a connection needs to serve its client.
#[derive(Debug)]
pub(crate) struct Desk {
    face: Arc<Face>,
    admin: Admin,
    sessions: Sessions,
    guard: Guard,
    /// The largest request body.
    body: usize,
    /// Calls that outlive the connection they came in on.
    tasks: TaskTracker,
}

impl Desk {
    /// A desk for everybody who asks for `localhost` or one of `hosts`.
    pub(crate) fn new(
        crib: Crib,
        admin: Admin,
        limits: &HostLimits,
        hosts: Vec<String>,
        advice: Advice,
    ) -> Self {
        let sessions = Sessions::new(limits.sessions);
        Self {
            face: Arc::new(Face::new(crib).advising(advice)),
            admin,
            sessions,
            guard: Guard::new(hosts),
            body: limits.body,
            tasks: TaskTracker::new(),
        }
    }

    /// Waits until everything that outlives its connection has ended.
    pub(crate) async fn finish(&self) {
        self.sessions.close();
        self.tasks.close();
        self.tasks.wait().await;
    }
}
