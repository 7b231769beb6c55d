//! Servers that are not in the roster: started for a call by their spec, shared by equal specs, and bounded in number.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::time::Instant;

use super::{KeyedSupervisor, RegisteredServer, Registry, shut_down_error};
use crate::access::pins::PinStore;
use crate::cache::Invalidation;
use crate::model::error::{Error, ErrorKind};
use crate::spec::{ServerId, ServerSpec, SpecDigest, StartPolicy};
use crate::supervisor::{Supervisor, SupervisorServices};
use crate::util::locks::IgnorePoison as _;

/// Digits of the digest in the name of a server.
const NAME_DIGITS: usize = 8;

/// The servers of one crib that are not in its roster.
#[derive(Debug)]
pub(super) struct AdhocServers {
    max_servers: usize,
    table: Mutex<AdhocTable>,
}

#[derive(Debug, Default)]
struct AdhocTable {
    servers: BTreeMap<ServerId, AdhocServer>,
    is_closed: bool,
}

#[derive(Debug)]
struct AdhocServer {
    entry: RegisteredServer,
    digest: SpecDigest,
    last_used: Instant,
    /// Cloned by every user.
    users: Arc<()>,
}

/// The use of a server that is not in the roster. The server is not evicted while it exists.
#[derive(Debug)]
pub(crate) struct AdhocUse {
    pub(crate) server: ServerId,
    _user: Arc<()>,
}

impl AdhocServer {
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.users) == 1 && self.entry.is_idle()
    }
}

impl AdhocServers {
    pub(super) fn new(max_servers: usize) -> Self {
        Self { max_servers, table: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, AdhocTable> {
        self.table.lock().ignore_poison()
    }

    pub(super) fn get(&self, server: &ServerId) -> Option<RegisteredServer> {
        self.lock().servers.get(server).map(|adhoc| adhoc.entry.clone())
    }

    pub(super) fn all(&self) -> Vec<RegisteredServer> {
        self.lock().servers.values().map(|adhoc| adhoc.entry.clone()).collect()
    }

    /// Adds no more servers and returns the supervisors of all existing ones.
    pub(super) fn close(&self) -> Vec<Supervisor> {
        let mut table = self.lock();
        table.is_closed = true;
        let servers = std::mem::take(&mut table.servers);
        drop(table);
        servers.into_values().flat_map(|adhoc| supervisors(adhoc.entry)).collect()
    }
}

impl AdhocTable {
    /// Returns the name for a digest: its first digits, or all of them if another server has these.
    fn name_for(&self, digest: &SpecDigest) -> Result<ServerId, Error> {
        let name = |digits: &str| {
            let invalid = |error| Error::new(ErrorKind::Malformed, format!("`adhoc-{digits}`: {error}"));
            format!("adhoc-{digits}").parse::<ServerId>().map_err(invalid)
        };
        let short = name(&digest.as_str()[..NAME_DIGITS])?;
        match self.servers.get(&short) {
            Some(other) if other.digest != *digest => name(digest.as_str()),
            _ => Ok(short),
        }
    }
}

fn supervisors(entry: RegisteredServer) -> Vec<Supervisor> {
    entry.close().into_iter().map(|KeyedSupervisor { supervisor, .. }| supervisor).collect()
}

impl Registry {
    /// Returns whether a server of this name exists that is not in the roster.
    pub(crate) fn is_adhoc(&self, server: &ServerId) -> bool {
        self.adhoc.get(server).is_some() && !self.servers().contains_key(server)
    }

    /// Returns the servers that are not in the roster, sorted by name.
    pub(crate) fn adhoc_servers(&self) -> Vec<RegisteredServer> {
        self.adhoc.all()
    }

    /// Returns the name that the server of a spec has if it is not in the roster.
    pub(crate) fn adhoc_name(&self, spec: &ServerSpec) -> Result<ServerId, Error> {
        let name = self.adhoc.lock().name_for(&adhoc_digest(spec)?)?;
        if self.servers().contains_key(&name) {
            let message = format!("a declared server is called `{name}`, like the server of this command");
            return Err(Error::new(ErrorKind::Malformed, message).with_server(&name));
        }
        Ok(name)
    }

    /// Uses the server of a spec that is not in the roster. Equal specs share a server; one that differs only in settings
    /// that its process does not depend on takes them over. If the maximum is reached, the idle server that was used
    /// least recently is evicted.
    pub(crate) fn use_adhoc(&self, mut spec: ServerSpec) -> Result<AdhocUse, Error> {
        let digest = adhoc_digest(&spec)?;
        spec.id = self.adhoc_name(&spec)?;
        spec.enabled = true;
        spec.lifecycle.start = StartPolicy::OnDemand;
        let mut table = self.adhoc.lock();
        if table.is_closed {
            return Err(shut_down_error());
        }
        let mut draining = Vec::new();
        let mut replaced = Vec::new();
        let mut users = Arc::default();
        let current = table.servers.get(&spec.id).map(|adhoc| adhoc.entry.clone());
        let updated = match current {
            Some(entry) if *entry.spec() == spec => Some(entry),
            Some(entry) => entry.update(&spec),
            None => None,
        };
        if let Some(old) = table.servers.remove(&spec.id) {
            users = old.users;
            if updated.is_none() {
                replaced = old.entry.close();
            }
        } else if table.servers.len() >= self.adhoc.max_servers {
            draining = supervisors(self.evict_adhoc(&mut table)?);
        }
        let server = spec.id.clone();
        let checks_arguments = spec.tools.check_arguments;
        let entry = match updated {
            Some(entry) => entry,
            None => {
                let (entry, to_drain) = Self::register_with(spec, replaced, None, self.adhoc_services());
                draining.extend(to_drain);
                entry
            }
        };
        let user = Arc::clone(&users);
        let adhoc = AdhocServer { entry, digest, last_used: Instant::now(), users };
        table.servers.insert(server.clone(), adhoc);
        drop(table);
        if checks_arguments {
            self.checks_arguments.store(true, std::sync::atomic::Ordering::Relaxed);
        }
        draining.iter().for_each(|supervisor| supervisor.drain_in_background(&self.services));
        Ok(AdhocUse { server, _user: user })
    }

    /// Removes the idle server that was used least recently.
    fn evict_adhoc(&self, table: &mut AdhocTable) -> Result<RegisteredServer, Error> {
        let idle = table.servers.iter().filter(|(_, adhoc)| adhoc.is_idle());
        let oldest = idle.min_by_key(|(_, adhoc)| adhoc.last_used).map(|(server, _)| server.clone());
        let evicted = oldest.and_then(|server| table.servers.remove(&server));
        let Some(evicted) = evicted else {
            let limit = self.adhoc.max_servers;
            let message = format!("all {limit} servers that may run without being declared are busy");
            let error = Error::new(ErrorKind::OverQuota, message);
            return Err(error.with_hint("try again when one is idle, or declare the server"));
        };
        self.services.cache.invalidate(&evicted.entry.spec().id, None, Invalidation::All);
        Ok(evicted.entry)
    }

    /// Returns services that keep nothing on disk about a server that is not declared.
    fn adhoc_services(&self) -> SupervisorServices {
        SupervisorServices { pins: Arc::<PinStore>::default(), ..self.services.clone() }
    }
}

fn adhoc_digest(spec: &ServerSpec) -> Result<SpecDigest, Error> {
    spec.digest().ok_or_else(|| {
        let message = "a server in this process has no digest, so that it cannot be called by its spec";
        Error::new(ErrorKind::Malformed, message).with_hint("add the server to the crib")
    })
}
