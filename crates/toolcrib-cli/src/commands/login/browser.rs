//! Opens a URL in the person's browser.

use std::process::Stdio;

use tokio::process::Command;

/// Programs that open a URL in the default browser.
const OPENERS: [&str; 3] = ["xdg-open", "open", "wslview"];

/// Opens a URL with `$BROWSER` or the system's opener. Returns whether a program was started. In a remote shell without a
/// display, none is: it would be a browser on the wrong machine.
pub(in crate::commands) async fn open(url: &str) -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if let Some(browser) = std::env::var("BROWSER").ok().filter(|browser| !browser.is_empty()) {
        return start(&browser, url);
    }
    let has_display = is_set("DISPLAY") || is_set("WAYLAND_DISPLAY") || cfg!(target_os = "macos");
    if !has_display || is_set("SSH_CONNECTION") {
        return false;
    }
    OPENERS.into_iter().any(|opener| start(opener, url))
}

fn start(program: &str, url: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().is_ok()
}
