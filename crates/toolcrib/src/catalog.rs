//! `Catalog`: a frozen picture of every tool on offer and which server each belongs to.
//!
//! It is built whole from the servers' listings, rendered once, and replaced whole; nobody edits it. Order is stable:
//! servers by name, then each server's own order.

pub mod name;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;

use crate::call::Wanted;
use crate::connection::listing::Listing;
use crate::error::{Error, ErrorKind};
use crate::spec::ServerId;
use crate::spelling::nearest;
use crate::wire::object::{self, Object};

/// One tool of one server.
#[derive(Debug, Clone)]
pub struct Tool {
    /// Whose it is.
    pub server: ServerId,
    /// What the server calls it.
    pub own_name: Arc<str>,
    /// What clients of the whole crib call it.
    pub public_name: Arc<str>,
    /// Its definition, as the server sent it.
    pub definition: Bytes,
}

impl Tool {
    /// Its description, if it has one.
    pub fn description(&self) -> Option<String> {
        Object::parse(&self.definition).ok()?.string("description").map(std::borrow::Cow::into_owned)
    }
}

/// Exactly one tool of one server: what a call goes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The server.
    pub server: ServerId,
    /// The server's own name for the tool.
    pub tool: Arc<str>,
}

/// A frozen picture of every tool on offer.
#[derive(Debug, Default)]
pub struct Catalog {
    revision: u64,
    tools: Vec<Tool>,
    /// Every server there is; those that were never asked have no tools here yet.
    servers: BTreeMap<ServerId, Offer>,
    by_public: HashMap<Arc<str>, usize>,
    by_own: HashMap<Arc<str>, Vec<usize>>,
    rendered: Bytes,
}

#[derive(Debug, Default)]
struct Offer {
    listed: bool,
    rendered: Bytes,
}

impl Catalog {
    /// Builds the picture from each server's last known listing; `None` for servers that were never asked.
    pub(crate) fn build(revision: u64, listings: &BTreeMap<ServerId, Option<Arc<Listing>>>) -> Self {
        let mut catalog = Self { revision, ..Self::default() };
        for (server, listing) in listings {
            let offer = match listing {
                None => Offer { listed: false, rendered: Bytes::from_static(b"[]") },
                Some(listing) => {
                    listing
                        .tools
                        .iter()
                        .for_each(|tool| catalog.add(server, tool.name.as_ref(), &tool.definition));
                    Offer {
                        listed: true,
                        rendered: joined(listing.tools.iter().map(|tool| &*tool.definition)),
                    }
                }
            };
            catalog.servers.insert(server.clone(), offer);
        }
        let renamed: Vec<Bytes> = catalog.tools.iter().map(renamed).collect();
        catalog.rendered = joined(renamed.iter().map(|tool| &**tool));
        catalog
    }

    /// A server that lists one name twice keeps the first.
    fn add(&mut self, server: &ServerId, own_name: &str, definition: &Bytes) {
        let public_name: Arc<str> = name::public(server, own_name).into();
        if self.by_public.contains_key(&public_name) {
            return;
        }
        let own_name: Arc<str> = own_name.into();
        self.by_public.insert(public_name.clone(), self.tools.len());
        self.by_own.entry(own_name.clone()).or_default().push(self.tools.len());
        self.tools.push(Tool {
            server: server.clone(),
            own_name,
            public_name,
            definition: definition.clone(),
        });
    }

    /// Which version of the picture this is; it grows with every change.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Every tool, in order.
    pub fn tools(&self) -> &[Tool] {
        &self.tools
    }

    /// The tools as a JSON array under their public names.
    pub fn rendered(&self) -> &Bytes {
        &self.rendered
    }

    /// One server's tools as a JSON array under its own names.
    pub fn rendered_of(&self, server: &ServerId) -> Option<&Bytes> {
        self.servers.get(server).map(|offer| &offer.rendered)
    }

    /// Servers whose tools nobody has seen yet.
    pub fn strangers(&self) -> impl Iterator<Item = &ServerId> {
        self.servers.iter().filter(|(_, offer)| !offer.listed).map(|(server, _)| server)
    }

    /// The stranger a public name points at, if its first part names one.
    pub(crate) fn stranger_behind(&self, name: &str) -> Option<&ServerId> {
        let (server, _) = name.split_once(name::SEPARATOR)?;
        self.strangers().find(|stranger| stranger.as_str() == server)
    }

    /// The one tool that is meant, or why there is none.
    pub fn find(&self, wanted: &Wanted) -> Result<Target, Error> {
        match wanted {
            Wanted::Named(name) => self.find_named(name).map(|tool| self.target(tool)),
            Wanted::On(server, tool) if self.servers.contains_key(server) => {
                Ok(Target { server: server.clone(), tool: tool.as_str().into() })
            }
            Wanted::On(server, _) => Err(self.unknown_server(server.as_str())),
            Wanted::Prompt(name) | Wanted::Resource(name) | Wanted::Task(name) => {
                Err(Error::new(ErrorKind::Unknown, format!("nobody here has `{name}`")))
            }
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

    fn find_named(&self, name: &str) -> Result<usize, Error> {
        if let Some(tool) = self.by_public.get(name) {
            return Ok(*tool);
        }
        match self.by_own.get(name).map(Vec::as_slice) {
            Some([only]) => Ok(*only),
            Some(several) => {
                let names: Vec<String> =
                    several.iter().map(|at| format!("`{}`", self.tools[*at].public_name)).collect();
                let message = format!("several servers have a tool `{name}`: {}", names.join(", "));
                Err(Error::new(ErrorKind::Unknown, message).hint("name one of them in full"))
            }
            // The words of the protocol's own examples, which clients look for.
            None => Err(Error::new(ErrorKind::Unknown, format!("Unknown tool: {name}"))),
        }
    }

    /// Whether a tool of this name, public or bare, is on offer at all.
    pub(crate) fn offers(&self, name: &str) -> bool {
        self.by_public.contains_key(name) || self.by_own.contains_key(name)
    }

    /// The error with what the caller may have meant, if that is not said yet.
    pub(crate) fn advise(&self, error: Error, wanted: &Wanted) -> Error {
        let Wanted::Named(name) = wanted else { return error };
        if error.kind() != ErrorKind::Unknown || self.offers(name) {
            return error;
        }
        match nearest(name, self.tools.iter().flat_map(|tool| [&*tool.public_name, &*tool.own_name])) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error,
        }
    }

    /// The tool that somebody probably meant who asked a server for one that it is not known to have.
    pub fn near(&self, wanted: &Wanted) -> Option<&str> {
        let Wanted::On(server, tool) = wanted else { return None };
        let own = || self.tools.iter().filter(|known| known.server == *server).map(|known| &*known.own_name);
        if own().any(|known| known == tool) { None } else { nearest(tool, own()) }
    }

    fn target(&self, at: usize) -> Target {
        let tool = &self.tools[at];
        Target { server: tool.server.clone(), tool: tool.own_name.clone() }
    }
}

fn renamed(tool: &Tool) -> Bytes {
    match Object::parse(&tool.definition) {
        Ok(mut definition) => {
            definition.set("name", object::string(&tool.public_name));
            definition.to_bytes()
        }
        Err(_) => tool.definition.clone(),
    }
}

fn joined<'a>(items: impl Iterator<Item = &'a [u8]>) -> Bytes {
    let mut out = vec![b'['];
    for (index, item) in items.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(item);
    }
    out.push(b']');
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::listing::ListedTool;

    fn catalog(servers: &[(&str, &[&str])]) -> Catalog {
        let listings = servers.iter().map(|(server, tools)| {
            let tools = tools.iter().map(|name| ListedTool {
                name: (*name).into(),
                definition: format!(r#"{{"name":"{name}","x":1.0}}"#).into(),
            });
            (server.parse().unwrap(), Some(Arc::new(Listing { tools: tools.collect() })))
        });
        Catalog::build(1, &listings.collect())
    }

    fn found(catalog: &Catalog, name: &str) -> Result<String, String> {
        let found = catalog.find(&Wanted::Named(name.to_owned()));
        found.map(|target| format!("{}.{}", target.server, target.tool)).map_err(|error| error.to_string())
    }

    #[test]
    fn tools_are_found_by_public_name_and_by_bare_name_if_unique() {
        let catalog = catalog(&[("b", &["log", "push"]), ("a", &["log"])]);
        assert_eq!(found(&catalog, "b__log").unwrap(), "b.log");
        assert_eq!(found(&catalog, "push").unwrap(), "b.push");
        assert_eq!(
            found(&catalog, "log").unwrap_err(),
            "several servers have a tool `log`: `a__log`, `b__log`"
        );
        assert_eq!(found(&catalog, "nope").unwrap_err(), "Unknown tool: nope");
    }

    #[test]
    fn order_is_servers_by_name_then_their_own() {
        let catalog = catalog(&[("b", &["z", "a"]), ("a", &["m"])]);
        let names: Vec<&str> = catalog.tools().iter().map(|tool| &*tool.public_name).collect();
        assert_eq!(names, ["a__m", "b__z", "b__a"]);
        assert_eq!(
            &catalog.rendered()[..],
            br#"[{"name":"a__m","x":1.0},{"name":"b__z","x":1.0},{"name":"b__a","x":1.0}]"#
        );
        assert_eq!(
            &catalog.rendered_of(&"b".parse().unwrap()).unwrap()[..],
            br#"[{"name":"z","x":1.0},{"name":"a","x":1.0}]"#
        );
    }

    #[test]
    fn a_near_miss_is_named() {
        let catalog = catalog(&[("git", &["git_log"])]);
        let wanted = Wanted::Named("git__git_lgo".into());
        let error = catalog.advise(catalog.find(&wanted).unwrap_err(), &wanted);
        assert_eq!(error.advice(), "did you mean `git__git_log`?");
    }

    #[test]
    fn a_near_miss_on_one_server_is_looked_for_on_that_server_only() {
        let catalog = catalog(&[("git", &["git_log"]), ("time", &["git_lag"])]);
        let near = |tool: &str| catalog.near(&Wanted::On("git".parse().unwrap(), tool.into()));
        assert_eq!(near("git_lgo"), Some("git_log"));
        assert_eq!((near("git_log"), near("push")), (None, None));
        assert_eq!(catalog.near(&Wanted::Named("git_lgo".into())), None);
    }
}
