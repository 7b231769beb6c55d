//! Resolves a config for two machines, and prints the config file that an agent on each of them needs.
//!
//! ```text
//! cargo run -p toolcrib-agents --example resolver
//! ```
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::error::Error;
use std::path::Path;

use toolcrib::config::{HostFacts, LayeredConfig};
use toolcrib_agents::agents::Agent;
use toolcrib_agents::export::render::render_entry;

const CONFIG: &str = r#"
[scopes.office]
match = { host = "desk-*" }
tags = ["office"]

[servers.time]
command = "uvx"
args = ["mcp-server-time"]

[servers.tracker]
url = "https://tracker.example.com/mcp"
when = ["office"]
"#;

/// Returns the text of an agent's config file on a machine.
fn agent_file(agent: &Agent, host: &str) -> Result<String, Box<dyn Error>> {
    let facts = HostFacts { host: Ok(host.to_owned()), ..HostFacts::default() };
    let config = LayeredConfig::parse(Path::new("config.toml"), CONFIG).resolve(&facts);
    if let Some(problem) = config.problems.first() {
        return Err(problem.to_string().into());
    }
    let mut text = String::new();
    for server in config.roster.servers().filter(|server| server.enabled) {
        if let Some(members) = render_entry(agent, server, None).members {
            text = agent.language.set_entry(&text, &agent.entry_path(server.id.as_str()), &members)?;
        }
    }
    Ok(text)
}

fn main() -> Result<(), Box<dyn Error>> {
    let codex = Agent::find("codex")?;
    let at_desk = agent_file(codex, "desk-7")?;
    let elsewhere = agent_file(codex, "laptop")?;
    println!("# {} on desk-7\n{at_desk}\n# {} on laptop\n{elsewhere}", codex.name, codex.name);
    assert!(at_desk.contains("tracker") && !elsewhere.contains("tracker"));
    Ok(())
}
