//! `toolcrib approve`: shows what a server's tools are now and what was approved, or a call that was held back, and
//! approves it if a person says yes.

mod difference;

use anyhow::Result;
use bytes::Bytes;
use serde_json::{Value, json};
use toolcrib::{Crib, Unapproved};

use crate::cli::Approve;
use crate::client::Client;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::percent;
use crate::place::Place;

/// Approves what the command line names, if a person says yes.
pub(crate) async fn run(args: &Approve, place: &Place, out: &mut Output) -> Result<Exit> {
    match (&args.server, &args.call) {
        (Some(server), _) => tools(server, args.yes, place, out).await,
        (None, Some(id)) => call(id, args.yes, place, out).await,
        (None, None) => Err(Failure::usage("which server?").hint("toolcrib status").into()),
    }
}

/// Says yes to one call that was refused; only the gateway that refused it knows of it.
async fn call(id: &str, yes: bool, place: &Place, out: &mut Output) -> Result<Exit> {
    let client = Client::demand(place).await?;
    let open = client.get("/api/v1/calls").await?;
    let found = open["calls"].as_array().into_iter().flatten().find(|call| call["id"] == id);
    if let Some(call) = found.filter(|_| !out.json) {
        out.line(&question(call))?;
    }
    if found.is_some() && !yes && !out.asker().says_yes("allow it?")? {
        return Err(not_approved("the call was", format!("toolcrib approve --call {id} --yes")).into());
    }
    let approved = client.post(&format!("/api/v1/calls/{}/approve", percent::encode(id))).await?;
    if out.json {
        out.value(&approved)?;
    }
    out.say("allowed: the same call, made again within 5 minutes, is let through")?;
    Ok(Exit::Fine)
}

/// Who wants what, for a person.
pub(crate) fn question(call: &Value) -> String {
    let text = |key: &str| difference::visible(call[key].as_str().unwrap_or_default());
    let [caller, server, name, arguments] = ["caller", "server", "name", "arguments"].map(text);
    format!("`{caller}` wants to use `{server}.{name}` with {arguments}")
}

fn not_approved(what: &str, hint: String) -> Failure {
    Failure::new(Exit::CheckFailed, "not_approved", format!("{what} not approved")).hint(hint)
}

/// Looks, shows, asks and approves: through the running gateway, or with a crib of its own.
async fn tools(server: &str, yes: bool, place: &Place, out: &mut Output) -> Result<Exit> {
    let client = Client::find(place).await?;
    let Some(open) = look(client.as_ref(), server, place, out).await? else {
        return Ok(Exit::Interrupted);
    };
    let tools = open["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
    if tools.is_empty() {
        if out.json {
            out.value(&json!({"server": server, "approved": [], "tools": []}))?;
        }
        out.say(&format!("there is nothing to approve: every tool of `{server}` is what was approved"))?;
        return Ok(Exit::Fine);
    }
    if !out.json {
        tools.iter().try_for_each(|tool| show(tool, out))?;
    }
    let count = if tools.len() == 1 { "1 tool".to_owned() } else { format!("{} tools", tools.len()) };
    if !yes && !out.asker().says_yes(&format!("approve {count} of `{server}`?"))? {
        let failure = not_approved(&count, format!("toolcrib approve {server} --yes"));
        return Err(Failure { data: json!({"tools": tools}), ..failure }.into());
    }
    let seal = open["seal"].as_str().unwrap_or_default();
    let Some(approved) = approve(client.as_ref(), server, seal, place, out).await? else {
        return Ok(Exit::Interrupted);
    };
    if out.json {
        out.value(&json!({"server": server, "approved": approved["approved"], "tools": tools}))?;
    }
    out.say(&format!("approved {count} of `{server}`"))?;
    Ok(Exit::Fine)
}

async fn look(
    client: Option<&Client>,
    server: &str,
    place: &Place,
    out: &mut Output,
) -> Result<Option<Value>> {
    let path = format!("{}/unapproved", super::server_path(server));
    if let Some(client) = client {
        let asked = super::until_interrupted(client.get(&path)).await?;
        return Ok(asked.map(super::about_server).transpose()?);
    }
    let work = async |crib: Crib| match server.parse() {
        Ok(id) => crib.unapproved(&id).await,
        Err(_) => Err(crib.catalog().unknown_server(server)),
    };
    let looked = super::alone(place, out, super::Waits::ForAll, work).await?;
    let told = |looked: Result<Unapproved, _>| looked.map(|open| to_json(&open)).map_err(Failure::from);
    Ok(looked.map(|looked| super::about_server(told(looked))).transpose()?)
}

async fn approve(
    client: Option<&Client>,
    server: &str,
    seal: &str,
    place: &Place,
    out: &mut Output,
) -> Result<Option<Value>> {
    if let Some(client) = client {
        let path = format!("{}/approve?seal={}", super::server_path(server), percent::encode(seal));
        let asked = super::until_interrupted(client.post(&path)).await?;
        return Ok(asked.transpose()?);
    }
    // What the server offered a moment ago is remembered, so it is not started again.
    let work = async |crib: Crib| match server.parse() {
        Ok(id) => crib.approve(&id, seal),
        Err(_) => Err(crib.catalog().unknown_server(server)),
    };
    let approved = super::alone(place, out, super::Waits::ForAll, work).await?;
    let told = |names: Vec<String>| json!({"server": server, "approved": names});
    Ok(approved.map(|approved| approved.map(told).map_err(Failure::from)).transpose()?)
}

/// What waits for a person, as scripts and the command line see it.
pub(crate) fn to_json(open: &Unapproved) -> Value {
    let value = |raw: &Bytes| serde_json::from_slice::<Value>(raw).unwrap_or_default();
    let tools: Vec<Value> = open
        .tools
        .iter()
        .map(|tool| {
            json!({
                "tool": tool.tool,
                "change": tool.mark.as_str(),
                "before": tool.before.as_ref().map(value),
                "now": value(&tool.now),
            })
        })
        .collect();
    json!({"seal": open.seal, "tools": tools})
}

fn show(tool: &Value, out: &mut Output) -> Result<()> {
    let text = |key: &str| tool[key].as_str().unwrap_or_default();
    out.line(&format!("{} ({})", difference::visible(text("tool")), text("change")))?;
    for line in difference::lines(&tool["before"], &tool["now"]) {
        out.line(&format!("  {line}"))?;
    }
    Ok(())
}
