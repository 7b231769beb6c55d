//! A scripted server in this process, for tests: it does what the name of the called tool says, boots as it was told
//! to, and remembers everything it heard. All lives of one fake share one memory.

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

use crate::InProcess;

/// How one life begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Boot {
    /// A session-era server that refuses what it does not know.
    Session,
    /// A server of the stateless era.
    Stateless,
    /// Ends before it reads anything.
    Dies,
    /// Ends when it is asked for its era, and is fine otherwise.
    DiesOnProbe,
    /// Comes up, says what it offers, and ends.
    DiesOnceListed,
    /// Does not answer when it is asked for its era, and is fine otherwise.
    SilentOnProbe,
    /// Answers the first greeting only after this long.
    Late(Duration),
    /// Reads and never answers.
    Silent,
    /// Says that it will not serve.
    Refuses,
    /// Answers the greeting with something that is none.
    Babbles,
    /// Sends back whatever it is sent.
    Echoes,
}

/// A scripted server; clones are the same one.
#[derive(Clone)]
pub(crate) struct Fake(Arc<Shared>);

struct Shared {
    tools: Vec<String>,
    usual: Mutex<Boot>,
    boots: Mutex<VecDeque<Boot>>,
    /// Lines sent instead of the usual answer to a method; `$ID` stands for the request's id.
    scripts: Mutex<HashMap<String, VecDeque<String>>>,
    heard: Mutex<Vec<Value>>,
    starts: Mutex<Vec<Instant>>,
    crashes: Mutex<Vec<Instant>>,
    living: AtomicUsize,
    most_living: AtomicUsize,
    /// Lives up to this one must end.
    killed: watch::Sender<usize>,
    /// Lives up to this one stand still.
    frozen: watch::Sender<usize>,
    /// Calls of `hold` answer while this is true.
    open: watch::Sender<bool>,
    /// What it says about its tools.
    hints: Mutex<HashMap<String, Value>>,
    /// Bytes of memory that it says it uses.
    memory: AtomicU64,
}

/// Counts one life while it lasts.
struct Life(Arc<Shared>);

impl Drop for Life {
    fn drop(&mut self) {
        self.0.living.fetch_sub(1, SeqCst);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fake {
    /// A session-era server that offers every trick there is.
    pub(crate) fn new() -> Self {
        Self::offering(&["echo", "hold", "hang", "slow", "fail", "refuse", "die", "say", "progress"])
    }

    /// A server with these tools; one without a trick of its name echoes its arguments, and says of its answer what they
    /// say: `ttlMs`, `cacheScope`.
    pub(crate) fn offering(tools: &[&str]) -> Self {
        Self(Arc::new(Shared {
            tools: tools.iter().map(ToString::to_string).collect(),
            usual: Mutex::new(Boot::Session),
            boots: Mutex::default(),
            scripts: Mutex::default(),
            heard: Mutex::default(),
            starts: Mutex::default(),
            crashes: Mutex::default(),
            living: AtomicUsize::new(0),
            most_living: AtomicUsize::new(0),
            killed: watch::Sender::new(0),
            frozen: watch::Sender::new(0),
            hints: Mutex::default(),
            open: watch::Sender::new(false),
            memory: AtomicU64::new(0),
        }))
    }

    /// How every life begins that has no other plan.
    pub(crate) fn usually(self, boot: Boot) -> Self {
        *locked(&self.0.usual) = boot;
        self
    }

    /// How the next lives begin.
    pub(crate) fn boots(self, boots: &[Boot]) -> Self {
        locked(&self.0.boots).extend(boots);
        self
    }

    /// Answers the next requests of `method` with these lines, one each.
    pub(crate) fn script(self, method: &str, lines: &[&str]) -> Self {
        let lines = lines.iter().map(ToString::to_string);
        locked(&self.0.scripts).entry(method.to_owned()).or_default().extend(lines);
        self
    }

    /// What it says about a tool, in the words of the protocol.
    pub(crate) fn hinting(self, tool: &str, hint: &str) -> Self {
        locked(&self.0.hints).insert(tool.to_owned(), json!({ hint: true }));
        self
    }

    /// How often it was started.
    pub(crate) fn starts(&self) -> usize {
        locked(&self.0.starts).len()
    }

    /// When it was started.
    pub(crate) fn start_times(&self) -> Vec<Instant> {
        locked(&self.0.starts).clone()
    }

    /// When it ended without being told to.
    pub(crate) fn crashes(&self) -> Vec<Instant> {
        locked(&self.0.crashes).clone()
    }

    /// How many of it live now, and how many did at most.
    pub(crate) fn living(&self) -> (usize, usize) {
        (self.0.living.load(SeqCst), self.0.most_living.load(SeqCst))
    }

    /// Everything of this method it was sent, in order.
    pub(crate) fn heard(&self, method: &str) -> Vec<Value> {
        locked(&self.0.heard).iter().filter(|message| message["method"] == method).cloned().collect()
    }

    /// Everything it was sent that answers a request of its own.
    pub(crate) fn replies(&self) -> Vec<Value> {
        locked(&self.0.heard).iter().filter(|message| message.get("method").is_none()).cloned().collect()
    }

    /// The tools that were called, in order.
    pub(crate) fn called(&self) -> Vec<String> {
        let names = self.heard("tools/call").into_iter();
        names.map(|call| call["params"]["name"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Ends every life there is, as a crash would.
    pub(crate) fn kill(&self) {
        self.0.killed.send_replace(self.starts());
    }

    /// Makes every life there is stand still: it reads nothing and says nothing.
    pub(crate) fn freeze(&self) {
        self.0.frozen.send_replace(self.starts());
    }

    /// Lets every life go on.
    pub(crate) fn thaw(&self) {
        self.0.frozen.send_replace(0);
    }

    /// Says that it uses this many bytes of memory.
    pub(crate) fn weighs(&self, bytes: u64) {
        self.0.memory.store(bytes, SeqCst);
    }

    /// Lets calls of `hold` answer, now and from now on, or not.
    pub(crate) fn open(&self, open: bool) {
        self.0.open.send_replace(open);
    }
}

impl InProcess for Fake {
    fn serve(&self, pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let shared = self.0.clone();
        let number = {
            let mut starts = locked(&shared.starts);
            starts.push(Instant::now());
            starts.len()
        };
        let boot = locked(&shared.boots).pop_front().unwrap_or(*locked(&shared.usual));
        let living = shared.living.fetch_add(1, SeqCst) + 1;
        shared.most_living.fetch_max(living, SeqCst);
        let life = Life(shared.clone());
        Box::pin(async move {
            let _life = life;
            let mut killed = shared.killed.subscribe();
            let (reader, writer) = tokio::io::split(pipe);
            let crashed = tokio::select! {
                crashed = live(&shared, boot, number, reader, writer) => crashed,
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

/// One life: until the pipe ends or a trick ends it, which is a crash.
async fn live(
    shared: &Arc<Shared>,
    boot: Boot,
    number: usize,
    reader: ReadHalf<DuplexStream>,
    mut writer: WriteHalf<DuplexStream>,
) -> bool {
    if boot == Boot::Dies {
        return true;
    }
    let mut lines = BufReader::new(reader).lines();
    let (say, mut said) = mpsc::unbounded_channel::<String>();
    let mut tricks = JoinSet::new();
    let mut frozen = shared.frozen.subscribe();
    loop {
        tokio::select! {
            biased;
            Some(line) = said.recv() => {
                let _ = frozen.wait_for(|up_to| *up_to < number).await;
                if writer.write_all(format!("{line}\n").as_bytes()).await.is_err() {
                    return false;
                }
                if boot == Boot::DiesOnceListed && line.contains(r#""tools":["#) {
                    return true;
                }
            }
            line = lines.next_line() => {
                let Ok(Some(line)) = line else { return false };
                let _ = frozen.wait_for(|up_to| *up_to < number).await;
                if boot == Boot::Echoes {
                    let _ = say.send(line);
                    continue;
                }
                let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
                locked(&shared.heard).push(message.clone());
                if message["params"]["name"] == "die" || (message["method"] == "server/discover" && boot == Boot::DiesOnProbe) {
                    return true;
                }
                if message.get("id").is_some() && message.get("method").is_some() {
                    tricks.spawn(respond(shared.clone(), boot, message, say.clone()));
                }
            }
            Some(_) = tricks.join_next() => {}
        }
    }
}

async fn respond(shared: Arc<Shared>, boot: Boot, message: Value, say: mpsc::UnboundedSender<String>) {
    let (id, method) = (message["id"].to_string(), message["method"].as_str().unwrap_or_default());
    let script = locked(&shared.scripts).get_mut(method).and_then(VecDeque::pop_front);
    let line = match (script, method, boot) {
        (Some(line), ..) => line.replace("$ID", &id),
        (None, _, Boot::Silent) | (None, "server/discover", Boot::SilentOnProbe) => return,
        (None, "server/discover", Boot::Stateless) => result(&id, &discovered()),
        (None, "initialize", Boot::Refuses) => error(&id, -32000, "not today"),
        (None, "initialize", Boot::Babbles) => result(&id, &json!({"hello": "world"})),
        (None, "initialize", boot) => {
            if let Boot::Late(wait) = boot {
                sleep(wait).await;
            }
            result(&id, &welcome(&message["params"]["protocolVersion"]))
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
        (None, "tools/call", _) => match trick(&shared, &id, &message["params"], &say).await {
            Some(line) => line,
            None => return,
        },
        _ => error(&id, -32601, "no such method"),
    };
    // A life that ended hears nothing more.
    let _ = say.send(line);
}

/// What a tool does; `None` if it never answers.
async fn trick(
    shared: &Shared,
    id: &str,
    params: &Value,
    say: &mpsc::UnboundedSender<String>,
) -> Option<String> {
    let arguments = &params["arguments"];
    let millis = |member: &str| Duration::from_millis(arguments[member].as_u64().unwrap_or(0));
    match params["name"].as_str().unwrap_or_default() {
        "hang" => return None,
        "hold" => {
            let mut open = shared.open.subscribe();
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
                say.send(line.to_string()).ok()?;
            }
            sleep(millis("then")).await;
        }
        _ => {}
    }
    let mut answer = json!({"content": [{"type": "text", "text": arguments.to_string()}]});
    for said in ["ttlMs", "cacheScope"] {
        if let Some(value) = arguments.get(said) {
            answer[said] = value.clone();
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

fn welcome(revision: &Value) -> Value {
    json!({"protocolVersion": revision, "capabilities": {"tools": {}}, "serverInfo": {"name": "fake", "version": "1"}})
}

fn discovered() -> Value {
    json!({
        "resultType": "complete",
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}},
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "fake", "version": "2"}},
    })
}
