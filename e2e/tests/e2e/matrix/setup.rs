//! `Setup`: one gateway with servers of one era, and clients of one era.

use std::sync::Arc;

use test_support::client::Era;
use test_support::gateway::{GatewayProcess, Home, server_config};

use super::client::MatrixClient;

/// The endpoint of the reference server.
pub(crate) const REFERENCE: &str = "/mcp/s/reference";
/// The endpoint of the server with the remaining fixtures.
pub(crate) const MATRIX: &str = "/mcp/s/matrix";

/// The endpoint of both servers.
pub(crate) const ALL: &str = "/mcp";
/// The endpoint of both servers in search mode.
pub(crate) const SEARCH: &str = "/mcp/p/search";

pub(crate) struct Setup {
    pub(crate) client: Era,
    home: Arc<Home>,
    _gateway: Arc<GatewayProcess>,
    /// Whether clients of a server's endpoint use its tools by `call_tool` at the endpoint in search mode.
    is_by_call_tool: bool,
}

impl Setup {
    pub(crate) fn new(client: Era, servers: Era) -> Self {
        let era = match servers {
            Era::Session => "session",
            _ => "stateless",
        };
        // Clients of the matrix server see what others did there.
        let config =
            server_config(env!("CARGO_BIN_EXE_reference-server"), "reference", &["--stdio", "--era", era])
                + &server_config(env!("CARGO_BIN_EXE_matrix-server"), "matrix", &["--era", era])
                + "sharing = \"shared\"\n"
                + "\n[profiles.search]\nexpose = \"search\"\n";
        let home = Home::new(env!("CARGO_BIN_EXE_crib"), &config);
        let gateway = Arc::new(home.serve());
        Self { client, home: Arc::new(home), _gateway: gateway, is_by_call_tool: false }
    }

    /// Returns the same setup for clients that use `call_tool`.
    pub(crate) fn by_call_tool(&self) -> Self {
        Self { home: self.home.clone(), _gateway: self._gateway.clone(), is_by_call_tool: true, ..*self }
    }

    /// Returns a name that calls by `call_tool` do not share with other calls.
    pub(crate) fn unique(&self, name: &str) -> String {
        if self.is_by_call_tool { format!("{name} by call_tool") } else { name.to_owned() }
    }

    /// Connects a new client to this endpoint.
    pub(crate) async fn connect(&self, path: &str) -> MatrixClient {
        let sockets = std::fs::read_dir(self.home.file("run")).unwrap().flatten();
        let socket =
            sockets.map(|entry| entry.path()).find(|path| path.extension().unwrap() == "sock").unwrap();
        match path.strip_prefix("/mcp/s/").filter(|_| self.is_by_call_tool) {
            Some(server) => MatrixClient::new(&socket, SEARCH, self.client).await.by_call_tool(server),
            None => MatrixClient::new(&socket, path, self.client).await,
        }
    }
}
