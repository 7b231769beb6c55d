//! Sessions that gateways on one store share: a session is found by its record if this gateway does not know it.
//!
//! The record is written when the session opens and when it changes, renewed while the session is in use, and removed when
//! the session ends. It expires with an idle session. A gateway that drops an idle session leaves the record, because
//! another one may use the session.
//!
//! If the gateways have addresses, one of them owns a session: requests are forwarded to it, and another one opens the session
//! only when the owner is gone. Otherwise every gateway that gets a request opens the session.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use toolcrib::protocol::json::object::Object;
use toolcrib::store::{
    OwnedKind, Replica, Store, StoreError, StoreKey, StoreKind, StoreReply, StoreResult, has_name_form,
};
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
    /// This gateway, if other replicas forward requests to it.
    replica: Option<Arc<Replica>>,
}

/// The result of opening a session again.
pub(crate) enum RestoredSession {
    Open(NewSession),
    /// There is no such session.
    Unknown,
    /// Another replica has opened it at the same time.
    OpenElsewhere,
}

/// Who has a session open, by its record.
pub(crate) struct RecordedOwner {
    /// The address of a replica; absent if any gateway may open the session.
    pub(crate) address: Option<Arc<str>>,
}

impl SharedSessions {
    /// Returns `None` if no other process uses the store.
    pub(super) fn new(store: &Arc<dyn Store>, replica: Option<&Arc<Replica>>) -> Option<Self> {
        if !store.is_shared() {
            return None;
        }
        let writer = encoding::random_hex()?.into();
        Some(Self { store: store.clone(), writer, replica: replica.cloned() })
    }

    /// Returns the id of a new session. It names this gateway if other replicas forward requests to it.
    pub(super) fn new_id(&self) -> Option<String> {
        match &self.replica {
            Some(replica) => replica.new_name(OwnedKind::Session),
            None => encoding::random_hex(),
        }
    }

    fn owner(&self) -> Option<Arc<str>> {
        self.replica.as_ref().map(|replica| replica.address().into())
    }

    pub(super) fn share(
        &self,
        client: SessionClientState,
        id: &str,
        params: Option<&Object>,
    ) -> SessionClientState {
        let writer = self.writer.clone();
        client.share(SharedSession::new(self.store.clone(), id.to_owned(), writer, self.owner(), params))
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

    /// Opens a session again from its record, for the same credential and endpoint. Of several replicas that do so at the same
    /// time, one succeeds. `memory` is what the session counts against.
    pub(crate) async fn restore(
        &self,
        service: &McpService,
        id: &str,
        scope: &EndpointScope,
        memory: MemoryClaim,
    ) -> Result<RestoredSession, StoreError> {
        let Some(shared) = &self.shared else { return Ok(RestoredSession::Unknown) };
        // Known here, but of another caller or ended.
        if !has_name_form(id) || self.contains(id) {
            return Ok(RestoredSession::Unknown);
        }
        let Some(stored) = shared.store.get(key(id)).wait().await? else {
            return Ok(RestoredSession::Unknown);
        };
        let record = SessionRecord::parse(&stored).filter(|record| record.is_session_of(scope));
        let Some(mut record) = record else { return Ok(RestoredSession::Unknown) };
        record.writer = shared.writer.clone();
        record.owner = shared.owner();
        let claimed = shared.store.replace(key(id), &stored, record.to_bytes(), Some(RECORD_TTL));
        // Without an address, several gateways may have the session open.
        if !claimed.wait().await? && shared.replica.is_some() {
            return Ok(RestoredSession::OpenElsewhere);
        }
        if shared.replica.is_some() {
            // The gateway that had the session open may still run.
            SessionNotice::Changed(id.to_owned()).publish(&shared.store).wait().await?;
        }
        let params = Some(&record.params);
        let client = SessionClientState::new(service, scope.clone().with_client(params), params, None);
        let client = shared.share(client, id, params);
        client.questions.start_elsewhere();
        client.apply_record(service, &record).await;
        let opened = self.insert_restored(id.to_owned(), client, memory);
        Ok(opened.map_or(RestoredSession::Unknown, RestoredSession::Open))
    }

    /// Returns who has a session of the same credential and endpoint open; `None` if there is no such session.
    pub(crate) async fn find_owner(
        &self,
        id: &str,
        scope: &EndpointScope,
    ) -> Result<Option<RecordedOwner>, StoreError> {
        let Some(shared) = &self.shared else { return Ok(None) };
        let record = shared.find_record(id).await?.filter(|record| record.is_session_of(scope));
        Ok(record.map(|record| RecordedOwner { address: record.owner }))
    }

    /// Returns whether there is a session with this id here, of any caller.
    pub(crate) fn contains(&self, id: &str) -> bool {
        self.state().sessions.contains_key(id)
    }

    /// Ends a session of the same credential and endpoint in every gateway; `false` if there is none.
    pub(crate) async fn end_everywhere(&self, id: &str, scope: &EndpointScope) -> Result<bool, StoreError> {
        let has_ended = self.end(id, scope);
        let Some(shared) = &self.shared else { return Ok(has_ended) };
        if !has_ended {
            if !has_name_form(id) || self.contains(id) {
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
            match record.owner.is_some() && shared.replica.is_some() {
                true => self.hand_over(id),
                false => session.client.apply_record(service, &record).await,
            }
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
        let renewals: Vec<PendingRenewal> = {
            let mut state = self.state();
            let last_renewal = state.last_renewal.replace(now);
            let used = state.sessions.iter().filter(|(_, session)| {
                !session.is_idle() || last_renewal.is_none_or(|last| session.last_used() >= last)
            });
            used.filter_map(|(id, session)| {
                let idle = if session.is_idle() { now - session.last_used() } else { Default::default() };
                let ttl = RECORD_TTL.saturating_sub(idle);
                let renewed = session.client.renew_record(ttl)?;
                Some(PendingRenewal { id: id.clone(), ttl, renewed })
            })
            .collect()
        };
        let mut result = Ok(());
        for PendingRenewal { id, ttl, renewed } in renewals {
            let renewed = match StoreReply::wait(renewed).await {
                Ok(true) => Ok(()),
                Ok(false) => self.recover_record(&id, ttl).await,
                Err(error) => Err(error),
            };
            result = result.and(renewed);
        }
        result
    }

    /// Acts on a record that is not the one of this gateway. A session that another replica has taken over, although its notice
    /// was lost, is left to it; a record that the store has lost is written again.
    async fn recover_record(&self, id: &str, ttl: Duration) -> Result<(), StoreError> {
        let Some(shared) = &self.shared else { return Ok(()) };
        let record = shared.find_record(id).await?;
        let is_taken = record.is_some_and(|record| record.owner.is_some() && record.writer != shared.writer);
        if is_taken && shared.replica.is_some() {
            self.hand_over(id);
            return Ok(());
        }
        let client = self.state().sessions.get(id).map(|session| session.client.clone());
        match client.and_then(|client| client.put_record(ttl)) {
            Some(stored) => stored.wait().await,
            None => Ok(()),
        }
    }
}

/// A record whose life is being extended.
struct PendingRenewal {
    id: String,
    ttl: Duration,
    renewed: StoreResult<bool>,
}

fn key(id: &str) -> StoreKey<'_> {
    StoreKey::new(StoreKind::Session, id)
}
