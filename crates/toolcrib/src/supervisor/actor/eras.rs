//! The era in which a server is started, and what a start shows about the eras that it speaks.

use super::*;

impl Actor {
    /// Returns the way to start the handshake. A server whose era the config leaves open is started in the era of the
    /// client that waits for it, or in a session if none does.
    pub(super) fn handshake_plan(&self) -> HandshakePlan {
        if let Some(plan) = HandshakePlan::from_config(&self.spec) {
            return plan;
        }
        let spoken = self.listing_store.eras();
        if matches!(self.owner.key, InstanceKey::Stateless(_)) {
            return HandshakePlan::Require(Era::Stateless);
        }
        let has_connection_per_era = self.spec.has_connection_per_era();
        // The other connection may be in use, and is the right one if the server has no sessions.
        if has_connection_per_era && spoken.only().is_none() && spoken.speaks(Era::Stateless) == Some(true) {
            return HandshakePlan::Require(Era::Session);
        }
        if self.start_gate.needs_session_era() {
            return HandshakePlan::AfterExit(Era::Session);
        }
        let of_client = self.lease_waiters.first().map_or(Era::Session, |request| request.era);
        let wanted = if has_connection_per_era { Era::Session } else { of_client };
        let era = spoken.only().unwrap_or(wanted);
        match spoken.speaks(era) {
            Some(true) => HandshakePlan::Expect(era),
            _ => HandshakePlan::Prefer(era),
        }
    }

    /// Records what a successful start has shown about the server's eras. Returns whether it is new.
    pub(super) fn record_eras(&self, spoken: Era, refused: Option<Era>) -> bool {
        let is_new = self.listing_store.record_era(spoken, true);
        let is_new_refusal = refused.is_some_and(|era| self.listing_store.record_era(era, false));
        is_new || is_new_refusal
    }

    /// Refuses the waiting leases because the server speaks only the era of its other connection, where they are
    /// requested again. This is not a failure of the server.
    pub(super) fn handle_only_era(&mut self, era: Era, error: &Error) -> ActorState {
        if self.record_eras(era, Some(era.other()))
            && let Some(known) = self.listing_store.get()
        {
            self.save_listing(known);
        }
        info!(server = %self.spec.id, era = era.as_str(), "speaks only one era");
        self.refuse_waiters(error);
        match self.starts_by_itself() {
            true => ActorState::Starting,
            false => ActorState::Asleep,
        }
    }
}
