//! `Stage`: one gateway with servers of one era behind it, and clients of one era in front of it.

use test_support::client::Era;
use test_support::gateway::{Gateway, Home, server};

use super::friend::Friend;

/// The reference server, and the one with what it lacks.
pub(crate) const REFERENCE: &str = "/mcp/s/reference";
pub(crate) const MATRIX: &str = "/mcp/s/matrix";

/// Both of them under one roof.
pub(crate) const ALL: &str = "/mcp";

pub(crate) struct Stage {
    pub(crate) client: Era,
    home: Home,
    _gateway: Gateway,
}

impl Stage {
    pub(crate) fn new(client: Era, servers: Era) -> Self {
        let era = match servers {
            Era::Session => "session",
            Era::Stateless => "stateless",
        };
        let config = server(env!("CARGO_BIN_EXE_reference-server"), "reference", &["--stdio", "--era", era])
            + &server(env!("CARGO_BIN_EXE_matrix-server"), "matrix", &["--era", era]);
        let home = Home::new(env!("CARGO_BIN_EXE_crib"), &config);
        let gateway = home.serve();
        Self { client, home, _gateway: gateway }
    }

    /// A new client at this endpoint.
    pub(crate) async fn friend(&self, path: &str) -> Friend {
        let sockets = std::fs::read_dir(self.home.file("run")).unwrap().flatten();
        let socket =
            sockets.map(|entry| entry.path()).find(|path| path.extension().unwrap() == "sock").unwrap();
        Friend::new(&socket, path, self.client).await
    }
}
