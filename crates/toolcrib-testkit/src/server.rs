//! `ScriptedServer`: a server in this process that follows its scripts.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::Value;
use tokio::io::DuplexStream;
use toolcrib::{CommandSpec, InProcess};

use crate::instance::ScriptedInstance;
use crate::script::{Script, ScriptedEra, ServerScript, StartMode};
use crate::shared::SharedState;

/// A server whose every answer is scripted. Clones are handles on the same server.
///
/// The methods that return a server are for building: they create a server of their own with the script so far, and
/// share nothing with the one before.
#[derive(Debug, Clone)]
pub struct ScriptedServer {
    shared: Arc<SharedState>,
}

impl Default for ScriptedServer {
    fn default() -> Self {
        Self::from_script(ServerScript::default())
    }
}

impl ScriptedServer {
    /// Creates a server of the session era without tools.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn from_script(script: ServerScript) -> Self {
        Self { shared: Arc::new(SharedState::new(script)) }
    }

    fn with(&self, change: impl FnOnce(&mut ServerScript)) -> Self {
        let mut script = self.shared.script();
        change(&mut script);
        Self::from_script(script)
    }

    /// Adds a tool. Every call of it follows the script.
    #[must_use]
    pub fn tool(self, name: &str, script: Script) -> Self {
        self.tool_calls(name, [script])
    }

    /// Adds a tool whose successive calls follow these scripts; the last one repeats. All instances in this process count
    /// together, and each child process counts its own calls.
    #[must_use]
    pub fn tool_calls(self, name: &str, scripts: impl IntoIterator<Item = Script>) -> Self {
        self.with(|script| drop(script.tools.insert(name.to_owned(), scripts.into_iter().collect())))
    }

    /// Sets the answer to another method, such as `resources/list` or `prompts/get`. The server declares the capability
    /// that belongs to it.
    #[must_use]
    pub fn method(self, name: &str, script: Script) -> Self {
        self.with(|server| drop(server.methods.insert(name.to_owned(), vec![script])))
    }

    /// Makes it a server of the stateless era.
    #[must_use]
    pub fn stateless(self) -> Self {
        self.with(|script| script.era = ScriptedEra::Stateless)
    }

    /// Sets the behaviour of every start.
    #[must_use]
    pub fn start(self, mode: StartMode) -> Self {
        self.with(|script| script.start = mode)
    }

    /// Sets the behaviour of the first starts, before that of [`ScriptedServer::start`] applies. Child processes need a
    /// [`ScriptedServer::start_count`].
    #[must_use]
    pub fn first_starts(self, modes: impl IntoIterator<Item = StartMode>) -> Self {
        self.with(|script| script.starts = modes.into_iter().collect())
    }

    /// Sets the file in which child processes count their starts, one byte each. It is created if it does not exist.
    #[must_use]
    pub fn start_count(self, file: impl Into<PathBuf>) -> Self {
        self.with(|script| script.start_count = Some(file.into()))
    }

    /// Returns the command that runs this script as a child process. `program` must call
    /// [`serve_stdio`](crate::serve_stdio) in its `main`. The child shares nothing with this server.
    ///
    /// # Panics
    /// Panics if the path of [`ScriptedServer::start_count`] is not valid Unicode.
    pub fn command(&self, program: impl Into<String>) -> CommandSpec {
        #[expect(clippy::expect_used, reason = "documented; only a path can fail")]
        let script = serde_json::to_string(&self.shared.script()).expect("the path is Unicode");
        CommandSpec::new(program).arg(script)
    }

    /// Returns how often the server was started in this process.
    pub fn starts(&self) -> usize {
        self.shared.starts()
    }

    /// Returns the number of instances that run in this process.
    pub fn running(&self) -> usize {
        self.shared.running()
    }

    /// Returns every message of a method that was received in this process, in order.
    pub fn received(&self, method: &str) -> Vec<Value> {
        self.shared.received(method)
    }

    /// Ends every instance that runs in this process, as a crash would.
    pub fn crash(&self) {
        self.shared.crashed.send_replace(self.shared.starts());
    }

    /// Adds a tool while the server runs, and announces it to the clients.
    pub fn add_tool(&self, name: &str, script: Script) {
        self.shared.add_tool(name, script);
    }

    /// Counts a start and returns the new instance.
    pub(crate) fn begin_instance(&self) -> ScriptedInstance {
        ScriptedInstance::begin(self.shared.clone())
    }
}

impl InProcess for ScriptedServer {
    fn serve(&self, pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let instance = self.begin_instance();
        let mode = self.shared.script().start_mode(instance.number());
        Box::pin(async move {
            let (reader, writer) = tokio::io::split(pipe);
            instance.run(mode, reader, writer).await;
        })
    }
}
