//! Stands in for parts of the library that are on their way.

use bytes::Bytes;
use tokio::sync::broadcast;
use toolcrib::event::News;
use toolcrib::{Catalog, Crib, Error, ErrorKind, ServerId, Wanted};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Tools,
    Prompts,
    Resources,
    Templates,
}

impl Kind {
    pub(crate) fn of_method(method: &str) -> Option<Self> {
        Some(match method {
            "tools/list" => Self::Tools,
            "prompts/list" => Self::Prompts,
            "resources/list" => Self::Resources,
            "resources/templates/list" => Self::Templates,
            _ => return None,
        })
    }

    pub(crate) fn member(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
        }
    }
}

pub(crate) struct Page {
    pub(crate) items: Bytes,
    pub(crate) next: Option<String>,
}

pub(crate) fn rendered(catalog: &Catalog, kind: Kind, of: Option<&ServerId>) -> Bytes {
    let tools = match of {
        None => Some(catalog.rendered()),
        Some(server) => catalog.rendered_of(server),
    };
    tools.filter(|_| kind == Kind::Tools).cloned().unwrap_or(Bytes::from_static(b"[]"))
}

pub(crate) fn page(
    catalog: &Catalog,
    kind: Kind,
    of: Option<&ServerId>,
    cursor: Option<&str>,
) -> Result<Page, Error> {
    match cursor {
        Some(_) => Err(Error::new(ErrorKind::Unknown, "this cursor was not given out here")),
        None => Ok(Page { items: rendered(catalog, kind, of), next: None }),
    }
}

pub(crate) fn capabilities_of<'a>(_: &'a Catalog, _: &ServerId) -> Option<&'a Bytes> {
    None
}

pub(crate) fn instructions_of<'a>(_: &'a Catalog, _: &ServerId) -> Option<&'a str> {
    None
}

pub(crate) fn servers(_: &Catalog) -> impl Iterator<Item = &ServerId> {
    std::iter::empty()
}

#[derive(Debug)]
pub(crate) struct Subscription(String);

impl Subscription {
    pub(crate) fn concerns(&self, _: &News) -> bool {
        false
    }

    pub(crate) fn uri(&self) -> &str {
        &self.0
    }
}

pub(crate) async fn subscribe(_: &Crib, wanted: &Wanted) -> Result<Subscription, Error> {
    match wanted {
        Wanted::Resource(uri) | Wanted::On(_, uri) => Ok(Subscription(uri.clone())),
        _ => Err(Error::new(ErrorKind::Unknown, "no such resource")),
    }
}

pub(crate) fn news(_: &Crib) -> broadcast::Receiver<News> {
    let (sender, receiver) = broadcast::channel(1);
    std::mem::forget(sender);
    receiver
}
