//! The side of the running gateway: hands its listeners over, and goes on if the new gateway fails.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use toolcrib::store::UsageFileHold;
use toolcrib_serve::HttpGateway;

use super::{HandoverChannel, PROTOCOL, handover_path};
use crate::gateway::Gateway;
use crate::gateway::listener::Listener;

/// Time that the new gateway has for its start.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Time in which clients of a replaced gateway can send a last request on an idle connection. Closing it could cross with one.
const IDLE_CONNECTION_GRACE: Duration = Duration::from_secs(2);
/// Time between two looks at the calls in flight.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The gateway that has replaced this one.
pub(crate) struct Successor {
    channel: HandoverChannel,
    /// Sessions that change here.
    changed_sessions: UnboundedReceiver<Value>,
    /// The new gateway writes the file.
    _usage_file: Option<UsageFileHold>,
}

impl Gateway {
    /// Allows other processes to replace this gateway, unless a service manager would start another one.
    pub(in crate::gateway) fn allow_replacement(&self) {
        if let Listener::Unix(_, file) = &self.listeners.socket
            && !self.listeners.is_activated
        {
            self.handle.handovers().allow(handover_path(&file.path));
        }
    }

    /// Hands the listeners over to another process, and returns once that accepts connections.
    ///
    /// # Errors
    /// If the other process fails. Everything is as before then.
    ///
    /// # Cancel safety
    /// Not cancel safe: if the future is dropped, connections may no longer be accepted.
    pub(crate) async fn hand_over(&self, stream: UnixStream) -> io::Result<Successor> {
        let mut channel = HandoverChannel::new(stream);
        self.offer_listeners(&channel).await?;
        receive_within(&mut channel, "take").await?;
        self.pause_accepting();
        self.crib.flush_files().await;
        let usage_file = self.crib.hold_usage_file().await.unwrap_or_else(|error| {
            tracing::warn!("cannot save quota usage for the new gateway: {error}");
            None
        });
        let (changed, changed_sessions) = unbounded_channel();
        let sessions = self.http.hand_over_sessions(changed);
        self.listeners.release_lock();
        let started = async {
            channel.send(&json!({"sessions": sessions})).await?;
            receive_within(&mut channel, "started").await
        };
        if let Err(error) = started.await {
            self.http.cancel_hand_over();
            if let Err(error) = self.listeners.lock_again().await {
                tracing::error!("{error}");
            }
            self.accept_connections();
            return Err(error);
        }
        self.listeners.set_owns_files(false);
        Ok(Successor { channel, changed_sessions, _usage_file: usage_file })
    }

    /// Sends the listening sockets.
    async fn offer_listeners(&self, channel: &HandoverChannel) -> io::Result<()> {
        let dashboard: Option<Arc<TcpListener>> = self.handle.dashboard().watch_listener().borrow().clone();
        let public = self.listeners.public.as_ref().map(|listener| ("public", listener.as_fd()));
        let socket = ("socket", self.listeners.socket.as_fd());
        let dashboard = dashboard.as_ref().map(|listener| ("dashboard", listener.as_fd()));
        let offered: Vec<(&str, BorrowedFd<'_>)> =
            public.into_iter().chain([socket]).chain(dashboard).collect();
        let kinds: Vec<&str> = offered.iter().map(|(kind, _)| *kind).collect();
        let descriptors: Vec<BorrowedFd<'_>> = offered.iter().map(|(_, descriptor)| *descriptor).collect();
        channel.send_offer(&json!({"protocol": PROTOCOL, "listeners": kinds}), &descriptors).await
    }

    /// Moves the clients to the gateway that has replaced this one, then closes like [`Gateway::close`].
    pub(crate) async fn close_replaced(self, successor: Successor, hurry: impl Future<Output = ()>) {
        self.handle.close();
        self.http.drain();
        let hurried = CancellationToken::new();
        let http = self.http.clone();
        let closing = async {
            tokio::select! {
                () = self.wait_for_clients() => {}
                () = hurried.cancelled() => {}
            }
            self.close(hurried.cancelled()).await;
        };
        let wait_for_hurry = async {
            hurry.await;
            hurried.cancel();
        };
        let exchange = exchange_messages(successor, &http);
        tokio::select! {
            () = closing => {}
            _ = async { tokio::join!(exchange, wait_for_hurry) } => {}
        }
    }

    /// Waits until the clients had time to move and no call is in flight, within the drain timeout. Meanwhile calls are accepted, so
    /// that a client with a long call is not kept waiting with its next one.
    async fn wait_for_clients(&self) {
        let deadline = Instant::now() + self.drain_timeout;
        sleep(IDLE_CONNECTION_GRACE).await;
        while self.crib.calls_in_flight() > 0 && Instant::now() < deadline {
            sleep(CHECK_INTERVAL).await;
        }
    }
}

impl Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener, _) => listener.as_fd(),
        }
    }
}

/// Waits for a message of the new gateway.
async fn receive_within(channel: &mut HandoverChannel, expected: &str) -> io::Result<()> {
    let received = timeout(START_TIMEOUT, channel.receive()).await;
    match received.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?? {
        message if message[expected] == true => Ok(()),
        message => Err(io::Error::other(format!("unexpected message: {message}"))),
    }
}

/// Sends sessions that change to the new gateway, and receives messages of clients from it. Never returns.
async fn exchange_messages(successor: Successor, http: &HttpGateway) {
    let Successor { channel, mut changed_sessions, _usage_file } = successor;
    let HandoverChannel { mut reader, mut writer } = channel;
    let send = async {
        while let Some(session) = changed_sessions.recv().await {
            // Fails if the new gateway has ended.
            let _ = writer.send(&json!({"session": session})).await;
        }
    };
    let receive = async {
        while let Ok(message) = reader.receive().await {
            http.receive_passed_back(&message["message"]);
        }
    };
    tokio::join!(send, receive);
    std::future::pending::<()>().await;
}
