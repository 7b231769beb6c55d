//! A scripted in-process server for tests. The name of a called tool selects its behaviour, each start can be scripted,
//! and every received message is recorded. All starts of one fake share its state.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::spec::InProcess;

/// The behaviour of one start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FakeStart {
    /// A session-era server that refuses unknown methods.
    Session,
    /// A server of the stateless era that refuses unknown methods.
    Stateless,
    /// A server of both eras.
    Both,
    /// A server of the stateless era that exits on `initialize`.
    ExitsOnInitialize,
    /// A server of the stateless era that refuses `initialize` and exits.
    RefusesSessionAndExits,
    /// A server of the stateless era that does not answer `initialize`.
    SilentOnInitialize,
    /// Exits before it reads anything.
    Exits,
    /// Exits after this time and answers nothing.
    ExitsAfter(Duration),
    /// Exits when probed for the stateless era, otherwise like `Session`.
    ExitsOnProbe,
    /// Comes up, answers `tools/list` and exits.
    ExitsOnceListed,
    /// Does not answer the probe for the stateless era, otherwise like `Session`.
    SilentOnProbe,
    /// Answers `initialize` after this time.
    SlowHandshake(Duration),
    /// Reads and never answers.
    Silent,
    /// Answers `initialize` with an error.
    RefusesHandshake,
    /// Answers `initialize` with an invalid result.
    InvalidHandshake,
    /// Sends back every line it receives.
    Echoes,
}

impl FakeStart {
    /// Returns whether it answers the probe for the stateless era.
    fn is_stateless(self) -> bool {
        matches!(
            self,
            Self::Stateless
                | Self::Both
                | Self::ExitsOnInitialize
                | Self::RefusesSessionAndExits
                | Self::SilentOnInitialize
        )
    }
}

/// A scripted server. Clones share its state.
#[derive(Clone)]
pub(crate) struct FakeServer(Arc<FakeInner>);

struct FakeInner {
    tools: Vec<String>,
    default_start: Mutex<FakeStart>,
    next_starts: Mutex<VecDeque<FakeStart>>,
    /// Lines sent instead of the normal answer to a method. `$ID` is replaced by the request id.
    scripts: Mutex<HashMap<String, VecDeque<String>>>,
    received: Mutex<Vec<Value>>,
    starts: Mutex<Vec<Instant>>,
    crashes: Mutex<Vec<Instant>>,
    running: AtomicUsize,
    peak_running: AtomicUsize,
    /// Instances up to this number must exit.
    killed: watch::Sender<usize>,
    /// Instances up to this number are frozen.
    frozen: watch::Sender<usize>,
    /// Calls of `hold` are answered while this is true.
    hold_open: watch::Sender<bool>,
    /// Annotations of its tools.
    hints: Mutex<HashMap<String, Value>>,
    /// Reported memory usage in bytes.
    memory: AtomicU64,
}

/// Counts one running instance.
struct FakeInstance(Arc<FakeInner>);

impl Drop for FakeInstance {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, SeqCst);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FakeServer {
    /// Creates a session-era server with all scripted tools.
    pub(crate) fn new() -> Self {
        Self::with_tools(&["echo", "hold", "hang", "slow", "fail", "refuse", "die", "say", "progress"])
    }

    /// Creates a server with these tools. A tool without scripted behaviour echoes its arguments and copies `ttlMs` and
    /// `cacheScope` from them into its result.
    pub(crate) fn with_tools(tools: &[&str]) -> Self {
        Self(Arc::new(FakeInner {
            tools: tools.iter().map(ToString::to_string).collect(),
            default_start: Mutex::new(FakeStart::Session),
            next_starts: Mutex::default(),
            scripts: Mutex::default(),
            received: Mutex::default(),
            starts: Mutex::default(),
            crashes: Mutex::default(),
            running: AtomicUsize::new(0),
            peak_running: AtomicUsize::new(0),
            killed: watch::Sender::new(0),
            frozen: watch::Sender::new(0),
            hints: Mutex::default(),
            hold_open: watch::Sender::new(false),
            memory: AtomicU64::new(0),
        }))
    }

    /// Sets the behaviour of starts that are not scripted.
    pub(crate) fn default_start(self, start: FakeStart) -> Self {
        *locked(&self.0.default_start) = start;
        self
    }

    /// Scripts the next starts.
    pub(crate) fn next_starts(self, starts: &[FakeStart]) -> Self {
        locked(&self.0.next_starts).extend(starts);
        self
    }

    /// Scripts the answers to the next requests of `method`, one line each.
    pub(crate) fn script(self, method: &str, lines: &[&str]) -> Self {
        let lines = lines.iter().map(ToString::to_string);
        locked(&self.0.scripts).entry(method.to_owned()).or_default().extend(lines);
        self
    }

    /// Sets an annotation of a tool to `true`.
    pub(crate) fn with_hint(self, tool: &str, hint: &str) -> Self {
        locked(&self.0.hints).insert(tool.to_owned(), json!({ hint: true }));
        self
    }

    /// Returns how often the server was started.
    pub(crate) fn starts(&self) -> usize {
        locked(&self.0.starts).len()
    }

    /// Returns when the server was started.
    pub(crate) fn start_times(&self) -> Vec<Instant> {
        locked(&self.0.starts).clone()
    }

    /// Returns when the server exited by itself or was killed.
    pub(crate) fn crashes(&self) -> Vec<Instant> {
        locked(&self.0.crashes).clone()
    }

    /// Returns the current and the highest number of running instances.
    pub(crate) fn running_and_peak(&self) -> (usize, usize) {
        (self.0.running.load(SeqCst), self.0.peak_running.load(SeqCst))
    }

    /// Returns all received messages of this method, in order.
    pub(crate) fn received(&self, method: &str) -> Vec<Value> {
        locked(&self.0.received).iter().filter(|message| message["method"] == method).cloned().collect()
    }

    /// Returns all received responses to requests of the server.
    pub(crate) fn replies(&self) -> Vec<Value> {
        locked(&self.0.received).iter().filter(|message| message.get("method").is_none()).cloned().collect()
    }

    /// Returns the names of the called tools, in order.
    pub(crate) fn called_tools(&self) -> Vec<String> {
        let names = self.received("tools/call").into_iter();
        names.map(|call| call["params"]["name"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Ends every running instance like a crash.
    pub(crate) fn kill(&self) {
        self.0.killed.send_replace(self.starts());
    }

    /// Freezes every running instance: it reads and writes nothing.
    pub(crate) fn freeze(&self) {
        self.0.frozen.send_replace(self.starts());
    }

    /// Unfreezes every instance.
    pub(crate) fn thaw(&self) {
        self.0.frozen.send_replace(0);
    }

    /// Sets the reported memory usage.
    pub(crate) fn set_memory(&self, bytes: u64) {
        self.0.memory.store(bytes, SeqCst);
    }

    /// Sets whether calls of `hold` are answered, including those in flight.
    pub(crate) fn set_hold_open(&self, open: bool) {
        self.0.hold_open.send_replace(open);
    }
}

impl InProcess for FakeServer {
    fn serve(&self, pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let shared = self.0.clone();
        let number = {
            let mut starts = locked(&shared.starts);
            starts.push(Instant::now());
            starts.len()
        };
        let start = locked(&shared.next_starts).pop_front().unwrap_or(*locked(&shared.default_start));
        let running = shared.running.fetch_add(1, SeqCst) + 1;
        shared.peak_running.fetch_max(running, SeqCst);
        let instance = FakeInstance(shared.clone());
        Box::pin(async move {
            let _instance = instance;
            let mut killed = shared.killed.subscribe();
            let (reader, writer) = tokio::io::split(pipe);
            let crashed = tokio::select! {
                crashed = run(&shared, start, number, reader, writer) => crashed,
                _ = killed.wait_for(|up_to| *up_to >= number) => true,
            };
            if crashed {
                locked(&shared.crashes).push(Instant::now());
            }
        })
    }

    fn memory(&self) -> Option<u64> {
        Some(self.0.memory.load(SeqCst))
    }
}

/// Runs one instance until the pipe is closed or a scripted exit. Returns whether it was a crash.
async fn run(
    shared: &Arc<FakeInner>,
    start: FakeStart,
    number: usize,
    reader: ReadHalf<DuplexStream>,
    mut writer: WriteHalf<DuplexStream>,
) -> bool {
    match start {
        FakeStart::Exits => return true,
        FakeStart::ExitsAfter(time) => {
            sleep(time).await;
            return true;
        }
        _ => {}
    }
    let mut lines = BufReader::new(reader).lines();
    let (output_tx, mut output) = mpsc::unbounded_channel::<String>();
    let mut responses = JoinSet::new();
    let mut frozen = shared.frozen.subscribe();
    loop {
        tokio::select! {
            biased;
            Some(line) = output.recv() => {
                let _ = frozen.wait_for(|up_to| *up_to < number).await;
                if writer.write_all(format!("{line}\n").as_bytes()).await.is_err() {
                    return false;
                }
                if start == FakeStart::ExitsOnceListed && line.contains(r#""tools":["#)
                    || start == FakeStart::RefusesSessionAndExits && line.contains("no sessions")
                {
                    return true;
                }
            }
            line = lines.next_line() => {
                let Ok(Some(line)) = line else { return false };
                let _ = frozen.wait_for(|up_to| *up_to < number).await;
                if start == FakeStart::Echoes {
                    let _ = output_tx.send(line);
                    continue;
                }
                let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
                locked(&shared.received).push(message.clone());
                let exits_on = match start {
                    FakeStart::ExitsOnProbe => "server/discover",
                    FakeStart::ExitsOnInitialize => "initialize",
                    _ => "",
                };
                if message["params"]["name"] == "die" || message["method"] == exits_on {
                    return true;
                }
                if message.get("id").is_some() && message.get("method").is_some() {
                    responses.spawn(respond(shared.clone(), start, message, output_tx.clone()));
                }
            }
            Some(_) = responses.join_next() => {}
        }
    }
}

async fn respond(
    shared: Arc<FakeInner>,
    start: FakeStart,
    message: Value,
    output: mpsc::UnboundedSender<String>,
) {
    let id = message["id"].to_string();
    let method = message["method"].as_str().unwrap_or_default();
    let script = locked(&shared.scripts).get_mut(method).and_then(VecDeque::pop_front);
    let line = match (script, method, start) {
        (Some(line), ..) => line.replace("$ID", &id),
        (None, _, FakeStart::Silent)
        | (None, "server/discover", FakeStart::SilentOnProbe)
        | (None, "initialize", FakeStart::SilentOnInitialize) => return,
        (None, "server/discover", start) if start.is_stateless() => result(&id, &discover_result()),
        (None, "initialize", FakeStart::Stateless) => error(&id, -32601, "no such method"),
        (None, "initialize", FakeStart::RefusesSessionAndExits) => error(&id, -32022, "no sessions"),
        (None, "initialize", FakeStart::RefusesHandshake) => error(&id, -32000, "not today"),
        (None, "initialize", FakeStart::InvalidHandshake) => result(&id, &json!({"hello": "world"})),
        (None, "initialize", start) => {
            if let FakeStart::SlowHandshake(wait) = start {
                sleep(wait).await;
            }
            result(&id, &initialize_result(&message["params"]["protocolVersion"]))
        }
        (None, "tools/list", _) => {
            let hints = locked(&shared.hints).clone();
            let tool = |name: &String| match hints.get(name) {
                Some(hints) => json!({"name": name, "annotations": hints}),
                None => json!({"name": name}),
            };
            let tools: Vec<Value> = shared.tools.iter().map(tool).collect();
            result(&id, &json!({"tools": tools}))
        }
        (None, "tools/call", _) => match call_tool(&shared, &id, &message["params"], &output).await {
            Some(line) => line,
            None => return,
        },
        _ => error(&id, -32601, "no such method"),
    };
    // Fails if the instance has ended.
    let _ = output.send(line);
}

/// Runs a tool and returns its answer; `None` if it never answers.
async fn call_tool(
    shared: &FakeInner,
    id: &str,
    params: &Value,
    output: &mpsc::UnboundedSender<String>,
) -> Option<String> {
    let arguments = &params["arguments"];
    let millis = |member: &str| Duration::from_millis(arguments[member].as_u64().unwrap_or(0));
    match params["name"].as_str().unwrap_or_default() {
        "hang" => return None,
        "hold" => {
            let mut open = shared.hold_open.subscribe();
            open.wait_for(|open| *open).await.ok()?;
        }
        "slow" => sleep(millis("ms")).await,
        "fail" => return Some(result(id, &json!({"content": [], "isError": true}))),
        "refuse" => return Some(error(id, -32000, "could not connect to the database")),
        "say" => {
            let lines = arguments["lines"].as_array()?.iter().filter_map(Value::as_str);
            let lines: Vec<String> = lines.map(|line| line.replace("$ID", id)).collect();
            return Some(lines.join("\n"));
        }
        "progress" => {
            let token = &params["_meta"]["progressToken"];
            for step in 1..=arguments["steps"].as_u64().unwrap_or(0) {
                sleep(millis("every")).await;
                let params = json!({"progressToken": token, "progress": step});
                let line = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params});
                output.send(line.to_string()).ok()?;
            }
            sleep(millis("then")).await;
        }
        _ => {}
    }
    let mut answer = json!({"content": [{"type": "text", "text": arguments.to_string()}]});
    for member in ["ttlMs", "cacheScope"] {
        if let Some(value) = arguments.get(member) {
            answer[member] = value.clone();
        }
    }
    Some(result(id, &answer))
}

fn result(id: &str, result: &Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

fn error(id: &str, code: i32, message: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{}}}"#, json!({"code": code, "message": message}))
}

fn initialize_result(revision: &Value) -> Value {
    json!({"protocolVersion": revision, "capabilities": {"tools": {}}, "serverInfo": {"name": "fake", "version": "1"}})
}

fn discover_result() -> Value {
    json!({
        "resultType": "complete",
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}},
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "fake", "version": "2"}},
    })
}
