//! `Friend`: a client of either era that can be asked anything, and remembers in order whatever it hears.

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

/// The method and the parameters of something that a client heard.
pub(crate) type Heard = (String, Value);

/// Answers every question, and passes on what it hears.
pub(crate) struct Ear(mpsc::UnboundedSender<Heard>);

impl Ear {
    fn hear(&self, method: &str, params: Value) {
        let _ = self.0.send((method.to_owned(), params));
    }
}

impl ClientHandler for Ear {
    fn get_info(&self) -> ClientConfig {
        let able = json!({
            "sampling": {},
            "elicitation": {"form": {}, "url": {}},
            "roots": {},
            "extensions": {"io.modelcontextprotocol/tasks": {}},
        });
        let able: ClientCapabilities = serde_json::from_value(able).unwrap();
        ClientConfig::new(able, Implementation::new("matrix", "1"))
            .with_protocol_version(ProtocolVersion::V_2025_11_25)
    }

    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        let content = json!({"type": "text", "text": "a sample"});
        self.hear("sampling/createMessage", json!(params));
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
        self.hear("elicitation/create", json!(params));
        Ok(serde_json::from_value(answer).unwrap())
    }

    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        self.hear("roots/list", json!({}));
        Ok(ListRootsResult::new(vec![Root::new("file:///home/ada").with_name("ada")]))
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.hear("notifications/progress", json!(params));
    }

    async fn on_logging_message(
        &self,
        params: LoggingMessageNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.hear("notifications/message", json!(params));
    }

    async fn on_resource_updated(
        &self,
        params: ResourceUpdatedNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.hear("notifications/resources/updated", json!(params));
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.hear("notifications/tools/list_changed", Value::Null);
    }

    async fn on_prompt_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.hear("notifications/prompts/list_changed", Value::Null);
    }

    async fn on_resource_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.hear("notifications/resources/list_changed", Value::Null);
    }
}

pub(crate) struct Friend {
    pub(crate) service: RunningService<RoleClient, Ear>,
    pub(crate) era: Era,
    /// How much log it wants; a session has said so already.
    level: Option<LoggingLevel>,
    ear: mpsc::UnboundedSender<Heard>,
    heard: mpsc::UnboundedReceiver<Heard>,
    /// Streams that a stateless client reads.
    streams: JoinSet<()>,
}

impl Friend {
    pub(crate) async fn new(socket: &Path, path: &str, era: Era) -> Self {
        let uri = format!("http://localhost{path}");
        let client = UnixSocketHttpClient::new(socket.to_str().unwrap(), &uri);
        let config = StreamableHttpClientTransportConfig::with_uri(uri);
        let transport = StreamableHttpClientTransport::with_client(client, config);
        let lifecycle = match era {
            Era::Session => ClientLifecycleMode::Initialize,
            Era::Stateless => {
                ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] }
            }
        };
        let (ear, heard) = mpsc::unbounded_channel();
        let service = Ear(ear.clone()).serve_with_lifecycle(transport, lifecycle).await.unwrap();
        Self { service, era, level: None, ear, heard, streams: JoinSet::new() }
    }

    /// Asks for lines of log from this level on.
    pub(crate) async fn wants_log(&mut self, level: LoggingLevel) {
        self.level = Some(level);
        if self.era == Era::Session {
            self.service.set_level(SetLevelRequestParams::new(level)).await.unwrap();
        }
    }

    /// Asks for news: of every list, and of one resource if it is named. A session hears of lists unasked.
    pub(crate) async fn listen(&mut self, uri: Option<&str>) {
        match (self.era, uri) {
            (Era::Session, None) => {}
            (Era::Session, Some(uri)) => {
                self.service.subscribe(SubscribeRequestParams::new(uri)).await.unwrap();
            }
            (Era::Stateless, uri) => {
                let filter = SubscriptionFilter::builder()
                    .tools_list_changed()
                    .prompts_list_changed()
                    .resources_list_changed();
                let filter = uri.iter().fold(filter, |filter, uri| filter.resource_subscriptions([*uri]));
                let mut stream = self.service.listen(filter.build()).await.unwrap();
                let ear = self.ear.clone();
                self.streams.spawn(async move {
                    while let Ok(Some(news)) = stream.next().await {
                        let news = json!(news);
                        let _ =
                            ear.send((news["method"].as_str().unwrap().to_owned(), news["params"].clone()));
                    }
                });
            }
        }
    }

    /// Wants no more news of this resource, but goes on to hear of lists.
    pub(crate) async fn forget(&mut self, uri: &str) {
        match self.era {
            Era::Session => self.service.unsubscribe(UnsubscribeRequestParams::new(uri)).await.unwrap(),
            Era::Stateless => {
                self.streams.shutdown().await;
                self.listen(None).await;
            }
        }
    }

    fn request(&self, tool: &str, arguments: &Value) -> CallToolRequestParams {
        let mut params = CallToolRequestParams::new(tool.to_owned());
        params.arguments = arguments.as_object().cloned();
        if let (Some(level), Era::Stateless) = (self.level, self.era) {
            let mut meta = RequestMetaObject::default();
            meta.set_log_level(level);
            params.meta = Some(meta);
        }
        params
    }

    /// Begins a call that may be taken back.
    pub(crate) async fn begin(&self, tool: &str, arguments: Value) -> RequestHandle<RoleClient> {
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(self.request(tool, &arguments)));
        self.service.send_cancellable_request(request, PeerRequestOptions::no_options()).await.unwrap()
    }

    /// Calls a tool and answers its questions.
    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> Result<CallToolResult, ServiceError> {
        self.service.call_tool(self.request(tool, &arguments)).await
    }

    /// As [`Friend::call`], for calls that must succeed: the text that came back.
    pub(crate) async fn text(&self, tool: &str, arguments: Value) -> String {
        let result = self.call(tool, arguments).await.unwrap_or_else(|error| panic!("`{tool}`: {error}"));
        text_of(&result)
    }

    /// The next thing that this client hears, which must be this.
    pub(crate) async fn hears(&mut self, method: &str) -> Value {
        let wait = tokio::time::timeout(Duration::from_secs(10), self.heard.recv()).await;
        let (heard, params) = wait.unwrap_or_else(|_| panic!("no `{method}` in time")).unwrap();
        assert_eq!(heard, method, "{params}");
        params
    }

    /// Nothing has reached this client that was not asked for.
    pub(crate) fn is_empty(&mut self) {
        if let Ok(heard) = self.heard.try_recv() {
            panic!("heard {heard:?}");
        }
    }

    /// Nothing that was meant for others has reached this client, nor is it on its way: what is caused now comes first.
    pub(crate) async fn heard_nothing(&mut self) {
        let call = self.begin(REPORTS.0, json!({})).await;
        let token = json!(call.progress_token);
        call.await_response().await.unwrap();
        for step in REPORTS.1 {
            let progress = self.hears("notifications/progress").await;
            assert_eq!((&progress["progressToken"], &progress["progress"]), (&token, &json!(step)));
        }
    }
}

/// A tool of the reference server that reports its progress, and what it reports.
pub(crate) const REPORTS: (&str, [f64; 3]) = ("test_tool_with_progress", [0.0, 50.0, 100.0]);

pub(crate) fn text_of(result: &CallToolResult) -> String {
    assert_ne!(result.is_error, Some(true), "{result:?}");
    result.content[0].as_text().unwrap_or_else(|| panic!("no text in {result:?}")).text.clone()
}

/// The text of a call that was begun.
pub(crate) async fn finish(call: RequestHandle<RoleClient>) -> String {
    match call.await_response().await.unwrap() {
        ServerResult::CallToolResult(result) => text_of(&result),
        other => panic!("not the result of a tool: {other:?}"),
    }
}
