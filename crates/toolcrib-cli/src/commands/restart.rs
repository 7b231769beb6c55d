//! `toolcrib restart S`: a fresh process and a fresh restart budget.

use anyhow::Result;

use crate::cli::OneServer;
use crate::exit::Exit;
use crate::output::Output;
use crate::place::Place;

/// Restarts a server of the running gateway.
pub(crate) async fn run(args: &OneServer, place: &Place, out: &mut Output) -> Result<Exit> {
    super::act(place, &args.server, "restart", out).await
}
