//! `SessionRecord`: everything that another gateway needs to continue a session.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use toolcrib::protocol::era::capabilities::LogLevel;
use toolcrib::protocol::json::object::Object;
use toolcrib::store::{Store, StoreKey, StoreKind, StoreResult};
use toolcrib::{Caller, ServerId};

use super::{CatalogScope, EndpointScope};

/// The time to live of a record: the idle timeout of a session and the time between two renewals.
pub(crate) const RECORD_TTL: Duration = Duration::from_secs(35 * 60);

/// The members of the client's first request that are needed to continue its session.
const KEPT_PARAMS: [&str; 3] = ["protocolVersion", "capabilities", "clientInfo"];

/// A session in the store.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SessionRecord {
    view: CatalogScope,
    caller: Caller,
    /// The credential that opened the session.
    credential: Arc<str>,
    /// The gateway that wrote the record last.
    pub(crate) writer: Arc<str>,
    /// The address of the replica that has the session open, if requests are forwarded to it.
    pub(crate) owner: Option<Arc<str>>,
    /// The parameters of the client's first request.
    pub(crate) params: Object,
    pub(crate) log_level: Option<LogLevel>,
    /// The URIs of the resources that the client has subscribed to.
    pub(crate) subscriptions: Vec<String>,
}

impl SessionRecord {
    /// Creates the record of a session that this process alone uses; `params` are those of the client's first request.
    pub(crate) fn new(
        scope: &EndpointScope,
        params: Object,
        log_level: Option<LogLevel>,
        subscriptions: Vec<String>,
    ) -> Self {
        Self {
            view: scope.view.clone(),
            caller: scope.caller().clone(),
            credential: scope.access.credential.clone(),
            writer: "".into(),
            owner: None,
            params,
            log_level,
            subscriptions,
        }
    }

    pub(crate) fn to_bytes(&self) -> Bytes {
        self.to_json().to_string().into()
    }

    /// Returns the record as JSON.
    pub(crate) fn to_json(&self) -> Value {
        let params: Value = serde_json::from_slice(&self.params.to_bytes()).unwrap_or_default();
        json!({
            "caller": self.caller.as_str(),
            "profile": self.caller.profile(),
            "server": self.view.server().map(ServerId::as_str),
            "credential": &*self.credential,
            "writer": &*self.writer,
            "owner": self.owner.as_deref(),
            "params": params,
            "logLevel": self.log_level.map(LogLevel::as_str),
            "subscriptions": self.subscriptions,
        })
    }

    /// Parses a record. Returns `None` for one of another version.
    pub(crate) fn parse(bytes: &Bytes) -> Option<Self> {
        Self::from_json(&serde_json::from_slice(bytes).ok()?)
    }

    /// Reads a record from JSON. Returns `None` for one of another version.
    pub(crate) fn from_json(record: &Value) -> Option<Self> {
        let caller = Caller::new(record["caller"].as_str()?);
        let caller = match record["profile"].as_str() {
            Some(profile) => caller.with_profile(profile),
            None => caller,
        };
        let view = match record["server"].as_str() {
            Some(server) => CatalogScope::One(server.parse().ok()?),
            None => CatalogScope::All,
        };
        let uris = record["subscriptions"].as_array()?.iter();
        Some(Self {
            view,
            caller,
            credential: record["credential"].as_str()?.into(),
            writer: record["writer"].as_str()?.into(),
            owner: record["owner"].as_str().map(Arc::from),
            params: Object::parse(&record["params"].to_string().into()).ok()?,
            log_level: record["logLevel"].as_str().and_then(LogLevel::parse),
            subscriptions: uris.map(|uri| uri.as_str().map(str::to_owned)).collect::<Option<_>>()?,
        })
    }

    /// Returns whether the session was opened with the same credential and at the same endpoint.
    pub(crate) fn is_session_of(&self, scope: &EndpointScope) -> bool {
        let caller = scope.caller();
        self.view == scope.view
            && self.caller == *caller
            && self.caller.profile() == caller.profile()
            && self.credential == scope.access.credential
    }
}

/// The end of the notice that a session has ended. Other notices are the id of a session that has changed.
const ENDED_SUFFIX: &str = "/ended";

/// A change of a session that another gateway announces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SessionNotice {
    Changed(String),
    Ended(String),
}

impl SessionNotice {
    /// Parses the name in a notice of the store.
    pub(crate) fn parse(name: &str) -> Self {
        match name.strip_suffix(ENDED_SUFFIX) {
            Some(id) => Self::Ended(id.to_owned()),
            None => Self::Changed(name.to_owned()),
        }
    }

    /// Announces the change to all gateways.
    pub(crate) fn publish(&self, store: &Arc<dyn Store>) -> StoreResult<()> {
        match self {
            Self::Changed(id) => store.publish(StoreKey::new(StoreKind::Session, id)),
            Self::Ended(id) => {
                store.publish(StoreKey::new(StoreKind::Session, &format!("{id}{ENDED_SUFFIX}")))
            }
        }
    }
}

/// A session that other gateways on the same store can continue.
#[derive(Debug)]
pub(crate) struct SharedSession {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) id: String,
    /// This gateway.
    pub(crate) writer: Arc<str>,
    /// The address of this gateway, if other replicas forward requests to it.
    owner: Option<Arc<str>>,
    /// The parameters of the client's first request.
    params: Object,
}

impl SharedSession {
    /// Creates the shared part of a session; `params` are those of the client's first request.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        id: String,
        writer: Arc<str>,
        owner: Option<Arc<str>>,
        params: Option<&Object>,
    ) -> Self {
        let mut params = params.cloned().unwrap_or_default();
        params.retain(|name| KEPT_PARAMS.contains(&name));
        // A copy, because a slice would keep the whole message in memory.
        let params = Object::parse(&Bytes::copy_from_slice(&params.to_bytes())).unwrap_or_default();
        Self { store, id, writer, owner, params }
    }

    fn key(&self) -> StoreKey<'_> {
        StoreKey::new(StoreKind::Session, &self.id)
    }

    /// Returns the record.
    pub(crate) fn record(
        &self,
        scope: &EndpointScope,
        log_level: Option<LogLevel>,
        subscriptions: Vec<String>,
    ) -> SessionRecord {
        SessionRecord {
            writer: self.writer.clone(),
            owner: self.owner.clone(),
            ..SessionRecord::new(scope, self.params.clone(), log_level, subscriptions)
        }
    }

    /// Writes the record.
    pub(crate) fn put(&self, record: &SessionRecord, ttl: Duration) -> StoreResult<()> {
        self.store.put(self.key(), record.to_bytes(), Some(ttl))
    }

    /// Extends the life of the record. Fails with `false` if the store has another one.
    pub(crate) fn renew(&self, record: &SessionRecord, ttl: Duration) -> StoreResult<bool> {
        let record = record.to_bytes();
        self.store.replace(self.key(), &record, record.clone(), Some(ttl))
    }

    /// Announces a change of the record to other gateways.
    pub(crate) fn publish(&self) -> StoreResult<()> {
        SessionNotice::Changed(self.id.clone()).publish(&self.store)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callers::AuthenticatedCaller;

    #[test]
    fn record_is_parsed_as_it_was_written() {
        let params =
            r#"{"protocolVersion":"2025-06-18","capabilities":{"roots":{}},"clientInfo":{"name":"t"}}"#;
        let all = EndpointScope::trusted(Caller::new("ci").with_profile("p"));
        let one = EndpointScope { view: CatalogScope::One("git".parse().unwrap()), ..EndpointScope::local() };
        let other_profile = EndpointScope::trusted(Caller::new("ci").with_profile("q"));
        let access = AuthenticatedCaller { credential: "other".into(), ..(*all.access).clone() };
        let other_credential = EndpointScope::all(Arc::new(access));
        let owner = Some("http://a:1".into());
        for (scope, log_level, owner) in [(&all, Some(LogLevel::Warning), owner), (&one, None, None)] {
            let record = SessionRecord {
                view: scope.view.clone(),
                caller: scope.caller().clone(),
                credential: scope.access.credential.clone(),
                writer: "w".into(),
                owner,
                params: Object::parse(&Bytes::from_static(params.as_bytes())).unwrap(),
                log_level,
                subscriptions: vec!["file:///a".to_owned(), "file:///b".to_owned()],
            };
            let parsed = SessionRecord::parse(&record.to_bytes()).unwrap();
            let members = |record: &SessionRecord| serde_json::from_slice::<Value>(&record.params.to_bytes());
            assert_eq!(members(&parsed).unwrap(), members(&record).unwrap());
            let scopes = [&all, &one, &other_profile, &other_credential];
            for other in scopes {
                assert_eq!(parsed.is_session_of(other), std::ptr::eq(other, scope), "{other:?}");
            }
            assert_eq!(SessionRecord { params: record.params.clone(), ..parsed }, record);
        }
        for invalid in ["", "{}", r#"{"caller":"a","credential":"c","writer":"w","params":{}}"#] {
            assert_eq!(SessionRecord::parse(&Bytes::from_static(invalid.as_bytes())), None, "{invalid}");
        }
    }
}
