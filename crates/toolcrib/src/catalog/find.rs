//! Whose is it? A name or an address → the one server that is meant, or why there is none.

use std::borrow::Cow;
use std::sync::Arc;

use super::shelf::{Item, Shelf};
use super::{Catalog, address, name};
use crate::call::Wanted;
use crate::error::{Error, ErrorKind};
use crate::spec::ServerId;
use crate::spelling::nearest;
use crate::wire::kind::Kind;

/// Exactly one thing of one server: what a call goes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The server.
    pub server: ServerId,
    /// The server's own name for it.
    pub name: Arc<str>,
}

impl Target {
    fn new(server: &ServerId, name: &str) -> Self {
        Self { server: server.clone(), name: name.into() }
    }
}

impl From<&Item> for Target {
    fn from(item: &Item) -> Self {
        Self { server: item.server.clone(), name: item.own_name.clone() }
    }
}

impl Catalog {
    /// The one thing that is meant, or why there is none. An address that nobody lists goes to the one server that may
    /// know it: not everything that can be read is listed.
    pub fn find(&self, wanted: &Wanted) -> Result<Target, Error> {
        match (self.find_listed(wanted), wanted) {
            (Err(unknown), Wanted::Resource(uri)) if !self.offers(wanted) => {
                self.guess(uri).map(|server| Target::new(server, uri)).ok_or(unknown)
            }
            (found, _) => found,
        }
    }

    /// As `find`, but without guessing whose an address may be.
    pub(crate) fn find_listed(&self, wanted: &Wanted) -> Result<Target, Error> {
        match wanted {
            Wanted::Named(name) => find_named(self.shelf(Kind::Tools), "tool", name),
            Wanted::Prompt(name) => find_named(self.shelf(Kind::Prompts), "prompt", name),
            Wanted::Resource(uri) => self.locate(uri)?.ok_or_else(|| {
                Error::new(ErrorKind::Unknown, format!("Resource not found: {uri}"))
                    .hint("see `resources/list`")
            }),
            Wanted::Task(name) => self.find_task(name),
            Wanted::On(server, own) if self.servers.contains_key(server) => Ok(Target::new(server, own)),
            Wanted::On(server, _) => Err(self.unknown_server(server.as_str())),
        }
    }

    /// The error for a server that does not exist.
    pub fn unknown_server(&self, name: &str) -> Error {
        let error = Error::new(ErrorKind::Unknown, format!("no server is called `{name}`"));
        match nearest(name, self.servers.keys().map(ServerId::as_str)) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error,
        }
    }

    /// What clients of the whole crib call a resource of a server's: the server's own address if that leads back to
    /// the server, and else one that does.
    pub fn public_uri<'a>(&self, server: &ServerId, own: &'a str) -> Cow<'a, str> {
        if !self.servers.get(server).is_some_and(|offer| offer.has_resources) {
            return Cow::Borrowed(own);
        }
        let leads_back = match self.locate(own) {
            Ok(Some(target)) => target.server == *server && *target.name == *own,
            Ok(None) => self.guess(own) == Some(server),
            Err(_) => false,
        };
        if leads_back { Cow::Borrowed(own) } else { Cow::Owned(address::of_resource(server, own)) }
    }

    /// What clients of the whole crib call a task of a server's.
    pub fn public_task(server: &ServerId, own: &str) -> String {
        format!("{server}{}{own}", name::SEPARATOR)
    }

    fn find_task(&self, name: &str) -> Result<Target, Error> {
        let parts = name.split_once(name::SEPARATOR);
        let known = parts.and_then(|(server, own)| Some((server.parse::<ServerId>().ok()?, own)));
        match known.filter(|(server, _)| self.servers.contains_key(server)) {
            Some((server, own)) => Ok(Target::new(&server, own)),
            None => Err(Error::new(ErrorKind::Unknown, format!("Task not found: {name}"))),
        }
    }

    /// Where an address leads: to the server it names, to the one that lists it as a resource or as a template, or to
    /// the one that has a template for it.
    fn locate(&self, uri: &str) -> Result<Option<Target>, Error> {
        if let Some((server, own)) = address::split(uri)
            && self.servers.contains_key(&server)
        {
            return Ok(Some(Target::new(&server, &own)));
        }
        for kind in [Kind::Resources, Kind::Templates] {
            let mut owners = self.shelf(kind).own(uri);
            match owners.len() {
                0 => {}
                1 => return Ok(owners.next().map(Target::from)),
                _ => return Err(ambiguous("resource", uri, owners.map(|item| item.public_name.to_string()))),
            }
        }
        let templates = self.shelf(Kind::Templates).items.iter().zip(&self.patterns);
        let matching = templates.filter(|(_, pattern)| pattern.as_ref().is_some_and(|it| it.matches(uri)));
        let mut servers: Vec<&ServerId> = matching.map(|(item, _)| &item.server).collect();
        servers.dedup();
        match &servers[..] {
            [] => Ok(None),
            [only] => Ok(Some(Target::new(only, uri))),
            several => {
                let addresses = several.iter().map(|server| address::of_resource(server, uri));
                Err(ambiguous("resource", uri, addresses))
            }
        }
    }

    /// The one server that may know an address which nobody lists: the only one that has resources at all, or the only
    /// one that lists others of its scheme.
    fn guess(&self, uri: &str) -> Option<&ServerId> {
        let mut declaring = self.servers.iter().filter(|(_, offer)| offer.has_resources);
        let first = declaring.next()?.0;
        if declaring.next().is_none() {
            return Some(first);
        }
        let scheme = address::scheme(uri)?;
        let items = [Kind::Resources, Kind::Templates].into_iter().flat_map(|kind| &self.shelf(kind).items);
        let mut kin = items.filter(|item| address::scheme(&item.own_name) == Some(scheme));
        let server = &kin.next()?.server;
        kin.all(|item| item.server == *server).then_some(server)
    }

    /// The tool that somebody probably meant who asked a server for one that it is not known to have.
    pub fn near(&self, wanted: &Wanted) -> Option<&str> {
        let Wanted::On(server, tool) = wanted else { return None };
        let tools = &self.shelf(Kind::Tools).items;
        let own = || tools.iter().filter(|known| known.server == *server).map(|known| &*known.own_name);
        if own().any(|known| known == tool) { None } else { nearest(tool, own()) }
    }

    /// Whether what is wanted is on offer at all, maybe more than once.
    pub(crate) fn offers(&self, wanted: &Wanted) -> bool {
        match wanted {
            Wanted::Named(name) | Wanted::On(_, name) => self.shelf(Kind::Tools).has(name),
            Wanted::Prompt(name) => self.shelf(Kind::Prompts).has(name),
            Wanted::Resource(uri) => !matches!(self.locate(uri), Ok(None)),
            Wanted::Task(_) => false,
        }
    }

    /// The error with what the caller may have meant, if that is not said yet.
    pub(crate) fn advise(&self, error: Error, wanted: &Wanted) -> Error {
        let (name, kind) = match wanted {
            Wanted::Named(name) => (name, Kind::Tools),
            Wanted::Prompt(name) => (name, Kind::Prompts),
            _ => return error,
        };
        if error.kind() != ErrorKind::Unknown || self.offers(wanted) {
            return error;
        }
        let items = self.shelf(kind).items.iter();
        match nearest(name, items.flat_map(|item| [&*item.public_name, &*item.own_name])) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error,
        }
    }
}

/// By public name, or by bare name if only one server has it.
fn find_named(shelf: &Shelf, what: &str, name: &str) -> Result<Target, Error> {
    if let Some(item) = shelf.public(name) {
        return Ok(item.into());
    }
    match &*shelf.bare(name) {
        // The words of the protocol's own examples, which clients look for.
        [] => Err(Error::new(ErrorKind::Unknown, format!("Unknown {what}: {name}"))),
        [one] => Ok(Target::from(*one)),
        several => Err(ambiguous(what, name, several.iter().map(|item| item.public_name.to_string()))),
    }
}

fn ambiguous(what: &str, name: &str, candidates: impl Iterator<Item = String>) -> Error {
    let candidates: Vec<String> = candidates.map(|candidate| format!("`{candidate}`")).collect();
    let message = format!("several servers have a {what} `{name}`: {}", candidates.join(", "));
    Error::new(ErrorKind::Unknown, message).hint("name one of them in full")
}
