//! What happens while a call runs: progress, lines of log, and that it is taken back.

use rmcp::model::LoggingLevel;
use serde_json::json;

use super::friend::{REPORTS, finish};
use super::stage::{MATRIX, REFERENCE, Stage};

pub(crate) async fn progress(stage: &Stage) {
    let (mut friend, mut other) = (stage.friend(REFERENCE).await, stage.friend(REFERENCE).await);
    // Two calls at once: each client hears of its own.
    let (call, others) = (friend.begin(REPORTS.0, json!({})).await, other.begin(REPORTS.0, json!({})).await);
    let tokens = [json!(call.progress_token), json!(others.progress_token)];
    let done = format!("`{}` is done", REPORTS.0);
    assert_eq!((finish(call).await, finish(others).await), (done.clone(), done));
    for (client, token) in [&mut friend, &mut other].into_iter().zip(tokens) {
        for step in REPORTS.1 {
            let progress = client.hears("notifications/progress").await;
            assert_eq!(progress["progressToken"], token, "{progress}");
            assert_eq!((&progress["progress"], &progress["total"]), (&json!(step), &json!(100.0)));
        }
        client.heard_nothing().await;
    }
}

pub(crate) async fn logging(stage: &Stage) {
    let (mut friend, mut other) = (stage.friend(REFERENCE).await, stage.friend(REFERENCE).await);
    friend.wants_log(LoggingLevel::Info).await;
    other.wants_log(LoggingLevel::Error).await;
    friend.text("test_tool_with_logging", json!({})).await;
    for line in ["Tool execution started", "Tool processing data", "Tool execution completed"] {
        let said = friend.hears("notifications/message").await;
        assert_eq!((&said["data"], &said["level"]), (&json!(line), &json!("info")));
    }
    other.text("test_tool_with_logging", json!({})).await;
    friend.heard_nothing().await;
    other.heard_nothing().await;
    friend.wants_log(LoggingLevel::Warning).await;
    friend.text("test_tool_with_logging", json!({})).await;
    friend.heard_nothing().await;
}

pub(crate) async fn cancel(stage: &Stage) {
    let (mut friend, mut other) = (stage.friend(MATRIX).await, stage.friend(MATRIX).await);
    let call = friend.begin("wait", json!({"who": "friend"})).await;
    let others = other.begin("wait", json!({"who": "other"})).await;
    for (client, who) in [(&mut friend, "friend"), (&mut other, "other")] {
        assert_eq!(client.hears("notifications/progress").await["message"], who);
    }
    call.cancel(Some("changed my mind".to_owned())).await.unwrap();
    assert_eq!(other.text("cancelled", json!({"who": "friend"})).await, "friend");
    others.cancel(None).await.unwrap();
    assert_eq!(friend.text("cancelled", json!({"who": "other"})).await, "friend,other");
}
