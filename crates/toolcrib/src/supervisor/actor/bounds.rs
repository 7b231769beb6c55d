//! Conditions for running a server: a start permit, a slot, and memory limits.

use super::*;
use crate::model::hint::Hint;
use crate::supervisor::memory_watch::{self, MemoryVerdict};
use crate::supervisor::slots::SlotHolder;

impl Actor {
    /// Waits until the start gate and the slot pool allow a start. Returns the next state instead if the start is
    /// denied or a command changes the state.
    pub(super) async fn acquire_start_permit(&mut self) -> Result<StartPermit, Box<ActorState>> {
        let start_gate = self.start_gate.clone();
        let mut has_waited = false;
        loop {
            let mut changed = std::pin::pin!(start_gate.changed());
            changed.as_mut().enable();
            match start_gate.decision(Instant::now()) {
                StartDecision::Denied(penalty) => {
                    return Err(Box::new(self.apply_penalty(penalty, has_waited)));
                }
                StartDecision::Allowed => {
                    if self.slot.is_none()
                        && let Some(state) = self.acquire_slot().await
                    {
                        return Err(Box::new(state));
                    }
                    if let Some(permit) = start_gate.try_acquire(Instant::now()) {
                        return Ok(permit);
                    }
                }
                StartDecision::WaitForTrial => {
                    // A start that only waits holds no slot.
                    wait_until_exited(&self.live_processes).await;
                    self.slot = None;
                    has_waited = true;
                    tokio::select! {
                        () = &mut changed => {}
                        command = self.commands.recv() => if let Some(state) = self.handle_command(command) {
                            return Err(Box::new(state));
                        },
                    }
                }
            }
        }
    }

    /// Waits for a slot. Returns the next state instead if none becomes free in time or a command changes the state.
    /// Remote servers need no slot.
    pub(super) async fn acquire_slot(&mut self) -> Option<ActorState> {
        if matches!(self.spec.endpoint, Endpoint::Http(_)) {
            return None;
        }
        let slots = self.services.slots.clone();
        let limit = self.spec.lifecycle.start_timeout;
        let mut slot = Box::pin(timeout(limit, slots.acquire(self.slot_holder())));
        loop {
            tokio::select! {
                slot = &mut slot => match slot {
                    Ok(slot) => {
                        self.slot = Some(slot);
                        return None;
                    }
                    Err(_) => return Some(self.handle_no_slot()),
                },
                command = self.commands.recv() => if let Some(state) = self.handle_command(command) {
                    return Some(state);
                },
            }
        }
    }

    /// Acts on a memory verdict.
    pub(super) fn memory_event(
        &self,
        server: &mut RunningServer,
        used: u64,
        verdict: MemoryVerdict,
    ) -> Option<ActorEvent> {
        match verdict {
            MemoryVerdict::Recycle => {
                server.recycle_when_idle = true;
                None
            }
            MemoryVerdict::Evict => server.gate().close_if_idle().then_some(ActorEvent::Idle),
            MemoryVerdict::OverHardLimit { limit } => {
                Some(ActorEvent::OverMemory { error: self.hard_limit_error(used, limit) })
            }
            MemoryVerdict::LargestOverTotal { limit } => {
                Some(ActorEvent::OverMemory { error: self.total_limit_error(used, limit) })
            }
        }
    }

    pub(super) fn slot_holder(&self) -> SlotHolder {
        let lifecycle = &self.spec.lifecycle;
        SlotHolder {
            mailbox: self.own_mailbox.clone(),
            metrics: self.metrics.clone(),
            evict_last: lifecycle.start == StartPolicy::AtBoot || lifecycle.keep_alive == KeepAlive::Forever,
            eviction_requested: false,
        }
    }

    /// Declines a request to free the slot, because the server is in use.
    pub(super) fn keep_slot(&self) {
        if let Some(slot) = &self.slot {
            slot.keep();
        }
    }

    /// Refuses the waiting leases because no slot became free in time. This costs no restart.
    fn handle_no_slot(&mut self) -> ActorState {
        let server = &self.spec.id;
        let capacity = self.services.slots.capacity();
        let message = format!("no free slot for `{server}`: {capacity} servers are running and in use");
        let error = Error::new(ErrorKind::CouldNotStart, message).with_server(server);
        let error = error.with_hint(Hint::RaiseRunningServers);
        warn!(%server, %error, "not started");
        self.set_last_error(&error);
        self.refuse_waiters(&error);
        ActorState::Asleep
    }

    fn hard_limit_error(&self, used: u64, limit: u64) -> Error {
        let server = &self.spec.id;
        let used = memory_watch::format_bytes(used);
        let limit = memory_watch::format_bytes(limit);
        let message = format!("`{server}` was stopped: it used {used} of memory, its limit is {limit}");
        self.over_memory_error(message)
            .with_hint(Hint::RaiseLimit { key: format!("servers.{server}.lifecycle.memory.hard") })
    }

    fn total_limit_error(&self, used: u64, limit: u64) -> Error {
        let server = &self.spec.id;
        let used = memory_watch::format_bytes(used);
        let limit = memory_watch::format_bytes(limit);
        let message = format!(
            "`{server}` was stopped: all servers together used more than {limit} of memory, \
             and it used the most, {used}"
        );
        self.over_memory_error(message).with_hint(Hint::RaiseLimit { key: "limits.memory".to_owned() })
    }

    fn over_memory_error(&self, message: String) -> Error {
        let class = FailureClass::OverMemory;
        Error::new(ErrorKind::Lost, message).with_server(&self.spec.id).with_class(class)
    }
}
