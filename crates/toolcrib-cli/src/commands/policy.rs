//! `toolcrib policy test`: whether a caller may use something, which rule says so, and which limits it has. Nothing is called or started.

use anyhow::Result;
use serde_json::{Value, json};
use toolcrib::catalog::name::SEPARATOR;
use toolcrib::config::Config;
use toolcrib::policy::Finding;
use toolcrib::quota::{Limit, Owner};
use toolcrib::spelling::nearest;
use toolcrib::{Caller, ServerId};

use crate::cli::PolicyTest;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::place::Place;

/// Explains the decision; exits 7 if it is a no.
pub(crate) fn test(args: &PolicyTest, place: &Place, out: &mut Output) -> Result<Exit> {
    let config = place.usable()?;
    let caller = caller(&config, &args.caller, args.profile.as_deref())?;
    let (server, name) = thing(&config, &args.tool)?;
    let sees = config.policy.sees(&caller, &server);
    let findings: Vec<Finding<'_>> = config.policy.findings(&caller, &server, Some(&name)).collect();
    let refusal = findings.iter().find(|finding| finding.denies());
    let allowed = refusal.is_none();
    let limits: Vec<(Owner<'_>, &Limit)> =
        config.quota.of(caller.as_str()).filter(|(_, limit)| limit.what().matches(&server, &name)).collect();
    let asks = allowed && findings.iter().any(|finding| matches!(finding, Finding::Asked(..)));
    if out.json {
        out.value(&json!({
            "caller": caller.as_str(),
            "profile": caller.profile(),
            "server": server.as_str(),
            "tool": name,
            "allowed": allowed,
            "asks": asks,
            "server_visible": sees,
            "rule": refusal.map(ToString::to_string),
            "file": refusal.and_then(Finding::origin).map(|at| at.file.display().to_string()),
            "line": refusal.and_then(Finding::origin).map(|at| at.line),
            "rules": findings.iter().map(finding_json).collect::<Vec<_>>(),
            "limits": limits.iter().map(limit_json).collect::<Vec<_>>(),
        }))?;
        return Ok(if allowed { Exit::Fine } else { Exit::Denied });
    }
    let (verdict, may) = match (allowed, asks) {
        (false, _) => ("denied", "may not use"),
        (true, false) => ("allowed", "may use"),
        (true, true) => ("would ask", "needs a person's yes to use"),
    };
    out.line(&format!("{verdict}: `{}` {may} `{server}.{name}`", caller.as_str()))?;
    for finding in findings.iter().filter(|finding| allowed || finding.denies()) {
        let place = finding.origin().map(|at| format!(" ({}:{})", at.file.display(), at.line));
        out.line(&format!("  {finding}{}", place.unwrap_or_default()))?;
    }
    if findings.is_empty() {
        out.line("  no rule is about it")?;
    }
    for (owner, limit) in limits.iter().filter(|_| allowed) {
        let place = limit.origin().map(|at| format!(" ({}:{})", at.file.display(), at.line));
        out.line(&format!("  `{}` is {}{}", limit.name(*owner), limit.share(), place.unwrap_or_default()))?;
    }
    if !sees {
        out.line(&format!("  nothing of `{server}` is for it: to this caller there is no such server"))?;
    }
    Ok(if allowed { Exit::Fine } else { Exit::Denied })
}

fn finding_json(finding: &Finding<'_>) -> Value {
    json!({
        "rule": finding.to_string(),
        "denies": finding.denies(),
        "file": finding.origin().map(|at| at.file.display().to_string()),
        "line": finding.origin().map(|at| at.line),
    })
}

fn limit_json((owner, limit): &(Owner<'_>, &Limit)) -> Value {
    let (calls, per) = limit.share().measure();
    json!({
        "limit": limit.name(*owner),
        "calls": calls,
        "per": per.as_secs_f64(),
        "file": limit.origin().map(|at| at.file.display().to_string()),
        "line": limit.origin().map(|at| at.line),
    })
}

fn caller(config: &Config, name: &str, profile: Option<&str>) -> Result<Caller, Failure> {
    let local = Caller::local();
    let known = || config.callers.iter().map(|caller| caller.name.as_str()).chain([local.as_str()]);
    if known().any(|known| known == name) {
        let own = config.callers.iter().find(|caller| caller.name == name);
        let own = own.and_then(|caller| caller.profile.as_deref());
        if let (Some(own), Some(other)) = (own, profile)
            && own != other
        {
            return Err(Failure::usage(format!("`{name}` looks through `{own}` and no other profile")));
        }
        let profile = own.or(profile).map(|profile| known_profile(config, profile)).transpose()?;
        return Ok(profile.into_iter().fold(Caller::named(name), Caller::within));
    }
    let failure = Failure::usage(format!("no caller is called `{name}`"));
    Err(match nearest(name, known()) {
        Some(near) => failure.hint(format!("did you mean `{near}`?")),
        None => failure.hint("declare `[callers.NAME]`, or ask about `local`"),
    })
}

/// The name of a profile that is declared.
pub(crate) fn known_profile<'a>(config: &Config, name: &'a str) -> Result<&'a str, Failure> {
    let known = || config.policy.profiles.keys().map(String::as_str);
    if known().any(|known| known == name) {
        return Ok(name);
    }
    let failure = Failure::usage(format!("no profile is called `{name}`"));
    Err(match nearest(name, known()) {
        Some(near) => failure.hint(format!("did you mean `{near}`?")),
        None => failure.hint(format!("declare `[profiles.{name}]`")),
    })
}

/// The server and its own name for the thing.
fn thing(config: &Config, written: &str) -> Result<(ServerId, String), Failure> {
    let parts = [written.split_once('.'), written.split_once(SEPARATOR)];
    let declared = |(server, name): (&str, &str)| {
        let server: ServerId = server.parse().ok().filter(|server| config.origins.contains_key(server))?;
        (!name.is_empty()).then(|| (server, name.to_owned()))
    };
    let [own, public] = parts.map(|parts| parts.and_then(declared));
    let public = public.map(|(server, name)| {
        let names = config.roster.get(&server).map(|spec| &spec.tools.rename);
        let renamed = names.and_then(|names| names.iter().find(|(_, new)| **new == name));
        (server, renamed.map_or(name.clone(), |(own, _)| own.clone()))
    });
    own.or(public).ok_or_else(|| {
        Failure::usage(format!("`{written}` names nothing of a server that is declared here"))
            .hint("write `SERVER.TOOL`, with the server's own name for the tool")
    })
}
