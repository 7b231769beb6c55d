//! Counts of restarts, ejections and changes of circuit breakers.

use std::collections::BTreeMap;

use toolcrib::Event;

use super::call_table::OTHER;
use super::family::MetricFamily;

/// Servers that are told apart.
const MAX_SERVERS: usize = 2000;

/// What happened to one server.
#[derive(Debug, Default)]
struct ServerIncidents {
    /// By failure class.
    restarts: BTreeMap<&'static str, u64>,
    ejections: u64,
    /// Changes of the circuit breaker, by its new state.
    transitions: BTreeMap<&'static str, u64>,
}

/// What happened to servers since the gateway started.
#[derive(Debug, Default)]
pub(super) struct Incidents {
    servers: BTreeMap<String, ServerIncidents>,
}

impl Incidents {
    pub(super) fn record(&mut self, event: &Event) {
        match event {
            Event::Crashed { server, class, .. } => {
                *self.of_server(server.as_str()).restarts.entry(class.name()).or_default() += 1;
            }
            Event::Ejected { server, .. } => self.of_server(server.as_str()).ejections += 1,
            Event::Tripped { server } => self.add_transition(server.as_str(), "open"),
            Event::Recovered { server } => self.add_transition(server.as_str(), "closed"),
            _ => {}
        }
    }

    fn add_transition(&mut self, server: &str, state: &'static str) {
        *self.of_server(server).transitions.entry(state).or_default() += 1;
    }

    fn of_server(&mut self, server: &str) -> &mut ServerIncidents {
        let is_known = self.servers.contains_key(server) || self.servers.len() < MAX_SERVERS;
        self.servers.entry(if is_known { server } else { OTHER }.to_owned()).or_default()
    }

    pub(super) fn families(&self) -> [MetricFamily; 3] {
        let mut restarts = MetricFamily::counter(
            "toolcrib.server.restarts",
            "Exits and failed starts of a server after which it is started again.",
        );
        let mut ejections = MetricFamily::counter("toolcrib.server.ejections", "Ejections of a server.");
        let mut transitions = MetricFamily::counter(
            "toolcrib.breaker.transitions",
            "Changes of the circuit breaker of a server.",
        );
        for (server, incidents) in &self.servers {
            let server = ("toolcrib.server", server.as_str());
            for (class, count) in &incidents.restarts {
                restarts.add_count(&[server, ("toolcrib.reason", class)], *count);
            }
            if incidents.ejections > 0 {
                ejections.add_count(&[server], incidents.ejections);
            }
            for (state, count) in &incidents.transitions {
                transitions.add_count(&[server, ("toolcrib.state", state)], *count);
            }
        }
        [restarts, ejections, transitions]
    }
}
