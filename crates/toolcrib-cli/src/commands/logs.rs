//! `toolcrib logs S [-f]`: what a server wrote to its stderr.

use anyhow::Result;
use serde_json::Value;
use toolcrib::ServerId;

use crate::cli::Logs;
use crate::client::Client;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::place::{Place, log_file};

/// Shows the lines that are kept; with `-f`, also those that come.
pub(crate) async fn run(args: &Logs, place: &Place, out: &mut Output) -> Result<Exit> {
    let client = Client::demand(place).await.map_err(|failure| without(failure, args, place))?;
    let path = format!("{}/logs", super::server_path(&args.server));
    let mut last = show(super::about_server(client.get(&path).await)?, 0, out)?;
    if !args.follow {
        return Ok(Exit::Fine);
    }
    let follow = async {
        loop {
            let lines = super::about_server(client.get(&format!("{path}?after={last}&wait=1")).await)?;
            last = show(lines, last, out)?;
        }
    };
    let ended: Option<Result<Exit>> = super::until_interrupted(follow).await?;
    ended.unwrap_or(Ok(Exit::Interrupted))
}

/// Without a gateway there is still what one wrote down.
fn without(failure: Failure, args: &Logs, place: &Place) -> Failure {
    let file = log_file(&place.logs(), &args.server);
    let kept = args.server.parse::<ServerId>().is_ok() && file.is_file();
    if kept { failure.hint(format!("cat {}", file.display())) } else { failure }
}

/// Prints lines; gives the number of the last one.
fn show(lines: Value, mut last: u64, out: &mut Output) -> Result<u64> {
    let Value::Array(lines) = lines else { return Ok(last) };
    for line in lines {
        last = line["seq"].as_u64().unwrap_or(last);
        if out.json {
            out.value(&line)?;
        } else {
            out.line(line["line"].as_str().unwrap_or_default())?;
        }
    }
    Ok(last)
}
