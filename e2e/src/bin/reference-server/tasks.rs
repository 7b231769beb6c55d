//! Tools of the tasks extension: their answer is a task, for those who know what that is.

use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::{
    CallToolResponse, CallToolResult, ClientCapabilities, CreateTaskResult, InputRequests, JsonObject,
};
use rmcp::task_manager::{TaskContext, TaskExit, TaskFuture, TaskOptions};
use serde_json::Value;

use crate::caller::{Answer, Caller};
use crate::content::text;
use crate::questions::{form, name_question};

type Ending = Result<CallToolResult, TaskExit>;

pub(crate) async fn call(
    name: &str,
    arguments: &JsonObject,
    caller: &Caller<'_>,
) -> Result<Option<CallToolResponse>, ErrorData> {
    let knows_tasks = caller.can().supports_tasks();
    let seconds = Duration::from_secs(arguments.get("seconds").and_then(Value::as_u64).unwrap_or_default());
    if name == "slow_compute" && !knows_tasks {
        tokio::time::sleep(seconds).await;
        return Ok(Some(computed().into()));
    }
    let work: fn(TaskContext, Duration) -> TaskFuture = match name {
        "slow_compute" => |task, seconds| Box::pin(compute(task, seconds)),
        "failing_job" => |task, _| Box::pin(fail(task)),
        "protocol_error_job" => |_, _| Box::pin(std::future::ready(broken())),
        "confirm_delete" => |task, _| Box::pin(confirm(task)),
        "multi_input" => |task, _| Box::pin(two_questions(task)),
        "test_tool_with_task" => return greet_later(caller, knows_tasks).await.map(Some),
        _ => return Ok(None),
    };
    require_tasks(knows_tasks)?;
    Ok(Some(start(caller, move |task| work(task, seconds))))
}

fn require_tasks(knows_tasks: bool) -> Result<(), ErrorData> {
    if knows_tasks {
        return Ok(());
    }
    let missing = ClientCapabilities::builder().enable_extensions().enable_tasks().build();
    Err(ErrorData::missing_required_client_capability(missing))
}

fn start(caller: &Caller<'_>, work: impl FnOnce(TaskContext) -> TaskFuture) -> CallToolResponse {
    let options = TaskOptions::new().with_poll_interval_ms(100);
    CreateTaskResult::new(caller.shared.tasks.spawn(options, work)).into()
}

fn computed() -> CallToolResult {
    CallToolResult::success(vec![text("computed")])
}

async fn compute(task: TaskContext, time: Duration) -> Ending {
    tokio::select! {
        () = task.cancelled() => Err(TaskExit::Cancelled),
        () = tokio::time::sleep(time) => Ok(computed()),
    }
}

/// A tool that ran and failed: that is a completed task.
async fn fail(task: TaskContext) -> Ending {
    compute(task, Duration::from_secs(1)).await?;
    Ok(CallToolResult::error(vec![text("the job failed")]))
}

/// A tool that could not run: that is a failed task.
fn broken() -> Ending {
    Err(ErrorData::internal_error("the job broke", None).into())
}

async fn confirm(task: TaskContext) -> Ending {
    let answer = task.request_input("confirm", form("Delete it?", "confirm", "boolean")?).await?;
    Ok(CallToolResult::success(vec![text(answer.to_string())]))
}

async fn two_questions(task: TaskContext) -> Ending {
    let (first, second) = tokio::try_join!(
        task.request_input("first", name_question()?),
        task.request_input("second", form("Are you sure?", "confirm", "boolean")?),
    )?;
    Ok(CallToolResult::success(vec![text(format!("{first} {second}"))]))
}

/// Asks for a name first, and greets it in a task.
async fn greet_later(caller: &Caller<'_>, knows_tasks: bool) -> Result<CallToolResponse, ErrorData> {
    require_tasks(knows_tasks)?;
    let question = InputRequests::from([("user_name".to_owned(), name_question()?)]);
    let answers = match caller.ask(question, None).await? {
        Answer::Wanted(result) => return Ok(result.into()),
        Answer::Given(answers) => answers,
    };
    let name = answers.get("user_name").and_then(|answer| answer.pointer("/content/name"));
    let greeting = format!("Hello, {}!", name.and_then(Value::as_str).unwrap_or("you"));
    Ok(start(caller, move |_| {
        Box::pin(std::future::ready(Ok(CallToolResult::success(vec![text(greeting)]))))
    }))
}
