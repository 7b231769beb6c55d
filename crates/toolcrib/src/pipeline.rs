//! The steps of a call, in order. Read this file first.

mod cache;
mod retry;

use tokio::time::Instant;

use crate::cache::Flight;
use crate::call::{Call, Outcome};
use crate::catalog::Target;
use crate::error::Error;
use crate::public;
use crate::stock::Stock;
use crate::telemetry;
use cache::Look;

/// Takes one call through.
pub(crate) async fn run(stock: &Stock, call: &mut Call) -> Result<Outcome, Error> {
    let (target, view) = match stock.find(&call.caller, &call.wanted).await {
        Ok(found) => found, // which server has it?
        Err(error) => return Box::pin(stock.fall_back(call.clone(), error)).await, // nobody here does
    };
    call.record.note(|met| met.target = Some(target.clone()));
    let decision = stock.permit(call, &target, Some(view)).await?; // may they?
    call.record.note(|met| met.decision = decision);
    stock.check(call, &target)?; // does the tool take such arguments?
    telemetry::found(&target.server);
    let mut call = stock.meter.admit(call, &target).await?; // have they any left?
    let outcome = match cache::look(stock, &call, &target) {
        Look::Known(outcome) => Ok(outcome), // do we already know?
        Look::Unknown(wish) => Box::pin(wish.grant(stock, &mut call, &target)).await,
        Look::Passing => ask(stock, &mut call, &target, None).await,
    };
    let outcome = outcome.map(|outcome| public::named(outcome, &call, &target, &stock.tasks));
    call.settle(outcome)
}

/// Makes sure that the server is alive and well, which wakes it, and asks it; others may wait for the answer.
async fn ask(
    stock: &Stock,
    call: &mut Call,
    target: &Target,
    flight: Option<&Flight>,
) -> Result<Outcome, Error> {
    let mut lease = stock.registry.lease(&target.server, call).await?;
    let began = Instant::now();
    flight.into_iter().for_each(Flight::leaves);
    let outcome = lease.send(call, &target.name, began).await;
    drop(lease);
    match outcome {
        Err(error) if retry::may_repeat(stock, &error, call, target) => {
            Box::pin(retry::again(stock, call, target, flight, (error, began))).await
        }
        outcome => outcome,
    }
}
