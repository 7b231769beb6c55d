//! A host that looks after one server and prints what becomes of it.
//!
//! ```text
//! cargo run -p toolcrib --example supervised_host -- COMMAND [ARG]…
//! ```
//!
//! Kill the server while this runs and watch it come back; without a command, one that dies at once is looked after.
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::error::Error;
use std::time::Duration;

use toolcrib::spec::Restarts;
use toolcrib::{CommandSpec, Crib, Event, KeepAlive, Lifecycle, ServerSpec, Start};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let command = CommandSpec::argv(std::env::args().skip(1)).unwrap_or_else(|| CommandSpec::new("false"));
    let care = Lifecycle {
        start: Start::AtBoot,
        keep_alive: KeepAlive::Forever,
        restarts: Restarts { at_most: 3, within: Duration::from_secs(60) },
        ..Lifecycle::default()
    };
    let crib =
        Crib::builder().server(ServerSpec::command("guest".parse()?, command).lifecycle(care)).build()?;

    let mut events = crib.events();
    while let Ok(event) = events.recv().await {
        match &event {
            Event::Started { pid, took, .. } => println!("started: pid {pid:?} after {took:?}"),
            Event::Crashed { why, .. } => println!("crashed: {why}"),
            Event::Ejected { why, .. } => println!("given up: {why}"),
            other => println!("{other:?}"),
        }
        for status in crib.status() {
            let (state, left) = (status.state.as_str(), status.restarts_left);
            println!("  {}: {state}, {left} restarts left, {:?} tools", status.server, status.tools);
        }
        if matches!(event, Event::Ejected { .. }) {
            break;
        }
    }
    crib.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
