//! `toolcrib stop SERVER`: stops a server until the next call.

use anyhow::Result;

use crate::cli::ServerNameArgs;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;

/// Stops a server of the running gateway; the next call starts it again.
pub(crate) async fn run(args: &ServerNameArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    super::run_server_action(paths, &args.server, "stop", out).await
}
