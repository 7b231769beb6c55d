//! Tools of the tasks extension, which answer clients that support it with a task.

use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::{
    CallToolResponse, CallToolResult, ClientCapabilities, CreateTaskResult, InputRequests, JsonObject,
};
use rmcp::task_manager::{TaskContext, TaskExit, TaskFuture, TaskOptions};
use serde_json::Value;

use crate::caller::{Answer, Caller};
use crate::content::text;
use crate::input_requests::{form, name_form};

type TaskResult = Result<CallToolResult, TaskExit>;

pub(crate) async fn call(
    name: &str,
    arguments: &JsonObject,
    caller: &Caller<'_>,
) -> Result<Option<CallToolResponse>, ErrorData> {
    let supports_tasks = caller.capabilities().supports_tasks();
    let seconds = Duration::from_secs(arguments.get("seconds").and_then(Value::as_u64).unwrap_or_default());
    if name == "slow_compute" && !supports_tasks {
        tokio::time::sleep(seconds).await;
        return Ok(Some(computed().into()));
    }
    let run: fn(TaskContext, Duration) -> TaskFuture = match name {
        "slow_compute" => |task, seconds| Box::pin(compute(task, seconds)),
        "failing_job" => |task, _| Box::pin(fail(task)),
        "protocol_error_job" => |_, _| Box::pin(std::future::ready(fail_with_protocol_error())),
        "confirm_delete" => |task, _| Box::pin(confirm(task)),
        "multi_input" => |task, _| Box::pin(request_two_inputs(task)),
        "test_tool_with_task" => return greet_in_task(caller, supports_tasks).await.map(Some),
        _ => return Ok(None),
    };
    require_tasks(supports_tasks)?;
    Ok(Some(start(caller, move |task| run(task, seconds))))
}

fn require_tasks(supports_tasks: bool) -> Result<(), ErrorData> {
    if supports_tasks {
        return Ok(());
    }
    let missing = ClientCapabilities::builder().enable_extensions().enable_tasks().build();
    Err(ErrorData::missing_required_client_capability(missing))
}

fn start(caller: &Caller<'_>, run: impl FnOnce(TaskContext) -> TaskFuture) -> CallToolResponse {
    let options = TaskOptions::new().with_poll_interval_ms(100);
    CreateTaskResult::new(caller.shared.tasks.spawn(options, run)).into()
}

fn computed() -> CallToolResult {
    CallToolResult::success(vec![text("computed")])
}

async fn compute(task: TaskContext, duration: Duration) -> TaskResult {
    tokio::select! {
        () = task.cancelled() => Err(TaskExit::Cancelled),
        () = tokio::time::sleep(duration) => Ok(computed()),
    }
}

/// Ends as a completed task whose tool result is an error.
async fn fail(task: TaskContext) -> TaskResult {
    compute(task, Duration::from_secs(1)).await?;
    Ok(CallToolResult::error(vec![text("the job failed")]))
}

/// Ends as a failed task.
fn fail_with_protocol_error() -> TaskResult {
    Err(ErrorData::internal_error("the job broke", None).into())
}

async fn confirm(task: TaskContext) -> TaskResult {
    let answer = task.request_input("confirm", form("Delete it?", "confirm", "boolean")?).await?;
    Ok(CallToolResult::success(vec![text(answer.to_string())]))
}

async fn request_two_inputs(task: TaskContext) -> TaskResult {
    let (first, second) = tokio::try_join!(
        task.request_input("first", name_form()?),
        task.request_input("second", form("Are you sure?", "confirm", "boolean")?),
    )?;
    Ok(CallToolResult::success(vec![text(format!("{first} {second}"))]))
}

/// Requests a name first, then greets it in a task.
async fn greet_in_task(caller: &Caller<'_>, supports_tasks: bool) -> Result<CallToolResponse, ErrorData> {
    require_tasks(supports_tasks)?;
    let requests = InputRequests::from([("user_name".to_owned(), name_form()?)]);
    let answers = match caller.ask(requests, None).await? {
        Answer::InputRequired(result) => return Ok(result.into()),
        Answer::Answered(answers) => answers,
    };
    let name = answers.get("user_name").and_then(|answer| answer.pointer("/content/name"));
    let greeting = format!("Hello, {}!", name.and_then(Value::as_str).unwrap_or("you"));
    Ok(start(caller, move |_| {
        Box::pin(std::future::ready(Ok(CallToolResult::success(vec![text(greeting)]))))
    }))
}
