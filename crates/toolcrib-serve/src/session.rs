//! Sessions over HTTP, for clients of the session era.

mod handover;
pub(crate) mod shared;
pub(crate) mod sse_clients;
pub(crate) mod stream;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use toolcrib::Caller;
use toolcrib::protocol::json::object::Object;
use toolcrib::store::{Replica, Store};
use toolcrib::util::encoding;
use toolcrib::util::locks::IgnorePoison as _;

use self::handover::SessionHandover;
use self::shared::SharedSessions;
use self::stream::ReplayStreams;
use crate::client_memory::MemoryClaim;
use crate::service::EndpointScope;
use crate::service::session_client::SessionClientState;

/// Time after which an idle session expires.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// Shortest time between two searches for expired sessions.
const MIN_SWEEP_INTERVAL: Duration = Duration::from_secs(60);
/// Time between two renewals of the records of sessions, if other gateways use the store.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// The open sessions of a gateway.
#[derive(Debug)]
pub(crate) struct Sessions {
    open: Mutex<OpenSessions>,
    max_sessions: usize,
    /// Cancelled at shutdown; ends the expiry task.
    closed: CancellationToken,
    /// Records of the sessions, if other gateways use the store.
    shared: Option<SharedSessions>,
    handover: SessionHandover,
}

#[derive(Debug, Default)]
struct OpenSessions {
    sessions: HashMap<String, Arc<Session>>,
    /// True if the expiry task runs.
    has_expiry_task: bool,
    /// When records were renewed last.
    last_renewal: Option<Instant>,
}

impl OpenSessions {
    /// Returns the session that must end so that a caller can open another one: `None` if there is room, `Some(None)` if
    /// every such session is in use.
    fn find_excess(&self, caller: &Caller, max_sessions: usize) -> Option<Option<String>> {
        // Without declared callers everyone is the same caller.
        let max_per_caller =
            if *caller == Caller::local() { max_sessions } else { (max_sessions / 2).max(1) };
        // Cheap while there is room: only then a caller can have too many.
        if self.sessions.len() < max_per_caller.min(max_sessions) {
            return None;
        }
        let mut counts: HashMap<&str, usize> = HashMap::new();
        for session in self.sessions.values() {
            *counts.entry(session.client.scope.caller().as_str()).or_default() += 1;
        }
        let has_too_many = counts.get(caller.as_str()).is_some_and(|count| *count >= max_per_caller);
        if !has_too_many && self.sessions.len() < max_sessions {
            return None;
        }
        let count =
            |session: &Session| counts.get(session.client.scope.caller().as_str()).copied().unwrap_or(0);
        let is_candidate = |session: &Session| {
            session.is_idle() && (!has_too_many || session.client.scope.caller() == caller)
        };
        let candidates = self.sessions.iter().filter(|(_, session)| is_candidate(session));
        // The most sessions first, then the longest idle.
        let excess = candidates.min_by_key(|(_, session)| (Reverse(count(session)), session.last_used()));
        Some(excess.map(|(id, _)| id.clone()))
    }
}

/// One client's session over HTTP.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: Arc<SessionClientState>,
    last_used: Mutex<Instant>,
    /// Cancelled when the session ends; ends its streams.
    pub(crate) ended: CancellationToken,
    /// Responses that can be resumed.
    pub(crate) streams: ReplayStreams,
    /// True if a notification stream is open.
    has_stream: AtomicBool,
    /// Number of requests and streams that use the session.
    users: AtomicUsize,
    /// The memory of what the client has declared.
    _memory: Option<MemoryClaim>,
}

/// The result of opening a session.
pub(crate) struct NewSession {
    pub(crate) id: String,
    /// True if the caller must run [`Sessions::expire_idle`].
    pub(crate) needs_expiry_task: bool,
}

impl Sessions {
    pub(crate) fn new(max_sessions: usize) -> Self {
        Self {
            open: Mutex::default(),
            max_sessions,
            closed: CancellationToken::new(),
            shared: None,
            handover: SessionHandover::default(),
        }
    }

    /// Lets other gateways continue the sessions, if they use the store.
    pub(crate) fn with_store(mut self, store: &Arc<dyn Store>, replica: Option<&Arc<Replica>>) -> Self {
        self.shared = SharedSessions::new(store, replica);
        self
    }

    /// Returns the largest number of open sessions.
    pub(crate) fn max_sessions(&self) -> usize {
        self.max_sessions
    }

    /// Returns the number of open sessions.
    pub(crate) fn count(&self) -> usize {
        self.state().sessions.len()
    }

    fn state(&self) -> MutexGuard<'_, OpenSessions> {
        self.open.lock().ignore_poison()
    }

    /// Opens a session, which ends when the access of its caller is revoked; `params` are those of the client's first request.
    /// If there are too many, the session that has been idle longest is ended: one of the same caller if that has too many,
    /// otherwise one of the caller that has the most. Returns `None` if none of them is idle or no random id is available.
    ///
    /// `memory` is what the session counts against, until it ends.
    pub(crate) fn open(
        &self,
        client: SessionClientState,
        params: Option<&Object>,
        memory: Option<MemoryClaim>,
    ) -> Option<NewSession> {
        let Some(shared) = &self.shared else {
            return self.insert(encoding::random_hex()?, Session::new(client, memory));
        };
        let id = shared.new_id()?;
        let client = shared.share(client, &id, params);
        self.insert(id, Session::new(client, memory))
    }

    /// Adds a session that another gateway had open. Its events get other numbers than those that the client has seen.
    fn insert_restored(
        &self,
        id: String,
        client: SessionClientState,
        memory: MemoryClaim,
    ) -> Option<NewSession> {
        let mut session = Session::new(client, Some(memory));
        session.streams.start_elsewhere();
        self.insert(id, session)
    }

    /// Adds a session, unless there is one with this id.
    fn insert(&self, id: String, session: Session) -> Option<NewSession> {
        session.client.set_session_id(&id);
        let mut state = self.state();
        if state.sessions.contains_key(&id) {
            return Some(NewSession { id, needs_expiry_task: false });
        }
        if let Some(removed) = state.find_excess(session.client.scope.caller(), self.max_sessions) {
            state.sessions.remove(&removed?).inspect(|session| session.end());
        }
        state.sessions.insert(id.clone(), Arc::new(session));
        let needs_expiry_task = !std::mem::replace(&mut state.has_expiry_task, true);
        Some(NewSession { id, needs_expiry_task })
    }

    /// Returns an open session of the same scope, which is not idle until the returned reference and its clones are dropped.
    pub(crate) fn find(&self, id: &str, scope: &EndpointScope) -> Option<SessionRef> {
        let state = self.state();
        let session = state.sessions.get(id)?;
        if session.client.scope != *scope || session.ended.is_cancelled() {
            return None;
        }
        let session = SessionRef::new(session.clone());
        drop(state);
        session.touch(Instant::now());
        Some(session)
    }

    /// Returns all open sessions.
    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        self.state().sessions.values().cloned().collect()
    }

    /// Ends a session and its requests; `false` if there is none.
    pub(crate) fn end(&self, id: &str, scope: &EndpointScope) -> bool {
        let mut state = self.state();
        if !state.sessions.get(id).is_some_and(|session| session.client.scope == *scope) {
            return false;
        }
        state.sessions.remove(id).inspect(|session| session.end());
        true
    }

    /// Ends a session here, if there is one.
    pub(crate) fn discard(&self, id: &str) {
        self.state().sessions.remove(id).inspect(|session| session.end());
    }

    /// Leaves a session to another replica. Requests in progress go on, and the notification stream ends, so that the client
    /// opens it again at the other replica.
    fn hand_over(&self, id: &str) {
        let removed = self.state().sessions.remove(id);
        if let Some(session) = removed {
            session.ended.cancel();
            self.handover.remember_left(id, &session);
        }
    }

    /// Ends idle sessions until none are left or the gateway stops.
    pub(crate) async fn expire_idle(&self) {
        while let Some(next) = self.sweep(Instant::now()) {
            let next = self.renew(next).await;
            tokio::select! {
                () = sleep_until(next) => {}
                () = self.closed.cancelled() => return,
            }
        }
    }

    /// Renews what other gateways know of the sessions, and returns when to do so again, at the latest at `next`.
    async fn renew(&self, next: Instant) -> Instant {
        if self.shared.is_none() {
            return next;
        }
        let now = Instant::now();
        let removed = self.remove_ended().await;
        if let Err(error) = removed.and(self.renew_records(now).await) {
            tracing::warn!("other gateways may not know the sessions of this one: {error}");
        }
        next.min(now + RENEWAL_INTERVAL)
    }

    /// Ends expired sessions and returns when to search again, if sessions are left.
    fn sweep(&self, now: Instant) -> Option<Instant> {
        self.handover.remove_expired(now);
        let mut state = self.state();
        state.sessions.retain(|_, session| {
            session.streams.remove_expired(now);
            let is_expired = session.is_idle() && session.last_used() + IDLE_TIMEOUT <= now;
            if is_expired {
                session.end();
            }
            !is_expired
        });
        let earliest = state.sessions.values().map(|session| session.last_used() + IDLE_TIMEOUT).min();
        state.has_expiry_task = earliest.is_some();
        let has_streams = state.sessions.values().any(|session| !session.streams.is_empty());
        let next = earliest.map(|earliest| if has_streams { now } else { earliest });
        next.map(|next| next.max(now + MIN_SWEEP_INTERVAL))
    }

    /// Ends the expiry task, and the tasks that watch other gateways.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }

    /// Returns the token that [`Sessions::close`] cancels.
    pub(crate) fn closed(&self) -> &CancellationToken {
        &self.closed
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

impl Session {
    fn new(client: SessionClientState, memory: Option<MemoryClaim>) -> Self {
        let account = memory.as_ref().map(|claim| Arc::new(claim.account().clone()));
        let ended = client.scope.access.revoked.child_token();
        Self {
            client: Arc::new(client),
            last_used: Mutex::new(Instant::now()),
            ended,
            streams: ReplayStreams::new(account),
            has_stream: AtomicBool::new(false),
            users: AtomicUsize::new(0),
            _memory: memory,
        }
    }

    fn is_idle(&self) -> bool {
        self.users.load(Ordering::Acquire) == 0
    }

    fn last_used(&self) -> Instant {
        *self.last_used.lock().ignore_poison()
    }

    /// Records that the session is in use.
    pub(crate) fn touch(&self, now: Instant) {
        *self.last_used.lock().ignore_poison() = now;
    }

    fn end(&self) {
        self.ended.cancel();
        self.client.end();
    }
}

/// A session in use. While there is one, the session does not count as idle.
#[derive(Debug)]
pub(crate) struct SessionRef(Arc<Session>);

impl SessionRef {
    /// Must be called with the lock of the open sessions, unless the session is in use already.
    fn new(session: Arc<Session>) -> Self {
        session.users.fetch_add(1, Ordering::AcqRel);
        Self(session)
    }

    /// Claims the notification stream of this session; `None` if one is already open.
    pub(crate) fn hold_stream(&self) -> Option<StreamHold> {
        (!self.has_stream.swap(true, Ordering::AcqRel)).then(|| StreamHold(self.clone()))
    }
}

impl Clone for SessionRef {
    fn clone(&self) -> Self {
        Self::new(self.0.clone())
    }
}

impl Deref for SessionRef {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.0
    }
}

impl Drop for SessionRef {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The claim on the notification stream of a session, which is in use while the stream is open.
pub(crate) struct StreamHold(SessionRef);

impl Drop for StreamHold {
    fn drop(&mut self) {
        self.0.has_stream.store(false, Ordering::Release);
        self.0.touch(Instant::now());
    }
}

#[cfg(test)]
mod tests;
