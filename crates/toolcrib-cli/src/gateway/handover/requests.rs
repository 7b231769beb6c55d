//! Requests of other processes to replace the running gateway.

use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};

use tokio::net::UnixStream;
use tokio::sync::Notify;
use toolcrib::util::locks::IgnorePoison as _;

use crate::client;

/// Connections to processes that want to replace the running gateway, one at a time.
#[derive(Debug, Default)]
pub(crate) struct HandoverRequests {
    /// The socket on which the other process listens; not set if the gateway cannot be replaced.
    path: OnceLock<PathBuf>,
    connected: Mutex<Option<UnixStream>>,
    added: Notify,
}

impl HandoverRequests {
    /// Allows requests; the other process listens at this path, in the folder of the gateway's own socket.
    pub(in crate::gateway) fn allow(&self, path: PathBuf) {
        // Called once.
        let _ = self.path.set(path);
    }

    /// Connects to the process that wants to replace this gateway. Only one of the same user is accepted.
    ///
    /// # Errors
    /// The reason why the gateway cannot be replaced.
    pub(crate) async fn accept(&self) -> Result<(), String> {
        let Some(path) = self.path.get() else {
            return Err("its sockets belong to a service manager; restart the service instead".to_owned());
        };
        let stream = match client::connect_at(path).await {
            Ok(Some(stream)) => stream,
            Ok(None) => return Err(format!("no process listens at `{}`", path.display())),
            Err(error) => return Err(error.message),
        };
        // A process that asked before and was not served yet is gone: the lock of a start allows one.
        *self.connected.lock().ignore_poison() = Some(stream);
        self.added.notify_one();
        Ok(())
    }

    /// Waits for the next process that wants to replace this gateway.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn next(&self) -> UnixStream {
        loop {
            if let Some(stream) = self.connected.lock().ignore_poison().take() {
                return stream;
            }
            self.added.notified().await;
        }
    }
}
