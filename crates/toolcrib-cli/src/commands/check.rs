//! `toolcrib check`: reports every problem of the config.

use anyhow::Result;
use toolcrib::config::{Problem, ProblemScope};

use crate::command_error::ProblemReport;
use crate::exit::ExitStatus;
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
    let missing = preflight::find_missing(&config, None, &locator);
    config.problems.extend(missing);
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
    if problem_count == 0 {
        out.print_note(&format!("{servers}, no problems"))?;
        return Ok(ExitStatus::Success);
    }
    // If no file could be read, `file` is the one that is expected.
    let files = if config.files.is_empty() { std::slice::from_ref(&config.file) } else { &config.files };
    let files = files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ");
    out.print_note(&format!("{files}: {servers}, {}", format_count(problem_count, "problem")))?;
    Ok(ExitStatus::InvalidConfig)
}

/// Formats a number of things.
pub(super) fn format_count(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
