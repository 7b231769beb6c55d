//! The steps of a call, in order: find, authorize, check arguments, reserve limits, cache, send.

mod cache;
pub(crate) mod discovery;
pub(crate) mod era_bridge;
#[cfg(feature = "http")]
pub(crate) mod in_band_login;
mod public_names;
mod refresh;
mod retry;
pub(crate) mod router;
pub(crate) mod subscription;
pub(crate) mod suspended_calls;
mod task_access;
mod task_owners;
pub(crate) mod telemetry;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::cache::SingleFlight;
use crate::call::Call;
use crate::catalog::Catalog;
use crate::model::error::{Error, ErrorKind};
use crate::model::outcome::Outcome;
use crate::model::target::Target;
use crate::pipeline::router::CallRouter;
use crate::protocol::era::input;
use crate::protocol::jsonrpc::ResponsePayload;
use crate::protocol::member_names;
use crate::protocol::versions::Era;
use crate::spec::ServerId;
use crate::supervisor::Lease;
use crate::upstream::deadline::Deadline;
use cache::CacheLookup;

/// A wait for the server that is shorter than this part of the time limit of a call does not count towards that limit.
const SHORT_WAIT_DIVISOR: u32 = 10;

/// The lease of a call that a stateless client repeats with answers: the instance that asked must get them.
#[derive(Debug, Default)]
pub(crate) struct KeptLease(Option<Box<Lease>>);

impl KeptLease {
    /// Creates the lease that the previous attempt of a call has kept.
    pub(crate) fn new(lease: Lease) -> Self {
        Self(Some(Box::new(lease)))
    }

    /// Returns the lease that the call has kept.
    pub(crate) fn into_inner(self) -> Option<Lease> {
        self.0.map(|lease| *lease)
    }

    /// Returns the lease of the previous attempt, unless it is on another server or its server has ended. The items that
    /// may be used are the current ones.
    fn take_open(&mut self, server: &ServerId) -> Option<Lease> {
        let mut lease = *self.0.take()?;
        let connection = lease.connection();
        if connection.server != *server || connection.is_closed() {
            return None;
        }
        lease.update_pinned_items();
        Some(lease)
    }

    /// Keeps the lease on an instance of one client if the outcome of its call asks for input, and releases it otherwise.
    /// After a failure, waits until the status of the server shows it.
    async fn keep_or_release(&mut self, lease: Lease, call: &Call, outcome: &Result<Outcome, Error>) {
        if outcome.is_err() {
            // Boxed to keep the future of a call small.
            Box::pin(lease.release_after_failure()).await;
        } else if call.client.era == Era::Stateless
            && lease.is_for_one_client()
            && outcome.as_ref().is_ok_and(requires_input)
        {
            self.0 = Some(Box::new(lease));
        } else {
            lease.release_after_call();
        }
    }
}

/// Returns whether an outcome asks a stateless client for input.
fn requires_input(outcome: &Outcome) -> bool {
    let ResponsePayload::Result(result) = &outcome.answer else { return false };
    outcome.era == Era::Stateless && matches!(input::parse_required_input(result), Ok(Some(_)))
}

/// Runs one call.
pub(crate) async fn run(router: &CallRouter, call: &mut Call) -> Result<Outcome, Error> {
    run_keeping_lease(router, call, &mut KeptLease::default()).await
}

/// Runs one call, on a lease that was kept for it if there is one. The lease is kept if the server asks for input and
/// another instance could not continue the call.
pub(crate) async fn run_keeping_lease(
    router: &CallRouter,
    call: &mut Call,
    kept: &mut KeptLease,
) -> Result<Outcome, Error> {
    let AuthorizedTarget { target, catalog } = match prepare(router, call).await? {
        PreparedCall::Authorized(authorized) => authorized,
        PreparedCall::Answered(outcome) => return Ok(outcome),
    };
    let mut call = router.limiter.admit(call, &target).await?;
    let outcome = match cache::look_up(router, &call, &target) {
        CacheLookup::Hit(outcome) => Ok(*outcome),
        CacheLookup::Cacheable(cacheable) => {
            Box::pin(cacheable.execute(router, &mut call, &target, kept)).await
        }
        CacheLookup::Bypass => send_to_server(router, &mut call, &target, None, kept).await,
    };
    let outcome = outcome.map(|outcome| match call.method() {
        "tasks/list" => router.with_own_tasks(outcome, &call, &target),
        _ => outcome,
    });
    let outcome = outcome.map(|outcome| {
        let outcome = public_names::with_public_names(outcome, &call, &target, &router.task_owners);
        public_names::with_public_uris(outcome, &call, &target, &catalog)
    });
    call.commit(outcome)
}

/// The target of a call that its caller may make.
struct AuthorizedTarget {
    target: Target,
    /// The catalog in which it was found.
    catalog: Arc<Catalog>,
}

/// A call that is checked, or answered without a server.
enum PreparedCall {
    Authorized(AuthorizedTarget),
    Answered(Outcome),
}

/// Finds the target of a call and checks whether the call may be made.
async fn prepare(router: &CallRouter, call: &mut Call) -> Result<PreparedCall, Error> {
    member_names::check_params(&call.params).map_err(|lookalike| {
        let error = Error::new(ErrorKind::BadArguments, lookalike.to_string());
        error.with_hint("remove the member, or spell it exactly as the protocol does")
    })?;
    let (target, visible) = match router.find_target(&call.caller, &call.selector, call.client.era).await {
        Ok(found) => found,
        Err(error) => match router.find_in_own_catalog(call) {
            Some(found) => found,
            None => {
                let outcome = Box::pin(router.run_fallback(call.clone(), error)).await?;
                return Ok(PreparedCall::Answered(outcome));
            }
        },
    };
    call.trace.record(|facts| facts.target = Some(target.clone()));
    router.check_task_owner(call, &target)?;
    let decision = router.authorize(call, &target, Some(&visible)).await?;
    call.trace.record(|facts| {
        facts.decision = decision;
        facts.decided = Some(Instant::now());
    });
    router.check_arguments(call, &target)?;
    telemetry::record_server(&target.server);
    Ok(PreparedCall::Authorized(AuthorizedTarget { target, catalog: visible.callable }))
}

/// Lets the person at the client log in if a call failed for lack of that, and makes the call again. Otherwise returns its
/// error.
#[cfg(feature = "http")]
pub(crate) async fn run_after_login(
    router: &CallRouter,
    call: &mut Call,
    kept: &mut KeptLease,
    error: Error,
) -> Result<Outcome, Error> {
    match &router.in_band_logins {
        Some(logins) if logins.log_in(router, call, &error).await => {
            run_keeping_lease(router, call, kept).await
        }
        _ => Err(error),
    }
}

/// Returns the error of a call: only remote servers need logins.
#[cfg(not(feature = "http"))]
pub(crate) async fn run_after_login(
    _: &CallRouter,
    _: &mut Call,
    _: &mut KeptLease,
    error: Error,
) -> Result<Outcome, Error> {
    Err(error)
}

/// Leases the server, which starts it if necessary, and sends the call. With a `flight`, identical calls wait for the
/// answer.
async fn send_to_server(
    router: &CallRouter,
    call: &mut Call,
    target: &Target,
    flight: Option<&SingleFlight>,
    kept: &mut KeptLease,
) -> Result<Outcome, Error> {
    let TimedLease { mut lease, started, is_late } = lease(router, call, target, kept).await?;
    call.sent_late |= is_late;
    flight.into_iter().for_each(SingleFlight::mark_sent);
    let outcome = lease.send(call, &target.name, started).await;
    kept.keep_or_release(lease, call, &outcome).await;
    match outcome {
        Err(error) if retry::may_retry(router, &error, call, target) => {
            Box::pin(retry::retry(router, call, target, flight, kept, error, started)).await
        }
        outcome => outcome,
    }
}

/// A lease for one call, and the moment from which the time limit of the call counts.
struct TimedLease {
    lease: Lease,
    started: Instant,
    /// True if the server has less than the whole time limit.
    is_late: bool,
}

impl TimedLease {
    fn new(lease: Lease, started: Instant) -> Self {
        Self { lease, started, is_late: false }
    }
}

/// Returns the kept lease of a call, or leases its server.
async fn lease(
    router: &CallRouter,
    call: &Call,
    target: &Target,
    kept: &mut KeptLease,
) -> Result<TimedLease, Error> {
    let ready = || router.registry.try_lease(&target.server, call.client.era);
    match kept.take_open(&target.server).or_else(ready) {
        Some(lease) => Ok(TimedLease::new(lease, Instant::now())),
        // Boxed to keep the future of a call to a ready server small.
        None => Box::pin(lease_in_time(router, call, target)).await,
    }
}

/// Leases the server of a call. Waiting for a server that crashed, is being restarted or is asleep counts towards the time
/// limit of the call. Only a server that was never ready may take its start timeout in addition.
async fn lease_in_time(router: &CallRouter, call: &Call, target: &Target) -> Result<TimedLease, Error> {
    let requested = Instant::now();
    let mut leasing = std::pin::pin!(router.registry.lease(&target.server, call));
    if let Some(leased) = poll_twice(leasing.as_mut()).await {
        return leased.map(|lease| TimedLease::new(lease, requested));
    }
    let Some(Ok(entry)) = router.registry.get(&target.server) else {
        return leasing.await.map(|lease| TimedLease::new(lease, requested));
    };
    let spec = entry.spec();
    let start_time = if entry.has_been_ready() { Duration::ZERO } else { spec.lifecycle.start_timeout };
    let latest_start = requested + start_time;
    let deadline = Deadline::new(&spec.limits, &spec.tools, &target.name, latest_start);
    match Box::pin(timeout_at(deadline.initial(), leasing)).await {
        Ok(Ok(lease)) => {
            let now = Instant::now();
            call.trace.record(|facts| facts.timing.start += now - requested);
            let limit = deadline.initial().duration_since(latest_start);
            // A short wait, such as for the answer to a ping, is added to the time limit, so that a timeout counts.
            if now.saturating_duration_since(latest_start) <= limit / SHORT_WAIT_DIVISOR {
                return Ok(TimedLease::new(lease, now));
            }
            Ok(TimedLease { lease, started: latest_start, is_late: true })
        }
        Ok(Err(error)) => Err(error),
        Err(_) => Err(deadline.not_ready_error(&target.server)),
    }
}

/// Polls a future once, and again after other tasks had their turn. A running server answers in between, so that its calls
/// need no timer.
async fn poll_twice<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    let mut is_second = false;
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if is_second => Poll::Ready(None),
        Poll::Pending => {
            is_second = true;
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_future<'a, F: Future>(_: impl FnOnce(&'a CallRouter, &'a mut Call) -> F) -> usize {
        size_of::<F>()
    }

    /// Larger allocations leave the thread's cache of glibc: 500 instructions of 48,000.
    #[test]
    fn future_of_a_call_is_small() {
        assert!(size_of_future(run) <= 1032);
    }
}
