//! Unix signals that stop or reload the gateway.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// A request made by a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignalRequest {
    /// SIGTERM or SIGINT.
    Stop,
    /// SIGHUP.
    Reload,
}

/// A receiver of signals. Signals between two calls of [`Signals::next`] are not lost.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    /// Installs the handlers. Must be called within a runtime.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> SignalRequest {
        tokio::select! {
            _ = self.terminate.recv() => SignalRequest::Stop,
            _ = self.interrupt.recv() => SignalRequest::Stop,
            _ = self.hang_up.recv() => SignalRequest::Reload,
        }
    }

    /// Waits for any signal. For commands without a config to reload, a hangup ends the command too.
    pub(crate) async fn wait_for_any(&mut self) {
        self.next().await;
    }

    /// Waits for the next signal that asks to stop.
    pub(crate) async fn wait_for_stop(&mut self) {
        while self.next().await != SignalRequest::Stop {}
    }
}
