//! `ScriptedInstance`: one run of a server, from its start until its input is closed or it crashes.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

use crate::script::{Script, ScriptedEra, StartMode, Step};
use crate::shared::SharedState;

/// The `_meta` key of the subscription that a notification belongs to, in the stateless era.
const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";

/// The prefix of the state that a stateless client returns with its responses; the number of the step follows.
const STATE_PREFIX: &str = "step ";

/// The end of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InstanceEnd {
    /// Its input was closed.
    InputClosed,
    /// It crashed, as scripted.
    Crashed,
    /// It exited at its start, as scripted.
    Exited,
}

/// One run of a server.
#[derive(Debug)]
pub(crate) struct ScriptedInstance {
    shared: Arc<SharedState>,
    number: usize,
}

impl Drop for ScriptedInstance {
    fn drop(&mut self) {
        self.shared.end_instance();
    }
}

impl ScriptedInstance {
    /// Counts a start.
    pub(crate) fn begin(shared: Arc<SharedState>) -> Self {
        Self { number: shared.begin_instance(), shared }
    }

    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Serves until the input is closed or the server crashes.
    pub(crate) async fn run<R, W>(self, mode: StartMode, reader: R, mut writer: W) -> InstanceEnd
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        match mode {
            StartMode::Exits => return InstanceEnd::Exited,
            StartMode::SlowMs(millis) => sleep(Duration::from_millis(millis)).await,
            _ => {}
        }
        let mut crashed = self.shared.crashed.subscribe();
        let mut list_changes = self.shared.list_changes.subscribe();
        let (output, mut lines_out) = mpsc::unbounded_channel();
        let era = self.shared.script().era;
        let connection = Arc::new(ScriptedConnection {
            shared: self.shared.clone(),
            mode,
            era,
            output,
            state: Mutex::default(),
            questions: AtomicU64::new(0),
        });
        let mut lines_in = BufReader::new(reader).lines();
        let mut tasks: JoinSet<ControlFlow<()>> = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = wait_until(&mut crashed, self.number) => return InstanceEnd::Crashed,
                Some(line) = lines_out.recv() => {
                    if write_line(&mut writer, mode, &line).await.is_err() {
                        return InstanceEnd::InputClosed;
                    }
                }
                Some(done) = tasks.join_next() => {
                    if let Ok(ControlFlow::Break(())) = done {
                        return InstanceEnd::Crashed;
                    }
                }
                Ok(()) = list_changes.changed() => connection.announce_list_change(),
                line = lines_in.next_line() => {
                    let Ok(Some(line)) = line else { return InstanceEnd::InputClosed };
                    connection.receive(&line, &mut tasks);
                }
            }
        }
    }
}

/// Waits until a number is reached; forever, if it can no longer change.
async fn wait_until(receiver: &mut watch::Receiver<usize>, number: usize) {
    if receiver.wait_for(|reached| *reached >= number).await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn write_line<W: AsyncWrite + Unpin>(
    writer: &mut W,
    mode: StartMode,
    line: &str,
) -> std::io::Result<()> {
    if mode == StartMode::NotJson {
        writer.write_all(b"this line is not JSON\n").await?;
    }
    writer.write_all(format!("{line}\n").as_bytes()).await?;
    writer.flush().await
}

/// What the requests of one instance share.
#[derive(Debug)]
struct ScriptedConnection {
    shared: Arc<SharedState>,
    mode: StartMode,
    era: ScriptedEra,
    output: mpsc::UnboundedSender<String>,
    state: Mutex<ScriptedConnectionState>,
    /// The number of questions to the client.
    questions: AtomicU64,
}

#[derive(Debug, Default)]
struct ScriptedConnectionState {
    /// Questions without a response, by their ids.
    waiting: HashMap<String, oneshot::Sender<Value>>,
    /// Requests in flight, by their ids.
    in_flight: HashMap<String, AbortHandle>,
    /// The id of the request that receives notifications, in the stateless era.
    listener: Option<Value>,
}

/// One request of the client.
#[derive(Debug)]
struct Request {
    id: Value,
    method: String,
    params: Value,
}

impl ScriptedConnection {
    fn state(&self) -> MutexGuard<'_, ScriptedConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, message: &Value) {
        self.send_line(message.to_string());
    }

    /// Sends a line. It is lost if the instance has ended.
    fn send_line(&self, line: String) {
        let _ = self.output.send(line);
    }

    fn notify(&self, method: &str, params: &Value) {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    fn announce_list_change(&self) {
        let method = "notifications/tools/list_changed";
        let listener = self.state().listener.clone();
        match (self.era, listener) {
            (ScriptedEra::Session, _) => self.notify(method, &json!({})),
            (ScriptedEra::Stateless, Some(id)) => {
                self.notify(method, &json!({"_meta": {SUBSCRIPTION_ID: id}}));
            }
            (ScriptedEra::Stateless, None) => {}
        }
    }

    /// Takes one message from the client.
    fn receive(self: &Arc<Self>, line: &str, tasks: &mut JoinSet<ControlFlow<()>>) {
        let Ok(message) = serde_json::from_str::<Value>(line) else { return };
        self.shared.record(message.clone());
        if self.mode == StartMode::Silent {
            return;
        }
        let id = message["id"].clone();
        let Some(method) = message["method"].as_str() else {
            if let Some(waiting) = self.state().waiting.remove(&id.to_string()) {
                // Fails if the call was cancelled.
                let _ = waiting.send(message);
            }
            return;
        };
        if method == "notifications/cancelled" {
            let cancelled = message["params"]["requestId"].to_string();
            if let Some(request) = self.state().in_flight.remove(&cancelled) {
                request.abort();
            }
        }
        if id.is_null() {
            return;
        }
        let request = Request { id, method: method.to_owned(), params: message["params"].clone() };
        let key = request.id.to_string();
        let connection = self.clone();
        let task = tasks.spawn(async move {
            let flow = connection.respond(&request).await;
            connection.state().in_flight.remove(&request.id.to_string());
            flow
        });
        self.state().in_flight.insert(key, task);
    }

    async fn respond(&self, request: &Request) -> ControlFlow<()> {
        let is_stateless = self.era == ScriptedEra::Stateless;
        match request.method.as_str() {
            "initialize" | "server/discover" if self.mode == StartMode::Refuses => {
                self.refuse(request, -32000, "refused, as scripted");
            }
            "initialize" if !is_stateless => {
                let info = json!({"name": "toolcrib-testkit", "version": env!("CARGO_PKG_VERSION")});
                let version = &request.params["protocolVersion"];
                let capabilities = self.shared.capabilities();
                self.answer(
                    request,
                    json!({"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}),
                );
            }
            "server/discover" if is_stateless => {
                let capabilities = self.shared.capabilities();
                self.answer(
                    request,
                    json!({"supportedVersions": ["2026-07-28"], "capabilities": capabilities}),
                );
            }
            "ping" | "logging/setLevel" => self.answer(request, json!({})),
            "subscriptions/listen" if is_stateless => self.open_listener(request),
            "tools/list" => self.answer(request, json!({"tools": self.shared.definitions()})),
            "tools/call" => {
                let name = request.params["name"].as_str().unwrap_or_default();
                match self.shared.next_tool_call(name) {
                    Some(script) => return self.run_script(request, &script).await,
                    None => self.refuse(request, -32602, &format!("Unknown tool: {name}")),
                }
            }
            method => match self.shared.next_request(method) {
                Some(script) => return self.run_script(request, &script).await,
                None => self.refuse(request, -32601, "Method not found"),
            },
        }
        ControlFlow::Continue(())
    }

    fn open_listener(&self, request: &Request) {
        self.state().listener = Some(request.id.clone());
        let accepted = &request.params["notifications"];
        let params = json!({"_meta": {SUBSCRIPTION_ID: request.id}, "notifications": accepted});
        self.notify("notifications/subscriptions/acknowledged", &params);
    }

    fn answer(&self, request: &Request, mut result: Value) {
        if self.era == ScriptedEra::Stateless {
            set_default(&mut result, "resultType", "complete".into());
            if request.method.ends_with("/list") || request.method == "resources/read" {
                set_default(&mut result, "ttlMs", 0.into());
                set_default(&mut result, "cacheScope", "private".into());
            }
        }
        self.send(&json!({"jsonrpc": "2.0", "id": request.id, "result": result}));
    }

    fn answer_text(&self, request: &Request, text: &str, is_error: bool) {
        let mut result = json!({"content": [{"type": "text", "text": text}]});
        if is_error {
            result["isError"] = true.into();
        }
        self.answer(request, result);
    }

    fn refuse(&self, request: &Request, code: i64, message: &str) {
        let error = json!({"code": code, "message": message});
        self.send(&json!({"jsonrpc": "2.0", "id": request.id, "error": error}));
    }

    /// Follows a script. `Break` means that the server crashes.
    async fn run_script(&self, request: &Request, script: &Script) -> ControlFlow<()> {
        let resumed_step = resumed_step(&request.params);
        let mut response = request.params["inputResponses"]["question"].clone();
        for (number, step) in script.steps.iter().enumerate().skip(resumed_step.unwrap_or(0)) {
            match step {
                Step::WaitMs(millis) => sleep(Duration::from_millis(*millis)).await,
                Step::Progress { progress, total } => self.report_progress(request, *progress, *total),
                Step::Log(text) => {
                    self.notify("notifications/message", &json!({"level": "info", "data": text}));
                }
                Step::Notify { method, params } => self.notify(method, params),
                Step::AddTool(name) => self.shared.add_tool(name, Script::new().arguments()),
                Step::Ask { .. } if resumed_step == Some(number) => {}
                Step::Ask { method, params } if self.era == ScriptedEra::Stateless => {
                    self.answer(request, input_required(number, method, params));
                    return ControlFlow::Continue(());
                }
                Step::Ask { method, params } => response = self.ask(method, params).await,
                last => return self.run_last_step(request, last, &response).await,
            }
        }
        self.answer(request, json!({"content": []}));
        ControlFlow::Continue(())
    }

    /// Runs a step that ends the script.
    async fn run_last_step(&self, request: &Request, step: &Step, response: &Value) -> ControlFlow<()> {
        match step {
            Step::Text(text) => self.answer_text(request, text, false),
            Step::ToolError(text) => self.answer_text(request, text, true),
            Step::Result(result) => self.answer(request, result.clone()),
            Step::Error { code, message } => self.refuse(request, *code, message),
            Step::Response => self.answer_text(request, &response.to_string(), false),
            Step::Arguments => self.answer_text(request, &request.params["arguments"].to_string(), false),
            Step::Line(line) => self.send_line(line.replace("$ID", &request.id.to_string())),
            Step::Crash => return ControlFlow::Break(()),
            _ => std::future::pending().await,
        }
        ControlFlow::Continue(())
    }

    fn report_progress(&self, request: &Request, progress: u64, total: u64) {
        let token = &request.params["_meta"]["progressToken"];
        if !token.is_null() {
            let params = json!({"progressToken": token, "progress": progress, "total": total});
            self.notify("notifications/progress", &params);
        }
    }

    /// Sends a request to the client and returns the result or the error of its response.
    async fn ask(&self, method: &str, params: &Value) -> Value {
        let id = json!(format!("question-{}", self.questions.fetch_add(1, Ordering::Relaxed)));
        let (sender, receiver) = oneshot::channel();
        self.state().waiting.insert(id.to_string(), sender);
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        let Ok(response) = receiver.await else { return Value::Null };
        response.get("result").or(response.get("error")).cloned().unwrap_or_default()
    }
}

/// Sets a member that the script has not set.
fn set_default(result: &mut Value, member: &str, value: Value) {
    if let Some(members) = result.as_object_mut() {
        members.entry(member).or_insert(value);
    }
}

/// Returns the result that asks a stateless client; its next call goes on at this step.
fn input_required(step: usize, method: &str, params: &Value) -> Value {
    let requests = json!({"question": {"method": method, "params": params}});
    let state = format!("{STATE_PREFIX}{step}");
    json!({"resultType": "input_required", "inputRequests": requests, "requestState": state})
}

/// Returns the step that a stateless client's call goes on at.
fn resumed_step(params: &Value) -> Option<usize> {
    params["requestState"].as_str()?.strip_prefix(STATE_PREFIX)?.parse().ok()
}
