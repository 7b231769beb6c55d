//! The table of `toolcrib top`: its rows, their order, and what keys change. No I/O.

use serde_json::{Value, json};

use super::super::stats::format_millis;
use crate::report::Report as _;
use crate::report::server::ServerReport;
use crate::report::stats::{CallStats, StatsReport};
use crate::report::status::GatewayReport;

/// Seconds of the statistics.
const PERIOD_SECONDS: u64 = 60;
/// Longest filter, in bytes.
const MAX_FILTER: usize = 32;

/// What a refresh shows.
pub(super) struct TopData {
    pub(super) status: GatewayReport,
    /// The last minute.
    pub(super) stats: StatsReport,
}

impl TopData {
    pub(super) fn to_json(&self) -> Value {
        json!({"status": self.status.to_json(), "stats": self.stats.to_json()})
    }

    /// Returns two lines about everything, which fit into narrow terminals.
    pub(super) fn summary(&self) -> [String; 2] {
        let GatewayReport { version, pid, servers, .. } = &self.status;
        let running = servers.iter().filter(|server| server.state == "ready").count();
        let CallStats { calls, errors, denied, p50_ms, p95_ms, .. } = &self.stats.totals;
        let total = servers.len();
        let p50 = format_millis(*p50_ms);
        let p95 = format_millis(*p95_ms);
        [
            format!("gateway {version} (pid {pid}): {running} of {total} servers ready"),
            format!("last minute: {calls} calls, {errors} failed, {denied} denied, p50 {p50}, p95 {p95}"),
        ]
    }

    /// Returns the calls of a server in the last minute.
    fn calls_of(&self, server: &str) -> CallStats {
        let row = self.stats.servers.iter().find(|row| row.name.as_deref() == Some(server));
        row.map(|row| row.stats.clone()).unwrap_or_default()
    }
}

/// The column that decides the order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum SortKey {
    #[default]
    Calls,
    Errors,
    Latency,
    Memory,
    Name,
}

impl SortKey {
    const ALL: [Self; 5] = [Self::Calls, Self::Errors, Self::Latency, Self::Memory, Self::Name];

    fn name(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Errors => "errors",
            Self::Latency => "p95",
            Self::Memory => "memory",
            Self::Name => "name",
        }
    }

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|key| *key == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }
}

/// What a key means for the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyAction {
    Redraw,
    Quit,
}

/// The order and the filter of the rows.
#[derive(Debug, Default)]
pub(super) struct TopView {
    sort: SortKey,
    reversed: bool,
    filter: String,
    /// True while the filter is typed.
    is_typing: bool,
}

impl TopView {
    pub(super) const HEADING: [&'static str; 10] =
        ["SERVER", "STATE", "CALLS/S", "ERRORS", "P50", "P95", "IN FLIGHT", "MEMORY", "RESTARTS", "TOKENS"];

    /// Changes the view by a key.
    pub(super) fn handle_key(&mut self, key: u8) -> KeyAction {
        const ESCAPE: u8 = 27;
        if self.is_typing {
            match key {
                b'\n' | b'\r' => self.is_typing = false,
                ESCAPE => {
                    self.filter.clear();
                    self.is_typing = false;
                }
                8 | 127 => {
                    self.filter.pop();
                }
                key if key.is_ascii_graphic() && self.filter.len() < MAX_FILTER => {
                    self.filter.push(key.into());
                }
                _ => {}
            }
            return KeyAction::Redraw;
        }
        match key {
            b'q' => return KeyAction::Quit,
            b's' => self.sort = self.sort.next(),
            b'r' => self.reversed = !self.reversed,
            b'/' => self.is_typing = true,
            ESCAPE => self.filter.clear(),
            _ => {}
        }
        KeyAction::Redraw
    }

    /// Returns the line below the table.
    pub(super) fn footer(&self) -> String {
        let order = if self.reversed { ", reversed" } else { "" };
        let filter = match (self.is_typing, self.filter.is_empty()) {
            (true, _) => format!("filter: {}_", self.filter),
            (false, true) => "/ filter".to_owned(),
            (false, false) => format!("/ filter: {}", self.filter),
        };
        format!("q quit   s sort by {}{order}   r reverse   {filter}", self.sort.name())
    }

    /// Returns the cells of the rows, in order.
    pub(super) fn rows(&self, data: &TopData) -> Vec<Vec<String>> {
        let mut rows: Vec<(&ServerReport, CallStats)> = data
            .status
            .servers
            .iter()
            .filter(|server| server.name.contains(&self.filter))
            .map(|server| (server, data.calls_of(&server.name)))
            .collect();
        rows.sort_by(|(a, a_calls), (b, b_calls)| {
            let order = match self.sort {
                SortKey::Calls => b_calls.calls.cmp(&a_calls.calls),
                SortKey::Errors => b_calls.errors.cmp(&a_calls.errors),
                SortKey::Latency => b_calls.p95_ms.unwrap_or(0.0).total_cmp(&a_calls.p95_ms.unwrap_or(0.0)),
                SortKey::Memory => b.memory.cmp(&a.memory),
                SortKey::Name => a.name.cmp(&b.name),
            };
            order.then_with(|| a.name.cmp(&b.name))
        });
        if self.reversed {
            rows.reverse();
        }
        rows.iter().map(|(server, calls)| cells(server, calls)).collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
fn cells(server: &ServerReport, calls: &CallStats) -> Vec<String> {
    let rate = calls.calls as f64 / PERIOD_SECONDS as f64;
    let memory = server.memory.map_or_else(|| "-".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
    vec![
        server.name.clone(),
        server.state.clone(),
        format!("{rate:.1}"),
        calls.errors.to_string(),
        format_millis(calls.p50_ms),
        format_millis(calls.p95_ms),
        server.in_flight.to_string(),
        memory,
        server.restarts.to_string(),
        calls.result_tokens.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::stats::StatsRow;

    fn data() -> TopData {
        let server =
            |name: &str, memory: u64| json!({"name": name, "state": "ready", "memory": memory << 20});
        let servers = json!([server("files", 80), server("git", 20), server("time", 40)]);
        let calls = |name: &str, calls: u64, errors: u64| StatsRow {
            name: Some(name.to_owned()),
            stats: CallStats { calls, errors, p95_ms: Some(2.5), ..CallStats::default() },
            ..StatsRow::default()
        };
        TopData {
            status: GatewayReport::from_json(&json!({"version": "1", "pid": 2, "servers": servers})),
            stats: StatsReport {
                servers: vec![calls("git", 120, 0), calls("time", 6, 3)],
                ..StatsReport::default()
            },
        }
    }

    fn press(view: &mut TopView, keys: &str) {
        for key in keys.bytes() {
            assert_eq!(view.handle_key(key), KeyAction::Redraw);
        }
    }

    #[test]
    fn keys_sort_filter_and_quit() {
        let data = data();
        let mut view = TopView::default();
        let names =
            |view: &TopView| -> Vec<String> { view.rows(&data).iter().map(|row| row[0].clone()).collect() };
        assert_eq!(names(&view), ["git", "time", "files"]);
        assert_eq!(view.rows(&data)[0][2..6], ["2.0", "0", "-", "2.5 ms"]);
        assert_eq!(view.handle_key(b's'), KeyAction::Redraw);
        assert_eq!(names(&view), ["time", "files", "git"]);
        press(&mut view, "sss");
        assert_eq!(names(&view), ["files", "git", "time"]);
        view.handle_key(b'r');
        assert_eq!(names(&view), ["time", "git", "files"]);
        assert!(view.footer().contains("name, reversed"), "{}", view.footer());
        press(&mut view, "/qix\x7ft\n");
        assert!(names(&view).is_empty() && view.footer().contains("qit"), "{}", view.footer());
        press(&mut view, "\x1b/i\r");
        assert_eq!(names(&view), ["time", "git", "files"]);
        assert_eq!(view.handle_key(b'q'), KeyAction::Quit);
        assert!(data.summary()[0].contains("3 of 3 servers ready"));
    }
}
