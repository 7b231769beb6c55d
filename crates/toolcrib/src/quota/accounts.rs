//! `Accounts`: what each caller has used of each of its limits. Pure: takes `now`.

use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use super::bucket::Bucket;
use super::window::Window;
use super::{Limit, Owner, Quota, Share};
use crate::call::Caller;
use crate::catalog::Target;

/// Callers that are remembered before those are looked for who have used nothing lately.
const MANY: usize = 1000;

/// The part of a quota that counts as used if nobody knows what was used last.
const MARGIN: u32 = 64;

/// What each caller has used.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    by_caller: HashMap<Caller, Vec<Account>>,
    /// With so many callers those are forgotten who have used nothing lately.
    full: usize,
}

/// What one caller has used of one limit.
#[derive(Debug, Clone)]
struct Account {
    limit: Limit,
    everyone: bool,
    used: Used,
}

#[derive(Debug, Clone)]
enum Used {
    Window(Window),
    Bucket(Bucket),
}

/// A limit that has no room for a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) name: String,
    pub(super) limit: Limit,
    /// How long it is until there is room.
    pub(super) wait: Duration,
}

/// What is left of one limit of one caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Whose.
    pub caller: Caller,
    /// The key that sets the limit.
    pub name: String,
    /// How much it is.
    pub share: Share,
    /// Calls that can be made now.
    pub left: u32,
    /// How long it is until there is room for one, if there is none.
    pub room_in: Option<Duration>,
}

/// What was used of one limit of one caller: how long ago the first and the last of some calls were made, and how many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Saved {
    pub(super) caller: String,
    pub(super) limit: String,
    pub(super) parts: Vec<(Duration, Duration, u32)>,
}

impl Account {
    fn new(everyone: bool, limit: &Limit) -> Self {
        let used = match limit.share {
            Share::Quota { .. } => Used::Window(Window::default()),
            Share::Rate { .. } => Used::Bucket(Bucket::default()),
        };
        Self { limit: limit.clone(), everyone, used }
    }

    fn concerns(&self, target: &Target) -> bool {
        self.limit.what.matches(&target.server, &target.name)
    }

    fn wait(&mut self, now: Instant) -> Duration {
        let (most, per) = self.limit.share.measure();
        match &mut self.used {
            Used::Window(window) => window.wait(most, per, now),
            Used::Bucket(bucket) => bucket.wait(most, per, now),
        }
    }

    /// How long a call may wait for its turn.
    fn patience(&self) -> Duration {
        match self.limit.share {
            Share::Quota { .. } => Duration::ZERO,
            Share::Rate { wait, .. } => wait,
        }
    }

    /// One more, made now and sent then.
    fn take(&mut self, now: Instant, sent: Instant) {
        let (most, per) = self.limit.share.measure();
        match &mut self.used {
            Used::Window(window) => window.take(per, sent),
            Used::Bucket(bucket) => bucket.take(most, per, now),
        }
    }

    fn give_back(&mut self, sent: Instant) {
        let (most, per) = self.limit.share.measure();
        match &mut self.used {
            Used::Window(window) => window.give_back(sent),
            Used::Bucket(bucket) => bucket.give_back(most, per),
        }
    }

    fn used(&mut self, now: Instant) -> u32 {
        let (most, per) = self.limit.share.measure();
        match &mut self.used {
            Used::Window(window) => window.used(per, now),
            Used::Bucket(bucket) => bucket.used(most, per, now),
        }
    }

    /// Whether both count the same, however much of it.
    fn counts_as(&self, other: &Self) -> bool {
        let key = |account: &Self| (account.everyone, account.limit.share.key());
        key(self) == key(other) && self.limit.what.to_string() == other.limit.what.to_string()
    }

    fn name(&self, caller: &Caller) -> String {
        self.limit.name(if self.everyone { Owner::Everyone } else { Owner::Caller(caller.as_str()) })
    }
}

fn opened(quota: &Quota, caller: &Caller) -> Vec<Account> {
    quota.of(caller.as_str()).map(|(owner, limit)| Account::new(owner == Owner::Everyone, limit)).collect()
}

impl Accounts {
    /// Takes one call from every limit that is about it, or from none: when it may be sent.
    pub(super) fn reserve(
        &mut self,
        quota: &Quota,
        caller: &Caller,
        target: &Target,
        time: Option<Duration>,
        now: Instant,
    ) -> Result<Instant, Box<Refusal>> {
        let Some(accounts) = self.of(quota, caller, now) else { return Ok(now) };
        let (mut sent, mut refused) = (now, None::<(Duration, &Account)>);
        for account in accounts.iter_mut().filter(|account| account.concerns(target)) {
            let wait = account.wait(now);
            if wait.is_zero() {
                continue;
            }
            if wait <= account.patience().min(time.unwrap_or(Duration::MAX)) {
                sent = sent.max(now + wait);
            } else if refused.is_none_or(|(longest, _)| wait > longest) {
                refused = Some((wait, account));
            }
        }
        if let Some((wait, account)) = refused {
            let (name, limit) = (account.name(caller), account.limit.clone());
            return Err(Box::new(Refusal { name, limit, wait }));
        }
        let concerned = accounts.iter_mut().filter(|account| account.concerns(target));
        concerned.for_each(|account| account.take(now, sent));
        Ok(sent)
    }

    /// Gives back what was taken for a call that was to be sent then.
    pub(super) fn give_back(&mut self, caller: &Caller, target: &Target, sent: Instant) {
        let accounts = self.by_caller.get_mut(caller).into_iter().flatten();
        accounts.filter(|account| account.concerns(target)).for_each(|account| account.give_back(sent));
    }

    /// The accounts of a caller, if it has limits.
    fn of(&mut self, quota: &Quota, caller: &Caller, now: Instant) -> Option<&mut Vec<Account>> {
        if self.by_caller.len() >= self.full.max(MANY) && !self.by_caller.contains_key(caller) {
            self.by_caller.retain(|_, accounts| accounts.iter_mut().any(|account| account.used(now) > 0));
            self.full = self.by_caller.len() * 2;
        }
        match self.by_caller.entry(caller.clone()) {
            Occupied(known) => Some(known.into_mut()),
            Vacant(unknown) => {
                let accounts = opened(quota, caller);
                (!accounts.is_empty()).then(|| unknown.insert(accounts))
            }
        }
    }

    /// Goes on with other limits: what was used of those that are about the same counts on.
    pub(super) fn replace(&mut self, quota: &Quota) {
        for (caller, accounts) in &mut self.by_caller {
            let before = std::mem::replace(accounts, opened(quota, caller));
            for account in accounts {
                if let Some(known) = before.iter().find(|known| known.counts_as(account)) {
                    account.used = known.used.clone();
                }
            }
        }
        self.by_caller.retain(|_, accounts| !accounts.is_empty());
    }

    /// What was used of every quota.
    pub(super) fn saved(&mut self, now: Instant) -> Vec<Saved> {
        let mut all = Vec::new();
        for (caller, accounts) in &mut self.by_caller {
            for account in accounts {
                let (limit, per) = (account.name(caller), account.limit.share.measure().1);
                if let Used::Window(window) = &mut account.used {
                    all.push(Saved {
                        caller: caller.as_str().to_owned(),
                        limit,
                        parts: window.parts(per, now),
                    });
                }
            }
        }
        all.retain(|saved| !saved.parts.is_empty());
        all
    }

    /// Goes on from what was used before; where nobody knows what was used last, a little more.
    pub(super) fn restore(&mut self, quota: &Quota, saved: Vec<Saved>, known: bool, now: Instant) {
        for Saved { caller, limit, mut parts } in saved {
            let caller = Caller::named(&caller);
            let accounts = self.of(quota, &caller, now).into_iter().flatten();
            for account in accounts.filter(|account| account.name(&caller) == limit) {
                let last = parts.iter().map(|(_, last, _)| *last).min();
                if let Some(last) = last.filter(|_| !known) {
                    parts.push((last, last, account.limit.share.measure().0.get() / MARGIN));
                }
                if let Used::Window(window) = &mut account.used {
                    *window = Window::of(&parts, now);
                }
            }
        }
    }

    /// What is left to every caller that is known, by name.
    pub(super) fn standings(&mut self, quota: &Quota, now: Instant) -> Vec<Standing> {
        let met = self.by_caller.keys().map(|caller| caller.as_str().to_owned());
        let callers: BTreeSet<String> = quota.callers.keys().cloned().chain(met).collect();
        let mut standings = Vec::new();
        for caller in callers.iter().map(|name| Caller::named(name)) {
            let accounts = self.of(quota, &caller, now).into_iter().flatten();
            standings.extend(accounts.map(|account| {
                let wait = account.wait(now);
                let left = account.limit.share.measure().0.get().saturating_sub(account.used(now));
                let room_in = (!wait.is_zero()).then_some(wait);
                let (name, share) = (account.name(&caller), account.limit.share);
                Standing { caller: caller.clone(), name, share, left, room_in }
            }));
        }
        standings
    }
}

#[cfg(test)]
mod tests;
