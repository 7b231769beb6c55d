//! Changed lists of remote servers, also while their announcements cannot be heard.

use super::*;
use crate::protocol::list_kind::ListKinds;
use crate::protocol::versions::Era;
use crate::supervisor::{Supervisor, SupervisorServices};

const CHANGED: &str = "notifications/tools/list_changed";

/// A remote server that lists one tool with a number, which tests change.
#[derive(Clone, Default)]
struct CountedTool {
    number: Arc<AtomicUsize>,
    /// The number of streams of notifications so far.
    streams: Arc<AtomicUsize>,
}

impl CountedTool {
    fn change(&self) {
        self.number.fetch_add(1, Ordering::SeqCst);
    }

    fn list(&self, request: &RecordedRequest) -> Reply {
        let name = format!("t{}", self.number.load(Ordering::SeqCst));
        // The time to live is not what makes the gateway ask again.
        Reply::result(request, &json!({"tools": [{"name": name}], "ttlMs": 3_600_000}))
    }
}

fn supervise(server: &RemoteServer) -> Supervisor {
    Supervisor::start(http(&server.url), None, None, SupervisorServices::default())
}

fn tools(supervisor: &Supervisor) -> Vec<String> {
    let listing = supervisor.listing().unwrap();
    listing.tools.iter().map(|tool| tool.name.to_string()).collect()
}

/// Waits until the supervisor knows this tool.
async fn wait_for_tool(supervisor: &Supervisor, name: &str) {
    for _ in 0..500 {
        if tools(supervisor) == [name] {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?} instead of {name}", tools(supervisor));
}

/// Responds as a session-era server that announces changes, with these replies to `GET`.
fn announcing_session(
    tool: CountedTool,
    streams: impl Fn(usize) -> Reply + Send + Sync + 'static,
) -> impl Fn(&RecordedRequest) -> Reply + Send + Sync + 'static {
    move |request| match request.method() {
        "initialize" => {
            let capabilities = json!({"tools": {"listChanged": true}});
            let result = json!({"protocolVersion": "2025-11-25", "capabilities": capabilities});
            Reply::result(request, &result).with("mcp-session-id", "s1")
        }
        "tools/list" => tool.list(request),
        "GET" => streams(tool.streams.fetch_add(1, Ordering::SeqCst)),
        _ => session(request, "s1"),
    }
}

#[tokio::test]
async fn change_before_the_get_stream_opens_is_noticed() {
    let tool = CountedTool::default();
    let script = announcing_session(tool.clone(), |_| {
        Reply::events([Step::Send(": open\n\n".into()), Step::Hang]).delayed(SECOND / 2)
    });
    let server = RemoteServer::start(script).await;
    let supervisor = supervise(&server);
    drop(supervisor.lease(Era::Session).await.unwrap());
    assert_eq!(tools(&supervisor), ["t0"]);
    tool.change();
    wait_for_tool(&supervisor, "t1").await;
    supervisor.stop().await.unwrap();
}

#[tokio::test]
async fn change_while_the_get_stream_is_closed_is_noticed() {
    let tool = CountedTool::default();
    let changing = tool.clone();
    let script = announcing_session(tool.clone(), move |number| match number {
        // Numbered, so that the stream is resumed.
        0 => Reply::events([Step::Send("id: 1\nretry: 1\ndata:\n\n".into())]),
        1 => {
            changing.change();
            Reply::events([Step::Send(": open\n\n".into()), Step::Hang])
        }
        _ => Reply::events([Step::Hang]),
    });
    let server = RemoteServer::start(script).await;
    let supervisor = supervise(&server);
    drop(supervisor.lease(Era::Session).await.unwrap());
    wait_for_tool(&supervisor, "t1").await;
    supervisor.stop().await.unwrap();
}

/// Returns the steps that acknowledge a listen request.
fn acknowledgement(request: &RecordedRequest) -> Step {
    let meta = json!({"io.modelcontextprotocol/subscriptionId": request.body["id"]});
    let params = json!({"notifications": {"toolsListChanged": true}, "_meta": meta});
    let method = "notifications/subscriptions/acknowledged";
    event(&json!({"jsonrpc": "2.0", "method": method, "params": params}))
}

/// Responds as a stateless server that announces changes and ends its first listen streams.
fn announcing_stateless(
    tool: CountedTool,
    ended_streams: usize,
) -> impl Fn(&RecordedRequest) -> Reply + Send + Sync + 'static {
    move |request| match request.method() {
        "server/discover" => {
            let capabilities = json!({"tools": {"listChanged": true}});
            let result = json!({"supportedVersions": ["2026-07-28"], "capabilities": capabilities});
            Reply::result(request, &result)
        }
        "tools/list" => tool.list(request),
        "subscriptions/listen" => {
            let number = tool.streams.fetch_add(1, Ordering::SeqCst);
            tool.change();
            match number < ended_streams {
                true => Reply::events([acknowledgement(request)]),
                false => Reply::events([acknowledgement(request), Step::Hang]),
            }
        }
        _ => stateless(request),
    }
}

#[tokio::test]
async fn change_while_no_listen_stream_is_open_is_noticed() {
    for ended_streams in [0, 2] {
        let tool = CountedTool::default();
        let server = RemoteServer::start(announcing_stateless(tool.clone(), ended_streams)).await;
        let supervisor = supervise(&server);
        drop(supervisor.lease(Era::Stateless).await.unwrap());
        wait_for_tool(&supervisor, &format!("t{}", ended_streams + 1)).await;
        supervisor.stop().await.unwrap();
    }
}

#[tokio::test]
async fn server_that_announces_no_changes_is_listed_once() {
    let server = RemoteServer::start(|request| match request.method() {
        "GET" => Reply::events([Step::Send(": open\n\n".into()), Step::Hang]),
        _ => session(request, "s1"),
    });
    let server = server.await;
    let supervisor = supervise(&server);
    drop(supervisor.lease(Era::Session).await.unwrap());
    server.wait_until(|server| server.requests("GET").len() == 1).await;
    drop(supervisor.lease(Era::Session).await.unwrap());
    assert!(supervisor.refresh(ListKinds::ALL, Instant::now()).is_none());
    assert_eq!(server.requests("tools/list").len(), 1);
    supervisor.stop().await.unwrap();
}

#[tokio::test]
async fn announced_change_on_the_get_stream_is_listed() {
    let tool = CountedTool::default();
    let (sender, messages) = tokio::sync::mpsc::unbounded_channel::<Value>();
    let messages = std::sync::Mutex::new(Some(messages));
    let script = announcing_session(tool.clone(), move |_| match messages.lock().unwrap().take() {
        Some(messages) => Reply::events([Step::Send(": open\n\n".into())]).forwarding(messages),
        None => Reply::events([Step::Hang]),
    });
    let server = RemoteServer::start(script).await;
    let supervisor = supervise(&server);
    drop(supervisor.lease(Era::Session).await.unwrap());
    server.wait_until(|server| server.requests("tools/list").len() == 2).await;
    for number in 1..=3 {
        tool.change();
        sender.send(json!({"jsonrpc": "2.0", "method": CHANGED})).unwrap();
        wait_for_tool(&supervisor, &format!("t{number}")).await;
    }
    supervisor.stop().await.unwrap();
}
