//! `toolcrib check`: reports every problem of the config.

use anyhow::Result;
use toolcrib::access::expose::estimate_tokens;
use toolcrib::config::{Config, Problem, ProblemScope};
use toolcrib::crib::remembered_tools_size;
use toolcrib::{Caller, ServerSpec};

use crate::command_error::ProblemReport;
use crate::exit::ExitStatus;
use crate::gateway;
use crate::output::Output;
use crate::paths::Paths;
use crate::preflight;
use crate::secrets::SecretLocator;

/// Reads the config and prints its problems. Notes do not count as problems.
pub(crate) fn run(paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let mut config = paths.read_config()?;
    let locator = SecretLocator::new(paths, &config.secrets);
    config.problems.extend(
        toolcrib::config::resolve_token_digests(&config.callers, |name| locator.find(name))
            .err()
            .map(|problem| *problem),
    );
    config.problems.extend(toolcrib::config::find_short_tokens(&config.callers, |name| locator.find(name)));
    let key_file_problem = toolcrib::identity::check_key_files(&config.issuers).err();
    config.problems.extend(key_file_problem.map(|problem| *problem));
    config.problems.extend(config.listen.tls.as_ref().and_then(gateway::find_tls_problem));
    let store_problem = gateway::find_store_problem(&config, &locator);
    config.problems.extend(store_problem);
    config.problems.extend(gateway::find_forwarding_note(&config));
    let missing = preflight::find_missing(&config, None, &locator);
    config.problems.extend(missing);
    config.problems.extend(find_long_tool_list(&config, paths));
    config.problems.extend(paths.sources().unused_project_file().map(|(file, reason)| Problem {
        file: file.to_owned(),
        position: None,
        scope: ProblemScope::Note,
        message: format!("this file {reason}"),
        hint: Some("review it, then run `toolcrib allow`".to_owned()),
    }));
    let problem_count = config.problems.iter().filter(|problem| problem.scope != ProblemScope::Note).count();
    if out.json {
        out.print_json(
            &config.problems.iter().map(|problem| ProblemReport::new(problem).to_json()).collect(),
        )?;
    } else {
        for problem in &config.problems {
            out.print_line(&problem.to_string())?;
            if let Some(hint) = &problem.hint {
                out.print_line(&format!("hint: {hint}"))?;
            }
        }
    }
    let servers = format_count(config.origins.len(), "server");
    let notes = match config.problems.len() - problem_count {
        0 => String::new(),
        count => format!(", {}", format_count(count, "warning")),
    };
    if problem_count == 0 {
        out.print_note(&format!("{servers}, no problems{notes}"))?;
        return Ok(ExitStatus::Success);
    }
    // If no file could be read, `file` is the one that is expected.
    let files = if config.files.is_empty() { std::slice::from_ref(&config.file) } else { &config.files };
    let files = files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ");
    out.print_note(&format!("{files}: {servers}, {}{notes}", format_count(problem_count, "problem")))?;
    Ok(ExitStatus::InvalidConfig)
}

/// Returns a note if the tools that clients are listed cost more than the token budget, as far as they are known.
fn find_long_tool_list(config: &Config, paths: &Paths) -> Option<Problem> {
    let caller = Caller::local();
    let size = |spec: &ServerSpec| {
        let is_listed = |tool: &str| config.policy.authorize(&caller, &spec.id, Some(tool)).is_ok();
        remembered_tools_size(spec, paths.state_dir(), is_listed)
    };
    let bytes: usize = config.roster.servers().filter(|spec| spec.enabled).map(size).sum();
    let tokens = estimate_tokens(bytes);
    let budget = config.expose.budget;
    if tokens <= budget || config.expose.is_search(&caller, None, || bytes) {
        return None;
    }
    Some(Problem {
        file: config.file.clone(),
        position: None,
        scope: ProblemScope::Note,
        message: format!(
            "the list of all tools costs clients about {tokens} tokens, more than `expose.budget` ({budget})"
        ),
        hint: Some(
            "see `toolcrib tools --cost`; deny tools, or set `mode = \"auto\"` in `[expose]`".to_owned(),
        ),
    })
}

/// Formats a number of things.
pub(super) fn format_count(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
