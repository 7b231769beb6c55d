//! `Setup`: one gateway with servers of one era, and clients of one era.

use test_support::client::Era;
use test_support::gateway::{GatewayProcess, Home, server_config};

use super::client::MatrixClient;

/// The endpoint of the reference server.
pub(crate) const REFERENCE: &str = "/mcp/s/reference";
/// The endpoint of the server with the remaining fixtures.
pub(crate) const MATRIX: &str = "/mcp/s/matrix";

/// The endpoint of both servers.
pub(crate) const ALL: &str = "/mcp";

pub(crate) struct Setup {
    pub(crate) client: Era,
    home: Home,
    _gateway: GatewayProcess,
}

impl Setup {
    pub(crate) fn new(client: Era, servers: Era) -> Self {
        let era = match servers {
            Era::Session => "session",
            _ => "stateless",
        };
        let config =
            server_config(env!("CARGO_BIN_EXE_reference-server"), "reference", &["--stdio", "--era", era])
                + &server_config(env!("CARGO_BIN_EXE_matrix-server"), "matrix", &["--era", era]);
        let home = Home::new(env!("CARGO_BIN_EXE_crib"), &config);
        let gateway = home.serve();
        Self { client, home, _gateway: gateway }
    }

    /// Connects a new client to this endpoint.
    pub(crate) async fn connect(&self, path: &str) -> MatrixClient {
        let sockets = std::fs::read_dir(self.home.file("run")).unwrap().flatten();
        let socket =
            sockets.map(|entry| entry.path()).find(|path| path.extension().unwrap() == "sock").unwrap();
        MatrixClient::new(&socket, path, self.client).await
    }
}
