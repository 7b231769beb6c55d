//! `MatrixClient`: a client of either era that answers every server request and keeps all messages in order.

use std::path::Path;
use std::time::Duration;

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, ClientRequest,
    CreateMessageRequestParams, CreateMessageResult, ElicitRequestParams, ElicitResult, Implementation,
    ListRootsResult, LoggingLevel, LoggingMessageNotificationParam, ProgressNotificationParam,
    ProtocolVersion, RequestMetaObject, ResourceUpdatedNotificationParam, Root, ServerResult,
    SetLevelRequestParams, SubscribeRequestParams, SubscriptionFilter, UnsubscribeRequestParams,
};
use rmcp::service::{
    ClientLifecycleMode, ClientServiceExt as _, NotificationContext, PeerRequestOptions, RequestContext,
    RequestHandle, RunningService, ServiceError,
};
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::transport::{StreamableHttpClientTransport, UnixSocketHttpClient};
use rmcp::{ClientHandler, ErrorData, RoleClient};
use serde_json::{Value, json};
use test_support::client::Era;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// The method and the parameters of a received message.
pub(crate) type Received = (String, Value);

/// Answers every server request, and passes on what it receives.
pub(crate) struct Handler(mpsc::UnboundedSender<Received>);

impl Handler {
    fn record(&self, method: &str, params: Value) {
        let _ = self.0.send((method.to_owned(), params));
    }
}

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        let capabilities = json!({
            "sampling": {},
            "elicitation": {"form": {}, "url": {}},
            "roots": {},
            "extensions": {"io.modelcontextprotocol/tasks": {}},
        });
        let capabilities: ClientCapabilities = serde_json::from_value(capabilities).unwrap();
        ClientConfig::new(capabilities, Implementation::new("matrix", "1"))
            .with_protocol_version(ProtocolVersion::V_2025_11_25)
    }

    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        let content = json!({"type": "text", "text": "a sample"});
        self.record("sampling/createMessage", json!(params));
        Ok(serde_json::from_value(json!({"role": "assistant", "model": "none", "content": content})).unwrap())
    }

    async fn create_elicitation(
        &self,
        params: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let answer = match &params {
            ElicitRequestParams::UrlElicitationParams { .. } => json!({"action": "accept"}),
            _ => json!({"action": "accept", "content": {"name": "ada", "email": "ada@example.com"}}),
        };
        self.record("elicitation/create", json!(params));
        Ok(serde_json::from_value(answer).unwrap())
    }

    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        self.record("roots/list", json!({}));
        Ok(ListRootsResult::new(vec![Root::new("file:///home/ada").with_name("ada")]))
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.record("notifications/progress", json!(params));
    }

    async fn on_logging_message(
        &self,
        params: LoggingMessageNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.record("notifications/message", json!(params));
    }

    async fn on_resource_updated(
        &self,
        params: ResourceUpdatedNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.record("notifications/resources/updated", json!(params));
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.record("notifications/tools/list_changed", Value::Null);
    }

    async fn on_prompt_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.record("notifications/prompts/list_changed", Value::Null);
    }

    async fn on_resource_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.record("notifications/resources/list_changed", Value::Null);
    }
}

pub(crate) struct MatrixClient {
    pub(crate) service: RunningService<RoleClient, Handler>,
    pub(crate) era: Era,
    /// The log level that a stateless client sends with each request.
    level: Option<LoggingLevel>,
    sender: mpsc::UnboundedSender<Received>,
    received: mpsc::UnboundedReceiver<Received>,
    /// Listen streams of a stateless client.
    streams: JoinSet<()>,
    /// The server whose tools are called by `call_tool`.
    by_call_tool: Option<String>,
}

impl MatrixClient {
    pub(crate) async fn new(socket: &Path, path: &str, era: Era) -> Self {
        let uri = format!("http://localhost{path}");
        let client = UnixSocketHttpClient::new(socket.to_str().unwrap(), &uri);
        let config = StreamableHttpClientTransportConfig::with_uri(uri);
        let transport = StreamableHttpClientTransport::with_client(client, config);
        let lifecycle = match era {
            Era::Session => ClientLifecycleMode::Initialize,
            _ => ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] },
        };
        let (sender, received) = mpsc::unbounded_channel();
        let service = Handler(sender.clone()).serve_with_lifecycle(transport, lifecycle).await.unwrap();
        Self { service, era, level: None, sender, received, streams: JoinSet::new(), by_call_tool: None }
    }

    /// Calls the tools of a server by `call_tool` from now on.
    pub(crate) fn by_call_tool(self, server: &str) -> Self {
        Self { by_call_tool: Some(server.to_owned()), ..self }
    }

    /// Returns the name under which the endpoint has an item of the server.
    pub(crate) fn qualify(&self, name: &str) -> String {
        match &self.by_call_tool {
            Some(server) => format!("{server}__{name}"),
            None => name.to_owned(),
        }
    }

    /// Sets the log level.
    pub(crate) async fn set_log_level(&mut self, level: LoggingLevel) {
        self.level = Some(level);
        if self.era == Era::Session {
            self.service.set_level(SetLevelRequestParams::new(level)).await.unwrap();
        }
    }

    /// Subscribes to all list changes, and to one resource if given. Sessions get list changes without a subscription.
    pub(crate) async fn listen(&mut self, uri: Option<&str>) {
        match (self.era, uri) {
            (Era::Session, None) => {}
            (Era::Session, Some(uri)) => {
                self.service.subscribe(SubscribeRequestParams::new(uri)).await.unwrap();
            }
            (_, uri) => {
                let filter = SubscriptionFilter::builder()
                    .tools_list_changed()
                    .prompts_list_changed()
                    .resources_list_changed();
                let filter = uri.iter().fold(filter, |filter, uri| filter.resource_subscriptions([*uri]));
                let mut stream = self.service.listen(filter.build()).await.unwrap();
                let sender = self.sender.clone();
                self.streams.spawn(async move {
                    while let Ok(Some(notification)) = stream.next().await {
                        let notification = json!(notification);
                        let method = notification["method"].as_str().unwrap().to_owned();
                        let _ = sender.send((method, notification["params"].clone()));
                    }
                });
            }
        }
    }

    /// Unsubscribes from a resource; list changes stay subscribed.
    pub(crate) async fn unsubscribe(&mut self, uri: &str) {
        match self.era {
            Era::Session => self.service.unsubscribe(UnsubscribeRequestParams::new(uri)).await.unwrap(),
            _ => {
                self.streams.shutdown().await;
                self.listen(None).await;
            }
        }
    }

    fn request(&self, tool: &str, arguments: &Value) -> CallToolRequestParams {
        let mut params = match self.by_call_tool {
            Some(_) => CallToolRequestParams::new("call_tool"),
            None => CallToolRequestParams::new(tool.to_owned()),
        };
        params.arguments = match self.by_call_tool {
            Some(_) => json!({"name": self.qualify(tool), "arguments": arguments}).as_object().cloned(),
            None => arguments.as_object().cloned(),
        };
        if let (Some(level), Era::Stateless) = (self.level, self.era) {
            let mut meta = RequestMetaObject::default();
            meta.set_log_level(level);
            params.meta = Some(meta);
        }
        params
    }

    /// Starts a call that can be cancelled.
    pub(crate) async fn begin(&self, tool: &str, arguments: Value) -> RequestHandle<RoleClient> {
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(self.request(tool, &arguments)));
        self.service.send_cancellable_request(request, PeerRequestOptions::no_options()).await.unwrap()
    }

    /// Calls a tool and answers its requests.
    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> Result<CallToolResult, ServiceError> {
        self.service.call_tool(self.request(tool, &arguments)).await
    }

    /// Calls a tool and returns the text of its result.
    pub(crate) async fn text(&self, tool: &str, arguments: Value) -> String {
        let result = self.call(tool, arguments).await.unwrap_or_else(|error| panic!("`{tool}`: {error}"));
        text_of(&result)
    }

    /// Waits for the next message, which must have this method, and returns its parameters.
    pub(crate) async fn expect(&mut self, method: &str) -> Value {
        let wait = tokio::time::timeout(Duration::from_secs(10), self.received.recv()).await;
        let (received, params) = wait.unwrap_or_else(|_| panic!("no `{method}` in time")).unwrap();
        assert_eq!(received, method, "{params}");
        params
    }

    /// Fails if a message has arrived.
    pub(crate) fn assert_no_message(&mut self) {
        if let Ok(received) = self.received.try_recv() {
            panic!("received {received:?}");
        }
    }

    /// Fails if a message has arrived or is on its way: the progress of a new call must come first.
    pub(crate) async fn assert_no_pending_message(&mut self) {
        let call = self.begin(PROGRESS_TOOL, json!({})).await;
        let token = json!(call.progress_token);
        call.await_response().await.unwrap();
        for step in PROGRESS_STEPS {
            let progress = self.expect("notifications/progress").await;
            assert_eq!((&progress["progressToken"], &progress["progress"]), (&token, &json!(step)));
        }
    }
}

/// A tool of the reference server that reports progress.
pub(crate) const PROGRESS_TOOL: &str = "test_tool_with_progress";
/// The progress that it reports.
pub(crate) const PROGRESS_STEPS: [f64; 3] = [0.0, 50.0, 100.0];

pub(crate) fn text_of(result: &CallToolResult) -> String {
    assert_ne!(result.is_error, Some(true), "{result:?}");
    result.content[0].as_text().unwrap_or_else(|| panic!("no text in {result:?}")).text.clone()
}

/// Waits for the text of a call that was started.
pub(crate) async fn finish(call: RequestHandle<RoleClient>) -> String {
    match call.await_response().await.unwrap() {
        ServerResult::CallToolResult(result) => text_of(&result),
        other => panic!("not a tool result: {other:?}"),
    }
}
