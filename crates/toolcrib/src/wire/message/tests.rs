//! What counts as a message, from either side.

use proptest::prelude::*;

use super::*;

fn client(text: &str) -> Result<ClientMessage, Malformed> {
    ClientMessage::parse(&Bytes::copy_from_slice(text.as_bytes()))
}

fn server(text: &str) -> ServerMessage {
    ServerMessage::parse(&Bytes::copy_from_slice(text.as_bytes()))
}

fn bad_ids(text: &str) -> Vec<u64> {
    match server(text) {
        ServerMessage::BadReply { ids, .. } => ids,
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn a_request_keeps_its_id_as_spelled() {
    for id in ["1", "\"a\"", "1.0", "-5", "18446744073709551616"] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
        let Ok(ClientMessage::Request { id: read, .. }) = client(&text) else { panic!("{text}") };
        assert_eq!(read.raw(), id.as_bytes());
    }
}

#[test]
fn a_client_is_read_strictly() {
    let mistakes = [
        ("{", code::PARSE),
        ("nonsense", code::PARSE),
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
    assert_eq!(client(mistakes[3].0).unwrap_err().id.unwrap().raw(), b"1");
}

#[test]
fn a_client_nests_only_so_deep_and_a_server_as_it_likes() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let asked = |depth| {
        client(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"a","params":{{"x":{}}}}}"#, nested(depth)))
    };
    assert!(asked(400).is_ok());
    assert!(asked(600).is_err() && asked(100_000).is_err());
    let answered = server(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"x":{}}}}}"#, nested(100_000)));
    assert!(matches!(answered, ServerMessage::Reply { id: 1, .. }));
}

#[test]
fn parameters_that_are_null_are_none() {
    let asked = client(r#"{"jsonrpc":"2.0","id":1,"method":"a","params":null}"#);
    assert!(matches!(asked, Ok(ClientMessage::Request { params: None, .. })));
}

#[test]
fn a_reply_matches_by_number_in_any_spelling() {
    for id in ["7", "7.0"] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"x":1e400}}}}"#);
        let ServerMessage::Reply { id: 7, answer: Answer::Result(result) } = server(&text) else {
            panic!("{text}")
        };
        assert_eq!(result, r#"{"x":1e400}"#);
    }
}

#[test]
fn an_id_of_the_wrong_type_is_a_bad_reply_to_that_call() {
    assert_eq!(bad_ids(r#"{"jsonrpc":"2.0","id":"7","result":{}}"#), [7]);
}

#[test]
fn replies_that_break_the_rules_name_their_call() {
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
    assert!(matches!(ServerMessage::parse(&invalid), ServerMessage::BadReply { ids, .. } if ids == [7]));
}

#[test]
fn a_null_beside_the_real_member_is_forgiven() {
    let good = server(r#"{"jsonrpc":"2.0","id":7,"result":{},"error":null}"#);
    assert!(matches!(good, ServerMessage::Reply { id: 7, answer: Answer::Result(_) }));
    let error = server(r#"{"jsonrpc":"2.0","id":7,"result":null,"error":{"data":1}}"#);
    assert!(matches!(error, ServerMessage::Reply { id: 7, answer: Answer::Error(_) }));
}

#[test]
fn a_server_request_is_never_taken_for_a_reply() {
    let asked = server(r#"{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}"#);
    assert!(matches!(asked, ServerMessage::Request { method, .. } if method == "ping"));
}

#[test]
fn what_is_not_a_message_is_noise() {
    for text in [
        "",
        "Listening on port 3000",
        "42",
        "\u{1b}[1mhi\u{1b}[0m",
        "{\"level\":\"info\"}",
        "{half",
        "\"id\"",
    ] {
        assert_eq!(server(text), ServerMessage::Noise, "{text}");
    }
    let cut = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"cut"#;
    assert_eq!(server(cut), ServerMessage::Noise);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let bytes = Bytes::from(bytes);
        let _ = ClientMessage::parse(&bytes);
        let _ = ServerMessage::parse(&bytes);
    }

    #[test]
    fn a_cut_reply_still_fails_its_call(cut in 30usize..90) {
        let whole = r#"{"jsonrpc":"2.0","id":1234,"result":{"content":[{"type":"text","text":"hello there"}]}}"#;
        prop_assert_eq!(bad_ids(&whole[..cut.min(whole.len() - 1)]), [1234]);
    }
}

#[test]
fn the_id_of_a_request_that_breaks_off_is_its_own_or_none() {
    let id =
        |head: &str| id_in_head(head.as_bytes()).map(|id| String::from_utf8_lossy(id.raw()).into_owned());
    for (head, own) in [
        (r#"{"jsonrpc":"2.0","id":7,"method":"x","params":{"text":"aaa"#, Some("7")),
        (r#"{"jsonrpc":"2.0", "id" : "a\"b" ,"params":{"id":8,"text":"aaa"#, Some(r#""a\"b""#)),
        (r#"{"id":-7,"method":"x","params":{"#, Some("-7")),
        (r#"{"method":"x","params":{"arguments":{"id":8,"text":"aaa"#, None),
        (r#"{"method":"id","params":{"text":"\"id\":9,"#, None),
        (r#"{"method":"x","id":12"#, None),
        ("aaa", None),
        ("", None),
    ] {
        assert_eq!(id(head).as_deref(), own, "{head}");
    }
}

#[test]
fn an_answer_over_the_limit_is_known_by_its_own_id_wherever_that_stands() {
    let ids = |message: ServerMessage| match message {
        ServerMessage::BadReply { ids, .. } => ids,
        other => panic!("{other:?}"),
    };
    let first = br#"{"jsonrpc":"2.0","id":7,"result":{"content":[{"id":3,"text":"xx"#;
    assert_eq!(ServerMessage::oversize(first).map(ids), Some(vec![7]));
    let last = br#"{"result":{"content":[{"id":3,"text":"xx"#;
    assert_eq!(ServerMessage::oversize(last), None);
    assert_eq!(ServerMessage::oversize(br#"{"method":"x","id":3,"params":{"#), Some(ServerMessage::Noise));
    for (end, id) in
        [(r#"xx"}],"n":{"id":3}},"jsonrpc":"2.0","id":7}"#, 7), (r#"x"}, "id": 8 ,"jsonrpc":"2.0"}"#, 8)]
    {
        assert_eq!(ids(ServerMessage::oversize_end(end.as_bytes())), [id], "{end}");
    }
    assert_eq!(ids(ServerMessage::oversize_end(br#"{"id":3}]}}"#)), Vec::<u64>::new());
}
