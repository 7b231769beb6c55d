//! A registry: servers are declared with cards, started on demand, held while they are needed, changed and removed.
//!
//! ```text
//! cargo run -p toolcrib --example registry
//! ```
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::error::Error;
use std::time::Duration;

use serde_json::json;
use toolcrib::{Crib, KeepAlive, Lifecycle, ServerCard, ServerSpec, Toolbox};

/// A server with one tool, which lists that tool before it has been started.
fn notes(greeting: &'static str) -> Result<ServerSpec, Box<dyn Error>> {
    let schema = json!({"type": "object"});
    let tools =
        Toolbox::new().tool("greet", "Greets", &schema, move |_| async move { Ok(greeting.to_owned()) });
    let definition = json!({"name": "greet", "description": "Greets"});
    let card = ServerCard::new().title("Notes").description("Keeps notes").tool(&definition)?;
    let lifecycle = Lifecycle { keep_alive: KeepAlive::For(Duration::from_secs(30)), ..Lifecycle::default() };
    Ok(ServerSpec::in_process("notes".parse()?, tools).card(card).lifecycle(lifecycle))
}

fn print_status(crib: &Crib, when: &str) {
    for status in crib.status() {
        let title = status.title().unwrap_or_default();
        println!("{when}: {} ({title}) {}, {} leases", status.server, status.state.as_str(), status.leases);
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let crib = Crib::builder().build()?;
    crib.add(notes("hello")?).await?;
    let id = "notes".parse()?;
    let listed: Vec<_> = crib.list().await.tools().iter().map(|tool| tool.public_name.to_string()).collect();
    println!("listed without a start: {listed:?}");
    print_status(&crib, "declared");

    // Any number of holders share one start; the server stays up until the last lease is dropped.
    let (one, other) = tokio::try_join!(crib.lease(&id), crib.lease(&id))?;
    println!("{}", one.call_tool("greet", &json!({})).await?.text());
    print_status(&crib, "leased");
    drop((one, other));
    print_status(&crib, "released");

    let changes = crib.replace(notes("good evening")?).await?;
    println!("changed {:?}; registered: {}", changes.changed, crib.contains(&id));
    println!("{}", crib.lease(&id).await?.call_tool("greet", &json!({})).await?.text());
    crib.remove(&id).await?;
    println!("left: {}", crib.roster().servers().count());
    crib.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
