//! `toolcrib call`: calls a tool from the command line.

mod arguments;

use std::io::Read as _;
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use serde_json::Value;
use tokio::time::timeout;
use toolcrib::access::schema::Schema;
use toolcrib::protocol::json::object::{self, Object};
use toolcrib::protocol::jsonrpc::{ResponsePayload, code};
use toolcrib::util::encoding;
use toolcrib::util::format;
use toolcrib::{Caller, Crib, ErrorKind, Outcome, Selector};

use self::arguments::CallArguments;
use crate::cli::CallArgs;
use crate::client::GatewayClient;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::{Output, Prompter};
use crate::paths::Paths;
use crate::report::approvals::{PendingCallReport, PendingCallsReport};
use crate::report::tools::ToolLookupReport;
use crate::tool_listing;

/// Calls the tool through the running gateway. Without one, starts the server itself.
pub(crate) async fn run(args: &CallArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let request = CallRequest::parse(args)?;
    let prompter = out.prompter();
    let response = match GatewayClient::find(paths).await? {
        Some(client) => {
            super::until_interrupted(request.call_gateway_with_approval(&client, prompter)).await?
        }
        None => {
            let work = async |crib| request.call_standalone_with_approval(&crib, prompter).await;
            super::run_standalone(paths, out, work)
                .await?
                .map(|response| response.map_err(|error| with_standalone_hint(error, paths)))
        }
    };
    match response {
        Some(response) => print_response(&response?, out),
        None => {
            out.print_note("interrupted; the call was cancelled")?;
            Ok(ExitStatus::Interrupted)
        }
    }
}

/// The call that the command line describes.
struct CallRequest {
    server: Option<String>,
    tool: String,
    arguments: CallArguments,
    timeout: Option<Duration>,
    unchecked: bool,
}

impl CallRequest {
    /// Parses the positional arguments. A second word without `=` is the tool, and the first one its server.
    fn parse(args: &CallArgs) -> Result<Self> {
        let (server, tool, pairs) = match args.positional.as_slice() {
            [server, tool, pairs @ ..] if !tool.contains('=') => (Some(server.clone()), tool.clone(), pairs),
            [tool, pairs @ ..] => (None, tool.clone(), pairs),
            [] => return Err(CommandError::usage("the tool is missing").hint("toolcrib tools").into()),
        };
        let object = match args.args.as_deref() {
            Some("-") => {
                let mut text = Vec::new();
                std::io::stdin().read_to_end(&mut text)?;
                Some(Bytes::from(text))
            }
            Some(text) => Some(Bytes::copy_from_slice(text.as_bytes())),
            None => None,
        };
        Ok(Self {
            server,
            tool,
            arguments: CallArguments::parse(pairs, object)?,
            timeout: args.timeout,
            unchecked: args.unchecked,
        })
    }

    /// Runs `work` within the timeout of the command line.
    async fn with_timeout(
        &self,
        work: impl Future<Output = Result<ResponsePayload, CommandError>>,
    ) -> Result<ResponsePayload, CommandError> {
        let Some(limit) = self.timeout else { return work.await };
        timeout(limit, work).await.unwrap_or_else(|_| {
            let message = format!(
                "tool `{}` did not respond within {}; the call was cancelled",
                self.tool,
                format::format_duration(limit)
            );
            Err(CommandError::new(ExitStatus::TimedOut, "timed_out", message).hint("raise `--timeout`"))
        })
    }

    /// Calls through the gateway. If the call needs approval and the person confirms it, calls again.
    async fn call_gateway_with_approval(
        &self,
        client: &GatewayClient,
        prompter: Prompter,
    ) -> Result<ResponsePayload, CommandError> {
        let response = self.with_timeout(self.call_gateway(client)).await;
        let Some(id) = approval_id(&response) else { return response };
        let pending: PendingCallsReport = client.fetch("/api/v1/calls").await?;
        if !pending.find(&id).is_some_and(|call| confirm_call(prompter, call)) {
            return response;
        }
        client.post(&format!("/api/v1/calls/{id}/approve")).await?;
        self.with_timeout(self.call_gateway(client)).await
    }

    /// Calls without a gateway. If the call needs approval and the person confirms it, calls again.
    async fn call_standalone_with_approval(
        &self,
        crib: &Crib,
        prompter: Prompter,
    ) -> Result<ResponsePayload, CommandError> {
        let response = self.with_timeout(self.call_standalone(crib)).await;
        let Some(id) = approval_id(&response) else { return response };
        let call = crib.pending_approvals().await.into_iter().find(|call| call.id == id);
        if !call.is_some_and(|call| confirm_call(prompter, &PendingCallReport::new(&call))) {
            let hint = "run the command in a terminal, or use a gateway";
            return response.map_err(|error| error.hint(hint));
        }
        crib.decide_approval(&id, true).await?;
        self.with_timeout(self.call_standalone(crib)).await
    }

    async fn call_gateway(&self, client: &GatewayClient) -> Result<ResponsePayload, CommandError> {
        let definition = match self.arguments.needs_schema() || !self.unchecked {
            true => self.look_up_tool(client).await?.tool.unwrap_or_default().definition,
            false => Value::Null,
        };
        let mut params = Object::default();
        params.set("name", object::to_json_string(&self.tool));
        params.set("arguments", self.checked_arguments(definition)?);
        let path = match &self.server {
            Some(server) => {
                client.get(&super::server_path(server)).await?;
                format!("/mcp/s/{}", encoding::percent_encode(server))
            }
            None => "/mcp".to_owned(),
        };
        let response = client.request(&path, "tools/call", params).await?;
        match invalid_params_error(&response).filter(|_| self.server.is_some()) {
            Some(error) => {
                let found = self.look_up_tool(client).await.unwrap_or_default();
                Err(with_suggestion(error, found.near.as_deref()))
            }
            None => Ok(response),
        }
    }

    /// Returns the arguments in the types of the tool's schema. Fails if they do not match the schema.
    fn checked_arguments(&self, definition: Value) -> Result<Bytes, CommandError> {
        let schema = Schema::from_definition(&definition.to_string().into()).filter(|_| !self.unchecked);
        let arguments = self.arguments.to_json(input_schema(definition).as_ref())?;
        let Some(Err(violations)) = schema.map(|schema| schema.check(&arguments)) else {
            return Ok(arguments);
        };
        let violations: Vec<String> = violations.iter().map(ToString::to_string).collect();
        let kind = ErrorKind::BadArguments;
        let message = format!("the arguments do not fit `{}`: {}", self.tool, violations.join("; "));
        let hint = format!("toolcrib tools {} --json", self.tool);
        Err(CommandError::new(ExitStatus::from_kind(kind), kind.facts().name, message).hint(hint))
    }

    async fn look_up_tool(&self, client: &GatewayClient) -> Result<ToolLookupReport, CommandError> {
        let name = encoding::percent_encode(&self.tool);
        let path = match &self.server {
            Some(server) => format!("/api/v1/tools?name={name}&server={}", encoding::percent_encode(server)),
            None => format!("/api/v1/tools?name={name}"),
        };
        client.fetch(&path).await
    }

    async fn call_standalone(&self, crib: &Crib) -> Result<ResponsePayload, CommandError> {
        let selector = match &self.server {
            None => Selector::Tool(self.tool.clone()),
            Some(server) => match server.parse() {
                Ok(server) => Selector::OnServer(server, self.tool.clone()),
                Err(_) => return Err(crib.catalog_for(&Caller::local()).unknown_server_error(server).into()),
            },
        };
        let tool = tool_listing::find_tool(crib, &Caller::local(), &selector).await;
        let definition = tool.and_then(|tool| serde_json::from_slice(&tool.definition).ok());
        let arguments = self.checked_arguments(definition.unwrap_or_default())?;
        let call = match selector.clone() {
            Selector::OnServer(server, tool) => toolcrib::Call::tool_on(server, tool),
            _ => toolcrib::Call::tool(&self.tool),
        };
        let call = call.raw_arguments(arguments);
        let call = self.timeout.into_iter().fold(call, toolcrib::Call::timeout);
        let Outcome { answer: response, .. } = crib.call(call).await?;
        match invalid_params_error(&response) {
            Some(error) => {
                let catalog = crib.catalog_for(&Caller::local());
                Err(with_suggestion(error, catalog.suggest_tool(&selector)))
            }
            None => Ok(response),
        }
    }
}

/// Returns the id of a call that was refused because it needs approval.
fn approval_id(response: &Result<ResponsePayload, CommandError>) -> Option<String> {
    match response {
        Ok(ResponsePayload::Error(error)) => {
            let error: Value = serde_json::from_slice(error).ok()?;
            Some(error["data"]["approval"].as_str()?.to_owned())
        }
        Ok(_) => None,
        Err(error) => Some(error.data["approval"].as_str()?.to_owned()),
    }
}

/// Asks the person to approve a call. Without a terminal the answer is no.
fn confirm_call(prompter: Prompter, call: &PendingCallReport) -> bool {
    prompter.confirm(&format!("{}; allow it?", super::approve::describe_call(call))).unwrap_or(false)
}

/// Returns the server's error if it is `INVALID_PARAMS`, the code for an unknown tool and for invalid arguments.
fn invalid_params_error(response: &ResponsePayload) -> Option<CommandError> {
    let ResponsePayload::Error(error) = response else { return None };
    let error: Value = serde_json::from_slice(error).ok()?;
    (error["code"] == code::INVALID_PARAMS).then(|| CommandError::from_error_object(&error))
}

/// Adds a similar tool name as the hint, unless the error has a hint.
fn with_suggestion(mut error: CommandError, similar: Option<&str>) -> CommandError {
    error.hint = error.hint.or_else(|| similar.map(|similar| format!("did you mean `{similar}`?")));
    error
}

fn with_standalone_hint(mut error: CommandError, paths: &Paths) -> CommandError {
    let server = error.data["server"].as_str();
    error.hint = error.hint.map(|hint| super::standalone_hint(&hint, server, paths));
    error
}

fn input_schema(mut definition: Value) -> Option<Value> {
    Some(definition["inputSchema"].take()).filter(Value::is_object)
}

fn print_response(response: &ResponsePayload, out: &mut Output) -> Result<ExitStatus> {
    let result = match response.as_result() {
        Ok(result) => result,
        Err(error) => {
            return Err(
                CommandError::from_error_object(&serde_json::from_slice(error).unwrap_or_default()).into()
            );
        }
    };
    let is_error = is_error_result(result);
    match (out.json, is_error) {
        (true, _) => out.print_raw(result)?,
        (false, false) => print_content(result, |line| out.print_line(line))?,
        (false, true) => print_content(result, |line| out.print_stderr(line))?,
    }
    if is_error && out.json {
        out.print_error(&CommandError::new(
            ExitStatus::ToolError,
            "tool_error",
            "the tool returned an error",
        ))?;
    }
    Ok(if is_error { ExitStatus::ToolError } else { ExitStatus::Success })
}

fn is_error_result(result: &Bytes) -> bool {
    Object::parse(result).is_ok_and(|result| result.get("isError").is_some_and(|raw| &**raw == b"true"))
}

/// Prints text blocks as text and other blocks as JSON. Structured content is printed only if there is no text.
fn print_content(result: &Bytes, mut print: impl FnMut(&str) -> std::io::Result<()>) -> std::io::Result<()> {
    let result = Object::parse(result).unwrap_or_default();
    let blocks =
        result.get("content").and_then(|blocks| object::parse_array(blocks).ok()).unwrap_or_default();
    let mut has_text = false;
    for block in blocks {
        let object = Object::parse(&block).unwrap_or_default();
        match (object.get_string("type").as_deref(), object.get_string("text")) {
            (Some("text"), Some(text)) => {
                has_text = true;
                print(&text)?;
            }
            _ => print(&String::from_utf8_lossy(&block))?,
        }
    }
    match result.get("structuredContent") {
        Some(structured) if !has_text => print(&String::from_utf8_lossy(structured)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(words: &[&str]) -> CallRequest {
        let positional = words.iter().map(|&word| word.to_owned()).collect();
        CallRequest::parse(&CallArgs { positional, args: None, unchecked: false, timeout: None }).unwrap()
    }

    #[test]
    fn second_word_without_equals_sign_is_tool() {
        let named = parse(&["git__log", "n=1"]);
        assert_eq!((named.server, named.tool.as_str()), (None, "git__log"));
        let on = parse(&["git", "log", "n=1"]);
        assert_eq!((on.server.as_deref(), on.tool.as_str()), (Some("git"), "log"));
    }

    #[test]
    fn structured_content_is_printed_without_text() {
        let printed = |result: Value| {
            let mut lines = Vec::new();
            let keep = |line: &str| {
                lines.push(line.to_owned());
                Ok(())
            };
            print_content(&Bytes::from(result.to_string()), keep).unwrap();
            lines
        };
        let text = json!({"type": "text", "text": "a"});
        let image = json!({"type": "image", "data": "x"});
        assert_eq!(printed(json!({"content": [text], "structuredContent": {"a": 1}})), ["a"]);
        assert_eq!(printed(json!({"content": [], "structuredContent": {"a": 1}})), [r#"{"a":1}"#]);
        assert_eq!(printed(json!({"content": [image]})), [r#"{"data":"x","type":"image"}"#]);
    }

    #[test]
    fn deeply_nested_result_is_printed() {
        let deep = format!("{}{}", "[".repeat(300), "]".repeat(300));
        let text = r#"{"type":"text","text":"boom"}"#;
        let result =
            Bytes::from(format!(r#"{{"isError":true,"content":[{text}],"structuredContent":{deep}}}"#));
        let mut lines = Vec::new();
        let keep = |line: &str| {
            lines.push(line.to_owned());
            Ok(())
        };
        print_content(&result, keep).unwrap();
        assert!(is_error_result(&result));
        assert_eq!(lines, ["boom"]);
    }
}
