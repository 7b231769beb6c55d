//! The kinds of lists that a server can offer, and the protocol's names for each.

/// A kind of list that a server can offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ListKind {
    /// Tools, identified by name.
    Tools,
    /// Prompts, identified by name.
    Prompts,
    /// Resources, identified by URI.
    Resources,
    /// Resource templates, identified by their URI template.
    Templates,
}

impl ListKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Tools, Self::Prompts, Self::Resources, Self::Templates];

    /// Returns the method that lists it.
    pub const fn method(self) -> &'static str {
        match self {
            Self::Tools => "tools/list",
            Self::Prompts => "prompts/list",
            Self::Resources => "resources/list",
            Self::Templates => "resources/templates/list",
        }
    }

    /// Returns the kind that a method lists.
    pub fn from_method(method: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.method() == method)
    }

    /// Returns the member of a list result that holds the list.
    pub const fn list_member(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
        }
    }

    /// Returns the member of a definition that identifies it.
    pub const fn id_member(self) -> &'static str {
        match self {
            Self::Tools | Self::Prompts => "name",
            Self::Resources => "uri",
            Self::Templates => "uriTemplate",
        }
    }

    /// Returns the word for one item in messages.
    pub(crate) const fn item_noun(self) -> &'static str {
        match self {
            Self::Tools => "tool",
            Self::Prompts => "prompt",
            Self::Resources => "resource",
            Self::Templates => "resource template",
        }
    }

    /// Returns the capability that a server declares for it.
    pub const fn capability(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources | Self::Templates => "resources",
        }
    }
}

/// A set of list kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ListKinds(u8);

impl ListKinds {
    pub(crate) const ALL: Self = Self(0b1111);

    const fn bit(kind: ListKind) -> u8 {
        1 << kind as u8
    }

    pub(crate) fn contains(self, kind: ListKind) -> bool {
        self.0 & Self::bit(kind) != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the kinds that either set has.
    pub(crate) fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the kinds that both sets have.
    pub(crate) fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns the kinds of this set that the other one does not have.
    pub(crate) fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = ListKind> {
        ListKind::ALL.into_iter().filter(move |kind| self.contains(*kind))
    }
}

impl FromIterator<ListKind> for ListKinds {
    fn from_iter<I: IntoIterator<Item = ListKind>>(kinds: I) -> Self {
        kinds.into_iter().fold(Self::default(), |all, kind| Self(all.0 | Self::bit(kind)))
    }
}

impl From<ListKind> for ListKinds {
    fn from(kind: ListKind) -> Self {
        Self(Self::bit(kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_of_kinds_has_what_it_was_made_of() {
        let both: ListKinds = [ListKind::Tools, ListKind::Templates].into_iter().collect();
        assert_eq!(both.iter().collect::<Vec<_>>(), [ListKind::Tools, ListKind::Templates]);
        assert_eq!(both.difference(ListKind::Tools.into()), ListKind::Templates.into());
        assert_eq!(both.intersection(ListKind::Prompts.into()), ListKinds::default());
        assert_eq!(ListKind::ALL.into_iter().collect::<ListKinds>(), ListKinds::ALL);
        assert!(both.union(ListKinds::ALL) == ListKinds::ALL && ListKinds::default().is_empty());
    }

    #[test]
    fn from_method_inverts_method() {
        for kind in ListKind::ALL {
            assert_eq!(ListKind::from_method(kind.method()), Some(kind));
        }
        assert_eq!(ListKind::from_method("tools/call"), None);
    }
}
