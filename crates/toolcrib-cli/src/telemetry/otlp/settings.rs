//! The environment variables of OpenTelemetry.

use std::time::Duration;

use toolcrib::util::encoding::{percent_decode_lossy, random_hex};

use super::messages::ResourceAttribute;
use crate::telemetry::sampler::{RootSampler, Sampler};

/// The endpoint of a collector on this machine.
const DEFAULT_ENDPOINT: &str = "http://localhost:4318";

/// Where one signal is sent to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SignalTarget {
    pub(crate) url: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) timeout: Duration,
}

/// What is exported, and how.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OtlpSettings {
    pub(crate) traces: Option<SignalTarget>,
    pub(crate) metrics: Option<SignalTarget>,
    pub(crate) sampler: Sampler,
    pub(crate) resource: Vec<ResourceAttribute>,
    /// Time in which spans are collected before they are sent.
    pub(crate) span_delay: Duration,
    /// Calls whose spans may wait to be sent.
    pub(crate) max_queued: usize,
    /// Calls whose spans are sent together.
    pub(crate) max_batch: usize,
    pub(crate) metric_interval: Duration,
}

/// The settings, and what is wrong with the variables.
#[derive(Debug, PartialEq)]
pub(crate) struct OtlpVariables {
    /// `None` if nothing is exported.
    pub(crate) settings: Option<OtlpSettings>,
    pub(crate) warnings: Vec<String>,
}

impl OtlpVariables {
    /// Reads the variables through `get`.
    pub(crate) fn read(get: &dyn Fn(&str) -> Option<String>) -> Self {
        let mut reader = Reader { get, warnings: Vec::new() };
        let settings = reader.settings();
        Self { settings, warnings: reader.warnings }
    }
}

struct Reader<'a> {
    get: &'a dyn Fn(&str) -> Option<String>,
    warnings: Vec<String>,
}

impl Reader<'_> {
    /// Returns the value of a variable; an empty one counts as not set.
    fn value(&self, name: &str) -> Option<String> {
        (self.get)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    fn settings(&mut self) -> Option<OtlpSettings> {
        if self.value("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return None;
        }
        let traces = self.target("TRACES", "/v1/traces");
        let metrics = self.target("METRICS", "/v1/metrics");
        if traces.is_none() && metrics.is_none() {
            return None;
        }
        let count = |value: u64| usize::try_from(value).unwrap_or(usize::MAX).max(1);
        let max_queued = count(self.number("OTEL_BSP_MAX_QUEUE_SIZE", 2048));
        Some(OtlpSettings {
            traces,
            metrics,
            sampler: self.sampler(),
            resource: self.resource(),
            span_delay: self.millis("OTEL_BSP_SCHEDULE_DELAY", 5000),
            max_queued,
            max_batch: count(self.number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512)).min(max_queued),
            metric_interval: self.millis("OTEL_METRIC_EXPORT_INTERVAL", 60_000),
        })
    }

    /// Reads where a signal is sent to; `None` if it is not exported.
    fn target(&mut self, signal: &str, path: &str) -> Option<SignalTarget> {
        let exporter = format!("OTEL_{signal}_EXPORTER");
        let chosen = self.value(&exporter);
        match chosen.as_deref() {
            None | Some("otlp") => {}
            Some("none") => return None,
            Some(other) => {
                self.warnings
                    .push(format!("{exporter} is `{other}`, but only `otlp` and `none` are supported"));
                return None;
            }
        }
        let own = self.value(&format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"));
        let general = self.value("OTEL_EXPORTER_OTLP_ENDPOINT");
        let general = general.or_else(|| chosen.is_some().then(|| DEFAULT_ENDPOINT.to_owned()));
        let url = own.or_else(|| Some(format!("{}{path}", general?.trim_end_matches('/'))))?;
        if let Some(protocol) = self.either(signal, "PROTOCOL").filter(|value| value != "http/protobuf") {
            self.warnings.push(format!(
                "OTEL_EXPORTER_OTLP_PROTOCOL is `{protocol}`, but only `http/protobuf` is supported: nothing is exported"
            ));
            return None;
        }
        let headers = self.either(signal, "HEADERS").unwrap_or_default();
        let timeout = match self.value(&format!("OTEL_EXPORTER_OTLP_{signal}_TIMEOUT")) {
            Some(_) => self.millis(&format!("OTEL_EXPORTER_OTLP_{signal}_TIMEOUT"), 10_000),
            None => self.millis("OTEL_EXPORTER_OTLP_TIMEOUT", 10_000),
        };
        Some(SignalTarget { url, headers: self.pairs("OTEL_EXPORTER_OTLP_HEADERS", &headers), timeout })
    }

    /// Returns the variable of a signal, or the one of all signals.
    fn either(&self, signal: &str, name: &str) -> Option<String> {
        let own = self.value(&format!("OTEL_EXPORTER_OTLP_{signal}_{name}"));
        own.or_else(|| self.value(&format!("OTEL_EXPORTER_OTLP_{name}")))
    }

    fn number(&mut self, name: &str, default: u64) -> u64 {
        let Some(value) = self.value(name) else { return default };
        value.parse().unwrap_or_else(|_| {
            self.warnings.push(format!("{name} is `{value}`, which is not a number: {default} is used"));
            default
        })
    }

    fn millis(&mut self, name: &str, default: u64) -> Duration {
        Duration::from_millis(self.number(name, default).max(1))
    }

    fn sampler(&mut self) -> Sampler {
        let name = self.value("OTEL_TRACES_SAMPLER").unwrap_or_else(|| "parentbased_always_on".to_owned());
        let (root_name, follows_parent) = match name.strip_prefix("parentbased_") {
            Some(root_name) => (root_name, true),
            None => (name.as_str(), false),
        };
        let root = match root_name {
            "always_on" => RootSampler::All,
            "always_off" => RootSampler::None,
            "traceidratio" => RootSampler::Ratio(self.ratio()),
            _ => {
                self.warnings.push(format!(
                    "OTEL_TRACES_SAMPLER is `{name}`; use `always_on`, `always_off` or `traceidratio`, or one of these after `parentbased_`"
                ));
                return Sampler::default();
            }
        };
        Sampler { root, follows_parent }
    }

    fn ratio(&mut self) -> f64 {
        let Some(value) = self.value("OTEL_TRACES_SAMPLER_ARG") else { return 1.0 };
        let ratio = value.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
        ratio.unwrap_or_else(|| {
            self.warnings.push(format!(
                "OTEL_TRACES_SAMPLER_ARG is `{value}`; use a number from 0 to 1, such as `0.1`"
            ));
            1.0
        })
    }

    fn resource(&mut self) -> Vec<ResourceAttribute> {
        let written = self.value("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
        let pairs = self.pairs("OTEL_RESOURCE_ATTRIBUTES", &written);
        let mut attributes: Vec<ResourceAttribute> =
            pairs.into_iter().map(|(name, value)| ResourceAttribute { name, value }).collect();
        let service = self.value("OTEL_SERVICE_NAME");
        if service.is_some() {
            attributes.retain(|attribute| attribute.name != "service.name");
        }
        let defaults = [
            ("service.name", service.unwrap_or_else(|| "toolcrib".to_owned())),
            ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
            // Without it, the metrics of several gateways would be points of the same series.
            ("service.instance.id", random_hex().unwrap_or_else(|| std::process::id().to_string())),
        ];
        for (name, value) in defaults {
            if !attributes.iter().any(|attribute| attribute.name == name) {
                attributes.push(ResourceAttribute { name: name.to_owned(), value });
            }
        }
        attributes
    }

    /// Parses `NAME=VALUE,…` with percent-encoded values. What is invalid is not shown: it may be a secret.
    fn pairs(&mut self, variable: &str, text: &str) -> Vec<(String, String)> {
        let mut pairs = Vec::new();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some((name, value)) if !name.trim().is_empty() => {
                    let value = percent_decode_lossy(value.trim()).into_owned();
                    pairs.push((name.trim().to_owned(), value));
                }
                _ => self.warnings.push(format!("{variable} has an entry that is not `NAME=VALUE`")),
            }
        }
        pairs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> OtlpVariables {
        let get =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        OtlpVariables::read(&get)
    }

    #[test]
    fn nothing_is_exported_without_an_endpoint() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318");
        for variables in [
            &[][..],
            &[("OTEL_SERVICE_NAME", "x")],
            &[endpoint, ("OTEL_SDK_DISABLED", "TRUE")],
            &[endpoint, ("OTEL_TRACES_EXPORTER", "none"), ("OTEL_METRICS_EXPORTER", "none")],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")],
        ] {
            let read = read(variables);
            assert_eq!(read, OtlpVariables { settings: None, warnings: Vec::new() }, "{variables:?}");
        }
    }

    #[test]
    fn variables_of_a_signal_win() {
        let read = read(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/"),
            ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "https://m/own"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, x=1"),
            ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "y=2"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "500"),
            ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.1"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=other,deployment.environment=prod"),
            ("OTEL_SERVICE_NAME", "gateway"),
        ]);
        assert_eq!(read.warnings, Vec::<String>::new());
        let settings = read.settings.unwrap();
        let traces = settings.traces.unwrap();
        assert_eq!(
            (traces.url.as_str(), traces.timeout),
            ("http://c:4318/v1/traces", Duration::from_millis(500))
        );
        let headers =
            [("api-key", "a b"), ("x", "1")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(traces.headers, headers);
        let metrics = settings.metrics.unwrap();
        assert_eq!((metrics.url.as_str(), metrics.headers.len()), ("https://m/own", 1));
        assert_eq!(settings.sampler, Sampler { root: RootSampler::Ratio(0.1), follows_parent: true });
        let names: Vec<(&str, &str)> =
            settings.resource.iter().map(|attribute| (&*attribute.name, &*attribute.value)).collect();
        assert_eq!(names[..2], [("deployment.environment", "prod"), ("service.name", "gateway")]);
    }

    #[test]
    fn every_gateway_has_its_own_instance_id() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318");
        let id = |variables: &[(&str, &str)]| {
            let attributes = read(variables).settings.unwrap().resource;
            attributes.into_iter().find(|attribute| attribute.name == "service.instance.id").unwrap().value
        };
        assert_ne!(id(&[endpoint]), id(&[endpoint]));
        let named = ("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=pod-1");
        assert_eq!(id(&[endpoint, named]), "pod-1");
    }

    #[test]
    fn invalid_values_are_reported_and_defaults_are_used() {
        let read = read(&[
            ("OTEL_TRACES_EXPORTER", "otlp"),
            ("OTEL_METRICS_EXPORTER", "console"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "secret"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
            ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "10"),
        ]);
        let settings = read.settings.unwrap();
        let traces = settings.traces.unwrap();
        assert_eq!(
            (traces.url.as_str(), traces.timeout),
            ("http://localhost:4318/v1/traces", Duration::from_secs(10))
        );
        assert_eq!((settings.metrics, settings.sampler), (None, Sampler::default()));
        assert_eq!((settings.max_queued, settings.max_batch), (10, 10));
        assert_eq!(read.warnings.len(), 4, "{:?}", read.warnings);
        assert!(!read.warnings.iter().any(|warning| warning.contains("secret")));
        let grpc = self::read(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ]);
        assert_eq!((grpc.settings, grpc.warnings.len()), (None, 2));
    }
}
