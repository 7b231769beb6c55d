//! Pins: the approved definitions of a server's tools, and the tools that differ from them.
//!
//! The tools that a server offers when it is first seen count as approved. From then on only a person approves. What
//! follows from a [`PinStatus`] is decided by the catalog and the lease.

mod file;
mod fingerprint;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;

use crate::model::error::{Error, ErrorKind};
use crate::model::hint::Hint;
use crate::model::listing::{ListedItem, Listing};
use crate::model::pin_status::PinDifference;
use crate::model::pin_status::PinStatus;
use crate::model::pin_status::Unapproved;
use crate::spec::{Endpoint, Pinning, ServerId, ServerSpec};
use crate::util::locks::IgnorePoison as _;
use file::{ApprovedTool, ApprovedTools, PinFileStamp};
pub(crate) use fingerprint::Fingerprint;
use fingerprint::pinned_members;

/// Unapproved tools that are remembered across partial listings. The bound is for a server that renames its tools in
/// every listing.
const MAX_UNAPPROVED: usize = 1000;

/// The result of checking a listing.
#[derive(Debug, Default)]
pub(crate) struct PinCheck {
    /// Tools that became unapproved with this listing.
    pub(crate) newly_unapproved: Vec<(Arc<str>, PinStatus)>,
    /// Whether the server was seen for the first time, so that its listing is to be saved.
    pub(crate) is_first: bool,
    /// The reason why the pin file could not be read, once per change of the file. Nothing counts as approved then.
    pub(crate) file_error: Option<String>,
}

/// The approved tools of one server.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    file: Option<PathBuf>,
    state: Mutex<PinState>,
}

#[derive(Debug, Default)]
struct PinState {
    stamp: Option<PinFileStamp>,
    /// `None` until the server has been seen.
    approved: Option<BTreeMap<Arc<str>, Fingerprint>>,
    is_damaged: bool,
    /// Tools that the server offers and that are not approved.
    unapproved: BTreeMap<Arc<str>, UnapprovedTool>,
    /// Fingerprints of definitions, because the same definitions are checked repeatedly.
    fingerprints: HashMap<Arc<str>, (Bytes, Fingerprint)>,
}

#[derive(Debug, Clone)]
struct UnapprovedTool {
    status: PinStatus,
    fingerprint: Fingerprint,
    definition: Bytes,
}

impl PinState {
    fn fingerprint(&mut self, listed: &ListedItem) -> Fingerprint {
        let fingerprint = match self.fingerprints.get(&listed.name) {
            Some((definition, fingerprint)) if *definition == listed.definition => *fingerprint,
            _ => Fingerprint::from_definition(&listed.definition),
        };
        // Replaces an equal definition as well: the old one keeps the buffer of an earlier answer alive.
        self.fingerprints.insert(listed.name.clone(), (listed.definition.clone(), fingerprint));
        fingerprint
    }

    /// Returns how a tool differs from the approved one, with its fingerprint, or `None` if it is approved.
    fn check(&mut self, listed: &ListedItem) -> Option<(PinStatus, Fingerprint)> {
        let fingerprint = self.fingerprint(listed);
        match self.approved.as_ref().and_then(|approved| approved.get(&listed.name)) {
            Some(approved) if *approved == fingerprint => None,
            Some(_) => Some((PinStatus::Changed, fingerprint)),
            None => Some((PinStatus::New, fingerprint)),
        }
    }

    /// Digest of the names and fingerprints of all unapproved tools.
    fn digest(&self) -> String {
        let line = |(name, tool): (&Arc<str>, &UnapprovedTool)| format!("{} {name}\n", tool.fingerprint);
        let lines: String = self.unapproved.iter().map(line).collect();
        Fingerprint::from_json(&Bytes::from(lines)).to_string()
    }
}

impl Pins {
    /// Creates the pins of a server, stored in a folder, or only in memory without one.
    pub(crate) fn new(server: &ServerId, folder: Option<&Path>) -> Self {
        Self { file: folder.map(|folder| folder.join(format!("{server}.json"))), state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, PinState> {
        self.state.lock().ignore_poison()
    }

    /// Locks the state after reading the file again if another process has changed it. The second value says why the file
    /// could not be read.
    fn lock_and_reload(&self) -> (MutexGuard<'_, PinState>, Option<String>) {
        let mut state = self.lock();
        let Some(file) = &self.file else { return (state, None) };
        let stamp = PinFileStamp::read(file);
        if stamp.is_none() || stamp == state.stamp {
            return (state, None);
        }
        state.stamp = stamp;
        let file_error = match file::read(file) {
            Ok(Some(tools)) => {
                let approved = tools.into_iter().map(|(name, tool)| (name, tool.fingerprint));
                state.approved = Some(approved.collect());
                state.is_damaged = false;
                None
            }
            Ok(None) => None,
            // Damaging the file must not approve everything.
            Err(reason) => {
                state.approved = Some(BTreeMap::new());
                state.is_damaged = true;
                Some(format!("cannot read `{}`: {reason}", file.display()))
            }
        };
        (state, file_error)
    }

    /// Compares a listing with the approved tools. `is_complete` is `false` for the listing of one instance, which does not
    /// say what other instances offer.
    pub(crate) fn check_listing(&self, listing: &Listing, is_complete: bool) -> PinCheck {
        let (mut state, file_error) = self.lock_and_reload();
        let mut result = PinCheck { file_error, ..PinCheck::default() };
        if state.approved.is_none() {
            // A server that offers no tools yet does not count as seen.
            if listing.tools.is_empty() {
                return result;
            }
            // In reverse: of two tools with the same name the first counts.
            let tools = listing.tools.iter().rev();
            let approved = tools.map(|tool| (tool.name.clone(), state.fingerprint(tool))).collect();
            state.approved = Some(approved);
            result.is_first = true;
        }
        let mut unapproved = match is_complete || state.unapproved.len() > MAX_UNAPPROVED {
            true => BTreeMap::new(),
            false => state.unapproved.clone(),
        };
        if state.fingerprints.len() > listing.tools.len() {
            state.fingerprints.clear();
        }
        for tool in &listing.tools {
            let Some((status, fingerprint)) = state.check(tool) else {
                unapproved.remove(&tool.name);
                continue;
            };
            if state.unapproved.get(&tool.name).is_none_or(|known| known.fingerprint != fingerprint) {
                result.newly_unapproved.push((tool.name.clone(), status));
            }
            let definition = Bytes::copy_from_slice(&tool.definition);
            unapproved.insert(tool.name.clone(), UnapprovedTool { status, fingerprint, definition });
        }
        state.unapproved = unapproved;
        result
    }

    /// Writes the tools that a server offered when it was first seen.
    pub(crate) fn save_first_seen(&self, listing: &Listing) -> std::io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        // Another process may have seen the server first.
        if PinFileStamp::read(file).is_some() {
            return Ok(());
        }
        let approved = |tool: &ListedItem| {
            let fingerprint = Fingerprint::from_definition(&tool.definition);
            let definition = pinned_members(&tool.definition);
            (tool.name.clone(), ApprovedTool { fingerprint, definition })
        };
        file::write(file, &listing.tools.iter().rev().map(approved).collect())
    }

    /// Returns how a tool differs from the approved one, or `None` if it is approved. Does not read the file.
    pub(crate) fn check_tool(&self, tool: &ListedItem) -> Option<PinStatus> {
        self.lock().check(tool).map(|(status, _)| status)
    }

    /// Returns every unapproved tool by name.
    pub(crate) fn unapproved_tools(&self) -> Vec<(Arc<str>, PinStatus)> {
        self.lock().unapproved.iter().map(|(name, tool)| (name.clone(), tool.status)).collect()
    }

    /// Returns every unapproved tool with its approved definition. Reads the file.
    pub(crate) fn differences(&self) -> Unapproved {
        let approved =
            self.file.as_ref().and_then(|file| file::read(file).ok().flatten()).unwrap_or_default();
        let (state, _) = self.lock_and_reload();
        let difference = |(name, tool): (&Arc<str>, &UnapprovedTool)| PinDifference {
            tool: name.to_string(),
            status: tool.status,
            approved: approved.get(name).map(|tool| tool.definition.clone()),
            offered: pinned_members(&tool.definition),
        };
        Unapproved { tools: state.unapproved.iter().map(difference).collect(), digest: state.digest() }
    }

    /// Approves the unapproved tools if `digest` is theirs, and returns their names. Writes the file.
    pub(crate) fn approve(&self, server: &ServerId, digest: &str) -> Result<Vec<String>, Error> {
        let (mut state, _) = self.lock_and_reload();
        if state.digest() != digest {
            let message = format!("the tools of `{server}` have changed since they were shown");
            let error = Error::new(ErrorKind::Denied, message).with_server(server);
            return Err(error.with_hint(Hint::ApproveTools { server: server.clone() }));
        }
        if let Some(file) = &self.file {
            let stored = file::read(file).ok().flatten().filter(|_| !state.is_damaged);
            let mut tools: ApprovedTools = stored.unwrap_or_default();
            for (name, tool) in &state.unapproved {
                let definition = pinned_members(&tool.definition);
                tools.insert(name.clone(), ApprovedTool { fingerprint: tool.fingerprint, definition });
            }
            file::write(file, &tools).map_err(|error| {
                let message = format!("cannot write `{}`: {error}", file.display());
                let error = Error::new(ErrorKind::Denied, message).with_server(server);
                error.with_hint("make the folder writable, then approve again")
            })?;
            state.stamp = PinFileStamp::read(file);
        }
        let unapproved = std::mem::take(&mut state.unapproved);
        let names = unapproved.keys().map(ToString::to_string).collect();
        let approved = unapproved.into_iter().map(|(name, tool)| (name, tool.fingerprint));
        state.approved.get_or_insert_default().extend(approved);
        state.is_damaged = false;
        Ok(names)
    }
}

/// The pins of every server of a crib.
#[derive(Debug, Default)]
pub(crate) struct PinStore {
    folder: Option<PathBuf>,
    by_server: Mutex<HashMap<ServerId, Arc<Pins>>>,
}

impl PinStore {
    /// Creates a store in a folder, or only in memory without one.
    pub(crate) fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, by_server: Mutex::default() }
    }

    /// Returns the pins of a server. An in-process server is the embedder's own code and has pins only if its spec asks
    /// for them.
    pub(crate) fn for_server(&self, spec: &ServerSpec) -> Option<Arc<Pins>> {
        if spec.pin == Pinning::Mark && matches!(spec.endpoint, Endpoint::InProcess(_)) {
            return None;
        }
        let mut by_server = self.by_server.lock().ignore_poison();
        let pins = by_server.entry(spec.id.clone());
        Some(pins.or_insert_with(|| Arc::new(Pins::new(&spec.id, self.folder.as_deref()))).clone())
    }
}

/// The pins that calls through a lease are checked against, for a server with strict pinning.
#[derive(Debug, Clone)]
pub(crate) struct PinnedTools {
    pub(crate) pins: Arc<Pins>,
    /// The listing of the process behind the lease.
    pub(crate) listing: Arc<Listing>,
}

impl PinnedTools {
    /// Fails unless the tool is approved.
    pub(crate) fn check_call(&self, server: &ServerId, tool: &str) -> Result<(), Error> {
        let listed = self.listing.tools.iter().find(|listed| *listed.name == *tool);
        let Some(listed) = listed else {
            return Err(Error::new(ErrorKind::Unknown, format!("Unknown tool: {tool}")).with_server(server));
        };
        if self.pins.check_tool(listed).is_none() {
            return Ok(());
        }
        // The tool may have been approved through another process.
        match self.pins.lock_and_reload().0.check(listed) {
            None => Ok(()),
            Some((status, _)) => Err(withheld_error(server, tool, status)),
        }
    }
}

/// Returns the error for a call of an unapproved tool.
pub(crate) fn withheld_error(server: &ServerId, tool: &str, status: PinStatus) -> Error {
    let reason = match status {
        PinStatus::New => "it is new and not approved",
        PinStatus::Changed => "its definition has changed since it was approved",
    };
    let message = format!("`{server}.{tool}` is withheld: {reason}");
    let hint = Hint::ApproveTools { server: server.clone() };
    Error::new(ErrorKind::Denied, message).with_server(server).with_hint(hint)
}
