//! `tasks/list` at the endpoint for all servers: the tasks that a caller created, as their servers report them now.

use bytes::Bytes;
use tokio::task::JoinSet;
use toolcrib::protocol::era::adapt_response_for_client;
use toolcrib::protocol::json::object::{Object, to_json_string};
use toolcrib::protocol::jsonrpc::{ResponsePayload, code};
use toolcrib::{Catalog, Selector, Target};

use super::{McpService, RequestContext, reject};

/// Tasks on one page.
const PAGE_SIZE: usize = 50;

impl McpService {
    /// Returns one page of the tasks that the caller created, the oldest first. A task that its server no longer has is
    /// left out, and no sleeping server is started.
    pub(super) async fn list_tasks(&self, context: &RequestContext, params: &Object) -> ResponsePayload {
        let cursor = params.get("cursor").filter(|raw| &***raw != b"null");
        let first: Option<usize> = match cursor {
            None => Some(0),
            Some(_) => params.get_string("cursor").and_then(|cursor| cursor.parse().ok()),
        };
        let Some(first) = first else {
            return reject(code::INVALID_PARAMS, "`params.cursor` is not one of this list");
        };
        let tasks = self.crib.tasks_of(context.scope.caller());
        let total = tasks.len();
        let page: Vec<Target> = tasks.into_iter().skip(first).take(PAGE_SIZE).collect();
        let next = first + page.len();
        let mut requests = JoinSet::new();
        for (index, task) in page.into_iter().enumerate() {
            let crib = self.crib.clone();
            let era = context.client.era;
            let id = Catalog::public_task_id(&task.server, &task.name);
            let call = context.clone().call("tasks/get".into(), Selector::Task(id), Object::default());
            requests.spawn(async move {
                let outcome = crib.call(call).await.ok()?;
                Some((index, adapt_response_for_client(outcome.answer, "tasks/get", outcome.era, era, None)))
            });
        }
        let mut found: Vec<(usize, ResponsePayload)> =
            requests.join_all().await.into_iter().flatten().collect();
        found.sort_by_key(|(index, _)| *index);
        let tasks: Vec<Bytes> = found.iter().filter_map(|(_, answer)| to_task(answer)).collect();
        let mut result = Object::default();
        result.set_unchecked("tasks", [b"[", &*tasks.join(&b","[..]), b"]"].concat());
        if next < total {
            result.set_unchecked("nextCursor", to_json_string(&next.to_string()));
        }
        ResponsePayload::Result(result.to_bytes())
    }
}

/// Returns the task in the result of `tasks/get`.
fn to_task(answer: &ResponsePayload) -> Option<Bytes> {
    let ResponsePayload::Result(result) = answer else { return None };
    let mut task = Object::parse(result).ok()?;
    task.remove("_meta");
    task.get("taskId")?;
    Some(task.to_bytes())
}
