//! Finds the server and item that a name or URI refers to.

use std::borrow::Cow;

use super::index::{CatalogIndex, CatalogItem};
use super::{Catalog, public_name, resource_uri};
use crate::model::error::{Error, ErrorKind};
use crate::model::hint::Hint;
use crate::model::selector::Selector;
use crate::model::target::Target;
use crate::protocol::list_kind::ListKind;
use crate::spec::ServerId;
use crate::util::format::closest_match;

impl From<&CatalogItem> for Target {
    fn from(item: &CatalogItem) -> Self {
        Self { server: item.server.clone(), name: item.own_name.clone() }
    }
}

impl Catalog {
    /// Finds the target of a call. A resource URI that is not listed goes to the only server that may serve it, because
    /// servers do not list every resource.
    ///
    /// # Errors
    /// If nothing matches, or several servers match.
    pub fn find(&self, selector: &Selector) -> Result<Target, Error> {
        match (self.find_listed(selector), selector) {
            (Err(unknown), Selector::Resource(uri)) if !self.has_match(selector) => {
                self.guess_server(uri).map(|server| Target::new(server, uri)).ok_or(unknown)
            }
            (found, _) => found,
        }
    }

    /// Like [`Catalog::find`], but finds only listed resources and matches of listed templates.
    pub(crate) fn find_listed(&self, selector: &Selector) -> Result<Target, Error> {
        match selector {
            Selector::Tool(name) => find_by_name(self.index(ListKind::Tools), "tool", name),
            Selector::Prompt(name) => find_by_name(self.index(ListKind::Prompts), "prompt", name),
            Selector::Resource(uri) => self.locate_resource(uri)?.ok_or_else(|| {
                Error::new(ErrorKind::Unknown, format!("Resource not found: {uri}"))
                    .with_hint("see `resources/list`")
            }),
            Selector::Task(id) => self.find_task(id),
            Selector::OnServer(server, own_name) if self.servers.contains_key(server) => {
                Ok(Target::new(server, own_name))
            }
            Selector::OnServer(server, _) => Err(self.unknown_server_error(server.as_str())),
        }
    }

    /// Returns every target that a selector can mean: several if a bare name is ambiguous.
    pub(crate) fn candidates(&self, selector: &Selector) -> Vec<Target> {
        let kind = match selector {
            Selector::Tool(_) => ListKind::Tools,
            Selector::Prompt(_) => ListKind::Prompts,
            _ => return self.find_listed(selector).into_iter().collect(),
        };
        match self.find_listed(selector) {
            Ok(target) => vec![target],
            Err(_) => {
                self.index(kind).find_bare(selector.name()).iter().map(|item| Target::from(*item)).collect()
            }
        }
    }

    /// Builds the error for a server that does not exist.
    pub fn unknown_server_error(&self, name: &str) -> Error {
        let error = Error::new(ErrorKind::Unknown, format!("no server is called `{name}`"));
        match closest_match(name, self.servers.keys().map(ServerId::as_str)) {
            Some(near) => error.with_hint(Hint::UseName { name: near.to_owned() }),
            None => error,
        }
    }

    /// Returns the public URI of a server's resource: the server's own URI if it resolves to that server, otherwise a
    /// qualified one. Addresses of pages are always qualified.
    pub fn public_uri<'a>(&self, server: &ServerId, own_uri: &'a str) -> Cow<'a, str> {
        if let Some(page) = resource_uri::public_page(server, own_uri) {
            return Cow::Owned(page);
        }
        if !self.servers.get(server).is_some_and(|offer| offer.has_resources) {
            return Cow::Borrowed(own_uri);
        }
        let resolves_back = match self.locate_resource(own_uri) {
            Ok(Some(target)) => target.server == *server && *target.name == *own_uri,
            Ok(None) => self.guess_server(own_uri) == Some(server),
            Err(_) => false,
        };
        if resolves_back {
            Cow::Borrowed(own_uri)
        } else {
            Cow::Owned(resource_uri::qualify_resource(server, own_uri))
        }
    }

    /// Returns a URI that names the server and its own URI of a resource.
    pub(crate) fn qualified_uri(server: &ServerId, own_uri: &str) -> String {
        resource_uri::qualify_resource(server, own_uri)
    }

    /// Returns the public id of a server's task.
    pub fn public_task_id(server: &ServerId, own_id: &str) -> String {
        format!("{server}{}{own_id}", public_name::SEPARATOR)
    }

    fn find_task(&self, id: &str) -> Result<Target, Error> {
        let parts = id.split_once(public_name::SEPARATOR);
        let parsed = parts.and_then(|(server, own_id)| Some((server.parse::<ServerId>().ok()?, own_id)));
        match parsed.filter(|(server, _)| self.servers.contains_key(server)) {
            Some((server, own_id)) => Ok(Target::new(&server, own_id)),
            None => Err(Error::new(ErrorKind::Unknown, format!("Task not found: {id}"))),
        }
    }

    /// Resolves a URI to the server it names, the server that lists it as a resource or template, or the server with a
    /// matching template.
    fn locate_resource(&self, uri: &str) -> Result<Option<Target>, Error> {
        if let Some((server, own_uri)) = resource_uri::split_qualified(uri)
            && self.servers.contains_key(&server)
        {
            return Ok(Some(Target::new(&server, &own_uri)));
        }
        for kind in [ListKind::Resources, ListKind::Templates] {
            let mut owners = self.index(kind).find_own(uri);
            match owners.len() {
                0 => {}
                1 => return Ok(owners.next().map(Target::from)),
                _ => {
                    return Err(ambiguous_error(
                        "resource",
                        uri,
                        owners.map(|item| item.public_name.to_string()),
                    ));
                }
            }
        }
        let templates = self.index(ListKind::Templates).items.iter().zip(&self.uri_templates);
        let matching =
            templates.filter(|(_, template)| template.as_ref().is_some_and(|template| template.matches(uri)));
        let mut servers: Vec<&ServerId> = matching.map(|(item, _)| &item.server).collect();
        servers.dedup();
        match &servers[..] {
            [] => Ok(None),
            [only] => Ok(Some(Target::new(only, uri))),
            several => {
                let uris = several.iter().map(|server| resource_uri::qualify_resource(server, uri));
                Err(ambiguous_error("resource", uri, uris))
            }
        }
    }

    /// Returns the server that may serve an unlisted URI: the only server with resources, or the only one that lists
    /// other URIs of that scheme.
    fn guess_server(&self, uri: &str) -> Option<&ServerId> {
        let mut with_resources = self.servers.iter().filter(|(_, offer)| offer.has_resources);
        let first = with_resources.next()?.0;
        if with_resources.next().is_none() {
            return Some(first);
        }
        let scheme = resource_uri::scheme(uri)?;
        let items =
            [ListKind::Resources, ListKind::Templates].into_iter().flat_map(|kind| &self.index(kind).items);
        let mut same_scheme = items.filter(|item| resource_uri::scheme(&item.own_name) == Some(scheme));
        let server = &same_scheme.next()?.server;
        same_scheme.all(|item| item.server == *server).then_some(server)
    }

    /// Returns the server that an unknown name refers to, and the server's own form of it: the known server in the prefix
    /// of a public name, or the only server for the URI of a resource.
    pub(crate) fn guess_target(&self, selector: &Selector) -> Option<Target> {
        match selector {
            Selector::Tool(name) | Selector::Prompt(name) => {
                let (server, own_name) = name.split_once(public_name::SEPARATOR)?;
                let server: ServerId = server.parse().ok()?;
                let is_known = self.has_server(&server) && !self.is_undiscovered(&server);
                is_known.then(|| Target::new(&server, own_name))
            }
            Selector::Resource(uri) => {
                let mut servers = self.servers.keys();
                let only = servers.next()?;
                servers.next().is_none().then(|| Target::new(only, uri))
            }
            Selector::Task(_) | Selector::OnServer(..) => None,
        }
    }

    /// Suggests a tool with a similar name, if the selector names a tool that its server does not list.
    pub fn suggest_tool(&self, selector: &Selector) -> Option<&str> {
        let Selector::OnServer(server, tool) = selector else { return None };
        let tools = &self.index(ListKind::Tools).items;
        let own_names = || tools.iter().filter(|item| item.server == *server).map(|item| &*item.own_name);
        if own_names().any(|name| name == tool) { None } else { closest_match(tool, own_names()) }
    }

    /// Returns whether at least one listed item matches.
    pub(crate) fn has_match(&self, selector: &Selector) -> bool {
        match selector {
            Selector::Tool(name) | Selector::OnServer(_, name) => self.index(ListKind::Tools).contains(name),
            Selector::Prompt(name) => self.index(ListKind::Prompts).contains(name),
            Selector::Resource(uri) => !matches!(self.locate_resource(uri), Ok(None)),
            Selector::Task(_) => false,
        }
    }

    /// Returns whether a selector is resolved without the servers that were never listed: a known server has what it means.
    pub(crate) fn is_certain(&self, selector: &Selector) -> bool {
        if !self.has_undiscovered {
            return true;
        }
        match selector {
            Selector::Tool(name) => self.is_public_name(ListKind::Tools, name) || self.has_match(selector),
            Selector::Prompt(name) => {
                self.is_public_name(ListKind::Prompts, name) || self.has_match(selector)
            }
            Selector::Resource(_) => self.has_match(selector),
            Selector::Task(_) | Selector::OnServer(..) => true,
        }
    }

    /// Returns whether a name can only mean an item of the server in its prefix: it is a public name, or that server is
    /// known.
    fn is_public_name(&self, kind: ListKind, name: &str) -> bool {
        let names_known_server = || {
            let prefix = name.split_once(public_name::SEPARATOR).map(|(server, _)| server);
            let server = prefix.and_then(|prefix| prefix.parse::<ServerId>().ok());
            server.is_some_and(|server| self.has_server(&server) && !self.is_undiscovered(&server))
        };
        self.index(kind).find_public(name).is_some() || names_known_server()
    }

    /// Adds a hint with the nearest name to the error for an unknown tool or prompt.
    pub(crate) fn add_suggestion(&self, error: Error, selector: &Selector) -> Error {
        if error.kind() != ErrorKind::Unknown || self.has_match(selector) {
            return error;
        }
        match self.nearest_name(selector) {
            Some(near) => error.with_hint(Hint::UseName { name: near.to_owned() }),
            None => error,
        }
    }

    /// Returns whether an unknown tool or prompt has a name that is similar to a known one.
    pub(crate) fn has_suggestion(&self, selector: &Selector) -> bool {
        self.nearest_name(selector).is_some()
    }

    fn nearest_name(&self, selector: &Selector) -> Option<&str> {
        let (name, kind) = match selector {
            Selector::Tool(name) => (name, ListKind::Tools),
            Selector::Prompt(name) => (name, ListKind::Prompts),
            _ => return None,
        };
        let items = self.index(kind).items.iter();
        closest_match(name, items.flat_map(|item| [&*item.public_name, &*item.own_name]))
    }
}

/// Finds an item by public name, or by bare name if only one server has it.
fn find_by_name(index: &CatalogIndex, noun: &str, name: &str) -> Result<Target, Error> {
    if let Some(item) = index.find_public(name) {
        return Ok(item.into());
    }
    match &*index.find_bare(name) {
        // The wording of the specification's examples, which clients may match.
        [] => Err(Error::new(ErrorKind::Unknown, format!("Unknown {noun}: {name}"))),
        [only] => Ok(Target::from(*only)),
        several => Err(ambiguous_error(noun, name, several.iter().map(|item| item.public_name.to_string()))),
    }
}

fn ambiguous_error(noun: &str, name: &str, candidates: impl Iterator<Item = String>) -> Error {
    let candidates: Vec<String> = candidates.map(|candidate| format!("`{candidate}`")).collect();
    let message = format!("several servers have a {noun} `{name}`: {}", candidates.join(", "));
    Error::new(ErrorKind::Unknown, message).with_hint("use one of these names")
}
