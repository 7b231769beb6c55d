//! Calls that become tasks if both sides support the extension, and plain calls otherwise.

use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelTaskParams, GetTaskParams, InputResponses, TaskPayload,
    UpdateTaskParams,
};
use serde_json::{Value, json};

use super::client::MatrixClient;
use super::setup::{ALL, REFERENCE, Setup};

async fn start(client: &MatrixClient, tool: &str, arguments: Value) -> String {
    let mut params = CallToolRequestParams::new(tool.to_owned());
    params.arguments = arguments.as_object().cloned();
    match client.service.call_tool_once(params).await.unwrap() {
        CallToolResponse::Task(created) => created.task.task_id,
        other => panic!("not a task: {other:?}"),
    }
}

/// Polls until the task is in the expected state.
async fn poll(client: &MatrixClient, task: &str, is_expected: impl Fn(&TaskPayload) -> bool) -> TaskPayload {
    loop {
        let got = client.service.get_task(GetTaskParams::new(task)).await.unwrap();
        assert_eq!(got.task.task.task_id, task);
        if is_expected(&got.task.payload) {
            return got.task.payload;
        }
        tokio::time::sleep(Duration::from_millis(got.task.task.poll_interval_ms.unwrap_or(20).min(20))).await;
    }
}

pub(crate) async fn extension(setup: &Setup) {
    for (path, prefix) in [(REFERENCE, ""), (ALL, "reference__")] {
        let client = setup.connect(path).await;
        let task = start(&client, &format!("{prefix}slow_compute"), json!({"seconds": 0})).await;
        let done = poll(&client, &task, |payload| matches!(payload, TaskPayload::Completed { .. })).await;
        assert!(format!("{done:?}").contains("computed"), "{done:?}");

        let task = start(&client, &format!("{prefix}slow_compute"), json!({"seconds": 600})).await;
        client.service.cancel_task(CancelTaskParams::new(task.clone())).await.unwrap();
        poll(&client, &task, |payload| matches!(payload, TaskPayload::Cancelled)).await;

        let task = start(&client, &format!("{prefix}confirm_delete"), json!({"filename": "x"})).await;
        poll(&client, &task, |payload| matches!(payload, TaskPayload::InputRequired { .. })).await;
        let answer = json!({"action": "accept", "content": {"confirm": true}});
        let answers = InputResponses::from([("confirm".to_owned(), answer)]);
        client.service.update_task(UpdateTaskParams::new(task.clone(), answers)).await.unwrap();
        let done = poll(&client, &task, |payload| matches!(payload, TaskPayload::Completed { .. })).await;
        assert!(format!("{done:?}").contains("accept"), "{done:?}");
    }
}

/// Without the extension on both sides, a call is not made a task.
pub(crate) async fn unsupported(setup: &Setup) {
    let client = setup.connect(REFERENCE).await;
    assert_eq!(client.text("slow_compute", json!({"seconds": 0})).await, "computed");
    let unknown = client.service.get_task(GetTaskParams::new("task-1")).await;
    assert!(unknown.is_err(), "{unknown:?}");
}
