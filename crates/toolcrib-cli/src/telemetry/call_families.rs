//! The metrics of calls and of failing servers, from what was recorded.

use std::collections::BTreeMap;

use toolcrib::{CallEnd, ErrorKind};

use super::call_table::{CallSeries, CallTable, DECISIONS};
use super::family::{Label, MetricFamily, MetricUnit, Point, PointValue, to_labels, to_number};
use super::histogram::HistogramSnapshot;

/// Returns the metrics of calls.
pub(super) fn collect(table: &CallTable) -> Vec<MetricFamily> {
    let whole = MetricFamily::histogram(
        "mcp.server.operation.duration",
        "Duration of a request of a client, as the gateway answers it.",
    );
    let at_server = MetricFamily::histogram(
        "mcp.client.operation.duration",
        "Time in which a server had a request of the gateway.",
    );
    let waits =
        MetricFamily::histogram("toolcrib.queue.wait", "Time for which a call waited for a busy server.");
    let by_server = |series: &CallSeries| to_labels(&[("toolcrib.server", series.server())]);
    let mut families = vec![
        sum_histograms(whole, table, operation_labels, CallSeries::durations),
        sum_histograms(at_server, table, operation_labels, CallSeries::server_times),
        sum_histograms(waits, table, by_server, CallSeries::queue_waits),
        count_calls(table),
    ];
    families.extend(count_bytes(table));
    families.push(count_refusals(table));
    families
}

/// Returns the attributes that the OpenTelemetry conventions name, and the server.
fn operation_labels(series: &CallSeries) -> Vec<Label> {
    let name = match series.method {
        "prompts/get" => "gen_ai.prompt.name",
        _ => "gen_ai.tool.name",
    };
    to_labels(&[
        ("mcp.method.name", series.method),
        (name, series.name()),
        ("toolcrib.server", series.server()),
        ("error.type", series.end.error_type().unwrap_or_default()),
    ])
}

/// Adds up the histograms of all series with the same labels.
fn sum_histograms(
    mut family: MetricFamily,
    table: &CallTable,
    labels: fn(&CallSeries) -> Vec<Label>,
    histogram: fn(&CallSeries) -> HistogramSnapshot,
) -> MetricFamily {
    let mut sums: BTreeMap<Vec<Label>, Box<HistogramSnapshot>> = BTreeMap::new();
    for series in table.series() {
        let found = histogram(series);
        if found.count() > 0 {
            sums.entry(labels(series)).or_default().add(&found);
        }
    }
    let point = |(labels, sum)| Point { labels, value: PointValue::Histogram(sum), example: None };
    family.points = sums.into_iter().map(point).collect();
    family
}

fn count_calls(table: &CallTable) -> MetricFamily {
    let mut family = MetricFamily::counter("toolcrib.calls", "Calls that ended.");
    for series in table.series() {
        let outcome = match series.end {
            CallEnd::Done | CallEnd::InputRequired => "ok",
            CallEnd::Failed(ErrorKind::Denied) => "denied",
            _ => "error",
        };
        let mut labels = operation_labels(series);
        labels.extend(to_labels(&[("toolcrib.caller", series.caller()), ("toolcrib.outcome", outcome)]));
        let value = PointValue::Number(to_number(series.durations().count()));
        family.points.push(Point { labels, value, example: Some(series.last_call()) });
    }
    family.points.sort_by(|one, other| one.labels.cmp(&other.labels));
    family
}

/// Returns the sizes of requests and responses.
fn count_bytes(table: &CallTable) -> [MetricFamily; 2] {
    let sum = |family: MetricFamily, bytes: fn(&CallSeries) -> u64| {
        let mut sums: BTreeMap<Vec<Label>, u64> = BTreeMap::new();
        for series in table.series() {
            let mut labels = operation_labels(series);
            labels.retain(|label| label.name != "error.type");
            *sums.entry(labels).or_default() += bytes(series);
        }
        add_counts(family.with_unit(MetricUnit::Bytes), sums)
    };
    let requests = MetricFamily::counter("toolcrib.request", "Size of the parameters of calls.");
    let responses = MetricFamily::counter("toolcrib.response", "Size of the results of calls.");
    [sum(requests, CallSeries::request_bytes), sum(responses, CallSeries::response_bytes)]
}

/// Returns the calls that were refused because of a limit.
fn count_refusals(table: &CallTable) -> MetricFamily {
    let family = MetricFamily::counter("toolcrib.limit.refusals", "Calls that a limit refused.");
    let mut sums: BTreeMap<Vec<Label>, u64> = BTreeMap::new();
    for series in table.series() {
        if let CallEnd::Failed(ErrorKind::OverQuota | ErrorKind::Overloaded) = series.end {
            let labels = to_labels(&[
                ("toolcrib.server", series.server()),
                ("toolcrib.caller", series.caller()),
                ("error.type", series.end.name()),
            ]);
            *sums.entry(labels).or_default() += series.durations().count();
        }
    }
    add_counts(family, sums)
}

/// Returns the decisions of access rules. Denials are counted by rule.
pub(super) fn count_decisions(table: &CallTable, denials: &BTreeMap<String, u64>) -> MetricFamily {
    let mut family = MetricFamily::counter("toolcrib.policy.decisions", "Decisions of access rules.");
    let mut counts = [0; DECISIONS.len()];
    for series in table.series() {
        for (count, added) in counts.iter_mut().zip(series.decisions()) {
            *count += added;
        }
    }
    let by_rule: u64 = denials.values().sum();
    for (decision, count) in DECISIONS.into_iter().zip(counts) {
        let is_denial = decision == toolcrib::Decision::Denied;
        let rest = if is_denial { count.saturating_sub(by_rule) } else { count };
        if rest > 0 {
            family.add_count(&[("toolcrib.decision", decision.name())], rest);
        }
    }
    for (rule, count) in denials {
        let decision = toolcrib::Decision::Denied.name();
        family.add_count(&[("toolcrib.decision", decision), ("toolcrib.rule", rule)], *count);
    }
    family
}

fn add_counts(mut family: MetricFamily, sums: BTreeMap<Vec<Label>, u64>) -> MetricFamily {
    let value = |count| PointValue::Number(to_number(count));
    let point = |(labels, count)| Point { labels, value: value(count), example: None };
    family.points = sums.into_iter().map(point).collect();
    family
}
