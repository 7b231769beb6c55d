//! `toolcrib stop S`: puts a server to sleep.

use anyhow::Result;

use crate::cli::OneServer;
use crate::exit::Exit;
use crate::output::Output;
use crate::place::Place;

/// Stops a server of the running gateway; the next call wakes it.
pub(crate) async fn run(args: &OneServer, place: &Place, out: &mut Output) -> Result<Exit> {
    super::act(place, &args.server, "stop", out).await
}
