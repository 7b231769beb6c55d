//! Remembers which tool created a task that outlives its call. The oldest entries are dropped first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use crate::spec::ServerId;
use crate::util::locks::IgnorePoison as _;

/// The number of tasks that are remembered.
const MAX_TASKS: usize = 10_000;

/// A server and its own id of a task.
type TaskKey = (ServerId, Arc<str>);

/// The tools that created the known tasks.
#[derive(Debug, Default)]
pub(crate) struct TaskOwners(Mutex<TaskOrigins>);

#[derive(Debug, Default)]
struct TaskOrigins {
    tools: HashMap<TaskKey, Arc<str>>,
    order: VecDeque<TaskKey>,
}

impl TaskOwners {
    /// Records that a tool created a task.
    pub(crate) fn record(&self, server: &ServerId, task: &str, tool: &Arc<str>) {
        let key: TaskKey = (server.clone(), task.into());
        let mut origins = self.0.lock().ignore_poison();
        if origins.tools.insert(key.clone(), tool.clone()).is_none() {
            origins.order.push_back(key);
        }
        if origins.order.len() > MAX_TASKS
            && let Some(oldest) = origins.order.pop_front()
        {
            origins.tools.remove(&oldest);
        }
    }

    /// Returns the tool that created a task, if that is known.
    pub(crate) fn find_tool(&self, server: &ServerId, task: &Arc<str>) -> Option<Arc<str>> {
        let origins = self.0.lock().ignore_poison();
        origins.tools.get(&(server.clone(), task.clone())).cloned()
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
        tasks.record(&server, "first", &"build".into());
        tasks.record(&server, "first", &"test".into());
        assert_eq!(find_tool("first").as_deref(), Some("test"));
        assert_eq!(tasks.find_tool(&"b".parse().unwrap(), &"first".into()), None);
        (0..MAX_TASKS).for_each(|n| tasks.record(&server, &n.to_string(), &"build".into()));
        assert_eq!((find_tool("first"), find_tool("0").as_deref()), (None, Some("build")));
    }
}
