//! The steps of a call, in order: find, authorize, check arguments, reserve limits, cache, send.

mod cache;
pub(crate) mod discovery;
pub(crate) mod era_bridge;
mod public_names;
mod retry;
pub(crate) mod router;
pub(crate) mod subscription;
pub(crate) mod suspended_calls;
mod task_owners;
pub(crate) mod telemetry;

use tokio::time::Instant;

use crate::cache::SingleFlight;
use crate::call::Call;
use crate::model::error::Error;
use crate::model::outcome::Outcome;
use crate::model::target::Target;
use crate::pipeline::router::CallRouter;
use cache::CacheLookup;

/// Runs one call.
pub(crate) async fn run(router: &CallRouter, call: &mut Call) -> Result<Outcome, Error> {
    let (target, visible) = match router.find_target(&call.caller, &call.selector).await {
        Ok(found) => found,
        Err(error) => return Box::pin(router.run_fallback(call.clone(), error)).await,
    };
    call.trace.record(|facts| facts.target = Some(target.clone()));
    let decision = router.authorize(call, &target, Some(visible)).await?;
    call.trace.record(|facts| facts.decision = decision);
    router.check_arguments(call, &target)?;
    telemetry::record_server(&target.server);
    let mut call = router.limiter.admit(call, &target).await?;
    let outcome = match cache::look_up(router, &call, &target) {
        CacheLookup::Hit(outcome) => Ok(outcome),
        CacheLookup::Cacheable(cacheable) => Box::pin(cacheable.execute(router, &mut call, &target)).await,
        CacheLookup::Bypass => send_to_server(router, &mut call, &target, None).await,
    };
    let outcome =
        outcome.map(|outcome| public_names::with_public_names(outcome, &call, &target, &router.task_owners));
    call.commit(outcome)
}

/// Leases the server, which starts it if necessary, and sends the call. With a `flight`, identical calls wait for the
/// answer.
async fn send_to_server(
    router: &CallRouter,
    call: &mut Call,
    target: &Target,
    flight: Option<&SingleFlight>,
) -> Result<Outcome, Error> {
    let mut lease = router.registry.lease(&target.server, call).await?;
    let started = Instant::now();
    flight.into_iter().for_each(SingleFlight::mark_sent);
    let outcome = lease.send(call, &target.name, started).await;
    drop(lease);
    match outcome {
        Err(error) if retry::may_retry(router, &error, call, target) => {
            Box::pin(retry::retry(router, call, target, flight, error, started)).await
        }
        outcome => outcome,
    }
}
