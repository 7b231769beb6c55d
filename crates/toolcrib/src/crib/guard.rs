//! The embedder's guard of a running crib.

use std::sync::Arc;

use super::Crib;
use crate::access::policy::{Guard, GuardVerdict};
use crate::model::caller::Caller;
use crate::spec::ServerId;

impl Crib {
    /// Sets or replaces the guard of [`CribBuilder::guard`](crate::CribBuilder::guard) from the next list and the next call
    /// on. Calls in flight go on.
    ///
    /// ```
    /// use toolcrib::{Call, Crib, ErrorKind, GuardVerdict, ServerSpec, Toolbox};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let schema = serde_json::json!({"type": "object"});
    /// # let tools = Toolbox::new().tool("write", "", &schema, |_| async { Ok("written".to_owned()) });
    /// let crib = Crib::builder().server(ServerSpec::in_process("files".parse()?, tools)).build()?;
    /// crib.set_guard(|_caller, _server, name| match name {
    ///     Some("write") => GuardVerdict::Deny("the disk is full".to_owned()),
    ///     _ => GuardVerdict::Allow,
    /// });
    /// let denied = crib.call(Call::tool("files__write")).await.unwrap_err();
    /// assert_eq!(denied.kind(), ErrorKind::Denied);
    /// crib.clear_guard();
    /// assert_eq!(crib.call(Call::tool("files__write")).await?.text(), "written");
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_guard<F>(&self, guard: F)
    where
        F: Fn(&Caller, &ServerId, Option<&str>) -> GuardVerdict + Send + Sync + 'static,
    {
        self.replace_guard(Some(Arc::new(guard)));
    }

    /// Removes the guard from the next list and the next call on. A server that it kept from starting with the crib starts
    /// with its first call.
    pub fn clear_guard(&self) {
        self.replace_guard(None);
    }

    fn replace_guard(&self, guard: Option<Guard>) {
        self.router().visible_catalogs.set_guard(guard);
        // Publishes the catalog again, so that watchers list again.
        self.router().services.listing_changes.report();
    }
}
