//! Every feature of the protocol, from clients of both eras to servers of both eras, through the gateway.
//!
//! Client and servers are the official Rust SDK, so that neither side shares our reading of the protocol.
//! `scripts/matrix` has the same table for the Python and TypeScript SDKs.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests may stop at the first surprise")]
#![expect(deprecated, reason = "sampling, roots and logging are deprecated, and have to work nevertheless")]

mod changes;
mod during;
mod friend;
mod offers;
mod peers;
mod questions;
mod stage;
mod tasks;

use std::fmt::Write as _;

use stage::Stage;
use test_support::client::Era;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// What has to become of a feature between two eras.
#[derive(Clone, Copy)]
enum Verdict {
    /// All of it arrives.
    Passes,
    /// It does not exist between these two, for this reason; what comes instead is checked.
    Cannot(&'static str),
    /// The SDK has no such feature; who has it is checked by `scripts/matrix`, and here only what comes instead.
    Elsewhere(&'static str),
}

use Verdict::{Cannot, Elsewhere, Passes};

const ALWAYS: [Verdict; 4] = [Passes; 4];

/// The eras of the client and of the server, in the order of the table's columns.
const CELLS: [(Era, Era); 4] = [
    (Era::Session, Era::Session),
    (Era::Session, Era::Stateless),
    (Era::Stateless, Era::Session),
    (Era::Stateless, Era::Stateless),
];

const NO_TASKS: &str = "SEP-2663: the extension is \"not wire-compatible\" with the experimental tasks of \
    2025-11-25, and a server may make a task only of a request that declared the extension";

/// The table: a feature, and its verdict for each of [`CELLS`].
const TABLE: [(&str, [Verdict; 4]); 14] = [
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
    ("tasks", [Elsewhere("rmcp 3 has no tasks of 2025-11-25"), Cannot(NO_TASKS), Cannot(NO_TASKS), Passes]),
];

async fn check(feature: &str, verdict: Verdict, stage: &Stage) {
    match feature {
        "tools" => offers::tools(stage).await,
        "resources" => offers::resources(stage).await,
        "prompts" => offers::prompts(stage).await,
        "completion" => offers::completion(stage).await,
        "logging" => during::logging(stage).await,
        "progress" => during::progress(stage).await,
        "cancel" => during::cancel(stage).await,
        "list_changed" => changes::lists(stage).await,
        "resource updates" => changes::resources(stage).await,
        "sampling" => questions::sampling(stage).await,
        "elicitation form" => questions::form(stage).await,
        "elicitation URL" => questions::url(stage).await,
        "roots" => questions::roots(stage).await,
        "tasks" if matches!(verdict, Passes) => tasks::extension(stage).await,
        "tasks" => tasks::none(stage).await,
        _ => panic!("nothing checks `{feature}`"),
    }
}

/// What was wrong with a check, if anything was.
fn failure(runtime: &Runtime, check: impl Future<Output = ()> + Send + 'static) -> Option<String> {
    let checked = async move { tokio::time::timeout(test_support::PATIENCE, check).await };
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

/// One column of the table, on one gateway; what was wrong, if anything, for each row.
fn column(number: usize) -> Vec<Option<String>> {
    let (client, server) = CELLS[number];
    let stage = std::sync::Arc::new(Stage::new(client, server));
    // One thread, so that what an SDK tells its handler stays in order.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let run = |(feature, verdicts): &(&'static str, [Verdict; 4])| {
        let (feature, verdict, stage) = (*feature, verdicts[number], stage.clone());
        failure(&runtime, async move { check(feature, verdict, &stage).await })
    };
    TABLE.iter().map(run).collect()
}

#[test]
fn every_feature_works_between_all_eras_or_the_protocol_says_that_it_cannot() {
    let threads: Vec<_> = (0..CELLS.len()).map(|number| std::thread::spawn(move || column(number))).collect();
    let columns: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let mut report = String::new();
    for (row, (feature, verdicts)) in TABLE.iter().enumerate() {
        for (column, verdict) in verdicts.iter().enumerate() {
            let Some(why) = &columns[column][row] else { continue };
            let (client, server) = CELLS[column];
            let wanted = match verdict {
                Passes => String::new(),
                Cannot(reason) | Elsewhere(reason) => format!(" (instead of it: {reason})"),
            };
            let _ = writeln!(report, "{feature}, {client:?} client, {server:?} server{wanted}: {why}");
        }
    }
    assert!(report.is_empty(), "\n{report}");
}
