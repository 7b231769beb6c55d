//! The status of one instance, and of a server without one.

use super::*;

impl Supervisor {
    /// Returns how long the server has had no leases; zero if it has any or does not run.
    pub(crate) fn idle_time(&self, now: Instant) -> Duration {
        let leased = self.0.snapshot.borrow().leased.upgrade();
        let released =
            leased.filter(|server| server.gate.leases() == 0).and_then(|server| server.gate.last_release());
        released.map_or(Duration::ZERO, |released| now.saturating_duration_since(released))
    }

    pub(crate) fn status(&self, now: Instant) -> ServerStatus {
        let metrics = &self.0.metrics;
        let snapshot = self.0.snapshot.borrow();
        let known = snapshot.known_listing.as_ref();
        let listing = known.map(|known| known.listing.clone()).or_else(|| self.0.cards.listing());
        let connection = snapshot.connection.upgrade();
        let restarts = self.0.start_gate.restart_counts(now);
        let declared = ServerStatus::disabled(&self.0.spec);
        ServerStatus {
            transport: known.and_then(KnownListing::transport).unwrap_or(declared.transport),
            state: snapshot.state,
            pid: connection.as_ref().and_then(|connection| connection.pid()),
            uptime: snapshot.up_since.map(|since| now.duration_since(since)),
            generation: snapshot.generation,
            leases: snapshot.leases(),
            in_flight: connection.as_ref().map_or(0, |connection| connection.in_flight()),
            restarts: restarts.spent,
            restarts_left: restarts.remaining,
            consecutive_failures: metrics.consecutive_failures.load(Ordering::Relaxed),
            next_attempt_in: snapshot.state_ends_at.map(|end| end.saturating_duration_since(now)),
            last_error: snapshot.last_error.clone(),
            stderr_tail: self.0.stderr.lines_after(0).into_iter().map(|line| line.text).collect(),
            garbage_lines: connection.as_ref().map_or(0, |connection| connection.garbage_lines()),
            tools: listing.as_ref().and_then(|listing| listing.tool_count()),
            card: self.0.cards.combined(),
            memory: connection.as_ref().and_then(|connection| connection.memory_usage()),
            cpu_time: connection.as_ref().and_then(|connection| connection.cpu_time()),
            queued: connection.as_ref().map_or(0, |connection| connection.queued()),
            calls: metrics.calls(),
            errors: metrics.errors(),
            p50: metrics.percentile(0.5),
            p99: metrics.percentile(0.99),
            protocol: known.map(|known| known.revision),
            eras: known.map(|known| known.revision.era()).into_iter().collect(),
            server_info: known.and_then(|known| known.listing.server_info.clone()),
            listing_errors: snapshot.list_failures.iter().map(ListingError::from_failure).collect(),
            problems: listing.map(|listing| listing.problems()).unwrap_or_default(),
            ..declared
        }
    }
}

impl ServerStatus {
    /// Returns the status of a server without a supervisor.
    pub(crate) fn disabled(spec: &ServerSpec) -> Self {
        Self {
            server: spec.id.clone(),
            transport: match spec.endpoint {
                Endpoint::Command(_) => "stdio",
                Endpoint::Http(ref http) => http.transport.as_str(),
                Endpoint::InProcess(_) => "in-process",
            },
            state: ServerState::Disabled,
            pid: None,
            uptime: None,
            generation: 0,
            leases: 0,
            in_flight: 0,
            restarts: 0,
            restarts_left: spec.lifecycle.restarts.at_most,
            consecutive_failures: 0,
            next_attempt_in: None,
            last_error: None,
            stderr_tail: Vec::new(),
            garbage_lines: 0,
            cache_entries: 0,
            cache_hits: 0,
            cache_misses: 0,
            tools: None,
            memory: None,
            cpu_time: None,
            queued: 0,
            calls: 0,
            errors: 0,
            p50: None,
            p99: None,
            start: spec.lifecycle.start,
            protocol: None,
            eras: Vec::new(),
            server_info: None,
            card: spec.card.clone(),
            pin: spec.pin,
            unapproved: Vec::new(),
            problems: Vec::new(),
            listing_errors: Vec::new(),
            sharing: spec.sharing,
            asks: None,
            instances: Vec::new(),
        }
    }
}
