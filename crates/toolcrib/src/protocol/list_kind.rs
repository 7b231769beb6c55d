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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_method_inverts_method() {
        for kind in ListKind::ALL {
            assert_eq!(ListKind::from_method(kind.method()), Some(kind));
        }
        assert_eq!(ListKind::from_method("tools/call"), None);
    }
}
