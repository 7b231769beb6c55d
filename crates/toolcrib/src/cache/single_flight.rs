//! `SingleFlight`: one call that equal calls wait for. If its caller drops it, one of the waiting calls is sent instead.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::watch;
use tokio::time::Instant;

use super::key::CacheKey;
use super::shared_responses::{SharedLookup, SharedResponse, SharedSlot};
use super::{CacheSettings, ResponseCache};
use crate::call::updates::{CallUpdate, UpdateSink};
use crate::model::outcome::Outcome;
use crate::spec::ServerSpec;

/// The result of a flight for the calls that joined it.
#[derive(Debug, Clone)]
pub(crate) enum FlightResult {
    /// The call has not ended.
    Pending,
    /// The call was dropped before it ended.
    Abandoned,
    /// The result is not for other callers: each waiting call is sent on its own.
    NotShareable,
    /// The result answers all waiting calls.
    Shared(Outcome),
}

/// The state of a flight, shared with the calls that join it.
#[derive(Debug, Default)]
pub(super) struct FlightState {
    /// Created by the first call that joins; most flights are never joined.
    result: OnceLock<watch::Sender<FlightResult>>,
    /// The cache epoch when the call was sent, or zero before that.
    pub(super) sent_epoch: AtomicU64,
    /// Whether the server has sent a request to the client.
    has_asked_client: AtomicBool,
}

impl FlightState {
    /// Returns the future result, unless the client was asked something or answers were invalidated after the call was
    /// sent. The caller must hold the lock of the cache, as those do that remove the flight or record a question.
    pub(super) fn join(&self, epoch: u64) -> Option<watch::Receiver<FlightResult>> {
        let sent_epoch = self.sent_epoch.load(Ordering::Relaxed);
        let is_stale = sent_epoch != 0 && sent_epoch != epoch;
        if self.has_asked_client.load(Ordering::Relaxed) || is_stale {
            return None;
        }
        Some(self.result.get_or_init(|| watch::Sender::new(FlightResult::Pending)).subscribe())
    }

    /// Sets the result if there is none yet.
    fn set_result(&self, new: FlightResult) {
        let Some(sender) = self.result.get() else { return };
        sender.send_if_modified(|result| {
            let is_pending = matches!(result, FlightResult::Pending);
            if is_pending {
                *result = new;
            }
            is_pending
        });
    }
}

/// The right to send a call on behalf of all equal calls.
#[derive(Debug)]
pub(crate) struct SingleFlight {
    pub(super) cache: Arc<ResponseCache>,
    pub(super) key: Arc<CacheKey>,
    pub(super) state: Arc<FlightState>,
    /// The place of the answer in the shared store, once it was searched.
    slot: Option<Box<SharedSlot>>,
    has_ended: bool,
}

impl SingleFlight {
    pub(super) fn new(cache: Arc<ResponseCache>, key: Arc<CacheKey>, state: Arc<FlightState>) -> Self {
        Self { cache, key, state, slot: None, has_ended: false }
    }

    /// Records that the call is about to be sent. Its answer is discarded if an invalidation follows.
    pub(crate) fn mark_sent(&self) {
        let epoch = self.cache.lock().epoch(&self.key.subject.server);
        self.state.sent_epoch.store(epoch, Ordering::Relaxed);
    }

    /// Looks the answer up in the store, if other processes use it.
    pub(crate) async fn find_shared(&mut self, spec: &ServerSpec) -> Option<SharedResponse> {
        self.mark_sent();
        let SharedLookup { slot, found } = self.cache.shared.as_ref()?.find(&self.key, spec).await?;
        self.slot = Some(Box::new(slot));
        found
    }

    /// Ends the flight with an answer from the store and passes it to the waiting calls. Returns `None`, and the flight
    /// continues, if answers were invalidated since the lookup began.
    pub(crate) fn accept_shared(
        &mut self,
        found: SharedResponse,
        settings: &CacheSettings,
        now: Instant,
    ) -> Option<Outcome> {
        let outcome = self.cache.accept_shared(&self.key, &self.state, found, settings, now)?;
        self.end(|| FlightResult::Shared(outcome.clone()));
        Some(outcome)
    }

    /// Stores the answer if it is cacheable, and passes it to the waiting calls.
    pub(crate) fn complete(mut self, outcome: &Outcome, settings: &CacheSettings, now: Instant) {
        let has_asked_client = self.state.has_asked_client.load(Ordering::Relaxed);
        let is_shared = !has_asked_client
            && self.cache.store_if_fresh(
                &self.key,
                &self.state,
                self.slot.as_deref(),
                outcome,
                settings,
                now,
            );
        self.end(
            || if is_shared { FlightResult::Shared(outcome.clone()) } else { FlightResult::NotShareable },
        );
    }

    /// Ends the flight without an answer. Each waiting call is sent on its own.
    pub(crate) fn fail(mut self) {
        self.end(|| FlightResult::NotShareable);
    }

    /// Removes the flight first, so that no call can join after the result is set.
    fn end(&mut self, result: impl FnOnce() -> FlightResult) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        self.cache.lock().remove_flight(&self.key, &self.state);
        if self.state.result.get().is_some() {
            self.state.set_result(result());
        }
    }

    /// Wraps the call's update sink to notice requests to the client.
    pub(crate) fn wrap_updates(&self, sink: Arc<dyn UpdateSink>) -> Arc<dyn UpdateSink> {
        Arc::new(QuestionDetector { sink, cache: self.cache.clone(), flight: self.state.clone() })
    }
}

impl Drop for SingleFlight {
    fn drop(&mut self) {
        self.end(|| FlightResult::Abandoned);
    }
}

/// An update sink that ends sharing when the server asks the client something: the answer then depends on that client.
struct QuestionDetector {
    sink: Arc<dyn UpdateSink>,
    cache: Arc<ResponseCache>,
    flight: Arc<FlightState>,
}

impl fmt::Debug for QuestionDetector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuestionDetector").field("sink", &self.sink).finish_non_exhaustive()
    }
}

impl UpdateSink for QuestionDetector {
    fn deliver(&self, update: CallUpdate) -> bool {
        if let CallUpdate::Request(_) = update {
            let state = self.cache.lock();
            self.flight.has_asked_client.store(true, Ordering::Relaxed);
            drop(state);
            self.flight.set_result(FlightResult::NotShareable);
        }
        self.sink.deliver_contained(update)
    }

    fn cancel_reason(&self) -> Option<String> {
        self.sink.cancel_reason_contained()
    }
}
