//! What a person chose for `init`: on the command line, or by numbers at the prompt.

use toolcrib_agents::agents::{self, Agent};
use toolcrib_agents::import::ImportedEntry;

use super::plan::InitPlan;
use crate::cli::InitArgs;
use crate::command_error::CommandError;
use crate::output::Prompter;

/// The agents and servers to set up.
#[derive(Debug, Default, Clone)]
pub(super) struct InitChoices {
    /// The only agents to set up; all installed ones if empty.
    pub(super) agents: Vec<&'static Agent>,
    /// Names of agents and servers to leave out.
    pub(super) except: Vec<String>,
    /// Whether every agent gets every server.
    pub(super) share: bool,
    /// Profile that the agents are limited to.
    pub(super) profile: Option<String>,
}

/// The answer to the question whether to make the changes.
pub(super) enum PlanAnswer {
    Yes,
    No,
    /// Without these agents and servers.
    LeaveOut(Vec<String>),
}

impl InitChoices {
    pub(super) fn new(args: &InitArgs) -> Result<Self, CommandError> {
        let agents = args.agent.iter().map(|name| Agent::find(name));
        Ok(Self {
            agents: agents.collect::<Result<_, _>>()?,
            except: args.except.clone(),
            share: args.share,
            profile: args.profile.clone(),
        })
    }

    /// Returns whether an agent is to be set up.
    pub(super) fn includes(&self, agent: &Agent) -> bool {
        let is_excepted = |name: &String| Agent::find(name).is_ok_and(|found| found.id == agent.id);
        (self.agents.is_empty() || self.is_named(agent)) && !self.except.iter().any(is_excepted)
    }

    /// Returns whether an agent is one of those that are named.
    pub(super) fn is_named(&self, agent: &Agent) -> bool {
        self.agents.iter().any(|named| named.id == agent.id)
    }

    /// Returns the names of the agents whose files are not read.
    pub(super) fn left_out_agents(&self) -> Vec<&'static str> {
        agents::all().filter(|agent| !self.includes(agent)).map(|agent| agent.id).collect()
    }

    /// Fails if a name to leave out is neither an agent nor an entry of one.
    pub(super) fn check_names(&self, entries: &[ImportedEntry]) -> Result<(), CommandError> {
        let is_entry = |name: &String| entries.iter().any(|entry| entry.is_called(name));
        let unknown = self.except.iter().find(|name| Agent::find(name).is_err() && !is_entry(name));
        unknown.map_or(Ok(()), |name| {
            let message = format!("`{name}` is neither an agent nor a server of one");
            Err(CommandError::usage(message).hint("`toolcrib init --dry-run` shows both"))
        })
    }

    /// Returns the options that repeat the choices.
    pub(super) fn to_options(&self) -> String {
        let mut options = String::new();
        let agents = self.agents.iter().map(|agent| ("agent", agent.id));
        let except = self.except.iter().map(|name| ("except", name.as_str()));
        let profile = self.profile.iter().map(|name| ("profile", name.as_str()));
        for (option, value) in agents.chain(except).chain(profile) {
            let value = shlex::try_quote(value).unwrap_or_default();
            options += &format!(" --{option} {value}");
        }
        if self.share {
            options += " --share";
        }
        options
    }
}

/// Asks whether to make the changes of a plan, or without which of them.
pub(super) fn ask(plan: &InitPlan, prompter: Prompter) -> std::io::Result<PlanAnswer> {
    let question = "make these changes? [y/N, or the numbers to leave out, such as 2 5] ";
    let answer = prompter.ask_line(question)?.unwrap_or_default();
    Ok(parse_answer(answer.trim(), &plan.numbered_names()))
}

fn parse_answer(answer: &str, names: &[String]) -> PlanAnswer {
    if matches!(answer, "y" | "Y" | "yes" | "Yes" | "YES") {
        return PlanAnswer::Yes;
    }
    let numbers = answer.split([' ', ',']).filter(|word| !word.is_empty());
    let name = |word: &str| names.get(word.parse::<usize>().ok()?.checked_sub(1)?).cloned();
    let left_out: Option<Vec<String>> = numbers.map(name).collect();
    match left_out {
        Some(names) if !names.is_empty() => PlanAnswer::LeaveOut(names),
        _ => PlanAnswer::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_leave_out_what_they_stand_for() {
        let names = ["git", "time", "codex"].map(str::to_owned);
        let parse = |answer: &str| match parse_answer(answer, &names) {
            PlanAnswer::Yes => "yes".to_owned(),
            PlanAnswer::No => "no".to_owned(),
            PlanAnswer::LeaveOut(names) => names.join("+"),
        };
        for (answer, expected) in [
            ("y", "yes"),
            ("", "no"),
            ("n", "no"),
            ("2", "time"),
            ("1, 3", "git+codex"),
            ("0", "no"),
            ("4", "no"),
            ("1 x", "no"),
        ] {
            assert_eq!(parse(answer), expected, "{answer}");
        }
    }
}
