//! Tools that run as tasks only, called by clients that know nothing of tasks.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};
use tokio::time::sleep_until;

use super::*;
use crate::spec::InProcess;
use crate::wire::dialect::party::Client;

/// A server with one tool, `build`, which runs as a task only and takes its time.
#[derive(Clone, Default)]
struct Builder {
    takes: Duration,
    /// Whether it says that calls can be tasks.
    shy: bool,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Builder {
    fn taking(seconds: u64) -> Self {
        Self { takes: SECOND * u32::try_from(seconds).unwrap(), ..Self::default() }
    }

    /// What was asked since the start.
    fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn answer(&self, asked: &Value) -> Option<Value> {
        let (method, params) = (asked["method"].as_str().unwrap_or_default(), &asked["params"]);
        if method.starts_with("tasks/") || method == "tools/call" {
            self.heard.lock().unwrap_or_else(PoisonError::into_inner).push(method.to_owned());
        }
        let tasks = if self.shy { json!({}) } else { json!({"requests": {"tools": {"call": {}}}}) };
        let task = json!({"taskId": "t-1", "status": "working", "ttl": null});
        match method {
            "initialize" => Some(json!({"result": {
                "protocolVersion": "2025-11-25", "capabilities": {"tools": {}, "tasks": tasks},
                "serverInfo": {"name": "builder", "version": "1"},
            }})),
            "tools/list" => Some(json!({"result": {"tools": [{
                "name": "build", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"},
            }]}})),
            "tools/call" if params["task"].is_object() => Some(json!({"result": {"task": task}})),
            "tasks/get" if params["taskId"] == "t-1" => Some(json!({ "result": task })),
            "tasks/result" if params["taskId"] == "t-1" => None,
            "tasks/cancel" if params["taskId"] == "t-1" => Some(json!({"result": {}})),
            _ => Some(json!({"error": {"code": -32601, "message": "only as a task"}})),
        }
    }
}

impl InProcess for Builder {
    fn serve(&self, pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let this = self.clone();
        Box::pin(async move {
            let (reader, mut writer) = tokio::io::split(pipe);
            let mut lines = BufReader::new(reader).lines();
            let mut due: Option<(Instant, Value)> = None;
            loop {
                let at = due.as_ref().map_or_else(|| Instant::now() + SECOND * 86_400, |(at, _)| *at);
                let (id, mut answer) = tokio::select! {
                    () = sleep_until(at) => {
                        let Some((_, id)) = due.take() else { continue };
                        (id, json!({"result": {"content": [{"type": "text", "text": "built"}]}}))
                    }
                    line = lines.next_line() => {
                        let Ok(Some(line)) = line else { return };
                        let asked: Value = serde_json::from_str(&line).unwrap();
                        let id = asked["id"].clone();
                        match this.answer(&asked) {
                            _ if id.is_null() => continue,
                            Some(answer) => (id, answer),
                            None => {
                                due = Some((Instant::now() + this.takes, id));
                                continue;
                            }
                        }
                    }
                };
                (answer["jsonrpc"], answer["id"]) = ("2.0".into(), id);
                writer.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
            }
        })
    }
}

async fn reached(builder: &Builder) -> Arc<Connection> {
    connected(&ServerSpec::in_process("builder".parse().unwrap(), builder.clone())).await
}

async fn build(connection: &Connection, era: Era) -> Result<Outcome, Error> {
    let client = Client { era, ..Client::silent() };
    connection.call(&mut Call::tool("build").of(client), "build", Instant::now()).await
}

#[tokio::test(start_paused = true)]
async fn a_stateless_client_gets_the_result_of_a_tool_that_runs_as_a_task_only() {
    let builder = Builder::taking(5);
    let connection = reached(&builder).await;
    assert_eq!(build(&connection, Era::Stateless).await.unwrap().text(), "built");
    assert_eq!(builder.heard(), ["tools/call", "tasks/result"]);
}

#[tokio::test(start_paused = true)]
async fn a_task_is_waited_for_as_long_as_its_server_works_on_it_and_a_call_may_take() {
    let (builder, before) = (Builder::taking(200), Instant::now());
    let connection = reached(&builder).await;
    assert_eq!(build(&connection, Era::Stateless).await.unwrap().text(), "built");
    assert_eq!(before.elapsed().as_secs(), 200);
    assert_eq!(builder.heard(), ["tools/call", "tasks/result", "tasks/get", "tasks/get", "tasks/get"]);

    let (endless, before) = (Builder::taking(5000), Instant::now());
    let connection = reached(&endless).await;
    let error = build(&connection, Era::Stateless).await.unwrap_err();
    assert_eq!((error.kind(), before.elapsed().as_secs()), (ErrorKind::TimedOut, 600));
    breath().await;
    assert_eq!(endless.heard().last().unwrap(), "tasks/cancel");
}

#[tokio::test(start_paused = true)]
async fn a_task_ends_when_its_call_is_given_up() {
    let builder = Builder::taking(50);
    let connection = reached(&builder).await;
    assert!(timeout(SECOND, build(&connection, Era::Stateless)).await.is_err());
    breath().await;
    assert_eq!(builder.heard(), ["tools/call", "tasks/result", "tasks/cancel"]);
}

#[tokio::test(start_paused = true)]
async fn whoever_knows_tasks_makes_them_itself_and_nobody_does_for_a_server_that_has_none() {
    let builder = Builder::taking(5);
    assert!(build(&*reached(&builder).await, Era::Session).await.unwrap().is_error());
    let shy = Builder { shy: true, ..Builder::taking(5) };
    assert!(build(&*reached(&shy).await, Era::Stateless).await.unwrap().is_error());
    assert_eq!(
        (builder.heard(), shy.heard()),
        (vec!["tools/call".to_owned()], vec!["tools/call".to_owned()])
    );
}
