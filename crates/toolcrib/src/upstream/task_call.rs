//! Calls of task-only tools on behalf of stateless clients, which have no such tasks: the call creates a task at a
//! session-era server, waits for it and returns its result. Tasks that clients create themselves are passed through.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use tokio::time::{Instant, sleep_until};

use super::Connection;
use super::deadline::Deadline;
use super::pending::{Activity, ResponseReceiver};
use crate::call::Call;
use crate::model::error::Error;
use crate::model::listing::ListedItem;
use crate::protocol::json::object::Object;
use crate::protocol::jsonrpc::ResponsePayload;
use crate::protocol::versions::Era;
use crate::util::locks::IgnorePoison as _;

/// The tools of one server that run only as tasks.
#[derive(Debug, Default)]
pub(super) struct TaskOnlyTools {
    /// False if there are none. Spares the lock for most servers.
    is_nonempty: AtomicBool,
    names: Mutex<HashSet<Arc<str>>>,
}

impl TaskOnlyTools {
    fn names(&self) -> MutexGuard<'_, HashSet<Arc<str>>> {
        self.names.lock().ignore_poison()
    }

    fn contains(&self, tool: &str) -> bool {
        self.is_nonempty.load(Ordering::Relaxed) && self.names().contains(tool)
    }
}

impl Connection {
    /// Records which tools run only as tasks, if the server supports tasks for tool calls.
    pub(super) fn set_task_only_tools(&self, tools: &[ListedItem]) {
        let supports_tasks =
            self.era() == Era::Session && server_supports_tasks(&self.handshake.capabilities);
        let task_only = tools.iter().filter(|tool| supports_tasks && requires_task(&tool.definition));
        let task_only: HashSet<Arc<str>> = task_only.map(|tool| tool.name.clone()).collect();
        self.task_only_tools.is_nonempty.store(!task_only.is_empty(), Ordering::Relaxed);
        *self.task_only_tools.names() = task_only;
    }

    /// Returns whether a call must run as a task that its client does not know about.
    pub(super) fn needs_task(&self, call: &Call, tool: &str) -> bool {
        self.task_only_tools.contains(tool)
            && call.client.era == Era::Stateless
            && call.method == "tools/call"
            && call.params.get("task").is_none()
    }

    /// Waits for the task that a call has created and returns its result. A task that the server still works on
    /// counts as progress.
    pub(super) async fn await_task_result(
        &self,
        call: &Call,
        started: ResponsePayload,
        deadline: &Deadline<'_>,
    ) -> Result<ResponsePayload, Error> {
        let Some(task) = task_id(&started) else { return Ok(started) };
        let mut running = RunningTask { connection: self, task: Some(task.clone()) };
        let turn = Some(self.acquire_turn(call.client.key, deadline).await?);
        let receiver =
            ResponseReceiver { client: call.client.clone(), updates: call.update_sink.clone(), turn };
        let mut result = self.send_request("tasks/result", &mut task_params(&task), Some(receiver), None)?;
        let mut request_deadline = deadline.for_request();
        let response = loop {
            tokio::select! {
                biased;
                response = &mut result => break response?,
                () = sleep_until(request_deadline.until) => {}
            }
            let is_working = tokio::select! {
                biased;
                response = &mut result => break response?,
                is_working = self.is_task_working(&task) => is_working,
            };
            let activity =
                if is_working { Some(Activity::Progress(Instant::now())) } else { result.last_activity() };
            match request_deadline.extend(activity) {
                Some(extended) => request_deadline = extended,
                None => return Err(deadline.timeout_error(&self.server, request_deadline.until)),
            }
        };
        running.task = None;
        Ok(response)
    }

    async fn is_task_working(&self, task: &Bytes) -> bool {
        let Ok(ResponsePayload::Result(state)) = self.request("tasks/get", task_params(task)).await else {
            return false;
        };
        let state = Object::parse(&state).unwrap_or_default();
        matches!(state.get_string("status").as_deref(), Some("working" | "input_required"))
    }
}

/// A task that is cancelled when its call is dropped.
struct RunningTask<'a> {
    connection: &'a Connection,
    task: Option<Bytes>,
}

impl Drop for RunningTask<'_> {
    fn drop(&mut self) {
        let Some(task) = &self.task else { return };
        // The response does not matter. If the server is gone, so is the task.
        if let Ok(reply) = self.connection.send_request("tasks/cancel", &mut task_params(task), None, None) {
            drop(reply.without_cancellation());
        }
    }
}

/// Returns parameters with a task id, which keeps the server's spelling.
fn task_params(task: &Bytes) -> Object {
    let mut params = Object::default();
    params.set_unchecked("taskId", task.clone());
    params
}

/// Returns the raw id of the task that a response describes.
fn task_id(response: &ResponsePayload) -> Option<Bytes> {
    let ResponsePayload::Result(result) = response else { return None };
    Object::parse(Object::parse(result).ok()?.get("task")?).ok()?.get("taskId").cloned()
}

/// Returns whether the capabilities allow tool calls as tasks.
fn server_supports_tasks(capabilities: &Bytes) -> bool {
    let inner = |outer: &Bytes, name| Object::parse(outer).ok()?.get(name).cloned();
    let tasks = inner(capabilities, "tasks").and_then(|tasks| inner(&tasks, "requests"));
    tasks.and_then(|requests| inner(&requests, "tools")).is_some_and(|tools| inner(&tools, "call").is_some())
}

/// Returns whether a tool definition says that it runs only as a task.
fn requires_task(definition: &Bytes) -> bool {
    if memchr::memmem::find(definition, b"taskSupport").is_none() {
        return false;
    }
    let execution =
        Object::parse(definition).ok().and_then(|tool| Object::parse(tool.get("execution")?).ok());
    execution.is_some_and(|execution| execution.get_string("taskSupport").as_deref() == Some("required"))
}
