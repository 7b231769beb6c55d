//! `Leases`: calls that are reserved in the store together and used one after the other, without a round trip for each.
//!
//! A lease belongs to one caller and the counters of one kind of call. It is valid for [`LEASE_TIME`]; what is left of it then goes
//! back to the store. One reservation at a time fills a lease, and the calls that arrive meanwhile wait for it.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use toolcrib::store::{Admission, CounterList, LimitCounter, LimitRequest, ReservationToken, StoreError};
use toolcrib::util::locks::IgnorePoison as _;

use crate::command::{Keys, StoreCommand};
use crate::operation::StoreOperation;
use crate::resp::Reply;
use crate::usage::{self, Reserved};

/// How long reserved calls can be used.
const LEASE_TIME: Duration = Duration::from_secs(1);

/// Reserved calls of all callers.
#[derive(Debug)]
pub(crate) struct Leases {
    callers: Mutex<HashMap<String, Vec<LimitLease>>>,
    /// Calls that are reserved at once.
    size: NonZeroU32,
    keys: Keys,
    operations: mpsc::WeakSender<StoreOperation>,
}

#[derive(Debug)]
struct LimitLease {
    counters: Vec<LimitCounter>,
    /// Reserved calls that were not used.
    left: u32,
    token: ReservationToken,
    taken_at: Instant,
    /// Calls that wait for the reservation that is being made.
    waiting: VecDeque<LeaseWaiter>,
    is_filling: bool,
}

#[derive(Debug)]
struct LeaseWaiter {
    max_wait: Option<Duration>,
    reply: oneshot::Sender<Result<Admission, StoreError>>,
}

/// The admission of one call.
pub(crate) enum LeasedCall {
    Admitted(Admission),
    Waiting(oneshot::Receiver<Result<Admission, StoreError>>),
}

/// The reply to the reservation of a lease.
struct FilledLease<'a> {
    counters: CounterList<'a>,
    /// The longest wait that the reservation allowed.
    max_wait: Option<Duration>,
    reserved: Result<Reserved, StoreError>,
}

impl LimitLease {
    fn new(counters: &CounterList<'_>) -> Self {
        Self {
            counters: counters.iter().cloned().collect(),
            left: 0,
            token: ReservationToken::default(),
            taken_at: Instant::now(),
            waiting: VecDeque::new(),
            is_filling: false,
        }
    }

    fn is_for(&self, counters: &CounterList<'_>) -> bool {
        let mut own = self.counters.iter();
        let is_same = counters.iter().all(|counter| own.next() == Some(counter));
        is_same && own.next().is_none()
    }

    fn is_expired(&self, now: Instant) -> bool {
        now.duration_since(self.taken_at) >= LEASE_TIME
    }

    /// Uses a reserved call, if there is one.
    fn take(&mut self, now: Instant) -> Option<Admission> {
        if self.left == 0 || self.is_expired(now) {
            return None;
        }
        self.left -= 1;
        Some(Admission::Admitted { delay: Duration::ZERO, token: self.token })
    }

    /// Passes reserved calls to those that wait. A call that is no longer awaited leaves its place to the next.
    fn serve_waiting(&mut self, admission: &Admission) {
        while self.left > 0
            && let Some(waiter) = self.waiting.pop_front()
        {
            if waiter.reply.send(Ok(admission.clone())).is_ok() {
                self.left -= 1;
            }
        }
    }

    fn fail_waiting(&mut self, error: &StoreError) {
        for waiter in self.waiting.drain(..) {
            // Fails if the call is no longer awaited.
            let _ = waiter.reply.send(Err(error.clone()));
        }
    }

    /// Refuses the calls that can wait no longer than the one that was refused.
    fn refuse_waiting(&mut self, refusal: &Admission, max_wait: Option<Duration>) {
        let max_wait = max_wait.unwrap_or(Duration::MAX);
        for waiter in std::mem::take(&mut self.waiting) {
            match waiter.max_wait.unwrap_or(Duration::MAX) <= max_wait {
                true => drop(waiter.reply.send(Ok(refusal.clone()))),
                false => self.waiting.push_back(waiter),
            }
        }
    }
}

impl Leases {
    pub(crate) fn new(size: NonZeroU32, keys: Keys, operations: mpsc::WeakSender<StoreOperation>) -> Self {
        Self { callers: Mutex::default(), size, keys, operations }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Vec<LimitLease>>> {
        self.callers.lock().ignore_poison()
    }

    /// Admits a call with what is reserved, or reserves more.
    pub(crate) fn reserve(self: &Arc<Self>, request: &LimitRequest<'_>) -> LeasedCall {
        let now = Instant::now();
        let mut callers = self.lock();
        let leases = match callers.get_mut(request.caller.as_str()) {
            Some(leases) => leases,
            None => callers.entry(request.caller.as_str().to_owned()).or_default(),
        };
        let known = leases.iter().position(|lease| lease.is_for(&request.counters));
        let index = known.unwrap_or(leases.len());
        if known.is_none() {
            leases.push(LimitLease::new(&request.counters));
        }
        let lease = &mut leases[index];
        if let Some(admission) = lease.take(now) {
            return LeasedCall::Admitted(admission);
        }
        let (reply, receiver) = oneshot::channel();
        lease.waiting.push_back(LeaseWaiter { max_wait: request.max_wait, reply });
        if !lease.is_filling {
            self.give_back(request.caller.as_str(), lease);
            self.fill(request.caller.as_str(), lease);
        }
        LeasedCall::Waiting(receiver)
    }

    /// Starts a reservation for a lease.
    fn fill(self: &Arc<Self>, caller: &str, lease: &mut LimitLease) {
        let waiting = u32::try_from(lease.waiting.len()).unwrap_or(u32::MAX);
        let max_wait = lease.waiting.front().and_then(|waiter| waiter.max_wait);
        let counters: CounterList<'_> = lease.counters.iter().collect();
        let command = usage::reserve(&self.keys, caller, &counters, max_wait, waiting.max(self.size.get()));
        lease.is_filling = true;
        let leases = self.clone();
        let counters = lease.counters.clone();
        let owner = caller.to_owned();
        let filled = move |reply: Result<Reply, StoreError>| {
            let reserved = reply.and_then(|reply| usage::parse_reserved(&reply, &counters));
            let filled = FilledLease { counters: counters.iter().collect(), max_wait, reserved };
            leases.finish_fill(&owner, filled);
        };
        if let Err(error) = self.send(StoreOperation::new(command, filled)) {
            lease.is_filling = false;
            lease.fail_waiting(&error);
        }
    }

    fn send(&self, operation: StoreOperation) -> Result<(), StoreError> {
        let operations = self.operations.upgrade().ok_or_else(|| StoreError::new("the store was closed"))?;
        operations.try_send(operation).map_err(|_| StoreError::new("too many operations wait for the store"))
    }

    /// Distributes what was reserved.
    fn finish_fill(self: &Arc<Self>, caller: &str, filled: FilledLease<'_>) {
        let mut callers = self.lock();
        let mut leases = callers.get_mut(caller).into_iter().flatten();
        let Some(lease) = leases.find(|lease| lease.is_for(&filled.counters)) else { return };
        lease.is_filling = false;
        match filled.reserved {
            Ok(Reserved { admission: Admission::Admitted { delay, token }, calls }) => {
                lease.left = calls;
                lease.token = token;
                lease.taken_at = Instant::now();
                lease.serve_waiting(&Admission::Admitted { delay, token });
                if !delay.is_zero() {
                    // Later calls must not be sent before the delay has passed.
                    self.give_back(caller, lease);
                }
            }
            Ok(Reserved { admission: refusal, .. }) => lease.refuse_waiting(&refusal, filled.max_wait),
            Err(error) => lease.fail_waiting(&error),
        }
        if !lease.waiting.is_empty() {
            self.fill(caller, lease);
        }
    }

    /// Returns what is left of a lease to the store.
    fn give_back(&self, caller: &str, lease: &mut LimitLease) {
        let left = std::mem::take(&mut lease.left);
        if left > 0 {
            let counters = lease.counters.iter().collect();
            let command = usage::release(&self.keys, caller, &counters, lease.token, left);
            // A call that cannot be released counts until its period ends.
            let _ = self.send(StoreOperation::new(command, drop));
        }
    }

    /// Releases a call into its lease. Returns whether it has one.
    pub(crate) fn release(&self, caller: &str, counters: &CounterList<'_>, token: ReservationToken) -> bool {
        let now = Instant::now();
        let mut callers = self.lock();
        let leases = callers.get_mut(caller).into_iter().flatten();
        let mut valid = leases.filter(|lease| lease.token == token && !lease.is_expired(now));
        match valid.find(|lease| lease.is_for(counters)) {
            Some(lease) => {
                lease.left += 1;
                true
            }
            None => false,
        }
    }

    /// Drops the leases that contain any of these counters.
    pub(crate) fn forget(&self, caller: &str, counters: &CounterList<'_>) {
        if let Some(leases) = self.lock().get_mut(caller) {
            let is_removed = |own: &LimitCounter| counters.iter().any(|removed| removed.is_same(own));
            leases.retain(|lease| lease.is_filling || !lease.counters.iter().any(is_removed));
        }
    }

    /// Removes expired leases. Returns the commands that release what is left of them.
    pub(crate) fn take_expired(&self) -> Vec<StoreCommand> {
        let now = Instant::now();
        let mut releases = Vec::new();
        self.lock().retain(|caller, leases| {
            leases.retain(|lease| {
                let is_kept = lease.is_filling || !lease.is_expired(now);
                if !is_kept && lease.left > 0 {
                    let counters = lease.counters.iter().collect();
                    releases.push(usage::release(&self.keys, caller, &counters, lease.token, lease.left));
                }
                is_kept
            });
            !leases.is_empty()
        });
        releases
    }
}
