//! The progress line on the terminal. It is erased before anything else is printed.
//!
//! A process has one terminal, so the line is state of the process.

use std::borrow::Cow;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use toolcrib::util::locks::IgnorePoison as _;
use toolcrib::{CallUpdate, Object, UpdateSink};

use crate::cli::GlobalArgs;
use crate::visible_text::escape_invisible;

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
pub(crate) struct CallProgress {
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
    line().paused += 1;
    erase();
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

/// The parts of the line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LineText {
    /// What is waited for, and how long.
    pub(crate) head: String,
    /// The last stderr line of a server.
    pub(crate) last_line: Option<String>,
}

impl LineText {
    /// Returns the whole line, cut off at `width` characters.
    pub(crate) fn join(&self, progress: Option<&CallProgress>, width: usize) -> String {
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

/// Starts a wait: forgets the progress of earlier calls. The line is erased when the guard is dropped.
pub(crate) fn begin() -> EraseOnDrop {
    line().progress = None;
    EraseOnDrop(())
}

/// Erases the line when it is dropped.
pub(crate) struct EraseOnDrop(());

impl Drop for EraseOnDrop {
    fn drop(&mut self) {
        erase();
    }
}

/// Shows a text on the line, with the progress of the call that runs.
pub(crate) fn draw(text: &LineText) {
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

    fn progress(json: &str) -> Option<CallProgress> {
        CallProgress::from_params(&Object::parse(&Bytes::from(json.to_owned())).unwrap())
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
