//! `toolcrib approve`: shows changed definitions of a server, or a refused call, and approves them after confirmation.

mod diff;

use anyhow::Result;
use serde_json::{Value, json};
use toolcrib::Crib;
use toolcrib::util::encoding;

use crate::cli::ApproveArgs;
use crate::client::GatewayClient;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
use crate::progress::{ServerSource, Wait};
use crate::report::approvals::{
    ApprovedToolsReport, PendingCallReport, PendingCallsReport, UnapprovedToolReport, UnapprovedToolsReport,
};
use crate::report::list_to_json;
use crate::visible_text::escape_invisible;

/// Approves the tools of a server or one call.
pub(crate) async fn run(args: &ApproveArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    match (&args.server, &args.call) {
        (Some(server), _) => approve_tools(server, args.yes, paths, out).await,
        (None, Some(id)) => approve_call(id, args.yes, paths, out).await,
        (None, None) => Err(CommandError::usage("the server is missing").hint("toolcrib status").into()),
    }
}

/// Approves one call that was refused. Only the gateway that refused the call knows it.
async fn approve_call(id: &str, yes: bool, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let client = GatewayClient::require(paths).await?;
    let pending = fetch_pending(&client).await?;
    let call = pending.find(id);
    if let Some(call) = call.filter(|_| !out.json) {
        out.print_line(&describe_call(call))?;
    }
    if call.is_some() && !yes && !out.prompter().confirm("allow it?")? {
        return Err(not_approved("the call was", format!("toolcrib approve --call {id} --yes")).into());
    }
    let approved = client.post(&format!("/api/v1/calls/{}/approve", encoding::percent_encode(id))).await?;
    if out.json {
        out.print_json(&approved)?;
    }
    out.print_note("approved: the same call is allowed for the next 5 minutes")?;
    Ok(ExitStatus::Success)
}

/// Returns the calls that wait for approval. Older gateways list them at another path.
async fn fetch_pending(client: &GatewayClient) -> Result<PendingCallsReport, CommandError> {
    match client.fetch("/api/v1/approvals").await {
        Err(error) if error.code == "not_found" => client.fetch("/api/v1/calls").await,
        fetched => fetched,
    }
}

/// Describes a call that waits for approval.
fn describe_call(call: &PendingCallReport) -> String {
    let PendingCallReport { caller, server, name, arguments, .. } = call;
    let [caller, server, name, arguments] =
        [caller, server, name, arguments].map(|text| escape_invisible(text));
    format!("`{caller}` wants to use `{server}.{name}` with {arguments}")
}

fn not_approved(subject: &str, hint: String) -> CommandError {
    CommandError::new(ExitStatus::CheckFailed, "not_approved", format!("{subject} not approved")).hint(hint)
}

/// Shows the changed definitions of a server and approves them, through the running gateway or standalone.
async fn approve_tools(server: &str, yes: bool, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let client = GatewayClient::find(paths).await?;
    let Some(unapproved) = fetch_unapproved(client.as_ref(), server, paths, out).await? else {
        return Ok(ExitStatus::Interrupted);
    };
    let UnapprovedToolsReport { seal, tools } = &unapproved;
    if tools.is_empty() {
        if out.json {
            out.print_json(&json!({"server": server, "approved": [], "tools": []}))?;
        }
        out.print_note(&format!("nothing to approve: all definitions of `{server}` are approved"))?;
        return Ok(ExitStatus::Success);
    }
    if !out.json {
        tools.iter().try_for_each(|tool| print_diff(tool, out))?;
    }
    let noun = if tools.iter().all(|tool| tool.kind.is_none()) { "tool" } else { "definition" };
    let count = if tools.len() == 1 { format!("1 {noun}") } else { format!("{} {noun}s", tools.len()) };
    if !yes && !out.prompter().confirm(&format!("approve {count} of `{server}`?"))? {
        let error = not_approved(&count, format!("toolcrib approve {server} --yes"));
        return Err(CommandError { data: json!({"tools": list_to_json(tools)}), ..error }.into());
    }
    let Some(approved) = send_approval(client.as_ref(), server, seal, paths, out).await? else {
        return Ok(ExitStatus::Interrupted);
    };
    if out.json {
        out.print_json(
            &json!({"server": server, "approved": approved.approved, "tools": list_to_json(tools)}),
        )?;
    }
    out.print_note(&format!("approved {count} of `{server}`"))?;
    Ok(ExitStatus::Success)
}

/// Returns the unapproved tools of a server, or `None` if a signal interrupts.
async fn fetch_unapproved(
    client: Option<&GatewayClient>,
    server: &str,
    paths: &Paths,
    out: &mut Output,
) -> Result<Option<UnapprovedToolsReport>> {
    let path = format!("{}/unapproved", super::server_path(server));
    if let Some(client) = client {
        let wait = Wait::new(format!("listing `{server}`"), ServerSource::Gateway(client)).on_server(server);
        let response = super::until_interrupted(wait.run(client.fetch(&path))).await?;
        return Ok(response.map(super::mark_unknown_server).transpose()?);
    }
    let work = async |crib: Crib| match server.parse() {
        Ok(id) => crib.unapproved(&id).await,
        Err(_) => Err(crib.catalog().unknown_server_error(server)),
    };
    let Some(result) = super::run_standalone(paths, out, work).await? else {
        return Ok(None);
    };
    let response =
        result.map(|unapproved| UnapprovedToolsReport::new(&unapproved)).map_err(CommandError::from);
    Ok(Some(super::mark_unknown_server(response)?))
}

/// Approves the tools that were shown, identified by their digest. Returns `None` if a signal interrupts.
async fn send_approval(
    client: Option<&GatewayClient>,
    server: &str,
    digest: &str,
    paths: &Paths,
    out: &mut Output,
) -> Result<Option<ApprovedToolsReport>> {
    if let Some(client) = client {
        let path =
            format!("{}/approve?seal={}", super::server_path(server), encoding::percent_encode(digest));
        let response = super::until_interrupted(client.submit(&path)).await?;
        return Ok(response.transpose()?);
    }
    // The listing is stored by now, so the server is not started again.
    let work = async |crib: Crib| match server.parse() {
        Ok(id) => crib.approve(&id, digest).await,
        Err(_) => Err(crib.catalog().unknown_server_error(server)),
    };
    let Some(result) = super::run_standalone(paths, out, work).await? else {
        return Ok(None);
    };
    let approved = result.map_err(CommandError::from)?;
    Ok(Some(ApprovedToolsReport { server: server.to_owned(), approved }))
}

fn print_diff(tool: &UnapprovedToolReport, out: &mut Output) -> Result<()> {
    let kind = tool.kind.as_ref().map_or_else(String::new, |kind| format!("{kind} "));
    let name = if tool.kind.as_deref() == Some("instructions") { "" } else { &tool.tool };
    let title = format!("{kind}{}", escape_invisible(name));
    out.print_line(&format!("{} ({})", title.trim_end(), tool.change))?;
    let before = tool.before.as_ref().unwrap_or(&Value::Null);
    for line in diff::diff_lines(before, &tool.now) {
        out.print_line(&format!("  {line}"))?;
    }
    Ok(())
}
