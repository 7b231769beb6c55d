//! Tasks belong to the caller that created them.

use bytes::Bytes;

use crate::call::Call;
use crate::model::caller::Caller;
use crate::model::error::{Error, ErrorKind};
use crate::model::outcome::Outcome;
use crate::model::target::Target;
use crate::pipeline::router::CallRouter;
use crate::protocol::json::object::{Object, parse_array};
use crate::protocol::jsonrpc::ResponsePayload;
use crate::spec::ServerId;

impl CallRouter {
    /// Fails if a call is about a task of another caller.
    pub(super) fn check_task_owner(&self, call: &Call, target: &Target) -> Result<(), Error> {
        let is_about_task =
            matches!(call.method(), "tasks/get" | "tasks/update" | "tasks/result" | "tasks/cancel");
        if !is_about_task || self.owns_task(&call.caller, &target.server, &target.name) {
            return Ok(());
        }
        let message = format!("Unknown task: {}", call.name());
        Err(Error::new(ErrorKind::Unknown, message).with_server(&target.server).with_hint("list the tasks"))
    }

    /// Returns whether a task belongs to a caller. A task with an unknown creator, for example of an earlier gateway, belongs
    /// to administrators, and to the caller that alone uses the instance.
    fn owns_task(&self, caller: &Caller, server: &ServerId, task: &str) -> bool {
        match self.task_owners.find(server, task) {
            Some(origin) => origin.caller == *caller,
            None => caller.can_see_all() || self.is_used_alone(server),
        }
    }

    /// Returns whether every instance of a server has one caller.
    fn is_used_alone(&self, server: &ServerId) -> bool {
        let entry = self.registry.get(server).and_then(Result::ok);
        entry.is_some_and(|entry| !entry.spec().sharing.is_shared())
    }

    /// Returns a list of tasks with only those of the caller.
    pub(super) fn with_own_tasks(&self, mut outcome: Outcome, call: &Call, target: &Target) -> Outcome {
        let ResponsePayload::Result(result) = &mut outcome.answer else { return outcome };
        let is_own = |task: &Bytes| {
            let id = Object::parse(task).ok().and_then(|task| Some(task.get_string("taskId")?.into_owned()));
            id.is_some_and(|id| self.owns_task(&call.caller, &target.server, &id))
        };
        if let Some(own) = retain_tasks(result, is_own) {
            *result = own;
        }
        outcome
    }

    /// Removes the stderr of a server from an error, unless the caller may see it.
    pub(crate) fn hide_stderr(&self, error: Error, caller: &Caller) -> Error {
        let is_hidden = error.exit_report().is_some()
            && !caller.can_see_all()
            && !error.server().is_some_and(|server| self.is_used_alone(server));
        if is_hidden { error.without_stderr() } else { error }
    }
}

/// Returns a list of tasks with those for which `keep` returns true, or `None` if that is all of them.
fn retain_tasks(result: &Bytes, keep: impl Fn(&Bytes) -> bool) -> Option<Bytes> {
    let mut object = Object::parse(result).ok()?;
    let tasks = parse_array(object.get("tasks")?).ok()?;
    let kept: Vec<Bytes> = tasks.iter().filter(|task| keep(task)).cloned().collect();
    if kept.len() == tasks.len() {
        return None;
    }
    object.set_unchecked("tasks", [b"[", &*kept.join(&b","[..]), b"]"].concat());
    Some(object.to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_keeps_the_bytes_of_own_tasks() {
        let list =
            Bytes::from_static(br#"{"tasks":[{"taskId":"1","n":1.0},{"taskId":"2"}],"nextCursor":"x"}"#);
        let is_first = |task: &Bytes| task.starts_with(br#"{"taskId":"1""#);
        let expected = r#"{"tasks":[{"taskId":"1","n":1.0}],"nextCursor":"x"}"#;
        assert_eq!(retain_tasks(&list, is_first).as_deref(), Some(expected.as_bytes()));
        assert_eq!(retain_tasks(&list, |_| true), None);
        assert_eq!(retain_tasks(&Bytes::from_static(b"7"), is_first), None);
    }
}
