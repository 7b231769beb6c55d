//! `toolcrib call`: calls a tool from the command line.

pub(super) mod adhoc;
pub(super) mod arguments;

use std::cell::Cell;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout, timeout_at};
use toolcrib::access::schema::Schema;
use toolcrib::config::Config;
use toolcrib::protocol::json::object::{self, Object};
use toolcrib::protocol::jsonrpc::{ResponsePayload, code};
use toolcrib::util::encoding;
use toolcrib::util::format;
use toolcrib::{Caller, Crib, Delivery, ErrorKind, Hint, Outcome, Selector, ServerId};

use self::arguments::CallArguments;
use super::content::ContentText;
use super::mcp_peer::{self, QualifiedName, is_declared_at, with_standalone_hint};
use super::questions;
use crate::cli::CallArgs;
use crate::client::GatewayClient;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::hints::hint_text;
use crate::output::{Output, Prompter};
use crate::paths::Paths;
use crate::progress::{ServerSource, Wait};
use crate::progress_line;
use crate::report::Report as _;
use crate::report::tools::ToolLookupReport;
use crate::tool_listing;

/// Calls the tool through the running gateway. Without one, starts the server itself; a server given by its command or URL
/// is always started here.
pub(crate) async fn run(args: &CallArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let request = CallRequest::parse(args)?;
    if let Some(spec) = adhoc::server_spec(args)? {
        let config = adhoc::config_with(paths, &spec)?;
        let replace_hint = |error| adhoc::with_flag_hint(error, args);
        let request = request.on_server(spec.id.as_str());
        return run_here(request, config, paths, out, replace_hint).await;
    }
    let Some(client) = GatewayClient::find(paths).await? else {
        let replace_hint = |error| with_standalone_hint(error, paths);
        return run_here(request, paths.valid_config()?, paths, out, replace_hint).await;
    };
    let prompter = out.prompter();
    let call = async {
        let request = request.split_at_dot(async |server| is_declared_at(&client, server).await).await;
        let wait = request.wait(ServerSource::Gateway(&client));
        wait.run(request.call_gateway(&client, prompter)).await
    };
    let save = args.save.save.as_deref();
    let response = super::until_interrupted(call).await?;
    finish(response, save, out)
}

/// Calls the tool in this process. The response is printed before the server is stopped. `replace_hint` replaces hints that
/// do not help without a gateway.
async fn run_here(
    request: CallRequest,
    config: Config,
    paths: &Paths,
    out: &mut Output,
    replace_hint: impl Fn(CommandError) -> CommandError,
) -> Result<ExitStatus> {
    let prompter = out.prompter();
    let save = request.save.clone();
    let work = async |crib: Crib| {
        let request = request.split_at_dot(async |server| crib.contains(server)).await;
        let wait = request.wait(ServerSource::Crib(&crib));
        wait.run(request.call_standalone(&crib, prompter)).await
    };
    let finish = |response: Option<Result<CallResponse, CommandError>>, out: &mut Output| {
        finish(response.map(|response| response.map_err(replace_hint)), save.as_deref(), out)
    };
    super::run_with_config(paths, config, out, work, finish).await?
}

/// Prints the response, or that the call was interrupted.
fn finish(
    response: Option<Result<CallResponse, CommandError>>,
    save: Option<&Path>,
    out: &mut Output,
) -> Result<ExitStatus> {
    match response {
        Some(response) => print_response(&response?, save, out),
        None => {
            out.print_note("interrupted; the call was cancelled")?;
            Ok(ExitStatus::Interrupted)
        }
    }
}

/// Hint for a call that took longer than the command line allows.
const RAISE_TIMEOUT: &str = "raise `--timeout`";
/// Longest time in which a similar name is looked for.
const SUGGESTION_TIMEOUT: Duration = Duration::from_secs(1);
/// Time that a call gets to end after its timeout.
const CALL_GRACE: Duration = Duration::from_secs(1);

/// The response of a call.
struct CallResponse {
    payload: ResponsePayload,
    /// A tool of the server with a similar name, if the call failed and the server does not list its tool.
    similar: Option<String>,
}

/// A request to the gateway that is ready to be sent.
struct GatewayCall {
    path: String,
    /// The server of the tool, if it is known.
    server: Option<String>,
    params: Object,
}

/// The call that the command line describes.
#[derive(Debug)]
struct CallRequest {
    server: Option<String>,
    tool: String,
    arguments: CallArguments,
    timeout: Option<Duration>,
    unchecked: bool,
    save: Option<PathBuf>,
}

impl CallRequest {
    /// Parses the positional arguments. A second word that is not an argument is the tool, and the first one its server;
    /// there is no server if it is given by its command or URL.
    fn parse(args: &CallArgs) -> Result<Self> {
        let is_adhoc = args.command.is_some() || args.url.is_some();
        let (server, tool, words) = match args.positional.as_slice() {
            [server, tool, words @ ..] if !is_adhoc && !arguments::is_argument(tool) => {
                (Some(server.clone()), tool.clone(), words)
            }
            [tool, words @ ..] => (None, tool.clone(), words),
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
            arguments: CallArguments::parse(words, object)?,
            timeout: args.timeout,
            unchecked: args.unchecked,
            save: args.save.save.clone(),
        })
    }

    fn on_server(self, server: &str) -> Self {
        Self { server: Some(server.to_owned()), ..self }
    }

    /// Splits `SERVER.TOOL` at its first dot, if the part before it is a declared server.
    async fn split_at_dot(self, is_declared: impl AsyncFn(&ServerId) -> bool) -> Self {
        if self.server.is_some() {
            return self;
        }
        match mcp_peer::split_at_dot(&self.tool, is_declared).await {
            Some(QualifiedName { server, name }) => {
                Self { server: Some(server.to_string()), tool: name, ..self }
            }
            None => self,
        }
    }

    /// Returns the wait for the response. A public name begins with the name of its server.
    fn wait<'a>(&self, servers: ServerSource<'a>) -> Wait<'a> {
        let wait = Wait::new(format!("calling `{}`", self.tool), servers);
        let prefix = || self.tool.split_once("__").map(|(server, _)| server);
        self.server.as_deref().or_else(prefix).into_iter().fold(wait, Wait::on_server)
    }

    /// Returns the end of a call that begins now.
    fn deadline(&self) -> Option<Instant> {
        self.timeout.map(|limit| Instant::now() + limit)
    }

    /// Runs a step of the call until `deadline`. The error after it says whether the call may have been sent.
    async fn run_until<T>(
        &self,
        deadline: Option<Instant>,
        delivery: Delivery,
        step: impl Future<Output = Result<T, CommandError>>,
    ) -> Result<T, CommandError> {
        let Some(deadline) = deadline else { return step.await };
        timeout_at(deadline, step).await.unwrap_or_else(|_| {
            let limit = format::format_duration(self.timeout.unwrap_or_default());
            let message =
                format!("tool `{}` did not respond within {limit}; the call was cancelled", self.tool);
            let error = CommandError::new(ExitStatus::TimedOut, "timed_out", message).hint(RAISE_TIMEOUT);
            Err(CommandError { data: json!({"sent": delivery.name()}), ..error })
        })
    }

    /// Calls through the gateway. Questions of the server are asked at the terminal.
    async fn call_gateway(
        &self,
        client: &GatewayClient,
        prompter: Prompter,
    ) -> Result<CallResponse, CommandError> {
        let deadline = self.deadline();
        let prepared = self.prepare_gateway_call(client);
        let GatewayCall { path, server, params } =
            self.run_until(deadline, Delivery::NotSent, prepared).await?;
        let deadline = CallDeadline::new(self, deadline);
        let send = async |params| {
            let capabilities = questions::capabilities(prompter);
            let sent = client.request_with(&path, "tools/call", params, capabilities);
            self.run_until(deadline.next(), Delivery::MaybeSent, sent).await
        };
        let response = questions::send_with_answers(prompter, server.as_deref(), params, send).await?;
        if self.server.is_none() || !may_have_unknown_tool(&response) {
            return Ok(CallResponse { payload: response, similar: None });
        }
        // Without a suggestion if looking for one takes long.
        let found = timeout(SUGGESTION_TIMEOUT, self.look_up_tool(client, "")).await;
        add_suggestion(response, found.ok().and_then(Result::ok).unwrap_or_default().near)
    }

    /// Checks the arguments, starts the server, and finds the endpoint of the call. Sends no call.
    async fn prepare_gateway_call(&self, client: &GatewayClient) -> Result<GatewayCall, CommandError> {
        let definition = match self.unchecked {
            true => Value::Null,
            false => self.look_up_tool(client, "").await?.tool.unwrap_or_default().definition,
        };
        let mut params = Object::default();
        params.set_unchecked("name", object::to_json_string(&self.tool));
        params.set_unchecked("arguments", self.checked_arguments(definition)?);
        let found = self.look_up_tool(client, "&start=1").await?;
        let server = self.server.clone().or(found.tool.map(|tool| tool.server));
        let path = match &self.server {
            Some(server) => {
                client.get(&super::server_path(server)).await?;
                format!("/mcp/s/{}", encoding::percent_encode(server))
            }
            None => "/mcp".to_owned(),
        };
        Ok(GatewayCall { path, server, params })
    }

    /// Returns the arguments in the types of the tool's schema. Fails if they do not match the schema. Without a definition
    /// there is no schema.
    fn checked_arguments(&self, definition: Value) -> Result<Bytes, CommandError> {
        let schema = Schema::from_definition(&definition.to_string().into());
        let input_schema = input_schema(definition);
        let arguments = self.arguments.to_json(input_schema.as_ref())?;
        let mut violations =
            input_schema.map(|schema| self.arguments.find_misspelled(&schema)).unwrap_or_default();
        if let Some(Err(found)) = schema.map(|schema| schema.check(&arguments)) {
            violations.extend(found.iter().map(ToString::to_string));
        }
        if violations.is_empty() {
            return Ok(arguments);
        }
        let kind = ErrorKind::BadArguments;
        let message = format!("the arguments do not fit `{}`: {}", self.tool, violations.join("; "));
        let hint = match &self.server {
            Some(server) if server.starts_with(adhoc::NAME_PREFIX) => "toolcrib help call".to_owned(),
            Some(server) => format!("toolcrib tools {server}.{}", self.tool),
            None => format!("toolcrib tools {}", self.tool),
        };
        Err(CommandError::new(ExitStatus::from_kind(kind), kind.facts().name, message).hint(hint))
    }

    /// Finds the tool. Fails with the first failed start of its server. `start` is `&start=1` to start a known server.
    async fn look_up_tool(
        &self,
        client: &GatewayClient,
        start: &str,
    ) -> Result<ToolLookupReport, CommandError> {
        let name = encoding::percent_encode(&self.tool);
        let server = self.server.as_deref().map(encoding::percent_encode);
        let server = server.map_or_else(String::new, |server| format!("&server={server}"));
        let found: ToolLookupReport =
            client.fetch(&format!("/api/v1/tools?name={name}{server}{start}")).await?;
        match found.failure {
            Some(failure) => Err(CommandError::from_error_object(&failure.to_json())),
            None => Ok(found),
        }
    }

    /// Calls without a gateway. Questions of the server are asked at the terminal.
    async fn call_standalone(&self, crib: &Crib, prompter: Prompter) -> Result<CallResponse, CommandError> {
        let selector = match &self.server {
            None => Selector::Tool(self.tool.clone()),
            Some(server) => match server.parse() {
                Ok(server) => Selector::OnServer(server, self.tool.clone()),
                Err(_) => return Err(crib.catalog_for(&Caller::local()).unknown_server_error(server).into()),
            },
        };
        let deadline = self.deadline();
        let local = Caller::local();
        let found = async { Ok(tool_listing::find_tool(crib, &local, &selector).await?) };
        let tool = self.run_until(deadline, Delivery::NotSent, found).await?;
        let checked = tool.as_ref().filter(|_| !self.unchecked);
        let definition = checked.and_then(|tool| serde_json::from_slice(&tool.definition).ok());
        let arguments = self.checked_arguments(definition.unwrap_or_default())?;
        if let Some(tool) = &tool {
            let started = async { Ok(tool_listing::start_server_of(crib, tool).await?) };
            self.run_until(deadline, Delivery::NotSent, started).await?;
        }
        let call = match selector.clone() {
            Selector::OnServer(server, tool) => toolcrib::Call::tool_on(server, tool),
            _ => toolcrib::Call::tool(&self.tool),
        };
        let call = call.raw_arguments(arguments).client(questions::client(prompter));
        let deadline = CallDeadline::new(self, deadline);
        let server = tool.as_ref().map(|tool| tool.server.as_str()).or(self.server.as_deref());
        let send = async |params| self.send_standalone(crib, call.clone().params(params), &deadline).await;
        let response =
            questions::send_with_answers(prompter, server, call.get_params().clone(), send).await?;
        let similar = may_have_unknown_tool(&response)
            .then(|| crib.catalog_for(&local).suggest_tool(&selector).map(ToOwned::to_owned));
        add_suggestion(response, similar.flatten())
    }

    /// Sends the call once. It ends at the deadline by itself, with an error that knows if it was sent.
    async fn send_standalone(
        &self,
        crib: &Crib,
        call: toolcrib::Call,
        deadline: &CallDeadline<'_>,
    ) -> Result<ResponsePayload, CommandError> {
        let deadline = deadline.next();
        let remaining = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let call = remaining.into_iter().fold(call, toolcrib::Call::timeout);
        let sent = async {
            crib.call(progress_line::watch_call(call)).await.map_err(|error| {
                match CommandError::from(error) {
                    error
                        if error.exit == ExitStatus::TimedOut
                            && deadline.is_some_and(|end| end <= Instant::now()) =>
                    {
                        error.hint(RAISE_TIMEOUT)
                    }
                    error if error.data["approval"].is_string() => {
                        error.hint("run the command in a terminal, or use a gateway")
                    }
                    error => error,
                }
            })
        };
        let latest = deadline.map(|deadline| deadline + CALL_GRACE);
        let Outcome { answer: response, .. } = self.run_until(latest, Delivery::MaybeSent, sent).await?;
        Ok(response)
    }
}

/// The deadline of each round of a call. The time in which a person answers questions does not count.
struct CallDeadline<'a> {
    request: &'a CallRequest,
    /// The deadline of the first round, which began earlier.
    first: Cell<Option<Instant>>,
}

impl<'a> CallDeadline<'a> {
    fn new(request: &'a CallRequest, first: Option<Instant>) -> Self {
        Self { request, first: Cell::new(first) }
    }

    /// Returns the deadline of the round that begins now.
    fn next(&self) -> Option<Instant> {
        self.first.take().or_else(|| self.request.deadline())
    }
}

/// Returns whether the server may have answered that it does not know the tool: by an error, or by a result that is one.
fn may_have_unknown_tool(response: &ResponsePayload) -> bool {
    invalid_params_error(response).is_some() || response.as_result().is_ok_and(is_error_result)
}

/// Adds the name of a similar tool to a failed call.
fn add_suggestion(response: ResponsePayload, similar: Option<String>) -> Result<CallResponse, CommandError> {
    match invalid_params_error(&response) {
        Some(error) => Err(with_suggestion(error, similar.as_deref())),
        None => Ok(CallResponse { payload: response, similar }),
    }
}

/// Returns the server's error if it is `INVALID_PARAMS`, the code for an unknown tool and for invalid arguments.
fn invalid_params_error(response: &ResponsePayload) -> Option<CommandError> {
    let ResponsePayload::Error(error) = response else { return None };
    let error: Value = serde_json::from_slice(error).ok()?;
    (error["code"] == code::INVALID_PARAMS).then(|| CommandError::from_error_object(&error))
}

/// Adds a similar tool name as the hint, unless the error has a hint that says more than to list the tools. Without one,
/// the hint is to list the tools.
fn with_suggestion(mut error: CommandError, similar: Option<&str>) -> CommandError {
    let list_tools = hint_text(&Hint::ListTools);
    error.hint.get_or_insert_with(|| list_tools.clone());
    if let Some(similar) = similar.filter(|_| error.hint.as_ref().is_none_or(|hint| *hint == list_tools)) {
        error.hint = Some(format!("did you mean `{similar}`?"));
    }
    error
}

fn input_schema(mut definition: Value) -> Option<Value> {
    Some(definition["inputSchema"].take()).filter(Value::is_object)
}

fn print_response(response: &CallResponse, save: Option<&Path>, out: &mut Output) -> Result<ExitStatus> {
    let result = match response.payload.as_result() {
        Ok(result) => result,
        Err(error) => {
            let error = CommandError::from_error_object(&serde_json::from_slice(error).unwrap_or_default());
            return Err(questions::with_question_hint(error).into());
        }
    };
    let is_error = is_error_result(result);
    let texts = match out.json && save.is_none() {
        true => Vec::new(),
        false => ContentText::new(save).result_texts(result)?,
    };
    match (out.json, is_error) {
        (true, _) => out.print_raw(result)?,
        (false, false) => texts.iter().try_for_each(|text| out.print_raw(text.as_bytes()))?,
        (false, true) => texts.iter().try_for_each(|text| out.print_stderr(text))?,
    }
    let similar = response.similar.as_ref().map(|similar| format!("did you mean `{similar}`?"));
    if is_error && out.json {
        let error = CommandError::new(ExitStatus::ToolError, "tool_error", "the tool returned an error");
        out.print_error(&CommandError { hint: similar, ..error })?;
    } else if let Some(similar) = similar {
        out.print_hint(&similar)?;
    }
    Ok(if is_error { ExitStatus::ToolError } else { ExitStatus::Success })
}

fn is_error_result(result: &Bytes) -> bool {
    Object::parse(result).is_ok_and(|result| result.get("isError").is_some_and(|raw| &**raw == b"true"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> CallRequest {
        let positional = words.iter().map(|&word| word.to_owned()).collect();
        CallRequest::parse(&CallArgs { positional, ..CallArgs::default() }).unwrap()
    }

    #[tokio::test]
    async fn name_is_split_at_first_dot_after_declared_server() {
        for (words, server, tool) in [
            (&["git.log.all"][..], Some("git"), "log.all"),
            (&["other.log"], None, "other.log"),
            (&["log"], None, "log"),
            (&["git", "git.log"], Some("git"), "git.log"),
        ] {
            let split = parse(words).split_at_dot(async |server| server.as_str() == "git").await;
            assert_eq!((split.server.as_deref(), split.tool.as_str()), (server, tool), "{words:?}");
        }
    }

    #[test]
    fn second_word_without_equals_sign_is_tool() {
        let named = parse(&["git__log", "n=1"]);
        assert_eq!((named.server, named.tool.as_str()), (None, "git__log"));
        let on = parse(&["git", "log", "n=1"]);
        assert_eq!((on.server.as_deref(), on.tool.as_str()), (Some("git"), "log"));
        for argument in ["{}", "n:=1"] {
            assert_eq!(parse(&["log", argument]).server, None, "{argument}");
        }
    }

    #[test]
    fn deeply_nested_result_is_printed() {
        let deep = format!("{}{}", "[".repeat(300), "]".repeat(300));
        let text = r#"{"type":"text","text":"boom"}"#;
        let result =
            Bytes::from(format!(r#"{{"isError":true,"content":[{text}],"structuredContent":{deep}}}"#));
        let lines = ContentText::new(None).result_texts(&result).unwrap();
        assert!(is_error_result(&result));
        assert_eq!(lines, ["boom"]);
    }
}
