//! What waits for a person: tools that are not what was approved, and calls whose clients could not be asked.

use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use toolcrib::OpenCall;

use super::no::{failed, refusal};
use super::{Admin, Told};
use crate::commands::approve::to_json;
use crate::percent;

impl Admin {
    /// Answers a request about what waits for a person; `None` if it is about something else.
    pub(super) async fn ask_person(
        &self,
        method: &Method,
        path: &[&str],
        query: Option<&str>,
    ) -> Option<Told> {
        let (get, post) = (method == Method::GET, method == Method::POST);
        Some(match path {
            ["api", "v1", "calls"] if get => self.open_calls(),
            ["api", "v1", "calls", id, "approve"] if post => self.allow(id),
            ["api", "v1", "servers", server, "unapproved"] if get => self.unapproved(server).await,
            ["api", "v1", "servers", server, "approve"] if post => self.approve(server, query).await,
            ["api", "v1", "calls"]
            | ["api", "v1", "calls", _, "approve"]
            | ["api", "v1", "servers", _, "unapproved" | "approve"] => refusal(
                StatusCode::METHOD_NOT_ALLOWED,
                &format!("`/{}` does not take {method}", path.join("/")),
            ),
            _ => return None,
        })
    }

    /// The tools of a server that are not what was approved, and what was.
    async fn unapproved(&self, name: &str) -> Told {
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
    fn open_calls(&self) -> Told {
        let calls: Vec<Value> = self.0.crib.open_calls().iter().map(call_json).collect();
        (StatusCode::OK, json!({"calls": calls}))
    }

    /// Says yes to one of them.
    fn allow(&self, id: &str) -> Told {
        match self.0.crib.decide(id, true) {
            Ok(call) => (StatusCode::OK, call_json(&call)),
            Err(error) => failed(&error),
        }
    }

    /// Approves those that the `seal` stands for.
    async fn approve(&self, name: &str, query: Option<&str>) -> Told {
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
