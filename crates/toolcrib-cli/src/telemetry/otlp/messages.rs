//! Spans and metrics as messages of OTLP. The numbers are those of `opentelemetry-proto` 1.x.

use std::time::{Duration, SystemTime};

use toolcrib::model::trace_context::{CallSpans, NetworkTransport};
use toolcrib::{CallRecord, ServerId};

use super::protobuf::Message;
use crate::telemetry::family::{MetricFamily, MetricKind, MetricUnit, Point, PointValue};
use crate::telemetry::histogram::{HistogramSnapshot, bounds_in_seconds};

/// Span kinds.
const SERVER: u64 = 2;
const CLIENT: u64 = 3;
/// The status of a span that failed.
const STATUS_ERROR: u64 = 2;
/// Bytes that the two spans of a call usually need.
const SPAN_BYTES: usize = 1 << 10;
/// Values count from the start of the process.
const CUMULATIVE: u64 = 2;

/// A name and a value of the resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResourceAttribute {
    pub(super) name: String,
    pub(super) value: String,
}

/// Encodes the spans of calls that were traced.
pub(super) fn encode_spans(calls: &[CallRecord], resource: &[ResourceAttribute]) -> Vec<u8> {
    let mut scope = scope_message();
    scope.reserve(calls.len() * SPAN_BYTES);
    let mut span = Message::default();
    for call in calls {
        let Some(spans) = call.spans.as_deref() else { continue };
        let common = CommonFields::new(call);
        span.clear();
        write_server_span(&mut span, call, spans, &common);
        scope.message(2, &span);
        if call.attempts > 0 {
            span.clear();
            write_client_span(&mut span, call, spans, &common);
            scope.message(2, &span);
        }
    }
    with_resource(&scope, resource)
}

/// Encodes metrics that count since `started`.
pub(super) fn encode_metrics(
    families: &[MetricFamily],
    resource: &[ResourceAttribute],
    started: SystemTime,
    now: SystemTime,
) -> Vec<u8> {
    let mut scope = scope_message();
    for family in families.iter().filter(|family| !family.points.is_empty()) {
        scope.message(2, &metric(family, started, now));
    }
    with_resource(&scope, resource)
}

/// Wraps what one scope has, in the same way for both signals.
fn with_resource(scope: &Message, attributes: &[ResourceAttribute]) -> Vec<u8> {
    let mut resource = Message::default();
    for attribute in attributes {
        add_text(&mut resource, 1, &attribute.name, &attribute.value);
    }
    let mut group = Message::default();
    group.message(1, &resource);
    group.start_bytes(2, scope.len());
    let mut request = Message::default();
    request.start_bytes(1, group.len() + scope.len());
    request.append(&group);
    request.append(scope);
    request.into_bytes()
}

/// Returns the start of a scope: the name and version of the program.
fn scope_message() -> Message {
    let mut program = Message::default();
    program.text(1, "toolcrib");
    program.text(2, env!("CARGO_PKG_VERSION"));
    let mut scope = Message::default();
    scope.message(1, &program);
    scope
}

/// Adds an attribute, unless its value is empty.
fn add_text(message: &mut Message, field: u64, name: &str, value: &str) {
    if !value.is_empty() {
        message.text_attribute(field, name, value);
    }
}

fn add_number(message: &mut Message, field: u64, name: &str, value: u64) {
    message.nested(field, |attribute| {
        attribute.text(1, name);
        attribute.nested(2, |any| any.varint(3, value));
    });
}

/// The part of a span that differs between the two of a call.
struct SpanFrame {
    span_id: u64,
    parent: Option<u64>,
    kind: u64,
    start: SystemTime,
    end: SystemTime,
}

/// What both spans of a call have.
struct CommonFields {
    name: String,
    attributes: Message,
}

impl CommonFields {
    fn new(call: &CallRecord) -> Self {
        let name_attribute = match &*call.method {
            "tools/call" => Some("gen_ai.tool.name"),
            "prompts/get" => Some("gen_ai.prompt.name"),
            _ => None,
        };
        let mut attributes = Message::default();
        attributes.reserve(SPAN_BYTES / 2);
        add_text(&mut attributes, 9, "mcp.method.name", &call.method);
        if let Some(attribute) = name_attribute {
            add_text(&mut attributes, 9, attribute, &call.name);
        }
        if call.method == "tools/call" {
            add_text(&mut attributes, 9, "gen_ai.operation.name", "execute_tool");
        }
        add_text(&mut attributes, 9, "toolcrib.server", call.server.as_ref().map_or("", ServerId::as_str));
        add_text(&mut attributes, 9, "toolcrib.call.id", &call.id.to_string());
        if let Some(error_type) = call.end.error_type() {
            add_text(&mut attributes, 9, "error.type", error_type);
            attributes.nested(15, |status| status.varint(3, STATUS_ERROR));
        }
        let name = match name_attribute {
            Some(_) => [&*call.method, " ", &*call.name].concat(),
            None => call.method.clone().into_owned(),
        };
        Self { name, attributes }
    }
}

/// Writes the span of the request of a client.
fn write_server_span(span: &mut Message, call: &CallRecord, spans: &CallSpans, common: &CommonFields) {
    let frame = SpanFrame {
        span_id: call.id.number(),
        parent: spans.parent.as_ref().map(|parent| parent.span_id),
        kind: SERVER,
        start: call_start(call),
        end: call.at,
    };
    write_span(span, spans, &frame, common);
    add_text(span, 9, "mcp.session.id", spans.session.as_deref().unwrap_or_default());
    add_text(span, 9, "network.transport", spans.client_transport.map_or("", NetworkTransport::name));
    add_text(span, 9, "toolcrib.caller", call.caller.as_str());
    add_text(span, 9, "toolcrib.client", call.client.name.as_deref().unwrap_or_default());
    add_text(span, 9, "toolcrib.decision", call.decision.name());
    add_text(span, 9, "toolcrib.rule", call.denial.as_ref().map_or("", |denial| &denial.rule));
    add_text(span, 9, "toolcrib.cache", call.cache.map_or("", |cache| cache.name()));
    add_number(span, 9, "toolcrib.request.size", call.request_bytes as u64);
    add_number(span, 9, "toolcrib.response.size", call.response_bytes as u64);
}

/// Writes the span of the request that the gateway made to the server.
fn write_client_span(span: &mut Message, call: &CallRecord, spans: &CallSpans, common: &CommonFields) {
    let timing = &call.timing;
    let sent = call_start(call) + timing.policy + timing.start + timing.queue;
    // A call that was sent twice had its server for two periods, which are shown as one that ends with the call.
    let start = sent.min(call.at - timing.server.min(call.duration));
    let frame = SpanFrame {
        span_id: spans.client_span,
        parent: Some(call.id.number()),
        kind: CLIENT,
        start,
        end: (start + timing.server).min(call.at),
    };
    write_span(span, spans, &frame, common);
    add_text(span, 9, "network.transport", spans.server_transport.map_or("", NetworkTransport::name));
    add_number(span, 9, "toolcrib.attempts", call.attempts.into());
}

fn call_start(call: &CallRecord) -> SystemTime {
    call.at.checked_sub(call.duration).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Writes the ids, the name, the times and the common attributes of a span.
fn write_span(span: &mut Message, spans: &CallSpans, frame: &SpanFrame, common: &CommonFields) {
    span.bytes(1, &spans.trace_id.to_be_bytes());
    span.bytes(2, &frame.span_id.to_be_bytes());
    if let Some(state) = spans.parent.as_ref().and_then(|parent| parent.state.as_deref()) {
        span.text(3, state);
    }
    if let Some(parent) = frame.parent {
        span.bytes(4, &parent.to_be_bytes());
    }
    span.text(5, &common.name);
    span.varint(6, frame.kind);
    span.fixed64(7, unix_nanos(frame.start));
    span.fixed64(8, unix_nanos(frame.end));
    span.append(&common.attributes);
}

fn metric(family: &MetricFamily, started: SystemTime, now: SystemTime) -> Message {
    let mut data = Message::default();
    for point in &family.points {
        data.message(1, &data_point(point, started, now));
    }
    let mut metric = Message::default();
    metric.text(1, family.name);
    metric.text(2, family.help);
    metric.text(
        3,
        match family.unit {
            MetricUnit::None => "1",
            MetricUnit::Seconds => "s",
            MetricUnit::Bytes => "By",
        },
    );
    match family.kind {
        MetricKind::Gauge => metric.message(5, &data),
        MetricKind::Counter => {
            data.varint(2, CUMULATIVE);
            data.varint(3, 1);
            metric.message(7, &data);
        }
        MetricKind::Histogram => {
            data.varint(2, CUMULATIVE);
            metric.message(9, &data);
        }
    }
    metric
}

fn data_point(point: &Point, started: SystemTime, now: SystemTime) -> Message {
    let mut message = Message::default();
    message.fixed64(2, unix_nanos(started));
    message.fixed64(3, unix_nanos(now));
    let attributes = match &point.value {
        PointValue::Number(number) => {
            message.double(4, *number);
            7
        }
        PointValue::Histogram(histogram) => {
            write_buckets(&mut message, histogram);
            9
        }
    };
    for label in &point.labels {
        add_text(&mut message, attributes, label.name, &label.value);
    }
    message
}

fn write_buckets(message: &mut Message, histogram: &HistogramSnapshot) {
    message.fixed64(4, histogram.count());
    message.double(5, histogram.sum());
    message.packed_fixed64(6, histogram.counts.into_iter());
    message.packed_fixed64(7, bounds_in_seconds().into_iter().map(f64::to_bits));
}

fn unix_nanos(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
