//! The bounds within which a server may run: a seat among the servers of its crib, and so much memory.

use super::*;
use crate::supervisor::room::Tenant;
use crate::supervisor::scales::{self, Verdict};

impl Actor {
    /// Waits for the moment in which this server may be started, among its instances and among the servers of its crib;
    /// what follows instead, if it may not or something else is wanted meanwhile.
    pub(super) async fn take_turn(&mut self) -> Result<Attempt, Box<State>> {
        let (fate, mut waited) = (self.fate.clone(), false);
        loop {
            let mut turned = std::pin::pin!(fate.turned());
            turned.as_mut().enable();
            match fate.prospect(Instant::now()) {
                Prospect::Closed(sentence) => return Err(Box::new(self.serve(sentence, waited))),
                Prospect::Open => {
                    if self.seat.is_none()
                        && let Some(state) = self.take_seat().await
                    {
                        return Err(Box::new(state));
                    }
                    if let Some(attempt) = fate.attempt(Instant::now()) {
                        return Ok(attempt);
                    }
                }
                Prospect::Wait => {
                    // Who only waits takes no room.
                    all_gone(&self.lives).await;
                    (self.seat, waited) = (None, true);
                    tokio::select! {
                        () = &mut turned => {}
                        command = self.commands.recv() => if let Some(state) = self.obey(command) {
                            return Err(Box::new(state));
                        },
                    }
                }
            }
        }
    }

    /// Waits for the right to run; if there is none to be had, or something else is wanted meanwhile, what follows.
    pub(super) async fn take_seat(&mut self) -> Option<State> {
        if matches!(self.spec.endpoint, Endpoint::Http(_)) {
            return None;
        }
        let (room, limit) = (self.around.room.clone(), self.spec.lifecycle.start_timeout);
        let mut seat = Box::pin(timeout(limit, room.seat(self.tenant())));
        loop {
            tokio::select! {
                seat = &mut seat => match seat {
                    Ok(seat) => {
                        self.seat = Some(seat);
                        return None;
                    }
                    Err(_) => return Some(self.no_room()),
                },
                command = self.commands.recv() => if let Some(state) = self.obey(command) {
                    return Some(state);
                },
            }
        }
    }

    /// What its weight has for consequences.
    pub(super) fn weighed(&self, alive: &mut Alive, used: u64, verdict: Verdict) -> Option<Happening> {
        match verdict {
            Verdict::Recycle => {
                alive.recycle = true;
                None
            }
            Verdict::MakeRoom => (alive.leases == 0).then_some(Happening::Idle),
            Verdict::TooHeavy { .. } | Verdict::Heaviest { .. } => {
                Some(Happening::Outgrown(self.outgrown(used, verdict)))
            }
        }
    }

    /// This server as the room knows it.
    fn tenant(&self) -> Tenant {
        let care = &self.spec.lifecycle;
        Tenant {
            mailbox: self.own_mailbox.clone(),
            gauges: self.gauges.clone(),
            kept: care.start == Start::AtBoot || care.keep_alive == KeepAlive::Forever,
            leaving: false,
        }
    }

    /// It was asked to make room, and is in use.
    pub(super) fn stay(&self) {
        if let Some(seat) = &self.seat {
            seat.stay();
        }
    }

    /// Nobody made room for it in time. That is no failure of its own, so it costs no restart.
    fn no_room(&mut self) -> State {
        let (server, seats) = (&self.spec.id, self.around.room.seats());
        let message = format!("there is no room for `{server}`: {seats} servers are running and in use");
        let hint = "raise `limits.servers-running`, or stop one with `toolcrib stop`";
        let error = Error::new(ErrorKind::CouldNotStart, message).at(server).hint(hint);
        warn!(%server, %error, "stays asleep");
        self.note(&error);
        self.refuse_waiters(&error);
        State::Asleep
    }

    fn outgrown(&self, used: u64, verdict: Verdict) -> Error {
        let (server, used) = (&self.spec.id, scales::size(used));
        let error =
            |message| Error::new(ErrorKind::Lost, message).at(server).of_class(FailureClass::OverMemory);
        match verdict {
            Verdict::Heaviest { may } => {
                let all = scales::size(may);
                error(format!(
                    "`{server}` was stopped: all servers together used more than {all}, and it {used}"
                ))
                .hint("raise `limits.memory`")
            }
            Verdict::TooHeavy { may } => {
                let may = scales::size(may);
                error(format!("`{server}` was stopped: it used {used} of memory, and may use {may}"))
                    .hint(format!("raise `servers.{server}.lifecycle.memory.hard`"))
            }
            Verdict::Recycle | Verdict::MakeRoom => self.stopped(),
        }
    }
}
