//! Messages: any bytes parse without a panic, every parsed request can be responded to, and results pass unchanged
//! within an era.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use toolcrib::protocol::era::client::RequestMetaReader;
use toolcrib::protocol::era::{adapt_params_for_server, adapt_response_for_client};
use toolcrib::protocol::framing::{Frame, FrameDecoder};
use toolcrib::protocol::jsonrpc::{ClientMessage, ResponsePayload, ServerMessage, encode_error_response, encode_response};
use toolcrib::protocol::json::object::Object;
use toolcrib::protocol::versions::{Era, Revision};

fn from_client(source: &Bytes) {
    let message = ClientMessage::parse(source);
    match (ClientMessage::parse_with_params(source), &message) {
        (Ok(parsed), Ok(ClientMessage::Request { params, .. } | ClientMessage::Notification { params, .. })) => {
            assert_eq!(parsed.params, params.as_ref().map(Object::parse));
            assert_eq!(Ok(parsed.message), message);
        }
        (parsed, _) => assert_eq!(parsed.map(|parsed| parsed.message), message),
    }
    match message {
        Ok(ClientMessage::Request { id, params, .. }) => {
            let response = encode_response(&id, &ResponsePayload::Result(Bytes::from_static(b"{}")));
            assert!(serde_json::from_slice::<serde_json::Value>(&response).is_ok());
            let Some(Ok(mut params)) = params.map(|params| Object::parse(&params)) else { return };
            let _ = RequestMetaReader::default().read(Some(&mut params));
            for revision in Revision::ALL {
                adapt_params_for_server(&mut params, revision, None, &Bytes::from_static(b"{}"), Some(7));
                assert!(Object::parse(&params.to_bytes()).is_ok());
            }
        }
        Ok(_) => {}
        Err(bad) => assert!(!encode_error_response(bad.id.as_ref(), b"{}").is_empty()),
    }
}

fn from_server(source: &Bytes) {
    if let ServerMessage::Response { payload: ResponsePayload::Result(result), .. } = ServerMessage::parse(source) {
        let adapt = |server, client| {
            let payload = ResponsePayload::Result(result.clone());
            let adapted = adapt_response_for_client(payload, "tools/call", server, client, None);
            adapted.into_result().expect("a result stays a result")
        };
        assert_eq!(adapt(Era::Session, Era::Session), result);
        for (server, client) in [(Era::Session, Era::Stateless), (Era::Stateless, Era::Session)] {
            assert!(serde_json::from_slice::<&serde_json::value::RawValue>(&adapt(server, client)).is_ok());
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let source = Bytes::copy_from_slice(data);
    from_client(&source);
    from_server(&source);
    let mut frames = FrameDecoder::new(0);
    frames.push(&source);
    while let Some(frame) = frames.next_frame() {
        if let Frame::Oversize(oversize) = frame {
            let _ = oversize.kind();
        }
    }
});
