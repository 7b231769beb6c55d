//! `toolcrib export`: the servers into an agent's own file, or back out of it.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};
use toolcrib::Config;

use crate::agents::{self, Agent, Ground, Scope};
use crate::cli::Export;
use crate::exit::Exit;
use crate::export::{self, Plan, Server, Undone, gateway};
use crate::failure::Failure;
use crate::output::Output;
use crate::place::Place;

/// What was done for one agent, or would be.
struct Done {
    plan: Plan,
    undone: Option<Undone>,
}

/// Does for each agent what was asked. Of several, one that fails does not hold up the others.
pub(crate) fn run(args: &Export, named: Option<&Path>, place: &Place, out: &mut Output) -> Result<Exit> {
    let ground = Ground::find()?;
    let agents = chosen(args, &ground)?;
    let config = if args.expand { Some(place.usable()?) } else { place.read().ok() };
    let mut told = Vec::new();
    let mut exit = Exit::Fine;
    for agent in agents {
        let done = match one(agent, args, named, place, &ground, config.as_ref()) {
            Ok(done) => done,
            Err(failure) if args.all && failure.code == "nothing_to_undo" => continue,
            Err(failure) if args.all => {
                exit = failure.exit;
                told.push(json!({"agent": agent.id, "error": failure.to_json()["error"]}));
                if !out.json {
                    out.failure(&failure)?;
                }
                continue;
            }
            Err(failure) => return Err(failure.into()),
        };
        if args.check && done.plan.changes() && exit == Exit::Fine {
            exit = Exit::CheckFailed;
        }
        told.push(report(agent, args.scope, &done.plan));
        if !out.json {
            tell(agent, args, &ground, &done, out)?;
        }
    }
    if out.json {
        out.value(&if args.all { Value::Array(told) } else { told.pop().unwrap_or_default() })?;
    }
    Ok(exit)
}

fn one(
    agent: &Agent,
    args: &Export,
    named: Option<&Path>,
    place: &Place,
    ground: &Ground,
    config: Option<&Config>,
) -> Result<Done, Failure> {
    if args.undo {
        let (plan, undone) = export::undo(agent, args.scope, ground, place.state())?;
        return Ok(Done { plan, undone: Some(undone) });
    }
    let plan = plan(agent, args, named, place, ground, config)?;
    if plan.changes() && !args.dry_run && !args.check {
        plan.write()?;
    }
    Ok(Done { plan, undone: None })
}

fn chosen(args: &Export, ground: &Ground) -> Result<Vec<&'static Agent>, Failure> {
    if let Some(id) = &args.agent {
        return Ok(vec![Agent::find(id)?]);
    }
    let found: Vec<_> = agents::all().filter(|agent| agent.is_there(args.scope, ground)).collect();
    if found.is_empty() {
        let ids: Vec<_> = agents::all().map(|agent| agent.id).collect();
        return Err(Failure::new(Exit::Unexpected, "no_agent", "no agent was found here")
            .hint(format!("toolcrib export AGENT, where AGENT is one of {}", ids.join(", "))));
    }
    Ok(found)
}

fn plan(
    agent: &Agent,
    args: &Export,
    named: Option<&Path>,
    place: &Place,
    ground: &Ground,
    config: Option<&Config>,
) -> Result<Plan, Failure> {
    let gateway = gateway::spec(agent, args.scope, ground, named, config)?;
    let servers: Vec<Server<'_>> = match config.filter(|_| args.expand) {
        Some(config) => {
            config.roster.servers().map(|spec| (spec, config.policy.servers.get(&spec.id))).collect()
        }
        None => vec![(&gateway, None)],
    };
    export::plan(agent, args.scope, ground, place.state(), &servers)
}

fn report(agent: &Agent, scope: Scope, plan: &Plan) -> Value {
    json!({
        "agent": agent.id,
        "file": plan.file().display().to_string(),
        "changed": plan.changes(),
        "diff": plan.diff(),
        "warnings": plan.warnings,
        "next_step": agent.next_step(scope),
    })
}

fn tell(agent: &Agent, args: &Export, ground: &Ground, done: &Done, out: &mut Output) -> Result<()> {
    let Done { plan, undone } = done;
    let file = ground.shown(plan.file());
    for warning in &plan.warnings {
        out.warn(warning, None)?;
    }
    if let Some(undone) = *undone {
        return Ok(out.say(&match undone {
            Undone::Restored => format!("{}: `{file}` is what it was before", agent.name),
            Undone::Removed => format!("{}: `{file}` is gone, as it was before", agent.name),
            Undone::TakenOut => {
                format!(
                    "{}: `{file}` was changed since; what toolcrib put there is out, the rest stays",
                    agent.name
                )
            }
        })?);
    }
    if !plan.changes() {
        return Ok(out.say(&format!("{}: `{file}` needs no change", agent.name))?);
    }
    if args.dry_run || args.check {
        out.line(plan.diff().trim_end())?;
        return Ok(out.say(&format!("{}: `{file}` would change", agent.name))?);
    }
    out.say(&format!("{}: wrote `{file}`", agent.name))?;
    out.say(&format!("next: {}", agent.next_step(args.scope)))?;
    let scope = if args.scope == Scope::Project { " --scope project" } else { "" };
    Ok(out.say(&format!("undo: toolcrib export {}{scope} --undo", agent.id))?)
}
