//! Replaces the servers, access rules and limits of a running crib with one `Settings` value.
//!
//! ```text
//! cargo run -p toolcrib --example reload
//! ```
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::error::Error;
use std::num::NonZeroU32;
use std::time::Duration;

use serde_json::json;
use toolcrib::{Call, Crib, Policy, Roster, Rules, ServerSpec, Settings, Toolbox, UsageLimit, UsageLimits};

/// A server with one tool that returns the server's name.
fn server(name: &'static str) -> Result<ServerSpec, Box<dyn Error>> {
    let schema = json!({"type": "object"});
    let whoami = move |_| async move { Ok(name.to_owned()) };
    let tools = Toolbox::new().tool("whoami", "Returns the server's name", &schema, whoami);
    Ok(ServerSpec::in_process(name.parse()?, tools))
}

/// Calls the tool of each server and prints the answer or the error.
async fn call_all(crib: &Crib) {
    for tool in ["old__whoami", "kept__whoami", "new__whoami", "kept__whoami"] {
        match crib.call(Call::tool(tool)).await {
            Ok(outcome) => println!("  {tool}: {}", outcome.text()),
            Err(error) => println!("  {tool}: {error}"),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let kept = server("kept")?;
    let crib = Crib::builder().server(server("old")?).server(kept.clone()).build()?;
    println!("before:");
    call_all(&crib).await;

    let mut roster = Roster::default();
    roster.add(kept)?;
    roster.add(server("new")?)?;
    let limit = UsageLimit::quota(NonZeroU32::MIN, Duration::from_secs(60)).matching("kept.*".parse()?);
    let settings = Settings::new(roster)
        .policy(Policy::for_everyone(Rules::default().denying(["new.*".parse()?])))
        .limits(UsageLimits { everyone: vec![limit], ..UsageLimits::default() });
    let changes = crib.apply(settings).await?;
    println!("added {:?}, removed {:?}, changed {:?}", changes.added, changes.removed, changes.changed);
    println!("after, with `new.*` denied and one call per minute to `kept.*`:");
    call_all(&crib).await;
    crib.shutdown(Duration::from_secs(1)).await;
    Ok(())
}
