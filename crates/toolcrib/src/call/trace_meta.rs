//! Trace contexts in the `_meta` of requests.

use bytes::Bytes;
use memchr::memmem;

use crate::model::trace_context::TraceContext;
use crate::protocol::json::object::{Object, to_json_string};

const META: &str = "_meta";
const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

/// Returns the trace context in the `_meta` of parameters, if there is a valid one.
pub(crate) fn read(params: &Object) -> Option<TraceContext> {
    let raw = params.get(META).filter(|raw| has_context(raw))?;
    let meta = Object::parse(raw).ok()?;
    TraceContext::parse(&meta.get_string(TRACEPARENT)?, meta.get_string(TRACESTATE).as_deref())
}

/// Sets the trace context in the `_meta` of parameters.
pub(crate) fn write(params: &mut Object, context: &TraceContext) {
    let raw = params.get(META);
    if raw.is_none() && context.state.is_none() {
        let meta = [br#"{"traceparent":""#, &context.traceparent_digits()[..], br#""}"#].concat();
        params.set_unchecked(META, meta);
        return;
    }
    let mut meta = raw.and_then(|raw| Object::parse(raw).ok()).unwrap_or_default();
    meta.set_unchecked(TRACEPARENT, to_json_string(&context.to_traceparent()));
    if let Some(state) = &context.state {
        meta.set_unchecked(TRACESTATE, to_json_string(state));
    }
    params.set_unchecked(META, meta.to_bytes());
}

/// Adds the trace context of HTTP headers to the `_meta` of parameters, unless that has one or the headers are invalid.
pub fn add_from_headers(params: &mut Object, traceparent: &str, tracestate: Option<&str>) {
    if params.get(META).is_none_or(|raw| !has_context(raw))
        && let Some(context) = TraceContext::parse(traceparent, tracestate)
    {
        write(params, &context);
    }
}

/// Returns whether `_meta` may have a trace context. Most have none, and are not parsed.
fn has_context(meta: &Bytes) -> bool {
    memmem::find(meta, TRACEPARENT.as_bytes()).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const OTHER: &str = "00-1af7651916cd43dd8448eb211c80319c-17ad6b7169203331-00";

    fn params(text: &str) -> Object {
        Object::parse(&Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn text(params: &Object) -> String {
        String::from_utf8(params.to_bytes().to_vec()).unwrap()
    }

    #[test]
    fn written_context_replaces_the_one_of_the_client() {
        let mut params = params(&format!(r#"{{"name":"x","_meta":{{"a":1.0,"traceparent":"{PARENT}"}}}}"#));
        assert_eq!(read(&params).unwrap().to_traceparent(), PARENT);
        let next = TraceContext::parse(OTHER, Some("k=v")).unwrap();
        write(&mut params, &next);
        let expected =
            format!(r#"{{"name":"x","_meta":{{"a":1.0,"traceparent":"{OTHER}","tracestate":"k=v"}}}}"#);
        assert_eq!(text(&params), expected);
        assert_eq!(read(&params), Some(next));
    }

    #[test]
    fn headers_are_used_only_without_a_context_in_meta() {
        let mut own = params(&format!(r#"{{"_meta":{{"traceparent":"{PARENT}"}}}}"#));
        let before = text(&own);
        add_from_headers(&mut own, OTHER, None);
        assert_eq!(text(&own), before);
        let mut none = params(r#"{"name":"x"}"#);
        add_from_headers(&mut none, OTHER, None);
        assert_eq!(text(&none), format!(r#"{{"name":"x","_meta":{{"traceparent":"{OTHER}"}}}}"#));
        let mut none = params(r#"{"name":"x"}"#);
        add_from_headers(&mut none, "invalid", None);
        assert_eq!((text(&none).as_str(), read(&none)), (r#"{"name":"x"}"#, None));
        add_from_headers(&mut none, OTHER, Some("k=v"));
        assert_eq!(read(&none), TraceContext::parse(OTHER, Some("k=v")));
    }
}
