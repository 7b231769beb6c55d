//! Replicas on one store, over real connections: requests are forwarded to the owner of a session or a call.

use std::sync::Mutex;

use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use toolcrib::store::{OwnedKind, Replica, SigningKey};
use toolcrib::util::clock::wall_time;
use toolcrib::util::encoding;
use toolcrib::{Crib, ServerLimits, ServerSpec, Toolbox};

use super::delayed_store::DelayedStore;
use super::transparency::raw_server::{RawServer, respond_in_session};
use super::*;
use crate::caller_assertion::{BodyDigest, CallerAssertion, ForwardedTarget};

const CALLERS: &str = "[callers.one]\ntoken = 'first'\n[callers.two]\ntoken = 'second'\n";
const KEY: [u8; 32] = [7; 32];
/// Longer than a replica may take to notice that another one is gone.
const LONGEST: Duration = Duration::from_secs(20);

/// One gateway of several, which listens on a port of its own.
struct TestReplica {
    replica: Replica,
    listener: Option<Arc<TcpListener>>,
    state: Arc<HttpGateway>,
    /// What its server has received.
    received: Arc<Mutex<Vec<Value>>>,
    serving: JoinSet<()>,
}

impl TestReplica {
    async fn start(store: &Arc<DelayedStore>, config: &str) -> Self {
        Self::start_at(store, config, "127.0.0.1:0").await
    }

    async fn start_at(store: &Arc<DelayedStore>, config: &str, address: &str) -> Self {
        let listener = Arc::new(TcpListener::bind(address).await.unwrap());
        let url = format!("http://{}", listener.local_addr().unwrap());
        let replica = Replica::new(&url, SigningKey::from_bytes(&KEY).unwrap()).unwrap();
        let server = RawServer::new(respond_in_session);
        let received = server.received.clone();
        let large =
            Toolbox::new().tool("large", "", &json!({"type": "object"}), |_| async { Ok("x".repeat(9000)) });
        let limits = ServerLimits { result_tokens: Some(500), ..ServerLimits::default() };
        let crib = Crib::builder()
            .server(ServerSpec::in_process("s".parse().unwrap(), server))
            .server(ServerSpec::in_process("disk".parse().unwrap(), large).limits(limits))
            .store(store.clone())
            .replica(replica.clone())
            .build()
            .unwrap();
        let active = Arc::new(ActiveCallers::new(callers(config)));
        let limits = GatewayLimits::default();
        let state = Arc::new(HttpGateway::new(McpService::new(crib), active, &limits));
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener.clone(), state.clone()));
        Self { replica, listener: Some(listener), state, received, serving }
    }

    /// Closes the listener and all connections, as the end of the process does.
    async fn kill(&mut self) {
        self.freeze().await;
        self.listener = None;
    }

    /// Closes all connections. New ones are accepted by the system, but not served.
    async fn freeze(&mut self) {
        self.serving.shutdown().await;
    }

    /// Sends a request, without waiting for the response.
    async fn send(&self, method: &str, headers: &str, body: &str) -> StreamClient {
        let authority = self.replica.address().strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(authority).await.unwrap();
        let head = format!(
            "{method} /mcp HTTP/1.1|Host: {authority}|Content-Type: application/json|Connection: close|\
             Accept: application/json, text/event-stream|Content-Length: {}{headers}||",
            body.len()
        );
        stream.write_all(format!("{}{body}", head.replace('|', "\r\n")).as_bytes()).await.unwrap();
        StreamClient { stream, text: String::new() }
    }

    /// Sends a request in a session and returns the whole response.
    async fn exchange(&self, method: &str, client: &SessionClient, body: &str) -> String {
        self.send(method, &client.headers(), body).await.read_to_end().await
    }

    async fn open_session(&self, token: &'static str) -> SessionClient {
        let initialize = INITIALIZE.replace(r#""capabilities":{}"#, r#""capabilities":{"elicitation":{}}"#);
        let headers = format!("|Authorization: Bearer {token}");
        let response = self.send("POST", &headers, &initialize).await.read_to_end().await;
        SessionClient { token, session: session_id(&response) }
    }

    async fn ping(&self, client: &SessionClient) -> String {
        status(&self.exchange("POST", client, PING).await)
    }

    fn has_session(&self, client: &SessionClient) -> bool {
        self.state.sessions.contains(&client.session)
    }
}

async fn serve(listener: Arc<TcpListener>, state: Arc<HttpGateway>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let state = state.clone();
        connections.spawn(async move {
            let stop = CancellationToken::new();
            if let Some(stream) = serve_connection(stream, state, Entrypoint::Tcp, stop).await {
                stream.await;
            }
        });
    }
}

/// A client in a session.
struct SessionClient {
    token: &'static str,
    session: String,
}

impl SessionClient {
    fn headers(&self) -> String {
        format!("|Authorization: Bearer {}|Mcp-Session-Id: {}", self.token, self.session)
    }
}

/// The client end of one connection.
struct StreamClient {
    stream: TcpStream,
    text: String,
}

impl StreamClient {
    /// Reads until the response contains a text.
    async fn read_until(&mut self, expected: &str) -> &str {
        while !self.text.contains(expected) {
            let mut piece = [0; 4096];
            let read = timeout(LONGEST, self.stream.read(&mut piece)).await.expect(expected).unwrap();
            assert_ne!(read, 0, "no {expected} in {}", self.text);
            self.text += &String::from_utf8_lossy(&piece[..read]);
        }
        &self.text
    }

    async fn read_to_end(mut self) -> String {
        let mut rest = Vec::new();
        timeout(LONGEST, self.stream.read_to_end(&mut rest)).await.expect("an end").unwrap();
        self.text + &String::from_utf8_lossy(&rest)
    }
}

fn call(id: u32, tool: &str, arguments: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": tool, "arguments": arguments}})
        .to_string()
}

fn question() -> Value {
    json!({"method": "elicitation/create", "params": {"message": "Name?", "requestedSchema": {"type": "object", "properties": {}}}})
}

async fn wait_until(what: &str, is_true: impl Fn() -> bool) {
    let waiting = async {
        while !is_true() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LONGEST, waiting).await.unwrap_or_else(|_| panic!("{what}"));
}

#[tokio::test]
async fn request_of_each_kind_is_forwarded_to_the_owner() {
    let store = Arc::new(DelayedStore::new());
    let owner = TestReplica::start(&store, CALLERS).await;
    let other = TestReplica::start(&store, CALLERS).await;
    let client = owner.open_session("first").await;
    assert!(client.session.bytes().all(|byte| byte.is_ascii_graphic()) && client.session.len() < 120);
    assert_eq!(other.ping(&client).await, "200");
    let called = other.exchange("POST", &client, &call(3, "one", &json!({}))).await;
    assert!(called.contains(r#"{"jsonrpc":"2.0","id":3,"result""#), "{called}");
    // A question of the server, and the answer of the client.
    let mut asking = other.send("POST", &client.headers(), &call(4, "ask", &question())).await;
    let asked = asking.read_until("elicitation/create").await;
    assert!(asked.contains("content-type: text/event-stream"), "{asked}");
    let id = asked.split(r#""id":"#).nth(1).unwrap().split([',', '}']).next().unwrap();
    let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"action":"accept","content":{{}}}}}}"#);
    assert_eq!(status(&other.exchange("POST", &client, &answer).await), "202");
    asking.read_until(r#"\"action\":\"accept\""#).await;
    let event = asking.text.lines().rev().find_map(|line| line.strip_prefix("id: ")).unwrap().to_owned();
    drop(asking);
    // The stream of a call is resumed, and the call is cancelled.
    let first = event.replacen("-2-", "-0-", 1);
    let resume = format!("{}|Last-Event-ID: {first}", client.headers());
    let resumed = other.send("GET", &resume, "").await.read_to_end().await;
    assert!(
        resumed.contains("elicitation/create") && resumed.contains(r#"\"action\":\"accept\""#),
        "{resumed}"
    );
    let mut hanging = other.send("POST", &client.headers(), &call(5, "hang", &json!({}))).await;
    hanging.read_until("retry: 1000").await;
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}"#;
    assert_eq!(status(&other.exchange("POST", &client, cancel).await), "202");
    let cancelled = hanging.read_to_end().await;
    assert!(!cancelled.contains(r#""id":5"#), "a cancelled request gets no response: {cancelled}");
    let received = owner.received.lock().unwrap().clone();
    assert!(received.iter().any(|message| message["method"] == "notifications/cancelled"));
    assert!(other.received.lock().unwrap().is_empty(), "the other replica has not started the server");
    // Another caller, the notification stream, and the end.
    let thief = SessionClient { token: "second", session: client.session.clone() };
    assert_eq!((other.ping(&thief).await.as_str(), owner.ping(&thief).await.as_str()), ("404", "404"));
    let mut stream = other.send("GET", &client.headers(), "").await;
    assert!(stream.read_until("\r\n\r\n").await.starts_with("HTTP/1.1 200"));
    assert_eq!(status(&other.send("GET", &client.headers(), "").await.read_to_end().await), "409");
    assert!(owner.has_session(&client) && !other.has_session(&client));
    assert_eq!(status(&other.exchange("DELETE", &client, "").await), "204");
    stream.read_to_end().await;
    assert!(!owner.has_session(&client));
    assert_eq!((other.ping(&client).await.as_str(), owner.ping(&client).await.as_str()), ("404", "404"));
}

#[tokio::test]
async fn session_of_a_dead_owner_is_continued_by_one_replica() {
    let store = Arc::new(DelayedStore::new());
    let mut owner = TestReplica::start(&store, CALLERS).await;
    let others = [TestReplica::start(&store, CALLERS).await, TestReplica::start(&store, CALLERS).await];
    let client = owner.open_session("first").await;
    let mut hanging = others[0].send("POST", &client.headers(), &call(5, "hang", &json!({}))).await;
    hanging.read_until("retry: 1000").await;
    owner.kill().await;
    let lost = hanging.read_to_end().await;
    assert!(lost.contains(r#""id":5"#) && lost.contains(r#""sent":"maybe""#), "{lost}");
    assert!(lost.contains("may have run"), "{lost}");
    let (first, second) = tokio::join!(others[0].ping(&client), others[1].ping(&client));
    assert_eq!((first.as_str(), second.as_str()), ("200", "200"));
    let open = others.iter().filter(|other| other.has_session(&client)).count();
    assert_eq!(open, 1, "one of them has it now");
    let [successor, third] =
        if others[0].has_session(&client) { [&others[0], &others[1]] } else { [&others[1], &others[0]] };
    // A client whose stream broke resumes it, and events of the first owner are not mistaken for those of its successor.
    let event = lost.lines().find_map(|line| line.strip_prefix("id: ")).unwrap();
    assert!(event.starts_with("1-0-"), "{event}");
    let mut hanging = third.send("POST", &client.headers(), &call(6, "hang", &json!({}))).await;
    let started = hanging.read_until("retry: 1000").await;
    let number = started.lines().find_map(|line| line.strip_prefix("id: ")?.split('-').next());
    assert!(number.unwrap().parse::<u64>().unwrap() > 1000, "not a number of the first owner: {started}");
    let resume = |event: &str| format!("{}|Last-Event-ID: {event}", client.headers());
    let resumed = third.send("GET", &resume(event), "").await.read_to_end().await;
    assert!(resumed.contains(r#"data: {"jsonrpc":"2.0","id":5,"error""#), "{resumed}");
    assert!(resumed.contains(r#""sent":"maybe""#), "{resumed}");
    assert_eq!(status(&third.send("GET", &resume("1-0"), "").await.read_to_end().await), "400");
    // The first owner returns at its address, without the session.
    let authority = owner.replica.address().strip_prefix("http://").unwrap();
    let returned = TestReplica::start_at(&store, CALLERS, authority).await;
    assert_eq!(returned.ping(&client).await, "200");
    assert!(!returned.has_session(&client) && successor.has_session(&client));
    assert_eq!(third.ping(&client).await, "200", "by the id, the first owner has it, which refuses");
    assert!(!returned.has_session(&client) && !third.has_session(&client));
}

#[tokio::test]
async fn session_of_a_silent_owner_is_taken_over() {
    let store = Arc::new(DelayedStore::new());
    let mut owner = TestReplica::start(&store, "").await;
    let other = TestReplica::start(&store, "").await;
    let client = owner.open_session("").await;
    let listing = owner.open_session("").await;
    assert_eq!(other.ping(&client).await, "200");
    owner.freeze().await;
    let start = Instant::now();
    let tools = PING.replace("ping", "tools/list");
    let one = call(6, "one", &json!({}));
    let (lost, listed) =
        tokio::join!(other.exchange("POST", &client, &one), other.exchange("POST", &listing, &tools));
    assert!(lost.contains(r#""sent":"maybe""#), "{lost}");
    assert_eq!(status(&listed), "200", "the gateway itself answers it, so that it is repeated: {listed}");
    assert!(listed.contains(r#""name":"s__ask""#), "{listed}");
    assert_eq!(other.ping(&client).await, "200");
    assert!(start.elapsed() < Duration::from_secs(5) + LONGEST / 2, "{:?}", start.elapsed());
    assert!(
        other.has_session(&client)
            && other.received.lock().unwrap().iter().all(|message| { message["method"] != "tools/call" })
    );
    wait_until("the first owner leaves the session", || !owner.has_session(&client)).await;
}

#[tokio::test]
async fn session_that_has_moved_is_found_without_the_store() {
    let store = Arc::new(DelayedStore::new());
    let mut first = TestReplica::start(&store, CALLERS).await;
    let second = TestReplica::start(&store, CALLERS).await;
    let third = TestReplica::start(&store, CALLERS).await;
    let client = first.open_session("first").await;
    first.kill().await;
    assert_eq!(second.ping(&client).await, "200");
    assert_eq!(third.ping(&client).await, "200");
    assert!(second.has_session(&client) && !third.has_session(&client));
    store.set_failing(true);
    assert_eq!(third.ping(&client).await, "200");
}

#[tokio::test]
async fn forged_statements_are_refused_and_nothing_is_forwarded_twice() {
    let store = Arc::new(DelayedStore::new());
    let owner = TestReplica::start(&store, CALLERS).await;
    let other = TestReplica::start(&store, CALLERS).await;
    let client = owner.open_session("first").await;
    let state = owner.state.callers.clone();
    let bearer = hyper::HeaderMap::from_iter([(
        hyper::header::AUTHORIZATION,
        hyper::header::HeaderValue::from_static("Bearer first"),
    )]);
    let access = state.authenticate(&Entrypoint::Tcp.into(), &bearer).unwrap();
    let caller = state.assert_caller(&access).unwrap();
    let sign = |caller: &CallerAssertion, to: &TestReplica, session: &str, key: u8| {
        let signer = Replica::new("http://x", SigningKey::from_bytes(&[key; 32]).unwrap()).unwrap();
        let method = &hyper::Method::POST;
        let target = ForwardedTarget { owner: to.replica.address(), method, path: "/mcp", session };
        caller.encode(&signer, &target, BodyDigest::new(PING.as_bytes()), wall_time()).unwrap()
    };
    let send_body = async |to: &TestReplica, header: &str, session: &str, body: &str| {
        let headers = format!("|Toolcrib-Forwarded: {header}|Mcp-Session-Id: {session}");
        to.send("POST", &headers, body).await.read_to_end().await
    };
    let send =
        async |to: &TestReplica, header: &str, session: &str| send_body(to, header, session, PING).await;
    let session = &client.session;
    let header = sign(&caller, &owner, session, 7);
    assert_eq!(status(&send(&owner, &header, session).await), "200");
    let unknown = CallerAssertion::Declared { credential: "x".to_owned() };
    for (refused, why) in [
        (header.clone(), "a copy"),
        ("x".to_owned(), "no signature"),
        (sign(&caller, &owner, session, 8), "another key"),
        (sign(&caller, &other, session, 7), "for another replica"),
        (sign(&caller, &owner, "x", 7), "for another session"),
        (sign(&CallerAssertion::Local, &owner, session, 7), "no caller needs no token"),
        (sign(&unknown, &owner, session, 7), "an unknown caller"),
    ] {
        let response = send(&owner, &refused, session).await;
        assert_eq!(status(&response), "403", "{why}: {response}");
        assert!(response.contains("a forwarded request was refused"), "{response}");
    }
    let changed = call(1, "echo", &json!({}));
    let response = send_body(&owner, &sign(&caller, &owner, session, 7), session, &changed).await;
    assert!(status(&response) == "403" && response.contains("its body was changed"), "{response}");
    assert!(owner.received.lock().unwrap().iter().all(|message| message["method"] != "tools/call"));
    // A replica that does not have the session says so.
    let misdirected = send(&other, &sign(&caller, &other, session, 7), session).await;
    assert_eq!(status(&misdirected), "421", "{misdirected}");
    assert!(misdirected.contains("toolcrib-replica: not-owner"), "{misdirected}");
    assert!(!other.has_session(&client) && owner.has_session(&client));
    let alone = TestGateway::new(1000, 10);
    let ignored = format!("|Toolcrib-Forwarded: {header}");
    let answer = alone.post(INITIALIZE.len(), &ignored, INITIALIZE).await.read_head().await;
    assert_eq!(status(&answer), "200", "without replicas the header means nothing");
}

#[tokio::test]
async fn forged_session_id_contacts_no_address() {
    let store = Arc::new(DelayedStore::new());
    let replica = TestReplica::start(&store, "").await;
    let trap = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", trap.local_addr().unwrap());
    let forger = Replica::new(&address, SigningKey::from_bytes(&[9; 32]).unwrap()).unwrap();
    let forged = forger.new_name(OwnedKind::Session).unwrap();
    let encoded = encoding::to_base64_name(address.as_bytes());
    let result = Replica::new(&address, SigningKey::from_bytes(&KEY).unwrap()).unwrap();
    for session in [
        forged.clone(),
        format!("{}~{encoded}~", "0".repeat(32)),
        result.new_name(OwnedKind::Result).unwrap(),
        "0".repeat(32),
        "x".repeat(5000),
    ] {
        let client = SessionClient { token: "", session };
        assert_eq!(replica.ping(&client).await, "404");
    }
    let state = json!(format!("toolcrib.{forged}.00"));
    let request = stateless("one", &json!({"requestState": state}), "");
    replica.send("POST", &request.headers, &request.body).await.read_to_end().await;
    let connected = timeout(Duration::from_millis(50), trap.accept()).await;
    assert!(connected.is_err(), "nothing is sent to the address");
    // The same address with the right key is contacted.
    let client = SessionClient { token: "", session: result.new_name(OwnedKind::Session).unwrap() };
    let (status, _) = tokio::join!(replica.ping(&client), async { drop((trap.accept().await, trap)) });
    assert_eq!(status, "404");
}

/// A request of the stateless era.
struct StatelessRequest {
    headers: String,
    body: String,
}

fn stateless(tool: &str, members: &Value, token: &str) -> StatelessRequest {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
    });
    let mut params = json!({"name": tool, "arguments": {}, "_meta": meta});
    params.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    let body = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}).to_string();
    let headers = format!(
        "|Authorization: Bearer {token}|MCP-Protocol-Version: 2026-07-28|Mcp-Method: tools/call|Mcp-Name: {tool}"
    );
    StatelessRequest { headers, body }
}

/// Returns the JSON object in the body of a response.
fn body(response: &str) -> Value {
    let text = response.split_once("\r\n\r\n").unwrap().1;
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {response}"))
}

#[tokio::test]
async fn suspended_call_is_resumed_at_any_replica() {
    let store = Arc::new(DelayedStore::new());
    let mut owner = TestReplica::start(&store, CALLERS).await;
    let other = TestReplica::start(&store, CALLERS).await;
    let suspend = async |owner: &TestReplica| {
        let request = stateless("ask", &json!({"arguments": question()}), "first");
        let asked = body(&owner.send("POST", &request.headers, &request.body).await.read_to_end().await);
        let result = asked["result"].clone();
        assert_eq!(result["resultType"], "input_required", "{asked}");
        let key = result["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
        let answers = json!({key: {"action": "accept", "content": {}}});
        json!({"arguments": question(), "requestState": result["requestState"], "inputResponses": answers})
    };
    let resume = async |at: &TestReplica, members: &Value, token: &str| {
        let request = stateless("ask", members, token);
        body(&at.send("POST", &request.headers, &request.body).await.read_to_end().await)
    };
    let members = suspend(&owner).await;
    let stolen = resume(&other, &members, "second").await;
    assert!(stolen["error"].is_object() || stolen["result"]["resultType"] == "input_required", "{stolen}");
    let resumed = resume(&other, &members, "first").await;
    assert!(resumed["result"]["content"][0]["text"].as_str().unwrap().contains("accept"), "{resumed}");
    let again = resume(&other, &members, "first").await;
    assert!(again["error"].is_object(), "a state is valid once: {again}");
    let members = suspend(&owner).await;
    owner.kill().await;
    let lost = resume(&other, &members, "first").await;
    assert_eq!(lost["error"]["data"]["sent"], "maybe", "{lost}");
    assert!(lost["error"]["message"].as_str().unwrap().contains("may have run"), "{lost}");
}

#[tokio::test]
async fn stored_result_is_read_at_any_replica() {
    let store = Arc::new(DelayedStore::new());
    let mut owner = TestReplica::start(&store, CALLERS).await;
    let other = TestReplica::start(&store, CALLERS).await;
    let request = stateless("large", &json!({}), "first");
    let response = owner.send("POST", &request.headers, &request.body).await.read_to_end().await;
    let id = response.split("toolcrib://_results/").nth(1).unwrap_or_else(|| panic!("no link in {response}"));
    let id = id.split(['"', '?', '\\', ' ']).next().unwrap();
    let read = async |members: &Value| {
        let request = stateless("read_result", members, "first");
        body(&other.send("POST", &request.headers, &request.body).await.read_to_end().await)
    };
    let members = json!({"arguments": {"id": id}});
    let page = read(&members).await;
    assert!(page["result"]["content"][0]["text"].as_str().unwrap().contains("xxx"), "{page}");
    owner.kill().await;
    let unknown = read(&members).await;
    assert_eq!(unknown["result"]["isError"], true, "{unknown}");
}
