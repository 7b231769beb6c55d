//! `toolcrib stdio`: MCP on stdin and stdout, attached to the running gateway or standing alone.
//!
//! Nothing but MCP goes to stdout here.

mod attached;
mod ledger;
mod reach;

use std::sync::Arc;

use anyhow::Result;
use tokio_util::sync::CancellationToken;
use toolcrib::{Caller, Project};

use crate::cli::Stdio;
use crate::client;
use crate::commands::policy::known_profile;
use crate::exit::Exit;
use crate::frontend;
use crate::output::Output;
use crate::place::Place;

/// The folder we were started in, if it has a name that can be said.
fn folder() -> Option<String> {
    std::env::current_dir().ok().and_then(|folder| folder.to_str().map(str::to_owned))
}

/// Whoever runs this command, and what it looks through.
fn local(profile: Option<&str>) -> Caller {
    profile.into_iter().fold(Caller::local(), Caller::within)
}

/// Serves until stdin ends.
pub(crate) async fn run(args: &Stdio, place: &Place, out: &mut Output) -> Result<Exit> {
    let profile = args.profile.as_deref();
    if let Some(name) = profile {
        known_profile(&place.usable()?, name)?;
    }
    match client::connect(place).await? {
        Some(daemon) => {
            let mut reach = reach::Reach::new(place, profile);
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
                let (project, stop) = (Project::of(folder()), CancellationToken::new());
                let known = (local(profile), project, 0);
                let served = frontend::stdio::serve(stdin, stdout, face, largest, known, stop);
                Box::pin(served).await;
            };
            super::alone(place, out, super::Waits::ForSome, serve).await?;
        }
    }
    Ok(Exit::Fine)
}
