//! An in-process server that answers every call with the same bytes, and a crib with this server.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use toolcrib::protocol::framing::{Frame, FrameDecoder};
use toolcrib::protocol::jsonrpc::{ClientMessage, ResponsePayload, encode_response};
use toolcrib::spec::ToolsSpec;
use toolcrib::{Crib, InProcess, ServerSpec};

/// A server that answers every call with one result.
pub(crate) struct Echo(Bytes);

impl InProcess for Echo {
    fn serve(&self, mut pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let result = self.0.clone();
        Box::pin(async move {
            let mut frames = FrameDecoder::new(32 << 20);
            while matches!(pipe.read_buf(frames.read_buffer()).await, Ok(1..)) {
                while let Some(Frame::Line(line)) = frames.next_frame() {
                    let Ok(ClientMessage::Request { id, method, .. }) = ClientMessage::parse(&line) else {
                        continue;
                    };
                    let answer = match &*method {
                        "initialize" => Bytes::from_static(
                            br#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}"#,
                        ),
                        "tools/list" => Bytes::from_static(br#"{"tools":[{"name":"echo"}]}"#),
                        "tools/call" => result.clone(),
                        _ => Bytes::from_static(b"{}"),
                    };
                    let mut line = encode_response(&id, &ResponsePayload::Result(answer));
                    line.push(b'\n');
                    if pipe.write_all(&line).await.is_err() {
                        return;
                    }
                }
            }
        })
    }
}

/// Returns a result with a text of this many bytes.
pub(crate) fn result(bytes: usize) -> Bytes {
    format!(r#"{{"content":[{{"type":"text","text":"{}"}}],"isError":false}}"#, "x".repeat(bytes)).into()
}

/// Returns such a result as the reply to request 7.
pub(crate) fn reply_line(bytes: usize) -> Bytes {
    [br#"{"jsonrpc":"2.0","id":7,"result":"#, &*result(bytes), b"}"].concat().into()
}

/// Returns a crib with one server `s`, whose only tool is `echo`.
pub(crate) fn crib(bytes: usize) -> Crib {
    crib_with(result(bytes), ToolsSpec::default())
}

/// Returns a crib whose server answers with `result`, with the given tool settings.
#[expect(clippy::expect_used, reason = "a benchmark needs a crib")]
pub(crate) fn crib_with(result: Bytes, tools: ToolsSpec) -> Crib {
    let spec = ServerSpec::in_process("s".parse().expect("invalid server name"), Echo(result)).tools(tools);
    Crib::builder().server(spec).build().expect("duplicate server")
}
