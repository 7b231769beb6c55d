//! Tests of what clients see of one server: its identity, pages, errors, log messages, updates and questions.

pub(crate) mod raw_server;

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{
    AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf,
};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use toolcrib::config::Config;
use toolcrib::spec::EraChoice;
use toolcrib::{Caller, Crib, Era, Policy, ServerSpec, Sharing};

use self::raw_server::{RawServer, SERVER_INFO, info, notification, respond_in_session, respond_stateless};
use super::{TOO_LONG, TestGateway, status};
use crate::{McpService, PipeIdentity, serve_pipe};

fn spec(era: Era, server: RawServer) -> ServerSpec {
    ServerSpec::in_process("s".parse().unwrap(), server).era(EraChoice::Era(era))
}

fn session_server() -> ServerSpec {
    spec(Era::Session, RawServer::new(respond_in_session))
}

fn gateway(spec: ServerSpec) -> TestGateway {
    TestGateway::with_crib(Crib::builder().server(spec).build().unwrap(), 1 << 20, 10)
}

/// A client of one endpoint.
pub(super) struct EndpointClient<'a> {
    gateway: &'a TestGateway,
    path: &'static str,
    session: Option<String>,
    stateless: bool,
}

impl<'a> EndpointClient<'a> {
    pub(super) fn stateless(gateway: &'a TestGateway, path: &'static str) -> Self {
        Self { gateway, path, session: None, stateless: true }
    }

    /// Opens a session and returns the result of `initialize` too.
    pub(super) async fn session(gateway: &'a TestGateway, path: &'static str) -> (Self, Value) {
        let mut client = Self { gateway, path, session: None, stateless: false };
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let (head, messages) = client.send("initialize", params, "").await;
        client.session = Some(super::session_id(&head));
        (client, messages[0]["result"].clone())
    }

    /// Sends a request; returns the head of the response and all messages.
    async fn send(&self, method: &str, mut params: Value, headers: &str) -> (String, Vec<Value>) {
        let mut headers = headers.to_owned();
        if self.stateless {
            params["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2026-07-28".into();
            params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
            headers += &format!("|MCP-Protocol-Version: 2026-07-28|Mcp-Method: {method}");
            if let Some(name) = params["name"].as_str().or(params["uri"].as_str()) {
                headers += &format!("|Mcp-Name: {name}");
            }
        }
        let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).to_string();
        self.post(&headers, &body).await
    }

    async fn post(&self, headers: &str, body: &str) -> (String, Vec<Value>) {
        let path = self.path;
        let mut head = format!(
            "POST {path} HTTP/1.1|Content-Type: application/json|Accept: application/json, text/event-stream|Connection: close|Content-Length: {}{headers}",
            body.len()
        );
        if let Some(session) = &self.session {
            head += &format!("|Mcp-Session-Id: {session}");
        }
        let response = self.gateway.send(&head, body).await.read_to_end().await;
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        let data = body.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
        let messages =
            data.filter(|line| line.starts_with('{')).map(|line| serde_json::from_str(line).unwrap());
        (head.to_owned(), messages.collect())
    }

    /// Sends a request and returns its response.
    pub(super) async fn request(&self, method: &str, params: Value) -> Value {
        self.send(method, params, "").await.1.pop().unwrap()
    }
}

/// A client on a pipe, in a session with every capability.
struct PipePeer {
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    writer: WriteHalf<DuplexStream>,
    _serving: JoinSet<()>,
}

impl PipePeer {
    async fn new(crib: &Crib, capabilities: Value) -> Self {
        let service = Arc::new(McpService::new(crib.clone()));
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let (reader, writer) = tokio::io::split(theirs);
        let identity = PipeIdentity::new(Caller::local());
        let mut serving = JoinSet::new();
        serving.spawn(serve_pipe(reader, writer, service, 1 << 20, identity, CancellationToken::new()));
        let (reader, writer) = tokio::io::split(ours);
        let mut peer = Self { lines: BufReader::new(reader).lines(), writer, _serving: serving };
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": {"name": "t", "version": "1"}});
        peer.send(0, "initialize", params).await;
        peer.read().await;
        peer
    }

    async fn write(&mut self, message: &Value) {
        self.writer.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    async fn send(&mut self, id: u64, method: &str, params: Value) {
        self.write(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
    }

    async fn read(&mut self) -> Value {
        let line = timeout(TOO_LONG, self.lines.next_line()).await.expect("a message in time");
        serde_json::from_str(&line.unwrap().unwrap()).unwrap()
    }

    /// Reads up to the first message that matches.
    async fn read_until(&mut self, is_match: impl Fn(&Value) -> bool) -> Value {
        loop {
            let message = self.read().await;
            if is_match(&message) {
                return message;
            }
        }
    }

    /// Calls a tool and returns everything up to its response.
    async fn call(&mut self, tool: &str, arguments: Value) -> Vec<Value> {
        self.send(1, "tools/call", json!({"name": format!("s__{tool}"), "arguments": arguments})).await;
        let mut messages = Vec::new();
        loop {
            messages.push(self.read().await);
            if messages.last().is_some_and(|message| message["id"] == 1) {
                return messages;
            }
        }
    }
}

fn text_of(message: &Value) -> &str {
    message["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {message}"))
}

#[tokio::test]
async fn header_params_are_checked_on_the_first_call_of_a_server() {
    for (era, sharing) in [Era::Session, Era::Stateless]
        .into_iter()
        .flat_map(|era| [(era, Sharing::Shared), (era, Sharing::PerClient)])
    {
        for (path, tool) in [("/mcp", "s__one"), ("/mcp/s/s", "one"), ("/mcp", "one")] {
            let respond = if era == Era::Session { respond_in_session } else { respond_stateless };
            let gateway = gateway(spec(era, RawServer::new(respond)).sharing(sharing));
            let client = EndpointClient::stateless(&gateway, path);
            let params = json!({"name": tool, "arguments": {"region": "eu"}});
            for _ in 0..2 {
                let (head, messages) =
                    client.send("tools/call", params.clone(), "|Mcp-Param-Region: us").await;
                let code = &messages[0]["error"]["code"];
                assert_eq!(
                    (&*status(&head), code),
                    ("400", &json!(-32020)),
                    "{era:?} {sharing:?} {path} {tool}: {messages:?}"
                );
            }
            let (head, messages) = client.send("tools/call", params, "|Mcp-Param-Region: eu").await;
            assert_eq!(status(&head), "200", "{messages:?}");
        }
    }
}

#[tokio::test]
async fn update_of_a_sub_resource_is_delivered() {
    let crib = Crib::builder().server(session_server()).build().unwrap();
    let mut peer = PipePeer::new(&crib, json!({})).await;
    peer.send(5, "resources/subscribe", json!({"uri": "note://a"})).await;
    peer.read_until(|message| message["id"] == 5).await;
    for (uri, delivered) in [
        ("note://a", true),
        ("note://a/b/c", true),
        ("note://a?q=1", true),
        ("note://a#part", true),
        ("note://ab", false),
        ("note://", false),
    ] {
        let mut messages = peer.call("update", json!({"uri": uri})).await;
        // The notification and the response are sent by different tasks.
        if delivered && messages.len() == 1 {
            messages.push(peer.read().await);
        }
        let is_update = |message: &&Value| message["method"] == "notifications/resources/updated";
        let updates: Vec<&Value> =
            messages.iter().filter(is_update).map(|message| &message["params"]).collect();
        let expected = json!({"uri": uri, "title": "new", "_meta": {"k": 1}});
        assert_eq!(updates, if delivered { vec![&expected] } else { vec![] }, "{uri}");
    }
}

#[tokio::test]
async fn refused_subscription_keeps_the_error_of_the_server() {
    let gateway = gateway(session_server());
    let (client, _) = EndpointClient::session(&gateway, "/mcp/s/s").await;
    let refused = client.request("resources/subscribe", json!({"uri": "note://other"})).await;
    assert_eq!(
        refused["error"],
        json!({"code": -32601, "message": "resources/subscribe", "data": {"x": 1.50}})
    );
}

#[tokio::test]
async fn undeclared_mode_of_a_question_is_an_invalid_parameter() {
    let crib = Crib::builder().server(session_server()).build().unwrap();
    let url = json!({"method": "elicitation/create", "params": {"mode": "url", "url": "https://x", "elicitationId": "1", "message": ""}});
    for (capabilities, code) in [(json!({"elicitation": {}}), -32602), (json!({}), -32601)] {
        let mut peer = PipePeer::new(&crib, capabilities).await;
        let answered = peer.call("ask", url.clone()).await.pop().unwrap();
        let error: Value = serde_json::from_str(text_of(&answered)).unwrap();
        assert_eq!(error["code"], code, "{error}");
    }
}

#[tokio::test]
async fn stateless_results_name_the_server() {
    let gateway = gateway(session_server());
    let one = EndpointClient::stateless(&gateway, "/mcp/s/s");
    let all = EndpointClient::stateless(&gateway, "/mcp");
    let own = |message: Value| message["result"]["_meta"][SERVER_INFO].clone();
    for method in ["server/discover", "tools/list", "resources/list"] {
        assert_eq!(own(one.request(method, json!({})).await), info(), "{method}");
        assert_eq!(own(all.request(method, json!({})).await)["name"], "toolcrib", "{method}");
    }
    let call = |name: &str| json!({"name": name, "arguments": {}});
    assert_eq!(own(one.request("tools/call", call("two")).await), info());
    assert_eq!(own(all.request("tools/call", call("s__two")).await), info());
}

#[tokio::test]
async fn session_without_level_gets_every_log_message() {
    for (era, expected) in [(Era::Session, 2), (Era::Stateless, 1)] {
        let respond = if era == Era::Session { respond_in_session } else { respond_stateless };
        let crib = Crib::builder().server(spec(era, RawServer::new(respond))).build().unwrap();
        let mut peer = PipePeer::new(&crib, json!({})).await;
        let messages = peer.call(if era == Era::Session { "log" } else { "one" }, json!({})).await;
        let logged = messages.iter().filter(|message| message["method"] == "notifications/message").count();
        assert_eq!(logged, expected, "{era:?}: {messages:?}");
    }
}

#[tokio::test]
async fn progress_of_a_question_reaches_the_server() {
    let server = RawServer::new(respond_in_session);
    let received = server.received.clone();
    let crib = Crib::builder().server(spec(Era::Session, server)).build().unwrap();
    let mut peer = PipePeer::new(&crib, json!({"sampling": {}})).await;
    let question = json!({"method": "sampling/createMessage", "params": {"messages": [], "_meta": {"progressToken": "mine", "k": 2}}});
    peer.send(1, "tools/call", json!({"name": "s__ask", "arguments": question})).await;
    let asked = peer.read_until(|message| message["method"] == "sampling/createMessage").await;
    let token = &asked["params"]["_meta"]["progressToken"];
    assert!(!token.is_null() && asked["params"]["_meta"]["k"] == 2, "{asked}");
    for token in [json!("unknown"), token.clone()] {
        peer.write(&notification(
            "notifications/progress",
            json!({"progressToken": token, "progress": 0.50, "message": "half"}),
        ))
        .await;
    }
    peer.write(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"done": true}})).await;
    let answered = peer.read_until(|message| message["id"] == 1).await;
    assert_eq!(text_of(&answered), r#"{"done":true}"#);
    let received = received.lock().unwrap();
    let progress: Vec<&Value> = received
        .iter()
        .filter(|message| message["method"] == "notifications/progress")
        .map(|message| &message["params"])
        .collect();
    assert_eq!(progress, [&json!({"progressToken": "mine", "progress": 0.50, "message": "half"})]);
}

#[tokio::test]
async fn reason_of_a_cancelled_call_reaches_the_server() {
    let server = RawServer::new(respond_in_session);
    let received = server.received.clone();
    let crib = Crib::builder().server(spec(Era::Session, server)).build().unwrap();
    let mut peer = PipePeer::new(&crib, json!({})).await;
    peer.call("two", json!({})).await;
    let cancelled = || {
        let received = received.lock().unwrap();
        let cancelled = received.iter().filter(|message| message["method"] == "notifications/cancelled");
        cancelled.map(|message| message["params"]["reason"].clone()).collect::<Vec<_>>()
    };
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}});
    let session = json!({"name": "s__hang"});
    let stateless = json!({"name": "s__hang", "_meta": meta});
    let cases = [(&session, Some("the \"user\" left")), (&session, None), (&stateless, Some("late"))];
    for (count, (params, reason)) in cases.into_iter().enumerate() {
        peer.send(9, "tools/call", params.clone()).await;
        // The call before was answered, so this one has been sent.
        peer.call("two", json!({})).await;
        let mut cancel = json!({"requestId": 9});
        if let Some(reason) = reason {
            cancel["reason"] = reason.into();
        }
        peer.write(&notification("notifications/cancelled", cancel)).await;
        let seen = async {
            while cancelled().len() == count {
                peer.call("two", json!({})).await;
            }
        };
        timeout(TOO_LONG, seen).await.expect("the server is told");
    }
    assert_eq!(cancelled(), [json!("the \"user\" left"), json!("cancelled by the caller"), json!("late")]);
}

#[tokio::test]
async fn empty_and_null_meta_are_accepted() {
    let gateway = gateway(session_server());
    let (client, _) = EndpointClient::session(&gateway, "/mcp/s/s").await;
    for (meta, seen) in [(json!({}), "{}"), (json!(null), "none"), (json!({"k": 1}), r#"{"k":1}"#)] {
        let answered = client.request("tools/call", json!({"name": "meta", "_meta": meta})).await;
        assert_eq!(text_of(&answered), seen);
    }
}

#[tokio::test]
async fn posted_response_is_refused_in_the_stateless_era() {
    let gateway = gateway(session_server());
    let client = EndpointClient::stateless(&gateway, "/mcp");
    let headers = "|MCP-Protocol-Version: 2026-07-28";
    let (head, messages) = client.post(headers, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
    assert_eq!((&*status(&head), &messages[0]["error"]["code"]), ("400", &json!(-32600)), "{messages:?}");
    let (head, _) = client.post(headers, r#"{"jsonrpc":"2.0","method":"notifications/x"}"#).await;
    assert_eq!(status(&head), "202");
    let unknown = json!({"_meta": {"io.modelcontextprotocol/protocolVersion": "2031-01-01"}});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": unknown}).to_string();
    let (_, messages) = client.post("|MCP-Protocol-Version: 2031-01-01", &body).await;
    let message = messages[0]["error"]["message"].as_str().unwrap();
    assert!(message.contains("Unsupported protocol version"), "{message}");
}

#[tokio::test]
async fn endpoint_of_one_server_looks_like_the_server() {
    let server = RawServer::new(respond_in_session);
    let received = server.received.clone();
    let gateway = gateway(spec(Era::Session, server));
    let (client, initialized) = EndpointClient::session(&gateway, "/mcp/s/s").await;
    assert_eq!(initialized["serverInfo"], info());
    assert_eq!(initialized["instructions"], "Be kind.");
    let declared =
        json!({"tools": {"listChanged": false}, "resources": {"subscribe": true}, "experimental": {}});
    assert_eq!(initialized["capabilities"], declared);
    let first = client.request("tools/list", json!({})).await["result"].clone();
    assert_eq!((first["tools"].as_array().unwrap().len(), &first["nextCursor"]), (8, &json!("page+2==")));
    let second = client.request("tools/list", json!({"cursor": "page+2=="})).await["result"].clone();
    assert_eq!((&second["tools"][0]["name"], second.get("nextCursor")), (&json!("three"), None));
    let lists = received.lock().unwrap().iter().filter(|message| message["method"] == "tools/list").count();
    assert_eq!(lists, 2, "the stored pages are served");
    let refused = client.request("tools/list", json!({"cursor": "bad"})).await;
    assert_eq!(refused["error"], json!({"code": -32602, "message": "Unknown cursor", "data": "d"}));
    let unlisted = client.request("tools/list", json!({"cursor": "unlisted"})).await["result"].clone();
    assert_eq!((&unlisted["tools"][0]["name"], &unlisted["nextCursor"]), (&json!("four"), &json!("x")));
    let prompts = client.request("prompts/list", json!({})).await;
    assert_eq!(prompts["error"], json!({"code": -32601, "message": "No prompts here", "data": [1.0]}));
    let level = client.request("logging/setLevel", json!({"level": "info"})).await;
    assert_eq!(level["error"], json!({"code": -32601, "message": "logging/setLevel", "data": {"x": 1.50}}));
    let (_, all) = EndpointClient::session(&gateway, "/mcp").await;
    assert_eq!(all["serverInfo"]["name"], "toolcrib");
}

#[tokio::test]
async fn page_of_one_server_is_its_own_result_in_its_own_era() {
    let gateway = gateway(spec(Era::Stateless, RawServer::new(respond_stateless)));
    let one = EndpointClient::stateless(&gateway, "/mcp/s/s");
    let own = one.request("tools/list", json!({})).await["result"].clone();
    let schema =
        json!({"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}});
    let tools = json!([{"name": "one", "inputSchema": schema}]);
    let page =
        json!({"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "x": [1.50], "tools": tools});
    assert_eq!(own, page);
    let (session, _) = EndpointClient::session(&gateway, "/mcp/s/s").await;
    let own = session.request("tools/list", json!({})).await["result"].clone();
    assert_eq!(own, json!({"tools": tools, "x": [1.50]}), "only what belongs to the other era is removed");
}

#[tokio::test]
async fn unknown_method_is_sent_at_the_endpoint_of_one_server_only() {
    let server = RawServer::new(respond_in_session);
    let received = server.received.clone();
    let gateway = gateway(spec(Era::Session, server));
    let (one, _) = EndpointClient::session(&gateway, "/mcp/s/s").await;
    for method in ["chat/say", "other/\"x\""] {
        let unknown = one.request(method, json!({"own": 1})).await;
        assert_eq!(unknown["error"], json!({"code": -32601, "message": method, "data": {"x": 1.50}}));
    }
    let (all, _) = EndpointClient::session(&gateway, "/mcp").await;
    // Extensions are announced with names; an empty `experimental` announces none.
    let unknown = all.request("chat/say", json!({"all": 1})).await;
    assert_eq!(unknown["error"], json!({"code": -32601, "message": "Method not found"}));
    let received = received.lock().unwrap();
    let sent = |member: &str| received.iter().filter(|message| message["params"][member] == 1).count();
    assert_eq!((sent("own"), sent("all")), (2, 0));
}

#[tokio::test]
async fn unknown_names_get_the_error_of_the_server() {
    let gateway = gateway(session_server());
    let (one, _) = EndpointClient::session(&gateway, "/mcp/s/s").await;
    let (all, _) = EndpointClient::session(&gateway, "/mcp").await;
    all.request("tools/list", json!({})).await;
    for (method, own, public) in [
        ("tools/call", json!({"name": "nope"}), json!({"name": "s__nope"})),
        ("prompts/get", json!({"name": "nope"}), json!({"name": "s__nope"})),
        ("resources/read", json!({"uri": "no://such"}), json!({"uri": "no://such"})),
    ] {
        let own = one.request(method, own).await;
        assert_eq!(all.request(method, public).await, own, "{method}");
    }
    let unknown = all.request("tools/call", json!({"name": "t__nope"})).await;
    assert_eq!(unknown["error"]["message"], "Unknown tool: t__nope");
}

/// Returns the policy of a config.
fn policy(rules: &str) -> Policy {
    Config::parse(Path::new("/x/config.toml"), &format!("[policy]\n{rules}\n")).policy
}

#[tokio::test]
async fn pages_have_only_what_the_rules_allow() {
    let rules = policy("deny = ['s.secret', 's.ask', 's.two', 's.three']");
    let crib = Crib::builder().server(session_server()).policy(rules).build().unwrap();
    let gateway = TestGateway::with_crib(crib, 1 << 20, 10);
    let (client, _) = EndpointClient::session(&gateway, "/mcp/s/s").await;
    let list = async |params: Value| {
        let page = client.request("tools/list", params).await["result"].clone();
        let names: Vec<String> = page["tools"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tool| tool["name"].as_str().unwrap().to_owned())
            .collect();
        (names.join(" "), page["nextCursor"].as_str().map(str::to_owned))
    };
    assert_eq!(list(json!({})).await, ("log update meta hang cancelled one".into(), Some("page+2==".into())));
    assert_eq!(list(json!({"cursor": "page+2=="})).await, (String::new(), None));
    assert_eq!(list(json!({"cursor": "unlisted"})).await, ("four".into(), Some("x".into())));
}

#[tokio::test]
async fn update_of_a_denied_sub_resource_is_not_delivered() {
    let rules = policy("deny = ['s.note://a/private*']");
    let crib = Crib::builder().server(session_server()).policy(rules).build().unwrap();
    let mut peer = PipePeer::new(&crib, json!({})).await;
    peer.send(5, "resources/subscribe", json!({"uri": "note://a"})).await;
    peer.read_until(|message| message["id"] == 5).await;
    let mut messages = Vec::new();
    for uri in ["note://a/private/x", "note://a/%70rivate/x", "note://a"] {
        messages.extend(peer.call("update", json!({"uri": uri})).await);
    }
    let updated = |message: &Value| message["params"].get("uri").cloned();
    while !messages.iter().any(|message| updated(message) == Some(json!("note://a"))) {
        messages.push(peer.read().await);
    }
    let uris: Vec<Value> = messages.iter().filter_map(updated).collect();
    assert_eq!(uris, [json!("note://a")]);
}

#[tokio::test]
async fn list_at_the_endpoint_of_one_server_is_the_only_request_for_it() {
    for era in [Era::Session, Era::Stateless] {
        let respond = if era == Era::Session { respond_in_session } else { respond_stateless };
        let server = RawServer::new(respond);
        let received = server.received.clone();
        let gateway = gateway(spec(era, server));
        let client = match era {
            Era::Session => EndpointClient::session(&gateway, "/mcp/s/s").await.0,
            _ => EndpointClient::stateless(&gateway, "/mcp/s/s"),
        };
        client.request("tools/call", json!({"name": "one", "arguments": {}})).await;
        let lists = || {
            let received = received.lock().unwrap();
            let is_list = |message: &&Value| message["method"] == "tools/list";
            let cursor = |message: &Value| message["params"]["cursor"].clone();
            received.iter().filter(is_list).map(cursor).collect::<Vec<Value>>()
        };
        assert_eq!(lists(), Vec::<Value>::new(), "{era:?}: no client asked");
        let first = client.request("tools/list", json!({})).await["result"].clone();
        assert_eq!(lists(), [Value::Null], "{era:?}");
        if era == Era::Session {
            client.request("tools/list", json!({"cursor": first["nextCursor"]})).await;
            assert_eq!(lists(), [Value::Null, json!("page+2==")]);
        }
        let all = EndpointClient::stateless(&gateway, "/mcp");
        let listed = all.request("tools/list", json!({})).await["result"]["tools"].clone();
        assert_eq!(listed[0]["name"].as_str().unwrap().split_once("__").unwrap().0, "s", "{listed}");
        // The list of the stateless server expires immediately.
        let repeated = lists().iter().filter(|cursor| cursor.is_null()).count();
        assert_eq!(
            repeated,
            if era == Era::Session { 1 } else { 2 },
            "what the client has read is the known list"
        );
    }
}

#[tokio::test]
async fn list_that_hangs_delays_nothing_else() {
    fn respond(message: &Value) -> Vec<Value> {
        if message["method"] == "tools/list" { Vec::new() } else { respond_in_session(message) }
    }
    let crib = Crib::builder().server(spec(Era::Session, RawServer::new(respond))).build().unwrap();
    let gateway = TestGateway::with_crib(crib.clone(), 1 << 20, 10);
    let (client, introduction) =
        timeout(TOO_LONG, EndpointClient::session(&gateway, "/mcp/s/s")).await.unwrap();
    assert_eq!(introduction["serverInfo"], info());
    let called = client.request("tools/call", json!({"name": "one", "arguments": {}}));
    assert!(timeout(TOO_LONG, called).await.unwrap()["result"].is_object());
    let listed = timeout(TOO_LONG, client.request("resources/list", json!({}))).await.unwrap();
    assert_eq!(listed["result"]["resources"][0]["uri"], "note://a", "{listed}");
    let status = crib.status();
    assert_eq!(status[0].tools, None, "{status:?}");
}

#[tokio::test]
async fn notifications_of_a_client_reach_its_only_server() {
    let server = RawServer::new(respond_in_session);
    let received = server.received.clone();
    let gateway = gateway(spec(Era::Session, server));
    let (client, _) = EndpointClient::session(&gateway, "/mcp/s/s").await;
    let progress = json!({"progressToken": "upload-1", "progress": 0.5});
    for (method, params) in [
        ("notifications/progress", progress.clone()),
        ("notifications/roots/list_changed", json!({})),
        ("acme/beat", json!({"n": 1})),
    ] {
        client.post("", &json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string()).await;
        let arrived = async {
            while !received.lock().unwrap().iter().any(|message| message["method"] == method) {
                client.request("tools/call", json!({"name": "one"})).await;
            }
        };
        timeout(TOO_LONG, arrived).await.unwrap_or_else(|_| panic!("{method} did not arrive"));
    }
    let received = received.lock().unwrap();
    let passed = received.iter().find(|message| message["method"] == "notifications/progress").unwrap();
    assert_eq!(passed["params"], progress);
}

#[tokio::test]
async fn server_knows_of_an_ended_subscription_before_the_client() {
    let server = RawServer::new(respond_in_session);
    let received = server.received.clone();
    let gateway = gateway(spec(Era::Session, server));
    let (client, _) = EndpointClient::session(&gateway, "/mcp/s/s").await;
    client.request("resources/subscribe", json!({"uri": "note://a"})).await;
    client.request("resources/unsubscribe", json!({"uri": "note://a"})).await;
    let received = received.lock().unwrap();
    assert!(received.iter().any(|message| message["method"] == "resources/unsubscribe"), "{received:?}");
}

#[tokio::test]
async fn stateless_server_is_told_the_name_of_each_client() {
    let server = RawServer::new(respond_stateless);
    let received = server.received.clone();
    let gateway = gateway(spec(Era::Stateless, server));
    let one = EndpointClient::stateless(&gateway, "/mcp/s/s");
    let name = "io.modelcontextprotocol/clientInfo";
    for client in [json!({"name": "first", "version": "1"}), json!({"name": "second", "version": "2"})] {
        one.request("tools/call", json!({"name": "one", "_meta": {name: client}})).await;
        let received = received.lock().unwrap();
        assert_eq!(received.last().unwrap()["params"]["_meta"][name], client);
    }
}
