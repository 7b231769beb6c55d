//! Metrics as values: families of points with labels, named as in OpenTelemetry.

use std::borrow::Cow;

use toolcrib::CallId;

use super::histogram::HistogramSnapshot;

/// What the values of a family mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetricKind {
    /// Only grows while the gateway runs.
    Counter,
    Gauge,
    Histogram,
}

/// The unit of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetricUnit {
    None,
    Seconds,
    Bytes,
}

/// A label. Its name is that of the OpenTelemetry attribute.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Label {
    pub(crate) name: &'static str,
    pub(crate) value: String,
}

/// A value of a point.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PointValue {
    Number(f64),
    Histogram(Box<HistogramSnapshot>),
}

/// The value for one set of labels.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Point {
    pub(crate) labels: Vec<Label>,
    pub(crate) value: PointValue,
    /// A call that was counted in the value.
    pub(crate) example: Option<CallId>,
}

/// All points with the same name.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MetricFamily {
    /// The name in OpenTelemetry, without the unit.
    pub(crate) name: &'static str,
    pub(crate) kind: MetricKind,
    pub(crate) unit: MetricUnit,
    pub(crate) help: &'static str,
    pub(crate) points: Vec<Point>,
}

impl MetricFamily {
    pub(crate) fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: MetricKind::Counter, unit: MetricUnit::None, help, points: Vec::new() }
    }

    pub(crate) fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { kind: MetricKind::Gauge, ..Self::counter(name, help) }
    }

    /// Creates a histogram of durations.
    pub(super) fn histogram(name: &'static str, help: &'static str) -> Self {
        Self { kind: MetricKind::Histogram, unit: MetricUnit::Seconds, ..Self::counter(name, help) }
    }

    pub(crate) fn with_unit(self, unit: MetricUnit) -> Self {
        Self { unit, ..self }
    }

    /// Adds a number. Labels without a value are left out.
    pub(crate) fn add(&mut self, labels: &[(&'static str, &str)], value: f64) {
        self.points.push(Point {
            labels: to_labels(labels),
            value: PointValue::Number(value),
            example: None,
        });
    }

    /// Adds a count.
    pub(crate) fn add_count(&mut self, labels: &[(&'static str, &str)], count: u64) {
        self.add(labels, to_number(count));
    }

    /// Returns the name in Prometheus, without the suffix of counters.
    pub(super) fn prometheus_name(&self) -> String {
        let unit = match self.unit {
            MetricUnit::None => "",
            MetricUnit::Seconds => "_seconds",
            MetricUnit::Bytes => "_bytes",
        };
        format!("{}{unit}", self.name.replace('.', "_"))
    }
}

/// Returns the labels that have a value.
pub(super) fn to_labels(labels: &[(&'static str, &str)]) -> Vec<Label> {
    let present = labels.iter().filter(|(_, value)| !value.is_empty());
    present.map(|(name, value)| Label { name, value: (*value).to_owned() }).collect()
}

/// Returns the name of a label in Prometheus.
pub(super) fn prometheus_label(name: &str) -> Cow<'_, str> {
    let name = name.strip_prefix("toolcrib.").unwrap_or(name);
    if name.contains('.') { Cow::Owned(name.replace('.', "_")) } else { Cow::Borrowed(name) }
}

/// Converts a count. Counts of more than 2⁵³ lose their last digits.
#[expect(clippy::cast_precision_loss, reason = "both formats have floating point numbers only")]
pub(super) fn to_number(count: u64) -> f64 {
    count as f64
}
