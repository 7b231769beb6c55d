//! `toolcrib why SERVER`: explains why a server is active or not, here or under assumed facts, without starting anything.

use anyhow::Result;
use toolcrib::config::{InvalidFact, TagCondition};

use super::ls;
use crate::cli::WhyArgs;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
use crate::report::declared::{find_declared, reason, why_json};

/// Prints the reason, the tags, the scopes and the values of one server.
pub(crate) fn run(args: &WhyArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    if !paths.sources().any_exists() {
        return Err(paths.missing_config_error().into());
    }
    let layered = paths.sources().read_layers();
    let mut facts = paths.sources().gather_facts(&layered);
    if let Some(assumed) = &args.assumed {
        let refusal = |invalid: InvalidFact| {
            CommandError::usage(invalid.to_string()).hint("toolcrib why SERVER --as host=NAME,network=CIDR")
        };
        facts.assume(assumed).map_err(refusal)?;
    }
    let config = layered.resolve(&facts);
    let server = find_declared(&config, &args.server)?;
    let values = layered.server_values(&server.id);
    let active: Vec<&str> = config.tags.active.keys().map(String::as_str).collect();
    if out.json {
        out.print_json(&why_json(&layered, &config, server))?;
        return ls::check_refused(&config);
    }
    out.print_line(&format!("{}: {}", server.id, reason(server, &config)))?;
    if let Some(condition) = &server.when {
        out.print_line(&format!("requires: {}", format_condition(condition)))?;
        out.print_line(&format!("active tags: {}", active.join(", ")))?;
    }
    for scope in &config.scopes {
        let matches = if scope.matched { "matches" } else { "does not match" };
        let tags = scope.tags.join(", ");
        let origin = ls::format_origin(&scope.origin);
        out.print_line(&format!("scope {} {matches}: {} [{tags}]  ({origin})", scope.name, scope.reason))?;
    }
    out.print_line("values:")?;
    values.iter().try_for_each(|value| ls::print_value(value, out))?;
    ls::check_refused(&config)
}

fn format_condition(condition: &TagCondition) -> String {
    let any = condition.any.as_ref().map(|tags| format!("any of [{}]", tags.join(", ")));
    let all = (!condition.all.is_empty()).then(|| format!("all of [{}]", condition.all.join(", ")));
    let not = (!condition.not.is_empty()).then(|| format!("none of [{}]", condition.not.join(", ")));
    [any, all, not].into_iter().flatten().collect::<Vec<_>>().join(" and ")
}
