//! Calls while they run: progress, log messages and cancellation.

use rmcp::model::LoggingLevel;
use serde_json::json;

use super::client::{PROGRESS_STEPS, PROGRESS_TOOL, finish};
use super::setup::{MATRIX, REFERENCE, Setup};

pub(crate) async fn progress(setup: &Setup) {
    let mut client = setup.connect(REFERENCE).await;
    let mut other = setup.connect(REFERENCE).await;
    // Two concurrent calls: each client gets its own progress.
    let call = client.begin(PROGRESS_TOOL, json!({})).await;
    let others = other.begin(PROGRESS_TOOL, json!({})).await;
    let tokens = [json!(call.progress_token), json!(others.progress_token)];
    let done = format!("`{PROGRESS_TOOL}` is done");
    assert_eq!((finish(call).await, finish(others).await), (done.clone(), done));
    for (client, token) in [&mut client, &mut other].into_iter().zip(tokens) {
        for step in PROGRESS_STEPS {
            let progress = client.expect("notifications/progress").await;
            assert_eq!(progress["progressToken"], token, "{progress}");
            assert_eq!((&progress["progress"], &progress["total"]), (&json!(step), &json!(100.0)));
        }
        client.assert_no_pending_message().await;
    }
}

pub(crate) async fn logging(setup: &Setup) {
    let mut client = setup.connect(REFERENCE).await;
    let mut other = setup.connect(REFERENCE).await;
    client.set_log_level(LoggingLevel::Info).await;
    other.set_log_level(LoggingLevel::Error).await;
    client.text("test_tool_with_logging", json!({})).await;
    for line in ["Tool execution started", "Tool processing data", "Tool execution completed"] {
        let message = client.expect("notifications/message").await;
        assert_eq!((&message["data"], &message["level"]), (&json!(line), &json!("info")));
    }
    other.text("test_tool_with_logging", json!({})).await;
    client.assert_no_pending_message().await;
    other.assert_no_pending_message().await;
    client.set_log_level(LoggingLevel::Warning).await;
    client.text("test_tool_with_logging", json!({})).await;
    client.assert_no_pending_message().await;
}

pub(crate) async fn cancel(setup: &Setup) {
    let mut client = setup.connect(MATRIX).await;
    let mut other = setup.connect(MATRIX).await;
    let first = setup.unique("first");
    let second = setup.unique("other");
    let call = client.begin("wait", json!({"who": first})).await;
    let others = other.begin("wait", json!({"who": second})).await;
    for (client, who) in [(&mut client, &first), (&mut other, &second)] {
        assert_eq!(client.expect("notifications/progress").await["message"], *who);
    }
    call.cancel(Some("changed my mind".to_owned())).await.unwrap();
    let cancelled = other.text("cancelled", json!({"who": first})).await;
    assert!(cancelled.ends_with(&first) && !cancelled.contains(&second), "{cancelled}");
    others.cancel(None).await.unwrap();
    let cancelled = client.text("cancelled", json!({"who": second})).await;
    assert!(cancelled.ends_with(&format!("{first},{second}")), "{cancelled}");
}
