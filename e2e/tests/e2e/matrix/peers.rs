//! The client of the Rust SDK in front of servers of the other SDKs, for `scripts/matrix`.
//!
//! The fixtures are those of `scripts/matrix-peers/README.md`; a line of JSON for each feature goes to `MATRIX_OUT`.

use std::io::Write as _;
use std::path::PathBuf;

use rmcp::model::{GetPromptRequestParams, LoggingLevel, ReadResourceRequestParams};
use serde_json::{Value, json};
use test_support::client::Era;

use super::friend::{Friend, finish};

const TEXT: &str = "matrix://text";

/// Where the gateway is, and which of its servers is meant.
#[derive(Clone)]
struct Place {
    socket: PathBuf,
    server: String,
    era: Era,
}

impl Place {
    fn named() -> Option<Self> {
        let era = match std::env::var("MATRIX_ERA").ok()?.as_str() {
            "session" => Era::Session,
            _ => Era::Stateless,
        };
        Some(Self {
            socket: std::env::var_os("MATRIX_SOCKET")?.into(),
            server: std::env::var("MATRIX_SERVER").ok()?,
            era,
        })
    }

    async fn friend(&self) -> Friend {
        Friend::new(&self.socket, &format!("/mcp/s/{}", self.server), self.era).await
    }

    /// The server's own endpoint and all together, and what stands before names there.
    async fn views(&self) -> [(Friend, String); 2] {
        let together = Friend::new(&self.socket, "/mcp", self.era).await;
        [(self.friend().await, String::new()), (together, format!("{}__", self.server))]
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
    // Last: for a moment after it, a shared server's question may be about the call that was taken back.
    "cancel",
];

async fn check(feature: &str, place: &Place) {
    match feature {
        "tools" => tools(place).await,
        "resources" => resources(place).await,
        "prompts" => prompts(place).await,
        "completion" => completion(place).await,
        "logging" => logging(place).await,
        "progress" => progress(place).await,
        "cancel" => cancel(place).await,
        "list_changed" => list_changed(place).await,
        "resource updates" => updates(place).await,
        "sampling" => asks(place, "sample", "sampling/createMessage", "Say something", "a sample").await,
        "elicitation form" => asks(place, "form", "elicitation/create", "Who are you?", "ada").await,
        "elicitation URL" => {
            asks(place, "url", "elicitation/create", "https://example.com/sign-in", "accept").await;
        }
        "roots" => asks(place, "roots", "roots/list", "{}", "file:///home/ada").await,
        _ => panic!("nothing checks `{feature}`"),
    }
}

async fn tools(place: &Place) {
    for (friend, prefix) in place.views().await {
        let tools = friend.service.list_all_tools().await.unwrap();
        assert!(tools.iter().any(|tool| tool.name == format!("{prefix}echo")));
        assert_eq!(friend.text(&format!("{prefix}echo"), json!({"text": "hi"})).await, "hi");
    }
}

async fn resources(place: &Place) {
    for (friend, prefix) in place.views().await {
        let ours = |uri: &String| prefix.is_empty() || uri.contains(&place.server);
        let read = async |uri: String| {
            json!(
                friend.service.read_resource(ReadResourceRequestParams::new(uri)).await.unwrap().contents[0]
            )
        };
        let resources = friend.service.list_all_resources().await.unwrap();
        let text = resources.into_iter().map(|resource| resource.uri).find(ours).unwrap();
        assert_eq!(read(text).await["text"], "the text");
        let templates = friend.service.list_all_resource_templates().await.unwrap();
        let item = templates.into_iter().map(|template| template.uri_template).find(ours).unwrap();
        assert_eq!(read(item.replace("{id}", "7")).await["text"], "item 7");
    }
}

async fn prompts(place: &Place) {
    for (friend, prefix) in place.views().await {
        let mut params = GetPromptRequestParams::new(format!("{prefix}greeting"));
        let prompts = friend.service.list_all_prompts().await.unwrap();
        assert!(prompts.iter().any(|prompt| prompt.name == params.name));
        params.arguments = json!({"name": "Ada"}).as_object().cloned();
        let got = json!(friend.service.get_prompt(params).await.unwrap());
        assert_eq!(got["messages"][0]["content"]["text"], "Hello, Ada!");
    }
}

async fn completion(place: &Place) {
    for (friend, prefix) in place.views().await {
        let found =
            friend.service.complete_prompt_simple(format!("{prefix}greeting"), "name", "a").await.unwrap();
        assert_eq!(found, ["ada", "alan"]);
    }
}

async fn logging(place: &Place) {
    let (mut friend, mut other) = (place.friend().await, place.friend().await);
    friend.wants_log(LoggingLevel::Info).await;
    other.wants_log(LoggingLevel::Error).await;
    friend.text("log", json!({})).await;
    for line in ["one", "two", "three"] {
        assert_eq!(friend.hears("notifications/message").await["data"], line);
    }
    other.text("log", json!({})).await;
    other.is_empty();
    friend.is_empty();
}

async fn progress(place: &Place) {
    let (mut friend, mut other) = (place.friend().await, place.friend().await);
    let call = friend.begin("steps", json!({})).await;
    let token = json!(call.progress_token);
    finish(call).await;
    for step in [1.0, 2.0, 3.0] {
        let heard = friend.hears("notifications/progress").await;
        assert_eq!(
            (&heard["progressToken"], &heard["progress"], &heard["total"]),
            (&token, &json!(step), &json!(3.0))
        );
    }
    other.is_empty();
}

async fn cancel(place: &Place) {
    let (mut friend, other) = (place.friend().await, place.friend().await);
    let who = format!("rust-{}-{:?}", std::process::id(), place.era);
    let call = friend.begin("wait", json!({"who": who})).await;
    assert_eq!(friend.hears("notifications/progress").await["message"], who.as_str());
    call.cancel(None).await.unwrap();
    assert!(other.text("cancelled", json!({"who": who})).await.contains(&who));
}

async fn list_changed(place: &Place) {
    let (mut friend, mut other) = (place.friend().await, place.friend().await);
    friend.listen(None).await;
    other.listen(None).await;
    let there = async |friend: &Friend| {
        friend.service.list_all_tools().await.unwrap().iter().any(|tool| tool.name == "extra")
    };
    let before = there(&friend).await;
    for wanted in [!before, before] {
        friend.text("toggle", json!({})).await;
        friend.hears("notifications/tools/list_changed").await;
        other.hears("notifications/tools/list_changed").await;
        assert_eq!(there(&friend).await, wanted);
    }
}

async fn updates(place: &Place) {
    let (mut friend, mut other) = (place.friend().await, place.friend().await);
    friend.listen(Some(TEXT)).await;
    other.listen(None).await;
    other.text("update", json!({})).await;
    assert_eq!(friend.hears("notifications/resources/updated").await["uri"], TEXT);
    friend.text("toggle", json!({})).await;
    other.hears("notifications/tools/list_changed").await;
}

async fn asks(place: &Place, tool: &str, method: &str, question: &str, answer: &str) {
    let (mut friend, mut other) = (place.friend().await, place.friend().await);
    let said = friend.text(tool, json!({})).await;
    assert!(said.contains(answer), "{said}");
    let asked = friend.hears(method).await.to_string();
    assert!(asked.contains(question), "{asked}");
    other.is_empty();
}

#[test]
#[ignore = "`scripts/matrix` runs it, with a gateway in front of servers of other SDKs"]
fn other_sdks() {
    let Some(place) = Place::named() else {
        return test_support::deadline::skip("MATRIX_ERA, MATRIX_SOCKET and MATRIX_SERVER are not set");
    };
    let path = std::env::var_os("MATRIX_OUT").unwrap();
    let mut out = std::fs::File::create(path).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for feature in FEATURES {
        let place = place.clone();
        let error = super::failure(&runtime, async move { check(feature, &place).await });
        let line = match error {
            // A question at a URL without `elicitationId`, which this era does not have.
            Some(why) if feature == "elicitation URL" && why.contains("Unexpected response type") => {
                json!({"feature": feature, "lacks": why})
            }
            Some(why) => json!({"feature": feature, "error": why}),
            None => json!({"feature": feature}),
        };
        writeln!(out, "{line}").unwrap();
    }
    let lacks: Value = json!({"feature": "tasks", "lacks": "none of the servers has tasks of 2026-07-28"});
    writeln!(out, "{lacks}").unwrap();
}
