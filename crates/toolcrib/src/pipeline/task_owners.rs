//! Remembers which tool and caller created a task that outlives its call. The oldest entries are dropped first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use crate::model::caller::Caller;
use crate::model::target::Target;
use crate::spec::ServerId;
use crate::util::locks::IgnorePoison as _;

/// The number of tasks that are remembered.
const MAX_TASKS: usize = 10_000;

/// A server and its own id of a task.
type TaskKey = (ServerId, Arc<str>);

/// The tools and callers that created the known tasks.
#[derive(Debug, Default)]
pub(crate) struct TaskOwners(Mutex<TaskOrigins>);

#[derive(Debug, Default)]
struct TaskOrigins {
    creators: HashMap<TaskKey, TaskCreator>,
    order: VecDeque<TaskKey>,
}

/// The call that created a task.
#[derive(Debug)]
struct TaskCreator {
    tool: Arc<str>,
    caller: Caller,
}

impl TaskOwners {
    /// Records that a caller's call of a tool created a task.
    pub(crate) fn record(&self, tool: &Target, task: &str, caller: &Caller) {
        let key: TaskKey = (tool.server.clone(), task.into());
        let creator = TaskCreator { tool: tool.name.clone(), caller: caller.clone() };
        let mut origins = self.0.lock().ignore_poison();
        if origins.creators.insert(key.clone(), creator).is_none() {
            origins.order.push_back(key);
        }
        if origins.order.len() > MAX_TASKS
            && let Some(oldest) = origins.order.pop_front()
        {
            origins.creators.remove(&oldest);
        }
    }

    /// Returns the tool that created a task, if that is known.
    pub(crate) fn find_tool(&self, server: &ServerId, task: &Arc<str>) -> Option<Arc<str>> {
        let origins = self.0.lock().ignore_poison();
        origins.creators.get(&(server.clone(), task.clone())).map(|creator| creator.tool.clone())
    }

    /// Returns the servers and ids of the tasks that a caller created, the oldest first.
    pub(crate) fn tasks_of(&self, caller: &Caller) -> Vec<Target> {
        let origins = self.0.lock().ignore_poison();
        let is_own =
            |key: &&TaskKey| origins.creators.get(key).is_some_and(|creator| creator.caller == *caller);
        origins.order.iter().filter(is_own).map(|(server, task)| Target::new(server, task)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tool_of_task_is_found_until_entry_is_dropped() {
        let tasks = TaskOwners::default();
        let server: ServerId = "a".parse().unwrap();
        let find_tool = |task: &str| tasks.find_tool(&server, &task.into()).map(|tool| tool.to_string());
        let record = |task: &str, tool: &str, caller: &str| {
            tasks.record(&Target::new(&server, tool), task, &Caller::new(caller));
        };
        record("first", "build", "ada");
        record("first", "test", "ada");
        record("second", "test", "bob");
        assert_eq!(find_tool("first").as_deref(), Some("test"));
        assert_eq!(tasks.find_tool(&"b".parse().unwrap(), &"first".into()), None);
        assert_eq!(tasks.tasks_of(&Caller::new("ada")), [Target::new(&server, "first")]);
        (0..MAX_TASKS).for_each(|n| record(&n.to_string(), "build", "ada"));
        assert_eq!((find_tool("first"), find_tool("0").as_deref()), (None, Some("build")));
    }
}
