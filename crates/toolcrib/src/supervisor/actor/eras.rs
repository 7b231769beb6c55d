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
    pub(super) fn record_eras(&self, spoken: Era, refused: Option<RefusedEra>) -> bool {
        let is_new = self.listing_store.record_era(spoken, true);
        let is_new_refusal = match refused {
            // It may have crashed, so this is not saved.
            Some(RefusedEra { era, is_only_exit: true }) => self.listing_store.record_exit_in(era),
            Some(RefusedEra { era, is_only_exit: false }) => self.listing_store.record_era(era, false),
            None => false,
        };
        is_new || is_new_refusal
    }

    /// Lets the server start again after an operator asked for that. It may speak other eras now.
    pub(super) fn reset_start(&self) {
        self.start_gate.reset();
        self.listing_store.forget_eras();
    }

    /// Refuses the waiting leases because the server speaks only the era of its other connection, where they are
    /// requested again. This is not a failure of the server.
    pub(super) fn handle_refused_era(&mut self, refused: RefusedEra, error: &Error) -> ActorState {
        let era = refused.era.other();
        if self.record_eras(era, Some(refused))
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
