//! The steps of a call, in order. Read this file first.
//!
//! The cache has its place between the quota and the lease.

use tokio::time::Instant;

use crate::call::{Call, Outcome};
use crate::error::{Error, ErrorKind};
use crate::event::Decision;
use crate::public;
use crate::stock::Stock;
use crate::telemetry;

/// Takes one call through.
pub(crate) async fn run(stock: &Stock, call: &mut Call) -> Result<Outcome, Error> {
    let target = match stock.find(&call.caller, &call.wanted).await {
        Ok(target) => target, // which server has it?
        Err(error) => return Box::pin(stock.fall_back(call.clone(), error)).await, // nobody here does
    };
    call.record.note(|met| met.target = Some(target.clone()));
    stock.permit(call, &target).await?; // may they?
    call.record.note(|met| met.decision = Decision::Allowed);
    telemetry::found(&target.server);
    let mut call = stock.meter.admit(call, &target).await?; // have they any left?
    let mut lease = stock.registry.lease(&target.server, &call).await?; // is it alive and well? (wakes it)
    let began = Instant::now();
    let outcome = lease.send(&mut call, &target.name, began).await; // ask it
    drop(lease);
    let outcome = match outcome {
        // The next server may have what no server can have run, or what may run twice.
        Err(error) if error.kind() == ErrorKind::Lost && stock.may_repeat(&error, &call, &target) => {
            call.note(&error);
            let again = async {
                let mut lease = stock.registry.lease(&target.server, &call).await?;
                lease.send(&mut call, &target.name, began).await
            };
            Box::pin(again).await
        }
        outcome => outcome,
    };
    let outcome = outcome.map(|outcome| public::named(outcome, &call, &target, &stock.tasks));
    call.settle(outcome)
}
