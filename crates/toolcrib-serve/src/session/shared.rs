//! Sessions that gateways on one store share: a session is found by its record if this gateway does not know it.
//!
//! The record is written when the session opens and when it changes, renewed while the session is in use, and removed when
//! the session ends. It expires with an idle session. A gateway that drops an idle session leaves the record, because
//! another one may use the session.

use std::sync::Arc;

use tokio::time::Instant;
use toolcrib::protocol::json::object::Object;
use toolcrib::store::{Store, StoreError, StoreKey, StoreKind, StoreReply, StoreResult};
use toolcrib::util::encoding;

use super::{IDLE_TIMEOUT, NewSession, RENEWAL_INTERVAL, Sessions};
use crate::client_memory::MemoryClaim;
use crate::service::session_client::SessionClientState;
use crate::service::session_record::{RECORD_TTL, SessionNotice, SessionRecord, SharedSession};
use crate::service::{EndpointScope, McpService};

const _: () = assert!(RECORD_TTL.as_secs() == IDLE_TIMEOUT.as_secs() + RENEWAL_INTERVAL.as_secs());

/// The store of the sessions, and the name of this gateway in their records.
#[derive(Debug)]
pub(super) struct SharedSessions {
    store: Arc<dyn Store>,
    writer: Arc<str>,
}

impl SharedSessions {
    /// Returns `None` if no other process uses the store.
    pub(super) fn new(store: &Arc<dyn Store>) -> Option<Self> {
        if !store.is_shared() {
            return None;
        }
        Some(Self { store: store.clone(), writer: encoding::random_hex()?.into() })
    }

    pub(super) fn share(
        &self,
        client: SessionClientState,
        id: &str,
        params: Option<&Object>,
    ) -> SessionClientState {
        client.share(SharedSession::new(self.store.clone(), id.to_owned(), self.writer.clone(), params))
    }

    async fn find_record(&self, id: &str) -> Result<Option<SessionRecord>, StoreError> {
        let value = self.store.get(key(id)).wait().await?;
        Ok(value.and_then(|value| SessionRecord::parse(&value)))
    }

    /// Removes a record and ends the session in other gateways.
    async fn remove_record(&self, id: &str) -> Result<(), StoreError> {
        let removed = self.store.remove(key(id));
        let published = SessionNotice::Ended(id.to_owned()).publish(&self.store);
        removed.wait().await?;
        published.wait().await
    }
}

impl Sessions {
    /// Returns whether other gateways can continue the sessions.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Writes the record of a new session.
    pub(crate) async fn save(&self, id: &str) -> Result<(), StoreError> {
        let client = self.state().sessions.get(id).map(|session| session.client.clone());
        match client.and_then(|client| client.put_record(RECORD_TTL)) {
            Some(stored) => stored.wait().await,
            None => Ok(()),
        }
    }

    /// Opens a session again from its record, for the same credential and endpoint. Returns `None` if there is no such
    /// session. `memory` is what it counts against.
    pub(crate) async fn restore(
        &self,
        service: &McpService,
        id: &str,
        scope: &EndpointScope,
        memory: MemoryClaim,
    ) -> Result<Option<NewSession>, StoreError> {
        let Some(shared) = &self.shared else { return Ok(None) };
        // Known here, but of another caller or ended.
        if !is_session_id(id) || self.state().sessions.contains_key(id) {
            return Ok(None);
        }
        let Some(record) = shared.find_record(id).await? else { return Ok(None) };
        if !record.is_session_of(scope) {
            return Ok(None);
        }
        let params = Some(&record.params);
        let client = SessionClientState::new(service, scope.clone().with_client(params), params, None);
        let client = shared.share(client, id, params);
        client.apply_record(service, &record).await;
        let stored = client.put_record(RECORD_TTL);
        let opened = self.insert(id.to_owned(), client, Some(memory));
        if let Some(stored) = stored {
            stored.wait().await?;
        }
        Ok(opened)
    }

    /// Ends a session of the same credential and endpoint in every gateway; `false` if there is none.
    pub(crate) async fn end_everywhere(&self, id: &str, scope: &EndpointScope) -> Result<bool, StoreError> {
        let has_ended = self.end(id, scope);
        let Some(shared) = &self.shared else { return Ok(has_ended) };
        if !has_ended {
            if !is_session_id(id) || self.state().sessions.contains_key(id) {
                return Ok(false);
            }
            let Some(record) = shared.find_record(id).await? else { return Ok(false) };
            if !record.is_session_of(scope) {
                return Ok(false);
            }
        }
        shared.remove_record(id).await.map(|()| true)
    }

    /// Takes over what another gateway has changed in a session that is open here as well.
    pub(crate) async fn apply_notice(
        &self,
        service: &McpService,
        notice: &SessionNotice,
    ) -> Result<(), StoreError> {
        let Some(shared) = &self.shared else { return Ok(()) };
        let (SessionNotice::Changed(id) | SessionNotice::Ended(id)) = notice;
        let Some(session) = self.state().sessions.get(id).cloned() else { return Ok(()) };
        if let SessionNotice::Ended(id) = notice {
            self.discard(id);
            // This gateway may have renewed the record after it was removed.
            return shared.store.remove(key(id)).wait().await.map(drop);
        }
        if let Some(record) = shared.find_record(id).await?
            && record.writer != shared.writer
        {
            session.client.apply_record(service, &record).await;
        }
        Ok(())
    }

    /// Returns the ids of all sessions that are open here.
    pub(crate) fn ids(&self) -> Vec<String> {
        self.state().sessions.keys().cloned().collect()
    }

    /// Removes sessions that were ended because their caller lost access, and their records.
    pub(crate) async fn remove_ended(&self) -> Result<(), StoreError> {
        let Some(shared) = &self.shared else { return Ok(()) };
        let ended: Vec<String> = {
            let mut state = self.state();
            let ended = state.sessions.extract_if(|_, session| session.ended.is_cancelled());
            ended
                .map(|(id, session)| {
                    session.end();
                    id
                })
                .collect()
        };
        let mut result = Ok(());
        for id in ended {
            let removed = shared.remove_record(&id).await;
            result = result.and(removed);
        }
        result
    }

    /// Renews the records of sessions that were used since the last renewal.
    pub(super) async fn renew_records(&self, now: Instant) -> Result<(), StoreError> {
        let replies: Vec<StoreResult<()>> = {
            let mut state = self.state();
            let last_renewal = state.last_renewal.replace(now);
            let used = state.sessions.values().filter(|session| {
                !session.is_idle() || last_renewal.is_none_or(|last| session.last_used() >= last)
            });
            used.filter_map(|session| {
                let idle = if session.is_idle() { now - session.last_used() } else { Default::default() };
                session.client.put_record(RECORD_TTL.saturating_sub(idle))
            })
            .collect()
        };
        let mut result = Ok(());
        for reply in replies {
            let reply = StoreReply::wait(reply).await;
            result = result.and(reply);
        }
        result
    }
}

fn key(id: &str) -> StoreKey<'_> {
    StoreKey::new(StoreKind::Session, id)
}

/// Returns whether a text can be the id of a session, so that other texts are not looked up.
fn is_session_id(id: &str) -> bool {
    id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}
