//! `Server`: one session, or one request of the stateless era, as an SDK server.

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::{Arc, Mutex};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelTaskParams, CompleteRequestParams, CompleteResult,
    ErrorCode, GetPromptRequestParams, GetPromptResponse, GetTaskParams, GetTaskResult, Implementation,
    ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, LoggingLevel,
    PaginatedRequestParams, ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse,
    ServerCapabilities, ServerConfig, SetLevelRequestParams, SubscribeRequestParams, SubscriptionFilter,
    Tool, UnsubscribeRequestParams, UpdateTaskParams,
};
use rmcp::service::{NotificationContext, RequestContext, SubscriptionContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};

use crate::caller::{self, Caller};
use crate::shared::{self, Shared, Subscriptions, lock};
use crate::{prompts, resources, tools};

/// The protocol eras that the server speaks.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Era {
    Dual,
    Session,
    Stateless,
}

impl FromStr for Era {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "dual" => Ok(Self::Dual),
            "session" => Ok(Self::Session),
            "stateless" => Ok(Self::Stateless),
            _ => Err(format!("`{text}` is not an era: `dual`, `session` or `stateless`")),
        }
    }
}

pub(crate) struct Server {
    era: Era,
    shared: Arc<Shared>,
    /// The level from `logging/setLevel`. In the stateless era every request has its own.
    level: Mutex<LoggingLevel>,
    subscriptions: Subscriptions,
}

impl Server {
    pub(crate) fn new(era: Era, shared: Arc<Shared>) -> Self {
        Self { era, shared, level: Mutex::new(LoggingLevel::Info), subscriptions: Subscriptions::default() }
    }

    fn caller<'a>(&'a self, context: &'a RequestContext<RoleServer>) -> Caller<'a> {
        Caller::new(context, &self.shared, *lock(&self.level))
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_completions()
            .enable_logging()
            .enable_prompts()
            .enable_prompts_list_changed()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_tools()
            .enable_tool_list_changed();
        let capabilities = match self.era {
            Era::Session => capabilities.build(),
            Era::Dual | Era::Stateless => capabilities.enable_extensions().enable_tasks().build(),
        };
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("reference-server", env!("CARGO_PKG_VERSION")))
            .with_instructions("Call the fixture that the scenario names.")
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        match self.era {
            Era::Dual => Cow::Borrowed(ProtocolVersion::KNOWN_VERSIONS),
            Era::Session => {
                Cow::Borrowed(ProtocolVersion::known_up_to(&ProtocolVersion::LATEST_WITH_INITIALIZE))
            }
            Era::Stateless => Cow::Borrowed(&[ProtocolVersion::V_2026_07_28]),
        }
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        self.shared.add_session(context.peer, Arc::clone(&self.subscriptions));
    }

    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if caller::is_stateless(&context) {
            return Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "logging/setLevel", None));
        }
        *lock(&self.level) = request.level;
        Ok(())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::list(&self.shared)))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::list(&self.shared).into_iter().find(|tool| tool.name == name)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let caller = self.caller(&context).with_retry(request.input_responses, request.request_state);
        tools::call(&request.name, &request.arguments.unwrap_or_default(), &caller).await
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Ok(ListPromptsResult::with_all_items(prompts::list(&self.shared)))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let caller = self.caller(&context).with_retry(request.input_responses, request.request_state);
        prompts::get(&request.name, &request.arguments.unwrap_or_default(), &caller).await
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        prompts::complete(&request.argument.value)
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(ListResourcesResult::with_all_items(resources::list()))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(resources::templates()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        resources::read(&request.uri).map(Into::into)
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        lock(&self.subscriptions).insert(request.uri);
        Ok(())
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        lock(&self.subscriptions).remove(&request.uri);
        Ok(())
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(shared::supported_filter(requested))
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        self.shared.forward_changes(context).await
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        self.shared.tasks.get_task(&request.task_id).map(GetTaskResult::new)
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.shared.tasks.update_task(&request.task_id, request.input_responses)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.shared.tasks.cancel_task(&request.task_id)
    }
}
