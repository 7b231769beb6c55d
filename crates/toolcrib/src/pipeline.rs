//! The steps of a call, in order. Read this file first.
//!
//! Policy, quota and cache have their place between finding a target and leasing its server.

use crate::call::{Call, Outcome};
use crate::crib::Shared;
use crate::error::{Error, ErrorKind};
use crate::telemetry;

/// Takes one call through.
pub(crate) async fn run(crib: &Shared, mut call: Call) -> Result<Outcome, Error> {
    let target = match crib.find(&call.wanted).await {
        Ok(target) => target,                                      // which server has it?
        Err(error) => return crib.fall_back(call, error).await,    // nobody here does
    };
    telemetry::found(&target.server);
    let mut lease = crib.registry.lease(&target.server).await?;    // is it alive and well? (wakes it)
    match lease.send(&mut call, &target).await {                   // ask it
        Err(error) if error.kind() == ErrorKind::Lost && error.is_unsent() => {
            drop(lease); // it had died unnoticed and never got the request: a new one may have it
            crib.registry.lease(&target.server).await?.send(&mut call, &target).await
        }
        outcome => outcome,
    }
}
