//! `Tasks`: by which tool a task was made that goes on at a server after its call. The oldest is forgotten first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use crate::spec::ServerId;

/// Tasks that are remembered.
const MOST: usize = 10_000;

/// A server and its own name for a task.
type Key = (ServerId, Arc<str>);

/// Which tool made which task.
#[derive(Debug, Default)]
pub(crate) struct Tasks(Mutex<Made>);

#[derive(Debug, Default)]
struct Made {
    by: HashMap<Key, Arc<str>>,
    order: VecDeque<Key>,
}

impl Tasks {
    /// Notes that a tool made a task.
    pub(crate) fn note(&self, server: &ServerId, task: &str, tool: &Arc<str>) {
        let key: Key = (server.clone(), task.into());
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if made.by.insert(key.clone(), tool.clone()).is_none() {
            made.order.push_back(key);
        }
        if made.order.len() > MOST
            && let Some(oldest) = made.order.pop_front()
        {
            made.by.remove(&oldest);
        }
    }

    /// The tool that made a task, if that is known.
    pub(crate) fn maker(&self, server: &ServerId, task: &Arc<str>) -> Option<Arc<str>> {
        let made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        made.by.get(&(server.clone(), task.clone())).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_known_by_its_maker_until_there_are_too_many() {
        let (tasks, server): (_, ServerId) = (Tasks::default(), "a".parse().unwrap());
        let maker = |task: &str| tasks.maker(&server, &task.into()).map(|tool| tool.to_string());
        tasks.note(&server, "first", &"build".into());
        tasks.note(&server, "first", &"test".into());
        assert_eq!(maker("first").as_deref(), Some("test"));
        assert_eq!(tasks.maker(&"b".parse().unwrap(), &"first".into()), None);
        (0..MOST).for_each(|n| tasks.note(&server, &n.to_string(), &"build".into()));
        assert_eq!((maker("first"), maker("0").as_deref()), (None, Some("build")));
    }
}
