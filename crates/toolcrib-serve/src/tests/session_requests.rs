//! Tests of requests in a session before their response starts.

use tokio::sync::{Notify, watch};
use toolcrib::{ServerSpec, Toolbox};

use super::*;

const CALL: &str =
    r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"wait","arguments":{}}}"#;
const CANCEL: &str = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}"#;

/// The progress of a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    None,
    Started,
    Done,
    Dropped,
}

/// Reports that a call was dropped, unless it was done.
struct ProgressReporter(watch::Sender<Progress>);

impl Drop for ProgressReporter {
    fn drop(&mut self) {
        self.0.send_if_modified(|progress| {
            let is_dropped = *progress == Progress::Started;
            if is_dropped {
                *progress = Progress::Dropped;
            }
            is_dropped
        });
    }
}

/// A gateway with a tool that waits until it is released.
struct WaitingTool {
    gateway: TestGateway,
    session: String,
    release: Arc<Notify>,
    progress: watch::Receiver<Progress>,
}

impl WaitingTool {
    async fn new() -> Self {
        let (sender, progress) = watch::channel(Progress::None);
        let release = Arc::<Notify>::default();
        let tool_release = release.clone();
        let schema = serde_json::json!({"type": "object"});
        let tools = Toolbox::new().tool("wait", "Waits", &schema, move |_| {
            let reporter = ProgressReporter(sender.clone());
            let release = tool_release.clone();
            async move {
                reporter.0.send_replace(Progress::Started);
                release.notified().await;
                reporter.0.send_replace(Progress::Done);
                Ok("done".to_owned())
            }
        });
        let spec = ServerSpec::in_process("house".parse().unwrap(), tools);
        let gateway = TestGateway::with_crib(Crib::builder().server(spec).build().unwrap(), 10_000, 10);
        let session = gateway.open_session().await;
        Self { gateway, session, release, progress }
    }

    async fn post(&self, body: &str) -> Client {
        self.gateway.post(body.len(), &format!("|Mcp-Session-Id: {}", self.session), body).await
    }

    /// Calls the tool and waits until it runs.
    async fn call(&mut self) -> Client {
        let client = self.post(CALL).await;
        self.expect_progress(Progress::Started).await;
        client
    }

    async fn expect_progress(&mut self, expected: Progress) {
        let reached = self.progress.wait_for(|progress| *progress == expected);
        timeout(TOO_LONG, reached).await.unwrap_or_else(|_| panic!("{expected:?} in time")).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn request_without_updates_gets_a_complete_response() {
    let mut tool = WaitingTool::new().await;
    let mut client = tool.call().await;
    assert_eq!(status(&tool.post(CALL).await.read_head().await), "400", "the id is in use");
    tool.release.notify_one();
    let head = client.read_head().await;
    assert!(head.contains("content-type: application/json"), "{head}");
    tool.release.notify_one();
    let mut again = tool.post(CALL).await;
    assert_eq!(status(&again.read_head().await), "200", "the id is free again");
}

#[tokio::test(start_paused = true)]
async fn request_continues_after_its_connection_ended() {
    let mut tool = WaitingTool::new().await;
    drop(tool.call().await);
    // The connection notices it, and what is left of the request has a task of its own.
    tool.gateway.tasks.close();
    timeout(TOO_LONG, tool.gateway.tasks.wait()).await.expect("the connection ends");
    assert_eq!(*tool.progress.borrow(), Progress::Started);
    tool.release.notify_one();
    tool.expect_progress(Progress::Done).await;
    timeout(TOO_LONG, tool.gateway.state.finish()).await.expect("the request ends");
}

#[tokio::test(start_paused = true)]
async fn cancelled_request_ends_without_a_response() {
    for ends_connection in [false, true] {
        let mut tool = WaitingTool::new().await;
        let mut client = Some(tool.call().await).filter(|_| !ends_connection);
        if ends_connection {
            tool.gateway.tasks.close();
            timeout(TOO_LONG, tool.gateway.tasks.wait()).await.expect("the connection ends");
        }
        assert_eq!(status(&tool.post(CANCEL).await.read_head().await), "202");
        tool.expect_progress(Progress::Dropped).await;
        if let Some(client) = &mut client {
            let head = client.read_head().await;
            assert!(head.contains("content-type: text/event-stream"), "{head}");
        }
    }
}
