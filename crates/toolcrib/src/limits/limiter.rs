//! `Limiter`: the limits in force, and the pipeline step that applies them.
//!
//! Usage is reserved before anything is sent, and with a store in memory before anything is awaited. It is committed when
//! the call is answered or may have reached its server, and released otherwise, also when the call is dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::TaskTracker;

use super::client_activity::{self, ClientActivity};
use super::in_flight_limits::InFlightLimits;
use super::pending_admission::PendingAdmission;
use super::{CountedLimits, LimitKind, UsageLimits, errors};
use crate::call::Call;
use crate::model::caller::{AGENT_PREFIX, Caller};
use crate::model::error::Error;
use crate::model::failure_class::Delivery;
use crate::model::outcome::Outcome;
use crate::model::target::Target;
use crate::store::{
    Admission, CounterUsage, LimitRequest, ReservationToken, Store, StoreError, StoreReply, UsageRelease,
};
use crate::util::locks::IgnorePoison as _;

/// The limits in force. The usage so far is in the store.
#[derive(Debug)]
pub(crate) struct Limiter {
    /// Whether there are any limits. Without limits a call does not take the lock.
    has_limits: AtomicBool,
    limits_results: AtomicBool,
    limits_identical_calls: AtomicBool,
    limits_in_flight: AtomicBool,
    state: Mutex<LimiterState>,
    store: Arc<dyn Store>,
    /// Owns the operations of the store that no call waits for.
    tasks: TaskTracker,
}

#[derive(Debug, Default)]
struct LimiterState {
    limits: Arc<CountedLimits>,
    result_bytes: Option<u64>,
    identical_calls: Option<NonZeroU32>,
    clients: ClientActivity,
    in_flight: InFlightLimits,
    /// Callers whose calls matched no limit. The store does not know them, and the status shows them.
    uncounted_callers: BTreeSet<String>,
    /// Callers that are in groups, by name. The store knows only names, and the status shows the limits of groups.
    group_members: BTreeMap<String, Caller>,
}

/// Longest wait for the other calls of the same caller, unless the call has a timeout of its own.
const MAX_TURN_WAIT: Duration = Duration::from_secs(60);

/// Callers without counted calls that are remembered for the status.
const MAX_UNCOUNTED_CALLERS: usize = 1000;

/// Members of groups that are remembered for the status.
const MAX_GROUP_MEMBERS: usize = 1000;

/// A call that was admitted, with the usage reserved for it. Dropping it releases the usage unless the call was
/// dispatched.
#[derive(Debug)]
pub(crate) struct Reservation<'a> {
    call: &'a mut Call,
    target: &'a Target,
    limiter: &'a Limiter,
    reserved: Option<ReservedUsage>,
    /// The place among the caller's calls in flight, if their number is limited.
    in_flight: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
struct ReservedUsage {
    send_at: Instant,
    /// Absent if the store did not answer and the call is allowed nevertheless.
    token: Option<ReservationToken>,
}

/// A reservation that is made, or waits for the store.
enum ReserveStep {
    Reserved(ReservedUsage),
    Pending(PendingAdmission),
}

/// A call that is being admitted.
#[derive(Clone, Copy)]
struct AdmittedCall<'a> {
    call: &'a Call,
    target: &'a Target,
    /// Digest of a tool call, if identical calls are limited.
    digest: Option<u64>,
    now: Instant,
}

/// The status of one limit of one caller.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitStatus {
    /// The caller.
    pub caller: Caller,
    /// The config key that sets the limit.
    pub limit: String,
    /// The number of calls and the period.
    pub kind: LimitKind,
    /// Calls that can be made now.
    pub remaining: u32,
    /// Time until a call can be made, if none can be made now.
    pub available_in: Option<Duration>,
}

impl Limiter {
    /// Creates a limiter that counts in `store`; `tasks` owns its background work.
    pub(crate) fn new(limits: UsageLimits, store: Arc<dyn Store>, tasks: TaskTracker) -> Self {
        let limiter = Self {
            has_limits: AtomicBool::new(false),
            limits_results: AtomicBool::new(false),
            limits_identical_calls: AtomicBool::new(false),
            limits_in_flight: AtomicBool::new(false),
            state: Mutex::default(),
            store,
            tasks,
        };
        limiter.set_limits(limits);
        limiter
    }

    fn lock(&self) -> MutexGuard<'_, LimiterState> {
        self.state.lock().ignore_poison()
    }

    /// Replaces the limits. Usage of limits that count the same calls is kept.
    pub(crate) fn set_limits(&self, limits: UsageLimits) {
        let mut state = self.lock();
        self.has_limits.store(!limits.is_empty(), Ordering::Release);
        self.limits_results.store(limits.result_bytes.is_some(), Ordering::Release);
        self.limits_identical_calls.store(limits.identical_calls.is_some(), Ordering::Release);
        state.in_flight = state.in_flight.replace(&limits.callers_in_flight, limits.groups_in_flight.clone());
        self.limits_in_flight.store(!state.in_flight.is_empty(), Ordering::Release);
        state.result_bytes = limits.result_bytes;
        state.identical_calls = limits.identical_calls;
        let current = Arc::new(CountedLimits::new(limits));
        let previous = std::mem::replace(&mut state.limits, current.clone());
        drop(state);
        self.clear_removed(previous, current);
    }

    /// Drops the usage of limits that no longer exist.
    fn clear_removed(&self, previous: Arc<CountedLimits>, current: Arc<CountedLimits>) {
        if previous.is_empty() {
            return;
        }
        let store = self.store.clone();
        let tasks = self.tasks.clone();
        self.store.callers().finish(&self.tasks, move |callers| {
            for caller in callers.unwrap_or_default() {
                let removed = previous.missing_in(&current, caller.as_str());
                if !removed.is_empty() {
                    store.clear_usage(&caller, &removed).finish(&tasks, drop);
                }
            }
        });
    }

    pub(crate) fn has_limits(&self) -> bool {
        self.has_limits.load(Ordering::Acquire)
    }

    /// Returns whether any limit applies to the caller of a call, to its client or to the call.
    pub(crate) fn has_limits_for(&self, call: &Call) -> bool {
        if call.budget.is_some() {
            return true;
        }
        if !self.has_limits() {
            return false;
        }
        let state = self.lock();
        state.result_bytes.is_some()
            || state.in_flight.has_limit(&call.caller)
            || !state.limits.all(&call.caller).is_empty()
    }

    /// Reserves usage for a call, and waits if a rate limit delays it.
    pub(crate) async fn admit<'a>(
        &'a self,
        call: &'a mut Call,
        target: &'a Target,
    ) -> Result<Reservation<'a>, Error> {
        // A call that is sent again with the input its server asked for counts once.
        let is_counted = (self.has_limits() || call.budget.is_some())
            && !call.dispatched
            && !call.method.starts_with("tasks/");
        if !is_counted {
            return Ok(Reservation { call, target, limiter: self, reserved: None, in_flight: None });
        }
        let now = Instant::now();
        let reserved = match self.reserve(call, target, now)? {
            ReserveStep::Reserved(reserved) => reserved,
            // Boxed to keep the future of an ordinary call small.
            ReserveStep::Pending(pending) => Box::pin(self.wait_for_store(call, target, pending)).await?,
        };
        let send_at = reserved.send_at;
        let mut reservation =
            Reservation { call, target, limiter: self, reserved: Some(reserved), in_flight: None };
        if send_at > now {
            Box::pin(sleep_until(send_at)).await;
        }
        if self.limits_in_flight.load(Ordering::Acquire) {
            reservation.in_flight = Box::pin(self.wait_for_turn(reservation.call, target)).await?;
        }
        Ok(reservation)
    }

    /// Waits until the caller has fewer calls in flight than its limit, if it has one.
    async fn wait_for_turn(
        &self,
        call: &Call,
        target: &Target,
    ) -> Result<Option<OwnedSemaphorePermit>, Error> {
        let Some(calls) = self.lock().in_flight.of_caller(&call.caller) else { return Ok(None) };
        let max_wait = call.timeout.unwrap_or(MAX_TURN_WAIT);
        match timeout(max_wait, calls.acquire()).await {
            Ok(Some(turn)) => Ok(Some(turn)),
            Ok(None) | Err(_) => Err(errors::in_flight_error(calls.limit.get(), call, target)),
        }
    }

    /// Reserves usage in every limit, or in none.
    fn reserve(&self, call: &Call, target: &Target, now: Instant) -> Result<ReserveStep, Error> {
        // The digest is computed without the lock.
        let admitted = AdmittedCall { call, target, digest: self.call_digest(call, target), now };
        let mut state = self.lock();
        state.check_client(admitted)?;
        state.remember_groups(&call.caller);
        let counters = state.limits.matching(&call.caller, target);
        let admission = if counters.is_empty() {
            state.remember_uncounted(call.caller.as_str());
            Ok(Admission::Admitted { delay: Duration::ZERO, token: ReservationToken::default() })
        } else {
            let caller = &call.caller.owner();
            let request = LimitRequest { caller, counters, max_wait: call.timeout, now };
            match self.store.reserve(&request) {
                StoreReply::Ready(admission) => admission,
                StoreReply::Pending(reply) => {
                    let pending =
                        PendingAdmission::new(reply, &request, self.store.clone(), self.tasks.clone());
                    return Ok(ReserveStep::Pending(pending));
                }
            }
        };
        self.accept(&mut state, admitted, admission).map(ReserveStep::Reserved)
    }

    /// Waits for a reservation that the store makes later.
    async fn wait_for_store(
        &self,
        call: &Call,
        target: &Target,
        pending: PendingAdmission,
    ) -> Result<ReservedUsage, Error> {
        let admission = pending.wait().await;
        let digest = self.call_digest(call, target);
        let admitted = AdmittedCall { call, target, digest, now: Instant::now() };
        let mut state = self.lock();
        // Another call of the client may have been admitted in the meantime.
        if let Err(error) = state.check_client(admitted) {
            if let Ok(Admission::Admitted { token, .. }) = admission {
                self.release_usage(&state.limits, call, target, token);
            }
            return Err(error);
        }
        self.accept(&mut state, admitted, admission)
    }

    /// Takes the call out of its budget and records it, or returns the error of a refused call.
    fn accept(
        &self,
        state: &mut LimiterState,
        admitted: AdmittedCall<'_>,
        admission: Result<Admission, StoreError>,
    ) -> Result<ReservedUsage, Error> {
        let AdmittedCall { call, target, digest, now } = admitted;
        let reserved = match admission {
            Ok(Admission::Admitted { delay, token }) => {
                ReservedUsage { send_at: now + delay, token: Some(token) }
            }
            Err(_) if state.limits.allow_uncounted(&call.caller, target) => {
                ReservedUsage { send_at: now, token: None }
            }
            Err(error) => return Err(errors::store_error(&error, target)),
            Ok(Admission::Refused(refusal)) => {
                let origin = state.limits.find_origin(&call.caller, &refusal.counter).cloned();
                return Err(errors::limit_error(&refusal, origin, call, target));
            }
        };
        if let Some(budget) = call.budget.as_ref().filter(|budget| !budget.take()) {
            if let Some(token) = reserved.token {
                self.release_usage(&state.limits, call, target, token);
            }
            return Err(errors::budget_error(budget, call, target));
        }
        if state.identical_calls.is_some() || state.result_bytes.is_some() {
            state.clients.record_call(call.client.key, digest, now);
        }
        Ok(reserved)
    }

    fn call_digest(&self, call: &Call, target: &Target) -> Option<u64> {
        let is_compared = self.limits_identical_calls.load(Ordering::Acquire) && call.method == "tools/call";
        is_compared.then(|| {
            let arguments = call.params.get("arguments").map(|raw| &**raw);
            client_activity::call_digest(target.server.as_str(), &target.name, arguments)
        })
    }

    fn release(&self, call: &Call, target: &Target, reserved: &ReservedUsage) {
        if let Some(budget) = &call.budget {
            budget.release();
        }
        if let Some(token) = reserved.token.filter(|_| self.has_limits()) {
            self.release_usage(&self.lock().limits, call, target, token);
        }
    }

    fn release_usage(&self, limits: &CountedLimits, call: &Call, target: &Target, token: ReservationToken) {
        let counters = limits.matching(&call.caller, target);
        if !counters.is_empty() {
            let release = UsageRelease { caller: &call.caller.owner(), counters, token };
            self.store.release(&release).finish(&self.tasks, drop);
        }
    }

    /// Returns the outcome if its bytes are within the client's limit.
    fn check_result(&self, call: &Call, outcome: Outcome) -> Result<Outcome, Error> {
        let mut state = self.lock();
        let Some(max_bytes) = state.result_bytes else { return Ok(outcome) };
        let bytes = u64::try_from(outcome.raw().len()).unwrap_or(u64::MAX);
        match state.clients.add_result(call.client.key, bytes, max_bytes) {
            Ok(()) => Ok(outcome),
            Err(remaining) => Err(errors::result_too_large_error(bytes, remaining, max_bytes, call)),
        }
    }

    /// Drops the records of a client that has disconnected.
    pub(crate) fn forget_client(&self, client: u64) {
        if self.has_limits() {
            self.lock().clients.forget(client);
        }
    }

    /// Returns the status of every limit of every known caller, ordered by caller. Leaves out what the store cannot tell.
    pub(crate) async fn status(&self) -> Vec<LimitStatus> {
        let (limits, uncounted, members) = {
            let state = self.lock();
            (state.limits.clone(), state.uncounted_callers.clone(), state.group_members.clone())
        };
        let seen = or_warn(self.store.callers().wait().await);
        let seen = seen.iter().map(Caller::as_str).chain(uncounted.iter().map(String::as_str));
        let names: BTreeSet<&str> = limits.callers().chain(seen).collect();
        let mut all = Vec::new();
        for name in names {
            let by_name = || name.strip_prefix(AGENT_PREFIX).map_or_else(|| Caller::new(name), Caller::agent);
            let caller = members.get(name).cloned().unwrap_or_else(by_name);
            let counters = limits.all(&caller);
            if counters.is_empty() {
                continue;
            }
            let usage = or_warn(self.store.usage(&caller.owner(), &counters, Instant::now()).wait().await);
            for (counter, CounterUsage { used, wait }) in counters.iter().zip(usage) {
                all.push(LimitStatus {
                    caller: caller.clone(),
                    limit: counter.name.to_string(),
                    kind: counter.kind,
                    remaining: counter.kind.calls().get().saturating_sub(used),
                    available_in: (!wait.is_zero()).then_some(wait),
                });
            }
        }
        all
    }
}

fn or_warn<T: Default>(reply: Result<T, StoreError>) -> T {
    reply.unwrap_or_else(|error| {
        tracing::warn!("cannot read the usage of limits: {error}");
        T::default()
    })
}

impl LimiterState {
    fn remember_uncounted(&mut self, caller: &str) {
        let is_full = self.uncounted_callers.len() >= MAX_UNCOUNTED_CALLERS;
        if !is_full && !self.uncounted_callers.contains(caller) {
            self.uncounted_callers.insert(caller.to_owned());
        }
    }

    fn remember_groups(&mut self, caller: &Caller) {
        if caller.groups().is_empty() {
            return;
        }
        let known = self.group_members.get(caller.as_str());
        let is_full = known.is_none() && self.group_members.len() >= MAX_GROUP_MEMBERS;
        if !is_full && known.is_none_or(|known| known.groups() != caller.groups()) {
            self.group_members.insert(caller.as_str().to_owned(), caller.clone());
        }
    }

    /// Checks the limits of the client.
    fn check_client(&self, admitted: AdmittedCall<'_>) -> Result<(), Error> {
        let AdmittedCall { call, target, digest, now } = admitted;
        let client = call.client.key;
        if let Some(max_bytes) = self.result_bytes
            && self.clients.result_bytes(client) >= max_bytes
        {
            return Err(errors::results_used_up_error(max_bytes, call, target));
        }
        if let Some(max_identical) = self.identical_calls
            && let Some(digest) = digest
            && let Some(wait) = self.clients.repeat_wait(client, digest, max_identical, now)
        {
            return Err(errors::repeated_call_error(max_identical.get(), wait, call, target));
        }
        Ok(())
    }
}

impl Reservation<'_> {
    /// Settles the usage: an answer counts, also a cached one; a call that never reached a server does not.
    pub(crate) fn commit(mut self, outcome: Result<Outcome, Error>) -> Result<Outcome, Error> {
        match &outcome {
            Err(error) if error.delivery() == Delivery::NotSent => self.call.dispatched = false,
            _ => self.reserved = None,
        }
        match self.limiter.limits_results.load(Ordering::Acquire) {
            true => self.limiter.check_result(self.call, outcome?),
            false => outcome,
        }
    }
}

impl Deref for Reservation<'_> {
    type Target = Call;

    fn deref(&self) -> &Call {
        self.call
    }
}

impl DerefMut for Reservation<'_> {
    fn deref_mut(&mut self) -> &mut Call {
        self.call
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if let Some(reserved) = self.reserved.take()
            && !self.call.dispatched
        {
            self.limiter.release(self.call, self.target, &reserved);
        }
    }
}

#[cfg(test)]
mod tests;
