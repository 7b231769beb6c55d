//! The era in which a server is started, and what a start shows about the eras that it speaks.

use super::*;

impl Actor {
    /// Returns the way to start the handshake. A server whose era the config leaves open is started in the era of the
    /// client that waits for it, or in a session if none does; an instance for one era is started in that one.
    pub(super) fn handshake_plan(&self) -> HandshakePlan {
        if let Some(plan) = HandshakePlan::from_config(&self.spec) {
            return plan;
        }
        let spoken = self.listing_store.eras();
        let client = self.lease_waiters.first().map(|request| &request.client);
        let wanted = match &self.owner.key {
            InstanceKey::Stateless(_) => Era::Stateless,
            _ if self.spec.has_instance_per_era() => Era::Session,
            _ => client.map_or(Era::Session, |client| client.era),
        };
        if self.requires_era(wanted, client) {
            return HandshakePlan::Require(wanted);
        }
        if self.start_gate.needs_session_era() {
            return HandshakePlan::AfterExit(Era::Session);
        }
        let era = spoken.only().unwrap_or(wanted);
        match spoken.speaks(era) {
            Some(true) => HandshakePlan::Expect(era),
            _ => HandshakePlan::Prefer(era),
        }
    }

    /// Returns whether an instance for one era is of no use in the other one, because there is another instance for that.
    fn requires_era(&self, era: Era, client: Option<&LeaseClient>) -> bool {
        let spoken = self.listing_store.eras();
        match self.spec.is_remote() {
            true if matches!(self.owner.key, InstanceKey::Stateless(_)) => true,
            // The other connection may be in use, and is the right one if the server has no sessions.
            true => {
                self.spec.has_instance_per_era()
                    && spoken.only().is_none()
                    && spoken.speaks(Era::Stateless) == Some(true)
            }
            false => spoken.speaks(era).is_none() && client.is_some_and(|client| client.is_other_up),
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
