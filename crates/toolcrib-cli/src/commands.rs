//! One command per file.

pub(crate) mod allow;
pub(crate) mod approve;
pub(crate) mod call;
pub(crate) mod check;
pub(crate) mod declare;
pub(crate) mod demo;
pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod logs;
pub(crate) mod ls;
pub(crate) mod policy;
pub(crate) mod restart;
pub(crate) mod run;
pub(crate) mod secret;
pub(crate) mod serve;
pub(crate) mod status;
pub(crate) mod stdio;
pub(crate) mod stop;
pub(crate) mod tools;
pub(crate) mod why;

use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use toolcrib::{Crib, ErrorKind};

use crate::client::Client;
use crate::daemon::{self, Signals};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::percent;
use crate::place::Place;

/// How long a command that stands alone lets calls finish when it is done with them.
const GRACE: Duration = Duration::ZERO;

/// Whether a command can wait for servers that take their time to start for the first time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// As long as any of them may take: there is no second try, because they end with the command.
    ForAll,
    /// Not long: an agent wants its list.
    ForSome,
}

/// Does `work` with a crib of its own, for commands that found no daemon. Servers it started are stopped however the
/// work ends; Ctrl-C ends it.
async fn alone<W, F>(place: &Place, out: &mut Output, waits: Waits, work: W) -> Result<Option<F::Output>>
where
    W: FnOnce(Crib) -> F,
    F: Future,
{
    let config = place.usable()?;
    out.problems(&config.problems)?;
    let mut signals = Signals::new()?;
    let longest = || config.roster.clone().into_servers().map(|spec| spec.lifecycle.start_timeout).max();
    let patience = (waits == Waits::ForAll).then(longest).flatten();
    let crib = daemon::build(place, &config, patience)?;
    let done = tokio::select! {
        done = work(crib.clone()) => Some(done),
        () = signals.any() => None,
    };
    crib.shutdown(GRACE).await;
    Ok(done)
}

/// Advice for those without a gateway: there is none to ask for logs, and none to restart anything in.
fn advice_alone(hint: &str, server: Option<&str>, place: &Place) -> String {
    match server {
        Some(server)
            if ["toolcrib logs", "toolcrib restart"].iter().any(|command| hint.starts_with(command)) =>
        {
            format!("look at `servers.{server}` in {}", place.config.display())
        }
        _ => hint.to_owned(),
    }
}

/// Does `work` until Ctrl-C.
async fn until_interrupted<F: Future>(work: F) -> Result<Option<F::Output>> {
    let mut signals = Signals::new()?;
    Ok(tokio::select! {
        done = work => Some(done),
        () = signals.any() => None,
    })
}

/// The path of one server in the admin API.
fn server_path(server: &str) -> String {
    format!("/api/v1/servers/{}", percent::encode(server))
}

/// An answer about one server; a name that no server has is a mistake on the command line.
fn about_server(answer: Result<Value, Failure>) -> Result<Value, Failure> {
    let unknown = ErrorKind::Unknown.facts();
    answer.map_err(|failure| match failure.code == unknown.name {
        true if failure.hint.as_deref() == Some(unknown.hint) => {
            Failure { exit: Exit::Unexpected, ..failure }.hint("toolcrib status")
        }
        true => Failure { exit: Exit::Unexpected, ..failure },
        false => failure,
    })
}

/// Has the daemon do something to one server, and tells how the server is then.
async fn act(place: &Place, server: &str, action: &str, out: &mut Output) -> Result<Exit> {
    let client = Client::demand(place).await?;
    let told = about_server(client.post(&format!("{}/{action}", server_path(server))).await)?;
    if out.json {
        out.value(&told)?;
        return Ok(Exit::Fine);
    }
    let state = told["state"].as_str().unwrap_or("unknown");
    match told["pid"].as_u64() {
        Some(pid) => out.say(&format!("`{server}` is {state}, pid {pid}"))?,
        None => out.say(&format!("`{server}` is {state}"))?,
    }
    Ok(Exit::Fine)
}
