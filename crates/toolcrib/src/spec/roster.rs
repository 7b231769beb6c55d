//! `Roster`: the servers that apply here, with names that cannot be confused.

use std::collections::BTreeMap;
use std::fmt;

use super::{ServerId, ServerSpec};

/// Specs of the servers that apply here, by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Roster {
    servers: BTreeMap<ServerId, ServerSpec>,
    /// Names in the form in which they must differ.
    folded: BTreeMap<String, ServerId>,
}

/// Two servers whose names are equal, or differ only in `-` and `_`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameClash(pub ServerId, pub ServerId);

impl fmt::Display for NameClash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "server names `{}` and `{}` conflict: `-` and `_` count as equal", self.0, self.1)
    }
}

impl std::error::Error for NameClash {}

impl Roster {
    /// Adds a server.
    ///
    /// # Errors
    ///
    /// Returns an error if there is a server of the same name.
    pub fn add(&mut self, spec: ServerSpec) -> Result<(), NameClash> {
        let folded = spec.id.folded();
        if let Some(taken) = self.folded.get(&folded) {
            return Err(NameClash(taken.clone(), spec.id));
        }
        self.folded.insert(folded, spec.id.clone());
        self.servers.insert(spec.id.clone(), spec);
        Ok(())
    }

    /// Returns the servers, sorted by name.
    pub fn servers(&self) -> impl Iterator<Item = &ServerSpec> {
        self.servers.values()
    }

    /// Returns the owned servers, sorted by name.
    pub fn into_servers(self) -> impl Iterator<Item = ServerSpec> {
        self.servers.into_values()
    }

    /// Returns the spec of a server.
    pub fn get(&self, id: &ServerId) -> Option<&ServerSpec> {
        self.servers.get(id)
    }

    /// Returns whether there are no servers.
    pub fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::CommandSpec;

    #[test]
    fn names_that_differ_only_in_dashes_conflict() {
        let spec = |name: &str| ServerSpec::command(name.parse().unwrap(), CommandSpec::new("true"));
        let mut roster = Roster::default();
        roster.add(spec("a-b")).unwrap();
        assert!(roster.add(spec("a_b")).is_err());
        assert!(roster.add(spec("a-b")).is_err());
        assert_eq!(roster.servers().count(), 1);
    }
}
