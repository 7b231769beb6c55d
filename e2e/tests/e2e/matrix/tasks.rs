//! Calls that become tasks, where both sides know the extension, and what they are where one side does not.

use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelTaskParams, GetTaskParams, InputResponses, TaskPayload,
    UpdateTaskParams,
};
use serde_json::{Value, json};

use super::friend::Friend;
use super::stage::{ALL, REFERENCE, Stage};

async fn start(friend: &Friend, tool: &str, arguments: Value) -> String {
    let mut params = CallToolRequestParams::new(tool.to_owned());
    params.arguments = arguments.as_object().cloned();
    match friend.service.call_tool_once(params).await.unwrap() {
        CallToolResponse::Task(created) => created.task.task_id,
        other => panic!("not a task: {other:?}"),
    }
}

/// Polls, as the extension has it, until the task is in a state that is wanted.
async fn poll(friend: &Friend, task: &str, wanted: impl Fn(&TaskPayload) -> bool) -> TaskPayload {
    loop {
        let got = friend.service.get_task(GetTaskParams::new(task)).await.unwrap();
        assert_eq!(got.task.task.task_id, task);
        if wanted(&got.task.payload) {
            return got.task.payload;
        }
        tokio::time::sleep(Duration::from_millis(got.task.task.poll_interval_ms.unwrap_or(20).min(20))).await;
    }
}

pub(crate) async fn extension(stage: &Stage) {
    for (path, prefix) in [(REFERENCE, ""), (ALL, "reference__")] {
        let friend = stage.friend(path).await;
        let task = start(&friend, &format!("{prefix}slow_compute"), json!({"seconds": 0})).await;
        let done = poll(&friend, &task, |payload| matches!(payload, TaskPayload::Completed { .. })).await;
        assert!(format!("{done:?}").contains("computed"), "{done:?}");

        let task = start(&friend, &format!("{prefix}slow_compute"), json!({"seconds": 600})).await;
        friend.service.cancel_task(CancelTaskParams::new(task.clone())).await.unwrap();
        poll(&friend, &task, |payload| matches!(payload, TaskPayload::Cancelled)).await;

        let task = start(&friend, &format!("{prefix}confirm_delete"), json!({"filename": "x"})).await;
        poll(&friend, &task, |payload| matches!(payload, TaskPayload::InputRequired { .. })).await;
        let answer = json!({"action": "accept", "content": {"confirm": true}});
        let answers = InputResponses::from([("confirm".to_owned(), answer)]);
        friend.service.update_task(UpdateTaskParams::new(task.clone(), answers)).await.unwrap();
        let done = poll(&friend, &task, |payload| matches!(payload, TaskPayload::Completed { .. })).await;
        assert!(format!("{done:?}").contains("accept"), "{done:?}");
    }
}

/// Nobody makes a task for whom it would mean nothing: the call is a call.
pub(crate) async fn none(stage: &Stage) {
    let friend = stage.friend(REFERENCE).await;
    assert_eq!(friend.text("slow_compute", json!({"seconds": 0})).await, "computed");
    let unknown = friend.service.get_task(GetTaskParams::new("task-1")).await;
    assert!(unknown.is_err(), "{unknown:?}");
}
