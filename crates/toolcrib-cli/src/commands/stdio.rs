//! `toolcrib stdio`: serves MCP on stdin and stdout, attached to the running gateway or standalone.
//!
//! Only MCP messages may be written to stdout here.

mod attached;
mod connector;
mod replay_log;

use std::sync::Arc;

use anyhow::Result;
use tokio_util::sync::CancellationToken;
use toolcrib::{Caller, Project};
use toolcrib_serve::{McpService, PipeIdentity, serve_pipe};

use self::connector::GatewayConnector;
use crate::cli::StdioArgs;
use crate::client;
use crate::commands::policy::find_profile;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;

/// Returns the working folder, if its path is valid UTF-8.
fn working_folder() -> Option<String> {
    std::env::current_dir().ok().and_then(|folder| folder.to_str().map(str::to_owned))
}

/// Returns the local caller with a profile.
fn local_caller(profile: Option<&str>) -> Caller {
    profile.into_iter().fold(Caller::local(), Caller::with_profile)
}

/// Serves until stdin ends.
pub(crate) async fn run(args: &StdioArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let profile = args.profile.as_deref();
    if let Some(name) = profile {
        find_profile(&paths.valid_config()?, name)?;
    }
    match client::connect(paths).await? {
        Some(stream) => {
            let mut connector = GatewayConnector::new(paths, profile);
            let result = super::until_interrupted(attached::run(&mut connector, stream)).await;
            connector.close().await;
            result?.transpose()?;
        }
        None => {
            let config = paths.valid_config()?;
            if let Some(error) = super::missing_gateway_error(&config) {
                return Err(error.into());
            }
            let max_message_size = config.limits.body;
            let serve = async |crib| {
                let service = Arc::new(McpService::new(crib));
                let identity = PipeIdentity {
                    caller: local_caller(profile),
                    project: Project::from_roots(working_folder()),
                    last_question: 0,
                };
                let stop = CancellationToken::new();
                let stdin = tokio::io::stdin();
                let stdout = tokio::io::stdout();
                let served = serve_pipe(stdin, stdout, service, max_message_size, identity, stop);
                Box::pin(served).await;
            };
            super::run_standalone(paths, out, serve).await?;
        }
    }
    Ok(ExitStatus::Success)
}
