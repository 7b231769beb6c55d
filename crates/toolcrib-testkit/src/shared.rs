//! `SharedState`: what all instances of a server have in common.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::script::{Script, ServerScript};

/// The script, and what has happened so far.
#[derive(Debug)]
pub(crate) struct SharedState {
    history: Mutex<History>,
    /// The number of changes of the tool list.
    pub(crate) list_changes: watch::Sender<u64>,
    /// Instances up to this number must crash.
    pub(crate) crashed: watch::Sender<usize>,
}

#[derive(Debug)]
struct History {
    script: ServerScript,
    /// The number of calls of each tool and method.
    calls: BTreeMap<String, usize>,
    received: Vec<Value>,
    starts: usize,
    running: usize,
}

impl SharedState {
    pub(crate) fn new(script: ServerScript) -> Self {
        let history = History { script, calls: BTreeMap::new(), received: Vec::new(), starts: 0, running: 0 };
        Self {
            history: Mutex::new(history),
            list_changes: watch::Sender::new(0),
            crashed: watch::Sender::new(0),
        }
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn script(&self) -> ServerScript {
        self.history().script.clone()
    }

    /// Counts a start and returns its number.
    pub(crate) fn begin_instance(&self) -> usize {
        let mut history = self.history();
        history.starts += 1;
        history.running += 1;
        history.starts
    }

    pub(crate) fn end_instance(&self) {
        self.history().running -= 1;
    }

    pub(crate) fn starts(&self) -> usize {
        self.history().starts
    }

    pub(crate) fn running(&self) -> usize {
        self.history().running
    }

    pub(crate) fn record(&self, message: Value) {
        self.history().received.push(message);
    }

    pub(crate) fn received(&self, method: &str) -> Vec<Value> {
        self.history().received.iter().filter(|message| message["method"] == method).cloned().collect()
    }

    /// Adds a tool and announces it to all running instances.
    pub(crate) fn add_tool(&self, name: &str, script: Script) {
        self.history().script.tools.insert(name.to_owned(), vec![script]);
        self.list_changes.send_modify(|changes| *changes += 1);
    }

    /// Returns the script of the next call of a tool, or `None` if there is no such tool.
    pub(crate) fn next_tool_call(&self, name: &str) -> Option<Script> {
        let mut history = self.history();
        let History { script, calls, .. } = &mut *history;
        next_script(script.tools.get(name)?, calls.entry(format!("tool {name}")).or_default())
    }

    /// Returns the script of the next request of another method, or `None` if the server does not know it.
    pub(crate) fn next_request(&self, method: &str) -> Option<Script> {
        let mut history = self.history();
        let History { script, calls, .. } = &mut *history;
        next_script(script.methods.get(method)?, calls.entry(method.to_owned()).or_default())
    }

    /// Returns the definitions of all tools.
    pub(crate) fn definitions(&self) -> Value {
        let history = self.history();
        let definition = |name: &String| json!({"name": name, "inputSchema": {"type": "object"}});
        history.script.tools.keys().map(definition).collect()
    }

    /// Returns the capabilities of the server: tools and logging, and those of the scripted methods.
    pub(crate) fn capabilities(&self) -> Value {
        let mut capabilities = json!({"tools": {"listChanged": true}, "logging": {}});
        for method in self.history().script.methods.keys() {
            match method.split('/').next() {
                Some("completion") => capabilities["completions"] = json!({}),
                Some("resources") => capabilities["resources"] = json!({"subscribe": true}),
                Some(family) => capabilities[family] = json!({}),
                None => {}
            }
        }
        capabilities
    }
}

fn next_script(scripts: &[Script], calls: &mut usize) -> Option<Script> {
    let script = scripts.get(*calls).or(scripts.last())?;
    *calls += 1;
    Some(script.clone())
}
