//! Completion of command lines. Scripts of shells ask this program for candidates, through an environment variable.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::time::Duration;

use clap_complete::CompletionCandidate;
use clap_complete::engine::ArgValueCandidates;
use clap_complete::env::{CompleteEnv, Shells};
use toolcrib::Caller;

use crate::cli::ShellArg;
use crate::cli::help;
use crate::client::GatewayClient;
use crate::paths::Paths;
use crate::report::tools::{ToolReport, ToolsReport};

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
            ("tools", "query") => arg.add(ArgValueCandidates::new(tool_candidates)),
            ("call", "positional") => arg.add(ArgValueCandidates::new(call_candidates)),
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

/// A tool that is known without starting a server.
struct KnownTool {
    server: String,
    /// The server's own name of the tool.
    own_name: String,
    /// The public name, if a gateway told it.
    public_name: Option<String>,
}

impl KnownTool {
    /// Returns the name to type: `SERVER.TOOL`, or the public name if the server's own one is not plain.
    fn full_name(self) -> Option<String> {
        match is_plain(&self.own_name) {
            true => Some(format!("{}.{}", self.server, self.own_name)),
            false => self.public_name.filter(|name| is_plain(name)),
        }
    }
}

/// Returns whether no shell interprets a name. Servers choose the names of their tools.
fn is_plain(name: &str) -> bool {
    let is_plain_char = |char: char| char.is_ascii_alphanumeric() || matches!(char, '_' | '.' | '-');
    !name.starts_with('-') && name.chars().all(is_plain_char)
}

/// Returns the tools that are known without starting a server.
fn known_tools() -> Vec<KnownTool> {
    let Ok(paths) = Paths::find(None) else { return Vec::new() };
    tools_of_gateway(&paths).unwrap_or_else(|| remembered_tools(&paths))
}

fn tool_candidates() -> Vec<CompletionCandidate> {
    known_tools().into_iter().filter_map(KnownTool::full_name).map(CompletionCandidate::new).collect()
}

/// Returns the candidates for the words of `call`.
fn call_candidates() -> Vec<CompletionCandidate> {
    // The script of the shell passes the command line after `--`.
    let line: Vec<String> = std::env::args().skip_while(|word| word != "--").skip(1).collect();
    match server_before_tool(&line) {
        Some(server) => {
            let tools = known_tools().into_iter().filter(|tool| tool.server == server);
            tools
                .map(|tool| tool.own_name)
                .filter(|name| is_plain(name))
                .map(CompletionCandidate::new)
                .collect()
        }
        None => tool_candidates(),
    }
}

/// Returns the first of two words after `call`, of which the second is being completed.
fn server_before_tool(line: &[String]) -> Option<&str> {
    let words: Vec<&str> = line.iter().map(String::as_str).filter(|word| !word.starts_with('-')).collect();
    let call = words.iter().position(|word| *word == "call")?;
    match words[call + 1..] {
        [server, _] => Some(server),
        _ => None,
    }
}

/// Asks the running gateway. `None` if there is none, or it does not answer in time.
fn tools_of_gateway(paths: &Paths) -> Option<Vec<KnownTool>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let report = async {
        let client = GatewayClient::find(paths).await.ok()??;
        client.fetch::<ToolsReport>("/api/v1/tools").await.ok()
    };
    let report = runtime.block_on(async { tokio::time::timeout(GATEWAY_WAIT, report).await }).ok()??;
    let known = |tool: ToolReport| KnownTool {
        server: tool.server,
        own_name: tool.tool,
        public_name: Some(tool.name),
    };
    Some(report.tools.into_iter().map(known).collect())
}

/// Returns the tools of earlier listings, from the files of the state folder.
fn remembered_tools(paths: &Paths) -> Vec<KnownTool> {
    let config = paths.sources().load();
    let caller = Caller::local();
    let mut known = Vec::new();
    for spec in config.roster.servers() {
        let names = toolcrib::crib::remembered_tools(spec, paths.state_dir()).unwrap_or_default().into_iter();
        let is_allowed = |name: &String| config.policy.authorize(&caller, &spec.id, Some(name)).is_ok();
        known.extend(names.filter(is_allowed).map(|own_name| KnownTool {
            server: spec.id.to_string(),
            own_name,
            public_name: None,
        }));
    }
    known
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

    #[test]
    fn names_that_a_shell_interprets_are_not_offered() {
        let name = |own_name: &str, public_name: Option<&str>| {
            let tool = KnownTool {
                server: "a".to_owned(),
                own_name: own_name.to_owned(),
                public_name: public_name.map(str::to_owned),
            };
            tool.full_name()
        };
        assert_eq!(name("b.c-d_1", Some("x")).as_deref(), Some("a.b.c-d_1"));
        assert_eq!(name("$(id)", Some("a__id")).as_deref(), Some("a__id"));
        assert_eq!(name("x\n", None), None);
        assert_eq!(name("x;id", Some("`id`")), None);
    }

    #[test]
    fn second_word_of_call_is_a_tool_of_the_server() {
        let server = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            server_before_tool(&words).map(str::to_owned)
        };
        assert_eq!(server("toolcrib call git st").as_deref(), Some("git"));
        assert_eq!(server("toolcrib call --json git ").as_deref(), Some("git"));
        assert_eq!(server("toolcrib call gi"), None);
        assert_eq!(server("toolcrib tools git st"), None);
    }
}
