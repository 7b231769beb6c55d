//! Stateless requests that name something which only one replica has.

use bytes::Bytes;
use toolcrib::protocol::era::input::REQUEST_STATE;
use toolcrib::protocol::jsonrpc::ClientMessage;
use toolcrib::store::OwnedKind;

use super::McpService;
use super::result_budget::named_result;

/// The owner of what a request names.
pub(crate) struct OwnedRequest {
    /// The address of the replica.
    pub(crate) owner: String,
    /// True for a suspended call, false for a stored result.
    pub(crate) is_call: bool,
}

impl McpService {
    /// Returns the replica that has the suspended call or the stored result which a request names.
    pub(crate) fn find_owned(&self, body: &Bytes) -> Option<OwnedRequest> {
        // Part of every name with an owner. Most requests have none.
        if !body.contains(&b'~') {
            return None;
        }
        let parsed = ClientMessage::parse_with_params(body).ok()?;
        let ClientMessage::Request { method, .. } = parsed.message else { return None };
        let params = parsed.params?.ok()?;
        if let Some(state) = params.get_string(REQUEST_STATE) {
            let owner = self.crib.suspended_call_owner(&state)?;
            return Some(OwnedRequest { owner, is_call: true });
        }
        let result = named_result(&method, &params).filter(|_| self.crib.limits_results())?;
        let owner = self.crib.replica()?.owner(OwnedKind::Result, &result)?;
        Some(OwnedRequest { owner, is_call: false })
    }
}
