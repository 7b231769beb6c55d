//! Accepts connections at the address that a gateway without a TCP address opens for the dashboard.

use std::io;

use tokio_util::sync::CancellationToken;
use toolcrib::util::tasks::SpawnBoxed as _;
use toolcrib_serve::{AddressLimit, AddressPermit, ConnectionPeer, Entrypoint, serve_connection};

use super::idle_exit::{ConnectionCount, OpenConnection};
use super::peer_check::PeerCheck;
use super::{Accepted, AcceptedTcp, Acceptor, Gateway, TcpAcceptor, accept_all, identify};
use crate::listen::ListenAddr;

/// Connections of browsers at the same time.
const MAX_CONNECTIONS: usize = 128;

/// Accepts connections that count as use of the gateway.
struct DashboardAcceptor {
    tcp: TcpAcceptor,
    connections: ConnectionCount,
}

impl Acceptor for DashboardAcceptor {
    type Stream = AcceptedTcp;
    type Permit = (Option<AddressPermit>, OpenConnection);

    async fn accept(&self) -> io::Result<Accepted<AcceptedTcp, Self::Permit>> {
        let Accepted { stream, permit, place } = self.tcp.accept().await?;
        Ok(Accepted { stream, permit: (permit, self.connections.enter()), place })
    }
}

impl Gateway {
    /// Serves the dashboard at its own address, once that is open. Its clients need a login for everything else.
    pub(super) fn accept_dashboard(&self) {
        let mut opened = self.handle.dashboard().watch_listener();
        let connections = self.connections.clone();
        let http = self.http.clone();
        let acceptor_http = self.http.clone();
        let limits = self.accept_limits(MAX_CONNECTIONS);
        let serve = move |accepted: AcceptedTcp, stop: CancellationToken| {
            let http = http.clone();
            async move {
                let AcceptedTcp { stream, peer } = accepted;
                let check = PeerCheck::new(&ListenAddr::default(), false);
                let identified = identify(check, peer, stream.local_addr()).await;
                let peer = match identified.entrypoint() {
                    Entrypoint::Tcp => ConnectionPeer::new(Entrypoint::Dashboard, peer.ip()),
                    _ => identified,
                };
                serve_connection(stream, http, peer, stop).await
            }
        };
        self.tasks.spawn_boxed(async move {
            let listener = tokio::select! {
                () = limits.paused.cancelled() => return,
                opened = opened.wait_for(Option::is_some) => opened.ok().and_then(|listener| listener.clone()),
            };
            let Some(listener) = listener else { return };
            let tcp = TcpAcceptor { listener, by_ip: AddressLimit::default(), http: acceptor_http, threads: None };
            accept_all(DashboardAcceptor { tcp, connections }, limits, serve).await;
        });
    }
}
