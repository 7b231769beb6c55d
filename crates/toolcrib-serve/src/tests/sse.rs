//! Clients of HTTP+SSE.

use super::*;

const CALLERS: &str = "[callers.one]\ntoken = 'first'\n[callers.two]\ntoken = 'second'";
const OLD_INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2024-11-05","capabilities":{},"clientInfo":{"name":"old","version":"1"}}}"#;

fn gateway(callers_text: &str) -> TestGateway {
    let schema = serde_json::json!({"type": "object"});
    let tools = Toolbox::new().tool("greet", "", &schema, |_| async { Ok("hello".to_owned()) });
    let house = ServerSpec::in_process("house".parse().unwrap(), tools);
    let crib = Crib::builder().server(house).build().unwrap();
    let gateway = TestGateway::with_callers(crib, callers(callers_text), 1000, 2);
    let state = Arc::into_inner(gateway.state).unwrap().with_sse();
    TestGateway { state: Arc::new(state), ..gateway }
}

/// An open event stream.
struct Stream {
    client: Client,
    address: String,
}

impl Stream {
    async fn open(gateway: &TestGateway, path: &str, headers: &str) -> Self {
        let head = format!("GET {path} HTTP/1.1|Accept: text/event-stream{headers}");
        let mut client = gateway.send(&head, "").await;
        let head = client.read_head().await;
        assert!(status(&head) == "200" && head.contains("content-type: text/event-stream"), "{head}");
        let mut stream = Self { client, address: String::new() };
        let event = stream.read_event().await;
        let address = event.strip_prefix("event: endpoint\ndata: ").unwrap_or_else(|| panic!("{event}"));
        stream.address = address.trim_end().to_owned();
        stream
    }

    /// Reads the next chunk, which is one event.
    async fn read_event(&mut self) -> String {
        let read = async {
            let mut size = String::new();
            while !size.ends_with("\r\n") {
                size.push(char::from(self.client.0.read_u8().await.unwrap()));
            }
            let mut event = vec![0; usize::from_str_radix(size.trim(), 16).unwrap() + 2];
            self.client.0.read_exact(&mut event).await.unwrap();
            String::from_utf8(event).unwrap().trim_end_matches("\r\n").to_owned()
        };
        timeout(TOO_LONG, read).await.expect("an event in time")
    }

    /// Reads events until one contains the text.
    async fn read_until(&mut self, text: &str) -> String {
        loop {
            let event = self.read_event().await;
            if event.contains(text) {
                return event;
            }
        }
    }

    async fn post(&self, gateway: &TestGateway, headers: &str, body: &str) -> String {
        post(gateway, &self.address, headers, body).await
    }
}

/// Sends a message as clients of 2024 do, and returns the status.
async fn post(gateway: &TestGateway, address: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    let head = format!(
        "POST {address} HTTP/1.1|Accept: */*|Content-Type: application/json|Content-Length: {length}{headers}"
    );
    status(&gateway.send(&head, body).await.read_head().await)
}

#[tokio::test(start_paused = true)]
async fn client_of_2024_is_served_on_one_stream() {
    let gateway = gateway("");
    for (path, tool) in [("/sse", "house__greet"), ("/sse/s/house", "greet"), ("/sse/", "house__greet")] {
        let mut stream = Stream::open(&gateway, path, "").await;
        assert!(stream.address.starts_with(&format!("{}?session=", path.trim_end_matches('/'))));
        let list = r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#;
        assert_eq!(stream.post(&gateway, "", list).await, "202");
        assert!(stream.read_event().await.contains("send `initialize` first"));
        assert_eq!(stream.post(&gateway, "", OLD_INITIALIZE).await, "202");
        assert!(stream.read_event().await.contains(r#""protocolVersion":"2024-11-05""#));
        let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        assert_eq!(stream.post(&gateway, "", initialized).await, "202");
        assert_eq!(stream.post(&gateway, "", list).await, "202");
        assert!(stream.read_until(r#""id":2"#).await.contains(&format!(r#""name":"{tool}""#)));
        let call =
            format!(r#"{{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{{"name":"{tool}"}}}}"#);
        assert_eq!(stream.post(&gateway, "", &call).await, "202");
        assert!(stream.read_until(r#""id":"c""#).await.contains("hello"));
        assert_eq!(stream.post(&gateway, "", OLD_INITIALIZE).await, "202");
        assert!(stream.read_until(r#""id":1"#).await.contains("error"), "one session per stream");
        assert_eq!(stream.post(&gateway, "", "{").await, "400");
        assert_eq!(stream.post(&gateway, "", &format!("[{list}]")).await, "400");
        assert_eq!(stream.post(&gateway, "", &"x".repeat(1001)).await, "413");
    }
}

#[tokio::test(start_paused = true)]
async fn session_of_an_event_stream_ends_with_it() {
    let gateway = gateway("");
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut stream = Stream::open(&gateway, "/sse", "").await;
        assert_eq!(stream.post(&gateway, "", OLD_INITIALIZE).await, "202");
        stream.read_until("protocolVersion").await;
        streams.push(stream);
    }
    assert_eq!(gateway.state.session_count(), 2);
    let head = "GET /sse HTTP/1.1|Accept: text/event-stream";
    assert_eq!(status(&gateway.send(head, "").await.read_head().await), "503", "`limits.sessions`");
    let refused = gateway.post(INITIALIZE.len(), "", INITIALIZE).await.read_head().await;
    assert_eq!(status(&refused), "503", "sessions with an open stream are in use");
    let address = streams.pop().unwrap().address;
    let ended = async {
        while gateway.state.session_count() > 1 {
            tokio::task::yield_now().await;
        }
    };
    timeout(TOO_LONG, ended).await.expect("the session ends");
    assert_eq!(post(&gateway, &address, "", PING).await, "404");
    gateway.state.drain();
    let rest = timeout(TOO_LONG, streams.pop().unwrap().client.read_to_end()).await;
    assert_eq!(rest.expect("the stream ends when the gateway drains"), "0\r\n\r\n");
}

#[tokio::test(start_paused = true)]
async fn event_stream_belongs_to_its_caller_and_scope() {
    let gateway = gateway(CALLERS);
    let first = "|Authorization: Bearer first";
    let refused = gateway.send("GET /sse HTTP/1.1|Accept: text/event-stream", "").await.read_head().await;
    assert_eq!(status(&refused), "401");
    let mut stream = Stream::open(&gateway, "/sse", first).await;
    assert_eq!(stream.post(&gateway, "", OLD_INITIALIZE).await, "401");
    assert_eq!(stream.post(&gateway, "|Authorization: Bearer second", OLD_INITIALIZE).await, "404");
    let elsewhere = stream.address.replace("/sse", "/sse/s/house");
    assert_eq!(post(&gateway, &elsewhere, first, OLD_INITIALIZE).await, "404");
    assert_eq!(stream.post(&gateway, first, OLD_INITIALIZE).await, "202");
    stream.read_until("protocolVersion").await;
    let origin = format!("{first}|Origin: https://evil.example");
    assert_eq!(stream.post(&gateway, &origin, PING).await, "403");
    gateway.state.callers.replace(callers("[callers.two]\ntoken = 'second'"), || {}).wait().await.unwrap();
    assert_eq!(timeout(TOO_LONG, stream.client.read_to_end()).await.expect("it ends"), "0\r\n\r\n");
    assert_eq!(gateway.state.session_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn event_streams_are_off_by_default() {
    let gateway = TestGateway::new(1000, 2);
    for head in ["GET /sse HTTP/1.1|Connection: close", "GET /sse/s/house HTTP/1.1|Connection: close"] {
        let response = gateway.send(head, "").await.read_to_end().await;
        assert!(status(&response) == "404" && response.contains("`sse = true` in `[listen]`"), "{response}");
    }
}
