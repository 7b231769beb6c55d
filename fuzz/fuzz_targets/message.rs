//! Messages: any bytes are something, a message that was read can be answered, and an answer is the bytes it was.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use toolcrib::wire::dialect::client::Claims;
use toolcrib::wire::dialect::{to_client, to_server};
use toolcrib::wire::message::{Answer, ClientMessage, ServerMessage, error_reply, reply};
use toolcrib::wire::object::Object;
use toolcrib::wire::revision::{Era, Revision};

fn from_client(source: &Bytes) {
    match ClientMessage::parse(source) {
        Ok(ClientMessage::Request { id, params, .. }) => {
            let answered = reply(&id, &Answer::Result(Bytes::from_static(b"{}")));
            assert!(serde_json::from_slice::<serde_json::Value>(&answered).is_ok());
            let Some(Ok(mut params)) = params.map(|params| Object::parse(&params)) else { return };
            let _ = Claims::default().read(Some(&mut params));
            for revision in Revision::ALL {
                to_server(&mut params, revision, None, Some(7));
                assert!(Object::parse(&params.to_bytes()).is_ok());
            }
        }
        Ok(_) => {}
        Err(bad) => assert!(!error_reply(bad.id.as_ref(), b"{}").is_empty()),
    }
}

fn from_server(source: &Bytes) {
    if let ServerMessage::Reply { answer: Answer::Result(result), .. } = ServerMessage::parse(source) {
        let shown = |server, client| match to_client(Answer::Result(result.clone()), "tools/call", server, client) {
            Answer::Result(shown) => shown,
            Answer::Error(_) => panic!("a result became an error"),
        };
        assert_eq!(shown(Era::Session, Era::Session), result);
        for (server, client) in [(Era::Session, Era::Stateless), (Era::Stateless, Era::Session)] {
            assert!(serde_json::from_slice::<&serde_json::value::RawValue>(&shown(server, client)).is_ok());
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let source = Bytes::copy_from_slice(data);
    from_client(&source);
    from_server(&source);
    let _ = (ServerMessage::oversize(&source), ServerMessage::oversize_end(&source));
});
