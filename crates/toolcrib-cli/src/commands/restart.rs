//! `toolcrib restart SERVER`: starts a new process with a new restart budget.

use anyhow::Result;

use crate::cli::ServerNameArgs;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;

/// Restarts a server of the running gateway.
pub(crate) async fn run(args: &ServerNameArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    super::run_server_action(paths, &args.server, "restart", out).await
}
