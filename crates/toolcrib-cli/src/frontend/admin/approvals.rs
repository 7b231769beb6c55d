//! What waits for a person: tools that are not what was approved, and calls whose clients could not be asked.

use hyper::StatusCode;
use serde_json::{Value, json};
use toolcrib::OpenCall;

use super::{Admin, Told, failed};
use crate::commands::approve::to_json;
use crate::percent;

impl Admin {
    /// The tools of a server that are not what was approved, and what was.
    pub(super) async fn unapproved(&self, name: &str) -> Told {
        let looked = match self.find(name) {
            Ok(server) => self.0.crib.unapproved(&server).await,
            Err(error) => Err(error),
        };
        match looked {
            Ok(open) => (StatusCode::OK, to_json(&open)),
            Err(error) => failed(&error),
        }
    }

    /// Calls that need a yes.
    pub(super) fn open_calls(&self) -> Told {
        let calls: Vec<Value> = self.0.crib.open_calls().iter().map(call_json).collect();
        (StatusCode::OK, json!({"calls": calls}))
    }

    /// Says yes to one of them.
    pub(super) fn allow(&self, id: &str) -> Told {
        match self.0.crib.decide(id, true) {
            Ok(call) => (StatusCode::OK, call_json(&call)),
            Err(error) => failed(&error),
        }
    }

    /// Approves those that the `seal` stands for.
    pub(super) async fn approve(&self, name: &str, query: Option<&str>) -> Told {
        let seal = percent::query(query, "seal").unwrap_or_default();
        let (crib, server) = (self.0.crib.clone(), self.find(name));
        // A file is written, and no call should wait for that.
        let approving = tokio::task::spawn_blocking(move || crib.approve(&server?, &seal));
        match approving.await {
            Ok(Ok(approved)) => (StatusCode::OK, json!({"server": name, "approved": approved})),
            Ok(Err(error)) => failed(&error),
            Err(panic) => {
                (StatusCode::INTERNAL_SERVER_ERROR, json!({"error": {"message": panic.to_string()}}))
            }
        }
    }
}

/// A call that needs a yes, as scripts see it.
pub(crate) fn call_json(call: &OpenCall) -> Value {
    json!({
        "id": call.id,
        "caller": call.caller.as_str(),
        "server": call.server.as_str(),
        "name": call.name,
        "arguments": call.arguments,
    })
}

/// Whether a request says a person's yes: for that somebody must have come by the gateway's own socket, or with a token.
/// Any program on this machine can reach the address, and a server that fetches pages is one.
pub(crate) fn is_a_yes(path: &str) -> bool {
    path.starts_with("/api/v1/") && path.trim_end_matches('/').ends_with("/approve")
}
