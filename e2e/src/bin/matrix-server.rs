//! What the reference server has no fixture for, on the same SDK: calls that wait to be cancelled, questions at a URL,
//! and resources that come and go.
//!
//! `matrix-server --era session|stateless`, on stdin and stdout. See `e2e/tests/matrix`.

use std::borrow::Cow;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, InputRequest, InputRequests,
    InputRequiredResult, JsonObject, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ProgressNotificationParam, ProtocolVersion, Resource, ServerCapabilities, ServerConfig, ServerRequest,
    SubscriptionFilter, Tool,
};
use rmcp::service::{NotificationContext, Peer, RequestContext, SubscriptionContext};
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt as _};
use serde_json::{Value, json};
use tokio::sync::watch;

const TOOLS: [&str; 4] = ["wait", "cancelled", "ask_url", "add_resource"];

struct Server {
    stateless: bool,
    /// Whose waiting was cancelled, in order.
    cancelled: watch::Sender<Vec<String>>,
    /// How many resources there are.
    resources: watch::Sender<usize>,
    session: OnceLock<Peer<RoleServer>>,
}

impl Server {
    /// Says that it waits, and waits until the client takes the call back.
    async fn wait(&self, who: &str, context: &RequestContext<RoleServer>) -> Result<String, ErrorData> {
        let token =
            context.meta.get_progress_token().ok_or_else(|| wrong("a token for progress is missing"))?;
        let waiting = ProgressNotificationParam::new(token, 1.0).with_message(who);
        context.peer.notify_progress(waiting).await.map_err(wrong)?;
        context.ct.cancelled().await;
        self.cancelled.send_modify(|all| all.push(who.to_owned()));
        Err(wrong("cancelled"))
    }

    /// Waits until so many calls were cancelled, and says whose they were.
    async fn cancelled(&self, least: u64) -> Result<String, ErrorData> {
        let mut all = self.cancelled.subscribe();
        let enough = all.wait_for(|all| all.len() as u64 >= least).await.map_err(wrong)?;
        Ok(enough.join(","))
    }

    async fn ask_url(
        &self,
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let params = json!({
            "mode": "url",
            "message": "Sign in",
            "url": "https://example.com/sign-in?for=matrix",
            "elicitationId": "e-1",
        });
        let question = json!({"method": "elicitation/create", "params": params});
        if self.stateless {
            if let Some(answer) = request.input_responses.as_ref().and_then(|answers| answers.get("sign-in"))
            {
                return Ok(said(answer.to_string()));
            }
            let question: InputRequest = serde_json::from_value(question).map_err(wrong)?;
            let questions = InputRequests::from([("sign-in".to_owned(), question)]);
            return Ok(InputRequiredResult::new(Some(questions), Some("state".to_owned())).into());
        }
        let question: ServerRequest = serde_json::from_value(question).map_err(wrong)?;
        let answer = context.peer.send_request(question).await.map_err(wrong)?;
        Ok(said(json!(answer).to_string()))
    }

    async fn add_resource(&self) -> String {
        self.resources.send_modify(|count| *count += 1);
        if let Some(peer) = self.session.get() {
            // A client that is gone will not miss it.
            let _ = peer.notify_resource_list_changed().await;
        }
        self.resources.borrow().to_string()
    }
}

fn wrong(why: impl ToString) -> ErrorData {
    ErrorData::internal_error(why.to_string(), None)
}

fn said(text: String) -> CallToolResponse {
    CallToolResult::success(vec![ContentBlock::text(text)]).into()
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities =
            ServerCapabilities::builder().enable_tools().enable_resources().enable_resources_list_changed();
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

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = JsonObject::from_iter([("type".to_owned(), json!("object"))]);
        let tools = TOOLS.map(|name| Tool::new(name, name, Arc::new(schema.clone())));
        Ok(ListToolsResult::with_all_items(tools.to_vec()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let argument = |name: &str| request.arguments.as_ref().and_then(|all| all.get(name));
        let text = match request.name.as_ref() {
            "wait" => {
                self.wait(argument("who").and_then(Value::as_str).unwrap_or_default(), &context).await?
            }
            "cancelled" => {
                self.cancelled(argument("least").and_then(Value::as_u64).unwrap_or_default()).await?
            }
            "ask_url" => return self.ask_url(&request, &context).await,
            "add_resource" => self.add_resource().await,
            name => return Err(ErrorData::invalid_params(format!("Unknown tool: {name}"), None)),
        };
        Ok(said(text))
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let count = *self.resources.borrow();
        let resource =
            |number: usize| Resource::new(format!("matrix://{number}"), format!("number {number}"));
        Ok(ListResourcesResult::with_all_items((1..=count).map(resource).collect()))
    }

    fn accepted_subscription_filter(&self, _: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(SubscriptionFilter::builder().resources_list_changed().build())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut resources = self.resources.subscribe();
        loop {
            tokio::select! {
                () = context.cancelled() => return Ok(()),
                changed = resources.changed() => changed.map_err(wrong)?,
            }
            let _ = context.sink().notify_resource_list_changed().await;
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let stateless = std::env::args().any(|word| word == "stateless");
    let (cancelled, resources) = (watch::Sender::default(), watch::Sender::new(1));
    let server = Server { stateless, cancelled, resources, session: OnceLock::new() };
    let Ok(running) = server.serve(rmcp::transport::stdio()).await else { return ExitCode::FAILURE };
    if running.waiting().await.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
