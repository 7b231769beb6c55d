//! `SharingKey`: whose instance of a server a call goes to, and `Guest`: what a client is beyond any one of its calls.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::call::{Call, Caller};
use crate::catalog::decoded;
use crate::spec::Sharing;
use crate::told::{Ask, Hear, Told};
use crate::wire::dialect::party::{Abilities, ROOTS};
use crate::wire::message::Answer;
use crate::wire::object::{Object, elements};
use crate::wire::revision::Era;

/// How long a client may take to say where it works.
const SAYING: Duration = Duration::from_secs(10);

/// Whose instance of a server a call goes to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum SharingKey {
    /// Everybody's: there is but one.
    #[default]
    Shared,
    /// Nobody's: it was started to be asked what it offers.
    Nobody,
    /// One client's, as long as it says the same about itself.
    Client {
        /// The client's number.
        number: u64,
        /// The capabilities it declares.
        declared: Bytes,
    },
    /// That of everybody who works in the same place.
    Project(Project),
    /// That of everything that asks under one name.
    Caller(Caller),
}

impl SharingKey {
    /// The key of a call; a client that does not say where it works has an instance of its own.
    pub(crate) async fn of(sharing: Sharing, call: &Call) -> Self {
        if let Some(key) = Self::at_once(sharing, call) {
            return key;
        }
        let project = match &call.guest {
            Some(guest) => Box::pin(guest.project(call)).await,
            None => None,
        };
        project.map_or_else(|| Self::client(call), Self::Project)
    }

    /// The key of a call, if nobody has to be asked for it.
    pub(crate) fn at_once(sharing: Sharing, call: &Call) -> Option<Self> {
        match sharing {
            Sharing::Shared => Some(Self::Shared),
            Sharing::PerCaller => Some(Self::Caller(call.caller.clone())),
            Sharing::PerClient => Some(Self::client(call)),
            Sharing::PerProject => None,
        }
    }

    fn client(call: &Call) -> Self {
        Self::Client { number: call.client.key, declared: declared(call).raw().clone() }
    }

    /// Whether it is this client's alone.
    pub fn is_of(&self, client: u64) -> bool {
        matches!(self, Self::Client { number, .. } if *number == client)
    }

    /// Whether somebody may hear what an instance under this key says to nobody in particular.
    pub fn concerns(&self, client: u64, caller: &Caller, guest: &Guest) -> bool {
        match self {
            Self::Shared => true,
            Self::Nobody => false,
            Self::Client { number, .. } => *number == client,
            Self::Project(project) => guest.known_project().as_ref() == Some(project),
            Self::Caller(name) => name == caller,
        }
    }
}

impl fmt::Display for SharingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shared => f.write_str("everybody"),
            Self::Nobody => f.write_str("nobody"),
            Self::Client { number, .. } => write!(f, "client {number}"),
            Self::Project(project) => write!(f, "project {}", project.0.join(", ")),
            Self::Caller(caller) => write!(f, "caller {}", caller.as_str()),
        }
    }
}

/// What the client behind a call declares: in a session once and for all, otherwise with every call.
fn declared(call: &Call) -> &Abilities {
    let once = call.guest.as_ref().and_then(|guest| guest.declared.as_ref());
    once.unwrap_or(&call.client.abilities)
}

/// Where somebody works: folders and addresses, in one order and one spelling.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Project(Arc<[String]>);

impl Project {
    /// These folders and addresses; none are no project.
    pub fn of(places: impl IntoIterator<Item: AsRef<str>>) -> Option<Self> {
        let mut places: Vec<String> = places.into_iter().map(|place| spelled(place.as_ref())).collect();
        places.retain(|place| !place.is_empty());
        places.sort_unstable();
        places.dedup();
        (!places.is_empty()).then(|| Self(places.into()))
    }

    /// The folder it is, if it is one and only one.
    pub fn folder(&self) -> Option<&Path> {
        match &*self.0 {
            [place] if place.starts_with('/') => Some(Path::new(place)),
            _ => None,
        }
    }

    /// The same with every folder that is there under its one true name.
    async fn canonical(self) -> Self {
        let mut places = Vec::with_capacity(self.0.len());
        for place in &*self.0 {
            let true_name = match place.starts_with('/') {
                true => tokio::fs::canonicalize(place).await.ok(),
                false => None,
            };
            places.push(true_name.and_then(|path| path.to_str().map(str::to_owned)).unwrap_or(place.clone()));
        }
        Self::of(places).unwrap_or(self)
    }
}

/// A folder as a path, whether it was written as one or as an address; anything else as it is.
fn spelled(place: &str) -> String {
    let path = place.strip_prefix("file://").map(|rest| rest.strip_prefix("localhost").unwrap_or(rest));
    let place = path.and_then(decoded).unwrap_or(place.into());
    match place.trim_end_matches('/') {
        "" if place.starts_with('/') => "/".to_owned(),
        trimmed => trimmed.to_owned(),
    }
}

/// What a client is beyond any one of its calls.
#[derive(Debug, Default)]
pub struct Guest {
    declared: Option<Abilities>,
    ear: Option<Arc<dyn Hear>>,
    folder: Option<Project>,
    /// Where it said that it works; asked once.
    roots: Mutex<Arc<OnceCell<Option<Project>>>>,
}

impl Guest {
    /// With the capabilities that it declared for as long as it is here.
    #[must_use]
    pub fn declaring(mut self, abilities: Abilities) -> Self {
        self.declared = Some(abilities);
        self
    }

    /// With somebody who hears what it is asked while none of its calls runs.
    #[must_use]
    pub fn hearing(mut self, ear: Arc<dyn Hear>) -> Self {
        self.ear = Some(ear);
        self
    }

    /// With the place that it was started in, which is its project whatever else it says.
    #[must_use]
    pub fn working_in(mut self, place: Option<Project>) -> Self {
        self.folder = place;
        self
    }

    /// It works elsewhere now, and is asked where when that matters.
    pub fn moved(&self) {
        *self.roots() = Arc::default();
    }

    fn roots(&self) -> std::sync::MutexGuard<'_, Arc<OnceCell<Option<Project>>>> {
        self.roots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where it works, as far as that is known.
    fn known_project(&self) -> Option<Project> {
        self.folder.clone().or_else(|| self.roots().get().cloned().flatten())
    }

    /// Where it works. A client in a session that can be asked is asked, once.
    async fn project(&self, call: &Call) -> Option<Project> {
        if self.folder.is_some() {
            return self.folder.clone();
        }
        let able = call.client.era == Era::Session && declared(call).lacking(ROOTS, None).is_none();
        let roots = self.roots().clone();
        if !able {
            return None;
        }
        roots.get_or_init(|| self.ask_roots(call)).await.clone()
    }

    async fn ask_roots(&self, call: &Call) -> Option<Project> {
        for ear in call.told.iter().chain(&self.ear) {
            let (ask, answered) = Ask::new(ROOTS.to_owned(), None);
            if !ear.hear(Told::Asked(ask)) {
                continue;
            }
            let answer = timeout(SAYING, answered).await.ok()?.ok()?;
            return Some(Project::of(places(&answer)?)?.canonical().await);
        }
        None
    }
}

/// The addresses in an answer to the question where somebody works.
fn places(answer: &Answer) -> Option<Vec<String>> {
    let Answer::Result(result) = answer else { return None };
    let roots = elements(Object::parse(result).ok()?.get("roots")?).ok()?;
    let uri = |root: &Bytes| Some(Object::parse(root).ok()?.string("uri")?.into_owned());
    Some(roots.iter().filter_map(uri).collect())
}

/// Whose an instance is, as far as its connection has to know.
#[derive(Debug, Default)]
pub(crate) struct Whose {
    pub(crate) key: SharingKey,
    /// What its one client can be asked.
    pub(crate) abilities: Option<Abilities>,
    /// Hears what its one client is asked while no call runs.
    pub(crate) ear: Option<Arc<dyn Hear>>,
}

impl Whose {
    /// The one behind a call, for the instance that it goes to.
    pub(crate) fn of(key: SharingKey, call: &Call) -> Self {
        match key {
            SharingKey::Client { .. } => {
                let ear = call.guest.as_ref().and_then(|guest| guest.ear.clone());
                Self { key, abilities: Some(declared(call).clone()), ear }
            }
            key => Self { key, ..Self::default() },
        }
    }
}

#[cfg(test)]
mod tests;
