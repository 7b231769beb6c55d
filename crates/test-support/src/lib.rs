//! Helpers shared by tests: fake servers, the gateway as a process, clients of both eras, limits on waits.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "test support panics on every failure")]

pub mod client;
pub mod deadline;
pub mod gateway;
pub mod http;
pub mod process;
pub mod store_server;
pub mod terminal;

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;
use toolcrib::spec::{BackoffSpec, Restarts};
use toolcrib::{
    Call, CommandSpec, Crib, Error, FirstListingSettings, Lifecycle, Outcome, ServerId, ServerSpec,
    ServerStatus,
};

/// Limit on the wait for something that must happen.
pub const WAIT_LIMIT: Duration = Duration::from_secs(20);

/// Returns the spec of a server that runs `fake-server` with these arguments. Usable only in tests of the package that
/// builds it.
#[macro_export]
macro_rules! fake {
    ($name:expr $(, $arg:expr)* $(,)?) => {
        $crate::fake_server(env!("CARGO_BIN_EXE_fake-server"), $name, &[$(AsRef::<str>::as_ref(&$arg)),*])
    };
}

/// Returns a server spec with short backoffs.
pub fn fake_server(program: &str, name: &str, args: &[&str]) -> ServerSpec {
    let spec = ServerSpec::command(server_id(name), CommandSpec::new(program).args(args.iter().copied()));
    spec.lifecycle(quick_lifecycle(5))
}

/// Returns the default lifecycle with short backoffs and this many restarts.
pub fn quick_lifecycle(restarts: u32) -> Lifecycle {
    Lifecycle {
        restarts: Restarts { at_most: restarts, within: Duration::from_secs(300) },
        backoff: BackoffSpec { first: Duration::from_millis(5), most: Duration::from_millis(20) },
        ..Lifecycle::default()
    }
}

/// Parses a server id.
pub fn server_id(name: &str) -> ServerId {
    name.parse().unwrap()
}

/// Returns a crib of these servers that stores nothing on disk. Lists wait for servers on a slow machine.
pub fn crib(servers: impl IntoIterator<Item = ServerSpec>) -> Crib {
    let builder =
        Crib::builder().listing_wait(WAIT_LIMIT).first_listing(FirstListingSettings::new(WAIT_LIMIT));
    servers.into_iter().fold(builder, toolcrib::CribBuilder::server).build().unwrap()
}

/// Calls a tool of a server.
pub async fn call(crib: &Crib, server: &str, tool: &str, arguments: &Value) -> Result<Outcome, Error> {
    crib.call(Call::tool_on(server_id(server), tool).arguments(arguments)).await
}

/// Calls a tool of a server and returns the text of the result.
pub async fn text(crib: &Crib, server: &str, tool: &str, arguments: &Value) -> String {
    call(crib, server, tool, arguments).await.unwrap().text()
}

/// Returns the status of one server.
pub fn status(crib: &Crib, server: &str) -> ServerStatus {
    crib.status().into_iter().find(|status| status.server.as_str() == server).expect("a server of this name")
}

/// Waits until `holds` returns true, checking every few milliseconds.
///
/// # Panics
/// If it does not within [`WAIT_LIMIT`].
pub async fn eventually(condition: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + WAIT_LIMIT;
    while !holds() {
        assert!(Instant::now() < until, "not in time: {condition}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Blocks until `holds` returns true, checking every few milliseconds. For tests without a runtime.
///
/// # Panics
/// If it does not within [`WAIT_LIMIT`].
pub fn wait_until(condition: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + WAIT_LIMIT;
    while !holds() {
        assert!(Instant::now() < until, "not in time: {condition}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Returns how often a fake server with this count file was started.
pub fn count_starts(count_file: &Path) -> usize {
    std::fs::metadata(count_file).map_or(0, |file| usize::try_from(file.len()).unwrap_or(usize::MAX))
}
