//! `Pins`: what was approved of a server's tools, and which of those it offers now are others.
//!
//! What a server offers when it is first seen counts as approved; from then on only a person approves. Nothing here
//! decides what follows from a mark: the catalog and the lease do.

mod file;
mod fingerprint;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::connection::listing::{Listed, Listing};
use crate::error::{Error, ErrorKind};
use crate::spec::{Endpoint, Pinning, ServerId, ServerSpec};
use file::{Approved, Stamp, Tools};
pub(crate) use fingerprint::Fingerprint;
use fingerprint::kept;

/// Tools that are kept in mind beyond those of one listing: a server may call them something else every time.
const MOST: usize = 1000;

/// Why a tool is not what was approved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Nobody has approved a tool of this name.
    New,
    /// It was something else when it was approved.
    Changed,
}

impl Mark {
    /// As status and scripts see it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Changed => "changed",
        }
    }
}

/// One tool that is not what was approved.
#[derive(Debug, Clone)]
pub struct Difference {
    /// The server's own name for it.
    pub tool: String,
    /// What is wrong with it.
    pub mark: Mark,
    /// What was approved, as JSON, if anything was and its text was kept.
    pub before: Option<Bytes>,
    /// What the server offers now, as JSON.
    pub now: Bytes,
}

/// Everything of a server that waits for a person.
#[derive(Debug, Clone, Default)]
pub struct Unapproved {
    /// By name.
    pub tools: Vec<Difference>,
    /// Stands for exactly these definitions: an approval is of what was seen.
    pub seal: String,
}

/// What came of looking at a listing.
#[derive(Debug, Default)]
pub(crate) struct Met {
    /// Tools that were not known to be other than approved.
    pub(crate) news: Vec<(Arc<str>, Mark)>,
    /// The server was seen for the first time: what it offers is to be saved.
    pub(crate) is_first: bool,
    /// Why nothing counts as approved, if that is news.
    pub(crate) damage: Option<String>,
}

/// What was approved of one server's tools.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    file: Option<PathBuf>,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    stamp: Option<Stamp>,
    /// `None` until the server has been seen.
    approved: Option<BTreeMap<Arc<str>, Fingerprint>>,
    is_damaged: bool,
    /// What is on offer and not approved.
    open: BTreeMap<Arc<str>, (Mark, Fingerprint, Bytes)>,
    /// What definitions came to, because the same ones are looked at again and again.
    known: HashMap<Arc<str>, (Bytes, Fingerprint)>,
}

impl Book {
    fn print(&mut self, listed: &Listed) -> Fingerprint {
        let print = match self.known.get(&listed.name) {
            Some((definition, print)) if *definition == listed.definition => *print,
            _ => Fingerprint::of(&listed.definition),
        };
        // The newest of equal ones: a definition keeps the whole answer in memory that it was read from.
        self.known.insert(listed.name.clone(), (listed.definition.clone(), print));
        print
    }

    fn mark(&mut self, listed: &Listed) -> Option<(Mark, Fingerprint)> {
        let print = self.print(listed);
        match self.approved.as_ref().and_then(|approved| approved.get(&listed.name)) {
            Some(approved) if *approved == print => None,
            Some(_) => Some((Mark::Changed, print)),
            None => Some((Mark::New, print)),
        }
    }
}

impl Pins {
    /// Of a server, in a folder; only in mind without one.
    pub(crate) fn of(server: &ServerId, folder: Option<&Path>) -> Self {
        Self { file: folder.map(|folder| folder.join(format!("{server}.json"))), book: Mutex::default() }
    }

    /// As the file says, which another process may have written meanwhile.
    fn book(&self) -> (MutexGuard<'_, Book>, Option<String>) {
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = &self.file else { return (book, None) };
        let stamp = Stamp::of(file);
        if stamp.is_none() || stamp == book.stamp {
            return (book, None);
        }
        book.stamp = stamp;
        let damage = match file::read(file) {
            Ok(Some(tools)) => {
                book.approved = Some(tools.into_iter().map(|(name, tool)| (name, tool.print)).collect());
                book.is_damaged = false;
                None
            }
            Ok(None) => None,
            // Whoever could break the file must not have everything approved by that.
            Err(why) => {
                book.approved = Some(BTreeMap::new());
                book.is_damaged = true;
                Some(format!("`{}` cannot be used: {why}", file.display()))
            }
        };
        (book, damage)
    }

    /// Looks at what a server offers; `all` of it, or what one of its instances does.
    pub(crate) fn meet(&self, listing: &Listing, all: bool) -> Met {
        let (mut book, damage) = self.book();
        let mut met = Met { damage, ..Met::default() };
        if book.approved.is_none() {
            // A server that offers nothing yet has not been seen.
            if listing.tools.is_empty() {
                return met;
            }
            // Backwards: of two tools of one name the first counts.
            let tools = listing.tools.iter().rev();
            let prints = tools.map(|tool| (tool.name.clone(), book.print(tool))).collect();
            book.approved = Some(prints);
            met.is_first = true;
        }
        let mut open = if all || book.open.len() > MOST { BTreeMap::new() } else { book.open.clone() };
        if book.known.len() > listing.tools.len() {
            book.known.clear();
        }
        for tool in &listing.tools {
            match book.mark(tool) {
                Some((mark, print)) => {
                    if book.open.get(&tool.name).is_none_or(|(_, known, _)| *known != print) {
                        met.news.push((tool.name.clone(), mark));
                    }
                    open.insert(tool.name.clone(), (mark, print, Bytes::copy_from_slice(&tool.definition)));
                }
                None => drop(open.remove(&tool.name)),
            }
        }
        book.open = open;
        met
    }

    /// Writes down what a server offered when it was first seen.
    pub(crate) fn save(&self, listing: &Listing) -> std::io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let tool = |tool: &Listed| {
            let (print, definition) = (Fingerprint::of(&tool.definition), kept(&tool.definition));
            (tool.name.clone(), Approved { print, definition })
        };
        // Somebody else may have seen it first.
        match Stamp::of(file) {
            Some(_) => Ok(()),
            None => file::write(file, &listing.tools.iter().rev().map(tool).collect()),
        }
    }

    /// What is wrong with a tool, if anything is.
    pub(crate) fn mark(&self, tool: &Listed) -> Option<Mark> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner).mark(tool).map(|(mark, _)| mark)
    }

    /// Every tool that waits for a person, by name.
    pub(crate) fn open(&self) -> Vec<(Arc<str>, Mark)> {
        let book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        book.open.iter().map(|(name, (mark, ..))| (name.clone(), *mark)).collect()
    }

    /// The same with what was approved before. Reads the file.
    pub(crate) fn unapproved(&self) -> Unapproved {
        let before = self.file.as_ref().and_then(|file| file::read(file).ok().flatten()).unwrap_or_default();
        let (book, _) = self.book();
        let difference =
            |(name, (mark, _, definition)): (&Arc<str>, &(Mark, Fingerprint, Bytes))| Difference {
                tool: name.to_string(),
                mark: *mark,
                before: before.get(name).map(|tool| tool.definition.clone()),
                now: kept(definition),
            };
        Unapproved { tools: book.open.iter().map(difference).collect(), seal: seal(&book) }
    }

    /// Approves what a seal stands for, and says what that was. Writes the file.
    pub(crate) fn approve(&self, server: &ServerId, seen: &str) -> Result<Vec<String>, Error> {
        let (mut book, _) = self.book();
        if seal(&book) != seen {
            let message = format!("what `{server}` offers is not what was shown any more");
            let error = Error::new(ErrorKind::Denied, message).at(server);
            return Err(error.hint(format!("toolcrib approve {server}")));
        }
        if let Some(file) = &self.file {
            let read = file::read(file).ok().flatten().filter(|_| !book.is_damaged);
            let mut tools: Tools = read.unwrap_or_default();
            for (name, (_, print, definition)) in &book.open {
                tools.insert(name.clone(), Approved { print: *print, definition: kept(definition) });
            }
            file::write(file, &tools).map_err(|error| {
                let message = format!("`{}` cannot be written: {error}", file.display());
                Error::new(ErrorKind::Denied, message)
                    .at(server)
                    .hint("see to the folder, then approve again")
            })?;
            book.stamp = Stamp::of(file);
        }
        let open = std::mem::take(&mut book.open);
        let names = open.keys().map(ToString::to_string).collect();
        let prints = open.into_iter().map(|(name, (_, print, _))| (name, print));
        book.approved.get_or_insert_default().extend(prints);
        book.is_damaged = false;
        Ok(names)
    }
}

fn seal(book: &Book) -> String {
    let lines: String = book.open.iter().map(|(name, (_, print, _))| format!("{print} {name}\n")).collect();
    Fingerprint::of_text(&Bytes::from(lines)).to_string()
}

/// The pins of every server of a crib.
#[derive(Debug, Default)]
pub(crate) struct Cabinet {
    folder: Option<PathBuf>,
    by_server: Mutex<HashMap<ServerId, Arc<Pins>>>,
}

impl Cabinet {
    /// In a folder; only in mind without one.
    pub(crate) fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, by_server: Mutex::default() }
    }

    /// A server's. One that lives in this process is the embedder's own, and is pinned only if that is asked for.
    pub(crate) fn of(&self, spec: &ServerSpec) -> Option<Arc<Pins>> {
        if spec.pin == Pinning::Mark && matches!(spec.endpoint, Endpoint::InProcess(_)) {
            return None;
        }
        let mut by_server = self.by_server.lock().unwrap_or_else(PoisonError::into_inner);
        let pins = by_server.entry(spec.id.clone());
        Some(pins.or_insert_with(|| Arc::new(Pins::of(&spec.id, self.folder.as_deref()))).clone())
    }
}

/// What a lease of a server that is held to its pins may be used for.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) pins: Arc<Pins>,
    /// What the very process behind the lease offers.
    pub(crate) listing: Arc<Listing>,
}

impl Held {
    /// Whether a tool is what was approved.
    pub(crate) fn permits(&self, server: &ServerId, tool: &str) -> Result<(), Error> {
        let listed = self.listing.tools.iter().find(|listed| *listed.name == *tool);
        let Some(listed) = listed else {
            return Err(Error::new(ErrorKind::Unknown, format!("Unknown tool: {tool}")).at(server));
        };
        match self.pins.mark(listed) {
            None => Ok(()),
            // Another process may have heard the person.
            Some(_) => match self.pins.book().0.mark(listed) {
                None => Ok(()),
                Some((mark, _)) => Err(withheld(server, tool, mark)),
            },
        }
    }
}

/// The error for a tool that nobody has approved.
pub(crate) fn withheld(server: &ServerId, tool: &str, mark: Mark) -> Error {
    let why = match mark {
        Mark::New => "it is new, and nobody has approved it",
        Mark::Changed => "it is not what was approved",
    };
    let message = format!("`{server}.{tool}` is withheld: {why}");
    Error::new(ErrorKind::Denied, message).at(server).hint(format!("toolcrib approve {server}"))
}
