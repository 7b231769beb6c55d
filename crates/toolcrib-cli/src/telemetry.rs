//! Metrics of calls and servers, and the export of spans and metrics by OpenTelemetry.
//!
//! A call updates counters and, if it is traced, adds its record to a bounded queue. Formats and exports do their work when
//! they are asked for, on other threads.

mod call_families;
mod call_table;
mod family;
mod histogram;
mod incidents;
mod otlp;
mod sampler;
mod span_queue;
mod text_format;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use toolcrib::model::trace_context::{CallSpans, TraceContext};
use toolcrib::util::locks::IgnorePoison as _;
use toolcrib::{CallRecord, Event, Observer};

use self::call_table::{CallTable, OTHER};
pub(crate) use self::family::{MetricFamily, MetricUnit};
use self::incidents::Incidents;
use self::otlp::{OtlpExporter, OtlpSettings, OtlpVariables};
use self::sampler::SpanStarter;
use self::span_queue::SpanQueue;
pub(crate) use self::text_format::TextFormat;

/// Rules that are told apart in the count of denials.
const MAX_RULES: usize = 200;

/// Returns all metrics at the time of the call. May block.
pub(crate) type MetricSource = Arc<dyn Fn() -> Vec<MetricFamily> + Send + Sync>;

/// The observer that counts calls and collects spans.
pub(crate) struct Telemetry {
    /// True if `/metrics` is served.
    serves_metrics: AtomicBool,
    /// True if metrics are exported.
    exports_metrics: bool,
    calls: CallTable,
    /// Denied calls by rule.
    denials: Mutex<BTreeMap<String, u64>>,
    incidents: Mutex<Incidents>,
    reloads: AtomicU64,
    failed_reloads: AtomicU64,
    /// `None` if calls are not traced.
    spans: Option<SpanStarter>,
    span_queue: Arc<SpanQueue>,
    /// Taken by the start of the export.
    export_settings: Mutex<Option<OtlpSettings>>,
    exporter: Mutex<Option<OtlpExporter>>,
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry").finish_non_exhaustive()
    }
}

impl Telemetry {
    /// Creates the observer with the OpenTelemetry settings of the environment. What is wrong with them is logged.
    pub(crate) fn from_env(serves_metrics: bool) -> Self {
        let OtlpVariables { settings, warnings } = OtlpVariables::read(&|name| std::env::var(name).ok());
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        Self::new(serves_metrics, settings)
    }

    pub(crate) fn new(serves_metrics: bool, export: Option<OtlpSettings>) -> Self {
        let traces = export.as_ref().filter(|settings| settings.traces.is_some());
        Self {
            serves_metrics: AtomicBool::new(serves_metrics),
            exports_metrics: export.as_ref().is_some_and(|settings| settings.metrics.is_some()),
            calls: CallTable::default(),
            denials: Mutex::default(),
            incidents: Mutex::default(),
            reloads: AtomicU64::new(0),
            failed_reloads: AtomicU64::new(0),
            spans: traces.map(|settings| SpanStarter::new(settings.sampler)),
            span_queue: Arc::new(SpanQueue::new(traces.map_or(0, |settings| settings.max_queued))),
            export_settings: Mutex::new(export),
            exporter: Mutex::default(),
        }
    }

    /// Applies `metrics.enabled` of a config that was reloaded.
    pub(crate) fn set_serves_metrics(&self, serves_metrics: bool) {
        self.serves_metrics.store(serves_metrics, Ordering::Relaxed);
    }

    /// Returns whether `/metrics` is served.
    pub(crate) fn serves_metrics(&self) -> bool {
        self.serves_metrics.load(Ordering::Relaxed)
    }

    /// Starts to export, if the environment asks for it. Without a thread for it, the gateway works without the export.
    pub(crate) fn start_export(&self, metrics: MetricSource) {
        let Some(settings) = self.export_settings.lock().ignore_poison().take() else { return };
        match OtlpExporter::start(settings, self.span_queue.clone(), metrics) {
            Ok(exporter) => *self.exporter.lock().ignore_poison() = Some(exporter),
            Err(error) => tracing::error!("cannot export spans and metrics: {error}"),
        }
    }

    /// Counts a reload of the config.
    pub(crate) fn record_reload(&self, succeeded: bool) {
        let counter = if succeeded { &self.reloads } else { &self.failed_reloads };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the metrics of what was observed.
    pub(crate) fn families(&self) -> Vec<MetricFamily> {
        let mut families = call_families::collect(&self.calls);
        families.push(call_families::count_decisions(&self.calls, &self.denials.lock().ignore_poison()));
        families.extend(self.incidents.lock().ignore_poison().families());
        let mut reloads = MetricFamily::counter("toolcrib.config.reloads", "Reloads of the config.");
        for (result, count) in [("ok", &self.reloads), ("error", &self.failed_reloads)] {
            reloads.add_count(&[("toolcrib.result", result)], count.load(Ordering::Relaxed));
        }
        families.push(reloads);
        if self.spans.is_some() {
            let name = "toolcrib.telemetry.dropped";
            let mut dropped = MetricFamily::counter(name, "Calls whose spans were lost.");
            dropped.add_count(&[], self.span_queue.dropped());
            families.push(dropped);
        }
        families
    }

    fn record_denial(&self, rule: &str) {
        let mut denials = self.denials.lock().ignore_poison();
        let is_known = denials.contains_key(rule) || denials.len() < MAX_RULES;
        *denials.entry(if is_known { rule } else { OTHER }.to_owned()).or_default() += 1;
    }

    fn counts_calls(&self) -> bool {
        self.exports_metrics || self.serves_metrics()
    }
}

impl Observer for Telemetry {
    fn is_enabled(&self) -> bool {
        self.counts_calls() || self.spans.is_some()
    }

    fn traces_calls(&self) -> bool {
        self.spans.is_some()
    }

    fn start_spans(&self, parent: Option<TraceContext>) -> Option<CallSpans> {
        self.spans.as_ref()?.start(parent)
    }

    fn call_ended(&self, record: &CallRecord) {
        if self.counts_calls() {
            self.calls.record(record);
            if let Some(denial) = &record.denial {
                self.record_denial(&denial.rule);
            }
        }
        if record.spans.is_some() {
            self.span_queue.push(record);
        }
    }

    fn server_event(&self, event: &Event) {
        self.incidents.lock().ignore_poison().record(event);
    }

    /// Sends what is left to the collector, within a few seconds.
    fn close(&self) {
        let exporter = self.exporter.lock().ignore_poison().take();
        if let Some(exporter) = exporter {
            exporter.close();
        }
    }
}

#[cfg(test)]
mod tests;
