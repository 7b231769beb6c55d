//! Tools that send notifications before they answer: progress, log messages, list changes.

use std::time::Duration;

use rmcp::model::{CallToolResult, LoggingLevel, LoggingMessageNotificationParam, ProgressNotificationParam};
use serde_json::json;

use crate::caller::Caller;
use crate::content::text;
use crate::resources::WATCHED;
use crate::shared::Change;

const PAUSE: Duration = Duration::from_millis(50);

pub(crate) async fn call(name: &str, caller: &Caller<'_>) -> Option<CallToolResult> {
    match name {
        "test_tool_with_progress" => progress(caller).await,
        "test_tool_with_logging" | "test_logging_tool" => log(caller).await,
        "test_reconnection" => tokio::time::sleep(2 * PAUSE).await,
        "test_trigger_tool_change" => caller.shared.change(Change::Tools).await,
        "test_trigger_prompt_change" => caller.shared.change(Change::Prompts).await,
        "test_trigger_resource_update" => caller.shared.change(Change::Resource(WATCHED.to_owned())).await,
        _ => return None,
    }
    Some(CallToolResult::success(vec![text(format!("`{name}` is done"))]))
}

async fn progress(caller: &Caller<'_>) {
    let token = caller.context.meta.get_progress_token();
    for percent in [0.0, 50.0, 100.0] {
        if let Some(token) = &token {
            let step = ProgressNotificationParam::new(token.clone(), percent).with_total(100.0);
            // Fails only if the client has disconnected.
            let _ = caller.context.peer.notify_progress(step).await;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn log(caller: &Caller<'_>) {
    for line in ["Tool execution started", "Tool processing data", "Tool execution completed"] {
        if caller.log_level().is_some_and(|minimum| minimum as u8 <= LoggingLevel::Info as u8) {
            let line = LoggingMessageNotificationParam::new(LoggingLevel::Info, json!(line));
            let _ = caller.context.peer.notify_logging_message(line).await;
        }
        tokio::time::sleep(PAUSE).await;
    }
}
