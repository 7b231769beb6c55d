//! Sessions that another process continues after it has taken over the listeners of this one.
//!
//! The previous process hands over the record of every session, and again the record of a session that changes while it drains. A
//! session is opened here with the first request that names it, because its caller is known only then.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, timeout};
use toolcrib::util::locks::IgnorePoison as _;

use super::{IDLE_TIMEOUT, NewSession, Session, Sessions};
use crate::client_memory::MemoryClaim;
use crate::service::session_client::SessionClientState;
use crate::service::session_record::SessionRecord;
use crate::service::{EndpointScope, McpService};

/// Time in which the previous process, while it drains, must have handed over a session that its client already knows.
const LATE_RECORD_TIMEOUT: Duration = Duration::from_millis(500);

/// Sessions on their way between two processes.
#[derive(Debug, Default)]
pub(crate) struct SessionHandover {
    /// True if `successor` is set.
    has_successor: AtomicBool,
    /// Receives the records of sessions that change.
    successor: Mutex<Option<UnboundedSender<Value>>>,
    /// Sessions of the previous process that were not used here yet, by id.
    inherited: Mutex<HashMap<String, InheritedSession>>,
    /// True while the previous process may hand over more.
    is_receiving: AtomicBool,
    /// Notified whenever a session was added, and when the previous process has ended.
    changed: Notify,
}

/// A session of the previous process.
#[derive(Debug, Clone)]
struct InheritedSession {
    record: SessionRecord,
    /// The number of the last question to the client.
    last_question: u64,
    last_used: Instant,
}

impl InheritedSession {
    fn is_expired(&self, now: Instant) -> bool {
        self.last_used + IDLE_TIMEOUT <= now
    }

    fn to_json(&self, id: &str, now: Instant) -> Value {
        let idle = now.saturating_duration_since(self.last_used);
        json!({
            "id": id,
            "idle": idle.as_secs(),
            "asked": self.last_question,
            "record": self.record.to_json(),
        })
    }

    fn parse(session: &Value, now: Instant) -> Option<Self> {
        let idle = Duration::from_secs(session["idle"].as_u64()?);
        Some(Self {
            record: SessionRecord::from_json(&session["record"])?,
            last_question: session["asked"].as_u64()?,
            last_used: now.checked_sub(idle).unwrap_or(now),
        })
    }
}

impl SessionHandover {
    fn inherited(&self) -> MutexGuard<'_, HashMap<String, InheritedSession>> {
        self.inherited.lock().ignore_poison()
    }

    pub(super) fn remove_expired(&self, now: Instant) {
        self.inherited().retain(|_, session| !session.is_expired(now));
    }

    /// Returns the session with this id, which the previous process may be about to hand over.
    async fn find(&self, id: &str) -> Option<InheritedSession> {
        let found = async {
            loop {
                let changed = self.changed.notified();
                let session = self.inherited().get(id).cloned();
                if session.is_some() || !self.is_receiving.load(Ordering::Acquire) {
                    return session;
                }
                changed.await;
            }
        };
        let session = timeout(LATE_RECORD_TIMEOUT, found).await.ok()??;
        (!session.is_expired(Instant::now())).then_some(session)
    }
}

impl Sessions {
    /// Returns every session for another process. From now on, `later` receives those that change.
    pub(crate) fn hand_over(&self, later: UnboundedSender<Value>) -> Vec<Value> {
        let handover = &self.handover;
        // Found in the store by the other process.
        if self.shared.is_some() {
            return Vec::new();
        }
        *handover.successor.lock().ignore_poison() = Some(later);
        handover.has_successor.store(true, Ordering::Release);
        let now = Instant::now();
        let state = self.state();
        let open = state.sessions.iter().filter(|(_, session)| !session.ended.is_cancelled());
        let mut sessions: Vec<Value> = open.map(|(id, session)| session.to_json(id, now)).collect();
        drop(state);
        let inherited = handover.inherited();
        let unused = inherited.iter().filter(|(_, session)| !session.is_expired(now));
        sessions.extend(unused.map(|(id, session)| session.to_json(id, now)));
        sessions
    }

    /// Hands over no more sessions, because the other process has not started.
    pub(crate) fn cancel_hand_over(&self) {
        self.handover.has_successor.store(false, Ordering::Release);
        *self.handover.successor.lock().ignore_poison() = None;
    }

    /// Hands over a new session, if another process continues the sessions.
    pub(crate) fn report_new(&self, id: &str) {
        self.report(|open_id, _| open_id == id);
    }

    /// Hands over a session that may have changed, if another process continues the sessions.
    pub(crate) fn report_change(&self, session: &Session) {
        self.report(|_, open| std::ptr::eq(Arc::as_ptr(open), session));
    }

    fn report(&self, is_changed: impl Fn(&str, &Arc<Session>) -> bool) {
        if !self.handover.has_successor.load(Ordering::Acquire) {
            return;
        }
        let state = self.state();
        let found = state.sessions.iter().find(|(id, open)| is_changed(id, open));
        let record = found.map(|(id, session)| session.to_json(id, Instant::now()));
        drop(state);
        if let (Some(record), Some(later)) = (record, &*self.handover.successor.lock().ignore_poison()) {
            // Fails when the other process has ended.
            let _ = later.send(record);
        }
    }

    /// Adds a session of the previous process. If it is already open here, its changes are applied.
    pub(crate) async fn inherit(&self, service: &McpService, session: &Value) {
        let parsed = InheritedSession::parse(session, Instant::now());
        let (Some(id), Some(inherited)) = (session["id"].as_str(), parsed) else {
            tracing::warn!("cannot continue a session of the previous gateway: its record is not understood");
            return;
        };
        let open = self.state().sessions.get(id).cloned();
        match open {
            Some(open) => open.client.apply_record(service, &inherited.record).await,
            None => {
                self.handover.inherited().insert(id.to_owned(), inherited);
                self.handover.changed.notify_waiters();
            }
        }
    }

    /// Sets whether the previous process may hand over more sessions.
    pub(crate) fn set_receiving(&self, is_receiving: bool) {
        self.handover.is_receiving.store(is_receiving && self.shared.is_none(), Ordering::Release);
        self.handover.changed.notify_waiters();
    }

    /// Returns whether there may be sessions of a previous process.
    pub(crate) fn has_inherited(&self) -> bool {
        self.handover.is_receiving.load(Ordering::Acquire) || !self.handover.inherited().is_empty()
    }

    /// Opens a session of the previous process for the same credential and endpoint. Returns `None` if there is no such session.
    /// `memory` is what it counts against.
    pub(crate) async fn continue_inherited(
        &self,
        service: &McpService,
        id: &str,
        scope: &EndpointScope,
        memory: MemoryClaim,
    ) -> Option<NewSession> {
        let InheritedSession { record, last_question, .. } = self.handover.find(id).await?;
        if !record.is_session_of(scope) {
            return None;
        }
        let params = Some(&record.params);
        let client = SessionClientState::new(service, scope.clone().with_client(params), params, None);
        client.questions.set_last_number(last_question);
        client.apply_record(service, &record).await;
        let opened = self.insert(id.to_owned(), client, Some(memory));
        self.handover.inherited().remove(id);
        opened
    }
}

impl Session {
    fn to_json(&self, id: &str, now: Instant) -> Value {
        let last_used = if self.is_idle() { self.last_used() } else { now };
        let record = self.client.to_record();
        InheritedSession { record, last_question: self.client.questions.last_number(), last_used }
            .to_json(id, now)
    }
}
