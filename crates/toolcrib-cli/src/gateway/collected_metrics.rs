//! All metrics of a gateway: what was observed, and the present state of its servers.

use std::collections::BTreeMap;
use std::time::SystemTime;

use toolcrib::access::expose::estimate_tokens;
use toolcrib::util::clock::wall_time;
use toolcrib::{Catalog, ServerId, ServerState, ServerStatus};

use super::{GatewayHandle, shared_store};
use crate::telemetry::{MetricFamily, MetricUnit};

/// Returns all metrics. Blocks, because it reads memory and CPU use from the system.
pub(super) fn collect(gateway: &GatewayHandle, sessions: usize) -> Vec<MetricFamily> {
    let mut families = gateway.telemetry().families();
    families.extend(server_families(&gateway.crib().status()));
    families.extend(catalog_families(&gateway.crib().catalog()));
    let mut open = MetricFamily::gauge("toolcrib.sessions", "Open sessions of HTTP clients.");
    open.add_count(&[], sessions as u64);
    let mut generation = MetricFamily::gauge("toolcrib.config.generation", "Number of the config in use.");
    generation.add_count(&[], gateway.config_generation());
    let mut build = MetricFamily::gauge("toolcrib.build_info", "Version of the gateway; the value is 1.");
    build.add_count(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    let start = wall_time().checked_sub(gateway.uptime()).unwrap_or(SystemTime::UNIX_EPOCH);
    let mut started = MetricFamily::gauge("process.start_time", "Start of the gateway since 1970.")
        .with_unit(MetricUnit::Seconds);
    started.add(&[], start.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64().round());
    families.extend([open, generation, build, started]);
    families.extend(gateway.store_status().iter().flat_map(shared_store::families));
    families
}

/// Returns the metrics of servers as they are now.
fn server_families(servers: &[ServerStatus]) -> Vec<MetricFamily> {
    let gauge = |name, help, value: fn(&ServerStatus) -> Option<f64>| {
        add_servers(MetricFamily::gauge(name, help), servers, value)
    };
    let counter = |name, help, value: fn(&ServerStatus) -> Option<f64>| {
        add_servers(MetricFamily::counter(name, help), servers, value)
    };
    let is_up = |status: &ServerStatus| {
        let is_running =
            matches!(status.state, ServerState::Ready | ServerState::Tripped | ServerState::Probing);
        Some(f64::from(u8::from(is_running)))
    };
    let breaker = |status: &ServerStatus| match status.breaker() {
        "open" => Some(2.0),
        "half_open" => Some(1.0),
        _ => Some(0.0),
    };
    vec![
        gauge("toolcrib.server.up", "Whether a server is running: 1 or 0.", is_up),
        counter("toolcrib.server.starts", "Starts of a server.", |status| count(status.generation)),
        gauge(
            "toolcrib.breaker.state",
            "Circuit breaker of a server: 0 closed, 1 half open, 2 open.",
            breaker,
        ),
        gauge("toolcrib.inflight_requests", "Requests that a server works on.", |status| {
            count(status.in_flight as u64)
        }),
        gauge("toolcrib.queue.depth", "Calls that wait for a busy server.", |status| {
            count(status.queued as u64)
        }),
        gauge("toolcrib.server.memory", "Memory of the process tree of a server.", |status| {
            status.memory.and_then(count)
        })
        .with_unit(MetricUnit::Bytes),
        counter("toolcrib.server.cpu", "CPU time of the process tree of a server.", |status| {
            status.cpu_time.map(|time| time.as_secs_f64())
        })
        .with_unit(MetricUnit::Seconds),
        counter("toolcrib.cache.hits", "Calls that were answered from the cache.", |status| {
            count(status.cache_hits)
        }),
        counter("toolcrib.cache.misses", "Cacheable calls that were sent to the server.", |status| {
            count(status.cache_misses)
        }),
        gauge("toolcrib.cache.entries", "Cached answers.", |status| count(status.cache_entries as u64)),
    ]
}

#[expect(clippy::cast_precision_loss, reason = "a metric is a floating point number")]
fn count(count: u64) -> Option<f64> {
    Some(count as f64)
}

/// Adds a point for every server that has the value.
fn add_servers(
    mut family: MetricFamily,
    servers: &[ServerStatus],
    value: fn(&ServerStatus) -> Option<f64>,
) -> MetricFamily {
    for status in servers {
        if let Some(value) = value(status) {
            family.add(&[("toolcrib.server", status.server.as_str())], value);
        }
    }
    family
}

/// Returns the number of tools of each server, and what their definitions cost.
fn catalog_families(catalog: &Catalog) -> [MetricFamily; 2] {
    let mut tools = MetricFamily::gauge("toolcrib.catalog.tools", "Tools of a server.");
    let mut tokens = MetricFamily::gauge(
        "toolcrib.catalog.tokens",
        "Estimated tokens of the tool definitions of a server.",
    );
    let mut costs: BTreeMap<&ServerId, ToolTotals> = BTreeMap::new();
    for tool in catalog.tools() {
        let cost = costs.entry(&tool.server).or_default();
        cost.tools += 1;
        cost.bytes += tool.listed_bytes();
    }
    for (server, cost) in costs {
        let label = [("toolcrib.server", server.as_str())];
        tools.add_count(&label, cost.tools);
        tokens.add_count(&label, estimate_tokens(cost.bytes) as u64);
    }
    [tools, tokens]
}

/// The tools of one server.
#[derive(Default)]
struct ToolTotals {
    tools: u64,
    bytes: usize,
}
