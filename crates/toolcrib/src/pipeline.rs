//! The steps of a call, in order. Read this file first.
//!
//! Policy, quota and cache have their place between finding a target and leasing its server.

use crate::call::{Call, Outcome};
use crate::error::{Error, ErrorKind};
use crate::public;
use crate::stock::Stock;
use crate::telemetry;

/// Takes one call through.
pub(crate) async fn run(stock: &Stock, call: &mut Call) -> Result<Outcome, Error> {
    let target = match stock.find(&call.wanted).await {
        Ok(target) => target, // which server has it?
        Err(error) => return Box::pin(stock.fall_back(call.clone(), error)).await, // nobody here does
    };
    telemetry::found(&target.server);
    let mut lease = stock.registry.lease(&target.server, call).await?; // is it alive and well? (wakes it)
    let outcome = lease.send(call, &target.name).await; // ask it
    drop(lease);
    let outcome = match outcome {
        // It had died unnoticed and never got the request: the next one may have it.
        Err(error) if error.kind() == ErrorKind::Lost && error.is_unsent() => {
            Box::pin(async {
                let mut lease = stock.registry.lease(&target.server, call).await?;
                lease.send(call, &target.name).await
            })
            .await
        }
        outcome => outcome,
    };
    outcome.map(|outcome| public::named(outcome, call, &target))
}
