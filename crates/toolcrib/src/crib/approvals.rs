//! What waits for a person: tools that are not what was approved, and calls whose clients could not be asked.

use std::sync::Arc;

use tokio::time::Instant;

use super::Crib;
use crate::approval::OpenCall;
use crate::error::Error;
use crate::pins::{Pins, Unapproved};
use crate::registry::Entry;
use crate::spec::ServerId;

impl Crib {
    /// The tools of a server that are not what was approved, with what was. A server that was never seen is started.
    /// Reads a file.
    pub async fn unapproved(&self, server: &ServerId) -> Result<Unapproved, Error> {
        let entry = self.entry(server)?;
        match self.stock().meet(std::slice::from_ref(&entry)).await.pop().flatten() {
            Some(failure) => Err(failure),
            None => Ok(self.pins(&entry).map(|pins| pins.unapproved()).unwrap_or_default()),
        }
    }

    /// Approves the tools that [`Unapproved::seal`] stands for, and says which those are. Nothing is approved if the
    /// server offers something else by now. Writes a file.
    pub fn approve(&self, server: &ServerId, seal: &str) -> Result<Vec<String>, Error> {
        let pins = self.pins(&self.entry(server)?);
        let approved = pins.map_or_else(|| Ok(Vec::new()), |pins| pins.approve(server, seal));
        self.stock().around.offers.notify_one();
        approved
    }

    /// Calls that need a person's yes by the rules, and whose clients could not be asked.
    pub fn open_calls(&self) -> Vec<OpenCall> {
        self.stock().approvals.waiting(Instant::now())
    }

    /// Says yes or no to one of [`Crib::open_calls`]: the same call, made again within five minutes, is let through or
    /// not. A call that is not open any more is an error.
    pub fn decide(&self, id: &str, yes: bool) -> Result<OpenCall, Error> {
        let decided = self.stock().approvals.decide(id, yes, Instant::now());
        decided.ok_or_else(|| Error::no_open_call(id))
    }

    fn pins(&self, entry: &Entry) -> Option<Arc<Pins>> {
        self.stock().around.pins.of(entry.spec())
    }
}
