//! Taking over a changed spec without a restart.

use super::*;

impl Actor {
    /// Replaces the spec. Decisions from now on follow it; a start in progress keeps its time limit.
    pub(super) fn take_spec(&mut self, spec: Arc<ServerSpec>) {
        self.spec = spec;
        self.start_gate.apply_lifecycle(&self.spec.lifecycle);
        if let Some(slot) = &self.slot {
            slot.set_evict_last(self.slot_holder().evict_last);
        }
    }

    /// Replaces the spec of a running server. Calls in flight go on under their old limits.
    pub(super) fn update_running(&mut self, server: &mut RunningServer, spec: Arc<ServerSpec>) {
        self.take_spec(spec);
        server.connection.apply_settings(&self.spec);
        server.breaker.set_spec(self.spec.lifecycle.breaker.clone());
        if self.spec.lifecycle.start == StartPolicy::OnDemand {
            server.gate().mark_used(Instant::now());
        }
        // The time to keep running may be shorter now.
        server.gate().clear_idle_notice();
        server.idle_timer.as_mut().reset(Instant::now());
        if let Some(known) = self.known_listing.clone() {
            self.update_pinned_items(&known.listing);
        }
    }

    /// Replaces the spec of a server that waits after a failure. It is tried again, because the change may be the repair.
    pub(super) fn update_failed(&mut self, spec: Arc<ServerSpec>) -> ActorState {
        self.take_spec(spec);
        self.start_gate.reset();
        self.start_or_sleep().into()
    }

    /// Returns the next step of a server that may be tried again.
    pub(super) fn start_or_sleep(&self) -> AfterStop {
        match self.spec.lifecycle.start {
            StartPolicy::AtBoot => AfterStop::Start,
            // It starts from there if any lease request waits.
            StartPolicy::OnDemand => AfterStop::Sleep,
        }
    }
}
