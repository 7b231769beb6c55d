//! `toolcrib stdio`: MCP on stdin and stdout, attached to the running gateway or standing alone.
//!
//! Nothing but MCP goes to stdout here.

mod attached;
mod ledger;
mod reach;

use std::sync::Arc;

use anyhow::Result;
use tokio_util::sync::CancellationToken;

use crate::cli::Stdio;
use crate::client;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::frontend;
use crate::output::Output;
use crate::place::Place;

/// Serves until stdin ends.
pub(crate) async fn run(args: &Stdio, place: &Place, out: &mut Output) -> Result<Exit> {
    if args.profile.is_some() {
        return Err(Failure::usage("profiles are not supported yet").hint("toolcrib stdio").into());
    }
    match client::connect(place).await? {
        Some(daemon) => {
            let mut reach = reach::Reach::new(place);
            let attached = attached::run(&mut reach, daemon);
            let ended = super::until_interrupted(attached).await;
            reach.close().await;
            ended?.transpose()?;
        }
        None => {
            let largest = place.usable()?.limits.body;
            let serve = async |crib| {
                let (stdin, stdout) = (tokio::io::stdin(), tokio::io::stdout());
                let face = Arc::new(frontend::Face::new(crib));
                let stop = CancellationToken::new();
                Box::pin(frontend::stdio::serve(stdin, stdout, face, largest, 0, stop)).await;
            };
            super::alone(place, out, super::Waits::ForSome, serve).await?;
        }
    }
    Ok(Exit::Fine)
}
