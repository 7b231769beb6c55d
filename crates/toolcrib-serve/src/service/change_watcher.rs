//! Watches for changes that clients are notified of, and encodes the notifications.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, sleep_until};
use toolcrib::model::event::ServerNotification;
use toolcrib::protocol::era::client::{
    LOG_MESSAGE, PROMPTS_CHANGED, RESOURCE_UPDATED, RESOURCES_CHANGED, TOOLS_CHANGED,
};
use toolcrib::protocol::era::meta;
use toolcrib::protocol::json::object::{Object, to_json_string};
use toolcrib::protocol::jsonrpc::{RequestId, encode_notification};
use toolcrib::{Catalog, ListKind, ServerId, Subscription};

use super::catalog_digest::ListDigests;
use super::{CatalogScope, EndpointScope, McpService};

/// Shortest time between two notifications of one client about changed lists. A client that asks for a list may cause the
/// next change: some servers list something else every time.
const LIST_CHANGE_INTERVAL: Duration = Duration::from_millis(500);

/// A change that clients may be notified of.
#[derive(Debug)]
pub(crate) enum ChangeEvent {
    /// Digests of the current lists.
    Lists(ListDigests),
    /// A notification of a server.
    Notification(ServerNotification),
    /// Notifications were dropped because this watcher was too slow; any resource may have changed.
    Lagged,
}

/// Selects and encodes the changes that one client is notified of.
pub(crate) trait ChangeSink: Send {
    /// Returns the messages to the client, if any.
    fn encode_change(&mut self, event: &ChangeEvent) -> Vec<Vec<u8>>;
}

/// Waits for changes on behalf of one client.
pub(crate) struct ChangeWatcher {
    service: Arc<McpService>,
    scope: EndpointScope,
    catalog: watch::Receiver<Arc<Catalog>>,
    notifications: broadcast::Receiver<ServerNotification>,
    /// When the client may be notified of changed lists again.
    lists_after: Instant,
}

impl ChangeWatcher {
    /// Creates a watcher whose first event is the current state of the lists.
    pub(crate) fn new(service: Arc<McpService>, scope: EndpointScope) -> Self {
        let mut catalog = service.crib.watch_catalog();
        catalog.mark_changed();
        let notifications = service.crib.notifications();
        Self { service, scope, catalog, notifications, lists_after: Instant::now() }
    }

    /// Waits for the next change; `None` when the crib has shut down.
    pub(crate) async fn next(&mut self) -> Option<ChangeEvent> {
        loop {
            let lists_after = self.lists_after;
            let catalog_changed = async {
                // Even a timer in the past waits for the next tick.
                if Instant::now() < lists_after {
                    sleep_until(lists_after).await;
                }
                self.catalog.changed().await
            };
            let received = tokio::select! {
                biased;
                changed = catalog_changed => {
                    changed.ok()?;
                    return Some(ChangeEvent::Lists(self.service.list_digests(&self.scope)));
                }
                received = self.notifications.recv() => received,
            };
            return match received {
                Ok(ServerNotification::ListChanged { server, .. })
                    if !self.scope.can_see(&self.service.crib, &server) =>
                {
                    continue;
                }
                Ok(notification) => Some(ChangeEvent::Notification(notification)),
                Err(RecvError::Lagged(_)) => Some(ChangeEvent::Lagged),
                Err(RecvError::Closed) => None,
            };
        }
    }

    /// Waits for the next messages of `sink`; `None` when the crib has shut down.
    pub(crate) async fn next_messages(&mut self, sink: &mut impl ChangeSink) -> Option<Vec<Vec<u8>>> {
        loop {
            let event = self.next().await?;
            let messages = sink.encode_change(&event);
            if !messages.is_empty() {
                if matches!(event, ChangeEvent::Lists(_)) {
                    self.lists_after = Instant::now() + LIST_CHANGE_INTERVAL;
                }
                return Some(messages);
            }
        }
    }
}

/// Encodes parameters whose `_meta` names the request that opened the listen stream.
pub(crate) fn tagged_params(
    request_id: &RequestId,
    members: impl IntoIterator<Item = (&'static str, Bytes)>,
) -> Bytes {
    let mut meta = Object::default();
    meta.set_unchecked(meta::SUBSCRIPTION_ID, request_id.as_bytes().to_vec());
    let mut params = Object::default();
    params.set_unchecked("_meta", meta.to_bytes());
    members.into_iter().for_each(|(key, value)| params.set_unchecked(key, value));
    params.to_bytes()
}

/// Encodes the notification that a list has changed; `list` is an index into [`ListDigests`].
pub(crate) fn encode_list_changed(list: usize, tag: Option<&RequestId>) -> Vec<u8> {
    let method = [TOOLS_CHANGED, PROMPTS_CHANGED, RESOURCES_CHANGED][list];
    encode_notification(method, tag.map(|request_id| tagged_params(request_id, [])).as_deref())
}

/// Encodes the notifications that these lists have changed, for the lists that are `announced`.
pub(crate) fn encode_lists_changed(
    changed: &[ListKind],
    announced: [bool; 3],
    tag: Option<&RequestId>,
) -> Vec<Vec<u8>> {
    let has_changed = |list: usize| changed.iter().any(|kind| list_index(*kind) == list);
    let lists = (0..announced.len()).filter(|list| announced[*list] && has_changed(*list));
    lists.map(|list| encode_list_changed(list, tag)).collect()
}

/// Returns the index of a list in [`ListDigests`].
pub(crate) fn list_index(kind: ListKind) -> usize {
    match kind {
        ListKind::Tools => 0,
        ListKind::Prompts => 1,
        _ => 2,
    }
}

/// Encodes notifications for the subscribed resources that have changed, or may have.
pub(crate) fn encode_resource_updates(
    subscriptions: &[Subscription],
    event: &ChangeEvent,
    tag: Option<&RequestId>,
) -> Vec<Vec<u8>> {
    let details = match event {
        ChangeEvent::Notification(ServerNotification::ResourceUpdated { details, .. }) => details.as_ref(),
        _ => None,
    };
    let updated_uri = |subscription| match event {
        ChangeEvent::Notification(notification) => Subscription::updated_uri(subscription, notification),
        ChangeEvent::Lagged => Some(Cow::Borrowed(subscription.uri())),
        ChangeEvent::Lists(_) => None,
    };
    let uris = subscriptions.iter().filter_map(updated_uri);
    uris.map(|uri| encode_resource_updated(&uri, details, tag)).collect()
}

/// Encodes the notification that a resource has changed. `details` are the other parameters, as the server sent them.
fn encode_resource_updated(uri: &str, details: Option<&Bytes>, tag: Option<&RequestId>) -> Vec<u8> {
    let details = details.and_then(|details| Object::parse(details).ok()).unwrap_or_default();
    let mut params = Object::default();
    params.set_unchecked("uri", to_json_string(uri));
    let mut bytes = params.to_bytes().to_vec();
    if !details.is_empty() {
        bytes.pop();
        bytes.push(b',');
        bytes.extend_from_slice(&details.to_bytes()[1..]);
    }
    let params = match tag {
        None => bytes.into(),
        Some(request_id) => add_tag(&bytes.into(), request_id),
    };
    encode_notification(RESOURCE_UPDATED, Some(&params))
}

/// Adds the request that opened the listen stream to the `_meta` of parameters.
fn add_tag(params: &Bytes, request_id: &RequestId) -> Bytes {
    let mut params = Object::parse(params).unwrap_or_default();
    let meta = params.get("_meta").and_then(|raw| Object::parse(raw).ok());
    let mut meta = meta.unwrap_or_default();
    meta.set_unchecked(meta::SUBSCRIPTION_ID, request_id.as_bytes().to_vec());
    params.set_unchecked("_meta", meta.to_bytes());
    params.to_bytes()
}

/// Encodes a log message. At the endpoint for all servers, the logger name is prefixed with the server.
pub(crate) fn encode_log(view: &CatalogScope, server: &ServerId, params: &Bytes) -> Vec<u8> {
    match Object::parse(params) {
        Ok(mut params) if *view == CatalogScope::All => {
            let logger = match params.get_string("logger") {
                Some(logger) => format!("{server}/{logger}"),
                None => server.to_string(),
            };
            params.set_unchecked("logger", to_json_string(&logger));
            encode_notification(LOG_MESSAGE, Some(&params.to_bytes()))
        }
        _ => encode_notification(LOG_MESSAGE, Some(params)),
    }
}

#[cfg(test)]
mod tests {
    use toolcrib::Crib;

    use super::*;

    #[tokio::test]
    async fn slow_watcher_is_told_that_it_lagged() {
        let service = Arc::new(McpService::new(Crib::builder().build().unwrap()));
        let (sender, notifications) = broadcast::channel(2);
        let mut watcher =
            ChangeWatcher { notifications, ..ChangeWatcher::new(service, EndpointScope::local()) };
        for uri in ["a:1", "a:2", "a:3"] {
            let updated = ServerNotification::ResourceUpdated {
                server: "git".parse().unwrap(),
                instance: toolcrib::InstanceKey::Shared,
                uri: uri.into(),
                details: None,
            };
            sender.send(updated).unwrap();
        }
        assert!(matches!(watcher.next().await, Some(ChangeEvent::Lists(_))));
        assert!(matches!(watcher.next().await, Some(ChangeEvent::Lagged)));
        assert!(
            matches!(watcher.next().await, Some(ChangeEvent::Notification(ServerNotification::ResourceUpdated { uri, .. })) if &*uri == "a:2")
        );
    }
}
