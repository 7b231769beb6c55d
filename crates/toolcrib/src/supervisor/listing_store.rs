//! The last known listing of each server, in memory and on disk, so that a sleeping server can be listed.
//!
//! There is one file per server and spec digest. A file that cannot be read or written costs a listing, never a call.

mod file;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::model::instance_key::InstanceKey;
use crate::model::listing::Listing;
use crate::model::spoken_eras::SpokenEras;
use crate::protocol::era::capabilities::{CREATE_MESSAGE, ClientCapabilities, ELICIT, LIST_ROOTS};
use crate::protocol::versions::{Era, Revision};
use crate::spec::{ServerSpec, TransportKind};
use crate::util::locks::IgnorePoison as _;

/// The name of the HTTP+SSE transport.
const SSE: &str = TransportKind::Sse.as_str();

/// The requests that a server sends to clients.
const QUESTIONS: [&str; 3] = [CREATE_MESSAGE, ELICIT, LIST_ROOTS];

/// The content of a file.
#[derive(Debug, PartialEq)]
pub(crate) struct SavedListing {
    pub(crate) known: KnownListing,
    pub(crate) eras: SpokenEras,
    /// The first request that the server was seen to send during a call.
    pub(crate) asks: Option<&'static str>,
    by_capabilities: ListingsByCapabilities,
}

/// What was listed to clients with certain capabilities; `None` if that was the listing of the server. See
/// [`ClientCapabilities::to_bits`].
type ListingsByCapabilities = BTreeMap<u8, Option<Arc<Listing>>>;

/// A server's listing together with the facts from its handshake.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct KnownListing {
    /// The protocol revision the server spoke.
    pub(crate) revision: Revision,
    /// True if the server speaks HTTP+SSE.
    pub(crate) is_legacy_sse: bool,
    pub(crate) listing: Arc<Listing>,
}

impl KnownListing {
    /// Returns the transport that the server turned out to have, if that is not the declared one.
    pub(crate) fn transport(&self) -> Option<&'static str> {
        self.is_legacy_sse.then_some(SSE)
    }
}

/// The listing of one server, shared by its instances. Nothing is written if there is no folder or the server runs in
/// this process.
#[derive(Debug, Clone)]
pub(crate) struct ListingStore {
    file: Option<PathBuf>,
    shared: Arc<Mutex<SharedListing>>,
    /// The [`SpokenEras`] of the server, as bits.
    eras: Arc<AtomicU8>,
    /// The position in [`QUESTIONS`] of the first request that the server was seen to send during a call, plus one; 0 if it was
    /// not seen to send any.
    asks: Arc<AtomicU8>,
}

/// The listing of a server across all its instances.
#[derive(Debug, Default)]
struct SharedListing {
    base: Option<KnownListing>,
    /// True once the file has been read, or found missing.
    is_loaded: bool,
    /// The era in which the server exited without a word. It may have crashed, so this is not saved.
    exited_in: Option<Era>,
    /// True if an instance has sent the base since this process started, so that it does not come from disk.
    is_confirmed: bool,
    /// The shared instance that sent the base, while it runs.
    source: Option<InstanceKey>,
    announced: Option<AnnouncedChange>,
    by_capabilities: ListingsByCapabilities,
}

/// A listing change that one instance has announced. It applies while that instance runs.
#[derive(Debug)]
struct AnnouncedChange {
    instance: InstanceKey,
    listing: KnownListing,
}

impl SharedListing {
    fn current(&self) -> Option<&KnownListing> {
        self.announced.as_ref().map(|change| &change.listing).or(self.base.as_ref())
    }

    fn remove_announced(&mut self, key: &InstanceKey) -> bool {
        self.announced.take_if(|change| change.instance == *key).is_some()
    }
}

impl ListingStore {
    pub(crate) fn new(spec: &ServerSpec, folder: Option<&Path>) -> Self {
        let file = folder
            .zip(spec.digest())
            .map(|(folder, digest)| folder.join(format!("{}-{}.json", spec.id, digest.as_str())));
        Self { file, shared: Arc::default(), eras: Arc::default(), asks: Arc::default() }
    }

    /// Returns the eras that the server is known to speak.
    pub(crate) fn eras(&self) -> SpokenEras {
        SpokenEras::from_bits(self.eras.load(Ordering::Relaxed))
    }

    /// Returns the first request that the server was seen to send to a client during a call.
    pub(crate) fn asks(&self) -> Option<&'static str> {
        QUESTIONS.get(usize::from(self.asks.load(Ordering::Relaxed)).checked_sub(1)?).copied()
    }

    /// Records that the server sent this request during a call, and returns whether it is the first one.
    pub(crate) fn record_question(&self, method: &str) -> bool {
        let position = QUESTIONS.iter().zip(1..).find(|(question, _)| **question == method);
        let recorded = position.map(|(_, position)| {
            self.asks.compare_exchange(0, position, Ordering::Relaxed, Ordering::Relaxed)
        });
        matches!(recorded, Some(Ok(_)))
    }

    /// Records whether the server speaks an era, and returns whether that was not known.
    pub(crate) fn record_era(&self, era: Era, speaks: bool) -> bool {
        let mut shared = self.lock();
        shared.exited_in.take_if(|exited_in| *exited_in == era);
        self.change_eras(&shared, era, speaks)
    }

    /// Records that the server exited without a word when an era was tried, and returns whether it was not known that it
    /// does not speak it. This is forgotten with the process.
    pub(crate) fn record_exit_in(&self, era: Era) -> bool {
        let mut shared = self.lock();
        if self.eras().speaks(era) != Some(false) {
            shared.exited_in = Some(era);
        }
        self.change_eras(&shared, era, false)
    }

    fn change_eras(&self, _held: &MutexGuard<'_, SharedListing>, era: Era, speaks: bool) -> bool {
        let before = self.eras();
        self.eras.store(before.with(era, speaks).to_bits(), Ordering::Relaxed);
        before.speaks(era) != Some(speaks)
    }

    /// Forgets the eras that the server speaks.
    pub(crate) fn forget_eras(&self) {
        let mut shared = self.lock();
        shared.exited_in = None;
        self.eras.store(SpokenEras::default().to_bits(), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, SharedListing> {
        self.shared.lock().ignore_poison()
    }

    /// Returns the current listing and loads it from disk if needed.
    pub(crate) fn get(&self) -> Option<KnownListing> {
        let mut shared = self.lock();
        if shared.base.is_none() && !shared.is_loaded {
            shared.is_loaded = true;
            let saved = self.load();
            if let Some(saved) = &saved {
                self.eras.store(saved.eras.to_bits(), Ordering::Relaxed);
                if let Some(method) = saved.asks {
                    self.record_question(method);
                }
                shared.by_capabilities.clone_from(&saved.by_capabilities);
            }
            shared.base = saved.map(|saved| saved.known);
        }
        shared.current().cloned()
    }

    /// Records the listing of an instance whose previous listing was `previous`, and returns the server's listing if
    /// that has changed.
    ///
    /// A listing may depend on the client, so an instance that lists less or something else on its start changes
    /// nothing. It does so only by announcing a change, only for the lists that changed, and only while it runs.
    pub(crate) fn record(
        &self,
        key: &InstanceKey,
        known: KnownListing,
        previous: Option<&KnownListing>,
        is_change: bool,
    ) -> Option<KnownListing> {
        let mut shared = self.lock();
        let before = shared.current().cloned();
        // Otherwise what another instance announced would become the change of this one.
        if is_change && !key.is_shared() && previous.is_some_and(|previous| previous.listing == known.listing)
        {
            return None;
        }
        match (&before, previous) {
            (Some(current), Some(previous)) if is_change && !key.is_shared() => {
                let listing = Arc::new(current.listing.with_changed_lists(&previous.listing, &known.listing));
                let listing = KnownListing { listing, ..known };
                shared.announced = Some(AnnouncedChange { instance: key.clone(), listing });
            }
            _ => {
                shared.remove_announced(key);
                let base = shared.base.as_ref();
                let is_covered = |base: &KnownListing| {
                    shared.is_confirmed && base.listing.is_known() || base.listing.covers(&known.listing)
                };
                let keeps_base = match key.is_shared() {
                    // The connection for the other era has listed the server, and runs.
                    true => shared.source.as_ref().is_some_and(|source| source != key),
                    false => base.is_some_and(is_covered),
                };
                if !keeps_base {
                    shared.base = Some(known);
                    shared.is_confirmed = true;
                    shared.source = key.is_shared().then(|| key.clone());
                }
            }
        }
        shared.current().filter(|current| before.as_ref() != Some(current)).cloned()
    }

    /// Returns the listing that clients with these capabilities are shown: what was listed to such a client, if that is known.
    pub(crate) fn shown_to(&self, capabilities: Option<&ClientCapabilities>) -> Option<KnownListing> {
        let known = self.get()?;
        let listing = capabilities.and_then(|capabilities| self.listing_for(capabilities));
        Some(KnownListing { listing: listing.unwrap_or(known.listing.clone()), ..known })
    }

    /// Returns what was listed to clients with these capabilities, if it differs from the listing of the server.
    pub(crate) fn listing_for(&self, capabilities: &ClientCapabilities) -> Option<Arc<Listing>> {
        self.lock().by_capabilities.get(&capabilities.to_bits()).cloned().flatten()
    }

    /// Returns whether the server was listed to a client with these capabilities.
    pub(crate) fn is_listed_for(&self, capabilities: &ClientCapabilities) -> bool {
        self.lock().by_capabilities.contains_key(&capabilities.to_bits())
    }

    /// Records what was listed to a client with these capabilities, and returns whether that is new.
    pub(crate) fn record_for(&self, capabilities: &ClientCapabilities, listing: &Arc<Listing>) -> bool {
        let mut shared = self.lock();
        let bits = capabilities.to_bits();
        let has_same_lists = |other: &Listing| listing.changed_kinds(other).is_empty();
        let is_same = shared.current().is_some_and(|current| has_same_lists(&current.listing));
        let own = (!is_same).then(|| listing.clone());
        let before = shared.by_capabilities.insert(bits, own);
        match before {
            Some(None) => !is_same,
            Some(Some(before)) => is_same || !has_same_lists(&before),
            None => true,
        }
    }

    /// Returns whether the listing comes from the shared instance with this key, which runs.
    pub(crate) fn is_source(&self, key: &InstanceKey) -> bool {
        self.lock().source.as_ref() == Some(key)
    }

    /// Discards what a stopped instance has announced, and returns whether that changes the server's listing.
    pub(crate) fn instance_stopped(&self, key: &InstanceKey) -> bool {
        let mut shared = self.lock();
        shared.source.take_if(|source| source == key);
        shared.remove_announced(key)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::model::listing::{ListFailure, ListedItem, ToolHints};
    use crate::protocol::list_kind::ListKind;
    use crate::spec::{CommandSpec, ServerSpec};

    fn spec(program: &str) -> ServerSpec {
        ServerSpec::command("a".parse().unwrap(), CommandSpec::new(program))
    }

    fn full_listing() -> KnownListing {
        let item =
            |kind, text: &'static str| ListedItem::parse(kind, Bytes::from_static(text.as_bytes())).unwrap();
        let tool = |text| item(ListKind::Tools, text);
        let listing = Arc::new(Listing {
            tools: vec![tool(r#"{"name":"b","n":1.10}"#), tool(r#"{"x":[ ],"name":"a"}"#)],
            prompts: vec![item(ListKind::Prompts, r#"{"name":"p", "arguments":[]}"#)],
            resources: vec![item(ListKind::Resources, r#"{"uri":"file:///x","name":"x"}"#)],
            templates: vec![item(ListKind::Templates, r#"{"uriTemplate":"file:///{+x}","name":"x"}"#)],
            server_info: Some(Bytes::from_static(b"{\"v\":1e2}")),
            capabilities: Bytes::from_static(br#"{"tools":{ },"resources":{"subscribe":true}}"#),
            instructions: Some("say \"please\"\n".into()),
            ..Listing::default()
        });
        KnownListing { revision: Revision::V2025_06_18, is_legacy_sse: true, listing }
    }

    #[test]
    fn saved_listing_is_loaded_byte_for_byte() {
        let folder = tempfile::tempdir().unwrap();
        let listings = folder.path().join("listings");
        let store = ListingStore::new(&spec("x"), Some(&listings));
        assert_eq!(store.load(), None);
        store.save(&full_listing()).unwrap();
        let eras = SpokenEras::default().with(Era::Session, true);
        assert_eq!(
            store.load(),
            Some(SavedListing { known: full_listing(), eras, asks: None, by_capabilities: BTreeMap::new() })
        );
        #[cfg(unix)]
        for path in [&listings, store.file.as_ref().unwrap()] {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = std::fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "{} can be read by others", path.display());
        }
        assert_eq!(ListingStore::new(&spec("y"), Some(&listings)).load(), None, "of a changed spec");
    }

    #[test]
    fn unknown_list_is_unknown_when_it_is_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let store = ListingStore::new(&spec("x"), Some(folder.path()));
        let mut known = full_listing();
        let listing = Arc::make_mut(&mut known.listing);
        listing.prompts.clear();
        listing.unknown[ListKind::Prompts as usize] =
            Some(Arc::new(ListFailure::from_disk(ListKind::Prompts)));
        store.save(&known).unwrap();
        assert_eq!(store.load().map(|saved| saved.known), Some(known));
    }

    #[test]
    fn instance_that_lists_more_than_an_unknown_base_replaces_it() {
        let store = ListingStore::new(&spec("x"), None);
        store.record(&client(1), unknown_tools(), None, false);
        let complete = listing(&["a"], &["p"]);
        assert_eq!(store.record(&client(2), complete.clone(), None, false), Some(complete));
    }

    fn listing(tools: &[&str], prompts: &[&str]) -> KnownListing {
        let items = |names: &[&str]| {
            let item = |name: &&str| ListedItem {
                name: (*name).into(),
                definition: Bytes::new(),
                repaired: None,
                hints: ToolHints::default(),
            };
            names.iter().map(item).collect()
        };
        let listing = Listing { tools: items(tools), prompts: items(prompts), ..Listing::default() };
        let listing = Arc::new(listing);
        KnownListing { revision: Revision::V2025_06_18, is_legacy_sse: false, listing }
    }

    /// Returns a listing whose tools could never be read.
    fn unknown_tools() -> KnownListing {
        let mut known = listing(&[], &["p"]);
        Arc::make_mut(&mut known.listing).unknown[ListKind::Tools as usize] =
            Some(Arc::new(ListFailure::from_disk(ListKind::Tools)));
        known
    }

    fn client(number: u64) -> InstanceKey {
        InstanceKey::Client { number, capabilities: Bytes::new() }
    }

    #[test]
    fn instance_changes_listing_only_by_announcing_while_it_runs() {
        let store = ListingStore::new(&spec("x"), None);
        let first = listing(&["a", "b"], &["p"]);
        assert_eq!(store.record(&client(1), first.clone(), None, false), Some(first.clone()));
        // Other instances that list less, or something else, when they start.
        let less = listing(&["a"], &["p"]);
        assert_eq!(store.record(&client(2), less.clone(), Some(&first), false), None);
        assert_eq!(store.record(&client(3), listing(&["c"], &[]), Some(&first), false), None);
        // A change of the prompts says nothing about the tools.
        let more = listing(&["a"], &["p", "q"]);
        let changed = listing(&["a", "b"], &["p", "q"]);
        assert_eq!(store.record(&client(2), more.clone(), Some(&less), true), Some(changed.clone()));
        assert_eq!(store.record(&client(2), more, Some(&less), true), None);
        assert!(!store.instance_stopped(&client(1)) && store.get() == Some(changed));
        assert!(store.instance_stopped(&client(2)) && store.get() == Some(first));
    }

    #[test]
    fn loaded_listing_is_replaced_by_one_with_new_items() {
        let folder = tempfile::tempdir().unwrap();
        ListingStore::new(&spec("x"), Some(folder.path())).save(&full_listing()).unwrap();
        let store = ListingStore::new(&spec("x"), Some(folder.path()));
        assert_eq!(store.get(), Some(full_listing()));
        assert_eq!(store.record(&client(1), listing(&[], &[]), None, false), None);
        assert!(store.record(&client(1), listing(&["new"], &[]), None, false).is_some());
    }

    #[test]
    fn spoken_eras_are_saved_with_the_listing() {
        let folder = tempfile::tempdir().unwrap();
        let store = ListingStore::new(&spec("x"), Some(folder.path()));
        assert!(store.record_era(Era::Session, true) && !store.record_era(Era::Session, true));
        assert!(store.record_era(Era::Stateless, false));
        store.save(&full_listing()).unwrap();
        let restarted = ListingStore::new(&spec("x"), Some(folder.path()));
        assert_eq!(restarted.eras(), SpokenEras::default());
        restarted.get();
        assert_eq!(restarted.eras().only(), Some(Era::Session));
        restarted.forget_eras();
        assert_eq!(restarted.eras().speaks(Era::Session), None);
    }

    #[test]
    fn first_question_is_saved_with_the_listing() {
        let folder = tempfile::tempdir().unwrap();
        let store = ListingStore::new(&spec("x"), Some(folder.path()));
        assert!(!store.record_question("tools/list") && store.record_question(ELICIT));
        assert!(!store.record_question(LIST_ROOTS) && !store.record_question(ELICIT));
        store.save(&full_listing()).unwrap();
        let restarted = ListingStore::new(&spec("x"), Some(folder.path()));
        restarted.get();
        assert_eq!(restarted.asks(), Some(ELICIT));
    }

    #[test]
    fn listing_for_some_capabilities_is_saved_if_it_differs() {
        let folder = tempfile::tempdir().unwrap();
        let store = ListingStore::new(&spec("x"), Some(folder.path()));
        store.record(&InstanceKey::Shared, full_listing(), None, false);
        let full = full_listing().listing;
        let mut fewer = Listing::clone(&full);
        fewer.tools.pop();
        let fewer = Arc::new(fewer);
        let (all, none) = (ClientCapabilities::all(), ClientCapabilities::default());
        assert!(
            !store.is_listed_for(&all) && store.record_for(&all, &full) && store.record_for(&none, &fewer)
        );
        assert!(!store.record_for(&all, &full) && !store.record_for(&none, &fewer));
        store.save(&full_listing()).unwrap();
        let restarted = ListingStore::new(&spec("x"), Some(folder.path()));
        assert_eq!(restarted.shown_to(Some(&none)).unwrap().listing, fewer);
        assert_eq!(restarted.shown_to(Some(&all)).unwrap().listing, full);
        assert!(restarted.is_listed_for(&all) && restarted.listing_for(&all).is_none());
        assert!(restarted.record_for(&none, &full) && restarted.listing_for(&none).is_none());
    }

    #[test]
    fn exit_in_an_era_is_known_until_the_process_ends() {
        let folder = tempfile::tempdir().unwrap();
        let store = ListingStore::new(&spec("x"), Some(folder.path()));
        store.record_era(Era::Session, true);
        assert!(store.record_exit_in(Era::Stateless) && !store.record_exit_in(Era::Stateless));
        assert_eq!(store.eras().only(), Some(Era::Session));
        let saved_fact = || {
            store.save(&full_listing()).unwrap();
            store.load().unwrap().eras.speaks(Era::Stateless)
        };
        assert_eq!(saved_fact(), None);
        // An answer is remembered, and an exit after it changes nothing.
        store.record_era(Era::Stateless, false);
        store.record_exit_in(Era::Stateless);
        assert_eq!(saved_fact(), Some(false));
    }

    #[test]
    fn connection_for_the_other_era_does_not_replace_the_listing() {
        let store = ListingStore::new(&spec("x"), None);
        let stateless = InstanceKey::Stateless(Box::default());
        let first = listing(&["a"], &[]);
        let other = listing(&["a", "b"], &[]);
        assert_eq!(store.record(&InstanceKey::Shared, first.clone(), None, false), Some(first.clone()));
        assert_eq!(store.record(&stateless, other.clone(), None, false), None);
        // Neither does it when it is listed again, until the first connection is gone.
        assert_eq!(store.record(&stateless, other.clone(), Some(&other), true), None);
        assert_eq!(store.record(&stateless, other.clone(), Some(&first), true), None);
        assert!(!store.instance_stopped(&InstanceKey::Shared));
        assert_eq!(store.record(&stateless, other.clone(), Some(&other), true), Some(other));
        assert_eq!(store.record(&InstanceKey::Shared, first.clone(), Some(&first), true), None);
    }

    #[test]
    fn missing_file_is_looked_for_only_once() {
        let folder = tempfile::tempdir().unwrap();
        let store = ListingStore::new(&spec("x"), Some(folder.path()));
        assert_eq!(store.get(), None);
        ListingStore::new(&spec("x"), Some(folder.path())).save(&full_listing()).unwrap();
        assert_eq!(store.get(), None);
    }

    #[test]
    fn listing_without_known_tools_is_not_saved() {
        let folder = tempfile::tempdir().unwrap();
        let store = ListingStore::new(&spec("x"), Some(folder.path()));
        let mut known = full_listing();
        known.listing = unknown_tools().listing;
        Arc::make_mut(&mut known.listing).capabilities = Bytes::from_static(b"{}");
        store.save(&known).unwrap();
        assert_eq!(store.load(), None);
    }

    /// A file from before prompts and resources were listed.
    const OLD_FILE: &str = r#"{"revision":"2025-06-18","serverInfo":{},"tools":[{"name":"a"}]}"#;

    #[test]
    fn damaged_or_old_file_counts_as_missing() {
        let folder = tempfile::tempdir().unwrap();
        let store = ListingStore::new(&spec("x"), Some(folder.path()));
        store.save(&full_listing()).unwrap();
        for content in ["", "{", r#"{"tools":7}"#, r#"{"tools":[],"revision":"x"}"#, OLD_FILE] {
            std::fs::write(store.file.as_ref().unwrap(), content).unwrap();
            assert_eq!(store.load(), None, "{content}");
        }
    }
}
