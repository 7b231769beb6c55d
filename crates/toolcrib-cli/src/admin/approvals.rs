//! Approvals in the admin API: changed tool definitions, and calls that wait for a decision.

use hyper::Method;
use toolcrib::Caller;
use toolcrib_serve::{AdminReply, AdminRequest, query_value};

use super::Admin;
use super::errors::{failure_reply, forbidden_reply};
use crate::history::GatewayEvent;
use crate::report::Report as _;
use crate::report::approvals::{
    ApprovedToolsReport, PendingCallReport, PendingCallsReport, UnapprovedToolsReport,
};

impl Admin {
    /// Handles a request about approvals; `None` for any other path.
    pub(super) async fn respond_approvals(
        &self,
        request: &AdminRequest<'_>,
        path: &[&str],
    ) -> Option<AdminReply> {
        let method = request.method;
        let get = method == Method::GET;
        let post = method == Method::POST;
        Some(match path {
            ["api", "v1", "approvals"] if get => self.pending_calls().await,
            ["api", "v1", "calls", _, "approve" | "deny"] | ["api", "v1", "servers", _, "approve"]
                if post && !request.can_approve =>
            {
                forbidden_reply(
                    "approvals are not accepted here; run `toolcrib ui`, `toolcrib approve SERVER` or \
                     `toolcrib approve --call ID`",
                )
            }
            ["api", "v1", "calls", id, "deny"] if post => self.deny_call(id).await,
            ["api", "v1", "calls", id, "approve"] if post => self.approve_call(request.caller, id).await,
            ["api", "v1", "servers", server, "unapproved"] if get => self.unapproved_tools(server).await,
            ["api", "v1", "servers", server, "approve"] if post => self.approve_tools(request, server).await,
            _ => return None,
        })
    }

    /// Lists the tools of a server whose definitions are not approved.
    async fn unapproved_tools(&self, name: &str) -> AdminReply {
        let unapproved = match self.parse_server(name) {
            Ok(server) => self.crib().unapproved(&server).await,
            Err(error) => Err(error),
        };
        match unapproved {
            Ok(unapproved) => AdminReply::ok(UnapprovedToolsReport::new(&unapproved).to_json()),
            Err(error) => failure_reply(&error),
        }
    }

    /// Lists the calls that wait for approval.
    async fn pending_calls(&self) -> AdminReply {
        let calls = self.crib().pending_approvals().await.iter().map(PendingCallReport::new).collect();
        AdminReply::ok(PendingCallsReport { calls }.to_json())
    }

    /// Approves one call.
    async fn approve_call(&self, caller: &Caller, id: &str) -> AdminReply {
        match self.crib().decide_approval(id, true).await {
            Ok(call) => {
                let message =
                    format!("`{}` approved a call of `{}.{}`", caller.as_str(), call.server, call.name);
                self.record_approval(caller, call.server.as_str(), &message);
                AdminReply::ok(PendingCallReport::new(&call).to_json())
            }
            Err(error) => failure_reply(&error),
        }
    }

    /// Denies one call.
    async fn deny_call(&self, id: &str) -> AdminReply {
        match self.crib().decide_approval(id, false).await {
            Ok(call) => AdminReply::ok(PendingCallReport::new(&call).to_json()),
            Err(error) => failure_reply(&error),
        }
    }

    /// Approves the tool definitions that the `seal` identifies.
    async fn approve_tools(&self, request: &AdminRequest<'_>, name: &str) -> AdminReply {
        let seal = query_value(request.query, "seal").unwrap_or_default();
        let approved = match self.parse_server(name) {
            Ok(server) => self.crib().approve(&server, &seal).await,
            Err(error) => Err(error),
        };
        match approved {
            Ok(approved) => {
                let caller = request.caller;
                let message = format!("`{}` approved {} of `{name}`", caller.as_str(), approved.join(", "));
                self.record_approval(caller, name, &message);
                AdminReply::ok(ApprovedToolsReport { server: name.to_owned(), approved }.to_json())
            }
            Err(error) => failure_reply(&error),
        }
    }

    fn record_approval(&self, caller: &Caller, server: &str, message: &str) {
        let caller = caller.as_str();
        self.gateway.history().record(GatewayEvent { kind: "approval_given", server, caller, message });
    }
}
