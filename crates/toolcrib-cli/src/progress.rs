//! The progress line: what a command waits for, on stderr if that is a terminal.
//!
//! The line appears after 300 ms and is erased before anything else is printed. A process has one terminal, so the line is
//! the state of the process.

use std::borrow::Cow;
use std::convert::Infallible;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};
use toolcrib::util::locks::IgnorePoison as _;
use toolcrib::{CallUpdate, Crib, Object, ServerStatus, UpdateSink};

use crate::cli::GlobalArgs;
use crate::client::GatewayClient;
use crate::visible_text::escape_invisible;

/// Time that a command waits before the line appears.
const DELAY: Duration = Duration::from_millis(300);
/// Time between two updates of the line.
const INTERVAL: Duration = Duration::from_millis(200);
/// Time that the gateway gets to report the states of its servers.
const FETCH_TIMEOUT: Duration = Duration::from_secs(1);
/// Characters of the bar.
const BAR_WIDTH: usize = 20;
/// Columns of a terminal that does not report its size.
const DEFAULT_WIDTH: usize = 80;
/// Returns to the start of the line and clears it.
const ERASE: &str = "\r\x1b[2K";

static LINE: Mutex<Line> = Mutex::new(Line { enabled: false, shown: false, paused: 0, progress: None });

/// The state of the line.
struct Line {
    enabled: bool,
    /// True while there is text on the line.
    shown: bool,
    /// Number of questions that are being asked at the terminal.
    paused: usize,
    /// The last progress notification of the call that runs.
    progress: Option<CallProgress>,
}

/// The progress of a call, as its server reports it.
#[derive(Debug, Clone, PartialEq)]
struct CallProgress {
    done: f64,
    total: Option<f64>,
    message: Option<String>,
}

impl CallProgress {
    /// Reads the parameters of a progress notification.
    fn from_params(params: &Object) -> Option<Self> {
        let number = |name: &str| params.get(name).and_then(|raw| serde_json::from_slice::<f64>(raw).ok());
        let total = number("total").filter(|total| *total > 0.0);
        Some(Self {
            done: number("progress")?,
            total,
            message: params.get_string("message").map(Cow::into_owned),
        })
    }

    fn render(&self) -> String {
        let amount = match self.total {
            Some(total) => {
                let share = (self.done / total).clamp(0.0, 1.0);
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "it is from 0 to 20"
                )]
                let filled = (share * BAR_WIDTH as f64) as usize;
                let bar = "#".repeat(filled) + &"-".repeat(BAR_WIDTH - filled);
                format!("[{bar}] {:.0}%", share * 100.0)
            }
            None => format!("progress {}", self.done),
        };
        match &self.message {
            Some(message) => format!("{amount} {message}"),
            None => amount,
        }
    }
}

fn line() -> MutexGuard<'static, Line> {
    LINE.lock().ignore_poison()
}

/// Turns the line on if stderr is a terminal on which it can be erased.
pub(crate) fn init(globals: &GlobalArgs) {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    line().enabled = io::stderr().is_terminal() && !is_dumb && !globals.json && !globals.quiet;
}

/// Returns whether the line is used, so that calls should ask for progress notifications.
pub(crate) fn is_enabled() -> bool {
    line().enabled
}

/// Removes the line from the terminal.
pub(crate) fn erase() {
    let mut line = line();
    if std::mem::take(&mut line.shown) {
        // A terminal that is gone needs no update.
        let _ = write!(io::stderr(), "{ERASE}");
    }
}

/// Hides the line until the guard is dropped, for a question at the terminal.
pub(crate) fn pause() -> PausedLine {
    erase();
    line().paused += 1;
    PausedLine(())
}

/// Shows the line again when it is dropped.
pub(crate) struct PausedLine(());

impl Drop for PausedLine {
    fn drop(&mut self) {
        line().paused -= 1;
    }
}

/// Shows the progress of the call that runs.
pub(crate) fn record_progress(params: &Object) {
    if let Some(progress) = CallProgress::from_params(params) {
        line().progress = Some(progress);
    }
}

/// Receives the progress of a call of this process.
#[derive(Debug)]
pub(crate) struct ProgressSink;

impl UpdateSink for ProgressSink {
    fn deliver(&self, update: CallUpdate) -> bool {
        match update {
            CallUpdate::Progress(params) => {
                record_progress(&params);
                true
            }
            _ => false,
        }
    }
}

/// Lets a call of this process report its progress, if the line is used.
pub(crate) fn watch_call(call: toolcrib::Call) -> toolcrib::Call {
    if !is_enabled() {
        return call;
    }
    let params = call.get_params().clone();
    call.params(with_progress_token(params)).update_sink(Arc::new(ProgressSink))
}

/// Adds a progress token to the parameters of a request.
fn with_progress_token(mut params: Object) -> Object {
    let mut meta = params.get("_meta").and_then(|raw| Object::parse(raw).ok()).unwrap_or_default();
    meta.set_unchecked("progressToken", Bytes::from_static(b"1"));
    params.set_unchecked("_meta", meta.to_bytes());
    params
}

/// The servers that a command waits for.
#[derive(Clone, Copy)]
pub(crate) enum WatchedServers<'a> {
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

impl WatchedServers<'_> {
    async fn fetch(self) -> Vec<WatchedServer> {
        match self {
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
    servers: WatchedServers<'a>,
    /// The server that is waited for, if it is known.
    server: Option<String>,
}

impl<'a> Wait<'a> {
    pub(crate) fn new(action: impl Into<String>, servers: WatchedServers<'a>) -> Self {
        Self { action: action.into(), servers, server: None }
    }

    /// Names the server that is waited for.
    pub(crate) fn on_server(self, server: impl Into<String>) -> Self {
        Self { server: Some(server.into()), ..self }
    }

    /// Runs `work`, and shows the line if that takes long.
    pub(crate) async fn run<F: Future>(self, work: F) -> F::Output {
        if !is_enabled() {
            return work.await;
        }
        let _erased_at_end = EraseOnDrop;
        line().progress = None;
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
            draw_line(&self.render(&servers, began.elapsed()));
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

/// The parts of the line.
#[derive(Debug, PartialEq, Eq)]
struct LineText {
    head: String,
    last_line: Option<String>,
}

impl LineText {
    fn join(&self, progress: Option<&CallProgress>, width: usize) -> String {
        let mut text = self.head.clone();
        if let Some(progress) = progress {
            text = format!("{text} {}", progress.render());
        }
        if let Some(last_line) = &self.last_line {
            text = format!("{text}: {last_line}");
        }
        escape_invisible(&text).chars().take(width).collect()
    }
}

struct EraseOnDrop;

impl Drop for EraseOnDrop {
    fn drop(&mut self) {
        erase();
    }
}

fn draw_line(text: &LineText) {
    let mut line = line();
    if line.paused > 0 {
        return;
    }
    let columns = rustix::termios::tcgetwinsize(io::stderr()).ok().map(|size| usize::from(size.ws_col));
    let columns = columns.filter(|columns| *columns > 0).unwrap_or(DEFAULT_WIDTH);
    // One column is left free: some terminals wrap as soon as the last one is used.
    let text = text.join(line.progress.as_ref(), columns.saturating_sub(1));
    line.shown = true;
    // A terminal that is gone needs no update.
    let _ = write!(io::stderr(), "{ERASE}{text}");
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

    fn progress(json: &str) -> Option<CallProgress> {
        CallProgress::from_params(&Object::parse(&Bytes::from(json.to_owned())).unwrap())
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
        let all = Wait::new("listing tools", WatchedServers::Crib(&crib));
        assert_eq!(text(&all, 1), "listing tools (4s)");
        assert_eq!(text(&all, 2), "listing tools (4s); `b` is starting");
        assert_eq!(text(&all, 3), r"listing tools (4s); waiting for `b`, `c`: no\u{1b}[2J database");
        let one = Wait::new("calling `x`", WatchedServers::Crib(&crib)).on_server("a");
        assert_eq!(text(&one, 3), "calling `x` (4s); `a` is ready: up");
    }

    #[test]
    fn progress_is_a_bar_if_the_total_is_known() {
        let half = progress(r#"{"progress":5,"total":10,"message":"copying"}"#);
        let text = LineText { head: "calling `x` (1s)".to_owned(), last_line: None };
        assert_eq!(text.join(half.as_ref(), 80), "calling `x` (1s) [##########----------] 50% copying");
        let open = progress(r#"{"progress":7.5}"#).map(|progress| progress.render());
        assert_eq!(open.as_deref(), Some("progress 7.5"));
        let full = progress(r#"{"progress":30,"total":10}"#).map(|progress| progress.render());
        assert_eq!(full.as_deref(), Some("[####################] 100%"));
        assert_eq!(progress(r#"{"progress":"x"}"#), None);
        assert_eq!(text.join(None, 7), "calling");
    }
}
