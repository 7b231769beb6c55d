//! Tells which agents do not get a new server, because their profiles do not have it.

use crate::output::Output;
use crate::paths::Paths;

/// Prints the agents whose profiles leave out a server, and what to change.
pub(super) fn print_agents_without(server: &str, paths: &Paths, out: &mut Output) -> std::io::Result<()> {
    let Ok(id) = server.parse() else { return Ok(()) };
    let config = paths.sources().load();
    let policy = &config.policy;
    let by_name = policy.profiles.keys().filter_map(|name| name.strip_prefix("agent-"));
    let agents = by_name.filter(|agent| !policy.can_see(&policy.local_caller(Some(agent), None), &id));
    let profiles: Vec<String> = agents.map(|agent| format!("`profiles.agent-{agent}`")).collect();
    if profiles.is_empty() {
        return Ok(());
    }
    out.print_note(&format!(
        "agents with a profile get `{server}` only if it is in `servers` there: {}",
        profiles.join(", ")
    ))
}
