//! A server that answers every call with the same bytes, as fast as it can, and the crib around it.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use toolcrib::spec::ToolsSpec;
use toolcrib::wire::frame::{Frame, Frames};
use toolcrib::wire::message::{Answer, ClientMessage, reply};
use toolcrib::{Crib, InProcess, ServerSpec};

/// Answers every call with one result.
pub(crate) struct Echo(Bytes);

impl InProcess for Echo {
    fn serve(&self, mut pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let result = self.0.clone();
        Box::pin(async move {
            let mut frames = Frames::new(32 << 20);
            while matches!(pipe.read_buf(frames.room()).await, Ok(1..)) {
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
                    let mut line = reply(&id, &Answer::Result(answer));
                    line.push(b'\n');
                    if pipe.write_all(&line).await.is_err() {
                        return;
                    }
                }
            }
        })
    }
}

/// A result with a text of this many bytes.
pub(crate) fn result(bytes: usize) -> Bytes {
    format!(r#"{{"content":[{{"type":"text","text":"{}"}}],"isError":false}}"#, "x".repeat(bytes)).into()
}

/// The same as a server's reply to our request number 7.
pub(crate) fn reply_line(bytes: usize) -> Bytes {
    [br#"{"jsonrpc":"2.0","id":7,"result":"#, &*result(bytes), b"}"].concat().into()
}

/// A crib with one such server, `s`, whose only tool is `echo`.
pub(crate) fn crib(bytes: usize) -> Crib {
    crib_of(result(bytes), ToolsSpec::default())
}

/// A crib with a server that answers with this, and of whose tools this is said.
#[expect(clippy::expect_used, reason = "a benchmark without a crib is none")]
pub(crate) fn crib_of(result: Bytes, tools: ToolsSpec) -> Crib {
    let spec = ServerSpec::in_process("s".parse().expect("a good name"), Echo(result)).tools(tools);
    Crib::builder().server(spec).build().expect("one server")
}
