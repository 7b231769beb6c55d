//! `Meter`: the quota in force, and the step of a call that asks whether there is any left.
//!
//! What a call takes is reserved before anything is waited for, spent when it is answered or may have reached its
//! server, and given back otherwise, also when whoever made it gives it up.

use std::num::NonZeroU32;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::accounts::{Accounts, Refusal, Saved, Standing};
use super::clients::{self, Clients};
use super::{Budget, Quota, memory};
use crate::call::{Call, Caller, Outcome};
use crate::catalog::Target;
use crate::class::Sent;
use crate::error::{Error, ErrorKind};
use crate::policy::Denial;

/// The quota in force, and what was used of it.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Whether there is anything to count; without, no call pays for it.
    counts: AtomicBool,
    /// Whether answers are weighed.
    weighs: AtomicBool,
    /// Identical calls that a client may make in a row; none is any number.
    identical: AtomicU32,
    books: Mutex<Books>,
    /// Rung when something was used, for whoever remembers it.
    used: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Books {
    quota: Quota,
    accounts: Accounts,
    clients: Clients,
}

/// A call that may go on.
#[derive(Debug)]
pub(crate) struct Admitted<'a> {
    call: &'a mut Call,
    meter: &'a Meter,
    taken: Option<Taken<'a>>,
}

/// What was taken for a call.
#[derive(Debug)]
struct Taken<'a> {
    target: &'a Target,
    /// When it is to be sent.
    sent: Instant,
}

impl Meter {
    /// A meter that goes on from what the file remembers.
    pub(crate) fn new(quota: Quota, file: Option<&Path>) -> Self {
        let meter = Self::default();
        if let Some(file) = file {
            let (saved, known) = memory::read(file);
            meter.books().accounts.restore(&quota, saved, known, Instant::now());
        }
        meter.replace(quota);
        meter
    }

    /// Hears when something was used.
    pub(crate) fn used(&self) -> Arc<Notify> {
        self.used.clone()
    }

    /// What was used of every quota.
    pub(crate) fn saved(&self) -> Vec<Saved> {
        self.books().accounts.saved(Instant::now())
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts another quota in force; what was used counts on.
    pub(crate) fn replace(&self, quota: Quota) {
        let mut books = self.books();
        self.counts.store(!quota.is_empty(), Ordering::Release);
        self.weighs.store(quota.results.is_some(), Ordering::Release);
        self.identical.store(quota.identical_calls.map_or(0, NonZeroU32::get), Ordering::Release);
        books.accounts.replace(&quota);
        books.quota = quota;
    }

    fn counts(&self) -> bool {
        self.counts.load(Ordering::Acquire)
    }

    /// Lets a call go on if there is room for it in everything that limits it, at once or when its turn comes.
    pub(crate) async fn admit<'a>(
        &'a self,
        call: &'a mut Call,
        target: &'a Target,
    ) -> Result<Admitted<'a>, Error> {
        // A call that goes out once more with what its server asked for is the same call.
        let counted =
            (self.counts() || call.budget.is_some()) && !call.left && !call.method.starts_with("tasks/");
        if !counted {
            return Ok(Admitted { call, meter: self, taken: None });
        }
        let now = Instant::now();
        let sent = self.reserve(call, target, now)?;
        let admitted = Admitted { call, meter: self, taken: Some(Taken { target, sent }) };
        if sent > now {
            Box::pin(sleep_until(sent)).await;
        }
        Ok(admitted)
    }

    /// Takes what a call needs, or nothing: when it may be sent.
    fn reserve(&self, call: &Call, target: &Target, now: Instant) -> Result<Instant, Error> {
        let Target { server, name } = target;
        let most =
            NonZeroU32::new(self.identical.load(Ordering::Acquire)).filter(|_| call.method == "tools/call");
        let arguments = || call.params.get("arguments").map(|raw| &**raw);
        let repeated = most.map(|most| (most, clients::digest(server.as_str(), name, arguments())));
        let mut books = self.books();
        let Books { quota, accounts, clients } = &mut *books;
        let client = call.client.key;
        if let Some(most) = quota.results
            && clients.got(client) >= most
        {
            return Err(had_enough(most, call, target));
        }
        if let Some((most, digest)) = repeated
            && let Some(wait) = clients.repeats(client, digest, most, now)
        {
            return Err(repeats(most.get(), wait, call, target));
        }
        let reserved = accounts.reserve(quota, &call.caller, target, call.timeout, now);
        let sent = reserved.map_err(|refusal| over(*refusal, call, target))?;
        if let Some(budget) = call.budget.as_ref().filter(|budget| !budget.take()) {
            accounts.give_back(&call.caller, target, sent);
            return Err(spent(budget, call, target));
        }
        self.used.notify_one();
        if quota.identical_calls.is_some() || quota.results.is_some() {
            clients.saw(client, repeated.map(|(_, digest)| digest), now);
        }
        Ok(sent)
    }

    fn give_back(&self, call: &Call, taken: &Taken<'_>) {
        if let Some(budget) = &call.budget {
            budget.give_back();
        }
        if self.counts() {
            self.books().accounts.give_back(&call.caller, taken.target, taken.sent);
            self.used.notify_one();
        }
    }

    /// Hands an answer out, if it is not more than its client may get.
    fn hand(&self, call: &Call, outcome: Outcome) -> Result<Outcome, Error> {
        let mut books = self.books();
        let Some(most) = books.quota.results else { return Ok(outcome) };
        let bytes = u64::try_from(outcome.raw().len()).unwrap_or(u64::MAX);
        books
            .clients
            .hand(call.client.key, bytes, most)
            .map(|()| outcome)
            .map_err(|left| too_large(bytes, left, most, call))
    }

    /// A client has left.
    pub(crate) fn forget(&self, client: u64) {
        if self.counts() {
            self.books().clients.forget(client);
        }
    }

    /// What is left to every caller that is known.
    pub(crate) fn standings(&self, now: Instant) -> Vec<Standing> {
        let mut books = self.books();
        let Books { quota, accounts, .. } = &mut *books;
        accounts.standings(quota, now)
    }
}

impl Admitted<'_> {
    /// The end of it: an answer costs what was taken, whoever knew it; what certainly never reached a server costs nothing.
    pub(crate) fn settle(mut self, outcome: Result<Outcome, Error>) -> Result<Outcome, Error> {
        match &outcome {
            Err(error) if error.sent() == Sent::Never => self.call.left = false,
            _ => self.taken = None,
        }
        match self.meter.weighs.load(Ordering::Acquire) {
            true => self.meter.hand(self.call, outcome?),
            false => outcome,
        }
    }
}

impl Deref for Admitted<'_> {
    type Target = Call;

    fn deref(&self) -> &Call {
        self.call
    }
}

impl DerefMut for Admitted<'_> {
    fn deref_mut(&mut self) -> &mut Call {
        self.call
    }
}

/// A call that is given up before it left takes nothing with it.
impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        if let Some(taken) = self.taken.take()
            && !self.call.left
        {
            self.meter.give_back(self.call, &taken);
        }
    }
}

/// A no, noted for whoever keeps a record; only whoever is on this machine learns where the rule is written.
fn refused(call: &Call, message: String, denial: Denial) -> Error {
    call.record.note(|met| met.denial = Some(denial.clone()));
    let Denial { rule, origin } = denial;
    let origin = origin.filter(|_| call.caller == Caller::local());
    Error::new(ErrorKind::OverQuota, message).denied_by(Denial { rule, origin })
}

fn over(refusal: Refusal, call: &Call, target: &Target) -> Error {
    let Refusal { name, limit, wait } = refusal;
    let rule = format!("`{name}` is {}", limit.share);
    let place = limit.origin.as_ref().filter(|_| call.caller == Caller::local());
    let place = place.map_or_else(String::new, |at| format!(" ({}:{})", at.file.display(), at.line));
    let (who, seconds) = (call.caller.as_str(), shown(wait));
    let message = format!(
        "`{who}` may not use `{}.{}` now: {rule}{place}; there is room again in {seconds}",
        target.server, target.name
    );
    let error = refused(call, message, Denial { rule, origin: limit.origin });
    error.at(&target.server).retry_in(wait).hint(format!("ask again in {seconds}"))
}

fn spent(budget: &Budget, call: &Call, target: &Target) -> Error {
    let rule = format!("the budget is {} calls", budget.whole());
    let message = format!("`{}.{}` is one call too many: {rule}", target.server, target.name);
    refused(call, message, Denial { rule, origin: None }).at(&target.server).hint("open a larger budget")
}

fn repeats(most: u32, wait: Duration, call: &Call, target: &Target) -> Error {
    let rule = format!("`limits.identical-calls` is {most}");
    let message = format!(
        "`{}` was called {most} times in a row with the same arguments, and is not called with them again: {rule}",
        target.name
    );
    let hint = "use the answer you have, change the arguments, or do something else first";
    let error = refused(call, message, Denial { rule, origin: None }).at(&target.server);
    error.retry_in(wait).hint(hint).for_model()
}

fn had_enough(most: u64, call: &Call, target: &Target) -> Error {
    let rule = format!("`limits.results` is {most} bytes");
    let message = format!(
        "you have had all the answers that one client gets, and `{}` was not called: {rule}",
        target.name
    );
    let error = refused(call, message, Denial { rule, origin: None }).at(&target.server);
    error.hint("go on with what you have, or begin a new session").for_model()
}

fn too_large(bytes: u64, left: u64, most: u64, call: &Call) -> Error {
    let rule = format!("`limits.results` is {most} bytes");
    let message =
        format!("the answer is left out: it has {bytes} bytes, and you get only {left} more: {rule}");
    let error = refused(call, message, Denial { rule, origin: None }).ran();
    error.hint("ask for less, or begin a new session").for_model()
}

/// A time for people: more than two minutes, or two hours, need no more than whole ones.
fn shown(wait: Duration) -> String {
    let tenths = wait.as_millis().div_ceil(100);
    match tenths {
        0..=1200 => format!("{}.{} s", tenths / 10, tenths % 10),
        1201..=72_000 => format!("{} min", tenths.div_ceil(600)),
        _ => format!("{} h", tenths.div_ceil(36_000)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_told_as_people_would() {
        for (milliseconds, told) in [
            (1, "0.1 s"),
            (40_000, "40.0 s"),
            (120_001, "3 min"),
            (3_599_700, "60 min"),
            (86_000_000, "24 h"),
        ] {
            assert_eq!(shown(Duration::from_millis(milliseconds)), told);
        }
    }
}
