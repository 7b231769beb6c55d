//! Serves a [`Crib`](toolcrib::Crib) to MCP clients, over any pair of reader and writer and over HTTP, in every supported
//! revision of the protocol.
//!
//! | item | contents |
//! |---|---|
//! | [`McpService`] | The crib as an MCP server, independent of transports. |
//! | [`serve_pipe`] | Serves one client over a reader and a writer, for example stdin and stdout. |
//! | [`HttpGateway`], [`serve_connection`] | Serves MCP over HTTP/1.1 and HTTP/2: sessions, event streams, stateless requests. |
//! | [`Callers`], [`ActiveCallers`] | Who may use the gateway, by bearer token or by tokens of authorization servers; replaced by a reload. |
//! | [`PendingRevocations`] | Access that a reload ended, on its way to the other gateways on the same store. |
//! | [`AdminRoutes`] | Your handler of all paths that are not MCP endpoints. |
//! | [`StaticFile`], [`DashboardSessions`] | The files of a web page, and the logins of browsers to it. |
//!
//! # Over a reader and a writer
//!
//! ```
//! use std::sync::Arc;
//!
//! use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
//! use tokio_util::sync::CancellationToken;
//! use toolcrib_serve::{McpService, PipeIdentity, serve_pipe};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let crib = toolcrib::Crib::builder().build()?;
//! let service = Arc::new(McpService::new(crib.clone()));
//! let identity = PipeIdentity::new(toolcrib::Caller::local());
//! // In a program: `tokio::io::stdin()` and `tokio::io::stdout()`.
//! let (client, server) = tokio::io::duplex(64 << 10);
//! let (reader, writer) = tokio::io::split(server);
//! let serving = serve_pipe(reader, writer, service, 32 << 20, identity, CancellationToken::new());
//!
//! let asking = async {
//!     let (reader, mut writer) = tokio::io::split(client);
//!     writer.write_all(b"{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"ping\"}\n").await?;
//!     BufReader::new(reader).lines().next_line().await
//! };
//! let (_, answer) = tokio::join!(serving, asking);
//! assert_eq!(answer?.as_deref(), Some(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#));
//! # crib.shutdown(std::time::Duration::ZERO).await;
//! # Ok(())
//! # }
//! ```
//!
//! # Over HTTP
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use tokio_util::sync::CancellationToken;
//! use toolcrib_serve::{ActiveCallers, Callers, Entrypoint, HttpGateway, McpService, serve_connection};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let crib = toolcrib::Crib::builder().build()?;
//! let callers = Arc::new(ActiveCallers::new(Callers::none()));
//! let limits = toolcrib::config::GatewayLimits::default();
//! let gateway = Arc::new(HttpGateway::new(McpService::new(crib), callers, &limits));
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! let stop = CancellationToken::new();
//! loop {
//!     let (stream, _) = listener.accept().await?;
//!     let connection = serve_connection(stream, gateway.clone(), Entrypoint::Tcp, stop.clone());
//!     tokio::spawn(async move {
//!         if let Some(stream) = connection.await {
//!             stream.await;
//!         }
//!     });
//! }
//! # }
//! ```
//!
//! # Rules
//!
//! The library binds no addresses, prints nothing and reads no files. Without callers every client is trusted, so listen on
//! loopback only. It needs a tokio runtime with I/O and time.
//!
//! It uses modules of `toolcrib` that are not part of its stable API, so that it depends on exactly one version of it.

mod address_limit;
mod admin_routes;
mod batch;
mod body;
mod caller_assertion;
mod callers;
mod client_memory;
mod connection_clients;
mod connection_peer;
mod connection_waker;
mod cors;
mod dashboard;
mod dashboard_sessions;
mod detached_stream;
mod draining;
mod endpoint;
mod forwarded;
mod gateway;
mod h2_streams;
mod http;
mod http1;
mod login;
mod login_error;
mod origin_check;
mod outbox;
mod peek_io;
mod query;
mod replicas;
mod request_body;
mod resource;
mod response;
mod response_data;
mod routes;
mod service;
mod session;
mod static_files;
mod stdio;
#[cfg(test)]
mod tests;

pub use crate::address_limit::{AddressLimit, AddressPermit};
pub use crate::admin_routes::{
    AdminEvents, AdminReply, AdminReplyFuture, AdminRequest, AdminRoutes, MetricsFuture, MetricsText,
    NoAdminRoutes,
};
/// The example in the README, which is compiled as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;

#[doc(hidden)]
pub use crate::batch::{is_batch, join_responses};
pub use crate::callers::{ActiveCallers, AuthenticatedCaller, Callers, PendingRevocations};
pub use crate::connection_peer::{ConnectionPeer, Entrypoint};
pub use crate::dashboard_sessions::{DashboardSessions, LOGIN_CODE_TTL};
pub use crate::detached_stream::StreamFuture;
pub use crate::gateway::HttpGateway;
pub use crate::http::{OpenedConnection, serve_after_handshake, serve_connection};
pub use crate::login::FailedLogins;
#[doc(hidden)]
pub use crate::query::query_value;
#[doc(hidden)]
pub use crate::routes::PROJECT_HEADER;
pub use crate::service::McpService;
#[doc(hidden)]
pub use crate::service::listen::final_response as listen_final_response;
pub use crate::service::recent_clients::{ClientKind, ConnectedClient};
pub use crate::service::search_tools::search_list_bytes;
pub use crate::service::shown_tools::{ClientListCost, ShownTools};
pub use crate::static_files::StaticFile;
pub use crate::stdio::{PIPE_END, PipeIdentity, serve_pipe};
