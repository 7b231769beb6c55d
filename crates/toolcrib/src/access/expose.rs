//! Which clients are listed all tools, and which are listed only the tools that search for the others.

use std::collections::BTreeMap;

use crate::access::policy::Rule;
use crate::model::caller::Caller;
use crate::spec::ServerId;

/// Bytes of JSON that are about one token of a language model.
pub const BYTES_PER_TOKEN: usize = 4;

/// Returns about how many tokens of a language model a number of bytes of JSON are.
pub fn estimate_tokens(bytes: usize) -> usize {
    bytes.div_ceil(BYTES_PER_TOKEN)
}

/// Default of `expose.budget`, in tokens.
const DEFAULT_BUDGET: usize = 10_000;
/// Clients that search long lists of tools themselves. `expose.clients` overrides it.
const CLIENTS_WITH_SEARCH: [&str; 1] = ["claude-code"];

/// How tools are listed to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ExposeMode {
    /// Every tool is listed.
    #[default]
    All,
    /// Only the tools that find, describe and call the others are listed.
    Search,
    /// Every tool is listed if the list fits the budget or the client searches itself, else as `Search`.
    Auto,
}

/// Decides how tools are listed to each client.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ExposeSettings {
    /// The mode of clients that no other setting names.
    pub mode: ExposeMode,
    /// The largest list, in tokens, that is listed in full with [`ExposeMode::Auto`].
    pub budget: usize,
    /// The tools that are listed in search mode too.
    pub always_list: Vec<Rule>,
    /// Modes by the name of the client program.
    pub clients: BTreeMap<String, ExposeMode>,
    /// Tokens of a tool result that a client is sent, by the name of the client program; zero for no limit. They come before
    /// those of servers and tools.
    pub result_tokens: BTreeMap<String, usize>,
    /// Modes by the profile of the caller; they come before those of clients.
    pub profiles: BTreeMap<String, ExposeMode>,
    /// Modes by group of the caller; they come before those of profiles.
    pub groups: BTreeMap<String, ExposeMode>,
    /// Modes by the name of the caller; they come before those of groups.
    pub callers: BTreeMap<String, ExposeMode>,
}

impl Default for ExposeSettings {
    fn default() -> Self {
        Self {
            mode: ExposeMode::All,
            budget: DEFAULT_BUDGET,
            always_list: Vec::new(),
            clients: BTreeMap::new(),
            result_tokens: BTreeMap::new(),
            profiles: BTreeMap::new(),
            groups: BTreeMap::new(),
            callers: BTreeMap::new(),
        }
    }
}

impl ExposeSettings {
    /// Returns whether every client is listed every tool.
    pub fn lists_all(&self) -> bool {
        let of_callers = self.callers.values().chain(self.groups.values());
        let others = self.clients.values().chain(self.profiles.values()).chain(of_callers);
        others.chain([&self.mode]).all(|mode| *mode == ExposeMode::All)
    }

    /// Returns whether any client has a limit of its own for results.
    pub(crate) fn limits_results(&self) -> bool {
        self.result_tokens.values().any(|tokens| *tokens > 0)
    }

    /// Returns whether a client is listed the search tools. `list_bytes` returns the size of the list of all tools, as JSON.
    pub fn is_search(
        &self,
        caller: &Caller,
        client: Option<&str>,
        list_bytes: impl FnOnce() -> usize,
    ) -> bool {
        let by_caller = self.callers.get(caller.as_str());
        let by_group = || caller.groups().iter().find_map(|group| self.groups.get(group));
        let by_profile = || self.profiles.get(caller.profile()?);
        let by_client = || self.clients.get(client?);
        let by_caller = by_caller.or_else(by_group);
        let mode = by_caller.or_else(by_profile).or_else(by_client).unwrap_or(&self.mode);
        match mode {
            ExposeMode::All => false,
            ExposeMode::Search => true,
            ExposeMode::Auto => {
                !client.is_some_and(|client| CLIENTS_WITH_SEARCH.contains(&client))
                    && estimate_tokens(list_bytes()) > self.budget
            }
        }
    }

    /// Returns whether a tool is listed in search mode too.
    pub fn is_always_listed(&self, server: &ServerId, name: &str) -> bool {
        self.always_list.iter().any(|rule| rule.matches(server, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_is_taken_from_the_caller_the_profile_the_client_or_the_default() {
        let mut settings = ExposeSettings { mode: ExposeMode::Search, ..ExposeSettings::default() };
        settings.clients.insert("ide".to_owned(), ExposeMode::All);
        settings.profiles.insert("work".to_owned(), ExposeMode::Search);
        settings.callers.insert("ci".to_owned(), ExposeMode::All);
        let is_search = |caller: &Caller, client: Option<&str>| settings.is_search(caller, client, || 0);
        assert!(is_search(&Caller::local(), None) && is_search(&Caller::local(), Some("other")));
        assert!(!is_search(&Caller::local(), Some("ide")));
        assert!(is_search(&Caller::local().with_profile("work"), Some("ide")));
        assert!(!is_search(&Caller::new("ci").with_profile("work"), None));
        assert!(!settings.lists_all() && ExposeSettings::default().lists_all());
    }

    #[test]
    fn auto_lists_all_within_the_budget_or_for_clients_that_search() {
        let settings = ExposeSettings { mode: ExposeMode::Auto, budget: 10, ..ExposeSettings::default() };
        let is_search =
            |client: &str, bytes: usize| settings.is_search(&Caller::local(), Some(client), || bytes);
        assert!(!is_search("ide", 40) && is_search("ide", 41));
        assert!(!is_search("claude-code", 1_000_000));
    }
}
