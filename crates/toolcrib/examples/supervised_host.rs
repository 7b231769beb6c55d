//! A host that supervises one server and prints its events.
//!
//! ```text
//! cargo run -p toolcrib --example supervised_host -- COMMAND [ARG]…
//! ```
//!
//! Kill the server while this runs and watch it restart. Without a command, a server that exits immediately is used.
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::error::Error;
use std::time::Duration;

use toolcrib::{CommandSpec, Crib, Event, KeepAlive, Lifecycle, Restarts, ServerSpec, StartPolicy};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let command = CommandSpec::argv(std::env::args().skip(1)).unwrap_or_else(|| CommandSpec::new("false"));
    let lifecycle = Lifecycle {
        start: StartPolicy::AtBoot,
        keep_alive: KeepAlive::Forever,
        restarts: Restarts { at_most: 3, within: Duration::from_secs(60) },
        ..Lifecycle::default()
    };
    let crib = Crib::builder()
        .server(ServerSpec::command("example".parse()?, command).lifecycle(lifecycle))
        .build()?;

    let mut events = crib.events();
    while let Ok(event) = events.recv().await {
        match &event {
            Event::Started { pid, duration, .. } => println!("started: pid {pid:?} after {duration:?}"),
            Event::Crashed { reason, .. } => println!("crashed: {reason}"),
            Event::Ejected { reason, .. } => println!("ejected: {reason}"),
            other => println!("{other:?}"),
        }
        for status in crib.status() {
            println!(
                "  {}: {}, {} restarts left, {:?} tools",
                status.server,
                status.state.as_str(),
                status.restarts_left,
                status.tools
            );
        }
        if matches!(event, Event::Ejected { .. }) {
            break;
        }
    }
    crib.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
