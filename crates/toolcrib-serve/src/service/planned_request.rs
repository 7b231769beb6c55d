//! The way a request is answered, which is decided when it arrives. The context of a request ends there, so that the future of
//! the response is small: one exists per request in progress.

use std::future::Future;
use std::pin::Pin;

use toolcrib::protocol::era::adapt_response_for_client;
use toolcrib::protocol::era::client;
use toolcrib::protocol::json::object::Object;
use toolcrib::protocol::jsonrpc::ResponsePayload;
use toolcrib::protocol::versions::Era;
use toolcrib::{Call, Selector};

use super::methods::{self, MethodAction};
use super::result_budget::BudgetedCall;
use super::search_tools::SearchTool;
use super::{McpService, RequestContext, adapt_outcome, error_as_tool_result};

/// A request that waits to be answered.
pub(crate) struct PlannedRequest<'a> {
    service: &'a McpService,
    plan: Plan<'a>,
}

/// The way a request is answered.
enum Plan<'a> {
    Call(PlannedCall<'a>),
    /// The response is known.
    Answered(ResponsePayload),
    /// Anything but a call, boxed to keep the future of a call small.
    Other(Pin<Box<dyn Future<Output = ResponsePayload> + Send + 'a>>),
}

/// A call to a server.
pub(super) struct PlannedCall<'a> {
    call: Box<Call>,
    method: &'a str,
    era: Era,
    budgeted: Option<Box<BudgetedCall>>,
}

impl<'a> Plan<'a> {
    fn other(answer: impl Future<Output = ResponsePayload> + Send + 'a) -> Self {
        Self::Other(Box::pin(answer))
    }
}

impl McpService {
    /// Decides how a request is answered.
    pub(crate) fn plan<'a>(
        &'a self,
        context: RequestContext,
        method: &'a str,
        params: Option<Object>,
    ) -> PlannedRequest<'a> {
        let plan = self.plan_answer(context, method, params.unwrap_or_default());
        PlannedRequest { service: self, plan }
    }

    /// Creates a call to the server that a selector names.
    pub(super) fn plan_call<'a>(
        &self,
        context: RequestContext,
        method: &'a str,
        selector: Selector,
        params: Object,
    ) -> PlannedCall<'a> {
        let era = context.client.era;
        let budgeted = self.budgeted_call(&context.scope, method, &selector);
        let call = Box::new(context.call(methods::to_static(method), selector, params));
        PlannedCall { call, method, era, budgeted }
    }

    fn plan_answer<'a>(&'a self, context: RequestContext, method: &'a str, mut params: Object) -> Plan<'a> {
        if method == "tools/call"
            && let Some(tool) = self.find_search_tool(&context.scope, &params)
        {
            if tool != SearchTool::Call {
                return Plan::other(async move { self.answer_search_tool(&context, tool, &params).await });
            }
            if let Err(response) = self.unwrap_call(&context, &mut params) {
                return Plan::Answered(response);
            }
        }
        if self.crib.limits_results()
            && let Some(requested) = self.find_stored_request(&context.scope, method, &params)
        {
            return Plan::other(async move { self.answer_stored_result(&context, requested, &params).await });
        }
        let era = context.client.era;
        match methods::classify(&context.scope.view, era, method, &params) {
            Ok(MethodAction::Forward(selector)) => {
                Plan::Call(self.plan_call(context, method, selector, params))
            }
            Ok(MethodAction::Extension) => Plan::other(self.forward_extension(context, method, params)),
            Ok(MethodAction::ListSkills) => Plan::other(async move { self.list_skills(&context).await }),
            Ok(MethodAction::List(kind)) => {
                Plan::other(async move { self.list(context, kind, params).await.0 })
            }
            Ok(MethodAction::ListTasks) => {
                Plan::other(async move { self.list_tasks(&context, &params).await })
            }
            Ok(MethodAction::Discover) => {
                Plan::other(
                    async move { ResponsePayload::Result(self.discover_result(&context.scope).await) },
                )
            }
            Ok(MethodAction::Empty) => Plan::Answered(ResponsePayload::Result(client::empty_result(era))),
            Err(response) => Plan::Answered(response),
        }
    }
}

impl PlannedRequest<'_> {
    /// Answers the request. Dropping the future cancels it.
    pub(crate) async fn respond(self) -> ResponsePayload {
        match self.plan {
            Plan::Call(call) => call.make(self.service).await,
            Plan::Answered(response) => response,
            Plan::Other(answer) => answer.await,
        }
    }
}

impl PlannedCall<'_> {
    /// Makes the call and encodes its outcome.
    pub(super) async fn make(self, service: &McpService) -> ResponsePayload {
        let Self { call, method, era, budgeted } = self;
        match service.crib.call_boxed(call).await {
            Ok(mut outcome) => {
                if let (Some(budgeted), Some(server)) = (budgeted, &outcome.server) {
                    outcome.answer = Box::pin(service.fit_answer(&budgeted, server, outcome.answer)).await;
                }
                adapt_outcome(outcome, method, era)
            }
            Err(error) if error.is_for_model() && method == "tools/call" => {
                let result = error_as_tool_result(&error, &service.hint_text(&error));
                adapt_response_for_client(result, method, Era::Session, era, None)
            }
            Err(error) => service.error_payload(&error),
        }
    }
}
