//! Task-only tools called by clients without tasks.

use std::pin::Pin;
use std::sync::Mutex;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};
use tokio::time::sleep_until;

use super::*;
use crate::protocol::era::capabilities::Client;
use crate::spec::InProcess;
use crate::util::locks::IgnorePoison as _;

/// A server with one slow task-only tool, `build`.
#[derive(Clone, Default)]
struct TaskServer {
    duration: Duration,
    /// True if the server does not declare task support.
    without_tasks: bool,
    requests: Arc<Mutex<Vec<String>>>,
}

impl TaskServer {
    fn with_duration(seconds: u64) -> Self {
        Self { duration: SECOND * u32::try_from(seconds).unwrap(), ..Self::default() }
    }

    /// Returns the methods of the calls so far.
    fn requests(&self) -> Vec<String> {
        self.requests.lock().ignore_poison().clone()
    }

    fn respond(&self, request: &Value) -> Option<Value> {
        let method = request["method"].as_str().unwrap_or_default();
        let params = &request["params"];
        if method.starts_with("tasks/") || method == "tools/call" {
            self.requests.lock().ignore_poison().push(method.to_owned());
        }
        let tasks = if self.without_tasks { json!({}) } else { json!({"requests": {"tools": {"call": {}}}}) };
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
            _ => Some(json!({"error": {"code": -32601, "message": "task required"}})),
        }
    }
}

impl InProcess for TaskServer {
    fn serve(&self, pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let this = self.clone();
        Box::pin(async move {
            let (reader, mut writer) = tokio::io::split(pipe);
            let mut lines = BufReader::new(reader).lines();
            let mut due: Option<(Instant, Value)> = None;
            loop {
                let at = due.as_ref().map_or_else(|| Instant::now() + SECOND * 86_400, |(at, _)| *at);
                let (id, mut response) = tokio::select! {
                    () = sleep_until(at) => {
                        let Some((_, id)) = due.take() else { continue };
                        (id, json!({"result": {"content": [{"type": "text", "text": "built"}]}}))
                    }
                    line = lines.next_line() => {
                        let Ok(Some(line)) = line else { return };
                        let request: Value = serde_json::from_str(&line).unwrap();
                        let id = request["id"].clone();
                        match this.respond(&request) {
                            _ if id.is_null() => continue,
                            Some(response) => (id, response),
                            None => {
                                due = Some((Instant::now() + this.duration, id));
                                continue;
                            }
                        }
                    }
                };
                (response["jsonrpc"], response["id"]) = ("2.0".into(), id);
                writer.write_all(format!("{response}\n").as_bytes()).await.unwrap();
            }
        })
    }
}

async fn connect_server(server: &TaskServer) -> Arc<Connection> {
    connect(&ServerSpec::in_process("builder".parse().unwrap(), server.clone())).await
}

async fn build(connection: &Connection, era: Era) -> Result<Outcome, Error> {
    let client = Client { era, ..Client::without_capabilities() };
    connection.call(&mut Call::tool("build").client(client), "build", Instant::now()).await
}

#[tokio::test(start_paused = true)]
async fn stateless_client_gets_the_result_of_a_task_only_tool() {
    let server = TaskServer::with_duration(5);
    let connection = connect_server(&server).await;
    assert_eq!(build(&connection, Era::Stateless).await.unwrap().text(), "built");
    assert_eq!(server.requests(), ["tools/call", "tasks/result"]);
}

#[tokio::test(start_paused = true)]
async fn task_result_is_awaited_up_to_the_hard_limit() {
    let (server, before) = (TaskServer::with_duration(200), Instant::now());
    let connection = connect_server(&server).await;
    assert_eq!(build(&connection, Era::Stateless).await.unwrap().text(), "built");
    assert_eq!(before.elapsed().as_secs(), 200);
    assert_eq!(server.requests(), ["tools/call", "tasks/result", "tasks/get", "tasks/get", "tasks/get"]);

    let (slow, before) = (TaskServer::with_duration(5000), Instant::now());
    let connection = connect_server(&slow).await;
    let error = build(&connection, Era::Stateless).await.unwrap_err();
    assert_eq!((error.kind(), before.elapsed().as_secs()), (ErrorKind::TimedOut, 600));
    settle().await;
    assert_eq!(slow.requests().last().unwrap(), "tasks/cancel");
}

#[tokio::test(start_paused = true)]
async fn dropped_call_cancels_its_task() {
    let server = TaskServer::with_duration(50);
    let connection = connect_server(&server).await;
    assert!(timeout(SECOND, build(&connection, Era::Stateless)).await.is_err());
    settle().await;
    assert_eq!(server.requests(), ["tools/call", "tasks/result", "tasks/cancel"]);
}

#[tokio::test(start_paused = true)]
async fn no_task_is_created_without_need_or_support() {
    let server = TaskServer::with_duration(5);
    assert!(build(&*connect_server(&server).await, Era::Session).await.unwrap().is_error());
    let without_tasks = TaskServer { without_tasks: true, ..TaskServer::with_duration(5) };
    assert!(build(&*connect_server(&without_tasks).await, Era::Stateless).await.unwrap().is_error());
    assert_eq!(
        (server.requests(), without_tasks.requests()),
        (vec!["tools/call".to_owned()], vec!["tools/call".to_owned()])
    );
}
