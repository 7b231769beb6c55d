//! Pins: the approved definitions of a server's tools, prompts, resources and templates, its approved instructions, and
//! what differs from them.
//!
//! What a server offers when it is first seen counts as approved. From then on only a person approves. What
//! follows from a [`PinStatus`] is decided by the catalog and the lease.
//!
//! The approved items are in the store; their fingerprints are kept here as well. A store of this process is read again
//! when its value has changed. A store that other processes use is read once, and again when one of them reports a change.

mod approved_items;
mod fingerprint;
mod pin_state;
mod pinned_items;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use bytes::Bytes;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::model::error::{Error, ErrorKind};
use crate::model::hint::Hint;
use crate::model::listing::{ListedItem, Listing};
use crate::model::pin_status::{PinDifference, PinStatus, PinnedKind, ToolPinStatus, Unapproved};
use crate::protocol::list_kind::ListKind;
use crate::spec::{Endpoint, Pinning, ServerId, ServerSpec};
use crate::store::{MemoryStore, Store, StoreError, StoreKey, StoreKind, StoreNotice, StoreReply};
use crate::util::change_counter::ChangeCounter;
use crate::util::locks::IgnorePoison as _;
use approved_items::{ApprovedItem, ApprovedItems, OfferedItem, PinFileStamp, offered_items};
pub(crate) use fingerprint::Fingerprint;
use fingerprint::{ItemFingerprint, pinned_members};
use pin_state::{ItemKey, PinState, UnapprovedItem, is_same_slice};
pub(crate) use pinned_items::{PinnedItems, withheld_error};

/// Unapproved items that are remembered across partial listings. The bound is for a server that renames its tools in
/// every listing.
const MAX_UNAPPROVED: usize = 1000;
/// Attempts to change a stored value that others change at the same time.
const MAX_WRITE_ATTEMPTS: usize = 16;

/// The result of checking a listing.
#[derive(Debug, Default)]
pub(crate) struct PinCheck {
    /// Items that became unapproved with this listing.
    pub(crate) newly_unapproved: Vec<ToolPinStatus>,
    /// Whether the server, or a kind of its items, was seen for the first time, so that its listing is to be saved.
    pub(crate) is_first: bool,
    /// Whether the store must be asked first what is approved, by [`Pins::load`]. Nothing counts as approved until then.
    pub(crate) needs_load: bool,
    /// The reason why the stored pins could not be read, once per change. Nothing counts as approved then.
    pub(crate) read_error: Option<String>,
}

/// The approved items of one server.
#[derive(Debug)]
pub(crate) struct Pins {
    server: ServerId,
    store: Arc<dyn Store>,
    /// The file that holds the value of the store, if there is one. Its stamp says whether the value has changed.
    file: Option<PathBuf>,
    tasks: TaskTracker,
    state: Mutex<PinState>,
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
        let is_last = |last: &Bytes| is_same_slice(last, value);
        if self.file.is_none() && state.value.as_ref().is_some_and(is_last) {
            return;
        }
        if self.file.is_none() && !self.store.is_shared() {
            state.value = Some(value.clone());
        }
        match approved_items::parse(value) {
            Ok(items) => {
                state.last_checked = None;
                let approved = items.map(|item| item.fingerprint);
                state.unapproved.retain(|key, item| {
                    let known = approved.get(key.kind, &key.name);
                    known.is_none_or(|known| !known.matches(item.fingerprint))
                });
                state.set_approved(approved);
            }
            // Damaging the value must not approve everything.
            Err(reason) => state.mark_damaged(match &self.file {
                Some(file) => format!("cannot read `{}`: {reason}", file.display()),
                None => format!("cannot read the stored pins: {reason}"),
            }),
        }
    }

    /// Reads the approved items from the store. Returns whether there are any.
    async fn refresh(&self) -> Result<bool, StoreError> {
        let Some(value) = self.store.get(self.key()).wait().await? else { return Ok(false) };
        self.apply_value(&mut self.lock(), &value);
        Ok(true)
    }

    /// Reads the approved items from a store that other processes use. If there are none, those of `listing` are approved,
    /// unless another process is first.
    pub(crate) async fn load(&self, listing: &Listing) -> Result<(), StoreError> {
        if self.refresh().await? {
            return self.complete_stored(listing).await;
        }
        if !has_items(listing) {
            return Ok(());
        }
        let value = self.encode_first_seen(listing);
        match self.store.put_if_absent(self.key(), value.clone(), None).wait().await? {
            true => self.apply_value(&mut self.lock(), &value),
            false => {
                self.refresh().await?;
            }
        }
        Ok(())
    }

    /// Adds to the stored value what an earlier release did not pin. A value that another process changes meanwhile is read
    /// again, so that no approval is lost.
    async fn complete_stored(&self, listing: &Listing) -> Result<(), StoreError> {
        for _ in 0..MAX_WRITE_ATTEMPTS {
            let Some(stored) = self.store.get(self.key()).wait().await? else { return Ok(()) };
            let completed = complete_value(&stored, listing);
            let is_stored = match &completed {
                Some(value) => self.store.replace(self.key(), &stored, value.clone(), None).wait().await?,
                None => true,
            };
            if is_stored {
                self.apply_value(&mut self.lock(), &completed.unwrap_or(stored));
                return Ok(());
            }
        }
        Err(changed_too_often())
    }

    /// Returns whether a store that other processes use was not asked yet which items are approved.
    pub(crate) fn is_unknown(&self) -> bool {
        self.store.is_shared() && !self.lock().is_seen()
    }

    /// Waits until it is known which items are approved. Without an answer of the store, none is.
    pub(crate) async fn prepare(&self, listing: &Listing) {
        if self.is_unknown()
            && let Err(error) = self.load(listing).await
        {
            let server = &self.server;
            tracing::warn!(%server, "nothing of it counts as approved: {error}");
        }
    }

    /// Returns `true` unless a task already loads the approved items. It then must call [`Pins::finish_loading`].
    pub(crate) fn start_loading(&self) -> bool {
        !std::mem::replace(&mut self.lock().is_loading, true)
    }

    pub(crate) fn finish_loading(&self) {
        self.lock().is_loading = false;
    }

    /// Compares a listing with the approved items. `is_complete` is `false` for the listing of one instance, which does not
    /// say what other instances offer. Returns `None` if it is the complete listing that was compared last and the result is
    /// the same: a catalog is built from the listings of all servers when one of them changes.
    pub(crate) fn check_changed_listing(
        &self,
        listing: &Arc<Listing>,
        is_complete: bool,
    ) -> Option<PinCheck> {
        let mut state = self.lock_and_reload();
        let last = state.last_checked.take();
        if is_complete && last.as_ref().is_some_and(|last| Arc::ptr_eq(last, listing)) {
            state.last_checked = last;
            return None;
        }
        let check = self.compare(&mut state, listing, is_complete);
        state.last_checked = (is_complete && !check.needs_load).then(|| listing.clone());
        Some(check)
    }

    fn compare(&self, state: &mut PinState, listing: &Arc<Listing>, is_complete: bool) -> PinCheck {
        let mut result = PinCheck { read_error: state.read_error.take(), ..PinCheck::default() };
        if !state.is_seen() {
            // A server that offers nothing yet does not count as seen.
            if !has_items(listing) {
                return result;
            }
            if self.store.is_shared() {
                result.needs_load = true;
                return result;
            }
            if is_complete && approved_items::is_approved_as_first(listing) {
                state.approve_first(listing);
                result.is_first = true;
                return result;
            }
            state.set_approved(approved_items::PinnedSections::default());
        }
        let offered: Vec<OfferedItem> = offered_items(listing).collect();
        let is_unseen = state.approved().is_some_and(|approved| approved.has_unseen(listing));
        match self.store.is_shared() {
            true => result.needs_load = is_unseen,
            false => result.is_first = state.complete(listing, &offered),
        }
        let mut unapproved = match is_complete || state.unapproved.len() > MAX_UNAPPROVED {
            true => BTreeMap::new(),
            false => state.unapproved.clone(),
        };
        state.forget_fingerprints(&offered);
        for item in offered {
            let key = ItemKey { kind: item.kind, name: item.name.clone() };
            let Some((status, fingerprint)) = state.check(&item) else {
                unapproved.remove(&key);
                continue;
            };
            if state.unapproved.get(&key).is_none_or(|known| known.fingerprint != fingerprint) {
                result.newly_unapproved.push(ToolPinStatus::new(item.name, status).with_kind(item.kind));
            }
            let definition = Bytes::copy_from_slice(&item.definition);
            unapproved.insert(key, UnapprovedItem { status, fingerprint, definition });
        }
        state.unapproved = unapproved;
        result
    }

    /// Returns whether the next listing is the first one of the server, which is approved without comparing it.
    pub(crate) fn awaits_first_listing(&self) -> bool {
        !self.store.is_shared() && !self.lock_and_reload().is_seen()
    }

    /// Returns the number of approved items whose fingerprints are not computed yet.
    pub(crate) fn uncompared_items(&self) -> usize {
        self.lock().uncompared_first().map_or(0, |first| offered_items(first).count())
    }

    /// Computes the fingerprints of all items, and those of a first listing that has none yet, so that checking a listing with them is
    /// cheap.
    pub(crate) fn compute_fingerprints(&self, listing: &Listing) {
        self.compute_first_fingerprints();
        self.add_fingerprints(listing);
    }

    /// Computes the fingerprints of a first listing that has none yet.
    fn compute_first_fingerprints(&self) {
        let first = self.lock().uncompared_first().cloned();
        if let Some(first) = first {
            self.add_fingerprints(&first);
            self.lock().approved();
        }
    }

    /// Computes the fingerprints of all items without holding the lock.
    fn add_fingerprints(&self, listing: &Listing) {
        let offered: Vec<OfferedItem> = offered_items(listing).collect();
        let compute = |item: &OfferedItem| ItemFingerprint::from_definition(item.kind, &item.definition);
        let computed: Vec<ItemFingerprint> = offered.iter().map(compute).collect();
        let mut state = self.lock();
        state.forget_fingerprints(&offered);
        for (item, fingerprint) in offered.into_iter().zip(computed) {
            state.add_fingerprint(item, fingerprint);
        }
    }

    /// Stores what a server offered when it was first seen, unless another process has seen it first. To a value of an
    /// earlier release, what that did not pin is added. Blocks if the store has files.
    pub(crate) fn save_first_seen(&self, listing: &Listing) -> Result<(), StoreError> {
        for _ in 0..MAX_WRITE_ATTEMPTS {
            let StoreReply::Ready(stored) = self.store.get(self.key()) else { return Ok(()) };
            let reply = match stored? {
                None => self.put_first_seen(listing),
                Some(stored) => {
                    let Some(value) = complete_value(&stored, listing) else { return Ok(()) };
                    self.store.replace(self.key(), &stored, value, None)
                }
            };
            match reply {
                StoreReply::Ready(Ok(false)) => {}
                StoreReply::Ready(saved) => return saved.map(drop),
                StoreReply::Pending(_) => return Ok(()),
            }
        }
        Err(changed_too_often())
    }

    /// Stores the items of a server's first listing, unless there is a value. They are the approved ones here already, so the
    /// file is not read again.
    fn put_first_seen(&self, listing: &Listing) -> StoreReply<Result<bool, StoreError>> {
        self.compute_first_fingerprints();
        let reply = self.store.put_if_absent(self.key(), self.encode_first_seen(listing), None);
        if matches!(reply, StoreReply::Ready(Ok(true))) {
            self.lock().stamp = self.file.as_deref().and_then(PinFileStamp::read);
        }
        reply
    }

    /// Returns the items of a server's first listing in their stored form. Most fingerprints are known already.
    fn encode_first_seen(&self, listing: &Listing) -> Bytes {
        let items = approved_items::first_seen(listing, |offered| self.lock().fingerprint(offered));
        approved_items::encode(&items)
    }

    /// Returns how an item differs from the approved one, or `None` if it is approved. Does not read the file.
    pub(crate) fn check_item(&self, list: ListKind, item: &ListedItem) -> Option<PinStatus> {
        self.lock().check(&offered_item(list, item)).map(|(status, _)| status)
    }

    /// Returns whether the instructions of a listing are not approved.
    pub(crate) fn has_unapproved_instructions(&self, listing: &Listing) -> bool {
        let mut offered = offered_items(listing).filter(|item| item.kind == PinnedKind::Instructions);
        offered.next().is_some_and(|item| self.lock().check(&item).is_some())
    }

    /// Returns every unapproved item by kind and name.
    pub(crate) fn unapproved_items(&self) -> Vec<ToolPinStatus> {
        let state = self.lock();
        let status = |(key, item): (&ItemKey, &UnapprovedItem)| {
            ToolPinStatus::new(key.name.clone(), item.status).with_kind(key.kind)
        };
        state.unapproved.iter().map(status).collect()
    }

    /// Returns every unapproved item with its approved definition.
    pub(crate) async fn differences(&self) -> Result<Unapproved, Error> {
        let stored = self.store.get(self.key()).wait().await;
        let stored = match stored {
            Err(error) if self.store.is_shared() => return Err(self.store_error(&error)),
            stored => stored.ok().flatten(),
        };
        let approved = stored.and_then(|value| approved_items::parse(&value).ok()).unwrap_or_default();
        let state = self.lock_and_reload();
        let difference = |(key, item): (&ItemKey, &UnapprovedItem)| PinDifference {
            kind: key.kind,
            tool: key.name.to_string(),
            status: item.status,
            approved: approved.get(key.kind, &key.name).map(|item| item.definition.clone()),
            offered: pinned_members(key.kind, &item.definition),
        };
        Ok(Unapproved { tools: state.unapproved.iter().map(difference).collect(), digest: state.digest() })
    }

    /// Approves the unapproved items if `digest` is theirs, and returns their names. Nothing is approved if the store cannot
    /// save it.
    pub(crate) async fn approve(&self, digest: &str) -> Result<Vec<String>, Error> {
        let added = self.store_approval(digest).await?;
        self.lock().approve(&added);
        if let Err(error) = self.store.publish(self.key()).wait().await {
            let server = &self.server;
            tracing::warn!(%server, "cannot announce that its definitions were approved: {error}");
        }
        Ok(added.keys().map(|key| key.name.to_string()).collect())
    }

    /// Adds the unapproved items to the stored value if `digest` is theirs, and returns them.
    async fn store_approval(&self, digest: &str) -> Result<BTreeMap<ItemKey, UnapprovedItem>, Error> {
        for _ in 0..MAX_WRITE_ATTEMPTS {
            let stored = match self.store.get(self.key()).wait().await {
                Err(error) if self.store.is_shared() => return Err(self.store_error(&error)),
                stored => stored.ok().flatten(),
            };
            let mut items: ApprovedItems =
                stored.as_ref().and_then(|value| approved_items::parse(value).ok()).unwrap_or_default();
            let added = {
                let state = self.lock_and_reload();
                if state.digest() != digest {
                    return Err(self.changed_error());
                }
                state.unapproved.clone()
            };
            for (key, item) in &added {
                let approved = ApprovedItem::new(key.kind, &item.definition, item.fingerprint);
                items.insert(key.kind, key.name.clone(), approved);
            }
            if self.write(stored, approved_items::encode(&items)).await? {
                return Ok(added);
            }
        }
        Err(self.store_error(&changed_too_often()))
    }

    /// Replaces the value that was read, on a thread where a file may be written. Returns `false` if it has changed since.
    async fn write(&self, stored: Option<Bytes>, value: Bytes) -> Result<bool, Error> {
        let store = self.store.clone();
        let server = self.server.clone();
        let put = move || {
            let key = StoreKey::new(StoreKind::Pin, server.as_str());
            match stored {
                Some(stored) => store.replace(key, &stored, value, None),
                None => store.put(key, value, None).map(|saved| saved.map(|()| true)),
            }
        };
        let reply = match self.file.is_some() {
            true => self.tasks.spawn_blocking(put).await.unwrap_or_else(|error| {
                StoreReply::Ready(Err(StoreError::new(format!("the write was interrupted: {error}"))))
            }),
            false => put(),
        };
        match reply.wait().await {
            Ok(false) => Ok(false),
            Ok(true) => {
                let mut state = self.lock();
                state.stamp = self.file.as_deref().and_then(PinFileStamp::read);
                Ok(true)
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
        let message = format!("the definitions of `{server}` have changed since they were shown");
        let error = Error::new(ErrorKind::Denied, message).with_server(server);
        error.with_hint(Hint::ApproveTools { server: server.clone() })
    }

    fn store_error(&self, error: &StoreError) -> Error {
        let server = &self.server;
        let message = format!("the approved definitions of `{server}` are not known: {error}");
        Error::new(ErrorKind::StoreUnavailable, message).with_server(server)
    }
}

/// Returns a stored value with what an earlier release did not pin; `None` if nothing is missing or it cannot be read.
fn complete_value(stored: &Bytes, listing: &Listing) -> Option<Bytes> {
    let items = approved_items::parse(stored).ok()?;
    let mut completed = items.clone();
    approved_items::complete(&mut completed, listing);
    (completed != items).then(|| approved_items::encode(&completed))
}

fn changed_too_often() -> StoreError {
    StoreError::new("the approved definitions were changed by other processes again and again")
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
                tracing::warn!(%server, "cannot read which of its definitions were approved: {error}");
            }
        }
    }
}

fn offered_item(list: ListKind, item: &ListedItem) -> OfferedItem {
    let kind = approved_items::kind_of_list(list);
    OfferedItem { kind, name: item.name.clone(), definition: item.definition.clone() }
}

/// Returns whether a listing has any items. Instructions alone do not count.
fn has_items(listing: &Listing) -> bool {
    ListKind::ALL.into_iter().any(|list| !listing.items(list).is_empty())
}

/// Takes over what other cribs on the same store approve, and reports that to `changes`, until the pins are dropped or `stop` is
/// cancelled.
pub(crate) async fn watch_pins(
    pins: Weak<PinStore>,
    mut notices: Receiver<StoreNotice>,
    changes: Arc<ChangeCounter>,
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
        changes.report();
    }
}
