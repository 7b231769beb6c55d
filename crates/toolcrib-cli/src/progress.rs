//! Waits of commands: shows on a terminal what a command waits for, if that takes longer than 300 ms.

use std::convert::Infallible;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};
use toolcrib::{Crib, ServerStatus};

use crate::client::GatewayClient;
use crate::progress_line::{self, LineText};

/// Time that a command waits before the line appears.
const DELAY: Duration = Duration::from_millis(300);
/// Time between two updates of the line.
const INTERVAL: Duration = Duration::from_millis(200);
/// Time that the gateway gets to report the states of its servers.
const FETCH_TIMEOUT: Duration = Duration::from_secs(1);

/// The servers that a command waits for.
#[derive(Clone, Copy)]
pub(crate) enum ServerSource<'a> {
    /// No server: the action says what is waited for.
    None,
    /// Servers of this process.
    Crib(&'a Crib),
    /// Servers of a gateway.
    Gateway(&'a GatewayClient),
}

/// What the line shows of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WatchedServer {
    name: String,
    state: String,
    last_line: Option<String>,
}

impl WatchedServer {
    fn from_status(status: &ServerStatus) -> Self {
        Self {
            name: status.server.to_string(),
            state: status.state.as_str().to_owned(),
            last_line: status.stderr_tail.last().cloned(),
        }
    }

    fn from_json(server: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let last_line = server["stderr_tail"].as_array().and_then(|lines| lines.last()).map(text);
        Self { name: text(&server["name"]), state: text(&server["state"]), last_line }
    }

    fn is_waited_for(&self) -> bool {
        matches!(self.state.as_str(), "starting" | "backing_off" | "stopping")
    }
}

impl ServerSource<'_> {
    async fn fetch(self) -> Vec<WatchedServer> {
        match self {
            Self::None => Vec::new(),
            Self::Crib(crib) => crib.status().iter().map(WatchedServer::from_status).collect(),
            Self::Gateway(client) => {
                let status = client.get("/api/v1/status").await.unwrap_or_default();
                status["servers"].as_array().into_iter().flatten().map(WatchedServer::from_json).collect()
            }
        }
    }
}

/// A wait of a command.
pub(crate) struct Wait<'a> {
    /// What the command does, as in "calling `git__log`".
    action: String,
    servers: ServerSource<'a>,
    /// The server that is waited for, if it is known.
    server: Option<String>,
}

impl<'a> Wait<'a> {
    pub(crate) fn new(action: impl Into<String>, servers: ServerSource<'a>) -> Self {
        Self { action: action.into(), servers, server: None }
    }

    /// Names the server that is waited for.
    pub(crate) fn on_server(self, server: impl Into<String>) -> Self {
        Self { server: Some(server.into()), ..self }
    }

    /// Runs `work`, and shows the line if that takes long.
    pub(crate) async fn run<F: Future>(self, work: F) -> F::Output {
        if !progress_line::is_enabled() {
            return work.await;
        }
        let _erased_at_end = progress_line::begin();
        tokio::select! {
            biased;
            output = work => output,
            never = self.draw() => match never {},
        }
    }

    async fn draw(&self) -> Infallible {
        let began = Instant::now();
        sleep(DELAY).await;
        loop {
            let servers = timeout(FETCH_TIMEOUT, self.servers.fetch()).await.unwrap_or_default();
            progress_line::draw(&self.render(&servers, began.elapsed()));
            sleep(INTERVAL).await;
        }
    }

    /// Returns the text before the progress of the call: what is waited for, how long, and the last stderr line.
    fn render(&self, servers: &[WatchedServer], elapsed: Duration) -> LineText {
        let is_shown = |server: &&WatchedServer| match &self.server {
            Some(name) => server.name == *name,
            None => server.is_waited_for(),
        };
        let shown: Vec<&WatchedServer> = servers.iter().filter(is_shown).collect();
        let names: Vec<String> = shown.iter().map(|server| format!("`{}`", server.name)).collect();
        let state = match shown.as_slice() {
            [] => String::new(),
            [server] => format!("; {} is {}", names[0], server.state),
            _ => format!("; waiting for {}", names.join(", ")),
        };
        let last_line = shown.iter().find_map(|server| server.last_line.clone());
        let head = format!("{} ({}s){state}", self.action, elapsed.as_secs());
        LineText { head, last_line }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &str, state: &str, last_line: Option<&str>) -> WatchedServer {
        WatchedServer {
            name: name.to_owned(),
            state: state.to_owned(),
            last_line: last_line.map(str::to_owned),
        }
    }

    #[tokio::test]
    async fn line_names_action_time_servers_and_last_stderr_line() {
        let crib = Crib::builder().build().unwrap();
        let servers = [
            server("a", "ready", Some("up")),
            server("b", "starting", None),
            server("c", "backing_off", Some("no\u{1b}[2J database")),
        ];
        let text = |wait: &Wait<'_>, count: usize| {
            wait.render(&servers[..count], Duration::from_millis(4200)).join(None, 200)
        };
        let all = Wait::new("listing tools", ServerSource::Crib(&crib));
        assert_eq!(text(&all, 1), "listing tools (4s)");
        assert_eq!(text(&all, 2), "listing tools (4s); `b` is starting");
        assert_eq!(text(&all, 3), r"listing tools (4s); waiting for `b`, `c`: no\u{1b}[2J database");
        let one = Wait::new("calling `x`", ServerSource::Crib(&crib)).on_server("a");
        assert_eq!(text(&one, 3), "calling `x` (4s); `a` is ready: up");
    }
}
