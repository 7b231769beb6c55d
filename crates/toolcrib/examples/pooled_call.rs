//! A one-line call of a server given as its argument vector, kept warm in a bounded pool.
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

/// Servers by their argument vectors; the one that was not used for longest makes room for a new one.
struct Pool {
    crib: Crib,
    most: usize,
    /// Least recently used first.
    kept: Mutex<VecDeque<(Vec<String>, ServerSpec)>>,
}

impl Pool {
    fn new(most: usize) -> Result<Self, Box<dyn Error>> {
        Ok(Self { crib: Crib::builder().build()?, most, kept: Mutex::default() })
    }

    /// Calls a tool of the server that this command starts, starting it only if it does not run yet.
    async fn call(&self, argv: &[String], tool: &str, arguments: &str) -> Result<Outcome, Box<dyn Error>> {
        let server = self.server(argv).await?;
        Ok(self.crib.call(Call::on(server, tool).raw_arguments(arguments.to_owned())).await?)
    }

    async fn server(&self, argv: &[String]) -> Result<ServerId, Box<dyn Error>> {
        let mut kept = self.kept.lock().await;
        let known = kept.iter().position(|(known, _)| known == argv).and_then(|at| kept.remove(at));
        let is_new = known.is_none();
        let (argv, spec) = match known {
            Some(known) => known,
            None => {
                let command = CommandSpec::argv(argv.iter().cloned()).ok_or("which command?")?;
                let taken = |id: &ServerId| kept.iter().any(|(_, spec)| spec.id == *id);
                let names = (0..=self.most).filter_map(|n| format!("pool-{n}").parse::<ServerId>().ok());
                let id = names.into_iter().find(|id| !taken(id)).ok_or("the pool is full")?;
                (argv.to_vec(), ServerSpec::command(id, command))
            }
        };
        let id = spec.id.clone();
        kept.push_back((argv, spec));
        if is_new {
            if kept.len() > self.most {
                kept.pop_front();
            }
            let mut roster = Roster::default();
            for (_, spec) in kept.iter() {
                roster.add(spec.clone())?;
            }
            self.crib.apply(roster).await;
        }
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
