//! `toolcrib stdio`: serves MCP on stdin and stdout, attached to the running gateway or standalone.
//!
//! Only MCP messages may be written to stdout here.

mod attached;
pub(super) mod auto_start;
mod connector;
mod gateway_check;
mod replay_log;

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use toolcrib::protocol::jsonrpc::{code, encode_error_response, error_object, find_request_id};
use toolcrib::{Crib, Project, ServerId};
use toolcrib_serve::{McpService, PipeIdentity, serve_pipe};

use self::connector::GatewayConnector;
use crate::cli::StdioArgs;
use crate::client;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
use crate::policy_test::find_profile;

/// The time without a request after which an agent that is not served is left.
const REFUSAL_WAIT: Duration = Duration::from_secs(1);
/// The bytes that are read from an agent that is not served.
const MAX_REFUSED_BYTES: u64 = 1 << 20;

/// Returns the working folder, if its path is valid UTF-8.
fn working_folder() -> Option<String> {
    std::env::current_dir().ok().and_then(|folder| folder.to_str().map(str::to_owned))
}

/// What the agent says about itself on its command line.
#[derive(Debug, Clone, Copy)]
struct AgentOptions<'a> {
    /// The name of the agent.
    name: Option<&'a str>,
    /// The profile that it is limited to, instead of its own.
    profile: Option<&'a str>,
}

/// Serves until stdin ends.
pub(crate) async fn run(
    args: &StdioArgs,
    config_flag: Option<&Path>,
    paths: &Paths,
    out: &mut Output,
) -> Result<ExitStatus> {
    let agent =
        AgentOptions { name: args.agent.as_ref().map(ServerId::as_str), profile: args.profile.as_deref() };
    let stream = match prepare(agent, config_flag, paths, out).await {
        Ok(stream) => stream,
        Err(error) => {
            refuse_agent(&error).await;
            return Err(error);
        }
    };
    match stream {
        Some(stream) => {
            let mut connector = GatewayConnector::new(paths, config_flag, agent);
            let result = serve_attached(&mut connector, stream, paths, out).await;
            connector.close().await;
            result?;
        }
        None => serve_standalone(agent, paths, out).await?,
    }
    Ok(ExitStatus::Success)
}

/// Checks the profile, and connects to the gateway.
async fn prepare(
    agent: AgentOptions<'_>,
    config_flag: Option<&Path>,
    paths: &Paths,
    out: &mut Output,
) -> Result<Option<UnixStream>> {
    if let Some(name) = agent.profile {
        find_profile(&paths.valid_config()?, name)?;
    }
    find_or_start_gateway(config_flag, paths, out).await
}

/// Answers the requests of the agent with the reason why it is not served, for as long as it keeps sending some. Agents show
/// their users such an answer, but seldom what is written to stderr.
async fn refuse_agent(error: &anyhow::Error) {
    if std::io::stdin().is_terminal() {
        return;
    }
    let hint = error.downcast_ref::<CommandError>().and_then(|error| error.hint.as_deref());
    let text = hint.map_or_else(|| error.to_string(), |hint| format!("{error}; {hint}"));
    let error = error_object(code::INTERNAL_ERROR, &text, None);
    let mut stdin = BufReader::new(tokio::io::stdin().take(MAX_REFUSED_BYTES));
    let mut line = Vec::new();
    while let Ok(Ok(1..)) = timeout(REFUSAL_WAIT, stdin.read_until(b'\n', &mut line)).await {
        if let Some(id) = find_request_id(&line) {
            let mut answer = encode_error_response(Some(&id), &error);
            answer.push(b'\n');
            let mut stdout = std::io::stdout();
            if stdout.write_all(&answer).and_then(|()| stdout.flush()).is_err() {
                return;
            }
        }
        line.clear();
    }
}

/// Connects to the gateway, which is started if none is running. Returns `None` if this command has to serve the agent
/// itself. A closed stderr does not keep it from that.
async fn find_or_start_gateway(
    config_flag: Option<&Path>,
    paths: &Paths,
    out: &mut Output,
) -> Result<Option<UnixStream>> {
    if let Some(stream) = client::connect(paths).await? {
        return Ok(Some(stream));
    }
    let config = paths.valid_config()?;
    if let Some(error) = super::missing_gateway_error(&config) {
        return Err(error.into());
    }
    if let Some(reason) = auto_start::refusal(paths, &config)? {
        let _ = out.print_note(&format!("no gateway is running; this agent has its own servers: {reason}"));
        return Ok(None);
    }
    match auto_start::start(paths, config_flag).await {
        Ok(started) => {
            let _ = started.messages.iter().try_for_each(|line| out.print_stderr(line));
            Ok(Some(started.stream))
        }
        Err(reason) => {
            let message = format!("cannot start a gateway; this agent has its own servers: {reason}");
            let _ = out.warn(&message, None);
            Ok(None)
        }
    }
}

/// Serves the agent with the gateway, and warns meanwhile about what differs from it.
async fn serve_attached(
    connector: &mut GatewayConnector<'_>,
    stream: UnixStream,
    paths: &Paths,
    out: &mut Output,
) -> Result<()> {
    let serving = super::until_interrupted(attached::run(connector, stream));
    tokio::pin!(serving);
    let served = tokio::select! {
        served = &mut serving => served,
        warned = gateway_check::warn_about_differences(paths, out) => {
            // A closed stderr does not end the session.
            let _ = warned;
            serving.await
        }
    };
    served?.transpose()?;
    Ok(())
}

/// Serves the agent with servers of this process.
async fn serve_standalone(agent: AgentOptions<'_>, paths: &Paths, out: &mut Output) -> Result<()> {
    let max_message_size = paths.valid_config()?.limits.body;
    let serve = async |crib: Crib| {
        let caller = crib.local_caller(agent.name, agent.profile);
        let service = Arc::new(McpService::new(crib));
        let identity = PipeIdentity {
            caller,
            project: Project::from_roots(working_folder()),
            last_question: 0,
            announces_end: false,
        };
        let stop = CancellationToken::new();
        let stdin = tokio::io::stdin();
        let stdout = tokio::io::stdout();
        let served = serve_pipe(stdin, stdout, service, max_message_size, identity, stop);
        Box::pin(served).await;
    };
    super::run_standalone(paths, out, serve).await?;
    Ok(())
}
