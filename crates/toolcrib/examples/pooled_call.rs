//! Calls tools of servers given as command lines, and keeps the servers running in a bounded pool.
//!
//! ```text
//! cargo run -p toolcrib --example pooled_call -- TOOL ARGUMENTS COMMAND [ARG]…
//! cargo run -p toolcrib --example pooled_call -- get_current_time '{"timezone":"UTC"}' mcp-server-time
//! ```
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::collections::VecDeque;
use std::error::Error;
use std::time::Duration;

use tokio::sync::Mutex;
use toolcrib::{Call, CommandSpec, Crib, Outcome, Roster, ServerId, ServerSpec};

/// Servers by their argument vectors. The least recently used one is evicted.
struct Pool {
    crib: Crib,
    max_servers: usize,
    /// Least recently used first.
    servers: Mutex<VecDeque<(Vec<String>, ServerSpec)>>,
}

impl Pool {
    fn new(max_servers: usize) -> Result<Self, Box<dyn Error>> {
        Ok(Self { crib: Crib::builder().build()?, max_servers, servers: Mutex::default() })
    }

    /// Calls a tool of the server with this command line, and starts the server if it is not running.
    async fn call(&self, argv: &[String], tool: &str, arguments: &str) -> Result<Outcome, Box<dyn Error>> {
        let server = self.server(argv).await?;
        Ok(self.crib.call(Call::tool_on(server, tool).raw_arguments(arguments.to_owned())).await?)
    }

    async fn server(&self, argv: &[String]) -> Result<ServerId, Box<dyn Error>> {
        let mut servers = self.servers.lock().await;
        if let Some(index) = servers.iter().position(|(known, _)| known == argv)
            && let Some(entry) = servers.remove(index)
        {
            let id = entry.1.id.clone();
            servers.push_back(entry);
            return Ok(id);
        }
        let command = CommandSpec::argv(argv.iter().cloned()).ok_or("the command is missing")?;
        let is_taken = |id: &ServerId| servers.iter().any(|(_, spec)| spec.id == *id);
        let mut ids = (0..=self.max_servers).filter_map(|n| format!("pool-{n}").parse::<ServerId>().ok());
        let id = ids.find(|id| !is_taken(id)).ok_or("the pool is full")?;
        servers.push_back((argv.to_vec(), ServerSpec::command(id.clone(), command)));
        if servers.len() > self.max_servers {
            servers.pop_front();
        }
        let mut roster = Roster::default();
        for (_, spec) in servers.iter() {
            roster.add(spec.clone())?;
        }
        self.crib.apply_roster(roster).await?;
        Ok(id)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(tool), Some(arguments)) = (args.next(), args.next()) else {
        println!("usage: pooled_call TOOL ARGUMENTS COMMAND [ARG]…");
        return Ok(());
    };
    let argv: Vec<String> = args.collect();
    let pool = Pool::new(8)?;
    for _ in 0..3 {
        println!("{}", pool.call(&argv, &tool, &arguments).await?.text());
    }
    pool.crib.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
