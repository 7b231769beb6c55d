//! Sessions, for clients old enough to need them.

pub(crate) mod stream;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use self::stream::Streams;
use super::face::Visit;
use super::face::talk::Talk;

/// How long a session lives that nobody uses.
const IDLE: Duration = Duration::from_secs(30 * 60);
/// How often at most the sessions are looked through for such.
const PAUSE: Duration = Duration::from_secs(60);

/// The sessions that are open on one gateway.
#[derive(Debug)]
pub(crate) struct Sessions {
    open: Mutex<Open>,
    most: usize,
    /// Ends the wait for idle sessions.
    closed: CancellationToken,
}

#[derive(Debug, Default)]
struct Open {
    sessions: HashMap<String, Arc<Session>>,
    /// Whether somebody looks for idle ones.
    watched: bool,
}

/// One client's session over HTTP.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) talk: Arc<Talk>,
    used: Mutex<Instant>,
    /// Ends the streams of a session that has ended.
    pub(crate) ended: CancellationToken,
    /// Answers that can be read again.
    pub(crate) streams: Streams,
    /// Whether somebody hears the news of this session.
    listening: AtomicBool,
}

/// A session that was just opened.
pub(crate) struct Begun {
    pub(crate) id: String,
    /// Whether nobody looks for idle sessions yet: [`Sessions::watch`] does.
    pub(crate) unwatched: bool,
}

impl Sessions {
    pub(crate) fn new(most: usize) -> Self {
        Self { open: Mutex::default(), most, closed: CancellationToken::new() }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a session, whose streams end when its caller has to leave. When there are too many, the one that has been idle longest makes room; `None` if all are busy
    /// or no id could be drawn.
    pub(crate) fn begin(&self, talk: Talk, leave: &CancellationToken) -> Option<Begun> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).ok()?;
        let id: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut open = self.open();
        if open.sessions.len() >= self.most {
            // Whoever listens or waits for an answer holds the session.
            let idle = open.sessions.iter().filter(|(_, session)| session.is_idle());
            let oldest = idle.min_by_key(|(_, session)| session.last_used()).map(|(id, _)| id.clone())?;
            open.sessions.remove(&oldest).inspect(|session| session.end());
        }
        open.sessions.insert(id.clone(), Arc::new(Session::new(talk, leave.child_token())));
        let unwatched = !std::mem::replace(&mut open.watched, true);
        Some(Begun { id, unwatched })
    }

    /// A session that was opened on the same visit and is still open.
    pub(crate) fn find(&self, id: &str, visit: &Visit) -> Option<Arc<Session>> {
        let goes_on = |session: &&Arc<Session>| session.talk.visit == *visit && !session.ended.is_cancelled();
        let session = self.open().sessions.get(id).filter(goes_on).cloned()?;
        session.touch();
        Some(session)
    }

    /// Ends a session and everything under way in it; `false` if there is none.
    pub(crate) fn end(&self, id: &str, visit: &Visit) -> bool {
        let mut open = self.open();
        if !open.sessions.get(id).is_some_and(|session| session.talk.visit == *visit) {
            return false;
        }
        open.sessions.remove(id).inspect(|session| session.end());
        true
    }

    /// Ends sessions that nobody uses, until there are none at all.
    pub(crate) async fn watch(&self) {
        while let Some(next) = self.sweep(Instant::now()) {
            tokio::select! {
                () = sleep_until(next) => {}
                () = self.closed.cancelled() => return,
            }
        }
    }

    /// Ends idle sessions; when to look again, if there is anything left to look at.
    fn sweep(&self, now: Instant) -> Option<Instant> {
        let mut open = self.open();
        open.sessions.retain(|_, session| {
            session.streams.tidy(now);
            let over = session.is_idle() && session.last_used() + IDLE <= now;
            if over {
                session.end();
            }
            !over
        });
        let earliest = open.sessions.values().map(|session| session.last_used() + IDLE).min();
        open.watched = earliest.is_some();
        let streaming = open.sessions.values().any(|session| session.streams.any());
        let wanted = earliest.map(|earliest| if streaming { now } else { earliest });
        wanted.map(|wanted| wanted.max(now + PAUSE))
    }

    /// Ends the wait for idle sessions.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }
}

impl Session {
    fn new(talk: Talk, ended: CancellationToken) -> Self {
        Self {
            talk: Arc::new(talk),
            used: Mutex::new(Instant::now()),
            ended,
            streams: Streams::default(),
            listening: AtomicBool::new(false),
        }
    }

    fn is_idle(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1
    }

    fn last_used(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that somebody uses it.
    pub(crate) fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn end(&self) {
        self.ended.cancel();
        self.talk.end();
    }

    /// The right to hear the news of this session, which only one stream at a time has.
    pub(crate) fn listen(self: &Arc<Self>) -> Option<Listening> {
        (!self.listening.swap(true, Ordering::AcqRel)).then(|| Listening(self.clone()))
    }
}

/// Holds the session as long as somebody listens, so that it does not count as idle.
pub(crate) struct Listening(pub(crate) Arc<Session>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.listening.store(false, Ordering::Release);
        self.0.touch();
    }
}

#[cfg(test)]
mod tests;
