//! Lists of a connection that have to be fetched again: which ones, how urgently, and which changes the server announced.
//!
//! Transports and clients add to the queue; the task that watches the connection takes from it. A caller that asks
//! for a list while it is out of date waits for the listing that covers the request.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::Connection;
use crate::protocol::list_kind::{ListKind, ListKinds};

/// The lists of one connection that have to be fetched again.
#[derive(Debug, Default)]
pub(super) struct RelistQueue {
    state: watch::Sender<RelistState>,
}

#[derive(Debug, Default)]
struct RelistState {
    /// Number of requests so far.
    requested: u64,
    /// The requests that the listing in progress covers, or the last one.
    begun: u64,
    /// The requests that finished listings cover.
    finished: u64,
    /// Lists to fetch, besides those that are being fetched.
    waiting: ListKinds,
    /// Lists whose announcements may have been missed. They are fetched if the server announces changes.
    missed: ListKinds,
    /// True once lists were read. Before that, no announcement can be missed.
    is_listed: bool,
    in_progress: ListKinds,
    /// Lists with an announced change that clients have not been notified of.
    announced: ListKinds,
    /// True if a caller waits for the lists.
    is_urgent: bool,
    waiting_since: Option<Instant>,
    in_progress_since: Option<Instant>,
}

impl RelistState {
    fn add(&mut self, kinds: ListKinds) {
        self.requested += 1;
        self.waiting = self.waiting.union(kinds);
        self.waiting_since.get_or_insert_with(Instant::now);
    }

    fn is_requested(&self) -> bool {
        !self.waiting.is_empty() || !self.missed.is_empty()
    }
}

impl RelistQueue {
    /// Requests lists, as soon as the server may be listed again.
    pub(super) fn request(&self, kinds: ListKinds) {
        self.state.send_modify(|state| state.add(kinds));
    }

    /// Requests lists immediately.
    pub(super) fn request_urgently(&self, kinds: ListKinds) {
        self.state.send_modify(|state| {
            state.add(kinds);
            state.is_urgent = true;
        });
    }

    /// Records that the server announced a change.
    pub(super) fn announce(&self, kinds: ListKinds) {
        self.state.send_modify(|state| {
            state.add(kinds);
            state.announced = state.announced.union(kinds);
        });
    }

    /// Records that announcements may have been missed.
    pub(super) fn report_missed(&self) {
        self.state.send_modify(|state| {
            if state.is_listed {
                state.requested += 1;
                state.missed = ListKinds::ALL;
                state.waiting_since.get_or_insert_with(Instant::now);
            }
        });
    }
}

/// The earliest times of the next listing of a server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EarliestRelist {
    /// For a listing that no caller waits for.
    pub(crate) routine: Instant,
    /// For a listing after an announced change of a list whose last announced change was a moment ago.
    pub(crate) announced: Instant,
    /// The lists that `announced` is about. The first announcement of another list is urgent.
    pub(crate) just_announced: ListKinds,
    /// For a listing that a caller waits for.
    pub(crate) urgent: Instant,
}

impl EarliestRelist {
    /// Allows a listing from this time on.
    pub(crate) fn at(time: Instant) -> Self {
        Self { routine: time, announced: time, just_announced: ListKinds::default(), urgent: time }
    }
}

/// A listing that is about to begin.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RelistRequest {
    /// Identifies the listing.
    pub(crate) number: u64,
    pub(crate) kinds: ListKinds,
    /// The lists with an announced change that clients have not been notified of.
    pub(crate) announced: ListKinds,
}

/// A listing that was requested and has not finished.
#[derive(Debug)]
pub(crate) struct PendingRelist {
    connection: Arc<Connection>,
    number: u64,
    /// When the listing began, or was requested if it has not begun.
    pub(crate) since: Instant,
}

impl PendingRelist {
    /// Waits until the listing has finished or the connection is closed.
    pub(crate) async fn wait(&self) {
        let mut state = self.connection.mux.relist_queue().state.subscribe();
        tokio::select! {
            // The connection holds the sender, so this cannot fail.
            _ = state.wait_for(|state| state.finished >= self.number) => {}
            () = self.connection.closed() => {}
        }
    }
}

impl Connection {
    /// Records that lists were read.
    pub(super) fn mark_listed(&self) {
        self.mux
            .relist_queue()
            .state
            .send_if_modified(|state| !std::mem::replace(&mut state.is_listed, true));
    }

    /// Requests lists, as soon as the server may be listed again.
    pub(crate) fn request_relist(&self, kinds: ListKinds) {
        self.mux.relist_queue().request(kinds);
    }

    /// Requests the lists that are out of date: those in `stale`, and those of `kinds` that are to be fetched again anyway.
    /// Returns the listing that covers them, or `None` if there is nothing to fetch.
    pub(crate) fn refresh_lists(
        self: &Arc<Self>,
        kinds: ListKinds,
        stale: ListKinds,
    ) -> Option<PendingRelist> {
        let mut pending = None;
        self.mux.relist_queue().state.send_if_modified(|state| {
            let missed = self.only_announced(state.missed);
            let outstanding = state.waiting.union(state.in_progress).union(missed).intersection(kinds);
            if stale.is_empty() && outstanding.is_empty() {
                return false;
            }
            if !stale.is_empty() {
                state.add(stale);
            }
            state.is_urgent |= state.is_requested();
            let since = state.in_progress_since.or(state.waiting_since).unwrap_or_else(Instant::now);
            pending = Some(PendingRelist { connection: self.clone(), number: state.requested, since });
            true
        });
        pending
    }

    /// Waits until lists are requested and the server may be listed again.
    pub(crate) async fn wait_for_relist(&self, earliest: EarliestRelist) {
        let mut state = self.mux.relist_queue().state.subscribe();
        // `self` holds the sender, so waiting cannot fail.
        let _ = state.wait_for(RelistState::is_requested).await;
        let urgent = async {
            let is_first =
                |state: &RelistState| !state.announced.difference(earliest.just_announced).is_empty();
            let _ = state.wait_for(|state| state.is_urgent || is_first(state)).await;
            sleep_until(earliest.urgent).await;
        };
        let mut announced_state = self.mux.relist_queue().state.subscribe();
        let announced = async {
            let _ = announced_state.wait_for(|state| !state.announced.is_empty()).await;
            sleep_until(earliest.announced).await;
        };
        tokio::select! {
            () = urgent => {}
            () = announced => {}
            () = sleep_until(earliest.routine) => {}
        }
    }

    /// Takes everything that was requested. The listing that follows must be finished.
    pub(crate) fn begin_relist(&self) -> RelistRequest {
        let mut request = RelistRequest::default();
        self.mux.relist_queue().state.send_modify(|state| {
            let missed = self.only_announced(std::mem::take(&mut state.missed));
            request = RelistRequest {
                number: state.requested,
                kinds: std::mem::take(&mut state.waiting).union(missed),
                announced: std::mem::take(&mut state.announced),
            };
            state.begun = request.number;
            state.in_progress = request.kinds;
            state.in_progress_since = Some(Instant::now());
            state.waiting_since = None;
            state.is_urgent = false;
        });
        request
    }

    /// Records that a listing has finished and that its result is known.
    pub(crate) fn finish_relist(&self, number: u64) {
        self.mux.relist_queue().state.send_modify(|state| {
            state.finished = state.finished.max(number);
            if state.begun == number {
                state.in_progress = ListKinds::default();
                state.in_progress_since = None;
            }
        });
    }

    /// Keeps an announced change for the next listing, because clients cannot be notified of it yet.
    pub(crate) fn defer_announcement(&self, kinds: ListKinds) {
        self.mux.relist_queue().announce(kinds);
    }

    /// Returns whether a list is to be read again, or is being read.
    pub(crate) fn expects_list(&self, kind: ListKind) -> bool {
        let state = self.mux.relist_queue().state.borrow();
        state.waiting.union(state.in_progress).contains(kind)
    }

    /// Returns the lists whose changes the server announces.
    fn only_announced(&self, kinds: ListKinds) -> ListKinds {
        kinds.iter().filter(|kind| self.announces_list_changes(kind.capability())).collect()
    }
}
