//! `toolcrib policy test`: tests whether a caller may use a tool, and shows the rules and limits that apply. Nothing is
//! called or started.

use anyhow::Result;
use toolcrib::config::Origin;

use crate::cli::PolicyTestArgs;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
use crate::policy_test::{ApplicableLimit, PolicyQuestion, PolicyTest};

/// Prints the decision. Exits with 7 if it is a denial.
pub(crate) fn test(args: &PolicyTestArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let config = paths.valid_config()?;
    let question = PolicyQuestion::new(&config, args)?;
    let spec = config.roster.get(&question.server);
    let tools = spec.and_then(|spec| toolcrib::crib::remembered_tools(spec, paths.state_dir()));
    let test = question.decide(&config, tools.map(|tools| tools.contains(&question.tool)));
    if out.json {
        out.print_json(&test.to_json())?;
    } else {
        print(&test, out)?;
    }
    Ok(if test.is_allowed() { ExitStatus::Success } else { ExitStatus::Denied })
}

fn print(test: &PolicyTest<'_>, out: &mut Output) -> std::io::Result<()> {
    let PolicyTest { caller, server, tool, .. } = test;
    let is_allowed = test.is_allowed();
    let (decision, permission) = match (is_allowed, test.needs_approval()) {
        (false, _) => ("denied", "may not use"),
        (true, false) => ("allowed", "may use"),
        (true, true) => ("would ask", "needs approval to use"),
    };
    out.print_line(&format!("{decision}: `{}` {permission} `{server}.{tool}`", caller.as_str()))?;
    for verdict in test.verdicts.iter().filter(|verdict| is_allowed || verdict.is_denial()) {
        out.print_line(&format!("  {verdict}{}", format_origin(verdict.origin())))?;
    }
    if test.verdicts.is_empty() {
        out.print_line("  no rule applies")?;
    }
    for applicable in test.limits.iter().filter(|_| is_allowed) {
        let ApplicableLimit { owner, limit } = applicable;
        let origin = format_origin(limit.origin());
        out.print_line(&format!("  `{}` is {}{origin}", limit.config_key(*owner), limit.kind()))?;
    }
    if !test.server_visible {
        out.print_line(&format!("  server `{server}` is hidden from this caller"))?;
    }
    match test.tool_exists {
        Some(true) => Ok(()),
        Some(false) => out.warn(
            &format!("server `{server}` has no tool `{tool}`"),
            Some(&format!("toolcrib tools {server}")),
        ),
        None => out.warn(
            &format!("it is not known whether server `{server}` has a tool `{tool}`"),
            Some("toolcrib tools"),
        ),
    }
}

/// Formats an origin as ` (FILE:LINE)`, or as nothing.
fn format_origin(origin: Option<&Origin>) -> String {
    origin.map_or_else(String::new, |origin| format!(" ({}:{})", origin.file.display(), origin.line))
}
