//! Arguments and results are passed byte for byte.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream};
use toolcrib::protocol::json::object::Object;
use toolcrib::protocol::jsonrpc::{ClientMessage, ResponsePayload, encode_response};
use toolcrib::{
    Call, CallRecord, CallSpans, ClientContext, Crib, InProcess, NetworkTransport, Observer, ServerSpec,
    TraceContext,
};

use crate::fake::FakeServer;
use crate::support::{crib, id, with};

/// A server that records every line it receives and answers calls with a fixed result.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<String>>>);

impl Recorder {
    fn call(&self) -> String {
        let lines = self.0.lock().unwrap();
        lines.iter().find(|line| line.contains("\"tools/call\"")).unwrap().clone()
    }
}

impl InProcess for Recorder {
    fn serve(&self, pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let lines_received = self.0.clone();
        Box::pin(async move {
            let (reader, mut writer) = tokio::io::split(pipe);
            let mut lines = BufReader::new(reader).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                lines_received.lock().unwrap().push(line.clone());
                let Ok(ClientMessage::Request { id, method, .. }) = ClientMessage::parse(&line.into()) else {
                    continue;
                };
                let answer = match &*method {
                    "initialize" => r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}"#,
                    "tools/list" => r#"{"tools":[{"name":"t"}]}"#,
                    _ => "{}",
                };
                let mut line = encode_response(&id, &ResponsePayload::Result(answer.into()));
                line.push(b'\n');
                if writer.write_all(&line).await.is_err() {
                    return;
                }
            }
        })
    }
}

#[tokio::test(start_paused = true)]
async fn result_is_passed_unchanged() {
    let crib = crib(&[("git", &FakeServer::new())]);
    let results = [
        r#"{ "content" : [ {"type":"hologram","data":{"a":1,"a":2}} ] , "x":1e400, "isError" :false}"#,
        r#"{"content":[],"structuredContent":{"n":1.10,"big":18446744073709551616000},"_meta":{"k":"\u0041"}}"#,
        r#"{"content":[{"type":"text","text":"tab\t\u2028 \ud83d\ude00 é"}],"z":null,"a":[[[[]]]]}"#,
        "{}",
    ];
    for result in results {
        let line = format!(r#"{{"result":{result},"id":$ID,"jsonrpc":"2.0","extra":{{}}}}"#);
        let outcome = crib.call(with("git", "say", &json!({ "lines": [line] }))).await.unwrap();
        assert_eq!(outcome.raw(), result);
        assert!(!outcome.is_error());
    }
}

#[tokio::test(start_paused = true)]
async fn server_error_is_passed_unchanged() {
    let crib = crib(&[("git", &FakeServer::new())]);
    let error = r#"{"code":-32602,"message":"no\u0020such","data":{"n":1.0,"n":2}, "own":[ ]}"#;
    let line = format!(r#"{{"jsonrpc":"2.0","id":$ID,"error":{error}}}"#);
    let outcome = crib.call(with("git", "say", &json!({ "lines": [line] }))).await.unwrap();
    assert_eq!(outcome.raw(), error);
    assert!(outcome.is_error());
}

#[tokio::test(start_paused = true)]
async fn images_and_structured_content_are_lines_received() {
    let crib = crib(&[("git", &FakeServer::new())]);
    let result = r#"{"content":[{"type":"text","text":"a"},{"type":"image","data":"AA=="},{"type":"text","text":"b"}],"structuredContent":{"x":1}}"#;
    let line = format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{result}}}"#);
    let outcome = crib.call(with("git", "say", &json!({ "lines": [line] }))).await.unwrap();
    assert_eq!(outcome.text(), "a\nb");
    assert_eq!(outcome.to_value()["content"][1]["data"], "AA==");
    assert_eq!(outcome.to_value()["structuredContent"]["x"], 1);
}

#[tokio::test(start_paused = true)]
async fn arguments_are_passed_byte_for_byte() {
    let recorder = Recorder::default();
    let crib = Crib::builder().server(ServerSpec::in_process(id("rec"), recorder.clone())).build().unwrap();
    let arguments = r#"{ "n":1e400,"dup":{"a":1,"a":2},"t":"\u0041\n","big":10000000000000000000000000.0 }"#;
    crib.call(Call::tool("rec__t").raw_arguments(arguments)).await.unwrap();
    let sent = recorder.call();
    assert!(sent.contains(&format!(r#""params":{{"name":"t","arguments":{arguments}}}"#)), "{sent}");
}

#[tokio::test(start_paused = true)]
async fn unknown_params_are_passed_with_the_own_name() {
    let recorder = Recorder::default();
    let crib = Crib::builder().server(ServerSpec::in_process(id("rec"), recorder.clone())).build().unwrap();
    let params =
        r#"{"own":1.0,"name":"rec__t","arguments":{},"_meta":{"traceparent":"00-1","progressToken":7}}"#;
    let params = Object::parse(&params.into()).unwrap();
    crib.call(Call::tool("rec__t").params(params)).await.unwrap();
    let sent = recorder.call();
    let expected = r#""params":{"own":1.0,"name":"t","arguments":{},"_meta":{"traceparent":"00-1"}}"#;
    assert!(sent.contains(expected), "{sent}");
}

/// An observer that traces calls whose client does, and keeps their spans.
#[derive(Default)]
struct Tracer(Mutex<Vec<Option<CallSpans>>>);

impl Observer for Tracer {
    fn traces_calls(&self) -> bool {
        true
    }

    fn start_spans(&self, parent: Option<TraceContext>) -> Option<CallSpans> {
        let parent = parent.filter(TraceContext::is_sampled)?;
        Some(CallSpans::new(parent.trace_id, Some(parent), 0xabc))
    }

    fn call_ended(&self, record: &CallRecord) {
        self.0.lock().unwrap().push(record.spans.as_deref().cloned());
    }
}

#[tokio::test(start_paused = true)]
async fn only_traced_calls_pass_on_a_new_position_in_the_trace() {
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let meta = |flags: &str| {
        format!(r#"{{"traceparent":"00-{trace}-b7ad6b7169203331-{flags}","tracestate":"k=v","own":1.0}}"#)
    };
    for (flags, expected) in [
        ("00", meta("00")),
        ("01", format!(r#"{{"traceparent":"00-{trace}-0000000000000abc-01","tracestate":"k=v","own":1.0}}"#)),
    ] {
        let recorder = Recorder::default();
        let tracer = Arc::new(Tracer::default());
        let rec = ServerSpec::in_process(id("rec"), recorder.clone());
        let crib = Crib::builder().server(rec).observer(tracer.clone()).build().unwrap();
        let params = format!(r#"{{"name":"rec__t","_meta":{}}}"#, meta(flags));
        let context = Arc::new(ClientContext::default());
        context.set_session_id("session1");
        let mut call =
            Call::tool("rec__t").params(Object::parse(&params.into()).unwrap()).client_context(context);
        call.set_client_transport(Some(NetworkTransport::Unix));
        crib.call(call).await.unwrap();
        let sent = recorder.call();
        assert!(sent.contains(&format!(r#""_meta":{expected}"#)), "{sent}");
        let spans = tracer.0.lock().unwrap().remove(0);
        assert_eq!(spans.is_some(), flags == "01");
        if let Some(spans) = spans {
            assert_eq!(spans.parent.unwrap().span_id, 0xb7ad_6b71_6920_3331);
            assert_eq!(spans.session.as_deref(), Some("session1"));
            // The server is in the same process.
            assert_eq!(
                (spans.client_transport, spans.server_transport),
                (Some(NetworkTransport::Unix), None)
            );
        }
    }
}
