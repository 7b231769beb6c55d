//! `Script`: what a server does when it is called, and `StartMode`: what it does when it is started.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

/// The steps of one answer, in order. A step that answers, crashes or hangs is the last one; a script without one answers
/// with an empty result.
///
/// # Panics
/// Every method panics if the script has its last step already, because a further step would never run.
///
/// ```should_panic
/// # use toolcrib_testkit::Script;
/// Script::new().line("the answer").text("too late");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Script {
    #[serde(deserialize_with = "parse_steps")]
    pub(crate) steps: Vec<Step>,
}

/// Parses the steps of a script, and refuses those that would never run.
fn parse_steps<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Step>, D::Error> {
    let steps = Vec::<Step>::deserialize(deserializer)?;
    let script = steps.into_iter().try_fold(Script::new(), Script::try_step);
    script.map(|script| script.steps).map_err(D::Error::custom)
}

/// The error of a script with a step that would never run.
#[derive(Debug)]
pub(crate) struct StepAfterAnswer {
    last: Step,
    further: Step,
}

impl fmt::Display for StepAfterAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { last, further } = self;
        write!(f, "the step {further:?} would never run, because {last:?} ends the script")
    }
}

/// One step of a script. The names are those of the JSON form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    WaitMs(u64),
    Progress {
        progress: u64,
        total: u64,
    },
    Log(String),
    Notify {
        method: String,
        params: Value,
    },
    AddTool(String),
    Ask {
        method: String,
        params: Value,
    },
    Text(String),
    ToolError(String),
    Result(Value),
    Error {
        code: i64,
        message: String,
    },
    /// Answers with the client's response to the last question.
    Response,
    /// Answers with the arguments.
    Arguments,
    Line(String),
    Hang,
    Crash,
}

impl Step {
    /// Returns whether the script goes on after this step.
    fn goes_on(&self) -> bool {
        match self {
            Self::WaitMs(_)
            | Self::Progress { .. }
            | Self::Log(_)
            | Self::Notify { .. }
            | Self::AddTool(_)
            | Self::Ask { .. } => true,
            Self::Text(_)
            | Self::ToolError(_)
            | Self::Result(_)
            | Self::Error { .. }
            | Self::Response
            | Self::Arguments
            | Self::Line(_)
            | Self::Hang
            | Self::Crash => false,
        }
    }
}

impl Script {
    /// Creates a script without steps.
    pub fn new() -> Self {
        Self::default()
    }

    #[track_caller]
    fn step(self, step: Step) -> Self {
        match self.try_step(step) {
            Ok(script) => script,
            Err(error) => panic!("{error}"),
        }
    }

    fn try_step(mut self, step: Step) -> Result<Self, Box<StepAfterAnswer>> {
        if let Some(last) = self.steps.pop_if(|last| !last.goes_on()) {
            return Err(Box::new(StepAfterAnswer { last, further: step }));
        }
        self.steps.push(step);
        Ok(self)
    }

    /// Waits, in whole milliseconds.
    #[must_use]
    #[track_caller]
    pub fn wait(self, duration: Duration) -> Self {
        self.step(Step::WaitMs(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }

    /// Reports progress, if the client asked for it.
    #[must_use]
    #[track_caller]
    pub fn progress(self, progress: u64, total: u64) -> Self {
        self.step(Step::Progress { progress, total })
    }

    /// Sends a log message to the client.
    #[must_use]
    #[track_caller]
    pub fn log(self, text: impl Into<String>) -> Self {
        self.step(Step::Log(text.into()))
    }

    /// Sends any notification.
    #[must_use]
    #[track_caller]
    pub fn notify(self, method: impl Into<String>, params: Value) -> Self {
        self.step(Step::Notify { method: method.into(), params })
    }

    /// Adds a tool that answers with its arguments, and announces that the list of tools changed.
    #[must_use]
    #[track_caller]
    pub fn add_tool(self, name: impl Into<String>) -> Self {
        self.step(Step::AddTool(name.into()))
    }

    /// Asks the client with any method, and waits for its response. In the
    /// stateless era the answer of the call is the question, and the script goes on when the client calls again.
    #[must_use]
    #[track_caller]
    pub fn ask(self, method: impl Into<String>, params: Value) -> Self {
        self.step(Step::Ask { method: method.into(), params })
    }

    /// Asks the user a question without fields, through the client.
    #[must_use]
    #[track_caller]
    pub fn elicit(self, message: &str) -> Self {
        let schema = json!({"type": "object", "properties": {}});
        self.ask("elicitation/create", json!({"message": message, "requestedSchema": schema}))
    }

    /// Asks the model of the client to continue after a text.
    #[must_use]
    #[track_caller]
    pub fn sample(self, text: &str) -> Self {
        let message = json!({"role": "user", "content": {"type": "text", "text": text}});
        self.ask("sampling/createMessage", json!({"messages": [message], "maxTokens": 100}))
    }

    /// Asks the client for its roots.
    #[must_use]
    #[track_caller]
    pub fn list_roots(self) -> Self {
        self.ask("roots/list", json!({}))
    }

    /// Answers with a text.
    #[must_use]
    #[track_caller]
    pub fn text(self, text: impl Into<String>) -> Self {
        self.step(Step::Text(text.into()))
    }

    /// Answers with a text as the error of the tool: a result with `isError`.
    #[must_use]
    #[track_caller]
    pub fn tool_error(self, text: impl Into<String>) -> Self {
        self.step(Step::ToolError(text.into()))
    }

    /// Answers with this result.
    #[must_use]
    #[track_caller]
    pub fn result(self, result: Value) -> Self {
        self.step(Step::Result(result))
    }

    /// Answers with a JSON-RPC error.
    #[must_use]
    #[track_caller]
    pub fn error(self, code: i64, message: impl Into<String>) -> Self {
        self.step(Step::Error { code, message: message.into() })
    }

    /// Answers with the client's response to the last question, as JSON text.
    #[must_use]
    #[track_caller]
    pub fn response(self) -> Self {
        self.step(Step::Response)
    }

    /// Answers with the arguments of the call, as JSON text.
    #[must_use]
    #[track_caller]
    pub fn arguments(self) -> Self {
        self.step(Step::Arguments)
    }

    /// Answers with this line as it is, which ends the script like any other answer; `$ID` in it is replaced by the id of the
    /// request. It need not be JSON, and several lines may be joined with `\n`: `line("noise\n{…}")`.
    #[must_use]
    #[track_caller]
    pub fn line(self, line: impl Into<String>) -> Self {
        self.step(Step::Line(line.into()))
    }

    /// Never answers.
    #[must_use]
    #[track_caller]
    pub fn hang(self) -> Self {
        self.step(Step::Hang)
    }

    /// Ends the server without an answer. A child process exits with status 101.
    #[must_use]
    #[track_caller]
    pub fn crash(self) -> Self {
        self.step(Step::Crash)
    }
}

/// The behaviour of one start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StartMode {
    /// Answers at once.
    #[default]
    Normal,
    /// Reads nothing for this number of milliseconds.
    SlowMs(u64),
    /// Exits at once. A child process exits with status 3.
    Exits,
    /// Reads and never answers.
    Silent,
    /// Answers the handshake with an error.
    Refuses,
    /// Writes a line that is not JSON before every message.
    NotJson,
}

impl StartMode {
    /// Returns a start that takes this long, in whole milliseconds.
    pub fn slow(duration: Duration) -> Self {
        Self::SlowMs(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }
}

/// The protocol era of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ScriptedEra {
    #[default]
    Session,
    Stateless,
}

/// Everything that a server does, as data.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ServerScript {
    pub(crate) era: ScriptedEra,
    /// The scripts of successive calls of each tool; the last one repeats.
    pub(crate) tools: BTreeMap<String, Vec<Script>>,
    /// The same for other methods.
    pub(crate) methods: BTreeMap<String, Vec<Script>>,
    /// The first starts.
    pub(crate) starts: Vec<StartMode>,
    /// The other starts.
    pub(crate) start: StartMode,
    /// The file in which child processes count their starts.
    pub(crate) start_count: Option<PathBuf>,
}

impl ServerScript {
    /// Returns the behaviour of a start; the first one has number 1.
    pub(crate) fn start_mode(&self, number: usize) -> StartMode {
        self.starts.get(number.saturating_sub(1)).copied().unwrap_or(self.start)
    }
}
