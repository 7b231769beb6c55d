//! The address of the dashboard, and the codes with which browsers log in to it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;
use toolcrib_serve::{DashboardSessions, LOGIN_CODE_TTL};

/// The address of the dashboard: that of the gateway, or a loopback address that is opened when it is first needed.
#[derive(Debug)]
pub(crate) struct DashboardAddress {
    sessions: Arc<DashboardSessions>,
    /// The URL at the TCP address of the gateway, if it has one.
    url: Option<String>,
    /// True if connections of other users can be told apart, so that a code is useless to them.
    accepts_codes: bool,
    /// The listener for the dashboard alone, once it is open.
    listener: watch::Sender<Option<Arc<TcpListener>>>,
}

/// A link that opens the dashboard.
#[derive(Debug)]
pub(crate) struct DashboardLink {
    pub(crate) url: String,
    /// The login code; absent if it is necessary to log in with a token.
    pub(crate) code: Option<String>,
    /// The time in which the code must be used.
    pub(crate) expires_in: Duration,
}

impl DashboardAddress {
    /// Creates the address for a gateway that has a TCP address with this URL, if it has one.
    pub(super) fn new(url: Option<String>, accepts_codes: bool) -> Self {
        Self { sessions: Arc::default(), url, accepts_codes, listener: watch::Sender::new(None) }
    }

    /// Continues a listener that is already open.
    pub(super) fn with_listener(self, listener: Option<TcpListener>) -> Self {
        self.listener.send_replace(listener.map(Arc::new));
        self
    }

    /// Returns the sessions of browsers.
    pub(super) fn sessions(&self) -> Arc<DashboardSessions> {
        self.sessions.clone()
    }

    /// Returns the listener once it is open.
    pub(super) fn watch_listener(&self) -> watch::Receiver<Option<Arc<TcpListener>>> {
        self.listener.subscribe()
    }

    /// Returns a link with a new login code, and opens the address if necessary.
    ///
    /// # Errors
    /// If no loopback address can be opened.
    pub(crate) async fn create_link(&self) -> io::Result<DashboardLink> {
        let url = match &self.url {
            Some(url) => url.clone(),
            None => format!("http://{}/", self.open().await?),
        };
        let code = if self.accepts_codes { self.sessions.create_code(Instant::now()) } else { None };
        Ok(DashboardLink { url, code, expires_in: LOGIN_CODE_TTL })
    }

    async fn open(&self) -> io::Result<SocketAddr> {
        if self.listener.borrow().is_none() {
            let bound = Arc::new(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?);
            // Of two requests at the same time, the first one opens the address.
            self.listener.send_if_modified(|listener| {
                let is_first = listener.is_none();
                listener.get_or_insert(bound);
                is_first
            });
        }
        let listener = self.listener.borrow().clone();
        listener.map_or_else(|| Err(io::ErrorKind::NotConnected.into()), |listener| listener.local_addr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn loopback_address_is_opened_once_and_only_on_request() {
        let address = DashboardAddress::new(None, true);
        assert!(address.watch_listener().borrow().is_none());
        let first = address.create_link().await.unwrap();
        let second = address.create_link().await.unwrap();
        assert!(first.url == second.url && first.url.starts_with("http://127.0.0.1:"), "{}", first.url);
        assert!(first.code.is_some() && first.code != second.code);
        assert!(address.watch_listener().borrow().is_some());
    }

    #[tokio::test]
    async fn address_of_the_gateway_is_used_if_it_has_one() {
        let address = DashboardAddress::new(Some("https://crib.example/".to_owned()), false);
        let link = address.create_link().await.unwrap();
        assert_eq!((link.url.as_str(), link.code), ("https://crib.example/", None));
        assert!(address.watch_listener().borrow().is_none());
    }
}
