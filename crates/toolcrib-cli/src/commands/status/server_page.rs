//! The page of one server: its state, process, calls, last error, limits, tools, events and stderr, in sections.

use toolcrib::util::format::format_duration;
use toolcrib::{ServerId, ServerSpec};

use super::{format_count, format_eras, format_seconds};
use crate::gateway;
use crate::paths::Paths;
use crate::report::server::{InstanceReport, ServerReport};
use crate::visible_text::escape_invisible;

/// Events of the log file that are shown.
const MAX_EVENTS: usize = 8;
/// Stderr lines that are shown.
const MAX_STDERR_LINES: usize = 10;
/// Marks events in a log file.
const EVENT_PREFIX: &str = " toolcrib: ";

/// What the page shows besides the status: the declared limits, and the events of the log file.
#[derive(Default)]
pub(super) struct PageContext {
    spec: Option<ServerSpec>,
    events: Vec<String>,
}

impl PageContext {
    /// Reads the config and the log file. What cannot be read is not shown.
    pub(super) fn find(name: &str, paths: &Paths) -> Self {
        let Ok(id) = name.parse::<ServerId>() else { return Self::default() };
        let log = gateway::read_log(&paths.log_dir(), &id).ok().flatten().unwrap_or_default();
        let spec = paths.sources().load().roster.get(&id).cloned();
        Self { spec, events: recent_events(&log) }
    }
}

fn recent_events(log: &str) -> Vec<String> {
    let is_event = |line: &&str| line.contains(EVENT_PREFIX);
    let mut events: Vec<String> =
        log.lines().rev().filter(is_event).take(MAX_EVENTS).map(str::to_owned).collect();
    events.reverse();
    events.iter().map(|event| event.replacen(EVENT_PREFIX, "  ", 1)).collect()
}

/// The lines of a page. A section without rows is left out.
struct PageLines(Vec<String>);

impl PageLines {
    fn section(&mut self, heading: &str, rows: Vec<Row>) {
        self.add(heading, rows.into_iter().map(|row| format!("{:<20}  {}", row.label, row.value)));
    }

    fn add(&mut self, heading: &str, lines: impl IntoIterator<Item = String>) {
        let mut lines = lines.into_iter().peekable();
        if lines.peek().is_none() {
            return;
        }
        if !self.0.is_empty() {
            self.0.push(String::new());
        }
        self.0.push(heading.to_owned());
        self.0.extend(lines.map(|line| format!("  {}", escape_invisible(&line)).trim_end().to_owned()));
    }
}

/// A label and its value.
struct Row {
    label: &'static str,
    value: String,
}

fn row(label: &'static str, value: impl Into<String>) -> Row {
    Row { label, value: value.into() }
}

fn optional_row(label: &'static str, value: Option<impl Into<String>>) -> Option<Row> {
    value.map(|value| row(label, value))
}

/// Returns the lines of the page.
pub(super) fn render(server: &ServerReport, context: &PageContext) -> Vec<String> {
    let mut page = PageLines(Vec::new());
    page.section("State", state_rows(server));
    page.section("Process", process_rows(server));
    page.section("Calls", call_rows(server));
    page.section("Last error", error_rows(server));
    page.section("Limits", limit_rows(server, context.spec.as_ref()));
    page.section("Tools", tool_rows(server));
    page.add("Instances", server.instances_list.iter().map(instance_line));
    page.add("Recent events", context.events.iter().cloned());
    let first = server.stderr_tail.len().saturating_sub(MAX_STDERR_LINES);
    page.add("Stderr", server.stderr_tail[first..].iter().cloned());
    page.0
}

fn state_rows(server: &ServerReport) -> Vec<Row> {
    let mut rows = vec![row("server", &server.name), row("state", &server.state)];
    rows.extend(optional_row("title", server.title.as_ref()));
    rows.extend(optional_row("description", server.description.as_ref()));
    rows.extend(server.uptime.map(|uptime| row("uptime", format_seconds(Some(uptime)))));
    rows.extend(server.next_attempt_in.map(|wait| row("next attempt in", format_seconds(Some(wait)))));
    rows.push(row("start", &server.start));
    rows.push(row("sharing", &server.sharing));
    rows.extend(server.asks.as_ref().map(|method| {
        row(
            "instances",
            format!("one per new client while others are connected, because it sends `{method}`"),
        )
    }));
    rows
}

fn process_rows(server: &ServerReport) -> Vec<Row> {
    let mut rows = vec![row("transport", &server.transport)];
    rows.extend(optional_row(
        "login",
        Some(&server.login).filter(|login| !matches!(login.as_str(), "" | "none")),
    ));
    rows.extend(optional_row("pid", server.pid.map(|pid| pid.to_string())));
    rows.extend(server.memory.map(|bytes| row("memory", format_bytes(bytes))));
    rows.extend(server.cpu_seconds.map(|seconds| row("cpu time", format!("{seconds:.2} s"))));
    rows.push(row("starts", server.generation.to_string()));
    let version = server.protocol_version.as_deref();
    rows.extend(version.map(|version| row("protocol", format!("{version} ({})", format_eras(&server.eras)))));
    let info = server.server_info.as_ref();
    let member = |name: &str| info.and_then(|info| info[name].as_str()).unwrap_or_default();
    if info.is_some() {
        rows.push(row("program", format!("{} {}", member("name"), member("version")).trim()));
    }
    rows
}

fn call_rows(server: &ServerReport) -> Vec<Row> {
    let mut rows = vec![
        row("calls", format!("{}, {} failed", server.calls, server.errors)),
        row("in flight", server.in_flight.to_string()),
    ];
    if server.p50.is_some() {
        let [p50, p99] = [server.p50, server.p99].map(format_seconds);
        rows.push(row("duration", format!("{p50} (median), {p99} (99th percentile)")));
    }
    if server.cache_entries + server.cache_hits + server.cache_misses > 0 {
        let ServerReport { cache_entries, cache_hits, cache_misses, .. } = server;
        let cache = format!("{cache_entries} entries, {cache_hits} hits, {cache_misses} misses");
        rows.push(row("cache", cache));
    }
    rows
}

fn error_rows(server: &ServerReport) -> Vec<Row> {
    let Some(error) = &server.last_error else { return Vec::new() };
    let mut rows = vec![row("message", &error.message), row("time", &error.at), row("code", &error.code)];
    rows.extend(optional_row("class", server.class.as_ref()));
    rows.extend(optional_row("hint", error.hint.as_ref()));
    rows
}

fn limit_rows(server: &ServerReport, spec: Option<&ServerSpec>) -> Vec<Row> {
    let restarts = format!("{}, {} left", server.restarts, server.restarts_left);
    let mut rows = vec![row("restarts", restarts), row("circuit breaker", &server.breaker)];
    if server.consecutive_failures > 0 {
        rows.push(row("failures in a row", server.consecutive_failures.to_string()));
    }
    let Some(spec) = spec else { return rows };
    rows.push(row("start-timeout", format_duration(spec.lifecycle.start_timeout)));
    rows.push(row("call-timeout", format_duration(spec.limits.call_timeout)));
    rows.push(row("in-flight", spec.limits.in_flight.to_string()));
    rows.extend(spec.lifecycle.memory.soft.map(|bytes| row("memory.soft", format_bytes(bytes))));
    rows.extend(spec.lifecycle.memory.hard.map(|bytes| row("memory.hard", format_bytes(bytes))));
    rows
}

fn tool_rows(server: &ServerReport) -> Vec<Row> {
    let mut rows = vec![row("tools", format_count(server.tools)), row("pin", &server.pin)];
    let count = |label, count: usize| (count > 0).then(|| row(label, count.to_string()));
    rows.extend(count("not as approved", server.unapproved.len()));
    rows.extend(count("problems", server.problems.len()));
    rows.extend(count("unreadable lists", server.listing_errors.len()));
    rows
}

fn instance_line(instance: &InstanceReport) -> String {
    let InstanceReport { key, state, calls, errors, restarts, .. } = instance;
    let pid = instance.pid.map_or_else(String::new, |pid| format!(", pid {pid}"));
    format!("{key:<20}  {state}{pid}, {calls} calls, {errors} failed, {restarts} restarts")
}

fn format_bytes(bytes: u64) -> String {
    match bytes >> 20 {
        0 => format!("{} KiB", bytes >> 10),
        mebibytes => format!("{mebibytes} MiB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::server::LastErrorReport;

    #[test]
    fn page_has_a_section_for_everything_that_is_known() {
        let error = LastErrorReport {
            message: "exit status 3".to_owned(),
            at: "2026-05-01T10:00:00.000Z".to_owned(),
            ..LastErrorReport::default()
        };
        let server = ServerReport {
            name: "git".to_owned(),
            state: "backing_off".to_owned(),
            next_attempt_in: Some(7.0),
            last_error: Some(error),
            class: Some("crashed".to_owned()),
            stderr_tail: (0..12).map(|n| format!("line {n}\u{1b}")).collect(),
            ..ServerReport::default()
        };
        let log =
            "2026-05-01T09:00:00.000Z toolcrib: started as pid 7 in 20ms\n2026-05-01T09:00:01.000Z up\n";
        let context = PageContext { spec: None, events: recent_events(log) };
        let page = render(&server, &context).join("\n");
        for expected in [
            "State\n  server                git\n  state                 backing_off\n",
            "\n  next attempt in       7s\n",
            "\nLast error\n  message               exit status 3\n",
            "\nLimits\n  restarts              0, 0 left\n",
            "\nRecent events\n  2026-05-01T09:00:00.000Z  started as pid 7 in 20ms\n",
            "\nStderr\n  line 2\\u{1b}\n",
        ] {
            assert!(page.contains(expected), "{expected:?} is missing in:\n{page}");
        }
        assert!(!page.contains("Instances"), "{page}");
    }
}
