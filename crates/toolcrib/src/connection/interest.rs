//! What a server is asked to tell unasked: that its lists are others now, that resources have other contents, what it
//! logs. Each era has its own way to ask.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::Connection;
use super::link::Ticket;
use crate::error::{Error, ErrorKind};
use crate::wire::dialect::client::{LISTEN, SET_LEVEL, SUBSCRIBE, UNSUBSCRIBE};
use crate::wire::dialect::greeting::refusal;
use crate::wire::dialect::party::LogLevel;
use crate::wire::message::Answer;
use crate::wire::object::{self, Object};
use crate::wire::revision::Era;

/// How long a stateless server may take to say that it listens.
const LISTENING: Duration = Duration::from_secs(5);
/// How long is waited for that by somebody who may come while it is asked on behalf of others.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to wait before a server that ended its stream of news is asked for it again.
const AGAIN: Duration = Duration::from_secs(5);

/// What others want to hear of one server.
#[derive(Debug, Default)]
pub(super) struct Interest {
    /// Resources, and how many want to hear of each.
    wanted: watch::Sender<BTreeMap<Arc<str>, usize>>,
    /// The resources that a stateless server was last asked about, and whether it said that it tells.
    heard: watch::Sender<BTreeMap<Arc<str>, bool>>,
    /// One at a time asks a session-era server to tell or not to tell.
    turn: tokio::sync::Mutex<()>,
    /// How much a session-era server logs.
    level: Mutex<Option<LogLevel>>,
}

impl Connection {
    /// Has the server tell when a resource changes.
    pub(crate) async fn subscribe(&self, uri: &Arc<str>) -> Result<(), Error> {
        if self.era() == Era::Stateless {
            self.want(uri);
            let mut heard = self.interest.heard.subscribe();
            let said = timeout(PATIENCE, heard.wait_for(|heard| heard.contains_key(uri))).await;
            if said.is_ok_and(|heard| heard.is_ok_and(|heard| heard.get(uri) == Some(&true))) {
                return Ok(());
            }
            self.forget(uri);
            let why = format!("it does not say that it tells of changes of `{uri}`");
            return Err(Error::new(ErrorKind::Unknown, why).at(&self.server));
        }
        let _turn = self.interest.turn.lock().await;
        if self.want(uri) {
            let asked = self.request_about(uri, SUBSCRIBE).await;
            if asked.is_err() {
                self.forget(uri);
            }
            return asked;
        }
        Ok(())
    }

    /// Nobody behind an earlier `subscribe` wants to hear of it any more.
    pub(crate) async fn unsubscribe(&self, uri: &Arc<str>) {
        let _turn = self.interest.turn.lock().await;
        if self.forget(uri) && self.era() == Era::Session {
            // A server that cannot forget goes on telling, and nobody listens.
            let _ = self.request_about(uri, UNSUBSCRIBE).await;
        }
    }

    /// Notes one more interest; whether it is the first.
    fn want(&self, uri: &Arc<str>) -> bool {
        let mut first = false;
        self.interest.wanted.send_modify(|wanted| {
            let count = wanted.entry(uri.clone()).or_default();
            first = *count == 0;
            *count += 1;
        });
        first
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
        if last {
            self.interest.heard.send_if_modified(|heard| heard.remove(uri).is_some());
        }
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
        let _ = self.request(SET_LEVEL, params).await;
    }

    /// Keeps a stateless server telling what changes, as long as there is anything to tell about; ends with the
    /// connection. When the wishes change, the old stream is kept until the server listens to the new ones.
    pub(crate) async fn keep_listening(&self) {
        let mut wanted = self.interest.wanted.subscribe();
        let mut before: Option<Ticket> = None;
        while !self.is_closed() {
            let uris: BTreeSet<Arc<str>> = wanted.borrow_and_update().keys().cloned().collect();
            let Some(filter) = self.filter(&uris).filter(|_| self.era() == Era::Stateless) else {
                before = None;
                // The sender lives as long as we do.
                let _ = wanted.changed().await;
                continue;
            };
            let mut params = Object::default();
            params.set("notifications", filter);
            let Ok(mut ticket) = self.ask(LISTEN, &mut params, None) else {
                sleep(AGAIN).await;
                continue;
            };
            let acknowledged = self.link.acknowledged(ticket.id());
            let listening = async {
                let said = timeout(LISTENING, acknowledged).await.ok().flatten();
                before = None;
                let taken = said.as_ref().map(taken).unwrap_or_default();
                let heard = uris.iter().map(|uri| (uri.clone(), taken.contains(&**uri)));
                self.interest.heard.send_replace(heard.collect());
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = listening => {}
                _ = wanted.changed() => before = Some(ticket),
                ended = &mut ticket => match ended {
                    // It does not know how, and will not learn it by being asked again.
                    Ok(Answer::Error(_)) => {
                        let heard = uris.iter().map(|uri| (uri.clone(), false));
                        self.interest.heard.send_replace(heard.collect());
                        drop(wanted.changed().await);
                    }
                    _ => sleep(AGAIN).await,
                },
            }
        }
        drop(before);
    }

    pub(super) fn tells_changes(&self, part: &str) -> bool {
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

/// The resources that a server says it listens to.
fn taken(said: &Bytes) -> BTreeSet<String> {
    let notifications =
        Object::parse(said).ok().and_then(|said| Object::parse(said.get("notifications")?).ok());
    let uris = notifications.and_then(|taken| object::elements(taken.get("resourceSubscriptions")?).ok());
    let uris = uris.unwrap_or_default();
    uris.iter().filter_map(|raw| object::as_string(raw)).map(Cow::into_owned).collect()
}
