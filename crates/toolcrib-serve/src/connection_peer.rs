//! The other end of a connection, as far as it is known before the first request.

use std::net::IpAddr;
use std::sync::Arc;

use toolcrib::config::CertificateNames;

/// The listener a connection was accepted on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Entrypoint {
    /// A TCP address.
    Tcp,
    /// A Unix socket, used by the gateway's user. Its clients need no token.
    Socket,
    /// A TCP address or Unix socket, used by a process of another user of this machine. Its clients always need a token, or
    /// a caller that is declared for the user.
    OtherUser,
    /// A loopback address that was opened for the dashboard. Its clients need a session or a token.
    Dashboard,
}

/// The other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionPeer {
    pub(crate) entrypoint: Entrypoint,
    pub(crate) address: Option<IpAddr>,
    /// The names in its verified certificate.
    pub(crate) certificate: Option<Arc<CertificateNames>>,
    /// The user of this machine that it belongs to.
    pub(crate) uid: Option<u32>,
    pub(crate) is_tls: bool,
    /// True if it is a trusted proxy.
    pub(crate) is_proxy: bool,
}

impl ConnectionPeer {
    /// Creates the peer of a TCP connection, with the address that is logged if it does not authenticate.
    pub fn new(entrypoint: Entrypoint, address: IpAddr) -> Self {
        Self { address: Some(address), ..entrypoint.into() }
    }

    /// Sets the user of this machine that the connection belongs to. A caller that is declared for the user needs no token.
    #[must_use]
    pub fn with_uid(self, uid: Option<u32>) -> Self {
        Self { uid, ..self }
    }

    /// Marks the connection as encrypted, with the names in the client's certificate if it has presented one. The
    /// certificate must have been verified.
    #[must_use]
    pub fn with_tls(self, certificate: Option<CertificateNames>) -> Self {
        Self { certificate: certificate.map(Arc::new), is_tls: true, ..self }
    }

    /// Returns whether it is on another machine.
    pub(crate) fn is_remote(&self) -> bool {
        self.address.is_some_and(|address| !address.to_canonical().is_loopback())
    }

    /// Returns the listener that the connection was accepted on.
    pub fn entrypoint(&self) -> Entrypoint {
        self.entrypoint
    }
}

impl From<Entrypoint> for ConnectionPeer {
    fn from(entrypoint: Entrypoint) -> Self {
        Self { entrypoint, address: None, certificate: None, uid: None, is_tls: false, is_proxy: false }
    }
}
