//! Requests of commands to servers: through the running gateway, or to servers that this process starts.

use anyhow::Result;
use bytes::Bytes;
use serde_json::Value;
use toolcrib::protocol::json::object::{self, Object};
use toolcrib::util::encoding;
use toolcrib::{Call, Caller, Crib, ListKind, Outcome, ResponsePayload, Selector, ServerId};

use super::questions;
use crate::client::GatewayClient;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::{Output, Prompter};
use crate::paths::Paths;
use crate::report::tools::ToolsReport;
use crate::tool_listing::{self, ToolsWait};

/// The receiver of requests.
#[derive(Debug)]
pub(super) enum McpPeer {
    Gateway(GatewayClient),
    Standalone(Crib),
}

/// Runs `work` with the gateway, or with servers of this process. `finish` prints the result before these are stopped.
pub(super) async fn run<T>(
    paths: &Paths,
    out: &mut Output,
    work: impl AsyncFnOnce(McpPeer) -> Result<T, CommandError>,
    finish: impl FnOnce(T, &mut Output) -> Result<ExitStatus>,
) -> Result<ExitStatus> {
    let finish = |result: Option<Result<T, CommandError>>, out: &mut Output| match result {
        Some(result) => finish(result?, out),
        None => Ok(ExitStatus::Interrupted),
    };
    match GatewayClient::find(paths).await? {
        Some(client) => {
            let result = super::until_interrupted(work(McpPeer::Gateway(client))).await?;
            finish(result, out)
        }
        None => {
            let config = paths.valid_config()?;
            let work = async |crib: Crib| {
                let result = work(McpPeer::Standalone(crib)).await;
                result.map_err(|error| with_standalone_hint(error, paths))
            };
            super::run_with_config(paths, config, out, work, finish).await?
        }
    }
}

/// Replaces a hint that does not help without a gateway.
pub(super) fn with_standalone_hint(mut error: CommandError, paths: &Paths) -> CommandError {
    let server = error.data["server"].as_str();
    error.hint = error.hint.map(|hint| super::standalone_hint(&hint, server, paths));
    error
}

impl McpPeer {
    /// Sends a request. Questions of the server are asked at the terminal. An error of the server is an error.
    pub(super) async fn send(
        &self,
        prompter: Prompter,
        method: &'static str,
        selector: &Selector,
        params: Object,
    ) -> Result<Bytes, CommandError> {
        let send = async |params: Object| match self {
            Self::Gateway(client) => {
                let path = match selector {
                    Selector::OnServer(server, _) => {
                        format!("/mcp/s/{}", encoding::percent_encode(server.as_str()))
                    }
                    _ => "/mcp".to_owned(),
                };
                client.request_with(&path, method, params, questions::capabilities(prompter)).await
            }
            Self::Standalone(crib) => {
                let call = Call::request(method, selector.clone(), params);
                let Outcome { answer, .. } = crib.call(call.client(questions::client(prompter))).await?;
                Ok(answer)
            }
        };
        let server = match selector {
            Selector::OnServer(server, _) => Some(server.as_str()),
            _ => None,
        };
        into_result(questions::send_with_answers(prompter, server, params, send).await?)
    }

    /// Splits `SERVER.NAME` at its first dot if the part before it is a declared server; else `to_selector` gets the name.
    pub(super) async fn select(&self, name: &str, to_selector: impl FnOnce(String) -> Selector) -> Selector {
        match split_at_dot(name, async |server| self.is_declared(server).await).await {
            Some(QualifiedName { server, name }) => Selector::OnServer(server, name),
            None => to_selector(name.to_owned()),
        }
    }

    async fn is_declared(&self, server: &ServerId) -> bool {
        match self {
            Self::Gateway(client) => is_declared_at(client, server).await,
            Self::Standalone(crib) => crib.contains(server),
        }
    }

    /// Lists all servers. Returns those that failed or are still starting; without a gateway, waits for them.
    pub(super) async fn discover(&self) -> Result<ToolsReport, CommandError> {
        match self {
            Self::Gateway(client) => client.fetch("/api/v1/tools").await,
            Self::Standalone(crib) => {
                Ok(tool_listing::list_tools(crib, &Caller::local(), ToolsWait::Patient).await)
            }
        }
    }

    /// Returns a complete list under public names.
    pub(super) async fn list(&self, kind: ListKind) -> Result<Vec<Value>, CommandError> {
        match self {
            Self::Gateway(client) => list_pages(client, kind).await,
            Self::Standalone(crib) => {
                let list = crib.catalog_for(&Caller::local()).list_json(kind, None);
                serde_json::from_slice(&list).map_err(|error| CommandError::unexpected(&error))
            }
        }
    }
}

/// Returns whether a gateway has a server.
pub(super) async fn is_declared_at(client: &GatewayClient, server: &ServerId) -> bool {
    client.get(&super::server_path(server.as_str())).await.is_ok()
}

/// A name on a declared server.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct QualifiedName {
    pub(super) server: ServerId,
    pub(super) name: String,
}

/// Splits `SERVER.NAME` at its first dot, if the part before it is a declared server.
pub(super) async fn split_at_dot(
    name: &str,
    is_declared: impl AsyncFn(&ServerId) -> bool,
) -> Option<QualifiedName> {
    let (server, name) = name.split_once('.')?;
    let server: ServerId = server.parse().ok()?;
    is_declared(&server).await.then(|| QualifiedName { server, name: name.to_owned() })
}

/// Requests all pages of a list.
async fn list_pages(client: &GatewayClient, kind: ListKind) -> Result<Vec<Value>, CommandError> {
    let mut items = Vec::new();
    let mut params = Object::default();
    loop {
        let page = into_result(client.request("/mcp", kind.method(), params).await?)?;
        let mut page: Value =
            serde_json::from_slice(&page).map_err(|error| CommandError::unexpected(&error))?;
        if let Value::Array(listed) = page[kind.list_member()].take() {
            items.extend(listed);
        }
        let Some(cursor) = page["nextCursor"].as_str() else { return Ok(items) };
        params = Object::default();
        params.set_unchecked("cursor", object::to_json_string(cursor));
    }
}

/// Returns the result of a response, or its error.
fn into_result(response: ResponsePayload) -> Result<Bytes, CommandError> {
    response.into_result().map_err(|error| {
        let error: Value = serde_json::from_slice(&error).unwrap_or_default();
        questions::with_question_hint(CommandError::from_error_object(&error))
    })
}
