//! Tests of message parsing for both sides.

use proptest::prelude::*;

use super::*;
use crate::protocol::framing::{Frame, FrameDecoder};

fn client(text: &str) -> Result<ClientMessage, MalformedMessage> {
    ClientMessage::parse(&Bytes::copy_from_slice(text.as_bytes()))
}

fn server(text: &str) -> ServerMessage {
    ServerMessage::parse(&Bytes::copy_from_slice(text.as_bytes()))
}

fn bad_ids(text: &str) -> Vec<u64> {
    match server(text) {
        ServerMessage::BadResponse { ids, .. } => ids,
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn request_id_keeps_its_spelling() {
    for id in ["1", "\"a\"", "1.0", "-5", "18446744073709551616"] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
        let Ok(ClientMessage::Request { id: parsed, .. }) = client(&text) else { panic!("{text}") };
        assert_eq!(parsed.as_bytes(), id.as_bytes());
    }
}

#[test]
fn client_messages_are_parsed_strictly() {
    let mistakes = [
        ("{", code::PARSE_ERROR),
        ("nonsense", code::PARSE_ERROR),
        ("[]", code::INVALID_REQUEST),
        (r#"{"jsonrpc":"2.0","id":1,"method":"a","Method":"b"}"#, code::INVALID_REQUEST),
        (r#"{"jsonrpc":"2.0","id":1,"method":"a","meth\u006fd":"b"}"#, code::INVALID_REQUEST),
        (r#"{"jsonrpc":"2.0","id":null,"method":"a"}"#, code::INVALID_REQUEST),
        (r#"{"jsonrpc":"2.0","id":1.5,"method":"a"}"#, code::INVALID_REQUEST),
        (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, code::INVALID_REQUEST),
        (r#"{"jsonrpc":"2.0","id":1,"method":"a","params":[]}"#, code::INVALID_REQUEST),
        (r#"{"jsonrpc":"1.0","id":1,"method":"a"}"#, code::INVALID_REQUEST),
        (r#"{"id":1,"method":"a"}"#, code::INVALID_REQUEST),
        (r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{}}"#, code::INVALID_REQUEST),
    ];
    for (text, expected) in mistakes {
        assert_eq!(client(text).unwrap_err().code, expected, "{text}");
    }
    assert_eq!(client(mistakes[3].0).unwrap_err().id.unwrap().as_bytes(), b"1");
}

/// Parts of parameters that often make valid JSON.
const TOKENS: &[&str] =
    &[r#""a":1"#, r#""b":"x""#, ",", ",", ",", " ", r#""c":{"a":[]}"#, r#""d":["#, "]", "}", r#""\ud800":1"#];

/// Parses in one pass and in two, and checks that both agree.
fn check_one_pass(text: &str) {
    let source = Bytes::copy_from_slice(text.as_bytes());
    let parsed = ClientMessage::parse_with_params(&source);
    assert_eq!(parsed.clone().map(|parsed| parsed.message), ClientMessage::parse(&source), "{text}");
    let Ok(ParsedMessage { message, params }) = parsed else { return };
    let (ClientMessage::Request { params: raw, .. } | ClientMessage::Notification { params: raw, .. }) =
        message
    else {
        return;
    };
    assert_eq!(params, raw.map(|raw| Object::parse(&raw)), "{text}");
}

#[test]
fn params_are_the_same_in_one_pass() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let params = [
        "null".to_owned(),
        "{}".to_owned(),
        "[1]".to_owned(),
        r#" { "name" : "a" , "_meta" : {"x":[1]} } "#.to_owned(),
        r#"{"name":1,"n\u0061me":2}"#.to_owned(),
        r#"{"\ud800":1,"b":2}"#.to_owned(),
        r#"{"a":1,"a":2,"\ud800":1}"#.to_owned(),
        r#"{"a":tru}"#.to_owned(),
        r#"{"a":1}}"#.to_owned(),
        r#"{},"params":{}"#.to_owned(),
    ];
    let deep = (509..514).flat_map(|depth| [nested(depth), format!(r#"{{"a":{}}}"#, nested(depth))]);
    for params in params.into_iter().chain(deep) {
        check_one_pass(&format!(r#"{{"jsonrpc":"2.0","id":1,"params":{params},"method":"m"}}"#));
        check_one_pass(&format!(r#"{{"jsonrpc":"2.0","method":"m","p\u0061rams":{params}}}"#));
    }
    // A name that cannot be decoded, alone and before a value that is not JSON.
    [r#"{"\ud800":1}"#, r#"{"\ud800":"#, r#"{"\ud800":tru}"#].into_iter().for_each(check_one_pass);
}

#[test]
fn nesting_is_limited_for_clients_only() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let request = |depth| {
        client(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"a","params":{{"x":{}}}}}"#, nested(depth)))
    };
    assert!(request(400).is_ok());
    assert!(request(600).is_err() && request(100_000).is_err());
    let response = server(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"x":{}}}}}"#, nested(100_000)));
    assert!(matches!(response, ServerMessage::Response { id: 1, .. }));
}

#[test]
fn null_params_are_absent() {
    let request = client(r#"{"jsonrpc":"2.0","id":1,"method":"a","params":null}"#);
    assert!(matches!(request, Ok(ClientMessage::Request { params: None, .. })));
}

#[test]
fn response_id_matches_in_any_number_spelling() {
    for id in ["7", "7.0"] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"x":1e400}}}}"#);
        let ServerMessage::Response { id: 7, payload: ResponsePayload::Result(result) } = server(&text)
        else {
            panic!("{text}")
        };
        assert_eq!(result, r#"{"x":1e400}"#);
    }
}

#[test]
fn response_id_of_wrong_type_fails_that_call() {
    assert_eq!(bad_ids(r#"{"jsonrpc":"2.0","id":"7","result":{}}"#), [7]);
}

#[test]
fn malformed_responses_name_their_call() {
    for text in [
        r#"{"jsonrpc":"2.0","id":7,"result":{},"error":{"code":1}}"#,
        r#"{"jsonrpc":"2.0","id":7}"#,
        r#"{"jsonrpc":"2.0","id":7,"result":3}"#,
        r#"{"jsonrpc":"2.0","id":7,"result":null}"#,
        r#"{"jsonrpc":"2.0","id":7,"error":"no"}"#,
        r#"{"jsonrpc":"2.0","id":7,"result":{"a":tru}}"#,
        r#"{"jsonrpc":"2.0","result":{"cut":1,"id":7"#,
        r#"[{"jsonrpc":"2.0","id":7,"result":{}}]"#,
    ] {
        assert_eq!(bad_ids(text), [7], "{text}");
    }
    let invalid = Bytes::from_static(b"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"t\":\"\xff\"}}");
    assert!(matches!(ServerMessage::parse(&invalid), ServerMessage::BadResponse { ids, .. } if ids == [7]));
}

#[test]
fn null_beside_result_or_error_is_ignored() {
    let result = server(r#"{"jsonrpc":"2.0","id":7,"result":{},"error":null}"#);
    assert!(matches!(result, ServerMessage::Response { id: 7, payload: ResponsePayload::Result(_) }));
    let error = server(r#"{"jsonrpc":"2.0","id":7,"result":null,"error":{"data":1}}"#);
    assert!(matches!(error, ServerMessage::Response { id: 7, payload: ResponsePayload::Error(_) }));
}

#[test]
fn server_request_is_never_a_response() {
    let request = server(r#"{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}"#);
    assert!(matches!(request, ServerMessage::Request { method, .. } if method == "ping"));
}

#[test]
fn other_lines_are_garbage() {
    for text in [
        "",
        "Listening on port 3000",
        "42",
        "\u{1b}[1mhi\u{1b}[0m",
        "{\"level\":\"info\"}",
        "{half",
        "\"id\"",
    ] {
        assert_eq!(server(text), ServerMessage::Garbage, "{text}");
    }
    let cut = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"cut"#;
    assert_eq!(server(cut), ServerMessage::Garbage);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let bytes = Bytes::from(bytes);
        let _ = ClientMessage::parse(&bytes);
        let _ = ServerMessage::parse(&bytes);
    }

    #[test]
    fn any_params_are_the_same_in_one_pass(tokens in prop::collection::vec(prop::sample::select(TOKENS), 0..12)) {
        let params = tokens.concat();
        check_one_pass(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{{params}}}}}"#));
    }

    #[test]
    fn truncated_response_fails_its_call(cut in 30usize..90) {
        let whole = r#"{"jsonrpc":"2.0","id":1234,"result":{"content":[{"type":"text","text":"hello there"}]}}"#;
        prop_assert_eq!(bad_ids(&whole[..cut.min(whole.len() - 1)]), [1234]);
    }
}

#[test]
fn find_request_id_ignores_ids_in_params() {
    let id = |head: &str| {
        find_request_id(head.as_bytes()).map(|id| String::from_utf8_lossy(id.as_bytes()).into_owned())
    };
    for (head, expected) in [
        (r#"{"jsonrpc":"2.0","id":7,"method":"x","params":{"text":"aaa"#, Some("7")),
        (r#"{"jsonrpc":"2.0", "id" : "a\"b" ,"params":{"id":8,"text":"aaa"#, Some(r#""a\"b""#)),
        (r#"{"id":-7,"method":"x","params":{"#, Some("-7")),
        (r#"{"method":"x","params":{"arguments":{"id":8,"text":"aaa"#, None),
        (r#"{"method":"id","params":{"text":"\"id\":9,"#, None),
        (r#"{"method":"x","id":12"#, None),
        ("aaa", None),
        ("", None),
    ] {
        assert_eq!(id(head).as_deref(), expected, "{head}");
    }
}

#[test]
fn oversize_message_is_identified_by_its_own_members() {
    use OversizeKind::{Garbage, Notification, Request, Response, Unidentified};
    let kind = |text: &str| {
        let mut frames = FrameDecoder::new(5);
        frames.push(format!("{text}\n").as_bytes());
        let kinds = std::iter::from_fn(|| frames.next_frame()).map(|frame| match frame {
            Frame::Oversize(oversize) => oversize.kind(),
            Frame::Line(line) => panic!("{line:?}"),
        });
        <[OversizeKind; 2]>::try_from(kinds.collect::<Vec<_>>()).unwrap()
    };
    let id = |raw: &'static str| RequestId::parse(raw.into()).unwrap();
    let cut = "x".repeat(5000);
    for (text, at_start, at_end) in [
        (r#"{"jsonrpc":"2.0","id":7,"result":{"c":[{"id":3,"t":"CUT"#, Response(7), Response(7)),
        (
            r#"{"result":{"c":[{"id":3,"t":"CUT"}],"n":{"id":3}},"jsonrpc":"2.0","id":7}"#,
            Unidentified,
            Response(7),
        ),
        (r#"{"result":{"t":"CUT"}, "id": 8 ,"jsonrpc":"2.0"}"#, Unidentified, Response(8)),
        (r#"{"result":{"t":"CUT","a":[{"id":3}]}}"#, Unidentified, Unidentified),
        (r#"[{"jsonrpc":"2.0","id":7,"result":{"t":"CUT"}}]"#, Unidentified, Unidentified),
        (r#"{"jsonrpc":"2.0","id":"7","result":{"t":"CUT"}}"#, Unidentified, Unidentified),
        (r#"{"method":"x","id":3,"params":{"t":"CUT"}}"#, Request(id("3")), Request(id("3"))),
        (r#"{"id":"a","method":"x","params":{"t":"CUT"}}"#, Request(id("\"a\"")), Request(id("\"a\""))),
        (r#"{"method":"x","params":{"t":"CUT"},"id":3}"#, Notification, Notification),
        ("CUT {\"id\":3}", Garbage, Garbage),
    ] {
        assert_eq!(kind(&text.replace("CUT", &cut)), [at_start, at_end], "{text}");
    }
}

#[test]
fn own_codes_of_servers_are_moved() {
    let moved = |text: &str| {
        let error = move_own_code(Bytes::copy_from_slice(text.as_bytes()));
        String::from_utf8(error.to_vec()).unwrap()
    };
    for code in ["-31010", "-31099", "-31000", "-3.101e4"] {
        let error =
            format!(r#"{{"code":{code},"message":"no","data":{{"kind":"denied","hint":"curl x | sh"}}}}"#);
        let expected = format!(r#"{{"code":-32000,"message":"no","data":{{"server_error":{error}}}}}"#);
        assert_eq!(moved(&error), expected);
    }
    for code in ["-32602", "-31100", "-30999", "0", "\"-31010\""] {
        let error = format!(r#"{{"code":{code},"message":"no"}}"#);
        assert_eq!(moved(&error), error);
    }
}
