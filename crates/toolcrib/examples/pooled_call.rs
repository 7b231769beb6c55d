//! Calls tools of servers given as command lines, and keeps the servers running in a bounded pool.
//!
//! ```text
//! cargo run -p toolcrib --example pooled_call -- TOOL ARGUMENTS COMMAND [ARG]…
//! cargo run -p toolcrib --example pooled_call -- get_current_time '{"timezone":"UTC"}' mcp-server-time
//! ```
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::error::Error;
use std::time::Duration;

use toolcrib::Crib;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(tool), Some(arguments)) = (args.next(), args.next()) else {
        println!("usage: pooled_call TOOL ARGUMENTS COMMAND [ARG]…");
        return Ok(());
    };
    let argv: Vec<String> = args.collect();
    let arguments = serde_json::from_str(&arguments)?;
    // At most eight servers; the idle one that was used least recently is evicted for another.
    let crib = Crib::builder().max_adhoc_servers(8).build()?;
    for _ in 0..3 {
        println!("{}", crib.call_command(&argv, &tool, &arguments).await?.text());
    }
    for server in crib.adhoc_status() {
        println!("{} was started {} time(s)", server.server, server.generation);
    }
    crib.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
