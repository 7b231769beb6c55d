//! Listen streams of stateless clients, over HTTP and on pipes.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::Value;
use toolcrib::Subscription;
use toolcrib::model::event::ServerNotification;
use toolcrib::protocol::era::client::{SUBSCRIBE, SUBSCRIPTION_ACKNOWLEDGED};
use toolcrib::protocol::era::{IMPLEMENTATION, meta};
use toolcrib::protocol::json::object::{Object, as_string, parse_array};
use toolcrib::protocol::jsonrpc::{RequestId, ResponsePayload, code, encode_notification};

use super::catalog_digest::{ListDigests, UNREAD_LIST};
use super::change_watcher::{
    ChangeEvent, ChangeSink, encode_list_changed, encode_lists_changed, encode_resource_updates,
    tagged_params,
};
use super::{MAX_SUBSCRIPTIONS, McpService, RequestContext, reject};

/// The lists whose changes can be announced: member name in the request, and the capability behind it.
const LISTS: [(&str, &str); 3] =
    [("toolsListChanged", "tools"), ("promptsListChanged", "prompts"), ("resourcesListChanged", "resources")];

/// A stream of the notifications that its client asked for.
pub(crate) struct ListenStream {
    /// Id of the request that opened the stream; tags every notification.
    request_id: RequestId,
    lists: [bool; 3],
    last_digests: ListDigests,
    subscriptions: Vec<Subscription>,
}

impl McpService {
    /// Opens a listen stream for those requested notifications that the scope offers.
    pub(crate) async fn listen(
        &self,
        context: &RequestContext,
        request_id: &RequestId,
        params: Option<&Object>,
    ) -> Result<ListenStream, ResponsePayload> {
        let Some(Ok(requested)) = params.and_then(|params| params.get("notifications")).map(Object::parse)
        else {
            return Err(reject(code::INVALID_PARAMS, "`params.notifications` must be an object"));
        };
        let scope = &context.scope;
        let offered = self.stateless_capabilities(scope).await;
        let last_digests = self.list_digests(scope);
        let is_announced = |(member, capability): (&str, &str)| {
            requested.get(member).is_some_and(|raw| &**raw == b"true") && offered[capability].is_object()
        };
        let lists = LISTS.map(is_announced);
        let uris = match requested.get("resourceSubscriptions").filter(|_| has_subscriptions(&offered)) {
            None => Vec::new(),
            Some(raw) => parse_array(raw)
                .map_err(|bad| reject(code::INVALID_PARAMS, &format!("`resourceSubscriptions`: {bad}")))?,
        };
        let uris = uris.iter().filter_map(|raw| as_string(raw)).take(MAX_SUBSCRIPTIONS);
        let call = |uri: Cow<'_, str>| {
            context.clone().call(SUBSCRIBE.into(), scope.view.resource_selector(&uri), Object::default())
        };
        let subscriptions = self.crib.subscribe_all(uris.map(call)).await;
        Ok(ListenStream { request_id: request_id.clone(), lists, last_digests, subscriptions })
    }
}

/// Returns whether resource subscriptions are offered.
fn has_subscriptions(offered: &Value) -> bool {
    offered["resources"]["subscribe"] == true
}

impl ListenStream {
    /// Returns the first message, which lists the accepted notifications.
    pub(crate) fn acknowledgement(&self) -> Vec<u8> {
        let mut accepted = serde_json::Map::new();
        for ((member, _), _) in LISTS.iter().zip(self.lists).filter(|(_, is_announced)| *is_announced) {
            accepted.insert((*member).to_owned(), true.into());
        }
        if !self.subscriptions.is_empty() {
            let uris: Vec<&str> = self.subscriptions.iter().map(Subscription::uri).collect();
            accepted.insert("resourceSubscriptions".to_owned(), uris.into());
        }
        let accepted = Bytes::from(Value::Object(accepted).to_string());
        encode_notification(
            SUBSCRIPTION_ACKNOWLEDGED,
            Some(&tagged_params(&self.request_id, [("notifications", accepted)])),
        )
    }

    /// Returns whether nothing was accepted.
    pub(crate) fn is_empty(&self) -> bool {
        self.lists == [false; 3] && self.subscriptions.is_empty()
    }

    /// Returns the response to the request that opened the stream, which ends it.
    pub(crate) fn final_response(&self) -> ResponsePayload {
        final_response(&self.request_id)
    }
}

/// Returns the response to a request that opened a listen stream.
pub fn final_response(request_id: &RequestId) -> ResponsePayload {
    let request_id = String::from_utf8_lossy(request_id.as_bytes());
    let key = meta::SUBSCRIPTION_ID;
    let info_key = meta::SERVER_INFO;
    let result = format!(
        r#"{{"resultType":"complete","_meta":{{"{key}":{request_id},"{info_key}":{IMPLEMENTATION}}}}}"#
    );
    ResponsePayload::Result(result.into())
}

impl ChangeSink for ListenStream {
    fn encode_change(&mut self, event: &ChangeEvent) -> Vec<Vec<u8>> {
        let tag = Some(&self.request_id);
        match event {
            ChangeEvent::Lists(current) => {
                let last = self.last_digests;
                let has_changed = |list: &usize| last[*list] != current[*list] && last[*list] != UNREAD_LIST;
                let changed = (0..current.len()).filter(|list| self.lists[*list] && has_changed(list));
                let messages = changed.map(|list| encode_list_changed(list, tag)).collect();
                self.last_digests = *current;
                messages
            }
            ChangeEvent::Notification(ServerNotification::ListChanged { lists, .. }) => {
                encode_lists_changed(lists, self.lists, tag)
            }
            ChangeEvent::Notification(ServerNotification::ResourceUpdated { .. }) | ChangeEvent::Lagged => {
                encode_resource_updates(&self.subscriptions, event, tag)
            }
            ChangeEvent::Notification(_) => Vec::new(),
        }
    }
}
