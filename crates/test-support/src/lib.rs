//! Helpers that tests share: fake servers as specs, the gateway as a process, clients of both eras, limits on waits.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "test support stops at the first surprise")]

pub mod client;
pub mod deadline;
pub mod gateway;
pub mod http;
pub mod process;

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;
use toolcrib::spec::{BackoffSpec, Restarts};
use toolcrib::{Call, CommandSpec, Crib, Error, Lifecycle, Outcome, ServerId, ServerSpec, ServerStatus};

/// How long a test waits for something that must happen.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A server that runs `fake-server` with these arguments; usable only in the tests of the package that builds it.
#[macro_export]
macro_rules! fake {
    ($name:expr $(, $arg:expr)* $(,)?) => {
        $crate::fake_server(env!("CARGO_BIN_EXE_fake-server"), $name, &[$(AsRef::<str>::as_ref(&$arg)),*])
    };
}

/// A spec whose restarts come quickly, so that tests do.
pub fn fake_server(program: &str, name: &str, args: &[&str]) -> ServerSpec {
    let spec = ServerSpec::command(server_id(name), CommandSpec::new(program).args(args.iter().copied()));
    spec.lifecycle(quick(5))
}

/// The usual care with short waits and this many restarts.
pub fn quick(restarts: u32) -> Lifecycle {
    Lifecycle {
        restarts: Restarts { at_most: restarts, within: Duration::from_secs(300) },
        backoff: BackoffSpec { first: Duration::from_millis(5), most: Duration::from_millis(20) },
        ..Lifecycle::default()
    }
}

/// A server's name.
pub fn server_id(name: &str) -> ServerId {
    name.parse().unwrap()
}

/// A crib of these servers that remembers nothing.
pub fn crib(servers: impl IntoIterator<Item = ServerSpec>) -> Crib {
    servers.into_iter().fold(Crib::builder(), toolcrib::CribBuilder::server).build().unwrap()
}

/// Calls a server's tool by the server's own name.
pub async fn call(crib: &Crib, server: &str, tool: &str, arguments: &Value) -> Result<Outcome, Error> {
    crib.call(Call::on(server_id(server), tool).arguments(arguments)).await
}

/// As [`call`], for calls that must succeed: the text that came back.
pub async fn text(crib: &Crib, server: &str, tool: &str, arguments: &Value) -> String {
    call(crib, server, tool, arguments).await.unwrap().text()
}

/// How one server is.
pub fn status(crib: &Crib, server: &str) -> ServerStatus {
    crib.status().into_iter().find(|status| status.server.as_str() == server).expect("a server of this name")
}

/// Waits until `holds`, looking again every few milliseconds.
///
/// # Panics
/// When it does not come to hold within [`PATIENCE`].
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// As [`eventually`], for tests without a runtime.
///
/// # Panics
/// When it does not come to hold within [`PATIENCE`].
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "not in time: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// How many times a fake server with this count file was started.
pub fn starts(count_file: &Path) -> usize {
    std::fs::metadata(count_file).map_or(0, |file| usize::try_from(file.len()).unwrap_or(usize::MAX))
}
