//! The client of the Rust SDK in front of servers of the other SDKs, for `scripts/matrix`.
//!
//! The fixtures are those of `scripts/matrix-peers/README.md`. One line of JSON per feature goes to `MATRIX_OUT`.

use std::io::Write as _;
use std::path::PathBuf;

use rmcp::model::{GetPromptRequestParams, LoggingLevel, ReadResourceRequestParams};
use serde_json::{Value, json};
use test_support::client::Era;

use super::client::{MatrixClient, finish};

const TEXT: &str = "matrix://text";

/// A gateway and one of its servers.
#[derive(Clone)]
struct PeerServer {
    socket: PathBuf,
    name: String,
    era: Era,
}

impl PeerServer {
    fn from_env() -> Option<Self> {
        let era = match std::env::var("MATRIX_ERA").ok()?.as_str() {
            "session" => Era::Session,
            _ => Era::Stateless,
        };
        Some(Self {
            socket: std::env::var_os("MATRIX_SOCKET")?.into(),
            name: std::env::var("MATRIX_SERVER").ok()?,
            era,
        })
    }

    async fn connect(&self) -> MatrixClient {
        MatrixClient::new(&self.socket, &format!("/mcp/s/{}", self.name), self.era).await
    }

    /// Connects to the server's own endpoint and to the common one; returns the prefix of names with each.
    async fn connect_both(&self) -> [(MatrixClient, String); 2] {
        let all = MatrixClient::new(&self.socket, "/mcp", self.era).await;
        [(self.connect().await, String::new()), (all, format!("{}__", self.name))]
    }
}

const FEATURES: [&str; 13] = [
    "tools",
    "resources",
    "prompts",
    "completion",
    "logging",
    "progress",
    "list_changed",
    "resource updates",
    "sampling",
    "elicitation form",
    "elicitation URL",
    "roots",
    // Last: shortly after it, a request of a shared server may be about the cancelled call.
    "cancel",
];

async fn check(feature: &str, server: &PeerServer) {
    match feature {
        "tools" => tools(server).await,
        "resources" => resources(server).await,
        "prompts" => prompts(server).await,
        "completion" => completion(server).await,
        "logging" => logging(server).await,
        "progress" => progress(server).await,
        "cancel" => cancel(server).await,
        "list_changed" => list_changed(server).await,
        "resource updates" => updates(server).await,
        "sampling" => {
            check_request(server, "sample", "sampling/createMessage", "Say something", "a sample").await;
        }
        "elicitation form" => {
            check_request(server, "form", "elicitation/create", "Who are you?", "ada").await;
        }
        "elicitation URL" => {
            check_request(server, "url", "elicitation/create", "https://example.com/sign-in", "accept").await;
        }
        "roots" => check_request(server, "roots", "roots/list", "{}", "file:///home/ada").await,
        _ => panic!("there is no check of `{feature}`"),
    }
}

async fn tools(server: &PeerServer) {
    for (client, prefix) in server.connect_both().await {
        let tools = client.service.list_all_tools().await.unwrap();
        assert!(tools.iter().any(|tool| tool.name == format!("{prefix}echo")));
        assert_eq!(client.text(&format!("{prefix}echo"), json!({"text": "hi"})).await, "hi");
    }
}

async fn resources(server: &PeerServer) {
    for (client, prefix) in server.connect_both().await {
        let is_ours = |uri: &String| prefix.is_empty() || uri.contains(&server.name);
        let read = async |uri: String| {
            json!(
                client.service.read_resource(ReadResourceRequestParams::new(uri)).await.unwrap().contents[0]
            )
        };
        let resources = client.service.list_all_resources().await.unwrap();
        let text = resources.into_iter().map(|resource| resource.uri).find(is_ours).unwrap();
        assert_eq!(read(text).await["text"], "the text");
        let templates = client.service.list_all_resource_templates().await.unwrap();
        let item = templates.into_iter().map(|template| template.uri_template).find(is_ours).unwrap();
        assert_eq!(read(item.replace("{id}", "7")).await["text"], "item 7");
    }
}

async fn prompts(server: &PeerServer) {
    for (client, prefix) in server.connect_both().await {
        let mut params = GetPromptRequestParams::new(format!("{prefix}greeting"));
        let prompts = client.service.list_all_prompts().await.unwrap();
        assert!(prompts.iter().any(|prompt| prompt.name == params.name));
        params.arguments = json!({"name": "Ada"}).as_object().cloned();
        let got = json!(client.service.get_prompt(params).await.unwrap());
        assert_eq!(got["messages"][0]["content"]["text"], "Hello, Ada!");
    }
}

async fn completion(server: &PeerServer) {
    for (client, prefix) in server.connect_both().await {
        let found =
            client.service.complete_prompt_simple(format!("{prefix}greeting"), "name", "a").await.unwrap();
        assert_eq!(found, ["ada", "alan"]);
    }
}

async fn logging(server: &PeerServer) {
    let mut client = server.connect().await;
    let mut other = server.connect().await;
    client.set_log_level(LoggingLevel::Info).await;
    other.set_log_level(LoggingLevel::Error).await;
    client.text("log", json!({})).await;
    for line in ["one", "two", "three"] {
        assert_eq!(client.expect("notifications/message").await["data"], line);
    }
    other.text("log", json!({})).await;
    other.assert_no_message();
    client.assert_no_message();
}

async fn progress(server: &PeerServer) {
    let mut client = server.connect().await;
    let mut other = server.connect().await;
    let call = client.begin("steps", json!({})).await;
    let token = json!(call.progress_token);
    finish(call).await;
    for step in [1.0, 2.0, 3.0] {
        let received = client.expect("notifications/progress").await;
        assert_eq!(
            (&received["progressToken"], &received["progress"], &received["total"]),
            (&token, &json!(step), &json!(3.0))
        );
    }
    other.assert_no_message();
}

async fn cancel(server: &PeerServer) {
    let mut client = server.connect().await;
    let other = server.connect().await;
    let who = format!("rust-{}-{:?}", std::process::id(), server.era);
    let call = client.begin("wait", json!({"who": who})).await;
    assert_eq!(client.expect("notifications/progress").await["message"], who.as_str());
    call.cancel(None).await.unwrap();
    assert!(other.text("cancelled", json!({"who": who})).await.contains(&who));
}

async fn list_changed(server: &PeerServer) {
    let mut client = server.connect().await;
    let mut other = server.connect().await;
    client.listen(None).await;
    other.listen(None).await;
    let has_extra = async |client: &MatrixClient| {
        client.service.list_all_tools().await.unwrap().iter().any(|tool| tool.name == "extra")
    };
    let before = has_extra(&client).await;
    for expected in [!before, before] {
        client.text("toggle", json!({})).await;
        client.expect("notifications/tools/list_changed").await;
        other.expect("notifications/tools/list_changed").await;
        assert_eq!(has_extra(&client).await, expected);
    }
}

async fn updates(server: &PeerServer) {
    let mut client = server.connect().await;
    let mut other = server.connect().await;
    client.listen(Some(TEXT)).await;
    other.listen(None).await;
    other.text("update", json!({})).await;
    assert_eq!(client.expect("notifications/resources/updated").await["uri"], TEXT);
    client.text("toggle", json!({})).await;
    other.expect("notifications/tools/list_changed").await;
}

async fn check_request(server: &PeerServer, tool: &str, method: &str, content: &str, answer: &str) {
    let mut client = server.connect().await;
    let mut other = server.connect().await;
    let text = client.text(tool, json!({})).await;
    assert!(text.contains(answer), "{text}");
    let request = client.expect(method).await.to_string();
    assert!(request.contains(content), "{request}");
    other.assert_no_message();
}

#[test]
#[ignore = "run by `scripts/matrix` with a gateway in front of servers of other SDKs"]
fn other_sdks() {
    let Some(server) = PeerServer::from_env() else {
        return test_support::deadline::skip("MATRIX_ERA, MATRIX_SOCKET and MATRIX_SERVER are not set");
    };
    let path = std::env::var_os("MATRIX_OUT").unwrap();
    let mut out = std::fs::File::create(path).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for feature in FEATURES {
        let server = server.clone();
        let error = super::failure(&runtime, async move { check(feature, &server).await });
        let line = match error {
            // A URL elicitation without `elicitationId`, which this era does not have.
            Some(error) if feature == "elicitation URL" && error.contains("Unexpected response type") => {
                json!({"feature": feature, "lacks": error})
            }
            Some(error) => json!({"feature": feature, "error": error}),
            None => json!({"feature": feature}),
        };
        writeln!(out, "{line}").unwrap();
    }
    let lacks: Value = json!({"feature": "tasks", "lacks": "none of the servers has tasks of 2026-07-28"});
    writeln!(out, "{lacks}").unwrap();
}
