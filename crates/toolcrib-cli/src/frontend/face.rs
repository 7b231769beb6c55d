//! The crib as an MCP server: the requests that every frontend and both eras answer alike.

mod glance;
mod hello;
pub(crate) mod listening;
mod methods;
pub(crate) mod talk;
pub(crate) mod told;
pub(crate) mod under_way;
pub(crate) mod watcher;

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;
use toolcrib::wire::dialect::client::{self, Claimed};
use toolcrib::wire::dialect::to_client;
use toolcrib::wire::message::{Answer, code, error_object};
use toolcrib::wire::object::Object;
use toolcrib::wire::revision::Era;
use toolcrib::{Call, Caller, Catalog, Client, Crib, Error, Guest, Hear, Kind, ServerId, Wanted};

use self::glance::{Digests, Glance};
use self::methods::Meant;
use crate::advice::Advice;

/// Resources that one client may want to hear of, in a session or on a stream.
const MOST_SUBSCRIPTIONS: usize = 1000;
/// Callers for whom is kept what was worked out about a catalog.
const MOST_GLANCES: usize = 64;

/// What a client sees of the crib.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum View {
    /// Everything, under public names.
    All,
    /// One server, under its own names.
    One(ServerId),
}

impl View {
    /// The server it is narrowed to, if it is.
    pub(crate) fn server(&self) -> Option<&ServerId> {
        match self {
            Self::All => None,
            Self::One(server) => Some(server),
        }
    }

    /// A resource by the address that clients of this view know it by.
    pub(crate) fn resource(&self, uri: &str) -> Wanted {
        match self {
            Self::All => Wanted::Resource(uri.to_owned()),
            Self::One(server) => Wanted::On(server.clone(), uri.to_owned()),
        }
    }
}

/// Who comes, and to which page.
#[derive(Debug, Clone)]
pub(crate) struct Visit {
    pub(crate) view: View,
    pub(crate) caller: Caller,
}

/// The same caller through another profile is another visit.
impl PartialEq for Visit {
    fn eq(&self, other: &Self) -> bool {
        (&self.view, &self.caller, self.caller.profile())
            == (&other.view, &other.caller, other.caller.profile())
    }
}

impl Visit {
    /// Whoever is on this machine, and sees everything at once.
    #[cfg(test)]
    pub(crate) fn local() -> Self {
        Self::by(Caller::local())
    }

    /// Somebody who sees everything at once.
    pub(crate) fn by(caller: Caller) -> Self {
        Self { view: View::All, caller }
    }

    /// Whether anything of a server can be seen there.
    fn sees(&self, crib: &Crib, server: &ServerId) -> bool {
        self.view.server().is_none_or(|own| own == server) && crib.sees(&self.caller, server)
    }
}

/// Who asks, and on whose behalf servers are asked.
#[derive(Debug, Clone)]
pub(crate) struct Asker {
    pub(crate) visit: Visit,
    pub(crate) client: Client,
    /// What is known of the client beyond this request.
    pub(crate) guest: Option<Arc<Guest>>,
}

impl Asker {
    /// A call on its behalf.
    pub(crate) fn call(self, method: Cow<'static, str>, wanted: Wanted, params: Object) -> Call {
        let call = Call::request(method, wanted, params).by(self.visit.caller).of(self.client);
        self.guest.into_iter().fold(call, Call::from_guest)
    }
}

/// One client, as long as it is here: a session, a pipe or a connection. Servers that are its alone leave with it.
#[derive(Debug)]
pub(crate) struct Presence {
    pub(crate) key: u64,
    crib: Crib,
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.crib.part_with(self.key);
    }
}

/// The crib as its clients see it.
#[derive(Debug)]
pub(crate) struct Face {
    pub(crate) crib: Crib,
    /// The next client's number.
    keys: AtomicU64,
    /// Of the newest catalog, as each caller sees it.
    glances: Mutex<Vec<Arc<Glance>>>,
    advice: Advice,
}

impl Face {
    pub(crate) fn new(crib: Crib) -> Self {
        Self { crib, keys: AtomicU64::new(1), glances: Mutex::default(), advice: Advice::default() }
    }

    /// The same, with hints that are completed so.
    pub(crate) fn advising(self, advice: Advice) -> Self {
        Self { advice, ..self }
    }

    /// A failure as the client sees it.
    fn failed(&self, error: &Error) -> Answer {
        let mut data = error.data();
        if let Some(hint) = data["hint"].as_str() {
            data["hint"] = self.advice.complete(hint).into();
        }
        Answer::Error(error_object(error.kind().facts().code, &error.to_string(), Some(&data)))
    }

    /// A number that no other client has.
    fn key(&self) -> u64 {
        self.keys.fetch_add(1, Ordering::Relaxed)
    }

    /// A client that has just come; what is its alone ends when this is dropped.
    pub(crate) fn welcome(&self) -> Presence {
        Presence { key: self.key(), crib: self.crib.clone() }
    }

    /// Who asks with a stateless request; `key` is the client's number.
    pub(crate) fn stateless(visit: Visit, claimed: &Claimed, key: u64, guest: Option<Arc<Guest>>) -> Asker {
        let (abilities, log) = (claimed.abilities.clone(), claimed.log);
        let client = Client { key, era: Era::Stateless, abilities, log };
        Asker { visit, client, guest }
    }

    /// Answers one request; what comes before the answer goes to `told`. Dropping the future cancels it.
    pub(crate) async fn respond(
        &self,
        asker: Asker,
        method: &str,
        params: Option<Object>,
        told: Option<Arc<dyn Hear>>,
    ) -> Answer {
        let (params, era) = (params.unwrap_or_default(), asker.client.era);
        match methods::meant(&asker.visit.view, era, method, &params) {
            Ok(Meant::Goes(wanted)) => self.send(asker, method, wanted, params, told).await,
            Ok(Meant::List(kind)) => self.list(&asker.visit, era, kind, &params).await.0,
            Ok(Meant::Discover) => Answer::Result(self.discovered(&asker.visit).await),
            Ok(Meant::Nothing) => Answer::Result(client::empty_result(era)),
            Err(answer) => answer,
        }
    }

    /// Whether a request goes out to a server, which may tell or ask something before it answers.
    pub(crate) fn goes_out(view: &View, era: Era, method: &str) -> bool {
        methods::goes_out(view, era, method)
    }

    async fn send(
        &self,
        asker: Asker,
        method: &str,
        wanted: Wanted,
        params: Object,
        told: Option<Arc<dyn Hear>>,
    ) -> Answer {
        let era = asker.client.era;
        let call = asker.call(methods::fixed(method), wanted, params);
        let call = told.into_iter().fold(call, Call::listen);
        match self.crib.call(call).await {
            Ok(outcome) => to_client(outcome.answer, method, outcome.era, era),
            Err(error) if error.is_for_model() && method == "tools/call" => {
                to_client(told_to_model(&error), method, Era::Session, era)
            }
            Err(error) => self.failed(&error),
        }
    }

    /// One page of a list, and the catalog it was read from.
    async fn list(
        &self,
        visit: &Visit,
        era: Era,
        kind: Kind,
        params: &Object,
    ) -> (Answer, Option<Arc<Catalog>>) {
        let written = params.get("cursor").filter(|raw| &***raw != b"null");
        let cursor = params.string("cursor");
        if written.is_some() && cursor.is_none() {
            return (refuse(code::INVALID_PARAMS, "`params.cursor` must be a string"), None);
        }
        let catalog = match self.met(visit).await {
            Ok(catalog) => catalog,
            Err(error) => return (self.failed(&error), None),
        };
        match catalog.page(kind, visit.view.server(), era, cursor.as_deref()) {
            Ok(page) => {
                let good = self.crib.freshness(kind, visit.view.server(), &visit.caller);
                let (next, good) = (page.next.as_deref(), (good.left, good.public));
                let result = client::list_result(kind.member(), &page.items, next, era, good);
                (Answer::Result(result), Some(catalog))
            }
            Err(error) => (self.failed(&error), None),
        }
    }

    /// What is on offer to a visitor, with everybody asked who never was.
    async fn met(&self, visit: &Visit) -> Result<Arc<Catalog>, Error> {
        match &visit.view {
            View::All => Ok(self.crib.list_for(&visit.caller).await),
            View::One(server) => self.crib.list_of_for(server, &visit.caller).await,
        }
    }

    /// What was worked out about a catalog; worked out once for each.
    pub(crate) fn glance(&self, catalog: &Arc<Catalog>) -> Arc<Glance> {
        let mut glances = self.glances.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = glances.iter().find(|glance| glance.is_of(catalog)) {
            return known.clone();
        }
        glances.retain(|glance| glance.revision() == catalog.revision());
        if glances.len() >= MOST_GLANCES {
            glances.clear();
        }
        let fresh = Arc::new(Glance::new(catalog.clone()));
        glances.push(fresh.clone());
        fresh
    }

    /// The lists as a visitor knows them now, each as one number.
    pub(crate) fn digests(&self, visit: &Visit) -> Digests {
        self.glance(&self.crib.catalog_for(&visit.caller)).digests(&visit.view)
    }
}

/// A failure that needs no advice, as the client sees it.
pub(crate) fn failed(error: &Error) -> Answer {
    Answer::Error(error_object(error.kind().facts().code, &error.to_string(), Some(&error.data())))
}

/// A failure that the model can do something about: most clients show their models the results of tools, and no errors.
fn told_to_model(error: &Error) -> Answer {
    let text = format!("{error}; {}", error.advice());
    let mut data = error.data();
    data["code"] = error.kind().facts().code.into();
    let content = json!([{"type": "text", "text": text}]);
    Answer::Result(
        json!({"content": content, "isError": true, "_meta": {"toolcrib/error": data}}).to_string().into(),
    )
}

pub(crate) fn refuse(code: i32, why: &str) -> Answer {
    Answer::Error(error_object(code, why, None))
}

#[cfg(test)]
mod tests;
