//! `PeerCheck`: tells connections of this user apart from those of other users of the machine.

use std::net::SocketAddr;

use toolcrib_serve::{ConnectionPeer, Entrypoint};

#[cfg(target_os = "linux")]
use super::socket_owners::{SocketAddresses, SocketOwners};
#[cfg(target_os = "linux")]
use crate::client;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::listen::ListenAddr;

/// The users whose connections within this machine need no token while no callers are declared.
#[derive(Debug, Clone)]
pub(super) enum PeerCheck {
    /// All users.
    AnyUser,
    /// This user and root.
    #[cfg(target_os = "linux")]
    OwnUser(SocketOwners),
    /// None, because the owner of a connection cannot be found.
    Unavailable,
}

impl PeerCheck {
    /// Returns the check for a listening address.
    pub(super) fn new(listen: &ListenAddr, any_user: bool) -> Self {
        match listen {
            ListenAddr::Tcp(_) if !any_user => Self::own_user(),
            // Only this user can open a socket file.
            ListenAddr::Tcp(_) | ListenAddr::Unix(_) => Self::AnyUser,
        }
    }

    #[cfg(target_os = "linux")]
    fn own_user() -> Self {
        SocketOwners::probe().map_or(Self::Unavailable, Self::OwnUser)
    }

    #[cfg(not(target_os = "linux"))]
    fn own_user() -> Self {
        Self::Unavailable
    }

    /// Refuses to serve without callers if the check is needed and not available.
    pub(super) fn check_available(&self, requires_tokens: bool) -> Result<(), CommandError> {
        if requires_tokens || !matches!(self, Self::Unavailable) {
            return Ok(());
        }
        let message = "no `callers` are declared, and this system does not tell which user a connection belongs to: \
                       every user of this machine could call every tool";
        let hint = "declare `[callers.NAME]` with a `token`, set `listen.any-user = true`, or run `toolcrib serve --listen unix:PATH`";
        Err(CommandError::new(ExitStatus::InvalidConfig, "config_invalid", message).hint(hint))
    }

    /// Returns whether the owner of a connection can be found, or does not matter.
    pub(super) fn is_available(&self) -> bool {
        !matches!(self, Self::Unavailable)
    }

    /// Returns whether [`PeerCheck::identify`] returns within microseconds.
    pub(super) fn is_fast(&self) -> bool {
        match self {
            #[cfg(target_os = "linux")]
            Self::OwnUser(owners) => matches!(owners, SocketOwners::SockDiag(_)),
            Self::AnyUser | Self::Unavailable => true,
        }
    }

    /// Returns who is at the other end of a TCP connection.
    pub(super) fn identify(&self, peer: SocketAddr, local: Option<SocketAddr>) -> ConnectionPeer {
        let is_loopback = |address: SocketAddr| address.ip().to_canonical().is_loopback();
        // A process of this machine may use any of its addresses to connect to a loopback address.
        let is_local = is_loopback(peer) || local.is_none_or(is_loopback);
        let owner = match self {
            #[cfg(target_os = "linux")]
            Self::OwnUser(owners) if is_local => {
                local.and_then(|local| owners.find(SocketAddresses { own: peer, remote: local }))
            }
            _ => None,
        };
        let is_trusted = match self {
            _ if !is_local => true,
            Self::AnyUser => true,
            #[cfg(target_os = "linux")]
            Self::OwnUser(_) => owner.is_some_and(client::is_trusted_user),
            Self::Unavailable => false,
        };
        let entrypoint = if is_trusted { Entrypoint::Tcp } else { Entrypoint::OtherUser };
        ConnectionPeer::new(entrypoint, peer.ip()).with_uid(owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unavailable_check_needs_callers_or_any_user() {
        let error = PeerCheck::Unavailable.check_available(false).unwrap_err();
        assert_eq!(error.exit, ExitStatus::InvalidConfig);
        assert!(error.hint.unwrap().contains("listen.any-user = true"));
        assert!(PeerCheck::Unavailable.check_available(true).is_ok());
        assert!(PeerCheck::AnyUser.check_available(false).is_ok());
        let unix: ListenAddr = "unix:/x".parse().unwrap();
        assert!(matches!(PeerCheck::new(&unix, false), PeerCheck::AnyUser));
        let tcp: ListenAddr = "127.0.0.1:0".parse().unwrap();
        assert!(matches!(PeerCheck::new(&tcp, true), PeerCheck::AnyUser));
    }

    #[test]
    fn connection_within_the_machine_is_not_trusted_without_an_owner() {
        let loopback: SocketAddr = "127.0.0.1:7717".parse().unwrap();
        let own_other: SocketAddr = "192.0.2.1:40000".parse().unwrap();
        let remote: SocketAddr = "198.51.100.1:40000".parse().unwrap();
        let identify = |check: PeerCheck, peer, local| check.identify(peer, Some(local));
        let other_user = |peer: SocketAddr| ConnectionPeer::new(Entrypoint::OtherUser, peer.ip());
        let tcp = |peer: SocketAddr| ConnectionPeer::new(Entrypoint::Tcp, peer.ip());
        assert_eq!(identify(PeerCheck::Unavailable, loopback, loopback), other_user(loopback));
        assert_eq!(identify(PeerCheck::Unavailable, own_other, loopback), other_user(own_other));
        assert_eq!(identify(PeerCheck::Unavailable, remote, own_other), tcp(remote), "callers are declared");
        assert_eq!(identify(PeerCheck::AnyUser, loopback, loopback), tcp(loopback));
    }
}
