//! `toolcrib top`: servers and their calls, refreshed and sorted by keys.

mod view;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use self::view::{KeyAction, TopData, TopView};
use crate::client::GatewayClient;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
use crate::report::stats::StatsReport;
use crate::report::status::GatewayReport;

/// Time between two refreshes.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);
/// Longest wait for a key before the reader looks whether it should end.
const KEY_POLL_NANOS: i64 = 100_000_000;
/// Lines of the screen that are not rows: summary, heading, keys and the cursor.
const OTHER_LINES: usize = 5;

/// Shows the table until a key or a signal ends it; once if stdout is not a terminal.
pub(crate) async fn run(paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let client = GatewayClient::require(paths).await?;
    let mut view = TopView::default();
    if !out.is_terminal() || !out.prompter().is_interactive() {
        let data = fetch(&client).await?;
        match out.json {
            true => out.print_json(&data.to_json())?,
            false => out.print_table(&TopView::HEADING, &view.rows(&data))?,
        }
        return Ok(ExitStatus::Success);
    }
    let _raw = RawTerminal::enter()?;
    let mut keys = KeyReader::start()?;
    let shown = super::until_interrupted(show(&client, &mut view, &mut keys, out)).await?;
    out.clear_screen()?;
    match shown {
        Some(result) => result.map(|()| ExitStatus::Success),
        None => Ok(ExitStatus::Interrupted),
    }
}

async fn fetch(client: &GatewayClient) -> Result<TopData> {
    let status: GatewayReport = client.fetch("/api/v1/status").await?;
    // Without a history there are no rates.
    let stats: StatsReport = match client.fetch("/api/v1/stats?since=1m").await {
        Err(error) if error.code == "not_found" => StatsReport::default(),
        fetched => fetched?,
    };
    Ok(TopData { status, stats })
}

/// Refreshes the screen until `q` is typed.
async fn show(
    client: &GatewayClient,
    view: &mut TopView,
    keys: &mut KeyReader,
    out: &mut Output,
) -> Result<()> {
    let mut refresh = interval(REFRESH_INTERVAL);
    refresh.set_missed_tick_behavior(MissedTickBehavior::Delay);
    refresh.tick().await;
    let mut data = fetch(client).await?;
    loop {
        print(view, &data, out)?;
        tokio::select! {
            _ = refresh.tick() => data = fetch(client).await?,
            key = keys.keys.recv() => match key.map(|key| view.handle_key(key)) {
                Some(KeyAction::Redraw) => {}
                Some(KeyAction::Quit) | None => return Ok(()),
            },
        }
    }
}

fn print(view: &TopView, data: &TopData, out: &mut Output) -> io::Result<()> {
    let mut rows = view.rows(data);
    let visible = out.height().map_or(rows.len(), |height| height.saturating_sub(OTHER_LINES));
    rows.truncate(visible);
    out.clear_screen()?;
    for line in data.summary() {
        out.print_line(&line)?;
    }
    out.print_table(&TopView::HEADING, &rows)?;
    out.print_line(&view.footer())
}

/// A terminal that passes keys on without Enter and without echo. Restored when dropped.
struct RawTerminal(Termios);

impl RawTerminal {
    fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.local_modes -= LocalModes::ECHO | LocalModes::ICANON;
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// Reads keys on a thread of its own, which ends when this is dropped.
struct KeyReader {
    keys: mpsc::Receiver<u8>,
    is_stopped: Arc<AtomicBool>,
}

impl KeyReader {
    fn start() -> io::Result<Self> {
        let (sender, keys) = mpsc::channel(16);
        let is_stopped = Arc::new(AtomicBool::new(false));
        let stop = is_stopped.clone();
        thread::Builder::new().name("keys".to_owned()).spawn(move || read_keys(&sender, &stop))?;
        Ok(Self { keys, is_stopped })
    }
}

impl Drop for KeyReader {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }
}

/// Reads from the descriptor itself: keys in the buffer of `Stdin` would not wake `poll`.
fn read_keys(sender: &mpsc::Sender<u8>, is_stopped: &AtomicBool) {
    let stdin = io::stdin();
    let timeout = Timespec { tv_sec: 0, tv_nsec: KEY_POLL_NANOS };
    let mut byte = [0];
    while !is_stopped.load(Ordering::Relaxed) {
        let polled = poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&timeout));
        let is_ready = polled.is_ok_and(|count| count > 0);
        if is_ready
            && (rustix::io::read(&stdin, &mut byte) != Ok(1) || sender.blocking_send(byte[0]).is_err())
        {
            return;
        }
    }
}
