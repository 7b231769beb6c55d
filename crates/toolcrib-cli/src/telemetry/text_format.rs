//! The text formats of Prometheus: the classic one, and OpenMetrics, which has the ids of calls as exemplars.

use std::fmt::Write as _;

use super::family::{MetricFamily, MetricKind, MetricUnit, Point, PointValue, prometheus_label};
use super::histogram::{HistogramSnapshot, bounds_in_seconds};

/// A text format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextFormat {
    Prometheus,
    OpenMetrics,
}

impl TextFormat {
    /// Returns OpenMetrics if the `Accept` header names it: the classic format is the default of all scrapers.
    pub(crate) fn from_accept(accept: Option<&str>) -> Self {
        match accept.is_some_and(|accept| accept.contains("application/openmetrics-text")) {
            true => Self::OpenMetrics,
            false => Self::Prometheus,
        }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Formats all families that have points.
    pub(crate) fn format(self, families: &[MetricFamily]) -> String {
        let mut out = String::new();
        for family in families.iter().filter(|family| !family.points.is_empty()) {
            self.write_family(&mut out, family);
        }
        if self == Self::OpenMetrics {
            out.push_str("# EOF\n");
        }
        out
    }

    fn write_family(self, out: &mut String, family: &MetricFamily) {
        let name = family.prometheus_name();
        let suffix = if family.kind == MetricKind::Counter { "_total" } else { "" };
        let described = if self == Self::OpenMetrics { name.clone() } else { format!("{name}{suffix}") };
        let kind = match family.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        let _ = writeln!(out, "# HELP {described} {}", family.help);
        let _ = writeln!(out, "# TYPE {described} {kind}");
        if self == Self::OpenMetrics
            && let Some(unit) = unit_name(family.unit)
        {
            let _ = writeln!(out, "# UNIT {described} {unit}");
        }
        for point in &family.points {
            match &point.value {
                PointValue::Number(number) => {
                    let _ = write!(out, "{name}{suffix}");
                    write_labels(out, point, None);
                    let _ = write!(out, " {number}");
                    self.write_example(out, point);
                    out.push('\n');
                }
                PointValue::Histogram(histogram) => write_histogram(out, &name, point, histogram),
            }
        }
    }

    /// Writes the id of a call that was counted, which only OpenMetrics allows.
    fn write_example(self, out: &mut String, point: &Point) {
        if self == Self::OpenMetrics
            && let Some(call) = point.example
        {
            let _ = write!(out, " # {{call_id=\"{call}\"}} 1.0");
        }
    }
}

fn unit_name(unit: MetricUnit) -> Option<&'static str> {
    match unit {
        MetricUnit::None => None,
        MetricUnit::Seconds => Some("seconds"),
        MetricUnit::Bytes => Some("bytes"),
    }
}

fn write_histogram(out: &mut String, name: &str, point: &Point, histogram: &HistogramSnapshot) {
    let bounds = bounds_in_seconds().map(|bound| format!("{bound:?}"));
    let bounds = bounds.iter().map(String::as_str).chain(["+Inf"]);
    let mut cumulative = 0;
    for (bound, count) in bounds.zip(histogram.counts) {
        cumulative += count;
        let _ = write!(out, "{name}_bucket");
        write_labels(out, point, Some(bound));
        let _ = writeln!(out, " {cumulative}");
    }
    for (suffix, value) in [("sum", histogram.sum().to_string()), ("count", cumulative.to_string())] {
        let _ = write!(out, "{name}_{suffix}");
        write_labels(out, point, None);
        let _ = writeln!(out, " {value}");
    }
}

/// Writes the labels of a point, and `le` for a bucket.
fn write_labels(out: &mut String, point: &Point, bound: Option<&str>) {
    let labels = point.labels.iter().map(|label| (prometheus_label(label.name), label.value.as_str()));
    let mut separator = '{';
    for (name, value) in labels.chain(bound.map(|bound| ("le".into(), bound))) {
        let _ = write!(out, "{separator}{name}=\"");
        write_escaped(out, value);
        out.push('"');
        separator = ',';
    }
    if separator == ',' {
        out.push('}');
    }
}

fn write_escaped(out: &mut String, value: &str) {
    for letter in value.chars() {
        match letter {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            letter => out.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use toolcrib::CallId;

    use super::super::histogram::Histogram;
    use super::*;

    fn families() -> Vec<MetricFamily> {
        let mut calls = MetricFamily::counter("toolcrib.calls", "Calls that ended.");
        calls.add_count(
            &[("toolcrib.server", "git"), ("gen_ai.tool.name", "a\"b\\c\nd"), ("error.type", "")],
            3,
        );
        calls.points[0].example = Some(CallId::from_number(0xabc));
        let mut cpu =
            MetricFamily::counter("toolcrib.server.cpu", "CPU time.").with_unit(MetricUnit::Seconds);
        cpu.add(&[], 1.5);
        let histogram = Histogram::default();
        histogram.record(Duration::from_millis(2));
        histogram.record(Duration::from_secs(400));
        let mut waits = MetricFamily::histogram("toolcrib.queue.wait", "Wait.");
        let value = PointValue::Histogram(Box::new(histogram.snapshot()));
        waits.points.push(Point { labels: Vec::new(), value, example: None });
        vec![calls, MetricFamily::gauge("toolcrib.none", "Not shown."), cpu, waits]
    }

    #[test]
    fn classic_format_escapes_labels_and_cumulates_buckets() {
        let text = TextFormat::Prometheus.format(&families());
        let expected = "\
            # HELP toolcrib_calls_total Calls that ended.\n\
            # TYPE toolcrib_calls_total counter\n\
            toolcrib_calls_total{server=\"git\",gen_ai_tool_name=\"a\\\"b\\\\c\\nd\"} 3\n\
            # HELP toolcrib_server_cpu_seconds_total CPU time.\n\
            # TYPE toolcrib_server_cpu_seconds_total counter\n\
            toolcrib_server_cpu_seconds_total 1.5\n\
            # HELP toolcrib_queue_wait_seconds Wait.\n\
            # TYPE toolcrib_queue_wait_seconds histogram\n\
            toolcrib_queue_wait_seconds_bucket{le=\"0.001\"} 0\n\
            toolcrib_queue_wait_seconds_bucket{le=\"0.005\"} 1\n";
        assert!(text.starts_with(expected), "{text}");
        let end = "\
            toolcrib_queue_wait_seconds_bucket{le=\"300.0\"} 1\n\
            toolcrib_queue_wait_seconds_bucket{le=\"+Inf\"} 2\n\
            toolcrib_queue_wait_seconds_sum 400.002\n\
            toolcrib_queue_wait_seconds_count 2\n";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn openmetrics_has_units_and_ids_of_calls() {
        let format =
            TextFormat::from_accept(Some("application/openmetrics-text;version=1.0.0,text/plain;q=0.5"));
        assert_eq!(format, TextFormat::OpenMetrics);
        let text = format.format(&families());
        assert!(text.contains("# TYPE toolcrib_calls counter\n"), "{text}");
        assert!(text.contains("\"} 3 # {call_id=\"0000000000000abc\"} 1.0\n"), "{text}");
        assert!(text.contains("# UNIT toolcrib_server_cpu_seconds seconds\n"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
        assert_eq!(TextFormat::from_accept(Some("*/*")), TextFormat::Prometheus);
    }
}
