//! Statistics of calls over a period.

use serde_json::{Value, json};

use super::{Members, Report, list_to_json};

/// Upper bounds of the buckets of latency histograms, in milliseconds. The last bucket has none.
pub(crate) const HISTOGRAM_BOUNDS: [u64; 15] =
    [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000];

/// Statistics of the calls of a period.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct StatsReport {
    /// In RFC 3339.
    pub(crate) since: String,
    /// In RFC 3339.
    pub(crate) until: String,
    /// Seconds of one element of a series.
    pub(crate) step: f64,
    /// Records that were lost since the gateway started, because they could not be written.
    pub(crate) dropped: u64,
    pub(crate) totals: CallStats,
    pub(crate) servers: Vec<StatsRow>,
    pub(crate) tools: Vec<StatsRow>,
    pub(crate) callers: Vec<StatsRow>,
    pub(crate) clients: Vec<StatsRow>,
    pub(crate) series: Vec<StatsPoint>,
    /// What tools and results cost, if it was requested.
    pub(crate) cost: Option<CostReport>,
}

impl Report for StatsReport {
    fn to_json(&self) -> Value {
        let mut report = json!({
            "since": self.since,
            "until": self.until,
            "step": self.step,
            "dropped": self.dropped,
            "histogram_bounds_ms": HISTOGRAM_BOUNDS,
            "totals": self.totals.to_json(),
            "servers": list_to_json(&self.servers),
            "tools": list_to_json(&self.tools),
            "callers": list_to_json(&self.callers),
            "clients": list_to_json(&self.clients),
            "series": list_to_json(&self.series),
        });
        if let Some(cost) = &self.cost {
            report["cost"] = cost.to_json();
        }
        report
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self {
            since: members.text("since"),
            until: members.text("until"),
            step: members.number("step"),
            dropped: members.count("dropped"),
            totals: CallStats::from_json(&value["totals"]),
            servers: members.reports("servers"),
            tools: members.reports("tools"),
            callers: members.reports("callers"),
            clients: members.reports("clients"),
            series: members.reports("series"),
            cost: members.optional_report("cost"),
        }
    }
}

/// Counts, sizes and latencies of some calls.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct CallStats {
    pub(crate) calls: u64,
    /// Calls that failed, or whose result is an error; denied calls are not among them.
    pub(crate) errors: u64,
    pub(crate) denied: u64,
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p95_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
    pub(crate) request_bytes: u64,
    pub(crate) response_bytes: u64,
    pub(crate) result_tokens: u64,
    /// Calls by duration; see [`HISTOGRAM_BOUNDS`].
    pub(crate) histogram: Vec<u64>,
}

impl Report for CallStats {
    fn to_json(&self) -> Value {
        json!({
            "calls": self.calls,
            "errors": self.errors,
            "denied": self.denied,
            "p50_ms": self.p50_ms,
            "p95_ms": self.p95_ms,
            "p99_ms": self.p99_ms,
            "request_bytes": self.request_bytes,
            "response_bytes": self.response_bytes,
            "result_tokens": self.result_tokens,
            "histogram": self.histogram,
        })
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self {
            calls: members.count("calls"),
            errors: members.count("errors"),
            denied: members.count("denied"),
            p50_ms: members.optional_number("p50_ms"),
            p95_ms: members.optional_number("p95_ms"),
            p99_ms: members.optional_number("p99_ms"),
            request_bytes: members.count("request_bytes"),
            response_bytes: members.count("response_bytes"),
            result_tokens: members.count("result_tokens"),
            histogram: members.elements("histogram").filter_map(Value::as_u64).collect(),
        }
    }
}

/// The statistics of one server, tool, caller or client.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct StatsRow {
    /// The name of the server, caller or client. `None` for calls without one.
    pub(crate) name: Option<String>,
    /// The server of a tool.
    pub(crate) server: Option<String>,
    pub(crate) stats: CallStats,
    /// Calls of each step; only for servers.
    pub(crate) calls_series: Vec<u64>,
    /// Failed calls of each step; only for servers.
    pub(crate) errors_series: Vec<u64>,
    /// The 95th percentile of each step; only for servers.
    pub(crate) p95_series: Vec<Option<f64>>,
}

impl Report for StatsRow {
    fn to_json(&self) -> Value {
        let mut report = self.stats.to_json();
        report["name"] = self.name.clone().into();
        if self.server.is_some() {
            report["server"] = self.server.clone().into();
        }
        if !self.calls_series.is_empty() {
            report["series"] = json!({
                "calls": self.calls_series,
                "errors": self.errors_series,
                "p95_ms": self.p95_series,
            });
        }
        report
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        let series = Members(&value["series"]);
        let counts = |name| series.elements(name).filter_map(Value::as_u64).collect();
        Self {
            name: members.optional_text("name"),
            server: members.optional_text("server"),
            stats: CallStats::from_json(value),
            calls_series: counts("calls"),
            errors_series: counts("errors"),
            p95_series: series.elements("p95_ms").map(Value::as_f64).collect(),
        }
    }
}

/// All calls of one step.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct StatsPoint {
    /// The start of the step, in RFC 3339.
    pub(crate) time: String,
    pub(crate) stats: CallStats,
}

impl Report for StatsPoint {
    fn to_json(&self) -> Value {
        let mut report = self.stats.to_json();
        report["time"] = self.time.as_str().into();
        report
    }

    fn from_json(value: &Value) -> Self {
        Self { time: Members(value).text("time"), stats: CallStats::from_json(value) }
    }
}

/// The tokens of definitions and results.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CostReport {
    pub(crate) days: Vec<DayCost>,
    pub(crate) definitions: Vec<ToolCost>,
}

impl Report for CostReport {
    fn to_json(&self) -> Value {
        json!({"days": list_to_json(&self.days), "definitions": list_to_json(&self.definitions)})
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self { days: members.reports("days"), definitions: members.reports("definitions") }
    }
}

/// The cost of one client on one day.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DayCost {
    /// As `2026-11-16`, in UTC.
    pub(crate) day: String,
    pub(crate) client: Option<String>,
    pub(crate) caller: String,
    pub(crate) calls: u64,
    pub(crate) result_tokens: u64,
    /// The tokens of the definitions that the client is listed now, in each of its conversations.
    pub(crate) definition_tokens: Option<u64>,
}

impl Report for DayCost {
    fn to_json(&self) -> Value {
        json!({
            "day": self.day,
            "client": self.client,
            "caller": self.caller,
            "calls": self.calls,
            "result_tokens": self.result_tokens,
            "definition_tokens": self.definition_tokens,
        })
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self {
            day: members.text("day"),
            client: members.optional_text("client"),
            caller: members.text("caller"),
            calls: members.count("calls"),
            result_tokens: members.count("result_tokens"),
            definition_tokens: members.optional_count("definition_tokens"),
        }
    }
}

/// The cost of one tool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ToolCost {
    pub(crate) server: String,
    pub(crate) tool: String,
    /// The tokens of its definition; `None` if no server offers it now.
    pub(crate) definition_tokens: Option<u64>,
    pub(crate) calls: u64,
    pub(crate) result_tokens: u64,
}

impl Report for ToolCost {
    fn to_json(&self) -> Value {
        json!({
            "server": self.server,
            "tool": self.tool,
            "definition_tokens": self.definition_tokens,
            "calls": self.calls,
            "result_tokens": self.result_tokens,
        })
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self {
            server: members.text("server"),
            tool: members.text("tool"),
            definition_tokens: members.optional_count("definition_tokens"),
            calls: members.count("calls"),
            result_tokens: members.count("result_tokens"),
        }
    }
}
