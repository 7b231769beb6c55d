//! The client state of a session, over HTTP and on pipes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde_json::json;
use tokio_util::task::TaskTracker;
use toolcrib::model::event::ServerNotification;
use toolcrib::protocol::era::capabilities::{ClientCapabilities, LogLevel};
use toolcrib::protocol::era::client::{
    self, CANCELLED, PROGRESS, ROOTS_CHANGED, SET_LEVEL, SUBSCRIBE, TASK_STATUS, UNSUBSCRIBE,
};
use toolcrib::protocol::era::handshake::declares_capability;
use toolcrib::protocol::json::object::{Object, to_json_string};
use toolcrib::protocol::jsonrpc::{ClientMessage, RequestId, ResponsePayload, code, encode_notification};
use toolcrib::protocol::versions::{Era, Revision};
use toolcrib::store::StoreResult;
use toolcrib::util::clock::wall_time;
use toolcrib::util::locks::IgnorePoison as _;
use toolcrib::{
    Call, Catalog, Client, ClientContext, Error, ErrorKind, InstanceKey, ListKind, Project, Selector,
    ServerId, Subscription,
};

use super::catalog_digest::{ListDigests, REFUSED_LIST, UNREAD_LIST};
use super::change_watcher::{
    ChangeEvent, ChangeSink, encode_list_changed, encode_lists_changed, encode_log, encode_resource_updates,
    list_index,
};
use super::in_flight::{CancelRequest, InFlight};
use super::session_record::{RECORD_TTL, SessionRecord, SharedSession};
use super::updates::{IdleUpdateWriter, MessageSink, PendingQuestions, UpdateReceiver, UpdateWriter};
use super::{
    CatalogScope, ClientHandle, EndpointScope, MAX_SUBSCRIPTIONS, McpService, RequestContext, reject,
};

/// The client of one session: its capabilities, subscriptions, questions and requests.
#[derive(Debug)]
pub(crate) struct SessionClientState {
    pub(crate) scope: EndpointScope,
    pub(crate) revision: Revision,
    /// The version of the client program, if it is known.
    pub(crate) version: Option<Arc<str>>,
    /// The name and version of the client program, as JSON.
    info: Option<Bytes>,
    /// When the session was opened here.
    pub(crate) since: SystemTime,
    handle: ClientHandle,
    capabilities: ClientCapabilities,
    log_level: Mutex<Option<LogLevel>>,
    /// Digests of the lists that the client has last seen or been notified of.
    last_digests: Mutex<ListDigests>,
    /// Requests for each of these lists that are in progress.
    lists_in_progress: [AtomicUsize; 3],
    subscriptions: Mutex<Vec<Subscription>>,
    pub(crate) questions: Arc<PendingQuestions>,
    /// Sends questions to the client while none of its requests is in progress.
    pub(crate) idle_updates: Arc<IdleUpdateWriter>,
    client_context: Arc<ClientContext>,
    /// The client's requests in progress.
    pub(crate) in_flight: InFlight<Arc<dyn CancelRequest>>,
    /// The part that other gateways know, if they use the same store.
    shared: Option<Box<SharedSession>>,
}

impl SessionClientState {
    /// Creates the state of a new session from the parameters of `initialize`.
    pub(crate) fn new(
        service: &McpService,
        scope: EndpointScope,
        initialize: Option<&Object>,
        project: Option<Project>,
    ) -> Self {
        let declared = initialize.and_then(|params| params.get("capabilities"));
        let last_digests = service.list_digests(&scope);
        let capabilities = declared.map(ClientCapabilities::parse).unwrap_or_default();
        let questions = Arc::<PendingQuestions>::default();
        let idle_updates = Arc::new(IdleUpdateWriter::new(questions.clone()));
        let client_context = ClientContext::default()
            .capabilities(capabilities.clone())
            .update_sink(idle_updates.clone())
            .project(project);
        let state = Self {
            scope,
            revision: client::negotiate_revision(initialize),
            version: client::client_version(initialize),
            info: client::client_info(initialize),
            since: wall_time(),
            handle: service.connect_client(),
            capabilities,
            log_level: Mutex::default(),
            last_digests: Mutex::new(last_digests),
            lists_in_progress: Default::default(),
            subscriptions: Mutex::default(),
            questions,
            idle_updates,
            client_context: Arc::new(client_context),
            in_flight: InFlight::default(),
            shared: None,
        };
        if let CatalogScope::One(server) = &state.scope.view {
            let RequestContext { client, .. } = state.request_context(true);
            service.crib.client_connected(server, &client, &state.client_context);
        }
        state
    }

    /// Returns the number in the records of its calls.
    pub(crate) fn key(&self) -> u64 {
        self.handle.key
    }

    /// Sets the id of the session, for the spans of its calls.
    pub(crate) fn set_session_id(&self, id: &str) {
        self.client_context.set_session_id(id);
    }

    /// Returns the capabilities that the client declared.
    pub(crate) fn capabilities(&self) -> &ClientCapabilities {
        &self.capabilities
    }

    /// Lets other gateways continue the session.
    pub(crate) fn share(self, shared: SharedSession) -> Self {
        Self { shared: Some(Box::new(shared)), ..self }
    }

    /// Returns whether other gateways can continue the session.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Writes the record for other gateways. Returns `None` if there are none.
    pub(crate) fn put_record(&self, ttl: Duration) -> Option<StoreResult<()>> {
        let shared = self.shared.as_ref()?;
        Some(shared.put(&self.shared_record(shared), ttl))
    }

    /// Extends the life of the record for other gateways. Returns `None` if there are none.
    pub(crate) fn renew_record(&self, ttl: Duration) -> Option<StoreResult<bool>> {
        let shared = self.shared.as_ref()?;
        Some(shared.renew(&self.shared_record(shared), ttl))
    }

    fn shared_record(&self, shared: &SharedSession) -> SessionRecord {
        let log_level = *self.log_level.lock().ignore_poison();
        shared.record(&self.scope, log_level, self.subscribed_uris())
    }

    /// Returns the record with which another process can continue the session.
    pub(crate) fn to_record(&self) -> SessionRecord {
        let client_info =
            json!({"name": self.scope.client_name.as_deref(), "version": self.version.as_deref()});
        let mut params = Object::default();
        params.set_unchecked("protocolVersion", to_json_string(self.revision.as_str()));
        params.set_unchecked("capabilities", self.capabilities.as_json().clone());
        params.set_unchecked("clientInfo", client_info.to_string());
        let log_level = *self.log_level.lock().ignore_poison();
        SessionRecord::new(&self.scope, params, log_level, self.subscribed_uris())
    }

    /// Returns the URIs of the resources that the client has subscribed to.
    pub(crate) fn subscribed_uris(&self) -> Vec<String> {
        let subscriptions = self.subscriptions.lock().ignore_poison();
        subscriptions.iter().map(|subscription| subscription.uri().to_owned()).collect()
    }

    /// Returns the lowest log level that the client wants.
    #[cfg(test)]
    pub(crate) fn log_level(&self) -> Option<LogLevel> {
        *self.log_level.lock().ignore_poison()
    }

    /// Takes over the log level and the subscriptions of a record. Subscriptions that fail are left out.
    pub(crate) async fn apply_record(&self, service: &McpService, record: &SessionRecord) {
        *self.log_level.lock().ignore_poison() = record.log_level;
        let missing: Vec<Call> = {
            let mut subscriptions = self.subscriptions.lock().ignore_poison();
            subscriptions.retain(|own| record.subscriptions.iter().any(|uri| uri == own.uri()));
            let is_missing = |uri: &&String| !subscriptions.iter().any(|own| own.uri() == *uri);
            let missing = record.subscriptions.iter().filter(is_missing).take(MAX_SUBSCRIPTIONS);
            missing.map(|uri| self.subscribe_call(uri)).collect()
        };
        if !missing.is_empty() {
            let subscribed = service.crib.subscribe_all(missing.into_iter()).await;
            self.subscriptions.lock().ignore_poison().extend(subscribed);
        }
    }

    /// Writes and announces a change of the record. A response that is an error changes nothing.
    async fn share_change(&self, service: &McpService, response: ResponsePayload) -> ResponsePayload {
        let (Some(shared), ResponsePayload::Result(_)) = (&self.shared, &response) else { return response };
        let stored = self.put_record(RECORD_TTL);
        let published = shared.publish();
        let stored = match stored {
            Some(stored) => stored.wait().await,
            None => Ok(()),
        };
        match stored.and(published.wait().await) {
            Ok(()) => response,
            Err(error) => {
                let message = format!("the change was made, but not for other gateways: {error}");
                service.error_payload(&Error::new(ErrorKind::StoreUnavailable, message))
            }
        }
    }

    fn subscribe_call(&self, uri: &str) -> Call {
        let selector = self.scope.view.resource_selector(uri);
        self.request_context(true).call(SUBSCRIBE.into(), selector, Object::default())
    }

    /// Returns the context of a request in this session. Without a stream to the client, servers cannot ask it anything.
    fn request_context(&self, has_stream: bool) -> RequestContext {
        let client = Client {
            key: self.handle.key,
            era: Era::Session,
            capabilities: if has_stream { self.capabilities.clone() } else { ClientCapabilities::default() },
            log_level: *self.log_level.lock().ignore_poison(),
            has_one_server: self.scope.view.server().is_some(),
            info: self.info.clone(),
        };
        let client_context = Some(self.client_context.clone());
        RequestContext {
            scope: self.scope.clone(),
            client,
            client_context,
            updates: None,
            has_extensions: self.capabilities.has_extensions(),
        }
    }

    /// Forwards a notification that is for a server; others are ignored.
    pub(crate) fn forward_notification(
        &self,
        service: &Arc<McpService>,
        tasks: &TaskTracker,
        method: String,
        params: Option<Bytes>,
    ) {
        let Ok(params) = params.map_or(Ok(Object::default()), |params| Object::parse(&params)) else {
            return;
        };
        service.spawn_notification(tasks, &self.handle, self.request_context(true), method, params);
    }

    /// Handles one request of this session; messages before the response go to `out`.
    pub(crate) async fn respond(
        &self,
        service: &McpService,
        id: &RequestId,
        method: &str,
        params: Option<Object>,
        out: Option<&impl MessageSink>,
    ) -> ResponsePayload {
        match method {
            // Boxed to keep the future of a call small.
            SET_LEVEL | SUBSCRIBE | UNSUBSCRIBE => {
                return Box::pin(self.change_record(service, method, params)).await;
            }
            _ => {}
        }
        if let Some(kind) = ListKind::from_method(method) {
            return Box::pin(self.list(service, kind, params.unwrap_or_default())).await;
        }
        let Some(out) = out.filter(|_| McpService::is_forwarded(Era::Session, method)) else {
            return service.plan(self.request_context(false), method, params).respond().await;
        };
        let token = client::progress_token(params.as_ref());
        let creates_task = params.as_ref().is_some_and(|params| params.get("task").is_some());
        let receiver = UpdateReceiver { request_id: id, progress_token: token, questions: &self.questions };
        let updates = Arc::new(UpdateWriter::new(receiver, out));
        let planned = service.plan(self.request_context(true).with_updates(updates.clone()), method, params);
        let response = planned.respond().await;
        updates.send_withdrawals();
        self.questions.remember_follow_ups(&response, creates_task);
        response
    }

    /// Handles a request that changes what other gateways know of the session.
    async fn change_record(
        &self,
        service: &McpService,
        method: &str,
        params: Option<Object>,
    ) -> ResponsePayload {
        let response = match method {
            SET_LEVEL => self.set_level(service, params).await,
            SUBSCRIBE => self.subscribe(service, params.as_ref()).await,
            _ => self.unsubscribe(params.as_ref()).await,
        };
        self.share_change(service, response).await
    }

    async fn list(&self, service: &McpService, kind: ListKind, params: Object) -> ResponsePayload {
        let list = list_index(kind);
        let _in_progress = ListInProgress::begin(&self.lists_in_progress[list]);
        let (response, catalog) = service.list(self.request_context(false), kind, params).await;
        let digest = catalog.map(|catalog| service.list_digests_of(&catalog, &self.scope)[list]);
        self.last_digests.lock().ignore_poison()[list] = digest.unwrap_or(REFUSED_LIST);
        response
    }

    /// Encodes a server's notification about a task or an elicitation, if this client knows it. Tasks get their public id.
    fn encode_follow_up(
        &self,
        server: &ServerId,
        method: &str,
        name: &str,
        params: &Bytes,
    ) -> Option<Vec<u8>> {
        let has_public_id = method == TASK_STATUS && self.scope.view == CatalogScope::All;
        let name = if has_public_id { Catalog::public_task_id(server, name) } else { name.to_owned() };
        if !self.questions.has_follow_up(&name) {
            return None;
        }
        let mut params = Object::parse(params).ok()?;
        if has_public_id {
            params.set_unchecked("taskId", to_json_string(&name));
        }
        Some(encode_notification(method, Some(&params.to_bytes())))
    }

    /// Returns whether a server instance serves this client.
    fn uses_instance(&self, instance: &InstanceKey) -> bool {
        self.client_context.can_see_instance(instance, self.handle.key, self.scope.caller())
    }

    async fn set_level(&self, service: &McpService, params: Option<Object>) -> ResponsePayload {
        let level = params.as_ref().and_then(|params| LogLevel::parse(&params.get_string("level")?));
        if let Some(refusal) = self.ask_about_level(service, params).await {
            return refusal;
        }
        match level {
            Some(level) => {
                *self.log_level.lock().ignore_poison() = Some(level);
                ResponsePayload::Result(client::empty_result(Era::Session))
            }
            None => reject(code::INVALID_PARAMS, "`params.level` must be a log level"),
        }
    }

    /// Returns the error with which the only server of the endpoint refuses a log level, if it does not support logging.
    async fn ask_about_level(&self, service: &McpService, params: Option<Object>) -> Option<ResponsePayload> {
        let server = self.scope.view.server()?;
        let wait = service.first_wait(&self.scope).request;
        let introduced = service.crib.load_server_for(server, self.scope.caller(), Era::Session, wait);
        let catalog = Box::pin(introduced).await.ok()?;
        if declares_capability(catalog.server_capabilities(server)?, "logging") {
            return None;
        }
        let selector = Selector::OnServer(server.clone(), SET_LEVEL.to_owned());
        let call = self.request_context(false).call(SET_LEVEL.into(), selector, params.unwrap_or_default());
        // A server that cannot be asked sends no log messages either.
        let outcome = Box::pin(service.crib.call(call)).await.ok()?;
        matches!(outcome.answer, ResponsePayload::Error(_)).then_some(outcome.answer)
    }

    async fn subscribe(&self, service: &McpService, params: Option<&Object>) -> ResponsePayload {
        let Some(uri) = params.and_then(|params| params.get_string("uri")) else { return missing_uri() };
        let subscribed = ResponsePayload::Result(client::empty_result(Era::Session));
        let count = {
            let subscriptions = self.subscriptions.lock().ignore_poison();
            if subscriptions.iter().any(|subscription| subscription.uri() == uri) {
                return subscribed;
            }
            subscriptions.len()
        };
        if count >= MAX_SUBSCRIPTIONS {
            let message = format!("this session already has {MAX_SUBSCRIPTIONS} resource subscriptions");
            return reject(code::INVALID_PARAMS, &message);
        }
        match service.crib.subscribe_for(self.subscribe_call(&uri)).await {
            Ok(subscription) => {
                self.subscriptions.lock().ignore_poison().push(subscription);
                subscribed
            }
            Err(error) => service.error_payload(&error),
        }
    }

    async fn unsubscribe(&self, params: Option<&Object>) -> ResponsePayload {
        let Some(uri) = params.and_then(|params| params.get_string("uri")) else { return missing_uri() };
        let ended: Vec<Subscription> = {
            let mut subscriptions = self.subscriptions.lock().ignore_poison();
            subscriptions.extract_if(.., |subscription| subscription.uri() == uri).collect()
        };
        // There is at most one.
        for subscription in ended {
            subscription.end().await;
        }
        ResponsePayload::Result(client::empty_result(Era::Session))
    }

    /// Handles a notification other than a cancellation.
    pub(crate) fn receive_notification(
        &self,
        service: &Arc<McpService>,
        tasks: &TaskTracker,
        method: String,
        params: Option<Bytes>,
    ) {
        match &*method {
            PROGRESS if self.questions.report_progress(params.as_ref()) => return,
            ROOTS_CHANGED => service.crib.roots_changed(self.handle.key, &self.client_context),
            _ => {}
        }
        self.forward_notification(service, tasks, method, params);
    }

    /// Cancels the request that a cancel notification names.
    pub(crate) fn cancel(&self, params: Option<&Object>) {
        self.questions.set_cancel_reason(params);
        self.in_flight.cancel(params);
    }

    /// Handles an answer to a question, or the cancellation of a request; other messages are ignored.
    pub(crate) fn receive_reply(&self, message: ClientMessage) {
        match message {
            ClientMessage::Notification { method, params } if method == CANCELLED => {
                let params = params.and_then(|params| Object::parse(&params).ok());
                self.cancel(params.as_ref());
            }
            ClientMessage::Response { id, payload: answer } => self.questions.answer(&id, answer),
            ClientMessage::Notification { .. } | ClientMessage::Request { .. } => {}
        }
    }

    /// Cancels all requests and subscriptions.
    pub(crate) fn end(&self) {
        self.in_flight.cancel_all();
        self.subscriptions.lock().ignore_poison().clear();
    }
}

/// Counts a list request until it is dropped.
struct ListInProgress<'a>(&'a AtomicUsize);

impl<'a> ListInProgress<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for ListInProgress<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn missing_uri() -> ResponsePayload {
    reject(code::INVALID_PARAMS, "`params.uri` must be the URI of a resource")
}

impl ChangeSink for Arc<SessionClientState> {
    fn encode_change(&mut self, event: &ChangeEvent) -> Vec<Vec<u8>> {
        let notification = match event {
            ChangeEvent::Lists(current) => {
                let mut last = self.last_digests.lock().ignore_poison();
                let mut messages = Vec::new();
                for list in 0..current.len() {
                    // What a list in progress shows need not be announced.
                    let is_in_progress = self.lists_in_progress[list].load(Ordering::Relaxed) > 0;
                    if last[list] != current[list] && !is_in_progress {
                        let before = std::mem::replace(&mut last[list], current[list]);
                        messages.extend((before != UNREAD_LIST).then(|| encode_list_changed(list, None)));
                    }
                }
                return messages;
            }
            ChangeEvent::Lagged => {
                return encode_resource_updates(&self.subscriptions.lock().ignore_poison(), event, None);
            }
            ChangeEvent::Notification(notification) => notification,
        };
        match notification {
            ServerNotification::ResourceUpdated { .. } => {
                encode_resource_updates(&self.subscriptions.lock().ignore_poison(), event, None)
            }
            ServerNotification::ListChanged { instance, lists, .. } if self.uses_instance(instance) => {
                encode_lists_changed(lists, [true; 3], None)
            }
            ServerNotification::ListChanged { .. } => Vec::new(),
            ServerNotification::FollowUp { server, method, name, params } => {
                self.encode_follow_up(server, method, name, params).into_iter().collect()
            }
            ServerNotification::Log { server, instance, client, params } => {
                let level = LogLevel::from_message(params);
                // Messages that may be about other clients are sent only after `logging/setLevel`.
                let is_own = client.is_some() || !instance.is_shared();
                let is_wanted = self.log_level.lock().ignore_poison().map_or(is_own, |least| level >= least);
                let is_visible = client.is_none_or(|client| client == self.handle.key)
                    && self.uses_instance(instance)
                    && self.scope.can_see(&self.handle.crib, server);
                if is_wanted && is_visible {
                    vec![encode_log(&self.scope.view, server, params)]
                } else {
                    Vec::new()
                }
            }
            _ => Vec::new(),
        }
    }
}
