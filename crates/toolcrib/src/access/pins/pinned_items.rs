//! Checks calls against the pins of a server with strict pinning.

use std::sync::Arc;

use super::{Pins, offered_item};
use crate::model::error::{Error, ErrorKind};
use crate::model::hint::Hint;
use crate::model::listing::Listing;
use crate::model::pin_status::PinStatus;
use crate::protocol::list_kind::ListKind;
use crate::spec::ServerId;

/// The pins that calls through a lease are checked against, for a server with strict pinning.
#[derive(Debug, Clone)]
pub(crate) struct PinnedItems {
    pub(crate) pins: Arc<Pins>,
    /// The listing of the process behind the lease.
    pub(crate) listing: Arc<Listing>,
}

impl PinnedItems {
    /// Fails unless the item that a call uses is approved. A resource need not be listed; tools and prompts must.
    pub(crate) async fn check_call(&self, server: &ServerId, method: &str, name: &str) -> Result<(), Error> {
        let list = match method {
            "tools/call" => ListKind::Tools,
            "prompts/get" => ListKind::Prompts,
            "resources/read" => ListKind::Resources,
            _ => return Ok(()),
        };
        let Some(listed) = self.listing.items(list).iter().find(|listed| *listed.name == *name) else {
            let message = format!("Unknown {}: {name}", list.item_noun());
            let error = Error::new(ErrorKind::Unknown, message).with_server(server);
            return if list == ListKind::Resources { Ok(()) } else { Err(error) };
        };
        if self.pins.check_item(list, listed).is_none() {
            return Ok(());
        }
        // The item may have been approved through another process. Boxed, because hardly any call gets here.
        if self.pins.store.is_shared() {
            let loaded = Box::pin(self.pins.load(&self.listing)).await;
            loaded.map_err(|error| self.pins.store_error(&error))?;
        }
        match self.pins.lock_and_reload().check(&offered_item(list, listed)) {
            None => Ok(()),
            Some((status, _)) => Err(withheld_error(server, name, status)),
        }
    }
}

/// Returns the error for a call that uses an unapproved item.
pub(crate) fn withheld_error(server: &ServerId, name: &str, status: PinStatus) -> Error {
    let reason = match status {
        PinStatus::New => "it is new and not approved",
        PinStatus::Changed => "its definition has changed since it was approved",
    };
    let message = format!("`{server}.{name}` is withheld: {reason}");
    let hint = Hint::ApproveTools { server: server.clone() };
    Error::new(ErrorKind::Denied, message).with_server(server).with_hint(hint)
}
