//! Completion of command lines. Scripts of shells ask this program for candidates, through an environment variable.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::time::Duration;

use clap_complete::CompletionCandidate;
use clap_complete::engine::ArgValueCandidates;
use clap_complete::env::{CompleteEnv, Shells};
use toolcrib::ServerSpec;

use crate::cli::ShellArg;
use crate::cli::help;
use crate::client::GatewayClient;
use crate::paths::Paths;
use crate::report::tools::ToolsReport;

/// The variable that names the shell when a script asks for candidates.
const VARIABLE: &str = "TOOLCRIB_COMPLETE";

/// Time limit for the answer of a gateway.
const GATEWAY_WAIT: Duration = Duration::from_millis(500);

/// Writes candidates if the script of a shell asks for them. Returns whether it does.
pub(crate) fn answer_shell() -> bool {
    if std::env::var_os(VARIABLE).is_none() {
        return false;
    }
    let args: Vec<OsString> = std::env::args_os().collect();
    let current_dir = std::env::current_dir().ok();
    let request = CompleteEnv::with_factory(completed_command).var(VARIABLE);
    match request.try_complete(args, current_dir.as_deref()) {
        Ok(is_answered) => is_answered,
        Err(error) => {
            // A closed stderr does not matter here.
            let _ = writeln!(io::stderr(), "{error}");
            true
        }
    }
}

/// Returns the script for a shell.
pub(crate) fn script(shell: ShellArg) -> io::Result<String> {
    let name = match shell {
        ShellArg::Bash => "bash",
        ShellArg::Zsh => "zsh",
        ShellArg::Fish => "fish",
        ShellArg::Powershell => "powershell",
        ShellArg::Elvish => "elvish",
    };
    let shells = Shells::builtins();
    let completer = shells.completer(name).ok_or_else(|| io::Error::other("unknown shell"))?;
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, "toolcrib", "toolcrib", "toolcrib", &mut script)?;
    String::from_utf8(script).map_err(io::Error::other)
}

/// Returns the command line with candidates for the names of servers, tools and agents.
fn completed_command() -> clap::Command {
    help::command().mut_subcommands(|verb| {
        let name = verb.get_name().to_owned();
        verb.mut_args(|arg| match (name.as_str(), arg.get_id().as_str()) {
            (_, "server") => arg.add(ArgValueCandidates::new(server_candidates)),
            ("tools", "query") | ("call", "positional") => arg.add(ArgValueCandidates::new(tool_candidates)),
            ("export" | "run", "agent") => arg.add(ArgValueCandidates::new(agent_candidates)),
            ("help", "verbs") => arg.add(ArgValueCandidates::new(verb_candidates)),
            ("explain", "code") => arg.add(ArgValueCandidates::new(code_candidates)),
            _ => arg,
        })
    })
}

fn server_candidates() -> Vec<CompletionCandidate> {
    let Ok(paths) = Paths::find(None) else { return Vec::new() };
    let declared = paths.sources().load().declared;
    declared.iter().map(|server| CompletionCandidate::new(server.id.as_str())).collect()
}

fn agent_candidates() -> Vec<CompletionCandidate> {
    let candidate = |agent: &toolcrib_agents::agents::Agent| {
        CompletionCandidate::new(agent.id).help(Some(agent.name.into()))
    };
    toolcrib_agents::agents::all().map(candidate).collect()
}

fn verb_candidates() -> Vec<CompletionCandidate> {
    let command = help::command();
    let visible = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    visible.map(|verb| CompletionCandidate::new(verb.get_name()).help(verb.get_about().cloned())).collect()
}

fn code_candidates() -> Vec<CompletionCandidate> {
    let candidate = |explanation: crate::explain::Explanation| {
        CompletionCandidate::new(explanation.name).help(Some(explanation.meaning.into()))
    };
    crate::explain::explanations().map(candidate).collect()
}

/// Returns the tools that are known without starting a server, as `SERVER.TOOL`.
fn tool_candidates() -> Vec<CompletionCandidate> {
    let Ok(paths) = Paths::find(None) else { return Vec::new() };
    let names = tools_of_gateway(&paths).unwrap_or_else(|| remembered_tools(&paths));
    names.into_iter().map(CompletionCandidate::new).collect()
}

/// Asks the running gateway. `None` if there is none, or it does not answer in time.
fn tools_of_gateway(paths: &Paths) -> Option<Vec<String>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let report = async {
        let client = GatewayClient::find(paths).await.ok()??;
        client.fetch::<ToolsReport>("/api/v1/tools").await.ok()
    };
    let report = runtime.block_on(async { tokio::time::timeout(GATEWAY_WAIT, report).await }).ok()??;
    Some(report.tools.iter().map(|tool| format!("{}.{}", tool.server, tool.tool)).collect())
}

/// Returns the tools of earlier listings, from the files of the state folder.
fn remembered_tools(paths: &Paths) -> Vec<String> {
    let config = paths.sources().load();
    let of_server = |spec: &ServerSpec| {
        let tools = toolcrib::crib::remembered_tools(spec, paths.state_dir()).unwrap_or_default().into_iter();
        let server = spec.id.clone();
        tools.map(move |tool| format!("{server}.{tool}"))
    };
    config.roster.servers().flat_map(of_server).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_has_a_script_that_asks_this_program() {
        for shell in [ShellArg::Bash, ShellArg::Zsh, ShellArg::Fish, ShellArg::Powershell, ShellArg::Elvish] {
            let script = script(shell).unwrap();
            assert!(script.contains(VARIABLE) && script.contains("toolcrib"), "{script}");
        }
        completed_command().debug_assert();
    }
}
