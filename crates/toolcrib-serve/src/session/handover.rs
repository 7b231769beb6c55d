//! Sessions that another process continues after it has taken over the listeners of this one.
//!
//! The previous process hands over the record of every session, and again the record of a session that changes while it drains. A
//! session is opened here with the first request that names it, because its caller is known only then. Answers and cancellations that are about
//! requests of the previous process are passed back to it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, timeout};
use toolcrib::protocol::era::client::{CANCELLED, PROGRESS};
use toolcrib::protocol::jsonrpc::{ClientMessage, encode_notification, encode_response};
use toolcrib::util::locks::IgnorePoison as _;

use super::{IDLE_TIMEOUT, NewSession, Session, Sessions};
use crate::client_memory::MemoryClaim;
use crate::service::session_client::SessionClientState;
use crate::service::session_record::SessionRecord;
use crate::service::{EndpointScope, McpService};

/// Time in which the previous process, while it drains, must have handed over a session that its client already knows.
const LATE_RECORD_TIMEOUT: Duration = Duration::from_millis(500);
/// Numbers of questions that the previous process may still use for the client of a session.
const RESERVED_QUESTIONS: u64 = 1_000_000;

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
    /// True if `predecessor` is set.
    has_predecessor: AtomicBool,
    /// Receives messages of clients for the previous process.
    predecessor: Mutex<Option<UnboundedSender<Value>>>,
    /// Sessions that another process found in the store and opened while they had requests in progress here, by id.
    left: Mutex<HashMap<String, Weak<Session>>>,
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

    /// Remembers a session that is open elsewhere from now on, for as long as it has requests in progress.
    pub(super) fn remember_left(&self, id: &str, session: &Arc<Session>) {
        let mut left = self.left.lock().ignore_poison();
        left.retain(|_, session| session.strong_count() > 0);
        left.insert(id.to_owned(), Arc::downgrade(session));
    }

    pub(super) fn find_left(&self, id: &str) -> Option<Arc<Session>> {
        self.left.lock().ignore_poison().get(id)?.upgrade()
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
    pub(crate) fn hand_over_all(&self, later: UnboundedSender<Value>) -> Vec<Value> {
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
        let Some(id) = self.find_id(is_changed) else { return };
        let session = self.state().sessions.get(&id).cloned();
        let record = session.map(|session| session.to_json(&id, Instant::now()));
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

    /// Sets where messages for the previous process go while that may hand over more sessions; `None` once it has ended.
    pub(crate) fn set_predecessor(&self, messages: Option<UnboundedSender<Value>>) {
        // With a store, the sessions are there.
        let is_receiving = messages.is_some() && self.shared.is_none();
        self.handover.is_receiving.store(is_receiving, Ordering::Release);
        self.handover.has_predecessor.store(messages.is_some(), Ordering::Release);
        *self.handover.predecessor.lock().ignore_poison() = messages;
        self.handover.changed.notify_waiters();
    }

    /// Passes an answer or a cancellation back to the previous process, whose question or request it may be about.
    pub(crate) fn pass_back(&self, session: &Session, message: &ClientMessage) {
        if !self.handover.has_predecessor.load(Ordering::Acquire) {
            return;
        }
        let text = match message {
            ClientMessage::Response { id, payload } => encode_response(id, payload),
            ClientMessage::Notification { method, params }
                if matches!(method.as_str(), CANCELLED | PROGRESS) =>
            {
                encode_notification(method, params.as_deref())
            }
            _ => return,
        };
        let id = self.find_id(|_, open| std::ptr::eq(Arc::as_ptr(open), session));
        if let (Some(id), Some(messages)) = (id, &*self.handover.predecessor.lock().ignore_poison()) {
            // Fails when the previous process has ended.
            let _ = messages.send(json!({"id": id, "message": String::from_utf8_lossy(&text)}));
        }
    }

    /// Handles a message that the next process has passed back.
    pub(crate) fn receive_passed_back(&self, message: &Value) {
        let id = message["id"].as_str().unwrap_or_default();
        let open = self.state().sessions.get(id).cloned();
        let Some(session) = open.or_else(|| self.handover.find_left(id)) else { return };
        let text = message["message"].as_str().unwrap_or_default().to_owned();
        if let Ok(message) = ClientMessage::parse(&text.into()) {
            session.client.receive_reply(message);
        }
    }

    /// Returns the id of an open session.
    fn find_id(&self, is_wanted: impl Fn(&str, &Arc<Session>) -> bool) -> Option<String> {
        let state = self.state();
        state.sessions.iter().find(|(id, open)| is_wanted(id, open)).map(|(id, _)| id.clone())
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
        client.questions.set_last_number(last_question + RESERVED_QUESTIONS);
        client.apply_record(service, &record).await;
        let opened = self.insert_restored(id.to_owned(), client, memory);
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::sync::mpsc::unbounded_channel;
    use toolcrib::Caller;
    use toolcrib::protocol::json::object::Object;

    use super::*;
    use crate::client_memory::{ClientMemory, MemoryAccount};

    const PARAMS: &str = r#"{"protocolVersion":"2025-06-18","capabilities":{"roots":{}},"clientInfo":{"name":"a","version":"2"}}"#;

    /// The sessions of one process.
    struct Process {
        sessions: Sessions,
        service: McpService,
    }

    impl Process {
        fn new() -> Self {
            let crib = toolcrib::Crib::builder().build().unwrap();
            Self { sessions: Sessions::new(10), service: McpService::new(crib) }
        }

        fn open(&self) -> String {
            let params = Object::parse(&Bytes::from_static(PARAMS.as_bytes())).unwrap();
            let scope = EndpointScope::local().with_client(Some(&params));
            let client = SessionClientState::new(&self.service, scope, Some(&params), None);
            client.questions.set_last_number(7);
            let id = self.sessions.open(client, Some(&params), None).unwrap().id;
            self.sessions.report_new(&id);
            id
        }

        async fn continue_session(&self, id: &str, scope: &EndpointScope) -> bool {
            let total = Arc::new(ClientMemory::new(1 << 20));
            let claim = MemoryAccount { total, caller: scope.access.memory.clone() }.claim(1).unwrap();
            self.sessions.continue_inherited(&self.service, id, scope, claim).await.is_some()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn session_continues_in_the_process_after_the_next() {
        let first = Process::new();
        let second = Process::new();
        let third = Process::new();
        let id = first.open();
        let later = unbounded_channel();
        for session in first.sessions.hand_over_all(later.0) {
            second.sessions.inherit(&second.service, &session).await;
        }
        for session in second.sessions.hand_over_all(unbounded_channel().0) {
            third.sessions.inherit(&third.service, &session).await;
        }
        let scope = EndpointScope::local();
        assert!(!third.continue_session(&id, &EndpointScope::trusted(Caller::new("other"))).await);
        assert!(third.continue_session(&id, &scope).await && !third.sessions.has_inherited());
        let session = third.sessions.find(&id, &scope).unwrap();
        let client = &session.client;
        assert_eq!((client.revision.as_str(), client.version.as_deref()), ("2025-06-18", Some("2")));
        assert_eq!(
            (client.scope.client_name.as_deref(), client.questions.last_number()),
            (Some("a"), 7 + RESERVED_QUESTIONS)
        );
        assert_eq!(client.capabilities().as_json(), r#"{"roots":{}}"#.as_bytes());
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_opened_while_draining_are_waited_for_and_expire() {
        let first = Process::new();
        let second = Process::new();
        let (later, mut opened) = unbounded_channel();
        assert!(first.sessions.hand_over_all(later).is_empty());
        let (messages, mut passed_back) = unbounded_channel();
        second.sessions.set_predecessor(Some(messages));
        let id = first.open();
        let scope = EndpointScope::local();
        let receive = async {
            tokio::time::sleep(LATE_RECORD_TIMEOUT / 2).await;
            second.sessions.inherit(&second.service, &opened.recv().await.unwrap()).await;
        };
        assert!(tokio::join!(second.continue_session(&id, &scope), receive).0);
        let session = second.sessions.find(&id, &scope).unwrap();
        let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}"#;
        second
            .sessions
            .pass_back(&session, &ClientMessage::parse(&Bytes::from_static(cancel.as_bytes())).unwrap());
        let message = passed_back.recv().await.unwrap();
        assert_eq!((message["id"].as_str(), message["message"].as_str()), (Some(id.as_str()), Some(cancel)));
        drop(session);
        first.open();
        second.sessions.inherit(&second.service, &opened.recv().await.unwrap()).await;
        tokio::time::advance(IDLE_TIMEOUT).await;
        assert!(second.sessions.hand_over_all(unbounded_channel().0).len() < 2);
        // A gateway that goes on reports nothing.
        first.sessions.cancel_hand_over();
        first.open();
        assert!(opened.try_recv().is_err());
    }
}
