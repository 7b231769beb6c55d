//! Changes of the set of servers: what a roster, an added or a removed server does to the registry.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::{RegisteredServer, Registry};
use crate::model::error::{Error, ErrorKind};
use crate::spec::{ServerId, ServerSpec, StartPolicy};
use crate::supervisor::Supervisor;

/// The difference between two rosters, and the servers that failed to start with the new one.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct RosterChanges {
    /// New servers.
    pub added: Vec<ServerId>,
    /// Servers that are no longer in the roster.
    pub removed: Vec<ServerId>,
    /// Servers whose spec has changed.
    pub changed: Vec<ServerId>,
    /// The changed servers that need a new process or connection. The others took over their new settings while running.
    pub restarted: Vec<ServerId>,
    /// Servers that start at boot and failed to. They are in the roster, and are supervised like any server that failed.
    pub failed: Vec<FailedStart>,
}

impl RosterChanges {
    /// Returns whether nothing was added, removed or changed.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }
}

/// A server that starts at boot and did not, with the reason.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FailedStart {
    /// The server.
    pub server: ServerId,
    /// The first failure, or that the start takes longer than its time limit.
    pub error: Error,
}

/// Changes that are in force, and the servers that start because of them.
pub(crate) struct AppliedRoster {
    pub(crate) changes: RosterChanges,
    pub(crate) booting: Vec<Supervisor>,
}

/// A change of the servers while they are locked.
pub(super) struct RosterEdit<'a> {
    pub(super) registry: &'a Registry,
    pub(super) servers: &'a mut HashMap<ServerId, RegisteredServer>,
    pub(super) changes: RosterChanges,
    /// Supervisors that finish their calls and stop.
    pub(super) draining: Vec<Supervisor>,
}

impl RosterEdit<'_> {
    /// Removes a server. Its calls are finished in the background.
    pub(super) fn remove(&mut self, id: ServerId) {
        let instances = self.servers.remove(&id).map(RegisteredServer::close).unwrap_or_default();
        self.draining.extend(instances.into_iter().map(|old| old.supervisor));
        self.changes.removed.push(id);
    }

    /// Adds a server, or changes the one of that name: in place, or by a replacement if its process cannot serve the
    /// new spec.
    pub(super) fn put(&mut self, spec: ServerSpec) {
        let id = spec.id.clone();
        match self.servers.get(&id) {
            Some(entry) if *entry.spec() == spec => return,
            Some(entry) => {
                self.changes.changed.push(id.clone());
                if let Some(updated) = entry.update(&spec) {
                    self.servers.insert(id, updated);
                    return;
                }
                self.changes.restarted.push(id.clone());
            }
            None => self.changes.added.push(id.clone()),
        }
        let replaced = self.servers.remove(&id).map(RegisteredServer::close).unwrap_or_default();
        let (entry, to_drain) = self.registry.register(spec, replaced);
        self.draining.extend(to_drain);
        self.servers.insert(id, entry);
    }

    /// Returns the error for a name that is taken, or differs from a taken one only in `-` and `_`.
    pub(super) fn check_name(&self, id: &ServerId) -> Result<(), Error> {
        let folded = id.folded();
        let Some(taken) = self.servers.keys().find(|taken| taken.folded() == folded) else { return Ok(()) };
        let message = match taken == id {
            true => format!("a server is already called `{id}`"),
            false => {
                format!("`{id}` conflicts with the server `{taken}`: `-` and `_` count as equal in names")
            }
        };
        Err(Error::new(ErrorKind::Malformed, message).with_server(taken).with_hint("choose another name"))
    }

    /// Returns the servers that this edit starts: those that start at boot and did not exist in this form before.
    pub(super) fn booting(&self, before: &HashMap<ServerId, RegisteredServer>) -> Vec<Supervisor> {
        let was_started = |id: &ServerId| {
            before.get(id).is_some_and(RegisteredServer::starts_at_boot)
                && !self.changes.restarted.contains(id)
        };
        let changed = self.changes.added.iter().chain(&self.changes.changed).filter(|id| !was_started(id));
        let entries = changed.filter_map(|id| self.servers.get(id));
        let supervisor = |entry: &RegisteredServer| match entry {
            RegisteredServer::Shared(server) if entry.starts_at_boot() => Some(server.main().clone()),
            _ => None,
        };
        entries.filter_map(supervisor).collect()
    }
}

/// Waits until each of these servers is up, has failed, or has used up its start timeout. Returns those that are not up.
pub(crate) async fn failed_starts(booting: Vec<Supervisor>) -> Vec<FailedStart> {
    let began = Instant::now();
    let mut failed = Vec::new();
    for supervisor in booting {
        // The second gives the supervisor the time to report that its own limit has passed.
        let deadline = began + supervisor.spec().lifecycle.start_timeout + Duration::from_secs(1);
        if let Err(error) = supervisor.wait_for_first_start(deadline).await {
            failed.push(FailedStart { server: supervisor.spec().id.clone(), error });
        }
    }
    failed
}

impl RegisteredServer {
    fn starts_at_boot(&self) -> bool {
        self.is_enabled() && self.spec().lifecycle.start == StartPolicy::AtBoot
    }
}
