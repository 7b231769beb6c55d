//! What a server asks in the middle of a call, and that it asks the client whose call it is.

use rmcp::model::GetPromptRequestParams;
use serde_json::{Value, json};

use super::stage::{MATRIX, REFERENCE, Stage};

/// Calls a tool that asks; what was asked, and what the tool made of the answer. Another client hears nothing.
async fn ask(stage: &Stage, tool: &str, arguments: Value, method: &str) -> (Value, String) {
    let (mut friend, mut other) = (stage.friend(REFERENCE).await, stage.friend(REFERENCE).await);
    let text = friend.text(tool, arguments).await;
    let asked = friend.hears(method).await;
    friend.heard_nothing().await;
    other.heard_nothing().await;
    (asked, text)
}

pub(crate) async fn sampling(stage: &Stage) {
    let arguments = json!({"prompt": "Say something"});
    let (asked, text) = ask(stage, "test_sampling", arguments, "sampling/createMessage").await;
    assert!(asked["messages"].to_string().contains("Say something"), "{asked}");
    assert_eq!(asked["maxTokens"], 100, "{asked}");
    assert!(text.contains("a sample"), "{text}");
}

pub(crate) async fn form(stage: &Stage) {
    let arguments = json!({"message": "Who are you?"});
    let (asked, text) = ask(stage, "test_elicitation", arguments, "elicitation/create").await;
    assert_eq!(asked["message"], "Who are you?", "{asked}");
    assert_eq!(asked["requestedSchema"]["properties"]["email"]["type"], "string", "{asked}");
    assert!(text.contains("ada@example.com"), "{text}");
    // Two questions, one after the other, and one in a prompt.
    let mut friend = stage.friend(REFERENCE).await;
    let text = friend.text("test_input_required_result_multi_round", json!({})).await;
    assert!(text.contains("accept"), "{text}");
    for step in ["Step 1: What is your name?", "Step 2: What is your favorite color?"] {
        assert_eq!(friend.hears("elicitation/create").await["message"], step);
    }
    let prompt = GetPromptRequestParams::new("test_input_required_result_prompt");
    let got = json!(friend.service.get_prompt(prompt).await.unwrap());
    assert!(got.to_string().contains("accept"), "{got}");
    let asked = friend.hears("elicitation/create").await;
    assert_eq!(asked["message"], "What context should the prompt use?", "{asked}");
}

pub(crate) async fn url(stage: &Stage) {
    let mut friend = stage.friend(MATRIX).await;
    let text = friend.text("url", json!({})).await;
    let asked = friend.hears("elicitation/create").await;
    assert_eq!((&asked["mode"], &asked["message"]), (&json!("url"), &json!("Sign in")), "{asked}");
    assert_eq!(asked["url"], "https://example.com/sign-in", "{asked}");
    assert!(text.contains("accept"), "{text}");
}

pub(crate) async fn roots(stage: &Stage) {
    let (_, text) = ask(stage, "test_input_required_result_list_roots", json!({}), "roots/list").await;
    assert!(text.contains("file:///home/ada"), "{text}");
}
