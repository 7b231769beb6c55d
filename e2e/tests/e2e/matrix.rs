//! Every feature of the protocol, from clients of both eras to servers of both eras, through the gateway.
//!
//! Client and servers use the official Rust SDK, so that neither side shares our interpretation of the protocol.
//! `scripts/matrix` has the same table for the Python and TypeScript SDKs.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests panic on failure")]
#![expect(deprecated, reason = "sampling, roots and logging are deprecated but must work")]

mod calls;
mod changes;
mod client;
mod offers;
mod peers;
mod server_requests;
mod setup;
mod tasks;

use std::fmt::Write as _;

use setup::Setup;
use test_support::client::Era;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// The expected result of a feature between two eras.
#[derive(Clone, Copy)]
enum Expected {
    /// It works completely.
    Works,
    /// It cannot exist between these eras, for this reason; the replacement is checked.
    Impossible(&'static str),
    /// The SDK does not have it; `scripts/matrix` checks it with other SDKs, and only the replacement is checked here.
    NotInSdk(&'static str),
}

use Expected::{Impossible, NotInSdk, Works};

const ALWAYS: [Expected; 4] = [Works; 4];

/// The eras of client and server, in the order of the table's columns.
const CELLS: [(Era, Era); 4] = [
    (Era::Session, Era::Session),
    (Era::Session, Era::Stateless),
    (Era::Stateless, Era::Session),
    (Era::Stateless, Era::Stateless),
];

const NO_TASKS: &str = "SEP-2663: the extension is \"not wire-compatible\" with the experimental tasks of \
    2025-11-25, and a server may make a task only of a request that declared the extension";

/// The table: a feature, and what is expected for each of [`CELLS`].
const TABLE: [(&str, [Expected; 4]); 22] = [
    ("tools", ALWAYS),
    ("resources", ALWAYS),
    ("prompts", ALWAYS),
    ("completion", ALWAYS),
    ("logging", ALWAYS),
    ("progress", ALWAYS),
    ("cancel", ALWAYS),
    ("list_changed", ALWAYS),
    ("resource updates", ALWAYS),
    ("sampling", ALWAYS),
    ("elicitation form", ALWAYS),
    ("elicitation URL", ALWAYS),
    ("roots", ALWAYS),
    (
        "tasks",
        [NotInSdk("rmcp 3 has no tasks of 2025-11-25"), Impossible(NO_TASKS), Impossible(NO_TASKS), Works],
    ),
    ("tools in search mode", ALWAYS),
    ("logging by call_tool", ALWAYS),
    ("progress by call_tool", ALWAYS),
    ("cancel by call_tool", ALWAYS),
    ("sampling by call_tool", ALWAYS),
    ("elicitation form by call_tool", ALWAYS),
    ("elicitation URL by call_tool", ALWAYS),
    ("roots by call_tool", ALWAYS),
];

async fn check(feature: &str, expected: Expected, setup: &Setup) {
    if let Some(feature) = feature.strip_suffix(" by call_tool") {
        return Box::pin(check(feature, expected, &setup.by_call_tool())).await;
    }
    match feature {
        "tools in search mode" => offers::search_mode(setup).await,
        "tools" => offers::tools(setup).await,
        "resources" => offers::resources(setup).await,
        "prompts" => offers::prompts(setup).await,
        "completion" => offers::completion(setup).await,
        "logging" => calls::logging(setup).await,
        "progress" => calls::progress(setup).await,
        "cancel" => calls::cancel(setup).await,
        "list_changed" => changes::lists(setup).await,
        "resource updates" => changes::resources(setup).await,
        "sampling" => server_requests::sampling(setup).await,
        "elicitation form" => server_requests::form(setup).await,
        "elicitation URL" => server_requests::url(setup).await,
        "roots" => server_requests::roots(setup).await,
        "tasks" if matches!(expected, Works) => tasks::extension(setup).await,
        "tasks" => tasks::unsupported(setup).await,
        _ => panic!("there is no check of `{feature}`"),
    }
}

/// Runs a check and returns its error, if it fails.
fn failure(runtime: &Runtime, check: impl Future<Output = ()> + Send + 'static) -> Option<String> {
    let checked = async move { tokio::time::timeout(test_support::WAIT_LIMIT, check).await };
    match runtime.block_on(async { JoinSet::from_iter([checked]).join_next().await.unwrap() }) {
        Ok(Ok(())) => None,
        Ok(Err(_)) => Some("not in time".to_owned()),
        Err(error) => {
            let panic = error.into_panic();
            let text = panic.downcast_ref::<String>().cloned();
            Some(text.unwrap_or_else(|| panic.downcast_ref::<&str>().unwrap_or(&"?").to_string()))
        }
    }
}

/// Checks one column of the table on one gateway; returns the error of each row.
fn check_column(number: usize) -> Vec<Option<String>> {
    let (client, server) = CELLS[number];
    let setup = std::sync::Arc::new(Setup::new(client, server));
    // One thread, so that an SDK calls its handlers in order.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let run = |(feature, expected): &(&'static str, [Expected; 4])| {
        let feature = *feature;
        let expected = expected[number];
        let setup = setup.clone();
        failure(&runtime, async move { check(feature, expected, &setup).await })
    };
    TABLE.iter().map(run).collect()
}

#[test]
fn features_work_between_all_eras() {
    let threads: Vec<_> =
        (0..CELLS.len()).map(|number| std::thread::spawn(move || check_column(number))).collect();
    let columns: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let mut report = String::new();
    for (row, (feature, expected)) in TABLE.iter().enumerate() {
        for (column, expected) in expected.iter().enumerate() {
            let Some(error) = &columns[column][row] else { continue };
            let (client, server) = CELLS[column];
            let replaces = match expected {
                Works => String::new(),
                Impossible(reason) | NotInSdk(reason) => format!(" (its replacement: {reason})"),
            };
            let _ = writeln!(report, "{feature}, {client:?} client, {server:?} server{replaces}: {error}");
        }
    }
    assert!(report.is_empty(), "\n{report}");
}
