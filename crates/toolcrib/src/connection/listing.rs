//! Asks a server everything it offers, page by page.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::Connection;
use crate::error::{Error, ErrorKind};
use crate::pins::Mark;
use crate::wire::dialect::greeting::{code_of, declares, refusal};
use crate::wire::kind::Kind;
use crate::wire::message::{Answer, code};
use crate::wire::object::{self, Object, as_integer};

/// Pages a server may cut a list into.
const MOST_PAGES: usize = 1000;
/// Bytes of definitions a list may have.
const MOST_BYTES: usize = 64 << 20;
/// How long a list is taken for good at most, whatever the server says.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// How much longer than its tools a server's other lists may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Everything a server offers, and what it says about itself that others need to know while it sleeps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Listing {
    pub(crate) tools: Vec<Listed>,
    pub(crate) prompts: Vec<Listed>,
    pub(crate) resources: Vec<Listed>,
    pub(crate) templates: Vec<Listed>,
    /// Its capabilities, as it declared them.
    pub(crate) capabilities: Bytes,
    /// How it wants to be used, if it says so.
    pub(crate) instructions: Option<String>,
    /// The lists that it has and that could not be read.
    pub(crate) unread: Vec<Kind>,
    pub(crate) good: Goods,
    /// What is said here of its tools.
    pub(crate) remarks: Arc<Remarks>,
}

/// How long each list is good. No part of what is on offer: lists that differ in nothing else are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Goods(Arc<[Good; Kind::ALL.len()]>);

impl PartialEq for Goods {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Goods {}

/// How long a list is good.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Good {
    /// The server does not say.
    #[default]
    Unsaid,
    /// As long as the server has no such list.
    NoList,
    /// Until then, and whether that is so for everybody.
    Until(Instant, bool),
}

impl Good {
    /// What a page says that came at this moment.
    fn read(page: &Object, now: Instant) -> Self {
        let Some(time) = page.get("ttlMs").and_then(|raw| as_integer(raw)) else { return Self::Unsaid };
        let public = page.string("cacheScope").is_some_and(|scope| scope == "public");
        Self::Until(now + Duration::from_millis(time).min(LONGEST), public)
    }

    /// What two pages of one list say together.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::NoList, one) | (one, Self::NoList) => one,
            (Self::Until(one, public), Self::Until(other, also)) => {
                Self::Until(one.min(other), public && also)
            }
            _ => Self::Unsaid,
        }
    }
}

/// What is said of a server's tools, and not by the server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Remarks {
    /// What clients of the whole crib call some of them instead.
    pub(crate) names: BTreeMap<String, String>,
    /// Those that are not what was approved.
    pub(crate) marks: Vec<(Arc<str>, Mark)>,
}

impl Remarks {
    /// What a tool is called here instead.
    pub(crate) fn name(&self, own: &str) -> Option<&str> {
        self.names.get(own).map(String::as_str)
    }

    /// Whether another tool is called what this one's server calls it.
    pub(crate) fn takes(&self, own: &str) -> bool {
        self.names.values().any(|taken| taken == own) && !self.names.contains_key(own)
    }

    /// Why a tool is not what was approved.
    pub(crate) fn mark(&self, own: &str) -> Option<Mark> {
        self.marks.iter().find(|(name, _)| **name == *own).map(|(_, mark)| *mark)
    }
}

impl Listing {
    /// Whether everything that `other` offers is on offer here, too.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let has = |list: &[Listed], wanted: &Listed| list.iter().any(|listed| listed.name == wanted.name);
        Kind::ALL.into_iter().all(|kind| other.of(kind).iter().all(|wanted| has(self.of(kind), wanted)))
    }

    /// This listing without the names that `keep` says no to.
    pub(crate) fn narrowed(&self, keep: impl Fn(&str) -> bool) -> Self {
        let kept = |kind| self.of(kind).iter().filter(|listed| keep(&listed.name)).cloned().collect();
        Self {
            tools: kept(Kind::Tools),
            prompts: kept(Kind::Prompts),
            resources: kept(Kind::Resources),
            templates: kept(Kind::Templates),
            ..self.clone()
        }
    }

    /// This listing with those lists replaced that are others in `now` than in `before`.
    pub(crate) fn changed(&self, before: &Self, now: &Self) -> Self {
        let pick = |kind: Kind| if before.of(kind) == now.of(kind) { self.of(kind) } else { now.of(kind) };
        Self {
            tools: pick(Kind::Tools).to_vec(),
            prompts: pick(Kind::Prompts).to_vec(),
            resources: pick(Kind::Resources).to_vec(),
            templates: pick(Kind::Templates).to_vec(),
            ..now.clone()
        }
    }
}

/// All pages of one list, and how long they are good.
type Pages = (Vec<Listed>, Good);

/// One thing on offer, as the server defined it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    /// The server's own name for it: a name, an address, or a template's text.
    pub(crate) name: Arc<str>,
    pub(crate) definition: Bytes,
}

impl Listed {
    /// A definition without a name, or one that cannot be read, is nothing on offer.
    pub(crate) fn read(kind: Kind, definition: Bytes) -> Option<Self> {
        let name = Object::parse(&definition).ok()?.string(kind.key())?.as_ref().into();
        Some(Self { name, definition })
    }

    /// Everything in a raw list that can be read.
    pub(crate) fn read_all(kind: Kind, list: &Bytes) -> Result<Vec<Self>, object::BadJson> {
        let definitions = object::elements(list)?.into_iter();
        Ok(definitions.filter_map(|definition| Self::read(kind, definition)).collect())
    }
}

impl Listing {
    /// One of the lists.
    pub(crate) fn of(&self, kind: Kind) -> &[Listed] {
        match kind {
            Kind::Tools => &self.tools,
            Kind::Prompts => &self.prompts,
            Kind::Resources => &self.resources,
            Kind::Templates => &self.templates,
        }
    }

    /// How long one of the lists is good.
    pub(crate) fn good(&self, kind: Kind) -> Good {
        self.good.0[kind as usize]
    }

    /// Whether the server says that a tool may run twice: because it changes nothing, or nothing more the second time.
    pub(crate) fn may_repeat(&self, tool: &str) -> bool {
        let listed = self.tools.iter().find(|listed| *listed.name == *tool);
        listed.is_some_and(|listed| {
            says(&listed.definition, "readOnlyHint") || says(&listed.definition, "idempotentHint")
        })
    }

    /// With the lists that could not be read this time as they were before.
    pub(crate) fn after(mut self, before: &Self) -> Self {
        for kind in std::mem::take(&mut self.unread) {
            *self.list(kind) = before.of(kind).to_vec();
        }
        self
    }

    fn list(&mut self, kind: Kind) -> &mut Vec<Listed> {
        match kind {
            Kind::Tools => &mut self.tools,
            Kind::Prompts => &mut self.prompts,
            Kind::Resources => &mut self.resources,
            Kind::Templates => &mut self.templates,
        }
    }

    fn take(&mut self, kind: Kind, (listed, good): Pages) {
        *self.list(kind) = listed;
        Arc::make_mut(&mut self.good.0)[kind as usize] = good;
    }

    /// Whether the server says that it has this.
    pub(crate) fn declares(&self, capability: &str) -> bool {
        declares(&self.capabilities, capability)
    }

    /// All pages of all lists, side by side. A server is asked only for what it says it has; what cannot be read costs
    /// only itself, and so does a list other than that of tools.
    pub(crate) async fn fetch(connection: &Connection) -> Result<Self, Error> {
        let late = CancellationToken::new();
        let tools = async {
            let tools = list(connection, Kind::Tools).await;
            late.cancel();
            tools
        };
        let (tools, prompts, resources, templates) = tokio::try_join!(
            tools,
            spare(connection, Kind::Prompts, &late),
            spare(connection, Kind::Resources, &late),
            spare(connection, Kind::Templates, &late),
        )?;
        let welcome = &connection.welcome;
        let (capabilities, instructions) = (welcome.capabilities.clone(), welcome.instructions.clone());
        let mut all = Self { capabilities, instructions, ..Self::default() };
        connection.note_errands(&tools.0);
        all.take(Kind::Tools, tools);
        let spare = [(Kind::Prompts, prompts), (Kind::Resources, resources), (Kind::Templates, templates)];
        for (kind, listed) in spare {
            match listed {
                Some(pages) => all.take(kind, pages),
                None => all.unread.push(kind),
            }
        }
        Ok(all)
    }
}

/// A list that the server can do without: `None` if it fails, or comes long after the tools did.
async fn spare(
    connection: &Connection,
    kind: Kind,
    late: &CancellationToken,
) -> Result<Option<Pages>, Error> {
    let patience = async {
        late.cancelled().await;
        sleep(PATIENCE).await;
    };
    let listed = tokio::select! {
        listed = list(connection, kind) => listed,
        () = patience => Err(Error::new(ErrorKind::TimedOut, "it takes too long")),
    };
    listed.map(Some).or_else(|error| match error.kind() {
        ErrorKind::Lost => Err(error),
        _ => {
            warn!(server = %connection.server, list = kind.method(), %error, "a list is left out");
            Ok(None)
        }
    })
}

async fn list(connection: &Connection, kind: Kind) -> Result<Pages, Error> {
    let (mut listed, mut bytes, mut seen) = (Vec::new(), 0, HashSet::new());
    let mut good = Good::NoList;
    if !connection.welcome.has(kind.capability()) {
        return Ok((listed, good));
    }
    let (method, member) = (kind.method(), kind.member());
    let mut params = Object::default();
    for _ in 0..MOST_PAGES {
        let page = match connection.request(method, params).await? {
            Answer::Result(page) => Object::parse(&page).map_err(|bad| nonsense(&bad.why))?,
            // Many servers have resources and know nothing of templates.
            Answer::Error(error)
                if kind == Kind::Templates && code_of(&error) == Some(code::METHOD_NOT_FOUND) =>
            {
                return Ok((listed, good));
            }
            Answer::Error(error) => {
                let said = refusal(&error);
                return Err(nonsense(&format!("`{method}` failed: {}", connection.link.mask().hide(&said))));
            }
        };
        let items =
            page.get(member).ok_or_else(|| nonsense(&format!("`{method}` answered without `{member}`")))?;
        bytes += items.len();
        if bytes > MOST_BYTES {
            return Err(nonsense(&format!("its list of {member} is larger than 64 MiB")));
        }
        good = good.and(Good::read(&page, Instant::now()));
        let items = Listed::read_all(kind, items);
        listed.extend(items.map_err(|bad| nonsense(&format!("`{member}` in its list: {bad}")))?);
        // An empty string is a cursor like any other.
        let Some(cursor) = page.string("nextCursor").map(std::borrow::Cow::into_owned) else {
            return Ok((listed, good));
        };
        params = Object::default();
        params.set("cursor", object::string(&cursor));
        if !seen.insert(cursor) {
            let why = format!("its list of {member} runs in a circle: a cursor came twice");
            return Err(nonsense(&why));
        }
    }
    Err(nonsense(&format!("its list of {member} has more than 1000 pages")))
}

/// Whether a tool's definition holds this hint.
pub(crate) fn says(definition: &Bytes, hint: &str) -> bool {
    if memchr::memmem::find(definition, hint.as_bytes()).is_none() {
        return false;
    }
    let annotations =
        Object::parse(definition).ok().and_then(|tool| Object::parse(tool.get("annotations")?).ok());
    annotations.is_some_and(|said| said.get(hint).is_some_and(|raw| &**raw == b"true"))
}

fn nonsense(why: &str) -> Error {
    Error::new(ErrorKind::BadReply, why)
}
