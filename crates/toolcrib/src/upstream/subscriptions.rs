//! Subscriptions to a server's list changes, resource updates and log messages. Each era has its own way to
//! subscribe.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::Connection;
use super::mux::PendingReply;
use crate::model::error::{Error, ErrorKind};
use crate::protocol::era::capabilities::LogLevel;
use crate::protocol::era::client::{LISTEN, SET_LEVEL, SUBSCRIBE, UNSUBSCRIBE};
use crate::protocol::era::handshake::error_message;
use crate::protocol::json::object::{self, Object};
use crate::protocol::jsonrpc::ResponsePayload;
use crate::protocol::versions::Era;
use crate::util::locks::IgnorePoison as _;
use crate::util::maps::collect_map;

/// Time limit for a stateless server to acknowledge a listen request.
const ACK_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a subscriber to get the acknowledgement; longer, because it may have to wait for a listen request
/// in progress.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay before a listen stream that ended is opened again. It doubles while streams end early.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Longest delay before a listen stream is opened again.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);
/// A listen stream that stayed open this long did not end early.
const STABLE_AFTER: Duration = Duration::from_secs(10);

/// The clients' subscriptions at one server.
#[derive(Debug, Default)]
pub(super) struct ResourceSubscriptions {
    /// Resources and their number of subscribers.
    subscribers: watch::Sender<BTreeMap<Arc<str>, usize>>,
    /// The resources of the last listen request, and whether the server accepted each.
    acknowledged: watch::Sender<BTreeMap<Arc<str>, bool>>,
    /// Serializes subscribe and unsubscribe requests to a session-era server.
    request_lock: tokio::sync::Mutex<()>,
    /// The log level set at a session-era server.
    log_level: Mutex<Option<LogLevel>>,
}

impl Connection {
    /// Subscribes to updates of a resource.
    ///
    /// # Errors
    ///
    /// Fails if the server does not accept the subscription.
    pub(crate) async fn subscribe(&self, uri: &Arc<str>) -> Result<(), Error> {
        if self.era() == Era::Stateless {
            self.add_subscriber(uri);
            let mut acks = self.subscriptions.acknowledged.subscribe();
            let ack = timeout(SUBSCRIBE_TIMEOUT, acks.wait_for(|acks| acks.contains_key(uri))).await;
            if ack.is_ok_and(|acks| acks.is_ok_and(|acks| acks.get(uri) == Some(&true))) {
                return Ok(());
            }
            self.remove_subscriber(uri);
            let reason = format!("it does not confirm the subscription to `{uri}`");
            return Err(Error::new(ErrorKind::Unknown, reason).with_server(&self.server).mark_maybe_sent());
        }
        let _guard = self.subscriptions.request_lock.lock().await;
        if self.add_subscriber(uri) {
            let result = self.request_for_uri(uri, SUBSCRIBE).await;
            if result.is_err() {
                self.remove_subscriber(uri);
            }
            return result;
        }
        Ok(())
    }

    /// Removes one subscriber, and the subscription at the server with the last one.
    pub(crate) async fn unsubscribe(&self, uri: &Arc<str>) {
        let _guard = self.subscriptions.request_lock.lock().await;
        if self.remove_subscriber(uri) && self.era() == Era::Session {
            // If this fails, further updates are ignored.
            let _ = self.request_for_uri(uri, UNSUBSCRIBE).await;
        }
    }

    /// Adds a subscriber; returns whether it is the first.
    fn add_subscriber(&self, uri: &Arc<str>) -> bool {
        let mut first = false;
        self.subscriptions.subscribers.send_modify(|subscribers| {
            let count = subscribers.entry(uri.clone()).or_default();
            first = *count == 0;
            *count += 1;
        });
        first
    }

    /// Removes a subscriber; returns whether it was the last.
    fn remove_subscriber(&self, uri: &Arc<str>) -> bool {
        let mut last = false;
        self.subscriptions.subscribers.send_modify(|subscribers| {
            if let Some(count) = subscribers.get_mut(uri) {
                *count -= 1;
                last = *count == 0;
            }
            subscribers.retain(|_, count| *count > 0);
        });
        if last {
            self.subscriptions
                .acknowledged
                .send_if_modified(|acknowledged| acknowledged.remove(uri).is_some());
        }
        last
    }

    async fn request_for_uri(&self, uri: &str, method: &str) -> Result<(), Error> {
        let mut params = Object::default();
        params.set_unchecked("uri", object::to_json_string(uri));
        match self.request(method, params).await? {
            ResponsePayload::Result(_) => Ok(()),
            ResponsePayload::Error(error) => {
                let refusal = Error::new(ErrorKind::Unknown, error_message(&error)).with_server(&self.server);
                Err(refusal.with_server_error(error))
            }
        }
    }

    /// Makes a session-era server log at `level` or more.
    pub(super) async fn raise_log_level(&self, level: LogLevel) {
        if self.era() == Era::Stateless || !self.handshake.has_capability("logging") {
            return;
        }
        // Other clients of a shared server set no level, and still want more than errors.
        let level = if self.is_shared { level.min(LogLevel::Info) } else { level };
        {
            let mut current = self.subscriptions.log_level.lock().ignore_poison();
            if current.is_some_and(|current| current <= level) {
                return;
            }
            *current = Some(level);
        }
        self.mux.mark_log_level_set();
        let mut params = Object::default();
        params.set_unchecked("level", object::to_json_string(level.as_str()));
        // If this fails, the server logs at its own level and the gateway filters.
        let _ = self.request(SET_LEVEL, params).await;
    }

    /// Keeps a listen stream open at a stateless server while there is anything to listen to; returns when the
    /// connection closes. When the subscriptions change, the previous stream stays open until the server acknowledges
    /// the new one.
    pub(crate) async fn run_listen_stream(&self) {
        let mut subscribers = self.subscriptions.subscribers.subscribe();
        let mut previous: Option<PendingReply> = None;
        let mut retry_delay = FIRST_RETRY_DELAY;
        while !self.is_closed() {
            let uris: BTreeSet<Arc<str>> = subscribers.borrow_and_update().keys().cloned().collect();
            let Some(filter) = self.listen_filter(&uris).filter(|_| self.era() == Era::Stateless) else {
                previous = None;
                // `self` holds the sender, so this cannot fail.
                let _ = subscribers.changed().await;
                continue;
            };
            let mut params = Object::default();
            params.set_unchecked("notifications", filter);
            let Ok(mut stream) = self.send_request(LISTEN, &mut params, None, None) else {
                sleep(MAX_RETRY_DELAY).await;
                continue;
            };
            let opened = Instant::now();
            let ack_received = self.mux.wait_acknowledged(stream.id());
            let listening = async {
                let ack = timeout(ACK_TIMEOUT, ack_received).await.ok().flatten();
                if previous.take().is_none() {
                    // Before the stream was open, announcements were lost.
                    self.mux.relist_queue().report_missed();
                }
                let accepted = ack.as_ref().map(acknowledged_uris).unwrap_or_default();
                let acknowledged = uris.iter().map(|uri| (uri.clone(), accepted.contains(&**uri)));
                self.subscriptions.acknowledged.send_replace(collect_map(acknowledged));
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = listening => {}
                _ = subscribers.changed() => previous = Some(stream),
                end = &mut stream => match end {
                    // The server does not support listening; retrying would not help.
                    Ok(ResponsePayload::Error(_)) => {
                        let acknowledged = uris.iter().map(|uri| (uri.clone(), false));
                        self.subscriptions.acknowledged.send_replace(collect_map(acknowledged));
                        drop(subscribers.changed().await);
                    }
                    _ => {
                        previous = None;
                        if opened.elapsed() >= STABLE_AFTER {
                            retry_delay = FIRST_RETRY_DELAY;
                        }
                        sleep(retry_delay).await;
                        retry_delay = (retry_delay * 2).min(MAX_RETRY_DELAY);
                    }
                },
            }
        }
        drop(previous);
    }

    pub(crate) fn announces_list_changes(&self, part: &str) -> bool {
        let capabilities = Object::parse(&self.handshake.capabilities).unwrap_or_default();
        let part = capabilities.get(part).and_then(|raw| Object::parse(raw).ok());
        part.is_some_and(|part| part.get("listChanged").is_some_and(|raw| &**raw == b"true"))
    }

    /// Returns the filter of the listen request; `None` if there is nothing to listen to.
    fn listen_filter(&self, uris: &BTreeSet<Arc<str>>) -> Option<Bytes> {
        let mut filter = serde_json::Map::new();
        for (part, name) in [
            ("tools", "toolsListChanged"),
            ("prompts", "promptsListChanged"),
            ("resources", "resourcesListChanged"),
        ] {
            if self.announces_list_changes(part) {
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

/// Returns the resources that an acknowledgement accepts.
fn acknowledged_uris(ack: &Bytes) -> BTreeSet<String> {
    let notifications = Object::parse(ack).ok().and_then(|ack| Object::parse(ack.get("notifications")?).ok());
    let uris = notifications
        .and_then(|notifications| object::parse_array(notifications.get("resourceSubscriptions")?).ok());
    let uris = uris.unwrap_or_default();
    uris.iter().filter_map(|raw| object::as_string(raw)).map(Cow::into_owned).collect()
}
