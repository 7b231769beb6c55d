//! The first list of a server that was just added: agents see its tools at once, and a person sees whether it works.

use std::time::Duration;

use anyhow::Result;
use tokio::time::timeout;
use toolcrib::{Caller, Crib, FirstListingWait, ServerId};

use super::call::adhoc;
use super::doctor::Completion;
use super::tools::with_standalone_hints;
use super::{run_with_config, until_interrupted};
use crate::client::GatewayClient;
use crate::command_error::CommandError;
use crate::output::Output;
use crate::paths::Paths;
use crate::preflight;
use crate::progress::{ServerSource, Wait};
use crate::report::tools::{FailureReport, ToolsReport};
use crate::secrets::SecretLocator;
use crate::tool_listing::{self, ToolsQuery, ToolsWait};

/// Time for the answer of a gateway after it has stopped waiting.
const ANSWER_GRACE: Duration = Duration::from_secs(1);

/// Lists a server once and says what came of it. A server that does not come up keeps its place in the config.
pub(super) async fn run(server: &ServerId, paths: &Paths, out: &mut Output) -> Result<Completion> {
    let config = paths.sources().load();
    let Some(spec) = config.roster.get(server).filter(|spec| spec.enabled && !config.is_refused()) else {
        return Ok(Completion::Done);
    };
    let missing = preflight::find_missing(&config, Some(server), &SecretLocator::new(paths, &config.secrets));
    if !missing.is_empty() {
        out.warn_problems(&missing)?;
        return Ok(Completion::Done);
    }
    let listed = match GatewayClient::find(paths).await? {
        Some(client) => until_interrupted(list_at(&client, server)).await?.transpose()?,
        None => {
            let only = adhoc::config_with(paths, spec)?;
            let list = async |crib: Crib| {
                let query = ToolsQuery { text: server.as_str(), wait: ToolsWait::Patient, refreshes: false };
                let local = Caller::local();
                let listing = tool_listing::query_tools(&crib, &local, query);
                let wait = Wait::new(format!("listing `{server}`"), ServerSource::Crib(&crib));
                with_standalone_hints(wait.run(listing).await, paths)
            };
            run_with_config(paths, only, out, list, |listed, _| listed).await?
        }
    };
    let Some(listed) = listed else { return Ok(Completion::Interrupted) };
    print(server, &listed, out)?;
    Ok(Completion::Done)
}

/// Lists a server in the gateway, which has read it.
async fn list_at(client: &GatewayClient, server: &ServerId) -> Result<ToolsReport, CommandError> {
    let path = format!("/api/v1/tools?wait=1&q={server}");
    let wait =
        Wait::new(format!("listing `{server}`"), ServerSource::Gateway(client)).on_server(server.as_str());
    let limit = FirstListingWait::PATIENT.request + ANSWER_GRACE;
    match timeout(limit, wait.run(client.fetch(&path))).await {
        Ok(listed) => listed,
        Err(_) => Ok(ToolsReport { pending: vec![server.to_string()], ..ToolsReport::default() }),
    }
}

fn print(server: &ServerId, listed: &ToolsReport, out: &mut Output) -> std::io::Result<()> {
    if let Some(FailureReport { message, hint, .. }) = listed.failed.first() {
        return out.warn_on_one_line(&format!("it does not work yet: {message}"), hint.as_deref());
    }
    if !listed.pending.is_empty() {
        let message = format!("`{server}` is still starting; its tools are listed when it is up");
        return out.warn(&message, Some(&format!("toolcrib tools {server} --wait")));
    }
    match listed.tools.len() {
        1 => out.print_note(&format!("`{server}` works: 1 tool")),
        count => out.print_note(&format!("`{server}` works: {count} tools")),
    }
}
