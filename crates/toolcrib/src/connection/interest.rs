//! What a server is asked to tell unasked: that its lists are others now, that resources have other contents, what it
//! logs. Each era has its own way to ask.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::Connection;
use crate::error::{Error, ErrorKind};
use crate::wire::dialect::greeting::refusal;
use crate::wire::dialect::party::LogLevel;
use crate::wire::message::Answer;
use crate::wire::object::{self, Object};
use crate::wire::revision::Era;

/// How long a stateless server may take to say that it listens.
const LISTENING: Duration = Duration::from_secs(5);
/// How long to wait before a server that ended its stream of news is asked for it again.
const AGAIN: Duration = Duration::from_secs(5);

/// What others want to hear of one server.
#[derive(Debug, Default)]
pub(super) struct Interest {
    /// Resources, and how many want to hear of each.
    wanted: watch::Sender<BTreeMap<Arc<str>, usize>>,
    /// The resources that a stateless server has said it tells about.
    heard: watch::Sender<BTreeSet<Arc<str>>>,
    /// How much a session-era server logs.
    level: Mutex<Option<LogLevel>>,
}

impl Connection {
    /// Has the server tell when a resource changes.
    pub(crate) async fn subscribe(&self, uri: &Arc<str>) -> Result<(), Error> {
        let mut first = false;
        self.interest.wanted.send_modify(|wanted| {
            let count = wanted.entry(uri.clone()).or_default();
            first = *count == 0;
            *count += 1;
        });
        if self.era() == Era::Stateless {
            let mut heard = self.interest.heard.subscribe();
            // A server that does not say that it listens may tell all the same.
            let _ = timeout(LISTENING, heard.wait_for(|heard| heard.contains(uri))).await;
            return Ok(());
        }
        let asked = if first { self.request_about(uri, "resources/subscribe").await } else { Ok(()) };
        if asked.is_err() {
            self.forget(uri);
        }
        asked
    }

    /// Nobody behind an earlier `subscribe` wants to hear of it any more.
    pub(crate) async fn unsubscribe(&self, uri: &Arc<str>) {
        if self.forget(uri) && self.era() == Era::Session {
            // A server that cannot forget goes on telling, and nobody listens.
            let _ = self.request_about(uri, "resources/unsubscribe").await;
        }
    }

    /// Takes one interest back; whether it was the last.
    fn forget(&self, uri: &Arc<str>) -> bool {
        let mut last = false;
        self.interest.wanted.send_modify(|wanted| {
            if let Some(count) = wanted.get_mut(uri) {
                *count -= 1;
                last = *count == 0;
            }
            wanted.retain(|_, count| *count > 0);
        });
        last
    }

    async fn request_about(&self, uri: &str, method: &str) -> Result<(), Error> {
        let mut params = Object::default();
        params.set("uri", object::string(uri));
        match self.request(method, params).await? {
            Answer::Result(_) => Ok(()),
            Answer::Error(error) => Err(Error::new(ErrorKind::Unknown, refusal(&error)).at(&self.server)),
        }
    }

    /// Has a session-era server log at least this much.
    pub(super) async fn log_at(&self, level: LogLevel) {
        if self.era() == Era::Stateless || !self.welcome.has("logging") {
            return;
        }
        {
            let mut now = self.interest.level.lock().unwrap_or_else(PoisonError::into_inner);
            if now.is_some_and(|now| now <= level) {
                return;
            }
            *now = Some(level);
        }
        let mut params = Object::default();
        params.set("level", object::string(level.as_str()));
        // A server that cannot do it logs as it likes; what is too much is not passed on.
        let _ = self.request("logging/setLevel", params).await;
    }

    /// Keeps a stateless server telling what changes, as long as there is anything to tell about.
    pub(crate) async fn keep_listening(&self) {
        let mut wanted = self.interest.wanted.subscribe();
        // Streams that another one takes the place of, kept until it does: nothing that changes in between is lost.
        let mut replaced = Vec::new();
        loop {
            let uris: BTreeSet<Arc<str>> = wanted.borrow_and_update().keys().cloned().collect();
            let Some(filter) = self.filter(&uris).filter(|_| self.era() == Era::Stateless) else {
                replaced.clear();
                if wanted.changed().await.is_err() {
                    return;
                }
                continue;
            };
            let mut params = Object::default();
            params.set("notifications", filter);
            let Ok(mut ticket) = self.ask("subscriptions/listen", &mut params, None) else { return };
            let acknowledged = self.link.acknowledged(ticket.id());
            let listening = async {
                if timeout(LISTENING, acknowledged).await.is_ok() {
                    self.interest.heard.send_replace(uris);
                }
                replaced.clear();
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = listening => {}
                changed = wanted.changed() => if changed.is_err() { return },
                _ = &mut ticket => {
                    sleep(AGAIN).await;
                    continue;
                }
            }
            replaced.push(ticket);
        }
    }

    fn tells_changes(&self, part: &str) -> bool {
        let capabilities = Object::parse(&self.welcome.capabilities).unwrap_or_default();
        let part = capabilities.get(part).and_then(|raw| Object::parse(raw).ok());
        part.is_some_and(|part| part.get("listChanged").is_some_and(|raw| &**raw == b"true"))
    }

    /// What to listen to; nothing if the server tells nothing.
    fn filter(&self, uris: &BTreeSet<Arc<str>>) -> Option<Bytes> {
        let mut filter = serde_json::Map::new();
        for (part, name) in [
            ("tools", "toolsListChanged"),
            ("prompts", "promptsListChanged"),
            ("resources", "resourcesListChanged"),
        ] {
            if self.tells_changes(part) {
                filter.insert(name.to_owned(), true.into());
            }
        }
        if !uris.is_empty() {
            filter.insert(
                "resourceSubscriptions".to_owned(),
                json!(uris.iter().map(|uri| &**uri).collect::<Vec<_>>()),
            );
        }
        (!filter.is_empty()).then(|| serde_json::Value::from(filter).to_string().into())
    }
}
