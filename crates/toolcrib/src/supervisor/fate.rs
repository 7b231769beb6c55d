//! `Fate`: what all instances of a server have in common: one restart budget, one wait, one ejection.
//!
//! As long as the last start did not go well, one instance at a time tries; it decides nothing about those that live.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::{Duration, Instant};

use super::restart::RestartBudget;
use crate::error::Error;
use crate::spec::Lifecycle;
use crate::status::LastError;

/// What all instances of a server have in common. One that is shared has it for itself.
#[derive(Debug)]
pub(crate) struct Fate {
    course: Mutex<Course>,
    /// Rung when there may be another prospect.
    turned: Notify,
}

#[derive(Debug)]
struct Course {
    budget: RestartBudget,
    sentence: Option<Sentence>,
    /// The last start went well: any number may follow side by side.
    proven: bool,
    /// One tries, and nobody else meanwhile.
    tried: bool,
    /// It died when asked for its era and has not been up since.
    wants_session: bool,
    last_error: Option<LastError>,
}

/// What the last failure has for consequences.
#[derive(Debug, Clone)]
pub(super) enum Sentence {
    /// No start before then. The failure, for those who waited for that start.
    BackOff(Instant, Error),
    /// Whoever asks before then is refused.
    Rest(Instant, Error),
    /// No start until a person wants one.
    Eject(Error),
}

/// What a start would meet.
#[derive(Debug)]
pub(super) enum Prospect {
    Open,
    /// Another instance is trying.
    Wait,
    Closed(Sentence),
}

/// The right to start an instance; others may have waited for how that goes.
#[derive(Debug)]
pub(super) struct Attempt {
    fate: Arc<Fate>,
    alone: bool,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.alone {
            self.fate.course().tried = false;
            self.fate.turned.notify_waiters();
        }
    }
}

impl Fate {
    pub(crate) fn new(care: &Lifecycle) -> Self {
        let budget = RestartBudget::new(care.restarts.clone(), care.backoff.clone());
        let (sentence, proven, tried, wants_session, last_error) = (None, false, false, false, None);
        let course = Course { budget, sentence, proven, tried, wants_session, last_error };
        Self { course: Mutex::new(course), turned: Notify::new() }
    }

    fn course(&self) -> MutexGuard<'_, Course> {
        self.course.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Comes when there may be another prospect than now.
    pub(super) fn turned(&self) -> Notified<'_> {
        self.turned.notified()
    }

    /// What a start would meet now.
    pub(super) fn prospect(&self, now: Instant) -> Prospect {
        self.course().prospect(now)
    }

    /// The right to start an instance now, if that is open.
    pub(super) fn attempt(self: &Arc<Self>, now: Instant) -> Option<Attempt> {
        let mut course = self.course();
        if !matches!(course.prospect(now), Prospect::Open) {
            return None;
        }
        let alone = !course.proven;
        course.tried |= alone;
        drop(course);
        Some(Attempt { fate: self.clone(), alone })
    }

    /// An instance came up. One that was given up stays so until a person says otherwise.
    pub(super) fn came_up(&self) {
        let mut course = self.course();
        (course.proven, course.wants_session) = (true, false);
        course.sentence.take_if(|sentence| !matches!(sentence, Sentence::Eject(_)));
        drop(course);
        self.turned.notify_waiters();
    }

    /// Spends one restart: how long to wait before it, or `None` if there is none left.
    pub(super) fn spend(&self, now: Instant, up: Duration, jitter: f64) -> Option<Duration> {
        self.course().budget.spend(now, up, jitter)
    }

    /// How long to wait before the next try, which costs nothing.
    pub(super) fn wait(&self, up: Duration, jitter: f64) -> Duration {
        self.course().budget.wait(up, jitter)
    }

    /// What a failure has for consequences, for every instance that does not live.
    pub(super) fn pass(&self, sentence: Sentence) {
        let mut course = self.course();
        course.proven = false;
        if !matches!(course.sentence, Some(Sentence::Eject(_))) {
            course.sentence = Some(sentence);
        }
        drop(course);
        self.turned.notify_waiters();
    }

    /// Forgives everything.
    pub(crate) fn pardon(&self) {
        let mut course = self.course();
        course.budget.refill();
        (course.sentence, course.proven, course.wants_session) = (None, false, false);
        drop(course);
        self.turned.notify_waiters();
    }

    pub(super) fn note(&self, error: LastError) {
        self.course().last_error = Some(error);
    }

    pub(crate) fn last_error(&self) -> Option<LastError> {
        self.course().last_error.clone()
    }

    pub(super) fn died_on_probe(&self) {
        self.course().wants_session = true;
    }

    pub(super) fn wants_session(&self) -> bool {
        self.course().wants_session
    }

    pub(crate) fn is_ejected(&self) -> bool {
        matches!(self.course().sentence, Some(Sentence::Eject(_)))
    }

    /// When a start is worth another try, if it is not now.
    pub(crate) fn until(&self, now: Instant) -> Option<Instant> {
        match self.prospect(now) {
            Prospect::Closed(Sentence::BackOff(until, _) | Sentence::Rest(until, _)) => Some(until),
            _ => None,
        }
    }

    /// Restarts spent in the window that ends now, and those left.
    pub(crate) fn restarts(&self, now: Instant) -> (u32, u32) {
        let course = self.course();
        (course.budget.spent(now), course.budget.left(now))
    }
}

impl Course {
    fn prospect(&self, now: Instant) -> Prospect {
        match &self.sentence {
            Some(sentence) if sentence.holds(now) => Prospect::Closed(sentence.clone()),
            _ if self.tried && !self.proven => Prospect::Wait,
            _ => Prospect::Open,
        }
    }
}

impl Sentence {
    fn holds(&self, now: Instant) -> bool {
        match self {
            Self::BackOff(until, _) | Self::Rest(until, _) => now < *until,
            Self::Eject(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const SECOND: Duration = Duration::from_secs(1);

    fn fate() -> Arc<Fate> {
        Arc::new(Fate::new(&Lifecycle::default()))
    }

    fn failure() -> Error {
        Error::new(ErrorKind::Lost, "it died")
    }

    #[tokio::test]
    async fn until_a_start_went_well_one_tries_at_a_time() {
        let (fate, now) = (fate(), Instant::now());
        let first = fate.attempt(now).unwrap();
        assert!(fate.attempt(now).is_none());
        assert!(matches!(fate.prospect(now), Prospect::Wait));
        fate.came_up();
        drop(first);
        let all: Vec<_> = (0..3).map(|_| fate.attempt(now).unwrap()).collect();
        fate.pass(Sentence::BackOff(now + SECOND, failure()));
        assert!(fate.attempt(now).is_none());
        let second = fate.attempt(now + SECOND).unwrap();
        drop(all);
        assert!(fate.attempt(now + SECOND).is_none(), "those who began before it give nothing back");
        drop(second);
        assert!(fate.attempt(now + SECOND).is_some(), "a try that was given up frees the place");
    }

    #[tokio::test]
    async fn only_a_pardon_ends_an_ejection() {
        let (fate, now) = (fate(), Instant::now());
        fate.pass(Sentence::Eject(failure()));
        fate.came_up();
        fate.pass(Sentence::Rest(now, failure()));
        assert!(fate.is_ejected() && fate.attempt(now + 3600 * SECOND).is_none());
        fate.pardon();
        assert!(!fate.is_ejected() && fate.attempt(now).is_some());
    }
}
