//! What is told, kept and sent again when a gateway goes away.

use serde_json::json;

use super::*;

fn line(message: &Value) -> Bytes {
    message.to_string().into()
}

fn ask(ledger: &mut Ledger, id: u64, method: &str, params: &Value) {
    let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    assert!(matches!(ledger.hear(&line(&request)), Heard::Goes(Some(_))));
}

fn answer(ledger: &mut Ledger, id: u64) {
    assert!(ledger.told(&line(&json!({"jsonrpc": "2.0", "id": id, "result": {}}))));
}

fn read(lines: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Vec<Value> {
    lines.into_iter().map(|line| serde_json::from_slice(line.as_ref()).unwrap()).collect()
}

/// A ledger in whose session everything was said that a session remembers.
fn in_session() -> Ledger {
    let mut ledger = Ledger::default();
    ask(&mut ledger, 1, HELLO, &json!({"protocolVersion": "2025-06-18", "clientInfo": {"name": "a"}}));
    answer(&mut ledger, 1);
    ledger.hear(&line(&json!({"jsonrpc": "2.0", "method": SESSION_OPEN})));
    for (id, method, params) in [
        (2, SET_LEVEL, json!({"level": "info"})),
        (3, SUBSCRIBE, json!({"uri": "a:1"})),
        (4, SUBSCRIBE, json!({"uri": "a:2"})),
        (5, UNSUBSCRIBE, json!({"uri": "a:1"})),
        (6, "tools/list", json!({})),
    ] {
        ask(&mut ledger, id, method, &params);
        answer(&mut ledger, id);
    }
    ledger
}

#[test]
fn a_session_is_opened_again_as_it_was_and_nobody_sees_the_answers() {
    let mut ledger = in_session();
    assert!(ledger.broken().is_empty() && ledger.is_idle());
    let again = read(ledger.again());
    let methods: Vec<&str> = again.iter().map(|line| line["method"].as_str().unwrap()).collect();
    assert_eq!(methods, [HELLO, SESSION_OPEN, SET_LEVEL, SUBSCRIBE]);
    assert_eq!(again[0]["params"]["clientInfo"]["name"], "a");
    assert_eq!(again[3]["params"]["uri"], "a:2");
    for line in again.iter().filter(|line| !line["id"].is_null()) {
        let reply = json!({"jsonrpc": "2.0", "id": line["id"], "result": {}});
        assert!(!ledger.told(&reply.to_string().into()), "{reply}");
    }
    let news = read(ledger.news());
    assert_eq!((news.len(), &news[0]["method"]), (2, &json!(TOOLS_CHANGED)), "{news:?}");
    assert_eq!(news[1]["params"]["uri"], "a:2");
}

#[test]
fn what_may_have_run_is_lost_once_and_what_only_reads_is_asked_again() {
    let mut ledger = in_session();
    ask(&mut ledger, 10, "tools/call", &json!({"name": "x"}));
    ask(&mut ledger, 11, "resources/read", &json!({"uri": "a:2"}));
    ask(&mut ledger, 12, "tasks/cancel", &json!({"taskId": "t"}));
    let told = read(ledger.broken());
    assert_eq!(told.iter().map(|line| line["id"].clone()).collect::<Vec<_>>(), [10, 12]);
    assert_eq!(
        (&told[0]["error"]["code"], &told[0]["error"]["data"]["kind"]),
        (&json!(-31015), &json!("lost"))
    );
    assert!(told[0]["error"]["message"].as_str().unwrap().ends_with("it may have run"), "{told:?}");
    let again = read(ledger.again());
    assert_eq!(again.last().unwrap()["id"], 11);
    answer(&mut ledger, 11);
    assert!(ledger.broken().is_empty() && ledger.is_idle());
}

#[test]
fn a_call_that_was_never_sent_is_sent_to_the_next_gateway() {
    let mut ledger = Ledger::default();
    let call = line(&json!({"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": {"name": "x"}}));
    let Heard::Goes(Some(number)) = ledger.hear(&call) else { panic!("a request") };
    ledger.never_sent(number);
    assert!(ledger.broken().is_empty());
    assert_eq!(ledger.again(), std::slice::from_ref(&call));
    // Refused by a gateway that is being shut down: it waits for the one after that.
    let refused = json!({"id": "a", "error": {"code": -31017, "message": "m", "data": {"sent": "never"}}});
    assert!(!ledger.told(&line(&refused)));
    assert!(ledger.broken().is_empty());
    assert_eq!(ledger.again(), [call]);
    // The same refusal of a call that may have been passed on is the agent's to judge.
    let vague = json!({"id": "a", "error": {"code": -31017, "message": "m"}});
    assert!(ledger.told(&line(&vague)) && ledger.is_idle());
}

#[test]
fn questions_are_taken_back_and_late_answers_to_them_dropped() {
    let mut ledger = in_session();
    for id in ["tc-7", "tc-8", "tc-9"] {
        ledger.told(&line(&json!({"jsonrpc": "2.0", "id": id, "method": "roots/list"})));
    }
    let reply = |id: &str| line(&json!({"jsonrpc": "2.0", "id": id, "result": {}}));
    assert_eq!(ledger.hear(&reply("tc-7")), Heard::Goes(None));
    let withdrawn = json!({"jsonrpc": "2.0", "method": CANCELLED, "params": {"requestId": "tc-8"}});
    ledger.told(&line(&withdrawn));
    let told = read(ledger.broken());
    assert_eq!((told.len(), &told[0]["params"]["requestId"]), (1, &json!("tc-9")), "{told:?}");
    assert_eq!(ledger.hear(&reply("tc-9")), Heard::Moot);
    assert_eq!(ledger.last_question(), 9);
}

#[test]
fn what_the_agent_took_back_is_neither_answered_nor_sent_again() {
    let mut ledger = Ledger::default();
    ask(&mut ledger, 1, "tools/call", &json!({"name": "x"}));
    ask(&mut ledger, 2, "tools/list", &json!({}));
    let take_back =
        |id: u64| line(&json!({"jsonrpc": "2.0", "method": CANCELLED, "params": {"requestId": id}}));
    assert_eq!(ledger.hear(&take_back(1)), Heard::Goes(None));
    assert!(ledger.broken().is_empty());
    assert_eq!(ledger.hear(&take_back(2)), Heard::Moot, "nobody has it");
    assert!(ledger.is_idle() && ledger.again().is_empty());
}

#[test]
fn a_stream_of_news_ends_well_and_a_batch_is_answered_as_one() {
    let mut ledger = Ledger::default();
    ask(&mut ledger, 1, LISTEN, &json!({}));
    let batch =
        json!([{"jsonrpc": "2.0", "id": 2, "method": "ping"}, {"jsonrpc": "2.0", "id": 3, "method": "ping"}]);
    assert!(matches!(ledger.hear(&line(&batch)), Heard::Goes(Some(_))));
    let told = read(ledger.broken());
    assert_eq!(told[0]["result"]["resultType"], "complete");
    assert_eq!((&told[1][0]["id"], &told[1][1]["error"]["code"]), (&json!(2), &json!(-31015)), "{told:?}");
    assert!(ledger.is_idle());
}

#[test]
fn a_batch_that_was_refused_is_answered_and_not_sent_again() {
    let mut ledger = Ledger::default();
    let call = |id: u64| json!({"jsonrpc": "2.0", "id": id, "method": "tools/call"});
    ledger.hear(&line(&json!([call(1), call(2)])));
    let refused = |id: u64| json!({"id": id, "error": {"code": -31017, "data": {"sent": "never"}}});
    assert!(ledger.told(&line(&json!([refused(1), refused(2)]))));
    assert!(ledger.is_idle() && ledger.again().is_empty());
}

#[test]
fn whoever_waits_for_a_gateway_that_never_comes_is_told() {
    let mut ledger = in_session();
    ask(&mut ledger, 10, "tools/list", &json!({}));
    assert!(ledger.broken().is_empty());
    ask(&mut ledger, 11, "tools/call", &json!({"name": "x"}));
    let told = read(ledger.given_up("bad config"));
    let ids: Vec<&Value> = told.iter().map(|line| &line["id"]).collect();
    assert_eq!(ids, [&json!(10), &json!(11)]);
    let error = &told[1]["error"];
    assert_eq!((&error["code"], &error["data"]["sent"]), (&json!(-31017), &json!("never")), "{error}");
    assert!(error["message"].as_str().unwrap().contains("bad config") && ledger.is_idle(), "{error}");
}

#[test]
fn a_request_that_no_gateway_survives_is_not_sent_for_ever() {
    let mut ledger = Ledger::default();
    ask(&mut ledger, 1, "tools/list", &json!({}));
    for _ in 1..MOST_TRIES {
        assert!(ledger.broken().is_empty());
        assert_eq!(ledger.again().len(), 1);
    }
    assert_eq!(read(ledger.broken())[0]["error"]["code"], -31015);
    assert!(ledger.is_idle());
}
