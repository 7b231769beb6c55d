//! Remembers which caller and which tool created a task that outlives its call.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use crate::model::caller::Caller;
use crate::model::target::Target;
use crate::spec::ServerId;
use crate::util::locks::IgnorePoison as _;

/// The number of tasks that are remembered in all.
const MAX_TASKS: usize = 10_000;

/// A server and its own id of a task.
type TaskKey = (ServerId, Arc<str>);

/// The origins of the known tasks. If there are too many, the oldest of the caller with the most are dropped.
#[derive(Debug, Default)]
pub(crate) struct TaskOwners(Mutex<KnownTasks>);

/// The caller and the tool that created a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TaskOrigin {
    pub(crate) caller: Caller,
    pub(crate) tool: Arc<str>,
}

#[derive(Debug, Default)]
struct KnownTasks {
    origins: HashMap<TaskKey, TaskOrigin>,
    /// The tasks of each caller, the oldest first.
    by_caller: HashMap<Caller, VecDeque<TaskKey>>,
}

impl KnownTasks {
    fn insert(&mut self, key: TaskKey, origin: TaskOrigin) {
        let caller = origin.caller.clone();
        match self.origins.insert(key.clone(), origin) {
            Some(known) if known.caller == caller => return,
            Some(known) => {
                if let Some(tasks) = self.by_caller.get_mut(&known.caller) {
                    tasks.retain(|task| *task != key);
                }
            }
            None => {}
        }
        self.by_caller.entry(caller).or_default().push_back(key);
    }

    fn drop_one(&mut self) {
        let largest = self.by_caller.iter_mut().max_by_key(|(_, tasks)| tasks.len());
        let Some((caller, tasks)) = largest else { return };
        let oldest = tasks.pop_front();
        let emptied = tasks.is_empty().then(|| caller.clone());
        if let Some(oldest) = oldest {
            self.origins.remove(&oldest);
        }
        if let Some(caller) = emptied {
            self.by_caller.remove(&caller);
        }
    }
}

impl TaskOwners {
    /// Records that a caller created a task with a tool.
    pub(crate) fn record(&self, tool: &Target, task: &str, caller: &Caller) {
        let origin = TaskOrigin { caller: caller.clone(), tool: tool.name.clone() };
        let mut known = self.0.lock().ignore_poison();
        known.insert((tool.server.clone(), task.into()), origin);
        if known.origins.len() > MAX_TASKS {
            known.drop_one();
        }
    }

    /// Returns the origin of a task, if it is known.
    pub(crate) fn find(&self, server: &ServerId, task: &str) -> Option<TaskOrigin> {
        let known = self.0.lock().ignore_poison();
        known.origins.get(&(server.clone(), task.into())).cloned()
    }

    /// Returns the servers and ids of the tasks that a caller created, the oldest first.
    pub(crate) fn tasks_of(&self, caller: &Caller) -> Vec<Target> {
        let known = self.0.lock().ignore_poison();
        let tasks = known.by_caller.get(caller).into_iter().flatten();
        tasks.map(|(server, task)| Target::new(server, task)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_of_task_is_found_until_entry_is_dropped() {
        let tasks = TaskOwners::default();
        let server: ServerId = "a".parse().unwrap();
        let ann = Caller::new("ann");
        let ben = Caller::new("ben");
        let record = |task: &str, tool: &str, caller: &Caller| {
            tasks.record(&Target::new(&server, tool), task, caller);
        };
        let find = |task: &str| {
            tasks
                .find(&server, task)
                .map(|origin| (origin.caller.as_str().to_owned(), origin.tool.to_string()))
        };
        let origin = |caller: &str, tool: &str| Some((caller.to_owned(), tool.to_owned()));
        record("first", "build", &ann);
        record("first", "test", &ann);
        assert_eq!(find("first"), origin("ann", "test"));
        assert_eq!(tasks.tasks_of(&ann), [Target::new(&server, "first")]);
        record("first", "test", &ben);
        assert_eq!(find("first"), origin("ben", "test"), "a server may use an id again");
        assert_eq!(tasks.tasks_of(&ann), []);
        assert_eq!(tasks.find(&"b".parse().unwrap(), "first"), None);
        (0..MAX_TASKS).for_each(|n| record(&n.to_string(), "build", &ann));
        assert_eq!((find("0"), find("1")), (None, origin("ann", "build")));
        assert_eq!(find("first"), origin("ben", "test"), "the tasks of one caller do not displace another's");
        assert_eq!(tasks.tasks_of(&ben), [Target::new(&server, "first")]);
    }
}
