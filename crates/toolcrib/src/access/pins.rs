//! Pins: the approved definitions of a server's tools, and the tools that differ from them.
//!
//! The tools that a server offers when it is first seen count as approved. From then on only a person approves. What
//! follows from a [`PinStatus`] is decided by the catalog and the lease.
//!
//! The approved tools are in the store; their fingerprints are kept here as well. A store of this process is read again
//! when its value has changed. A store that other processes use is read once, and again when one of them reports a change.

mod approved_tools;
mod fingerprint;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::model::error::{Error, ErrorKind};
use crate::model::hint::Hint;
use crate::model::listing::{ListedItem, Listing};
use crate::model::pin_status::PinDifference;
use crate::model::pin_status::Unapproved;
use crate::model::pin_status::{PinStatus, ToolPinStatus};
use crate::spec::{Endpoint, Pinning, ServerId, ServerSpec};
use crate::store::{MemoryStore, Store, StoreError, StoreKey, StoreKind, StoreNotice, StoreReply};
use crate::util::locks::IgnorePoison as _;
use crate::util::maps::collect_map;
use approved_tools::{ApprovedTool, ApprovedTools, PinFileStamp};
pub(crate) use fingerprint::Fingerprint;
use fingerprint::pinned_members;

/// Unapproved tools that are remembered across partial listings. The bound is for a server that renames its tools in
/// every listing.
const MAX_UNAPPROVED: usize = 1000;

/// The result of checking a listing.
#[derive(Debug, Default)]
pub(crate) struct PinCheck {
    /// Tools that became unapproved with this listing.
    pub(crate) newly_unapproved: Vec<ToolPinStatus>,
    /// Whether the server was seen for the first time, so that its listing is to be saved.
    pub(crate) is_first: bool,
    /// Whether the store must be asked first what is approved, by [`Pins::load`]. Nothing counts as approved until then.
    pub(crate) needs_load: bool,
    /// The reason why the stored pins could not be read, once per change. Nothing counts as approved then.
    pub(crate) read_error: Option<String>,
}

/// The approved tools of one server.
#[derive(Debug)]
pub(crate) struct Pins {
    server: ServerId,
    store: Arc<dyn Store>,
    /// The file that holds the value of the store, if there is one. Its stamp says whether the value has changed.
    file: Option<PathBuf>,
    tasks: TaskTracker,
    state: Mutex<PinState>,
}

#[derive(Debug, Default)]
struct PinState {
    stamp: Option<PinFileStamp>,
    /// The value that was read last from a store in memory, to detect a changed one.
    value: Option<Bytes>,
    /// `None` until the server has been seen.
    approved: Option<BTreeMap<Arc<str>, Fingerprint>>,
    /// The reason why the last value could not be read, until it is reported.
    read_error: Option<String>,
    /// Whether a task loads the approved tools.
    is_loading: bool,
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

    /// Counts nothing as approved.
    fn mark_damaged(&mut self, reason: String) {
        self.approved = Some(BTreeMap::new());
        self.read_error = Some(reason);
    }

    /// Takes over tools that were approved. A tool that has changed since stays unapproved.
    fn approve(&mut self, added: &BTreeMap<Arc<str>, UnapprovedTool>) {
        let approved = self.approved.get_or_insert_default();
        for (name, tool) in added {
            approved.insert(name.clone(), tool.fingerprint);
        }
        let is_other = |name: &Arc<str>, tool: &mut UnapprovedTool| {
            added.get(name).is_none_or(|approved| approved.fingerprint != tool.fingerprint)
        };
        self.unapproved.retain(is_other);
    }

    /// Digest of the names and fingerprints of all unapproved tools.
    fn digest(&self) -> String {
        let line = |(name, tool): (&Arc<str>, &UnapprovedTool)| format!("{} {name}\n", tool.fingerprint);
        let lines: String = self.unapproved.iter().map(line).collect();
        Fingerprint::from_json(&Bytes::from(lines)).to_string()
    }
}

impl Pins {
    fn lock(&self) -> MutexGuard<'_, PinState> {
        self.state.lock().ignore_poison()
    }

    fn key(&self) -> StoreKey<'_> {
        StoreKey::new(StoreKind::Pin, self.server.as_str())
    }

    /// Locks the state after reading a store of this process again, if its value has changed.
    fn lock_and_reload(&self) -> MutexGuard<'_, PinState> {
        let mut state = self.lock();
        if self.store.is_shared() {
            return state;
        }
        if let Some(file) = &self.file {
            let stamp = PinFileStamp::read(file);
            if stamp.is_none() || stamp == state.stamp {
                return state;
            }
            state.stamp = stamp;
        }
        match self.store.get(self.key()) {
            StoreReply::Ready(Ok(Some(value))) => self.apply_value(&mut state, &value),
            StoreReply::Ready(Err(error)) => state.mark_damaged(error.to_string()),
            StoreReply::Ready(Ok(None)) | StoreReply::Pending(_) => {}
        }
        state
    }

    /// Takes over a stored value.
    fn apply_value(&self, state: &mut PinState, value: &Bytes) {
        let is_same = |last: &Bytes| last.as_ptr() == value.as_ptr() && last.len() == value.len();
        if self.file.is_none() && state.value.as_ref().is_some_and(is_same) {
            return;
        }
        if self.file.is_none() && !self.store.is_shared() {
            state.value = Some(value.clone());
        }
        match approved_tools::parse(value) {
            Ok(tools) => {
                let approved: BTreeMap<Arc<str>, Fingerprint> =
                    collect_map(tools.into_iter().map(|(name, tool)| (name, tool.fingerprint)));
                state.unapproved.retain(|name, tool| approved.get(name) != Some(&tool.fingerprint));
                state.approved = Some(approved);
            }
            // Damaging the value must not approve everything.
            Err(reason) => state.mark_damaged(match &self.file {
                Some(file) => format!("cannot read `{}`: {reason}", file.display()),
                None => format!("cannot read the stored pins: {reason}"),
            }),
        }
    }

    /// Reads the approved tools from the store. Returns whether there are any.
    async fn refresh(&self) -> Result<bool, StoreError> {
        let Some(value) = self.store.get(self.key()).wait().await? else { return Ok(false) };
        self.apply_value(&mut self.lock(), &value);
        Ok(true)
    }

    /// Reads the approved tools from a store that other processes use. If there are none, those of `listing` are approved,
    /// unless another process is first.
    pub(crate) async fn load(&self, listing: &Listing) -> Result<(), StoreError> {
        if self.refresh().await? || listing.tools.is_empty() {
            return Ok(());
        }
        let value = approved_tools::encode(&approved_tools::first_seen(listing));
        match self.store.put_if_absent(self.key(), value.clone(), None).wait().await? {
            true => self.apply_value(&mut self.lock(), &value),
            false => {
                self.refresh().await?;
            }
        }
        Ok(())
    }

    /// Returns whether a store that other processes use was not asked yet which tools are approved.
    pub(crate) fn is_unknown(&self) -> bool {
        self.store.is_shared() && self.lock().approved.is_none()
    }

    /// Waits until it is known which tools are approved. Without an answer of the store, none is.
    pub(crate) async fn prepare(&self, listing: &Listing) {
        if self.is_unknown()
            && let Err(error) = self.load(listing).await
        {
            let server = &self.server;
            tracing::warn!(%server, "no tool of it counts as approved: {error}");
        }
    }

    /// Returns `true` unless a task already loads the approved tools. It then must call [`Pins::finish_loading`].
    pub(crate) fn start_loading(&self) -> bool {
        !std::mem::replace(&mut self.lock().is_loading, true)
    }

    pub(crate) fn finish_loading(&self) {
        self.lock().is_loading = false;
    }

    /// Compares a listing with the approved tools. `is_complete` is `false` for the listing of one instance, which does not
    /// say what other instances offer.
    pub(crate) fn check_listing(&self, listing: &Listing, is_complete: bool) -> PinCheck {
        let mut state = self.lock_and_reload();
        let mut result = PinCheck { read_error: state.read_error.take(), ..PinCheck::default() };
        if state.approved.is_none() {
            // A server that offers no tools yet does not count as seen.
            if listing.tools.is_empty() {
                return result;
            }
            if self.store.is_shared() {
                result.needs_load = true;
                return result;
            }
            // In reverse: of two tools with the same name the first counts.
            let tools = listing.tools.iter().rev();
            let approved = collect_map(tools.map(|tool| (tool.name.clone(), state.fingerprint(tool))));
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
                result.newly_unapproved.push(ToolPinStatus::new(tool.name.clone(), status));
            }
            let definition = Bytes::copy_from_slice(&tool.definition);
            unapproved.insert(tool.name.clone(), UnapprovedTool { status, fingerprint, definition });
        }
        state.unapproved = unapproved;
        result
    }

    /// Computes the fingerprints of tools, so that checking a listing with them is cheap.
    pub(crate) fn compute_fingerprints(&self, tools: &[ListedItem]) {
        let computed: Vec<Fingerprint> =
            tools.iter().map(|tool| Fingerprint::from_definition(&tool.definition)).collect();
        let mut state = self.lock();
        if state.fingerprints.len() > tools.len() {
            state.fingerprints.clear();
        }
        for (tool, fingerprint) in tools.iter().zip(computed) {
            state.fingerprints.insert(tool.name.clone(), (tool.definition.clone(), fingerprint));
        }
    }

    /// Stores the tools that a server offered when it was first seen, unless another process has seen it first. Blocks if the
    /// store has files.
    pub(crate) fn save_first_seen(&self, listing: &Listing) -> Result<(), StoreError> {
        let value = approved_tools::encode(&approved_tools::first_seen(listing));
        match self.store.put_if_absent(self.key(), value, None) {
            StoreReply::Ready(saved) => saved.map(drop),
            StoreReply::Pending(_) => Ok(()),
        }
    }

    /// Returns how a tool differs from the approved one, or `None` if it is approved. Does not read the file.
    pub(crate) fn check_tool(&self, tool: &ListedItem) -> Option<PinStatus> {
        self.lock().check(tool).map(|(status, _)| status)
    }

    /// Returns every unapproved tool by name.
    pub(crate) fn unapproved_tools(&self) -> Vec<ToolPinStatus> {
        let state = self.lock();
        state.unapproved.iter().map(|(name, tool)| ToolPinStatus::new(name.clone(), tool.status)).collect()
    }

    /// Returns every unapproved tool with its approved definition.
    pub(crate) async fn differences(&self) -> Result<Unapproved, Error> {
        let stored = self.store.get(self.key()).wait().await;
        let stored = match stored {
            Err(error) if self.store.is_shared() => return Err(self.store_error(&error)),
            stored => stored.ok().flatten(),
        };
        let approved = stored.and_then(|value| approved_tools::parse(&value).ok()).unwrap_or_default();
        let state = self.lock_and_reload();
        let difference = |(name, tool): (&Arc<str>, &UnapprovedTool)| PinDifference {
            tool: name.to_string(),
            status: tool.status,
            approved: approved.get(name).map(|tool| tool.definition.clone()),
            offered: pinned_members(&tool.definition),
        };
        Ok(Unapproved { tools: state.unapproved.iter().map(difference).collect(), digest: state.digest() })
    }

    /// Approves the unapproved tools if `digest` is theirs, and returns their names. Nothing is approved if the store cannot
    /// save it.
    pub(crate) async fn approve(&self, digest: &str) -> Result<Vec<String>, Error> {
        let stored = self.store.get(self.key()).wait().await;
        let stored = match stored {
            Err(error) if self.store.is_shared() => return Err(self.store_error(&error)),
            stored => stored.ok().flatten(),
        };
        let mut tools: ApprovedTools =
            stored.as_ref().and_then(|value| approved_tools::parse(value).ok()).unwrap_or_default();
        let added = {
            let state = self.lock_and_reload();
            if state.digest() != digest {
                return Err(self.changed_error());
            }
            state.unapproved.clone()
        };
        for (name, tool) in &added {
            let definition = pinned_members(&tool.definition);
            tools.insert(name.clone(), ApprovedTool { fingerprint: tool.fingerprint, definition });
        }
        self.write(approved_tools::encode(&tools)).await?;
        self.lock().approve(&added);
        if let Err(error) = self.store.publish(self.key()).wait().await {
            let server = &self.server;
            tracing::warn!(%server, "cannot announce that its tools were approved: {error}");
        }
        Ok(added.keys().map(ToString::to_string).collect())
    }

    /// Replaces the stored value, on a thread where a file may be written.
    async fn write(&self, value: Bytes) -> Result<(), Error> {
        let store = self.store.clone();
        let server = self.server.clone();
        let put = move || store.put(StoreKey::new(StoreKind::Pin, server.as_str()), value, None);
        let reply = match self.file.is_some() {
            true => self.tasks.spawn_blocking(put).await.unwrap_or_else(|error| {
                StoreReply::Ready(Err(StoreError::new(format!("the write was interrupted: {error}"))))
            }),
            false => put(),
        };
        match reply.wait().await {
            Ok(()) => {
                let mut state = self.lock();
                state.stamp = self.file.as_deref().and_then(PinFileStamp::read);
                Ok(())
            }
            Err(error) if self.store.is_shared() => Err(self.store_error(&error)),
            Err(error) => {
                let error = Error::new(ErrorKind::Denied, error.to_string()).with_server(&self.server);
                Err(error.with_hint("make the folder writable, then approve again"))
            }
        }
    }

    fn changed_error(&self) -> Error {
        let server = &self.server;
        let message = format!("the tools of `{server}` have changed since they were shown");
        let error = Error::new(ErrorKind::Denied, message).with_server(server);
        error.with_hint(Hint::ApproveTools { server: server.clone() })
    }

    fn store_error(&self, error: &StoreError) -> Error {
        let server = &self.server;
        let message = format!("the approved tools of `{server}` are not known: {error}");
        Error::new(ErrorKind::StoreUnavailable, message).with_server(server)
    }
}

/// The pins of every server of a crib.
#[derive(Debug)]
pub(crate) struct PinStore {
    store: Arc<dyn Store>,
    /// The folder with the files of the store, if it has any.
    folder: Option<PathBuf>,
    tasks: TaskTracker,
    by_server: Mutex<HashMap<ServerId, Arc<Pins>>>,
}

impl Default for PinStore {
    fn default() -> Self {
        Self::new(Arc::new(MemoryStore::default()), None, TaskTracker::new())
    }
}

impl PinStore {
    /// Creates the pins in a store. `folder` is where the store has its files, if it has any; `tasks` owns what runs in the
    /// background.
    pub(crate) fn new(store: Arc<dyn Store>, folder: Option<PathBuf>, tasks: TaskTracker) -> Self {
        Self { store, folder, tasks, by_server: Mutex::default() }
    }

    /// Returns the pins of a server. An in-process server is the embedder's own code and has pins only if its spec asks
    /// for them.
    pub(crate) fn for_server(&self, spec: &ServerSpec) -> Option<Arc<Pins>> {
        if spec.pin == Pinning::Mark && matches!(spec.endpoint, Endpoint::InProcess(_)) {
            return None;
        }
        let mut by_server = self.by_server.lock().ignore_poison();
        let pins = by_server.entry(spec.id.clone());
        Some(pins.or_insert_with(|| Arc::new(self.open(&spec.id))).clone())
    }

    fn open(&self, server: &ServerId) -> Pins {
        Pins {
            server: server.clone(),
            store: self.store.clone(),
            file: self.folder.as_ref().map(|folder| folder.join(format!("{server}.json"))),
            tasks: self.tasks.clone(),
            state: Mutex::default(),
        }
    }

    /// Reads what others have approved: the pins of one server, or of all. Servers that were not seen here are left out.
    async fn refresh(&self, server: Option<&str>) {
        let pins: Vec<Arc<Pins>> = {
            let by_server = self.by_server.lock().ignore_poison();
            let is_meant = |pins: &&Arc<Pins>| server.is_none_or(|server| pins.server.as_str() == server);
            by_server.values().filter(is_meant).cloned().collect()
        };
        for pins in pins {
            if let Err(error) = pins.refresh().await {
                let server = &pins.server;
                tracing::warn!(%server, "cannot read which of its tools were approved: {error}");
            }
        }
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
    pub(crate) async fn check_call(&self, server: &ServerId, tool: &str) -> Result<(), Error> {
        let listed = self.listing.tools.iter().find(|listed| *listed.name == *tool);
        let Some(listed) = listed else {
            return Err(Error::new(ErrorKind::Unknown, format!("Unknown tool: {tool}")).with_server(server));
        };
        if self.pins.check_tool(listed).is_none() {
            return Ok(());
        }
        // The tool may have been approved through another process. Boxed, because hardly any call gets here.
        if self.pins.store.is_shared() {
            let loaded = Box::pin(self.pins.load(&self.listing)).await;
            loaded.map_err(|error| self.pins.store_error(&error))?;
        }
        match self.pins.lock_and_reload().check(listed) {
            None => Ok(()),
            Some((status, _)) => Err(withheld_error(server, tool, status)),
        }
    }
}

/// Takes over what other cribs on the same store approve, and notifies `changed`, until the pins are dropped or `stop` is
/// cancelled.
pub(crate) async fn watch_pins(
    pins: Weak<PinStore>,
    mut notices: Receiver<StoreNotice>,
    changed: Arc<Notify>,
    stop: CancellationToken,
) {
    loop {
        let notice = tokio::select! {
            notice = notices.recv() => notice,
            () = stop.cancelled() => return,
        };
        let Some(pins) = pins.upgrade() else { return };
        match notice {
            Ok(StoreNotice::Changed(server)) => pins.refresh(Some(&server)).await,
            Ok(StoreNotice::Missed) | Err(RecvError::Lagged(_)) => pins.refresh(None).await,
            Err(RecvError::Closed) => return,
        }
        changed.notify_one();
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
