//! The tools.

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, InputRequest, InputRequests,
    InputRequiredResult, LoggingLevel, LoggingMessageNotificationParam, ProgressNotificationParam,
    ServerRequest,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use serde_json::{Value, json};

use crate::internal_error;
use crate::server::{Change, Server};

pub(crate) const TOOLS: [&str; 12] = [
    "echo",
    "steps",
    "log",
    "wait",
    "cancelled",
    "toggle",
    "update",
    "add_resource",
    "sample",
    "form",
    "url",
    "roots",
];

/// A tool call.
pub(crate) struct Call<'a> {
    pub(crate) server: &'a Server,
    pub(crate) request: &'a CallToolRequestParams,
    pub(crate) context: &'a RequestContext<RoleServer>,
}

impl Call<'_> {
    fn argument(&self, name: &str) -> &str {
        let argument = self.request.arguments.as_ref().and_then(|all| all.get(name));
        argument.and_then(Value::as_str).unwrap_or_default()
    }

    pub(crate) async fn answer(&self) -> Result<CallToolResponse, ErrorData> {
        let text = match self.request.name.as_ref() {
            "echo" => self.argument("text").to_owned(),
            "steps" => self.steps().await?,
            "log" => self.log().await?,
            "wait" => self.wait().await?,
            "cancelled" => self.cancelled().await?,
            "toggle" => self.server.change(Change::Tools).await,
            "update" => self.server.change(Change::Text).await,
            "add_resource" => self.server.change(Change::Resources).await,
            "extra" => "here for now".to_owned(),
            name => return self.ask(client_request(name)?).await,
        };
        Ok(text_result(text))
    }

    async fn progress(&self, step: f64, total: Option<f64>, message: &str) -> Result<(), ErrorData> {
        let Some(token) = self.context.meta.get_progress_token() else { return Ok(()) };
        let progress = ProgressNotificationParam::new(token, step).with_message(message);
        let progress = total.into_iter().fold(progress, ProgressNotificationParam::with_total);
        self.context.peer.notify_progress(progress).await.map_err(|error| internal_error(&error))
    }

    async fn steps(&self) -> Result<String, ErrorData> {
        for step in [1.0, 2.0, 3.0] {
            self.progress(step, Some(3.0), "on it").await?;
        }
        Ok("done".to_owned())
    }

    async fn log(&self) -> Result<String, ErrorData> {
        let minimum =
            if self.server.stateless { self.context.meta.log_level() } else { Some(self.server.level()) };
        for line in ["one", "two", "three"] {
            if minimum.is_some_and(|minimum| minimum as u8 <= LoggingLevel::Info as u8) {
                let line = LoggingMessageNotificationParam::new(LoggingLevel::Info, json!(line));
                self.context
                    .peer
                    .notify_logging_message(line)
                    .await
                    .map_err(|error| internal_error(&error))?;
            }
        }
        Ok("done".to_owned())
    }

    /// Sends progress, then waits until the client cancels the call.
    async fn wait(&self) -> Result<String, ErrorData> {
        let who = self.argument("who");
        self.progress(1.0, None, who).await?;
        self.context.ct.cancelled().await;
        self.server.cancelled.send_modify(|all| all.push(who.to_owned()));
        Err(internal_error(&"cancelled"))
    }

    /// Waits until the call of `who` was cancelled, and returns the `who` of every cancelled call.
    async fn cancelled(&self) -> Result<String, ErrorData> {
        let who = self.argument("who");
        let mut all = self.server.cancelled.subscribe();
        let all = all
            .wait_for(|all| all.iter().any(|each| each == who))
            .await
            .map_err(|error| internal_error(&error))?;
        Ok(all.join(","))
    }

    /// Sends a request to the client, in its era, and answers with the response.
    async fn ask(&self, request: Value) -> Result<CallToolResponse, ErrorData> {
        if self.server.stateless {
            if let Some(answer) = self.request.input_responses.as_ref().and_then(|all| all.get("question")) {
                return Ok(text_result(answer.to_string()));
            }
            let request: InputRequest =
                serde_json::from_value(request).map_err(|error| internal_error(&error))?;
            let requests = InputRequests::from([("question".to_owned(), request)]);
            return Ok(InputRequiredResult::new(Some(requests), Some("asked".to_owned())).into());
        }
        let request: ServerRequest =
            serde_json::from_value(request).map_err(|error| internal_error(&error))?;
        let answer = self.context.peer.send_request(request).await.map_err(|error| internal_error(&error))?;
        Ok(text_result(json!(answer).to_string()))
    }
}

/// Returns the request that this tool sends to the client.
fn client_request(tool: &str) -> Result<Value, ErrorData> {
    let (method, params) = match tool {
        "sample" => {
            let message = json!({"role": "user", "content": {"type": "text", "text": "Say something"}});
            ("sampling/createMessage", json!({"messages": [message], "maxTokens": 50}))
        }
        "form" => {
            let schema =
                json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
            (
                "elicitation/create",
                json!({"mode": "form", "message": "Who are you?", "requestedSchema": schema}),
            )
        }
        "url" => {
            let url = "https://example.com/sign-in";
            let params = json!({"mode": "url", "message": "Sign in", "url": url, "elicitationId": "e-1"});
            ("elicitation/create", params)
        }
        "roots" => ("roots/list", json!({})),
        _ => return Err(ErrorData::invalid_params(format!("Unknown tool: {tool}"), None)),
    };
    Ok(json!({"method": method, "params": params}))
}

fn text_result(text: String) -> CallToolResponse {
    CallToolResult::success(vec![ContentBlock::text(text)]).into()
}
