//! `Server`: the fixtures as an SDK server, and its change notifications.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CompleteRequestParams, CompleteResult, GetPromptRequestParams,
    GetPromptResponse, JsonObject, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult,
    ListToolsResult, LoggingLevel, PaginatedRequestParams, ProtocolVersion, ReadResourceRequestParams,
    ReadResourceResponse, ResourceUpdatedNotificationParam, ServerCapabilities, ServerConfig,
    SetLevelRequestParams, SubscribeRequestParams, SubscriptionFilter, Tool, UnsubscribeRequestParams,
};
use rmcp::service::{NotificationContext, Peer, RequestContext, SubscriptionContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::json;
use tokio::sync::{broadcast, watch};

use crate::tools::{Call, TOOLS};
use crate::{internal_error, offers};

type Context = RequestContext<RoleServer>;
type Page = Option<PaginatedRequestParams>;

/// A change that clients can be notified of.
#[derive(Clone, Copy)]
pub(crate) enum Change {
    Tools,
    Resources,
    Text,
}

pub(crate) struct Server {
    pub(crate) stateless: bool,
    /// The `who` of every cancelled call of the tool `wait`, in order.
    pub(crate) cancelled: watch::Sender<Vec<String>>,
    extra: AtomicBool,
    added: AtomicUsize,
    level: Mutex<LoggingLevel>,
    /// True if the session is subscribed to the text.
    subscribed: AtomicBool,
    session: OnceLock<Peer<RoleServer>>,
    changes: broadcast::Sender<Change>,
}

impl Server {
    pub(crate) fn new(stateless: bool) -> Self {
        Self {
            stateless,
            cancelled: watch::Sender::default(),
            extra: AtomicBool::new(false),
            added: AtomicUsize::new(0),
            level: Mutex::new(LoggingLevel::Debug),
            subscribed: AtomicBool::new(false),
            session: OnceLock::new(),
            changes: broadcast::channel(64).0,
        }
    }

    pub(crate) fn level(&self) -> LoggingLevel {
        *self.level.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the change and notifies subscribers.
    pub(crate) async fn change(&self, change: Change) -> String {
        match change {
            Change::Tools => drop(self.extra.fetch_not(Ordering::Relaxed)),
            Change::Resources => drop(self.added.fetch_add(1, Ordering::Relaxed)),
            Change::Text => {}
        }
        // Fails only if there is no subscriber.
        let _ = self.changes.send(change);
        if let Some(session) = self.session.get() {
            let _ = match change {
                Change::Tools => session.notify_tool_list_changed().await,
                Change::Resources => session.notify_resource_list_changed().await,
                Change::Text if self.subscribed.load(Ordering::Relaxed) => {
                    session.notify_resource_updated(ResourceUpdatedNotificationParam::new(offers::TEXT)).await
                }
                Change::Text => Ok(()),
            };
        }
        "done".to_owned()
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_completions()
            .enable_logging()
            .enable_prompts()
            .enable_resources()
            .enable_resources_list_changed()
            .enable_resources_subscribe()
            .enable_tools()
            .enable_tool_list_changed();
        ServerConfig::new(capabilities.build())
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        if self.stateless {
            Cow::Borrowed(&[ProtocolVersion::V_2026_07_28])
        } else {
            Cow::Borrowed(ProtocolVersion::known_up_to(&ProtocolVersion::LATEST_WITH_INITIALIZE))
        }
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        let _ = self.session.set(context.peer);
    }

    async fn set_level(&self, request: SetLevelRequestParams, _: Context) -> Result<(), ErrorData> {
        *self.level.lock().unwrap_or_else(PoisonError::into_inner) = request.level;
        Ok(())
    }

    async fn list_tools(&self, _: Page, _: Context) -> Result<ListToolsResult, ErrorData> {
        let schema = Arc::new(JsonObject::from_iter([("type".to_owned(), json!("object"))]));
        let extra = self.extra.load(Ordering::Relaxed).then_some("extra");
        let tools = TOOLS.into_iter().chain(extra).map(|name| Tool::new(name, name, schema.clone()));
        Ok(ListToolsResult::with_all_items(tools.collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: Context,
    ) -> Result<CallToolResponse, ErrorData> {
        Call { server: self, request: &request, context: &context }.answer().await
    }

    async fn list_resources(&self, _: Page, _: Context) -> Result<ListResourcesResult, ErrorData> {
        let added = self.added.load(Ordering::Relaxed);
        Ok(ListResourcesResult::with_all_items(offers::resources(added)))
    }

    async fn list_resource_templates(
        &self,
        _: Page,
        _: Context,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(offers::templates()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: Context,
    ) -> Result<ReadResourceResponse, ErrorData> {
        Ok(offers::read(&request.uri).into())
    }

    async fn subscribe(&self, request: SubscribeRequestParams, _: Context) -> Result<(), ErrorData> {
        self.subscribed.fetch_or(request.uri == offers::TEXT, Ordering::Relaxed);
        Ok(())
    }

    async fn unsubscribe(&self, request: UnsubscribeRequestParams, _: Context) -> Result<(), ErrorData> {
        self.subscribed.fetch_and(request.uri != offers::TEXT, Ordering::Relaxed);
        Ok(())
    }

    async fn list_prompts(&self, _: Page, _: Context) -> Result<ListPromptsResult, ErrorData> {
        Ok(ListPromptsResult::with_all_items(offers::prompts()))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: Context,
    ) -> Result<GetPromptResponse, ErrorData> {
        Ok(offers::prompt(request.arguments.as_ref()).into())
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _: Context,
    ) -> Result<CompleteResult, ErrorData> {
        offers::complete(&request.argument.value)
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        let filter = SubscriptionFilter::builder().tools_list_changed().resources_list_changed();
        let uris = requested.resource_subscriptions.as_deref().unwrap_or_default();
        Some(if uris.is_empty() { filter.build() } else { filter.resource_subscriptions(uris).build() })
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut changes = self.changes.subscribe();
        loop {
            let change = tokio::select! {
                () = context.cancelled() => return Ok(()),
                change = changes.recv() => change.map_err(|error| internal_error(&error))?,
            };
            // The sink refuses notifications that the client did not subscribe to.
            let _ = match change {
                Change::Tools => context.sink().notify_tool_list_changed().await,
                Change::Resources => context.sink().notify_resource_list_changed().await,
                Change::Text => context.sink().notify_resource_updated(offers::TEXT).await,
            };
        }
    }
}
