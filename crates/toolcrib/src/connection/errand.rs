//! Tools that a server with sessions runs as tasks only, for clients of the era that has no such tasks: the call begins
//! the task, waits until it is over and has its result. Tasks that a client makes itself pass by.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::time::{Instant, sleep_until};

use super::Connection;
use super::deadline::Deadline;
use super::listing::Listed;
use super::pending::{Heard, Listener};
use crate::call::Call;
use crate::error::Error;
use crate::wire::message::Answer;
use crate::wire::object::Object;
use crate::wire::revision::Era;

/// The tools of one server that run as tasks only.
#[derive(Debug, Default)]
pub(super) struct Errands {
    /// Whether there are any; most servers have none, and their calls ask for no more than this.
    any: AtomicBool,
    names: Mutex<HashSet<Arc<str>>>,
}

impl Errands {
    fn names(&self) -> MutexGuard<'_, HashSet<Arc<str>>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has(&self, tool: &str) -> bool {
        self.any.load(Ordering::Relaxed) && self.names().contains(tool)
    }
}

impl Connection {
    /// Notes which of its tools the server runs as tasks only, if it makes tasks of calls at all.
    pub(super) fn note_errands(&self, tools: &[Listed]) {
        let makes = self.era() == Era::Session && makes_tasks(&self.welcome.capabilities);
        let only = tools.iter().filter(|tool| makes && wants_task(&tool.definition));
        let only: HashSet<Arc<str>> = only.map(|tool| tool.name.clone()).collect();
        self.errands.any.store(!only.is_empty(), Ordering::Relaxed);
        *self.errands.names() = only;
    }

    /// Whether a call must become a task that its client knows nothing of.
    pub(super) fn is_errand(&self, call: &Call, tool: &str) -> bool {
        self.errands.has(tool)
            && call.client.era == Era::Stateless
            && call.method == "tools/call"
            && call.params.get("task").is_none()
    }

    /// Waits for a task that a call has begun; its result. That the server still works on it counts as progress.
    pub(super) async fn finish_errand(
        &self,
        call: &Call,
        begun: Answer,
        deadline: &Deadline<'_>,
    ) -> Result<Answer, Error> {
        let Some(task) = task_of(&begun) else { return Ok(begun) };
        let mut under_way = UnderWay { connection: self, task: Some(task.clone()) };
        let turn = Some(self.turn(call.client.key, deadline).await?);
        let listener = Listener { client: call.client.clone(), told: call.told.clone(), turn };
        let mut result = self.ask("tasks/result", &mut named(&task), Some(listener))?;
        let mut until = deadline.first();
        let answer = loop {
            tokio::select! {
                biased;
                answer = &mut result => break answer?,
                () = sleep_until(until) => {}
            }
            let goes_on = tokio::select! {
                biased;
                answer = &mut result => break answer?,
                goes_on = self.works_on(&task) => goes_on,
            };
            let heard = if goes_on { Some(Heard::Progress(Instant::now())) } else { result.heard() };
            match deadline.later(until, heard) {
                Some(later) => until = later,
                None => return Err(deadline.missed(&self.server, until)),
            }
        };
        under_way.task = None;
        Ok(answer)
    }

    async fn works_on(&self, task: &Bytes) -> bool {
        let Ok(Answer::Result(state)) = self.request("tasks/get", named(task)).await else { return false };
        let state = Object::parse(&state).unwrap_or_default();
        matches!(state.string("status").as_deref(), Some("working" | "input_required"))
    }
}

/// A task that is cancelled when its call is given up.
struct UnderWay<'a> {
    connection: &'a Connection,
    task: Option<Bytes>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let Some(task) = &self.task else { return };
        // Nobody waits for the answer. A server that is gone has cancelled everything.
        if let Ok(told) = self.connection.ask("tasks/cancel", &mut named(task), None) {
            drop(told.uncancellable());
        }
    }
}

/// Parameters that name a task, which is written as the server wrote it.
fn named(task: &Bytes) -> Object {
    let mut params = Object::default();
    params.set("taskId", task.clone());
    params
}

/// The task that an answer tells of, as it is written there.
fn task_of(answer: &Answer) -> Option<Bytes> {
    let Answer::Result(result) = answer else { return None };
    Object::parse(Object::parse(result).ok()?.get("task")?).ok()?.get("taskId").cloned()
}

/// Whether a server says that calls of tools can be tasks.
fn makes_tasks(capabilities: &Bytes) -> bool {
    let inner = |outer: &Bytes, name| Object::parse(outer).ok()?.get(name).cloned();
    let tasks = inner(capabilities, "tasks").and_then(|tasks| inner(&tasks, "requests"));
    tasks.and_then(|requests| inner(&requests, "tools")).is_some_and(|tools| inner(&tools, "call").is_some())
}

/// Whether a tool's definition says that it runs as a task only.
fn wants_task(definition: &Bytes) -> bool {
    if memchr::memmem::find(definition, b"taskSupport").is_none() {
        return false;
    }
    let execution =
        Object::parse(definition).ok().and_then(|tool| Object::parse(tool.get("execution")?).ok());
    execution.is_some_and(|how| how.string("taskSupport").as_deref() == Some("required"))
}
