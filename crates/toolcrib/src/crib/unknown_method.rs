//! Answers to methods that a server does not know.

use super::Crib;
use crate::call::Call;
use crate::model::outcome::Outcome;
use crate::model::selector::Selector;

impl Crib {
    /// Returns the answer of a server to a method that it does not know, without sending the method of the call to it. The
    /// selector of the call names the server. Returns `None` if the server is hidden from the caller, does not run or
    /// does not answer such requests.
    ///
    /// # Cancel safety
    /// Dropping the future cancels what was requested from the server.
    pub async fn answer_unknown_method(&self, mut call: Call) -> Option<Outcome> {
        let Selector::OnServer(server, _) = call.selector.clone() else { return None };
        if !self.can_see(&call.caller, &server) {
            return None;
        }
        let entry = self.registered(&server).ok()?;
        self.inner.introduce_client(&mut call);
        if !entry.is_listable(&call).await {
            return None;
        }
        let _in_flight = self.inner.in_flight.token();
        let lease = self.router().registry.lease(&server, &call).await.ok()?;
        lease.connection().answer_unknown_method(call.method()).await
    }
}
