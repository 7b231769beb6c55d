//! Messages of the server that were discarded because of their size, and the requests that may wait for them.

use tokio::time::Instant;

use super::PendingRequests;

/// A message of the server that was discarded because of its size, and that requests may wait for.
#[derive(Debug)]
pub(in crate::upstream) struct DiscardedMessage {
    /// What it is, with its size and the limit.
    pub(in crate::upstream) description: String,
    /// True if the time of its owner was limited because of it.
    has_limited_time: bool,
    /// True while it goes on.
    goes_on: bool,
    /// The only request that may wait for it, if that is known.
    owner: Option<u64>,
    /// The last request that was sent before it ended.
    last_id: u64,
}

impl DiscardedMessage {
    /// Creates a message that no request waits for.
    pub(in crate::upstream) fn new(description: String, goes_on: bool) -> Self {
        Self { description, has_limited_time: false, goes_on, owner: None, last_id: 0 }
    }

    /// Returns whether the time of this request was limited because of it.
    pub(in crate::upstream) fn limits_time_of(&self, id: u64) -> bool {
        self.has_limited_time && self.owner == Some(id)
    }

    fn may_concern(&self, id: u64) -> bool {
        self.goes_on || self.owner.map_or(id <= self.last_id, |owner| owner == id)
    }
}

impl PendingRequests {
    /// Remembers a discarded message, and that the request it may belong to gets no answer after `until`. Returns whether the
    /// timer was set to an earlier time.
    pub(in crate::upstream) fn record_discarded(
        &mut self,
        mut discarded: DiscardedMessage,
        ids: &[u64],
        until: Instant,
    ) -> bool {
        discarded.last_id = self.last_id;
        discarded.owner = self.find_likely_owner(ids);
        let was_limited = discarded
            .owner
            .is_some_and(|id| self.discarded.as_ref().is_some_and(|earlier| earlier.limits_time_of(id)));
        let request = discarded.owner.and_then(|id| self.requests.get_mut(&id));
        let mut limited = None;
        if let Some(request) = request
            && let Some(deadline) = request.deadline.filter(|deadline| was_limited || until < deadline.until)
        {
            // Earlier progress no longer counts.
            request.progress = None;
            request.deadline = Some(deadline.at(until));
            limited = request.deadline;
        }
        discarded.has_limited_time = limited.is_some();
        self.discarded = Some(discarded);
        self.set_timer_earlier(limited)
    }

    /// Forgets the discarded message, because the request that it belongs to is known.
    pub(in crate::upstream) fn forget_discarded(&mut self) {
        self.discarded = None;
    }

    /// Returns the discarded message that a request may have waited for.
    pub(in crate::upstream) fn find_discarded(&self, id: u64) -> Option<&DiscardedMessage> {
        self.discarded.as_ref().filter(|discarded| discarded.may_concern(id))
    }
}
