//! Who had which servers before `init`, and the profiles that keep it so.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use toolcrib::Caller;
use toolcrib::config::{Config, DeclaredServer};
use toolcrib_agents::agents::{Agent, AgentFileScope, AgentPaths};
use toolcrib_agents::edit::toml::{TomlEditError, TomlFile};
use toolcrib_agents::export::gateway;
use toolcrib_agents::import::{ImportVerdict, ImportedEntry, ToolLists};

/// What decides which servers an agent has.
pub(super) struct ScopeInput<'a> {
    pub(super) agent_paths: &'a AgentPaths,
    /// The config before the import.
    pub(super) old: &'a Config,
    /// The config after it.
    pub(super) new: &'a Config,
    pub(super) entries: &'a [ImportedEntry],
    /// Every installed agent.
    pub(super) agents: &'a [&'static Agent],
    /// Agents that get every server.
    pub(super) widened: &'a [&'static Agent],
}

/// The servers that one agent has after `init`: those that it had before.
#[derive(Debug, Clone)]
pub(super) struct AgentScope {
    pub(super) agent: &'static Agent,
    /// Whether it used toolcrib before.
    pub(super) is_connected: bool,
    /// Names of the servers.
    pub(super) servers: BTreeSet<String>,
    /// Its own lists of the tools of these servers.
    lists: BTreeMap<String, ToolLists>,
    /// Name of the profile that limits it to these servers, unless it has all of them.
    pub(super) profile: Option<String>,
}

/// The servers of all agents.
#[derive(Debug, Default)]
pub(super) struct AgentScopes {
    scopes: Vec<AgentScope>,
    /// Imported servers whose lists of tools differ from agent to agent.
    with_differing_lists: BTreeSet<String>,
}

impl AgentScopes {
    pub(super) fn new(input: &ScopeInput<'_>) -> Self {
        let local = Caller::local();
        let all = usable_servers(input.new, &local);
        let connected = |agent: &Agent| gateway::is_written(agent, AgentFileScope::User, input.agent_paths);
        let visible = |agent: &Agent| -> BTreeSet<String> {
            usable_servers(input.old, &input.old.policy.local_caller(Some(agent.id), None))
        };
        let of_connected: Vec<BTreeSet<String>> =
            input.agents.iter().filter(|agent| connected(agent)).map(|agent| visible(agent)).collect();
        // A server of the config is for everyone, unless an agent that uses toolcrib does not have it.
        let shared: BTreeSet<String> = usable_servers(input.old, &local)
            .into_iter()
            .filter(|name| of_connected.iter().all(|servers| servers.contains(name)))
            .collect();
        let with_differing_lists = find_differing_lists(input.entries);
        let scope = |agent: &&'static Agent| {
            let is_connected = connected(agent);
            let mut servers = if is_connected { visible(agent) } else { shared.clone() };
            let mut lists = BTreeMap::new();
            for entry in input.entries.iter().filter(|entry| entry.agent == Some(agent.id)) {
                let Some(name) = entry.server().filter(|name| !entry.disabled && all.contains(*name)) else {
                    continue;
                };
                servers.insert(name.to_owned());
                if with_differing_lists.contains(name) {
                    lists.insert(name.to_owned(), entry.tools.clone());
                }
            }
            lists.retain(|_, lists| *lists != ToolLists::default());
            if input.widened.iter().any(|widened| widened.id == agent.id) {
                servers.clone_from(&all);
            }
            let profile = format!("agent-{}", agent.id);
            let is_limited =
                servers != all || !lists.is_empty() || input.old.policy.profiles.contains_key(&profile);
            // The person chose another profile for this agent.
            let has_other = input.old.policy.agents.contains_key(agent.id);
            let profile = Some(profile).filter(|_| is_limited && !has_other);
            AgentScope { agent, is_connected, servers, lists, profile }
        };
        Self { scopes: input.agents.iter().map(scope).collect(), with_differing_lists }
    }

    pub(super) fn get(&self, agent: &Agent) -> Option<&AgentScope> {
        self.scopes.iter().find(|scope| scope.agent.id == agent.id)
    }

    /// Returns the text of a config with the profiles of these agents.
    pub(super) fn add_profiles(
        &self,
        text: &str,
        agents: &[&'static Agent],
    ) -> Result<String, TomlEditError> {
        let mut file = TomlFile::parse(text)?;
        for server in &self.with_differing_lists {
            file.remove(&["servers", server, "tools"]);
        }
        for agent in agents {
            let Some(scope) = self.get(agent) else { continue };
            scope.add_profile(&mut file)?;
        }
        Ok(file.render())
    }
}

impl AgentScope {
    fn add_profile(&self, file: &mut TomlFile) -> Result<(), TomlEditError> {
        let Some(profile) = &self.profile else { return Ok(()) };
        let texts = |path: &[&str]| -> Option<Vec<String>> {
            let list = file.get(path)?;
            Some(list.as_array()?.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        };
        let path = ["profiles", profile, "servers"];
        // Without such a list, a profile of the person has all servers.
        let mut servers = texts(&path).unwrap_or_default();
        servers
            .extend(self.servers.iter().filter(|name| !servers.contains(name)).cloned().collect::<Vec<_>>());
        let deny: Vec<String> = self
            .lists
            .iter()
            .flat_map(|(server, lists)| lists.deny.iter().map(move |tool| format!("{server}.{tool}")))
            .collect();
        let allow = self.lists.values().any(|lists| lists.allow.is_some()).then(|| {
            let patterns =
                |server: &String| match self.lists.get(server).and_then(|lists| lists.allow.as_ref()) {
                    Some(tools) => tools.iter().map(|tool| format!("{server}.{tool}")).collect(),
                    None => vec![format!("{server}.*")],
                };
            servers.iter().flat_map(patterns).collect::<Vec<String>>()
        });
        file.set(&path, &json!(servers))?;
        if let Some(allow) = allow {
            file.set(&["profiles", profile, "allow"], &json!(allow))?;
        }
        if !deny.is_empty() {
            file.set(&["profiles", profile, "deny"], &json!(deny))?;
        }
        Ok(())
    }
}

/// Returns the names of the servers that a caller may use and that are not disabled.
fn usable_servers(config: &Config, caller: &Caller) -> BTreeSet<String> {
    let is_usable = |server: &&DeclaredServer| server.enabled && config.policy.can_see(caller, &server.id);
    config.declared.iter().filter(is_usable).map(|server| server.id.to_string()).collect()
}

/// Returns the servers of this import that agents have with different lists of tools.
fn find_differing_lists(entries: &[ImportedEntry]) -> BTreeSet<String> {
    let lists_of = |name: &str| -> Vec<&ToolLists> {
        let of_server = entries.iter().filter(|entry| !entry.disabled && entry.server() == Some(name));
        of_server.map(|entry| &entry.tools).collect()
    };
    let imported = entries.iter().filter_map(|entry| match &entry.verdict {
        ImportVerdict::Imported(name) => Some(name),
        _ => None,
    });
    imported
        .filter(|name| {
            let lists = lists_of(name);
            lists.windows(2).any(|pair| pair[0] != pair[1])
        })
        .cloned()
        .collect()
}
