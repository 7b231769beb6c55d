//! `toolcrib ui`: opens the dashboard of the gateway in a browser, logged in.

use std::path::Path;

use anyhow::Result;
use serde_json::json;

use super::login::browser;
use super::stdio::auto_start;
use crate::cli::UiArgs;
use crate::client::GatewayClient;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;

/// Prints a link that logs in once, and opens it. A gateway is started in the background if none is running.
pub(crate) async fn run(
    args: &UiArgs,
    config_flag: Option<&Path>,
    paths: &Paths,
    out: &mut Output,
) -> Result<ExitStatus> {
    let client = find_or_start_gateway(config_flag, paths, out).await?;
    let reply = client.post("/api/v1/ui").await?;
    let page = reply["url"].as_str().unwrap_or_default();
    let code = reply["code"].as_str();
    let url = code.map_or_else(|| page.to_owned(), |code| format!("{page}#code={code}"));
    let is_opened = !args.no_browser && !out.json && browser::open(&url).await;
    if out.json {
        let login = if code.is_some() { "code" } else { "token" };
        out.print_json(&json!({"url": url, "login": login, "expires_in": reply["expires_in"]}))?;
        return Ok(ExitStatus::Success);
    }
    out.print_line(&url)?;
    let action =
        if is_opened { "a browser was opened" } else { "open the link in a browser on this machine" };
    let validity = match code {
        Some(_) => "it logs in once, within two minutes",
        None => "log in with the token of a caller that has `admin = true`",
    };
    out.print_note(&format!("{action}; {validity}"))?;
    Ok(ExitStatus::Success)
}

/// Returns the gateway of this config, and starts it as `toolcrib stdio` does if none is running.
async fn find_or_start_gateway(
    config_flag: Option<&Path>,
    paths: &Paths,
    out: &mut Output,
) -> Result<GatewayClient> {
    if let Some(client) = GatewayClient::find(paths).await? {
        return Ok(client);
    }
    let config = paths.valid_config()?;
    let cannot_start = |reason: String| {
        let error = CommandError::no_gateway();
        let message = format!("{}, and none can be started: {reason}", error.message);
        CommandError { message, ..error }.hint("toolcrib serve, then in another terminal: toolcrib ui")
    };
    if let Some(reason) = auto_start::refusal(paths, &config)? {
        return Err(cannot_start(reason).into());
    }
    let started = auto_start::start(paths, config_flag).await.map_err(cannot_start)?;
    started.messages.iter().try_for_each(|line| out.print_stderr(line))?;
    Ok(GatewayClient::require(paths).await?)
}
