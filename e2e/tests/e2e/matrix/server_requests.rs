//! Requests of servers during a call, which must reach the client of that call.

use rmcp::model::GetPromptRequestParams;
use serde_json::{Value, json};

use super::setup::{MATRIX, REFERENCE, Setup};

/// Calls a tool that sends a request; returns the request and the text of the result. Another client gets nothing.
async fn ask(setup: &Setup, tool: &str, arguments: Value, method: &str) -> (Value, String) {
    let mut client = setup.connect(REFERENCE).await;
    let mut other = setup.connect(REFERENCE).await;
    let text = client.text(tool, arguments).await;
    let request = client.expect(method).await;
    client.assert_no_pending_message().await;
    other.assert_no_pending_message().await;
    (request, text)
}

pub(crate) async fn sampling(setup: &Setup) {
    let arguments = json!({"prompt": "Say something"});
    let (request, text) = ask(setup, "test_sampling", arguments, "sampling/createMessage").await;
    assert!(request["messages"].to_string().contains("Say something"), "{request}");
    assert_eq!(request["maxTokens"], 100, "{request}");
    assert!(text.contains("a sample"), "{text}");
}

pub(crate) async fn form(setup: &Setup) {
    let arguments = json!({"message": "Who are you?"});
    let (request, text) = ask(setup, "test_elicitation", arguments, "elicitation/create").await;
    assert_eq!(request["message"], "Who are you?", "{request}");
    assert_eq!(request["requestedSchema"]["properties"]["email"]["type"], "string", "{request}");
    assert!(text.contains("ada@example.com"), "{text}");
    // Two requests in sequence, and one from a prompt.
    let mut client = setup.connect(REFERENCE).await;
    let text = client.text("test_input_required_result_multi_round", json!({})).await;
    assert!(text.contains("accept"), "{text}");
    for step in ["Step 1: What is your name?", "Step 2: What is your favorite color?"] {
        assert_eq!(client.expect("elicitation/create").await["message"], step);
    }
    let prompt = GetPromptRequestParams::new(client.qualify("test_input_required_result_prompt"));
    let got = json!(client.service.get_prompt(prompt).await.unwrap());
    assert!(got.to_string().contains("accept"), "{got}");
    let request = client.expect("elicitation/create").await;
    assert_eq!(request["message"], "What context should the prompt use?", "{request}");
}

pub(crate) async fn url(setup: &Setup) {
    let mut client = setup.connect(MATRIX).await;
    let text = client.text("url", json!({})).await;
    let request = client.expect("elicitation/create").await;
    assert_eq!((&request["mode"], &request["message"]), (&json!("url"), &json!("Sign in")), "{request}");
    assert_eq!(request["url"], "https://example.com/sign-in", "{request}");
    assert!(text.contains("accept"), "{text}");
}

pub(crate) async fn roots(setup: &Setup) {
    let (_, text) = ask(setup, "test_input_required_result_list_roots", json!({}), "roots/list").await;
    assert!(text.contains("file:///home/ada"), "{text}");
}
