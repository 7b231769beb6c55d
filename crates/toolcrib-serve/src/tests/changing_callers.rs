//! Tests of connections and streams whose caller changes: several callers on one connection, and callers that lose access.

use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::sync::mpsc;
use toolcrib::spec::EraChoice;
use toolcrib::{Era, InProcess, ServerSpec, Sharing};

use super::*;
use crate::{
    AdminEvents, AdminReply, AdminReplyFuture, AdminRequest, AdminRoutes, ConnectionPeer, DashboardSessions,
    StaticFile,
};

const CALLERS: &str = "[callers.ada]\ntoken = 'token-of-ada'\n[callers.bob]\ntoken = 'token-of-bob'\n";

/// A server whose instances have numbers, which are the results of its only tool.
struct NumberedServer(AtomicU32);

impl InProcess for NumberedServer {
    fn serve(&self, pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            let (reads, mut writes) = tokio::io::split(pipe);
            let mut lines = BufReader::new(reads).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let request: Value = serde_json::from_str(&line).unwrap();
                let result = match request["method"].as_str().unwrap() {
                    "initialize" => json!({
                        "protocolVersion": "2025-11-25",
                        "capabilities": {"tools": {}},
                        "serverInfo": {"name": "numbered", "version": "1"},
                    }),
                    "tools/list" => json!({"tools": [{"name": "number", "inputSchema": {"type": "object"}}]}),
                    "tools/call" => {
                        json!({"content": [{"type": "text", "text": format!("instance {number}")}]})
                    }
                    _ => json!({}),
                };
                let response = json!({"jsonrpc": "2.0", "id": request["id"], "result": result});
                if !request["id"].is_null()
                    && writes.write_all(format!("{response}\n").as_bytes()).await.is_err()
                {
                    return;
                }
            }
        })
    }
}

/// Calls the tool of the server over a connection and returns the number of the instance.
async fn call(client: &mut Client, caller: &str) -> String {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let params = json!({"name": "number", "arguments": {}, "_meta": meta});
    let body = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}).to_string();
    let head = format!(
        "POST /mcp/s/s HTTP/1.1|Host: localhost|Content-Type: application/json|Accept: application/json, text/event-stream|\
         Authorization: Bearer token-of-{caller}|MCP-Protocol-Version: 2026-07-28|Mcp-Method: tools/call|Mcp-Name: number|\
         Content-Length: {}||",
        body.len()
    );
    client.0.write_all(format!("{}{body}", head.replace('|', "\r\n")).as_bytes()).await.unwrap();
    let head = client.read_head().await;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let mut answer = vec![0; length.unwrap_or_else(|| panic!("{head}"))];
    client.0.read_exact(&mut answer).await.unwrap();
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[tokio::test(start_paused = true)]
async fn callers_on_one_connection_do_not_share_an_instance_per_client() {
    let spec = ServerSpec::in_process("s".parse().unwrap(), NumberedServer(AtomicU32::new(0)))
        .era(EraChoice::Era(Era::Session))
        .sharing(Sharing::PerClient);
    let crib = Crib::builder().server(spec).build().unwrap();
    let gateway = TestGateway::with_callers(crib, callers(CALLERS), 100_000, 10);
    let mut connection = gateway.send("GET /mcp HTTP/1.1|Authorization: Bearer token-of-ada", "").await;
    let head = connection.read_head().await;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap();
    connection.0.read_exact(&mut vec![0; length]).await.unwrap();
    let of_ada = call(&mut connection, "ada").await;
    let of_bob = call(&mut connection, "bob").await;
    assert_ne!(of_ada, of_bob);
    assert_eq!([call(&mut connection, "ada").await, call(&mut connection, "bob").await], [of_ada, of_bob]);
}

/// An admin API with a stream of events that does not end.
#[derive(Debug, Default)]
struct EndlessEvents(Mutex<Vec<mpsc::Sender<Vec<u8>>>>);

impl AdminRoutes for EndlessEvents {
    fn respond<'a>(&'a self, _: AdminRequest<'a>) -> AdminReplyFuture<'a> {
        Box::pin(std::future::ready(AdminReply::ok(json!({}))))
    }

    fn open_events(&self, request: &AdminRequest<'_>) -> Option<Result<AdminEvents, AdminReply>> {
        let (sender, events) = mpsc::channel(1);
        self.0.lock().unwrap().push(sender);
        (request.path == "/api/v1/events").then_some(Ok(events))
    }
}

fn dashboard_gateway() -> TestGateway {
    const FILES: &[StaticFile] = &[StaticFile {
        path: "/",
        content_type: "text/html",
        etag: "\"1\"",
        content: b"",
        gzip: b"compressed",
    }];
    let callers = Arc::new(ActiveCallers::new(callers(CALLERS)));
    let service = McpService::new(Crib::builder().build().unwrap());
    let state = HttpGateway::new(service, callers, &GatewayLimits::default())
        .with_admin(Arc::new(EndlessEvents::default()))
        .with_dashboard(FILES, Arc::new(DashboardSessions::default()));
    TestGateway { state: Arc::new(state), tasks: TaskTracker::new(), stop: CancellationToken::new() }
}

#[tokio::test(start_paused = true)]
async fn event_stream_of_the_admin_api_ends_when_its_caller_loses_access() {
    let gateway = dashboard_gateway();
    let get = "GET /api/v1/events HTTP/1.1|Authorization: Bearer token-of-";
    let mut of_ada = gateway.send(&format!("{get}ada"), "").await;
    let mut of_bob = gateway.send(&format!("{get}bob"), "").await;
    for stream in [&mut of_ada, &mut of_bob] {
        assert_eq!(status(&stream.read_head().await), "200");
    }
    let only_ada = callers("[callers.ada]\ntoken = 'token-of-ada'");
    gateway.state.callers.replace(only_ada, || {}).wait().await.unwrap();
    let mut first = [0; 4];
    timeout(TOO_LONG, of_bob.0.read_exact(&mut first)).await.unwrap().unwrap();
    assert_eq!(&first, b"0\r\n\r", "the last chunk");
    timeout(TOO_LONG, of_ada.0.read_exact(&mut first)).await.unwrap().unwrap();
    assert_eq!(&first, b"4\r\n:", "a keep-alive comment");
}

#[tokio::test(start_paused = true)]
async fn description_of_a_session_does_not_tell_which_tokens_are_valid() {
    let gateway = dashboard_gateway();
    let get = async |headers: &str| {
        let head = format!("GET /api/v1/session HTTP/1.1|Connection: close{headers}");
        gateway.send(&head, "").await.read_to_end().await
    };
    let before = Instant::now();
    let anonymous = get("").await;
    assert!(status(&anonymous) == "200" && anonymous.contains("\"caller\":null"), "{anonymous}");
    assert!(get("|Authorization: Bearer token-of-ada").await.contains("\"caller\":\"ada\""));
    assert_eq!(before.elapsed(), Duration::ZERO);
    assert_eq!(status(&get("|Authorization: Bearer token-of-eve").await), "401");
    assert!(before.elapsed() > Duration::ZERO, "like any other failed login");
}

#[tokio::test]
async fn token_that_was_not_checked_is_not_kept_for_an_exchange() {
    let config = "[callers.ada]\ntoken = 'token-of-ada'\n[callers.build]\nuid = 1001\n\
        [servers.s]\nurl = 'https://s.example/mcp'\nforward = 'token-exchange'\n\
        token-exchange = { token-endpoint = 'https://login.example/token', client-id = 'gateway' }\n";
    let roster = Config::parse(Path::new("/x/config.toml"), config).roster;
    let crib = Crib::builder().roster(roster).build().unwrap();
    let gateway = TestGateway::with_callers(crib.clone(), callers(config), 100_000, 10);
    let connect = async |peer: ConnectionPeer, token: &str| {
        let (mut ours, theirs) = tokio::io::duplex(1 << 20);
        gateway.tasks.spawn(serve_connection(theirs, gateway.state.clone(), peer, gateway.stop.clone()));
        let head = format!("GET /healthz HTTP/1.1|Host: localhost|Authorization: Bearer {token}||");
        ours.write_all(head.replace('|', "\r\n").as_bytes()).await.unwrap();
        assert_eq!(status(&Client(ours).read_head().await), "404", "there is no admin API");
    };
    connect(ConnectionPeer::from(Entrypoint::Socket).with_uid(Some(1001)), "token-for-another-server").await;
    let known = format!("{:?}", crib.known_callers());
    assert!(known.contains("build") && !known.contains("Some(Secret"), "{known}");
    connect(Entrypoint::Tcp.into(), "token-of-ada").await;
    let known = format!("{:?}", crib.known_callers());
    assert!(known.contains("Some(Secret"), "{known}");
}

#[tokio::test]
async fn what_clients_say_about_themselves_is_remembered_only_if_it_is_small() {
    let gateway = TestGateway::new(1 << 20, 10);
    let large = "x".repeat(100_000);
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"extensions": {"com.example/x": {"text": large}}},
        "io.modelcontextprotocol/clientInfo": {"name": large, "version": large},
    });
    let body =
        json!({"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": {"_meta": meta}}).to_string();
    let headers = "|MCP-Protocol-Version: 2026-07-28|Mcp-Method: tools/list";
    assert_eq!(status(&gateway.post(body.len(), headers, &body).await.read_head().await), "200");
    let [client] = &gateway.state.clients()[..] else { panic!("one client") };
    assert_eq!(client.name.as_ref().map(|name| name.len()), Some(256));
    assert!(client.version.as_ref().is_none_or(|version| version.len() <= 256));
    assert_eq!(client.capabilities.len(), 0);
}
