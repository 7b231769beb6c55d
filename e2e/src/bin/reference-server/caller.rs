//! `Caller`: the client of a request, its capabilities, and requests to it in its own era.

use std::future::{Future as _, poll_fn};
use std::task::Poll;

use rmcp::model::{
    ClientCapabilities, InputRequest, InputRequests, InputRequiredResult, InputResponses, LoggingLevel,
    ProtocolVersion, ServerRequest,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};

use crate::shared::Shared;

/// The result of requests to the client.
pub(crate) enum Answer {
    /// Every request was answered.
    Answered(InputResponses),
    /// Stateless era: the client has to retry with the answers.
    InputRequired(InputRequiredResult),
}

pub(crate) struct Caller<'a> {
    pub(crate) context: &'a RequestContext<RoleServer>,
    pub(crate) shared: &'a Shared,
    level: LoggingLevel,
    answers: InputResponses,
    state: Option<String>,
}

pub(crate) fn is_stateless(context: &RequestContext<RoleServer>) -> bool {
    context
        .protocol_version()
        .is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str())
}

impl<'a> Caller<'a> {
    pub(crate) fn new(
        context: &'a RequestContext<RoleServer>,
        shared: &'a Shared,
        level: LoggingLevel,
    ) -> Self {
        Self { context, shared, level, answers: InputResponses::new(), state: None }
    }

    /// Adds the answers and the state of a retried request.
    pub(crate) fn with_retry(mut self, answers: Option<InputResponses>, state: Option<String>) -> Self {
        self.answers = answers.unwrap_or_default();
        self.state = state;
        self
    }

    pub(crate) fn capabilities(&self) -> ClientCapabilities {
        self.context.client_capabilities().unwrap_or_default()
    }

    /// Returns the lowest log level that the caller asked for.
    pub(crate) fn log_level(&self) -> Option<LoggingLevel> {
        if is_stateless(self.context) { self.context.meta.log_level() } else { Some(self.level) }
    }

    /// Returns the state of a retried request, after checking its signature.
    pub(crate) fn state(&self) -> Result<Option<&str>, ErrorData> {
        let Some(signed) = &self.state else { return Ok(None) };
        let state = self.shared.verify(signed);
        state.map(Some).ok_or_else(|| ErrorData::invalid_params("requestState was tampered with", None))
    }

    /// Sends requests to the client: immediately in a session; a stateless client has to retry with the answers, and with
    /// `state` if there is one.
    pub(crate) async fn ask(
        &self,
        requests: InputRequests,
        state: Option<&str>,
    ) -> Result<Answer, ErrorData> {
        let capabilities = self.capabilities();
        requests.values().try_for_each(|request| check_capability(request, &capabilities))?;
        if is_stateless(self.context) {
            self.answer_from_retry(requests, state)
        } else {
            self.send_requests(requests).await
        }
    }

    fn answer_from_retry(&self, requests: InputRequests, state: Option<&str>) -> Result<Answer, ErrorData> {
        self.state()?;
        let answered = |key: &String| self.answers.get(key).is_some_and(serde_json::Value::is_object);
        if requests.keys().all(answered) {
            return Ok(Answer::Answered(self.answers.clone()));
        }
        let signed = state.map(|state| self.shared.sign(state));
        Ok(Answer::InputRequired(InputRequiredResult::new(Some(requests), signed)))
    }

    async fn send_requests(&self, requests: InputRequests) -> Result<Answer, ErrorData> {
        // Concurrently, as in the stateless era.
        let sent = requests.into_iter().map(async |(key, request)| {
            let request = match request {
                InputRequest::CreateMessage(request) => ServerRequest::CreateMessageRequest(request),
                InputRequest::Elicitation(request) => ServerRequest::ElicitRequest(request),
                InputRequest::ListRoots(request) => ServerRequest::ListRootsRequest(request),
                _ => return Err(ErrorData::internal_error("unknown input request", None)),
            };
            let answer = self.context.peer.send_request(request).await;
            let answer = answer.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
            let answer = serde_json::to_value(answer);
            Ok((key, answer.map_err(|error| ErrorData::internal_error(error.to_string(), None))?))
        });
        let mut waiting: Vec<_> = sent.map(Box::pin).collect();
        let mut answers = InputResponses::new();
        poll_fn(|context| {
            let mut index = 0;
            while let Some(request) = waiting.get_mut(index) {
                match request.as_mut().poll(context) {
                    Poll::Pending => index += 1,
                    Poll::Ready(answer) => {
                        let (key, answer) = answer?;
                        answers.insert(key, answer);
                        drop(waiting.swap_remove(index));
                    }
                }
            }
            if waiting.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending }
        })
        .await?;
        Ok(Answer::Answered(answers))
    }
}

/// Returns an error unless the client has the capability that this request needs.
fn check_capability(request: &InputRequest, capabilities: &ClientCapabilities) -> Result<(), ErrorData> {
    let builder = ClientCapabilities::builder();
    let missing = match request {
        InputRequest::CreateMessage(_) if capabilities.sampling.is_none() => {
            builder.enable_sampling().build()
        }
        InputRequest::Elicitation(_) if capabilities.elicitation.is_none() => {
            builder.enable_elicitation().build()
        }
        InputRequest::ListRoots(_) if capabilities.roots.is_none() => builder.enable_roots().build(),
        _ => return Ok(()),
    };
    Err(ErrorData::missing_required_client_capability(missing))
}
