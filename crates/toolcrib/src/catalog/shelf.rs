//! `Shelf`: everything of one kind that is on offer, in order, and whose it is.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use super::render::Written;
use super::{Listings, address, name};
use crate::connection::listing::{Listed, Remarks, says};
use crate::pins::Mark;
use crate::spec::ServerId;
use crate::wire::kind::Kind;
use crate::wire::object::Object;

/// One thing on offer of one server: a tool, a prompt, a resource or a template of resources.
#[derive(Debug, Clone)]
pub struct Item {
    /// Whose it is.
    pub server: ServerId,
    /// What the server calls it: a name, or the address of a resource.
    pub own_name: Arc<str>,
    /// What clients of the whole crib call it.
    pub public_name: Arc<str>,
    /// Its definition, as the server sent it.
    pub definition: Bytes,
    /// Whether its server says that it only reads.
    pub(crate) changes_nothing: bool,
    /// Why it is not what was approved, if it is a tool that is not.
    pub mark: Option<Mark>,
}

/// One tool of one server.
pub type Tool = Item;

impl Item {
    /// Its description, if it has one.
    pub fn description(&self) -> Option<String> {
        Object::parse(&self.definition).ok()?.string("description").map(std::borrow::Cow::into_owned)
    }
}

/// Everything of one kind.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    pub(super) items: Vec<Item>,
    /// Only of what has names; addresses say themselves whose they are.
    by_public: HashMap<Arc<str>, usize>,
    by_own: HashMap<Arc<str>, Vec<usize>>,
    /// What has another name here than its server calls it, by that name.
    by_alias: HashMap<Box<str>, Vec<usize>>,
    pub(super) written: Written,
}

impl Shelf {
    pub(super) fn stocked(kind: Kind, listings: &Listings) -> Self {
        let mut shelf = Self::default();
        for (server, listing) in listings {
            let listed = listing.iter().flat_map(|listing| listing.of(kind));
            let (nothing, remarks) = (Remarks::default(), listing.as_ref().map(|listing| &*listing.remarks));
            match kind {
                Kind::Tools => {
                    let remarks = remarks.unwrap_or(&nothing);
                    listed.for_each(|listed| shelf.add_named(server, listed, remarks));
                }
                Kind::Prompts => listed.for_each(|listed| shelf.add_named(server, listed, &nothing)),
                Kind::Resources | Kind::Templates => {
                    listed.for_each(|listed| shelf.add_addressed(server, listed));
                }
            }
        }
        match kind {
            Kind::Tools | Kind::Prompts => {}
            Kind::Resources => shelf.set_apart(listings, address::of_resource),
            Kind::Templates => shelf.set_apart(listings, address::of_template),
        }
        shelf
    }

    /// A server that lists one name twice keeps the first.
    fn add_named(&mut self, server: &ServerId, listed: &Listed, remarks: &Remarks) {
        let alias = remarks.name(&listed.name);
        let public_name: Arc<str> = match alias {
            Some(alias) => name::public(server, alias),
            None if remarks.takes(&listed.name) => name::changed(server, &listed.name),
            None => name::public(server, &listed.name),
        }
        .into();
        if self.by_public.contains_key(&public_name) {
            return;
        }
        self.by_public.insert(public_name.clone(), self.items.len());
        self.by_own.entry(listed.name.clone()).or_default().push(self.items.len());
        if let Some(alias) = alias {
            self.by_alias.entry(alias.into()).or_default().push(self.items.len());
        }
        self.add(server, listed, public_name, remarks.mark(&listed.name));
    }

    fn add_addressed(&mut self, server: &ServerId, listed: &Listed) {
        let owners = self.by_own.entry(listed.name.clone()).or_default();
        if owners.last().is_some_and(|at| self.items[*at].server == *server) {
            return;
        }
        owners.push(self.items.len());
        self.add(server, listed, listed.name.clone(), None);
    }

    fn add(&mut self, server: &ServerId, listed: &Listed, public_name: Arc<str>, mark: Option<Mark>) {
        let (server, own_name, definition) = (server.clone(), listed.name.clone(), listed.definition.clone());
        let changes_nothing = says(&definition, "readOnlyHint");
        self.items.push(Item { server, own_name, public_name, definition, changes_nothing, mark });
    }

    /// Gives an address that several servers have, or that could be taken for another server's, one for each of them.
    fn set_apart(&mut self, listings: &Listings, public: fn(&ServerId, &str) -> String) {
        let names_server =
            |own: &str| address::split(own).is_some_and(|(named, _)| listings.contains_key(&named));
        for (own, owners) in &self.by_own {
            if owners.len() > 1 || names_server(own) {
                for at in owners {
                    let item = &mut self.items[*at];
                    item.public_name = public(&item.server, own).into();
                }
            }
        }
    }

    /// The thing of this public name.
    pub(super) fn public(&self, name: &str) -> Option<&Item> {
        self.by_public.get(name).map(|at| &self.items[*at])
    }

    /// Everything that its server calls this.
    pub(super) fn own(&self, name: &str) -> impl ExactSizeIterator<Item = &Item> + Clone {
        self.by_own.get(name).map(Vec::as_slice).unwrap_or_default().iter().map(|at| &self.items[*at])
    }

    /// Everything that is called this here, if its server is left out: by the name that it was given, else by the
    /// server's own.
    pub(super) fn bare(&self, name: &str) -> Vec<&Item> {
        let given = |at: &usize| self.by_alias.values().any(|renamed| renamed.contains(at));
        let own = self.by_own.get(name).into_iter().flatten().filter(|at| !given(at));
        own.chain(self.by_alias.get(name).into_iter().flatten()).map(|at| &self.items[*at]).collect()
    }

    /// Whether anything has this name, public or not.
    pub(super) fn has(&self, name: &str) -> bool {
        self.by_public.contains_key(name) || !self.bare(name).is_empty()
    }
}
