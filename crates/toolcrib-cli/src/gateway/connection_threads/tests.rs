//! Tests of calls on connections that move between threads.

use std::path::Path;

use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolcrib::config::{Config, GatewayLimits};
use toolcrib::{Crib, SecretError, ServerSpec, Toolbox};
use toolcrib_serve::{ActiveCallers, Callers, Entrypoint, HttpGateway, McpService, serve_connection};

use super::*;

const CLIENTS: usize = 16;
const CALLS: usize = 50;

/// Creates a gateway with a tool that returns its argument after other tasks had their turn.
fn echo_gateway() -> Arc<HttpGateway> {
    let schema = json!({"type": "object", "properties": {"text": {"type": "string"}}});
    let tools = Toolbox::new().tool("echo", "Returns its argument", &schema, |arguments| async move {
        yield_now().await;
        Ok(arguments["text"].as_str().unwrap_or_default().to_owned())
    });
    let spec = ServerSpec::in_process("house".parse().unwrap(), tools);
    let crib = Crib::builder().server(spec).build().unwrap();
    let config = Config::parse(Path::new("/x/config.toml"), "");
    let callers = Callers::resolve(&config.callers, |_| Err(SecretError::NotFound)).unwrap();
    let callers = Arc::new(ActiveCallers::new(callers));
    Arc::new(HttpGateway::new(McpService::new(crib), callers, &GatewayLimits::default()))
}

/// Accepts connections as the gateway does.
async fn accept(listener: TcpListener, threads: Arc<Threads>, tasks: TaskTracker) {
    let gateway = echo_gateway();
    for _ in 0..CLIENTS {
        let (stream, _) = listener.accept().await.unwrap();
        let place = ConnectionPlace::new(threads.clone());
        let stream = MovableStream::new(stream, Some(&place));
        let connection = serve_connection(stream, gateway.clone(), Entrypoint::Tcp, CancellationToken::new());
        place.spawn(tasks.clone(), async move {
            connection.await;
        });
    }
}

/// Calls the tool many times on one connection, each time with a text of its own, and returns how often the answer had it.
async fn call_repeatedly(address: std::net::SocketAddr, client: usize) -> usize {
    let mut stream = BufReader::new(TcpStream::connect(address).await.unwrap());
    let mut answered = 0;
    for call in 0..CALLS {
        let text = format!("client {client}, call {call}");
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let params = json!({"name": "echo", "arguments": {"text": text}, "_meta": meta});
        let body =
            json!({"jsonrpc": "2.0", "id": call, "method": "tools/call", "params": params}).to_string();
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
             Mcp-Method: tools/call\r\nMcp-Name: echo\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.get_mut().write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        answered += usize::from(read_body(&mut stream).await.contains(&format!("\"{text}\"")));
    }
    answered
}

async fn read_body(stream: &mut BufReader<TcpStream>) -> String {
    let mut length = 0;
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        assert_ne!(stream.read_line(&mut line).await.unwrap(), 0, "the connection is open");
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    String::from_utf8(body).unwrap()
}

#[tokio::test]
async fn calls_on_moving_connections_get_their_answers() {
    let owner = ConnectionThreads::start(3).unwrap();
    let threads = owner.several().unwrap();
    let tasks = TaskTracker::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(accept(listener, threads.clone(), tasks.clone()));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        clients.spawn(call_repeatedly(address, client));
    }
    let mut answered = 0;
    let mut from = MAIN;
    let mut is_used = [false; 3];
    let mut moves = tokio::time::interval(Duration::from_millis(1));
    while !clients.is_empty() {
        moves.tick().await;
        let to = (from + 1) % 3;
        threads.request(&Move { from, to, connections: CLIENTS });
        from = to;
        for (thread, is_used) in threads.all.iter().zip(&mut is_used) {
            *is_used |= thread.connections.load(Ordering::Relaxed) > 0;
        }
        while let Some(done) = clients.try_join_next() {
            answered += done.unwrap();
        }
    }
    assert_eq!(answered, CLIENTS * CALLS);
    assert_eq!(is_used, [true; 3], "connections were on every thread");
    tasks.close();
    tasks.wait().await;
}
