//! Tests of replay after the loss of a gateway.

use serde_json::json;

use super::*;

fn line(message: &Value) -> Bytes {
    message.to_string().into()
}

fn request(log: &mut ReplayLog, id: u64, method: &str, params: &Value) {
    let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    assert!(matches!(log.record_agent_line(&line(&message)), AgentLineAction::Forward(Some(_))));
}

fn respond(log: &mut ReplayLog, id: u64) {
    assert!(log.record_gateway_line(&line(&json!({"jsonrpc": "2.0", "id": id, "result": {}}))));
}

fn parse(lines: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Vec<Value> {
    lines.into_iter().map(|line| serde_json::from_slice(line.as_ref()).unwrap()).collect()
}

/// Returns a log with a session that has every kind of recorded state.
fn log_with_session() -> ReplayLog {
    let mut log = ReplayLog::default();
    request(&mut log, 1, INITIALIZE, &json!({"protocolVersion": "2025-06-18", "clientInfo": {"name": "a"}}));
    respond(&mut log, 1);
    log.record_agent_line(&line(&json!({"jsonrpc": "2.0", "method": INITIALIZED})));
    for (id, method, params) in [
        (2, SET_LEVEL, json!({"level": "info"})),
        (3, SUBSCRIBE, json!({"uri": "a:1"})),
        (4, SUBSCRIBE, json!({"uri": "a:2"})),
        (5, UNSUBSCRIBE, json!({"uri": "a:1"})),
        (6, "tools/list", json!({})),
    ] {
        request(&mut log, id, method, &params);
        respond(&mut log, id);
    }
    log
}

#[test]
fn session_is_replayed_and_responses_are_hidden() {
    let mut log = log_with_session();
    assert!(log.gateway_lost().is_empty() && log.is_idle());
    let replayed = parse(log.replay());
    let methods: Vec<&str> = replayed.iter().map(|line| line["method"].as_str().unwrap()).collect();
    assert_eq!(methods, [INITIALIZE, INITIALIZED, SET_LEVEL, SUBSCRIBE]);
    assert_eq!(replayed[0]["params"]["clientInfo"]["name"], "a");
    assert_eq!(replayed[3]["params"]["uri"], "a:2");
    for line in replayed.iter().filter(|line| !line["id"].is_null()) {
        let reply = json!({"jsonrpc": "2.0", "id": line["id"], "result": {}});
        assert!(!log.record_gateway_line(&reply.to_string().into()), "{reply}");
    }
    let notifications = parse(log.change_notifications());
    assert_eq!(
        (notifications.len(), &notifications[0]["method"]),
        (2, &json!(TOOLS_CHANGED)),
        "{notifications:?}"
    );
    assert_eq!(notifications[1]["params"]["uri"], "a:2");
}

#[test]
fn tool_call_is_lost_and_read_is_resent() {
    let mut log = log_with_session();
    request(&mut log, 10, "tools/call", &json!({"name": "x"}));
    request(&mut log, 11, "resources/read", &json!({"uri": "a:2"}));
    request(&mut log, 12, "tasks/cancel", &json!({"taskId": "t"}));
    let messages = parse(log.gateway_lost());
    assert_eq!(messages.iter().map(|line| line["id"].clone()).collect::<Vec<_>>(), [10, 12]);
    assert_eq!(
        (&messages[0]["error"]["code"], &messages[0]["error"]["data"]["kind"]),
        (&json!(-31015), &json!("lost"))
    );
    assert!(
        messages[0]["error"]["message"].as_str().unwrap().ends_with("the call may have run"),
        "{messages:?}"
    );
    let replayed = parse(log.replay());
    assert_eq!(replayed.last().unwrap()["id"], 11);
    respond(&mut log, 11);
    assert!(log.gateway_lost().is_empty() && log.is_idle());
}

#[test]
fn unsent_call_goes_to_next_gateway() {
    let mut log = ReplayLog::default();
    let call = line(&json!({"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": {"name": "x"}}));
    let AgentLineAction::Forward(Some(number)) = log.record_agent_line(&call) else { panic!("a request") };
    log.mark_unsent(number);
    assert!(log.gateway_lost().is_empty());
    assert_eq!(log.replay(), std::slice::from_ref(&call));
    // A refusal by a gateway that shuts down is hidden, and the call waits for the next one.
    let refused = json!({"id": "a", "error": {"code": -31017, "message": "m", "data": {"sent": "never"}}});
    assert!(!log.record_gateway_line(&line(&refused)));
    assert!(log.gateway_lost().is_empty());
    assert_eq!(log.replay(), [call]);
    // A refusal that does not say that the call was never sent goes to the agent.
    let vague = json!({"id": "a", "error": {"code": -31017, "message": "m"}});
    assert!(log.record_gateway_line(&line(&vague)) && log.is_idle());
}

#[test]
fn questions_are_cancelled_and_late_answers_dropped() {
    let mut log = log_with_session();
    for id in ["tc-7", "tc-8", "tc-9"] {
        log.record_gateway_line(&line(&json!({"jsonrpc": "2.0", "id": id, "method": "roots/list"})));
    }
    let reply = |id: &str| line(&json!({"jsonrpc": "2.0", "id": id, "result": {}}));
    assert_eq!(log.record_agent_line(&reply("tc-7")), AgentLineAction::Forward(None));
    let withdrawn = json!({"jsonrpc": "2.0", "method": CANCELLED, "params": {"requestId": "tc-8"}});
    log.record_gateway_line(&line(&withdrawn));
    let messages = parse(log.gateway_lost());
    assert_eq!((messages.len(), &messages[0]["params"]["requestId"]), (1, &json!("tc-9")), "{messages:?}");
    assert_eq!(log.record_agent_line(&reply("tc-9")), AgentLineAction::Drop);
    assert_eq!(log.last_question(), 9);
}

#[test]
fn cancelled_request_is_neither_answered_nor_resent() {
    let mut log = ReplayLog::default();
    request(&mut log, 1, "tools/call", &json!({"name": "x"}));
    request(&mut log, 2, "tools/list", &json!({}));
    let cancel = |id: u64| line(&json!({"jsonrpc": "2.0", "method": CANCELLED, "params": {"requestId": id}}));
    assert_eq!(log.record_agent_line(&cancel(1)), AgentLineAction::Forward(None));
    assert!(log.gateway_lost().is_empty());
    assert_eq!(log.record_agent_line(&cancel(2)), AgentLineAction::Drop, "no gateway has it");
    assert!(log.is_idle() && log.replay().is_empty());
}

#[test]
fn listen_stream_completes_and_batch_fails_as_one() {
    let mut log = ReplayLog::default();
    request(&mut log, 1, LISTEN, &json!({}));
    let batch =
        json!([{"jsonrpc": "2.0", "id": 2, "method": "ping"}, {"jsonrpc": "2.0", "id": 3, "method": "ping"}]);
    assert!(matches!(log.record_agent_line(&line(&batch)), AgentLineAction::Forward(Some(_))));
    let messages = parse(log.gateway_lost());
    assert_eq!(messages[0]["result"]["resultType"], "complete");
    assert_eq!(
        (&messages[1][0]["id"], &messages[1][1]["error"]["code"]),
        (&json!(2), &json!(-31015)),
        "{messages:?}"
    );
    assert!(log.is_idle());
}

#[test]
fn refused_batch_is_answered_and_not_resent() {
    let mut log = ReplayLog::default();
    let call = |id: u64| json!({"jsonrpc": "2.0", "id": id, "method": "tools/call"});
    log.record_agent_line(&line(&json!([call(1), call(2)])));
    let refused = |id: u64| json!({"id": id, "error": {"code": -31017, "data": {"sent": "never"}}});
    assert!(log.record_gateway_line(&line(&json!([refused(1), refused(2)]))));
    assert!(log.is_idle() && log.replay().is_empty());
}

#[test]
fn fail_all_answers_outstanding_requests() {
    let mut log = log_with_session();
    request(&mut log, 10, "tools/list", &json!({}));
    assert!(log.gateway_lost().is_empty());
    request(&mut log, 11, "tools/call", &json!({"name": "x"}));
    let messages = parse(log.fail_all("bad config"));
    let ids: Vec<&Value> = messages.iter().map(|line| &line["id"]).collect();
    assert_eq!(ids, [&json!(10), &json!(11)]);
    let error = &messages[1]["error"];
    assert_eq!((&error["code"], &error["data"]["sent"]), (&json!(-31017), &json!("never")), "{error}");
    assert!(error["message"].as_str().unwrap().contains("bad config") && log.is_idle(), "{error}");
}

#[test]
fn request_is_resent_to_limited_number_of_gateways() {
    let mut log = ReplayLog::default();
    request(&mut log, 1, "tools/list", &json!({}));
    for _ in 1..MAX_ATTEMPTS {
        assert!(log.gateway_lost().is_empty());
        assert_eq!(log.replay().len(), 1);
    }
    assert_eq!(parse(log.gateway_lost())[0]["error"]["code"], -31015);
    assert!(log.is_idle());
}

#[test]
fn announced_end_of_the_pipe_keeps_unanswered_requests() {
    let mut log = ReplayLog::default();
    request(&mut log, 1, "tools/call", &json!({"name": "a"}));
    request(&mut log, 2, "tools/call", &json!({"name": "b"}));
    respond(&mut log, 1);
    assert!(!log.record_gateway_line(&line(&json!({"jsonrpc": "2.0", "method": PIPE_END}))));
    // Sent before the end of the connection was noticed.
    request(&mut log, 3, "tools/call", &json!({"name": "c"}));
    assert!(log.gateway_lost().is_empty());
    let replayed = parse(log.replay());
    assert_eq!(replayed.iter().map(|line| &line["id"]).collect::<Vec<_>>(), [2, 3]);
    // Not announced this time.
    assert_eq!(log.gateway_lost().len(), 2);
}
